"""The arithmetic of this process's CPU: everything that affects the last bits of the kernels' results.

Compiled kernels sum in one order and compute ``exp`` and similar functions in one way on every processor. The bits of a
few of their results, computed in milliseconds, are compared: a machine that computes anything differently, for any
reason, is detected before it does harm.

NumPy's kernels use a BLAS for products and NumPy for functions, which both select code by processor. For these, the
libraries are also described part by part, with the processor features that they use.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any

import numpy as np
import threadpoolctl

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.version import __version__

try:
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__  # type: ignore[import-not-found]
except ImportError:  # NumPy 1
    from numpy.core._multiarray_umath import __cpu_dispatch__, __cpu_features__  # type: ignore[no-redef]

__all__ = ["cpu_arithmetic"]


def cpu_arithmetic(kernels: str) -> dict[str, str]:
    """Return the parts that affect the bits of a result on this CPU, as a map from name to value.

    Args:
        kernels: the name of the kernels in use, ``"numba"`` or ``"numpy"``.
    """
    if kernels == "numba":
        return {
            "dl4jlegacy": __version__,
            "products": _digest(_compiled_products()),
            "functions": _digest(_compiled_functions()),
            "sums": _digest(_sums()),
        }
    return {
        "dl4jlegacy": __version__,
        "NumPy": np.__version__,
        "NumPy's vector code": _numpy_features(),
        "BLAS": _blas(),
        "products": _digest(_products()),
        "functions": _digest(_functions() + _sums()),
    }


def _numpy_features() -> str:
    """Return the processor features beyond NumPy's minimum for which NumPy uses special code here."""
    return " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name)) or "none"


def _blas() -> str:
    """Return name, version and kernels of NumPy's BLAS."""
    found = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    ours = [pool for pool in found if "numpy" in pool["filepath"]] or found
    if ours:
        return " and ".join(sorted({_pool_text(pool) for pool in ours}))
    built: Any = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def _pool_text(pool: dict[str, Any]) -> str:
    architecture = pool.get("architecture")
    return f"{pool['internal_api']} {pool['version']}" + (f" {architecture}" if architecture else "")


@functools.cache
def _numbers(rows: int, columns: int, dtype: str) -> Array:
    """Return numbers between -1 and 1 that use all their bits; equal everywhere, since they are divided integers."""
    mixed = np.arange(1, rows * columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0).astype(dtype).reshape(rows, columns)


def _products() -> list[Array]:
    """Return products of matrices and vectors, some of them long enough to be summed in blocks.

    All are so small that a BLAS uses one thread for them, as in workers.
    """
    results = []
    for dtype in ("float32", "float64"):
        for rows, inner, columns in ((3, 5, 7), (33, 130, 17), (8, 1500, 9)):
            a, b = _numbers(rows, inner, dtype), _numbers(columns, inner, dtype)
            results += [a @ b.T, a.T[:130] @ a[:, :17], a[:, :130] @ b[0, :130], np.dot(a[0], b[0])]
    return results


def _functions() -> list[Array]:
    """Return results of the elementary functions of NumPy and of the C library."""
    results: list[Array] = []
    for dtype in ("float32", "float64"):
        x = _numbers(31, 67, dtype) * np.asarray(6.0, dtype)
        positive = np.abs(x) + np.asarray(0.01, dtype)
        results += [function(x) for function in (np.exp, np.tanh, np.sin, np.cos, np.expm1)]
        results += [function(positive) for function in (np.log, np.log1p, np.sqrt, np.reciprocal)]
        results.append(positive**x)
    some = _numbers(1, 101, "float64")[0]
    for scalar in (math.exp, math.tanh, math.sin, math.cos, math.expm1, math.erf):
        results.append(np.array([scalar(value) for value in some.tolist()]))
    return results


def _sums() -> list[Array]:
    """Return results of NumPy's sums, which layers use besides kernels."""
    results: list[Array] = []
    for dtype in ("float32", "float64"):
        x = _numbers(31, 67, dtype)
        results += [x.sum(axis=0), x.sum(axis=1), x.sum(keepdims=True), x.mean(keepdims=True), x.var(axis=0)]
    return results


def _compiled_products() -> list[Array]:
    """Return products by compiled kernels: vectors along rows and columns, sums that continue after a block."""
    from dl4jlegacy.kernels.numba.kernels import matmul

    results = []
    for rows, inner, columns in ((3, 5, 7), (33, 130, 17), (8, 1500, 9)):
        a, b = _numbers(rows, inner, "float32"), _numbers(columns, inner, "float32")
        for left, right in ((a, b.T), (a.T[:130], a[:, :17])):
            out = np.empty((len(left), right.shape[1]), np.float32)
            matmul(left, right, out)
            results.append(out)
    return results


def _compiled_functions() -> list[Array]:
    """Return results of the compiled activations, whose operations are those of all other kernels."""
    from dl4jlegacy.kernels.numba import kernels

    results, nothing = [], np.zeros(67, np.float32)
    for activation in ("sigmoid", "tanh"):
        results.append(_numbers(31, 67, "float32") * np.float32(6))
        kernels.bias_activation(results[-1], nothing, activation)
    results.append(_numbers(31, 67, "float32") * np.float32(6))
    kernels.softmax(results[-1])
    return results


def _digest(results: list[Array]) -> str:
    digest = hashlib.sha256()
    for result in results:
        digest.update(np.ascontiguousarray(result).tobytes())
    return digest.hexdigest()[:12]
