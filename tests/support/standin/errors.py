"""The errors of CUDA and CuPy that the stand-in raises, with their numbers and words."""

from __future__ import annotations

__all__ = ["CUDADriverError", "CUDARuntimeError", "OutOfMemoryError"]

_RUNTIME = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    35: ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    401: ("cudaErrorIllegalState", "the operation cannot be performed in the present state"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    900: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    904: ("cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"),
    905: ("cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"),
    906: (
        "cudaErrorStreamCaptureImplicit",
        "operation would make the legacy stream depend on a capturing blocking stream",
    ),
    907: ("cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"),
    908: (
        "cudaErrorStreamCaptureWrongThread",
        "attempt to terminate a thread-local capture sequence from another thread",
    ),
}


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime; ``status`` is its number."""

    def __init__(self, status: int) -> None:
        name, words = _RUNTIME.get(status, ("cudaErrorUnknown", "unknown error"))
        super().__init__(f"{name}: {words}")
        self.status = status

    def __reduce__(self) -> tuple[type[CUDARuntimeError], tuple[int]]:
        return type(self), (self.status,)


class CUDADriverError(RuntimeError):
    """An error of the CUDA driver, such as of a kernel's launch; no kind of ``CUDARuntimeError``."""

    def __init__(self, status: int) -> None:
        name, words = _RUNTIME.get(status, ("cudaErrorUnknown", "unknown error"))
        driver = "".join(f"_{c}" if c.isupper() else c for c in name.removeprefix("cudaError")).upper()
        super().__init__(f"CUDA_ERROR{driver}: {words}")
        self.status = status

    def __reduce__(self) -> tuple[type[CUDADriverError], tuple[int]]:
        return type(self), (self.status,)


class OutOfMemoryError(MemoryError):
    """A pool cannot give ``size`` bytes more than the ``total`` it has given, by its limit or by the device's."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        words = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(words + (f", limit set to: {limit:,} bytes)." if limit else ")."))
        self._size, self._total, self._limit = size, total, limit
