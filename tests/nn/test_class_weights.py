"""Class weights: scikit-learn's, and what they do to the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from dl4jlegacy import ActorNetworkRunner, Conf, ListDataSetIterator, ValidationConf
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.nn import (
    ComputationGraph,
    DenseLayer,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    Sgd,
)
from dl4jlegacy.nn.class_weights import balanced_weights, class_counts, named_weights, weigh_classes
from dl4jlegacy.training.prepare import params_sha256

RNG = np.random.default_rng(5)
CLASSES = RNG.choice(3, 120, p=(0.7, 0.25, 0.05))
DATA = DataSet.of_classes(RNG.normal(size=(120, 4)).astype(np.float32) + CLASSES[:, None], CLASSES, 3)


def network(**output: Any) -> MultiLayerConfiguration:
    return MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=5, updater=Sgd(learning_rate=0.5), activation="tanh"),
        layers=(DenseLayer(n_in=4, n_out=5), OutputLayer(n_out=3, activation="softmax", **output)),
    )


def test_balanced_weights_are_scikit_learns() -> None:
    counts = class_counts(DATA, 3)
    assert counts.tolist() == np.bincount(CLASSES).tolist()
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=CLASSES)
    assert balanced_weights(counts) == tuple(theirs.tolist())
    assert balanced_weights([6, 0, 2]) == (8 / 12, 1.0, 2.0)  # a class without an example is none of k


def test_classes_are_counted_in_any_form_of_their_labels() -> None:
    indices = DataSet(np.zeros((4, 1)), [[0], [2], [2], [1]])
    assert class_counts(indices, 3).tolist() == [1, 1, 2]
    labels = np.zeros((2, 2, 3), np.float32)
    labels[0, 0], labels[1, 1] = 1, 1
    steps = DataSet(np.zeros((2, 1, 3)), labels, labels_mask=[[1, 1, 1], [1, 0, 0]])
    assert class_counts(steps, 2).tolist() == [3, 1]
    with pytest.raises(DataError, match="not one class for each example"):
        class_counts(DataSet(np.zeros((2, 1)), [[0.5, 0.5], [1, 0]]), 2)
    with pytest.raises(DataError, match="no class numbers from 0 to 2"):
        class_counts(DataSet(np.zeros((2, 1)), [[3.0], [1.0]]), 3)


def test_an_example_counts_as_often_as_its_weight_says() -> None:
    """A weight of 2 is the example twice."""
    weighed = MultiLayerNetwork(weigh_classes(network(), (1.0, 2.0, 1.0)).with_sizes(4, 3))
    plain = MultiLayerNetwork(network().with_sizes(4, 3))
    twice = DataSet.merge([DATA, DATA.take(np.flatnonzero(CLASSES == 1))])
    score, repeated = weighed.score(DATA) * len(DATA), plain.score(twice) * len(twice)
    assert score == pytest.approx(repeated, rel=1e-5)
    stream = Stream.of(1)
    gradient = np.array(weighed.gradient_and_score(DATA.features, DATA.labels, stream)[0]) * len(DATA)
    expected = np.array(plain.gradient_and_score(twice.features, twice.labels, stream)[0]) * len(twice)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


def run(workers: int, **fields: Any) -> tuple[Conf, str]:
    iterator = ListDataSetIterator(DATA, 8, seed=9, label_names=("a", "b", "c"))
    usual = {"multi_layer_conf": network(), "epochs": 2, "jobs_per_round": 4, "seed": 9}
    with ActorNetworkRunner("master", iterator) as runner:
        conf = runner.setup(Conf(**(usual | {"workers": workers} | fields)))
        return conf, params_sha256(runner.train(deadline=60, progress=False).model.arrays["params"])


def test_a_run_has_them_in_its_conf_and_ends_alike_for_any_number_of_workers() -> None:
    plain, balanced = run(2), run(2, class_weights="balanced")
    weights = compute_class_weight("balanced", classes=np.arange(3), y=CLASSES)
    assert balanced[0].multi_layer_conf.layers[-1].loss_weights == tuple(weights)
    assert run(1, class_weights="balanced")[1] == run(4, class_weights="balanced")[1] == balanced[1] != plain[1]
    assert Conf.from_json(balanced[0].to_json()).digest() == balanced[0].digest() != plain[0].digest()
    named = run(2, class_weights={"c": 3.0})
    assert named[0].multi_layer_conf.layers[-1].loss_weights == (1.0, 1.0, 3.0)
    given = {name: float(weight) for name, weight in zip("abc", weights, strict=True)}
    assert run(2, class_weights=given)[1] == balanced[1]


def test_those_of_a_validated_run_are_of_what_it_learns_from() -> None:
    conf, _ = run(2, class_weights="balanced", stratify=True, validation=ValidationConf(fraction=0.5))
    counts = np.bincount(CLASSES) - [round(int(n) / 2) for n in np.bincount(CLASSES)]
    assert conf.multi_layer_conf.layers[-1].loss_weights == pytest.approx(balanced_weights(counts), rel=0.1)


def test_a_graph_with_one_output_takes_them_too() -> None:
    conf = (
        NeuralNetConfiguration.builder()
        .graph_builder()
        .add_inputs("in")
        .add_layer("out", OutputLayer(n_in=4, n_out=3, activation="softmax"), "in")
        .set_outputs("out")
        .build()
    )
    weighed = weigh_classes(conf, (1.0, 2.0, 3.0))
    assert ComputationGraph(weighed).score(DATA) > ComputationGraph(conf).score(DATA)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("balance", "give 'balanced', or a weight for each class"),
        ({}, "Conf.class_weights is empty"),
        ({"a": -1.0}, "class 'a' has weight -1.0"),
        ({"a": float("inf")}, "class 'a' has weight inf"),
    ],
)
def test_weights_that_are_none_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ConfError, match=message):
        Conf(class_weights=weights)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfError, match="names 'sold', which is no class of the data; did you mean 'Sold'"):
        named_weights({"sold": 1.0}, ("Sold", "kept"))
    with pytest.raises(ConfError, match="are 0 for all classes"):
        named_weights({"a": 0.0}, ("a",))
    with pytest.raises(ConfError, match="has loss 'mse', in which its weights are those of outputs"):
        run(1, class_weights="balanced", multi_layer_conf=network(loss="mse"))
    with pytest.raises(ConfError, match=r"has loss_weights \(1.0, 1.0, 2.0\), and Conf.class_weights gives"):
        run(1, class_weights="balanced", multi_layer_conf=network(loss_weights=(1.0, 1.0, 2.0)))
