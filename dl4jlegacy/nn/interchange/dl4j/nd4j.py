"""ND4J's binary arrays (``Nd4j.write`` / ``Nd4j.read``), the format of ``coefficients.bin`` in a DL4J model file.

An array is two buffers, shape information and data, each ``UTF allocation mode, length, UTF data type, elements``, all
big-endian. Two generations exist:

* 0.x (mode ``DIRECT``, ``HEAP`` or ``JAVACPP``): int32 lengths and shape information, always at least two dimensions;
* 1.0.0 (mode ``LONG_SHAPE`` or ``MIXED_DATA_TYPES``): int64 lengths and shape information.

``write`` uses the older one if it has the data type, because every Deeplearning4j from 0.5 to 1.0.0-M2.1 reads it,
while 0.9.1 cannot read the newer one. Layouts were checked against files written by 0.9.1 and 1.0.0-M2.1.
"""

from __future__ import annotations

import io
import math
import struct
from typing import IO, Any, Final

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.errors import ModelError

__all__ = ["read", "read_utf", "write", "write_utf"]

_INT32_MODES: Final = frozenset({"DIRECT", "HEAP", "JAVACPP"})
_INT64_MODES: Final = frozenset({"LONG_SHAPE", "MIXED_DATA_TYPES"})

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "FLOAT": np.dtype(">f4"),
    "DOUBLE": np.dtype(">f8"),
    "HALF": np.dtype(">f2"),
    "INT": np.dtype(">i4"),
    "LONG": np.dtype(">i8"),
    "SHORT": np.dtype(">i2"),
    "BYTE": np.dtype("i1"),
    "UBYTE": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "BFLOAT16": np.dtype(">u2"),  # the upper half of a float32
}
_NAMES: Final[dict[np.dtype[Any], str]] = {
    dtype.newbyteorder("="): name for name, dtype in _DTYPES.items() if name != "BFLOAT16"
}
_OLD_NAMES: Final = frozenset({"FLOAT", "DOUBLE", "HALF", "INT", "LONG"})
_EXTRAS: Final = {
    "FLOAT": 8192,
    "DOUBLE": 16384,
    "HALF": 4096,
    "INT": 131072,
    "LONG": 262144,
    "SHORT": 65536,
    "BYTE": 32768,
    "UBYTE": 32768 | 8388608,
    "BOOL": 524288,
}
_EMPTY: Final = 8

_MAX_RANK: Final = 32
_MAX_NAME: Final = 64
_PIECE: Final = 1 << 20  # bytes read at a time, so that a false length costs at most this much memory


def write(array: Array) -> bytes:
    """Return ``array`` in ND4J's binary format.

    Fortran-contiguous matrices keep their order, everything else is written in C order. In the old format a vector of
    n elements becomes a row ``(1, n)`` and a scalar ``(1, 1)``, as in ND4J 0.x itself.

    Raises:
        ModelError: ND4J has no type for this dtype.
    """
    x = to_host(np.asarray(array) if np.isscalar(array) else array)
    name = _NAMES.get(x.dtype.newbyteorder("="))
    if name is None:
        raise ModelError(f"array of dtype {x.dtype} cannot be written: ND4J has {', '.join(sorted(_NAMES.values()))}")
    old = name in _OLD_NAMES and 0 < x.size < 2**31
    if old and x.ndim < 2:
        x = x.reshape(1, -1)
    order = "f" if x.ndim > 1 and x.flags.f_contiguous and not x.flags.c_contiguous else "c"
    data: bytes = x.astype(_DTYPES[name], copy=False).tobytes(order="F" if order == "f" else "C")
    info = _shape_info(x.shape, order, 0 if old else _EXTRAS[name] | (0 if x.size else _EMPTY))
    if old:
        header = _header("JAVACPP", len(info), "INT") + struct.pack(f">{len(info)}i", *info)
        return header + _header("JAVACPP", x.size, name) + data
    header = _header("MIXED_DATA_TYPES", len(info), "LONG") + struct.pack(f">{len(info)}q", *info)
    return header if x.size == 0 else header + _header("MIXED_DATA_TYPES", x.size, name) + data


def read(source: IO[bytes] | bytes | bytearray | memoryview, *, max_nbytes: int | None = None) -> Array:
    """Read one array from a stream (or from bytes) in either generation of the format.

    Memory is allocated as the bytes arrive, not from a length field alone. BFLOAT16 becomes float32.

    Args:
        source: positioned at the array; afterwards positioned after it.
        max_nbytes: raise for data larger than this (before reading it).

    Raises:
        ModelError: the bytes end early or are not an ND4J array.
    """
    stream: IO[bytes] = io.BytesIO(source) if isinstance(source, bytes | bytearray | memoryview) else source
    mode, length, name = _read_header(stream, "shape information")
    info = _read_shape_info(stream, mode, length, name)
    rank, order, shape = info[0], chr(info[-1]), tuple(info[1 : 1 + info[0]])
    if mode == "MIXED_DATA_TYPES" and info[-3] & _EMPTY:
        return _no_elements(shape, info[-3])
    mode, length, name = _read_header(stream, "data")
    if math.prod(shape) != length:
        raise ModelError(f"ND4J array of shape {shape} announces {length} elements instead of {math.prod(shape)}")
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ModelError(f"ND4J array has data type {name!r}; readable are {', '.join(sorted(_DTYPES))}")
    nbytes = length * dtype.itemsize
    if max_nbytes is not None and nbytes > max_nbytes:
        raise ModelError(f"ND4J array announces {nbytes} bytes of data, expected at most {max_nbytes}")
    values = _values(_read_exactly(stream, nbytes, "data"), name)
    if not length:
        return _no_elements(shape, _EXTRAS.get(name, 0))
    return values.reshape(shape, order="F" if order == "f" and rank > 1 else "C")


