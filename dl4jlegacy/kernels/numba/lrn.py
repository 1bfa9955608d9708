"""Local response normalization of tiles, compiled: each block of places goes through all channels while it is cached.

Only for float32 and exponents that are not integers; ``kernels.lrn`` computes all other cases, with the same bits.
"""

# mypy: allow-untyped-calls, allow-untyped-decorators
from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import types

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels import lrn as responses
from dl4jlegacy.kernels.lrn import ROOTS, check_responses
from dl4jlegacy.kernels.numba.compile import compile_cached, helper
from dl4jlegacy.kernels.numba.elementary import exp_jit, log_jit
from dl4jlegacy.kernels.numba.scratch import Scratch

__all__ = ["response_backward", "response_forward"]

_BLOCK = 512  # elements of a channel at a time: of 64 channels 128 KiB of each array
_scratch = Scratch()


def _forward(
    x: Array, y: Array, below: Array, factor: Array, planes: int, channels: int, reach: int, k: float, alpha: float,
    beta: float, quarters: int,
) -> None:  # fmt: skip
    area = x.size // max(1, planes)
    add, scale, one = np.float32(k), np.float32(alpha), np.float32(1)
    for plane in range(planes):
        channel = plane % channels
        for low in range(plane * area, (plane + 1) * area, _BLOCK):
            high = min(low + _BLOCK, (plane + 1) * area)
            own, total, power, out = x[low:high], below[low:high], factor[low:high], y[low:high]
            for i in range(own.size):
                total[i] = own[i] * own[i]
            for shift in range(1, reach + 1):
                if channel >= shift:
                    _add_squares(total, x[low - shift * area : high - shift * area])
                if channel + shift < channels:
                    _add_squares(total, x[low + shift * area : high + shift * area])
            for i in range(own.size):
                total[i] = total[i] * scale + add
            if quarters:
                for i in range(own.size):
                    root = np.sqrt(total[i])
                    fourth = np.sqrt(root)
                    power[i] = one / (fourth if quarters == 1 else root if quarters == 2 else root * fourth)
            else:
                for i in range(own.size):
                    power[i] = exp_jit(log_jit(np.float64(total[i])) * -beta)
            for i in range(own.size):
                out[i] = own[i] * power[i]


def _backward(
    dy: Array, x: Array, y: Array, below: Array, factor: Array, dx: Array, spread: Array, tiles: int, channels: int,
    reach: int, coefficient: float,
) -> None:  # fmt: skip
    area = x.size // max(1, tiles * channels)
    scale = np.float32(coefficient)
    for tile in range(tiles):
        for start in range(0, area, _BLOCK):
            size = min(_BLOCK, area - start)
            for channel in range(channels):
                low = (tile * channels + channel) * area + start
                rise, out, under = dy[low : low + size], y[low : low + size], below[low : low + size]
                part = spread[channel * _BLOCK : channel * _BLOCK + size]
                for i in range(size):
                    part[i] = rise[i] * out[i] / under[i]
            for channel in range(channels):
                low = (tile * channels + channel) * area + start
                across, part = dx[low : low + size], spread[channel * _BLOCK : channel * _BLOCK + size]
                for i in range(size):
                    across[i] = part[i]
                for shift in range(1, reach + 1):
                    if channel >= shift:
                        _add(across, spread[(channel - shift) * _BLOCK : (channel - shift) * _BLOCK + size])
                    if channel + shift < channels:
                        _add(across, spread[(channel + shift) * _BLOCK : (channel + shift) * _BLOCK + size])
                rise, own, power = dy[low : low + size], x[low : low + size], factor[low : low + size]
                for i in range(size):
                    across[i] = rise[i] * power[i] - own[i] * scale * across[i]


@helper
def _add_squares(total: Array, x: Array) -> None:
    for i in range(total.size):
        total[i] += x[i] * x[i]


@helper
def _add(total: Array, x: Array) -> None:
    for i in range(total.size):
        total[i] += x[i]


_READ, _WRITTEN = (types.Array(types.float32, 1, "C", readonly=is_read) for is_read in (True, False))
_INT, _NUMBER = types.int64, types.float64


@functools.cache
def _forward_kernel() -> Any:
    return compile_cached((_READ, *[_WRITTEN] * 3, *[_INT] * 3, *[_NUMBER] * 3, _INT), _forward)


@functools.cache
def _backward_kernel() -> Any:
    return compile_cached((*[_READ] * 5, *[_WRITTEN] * 2, *[_INT] * 3, _NUMBER), _backward)


def response_forward(
    x: Array, y: Array, below: Array, factor: Array, reach: int, k: float, alpha: float, beta: float
) -> None:
    """See ``Kernels``."""
    if not _is_compiled(x, beta):
        responses.response_forward(x, y, below, factor, reach, k, alpha, beta)
        return
    tiles, channels, quarters = *x.shape[:2], int(4 * beta) if beta in ROOTS else 0
    reach = min(reach, channels - 1)  # no loop goes on where there is no channel
    _forward_kernel()(*_flat(x, y, below, factor), tiles * channels, channels, reach, k, alpha, beta, quarters)


def response_backward(
    dy: Array, x: Array, y: Array, below: Array, factor: Array, dx: Array, reach: int, alpha: float, beta: float
) -> None:
    """See ``Kernels``."""
    if not _is_compiled(x, beta):
        responses.response_backward(dy, x, y, below, factor, dx, reach, alpha, beta)
        return
    tiles, channels = x.shape[:2]
    flat, spread = _flat(dy, x, y, below, factor, dx), _scratch("spread", channels * _BLOCK)
    _backward_kernel()(*flat, spread, tiles, channels, min(reach, channels - 1), 2 * alpha * beta)


def _flat(x: Array, *others: Array) -> list[Array]:
    """Return tiles of one shape as flat views."""
    check_responses(x, *others)
    if not all(array.flags.c_contiguous for array in (x, *others)):
        raise ShapeError(f"response normalization: tiles of shape {x.shape} must be contiguous")
    return [array.reshape(-1) for array in (x, *others)]


def _is_compiled(x: Array, beta: float) -> bool:
    """Return whether there is compiled code for this dtype and exponent."""
    return x.dtype.char == "f" and beta > 0 and beta != int(beta)
