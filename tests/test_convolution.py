"""Convolutional layers: gradients against differences, values against formulas and PyTorch's, and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.input_type import AnyInputType, InputType
from dl4jlegacy.nn.layers import (
    ActivationLayer,
    BatchNormalization,
    CenterLossOutputLayer,
    Convolution1DLayer,
    ConvolutionLayer,
    DenseLayer,
    DropoutLayer,
    FrozenLayer,
    GlobalPoolingLayer,
    Layer,
    LocalResponseNormalization,
    LossLayer,
    OutputLayer,
    Subsampling1DLayer,
    SubsamplingLayer,
    ZeroPadding1DLayer,
    ZeroPaddingLayer,
)
from dl4jlegacy.nn.multilayer import MultiLayerNetwork

IMAGES = InputType.convolutional_flat(7, 6, 2)
SEQUENCES = InputType.recurrent(3, 9)
RNG = np.random.default_rng(1)


def network(
    *layers: Layer, input_type: AnyInputType = IMAGES, dtype: str = "float64", kernels: str = "numpy", **conf: Any
) -> MultiLayerNetwork:
    network_conf = NeuralNetConfiguration(**{"activation": "tanh", "dtype": dtype, "seed": 7} | conf)
    whole = MultiLayerConfiguration(conf=network_conf, layers=layers, input_type=input_type)
    return MultiLayerNetwork(whole, kernels=load(kernels))


def output(**fields: Any) -> OutputLayer:
    return OutputLayer(n_out=3, activation="softmax", **fields)


def check(net: MultiLayerNetwork, x: np.ndarray, **masks: np.ndarray | None) -> None:
    net.params[...] += 0.1 * RNG.standard_normal(net.num_params) * (net.params != 1)
    labels = np.eye(3)[np.arange(len(x)) % 3]
    report = GradientCheckUtil.check_gradients(net, x, labels, **masks)
    assert report.passed, report.failures[:5]
    assert report.checked


def conv(**fields: Any) -> ConvolutionLayer:
    return ConvolutionLayer(**{"n_out": 3, "kernel_size": (3, 2)} | fields)


IMAGE_STACKS: list[tuple[Layer, ...]] = [
    (conv(),),
    (conv(activation="softplus", stride=(2, 1), padding=(1, 2)), conv(kernel_size=(2, 2), dilation=(2, 1))),
    (conv(convolution_mode="same", stride=(2, 3), activation="sigmoid"), conv(kernel_size=(1, 1))),
    (conv(dilation=(2, 2), convolution_mode="same"), SubsamplingLayer(kernel_size=(2, 2))),
    *[
        (conv(), SubsamplingLayer(kernel_size=(3, 2), stride=(1, 2), padding=(1, 1), pooling_type=kind, pnorm=3))
        for kind in ("max", "avg", "sum", "pnorm")
    ],
    (SubsamplingLayer(kernel_size=(2, 2), convolution_mode="same", pooling_type="avg"), conv(kernel_size=(2, 2))),
    (ZeroPaddingLayer(padding=(1, 0, 2, 1)), conv(), ZeroPaddingLayer(padding=(0, 1, 0, 0))),
    (conv(), BatchNormalization(), conv(kernel_size=(2, 2))),
    (conv(), BatchNormalization(lock_gamma_beta=True, gamma=0.5, beta=0.1)),
    (conv(n_out=7), LocalResponseNormalization(alpha=0.1, n=3), conv(kernel_size=(2, 2))),
    (
        conv(),
        DropoutLayer(drop_out=0.6),
        ActivationLayer(activation="softplus"),
        conv(kernel_size=(2, 2), drop_out=0.7),
    ),
    (conv(), ActivationLayer(activation="softmax"), DenseLayer(n_out=4)),
    *[(conv(), GlobalPoolingLayer(pooling_type=kind, pnorm=3)) for kind in ("max", "avg", "sum", "pnorm")],
    (conv(), GlobalPoolingLayer(collapse_dimensions=False, pooling_type="avg")),
    (FrozenLayer(conv()), conv(kernel_size=(2, 2)), FrozenLayer(BatchNormalization()), DenseLayer(n_out=4)),
]


@pytest.mark.parametrize("layers", IMAGE_STACKS, ids=lambda layers: "-".join(layer.title() for layer in layers))
@pytest.mark.parametrize("examples", [3, 37])
def test_gradients_of_image_layers_are_those_of_the_score(layers: tuple[Layer, ...], examples: int) -> None:
    if examples == 37 and len(layers) > 1 and not isinstance(layers[-1], BatchNormalization | GlobalPoolingLayer):
        pytest.skip("one tile says it all")
    check(network(*layers, output(), l2=0.01), RNG.standard_normal((examples, 84)))


SEQUENCE_STACKS: list[tuple[Layer, ...]] = [
    (Convolution1DLayer(n_out=4, kernel_size=3), GlobalPoolingLayer(pooling_type="avg")),
    (Convolution1DLayer(n_out=4, kernel_size=3, stride=2, padding=1), GlobalPoolingLayer(pooling_type="pnorm")),
    (Convolution1DLayer(n_out=4, kernel_size=2, dilation=2, convolution_mode="same"), GlobalPoolingLayer()),
    *[
        (Subsampling1DLayer(kernel_size=3, padding=1, pooling_type=kind), GlobalPoolingLayer(pooling_type="sum"))
        for kind in ("max", "avg", "sum", "pnorm")
    ],
    (ZeroPadding1DLayer(padding=(1, 2)), Convolution1DLayer(n_out=3, kernel_size=4), GlobalPoolingLayer()),
    (ActivationLayer(activation="softmax"), DropoutLayer(drop_out=0.5), GlobalPoolingLayer(pooling_type="avg")),
]


@pytest.mark.parametrize("layers", SEQUENCE_STACKS, ids=lambda layers: "-".join(layer.title() for layer in layers))
@pytest.mark.parametrize("is_masked", [False, True])
def test_gradients_of_sequence_layers_are_those_of_the_score(layers: tuple[Layer, ...], is_masked: bool) -> None:
    net = network(*layers, DenseLayer(n_out=4), output(), input_type=SEQUENCES)
    x = RNG.standard_normal((4, 3, 9))
    mask = (np.arange(9) < np.array([9, 5, 1, 7])[:, None]).astype(float)
    check(net, x, features_mask=mask if is_masked else None)


@pytest.mark.parametrize("layers", SEQUENCE_STACKS, ids=lambda layers: "-".join(layer.title() for layer in layers))
def test_what_is_masked_does_not_matter(layers: tuple[Layer, ...]) -> None:
    if any(isinstance(layer, ZeroPadding1DLayer) for layer in layers):
        pytest.skip("padding counts, as in DL4J")
    net = network(*layers, output(), input_type=SEQUENCES)
    x = RNG.standard_normal((4, 3, 9))
    mask = (np.arange(9) < np.array([9, 5, 1, 7])[:, None]).astype(float)
    y = net.output(x, mask)
    x[(mask == 0)[:, None, :].repeat(3, axis=1)] = 100
    np.testing.assert_array_equal(net.output(x, mask), y)


def test_gradients_of_other_output_layers() -> None:
    check(network(DenseLayer(n_out=3), LossLayer(loss="mse", activation="sigmoid", drop_out=0.9)), np.ones((4, 84)))
    x = RNG.standard_normal((5, 84))
    net = network(DenseLayer(n_out=4), CenterLossOutputLayer(n_out=3, activation="softmax", lambda_=0.1))
    net.param_table["1_centers"][...] = RNG.standard_normal((3, 4))
    check(net, x)
    check(network(conv(), output()), x, labels_mask=np.array([1, 0, 1, 1, 0.5]))
