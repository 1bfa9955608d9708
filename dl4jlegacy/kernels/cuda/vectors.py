"""Random numbers, sums of flat vectors and the threshold codec on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels.cuda.launch import BLOCK, Launcher
from dl4jlegacy.kernels.numpy import rice
from dl4jlegacy.kernels.numpy.threshold import check_encode, check_tau, wrong_codes
from dl4jlegacy.kernels.numpy.tiles import lanes as tile_lanes
from dl4jlegacy.kernels.philox import LANES

__all__ = ["Vectors"]

_AT_ONCE = 16  # vectors that one pass of the weighted sum reads
_SPAN = 16 * BLOCK  # elements of the threshold codec that a block does


def _tiles(x: Array) -> tuple[int, int, int, int, int]:
    """Return the number of draws for ``x``, then the layout of its images: values, examples, lanes, a CPU's lanes."""
    if x.ndim != 5:
        return x.size, 0, 0, 1, 1
    tiles, *shape, lanes = x.shape
    items, rows = math.prod(shape), tiles * lanes  # every lane holds an example
    width = LANES if x.dtype.char == "f" else tile_lanes(x.dtype.char, rows)
    return -(-rows // width) * items * width, items, rows, lanes, width


class Vectors(Launcher):
    """See ``Kernels``."""

    # -- random -------------------------------------------------------------------------------------------------------
    def _draw(self, name: str, what: tuple[Array, ...], *args: object, key: int, size: int | None = None) -> None:
        char = self._on_device(name, *what)
        size = what[0].size if size is None else size
        threads = (size + 63) // 64 * 16  # a thread computes four elements
        self.launch("random", name, char, threads, *what, size, *args, *self._key(key))

    def uniform(self, out: Array, key: int) -> None:
        """See ``Kernels``; images get the same numbers as on a CPU, whose tiles are narrower."""
        size, *tiles = _tiles(out)
        self._draw("uniform", (out,), *tiles, key=key, size=size)

    def gaussian(self, out: Array, key: int) -> None:
        """See ``Kernels``."""
        self._draw("gaussian", (out,), key=key)

    def sigmoid_sample(self, z: Array, b: Array, probability: Array, sample: Array, key: int) -> None:
        """See ``Kernels``."""
        self._alike("sigmoid_sample", z, probability, sample)
        if b.shape != z.shape[1:]:
            raise ShapeError(
                f"sigmoid_sample: {list(z.shape)} activations need a bias of {list(z.shape[1:])}, got {list(b.shape)}"
            )
        self._draw("sigmoid_sample", (z, b, probability, sample), b.size, key=key)

    def dropout(self, x: Array, out: Array, retain: float, key: int) -> None:
        """See ``Kernels``; images as in ``uniform``."""
        self._alike("dropout", x, out)
        size, *tiles = _tiles(x)
        self._draw("dropout", (x, out), *tiles, float(retain), 1 / retain, key=key, size=size)

    def dropout_backward(self, dy: Array, retain: float, key: int) -> None:
        """See ``Kernels``."""
        self.dropout(dy, dy, retain, key)

    def corrupt(self, x: Array, out: Array, level: float, key: int) -> None:
        """See ``Kernels``."""
        self._alike("corrupt", x, out)
        self._draw("corrupt", (x, out), float(level), key=key)

    # -- flat vectors -------------------------------------------------------------------------------------------------
    def weighted_sum(self, vectors: Sequence[Array], weights: Sequence[float], out: Array,
                     pool: Executor | None = None) -> None:  # fmt: skip
        """See ``Kernels``; a pass reads sixteen vectors, and the next pass continues from its sum in ``out``."""
        if not vectors or len(vectors) != len(weights):
            raise ShapeError(f"weighted_sum got {len(vectors)} vectors and {len(weights)} weights; it needs one each")
        char = self._alike("weighted_sum", out, *vectors)
        left, factors = list(vectors), [float(weight) for weight in weights]
        while True:
            now, given = left[:_AT_ONCE], factors[:_AT_ONCE]
            blank = _AT_ONCE - len(now)
            wide = 4 if len(now) <= 4 else 2  # elements of a thread, as in vectors.cu
            self.launch("vectors", "weighted_sum", char, -(-out.size // wide), out, out.size, len(now),
                        *now, *(0,) * blank, *given, *(0.0,) * blank)  # fmt: skip
            if len(left) <= _AT_ONCE:
                return
            left, factors = [out, *left[_AT_ONCE:]], [1.0, *factors[_AT_ONCE:]]

    def axpy(self, y: Array, x: Array, a: float) -> None:
        """See ``Kernels``."""
        self.launch("vectors", "axpy", self._alike("axpy", y, x), y.size, y, x, y.size, float(a))

    def add_regularization(self, gradient: Array, params: Array, l1: float, l2: float) -> None:
        """See ``Kernels``."""
        char = self._alike("add_regularization", gradient, params)
        self.launch("vectors", "add_regularization", char, params.size, gradient, params, params.size,
                    float(l1), float(l2))  # fmt: skip

    def all_finite(self, x: Array) -> bool:
        """See ``Kernels``; waits for the device."""
        char = self._on_device("all_finite", x)
        bad = self.xp.zeros(1, "i")
        self.launch("vectors", "all_finite", char, x.size, x, bad, x.size)
        return int(bad[0]) == 0

    # -- threshold codec ----------------------------------------------------------------------------------------------
    def threshold_encode(self, residual: Array, tau: float, codes: Array, pool: Executor | None = None) -> int:
        """See ``Kernels``; reads ``residual`` at most twice, and waits for the device to return the count."""
        check_encode(residual, tau, codes)
        self._contiguous("threshold_encode", codes, "int32")
        char = self._on_device("threshold_encode", residual)
        n, blocks = residual.size, -(-residual.size // _SPAN)
        offsets = self._scratch.buffer("offsets", (blocks + 1,), "i")
        grid, block = (blocks,), (BLOCK,)
        self.launch_blocks("threshold", "threshold_count", char, grid, block, residual, n, float(tau), offsets)
        self.launch_blocks("threshold", "threshold_offsets", char, (1,), block, offsets, blocks)
        self.launch_blocks("threshold", "threshold_encode", char, grid, block,
                           residual, n, float(tau), offsets, codes, codes.size)  # fmt: skip
        return min(int(offsets[blocks]), codes.size)

    def threshold_decode(self, codes: Array, tau: float, target: Array) -> None:
        """See ``Kernels``; waits for the device's check of the codes."""
        check_tau(tau)
        self._contiguous("threshold_decode", codes, "int32")
        char, n = self._on_device("threshold_decode", target), codes.size
        bad = self.xp.zeros(1, "i")
        self.launch("threshold", "threshold_check", char, n, codes, n, target.size, bad)
        if int(bad[0]):
            raise wrong_codes(target.size)
        self.launch("threshold", "threshold_decode", char, n, codes, n, float(tau), target)

    def rice_encode(self, codes: Array, size: int) -> Array:
        """See ``Kernels``; computed on the host, where messages are."""
        return rice.rice_encode(codes, size)

    def rice_decode(self, payload: Array, count: int, size: int) -> Array:
        """See ``Kernels``; computed on the host, where messages are."""
        return rice.rice_decode(payload, count, size)
