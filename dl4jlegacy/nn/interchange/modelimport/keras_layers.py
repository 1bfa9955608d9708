"""Conversion of Keras layers to our layers, with their weights.

Keras has images ``(examples, height, width, channels)`` and sequences ``(examples, time steps, values)``; here they are
``(examples, channels, height, width)`` and ``(examples, values, time steps)``, so weights behind a ``Flatten`` are
reordered. A field that could change the predictions is either supported or an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn import preprocessors as pre
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional, InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.interchange.modelimport.keras_file import read_array
from dl4jlegacy.nn.layers import elementwise
from dl4jlegacy.nn.layers.bidirectional import Bidirectional, LastTimeStep
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer, ConvolutionLayer
from dl4jlegacy.nn.layers.embedding import EmbeddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.lstm import LSTM
from dl4jlegacy.nn.layers.normalization import BatchNormalization
from dl4jlegacy.nn.layers.subsampling import GlobalPoolingLayer, Subsampling1DLayer, SubsamplingLayer
from dl4jlegacy.nn.layers.windows import Mode
from dl4jlegacy.nn.vertices import combine, shape

__all__ = ["Flow", "Made", "Source", "activation_name", "layer_of", "merge_of"]

Weights = dict[str, Array]


@dataclass(frozen=True)
class Flow:
    """An activation: the name of the part that computes it, its type, its number of time steps, and its order.

    ``order[j]`` is Keras's index of our value ``j``; None if both orders are equal.
    """

    name: str
    kind: AnyInputType
    steps: int = 0
    order: Array | None = None


@dataclass(frozen=True)
class Made:
    """The one or more parts that a Keras layer becomes, in order: layers, vertices, preprocessors."""

    parts: tuple[Any, ...]
    weights: tuple[Weights, ...] = ()
    order: Array | None = None


@dataclass
class Source:
    """A layer as described by Keras; ``version``: Keras's version, ``first``: whether images have channels first."""

    kind: str
    name: str
    config: Mapping[str, Any]
    version: str
    first: bool = False
    arrays: Sequence[Any] = ()

    @property
    def title(self) -> str:
        """Class and name, for messages."""
        return f"layer {self.name!r} ({self.kind})"

    def refuse(self, why: str) -> NoReturn:
        """Raise ``ModelError``: this layer is not supported."""
        raise ModelError(f"{self.title}: {why}")

    def get(self, key: str, usual: Any = None) -> Any:
        """Return a field of the layer's description, or ``usual`` if it is missing."""
        return self.config.get(key, usual)

    def only(self, key: str, *values: Any) -> None:
        """Raise ``ModelError`` unless a field is one of ``values``; the first of them is the default."""
        found = self.get(key, values[0])
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if found not in values:
            self.refuse(f"{key} is {found!r}, which is not here; it can be {' or '.join(map(repr, values))}")

    def array(self, number: int, what: str, *sizes: int) -> Array:
        """Return a weight, which must have the given shape."""
        if number >= len(self.arrays):
            self.refuse(f"its weight {what} is missing; the file has {len(self.arrays)} of this layer")
        return read_array(self.arrays[number], sizes, f"{what} of {self.title}")

    def bias(self, number: int, size: int) -> Array:
        """Return the bias; zeros if the layer has none."""
        return self.array(number, "bias", size) if self.get("use_bias", True) else np.zeros(size)


# -- activations and penalties ---------------------------------------------------------------------------------------


_ACTIVATIONS = {
    "elu": "elu",
    "linear": "identity",
    "mish": "mish",
    "relu": "relu",
    "relu6": "relu6",
    "selu": "selu",
    "sigmoid": "sigmoid",
    "silu": "swish",
    "softmax": "softmax",
    "softplus": "softplus",
    "softsign": "softsign",
    "swish": "swish",
    "tanh": "tanh",
}


