"""Wrappers of a recurrent layer: one runs it in both time directions, the other keeps only the last time step.

``Bidirectional`` and ``LastTimeStep`` hold the wrapped layer in ``layer``. The wrapped layer inherits its open fields
from the wrapper, and the wrapper from the network. Legacy: ``org.deeplearning4j.nn.conf.layers.recurrent``, and
``GravesBidirectionalLSTM``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self, TypeVar

import msgspec

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer, LayerOutput, Params, ParamShapes
from dl4jlegacy.nn.layers.lstm import GATES, LSTM, GravesLSTM
from dl4jlegacy.nn.optimization.step import Step

__all__ = ["MODES", "Bidirectional", "GravesBidirectionalLSTM", "LastTimeStep"]

MODES = ("concat", "add", "average", "mul")
_SHARED = tuple(field for field in FeedForwardLayer.__struct_fields__ if field not in ("name", "n_in", "n_out"))

L = TypeVar("L", bound=FeedForwardLayer)
Paired = Callable[[Array], tuple[Array, Array]]


class _BothDirections(FeedForwardLayer):
    """A recurrent layer forward in time and a second one of the same kind backward in time, with combined outputs.

    The layer needs the whole sequence: it can run neither step by step nor with truncated backpropagation.
    """

    consumes = ("recurrent",)
    needs_whole = True
    prefixes: ClassVar[tuple[str, str]] = ("f", "b")
    suffixes: ClassVar[tuple[str, str]] = ("", "")

    def inner(self) -> LSTM:
        """Return the layer of one direction, resolved."""
        raise NotImplementedError

    def merge_mode(self) -> str:
        """Return how the two outputs are combined: one of ``MODES``."""
        raise NotImplementedError

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return sequences of the combined size."""
        return InputTypeRecurrent(size=self.n_out, timesteps=getattr(given, "timesteps", 0))

    def param_shapes(self) -> ParamShapes:
        """Return the parameters of the forward direction, then those of the backward one."""
        inner = self.inner().param_shapes()
        return tuple((self._name(name, way), shape) for way in (0, 1) for name, shape in inner)

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params``; the two directions get different initial values."""
        for way in (0, 1):
            self.inner().init_params(self._of(params, way), stream.at(way, purpose="direction"))

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return the combined output ``(time steps, examples, n_out)``, and the backward pass."""
        if step.memory is not None:
            raise ConfError(
                f"layer {step.layer} ({self.title()}) looks at a sequence from both ends, so it cannot run step by "
                "step: neither rnn_time_step nor truncated_bptt can be used with it"
            )
        inner = self.inner()
        there, back = (step.at(step.layer, part=f"{step.part}{way} ") for way in ("forward", "backward"))
        if step.mask is not None:
            back = back.at(step.layer, mask=_reversed("mask", step.mask, back))
        first, first_back = inner.forward(self._of(params, 0), x, there)
        second, second_back = inner.forward(self._of(params, 1), _reversed("x", x, back), back)
        y, apart = self._merged(first, _reversed("y", second, back), step)

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            dy_first, dy_second = apart(dy)
            dx = first_back(dy_first, self._of(grads, 0), need_dx)
            other = second_back(_reversed("dy", dy_second, back), self._of(grads, 1), need_dx)
            if dx is None or other is None:
                return None
            dx += other[::-1]
            return dx

        return y, backward

    def _merged(self, first: Array, second: Array, step: Step) -> tuple[Array, Paired]:
        """Return the combined outputs, and the function that splits their gradient."""
        xp, n, way = get_array_module(first), first.shape[2], self.merge_mode()
        if way == "concat":
            y = step.buffer("y", (*first.shape[:2], 2 * n), first)
            y[:, :, :n], y[:, :, n:] = first, second
            return y, lambda dy: (xp.ascontiguousarray(dy[:, :, :n]), dy[:, :, n:])
        y = step.buffer("y", first.shape, first)
        if way == "mul":
            xp.multiply(first, second, out=y)
            return y, lambda dy: (dy * second, dy * first)
        xp.add(first, second, out=y)
        if way == "add":
            return y, lambda dy: (dy, dy)
        y *= y.dtype.type(0.5)
        half = y.dtype.type(0.5)
        return y, lambda dy: (dy * half, dy * half)

    def _name(self, name: str, way: int) -> str:
        return f"{self.prefixes[way]}{name}{self.suffixes[way]}"

    def _of(self, params: Params, way: int) -> Params:
        names = [name for name, _ in self.inner().param_shapes()]
        return {name: params[self._name(name, way)] for name in names}


