"""LSTM and GravesLSTM: recurrent layers over sequences ``(time steps, examples, n)``.

The weights of all four gates lie side by side, with columns ``[i f o g]`` in DL4J's names: ``i`` is the block's input
(with the layer's activation), ``f`` the forget gate, ``o`` the output gate and ``g`` the input gate (with the gate
activation). ``GravesLSTM`` has peepholes to ``f``, ``o`` and ``g``: the last three columns of ``RW``. The formulas are
in ``Kernels.lstm_forward``. Legacy: ``org.deeplearning4j.nn.layers.recurrent.LSTMHelpers``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels.numpy.recurrent import over_time, over_time_back, stepping, stepping_back
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeRecurrent
from dl4jlegacy.nn.layers.feedforward import Backward, FeedForwardLayer, Params, ParamShapes
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.step import Step
from dl4jlegacy.nn.optimization.weights import fill_weights

__all__ = ["GATES", "LSTM", "GravesLSTM"]

GATES = ("sigmoid", "hardsigmoid")
"""Activations that gates can have."""


class LSTM(FeedForwardLayer, tag="lstm"):
    """Long short-term memory without peepholes; ``n_out`` units.

    ``forget_gate_bias_init`` is the initial bias of the forget gates, ``bias_init`` that of the other gates. Drop-out
    acts on the layer's input. Where a mask is 0, outputs and memory cells are 0 too, as in DL4J.
    """

    consumes = ("recurrent",)
    weights = frozenset({"W", "RW"})
    peepholes: ClassVar[int] = 0  # columns of RW after those of the gates

    forget_gate_bias_init: float = 1.0
    gate_activation: str = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resolve("gate_activation", GATES, "activation")

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return sequences of ``n_out`` values, as long as the input."""
        return InputTypeRecurrent(size=self.n_out, timesteps=getattr(given, "timesteps", 0))

    def param_shapes(self) -> ParamShapes:
        """Return ``W (n_in, 4 n_out)``, ``RW (n_out, 4 n_out + peepholes)`` and ``b (4 n_out,)``."""
        n = self.n_out
        return (("W", (self.n_in, 4 * n)), ("RW", (n, 4 * n + self.peepholes)), ("b", (4 * n,)))

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params``: fan-in ``n_out`` and fan-out ``n_in + n_out`` for both matrices, as in DL4J."""
        for name in ("W", "RW"):
            kind, own = self.weight_init or "xavier", stream.at(purpose=name)
            fill_weights(params[name], kind, self.n_out, self.n_in + self.n_out, own, distribution=self.dist)
        params["b"][...] = self.bias_init or 0.0
        params["b"][self.n_out : 2 * self.n_out] = self.forget_gate_bias_init

    def forward(self, params: Params, x: Array, step: Step) -> tuple[Array, Backward]:
        """Return ``h (time steps, examples, n_out)``, a work buffer, and the backward pass."""
        (steps, rows, _), n = x.shape, self.n_out
        x = self.drop(x, step)
        z = step.buffer("z", (steps, rows, 4 * n), x)
        h, c, a = (step.buffer(name, (steps + late, rows, n), x) for name, late in (("h", 1), ("c", 1), ("a", 0)))
        load_state(step, self.title(), {"h": h, "c": c})
        mask = step.mask
        if mask is None:
            mask = step.buffer("mask", (steps, rows), x)
            mask.fill(1)
        recurrent = params["RW"].T
        peepholes = get_array_module(x).zeros(3 * n, x.dtype)
        if self.peepholes:
            peepholes[...] = recurrent[4 * n :].reshape(-1)
        ahead, back = self._cells(step)
        ahead(x, params["W"].T, z, recurrent[: 4 * n], params["b"], peepholes, h, c, a, mask)
        save_state(step, {"h": h, "c": c})

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            first = max(0, steps - step.back_length) if step.back_length else 0
            own, gR = recurrent[: 4 * n], grads["RW"].T
            back(dy, x, z, own, peepholes, h, c, a, mask, first, grads["W"].T, gR[: 4 * n], grads["b"])
            self._peephole_gradients(z[first:], c[first:], gR[4 * n :], step)
            return self._input_gradient(params, z, x, step, first) if need_dx else None

        return h[1:], backward

    def _cells(self, step: Step) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the forward and backward functions over time: fused kernels if these have the activations."""
        if self.forward_activation() == "tanh" and self.gate_activation == "sigmoid":
            return step.kernels.lstm_forward, step.kernels.lstm_backward
        cell, cell_back = general_cells(self.forward_activation(), self.gate_activation)
        there, back, kernels = stepping(cell), stepping_back(cell_back), step.kernels
        return (
            partial(over_time, there, matmul=kernels.matmul),
            partial(over_time_back, back, matmul=kernels.matmul, column_sums=kernels.column_sums),
        )

    def _peephole_gradients(self, dz: Array, c: Array, gradient: Array, step: Step) -> None:
        """Write the gradients of the peepholes, ``(3, n_out)``: sums over all time steps of ``dz``."""
        if not self.peepholes:
            return
        steps, n = len(dz), self.n_out
        for row, gate, late in ((0, 1, 0), (1, 2, 1), (2, 3, 0)):  # f and g see the old cell, o sees the new one
            part = dz[:, :, gate * n : (gate + 1) * n] * c[late : steps + late]
            step.kernels.column_sums(part.reshape(-1, n), gradient[row])

    def _input_gradient(self, params: Params, dz: Array, x: Array, step: Step, first: int) -> Array:
        dx = step.buffer("dx", x.shape, x)
        dx[:first] = 0
        step.kernels.matmul(dz[first:].reshape(-1, dz.shape[2]), params["W"].T, dx[first:].reshape(-1, x.shape[2]))
        return self.drop_backward(dx, step)