def activation_name(source: Source, key: str = "activation", usual: str = "linear") -> str:
    """Return our name of the activation in a field."""
    found = source.get(key, usual)
    if isinstance(found, dict):
        found = found.get("config") if isinstance(found.get("config"), str) else found.get("class_name")
    name = usual if found is None else str(found)
    if name == "hard_sigmoid" and not source.version.startswith(("3", "4")):
        return "hardsigmoid"  # 0.2 x + 0.5; since Keras 3 x / 6 + 0.5
    known = _ACTIVATIONS.get(name)
    if known is None:
        source.refuse(f"{key} {name!r} is not here")
    return known


def _penalties(source: Source) -> dict[str, Any]:
    """Return the penalties on weights and biases; Keras's l2 counts twice as much as ours."""
    found: dict[str, Any] = {}
    for key, suffix in (("kernel_regularizer", ""), ("bias_regularizer", "_bias")):
        given = source.get(key)
        said = given.get("config", {}) if isinstance(given, dict) else {}
        for name, factor in (("l1", 1.0), ("l2", 2.0)):
            if isinstance(said.get(name), int | float) and said[name]:
                found[f"{name}{suffix}"] = factor * float(said[name])
    return found


def _pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return int(first), int(second)


def _one(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])


# -- layers ----------------------------------------------------------------------------------------------------------


def layer_of(source: Source, given: Flow) -> Made:
    """Return the parts for a Keras layer with one input.

    Raises:
        ModelError: the layer is not supported, or a field or a weight of it is wrong; the message names it.
    """
    make = _LAYERS.get(source.kind)
    if make is None:
        source.refuse("this kind of layer is not here")
    return make(source, given)


def _dense(source: Source, given: Flow) -> Made:
    size, n_in = int(source.get("units")), given.kind.columns
    if isinstance(given.kind, InputTypeConvolutional):
        source.refuse("it takes images by their last axis; flatten them first")
    W = source.array(0, "kernel", n_in, size)
    if given.order is not None:
        W = W[given.order]
    layer = DenseLayer(n_out=size, activation=activation_name(source), name=source.name, **_penalties(source))
    return Made((layer,), ({"W": W, "b": source.bias(1, size)},))


def _images(source: Source, given: Flow) -> InputTypeConvolutional:
    if not isinstance(given.kind, InputTypeConvolutional):
        source.refuse(f"it takes images, what comes in is {given.kind}")
    source.only("data_format", "channels_first" if source.first else "channels_last", None)
    return given.kind


def _check_softmax(source: Source, name: str, given: Flow) -> None:
    """Raise for a softmax over the columns of images, which is the last axis if channels are first."""
    if name == "softmax" and source.first and isinstance(given.kind, InputTypeConvolutional):
        source.refuse("it takes a softmax over the columns of images; here it is over channels")


def _axes(source: Source, kind: AnyInputType) -> tuple[int, ...]:
    """Return the valid numbers of Keras for the axis of channels, or of values."""
    if isinstance(kind, InputTypeConvolutional):
        return (1, -3) if source.first else (-1, 3)
    is_sequence = isinstance(kind, InputTypeRecurrent) or getattr(kind, "sequences", False)
    return (-1, 2 if is_sequence else 1)


def _sequences(source: Source, given: Flow) -> int:
    """Return the vector size of the input sequences."""
    if isinstance(given.kind, InputTypeConvolutional) or not (
        isinstance(given.kind, InputTypeRecurrent) or getattr(given.kind, "sequences", False)
    ):
        source.refuse(f"it takes sequences, what comes in is {given.kind}")
    source.only("data_format", "channels_last", None)
    return given.kind.n_in


def _mode(source: Source) -> Mode:
    source.only("padding", "valid", "same")
    return "same" if source.get("padding") == "same" else "truncate"


def _conv2d(source: Source, given: Flow) -> Made:
    n_in, size, kernel = _images(source, given).channels, int(source.get("filters")), _pair(source.get("kernel_size"))
    source.only("groups", 1)
    _check_softmax(source, activation_name(source), given)
    W = source.array(0, "kernel", *kernel, n_in, size).transpose(3, 2, 0, 1)
    layer = ConvolutionLayer(
        n_out=size,
        kernel_size=kernel,
        stride=_pair(source.get("strides", 1)),
        dilation=_pair(source.get("dilation_rate", 1)),
        convolution_mode=_mode(source),
        activation=activation_name(source),
        name=source.name,
        **_penalties(source),
    )
    return Made((layer,), ({"W": W, "b": source.bias(1, size)},))


