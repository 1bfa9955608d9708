"""Chooses the devices and kernels of a process, from the ``Conf``, the process's options and its machine.

A run computes on GPUs or on CPUs, as ``Conf.kernels`` says (``cupy``, or another). Different kernels round differently,
so every process must use the same. Only in a run with ``mixed_devices`` may a process differ.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dl4jlegacy.arrays.devices import Device, choose, limit_memory, memory_limit, memory_text, used_memory
from dl4jlegacy.errors import DeviceError, DeviceMemoryError, TrackerError, VersionError
from dl4jlegacy.kernels import load, load_for_host
from dl4jlegacy.kernels.arithmetic import cpu_arithmetic
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.compiling.compile_ahead import compiling_ahead
from dl4jlegacy.nn.compiling.self_check import training_digest
from dl4jlegacy.nn.network.input_rows import narrow_conf
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.state.job import Job, Result
from dl4jlegacy.scaleout.strategies.row_averaging import ROW_AVERAGING
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.perform import WorkerPerformer
from dl4jlegacy.version import __version__

__all__ = [
    "ARITHMETIC",
    "MIXED",
    "Compute",
    "OnDevice",
    "RunArithmetic",
    "check_same_arithmetic",
    "compute_for_worker",
    "host_kernels",
    "resolve_compute",
    "use_device",
    "using_gpu",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

GPU_KERNELS = "cupy"
ARITHMETIC = "arithmetic"
"""Global of the run: the arithmetic of the processes that train it (``Compute.arithmetic``)."""
_ALIKE = {
    GPU_KERNELS: "DL4J_CUDNN=0 leaves cuDNN out",
    "numpy": "on x86, OPENBLAS_CORETYPE and NPY_DISABLE_CPU_FEATURES make unlike ones alike, see docs/mixed-cpus.md",
    "numba": "install the same dl4jlegacy, NumPy and Numba everywhere, see docs/mixed-cpus.md",
}
MIXED = (
    "mixed_devices: devices of several kinds may have trained this model; they round differently, so that another run "
    "need not give the same bits"
)
"""The warning in the report of a run with ``mixed_devices``."""


@dataclass(frozen=True, slots=True)
class Compute:
    """The devices and kernels of the workers of one process: worker i uses device i, modulo the number of devices.

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
        """True if the workers compute on GPUs."""
        return self.devices[0].is_gpu

    @property
    def is_notable(self) -> bool:
        """True if the report should mention devices (any GPU, or a CPU fallback)."""
        return self.on_gpu or bool(self.devices[0].reason)

    def device(self, worker: int) -> Device:
        """Return the device of the process's ``worker``-th worker."""
        return self.devices[worker % len(self.devices)]

    def kernels(self, worker: int) -> Kernels:
        """Return kernels for the process's ``worker``-th worker; on a GPU, each worker has its own."""
        if not self.on_gpu:
            return load(self.name)
        return load(self.name, device=self.device(worker).index, precision=self.precision)

    def arithmetic(self) -> dict[str, str]:
        """Return what determines the last bits of results (device, libraries, kernels), by the name of each part."""
        if not self.on_gpu:
            return cpu_arithmetic(self.name)
        kernels: Any = self.kernels(0)
        cuda = kernels.xp.cuda.runtime.runtimeGetVersion()
        return {
            "dl4jlegacy": __version__,
            "GPU": self.devices[0].name,
            "CUDA": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "CuPy": kernels.xp.__version__,
            "convolutions": kernels.convolution_path,
        }

    def devices_of(self, workers: int) -> tuple[Device, ...]:
        """Return the devices that ``workers`` workers use."""
        return self.devices[: max(1, workers)]

    def describe(self, workers: int) -> tuple[tuple[int, str, Device], ...]:
        """Return (worker, one line of text, its device) for each of ``workers`` workers to be reported."""
        if not self.is_notable or workers < 1:
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
        """Return how much memory this process uses on a worker's GPU, as text: ``gpu:0 1.2 GiB``; "" for the CPU."""
        device = self.device(worker)
        if not device.is_gpu:
            return ""
        used, limit = used_memory(device)
        return f"{device.label} {memory_text(used)}" + (f" of {memory_text(limit)}" if limit else "")


def resolve_compute(conf: Conf, *, local: bool = True) -> tuple[Conf, Compute]:
    """Return the Conf with ``device`` and ``kernels`` filled in, and the ``Compute`` of this process.

    A Conf that was resolved before is returned unchanged.

    Args:
        conf: the user's; if ``device`` is "", ``kernels`` decides.
        local: whether this process has workers. A master whose workers are elsewhere needs no GPU.

    Raises:
        DeviceError: the devices are not available, or do not match kernels, precision or memory limit.
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


def compute_for_worker(conf: Conf, choice: str | None, limit: str = "") -> Compute:
    """Return the ``Compute`` of a worker that joins the run; ``choice`` None: the kind of device that the run uses.

    Raises:
        DeviceError: the worker has no such device, or the run uses the other kind and is not mixed.
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
def use_device(choice: str | None) -> Iterator[tuple[Kernels, Device]]:
    """Select a device for the calling thread, to run a model on it; yield kernels for it, and the device.

    ``choice`` is one of ``devices.CHOICES`` (of several GPUs the first is used); None: as ``DL4J_KERNELS`` says, or the
    CPU.

    Raises:
        DeviceError: the device is not available.
    """
    compute = resolve_compute(Conf(device=choice or ""))[1]
    kernels, device = compute.kernels(0), compute.devices[0]
    with using_gpu(kernels, device) if compute.on_gpu else nullcontext():
        yield kernels, device


