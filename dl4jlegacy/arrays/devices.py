"""Devices: the CPU or GPUs of a process, and the reason why a GPU cannot be used.

``choose("gpu")`` checks in this order: CuPy, the driver, the number of GPUs, and a trial on each GPU (compilation of a
kernel, a matrix product), since a driver can be installed without the libraries. The error of the first failed check
has its remedy; this module raises only ``DeviceError`` and ``UsageError``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import import_cupy
from dl4jlegacy.errors import DeviceError, UsageError, how_to_install, nearest
from dl4jlegacy.system.clock import Deadline

__all__ = [
    "CHOICES",
    "PRECISIONS",
    "Device",
    "check_choice",
    "choose",
    "current_device",
    "limit_memory",
    "memory_limit",
    "memory_text",
    "used_memory",
]

CHOICES = ("auto", "cpu", "gpu", "gpu:N")
"""Valid choices for ``choose``."""

PRECISIONS = ("float32", "tf32", "bf16")
"""Precisions of matrix products and convolutions on a GPU; arrays are always float32."""

PACKAGES = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")
"""Packages that all contain a module called cupy, so that only one of them can be installed."""

_INSTALL = f"{how_to_install('gpu', 'gpu13')} (CUDA 12 or 13)"

_TRIAL_SECONDS = 60.0
_TRIAL = 'extern "C" __global__ void dl4j_trial(float* x) { x[threadIdx.x] = threadIdx.x + 1; }'

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True, slots=True)
class Device:
    """A compute device: the CPU, or one GPU.

    Attributes:
        kind: ``"cpu"`` or ``"gpu"``.
        index: CUDA's number of the GPU in this process (renumbered by ``CUDA_VISIBLE_DEVICES``); 0 for the CPU.
        name: the manufacturer's name.
        uuid: ``GPU-...``, the same in every process and after every start; "" if unknown.
        memory: bytes; 0 if unknown.
        compute_capability: CUDA's, such as ``9.0``; "" for the CPU.
        reason: the reason for the CPU if ``auto`` found no usable GPU.
    """

    kind: str = "cpu"
    index: int = 0
    name: str = ""
    uuid: str = ""
    memory: int = 0
    compute_capability: str = ""
    reason: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether this is a GPU."""
        return self.kind == "gpu"

    @property
    def label(self) -> str:
        """``cpu`` or ``gpu:0``: the choice that selects this device."""
        return f"gpu:{self.index}" if self.is_gpu else "cpu"

    @property
    def text(self) -> str:
        """One line for people: ``gpu:0 NVIDIA H100 80GB HBM3, GPU-5ae7..., 79.1 GiB, compute capability 9.0``."""
        capability = f"compute capability {self.compute_capability}" if self.compute_capability else ""
        details = [self.uuid, memory_text(self.memory) if self.memory else "", capability]
        line = ", ".join([f"{self.label} {self.name}".strip(), *(part for part in details if part)])
        return f"{line} (no GPU: {self.reason})" if self.reason else line

    def fields(self) -> dict[str, Any]:
        """Return the device as a JSON object."""
        fields = {
            "device": self.label,
            "name": self.name,
            "uuid": self.uuid,
            "memory": self.memory,
            "compute_capability": self.compute_capability,
        }
        return {**fields, "reason": self.reason} if self.reason else fields


def check_choice(choice: str, what: str = "device") -> int | None:
    """Return the N of ``gpu:N``, None for the other ``CHOICES``; accesses no device.

    Raises:
        UsageError: ``choice`` is invalid; ``what`` names its source in the message.
    """
    if choice in ("auto", "cpu", "gpu"):
        return None
    number = re.fullmatch(r"gpu:([0-9]{1,4})", choice)
    if number is None:
        hint = nearest(choice.lower(), CHOICES) if choice.isalpha() else f"; known: {', '.join(CHOICES)}"
        raise UsageError(f"{what} is {choice!r}{hint}" + ("; gpu takes all GPUs" if "," in choice else ""))
    return int(number[1])