def _conv1d(source: Source, given: Flow) -> Made:
    n_in, size, kernel = _sequences(source, given), int(source.get("filters")), _one(source.get("kernel_size"))
    source.only("groups", 1)
    dilation = _one(source.get("dilation_rate", 1))
    is_causal = source.get("padding") == "causal"
    W = source.array(0, "kernel", kernel, n_in, size).transpose(2, 1, 0)[..., None]
    layer = Convolution1DLayer(
        n_out=size,
        kernel_size=kernel,
        stride=_one(source.get("strides", 1)),
        dilation=dilation,
        convolution_mode="truncate" if is_causal else _mode(source),
        activation=activation_name(source),
        name=source.name,
        **_penalties(source),
    )
    weights = {"W": W, "b": source.bias(1, size)}
    if not is_causal:
        return Made((layer,), (weights,))
    before = elementwise.ZeroPadding1DLayer(padding=((kernel - 1) * dilation, 0), name=f"{source.name}_padding")
    return Made((before, layer), ({}, weights))


def _pooling(source: Source, given: Flow) -> Made:
    fields: dict[str, Any] = {"pooling_type": "max" if "Max" in source.kind else "avg", "name": source.name}
    if source.kind.startswith("Global"):
        source.only("keepdims", False)
        _images(source, given) if source.kind.endswith("2D") else _sequences(source, given)
        return Made((GlobalPoolingLayer(**fields),))
    kernel, stride = source.get("pool_size", 2), source.get("strides")
    stride = kernel if stride is None else stride
    fields["convolution_mode"] = _mode(source)
    if source.kind.endswith("2D"):
        _images(source, given)
        return Made((SubsamplingLayer(kernel_size=_pair(kernel), stride=_pair(stride), **fields),))
    _sequences(source, given)
    return Made((Subsampling1DLayer(kernel_size=_one(kernel), stride=_one(stride), **fields),))


def _batch_normalization(source: Source, given: Flow) -> Made:
    source.only("axis", *_axes(source, given.kind))
    source.only("renorm", False)
    size, number = given.kind.n_in, 0
    values = {"gamma": np.ones(size), "beta": np.zeros(size)}
    for name, key in (("gamma", "scale"), ("beta", "center")):
        if source.get(key, True):
            values[name] = source.array(number, name, size)
            number += 1
    values["mean"] = source.array(number, "moving_mean", size)
    values["var"] = source.array(number + 1, "moving_variance", size)
    if given.order is not None:
        values = {name: array[given.order] for name, array in values.items()}
    layer = BatchNormalization(
        decay=float(source.get("momentum", 0.99)), eps=float(source.get("epsilon", 1e-3)), name=source.name
    )
    return Made((layer,), (values,), given.order)


def _dropout(source: Source, given: Flow) -> Made:
    source.only("noise_shape", None)
    kept = 1.0 - float(source.get("rate", 0.0))
    return Made((elementwise.DropoutLayer(drop_out=0.0 if kept == 1 else kept, name=source.name),), (), given.order)


def _function(source: Source, given: Flow) -> Made:
    name = source.kind
    if name == "Activation":
        found = activation_name(source)
    elif name == "ReLU":
        source.only("negative_slope", 0, None)
        source.only("threshold", 0, None)
        source.only("max_value", None, 6)
        found = "relu6" if source.get("max_value") else "relu"
    elif name == "LeakyReLU":
        slope = source.get("negative_slope", source.get("alpha", 0.3))
        if abs(float(slope) - 0.01) > 1e-9:
            source.refuse(f"its slope is {slope}, here it is 0.01")
        found = "leakyrelu"
    elif name == "ELU":
        source.only("alpha", 1.0)
        found = "elu"
    else:
        source.only("axis", -1)
        found = "softmax"
    _check_softmax(source, found, given)
    return Made((elementwise.ActivationLayer(activation=found, name=source.name),), (), given.order)


