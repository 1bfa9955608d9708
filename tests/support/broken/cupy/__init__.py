"""A cupy on a machine with a broken GPU: ``BROKEN_CUPY`` names the fault; it raises what CuPy 14 raises.

Texts are CuPy 14.2's own, seen on a machine without a driver and with libraries taken away, or taken from its source.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

CASE = os.environ.get("BROKEN_CUPY", "")
if CASE == "import":
    raise ImportError(
        "\n================\nFailed to import CuPy.\n\n"
        "Original error:\n  ImportError: libcupy_core.so: file too short\n================\n"
    )
GPUS = int(os.environ.get("BROKEN_CUPY_GPUS", "1"))
NO_DRIVER = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
NO_DEVICE = "cudaErrorNoDevice: no CUDA-capable device is detected"


class CUDARuntimeError(RuntimeError):
    """CuPy's error of the CUDA runtime."""


class DynamicLibNotFoundError(RuntimeError):
    """That of cuda-pathfinder, by which CuPy finds CUDA's libraries."""


class OutOfMemoryError(MemoryError):
    """CuPy's own."""


def _missing(name: str) -> str:
    files = f"{name}.so.13 or {name}.so.12"
    return f'Failure finding "{files}": No such file: {files}, No such file: {files}'


def _count() -> int:
    if CASE in ("no driver", "old minor driver"):
        raise CUDARuntimeError(NO_DRIVER)
    if CASE == "no device":
        raise CUDARuntimeError(NO_DEVICE)
    if CASE == "no answer":
        raise CUDARuntimeError("cudaErrorInitializationError: initialization error")
    return GPUS


def _driver() -> int:
    return {"no driver": 0, "old driver": 11040, "old minor driver": 12020}.get(CASE, 12090)


def _properties(index: int) -> dict[str, object]:
    uuid = bytes.fromhex(f"5ae7c0de000000000000000000000a{index:02x}")
    return {
        "name": b"NVIDIA Stand-in",
        "uuid": uuid,
        "totalGlobalMem": 80 << 30,
        "major": 9,
        "minor": 0,
    }


@contextmanager
def Device(index: int):  # CuPy's name
    """Nothing."""
    yield


class ndarray(np.ndarray):  # CuPy's name
    """An array with what the trial needs of it."""

    def get(self) -> np.ndarray:
        """Return it on the host."""
        return np.asarray(self)


def zeros(shape: int, dtype: type) -> ndarray:
    """As NumPy's."""
    if CASE == "full":
        raise OutOfMemoryError("Out of memory allocating 512 bytes (allocated so far: 0 bytes).")
    return np.zeros(shape, dtype).view(ndarray)


def matmul(a: ndarray, b: ndarray) -> ndarray:
    """As NumPy's, but for what is wrong."""
    if CASE == "no cublas":
        raise ImportError(_missing("libcublasLt"))
    result = np.matmul(np.asarray(a), np.asarray(b)).view(ndarray)
    return result + 1 if CASE == "wrong" else result


class RawModule:
    """The trial's kernel, whatever its code."""

    def __init__(self, code: str) -> None:
        if CASE == "no nvrtc":
            raise DynamicLibNotFoundError(_missing("libnvrtc"))
        if CASE == "ptx":
            raise CUDARuntimeError(
                "CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX was compiled with an unsupported toolchain."
            )

    def get_function(self, name: str) -> RawModule:
        """Return the kernel."""
        return self

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[ndarray, ...]) -> None:
        arguments[0][:] = np.arange(1, block[0] + 1)


class Event:
    """A place in a stream, which a GPU that hangs never reaches."""

    done = CASE != "hangs"

    def __init__(self, disable_timing: bool = False) -> None:
        self.recorded = False

    def record(self) -> None:
        """As CuPy's."""
        self.recorded = True


class Pool:
    """The memory pool."""

    limit = 0

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """As CuPy's."""
        self.limit = size if size is not None else int(80 * (1 << 30) * (fraction or 0))

    def get_limit(self) -> int:
        """As CuPy's."""
        return self.limit

    def used_bytes(self) -> int:
        """As CuPy's."""
        return 3 << 30


_pool = Pool()


def get_default_memory_pool() -> Pool:
    """As CuPy's."""
    return _pool


runtime = SimpleNamespace(
    driverGetVersion=_driver,
    runtimeGetVersion=lambda: 12090,
    getDeviceCount=_count,
    getDeviceProperties=_properties,
    CUDARuntimeError=CUDARuntimeError,
)
memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
cuda = SimpleNamespace(runtime=runtime, Device=Device, Event=Event, memory=memory)
