"""An LSTM over time on a GPU: one matrix product and one kernel a step, nothing that waits or depends on data."""

from __future__ import annotations

from typing import Any

from dl4jlegacy.backend import Array
from dl4jlegacy.kernels.cuda.launch import Launcher
from dl4jlegacy.kernels.numpy.recurrent import check_lstm

__all__ = ["Recurrent"]


class Recurrent(Launcher):
    """See ``Kernels``."""

    def lstm_forward(self, z: Array, recurrent: Array, b: Array, peepholes: Array, h: Array, c: Array, a: Array,
                     mask: Array) -> None:  # fmt: skip
        """See ``Kernels``."""
        self._on_device("lstm_forward", z, recurrent, b, peepholes, h, c, a, mask)
        steps, rows, gates = z.shape
        state = (steps + 1, rows, gates // 4)
        check_lstm(z, recurrent, {
            "b": (b, (gates,)), "peepholes": (peepholes, (3 * gates // 4,)), "h": (h, state), "c": (c, state),
            "a": (a, (steps, *state[1:])), "mask": (mask, (steps, rows)),
        })  # fmt: skip
        weights = recurrent.T
        for t in range(steps):
            self.matmul(h[t], weights, z[t], accumulate=True)
            self._step("lstm_forward", z, t, b, peepholes, c[t], c[t + 1], a[t], h[t + 1], mask[t])

    def lstm_backward(self, dh: Array, z: Array, recurrent: Array, peepholes: Array, c: Array, a: Array, mask: Array,
                      first: int) -> None:  # fmt: skip
        """See ``Kernels``."""
        self._on_device("lstm_backward", dh, z, recurrent, peepholes, c, a, mask)
        steps, rows, gates = z.shape
        state = (rows, gates // 4)
        check_lstm(z, recurrent, {
            "peepholes": (peepholes, (3 * gates // 4,)), "dh": (dh, (steps, *state)), "c": (c, (steps + 1, *state)),
            "a": (a, (steps, *state)), "mask": (mask, (steps, rows)),
        })  # fmt: skip
        both = self._scratch.buffer("lstm", (2, *state), z.dtype.char)
        carried, dc = both[0], both[1]
        for t in range(steps - 1, first - 1, -1):
            last = t == steps - 1
            if not last:
                self.matmul(z[t + 1], recurrent, carried)
            self._step("lstm_backward", z, t, dh[t], 0 if last else carried, dc, peepholes, c[t], a[t], mask[t])

    def _step(self, name: str, z: Array, t: int, *args: Any) -> None:
        rows, units = z.shape[1], z.shape[2] // 4
        self.launch("lstm", name, z.dtype.char, rows * units, z[t], *args, rows * units, units)