def choose(choice: str) -> tuple[Device, ...]:
    """Return the devices of a choice: ``cpu``; ``gpu``, all GPUs; ``gpu:N``, one; ``auto``, GPUs if any, else the CPU.

    If ``auto`` finds no usable GPU, ``reason`` of the CPU says why.

    Raises:
        UsageError: ``choice`` is none of these.
        DeviceError: there is no such GPU, or it cannot be used; the message has the remedy.
    """
    number = check_choice(choice)
    if choice == "cpu":
        return (_cpu(),)
    try:
        cupy = _cupy()
        count = _count(cupy)
        if number is not None and number >= count:
            raise DeviceError(_no_such(cupy, number, count))
        return tuple(_gpu(cupy, index) for index in (range(count) if number is None else [number]))
    except DeviceError as exc:
        if choice != "auto":
            raise
        return (_cpu(str(exc)),)


# -- the CPU -----------------------------------------------------------------------------------------------------------


def _cpu(reason: str = "") -> Device:
    """Return this machine's CPU."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        memory = 0
    return Device(name=_cpu_name(), memory=memory, reason=reason)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


# -- GPUs: what is there, from the outside in --------------------------------------------------------------------------


def _cupy() -> Any:
    """Return the module cupy; raises ``DeviceError`` if it is missing, installed twice, or broken."""
    installed = [name for name in PACKAGES if _is_installed(name)]
    if len(installed) > 1:
        raise DeviceError(
            f"{' and '.join(installed)} are both installed, and each overwrites files of the other; "
            f"pip uninstall {' '.join(installed)}, then {_INSTALL}"
        )
    try:
        return import_cupy()
    except ModuleNotFoundError as exc:
        if exc.name == "cupy":
            raise DeviceError(f"CuPy is not installed, which computes on GPUs; {_INSTALL}") from exc
        raise DeviceError(f"CuPy cannot be imported: {_first_words(exc)}; install it again: {_INSTALL}") from exc
    except Exception as exc:  # a broken installation raises exceptions of any type
        raise DeviceError(f"CuPy cannot be imported: {_first_words(exc)}; install it again: {_INSTALL}") from exc


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _count(cupy: Any) -> int:
    """Return the number of GPUs that this process may use, at least 1; raises ``DeviceError``."""
    runtime = cupy.cuda.runtime
    try:
        driver, built_for = int(runtime.driverGetVersion()), int(runtime.runtimeGetVersion())
    except Exception as exc:  # CuPy's errors have no base class of their own
        raise DeviceError(f"CUDA does not answer: {_first_words(exc)}; does nvidia-smi work here?") from exc
    if driver == 0:
        raise DeviceError(
            "there is no NVIDIA driver here (no libcuda.so.1); install the driver, in a container start it with "
            "--gpus all, or train with --device cpu"
        )
    if driver // 1000 < built_for // 1000:
        raise DeviceError(_wrong_version(driver, built_for))
    try:
        count = int(runtime.getDeviceCount())
    except Exception as exc:  # as above
        if "InsufficientDriver" in str(exc):
            raise DeviceError(_wrong_version(driver, built_for)) from exc
        if "NoDevice" not in str(exc):
            raise DeviceError(
                f"the NVIDIA driver does not answer: {_first_words(exc)}; does nvidia-smi work here?"
            ) from exc
        count = 0
    if count < 1:
        raise DeviceError(_none_visible())
    return count


def _wrong_version(driver: int, built_for: int) -> str:
    ours, theirs = _cuda(built_for), _cuda(driver)
    fitting = {11: "cupy-cuda11x", 12: "cupy-cuda12x ('./install gpu')", 13: "cupy-cuda13x ('./install gpu13')"}
    other = fitting.get(driver // 1000, "there is no CuPy release for it")
    return (
        f"wrong CUDA version: this CuPy is for CUDA {ours}, the NVIDIA driver knows CUDA only up to {theirs}; install "
        f"a newer driver, or the CuPy that fits this one: {other}"
    )


def _none_visible() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return "the NVIDIA driver is here, but it finds no GPU; does nvidia-smi show one?"
    return (
        f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides every GPU from this process; unset it, or name GPUs that "
        "nvidia-smi -L shows"
    )


def _no_such(cupy: Any, number: int, count: int) -> str:
    there = ", ".join(f"gpu:{i} ({_name(_properties(cupy, i))})" for i in range(count))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f"; CUDA_VISIBLE_DEVICES is {visible!r}"
    gpus = "1 GPU" if count == 1 else f"{count} GPUs"
    return f"there is no gpu:{number}: this process sees {gpus}, {there}{hidden}; choose one of these, or gpu for all"


def _gpu(cupy: Any, index: int, *, tried: bool = True) -> Device:
    """Return a GPU, tested by a trial if ``tried``; raises ``DeviceError``."""
    properties = _properties(cupy, index)
    if tried:
        _try_out(cupy, index)
    return Device(
        kind="gpu",
        index=index,
        name=_name(properties),
        uuid=_uuid(properties, index),
        memory=int(properties.get("totalGlobalMem", 0)),
        compute_capability=f"{properties.get('major', 0)}.{properties.get('minor', 0)}",
    )


@functools.cache
def _try_out(cupy: Any, index: int) -> None:
    """Compile and run a kernel, an element-wise operation and a matrix product on a GPU; raises ``DeviceError``."""
    try:
        with cupy.cuda.Device(index):
            x = cupy.zeros(4, np.float32)
            cupy.RawModule(code=_TRIAL).get_function("dl4j_trial")((1,), (4,), (x,))
            x = (x + x).reshape(2, 2)
            product = cupy.matmul(x, x)
            _wait_for_trial(cupy, index)
            found = product.get().tolist()
    except DeviceError:
        raise
    except Exception as exc:  # CuPy's errors have no base class of their own
        raise DeviceError(_failure(exc, index)) from exc
    if found != [[28.0, 40.0], [60.0, 88.0]]:
        raise DeviceError(f"gpu:{index} computes wrongly: a product of two matrices came out as {found}; do not use it")


def _wait_for_trial(cupy: Any, index: int) -> None:
    """Wait until the trial finishes, with a deadline: a GPU that hangs raises no exception."""
    event, deadline = cupy.cuda.Event(disable_timing=True), Deadline(_TRIAL_SECONDS)
    event.record()
    while not event.done:
        if deadline.passed():
            raise DeviceError(
                f"gpu:{index} has not answered for {_TRIAL_SECONDS:g} s; does nvidia-smi work here, is the GPU "
                "somebody else's? Choose another one, or --device cpu"
            )
        time.sleep(0.001)


def _failure(exc: Exception, index: int) -> str:
    text, said = str(exc), _first_words(exc)
    library = re.search(r"lib(nvrtc|cublas|cudart|curand|cusolver|cusparse|nvJitLink)", text)
    if library is not None:
        names = {"nvrtc": "NVRTC", "cublas": "cuBLAS"}
        return (
            f"the NVIDIA driver is here, but CUDA's library {names.get(library[1], library[1])} is not: {said}; "
            f"{_INSTALL}, which bring CUDA's libraries along"
        )
    if "cuda_fp16.h" in text or "CUDA headers" in text or "CUDA_PATH" in text:
        return f"the NVIDIA driver is here, but CUDA's headers are not: {said}; {_INSTALL}, which bring them along"
    if (
        "PTX" in text
        or "NoKernelImage" in text
        or "NO_BINARY" in text
        or "invalid value for --gpu-architecture" in text
    ):
        return (
            f"wrong CUDA version: this CuPy's libraries do not fit gpu:{index} or its driver: {said}; install a newer "
            f"driver, or another CuPy: {_INSTALL}"
        )
    if isinstance(exc, MemoryError) or "cudaErrorMemoryAllocation" in text:
        return f"gpu:{index} has no free memory: {said}; nvidia-smi shows who uses it"
    return f"gpu:{index} is here, but a trial failed on it: {said}; does nvidia-smi report errors?"


def _first_words(exc: BaseException) -> str:
    """Return the first words of an error's text on one line: CuPy's texts can fill a page."""
    lines = [line.strip(" =\t") for line in str(exc).splitlines()]
    text = " ".join(line for line in lines if line) or type(exc).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def _properties(cupy: Any, index: int) -> Mapping[str, Any]:
    try:
        properties: Mapping[str, Any] = cupy.cuda.runtime.getDeviceProperties(index)
    except Exception as exc:  # as above
        raise DeviceError(f"gpu:{index} does not answer: {_first_words(exc)}; does nvidia-smi work here?") from exc
    return properties


def _name(properties: Mapping[str, Any]) -> str:
    name = properties.get("name", b"")
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _uuid(properties: Mapping[str, Any], index: int) -> str:
    """Return a GPU's UUID. CuPy returns its 16 bytes as a C string, cut at the first zero; then ask the driver."""
    raw = properties.get("uuid", b"")
    if not isinstance(raw, bytes) or len(raw) < 16:
        buffer, device = ctypes.create_string_buffer(16), ctypes.c_int()
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            found = driver.cuDeviceGet(ctypes.byref(device), index) == 0
            raw = buffer.raw if found and driver.cuDeviceGetUuid(buffer, device) == 0 else b""
        except (OSError, AttributeError):
            raw = b""
    return f"GPU-{uuid.UUID(bytes=raw[:16])}" if raw else ""


