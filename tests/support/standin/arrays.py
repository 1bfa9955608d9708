"""``ndarray``, an array of the simulated device, which holds a NumPy array and is none; and CuPy's functions.

Methods and functions are NumPy's, for device arrays and numbers only; ``test_cupy_names`` compares what the package
calls with the real CuPy's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.support.standin import engine, memory
from tests.support.standin.engine import Raw, fresh, into, launch, raw, synchronise

_IMPLICIT = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)
_OPERATORS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
_COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_UNARY = {"neg": np.negative, "abs": np.abs, "invert": np.invert}
_REFUSED = {"where", "initial", "subok", "like"}
"""Parameters that NumPy has and CuPy has not."""


class ndarray:
    """See ``cupy.ndarray``; it has what the package and its tests use."""

    __array_priority__ = 100
    __hash__ = None
    __slots__ = ("__weakref__", "_memory", "_raw", "base")

    _raw: Raw
    _memory: Any
    base: ndarray | None

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> None:
        kind = np.dtype(dtype)
        if kind.kind not in "?biuf" or not kind.isnative:
            raise ValueError(f"Unsupported dtype {kind}")
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        self._memory = memory.alloc(nbytes) if memptr is None else memptr
        self._raw = np.ndarray(shape, kind, self._memory.mem.buffer, self._memory.offset, strides)
        self.base = None

    @classmethod
    def _view(cls, raws: Raw, of: ndarray) -> ndarray:
        view = cls.__new__(cls)
        view._raw, view._memory, view.base = raws, of._memory, of if of.base is None else of.base
        return view

    @property
    def data(self) -> memory.MemoryPointer:
        """Where its first element is."""
        mem = self._memory.mem
        return memory.MemoryPointer(mem, self._raw.__array_interface__["data"][0] - mem.ptr if mem.size else 0)

    def __len__(self) -> int:
        return len(self._raw)

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))

    # -- NumPy's functions and arrays are refused ----------------------------------------------------------------------
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(_IMPLICIT)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was called with a device array; {_IMPLICIT}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Compute an operator of a NumPy number and a device array; NumPy asks the array for these only."""
        known = ufunc in (*_OPERATORS.values(), *_COMPARISONS.values())
        if known and method == "__call__" and not kwargs and any(isinstance(x, np.generic) for x in inputs):
            return fresh(ufunc, *inputs)
        raise TypeError(f"numpy.{ufunc.__name__} was called with a device array; {_IMPLICIT}")

    # -- to the host and back: these wait for the device ---------------------------------------------------------------
    def get(self) -> Raw:
        """Return a copy on the host."""
        source = raw(self)
        synchronise()
        engine.counters.add("downloads")
        self._memory.mem.check_guards("a kernel")
        return source.copy()

    def set(self, arr: Raw, stream: Any = None) -> None:
        """Copy ``arr`` here, from pinned memory in the order of the stream, which a capture records."""
        if not isinstance(arr, np.ndarray) or self.dtype != arr.dtype:
            raise TypeError(f"{getattr(arr, 'dtype', type(arr))} array cannot be set to {self.dtype} array")
        if self.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        with engine.on(stream):
            target = raw(self)
            if memory.is_pinned(arr):
                engine.counters.add("staged")
            else:
                engine.upload()
            launch(lambda: np.copyto(target, arr))

    def __getitem__(self, key: Any) -> ndarray:
        key, arrays = _opened(key)
        if not arrays:
            whole = key if any(part is Ellipsis for part in key) else (*key, Ellipsis)
            return self._view(self._raw[whole], self)
        if any(a.dtype == bool for a in arrays):
            synchronise()  # the shape of the result is not known before
        return fresh(lambda a, *found: a[_filled(key, iter(found))], self, *arrays)

    def __setitem__(self, key: Any, value: Any) -> None:
        key, arrays = _opened(key)
        if getattr(value, "ndim", 0) and any(a.dtype == bool for a in arrays):
            synchronise()

        def write(out: Raw, given: Any, *found: Raw) -> None:
            out[_filled(key, iter(found))] = given

        into(write, self, value, *arrays)

    def copy(self, order: str = "C") -> ndarray:
        """Return a copy."""
        return fresh(lambda a: a, self, order=order)

    def __deepcopy__(self, memo: Any) -> ndarray:
        return self.copy("K")

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> ndarray:
        """Return the elements as ``dtype``; the array itself if that is its dtype and ``copy`` is false."""
        if not copy and self.dtype == np.dtype(dtype) and (order == "K" or self.flags.c_contiguous):
            return self
        return fresh(lambda a: a.astype(dtype, order=order), self, order=order)

    def fill(self, value: Any) -> None:
        """Set every element."""
        into(lambda out, v: out.fill(v), self, value)


