"""ONNX operators for the layers and preprocessors of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.errors import ModelError
from dl4jlegacy.nn import preprocessors as pre
from dl4jlegacy.nn.input_type import InputTypeConvolutional
from dl4jlegacy.nn.interchange.onnx.graph import OnnxGraph, Signal, activation
from dl4jlegacy.nn.layers import autoencoder, bidirectional, elementwise, embedding, loss_layers, normalization
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer, ConvolutionLayer
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.lstm import LSTM, GravesLSTM
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.rnn_output import RnnOutputLayer
from dl4jlegacy.nn.layers.subsampling import GlobalPoolingLayer, Subsampling1DLayer, SubsamplingLayer
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.layers.windows import Window, image_windows
from dl4jlegacy.nn.optimization.functions import LEAK

__all__ = ["add_layer", "add_preprocessor"]

Params = Mapping[str, Array]


def add_layer(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    """Add a resolved layer behind ``x``, the input of the layer itself; return the name of its output.

    Raises:
        ModelError: ONNX has no operator for the layer; ``title`` names it.
    """
    add = _LAYERS.get(type(layer))
    if add is None:
        _refuse(title, "has no operator in ONNX")
    return add(graph, layer, {name: to_host(array) for name, array in params.items()}, x, title)


def _refuse(title: str, why: str) -> NoReturn:
    raise ModelError(f"{title} cannot be exported to ONNX: it {why}")


# -- dense -----------------------------------------------------------------------------------------------------------


def _product(graph: OnnxGraph, x: str, W: Array, b: Array, name: str) -> str:
    """Return ``name(x W + b)`` for rows, or for the vectors of sequences."""
    z = graph.add("Add", graph.add("MatMul", x, graph.numbers(W, "W")), graph.numbers(b, "b"))
    return activation(graph, name, z, -1)


def _dense(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    return _product(graph, x.name, params["W"], params["b"], layer.forward_activation())


def _embedding(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    indices = graph.reshape(graph.add("Cast", x.name, to=7), -1)  # 7: INT64
    vectors = graph.add("Gather", graph.numbers(params["W"], "W"), indices, axis=0)
    z = graph.add("Add", vectors, graph.numbers(params["b"], "b"))
    return activation(graph, layer.forward_activation(), z, 1)


def _variational(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    y = x.name
    for i in range(len(layer.encoder_layer_sizes)):
        y = _product(graph, y, params[f"e{i}W"], params[f"e{i}b"], layer.forward_activation())
    mean = next(name.removesuffix("W") for name, _ in layer.param_shapes() if not layer.is_pretrain_param(name)
                and name.endswith("W") and not name.startswith("e"))  # fmt: skip
    return _product(graph, y, params[f"{mean}W"], params[f"{mean}b"], layer.pzx_activation)


def _function(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    axis = 1 if isinstance(x.kind, InputTypeConvolutional) else -1
    return activation(graph, layer.forward_activation(), x.name, axis)


# -- images ----------------------------------------------------------------------------------------------------------


def _pads(windows: tuple[Window, ...]) -> list[int]:
    return [*(window.before for window in windows), *(window.after for window in windows)]


def _convolution(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    assert isinstance(x.kind, InputTypeConvolutional)
    z = graph.add(
        "Conv",
        x.name,
        graph.numbers(params["W"], "W"),
        graph.numbers(params["b"], "b"),
        kernel_shape=list(layer.kernel_size),
        strides=list(layer.stride),
        dilations=list(layer.dilation),
        pads=_pads(image_windows(layer, (x.kind.height, x.kind.width))),
    )
    return activation(graph, layer.forward_activation(), z, 1)


def _subsampling(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    assert isinstance(x.kind, InputTypeConvolutional)
    pads = _pads(image_windows(layer, (x.kind.height, x.kind.width)))
    return _pooled(graph, layer, x.name, layer.kernel_size, {"strides": list(layer.stride), "pads": pads})


def _pooled(graph: OnnxGraph, layer: Any, x: str, kernel: tuple[int, ...], place: Mapping[str, Any]) -> str:
    """Return the pooled windows of ``x (examples, channels, ...)``."""
    fields = {"kernel_shape": list(kernel), **place}
    if layer.pooling_type == "max":
        return graph.add("MaxPool", x, **fields)
    if layer.pooling_type == "pnorm":
        return graph.add("LpPool", x, p=layer.pnorm, **fields)
    mean = graph.add("AveragePool", x, count_include_pad=int(layer.pooling_type == "sum"), **fields)
    return mean if layer.pooling_type == "avg" else graph.add("Mul", mean, graph.numbers(float(np.prod(kernel))))


def _global_pooling(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    axes = [2, 3] if isinstance(x.kind, InputTypeConvolutional) else [0]
    keep = int(not layer.collapse_dimensions)
    kind = layer.pooling_type
    if kind in ("max", "avg"):
        return graph.add("ReduceMax" if kind == "max" else "ReduceMean", x.name, axes=axes, keepdims=keep)
    if kind == "sum":
        return graph.add("ReduceSum", x.name, graph.integers(*axes), keepdims=keep)
    powers = graph.add("Pow", graph.add("Abs", x.name), graph.numbers(float(layer.pnorm)))
    total = graph.add("ReduceSum", powers, graph.integers(*axes), keepdims=keep)
    return graph.add("Pow", total, graph.numbers(1 / layer.pnorm))


def _zero_padding(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    top, bottom, left, right = layer.padding
    return graph.pad(x.name, (0, 0, top, left), (0, 0, bottom, right))


def _batch_normalization(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    gamma, beta = (params.get(name, np.full(layer.n_in, getattr(layer, name))) for name in ("gamma", "beta"))
    values = {"gamma": gamma, "beta": beta, "mean": params["mean"], "var": params["var"]}
    constants = [graph.numbers(array, name) for name, array in values.items()]
    return graph.add("BatchNormalization", x.name, *constants, epsilon=layer.eps)


def _local_response(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    size = 2 * (layer.n // 2) + 1  # ONNX divides alpha by it
    return graph.add("LRN", x.name, alpha=layer.alpha * size, beta=layer.beta, bias=layer.k, size=size)


# -- sequences -------------------------------------------------------------------------------------------------------


def _along_time(graph: OnnxGraph, x: str, of: Callable[[str], str]) -> str:
    """Return the result of ``of`` on sequences as ``(examples, values, time steps)``, back in the layout inside."""
    return graph.transpose(of(graph.transpose(x, 1, 2, 0)), 2, 0, 1)


def _time_padding(layer: Any) -> Mapping[str, Any] | None:
    """Return the attributes of a window along time; None if padding depends on the length and must be added before.

    For mode "same" with a stride, ONNX's operators compute the padding themselves if windows are not dilated and touch
    or overlap.
    """
    stride, dilation = {"strides": [layer.stride]}, getattr(layer, "dilation", 1)
    if layer.convolution_mode != "same":
        return {**stride, "pads": [layer.padding, layer.padding]}
    if layer.stride > 1:
        return {**stride, "auto_pad": "SAME_UPPER"} if layer.stride <= layer.kernel_size and dilation == 1 else None
    reach = (layer.kernel_size - 1) * dilation
    return {**stride, "pads": [reach // 2, reach - reach // 2]}


def _padded_for(graph: OnnxGraph, layer: Any, x: str, fill: float = 0.0) -> str:
    """Return ``x (examples, values, time steps)`` with the padding of mode "same"."""
    steps, one, none = graph.size(x, 2), graph.integers(1), graph.integers(0, 0)
    stride = graph.integers(layer.stride)
    out = graph.add("Div", graph.add("Add", steps, graph.integers(layer.stride - 1)), stride)
    reach = graph.integers((layer.kernel_size - 1) * getattr(layer, "dilation", 1) + 1)
    whole = graph.add("Add", graph.add("Mul", graph.add("Sub", out, one), stride), reach)
    total = graph.add("Max", graph.add("Sub", whole, steps), graph.integers(0))
    before = graph.add("Div", total, graph.integers(2))
    pads = graph.add("Concat", none, before, none, graph.add("Sub", total, before), axis=0)
    return graph.add("Pad", x, pads, graph.numbers(fill), mode="constant")


def _convolution1d(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    W, b = graph.numbers(params["W"][..., 0], "W"), graph.numbers(params["b"], "b")
    place = _time_padding(layer)
    fields: dict[str, Any] = {"kernel_shape": [layer.kernel_size], "dilations": [layer.dilation]}
    fields |= {"strides": [layer.stride]} if place is None else place

    def convolved(y: str) -> str:
        return graph.add("Conv", _padded_for(graph, layer, y) if place is None else y, W, b, **fields)

    return activation(graph, layer.forward_activation(), _along_time(graph, x.name, convolved), -1)


def _subsampling1d(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    place, kernel = _time_padding(layer), (layer.kernel_size,)

    def pooled(y: str) -> str:
        if place is not None:
            return _pooled(graph, layer, y, kernel, place)
        stride = {"strides": [layer.stride]}
        fill = float(np.finfo(np.float32).min) if layer.pooling_type == "max" else 0.0
        found = _pooled(graph, layer, _padded_for(graph, layer, y, fill), kernel, stride)
        if layer.pooling_type != "avg":
            return found
        ones = graph.add("Add", graph.add("Mul", y, graph.numbers(0.0)), graph.numbers(1.0))
        return graph.add("Div", found, _pooled(graph, layer, _padded_for(graph, layer, ones), kernel, stride))

    return _along_time(graph, x.name, pooled)


def _zero_padding1d(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    return graph.pad(x.name, (layer.padding[0], 0, 0), (layer.padding[1], 0, 0))


_CELLS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "elu": ("Elu", (1.0,)),
    "hardsigmoid": ("HardSigmoid", (0.2, 0.5)),
    "identity": ("Affine", (1.0, 0.0)),
    "leakyrelu": ("LeakyRelu", (LEAK,)),
    "relu": ("Relu", ()),
    "sigmoid": ("Sigmoid", ()),
    "softplus": ("Softplus", ()),
    "softsign": ("Softsign", ()),
    "tanh": ("Tanh", ()),
    "thresholdedrelu": ("ThresholdedRelu", (1.0,)),
}
"""Functions of ONNX's operator LSTM, each with its alpha and beta."""


