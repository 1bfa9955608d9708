"""An LSTM over time on a GPU: one matrix product and one kernel per step, without waiting or data dependence."""

from __future__ import annotations

from typing import Any

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.cuda.layers import Layers
from dl4jlegacy.kernels.numpy.recurrent import check_backward, check_forward, write_gradients

__all__ = ["Recurrent"]


class Recurrent(Layers):
    """See ``Kernels``."""

    def lstm_forward(self, x: Array, W: Array, z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array,
                     c: Array, a: Array, mask: Array) -> None:  # fmt: skip
        """See ``Kernels``."""
        self._on_device("lstm_forward", x, W, z, recurrent, b, peepholes, h, c, a, mask)
        check_forward(x, W, z, recurrent, b, peepholes, h, c, a, mask)
        steps, rows, gates = z.shape
        self.matmul(x.reshape(steps * rows, -1), W.T, z.reshape(steps * rows, gates))
        weights = recurrent.T
        for t in range(steps):
            self.matmul(h[t], weights, z[t], accumulate=True)
            self._step("lstm_forward", z, t, b, peepholes, c[t], c[t + 1], a[t], h[t + 1], mask[t])

    def lstm_backward(self, dh: Array, x: Array, z: Array, recurrent: Array, peepholes: Array, h: Array, c: Array,
                      a: Array, mask: Array, first: int, gW: Array, gR: Array, gb: Array) -> None:  # fmt: skip
        """See ``Kernels``."""
        self._on_device("lstm_backward", dh, x, z, recurrent, peepholes, h, c, a, mask, gW, gR, gb)
        check_backward(dh, x, z, recurrent, peepholes, h, c, a, mask, gW, gR, gb)
        steps, rows, units = a.shape
        both = self._scratch.buffer("lstm", (2, rows, units), z.dtype.char)
        carried, dc = both[0], both[1]
        for t in range(steps - 1, first - 1, -1):
            last = t == steps - 1
            if not last:
                self.matmul(z[t + 1], recurrent, carried)
            self._step("lstm_backward", z, t, dh[t], 0 if last else carried, dc, peepholes, c[t], a[t], mask[t])
        write_gradients(z, x, h, first, gW, gR, gb, self.matmul, self.column_sums)

    def _step(self, name: str, z: Array, t: int, *args: Any) -> None:
        rows, units = z.shape[1], z.shape[2] // 4
        self.launch("lstm", name, z.dtype.char, rows * units, z[t], *args, rows * units, units)
