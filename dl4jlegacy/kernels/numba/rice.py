"""Golomb-Rice messages, compiled: ``numpy.rice`` works bit by bit, these functions on words of 64 bits.

Every function works on one message; sections begin at the byte ``start``, or at the bit ``place``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.numba import lanes
from dl4jlegacy.kernels.numba.compile import helper, kernel

__all__ = ["gaps_between", "read_codes", "read_gaps", "read_planes", "write_gaps", "write_planes", "zeros_with"]


@kernel("cCi")
def gaps_between(codes: Array, gaps: Array, size: int) -> bool:
    """Write the gaps between the codes, at least one; return False if codes do not ascend or lie outside."""
    first, last = abs(np.int64(codes[0])), abs(np.int64(codes[-1]))
    gaps[0], least = first - 1, np.int64(0)
    for i in range(1, codes.size):  # without a way out, so that it goes by several at a time
        gap = abs(np.int64(codes[i])) - abs(np.int64(codes[i - 1])) - 1
        least = min(least, gap)
        gaps[i] = gap
    return bool(first > 0 and least >= 0 and last <= size)


@kernel("ci")
def zeros_with(gaps: Array, k: int) -> int:
    """Return the number of zeros in the gaps after their low k bits are cut off."""
    total = 0
    for gap in gaps:
        total += gap >> k
    return total


@kernel("cBii")
def write_gaps(gaps: Array, payload: Array, k: int, start: int) -> None:
    """Set the one bits that end the gaps, from byte ``start`` on; the payload is zero there."""
    place = np.int64(start) * 8
    for gap in gaps:
        place += gap >> k
        payload[place >> 3] |= np.uint8(128 >> (place & 7))
        place += 1


def _put_word(payload: Array, place: int, word: Any) -> None:
    """Set the bits of a word, highest first, from bit ``place`` on."""
    at, filled = place >> 3, np.uint64(place & 7)
    high = word >> filled
    for byte in range(8):
        payload[at + byte] |= np.uint8(high >> np.uint64(56 - 8 * byte))
    if filled:
        payload[at + 8] |= np.uint8((word << (np.uint64(8) - filled)) & np.uint64(255))


def _word_at(payload: Array, place: int) -> Any:
    """Return the 64 bits from bit ``place`` on, the first one highest; all of them must exist."""
    at, filled = place >> 3, np.uint64(place & 7)
    word = np.uint64(0)
    for byte in range(8):
        word |= np.uint64(payload[at + byte]) << np.uint64(56 - 8 * byte)
    if filled:
        word = word << filled | np.uint64(payload[at + 8]) >> (np.uint64(8) - filled)
    return word


_put_word_jit: Any = helper(_put_word)
_word_at_jit: Any = helper(_word_at)


def _write_plane(source: Array, shift: int, payload: Array, place: int) -> None:
    """Write bit ``shift`` of each element from bit ``place`` on."""
    whole = source.size // 64 * 64
    for low in range(0, whole, 64):
        word = np.uint64(0)
        for i in range(64):
            word |= np.uint64(source[low + i] >> shift & 1) << np.uint64(63 - i)
        _put_word_jit(payload, place + low, word)
    for i in range(whole, source.size):
        at = place + i
        payload[at >> 3] |= np.uint8((source[i] >> shift & 1) << (7 - (at & 7)))


def _read_plane(target: Array, payload: Array, place: int) -> None:
    """Append a bit to each element, from bit ``place`` on."""
    whole = target.size // 64 * 64
    for low in range(0, whole, 64):
        word = _word_at_jit(payload, place + low)
        for i in range(64):
            target[low + i] = target[low + i] << 1 | np.int32(word >> np.uint64(63 - i) & np.uint64(1))
    for i in range(whole, target.size):
        at = place + i
        target[i] = target[i] << 1 | (payload[at >> 3] >> (7 - (at & 7)) & 1)


_write_plane_jit: Any = helper(_write_plane)
_read_plane_jit: Any = helper(_read_plane)


@kernel("ccBii")
def write_planes(gaps: Array, codes: Array, payload: Array, k: int, start: int) -> None:
    """Write the low k bits of the gaps, highest first, and the signs, from byte ``start`` on; it is zero there."""
    place = np.int64(start) * 8
    for row in range(k):
        _write_plane_jit(gaps, k - 1 - row, payload, place)
        place += gaps.size
    _write_plane_jit(codes, 31, payload, place)


@kernel("bCiii")
def read_gaps(payload: Array, gaps: Array, start: int, stop: int, most: int) -> bool:
    """Write the number of zeros before each one bit, from byte ``start`` to ``stop``.

    Return False unless there are as many ones as gaps, the last one in the last byte, and no gap above ``most``.
    """
    found, begin = 0, np.int64(start) * 8  # where the zeros of this gap begin
    for at in range(start, stop, 8):
        word = np.uint64(0)
        for byte in range(min(8, stop - at)):
            word |= np.uint64(payload[at + byte]) << np.uint64(56 - 8 * byte)
        while word:
            ahead = lanes.highest(word)
            place = np.int64(at) * 8 + ahead
            if found == gaps.size or place - begin > most:
                return False
            gaps[found] = place - begin
            found, begin = found + 1, place + 1
            word ^= np.uint64(1) << np.uint64(63 - ahead)
    return found == gaps.size and (found == 0 or payload[stop - 1] != 0)


@kernel("bCiii")
def read_planes(payload: Array, target: Array, start: int, first: int, stop: int) -> None:
    """Append to each element its bits of planes ``first`` to ``stop``; plane 0 begins at byte ``start``."""
    for row in range(first, stop):
        _read_plane_jit(target, payload, np.int64(start) * 8 + np.int64(row) * target.size)


@kernel("ccCii")
def read_codes(gaps: Array, low: Array, codes: Array, k: int, size: int) -> bool:
    """Combine gaps, their low bits and the signs in ``codes`` into codes; return False if a code lies outside."""
    place = np.int64(0)
    for i in range(codes.size):
        place += (np.int64(gaps[i]) << k | low[i]) + 1
        if place > size:
            return False
        codes[i] = -place if codes[i] else place
    return True
