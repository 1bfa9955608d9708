"""What the workers of a run compute on: the Conf, what a process was told, and its machine brought together (layer 5).

A run is a GPU's or a CPU's: ``Conf.kernels`` says which (``cupy``, or not), since different kernels round
differently, and every process follows. Only in a run with ``mixed_devices`` may a process do otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from dl4jlegacy.devices import Device, choose, limit_memory, memory_limit, memory_text, used_memory
from dl4jlegacy.errors import DeviceError, DeviceMemoryError, VersionError
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = ["MIXED", "Compute", "entered", "host_kernels", "join", "on_gpu", "settle"]

GPU_KERNELS = "cupy"
MIXED = (
    "mixed_devices: CPU and GPU workers may both have trained this model; they round differently, so that another run "
    "need not give the same bits"
)
"""What a run with ``mixed_devices`` says of itself."""


@dataclass(frozen=True, slots=True)
class Compute:
    """What the workers of one process compute with: worker i on device i, and round again where there are fewer.

    Attributes:
        devices: of this process, at least one; all GPUs, or the CPU.
        name: of the kernels of its workers.
        precision: of matrix products and convolutions on GPUs.
    """

    devices: tuple[Device, ...]
    name: str
    precision: str = "float32"

    @property
    def on_gpu(self) -> bool:
        """Whether its workers compute on GPUs."""
        return self.devices[0].is_gpu

    @property
    def is_worth_telling(self) -> bool:
        """Whether there is something to be said of the devices: not of a CPU that nobody wanted otherwise."""
        return self.on_gpu or bool(self.devices[0].reason)

    def device(self, worker: int) -> Device:
        """Return the device of this process's ``worker``-th worker."""
        return self.devices[worker % len(self.devices)]

    def kernels(self, worker: int) -> Kernels:
        """Return kernels for this process's ``worker``-th worker; on GPUs they are its own."""
        if not self.on_gpu:
            return load(self.name)
        return load(self.name, device=self.device(worker).index, precision=self.precision)

    def arithmetic(self) -> str:
        """Return what decides the last bits of what GPUs compute: their kind, and the libraries; "" for the CPU."""
        if not self.on_gpu:
            return ""
        kernels: Any = self.kernels(0)
        cuda = kernels.xp.cuda.runtime.runtimeGetVersion()
        return (
            f"{self.devices[0].name}, CUDA {cuda // 1000}.{cuda % 1000 // 10}, CuPy {kernels.xp.__version__}, "
            f"convolutions by {kernels.convolution_path}"
        )

    def used(self, workers: int) -> tuple[Device, ...]:
        """Return the devices that ``workers`` workers use."""
        return self.devices[: max(1, workers)]

    def told(self, workers: int) -> tuple[tuple[int, str, Device], ...]:
        """Return (worker, one line of text, its device) for everything that is worth telling of ``workers`` workers."""
        if not self.is_worth_telling or workers < 1:
            return ()
        if not self.on_gpu:
            return ((0, self.devices[0].text, self.devices[0]),)
        return tuple((worker, self._line(worker, workers), self.device(worker)) for worker in range(workers))

    def _line(self, worker: int, workers: int) -> str:
        device, count = self.device(worker), len(self.devices)
        others = [str(other) for other in range(worker % count, workers, count) if other != worker]
        shared = f", shared with worker {' and '.join(others)}" if others else ""
        limit = used_memory(device)[1]
        return f"{device.text}{f', limited to {memory_text(limit)}' if limit else ''}{shared}"

    def memory(self, worker: int) -> str:
        """Return what a worker's GPU holds of this process, for people: ``gpu:0 1.2 GiB``; "" for the CPU."""
        device = self.device(worker)
        if not device.is_gpu:
            return ""
        used, limit = used_memory(device)
        return f"{device.label} {memory_text(used)}" + (f" of {memory_text(limit)}" if limit else "")


def settle(conf: Conf, *, local: bool = True) -> tuple[Conf, Compute]:
    """Return the Conf of a run whose ``device`` and ``kernels`` are settled, and what this process computes with.

    Args:
        conf: as it was asked for; ``device`` "" means what ``kernels`` says.
        local: whether this process has workers. The master of workers elsewhere needs no GPU.

    Raises:
        DeviceError: the devices cannot be had, or do not go together with kernels, precision or memory limit.
        ConfError, VersionError: there are no such kernels.
    """
    asked = conf.kernels or os.environ.get("DL4J_KERNELS", "")
    choice = conf.device or ("gpu" if asked == GPU_KERNELS else "cpu")
    devices = choose(choice if local or choice == "auto" else "cpu")
    if choice == "auto" and devices[0].is_gpu and asked and asked != GPU_KERNELS:
        devices = (replace(choose("cpu")[0], reason=f"the kernels {asked} are a CPU's"),)
    on_gpu = devices[0].is_gpu or (not local and choice.startswith("gpu"))
    if asked and (asked == GPU_KERNELS) != on_gpu and not conf.mixed_devices:
        raise DeviceError(_contradiction(asked, choice, devices[0]))
    name = asked or (GPU_KERNELS if on_gpu else load(None).name)
    _check_precision(conf, name, devices[0])
    device = "gpu" if on_gpu and choice == "auto" else choice
    if conf.device_memory_limit and choice == "cpu":
        raise DeviceError("--device-memory-limit is for GPUs, and the device is cpu; add --device gpu, or leave it out")
    if local:
        devices = _limited(devices, conf.device_memory_limit)
    return conf.replace(device=device, kernels=name), _compute(conf, name, devices)