def _cuda(version: int) -> str:
    """Return CUDA's version ``12090`` as ``12.9``."""
    return f"{version // 1000}.{version % 1000 // 10}"


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_text(size: int) -> str:
    """Return a number of bytes for people, such as ``79.1 GiB``."""
    value, unit = float(size), "B"
    for name in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, name
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def memory_limit(text: str, what: str = "--device-memory-limit") -> int | float:
    """Return the value of ``8GiB`` or ``80%``: bytes as an int, or a share of the memory as a float in (0, 1].

    Raises:
        UsageError: ``text`` is invalid; ``what`` names its source in the message.
    """
    number = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([A-Za-z]*|%)", text.strip())
    if number is not None:
        value, unit = float(number[1]), number[2].upper()
        if unit == "%" and 0 < value <= 100:
            return value / 100
        if unit in _UNITS and value * _UNITS[unit] >= 1:
            return int(value * _UNITS[unit])
    raise UsageError(f"{what} is {text!r}; give a size such as 8GiB, or a part such as 80%")


def limit_memory(device: Device, limit: int | float) -> int:
    """Limit this process to at most ``limit`` of a GPU's memory (``memory_limit``); return the limit in bytes."""
    cupy = _cupy()
    with cupy.cuda.Device(device.index):
        pool = cupy.get_default_memory_pool()
        if isinstance(limit, int):
            pool.set_limit(size=limit)
        else:
            pool.set_limit(fraction=limit)
        return int(pool.get_limit())


def current_device() -> Device:
    """Return the GPU on which this thread creates arrays; raises ``DeviceError``."""
    cupy = _cupy()
    return _gpu(cupy, int(cupy.cuda.Device().id), tried=False)


def used_memory(device: Device) -> tuple[int, int]:
    """Return the bytes of this process's arrays on a GPU, and the limit (0: none)."""
    cupy = _cupy()
    with cupy.cuda.Device(device.index):
        pool = cupy.get_default_memory_pool()
        return int(pool.used_bytes()), int(pool.get_limit())
