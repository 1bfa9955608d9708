"""Matrix products on a GPU: cuBLAS through ctypes, with our own workspace.

CuPy's binding does not work while a stream is being captured into a CUDA graph, and selects the compute type for
the whole process. Here every worker has its own handle, workspace and precision; one handle on one stream with a given
workspace gives the same bits on every run (cuBLAS documentation, "Results Reproducibility").
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.devices import PRECISIONS
from dl4jlegacy.errors import ConfError, DeviceError, ShapeError, nearest

__all__ = ["SIGNATURES", "Cublas", "load_library"]

_N, _T = 0, 1  # cublasOperation_t
_TYPES = {"f": 0, "d": 1}  # cudaDataType: CUDA_R_32F, CUDA_R_64F
_FLOAT32 = {"float32": 68, "tf32": 77, "bf16": 75}  # cublasComputeType_t: 32F, 32F_FAST_TF32, 32F_FAST_16BF
_FLOAT64 = 70
_DEFAULT_ALGORITHM = -1
_WORKSPACE = 32 << 20  # bytes; what cuBLAS itself recommends for Hopper, and more than it takes elsewhere
_LIMIT = 2**31 - 1
_STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
}
_int, _ptr = ctypes.c_int, ctypes.c_void_p
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (_ptr,),
    "cublasDestroy_v2": (_ptr,),
    "cublasSetStream_v2": (_ptr, _ptr),
    "cublasSetWorkspace_v2": (_ptr, _ptr, ctypes.c_size_t),
    "cublasGemmEx": (
        *(_ptr, _int, _int, _int, _int, _int),  # handle, operations, m, n, k
        *(_ptr, _ptr, _int, _int),  # alpha, A, its type and leading dimension
        *(_ptr, _int, _int),  # B
        *(_ptr, _ptr, _int, _int),  # beta, C
        *(_int, _int),  # compute type, algorithm
    ),
}
"""The functions used and their C arguments, as in ``cublas_api.h``; all return a status."""


def load_library(xp: Any) -> Any:
    """Return libcublas of the CUDA version for which CuPy was built.

    Raises:
        DeviceError: it is not installed.
    """
    major = xp.cuda.runtime.runtimeGetVersion() // 1000
    try:
        xp.cuda.cublas  # noqa: B018  # CuPy finds the library wherever it lies, and loads it
        return ctypes.CDLL(f"libcublas.so.{major}")
    except (ImportError, OSError) as exc:
        raise DeviceError(
            f"cuBLAS for CUDA {major} cannot be loaded: {exc}; type: {sys.executable} -m pip install "
            f"'cupy-cuda{major}x[ctk]'"
        ) from exc


class Cublas:
    """One cuBLAS handle on one device. Used by one thread; work goes to CuPy's current stream."""

    def __init__(self, xp: Any, precision: str = "float32", library: Any = None) -> None:
        if precision not in PRECISIONS:
            raise ConfError(f"precision {precision!r}{nearest(precision, PRECISIONS)}")
        self._xp = xp
        self._compute = {"f": _FLOAT32[precision], "d": _FLOAT64}
        self._library = library or load_library(xp)
        for name, arguments in SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, _int
        handle = _ptr()
        self._call("cublasCreate_v2", ctypes.byref(handle))
        self._handle = handle
        self._workspace = xp.empty(_WORKSPACE, np.uint8)
        self._stream: int | None = None
        self._factors = {char: (kind(0.0), kind(1.0)) for char, kind in (("f", ctypes.c_float), ("d", ctypes.c_double))}
        weakref.finalize(self, self._library.cublasDestroy_v2, handle)

    def matmul(self, a: Array, b: Array, out: Array, accumulate: bool = False) -> None:
        """``out = a @ b``, or ``out += a @ b``; see ``Kernels``.

        A matrix may also be a range of rows or columns of such a matrix, or its transposed view.

        Raises:
            ShapeError: sizes that do not fit, or a matrix with neither contiguous rows nor contiguous columns.
            DeviceError: cuBLAS failed.
        """
        if a.ndim != 2 or b.ndim != 2 or out.shape != (a.shape[0], b.shape[1]) or a.shape[1] != b.shape[0]:
            raise ShapeError(f"matmul: {list(a.shape)} times {list(b.shape)} does not go into {list(out.shape)}")
        if not a.dtype == b.dtype == out.dtype or a.dtype.char not in _TYPES:
            raise ShapeError(f"matmul: dtypes {a.dtype}, {b.dtype} and {out.dtype}; all must be float32 or float64")
        if not out.size:
            return
        if not a.shape[1]:
            if not accumulate:
                out.fill(0)
            return
        if not _is_by_rows(out):
            a, b, out = b.T, a.T, out.T
        self._gemm(a, b, out, accumulate)

    def _gemm(self, a: Array, b: Array, out: Array, accumulate: bool) -> None:
        # cuBLAS stores by columns, so it sees every matrix transposed: out^T = b^T a^T
        char, (rows, inner), columns = a.dtype.char, a.shape, b.shape[1]
        (of_a, lead_a), (of_b, lead_b) = _layout(a), _layout(b)
        _, lead = _layout(out)
        if max(rows, inner, columns, lead_a, lead_b, lead) > _LIMIT:
            raise ShapeError(f"matmul: {list(a.shape)} times {list(b.shape)} has a size above {_LIMIT}")
        self._use_stream()
        zero, one = self._factors[char]
        kind, address_a, address_b, address = _TYPES[char], _address(a), _address(b), _address(out)
        self._call(
            "cublasGemmEx", self._handle, of_b, of_a, columns, rows, inner,
            ctypes.byref(one), address_b, kind, lead_b, address_a, kind, lead_a,
            ctypes.byref(one if accumulate else zero), address, kind, lead,
            self._compute[char], _DEFAULT_ALGORITHM,
        )  # fmt: skip

    def _use_stream(self) -> None:
        stream = self._xp.cuda.get_current_stream().ptr
        if stream == self._stream:
            return
        self._call("cublasSetStream_v2", self._handle, stream)  # which also takes the workspace away again
        self._call("cublasSetWorkspace_v2", self._handle, _address(self._workspace), self._workspace.nbytes)
        self._stream = stream

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceError(f"{name} failed with {_STATUS.get(status, f'status {status}')}")


def _address(x: Any) -> int:
    return int(x.data.ptr)


def _is_by_rows(x: Array) -> bool:
    return x.shape[1] == 1 or x.strides[1] == x.itemsize


def _layout(x: Array) -> tuple[int, int]:
    """Return cuBLAS's operation for a matrix, and its leading dimension."""
    by_rows = _is_by_rows(x)
    (lines, length), stride = (x.shape, x.strides[0]) if by_rows else (x.shape[::-1], x.strides[1])
    together = by_rows or length == 1 or x.strides[0] == x.itemsize
    lead, rest = divmod(stride, x.itemsize) if lines > 1 else (length, 0)
    if not together or lead < length or rest:
        raise ShapeError(
            f"matmul: a matrix {list(x.shape)} with strides {x.strides} lies neither row by row nor column by column; "
            "copy it first"
        )
    return _N if by_rows else _T, lead