def _lstm(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    return _cells(graph, layer, params, x.name, title, "forward")


def _cells(graph: OnnxGraph, layer: LSTM, params: Params, x: str, title: str, direction: str) -> str:
    name = layer.forward_activation()
    if name not in _CELLS:
        _refuse(title, f"is an LSTM with activation {name!r}; its cells can be {', '.join(_CELLS)}")
    n, W, RW, b = layer.n_out, params["W"], params["RW"], params["b"]
    order = np.concatenate([np.arange(gate * n, (gate + 1) * n) for gate in (3, 2, 1, 0)])  # i f o g here, iofc in ONNX
    gates, cell = _CELLS[layer.gate_activation], _CELLS[name]
    functions = (gates, cell, cell)
    weights = [W[:, order].T[None], RW[:, order].T[None], np.concatenate([b[order], np.zeros(4 * n)])[None]]
    inputs = [x, *(graph.numbers(array, "lstm") for array in weights)]
    if layer.peepholes:
        to_f, to_o, to_g = (RW[:, 4 * n + column] for column in range(3))
        inputs += ["", "", "", graph.numbers(np.concatenate([to_g, to_o, to_f])[None], "peepholes")]
    constants: dict[str, Any] = {
        "activation_alpha": [values[0] for _, values in functions if values],
        "activation_beta": [values[1] for _, values in functions if len(values) > 1],
    }
    y = graph.add(
        "LSTM",
        *inputs,
        hidden_size=n,
        direction=direction,
        activations=[function for function, _ in functions],
        **{name: values for name, values in constants.items() if values},
    )
    return graph.add("Squeeze", y, graph.integers(1))


def _both_directions(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    names = [name for name, _ in layer.inner().param_shapes()]
    ways = [{name: params[f"{layer.prefixes[way]}{name}{layer.suffixes[way]}"] for name in names} for way in (0, 1)]
    first, second = (
        _cells(graph, layer.inner(), each, x.name, title, direction)
        for each, direction in zip(ways, ("forward", "reverse"), strict=True)
    )
    mode = layer.merge_mode()
    if mode == "concat":
        return graph.add("Concat", first, second, axis=2)
    if mode == "mul":
        return graph.add("Mul", first, second)
    total = graph.add("Add", first, second)
    return total if mode == "add" else graph.add("Mul", total, graph.numbers(0.5))


def _last_time_step(graph: OnnxGraph, layer: Any, params: Params, x: Signal, title: str) -> str:
    inner = layer.inner()
    whole = _LAYERS[type(inner)](graph, inner, params, x, title)
    return graph.reshape(graph.add("Gather", whole, graph.integers(-1), axis=0), -1, layer.n_out)


_LAYERS: Mapping[type, Callable[[OnnxGraph, Any, Params, Signal, str], str]] = {
    autoencoder.AutoEncoder: _dense,
    bidirectional.Bidirectional: _both_directions,
    bidirectional.GravesBidirectionalLSTM: _both_directions,
    bidirectional.LastTimeStep: _last_time_step,
    Convolution1DLayer: _convolution1d,
    ConvolutionLayer: _convolution,
    DenseLayer: _dense,
    elementwise.ActivationLayer: _function,
    elementwise.DropoutLayer: lambda graph, layer, params, x, title: x.name,
    elementwise.ZeroPadding1DLayer: _zero_padding1d,
    elementwise.ZeroPaddingLayer: _zero_padding,
    embedding.EmbeddingLayer: _embedding,
    GlobalPoolingLayer: _global_pooling,
    GravesLSTM: _lstm,
    loss_layers.CenterLossOutputLayer: _dense,
    loss_layers.LossLayer: _function,
    LSTM: _lstm,
    normalization.BatchNormalization: _batch_normalization,
    normalization.LocalResponseNormalization: _local_response,
    OutputLayer: _dense,
    RBM: _dense,
    RnnOutputLayer: _dense,
    Subsampling1DLayer: _subsampling1d,
    SubsamplingLayer: _subsampling,
    VariationalAutoencoder: _variational,
}


# -- preprocessors ---------------------------------------------------------------------------------------------------


def add_preprocessor(graph: OnnxGraph, given: Any, x: Signal, title: str) -> Signal:
    """Add a preprocessor behind ``x``; raises as ``add_layer``."""
    if isinstance(given, pre.ComposableInputPreProcessor):
        for each in given.input_pre_processors:
            x = add_preprocessor(graph, each, x, title)
        return x
    sizes: tuple[int | str, ...]
    if isinstance(given, pre.FeedForwardToCnnPreProcessor | pre.RnnToCnnPreProcessor):
        sizes = (-1, given.channels, given.height, given.width)
    elif isinstance(given, pre.CnnToFeedForwardPreProcessor):
        sizes = (-1, given.channels * given.height * given.width)
    elif isinstance(given, pre.CnnToRnnPreProcessor):
        sizes = (-1, x.examples, given.channels * given.height * given.width)
    elif isinstance(given, pre.RnnToFeedForwardPreProcessor):
        sizes = (-1, x.kind.n_in)
    elif isinstance(given, pre.FeedForwardToRnnPreProcessor):
        sizes = (-1, x.examples, x.kind.n_in)
    else:
        _refuse(f"{title} behind preprocessor {given.title()}", "takes statistics or random numbers of the batch")
    return Signal(graph.reshape(x.name, *sizes), given.output_type(x.kind), x.examples)
