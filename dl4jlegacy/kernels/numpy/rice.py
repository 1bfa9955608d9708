"""Golomb-Rice messages in plain NumPy: the codes of ``Kernels.threshold_encode`` in as few bytes as possible.

A message is a flat uint8 vector. It begins with the parameter k. The data are, for every element, the gap to the
previous element, and the sign. First come the gaps without their low k bits, each in unary (that number of zeros and a
one), in whole bytes. Then come k + 1 planes of one bit per element: the low bits of the gaps, highest first, and the
signs. The highest bit of a byte comes first. Source: Golomb 1966; Rice and Plaunt 1971; for gradients Strom 2015.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError, WireError, counted

__all__ = ["best_k", "codes_at", "places_of", "rice_decode", "rice_encode", "sections", "wrong_message"]

_LARGEST_K = 30  # the gaps of a vector of fewer than 2^31 elements have no more bits


def places_of(codes: Array, size: int) -> Array:
    """Return the indices of the coded elements, counted from 1.

    Raises:
        ShapeError: not codes of ``threshold_encode`` for ``size`` elements.
    """
    places = np.abs(codes)  # -2^31 stays as it is, and does not ascend
    if codes.size and not (places[0] > 0 and places[-1] <= size and np.all(places[1:] > places[:-1])):
        raise ShapeError(
            f"the codes do not fit a vector of {counted(size, 'element')}; they must ascend in absolute value, "
            f"every one between 1 and {size}"
        )
    return places


def wrong_message(format: str, what: str) -> WireError:
    """Return the error for an invalid message of this format."""
    return WireError(f"a gradient message of the format {format} has {what}")


def rice_encode(codes: Array, size: int) -> Array:
    """See ``Kernels``."""
    places = places_of(codes, size)
    if not codes.size:
        return np.zeros(1, np.uint8)
    gaps = np.diff(places, prepend=np.int32(0))
    gaps -= 1
    k = best_k(codes.size, int(places[-1]) - codes.size, lambda k: int(np.sum(gaps >> k)))[0]
    ends = np.cumsum((gaps >> k) + 1, dtype=np.int64)
    ends -= 1
    ones = np.zeros(int(ends[-1]) + 1, np.uint8)
    ones[ends] = 1
    low = gaps.astype(np.min_scalar_type((1 << k) - 1))  # cut off: the k low bits are what the planes take
    planes = np.empty((k + 1, gaps.size), np.uint8)
    for row in range(k):
        planes[row] = low >> (k - 1 - row) & 1
    planes[k] = codes < 0
    return np.concatenate([np.array([k], np.uint8), np.packbits(ones), np.packbits(planes)])


def best_k(count: int, total: int, zeros_with: Callable[[int], int]) -> tuple[int, int]:
    """Return the parameter with the smallest message, and the number of zeros in the gaps with it.

    Raising k by one costs a bit per element and saves ``sum(ceil((gap >> k) / 2))`` zeros, which decreases with k; so k
    is raised until it no longer pays. It pays while the mean of the gaps is more than 3 * 2^k, where the search begins.
    Gaps of randomly spread elements need a k near log2(0.69 * mean), some steps from there.

    Args:
        count: the number of gaps, at least 1.
        total: their sum.
        zeros_with: returns ``sum(gap >> k)``.
    """
    k = max(0, (total // (3 * count)).bit_length() - 1)
    zeros = zeros_with(k)
    while zeros - (fewer := zeros_with(k + 1)) > count:
        k, zeros = k + 1, fewer
    return k, zeros


def sections(payload: Array, count: int, size: int) -> tuple[int, int]:
    """Return a message's parameter, and the number of bytes with ones and zeros after it.

    Raises:
        WireError: the message cannot have this number of codes.
    """
    if not payload.size:
        raise wrong_message("rice", "no bytes at all")
    k = int(payload[0])
    if k > _LARGEST_K:
        raise wrong_message("rice", f"the parameter {k}; the largest is {_LARGEST_K}")
    planes = -(-count * (k + 1) // 8)
    least, most = (-(-bits // 8) for bits in (count, count + (size >> k if count else 0)))
    middle = payload.size - 1 - planes
    if not least <= middle <= most:
        raise wrong_message(
            "rice",
            f"{counted(payload.size, 'byte')}, where {counted(count, 'code')} of {counted(size, 'element')} take "
            f"{1 + least + planes} to {1 + most + planes} with the parameter {k}",
        )
    return k, middle


def rice_decode(payload: Array, count: int, size: int) -> Array:
    """See ``Kernels``."""
    k, middle = sections(payload, count, size)
    ones = np.unpackbits(payload[1 : 1 + middle])
    if (found := int(np.count_nonzero(ones))) != count or (count and not ones[-8:].any()):
        raise wrong_message("rice", f"{counted(found, 'gap')}, where {count} are expected that end in byte {middle}")
    bits = np.unpackbits(payload[1 + middle :])
    if bits[count * (k + 1) :].any():
        raise wrong_message("rice", "bits that are not zero after the last of its signs")
    gaps = np.diff(np.flatnonzero(ones), prepend=-1) - 1
    rows = bits[: count * (k + 1)].reshape(k + 1, count)
    for row in rows[:k]:
        gaps <<= 1
        gaps |= row
    return codes_at("rice", np.cumsum(gaps + 1), rows[k].view(bool), size)


def codes_at(format: str, places: Array, negative: Array, size: int) -> Array:
    """Return the codes for elements counted from 1, which must ascend and be at most ``size``.

    Raises:
        WireError: they do not, or are larger.
    """
    if places.size and not (places[0] > 0 and places[-1] <= size and np.all(places[1:] > places[:-1])):
        raise wrong_message(
            format,
            f"codes from {places[0]} to {places[-1]}; "
            f"they must ascend in absolute value, every one between 1 and {size}",
        )
    return np.where(negative, -places, places).astype(np.int32)