@contextmanager
def using_gpu(kernels: Any, device: Device) -> Iterator[None]:
    """Select a GPU for the calling thread, through its kernels.

    Raises:
        DeviceMemoryError: an allocation inside did not fit into the GPU's memory.
    """
    try:
        with kernels.use():
            yield
    except MemoryError as exc:  # CuPy's own error, for an array that is not a layer's buffer
        used, limit = used_memory(device)
        limited = f", limited to {memory_text(limit)}" if limit else ""
        words = str(exc).rstrip(".")
        raise DeviceMemoryError(
            f"the memory of {device.text} is full: {words}; this process has {memory_text(used)} in use{limited}; take "
            "a smaller --batch-size, fewer workers on one GPU, or a larger --device-memory-limit"
        ) from exc


class OnDevice:
    """A ``WorkerPerformer`` whose calls all run on a GPU.

    Performers do not handle devices: the current GPU and stream belong to a thread.

    Args:
        make: makes the performer; called at once, on the GPU.
        kernels: of the performer; their ``use()`` selects the GPU for the calling thread.
        device: the GPU.

    Raises:
        DeviceMemoryError: from every call for which the GPU's memory is too small.
    """

    def __init__(self, make: Callable[[], WorkerPerformer], kernels: Any, device: Device) -> None:
        self._kernels, self._device = kernels, device
        self._performer = self._on_gpu(make)

    @property
    def progress(self) -> int:
        """See ``WorkerPerformer``."""
        return self._performer.progress

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``."""
        self._on_gpu(lambda: self._performer.update(model))

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``."""
        return self._on_gpu(lambda: self._performer.perform(job))

    def _on_gpu(self, call: Callable[[], T]) -> T:
        with using_gpu(self._kernels, self._device):
            return call()


def check_same_arithmetic(tracker: StateTracker, conf: Conf, compute: Compute) -> str:
    """Check that this process rounds like the other workers of the run; return the differences if the run is mixed.

    The first worker of a run sets the reference; in a run resumed from a checkpoint, the arithmetic that made the
    checkpoint does. Devices of the other kind differ in every part, which is not reported. On a CPU, the run's network
    is trained briefly, which uses every kernel that its jobs will use.

    Raises:
        VersionError: this process rounds differently, and the run is not mixed.
    """
    if compute.on_gpu or conf.network_conf is None:
        ours = compute.arithmetic()
    else:
        kernels, network = compute.kernels(0), conf.network_conf
        if conf.router == ROW_AVERAGING and conf.multi_layer_conf is not None:
            network = narrow_conf(conf.multi_layer_conf, 0)  # the trained part: the whole may not fit into memory twice
        with compiling_ahead(network, kernels):
            ours = {**compute.arithmetic(), "training": training_digest(network, kernels)}
    found = tracker.define_once(ARITHMETIC, ours)
    theirs = found if isinstance(found, dict) else {}
    if conf.mixed_devices and theirs.keys() != ours.keys():
        return ""
    different = [
        f"{part} is {theirs.get(part, 'unknown')} in the run and {ours.get(part, 'not in use')} here"
        for part in {**theirs, **ours}
        if theirs.get(part) != ours.get(part)
    ]
    what = "; ".join(different)
    if not different:
        return ""
    if conf.mixed_devices:
        logger.warning("run %s is computed on devices of several kinds: %s", conf.run, what)
        return what
    kind = "GPUs" if compute.on_gpu else "CPUs"
    raise VersionError(
        f"run {conf.run} cannot be computed on here: {what}; results would differ in their last bits: use {kind} and "
        f"libraries of one kind ({_ALIKE[compute.name]}), or begin or resume the run with --mixed-devices, which "
        "gives the equal bits up"
    )


class RunArithmetic:
    """The arithmetic of the processes that train a run, cached once the tracker has it. For one thread at a time.

    Args:
        tracker: of the run.
    """

    def __init__(self, tracker: StateTracker) -> None:
        self._tracker = tracker
        self._known: Any = None

    def __call__(self) -> dict[str, str]:
        """Return the arithmetic by part; empty while no worker has joined or the tracker does not answer."""
        if self._known is None:
            with contextlib.suppress(TrackerError):
                self._known = self._tracker.get(ARITHMETIC)
        return self._known if isinstance(self._known, dict) else {}


def host_kernels(name: str) -> Kernels:
    """Return the kernels for host memory in a run with kernels ``name``: the same, or CPU kernels in a GPU run.

    All CPU kernels average to the same bits.
    """
    return load_for_host() if name == GPU_KERNELS else load(name)


def _compute(conf: Conf, name: str, devices: tuple[Device, ...]) -> Compute:
    """Return the ``Compute`` of ``devices`` in a run with kernels ``name``; in a mixed run the kinds may differ."""
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
    """Limit the memory of every GPU; a CPU that is used because there is no GPU ignores the limit."""
    for device in devices:
        if device.is_gpu and limit:
            limit_memory(device, memory_limit(limit))
    return devices
