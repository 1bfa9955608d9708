"""CuPy's universal functions: what NumPy's compute, for device arrays and numbers only, with CuPy's parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.standin.arrays import ndarray
from tests.support.standin.engine import Raw, fresh, into

__all__ = ["UFUNCS", "ufunc"]


class ufunc:
    """See ``cupy.ufunc``."""

    def __init__(self, name: str, computed: Any) -> None:
        self.name, self.__name__ = f"cupy_{name}", name
        self._computed = computed
        self.nin, self.nout, self.nargs = computed.nin, computed.nout, computed.nargs

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out, casting = kwargs.pop("out", None), kwargs.pop("casting", "same_kind")
        dtype = kwargs.pop("dtype", None)
        if kwargs:
            raise TypeError(f"Wrong arguments {kwargs}")
        if not self.nin <= len(args) <= self.nargs or (len(args) > self.nin and out is not None):
            raise TypeError(f"Wrong number of arguments for {self.name}")
        if len(args) > self.nin:
            args, out = args[: self.nin], args[self.nin]
        if isinstance(out, tuple):
            (out,) = out
        options = {"casting": casting} | ({} if dtype is None else {"dtype": dtype})
        if out is None:
            return fresh(lambda *raws: self._computed(*raws, **options), *args)
        if not isinstance(out, ndarray):
            raise TypeError("return arrays must be of ArrayType")
        expected = np.broadcast_shapes(*(getattr(a, "shape", ()) for a in args))
        if expected != out.shape:
            raise ValueError(f"Out shape is mismatched: {out.shape} is not {expected}")
        return into(lambda target, *raws: self._computed(*raws, out=target, **options), out, *args)

    def reduce(self, array: ndarray, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """Sum or multiply along ``axis``."""
        return self._method("reduce", {"cupy_add": "sum", "cupy_multiply": "prod"}, array)(axis, dtype, out, keepdims)

    def accumulate(self, array: ndarray, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """Sum or multiply along ``axis``, keeping every intermediate result."""
        names = {"cupy_add": "cumsum", "cupy_multiply": "cumprod"}
        return self._method("accumulate", names, array)(axis, dtype, out)

    def reduceat(self, array: ndarray, indices: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        """Sum the parts that begin at ``indices``."""
        from tests.support.standin.arrays import _result

        self._method("reduceat", {"cupy_add": "sum"}, array)
        if not isinstance(indices, ndarray):
            raise TypeError(f"Unsupported type {type(indices)}: indices live on the device, too")
        return _result(lambda a, i: np.add.reduceat(a, i, axis, dtype), out, array, indices)

    def outer(self, A: ndarray, B: ndarray, **kwargs: Any) -> Any:
        """Apply it to every pair of elements."""
        return self(A.reshape(A.shape + (1,) * B.ndim), B, **kwargs)

    def _method(self, method: str, names: dict[str, str], array: Any) -> Any:
        if self.name not in names:
            raise NotImplementedError(f"`{self.name}.{method}` is not supported yet")
        if not isinstance(array, ndarray):
            raise TypeError(f"Unsupported type {type(array)}")
        return getattr(array, names[self.name])


def _rsqrt(x: Raw, **options: Any) -> Any:
    return np.reciprocal(np.sqrt(x, **options))


_SAME = """absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or bitwise_xor ceil cos
cosh equal exp exp2 expm1 floor floor_divide fmax fmin fmod greater greater_equal hypot invert isfinite isinf isnan
left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
maximum minimum multiply negative not_equal power reciprocal remainder right_shift rint sign signbit sin sinh sqrt
square subtract tan tanh true_divide trunc"""
UFUNCS = {name: ufunc(name, getattr(np, name)) for name in _SAME.split()}
UFUNCS["abs"], UFUNCS["divide"], UFUNCS["mod"] = UFUNCS["absolute"], UFUNCS["true_divide"], UFUNCS["remainder"]
