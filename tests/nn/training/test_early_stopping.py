"""Early stopping: every condition, calculator and saver, for stacks and graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, ListDataSetIterator, load
from dl4jlegacy.errors import ConfError, ModelError
from dl4jlegacy.nn.conf.network import GraphBuilder, MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.fitting.early_stopping import (
    BestScoreEpochTerminationCondition,
    EarlyStoppingConfiguration,
    EarlyStoppingResult,
    EarlyStoppingTrainer,
    InvalidScoreIterationTerminationCondition,
    MaxEpochsTerminationCondition,
    MaxScoreIterationTerminationCondition,
    MaxTimeIterationTerminationCondition,
    ScoreImprovementEpochTerminationCondition,
    TerminationReason,
)
from dl4jlegacy.nn.fitting.model_savers import InMemoryModelSaver, LocalFileModelSaver
from dl4jlegacy.nn.fitting.score_calculators import (
    AutoencoderScoreCalculator,
    ClassificationScoreCalculator,
    DataSetLossCalculator,
    RegressionScoreCalculator,
    ROCScoreCalculator,
)
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.nn.optimization.updaters import Adam, Sgd

EPOCH, ITERATION = TerminationReason.EPOCH_TERMINATION_CONDITION, TerminationReason.ITERATION_TERMINATION_CONDITION


def stack(rate: float = 0.02, **fields: Any) -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(seed=2, activation="tanh", updater=Adam(learning_rate=rate))
    layers = (DenseLayer(n_in=4, n_out=8), OutputLayer(n_out=3, activation="softmax"))
    return MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers, **fields))


def graph() -> ComputationGraph:
    b = GraphBuilder(NeuralNetConfiguration(seed=2, activation="tanh", updater=Adam(learning_rate=0.02)))
    b.add_inputs("in").add_layer("a", DenseLayer(n_in=4, n_out=8), "in")
    return ComputationGraph(b.add_layer("o", OutputLayer(n_out=3, activation="softmax"), "a").set_outputs("o").build())


def iris() -> tuple[DataSet, DataSet]:
    data = load("iris")
    return data.train, data.test


def run(network: Network, **fields: Any) -> EarlyStoppingResult:
    train, test = iris()
    fields.setdefault("score_calculator", DataSetLossCalculator(test))
    return EarlyStoppingTrainer(EarlyStoppingConfiguration(**fields), network, ListDataSetIterator(train, 16)).fit()


class Scripted:
    """A calculator that answers from a list."""

    def __init__(self, *scores: float, minimize: bool = True) -> None:
        self._scores = iter(scores)
        self.minimize_score = minimize

    def calculate_score(self, network: Network) -> float:
        return next(self._scores)


@pytest.mark.parametrize("make", [stack, graph])
def test_the_best_model_is_kept_while_the_network_trains_on(make: Callable[[], Network]) -> None:
    network = make()
    scores = (3.0, 1.0, 2.0, 1.0)
    kept: list[np.ndarray] = []

    class Listener:
        def on_start(self, configuration: Any, network: Network) -> None:
            assert configuration.evaluate_every_n_epochs == 1

        def on_epoch(self, epoch: int, score: float, configuration: Any, network: Network) -> None:
            assert score == scores[epoch]
            kept.append(network.params.copy())

        def on_completion(self, result: EarlyStoppingResult) -> None:
            assert result.best_epoch == 1

    conf = EarlyStoppingConfiguration((MaxEpochsTerminationCondition(4),), score_calculator=Scripted(*scores))
    result = EarlyStoppingTrainer(conf, network, iris()[0], Listener()).fit()
    assert (result.reason, result.total_epochs, result.best_score) == (EPOCH, 4, 1.0)
    assert result.score_vs_epoch == dict(enumerate(scores))
    assert result.best_model is not None
    np.testing.assert_array_equal(result.best_model.params, kept[1])
    np.testing.assert_array_equal(network.params, kept[3])
    assert not network.listeners


@pytest.mark.parametrize("make", [stack, graph])
def test_a_stack_and_a_graph_learn_iris_until_nothing_gets_better(make: Callable[[], Network]) -> None:
    conditions = (ScoreImprovementEpochTerminationCondition(5, 1e-3), MaxEpochsTerminationCondition(200))
    result = run(make(), epoch_termination_conditions=conditions)
    assert result.reason is EPOCH and "ScoreImprovement" in result.details
    assert result.best_model is not None
    assert result.best_model.evaluate(iris()[1]).accuracy() > 0.9
    assert result.best_score == min(result.score_vs_epoch.values())


def test_epochs_that_are_not_evaluated_count_and_the_last_one_is() -> None:
    result = run(stack(), epoch_termination_conditions=(MaxEpochsTerminationCondition(6),), evaluate_every_n_epochs=4)
    assert list(result.score_vs_epoch) == [0, 4, 5]
    assert result.total_epochs == 6


def test_epoch_conditions_look_at_the_score() -> None:
    result = run(
        stack(),
        epoch_termination_conditions=(BestScoreEpochTerminationCondition(0.5),),
        score_calculator=Scripted(0.9, 0.5, 0.4, 0.1),
    )
    assert (result.total_epochs, result.best_epoch) == (3, 2)
    result = run(
        stack(),
        epoch_termination_conditions=(BestScoreEpochTerminationCondition(0.5),),
        score_calculator=Scripted(0.3, 0.6, minimize=False),
    )
    assert (result.total_epochs, result.best_score) == (2, 0.6)
    condition = ScoreImprovementEpochTerminationCondition(2, 0.1)
    for minimize, sign in ((True, 1), (False, -1)):
        condition.initialize()
        answers = [condition.terminate(i, sign * s, minimize=minimize) for i, s in enumerate((5.0, 4.0, 3.95, 3.95))]
        assert answers == [False, False, False, True]


def test_iteration_conditions_stop_in_the_middle_of_an_epoch() -> None:
    times = iter(range(100))
    condition = MaxTimeIterationTerminationCondition(5, clock=lambda: float(next(times)))
    result = run(stack(), iteration_termination_conditions=(condition,))
    assert (result.reason, result.total_epochs, result.best_epoch, result.best_model) == (ITERATION, 0, -1, None)
    assert math.isnan(result.best_score)
    result = run(stack(), iteration_termination_conditions=(MaxScoreIterationTerminationCondition(0.01),))
    assert result.reason is ITERATION and "max_score=0.01" in result.details


def diverging() -> MultiLayerNetwork:
    conf = NeuralNetConfiguration(seed=2, activation="identity", updater=Sgd(learning_rate=1e12))
    layers = (DenseLayer(n_in=4, n_out=8), OutputLayer(n_out=3, activation="identity", loss="mse"))
    return MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers))


def test_a_score_that_is_not_finite_is_an_error_or_a_condition() -> None:
    most = (MaxEpochsTerminationCondition(50),)
    result = run(diverging(), epoch_termination_conditions=most)
    assert result.reason is TerminationReason.ERROR
    assert "NotFiniteError" in result.details and result.error is not None
    invalid = (InvalidScoreIterationTerminationCondition(),)
    result = run(diverging(), epoch_termination_conditions=most, iteration_termination_conditions=invalid)
    assert result.reason is ITERATION and "nan" in result.details


@pytest.mark.parametrize("make", [stack, graph])
def test_files_hold_the_best_and_the_newest_model(make: Callable[[], Network], tmp_path: Path) -> None:
    network, saver = make(), LocalFileModelSaver(tmp_path / "models")
    assert saver.best_model() is None
    result = run(
        network,
        epoch_termination_conditions=(MaxEpochsTerminationCondition(3),),
        score_calculator=Scripted(1.0, 0.5, 0.7),
        model_saver=saver,
        save_last_model=True,
    )
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["bestModel.zip", "latestModel.zip"]
    latest = LocalFileModelSaver(tmp_path / "models").latest_model()
    assert latest is not None and result.best_model is not None
    np.testing.assert_array_equal(latest.params, network.params)
    assert type(result.best_model) is type(network)
    assert not np.array_equal(result.best_model.params, network.params)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be made"):
        LocalFileModelSaver(tmp_path / "file" / "folder")


def test_without_a_calculator_the_training_score_counts() -> None:
    saver = InMemoryModelSaver()
    result = run(
        stack(),
        epoch_termination_conditions=(MaxEpochsTerminationCondition(3),),
        score_calculator=None,
        model_saver=saver,
        save_last_model=True,
    )
    assert result.best_score > 0
    assert saver.latest_model() is not None


@pytest.mark.parametrize("make", [stack, graph])
def test_calculators_give_what_the_network_gives(make: Callable[[], Network]) -> None:
    network, (train, test) = make(), iris()
    network.fit(ListDataSetIterator(train, 16), epochs=10)
    whole = DataSetLossCalculator(ListDataSetIterator(test, 7)).calculate_score(network)
    assert whole == pytest.approx(network.score(test), rel=1e-5)
    assert DataSetLossCalculator(test, average=False).calculate_score(network) == pytest.approx(
        whole * test.num_examples, rel=1e-5
    )
    evaluation = network.evaluate(test)
    for metric in ("accuracy", "precision", "recall", "f1", "g_measure", "matthews_correlation"):
        calculator = ClassificationScoreCalculator(metric, test)  # type: ignore[arg-type]
        assert calculator.calculate_score(network) == pytest.approx(getattr(evaluation, metric)())
        assert not calculator.minimize_score
    y = network.output(test.features)
    mse = RegressionScoreCalculator("mse", test)
    assert mse.calculate_score(network) == pytest.approx(((y - test.labels) ** 2).mean(), rel=1e-5)
    assert mse.minimize_score and not RegressionScoreCalculator("r2", test).minimize_score
    for kind in ("binary", "multi_class"):
        for metric in ("auc", "aucpr"):
            assert 0.9 < ROCScoreCalculator(kind, test, metric=metric).calculate_score(network) <= 1  # type: ignore[arg-type]
    two = DataSet(test.features, test.labels[:, :2])
    with pytest.raises(Exception, match=r"\(\d+, 2\).*\(\d+, 3\)"):
        ROCScoreCalculator("roc", two, steps=10).calculate_score(network)


def test_an_autoencoder_is_scored_by_what_it_rebuilds() -> None:
    conf = NeuralNetConfiguration(seed=2, updater=Adam(learning_rate=0.05))
    layers = (AutoEncoder(n_in=4, n_out=3), AutoEncoder(n_out=2), OutputLayer(n_out=3, activation="softmax"))
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers, pretrain=True))
    train = iris()[0]
    for layer in (0, 1):
        calculator = AutoencoderScoreCalculator("mse", train, layer=layer)
        before = calculator.calculate_score(network)
        below = train.features if layer == 0 else network.feed_forward(train.features)[layer]
        rebuilt = network.reconstruct(train.features, layer)
        assert before == pytest.approx(((below - rebuilt) ** 2).mean(), rel=1e-5)
    with pytest.raises(ConfError, match="no pretrain layers"):
        AutoencoderScoreCalculator("mse", train).calculate_score(graph())
    result = run(network, epoch_termination_conditions=(MaxEpochsTerminationCondition(3),))
    assert result.total_epochs == 3
    assert network.pretrain_iterations[0] == network.iteration // 3  # one epoch of pretraining, three of training


def test_what_could_never_end_is_refused() -> None:
    with pytest.raises(ConfError, match="no termination condition"):
        EarlyStoppingConfiguration()
    for make in (
        lambda: MaxEpochsTerminationCondition(0),
        lambda: MaxTimeIterationTerminationCondition(0),
        lambda: ScoreImprovementEpochTerminationCondition(0),
        lambda: EarlyStoppingConfiguration((MaxEpochsTerminationCondition(1),), evaluate_every_n_epochs=0),
    ):
        with pytest.raises(ConfError, match=r"least|positive"):
            make()
    with pytest.raises(ConfError, match=r"unknown 'acuracy'.*accuracy"):
        ClassificationScoreCalculator("acuracy", iris()[0])  # type: ignore[arg-type]
