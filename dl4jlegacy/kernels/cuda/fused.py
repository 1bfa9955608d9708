"""Several steps of a layer in one launch: on a GPU a launch costs more than what small arrays take to compute."""

from __future__ import annotations

from dl4jlegacy.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels.cuda.launch import BLOCK
from dl4jlegacy.kernels.cuda.layers import ROWS, Layers, cut, width

__all__ = ["Fused"]


class Fused(Layers):
    """See ``DeviceKernels``."""

    def softmax_loss(self, z: Array, b: Array, labels: Array, dz: Array, gb: Array, scale: float) -> Array:
        """See ``DeviceKernels``."""
        self._check_bias("softmax_loss", z, b)
        self._check_bias("softmax_loss", z, gb)
        self._alike("softmax_loss", z, labels, dz)
        char = self._on_device("softmax_loss", z, b, gb)
        (m, n), loss = z.shape, self.xp.empty((), "d")
        threads = width(n)
        blocks = -(-m * threads // BLOCK)
        sums = self._scratch.buffer("sums", (max(1, blocks),), "d")
        self.launch_blocks("softmax", "softmax_loss", char, (blocks,), (BLOCK,),
                           z, b, labels, dz, sums, m, n, threads, float(scale))  # fmt: skip
        self.launch_blocks("softmax", "sum_doubles", char, (1,), (BLOCK,), sums, loss, blocks)
        self.column_sums(dz, gb)
        result: Array = loss
        return result

    def difference_sums(self, model: Array, data: Array, copy: Array, out: Array, factor: float) -> None:
        """See ``DeviceKernels``."""
        self._check_bias("difference_sums", model, out)
        self._alike("difference_sums", model, data, copy)
        char = self._on_device("difference_sums", model, out)
        self._sums("difference_sums", char, (model, data, copy), out, len(model), float(factor))

    def signed_sums(self, x: Array, half: int, out: Array, factor: float) -> None:
        """See ``DeviceKernels``."""
        self._check_bias("signed_sums", x, out)
        if not 0 <= half <= len(x):
            raise ShapeError(f"signed_sums: the halves of {len(x)} rows cannot meet at row {half}")
        self._sums("signed_sums", self._on_device("signed_sums", x, out), (x,), out, len(x), half, float(factor))

    def _sums(self, name: str, char: str, given: tuple[Array, ...], out: Array, m: int, *rest: int | float) -> None:
        n = out.size
        parts, span = cut(m, ROWS)
        sums = out if parts == 1 else self._scratch.buffer("sums", (parts, n), char)
        self.launch_blocks("activations", name, char, (-(-n // 32), parts), (32, 8), *given, sums, m, n, span, *rest)
        if parts > 1:
            self._stage(char, 1, sums, sums, out, parts, n, parts, 0)
