"""The wire format: all data between processes, threads and disks are frames encoded and decoded here.

A frame is one contiguous block of bytes, all integers little-endian:

====== ===== ==========================================================================================
offset bytes what
====== ===== ==========================================================================================
0      4     magic ``DL4J``
4      2     format version, 1
6      2     flags, 0
8      4     length of the header
12     8     length of the whole frame
20     4     CRC-32 of bytes 0-19 and of the header
24     ...   header: msgpack ``[user header, [[array name, dtype, shape], ...]]``, at most 1 MB
...    ...   array bodies in the order of the header, C order, each starting at the next multiple of 64
====== ===== ==========================================================================================

The offset of a body follows from the shapes before it, so a frame cannot contain overlapping or stray bodies, and equal
contents give equal bytes (keys sorted, gaps zero). The CRC covers only the header. Code that stores ``digest(frame)``
can verify the bodies (a CRC over 60 MB would cost more than the copy). Decoding allocates no memory that a header
claims: arrays are views into the received bytes. There is no pickle, and no way to name a type.

Compared with .npy, npz, safetensors, msgpack and pickle, raw bodies behind a small header were the fastest safe
form to write, and the only one read without a copy.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import WireError

__all__ = [
    "MAX_HEADER",
    "VERSION",
    "Frame",
    "allocate",
    "chunks",
    "decode",
    "digest",
    "empty_bytes",
    "encode",
    "is_aligned",
    "join",
    "replace_header",
    "writable",
]

Frame = bytes | bytearray | memoryview
"""Valid types of a frame. Frames made here are writable memoryviews of bytes: they compare equal by content."""

VERSION = 1
MAX_HEADER = 1 << 20

_MAGIC = b"DL4J"
_PREFIX = struct.Struct("<4sHHIQI")
_CHECKED = 20  # the CRC covers the prefix before the CRC field
_ALIGNMENT = 64  # a cache line, and the widest vector register
_MAX_DEPTH = 32
_MAX_DIMENSIONS = 16
_DTYPES = {
    code: np.dtype(code if code[1] == "1" else "<" + code)
    for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_PLAIN = frozenset({type(None), bool, int, float, str})
"""Types of values that a header stores unchanged."""
_ENCODER = msgspec.msgpack.Encoder(order="deterministic")

_Table = list[tuple[str, str, tuple[int, ...]]]


def encode(header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> memoryview:
    """Return a frame with ``header`` (JSON values) and a copy of ``arrays``.

    Raises:
        WireError: a header value is not JSON, the header is over 1 MB, or an array has an unsupported dtype.
    """
    given = {name: np.asarray(array) for name, array in (arrays or {}).items()}
    frame, views = allocate(header, {name: (array.dtype, array.shape) for name, array in given.items()})
    for name, array in given.items():
        views[name][...] = array
    return frame


def allocate(
    header: Mapping[str, Any], shapes: Mapping[str, tuple[npt.DTypeLike, Sequence[int]]]
) -> tuple[memoryview, dict[str, Array]]:
    """Return a frame with undefined bodies, and writable views of them by name.

    A producer writes directly into the views, without the copy of ``encode``.

    Args:
        header: JSON values, at most 1 MB encoded.
        shapes: ``{name: (dtype, shape)}`` of each array, in the order in which they are stored.
    """
    table = [(name, *_described(name, dtype, shape)) for name, (dtype, shape) in shapes.items()]
    packed = _packed_header(header, table)
    offsets, total = _layout(_PREFIX.size + len(packed), table)
    block = _aligned(total)
    frame = _viewed(block)
    checked = struct.pack("<4sHHIQ", _MAGIC, VERSION, 0, len(packed), total)
    frame[: _PREFIX.size] = checked + struct.pack("<I", zlib.crc32(packed, zlib.crc32(checked)))
    end = _PREFIX.size + len(packed)
    frame[_PREFIX.size : end] = packed
    views = {}
    for (name, code, shape), offset in zip(table, offsets, strict=True):
        block[end:offset] = 0
        end = offset + _nbytes(code, shape)
        views[name] = block[offset:end].view(_DTYPES[code]).reshape(shape)
    return frame, views


def replace_header(frame: memoryview, header: Mapping[str, Any]) -> bool:
    """Replace the header of a frame from ``allocate``, in place; return False if its encoded length differs.

    For header values known only after the bodies are filled: write placeholder numbers of the same type first.
    """
    packed = _checked_header(frame)
    other = _packed_header(header, _unpacked_header(packed)[1])
    if len(other) != len(packed):
        return False
    crc = zlib.crc32(other, zlib.crc32(frame[:_CHECKED]))
    frame[_CHECKED : _PREFIX.size + len(other)] = struct.pack("<I", crc) + other
    return True


def decode(frame: Frame) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the header and the arrays of ``frame``; the arrays are read-only views into it, not copies.

    The arrays keep the frame alive, and the caller must not write to it while they are in use.

    Raises:
        WireError: there is any error in the frame; no other exception is raised.
    """
    view = _as_bytes(frame)
    packed = _checked_header(view)
    header, table = _unpacked_header(packed)
    offsets, total = _layout(_PREFIX.size + len(packed), table)
    if total != len(view):
        raise WireError(f"frame of {len(view)} bytes claims arrays that end at byte {total}; it is corrupt")
    return header, _views(view, _PREFIX.size + len(packed), table, offsets)


