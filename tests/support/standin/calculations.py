"""CuPy's functions that calculate and are no universal functions: reductions, products, sorting, searching."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.standin.arrays import _check_kind, _result, ndarray
from tests.support.standin.engine import Raw, cublas, fresh, into, synchronise
from tests.support.standin.functions import _device


# -- element by element ------------------------------------------------------------------------------------------------
def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return ``x`` where the condition holds, else ``y``."""
    if (x is None) != (y is None):
        raise ValueError("Must provide both 'x' and 'y' or neither.")
    return nonzero(condition) if x is None else fresh(np.where, condition, x, y)


def clip(a: Any, a_min: Any, a_max: Any, out: Any = None) -> ndarray:
    """See ``ndarray.clip``."""
    return _device(a).clip(a_min, a_max, out)


def round(a: Any, decimals: int = 0, out: Any = None) -> ndarray:  # CuPy's name, as others below
    """See ``ndarray.round``."""
    return _device(a).round(decimals, out)


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> ndarray:
    """Return numbers in the place of what is none."""
    if copy:
        return fresh(lambda a: np.nan_to_num(a, True, nan, posinf, neginf), _device(x))
    return into(lambda out: np.nan_to_num(out, False, nan, posinf, neginf), _device(x))


# -- reductions --------------------------------------------------------------------------------------------------------
def sum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.sum``."""
    return _reduced(a, "sum", axis, dtype, out, keepdims)


def prod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.prod``."""
    return _reduced(a, "prod", axis, dtype, out, keepdims)


def mean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.mean``."""
    return _reduced(a, "mean", axis, dtype, out, keepdims)


def std(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False) -> ndarray:
    """See ``ndarray.std``."""
    return _reduced(a, "std", axis, dtype, out, ddof, keepdims)


def var(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: int = 0, keepdims: bool = False) -> ndarray:
    """See ``ndarray.var``."""
    return _reduced(a, "var", axis, dtype, out, ddof, keepdims)


def max(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.max``."""
    return _reduced(a, "max", axis, out, keepdims)


