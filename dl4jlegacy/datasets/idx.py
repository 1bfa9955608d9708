"""Reader of IDX files, the format of MNIST and similar data sets, plain or gzipped.

Format: two zero bytes, a type code, the number of dimensions, one big-endian 32-bit size per dimension, then the values
in C order (Y. LeCun, "The MNIST database of handwritten digits"). Follows
``org.deeplearning4j.datasets.mnist.MnistDbFile``.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import DataError
from dl4jlegacy.system import files

__all__ = ["parse_idx", "read_bytes", "read_idx"]

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_DIMENSIONS = 32  # the limit of NumPy arrays on all versions
_PIECE = 1 << 20
_LARGEST = 1 << 32  # bytes after decompression; a small file must not fill the memory


def read_idx(path: Path) -> Array:
    """Return the array in the IDX file ``path`` (gzipped or not), read-only, in the machine's byte order.

    Raises:
        DataError: unreadable, damaged compression, wrong magic, or a length that does not fit; names file and bytes.
    """
    return parse_idx(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """Return the contents of ``path``, decompressed if they are gzipped, whatever the file's name."""
    try:
        with files.open_to_read(path) as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not zipped:
                return file.read()
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _bounded(unpacked, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} ({path.stat().st_size} bytes) is truncated or corrupt: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def parse_idx(content: bytes, path: Path) -> Array:
    """Return the array in ``content``, the decompressed bytes of ``path``."""
    if (
        len(content) < 4
        or content[:2] != b"\0\0"
        or content[2] not in _DTYPES
        or not 0 < content[3] <= _MOST_DIMENSIONS
    ):
        raise DataError(
            f"{path} is not an IDX file: it starts with bytes {content[:4].hex(' ') or '(none)'}, "
            "expected 00 00, a type 08 to 0e and the number of dimensions"
        )
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start][: (len(content) - 4) // 4 * 4], ">u4"))
    dtype = np.dtype(_DTYPES[content[2]])
    expected = start + math.prod(shape) * dtype.itemsize
    if len(shape) != content[3] or len(content) != expected:
        words = f"{expected} bytes for shape {shape}" if len(shape) == content[3] else f"at least {start} bytes"
        state = "truncated" if len(content) < max(expected, start) else "too long"
        raise DataError(f"{path} is {state}: its header asks for {words}, found {len(content)} (unpacked)")
    if not math.prod(shape):
        raise DataError(f"{path} is empty: its header says shape {shape}")
    array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _bounded(stream: BinaryIO | gzip.GzipFile, path: Path) -> bytes:
    pieces, total = [], 0
    while piece := stream.read(_PIECE):
        total += len(piece)
        if total > _LARGEST:
            raise DataError(f"{path} unpacks to more than {_LARGEST} bytes; refusing to read it")
        pieces.append(piece)
    return b"".join(pieces)
