"""CuPy's functions that are no universal functions, with the parameters that CuPy has."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.standin import memory, transfer
from tests.support.standin.arrays import _result, ndarray
from tests.support.standin.engine import Raw, fresh, into, launch, machine, raw, upload

_DTYPE = np.dtype(float)


def is_available() -> bool:
    """Return whether there is a device that works."""
    return bool(machine.devices) and not machine.failure


def get_array_module(*args: Any) -> Any:
    """Return this module if an argument is a device array, else NumPy."""
    import sys

    return sys.modules["cupy"] if any(isinstance(a, ndarray) for a in args) else np


# -- making arrays -----------------------------------------------------------------------------------------------------
def array(obj: Any, dtype: Any = None, copy: bool | None = True, order: str = "K", subok: bool = False, ndmin: int = 0,
          *, blocking: bool = False) -> ndarray:  # fmt: skip
    """Return a new device array; what is on the host is uploaded."""
    if isinstance(obj, ndarray):
        made = obj.astype(obj.dtype if dtype is None else dtype, order, copy=bool(copy))
    else:
        host = np.array(obj, dtype, order=order)
        if host.dtype.kind not in "?biufc":
            raise ValueError(f"Unsupported dtype {host.dtype}")
        upload()
        made = _uploaded(host, order)
    return made if made.ndim >= ndmin else made.reshape((1,) * (ndmin - made.ndim) + made.shape)


def _uploaded(host: Raw, order: str) -> ndarray:
    if not host.dtype.isnative:
        host = host.astype(host.dtype.newbyteorder("="))
    fortran = order == "F" or (order in "KA" and host.flags.f_contiguous and not host.flags.c_contiguous)
    made = ndarray(host.shape, host.dtype, order="F" if fortran else "C")
    launch(lambda: np.copyto(made._raw, host))
    return made


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    """Return ``a`` itself if it is a device array of this dtype and order, else a copy on the device."""
    return array(a, dtype, copy=bool(copy), order=order or "K", blocking=blocking)


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    """Return ``a`` in C order."""
    return asarray(a, dtype, "C")


def asfortranarray(a: Any, dtype: Any = None) -> ndarray:
    """Return ``a`` in Fortran order."""
    return asarray(a, dtype, "F")


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Raw:
    """Return ``a`` as a NumPy array."""
    if isinstance(a, ndarray):
        return transfer.download(a, stream, order, out, blocking)
    return np.asarray(a, order=order)


def copy(a: Any, order: str = "K") -> ndarray:
    """Return a copy."""
    return _device(a).copy(order)


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Return an array of garbage."""
    return ndarray(shape, dtype, order=order)


def empty_like(prototype: Any, dtype: Any = None, order: str = "K", subok: None = None, shape: Any = None) -> ndarray:
    """Return an array of garbage that looks like another one."""
    kind = _device(prototype).dtype if dtype is None else dtype
    if shape is not None:
        return ndarray(shape, kind, order="F" if order == "F" else "C")
    like = np.empty_like(prototype._raw, kind, order)
    return ndarray(like.shape, kind, strides=like.strides)


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Return zeros."""
    return _filled(ndarray(shape, dtype, order=order), 0)


def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: None = None, shape: Any = None) -> ndarray:
    """Return zeros that look like another array."""
    return _filled(empty_like(a, dtype, order, subok, shape), 0)


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Return ones."""
    return _filled(ndarray(shape, dtype, order=order), 1)


def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: None = None, shape: Any = None) -> ndarray:
    """Return ones that look like another array."""
    return _filled(empty_like(a, dtype, order, subok, shape), 1)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """Return an array of one value."""
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, ndarray) else np.asarray(raw(fill_value)).dtype
    return _filled(ndarray(shape, dtype, order=order), fill_value)


def full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: None = None,
              shape: Any = None) -> ndarray:  # fmt: skip
    """Return an array of one value that looks like another one."""
    return _filled(empty_like(a, dtype, order, subok, shape), fill_value)


def _filled(out: ndarray, value: Any) -> ndarray:
    return into(lambda target, v: np.copyto(target, v, casting="unsafe"), out, value)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:
    """Return numbers at equal distances."""
    start, stop = (0, start) if stop is None else (start, stop)
    return fresh(lambda a, b, c: np.arange(a, b, c, dtype), *(_number(x) for x in (start, stop, step)))


def linspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
             axis: int = 0) -> ndarray:  # fmt: skip
    """Return ``num`` numbers at equal distances."""
    if retstep:
        raise NotImplementedError("the stand-in's linspace does not return the step")
    return fresh(lambda a, b: np.linspace(a, b, num, endpoint, dtype=dtype, axis=axis), _number(start), _number(stop))


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, order: str = "C") -> ndarray:
    """Return ones on a diagonal."""
    return fresh(lambda: np.eye(N, M, k, dtype), order=order)


def identity(n: int, dtype: Any = float) -> ndarray:
    """Return ones on the diagonal."""
    return eye(n, dtype=dtype)


def _number(x: Any) -> Any:
    if isinstance(x, ndarray):
        raise TypeError(f"Unsupported type {type(x)}: a number of the host is needed")
    return raw(x)


