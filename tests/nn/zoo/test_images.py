"""LeNet and the small AlexNet: their shapes, that they learn, and that the number of workers does not show."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, DataSource, ListDataSetIterator
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn import AdaGrad, MultiLayerNetwork, zoo
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