def min(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.min``."""
    return _reduced(a, "min", axis, out, keepdims)


def any(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.any``."""
    return _reduced(a, "any", axis, out, keepdims)


def all(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.all``."""
    return _reduced(a, "all", axis, out, keepdims)


amax, amin = max, min


def argmax(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.argmax``."""
    return _reduced(a, "argmax", axis, out, dtype, keepdims)


def argmin(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
    """See ``ndarray.argmin``."""
    return _reduced(a, "argmin", axis, out, dtype, keepdims)


def _reduced(a: Any, name: str, *args: Any) -> ndarray:
    result: ndarray = getattr(_device(a), name)(*args)
    return result


def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> ndarray:
    """Return the running sums."""
    return _result(lambda x: np.cumsum(x, axis, dtype), out, _device(a))


def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> ndarray:
    """Return the running products."""
    return _result(lambda x: np.cumprod(x, axis, dtype), out, _device(a))


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> ndarray:
    """Return the differences of neighbours."""
    if prepend is not None or append is not None:
        raise NotImplementedError("the stand-in's diff has neither prepend nor append")
    return fresh(lambda x: np.diff(x, n, axis), _device(a))


def count_nonzero(a: Any, axis: Any = None) -> ndarray:
    """Return how many elements are not 0."""
    return fresh(lambda x: np.count_nonzero(x, axis), _device(a))


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> ndarray:
    """Return, on the device, whether two arrays are about equal."""
    return fresh(lambda x, y: np.allclose(x, y, rtol, atol, equal_nan), a, b)


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> ndarray:
    """Return, on the device, whether two arrays are equal."""
    return fresh(lambda x, y: np.array_equal(x, y, equal_nan), a1, a2)


# -- products: CuPy hands these to cuBLAS ------------------------------------------------------------------------------
def matmul(x1: Any, x2: Any, /, out: Any = None) -> ndarray:
    """Return the matrix product."""
    cublas()
    return _result(np.matmul, out, _device(x1), _device(x2))


def dot(a: Any, b: Any, out: Any = None) -> ndarray:
    """Return the dot product."""
    cublas()
    return _result(np.dot, out, _device(a), _device(b))


def tensordot(a: Any, b: Any, axes: Any = 2) -> ndarray:
    """Return the sum of products over axes."""
    cublas()
    return fresh(lambda x, y: np.tensordot(x, y, axes), _device(a), _device(b))


def einsum(*operands: Any, **kwargs: Any) -> ndarray:
    """Return sums of products by Einstein's convention."""
    if set(kwargs) - {"dtype", "optimize"}:
        raise TypeError(f"Did not understand the following kwargs: {sorted(set(kwargs) - {'dtype', 'optimize'})}")
    cublas()
    subscripts, *arrays = operands
    return fresh(lambda *raws: np.einsum(subscripts, *raws, **kwargs), *map(_device, arrays))


def outer(a: Any, b: Any, out: Any = None) -> ndarray:
    """Return the products of all pairs."""
    cublas()
    return _result(np.outer, out, _device(a), _device(b))


# -- sorting, searching, indices ---------------------------------------------------------------------------------------
def argsort(a: Any, axis: Any = -1, kind: Any = None) -> ndarray:
    """See ``ndarray.argsort``."""
    return _device(a).argsort(axis, kind)


def sort(a: Any, axis: Any = -1, kind: Any = None) -> ndarray:
    """Return the elements in order."""
    _check_kind(kind)
    return fresh(lambda x: np.sort(x, axis, kind="stable"), _device(a))


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> ndarray:
    """See ``ndarray.searchsorted``."""
    return _device(a).searchsorted(v, side, sorter)


def take(a: Any, indices: Any, axis: Any = None, out: Any = None) -> ndarray:
    """See ``ndarray.take``."""
    return _device(a).take(indices, axis, out)


def take_along_axis(a: Any, indices: Any, axis: Any) -> ndarray:
    """Return the elements at ``indices`` along an axis."""
    return fresh(lambda x, i: np.take_along_axis(x, i, axis), _device(a), _device(indices))


def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    """Write ``values`` at ``indices`` along an axis."""
    into(lambda out, i, v: np.put_along_axis(out, i, v, axis), _device(arr), _device(indices), values)


def nonzero(a: Any) -> tuple[ndarray, ...]:
    """Return the indices of what is not 0; waits for the device."""
    return _device(a).nonzero()


def flatnonzero(a: Any) -> ndarray:
    """Return the flat indices of what is not 0; waits for the device."""
    return _device(a).ravel().nonzero()[0]


def argwhere(a: Any) -> ndarray:
    """Return the indices of what is not 0 in rows; waits for the device."""
    synchronise()
    return fresh(np.argwhere, _device(a))


def bincount(x: Any, weights: Any = None, minlength: Any = None) -> ndarray:
    """Return how often every number is there; waits for the device."""
    synchronise()
    given = () if weights is None else (_device(weights),)
    return fresh(lambda a, *w: np.bincount(a, *(w or (None,)), minlength=minlength or 0), _device(x), *given)


def unique(ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
           axis: Any = None, *, equal_nan: bool = True) -> Any:  # fmt: skip
    """Return the different elements in order, and what else is asked for; waits for the device."""
    synchronise()

    def found(a: Raw) -> Any:
        return np.unique(a, return_index, return_inverse, return_counts, axis, equal_nan=equal_nan)

    asked = [return_index, return_inverse, return_counts].count(True)
    if not asked:
        return fresh(found, _device(ar))
    return tuple(fresh(lambda a, i=i: found(a)[i], _device(ar)) for i in range(1 + asked))


__all__ = [name for name, value in list(globals().items())
           if getattr(value, "__module__", "") == __name__ and not name.startswith("_")]  # fmt: skip
