"""Labels of another shape than the outputs, such as class numbers: in every evaluation as the one-hot ones they are."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf
from dl4jlegacy.cli import main
from dl4jlegacy.datasets import DataSet, ListDataSetIterator, read_iris
from dl4jlegacy.models.model import evaluate_network
from dl4jlegacy.nn import (
    LSTM,
    ClassificationScoreCalculator,
    DenseLayer,
    Evaluation,
    EvaluationCalibration,
    InputType,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
    OutputLayer,
    RegressionEvaluation,
    RnnOutputLayer,
    ROCMultiClass,
    ROCScoreCalculator,
    write_model,
)
from dl4jlegacy.nn.class_weights import class_counts
from dl4jlegacy.nn.conf.network import GraphBuilder
from dl4jlegacy.nn.evaluation.evaluate import do_evaluation
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.scaleout.scoring import EarlyStopping, ValidationConf
from dl4jlegacy.training.evaluation_run import evaluate_with_workers

RNG = np.random.default_rng(3)
ROWS, CLASSES = RNG.standard_normal((40, 4), np.float32), np.arange(40) % 3
STEPS, CLASS_OF_STEP = RNG.standard_normal((12, 4, 5), np.float32), RNG.integers(0, 3, (12, 5))
MASK = (np.arange(5) < RNG.integers(1, 6, (12, 1))).astype(np.float32)
NAMES = ("a", "b", "c")


def layers(loss: str) -> Network:
    of_rows = (DenseLayer(n_out=6), OutputLayer(n_out=3, loss=loss, activation="softmax"))
    conf = NeuralNetConfiguration(seed=4, activation="tanh")
    return build_network(MultiLayerConfiguration(conf=conf, layers=of_rows, input_type=InputType.feed_forward(4)))


def graph(loss: str) -> Network:
    b = GraphBuilder(NeuralNetConfiguration(seed=4, activation="tanh")).add_inputs("rows")
    b.set_input_types(InputType.feed_forward(4)).add_layer("below", DenseLayer(n_out=6), "rows")
    b.add_layer("out", OutputLayer(n_out=3, loss=loss, activation="softmax"), "below")
    return build_network(b.set_outputs("out").build())


def steps(loss: str) -> Network:
    of_steps = (LSTM(n_out=5), RnnOutputLayer(n_out=3, loss=loss, activation="softmax"))
    conf = NeuralNetConfiguration(seed=4, activation="tanh")
    return build_network(MultiLayerConfiguration(conf=conf, layers=of_steps, input_type=InputType.recurrent(4)))


class Case(NamedTuple):
    """A network, and its examples with class numbers and with one-hot labels."""

    network: Network
    numbers: DataSet
    one_hot: DataSet


def case_of(name: str) -> Case:
    made, loss = name.split(" with ")
    network = {"layers": layers, "graph": graph, "steps": steps}[made](loss)
    if made == "steps":
        one_hot = np.eye(3, dtype=np.float32)[CLASS_OF_STEP].transpose(0, 2, 1)
        return Case(network, DataSet(STEPS, CLASS_OF_STEP[:, None], MASK, MASK), DataSet(STEPS, one_hot, MASK, MASK))
    return Case(network, DataSet(ROWS, CLASSES[:, None]), DataSet.of_classes(ROWS, CLASSES, 3))


SPARSE = ["layers with sparse_mcxent", "graph with sparse_mcxent", "steps with sparse_mcxent"]
CASES = [*SPARSE, "layers with mcxent", "graph with negativeloglikelihood"]
"""The last two take class numbers in ``fit``, too."""


@pytest.mark.parametrize("name", CASES)
def test_class_numbers_are_evaluated_as_the_one_hot_labels_that_they_are(name: str) -> None:
    network, numbers, one_hot = case_of(name)
    network.fit(numbers)
    wanted = Evaluation(3)
    for batch in one_hot.batch_by(7):
        wanted.eval(batch.labels, network.output(batch.features, batch.features_mask), batch.labels_mask)
    assert wanted.accuracy() > 0
    for data in (numbers, one_hot, ListDataSetIterator(numbers, 7), list(numbers.batch_by(7))):
        assert network.evaluate(data).confusion.tolist() == wanted.confusion.tolist()
        assert ClassificationScoreCalculator("accuracy", data).calculate_score(network) == wanted.accuracy()
    if one_hot.labels.ndim == 2:
        assert network.evaluate(ROWS, CLASSES).confusion.tolist() == wanted.confusion.tolist()
    for kind in (ROCMultiClass, RegressionEvaluation, EvaluationCalibration):
        found = [network.evaluate(ListDataSetIterator(numbers, 40), kind()), kind()]
        do_evaluation(network, ListDataSetIterator(one_hot, 40), found[1])
        assert found[0].to_dict() == found[1].to_dict()
    areas = [ROCScoreCalculator("multi_class", data).calculate_score(network) for data in (numbers, one_hot)]
    assert areas[0] == areas[1]
    np.testing.assert_array_equal(network.score_examples(numbers), network.score_examples(one_hot))
    assert class_counts(numbers, 3).tolist() == class_counts(one_hot, 3).tolist()


@pytest.mark.parametrize("name", CASES)
def test_workers_find_the_same_of_class_numbers(name: str) -> None:
    network, numbers, one_hot = case_of(name)
    wanted = evaluate_network(network, one_hot, NAMES)
    for found in (evaluate_network(network, numbers, NAMES), evaluate_with_workers(network, numbers, NAMES, workers=2)):
        assert found.fields(full=True) == wanted.fields(full=True)


@pytest.mark.parametrize("name", SPARSE)
def test_a_loss_of_class_numbers_learns_from_one_hot_labels_the_same_bits(name: str) -> None:
    trained = []
    for labels in ("numbers", "one_hot"):
        case = case_of(name)
        case.network.fit(getattr(case, labels))
        trained.append(np.array(case.network.params))
    np.testing.assert_array_equal(*trained)


@pytest.mark.parametrize("name", SPARSE)
def test_a_run_is_validated_and_stopped_early_on_class_numbers(name: str) -> None:
    results = []
    for labels in ("numbers", "one_hot"):
        case = case_of(name)
        data: Any = getattr(case, labels)
        kind = "computation_graph_conf" if name.startswith("graph") else "multi_layer_conf"
        stopping = EarlyStopping(epochs_without_improvement=3)
        with ActorNetworkRunner("master", ListDataSetIterator(data, 8), validation=data) as runner:
            runner.setup(
                Conf(
                    **{kind: case.network.conf},
                    workers=2,
                    epochs=2,
                    validation=ValidationConf(metric="accuracy"),
                    early_stopping=stopping,
                )
            )
            results.append(runner.train())
    assert results[0].best is not None and results[0].best.score == results[1].best.score > 0


@pytest.mark.parametrize("kind", ["zip", "keras"])
def test_the_command_evaluates_models_whose_loss_takes_class_numbers(kind: str, tmp_path: Path, capsys: Any) -> None:
    model = tmp_path / f"m.{kind}"
    if kind == "keras":
        with zipfile.ZipFile(Path(__file__).parents[2] / "data/keras/dense_3.keras") as given:
            members = {name: given.read(name) for name in given.namelist()}
        of_numbers = members["config.json"].replace(b'"categorical_crossentropy"', b'"sparse_categorical_crossentropy"')
        assert of_numbers != members["config.json"]
        with zipfile.ZipFile(model, "w") as made:
            for name, content in {**members, "config.json": of_numbers}.items():
                made.writestr(name, content)
    else:
        write_model(layers("sparse_mcxent"), model)
    words = ("evaluate", str(model), "--dataset", "iris", "--split", "all", "--format", "json")
    said = []
    for more in ((), ("--workers", "2"), ("--scores", str(tmp_path / "scores.csv"))):
        with pytest.raises(SystemExit) as leave:
            main.main([*words, *more])
        assert not leave.value.code
        said.append(json.loads(capsys.readouterr().out))
    assert said[0]["accuracy"] == said[1]["accuracy"] > 0 and said[0]["loss"] == said[1]["loss"]
    scores = np.loadtxt(tmp_path / "scores.csv", delimiter=",", skiprows=1)
    assert len(scores) == len(read_iris()) and scores[:, 1].mean() == pytest.approx(said[0]["loss"])


def test_a_data_set_of_class_numbers_can_be_stratified() -> None:
    train, test = case_of(SPARSE[0]).numbers.split_test_and_train(0.75, seed=1, stratify=True)
    counts = [np.bincount(part.labels[:, 0].astype(int)) for part in (train, test)]
    assert all(np.ptp(each) <= 1 for each in counts)
