"""Philox4x32-10 in NumPy: the definition of the random streams of all kernels.

Element k of the stream ``key`` is word ``(k % 64) // 16`` of the Philox block with counter ``(k // 64) * 16 + k % 16``:
sixteen counters fill four vectors of sixteen lanes at a time, and the elements of a vector lie side by side.

Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import numpy as np

from dl4jlegacy.arrays.backend import Array

__all__ = ["BLOCK", "LANES", "MULTIPLIERS", "ROUNDS", "WEYL", "philox", "uniforms", "words"]

LANES = 16
BLOCK = 4 * LANES
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counters: Array, key: int) -> Array:
    """Return the four words of each block.

    Args:
        counters: ``(n,)`` uint64; the upper 64 of the 128 counter bits are 0.
        key: 64 bits.

    Returns:
        ``(n, 4)`` uint32.
    """
    x0, x1 = counters & _MASK, counters >> _HALF
    x2, x3 = np.zeros_like(counters), np.zeros_like(counters)
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(ROUNDS):
        p0, p1 = x0 * np.uint64(MULTIPLIERS[0]), x2 * np.uint64(MULTIPLIERS[1])
        x0, x1, x2, x3 = (p1 >> _HALF) ^ x1 ^ np.uint64(k0), p1 & _MASK, (p0 >> _HALF) ^ x3 ^ np.uint64(k1), p0 & _MASK
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return np.stack([x0, x1, x2, x3], axis=1).astype(np.uint32)


def words(n: int, key: int) -> Array:
    """Return the first ``n`` raw words of the stream, ``(n,)`` uint32."""
    blocks = -(-n // BLOCK)
    raw = philox(np.arange(blocks * LANES, dtype=np.uint64), key)
    return raw.reshape(blocks, LANES, 4).transpose(0, 2, 1).reshape(-1)[:n]


def uniforms(n: int, key: int) -> Array:
    """Return the first ``n`` uniforms of the stream, ``(n,)`` float32: the upper 24 bits of each word times 2^-24."""
    return (words(n, key) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
