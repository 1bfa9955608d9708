"""Layers' kernels on a GPU: activations, their gradients, sums of columns, softmax and its loss."""

from __future__ import annotations

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.kernels.cuda.launch import BLOCK, Launcher
from dl4jlegacy.kernels.protocol import FUSED_ACTIVATIONS

__all__ = ["Layers"]

_NAMES = tuple(sorted(FUSED_ACTIVATIONS))  # the sources number them in this order
_ROWS = 128  # that a block sums at least, so that there are blocks enough for every processor of a device
_MOST_PARTS = 256  # what the second stage adds up one after the other
_PLACES = 4096  # of a channel that a block sums at least
_LOSS_BLOCKS = 1024


def _code(activation: str) -> int:
    if activation not in _NAMES:
        raise ConfError(f"activation {activation!r} has no fused kernel{nearest(activation, _NAMES)}")
    return _NAMES.index(activation)


def _cut(whole: int, least: int) -> tuple[int, int]:
    """Cut ``whole`` into at most ``_MOST_PARTS`` parts; return their number and their length."""
    span = max(least, -(-whole // _MOST_PARTS))
    return max(1, -(-whole // span)), span


def _width(n: int) -> int:
    """Return the number of threads that share a row of ``n`` values."""
    return min(BLOCK, 1 << max(0, n - 1).bit_length())


class Layers(Launcher):
    """See ``Kernels`` and ``DeviceKernels``; sums are computed in two stages, in blocks that depend only on sizes."""

    def bias_activation(self, z: Array, b: Array, activation: str) -> None:
        """See ``Kernels``."""
        self._check_bias("bias_activation", z, b)
        char = self._on_device("bias_activation", z, b)
        self.launch("activations", "bias_activation", char, z.size, z, b, z.size, b.size, _code(activation))

    def sigmoid_bias(self, z: Array, b: Array) -> None:
        """See ``Kernels``."""
        self.bias_activation(z, b, "sigmoid")

    def activation_backward_bias(self, dy: Array, y: Array, gb: Array, activation: str) -> None:
        """See ``Kernels``."""
        self._alike("activation_backward_bias", dy, y)
        self._sum_columns("activation_backward_bias", dy, y, gb, _code(activation))

    def column_sums(self, x: Array, out: Array) -> None:
        """See ``Kernels``."""
        self._sum_columns("column_sums", x, x, out, 0)

    def embedding_gradient(self, dz: Array, index: Array, gW: Array) -> None:
        """See ``Kernels``; the rows of a class are summed in order."""
        rows, n = dz.shape
        if index.shape != (rows,) or gW.ndim != 2 or gW.shape[1] != n:
            raise ShapeError(f"embedding_gradient: gradients {dz.shape}, indices {index.shape} and {gW.shape}")
        self._contiguous("embedding_gradient", index, "int64")
        columns = gW.T  # a class's weights lie in a column
        char = self._on_device("embedding_gradient", dz, columns)
        columns.fill(0)
        self.launch("embedding", "embedding_gradient", char, dz.size, dz, index, columns, rows, n, len(gW))

    def _sum_columns(self, what: str, dy: Array, y: Array, out: Array, activation: int) -> None:
        self._check_bias(what, dy, out)
        char = self._on_device(what, dy, out)
        m, n = dy.shape
        parts, span = _cut(m, _ROWS)
        sums = out if parts == 1 else self._scratch.buffer("sums", (parts, n), char)
        self._stage(char, parts, dy, y, sums, m, n, span, activation)
        if parts > 1:
            self._stage(char, 1, sums, sums, out, parts, n, parts, 0)

    def _stage(self, char: str, parts: int, dy: Array, y: Array, sums: Array, m: int, n: int, *rest: int) -> None:
        grid = (-(-n // 32), parts)
        self.launch_blocks("activations", "activation_backward_bias", char, grid, (32, 8), dy, y, sums, m, n, *rest)

    def channel_backward(self, dy: Array, y: Array, gb: Array, activation: str) -> None:
        """See ``Kernels``."""
        code = _code(activation)
        if dy.shape != y.shape or dy.ndim != 5 or gb.shape != dy.shape[1:2]:
            raise ShapeError(
                f"channel_backward: gradients {dy.shape}, outputs {y.shape} and biases {gb.shape} do not fit"
            )
        char = self._on_device("channel_backward", dy, y, gb)
        tiles, channels, *rest = dy.shape
        area = rest[0] * rest[1] * rest[2]
        parts, span = _cut(tiles * area, _PLACES)
        sums = gb if parts == 1 else self._scratch.buffer("sums", (parts, channels), char)
        self.launch_blocks("activations", "channel_backward", char, (parts, channels), (BLOCK,),
                           dy, y, sums, tiles, area, span, code)  # fmt: skip
        if parts > 1:
            self._stage(char, 1, sums, sums, gb, parts, channels, parts, 0)

    def softmax(self, z: Array) -> None:
        """See ``Kernels``."""
        char = self._on_device("softmax", z)
        m, n = z.shape
        threads = _width(n)
        if n:
            self.launch_blocks("softmax", "softmax", char, (-(-m * threads // BLOCK),), (BLOCK,), z, m, n, threads)

    def softmax_cross_entropy(self, p: Array, labels: Array, dz: Array) -> Array:
        """As in ``Kernels``, but the loss is a 0-d float64 array on the device: nothing waits for it."""
        char = self._alike("softmax_cross_entropy", p, labels, dz)
        m, n = p.shape
        threads = _width(n)
        blocks = -(-m * threads // BLOCK)
        sums = self._scratch.buffer("sums", (max(1, blocks),), "d")
        self.launch_blocks("softmax", "softmax_cross_entropy", char, (blocks,), (BLOCK,),
                           p, labels, dz, sums, m, n, threads)  # fmt: skip
        return self._sum(char, sums, blocks)

    def binary_cross_entropy(self, p: Array, labels: Array) -> Array:
        """As in ``softmax_cross_entropy``, the result is a 0-d array."""
        char = self._alike("binary_cross_entropy", p, labels)
        blocks = min(max(1, -(-p.size // BLOCK)), _LOSS_BLOCKS)
        sums = self._scratch.buffer("sums", (blocks,), "d")
        self.launch_blocks("softmax", "binary_cross_entropy", char, (blocks,), (BLOCK,), p, labels, sums, p.size)
        return self._sum(char, sums, blocks)

    def _sum(self, char: str, sums: Array, blocks: int) -> Array:
        """Return the sum of the blocks' parts of a loss."""
        loss: Array = self.xp.empty((), "d")
        self.launch_blocks("softmax", "sum_doubles", char, (1,), (BLOCK,), sums, loss, blocks)
        return loss

    # -- several steps of a layer in one launch: a launch costs more than small arrays take to compute -----------------
    def softmax_loss(self, z: Array, b: Array, labels: Array, dz: Array, gb: Array, scale: float) -> Array:
        """See ``DeviceKernels``."""
        self._check_bias("softmax_loss", z, b)
        self._check_bias("softmax_loss", z, gb)
        self._alike("softmax_loss", z, labels, dz)
        char = self._on_device("softmax_loss", z, b, gb)
        m, n = z.shape
        threads = _width(n)
        blocks = -(-m * threads // BLOCK)
        sums = self._scratch.buffer("sums", (max(1, blocks),), "d")
        self.launch_blocks("softmax", "softmax_loss", char, (blocks,), (BLOCK,),
                           z, b, labels, dz, sums, m, n, threads, float(scale))  # fmt: skip
        loss = self._sum(char, sums, blocks)
        self.column_sums(dz, gb)
        return loss

    def difference_sums(self, model: Array, data: Array, copy: Array, out: Array, factor: float) -> None:
        """See ``DeviceKernels``."""
        self._check_bias("difference_sums", model, out)
        self._alike("difference_sums", model, data, copy)
        char = self._on_device("difference_sums", model, out)
        self._block_sums("difference_sums", char, (model, data, copy), out, len(model), float(factor))

    def signed_sums(self, x: Array, half: int, out: Array, factor: float) -> None:
        """See ``DeviceKernels``."""
        self._check_bias("signed_sums", x, out)
        if not 0 <= half <= len(x):
            raise ShapeError(f"signed_sums: the halves of {len(x)} rows cannot meet at row {half}")
        self._block_sums("signed_sums", self._on_device("signed_sums", x, out), (x,), out, len(x), half, float(factor))

    def _block_sums(self, name: str, char: str, given: tuple[Array, ...], out: Array, m: int, *rest: float) -> None:
        n = out.size
        parts, span = _cut(m, _ROWS)
        sums = out if parts == 1 else self._scratch.buffer("sums", (parts, n), char)
        self.launch_blocks("activations", name, char, (-(-n // 32), parts), (32, 8), *given, sums, m, n, span, *rest)
        if parts > 1:
            self._stage(char, 1, sums, sums, out, parts, n, parts, 0)

    @staticmethod
    def _check_bias(what: str, z: Array, b: Array) -> None:
        if z.ndim != 2 or b.shape != z.shape[1:]:
            raise ShapeError(
                f"{what}: {list(z.shape)} activations need a bias of {list(z.shape[1:])}, got {list(b.shape)}"
            )