def join(conf: Conf, choice: str | None, limit: str = "") -> Compute:
    """Return what a worker computes with that joins the run with ``conf``; ``choice`` None: what the run does.

    Raises:
        DeviceError: it has no such device, or the run is of the other kind and not mixed.
    """
    gpu_run = conf.kernels == GPU_KERNELS
    kind = "gpu" if gpu_run else "cpu"
    told = choice or ("auto" if gpu_run and conf.mixed_devices else kind)
    if told == "auto" and not conf.mixed_devices:
        told = kind
    try:
        devices = choose(told)
    except DeviceError as exc:
        if gpu_run:
            raise DeviceError(f"run {conf.run} computes on GPUs, and this worker cannot join it: {exc}") from exc
        raise
    if devices[0].is_gpu != gpu_run and not conf.mixed_devices:
        raise DeviceError(
            f"run {conf.run} computes on {'GPUs' if gpu_run else 'CPUs'} (kernels {conf.kernels}), this worker on "
            f"{told}: they round differently; leave --device out, or start the run with --mixed-devices"
        )
    return _compute(conf, conf.kernels, _limited(devices, limit))


@contextmanager
def entered(choice: str | None) -> Iterator[tuple[Kernels, Device]]:
    """Enter a device for the calling thread, to use a model on it; yield kernels for it, and the device.

    Of several GPUs it is the first. None means the CPU, or what ``DL4J_KERNELS`` says.

    Raises:
        DeviceError: it cannot be had.
    """
    compute = settle(Conf(device=choice or ""))[1]
    kernels, device = compute.kernels(0), compute.devices[0]
    with on_gpu(kernels, device) if compute.on_gpu else nullcontext():
        yield kernels, device


@contextmanager
def on_gpu(kernels: Any, device: Device) -> Iterator[None]:
    """Enter a GPU for the calling thread, by its kernels.

    Raises:
        DeviceMemoryError: something inside did not fit into its memory.
    """
    try:
        with kernels.use():
            yield
    except MemoryError as exc:  # CuPy's own, of an array that is no buffer of a layer
        used, limit = used_memory(device)
        limited = f", limited to {memory_text(limit)}" if limit else ""
        words = str(exc).rstrip(".")
        raise DeviceMemoryError(
            f"the memory of {device.text} is full: {words}; this process has {memory_text(used)} in use{limited}; take "
            "a smaller --batch-size, fewer workers on one GPU, or a larger --device-memory-limit"
        ) from exc


def agree(tracker: StateTracker, conf: Conf, compute: Compute) -> None:
    """Raise ``VersionError`` if the run's other GPUs round differently from this process's, unless it is mixed.

    The first worker of a run decides.
    """
    ours = compute.arithmetic()
    if not ours or conf.mixed_devices:
        return
    theirs = tracker.define_once("gpu", ours)
    if theirs != ours:
        raise VersionError(
            f"this worker cannot join run {conf.run}: its GPUs are {theirs}, here is {ours}; they round differently: "
            "use GPUs and libraries of one kind (DL4J_CUDNN=0 leaves cuDNN out), or start the run with --mixed-devices"
        )


def host_kernels(name: str) -> Kernels:
    """Return the kernels for what is done in host memory in a run whose kernels are ``name``: these, or a CPU's.

    All CPU kernels average to the same bits.
    """
    if name != GPU_KERNELS:
        return load(name)
    chosen = os.environ.get("DL4J_KERNELS", "")
    if chosen and chosen != GPU_KERNELS:
        return load(chosen)
    try:
        return load("numba")
    except VersionError:
        return load("numpy")


def _compute(conf: Conf, name: str, devices: tuple[Device, ...]) -> Compute:
    """Return what ``devices`` compute with in a run whose kernels are ``name``, or are of the other kind if mixed."""
    if devices[0].is_gpu:
        if len({device.name for device in devices}) > 1 and not conf.mixed_devices:
            found = ", ".join(f"{device.label} is {device.name}" for device in devices)
            raise DeviceError(
                f"{found}: they round differently; choose one with --device gpu:N, show equal ones with "
                "CUDA_VISIBLE_DEVICES, or add --mixed-devices"
            )
        return Compute(devices, GPU_KERNELS, conf.precision)
    return Compute(devices, host_kernels(name).name)


def _contradiction(asked: str, choice: str, device: Device) -> str:
    if asked == GPU_KERNELS:
        why = f": {device.reason}" if device.reason else ""
        return (
            f"this run computes on GPUs (its kernels are cupy), and the device is {choice}{why}; choose --device gpu, "
            "or begin a run of its own for the CPU, or a mixed one with --mixed-devices"
        )
    return (
        f"this run computes on CPUs (its kernels are {asked}), and the device is {choice}; choose --device cpu, or "
        "leave the kernels out (DL4J_KERNELS, Conf.kernels), or begin a new run with --device gpu"
    )


def _check_precision(conf: Conf, kernels: str, device: Device) -> None:
    if conf.precision != "float32" and kernels != GPU_KERNELS:
        why = f" ({device.reason})" if device.reason else ""
        raise DeviceError(
            f"precision {conf.precision} is computed on GPUs only, and this run computes on the CPU{why}; add "
            "--device gpu, or leave --precision out"
        )


def _limited(devices: tuple[Device, ...], limit: str) -> tuple[Device, ...]:
    """Set the limit of every GPU; a limit on a CPU that stands in for GPUs means nothing."""
    for device in devices:
        if device.is_gpu and limit:
            limit_memory(device, memory_limit(limit))
    return devices