class Bidirectional(_BothDirections, tag="bidirectional"):
    """The recurrent layer ``layer`` in both time directions; ``mode`` combines the two outputs.

    With "concat" the outputs lie side by side, and ``n_out`` is twice that of ``layer``.
    """

    weights = frozenset({"fW", "fRW", "bW", "bRW"})

    positional = ("layer", "mode")
    layer: LSTM | GravesLSTM
    mode: str = "concat"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resolve("mode", MODES)

    def merge_mode(self) -> str:
        """Return ``mode``."""
        return self.mode

    def inner(self) -> LSTM:
        """Return the layer of one direction, resolved."""
        return _resolved(self, self.layer, self.n_out // 2 if self.mode == "concat" else self.n_out)

    def input_size(self) -> int:
        """Return the input size of the wrapped layer."""
        return self.n_in or self.layer.input_size()

    def with_input(self, given: AnyInputType) -> Self:
        """Return the layer with its sizes filled in."""
        inner = self.layer.with_input(given)
        return _sized(self, inner, inner.n_out * (2 if self.mode == "concat" else 1))


class GravesBidirectionalLSTM(_BothDirections, tag="graves_bidirectional_lstm"):
    """Two LSTMs with peepholes, one in each direction; the output is their sum."""

    weights = frozenset({"WF", "RWF", "WB", "RWB"})
    prefixes = ("", "")
    suffixes = ("F", "B")

    forget_gate_bias_init: float = 1.0
    gate_activation: str = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.resolve("gate_activation", GATES, "activation")

    def merge_mode(self) -> str:
        """Return ``"add"``."""
        return "add"

    def inner(self) -> LSTM:
        """Return the layer of one direction, resolved."""
        return _resolved(self, self._own(), self.n_out)

    def _own(self) -> GravesLSTM:
        return GravesLSTM(forget_gate_bias_init=self.forget_gate_bias_init, gate_activation=self.gate_activation)


class LastTimeStep(FeedForwardLayer, tag="last_time_step"):
    """The output of the recurrent layer ``layer`` at the last time step that the mask does not exclude."""

    consumes = ("recurrent",)
    weights = LSTM.weights | Bidirectional.weights | GravesBidirectionalLSTM.weights

    positional = ("layer",)
    layer: LSTM | GravesLSTM | Bidirectional | GravesBidirectionalLSTM

    def inner(self) -> LSTM | Bidirectional | GravesBidirectionalLSTM:
        """Return the wrapped layer, resolved."""
        return _resolved(self, self.layer, self.n_out)

    def input_size(self) -> int:
        """Return the input size of the wrapped layer."""
        return self.n_in or self.layer.input_size()

    def with_input(self, given: AnyInputType) -> Self:
        """Return the layer with its sizes filled in."""
        inner = self.layer.with_input(given)
        return _sized(self, inner, inner.n_out)

    def output_type(self, given: AnyInputType) -> AnyInputType:
        """Return vectors of ``n_out`` values."""
        return InputTypeFeedForward(size=self.n_out)

    def forward_mask(self, mask: Array | None, step: Step) -> Array | None:
        """Return None: the output is not a sequence."""
        return None

    def param_shapes(self) -> ParamShapes:
        """Return the parameter shapes of the wrapped layer."""
        return self.inner().param_shapes()

    def init_params(self, params: Params, stream: Stream) -> None:
        """Fill ``params`` as the wrapped layer does."""
        self.inner().init_params(params, stream)

    def forward(self, params: Params, x: Array, step: Step) -> LayerOutput:
        """Return ``y (examples, n_out)`` and the backward pass."""
        xp = get_array_module(x)
        whole, inner_back = self.inner().forward(params, x, step)
        steps, rows, n = whole.shape
        last = xp.full(rows, steps - 1)
        if step.mask is not None:
            late = xp.flip(step.mask, axis=0) != 0
            last = xp.where(late.any(axis=0), steps - 1 - late.argmax(axis=0), 0)
        every = xp.arange(rows)
        y = whole[last, every]

        def backward(dy: Array, grads: Params, need_dx: bool = True) -> Array | None:
            spread = step.buffer("spread", (steps, rows, n), dy)
            spread.fill(0)
            spread[last, every] = dy
            return inner_back(spread, grads, need_dx)

        return y, backward


def _resolved(outer: FeedForwardLayer, inner: L, n_out: int) -> L:
    """Return ``inner`` with its open fields taken from ``outer``."""
    open_fields = {name: getattr(outer, name) for name in _SHARED if getattr(inner, name) in (None, False)}
    return msgspec.structs.replace(inner, n_in=outer.n_in, n_out=n_out, **open_fields)


def _sized(outer: L, inner: FeedForwardLayer, n_out: int) -> L:
    """Return ``outer`` with its sizes and its open fields taken from ``inner``."""
    for field, size in (("n_in", inner.n_in), ("n_out", n_out)):
        if getattr(outer, field) not in (0, size):
            raise ShapeError(
                f"{field} is {getattr(outer, field)}, but its {inner.title()} makes it {size}; set that one's size and "
                "leave this out"
            )
    said = {name: getattr(inner, name) for name in _SHARED if name != "frozen" and getattr(outer, name) is None}
    return msgspec.structs.replace(outer, n_in=inner.n_in, n_out=n_out, **said)


def _reversed(name: str, x: Array, step: Step) -> Array:
    """Return ``x`` reversed in time, in a work buffer."""
    result = step.buffer(f"reversed {name}", x.shape, x)
    result[...] = x[::-1]
    return result
