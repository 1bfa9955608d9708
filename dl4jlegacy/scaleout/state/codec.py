"""Compact encodings of gradient-sharing messages: the elements of a vector that receive a quantum.

The elements come as codes of ``Kernels.threshold_encode``: ``+(i + 1)`` or ``-(i + 1)`` for one quantum ``+tau`` or
``-tau`` at element i, with ascending i. A payload is a flat array in one of three formats:

- ``FLEXIBLE``, of int32: the number of codes, the vector's size, the bits of ``tau`` as a float32, 0; then the codes.
- ``BITMAP``, of int32: the size twice, the bits of ``tau``, 1; then one word per 16 elements, whose low half marks the
  elements with a quantum and whose high half marks the negative ones among these. ``size // 16 + 5`` words in all.
- ``RICE``, of uint8: the parameter k; then the gap from each element to the previous one. First the gaps without their
  low k bits, in unary as zeros followed by a one, padded to whole bytes; then k + 1 planes of one bit per element:
  the low bits of the gaps, highest first, and the signs.

The first two are DL4J's (``EncodingHandler``), which also puts half quanta into a bitmap. ``bitmap_encode`` does so
too, while ``pack`` and ``unpack`` support whole quanta only. Sources of the third: Golomb 1966; Rice and Plaunt 1971;
for gradients Strom 2015. Kernels for this CPU read and write it; all of them produce the same bytes. All functions are
pure, except for the arrays that they are documented to change, and may run on any thread.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError, WireError, counted, nearest
from dl4jlegacy.kernels import load_for_host
from dl4jlegacy.kernels.numpy.rice import codes_at, places_of, wrong_message
from dl4jlegacy.kernels.numpy.threshold import threshold_decode, threshold_encode

__all__ = [
    "BITMAP",
    "FLEXIBLE",
    "FORMATS",
    "RICE",
    "bitmap_decode",
    "bitmap_encode",
    "entropy_bits",
    "flexible_decode",
    "flexible_encode",
    "pack",
    "unpack",
]

FLEXIBLE, BITMAP, RICE = "flexible", "bitmap", "rice"
FORMATS = (FLEXIBLE, BITMAP, RICE)

_HEADER = 4  # words
_LARGEST_TAU = float(np.finfo(np.float32).max)


def pack(codes: Array, size: int, tau: float) -> tuple[str, Array]:
    """Return the smallest of the ``FORMATS`` for the codes, and the payload in that format.

    This is always ``RICE``, so the formats need not be compared. With k = 0 it needs at most ``size`` bits for the gaps
    and as many for the signs, while ``BITMAP`` needs the same and 16 more bytes. With k = 30 it needs 32 bits per
    element and at most four more bytes, while ``FLEXIBLE`` has a header of 16 bytes. The k that is used is the best of
    all.

    Args:
        codes: of shape ``(count,)``, int32, as ``Kernels.threshold_encode`` writes them.
        size: of the vector, less than 2^31.
        tau: the quantum; positive as a float32.

    Raises:
        ShapeError: the codes are not codes of such a vector.
        ConfError: ``tau`` is not positive, or not finite.
    """
    return RICE, _pack_as(RICE, codes, size, tau)


def unpack(format: str, payload: Array, *, count: int, size: int, tau: float) -> Array:
    """Return the codes, of shape ``(count,)``, int32, in a new array.

    Whatever the payload contains, memory use is proportional to its bytes or to ``size``.

    Args:
        format: of the payload; one of ``FORMATS``.
        payload: as ``pack`` returned it.
        count: number of codes.
        size: of the vector.
        tau: the quantum.

    Raises:
        WireError: the payload does not have this format or such codes; the message names the value that differs.
    """
    bits = _checked_claims(format, count, size, tau)
    _check_payload(format, payload)
    if format == RICE:
        return load_for_host().rice_decode(payload, count, size)
    words, header = _checked_header(format, payload, size)
    if header != bits:
        raise wrong_message(format, f"a threshold of {_from_bits(header)!r} in its header, where {tau!r} is expected")
    return _unflexible(words, count, size) if format == FLEXIBLE else _unbitmap(words, count, size)


def entropy_bits(count: int, size: int) -> float:
    """Return the bits needed for a message of ``count`` out of ``size`` elements: their positions, and a bit per sign.

    This is a lower bound on the average of any code if all elements are equally likely.
    """
    if not 0 < count <= size:
        return 0.0
    others = size - count
    places = count * math.log2(size / count)
    return places + count - (others * math.log1p(-count / size) / math.log(2) if others else 0.0)


def flexible_encode(residual: Array, tau: float, boundary: int | None = None) -> Array | None:
    """Return DL4J's ``FLEXIBLE`` message of a vector, and subtract the encoded quanta from the vector.

    Each element of magnitude at least ``tau`` contributes one quantum. If there are more than ``boundary``, the first
    are taken.

    Args:
        residual: flat, of floats; changed in place.
        tau: the quantum, rounded to float32 as in the header.
        boundary: maximum number of elements in the message; None: no limit.

    Returns:
        Header and codes; None, with nothing changed, if there are fewer than two elements, as in DL4J.
    """
    bits, quantum = _quantum_of(residual, tau)
    count = min(int(np.count_nonzero(np.abs(residual) >= quantum)), residual.size if boundary is None else boundary)
    if count < 2:
        return None
    message = np.empty(_HEADER + count, np.int32)
    message[:_HEADER] = count, residual.size, bits, 0
    threshold_encode(residual, _from_bits(bits), message[_HEADER:])
    return message


def flexible_decode(message: Array, target: Array) -> None:
    """Add the quanta of a ``FLEXIBLE`` message to ``target``, a flat vector of floats; uses the message's threshold.

    Raises:
        WireError: it is not such a message for a vector of this size; nothing is added.
    """
    _check_vector(target)
    _check_payload(FLEXIBLE, message)
    words, bits = _checked_header(FLEXIBLE, message, target.size)
    threshold_decode(_unflexible(words, int(words[0]), target.size), _from_bits(bits), target)


def bitmap_encode(residual: Array, tau: float) -> tuple[Array, int]:
    """Return DL4J's ``BITMAP`` message of a vector and its number of elements, and subtract the encoded quanta.

    Elements of magnitude at least ``tau`` contribute one quantum each, and negative ones of at least ``tau / 2`` half a
    quantum. Positive ones of that size contribute nothing, as in DL4J.

    Args:
        residual: flat, of floats; changed in place.
        tau: the quantum, rounded to float32 as in the header.
    """
    bits, quantum = _quantum_of(residual, tau)
    absolute, negative = np.abs(residual), residual < 0
    whole = absolute >= quantum
    half = negative & ~whole & (absolute >= quantum / 2)
    residual[whole] -= np.copysign(quantum, residual[whole])
    residual[half] += quantum / 2
    message = _bitmap(residual.size, bits, whole, negative & (whole | half))
    return message, int(np.count_nonzero(whole) + np.count_nonzero(half))


def bitmap_decode(message: Array, target: Array) -> None:
    """Add the quanta of a ``BITMAP`` message to ``target``, a flat vector of floats; uses the message's threshold.

    Raises:
        WireError: it is not such a message for a vector of this size; nothing is added.
    """
    _check_vector(target)
    _check_payload(BITMAP, message)
    words, bits = _checked_header(BITMAP, message, target.size)
    low, high = _planes(words, target.size)
    quantum = target.dtype.type(_from_bits(bits))
    target[low & ~high] += quantum
    target[low & high] -= quantum
    target[high & ~low] -= quantum / 2


def _quantum_of(residual: Array, tau: float) -> tuple[int, Any]:
    """Return the threshold as its bits and as a number of the residual's type."""
    _check_vector(residual)
    bits = _bits_of(tau)
    return bits, residual.dtype.type(_from_bits(bits))


