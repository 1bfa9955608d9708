"""Convolutional layers: gradients against differences, values against formulas and PyTorch's, and bad input."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf import stages
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.nn.input_type import AnyInputType, InputType
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer, ConvolutionLayer
from dl4jlegacy.nn.layers.elementwise import ActivationLayer, DropoutLayer, ZeroPadding1DLayer, ZeroPaddingLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, FrozenLayer, Layer
from dl4jlegacy.nn.layers.loss_layers import CenterLossOutputLayer, LossLayer
from dl4jlegacy.nn.layers.normalization import BatchNormalization, LocalResponseNormalization
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.subsampling import GlobalPoolingLayer, Subsampling1DLayer, SubsamplingLayer
from dl4jlegacy.nn.layers.windows import image_windows
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Adam

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


def titles(layers: tuple[Layer, ...]) -> str:
    return "-".join(layer.title() for layer in layers)


def conv(**fields: Any) -> ConvolutionLayer:
    return ConvolutionLayer(**{"n_out": 3, "kernel_size": (3, 2)} | fields)


IMAGE_STACKS: list[tuple[Layer, ...]] = [
    (conv(),),
    (conv(activation="softplus", stride=(2, 1), padding=(1, 2)), conv(kernel_size=(2, 2), dilation=(2, 1))),
    (conv(convolution_mode="same", stride=(2, 3), activation="sigmoid"), conv(kernel_size=(1, 1))),
    (conv(dilation=(2, 2), convolution_mode="same"), SubsamplingLayer(kernel_size=(2, 2))),
    (conv(kernel_size=(1, 1)), conv(activation="identity", padding=(1, 1), drop_out=0.7), SubsamplingLayer((2, 2))),
    (conv(activation="relu"), SubsamplingLayer(kernel_size=(2, 3), stride=(2, 1), padding=(1, 1)), conv()),
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


@pytest.mark.parametrize("layers", IMAGE_STACKS, ids=titles)
@pytest.mark.everyday(5)
def test_gradients_of_image_layers_are_those_of_the_score(layers: tuple[Layer, ...]) -> None:
    several_tiles = isinstance(layers[-1], BatchNormalization | GlobalPoolingLayer)
    check(network(*layers, output(), l2=0.01), RNG.standard_normal((37 if several_tiles else 3, 84)))


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


@pytest.mark.parametrize("layers", SEQUENCE_STACKS, ids=titles)
@pytest.mark.parametrize("is_masked", [False, True])
def test_gradients_of_sequence_layers_are_those_of_the_score(layers: tuple[Layer, ...], is_masked: bool) -> None:
    net = network(*layers, DenseLayer(n_out=4), output(), input_type=SEQUENCES)
    x = RNG.standard_normal((4, 3, 9))
    mask = (np.arange(9) < np.array([9, 5, 1, 7])[:, None]).astype(float)
    check(net, x, features_mask=mask if is_masked else None)


PADDED = SEQUENCE_STACKS[-2]  # padding counts, as in DL4J


@pytest.mark.parametrize("layers", [layers for layers in SEQUENCE_STACKS if layers is not PADDED], ids=titles)
def test_what_is_masked_does_not_matter(layers: tuple[Layer, ...]) -> None:
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


def test_a_frozen_layer_never_changes_and_works_as_if_not_training() -> None:
    net = network(FrozenLayer(conv(drop_out=0.5)), FrozenLayer(BatchNormalization()), output(), l2=0.1, dtype="float32")
    before, x = net.params.copy(), RNG.standard_normal((6, 84), dtype=np.float32)
    y = net.feed_forward(x)[2]
    for iteration in range(3):
        net.fit_batch(x, np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]], iteration=iteration, stream=Stream.of(1))
    frozen = net.layer_slices[1].stop
    np.testing.assert_array_equal(net.params[:frozen], before[:frozen])
    assert (net.params[frozen:] != before[frozen:]).any()
    np.testing.assert_array_equal(net.feed_forward(x)[2], y)
    assert [block.rows for block in net.updater.blocks] == [0, 0]


def test_batch_normalization_keeps_running_statistics_outside_of_every_updater() -> None:
    conf = {"updater": Adam(), "l2": 0.1, "gradient_normalization": "clip_l2_per_layer"}
    net = network(DenseLayer(n_out=4), BatchNormalization(decay=0.75), output(), **conf)
    x = RNG.standard_normal((10, 84))
    means, variances = np.zeros(4), np.ones(4)
    for iteration in range(3):
        z = net.feed_forward(x)[1]
        means, variances = 0.75 * means + 0.25 * z.mean(0), 0.75 * variances + 0.25 * z.var(0)
        net.fit_batch(x, np.eye(3)[np.arange(10) % 3], iteration=iteration, stream=Stream.of(1))
        np.testing.assert_allclose(net.param_table["1_mean"], means)
        np.testing.assert_allclose(net.param_table["1_var"], variances)
    state = sum(span.stop - span.start for span in net.layout.spans if not span.is_state)
    assert net.updater_state.size == 2 * state


def test_batch_normalization_follows_its_formula_on_images_and_vectors() -> None:
    x = RNG.standard_normal((19, 84), dtype=np.float32)
    for kernels in ("numpy", "numba"):
        net = network(BatchNormalization(eps=1e-3), output(), dtype="float32", kernels=kernels)
        images = x.reshape(19, 2, 7, 6)
        net.param_table["0_mean"][...], net.param_table["0_var"][...] = (1, 2), (3, 4)
        net.param_table["0_gamma"][...], net.param_table["0_beta"][...] = (2, 1), (0, 5)
        y = net.feed_forward(images)[1]
        scaled = (images - np.array([1, 2])[:, None, None]) / np.sqrt(np.array([3, 4]) + 1e-3)[:, None, None]
        wanted = scaled * np.array([2, 1])[:, None, None] + np.array([0, 5])[:, None, None]
        np.testing.assert_allclose(y, wanted.reshape(y.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("examples", [1, 16, 21])
def test_compiled_networks_agree_with_numpys_in_everything(examples: int) -> None:
    layers = (
        conv(n_out=5, activation="relu", padding=(1, 1)),
        SubsamplingLayer(kernel_size=(2, 2), stride=(1, 2)),
        BatchNormalization(),
        conv(n_out=4, activation="softplus", convolution_mode="same"),
        LocalResponseNormalization(alpha=0.1),
        DenseLayer(n_out=6),
        output(),
    )
    x = RNG.standard_normal((examples, 84), dtype=np.float32)
    labels = np.eye(3, dtype=np.float32)[np.arange(examples) % 3]
    found = []
    for kernels, dtype in (("numpy", "float64"), ("numba", "float32")):
        net = network(*layers, dtype=dtype, kernels=kernels)
        gradient, score = net.gradient_and_score(x, labels, Stream.of(1))
        found.append((gradient.astype(float), score, net.output(x).astype(float)))
    scale = np.abs(found[0][0]).max()
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-4, atol=1e-5 * scale)
    np.testing.assert_allclose(found[1][2], found[0][2], rtol=1e-5, atol=1e-6)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-5)


@pytest.mark.parametrize("activation", ["relu", "identity"])
@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_pooling_while_convolving_changes_no_bit_of_a_network(
    kernels: str, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = (conv(kernel_size=(2, 2), activation=activation, convolution_mode="same", drop_out=0.8),
              SubsamplingLayer(kernel_size=(2, 2)), conv(kernel_size=(2, 2), activation=activation),
              SubsamplingLayer(kernel_size=(2, 2), stride=(1, 1)), output())  # fmt: skip
    net = network(*layers, dtype="float32", kernels=kernels)
    x, labels = RNG.standard_normal((37, 84), np.float32), np.eye(3, dtype=np.float32)[np.arange(37) % 3]
    found = []
    for at_once in (True, False):
        if not at_once:
            monkeypatch.setattr(stages, "is_pooled", lambda layer, behind: False)
        gradient, score = net.gradient_and_score(x, labels, Stream.of(1))
        found.append((gradient.copy(), score, net.output(x)))
    assert found[0][1] == found[1][1]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][2], found[1][2])


def test_output_does_not_depend_on_the_batch_an_image_is_in() -> None:
    net = network(conv(activation="relu"), SubsamplingLayer(kernel_size=(2, 2)), output(), dtype="float32",
                  kernels="numba")  # fmt: skip
    x = RNG.standard_normal((1030, 84), dtype=np.float32)
    y = net.feed_forward(x)[2]
    np.testing.assert_array_equal(net.feed_forward(x[1000:1003])[2], y[1000:1003])
    assert net.output(x).shape == (1030, 3)
    assert net.output(x[:0]).shape == (0, 3)
    np.testing.assert_array_equal(net.output(x.reshape(-1, 2, 7, 6)), net.output(x))


BAD: list[tuple[Any, str]] = [
    (lambda: network(conv(kernel_size=(8, 1)), output()), r"layer 0 .*kernel height 8 is larger .* height 7"),
    (lambda: network(conv(), conv(kernel_size=(2, 9)), output()), "layer 1 .*kernel width 9 is larger .* width 5"),
    (lambda: network(conv(dilation=(4, 1)), output()), "dilated to 9"),
    (lambda: conv(stride=(1, 0)), "stride is 1x0; it must be at least 1"),
    (lambda: SubsamplingLayer(stride=(0, 1)), "stride is 0x1"),
    (lambda: Convolution1DLayer(stride=0), "stride is 0"),
    (lambda: conv(padding=(-1, 0)), "padding is -1x0"),
    (lambda: conv(kernel_size=(3, 3, 3)), "give 2 whole numbers, or one for all"),
    (lambda: Convolution1DLayer(kernel_size=(3, 1)), "give one whole number"),
    (lambda: conv(convolution_mode="sane"), "did you mean 'same'"),
    (lambda: SubsamplingLayer(pooling_type="agv"), "did you mean 'avg'"),
    (lambda: SubsamplingLayer(pnorm=0), "pnorm is 0"),
    (lambda: conv(convolution_mode="same", padding=(1, 1)), "makes its own"),
    (lambda: network(conv(stride=(3, 1), convolution_mode="strict"), output()), "no multiple of stride 3"),
    (lambda: network(conv(n_in=3), output()), "n_in=3, but what comes in is rows of 2x7x6|n_in=3, but .* 2x7x6"),
    (lambda: network(conv(), DenseLayer(n_in=5, n_out=2), output()), r"layer 1 .*n_in=5, but .* 75; set n_in=75"),
    (lambda: network(conv(n_out=0), output()), "n_out is not set"),
    (lambda: MultiLayerConfiguration(layers=(conv(), output())).resolved(), "set input_type=InputType.conv"),
    (lambda: network(DenseLayer(n_out=4), conv(), output()), "layer 1 .*takes images.*FeedForwardToCnnPreProcessor"),
    (lambda: network(conv(), output(), input_type=SEQUENCES), "RnnToCnnPreProcessor"),
    (lambda: SubsamplingLayer(activation="relu"), "activation has no effect"),
    (lambda: BatchNormalization(l2=0.1), "l2 has no effect"),
    (lambda: BatchNormalization(decay=1.5), "decay is 1.5"),
    (lambda: BatchNormalization(eps=0), "eps is 0"),
    (lambda: LocalResponseNormalization(n=0), "n is 0"),
    (lambda: LocalResponseNormalization(k=0.0), "k=0.0, .*k must be positive"),
    (lambda: LocalResponseNormalization(alpha=-1.0), "alpha=-1.0, .*alpha not negative"),
    (lambda: LocalResponseNormalization(k=float("nan")), "k=nan, .*finite"),
    (lambda: LocalResponseNormalization(beta=float("inf")), "beta=inf; .*finite"),
    (lambda: ZeroPaddingLayer(padding=(1, 0, -1, 0)), "must not be negative"),
    (lambda: network(DenseLayer(n_out=4), LossLayer(n_out=3)), "n_out=3, but what comes in is feed_forward 4"),
    (lambda: CenterLossOutputLayer(loss="sparse_mcxent"), "one-hot"),
    (lambda: CenterLossOutputLayer(alpha=2.0), "alpha=2.0"),
    (lambda: InputType.convolutional(0, 3, 1), "height is 0"),
]


@pytest.mark.parametrize(("build", "message"), BAD, ids=[message for _, message in BAD])
def test_what_can_never_work_is_refused_before_training(build: Any, message: str) -> None:
    with pytest.raises(ConfError, match=message):
        build()


def test_batches_that_do_not_fit_are_refused_with_the_layer() -> None:
    net, labels = network(conv(), output()), np.eye(3)[[0, 1, 2]]
    for x in (np.zeros((3, 83)), np.zeros((3, 2, 6, 7, 1)), np.zeros(85)):
        with pytest.raises(ShapeError, match=r"layer 0 \(convolution\) takes rows of 2x7x6 images"):
            net.fit_batch(x, labels, iteration=0, stream=Stream.of(1))
    with pytest.raises(DataError, match="a batch has 1 examples and 3 labels"):
        net.fit_batch(np.zeros(84), labels, iteration=0, stream=Stream.of(1))
    with pytest.raises(ShapeError, match=r"labels have shape \(3, 4\).*wants \(3, 3\)"):
        net.fit_batch(np.zeros((3, 84)), np.zeros((3, 4)), iteration=0, stream=Stream.of(1))
    sequences = network(
        Convolution1DLayer(n_out=2, kernel_size=9), GlobalPoolingLayer(), output(), input_type=SEQUENCES
    )
    with pytest.raises(ShapeError, match=r"layer 0 \(convolution1d\): kernel length 9 is larger .* length 4"):
        sequences.output(np.zeros((3, 3, 4)))
    with pytest.raises(ShapeError, match=r"features mask has shape \(3, 8\).*expected \(3, 9\)"):
        sequences.output(np.zeros((3, 3, 9)), np.ones((3, 8)))


@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_window_that_could_lie_wholly_in_the_padding_is_refused(kernel: int, more: int) -> None:
    around = kernel + more
    for build in (
        lambda: SubsamplingLayer(kernel_size=(kernel, 9), padding=(around, 0)),
        lambda: SubsamplingLayer(kernel_size=(9, kernel), padding=(0, around)),
        lambda: Subsampling1DLayer(kernel_size=kernel, padding=around),
    ):
        with pytest.raises(ConfError, match="wholly in the padding"):
            build()


@pytest.mark.parametrize("mode", ["truncate", "same"])
@pytest.mark.parametrize("kind", ["max", "avg", "sum", "pnorm"])
def test_every_window_of_pooling_meets_a_value(kind: str, mode: str) -> None:
    for size, kernel, stride in itertools.product((1, 2, 3, 7), (1, 2, 3, 4), (1, 2, 3, 5)):
        for pad in range(kernel if mode == "truncate" else 1):
            if size + 2 * pad < kernel and mode == "truncate":
                continue
            fields = {"pooling_type": kind, "convolution_mode": mode}
            layer = SubsamplingLayer(kernel_size=(kernel, 1), stride=(stride, 1), padding=(pad, 0), **fields)
            window = image_windows(layer, (size, 1))[0]
            seen = window.unfold(np.ones((size, 1, 1)))[:, 0, :, 0]
            assert (seen.sum(axis=1) >= 1).all(), (size, kernel, stride, pad)
            net = network(layer, output(), input_type=InputType.convolutional(size, 1, 1), dtype="float32")
            assert np.isfinite(net.feed_forward(np.ones((3, 1, size, 1), np.float32))[1]).all()