def _zero_padding(source: Source, given: Flow) -> Made:
    padding = source.get("padding", 1)
    if source.kind == "ZeroPadding1D":
        _sequences(source, given)
        return Made((elementwise.ZeroPadding1DLayer(padding=_pair(padding), name=source.name),))
    _images(source, given)
    rows, columns = (padding, padding) if isinstance(padding, int) else padding
    around = (*_pair(rows), *_pair(columns))
    return Made((elementwise.ZeroPaddingLayer(padding=around, name=source.name),))


def _flatten(source: Source, given: Flow) -> Made:
    kind = given.kind
    if isinstance(kind, InputTypeConvolutional):
        order = None
        if not source.first:
            places = np.arange(kind.columns).reshape(kind.height, kind.width, kind.channels)
            order = np.ascontiguousarray(places.transpose(2, 0, 1)).reshape(-1)
        flat = pre.CnnToFeedForwardPreProcessor(height=kind.height, width=kind.width, channels=kind.channels)
        return Made((flat,), (), order)
    is_rows = isinstance(kind, InputTypeFeedForward) and kind.sequences
    if isinstance(kind, InputTypeFeedForward) and not is_rows:
        return Made((), (), given.order)
    if not given.steps:
        source.refuse("its sequences have no fixed length; a dense layer behind them needs one")
    order = np.arange(given.steps * kind.n_in).reshape(given.steps, kind.n_in).T.reshape(-1)
    parts: tuple[Any, ...] = (shape.ReshapeVertex(new_shape=(-1, given.steps * kind.n_in)),)
    return Made(((pre.FeedForwardToRnnPreProcessor(), *parts) if is_rows else parts), (), order)


def _embedding(source: Source, given: Flow) -> Made:
    source.only("mask_zero", False)
    classes, size = int(source.get("input_dim")), int(source.get("output_dim"))
    W = source.array(0, "embeddings", classes, size)
    layer = EmbeddingLayer(n_in=classes, n_out=size, activation="identity", name=source.name)
    return Made((layer,), ({"W": W, "b": np.zeros(size)},))


# -- recurrent -------------------------------------------------------------------------------------------------------


def _cell(source: Source, n_in: int, first: int) -> tuple[LSTM, Weights]:
    """Return an LSTM and its weights, which start at number ``first`` in the file."""
    for key in ("go_backwards", "stateful", "time_major"):
        source.only(key, False)
    gate = activation_name(source, "recurrent_activation", "sigmoid")
    if gate not in ("sigmoid", "hardsigmoid"):
        source.refuse(f"recurrent_activation {gate!r} is not here; it can be 'sigmoid'")
    n = int(source.get("units"))
    kept = 1.0 - float(source.get("dropout", 0.0) or 0.0)
    layer = LSTM(
        n_out=n,
        activation=activation_name(source, usual="tanh"),
        gate_activation=gate,
        drop_out=0.0 if kept == 1 else kept,
        **_penalties(source),
    )
    # Gate order in Keras: i f c o; here: c f o i.
    columns = np.concatenate([np.arange(part * n, (part + 1) * n) for part in (2, 1, 3, 0)])  # i f c o in Keras
    return layer, {
        "W": source.array(first, "kernel", n_in, 4 * n)[:, columns],
        "RW": source.array(first + 1, "recurrent_kernel", n, 4 * n)[:, columns],
        "b": source.bias(first + 2, 4 * n)[columns],
    }


def _lstm(source: Source, given: Flow) -> Made:
    source.only("return_state", False)
    layer, weights = _cell(source, _sequences(source, given), 0)
    if source.get("return_sequences", False):
        return Made((msgspec.structs.replace(layer, name=source.name),), (weights,))
    return Made((LastTimeStep(layer=layer, name=source.name),), (weights,))


_CELL_FIELDS = ("units", "activation", "recurrent_activation", "use_bias", "return_sequences", "stateful")