def write_utf(text: str) -> bytes:
    """Return ASCII ``text`` in the format of Java's ``DataOutputStream.writeUTF``."""
    raw = text.encode("ascii")
    return struct.pack(">H", len(raw)) + raw


def read_utf(stream: IO[bytes], what: str) -> str:
    """Read a short ASCII string written by ``writeUTF``; ``what`` names it in errors."""
    (length,) = struct.unpack(">H", _read_exactly(stream, 2, what))
    if length > _MAX_NAME:
        raise ModelError(f"not an ND4J array: {what} should start with a name, found a string of {length} bytes")
    try:
        return _read_exactly(stream, length, what).decode("ascii")
    except UnicodeDecodeError as exc:
        raise ModelError(f"not an ND4J array: {what} starts with bytes that are no name") from exc


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=")


def _header(mode: str, length: int, name: str) -> bytes:
    return write_utf(mode) + struct.pack(">i" if mode in _INT32_MODES else ">q", length) + write_utf(name)


def _shape_info(shape: tuple[int, ...], order: str, extras: int) -> list[int]:
    strides, step = [0] * len(shape), 1
    for axis in range(len(shape)) if order == "f" else reversed(range(len(shape))):
        strides[axis] = step
        step *= shape[axis]
    if not extras and len(shape) == 2 and shape[0] == 1:
        strides = [1, 1]  # the form of a row vector in ND4J 0.x
    return [len(shape), *shape, *strides, extras, 1, ord(order)]


def _read_header(stream: IO[bytes], what: str) -> tuple[str, int, str]:
    mode = read_utf(stream, what)
    if mode not in _INT32_MODES | _INT64_MODES:
        raise ModelError(f"not an ND4J array: {what} has allocation mode {mode[:20]!r}")
    layout = ">i" if mode in _INT32_MODES else ">q"
    (length,) = struct.unpack(layout, _read_exactly(stream, struct.calcsize(layout), what))
    if length < 0:
        raise ModelError(f"not an ND4J array: {what} announces {length} elements")
    return mode, length, read_utf(stream, what)


def _read_shape_info(stream: IO[bytes], mode: str, length: int, name: str) -> tuple[int, ...]:
    if name not in ("INT", "LONG"):
        raise ModelError(f"not an ND4J array: its shape information has type {name!r} instead of INT or LONG")
    if not 4 <= length <= 2 * _MAX_RANK + 4:
        raise ModelError(f"not an ND4J array: its shape information has {length} elements")
    code = "i" if name == "INT" else "q"
    raw = _read_exactly(stream, length * struct.calcsize(f">{code}"), "shape information")
    info: tuple[int, ...] = struct.unpack(f">{length}{code}", raw)
    if length != 2 * info[0] + 4 or min(info[1 : 1 + info[0]], default=0) < 0 or info[-1] not in (ord("c"), ord("f")):
        raise ModelError(f"not an ND4J array: impossible shape information {info}")
    return info


def _values(data: bytes | bytearray, name: str) -> Array:
    """Return big-endian elements as a vector in native byte order."""
    dtype = _DTYPES[name]
    if name == "BOOL":
        return np.frombuffer(data, np.uint8).astype(np.bool_)
    raw = np.frombuffer(data, dtype)
    if name == "BFLOAT16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    native: Array = raw.astype(_native(dtype))
    return native


def _no_elements(shape: tuple[int, ...], extras: int) -> Array:
    """Return an array without elements; ND4J 1.0.0 writes no data buffer for it, only its type in the extras bits."""
    if math.prod(shape) and shape:
        raise ModelError(f"ND4J array of shape {shape} is marked as empty")
    known = {bits: name for name, bits in _EXTRAS.items()}
    dtype = _native(_DTYPES[known.get(extras & ~_EMPTY, "FLOAT")])
    try:
        return np.empty(shape or (0,), dtype)
    except ValueError as exc:  # numpy's limit on the product of the other dimensions
        raise ModelError(f"not an ND4J array: impossible shape {shape}") from exc


def _read_exactly(stream: IO[bytes], nbytes: int, what: str) -> bytes | bytearray:
    if nbytes <= _PIECE:
        piece = stream.read(nbytes)
        if len(piece) != nbytes:
            raise ModelError(f"ND4J array ends early: {what} needs {nbytes} bytes, {len(piece)} are there")
        return piece
    buffer = bytearray()
    while len(buffer) < nbytes:
        piece = stream.read(min(_PIECE, nbytes - len(buffer)))
        if not piece:
            raise ModelError(f"ND4J array ends early: {what} needs {nbytes} bytes, {len(buffer)} are there")
        buffer += piece
    return buffer