class GravesLSTM(LSTM, tag="graves_lstm"):
    """LSTM with peepholes from the memory cells to the gates (Graves 2012, chapter 4)."""

    peepholes = 3


def load_state(step: Step, title: str, buffers: dict[str, Array]) -> None:
    """Set entry 0 of every buffer ``(time steps + 1, examples, n)`` to the state after the last call, or to 0."""
    for name, buffer in buffers.items():
        known = None if step.memory is None else step.memory.get((step.layer, step.part + name))
        if known is None:
            buffer[0] = 0
            continue
        if known.shape != buffer[0].shape:
            raise ShapeError(
                f"layer {step.layer} ({title}) remembers {known.shape[0]} sequences of {known.shape[1]} units, now "
                f"{buffer.shape[1]} of {buffer.shape[2]} come; call rnn_clear_previous_state() before other sequences"
            )
        buffer[0] = known


def save_state(step: Step, buffers: dict[str, Array]) -> None:
    """Save the last entry of every buffer for the next call, if states are carried over."""
    if step.memory is not None:
        for name, buffer in buffers.items():
            step.memory[step.layer, step.part + name] = buffer[-1].copy()


def general_cells(activation: str, gate: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return functions for one time step forward and backward, for any activations; both share intermediate values.

    Arguments are in the order of the cells of ``kernels.numpy.recurrent``; backward steps must come in reverse order.
    """
    act, opens = ACTIVATIONS[activation], ACTIVATIONS[gate]
    kept: list[tuple[Array, Array]] = []

    def forward(z: Array, fed_back: Array, b: Array, peepholes: Array, before: Array, c: Array, a: Array, h: Array,
                mask: Array) -> None:  # fmt: skip
        n, (to_f, to_o, to_g) = c.shape[1], peepholes.reshape(3, -1)
        s = z + fed_back + b
        s[:, n : 2 * n] += to_f * before
        s[:, 3 * n :] += to_g * before
        i, f, g = act.forward(s[:, :n]), opens.forward(s[:, n : 2 * n]), opens.forward(s[:, 3 * n :])
        new = f * before + g * i
        s[:, 2 * n : 3 * n] += to_o * new
        o = opens.forward(s[:, 2 * n : 3 * n])
        for k, gate in enumerate((i, f, o, g)):
            z[:, k * n : (k + 1) * n] = gate
        a[...] = act.forward(new)
        c[...], h[...] = mask[:, None] * new, mask[:, None] * (o * a)
        kept.append((s, new))

    def backward(z: Array, dy: Array, carried: Array, dc: Array, peepholes: Array, before: Array, c: Array, a: Array,
                 mask: Array) -> None:  # fmt: skip
        s, new = kept.pop()
        n, (to_f, to_o, to_g) = c.shape[1], peepholes.reshape(3, -1)
        parts = [slice(k * n, (k + 1) * n) for k in range(4)]
        i, f, o, g = (z[:, part].copy() for part in parts)
        dh = (dy + carried) * mask[:, None]
        do = opens.backward(dh * a, s[:, parts[2]], o)
        cell = mask[:, None] * dc + act.backward(dh * o, new, a) + do * to_o
        di = act.backward(cell * g, s[:, parts[0]], i)
        df = opens.backward(cell * before, s[:, parts[1]], f)
        dg = opens.backward(cell * i, s[:, parts[3]], g)
        for part, gradient in zip(parts, (di, df, do, dg), strict=True):
            z[:, part] = gradient
        dc[...] = cell * f + df * to_f + dg * to_g

    return forward, backward
