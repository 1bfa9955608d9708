"""``ndarray``: an array of the pretended device; it holds a NumPy array, and is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.support.standin import memory, transfer
from tests.support.standin.engine import Raw, cublas, fresh, into, machine, synchronise, thread

__all__ = ["ndarray"]

_IMPLICIT = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)
_OPERATORS = {  # of a NumPy number and a device array: NumPy asks the array for these only
    np.add, np.subtract, np.multiply, np.true_divide, np.floor_divide, np.remainder, np.power, np.equal, np.not_equal,
    np.less, np.less_equal, np.greater, np.greater_equal, np.bitwise_and, np.bitwise_or, np.bitwise_xor,
}  # fmt: skip


class Flags:
    """The layout of an array, as CuPy tells it."""

    def __init__(self, array: ndarray) -> None:
        flags = array._raw.flags
        self.c_contiguous, self.f_contiguous = bool(flags.c_contiguous), bool(flags.f_contiguous)
        self.owndata = array.base is None
        self.forc, self.fnc = bool(flags.forc), bool(flags.fnc)

    def __getitem__(self, name: str) -> bool:
        return bool(getattr(self, {"C": "c_contiguous", "F": "f_contiguous", "O": "owndata"}.get(name, name.lower())))


class ndarray:
    """See ``cupy.ndarray``; what the project does not use is not there."""

    __array_priority__ = 100
    __hash__ = None
    __slots__ = ("__weakref__", "_memory", "_raw", "base")

    _raw: Raw
    _memory: Any
    base: ndarray | None

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None,
                 order: str = "C") -> None:  # fmt: skip
        machine.check(thread.device)
        kind = np.dtype(dtype)
        if kind.kind not in "?biufc" or not kind.isnative:
            raise ValueError(f"Unsupported dtype {kind}")
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        self._memory = memory.alloc(nbytes) if memptr is None else memptr
        start = self._memory._offset
        self._raw = np.ndarray(shape, kind, self._memory.mem.buffer, start, strides, order)
        self.base = None

    @classmethod
    def _view(cls, raws: Raw, of: ndarray) -> ndarray:
        view = cls.__new__(cls)
        view._raw, view._memory, view.base = raws, of._memory, of if of.base is None else of.base
        return view

    # -- what it is --------------------------------------------------------------------------------------------------
    shape = property(lambda self: self._raw.shape)
    dtype = property(lambda self: self._raw.dtype)
    size = property(lambda self: int(self._raw.size))
    nbytes = property(lambda self: int(self._raw.nbytes))
    ndim = property(lambda self: self._raw.ndim)
    itemsize = property(lambda self: self._raw.itemsize)
    strides = property(lambda self: self._raw.strides)
    flags = property(lambda self: Flags(self))
    device = property(lambda self: self._memory.device)
    T = property(lambda self: self._view(self._raw.T, self))
    mT = property(lambda self: self._view(self._raw.mT, self))

    @property
    def data(self) -> memory.MemoryPointer:
        """Where its first element is."""
        mem = self._memory.mem
        return memory.MemoryPointer(mem, self._raw.__array_interface__["data"][0] - mem.ptr if mem.size else 0)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return int(self._raw.shape[0])

    def __iter__(self) -> Iterator[ndarray]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    # -- NumPy is kept out -------------------------------------------------------------------------------------------
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(_IMPLICIT)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was called with a device array; {_IMPLICIT}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        numbers = [x for x in inputs if isinstance(x, np.generic)]
        if method == "__call__" and not kwargs and ufunc in _OPERATORS and len(inputs) == 2 and numbers:
            return fresh(ufunc, *inputs)
        raise TypeError(f"numpy.{ufunc.__name__} was called with a device array; {_IMPLICIT}")

    # -- to the host and back: these wait for the device ---------------------------------------------------------------
    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> Raw:
        """Return a copy on the host; without ``blocking``, it is there once the stream has been waited for."""
        return transfer.download(self, stream, order, out, blocking)

    def set(self, arr: Raw, stream: Any = None) -> None:
        """Copy ``arr`` here, from pinned memory in the order of the stream."""
        transfer.upload_into(self, arr, stream)

    def item(self) -> Any:
        """Return the only element."""
        return self.get().item()

    def tolist(self) -> Any:
        """Return Python's numbers in lists."""
        return self.get().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """Return the bytes of the elements."""
        return self.get().tobytes(order)

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __repr__(self) -> str:
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    # -- elements ----------------------------------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> ndarray:
        key, arrays = _opened(key)
        if not arrays:
            return self._view(self._raw[_lasting(key)], self)
        if any(a.dtype == bool for a in arrays):
            synchronise()  # the shape of the result is not known before
        return fresh(lambda a, *found: a[_closed(key, found)], self, *arrays)

    def __setitem__(self, key: Any, value: Any) -> None:
        key, arrays = _opened(key)
        if isinstance(value, np.ndarray):
            raise TypeError("a NumPy array cannot be written into a device array; use set()")
        if getattr(value, "ndim", 0) and any(a.dtype == bool for a in arrays):
            synchronise()

        def write(out: Raw, given: Any, *found: Raw) -> None:
            out[_closed(key, found)] = given

        into(write, self, value, *arrays)

    def take(self, indices: Any, axis: Any = None, out: ndarray | None = None) -> ndarray:
        """Return the elements at ``indices`` along ``axis``."""
        return _result(lambda a, i: np.take(a, i, axis), out, self, indices)

    def fill(self, value: Any) -> None:
        """Set every element."""
        into(lambda out, v: out.fill(v), self, value.item() if isinstance(value, np.ndarray) else value)

    # -- shape -------------------------------------------------------------------------------------------------------
    def view(self, dtype: Any = None, type: Any = None) -> ndarray:  # CuPy's name
        """Return the same memory, as ``dtype``."""
        return self._view(self._raw if dtype is None else self._raw.view(np.dtype(dtype)), self)

    def reshape(self, *shape: Any, order: str = "C", copy: Any = None) -> ndarray:
        """Return a view of another shape, a copy if there is none."""
        made = self._raw.reshape(*shape, order=order)
        if copy is not True and (not made.size or np.may_share_memory(made, self._raw)):
            return self._view(made, self)
        if copy is False:
            raise ValueError("Unable to avoid creating a copy while reshaping.")
        return fresh(lambda a: a.reshape(*shape, order=order), self, order=order)

    def ravel(self, order: str = "C") -> ndarray:
        """Return a flat view, a copy if there is none."""
        return self.reshape(-1, order=order)

    def flatten(self, order: str = "C") -> ndarray:
        """Return a flat copy."""
        return fresh(lambda a: a.flatten(order), self)

    def transpose(self, *axes: Any) -> ndarray:
        """Return a view with the axes in another order."""
        return self._view(self._raw.transpose(*axes), self)

    def swapaxes(self, axis1: int, axis2: int) -> ndarray:
        """Return a view with two axes exchanged."""
        return self._view(self._raw.swapaxes(axis1, axis2), self)

    def squeeze(self, axis: Any = None) -> ndarray:
        """Return a view without axes of length 1."""
        return self._view(self._raw.squeeze(axis), self)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
        """Return a view of the diagonal."""
        diagonal = self._raw.diagonal(offset, axis1, axis2)
        return self._view(np.lib.stride_tricks.as_strided(diagonal, writeable=True), self)

    def repeat(self, repeats: int, axis: Any = None) -> ndarray:
        """Return every element ``repeats`` times."""
        return fresh(lambda a: a.repeat(int(repeats), axis), self)

    # -- copies ------------------------------------------------------------------------------------------------------
    def copy(self, order: str = "C") -> ndarray:
        """Return a copy."""
        return fresh(lambda a: a, self, order=order)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy("K")

    def astype(
        self, dtype: Any, order: str = "K", casting: Any = None, subok: Any = None, copy: bool = True
    ) -> ndarray:
        """Return the elements as ``dtype``; the array itself if that is its dtype and ``copy`` is false."""
        if casting is not None or subok is not None:
            raise TypeError("casting and subok are not supported yet")
        kept = order in "KA" or self.flags["CF"[order == "F"]]
        if not copy and self.dtype == np.dtype(dtype) and kept:
            return self
        return fresh(lambda a: a.astype(dtype, order=order), self, order=order)

    # -- arithmetic: methods -------------------------------------------------------------------------------------------
    def clip(self, min: Any = None, max: Any = None, out: ndarray | None = None) -> ndarray:
        """Return the elements within bounds."""
        if min is None:
            return self.copy() if max is None else _result(np.minimum, out, self, max)
        return _result(np.maximum, out, self, min) if max is None else _result(np.clip, out, self, min, max)

    def round(self, decimals: int = 0, out: ndarray | None = None) -> ndarray:
        """Return the elements, rounded."""
        return _result(lambda a: a.round(decimals), out, self)

    def argsort(self, axis: Any = -1, kind: Any = None) -> ndarray:
        """Return the indices that sort it, always stable."""
        _check_kind(kind)
        return fresh(lambda a: np.argsort(a, axis, kind="stable"), self)

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        """Sort it in place."""
        _check_kind(kind)
        into(lambda out: out.sort(axis, kind="stable"), self)

    def searchsorted(self, v: Any, side: str = "left", sorter: Any = None) -> ndarray:
        """Return where the elements of ``v`` would be inserted."""
        return fresh(lambda a, x: np.searchsorted(a, x, side), self, v)

    def nonzero(self) -> tuple[ndarray, ...]:
        """Return the indices of what is not 0; their number is waited for."""
        synchronise()
        return tuple(fresh(lambda a, i=i: a.nonzero()[i], self) for i in range(self.ndim))

    def dot(self, b: Any, out: ndarray | None = None) -> ndarray:
        """Return the dot product."""
        cublas()
        return _result(np.dot, out, self, b)

    def __matmul__(self, other: Any) -> ndarray:
        cublas()
        return fresh(np.matmul, self, other)

    def __rmatmul__(self, other: Any) -> ndarray:
        cublas()
        return fresh(np.matmul, other, self)


