"""An ONNX graph under construction: operators, constants, names, and the activation functions.

Inside the graph vectors are rows, images ``(images, channels, height, width)`` and sequences ``(time steps, examples,
values)``, the layout of ONNX's recurrent operators. All numbers are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.optimization.functions import (
    GELU_SLOPE,
    LEAK,
    RATIONAL_QUARTIC,
    RATIONAL_SCALE,
    RRELU_LOWER,
    RRELU_UPPER,
    SELU_ALPHA,
    SELU_SCALE,
)

__all__ = ["OPSET", "OnnxGraph", "Signal", "activation", "import_onnx"]

OPSET = 17
"""Version of the operators, supported by onnxruntime 1.12 and later."""


def import_onnx() -> ModuleType:
    """Return the library ``onnx``; if it is missing, raise ``ModelError`` with the install command."""
    try:
        import onnx
    except ImportError as exc:
        raise ModelError("ONNX files need the library onnx: install it with ./install onnx") from exc
    found: ModuleType = onnx
    return found


@dataclass(frozen=True, slots=True)
class Signal:
    """An activation: its name in the graph, its type, and the name of a tensor ``(1,)`` with the number of examples."""

    name: str
    kind: AnyInputType
    examples: str


class OnnxGraph:
    """The operators and constants added so far; every method that adds an operator returns the name of its output."""

    def __init__(self) -> None:
        self._onnx = import_onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[tuple[Any, ...], str] = {}

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add an operator; return the name of its first output."""
        name = f"/{operator.lower()}_{len(self.nodes)}"  # unlikely as the name of a layer
        names = [name, *(f"{name}_{i}" for i in range(1, outputs))]
        self.nodes.append(self._onnx.helper.make_node(operator, list(inputs), names, name=name, **attributes))
        return name

    def numbers(self, values: Array | float, label: str = "number") -> str:
        """Return the name of a constant of float32 values."""
        return self._constant(np.ascontiguousarray(values, np.float32), label)

    def exact_numbers(self, values: Array, label: str) -> str:
        """Return the name of a constant of float64 values."""
        return self._constant(np.ascontiguousarray(values, np.float64), label)

    def integers(self, *values: int) -> str:
        """Return the name of a vector of integers."""
        return self._constant(np.array(values, np.int64), "integers")

    def _constant(self, array: Array, label: str) -> str:
        key = (array.dtype.char, array.shape, array.tobytes()) if array.size <= 8 else (id(array), len(self.constants))
        if key not in self._known:
            self._known[key] = f"/constant_{label}_{len(self.constants)}"
            self.constants.append(self._onnx.numpy_helper.from_array(array, self._known[key]))
        return self._known[key]

    # -- shapes ------------------------------------------------------------------------------------------------------

    def reshape(self, x: str, *sizes: int | str) -> str:
        """Return ``x`` reshaped; a size given by name is a tensor ``(1,)``, -1 is inferred."""
        if all(isinstance(size, int) for size in sizes):
            return self.add("Reshape", x, self.integers(*(int(size) for size in sizes)))
        parts = [size if isinstance(size, str) else self.integers(size) for size in sizes]
        return self.add("Reshape", x, self.add("Concat", *parts, axis=0))

    def size(self, x: str, axis: int) -> str:
        """Return a tensor ``(1,)`` with the size of ``x`` along an axis."""
        return self.add("Shape", x, start=axis, end=axis + 1)

    def transpose(self, x: str, *axes: int) -> str:
        """Return ``x`` with its axes in another order."""
        return self.add("Transpose", x, perm=list(axes))

    def pad(self, x: str, before: Sequence[int], after: Sequence[int]) -> str:
        """Return ``x`` with ``before`` and ``after`` zeros around it along each axis."""
        return self.add("Pad", x, self.integers(*before, *after), mode="constant")


# -- activations -----------------------------------------------------------------------------------------------------


def activation(graph: OnnxGraph, name: str, x: str, axis: int) -> str:
    """Add an activation function; ``axis`` is the axis of a softmax."""
    if name == "softmax":
        return graph.add("Softmax", x, axis=axis)
    plain = _PLAIN.get(name)
    if plain is not None:
        return graph.add(plain[0], x, **plain[1])
    return _COMPOSED[name](graph, x)


_PLAIN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "elu": ("Elu", {"alpha": 1.0}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
    "leakyrelu": ("LeakyRelu", {"alpha": LEAK}),
    "relu": ("Relu", {}),
    "rrelu": ("LeakyRelu", {"alpha": (RRELU_LOWER + RRELU_UPPER) / 2}),
    "selu": ("Selu", {"alpha": SELU_ALPHA, "gamma": SELU_SCALE}),
    "sigmoid": ("Sigmoid", {}),
    "softplus": ("Softplus", {}),
    "softsign": ("Softsign", {}),
    "tanh": ("Tanh", {}),
    "thresholdedrelu": ("ThresholdedRelu", {"alpha": 1.0}),
}


def _clipped(low: float, high: float) -> Callable[[OnnxGraph, str], str]:
    return lambda graph, x: graph.add("Clip", x, graph.numbers(low), graph.numbers(high))


def _rational_tanh(graph: OnnxGraph, x: str) -> str:
    a = graph.add("Mul", graph.add("Abs", x), graph.numbers(2 / 3))
    square = graph.add("Mul", a, a)
    fourth = graph.add("Mul", graph.add("Mul", square, square), graph.numbers(RATIONAL_QUARTIC))
    one = graph.numbers(1.0)
    below = graph.add("Add", graph.add("Add", graph.add("Add", a, one), square), fourth)
    shown = graph.add("Sub", one, graph.add("Reciprocal", below))
    return graph.add("Mul", graph.add("Mul", graph.add("Sign", x), shown), graph.numbers(RATIONAL_SCALE))


_COMPOSED: Mapping[str, Callable[[OnnxGraph, str], str]] = {
    "cube": lambda graph, x: graph.add("Mul", graph.add("Mul", x, x), x),
    "gelu": lambda graph, x: graph.add("Mul", x, graph.add("Sigmoid", graph.add("Mul", x, graph.numbers(GELU_SLOPE)))),
    "hardtanh": _clipped(-1.0, 1.0),
    "identity": lambda graph, x: x,
    "mish": lambda graph, x: graph.add("Mul", x, graph.add("Tanh", graph.add("Softplus", x))),
    "rationaltanh": _rational_tanh,
    "rectifiedtanh": lambda graph, x: graph.add("Relu", graph.add("Tanh", x)),
    "relu6": _clipped(0.0, 6.0),
    "swish": lambda graph, x: graph.add("Mul", x, graph.add("Sigmoid", x)),
}
