"""A stand-in for libcublas: the same C functions, called through ctypes, working on host memory by columns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from dl4jlegacy.kernels.cuda.cublas import SIGNATURES
from tests.support.standin.engine import CUDADriverError, launch

TYPES = {0: (np.float32, ctypes.c_float), 1: (np.float64, ctypes.c_double)}  # cudaDataType
COMPUTE = {68: 0, 75: 0, 77: 0, 70: 1}  # cublasComputeType_t to the cudaDataType it goes with


class FakeCublas:
    """What ``load_library`` returns under the stand-in for CuPy.

    Attributes:
        calls: names of the functions called, in order.
        compute_types: those that products were computed with.
        open_handles: created and not destroyed.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.compute_types: list[int] = []
        self.open_handles: set[int] = set()
        self.fails_with: dict[str, int] = {}
        self._workspaces: dict[int, int] = {}
        for name, arguments in SIGNATURES.items():
            own = getattr(self, "_" + name.removesuffix("_v2"))
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._counted(name, own)))

    def _counted(self, name: str, function: Callable[..., None]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if self.fails_with.get(name):
                return self.fails_with[name]
            try:
                function(*arguments)
            except AssertionError:
                return 7  # CUBLAS_STATUS_INVALID_VALUE
            except CUDADriverError:
                return 13  # CUBLAS_STATUS_EXECUTION_FAILED
            return 0

        return call

    def _cublasCreate(self, handle: int) -> None:
        number = len(self.open_handles) + 1
        ctypes.c_void_p.from_address(handle).value = number
        self.open_handles.add(number)

    def _cublasDestroy(self, handle: int) -> None:
        self.open_handles.remove(handle)

    def _cublasSetStream(self, handle: int, stream: int | None) -> None:
        assert handle in self.open_handles
        self._workspaces.pop(handle, None)  # as cuBLAS does

    def _cublasSetWorkspace(self, handle: int, address: int, size: int) -> None:
        assert handle in self.open_handles and address and size
        self._workspaces[handle] = size

    def _cublasGemmEx(
        self, handle: int, of_a: int, of_b: int, m: int, n: int, k: int, alpha: int, a: int, type_a: int, lda: int,
        b: int, type_b: int, ldb: int, beta: int, c: int, type_c: int, ldc: int, compute: int, algorithm: int,
    ) -> None:  # fmt: skip
        assert handle in self._workspaces, "a product without its own workspace is not reproducible"
        assert type_a == type_b == type_c == COMPUTE[compute] and algorithm == -1
        self.compute_types.append(compute)
        dtype, scalar = TYPES[type_a]
        first, second = (float(scalar.from_address(address).value) for address in (alpha, beta))
        left = _by_columns(a, dtype, (k, m) if of_a else (m, k), lda)
        right = _by_columns(b, dtype, (n, k) if of_b else (k, n), ldb)
        out = _by_columns(c, dtype, (m, n), ldc)

        def work() -> None:
            product = dtype(first) * ((left.T if of_a else left) @ (right.T if of_b else right))
            out[...] = product if second == 0 else product + dtype(second) * out

        launch(work)


def _by_columns(address: int, dtype: type, shape: tuple[int, int], lead: int) -> np.ndarray:
    """Return the matrix that lies column by column, ``lead`` elements apart, at an address."""
    rows, columns = shape
    assert lead >= max(1, rows)
    size = (lead * (columns - 1) + rows) * np.dtype(dtype).itemsize
    flat = np.frombuffer((ctypes.c_char * size).from_address(address), dtype)
    item = flat.itemsize
    return np.lib.stride_tricks.as_strided(flat, shape, (item, item * lead))
