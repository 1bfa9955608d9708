"""``normalizer.bin``: normalizers in the binary form of ND4J's ``NormalizerSerializer``, an entry of a model file.

Header ``UTF "NORMALIZER", int32 version, UTF type``, then, per type: fit-labels flag, range and ND4J arrays. Layouts
were checked against files of 1.0.0-M2.1. Statistics are float32 here; the model file also has them in full precision in
another entry.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from dl4jlegacy.datasets.normalizers import (
    ImagePreProcessingScaler,
    Normalizer,
    NormalizerMinMaxScaler,
    NormalizerStandardize,
)
from dl4jlegacy.errors import DataError, ModelError
from dl4jlegacy.nn.interchange.dl4j import nd4j

__all__ = ["read_normalizer", "write_normalizer"]

_MAGIC = "NORMALIZER"
_VERSION = 1
_MAX_COLUMNS_BYTES = 1 << 28


def write_normalizer(normalizer: Normalizer) -> bytes:
    """Return ``normalizer`` in ND4J's format.

    Raises:
        ModelError: it is not one of the three types that ND4J has too.
    """
    if isinstance(normalizer, NormalizerStandardize):
        kind, body = "STANDARDIZE", b"\0" + _array(normalizer.mean) + _array(normalizer.std)
    elif isinstance(normalizer, NormalizerMinMaxScaler):
        limits = struct.pack(">dd", normalizer.min_range, normalizer.max_range)
        kind, body = "MIN_MAX", b"\0" + limits + _array(normalizer.min) + _array(normalizer.max)
    elif isinstance(normalizer, ImagePreProcessingScaler):
        kind = "IMAGE_MIN_MAX"
        body = struct.pack(">ddd", normalizer.min_range, normalizer.max_range, normalizer.max_pixel)
    else:
        raise ModelError(f"a {type(normalizer).__name__} cannot be saved with a model; Deeplearning4j has no such type")
    return nd4j.write_utf(_MAGIC) + struct.pack(">i", _VERSION) + nd4j.write_utf(kind) + body


def read_normalizer(data: bytes) -> Normalizer:
    """Read a normalizer written by ``write_normalizer`` or Deeplearning4j.

    Raises:
        ModelError: not a normalizer file, another version, an unknown type, or a normalizer that also scales labels.
    """
    stream = io.BytesIO(data)
    magic = nd4j.read_utf(stream, "normalizer")
    if magic != _MAGIC:
        raise ModelError(f"not a normalizer file: it starts with {magic!r} instead of {_MAGIC!r}")
    (version,) = _numbers(stream, ">i")
    if version != _VERSION:
        raise ModelError(f"normalizer file has version {version}, readable is version {_VERSION}")
    kind = nd4j.read_utf(stream, "normalizer type")
    try:
        return _READERS[kind](stream)
    except KeyError:
        raise ModelError(f"normalizer of type {kind!r} is not known; known: {', '.join(sorted(_READERS))}") from None
    except DataError as exc:
        raise ModelError(f"normalizer file holds impossible values: {exc}") from exc


def _read_standardize(stream: BinaryIO) -> Normalizer:
    _refuse_labels(stream)
    normalizer = NormalizerStandardize()
    normalizer.mean, normalizer.std = _vector(stream), _vector(stream)
    if normalizer.mean.shape != normalizer.std.shape or not (normalizer.std > 0).all():
        raise ModelError("normalizer file holds means and standard deviations that do not fit each other")
    return normalizer


def _read_min_max(stream: BinaryIO) -> Normalizer:
    _refuse_labels(stream)
    normalizer = NormalizerMinMaxScaler(*_numbers(stream, ">dd"))
    normalizer.min, normalizer.max = _vector(stream), _vector(stream)
    if normalizer.min.shape != normalizer.max.shape or not (normalizer.min <= normalizer.max).all():
        raise ModelError("normalizer file holds smallest and largest values that do not fit each other")
    return normalizer


def _refuse_labels(stream: BinaryIO) -> None:
    (fits_labels,) = _numbers(stream, ">?")
    if fits_labels:
        raise ModelError(
            "the normalizer also scales labels (fitLabel), which none does here: what the network answers is scaled; "
            "read the network with restore_model, and scale its features and outputs yourself"
        )


_READERS: dict[str, Callable[[BinaryIO], Normalizer]] = {
    "STANDARDIZE": _read_standardize,
    "MIN_MAX": _read_min_max,
    "IMAGE_MIN_MAX": lambda stream: ImagePreProcessingScaler(*_numbers(stream, ">ddd")),
}


def _array(vector: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bytes:
    if not vector.size:
        raise ModelError("a normalizer that was not fitted cannot be saved; call fit with the training data first")
    return nd4j.write(vector.astype(np.float32).reshape(1, -1))


def _vector(stream: BinaryIO) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return nd4j.read(stream, max_nbytes=_MAX_COLUMNS_BYTES).reshape(-1).astype(np.float64)


def _numbers(stream: BinaryIO, layout: str) -> tuple[float, ...]:
    raw = stream.read(struct.calcsize(layout))
    if len(raw) != struct.calcsize(layout):
        raise ModelError("normalizer file ends early")
    return struct.unpack(layout, raw)