def _device(x: Any) -> ndarray:
    if not isinstance(x, ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    return x


# -- shape -------------------------------------------------------------------------------------------------------------
def reshape(a: Any, newshape: Any, order: str = "C", *, copy: Any = None) -> ndarray:
    """See ``ndarray.reshape``."""
    return _device(a).reshape(newshape, order=order, copy=copy)


def ravel(a: Any, order: str = "C") -> ndarray:
    """See ``ndarray.ravel``."""
    return _device(a).ravel(order)


def transpose(a: Any, axes: Any = None) -> ndarray:
    """See ``ndarray.transpose``."""
    return _device(a).transpose(axes)


def swapaxes(a: Any, axis1: int, axis2: int) -> ndarray:
    """See ``ndarray.swapaxes``."""
    return _device(a).swapaxes(axis1, axis2)


def moveaxis(a: Any, source: Any, destination: Any) -> ndarray:
    """Return a view with axes moved."""
    return ndarray._view(np.moveaxis(_device(a)._raw, source, destination), a)


def rollaxis(a: Any, axis: int, start: int = 0) -> ndarray:
    """Return a view with an axis moved."""
    return ndarray._view(np.rollaxis(_device(a)._raw, axis, start), a)


def expand_dims(a: Any, axis: Any) -> ndarray:
    """Return a view with axes of length 1 more."""
    return ndarray._view(np.expand_dims(_device(a)._raw, axis), a)


def squeeze(a: Any, axis: Any = None) -> ndarray:
    """See ``ndarray.squeeze``."""
    return _device(a).squeeze(axis)


def atleast_2d(*arys: Any) -> Any:
    """Return views with two axes at least."""
    views = [ndarray._view(np.atleast_2d(_device(a)._raw), a) for a in arys]
    return views[0] if len(views) == 1 else views


def broadcast_to(array: Any, shape: Any) -> ndarray:
    """Return a view in which the elements are repeated."""
    view = np.broadcast_to(_device(array)._raw, shape)
    return ndarray._view(np.lib.stride_tricks.as_strided(view, writeable=True), array)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> ndarray:
    """See ``ndarray.diagonal``."""
    return _device(a).diagonal(offset, axis1, axis2)


def flip(a: Any, axis: Any = None) -> ndarray:
    """Return a view with an axis reversed."""
    return ndarray._view(np.flip(_device(a)._raw, axis), a)


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[ndarray]:
    """Return views of the parts of an array."""
    return [ndarray._view(v, ary) for v in np.split(_device(ary)._raw, indices_or_sections, axis)]


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[ndarray]:
    """Return views of the parts of an array, of about equal size."""
    return [ndarray._view(v, ary) for v in np.array_split(_device(ary)._raw, indices_or_sections, axis)]


# -- copying -----------------------------------------------------------------------------------------------------------
def concatenate(tup: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> ndarray:
    """Return arrays after one another."""
    options: Any = {"dtype": dtype, "casting": casting}
    return _result(lambda *raws: np.concatenate(raws, axis, **options), out, *map(_device, tup))


def stack(tup: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> ndarray:
    """Return arrays along a new axis."""
    options: Any = {"dtype": dtype, "casting": casting}
    return _result(lambda *raws: np.stack(raws, axis, **options), out, *map(_device, tup))


def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> ndarray:
    """Return arrays side by side."""
    return fresh(lambda *raws: np.hstack(raws, dtype=dtype, casting=casting), *map(_device, tup))


def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> ndarray:
    """Return arrays below one another."""
    return fresh(lambda *raws: np.vstack(raws, dtype=dtype, casting=casting), *map(_device, tup))


def tile(A: Any, reps: Any) -> ndarray:
    """Return repetitions of an array."""
    return fresh(lambda a: np.tile(a, reps), _device(A))


def repeat(a: Any, repeats: Any, axis: Any = None) -> ndarray:
    """Return every element several times."""
    return _device(a).repeat(repeats, axis)


def roll(a: Any, shift: Any, axis: Any = None) -> ndarray:
    """Return the elements, shifted round."""
    return fresh(lambda x: np.roll(x, shift, axis), _device(a))


def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> ndarray:
    """Return the array with a margin."""
    return fresh(lambda a: np.pad(a, pad_width, mode, **kwargs), _device(array))


def append(arr: Any, values: Any, axis: Any = None) -> ndarray:
    """Return the array with ``values`` at its end."""
    return fresh(lambda a, b: np.append(a, b, axis), _device(arr), values)


def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """Write ``src`` into ``dst``."""
    if where is None:
        into(lambda out, a: np.copyto(out, a, casting=casting), _device(dst), src)
    else:
        into(lambda out, a, w: np.copyto(out, a, casting=casting, where=w), _device(dst), src, where)


def tril(m: Any, k: int = 0) -> ndarray:
    """Return the lower triangle."""
    return fresh(lambda a: np.tril(a, k), _device(m))


def triu(m: Any, k: int = 0) -> ndarray:
    """Return the upper triangle."""
    return fresh(lambda a: np.triu(a, k), _device(m))


# -- memory, kept here for the module's names ---------------------------------------------------------------------
def get_default_memory_pool() -> memory.MemoryPool:
    """Return the pool that arrays come from."""
    return memory.default_pool


def get_default_pinned_memory_pool() -> memory.PinnedMemoryPool:
    """Return the pool that pinned memory comes from."""
    return memory.default_pinned_pool


__all__ = [name for name, value in list(globals().items())
           if getattr(value, "__module__", "") == __name__ and not name.startswith("_")]  # fmt: skip
