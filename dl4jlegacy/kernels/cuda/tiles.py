"""Tiles on a GPU: conversion of rows to tiles and back, and pooling."""

from __future__ import annotations

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.kernels import lrn as responses
from dl4jlegacy.kernels.cuda.launch import Launcher
from dl4jlegacy.kernels.numpy.tiles import POOLINGS

__all__ = ["Tiles"]

Pair = tuple[int, int]
_MOST_SQUARES = 1 << 16


class Tiles(Launcher):
    """See ``Kernels``; any number of lanes."""

    def tile(self, x: Array, tiles: Array) -> None:
        """See ``Kernels``."""
        self._transpose("tile", x, tiles, x, tiles)

    def untile(self, tiles: Array, x: Array) -> None:
        """See ``Kernels``."""
        self._transpose("untile", tiles, x, x, tiles)

    def transpose(self, x: Array, out: Array) -> None:
        """See ``Kernels``: all rows of ``x`` are the lanes of one tile."""
        if out.shape != x.shape[::-1]:
            raise ShapeError(f"transpose: {list(x.shape)} into {list(out.shape)}")
        self.tile(x, out[None])

    def _transpose(self, name: str, source: Array, target: Array, x: Array, tiles: Array) -> None:
        char = self._on_device(name, source, target)
        (rows, n), lanes = x.shape, tiles.shape[-1]
        if tiles.size != len(tiles) * n * lanes or rows > len(tiles) * lanes:
            raise ShapeError(f"{rows} rows of {n} values do not fit tiles of shape {tiles.shape}")
        if lanes == 1:  # the same order, only the last tiles may have no row
            self.launch("tiles", "copy_rows", char, target.size, source, target, source.size, target.size)
            return
        squares = len(tiles) * -(-n // 32) * -(-lanes // 32)
        self.launch_blocks("tiles", name, char, (min(squares, _MOST_SQUARES),), (32, 8),
                           source, target, squares, rows, n, lanes)  # fmt: skip

    def pool_forward(self, x: Array, y: Array, winners: Array, kernel: Pair, stride: Pair, pad: Pair, kind: str,
                     p: float = 2.0) -> None:  # fmt: skip
        """See ``Kernels``."""
        code, windows = self._windows(x, y, winners, kernel, stride, pad, kind)
        char = self._on_device("pool_forward", x, y)
        self.launch("pooling", "pool_forward", char, y.size, x, y, winners, y.size, *windows, code, float(p))

    def pool_backward(self, dy: Array, x: Array, y: Array, winners: Array, dx: Array, kernel: Pair, stride: Pair,
                      pad: Pair, kind: str, p: float = 2.0) -> None:  # fmt: skip
        """See ``Kernels``; each thread sums the gradient of one input, so no two threads add to the same place."""
        code, windows = self._windows(dx, dy, winners, kernel, stride, pad, kind)
        self._alike("pool_backward", dx, x)
        self._alike("pool_backward", dy, y)
        char = self._on_device("pool_backward", dx, dy)
        self.launch("pooling", "pool_backward", char, dx.size, dy, x, y, winners, dx, dx.size, *windows, code, float(p))

    response_forward = staticmethod(responses.response_forward)
    response_backward = staticmethod(responses.response_backward)

    def _windows(
        self, x: Array, y: Array, winners: Array, kernel: Pair, stride: Pair, pad: Pair, kind: str
    ) -> tuple[int, tuple[int, ...]]:
        """Return the kind's number and the sizes; raise if a window covers no place, since reads would be outside."""
        if kind not in POOLINGS:
            raise ConfError(f"unknown pooling {kind!r}{nearest(kind, POOLINGS)}")
        self._contiguous("pooling", winners, "int32")
        ends = [(y.shape[2 + i] - 1) * stride[i] - pad[i] for i in (0, 1)]
        fits = all(ends[i] < x.shape[2 + i] and kernel[i] > pad[i] for i in (0, 1))
        if x.shape[:2] != y.shape[:2] or winners.shape != y.shape or x.shape[4] != y.shape[4] or not fits:
            raise ShapeError(
                f"pooling of tiles {x.shape} with windows {kernel}, stride {stride} and padding {pad} "
                f"cannot give {y.shape}"
            )
        return POOLINGS.index(kind), (*x.shape[2:4], *y.shape[2:4], x.shape[4], *kernel, *stride, *pad)
