"""Networks for images: their shapes, that they learn, and that the number of workers does not show."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, DataSource, ListDataSetIterator, NormalizerStandardize
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import AdaGrad, InputType, MultiLayerNetwork, zoo
from dl4jlegacy.nn.fitting.gradient_check import GradientCheckUtil
from dl4jlegacy.scaleout import Conf
from dl4jlegacy.training import prepare as training
from dl4jlegacy.training.run import resolve


def bars(examples: int) -> DataSet:
    """Images of 28 x 28 with a noisy bar at one of four places."""
    rng = np.random.default_rng(5)
    classes = rng.integers(0, 4, examples)
    x = rng.random((examples, 28, 28), dtype=np.float32) * 0.5
    for row, place in enumerate(classes):
        start = rng.integers(0, 6)
        bar = (slice(None), slice(start + 4, start + 8)) if place % 2 else (slice(start + 4, start + 8), slice(None))
        x[row][bar] += 0.3 + 0.4 * (place // 2)
    return DataSet.of_classes(x.reshape(examples, -1), classes, 4)


def test_lenet_is_the_network_of_the_original() -> None:
    conf = zoo.lenet(784, 10)
    shapes = [stage.output_type.shape for stage in conf.stages()]
    assert shapes == [(20, 24, 24), (20, 12, 12), (50, 4, 4), (50, 2, 2), (200,), (10,)]
    assert MultiLayerNetwork(conf).num_params == 20 * 26 + 50 * 501 + 201 * 200 + 2010
    assert conf.conf.l2 == 5e-4
    assert conf.conf.updater == AdaGrad(learning_rate=0.1, epsilon=0.1)
    assert zoo.lenet(3 * 32 * 32, 5).stages()[1].layer_input_type.shape == (20, 28, 28)


def test_images_that_are_too_small_or_none_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"model lenet takes images of at least 18x18, and 64 features .* 8x8"):
        zoo.lenet(64, 10).validate()
    with pytest.raises(ShapeError, match=r"lenet takes square images .* 50 features cannot be such an image"):
        zoo.lenet(50, 10)


@pytest.mark.parametrize("name", ["lenet", pytest.param("alexnet-small", marks=pytest.mark.long)])
@pytest.mark.long
def test_image_networks_learn(name: str) -> None:
    """LeNet with shorter steps than on MNIST: with those of the original it depends on the last bit what is learned."""
    conf = zoo.select(name).build(784, 4)
    if name == "lenet":
        gentle = conf.conf.replace(weight_init="relu", updater=AdaGrad(learning_rate=0.02, epsilon=0.1))
        conf = conf.replace(conf=gentle)
    network = MultiLayerNetwork(conf)
    data = bars(512 if name == "lenet" else 256)
    network.fit(ListDataSetIterator(data, 32), epochs=8 if name == "lenet" else 6)
    assert network.evaluate(data).accuracy() > 0.9


def test_lenet_comes_out_the_same_for_any_number_of_workers() -> None:
    data = DataSource("bars", bars(300), bars(20))
    hashes = set()
    for workers in (1, 2, 3, 4):
        conf = Conf(multi_layer_conf=zoo.lenet(784, 4), workers=workers, jobs_per_round=4, batch_size=20, epochs=1,
                    averaging_frequency=2, run=f"lenet{workers}")  # fmt: skip
        hashes.add(training.train(resolve(conf, training.batches(conf, data)), data).fields["params_sha256"])
    assert len(hashes) == 1


@pytest.mark.parametrize("model", ["lenet", "alexnet-small"])
def test_an_image_that_is_too_small_is_refused_by_the_models_name(model: str) -> None:
    """The advice of a layer, such as a smaller kernel, is nothing that the command line has a flag for."""
    for side in range(1, 30):
        try:
            conf = zoo.ZOO[model].build(side * side, 4)
        except ShapeError as error:
            assert f"model {model} takes images of at least" in str(error) and f"{side}x{side}" in str(error)
            assert side < 18 and model == "lenet"
        else:
            conf.with_sizes(side * side, 4).validate()


SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 200, 300), (1, 1, 100), (1, 700, 1), (3, 1, 1), (1, 2, 5)]


@pytest.mark.parametrize("image", SHAPES, ids=str)
def test_a_cnn_fits_images_of_any_size(image: tuple[int, int, int]) -> None:
    channels, height, width = image
    conf = zoo.cnn(channels * height * width, 5, image=image)
    assert conf.input_type == InputType.convolutional_flat(height, width, channels)
    conf.with_sizes(channels * height * width, 5).validate()
    network = MultiLayerNetwork(conf)
    assert conf.stages()[-3].output_type.shape[0] == 64
    assert int(np.prod(conf.stages()[-3].output_type.shape[1:])) <= 64
    assert network.num_params < 600_000  # also of photographs
    if height * width < 1000:
        x = np.random.default_rng(1).random((2, channels * height * width), np.float32)
        np.testing.assert_allclose(network.output(x).sum(axis=1), 1, rtol=1e-5)


def test_a_cnn_of_mnist_is_this_one() -> None:
    conf = zoo.cnn(784, 10)
    pooled = [(16, 28, 28), (16, 14, 14), (32, 14, 14), (32, 7, 7), (64, 7, 7), (64, 3, 3)]
    assert [stage.output_type.shape for stage in conf.stages()] == [*pooled, (128,), (10,)]
    assert MultiLayerNetwork(conf).num_params == 16 * 10 + 32 * 145 + 64 * 289 + 128 * 577 + 1290
    assert [layer.drop_out for layer in conf.layers[-2:]] == [0.75, 0.75]
    assert conf == zoo.cnn(784, 10, image=(1, 28, 28)) != zoo.cnn(784, 10, image=(1, 14, 56))


@pytest.mark.parametrize("learns", ["classes", "numbers", "labels"])
def test_the_gradient_of_a_cnn_is_the_derivative_of_its_score(learns: str) -> None:
    """On images that are not square, with a side that is not pooled, and one with an odd number of pixels."""
    model, rng = zoo.select("cnn"), np.random.default_rng(3)
    conf = model.build(2 * 3 * 9, 3, image=(2, 3, 9), hidden=(4,), drop_out=0.0, seed=5)
    labels = np.eye(3)[[0, 2, 1, 1]]
    if learns == "numbers":
        conf, labels = zoo.for_regression(model, conf), rng.normal(size=(4, 3))
    elif learns == "labels":
        conf, labels = zoo.for_multi_label(model, conf), np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
    network = MultiLayerNetwork(conf.replace(conf=conf.conf.replace(dtype="float64")), kernels=load("numpy"))
    report = GradientCheckUtil.check_gradients(network, rng.normal(size=(4, 54)), labels.astype(float), max_params=400)
    assert report.passed, report.failures[:3]


def test_a_cnn_learns_photographs_of_any_brightness() -> None:
    """Faint bars on a bright ground: each pixel's share of what differs is small until channels are scaled."""
    shape, data = (3, 14, 20), faint_bars(240)
    normalizer = NormalizerStandardize().fit_channels(data, 3)
    network = MultiLayerNetwork(zoo.cnn(840, 2, image=shape))
    network.fit(ListDataSetIterator(normalizer.transform(data), 16), epochs=4)
    assert network.evaluate(normalizer.transform(faint_bars(100, seed=9))).accuracy() > 0.95


def faint_bars(examples: int, seed: int = 5) -> DataSet:
    """Images of 14 x 20 with a bar in the green, upright or flat."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, examples)
    x = 0.8 + 0.04 * rng.random((examples, 3, 14, 20), dtype=np.float32)
    for row, upright in enumerate(classes):
        start = rng.integers(0, 10)
        bar = (slice(None), slice(start, start + 3)) if upright else (slice(start, start + 3), slice(None))
        x[row, 1][bar] += 0.04
    return DataSet.of_classes(x.reshape(examples, -1), classes, 2)