def _check_vector(x: Array) -> None:
    if x.ndim != 1 or x.size >= 2**31 or x.dtype.kind != "f":
        raise ShapeError(
            f"a vector has the shape {list(x.shape)} and the type {x.dtype}; it must be flat, of fewer than 2^31 floats"
        )


def _bits_of(tau: float) -> int:
    """Return the bits of ``tau`` as a float32, which must be a positive number."""
    bits = int(np.float32(tau).view(np.int32)) if 0 < tau <= _LARGEST_TAU else 0
    if not bits:
        raise ConfError(f"the threshold must be a positive number that a float32 can have, got {tau!r}")
    return bits


def _from_bits(bits: int) -> float:
    return float(np.int32(bits).view(np.float32))


def _pack_as(format: str, codes: Array, size: int, tau: float) -> Array:
    """Return the payload in this format; raises the errors of ``pack``."""
    bits = _bits_of(tau)
    if codes.ndim != 1 or codes.dtype != np.int32 or not 0 <= size < 2**31:
        raise ShapeError(
            f"{list(codes.shape)} codes of {codes.dtype} for {counted(size, 'element')}; "
            "they must be a flat vector of int32, for fewer than 2^31 elements"
        )
    if format == RICE:
        return load_for_host().rice_encode(codes, size)
    places = places_of(codes, size)
    if format == FLEXIBLE:
        return np.concatenate([np.array([codes.size, size, bits, 0], np.int32), codes])
    low, high = np.zeros(size, bool), np.zeros(size, bool)
    low[places - 1], high[places - 1] = True, codes < 0
    return _bitmap(size, bits, low, high)