def _check_kind(kind: Any) -> None:
    if kind not in (None, "stable"):
        raise ValueError("kind can only be None or 'stable'")


def _opened(key: Any) -> tuple[tuple[Any, ...], list[ndarray]]:
    """Return a key as a tuple, and the device arrays in it; refuse arrays of the host."""
    parts = key if isinstance(key, tuple) else (key,)
    for part in parts:
        if isinstance(part, (np.ndarray, list)):
            raise TypeError(f"Unsupported type {type(part)}: indices live on the device, too")
        if isinstance(part, slice) and any(isinstance(b, ndarray) for b in (part.start, part.stop, part.step)):
            raise TypeError("slice indices must be integers or None or have an __index__ method")
    return parts, [part for part in parts if isinstance(part, ndarray)]


def _lasting(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key with an ellipsis: NumPy then returns an array, even for a single element."""
    return key if any(part is Ellipsis for part in key) else (*key, Ellipsis)


def _closed(key: tuple[Any, ...], found: tuple[Raw, ...]) -> tuple[Any, ...]:
    arrays = iter(found)
    return tuple(next(arrays) if isinstance(part, ndarray) else part for part in key)


def _result(function: Any, out: ndarray | None, *inputs: Any) -> ndarray:
    """A new array, or ``out`` with the result in it; ``out`` has its shape, and may have another dtype."""
    if out is None:
        return fresh(function, *inputs)
    if not isinstance(out, ndarray):
        raise TypeError(f"Argument 'out' has incorrect type (expected cupy.ndarray, got {type(out)})")

    def write(target: Raw, *raws: Any) -> None:
        result = np.asarray(function(*raws))
        if result.shape != target.shape:
            raise ValueError(f"Output array is mismatched: {target.shape} is not {result.shape}")
        np.copyto(target, result, casting="unsafe")

    return into(write, out, *inputs)


def _binary(ufunc: Any) -> tuple[Any, Any, Any]:
    def forward(self: ndarray, other: Any) -> ndarray:
        return fresh(ufunc, self, other)

    def reverse(self: ndarray, other: Any) -> ndarray:
        return fresh(ufunc, other, self)

    def in_place(self: ndarray, other: Any) -> ndarray:
        return into(lambda out, a, b: ufunc(a, b, out=out, casting="same_kind"), self, self, other)

    return forward, reverse, in_place


def _reduction(name: str, *extra: str) -> Any:
    """A method that reduces axes; ``extra``: which parameters it has besides axis, out and keepdims, in their order."""

    def method(self: ndarray, *args: Any, **kwargs: Any) -> ndarray:
        order = ("axis", *extra, "keepdims") if "out" in extra else ("axis", *extra, "out", "keepdims")
        given = dict(zip(order, args, strict=False)) | kwargs
        if len(args) > len(order) or set(given) - set(order):
            raise TypeError(f"{name}() got an unexpected argument: {sorted(set(given) - set(order))}")
        out = given.pop("out", None)
        given["keepdims"] = bool(given.get("keepdims", False))
        dtype = given.pop("dtype", None) if name.startswith("arg") else None
        return _result(lambda a: _as(getattr(np, name)(a, **given), dtype), out, self)

    method.__name__ = name
    return method


def _as(result: Any, dtype: Any) -> Any:
    return result if dtype is None else result.astype(dtype)


def _scan(ufunc: Any) -> Any:
    def method(self: ndarray, axis: Any = None, dtype: Any = None, out: ndarray | None = None) -> ndarray:
        return _result(lambda a: ufunc(a, axis, dtype), out, self)

    return method


def _unary(ufunc: Any) -> Any:
    return lambda self: fresh(ufunc, self)


for _name, _ufunc in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}.items():  # fmt: skip
    for _prefix, _method in zip(("", "r", "i"), _binary(_ufunc), strict=True):
        setattr(ndarray, f"__{_prefix}{_name}__", _method)
for _name, _ufunc in {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}.items():  # fmt: skip
    setattr(ndarray, f"__{_name}__", _binary(_ufunc)[0])
for _name, _ufunc in {"neg": np.negative, "pos": np.positive, "abs": np.abs, "invert": np.invert}.items():
    setattr(ndarray, f"__{_name}__", _unary(_ufunc))
for _name in ("sum", "mean", "prod"):
    setattr(ndarray, _name, _reduction(_name, "dtype"))
for _name in ("max", "min", "any", "all"):
    setattr(ndarray, _name, _reduction(_name))
for _name in ("std", "var"):
    setattr(ndarray, _name, _reduction(_name, "dtype", "out", "ddof"))
for _name in ("argmax", "argmin"):
    setattr(ndarray, _name, _reduction(_name, "out", "dtype"))
ndarray.cumsum, ndarray.cumprod = _scan(np.cumsum), _scan(np.cumprod)