def _bidirectional(source: Source, given: Flow) -> Made:
    inner = source.get("layer", {})
    told, backward = inner.get("config", {}), source.get("backward_layer")
    if inner.get("class_name") != "LSTM":
        source.refuse(f"it is of a layer {inner.get('class_name')!r}; an LSTM is here")
    source.only("merge_mode", "concat", "sum", "mul", "ave")
    if not told.get("return_sequences", False):
        source.refuse(
            "its return_sequences is False: the backward direction would give its last time step, which is the first "
            "of the sequence; this is not here"
        )
    if backward:
        other = backward.get("config", {})
        differ = [key for key in _CELL_FIELDS if other.get(key, told.get(key)) != told.get(key)]
        if differ:
            source.refuse(f"its backward_layer differs from the forward one in {', '.join(differ)}")
    n_in, biased = _sequences(source, given), 3 if told.get("use_bias", True) else 2
    cells = [
        _cell(Source("LSTM", source.name, told, source.version, arrays=source.arrays), n_in, way * biased)
        for way in (0, 1)
    ]
    mode = {"sum": "add", "ave": "average"}.get(source.get("merge_mode", "concat"), source.get("merge_mode", "concat"))
    weights = {
        f"{way}{name}": array for way, (_, found) in zip("fb", cells, strict=True) for name, array in found.items()
    }
    return Made((Bidirectional(layer=cells[0][0], mode=mode, name=source.name),), (weights,))


def _time_distributed(source: Source, given: Flow) -> Made:
    inner = source.get("layer", {})
    if inner.get("class_name") != "Dense":
        source.refuse(f"it is of a layer {inner.get('class_name')!r}; a Dense is here")
    return _dense(Source("Dense", source.name, inner.get("config", {}), source.version, arrays=source.arrays), given)


_LAYERS: Mapping[str, Callable[[Source, Flow], Made]] = {
    "Activation": _function,
    "AveragePooling1D": _pooling,
    "AveragePooling2D": _pooling,
    "BatchNormalization": _batch_normalization,
    "BatchNormalizationV1": _batch_normalization,
    "BatchNormalizationV2": _batch_normalization,
    "Bidirectional": _bidirectional,
    "Conv1D": _conv1d,
    "Conv2D": _conv2d,
    "Convolution1D": _conv1d,
    "Convolution2D": _conv2d,
    "Dense": _dense,
    "Dropout": _dropout,
    "ELU": _function,
    "Embedding": _embedding,
    "Flatten": _flatten,
    "GlobalAveragePooling1D": _pooling,
    "GlobalAveragePooling2D": _pooling,
    "GlobalMaxPooling1D": _pooling,
    "GlobalMaxPooling2D": _pooling,
    "LSTM": _lstm,
    "LeakyReLU": _function,
    "MaxPooling1D": _pooling,
    "MaxPooling2D": _pooling,
    "ReLU": _function,
    "Softmax": _function,
    "TimeDistributed": _time_distributed,
    "ZeroPadding1D": _zero_padding,
    "ZeroPadding2D": _zero_padding,
}


# -- several inputs --------------------------------------------------------------------------------------------------


_MERGES: Mapping[str, Any] = {
    "Add": "add",
    "Average": "average",
    "Maximum": "max",
    "Multiply": "product",
    "Subtract": "subtract",
}


def merge_of(source: Source, given: Sequence[Flow]) -> Made:
    """Return the parts for a Keras layer with several inputs; raises as ``layer_of``."""
    orders = [flow.order for flow in given]
    if source.kind == "Concatenate":
        source.only("axis", *_axes(source, given[0].kind))
        order = None
        if any(each is not None for each in orders):
            sizes = np.cumsum([0, *(flow.kind.columns for flow in given)])
            parts = [np.arange(f.kind.columns) if f.order is None else f.order for f in given]
            order = np.concatenate([part + start for part, start in zip(parts, sizes, strict=False)])
        return Made((combine.MergeVertex(),), (), order)
    if source.kind not in _MERGES:
        source.refuse("this kind of layer is not here")
    places = [np.arange(f.kind.columns) if f.order is None else f.order for f in given]
    if any(not np.array_equal(each, places[0]) for each in places[1:]):
        source.refuse("one of its inputs is a flattened image and another is not, so their values do not meet")
    return Made((combine.ElementWiseVertex(op=_MERGES[source.kind]),), (), orders[0])