def _bitmap(size: int, bits: int, low: Array, high: Array) -> Array:
    """Return the message with these low and high bits, both of shape ``(size,)``, bool."""
    message = np.zeros(size // 16 + 5, np.int32)
    message[:_HEADER] = size, size, bits, 1
    halves = np.zeros((2, message.size - _HEADER), "<u2")
    for plane, half in zip((low, high), halves, strict=True):
        packed = np.packbits(plane, bitorder="little")
        half.view(np.uint8)[: packed.size] = packed
    message[_HEADER:] = (halves[0].astype(np.uint32) | halves[1].astype(np.uint32) << 16).view(np.int32)
    return message


def _planes(words: Array, size: int) -> tuple[Array, Array]:
    """Return the low and the high bits of a bitmap's elements, both of shape ``(size,)``, bool."""
    if words.size != size // 16 + 5:
        raise wrong_message(
            BITMAP, f"{words.size} words, where {size // 16 + 5} are expected for {counted(size, 'element')}"
        )
    body, planes = words[_HEADER:].view(np.uint32), []
    for half in (body & 0xFFFF, body >> 16):
        bits = np.unpackbits(half.astype("<u2").view(np.uint8), bitorder="little")
        if bits[size:].any():
            raise wrong_message(BITMAP, f"bits that are not zero after its last element, {size}")
        planes.append(bits[:size].view(bool))
    return planes[0], planes[1]


def _unflexible(words: Array, count: int, size: int) -> Array:
    """Return the codes of a message with a valid header."""
    if words[0] != count or words.size != _HEADER + count:
        raise wrong_message(
            FLEXIBLE,
            f"{counted(int(words[0]), 'code')} by its header and {words.size - _HEADER} in it, "
            f"where {count} are expected",
        )
    return codes_at(FLEXIBLE, np.abs(words[_HEADER:].astype(np.int64)), words[_HEADER:] < 0, size)


def _unbitmap(words: Array, count: int, size: int) -> Array:
    """Return the codes of a message with a valid header."""
    low, high = _planes(words, size)
    halves = int(np.count_nonzero(high & ~low))
    if halves:
        raise wrong_message(
            BITMAP, f"{counted(halves, 'element')} of half a quantum (DL4J's -tau/2), which are no codes"
        )
    places = np.flatnonzero(low) + 1
    if places.size != count:
        raise wrong_message(BITMAP, f"{counted(places.size, 'element')}, where {count} are expected")
    return codes_at(BITMAP, places, high[low], size)


def _checked_claims(format: str, count: object, size: object, tau: object) -> int:
    """Check the parameters of a payload, which may come from the wire; return the bits of the threshold."""
    if format not in FORMATS:
        raise WireError(f"a gradient message has the unknown format {format!r}{nearest(str(format), FORMATS)}")
    if not isinstance(count, numbers.Integral) or not isinstance(size, numbers.Integral) or not 0 <= int(size) < 2**31:
        raise wrong_message(format, f"{count!r} codes of {size!r} elements; both must be whole numbers less than 2^31")
    if not 0 <= int(count) <= int(size):
        raise wrong_message(format, f"{counted(int(count), 'code')}, and the vector {counted(int(size), 'element')}")
    if not isinstance(tau, numbers.Real):
        raise wrong_message(format, f"the threshold {tau!r}, which is no number")
    try:
        return _bits_of(float(tau))
    except (ConfError, OverflowError) as exc:
        raise wrong_message(format, f"the threshold {tau!r}; it must be positive, and a float32") from exc


def _check_payload(format: str, payload: Array) -> None:
    kind = np.dtype(np.uint8 if format == RICE else np.int32)
    if payload.ndim != 1 or payload.dtype != kind:
        raise wrong_message(
            format, f"a payload of shape {list(payload.shape)} and type {payload.dtype}; it must be flat, of {kind}"
        )


def _checked_header(format: str, payload: Array, size: int) -> tuple[Array, int]:
    """Return the words as a contiguous array, and the bits of the threshold, which is checked to be positive."""
    if payload.size < _HEADER:
        raise wrong_message(format, f"{counted(payload.size, 'word')}, fewer than its header")
    words = np.ascontiguousarray(payload)
    sizes, bits, kind = {int(words[1])}, int(words[2]), int(words[3])
    if format == BITMAP:
        sizes.add(int(words[0]))
    if sizes != {size}:
        found = " and ".join(map(str, sorted(sizes)))
        raise wrong_message(format, f"the size {found} in its header, where {size} is expected")
    if kind != (format == BITMAP):
        raise wrong_message(format, f"the type {kind} in its header, where {int(format == BITMAP)} is expected")
    if not 0 < _from_bits(bits) <= _LARGEST_TAU:
        raise wrong_message(format, f"the threshold {_from_bits(bits)!r} in its header; it must be positive and finite")
    return words, bits