def writable(frame: Frame) -> dict[str, Array]:
    """Return writable arrays of a frame from ``allocate`` or ``join``; only the frame's owner may call this.

    Raises:
        WireError: as ``decode``; or the bytes are read-only.
    """
    view = _as_bytes(frame)
    arrays = decode(view)[1]
    if view.readonly or not is_aligned(view):
        raise WireError(f"a frame of {len(view)} bytes was to be changed, and it is read-only")
    raw = np.frombuffer(view, np.uint8)
    start = raw.ctypes.data
    found = {}
    for name, array in arrays.items():
        offset = array.ctypes.data - start
        found[name] = raw[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    return found


def chunks(frame: Frame, nbytes: int) -> list[memoryview]:
    """Return consecutive slices of at most ``nbytes`` bytes (no copy), the inverse of ``join``."""
    if nbytes < 1:
        raise WireError(f"a frame was to be cut into chunks of {nbytes} bytes; chunks need at least 1 byte")
    view = _as_bytes(frame)
    return [view[start : start + nbytes] for start in range(0, len(view), nbytes)]


def join(parts: Iterable[Frame]) -> memoryview:
    """Return one frame made of consecutive ``parts``, copied once into memory aligned for the kernels."""
    views = [_as_bytes(part) for part in parts]
    whole = empty_bytes(sum(len(view) for view in views))
    start = 0
    for view in views:
        whole[start : start + len(view)] = view
        start += len(view)
    return whole


def empty_bytes(nbytes: int) -> memoryview:
    """Return uninitialised bytes, aligned for the kernels, as the target of the parts of a frame."""
    return _viewed(_aligned(nbytes))


def is_aligned(frame: Frame) -> bool:
    """Return whether the bytes are aligned like those of ``allocate``, so that kernels can read the arrays."""
    view = _as_bytes(frame)
    return not len(view) or np.frombuffer(view, np.uint8).ctypes.data % _ALIGNMENT == 0


def digest(frame: Frame) -> str:
    """Return the BLAKE2b-256 digest of the bytes of ``frame``, 64 hexadecimal digits."""
    return hashlib.blake2b(_as_bytes(frame), digest_size=32).hexdigest()


def _as_bytes(frame: Frame) -> memoryview:
    """Return ``frame`` as a flat memoryview of bytes."""
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise WireError(f"a frame must be bytes, bytearray or memoryview, not {type(frame).__name__}")
    try:
        view = memoryview(frame)
        return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")
    except (TypeError, ValueError) as error:  # not contiguous, or released
        raise WireError(f"a frame must be one contiguous block of bytes: {error}") from error


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return ``nbytes`` undefined bytes that start on a 64-byte boundary.

    ``np.empty`` instead of ``bytearray``: numpy asks for huge pages and does not clear the memory. For 60 MB that takes
    half as long.
    """
    block = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return block[start : start + nbytes]


def _viewed(block: Any) -> memoryview:
    """Return an array as a buffer; only some versions of NumPy declare arrays as buffers."""
    return memoryview(block)


def _described(name: str, dtype: npt.DTypeLike, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Return a dtype and a shape in the form of the header."""
    if not isinstance(name, str):
        raise WireError(f"array name {name!r} is of type {type(name).__name__}; names are str")
    given = np.dtype(dtype)
    code = _CODES.get(given) or given.str[1:]  # of another byte order
    if code not in _DTYPES:
        raise WireError(f"array {name!r} has dtype {given}; frames carry {', '.join(_DTYPES)}")
    sizes = tuple(map(int, shape))
    _check_sizes(name, sizes)
    return code, sizes


def _check_sizes(name: str, sizes: tuple[int, ...]) -> None:
    if len(sizes) > _MAX_DIMENSIONS or min(sizes, default=0) < 0:
        raise WireError(f"array {name!r} has shape {sizes}; at most {_MAX_DIMENSIONS} dimensions, none negative")


def _nbytes(code: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _DTYPES[code].itemsize


def _layout(start: int, table: _Table) -> tuple[list[int], int]:
    """Return the offset of every array body and the length of the frame, for a header that ends at ``start``."""
    offsets, end = [], start
    for _, code, shape in table:
        offsets.append(end + -end % _ALIGNMENT)
        end = offsets[-1] + _nbytes(code, shape)
    return offsets, end


def _packed_header(header: Mapping[str, Any], table: _Table) -> bytes:
    plain = _json(dict(header), "header", 0)
    try:
        packed = _ENCODER.encode((plain, table))
    except (OverflowError, ValueError) as error:  # integers beyond 64 bits, lone surrogates
        raise WireError(f"header cannot be encoded: {error}") from error
    if len(packed) > MAX_HEADER:
        raise WireError(f"header has {len(packed)} bytes, the limit is {MAX_HEADER}; put large data into arrays")
    return packed


def _checked_header(view: memoryview) -> memoryview:
    """Return the packed header after all checks that need no decoding."""
    if len(view) < _PREFIX.size:
        raise WireError(f"frame is cut short: {len(view)} bytes, the fixed part alone has {_PREFIX.size}")
    magic, version, flags, length, total, crc = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise WireError(f"not a frame: it starts with {bytes(magic)!r} instead of {_MAGIC!r}")
    if version != VERSION or flags != 0:
        raise WireError(
            f"frame has format version {version}, flags {flags:#x}; this program reads version {VERSION}, flags 0x0; "
            "run the same release of dl4jlegacy everywhere"
        )
    if total != len(view):
        raise WireError(f"frame is cut short or padded: {len(view)} bytes arrived, {total} were written")
    if length > min(MAX_HEADER, total - _PREFIX.size):
        raise WireError(f"frame of {total} bytes claims a header of {length} bytes (limit {MAX_HEADER})")
    packed = view[_PREFIX.size : _PREFIX.size + length]
    found = zlib.crc32(packed, zlib.crc32(view[:_CHECKED]))
    if found != crc:
        raise WireError(f"frame header is corrupt: checksum {found:#010x}, expected {crc:#010x}")
    return packed


def _no_extension(code: int, data: memoryview) -> Any:
    raise ValueError(f"extension type {code}")


def _unpacked_header(packed: memoryview) -> tuple[dict[str, Any], _Table]:
    try:
        header, table = msgspec.msgpack.decode(
            packed, type=tuple[dict[str, Any], _Table], ext_hook=_no_extension, strict=True
        )
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise WireError(f"frame header cannot be read: {error}") from error
    names = set()
    for name, code, shape in table:
        if name in names or code not in _DTYPES:
            raise WireError(f"frame holds array {name!r} twice, or with unknown dtype {code!r}")
        _check_sizes(name, shape)
        names.add(name)
    return _json(header, "header", 0), table


def _views(view: memoryview, end: int, table: _Table, offsets: list[int]) -> dict[str, Array]:
    """Return the read-only arrays of a frame whose header and lengths have been checked."""
    raw = np.frombuffer(view.toreadonly(), np.uint8)
    arrays = {}
    for (name, code, shape), offset in zip(table, offsets, strict=True):
        if any(view[end:offset]):
            raise WireError(f"frame has stray bytes before array {name!r}; it is corrupt")
        end = offset + _nbytes(code, shape)
        try:
            array = raw[offset:end].view(_DTYPES[code]).reshape(shape)
        except ValueError as error:  # an empty array with other sizes whose product numpy cannot compute
            raise WireError(f"array {name!r} of the frame has an impossible shape {shape}: {error}") from error
        if code == "b1" and (raw[offset:end] > 1).any():
            raise WireError(f"array {name!r} of the frame is boolean and holds bytes other than 0 and 1")
        if not array.flags.aligned:  # a frame in another owner's buffer at an unaligned address
            array = array.copy()
            array.flags.writeable = False
        arrays[name] = array
    return arrays


def _json(value: Any, path: str, depth: int) -> Any:
    """Return ``value`` in plain JSON types (tuples as lists, numpy scalars as numbers), or raise with the path."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, str):  # an enum, whose str() may be its name
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if depth > _MAX_DEPTH:
        raise WireError(f"{path[:200]} is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, list | tuple):
        return [
            item if type(item) in _PLAIN else _json(item, f"{path}[{index}]", depth + 1)
            for index, item in enumerate(value)
        ]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise WireError(f"{path} has the key {key!r} of type {type(key).__name__}; keys are str")
        return {
            key: item if type(item) in _PLAIN else _json(item, f"{path}.{key}", depth + 1)
            for key, item in value.items()
        }
    raise WireError(f"{path} has a value of type {type(value).__name__}; headers carry JSON values, arrays go beside")