def _opened(key: Any) -> tuple[tuple[Any, ...], list[ndarray]]:
    """Return a key as a tuple, and the device arrays in it; refuse arrays of the host."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, (np.ndarray, list)) for part in parts):
        raise TypeError("an index is on the host: indices must be on the device, too")
    return parts, [part for part in parts if isinstance(part, ndarray)]


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, (list, tuple)):
        for part in given:
            yield from _flat(part)
    else:
        yield given


def _leaves(given: Any) -> Iterator[Any]:
    return (part for part in _flat(given) if isinstance(part, (ndarray, np.ndarray)))


def _filled(given: Any, found: Iterator[Any]) -> Any:
    """Return ``given`` with the next of ``found`` in the place of each array."""
    if isinstance(given, (list, tuple)):
        return type(given)(_filled(part, found) for part in given)
    return next(found) if isinstance(given, (ndarray, np.ndarray)) else given


def _computed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ndarray:
    """Return ``function`` of device arrays, in lists or not, and numbers; with ``out``, it is written there."""
    out = kwargs.pop("out", None)
    if wrong := _REFUSED & set(kwargs):
        raise TypeError(f"CuPy's functions have no parameter {sorted(wrong)}")
    engine.refuse_half(part._raw if isinstance(part, ndarray) else part for part in _flat(args))

    def result(*raws: Any) -> Any:
        return function(*_filled(args, iter(raws)), **kwargs)

    if out is None:
        return fresh(result, *_leaves(args))
    if not isinstance(out, ndarray):
        raise TypeError(f"Argument 'out' has incorrect type (expected cupy.ndarray, got {type(out)})")

    def write(target: Raw, *raws: Any) -> None:
        found = np.asarray(result(*raws))
        if found.shape != target.shape:
            raise ValueError(f"Output array is mismatched: {target.shape} is not {found.shape}")
        np.copyto(target, found, casting="same_kind")

    return into(write, out, *_leaves(args))


def _function(name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> ndarray:
        if name == "matmul":
            engine.cublas()
        return _computed(getattr(np, name), args, kwargs)

    call.__name__ = name
    return call


def _viewing(name: str) -> Any:
    def call(a: ndarray, *args: Any, **kwargs: Any) -> ndarray:
        return ndarray._view(getattr(np, name)(raw(a), *args, **kwargs), a)

    return call


def _method(name: str, parameters: tuple[str, ...]) -> Any:
    def method(self: ndarray, *args: Any, **kwargs: Any) -> ndarray:
        given = dict(zip(parameters, args, strict=False)) | kwargs
        if len(args) > len(parameters) or set(given) - set(parameters):
            raise TypeError(f"{name}() got an unexpected argument: {sorted(set(given) - set(parameters))}")
        return _computed(getattr(np, name), (self,), given)

    return method


def _reshaping(name: str) -> Any:
    """Return a method whose result is a view, or a copy if there is none."""

    def method(self: ndarray, *args: Any, **kwargs: Any) -> ndarray:
        made = getattr(self._raw, name)(*args, **kwargs)
        if not made.size or np.may_share_memory(made, self._raw):
            return self._view(made, self)
        return fresh(lambda a: getattr(a, name)(*args, **kwargs), self)

    return method


def _waiting(function: Any) -> Any:
    return lambda self: function(self.get())


def _operators(ufunc: Any) -> tuple[Any, Any, Any]:
    return (
        lambda self, other: fresh(ufunc, self, other),
        lambda self, other: fresh(ufunc, other, self),
        lambda self, other: into(lambda out, a, b: ufunc(a, b, out=out, casting="same_kind"), self, self, other),
    )


for _name in ("shape", "dtype", "size", "nbytes", "ndim", "itemsize", "strides", "flags"):
    setattr(ndarray, _name, property(lambda self, name=_name: getattr(self._raw, name)))
setattr(ndarray, "T", property(lambda self: self.transpose()))  # noqa: B010
for _name, _ufunc in _OPERATORS.items():
    for _prefix, _operator in zip(("", "r", "i"), _operators(_ufunc), strict=True):
        setattr(ndarray, f"__{_prefix}{_name}__", _operator)
for _name, _ufunc in _COMPARISONS.items():
    setattr(ndarray, f"__{_name}__", _operators(_ufunc)[0])
setattr(ndarray, "__matmul__", _function("matmul"))  # noqa: B010
for _name, _ufunc in _UNARY.items():
    setattr(ndarray, f"__{_name}__", lambda self, ufunc=_ufunc: fresh(ufunc, self))
for _name in ("sum", "mean", "var", "std"):
    setattr(ndarray, _name, _method(_name, ("axis", "dtype", "out", "keepdims")))
for _name in ("max", "min", "any", "all", "argmax"):
    setattr(ndarray, _name, _method(_name, ("axis", "out", "keepdims")))
for _name in ("reshape", "ravel", "flatten", "transpose", "swapaxes", "squeeze", "view"):
    setattr(ndarray, _name, _reshaping(_name))
for _name, _function_of_host in {
    "item": np.ndarray.item, "tolist": np.ndarray.tolist, "tobytes": np.ndarray.tobytes, "__float__": float,
    "__int__": int, "__bool__": bool, "__repr__": repr,
}.items():  # fmt: skip
    setattr(ndarray, _name, _waiting(_function_of_host))


# -- making arrays -----------------------------------------------------------------------------------------------------
def array(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K") -> ndarray:
    """Return a new device array; what is on the host is uploaded."""
    if isinstance(obj, ndarray):
        return obj.astype(obj.dtype if dtype is None else dtype, order, copy=copy)
    host = np.array(obj, dtype, order="C")
    engine.upload()
    made = ndarray(host.shape, host.dtype)
    launch(lambda: np.copyto(made._raw, host))
    return made


def asarray(a: Any, dtype: Any = None) -> ndarray:
    """Return ``a`` itself if it is a device array of this dtype, else a copy on the device."""
    return array(a, dtype, copy=False)


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    """Return ``a`` in C order."""
    return array(a, dtype, copy=False, order="C")


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """Return an array of garbage."""
    engine.machine.check(engine.thread.device)
    return ndarray(shape, dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> ndarray:
    """Return an array of one value."""
    kind = np.asarray(raw(fill_value)).dtype if dtype is None else dtype
    return into(lambda target, v: np.copyto(target, v, casting="unsafe"), empty(shape, kind), fill_value)


def empty_like(prototype: ndarray, dtype: Any = None) -> ndarray:
    """Return an array of garbage that looks like another one."""
    like = np.empty_like(raw(prototype), dtype)
    return ndarray(like.shape, like.dtype, strides=like.strides)


def _filling(value: int) -> tuple[Any, Any]:
    def of_shape(shape: Any, dtype: Any = float) -> ndarray:
        return full(shape, value, dtype)

    def like(a: ndarray, dtype: Any = None) -> ndarray:
        return into(lambda target: target.fill(value), empty_like(a, dtype))

    return of_shape, like


zeros, zeros_like = _filling(0)
ones, ones_like = _filling(1)
MADE = (array, asarray, ascontiguousarray, empty, empty_like, full)
_COMPUTED = """abs add arange argmax clip concatenate divide exp expm1 eye floor isfinite log log1p matmul maximum
minimum multiply negative sign sqrt square stack subtract tanh where"""
FUNCTIONS = {
    **{function.__name__: function for function in MADE},
    **{name: _function(name) for name in _COMPUTED.split()},
    **{name: _viewing(name) for name in ("broadcast_to", "expand_dims", "flip", "moveaxis")},
    "zeros": zeros,
    "zeros_like": zeros_like,
    "ones": ones,
    "ones_like": ones_like,
    "ndarray": ndarray,
}
