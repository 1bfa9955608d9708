"""``ClusterInference`` by its arguments: what it is given, and in which units it answers; the run itself is here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ClusterInference, DataSet, ListDataSetIterator, NormalizerStandardize, TrainedModel
from dl4jlegacy.cluster import shared_inference as inference
from dl4jlegacy.cluster.leadership import MasterOptions
from dl4jlegacy.datasets import Reading, load
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import ConfError, DataError, ShapeError, UsageError
from dl4jlegacy.models.model import evaluate_model
from dl4jlegacy.models.prediction import predict_blocks, rows_in
from dl4jlegacy.nn import (
    DenseLayer,
    EvaluationBinary,
    MultiLayerConfiguration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RegressionEvaluation,
)

WHERE = {"tracker": "hazelcast://127.0.0.1:1", "zookeeper": "127.0.0.1:1", "progress": False}


@pytest.fixture
def led_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lead each run in this process, without servers; return the runs' names."""
    runs: list[str] = []

    class Led:
        tracker = monitor = None
        tick = staticmethod(lambda status: None)

        def __init__(self, run: Any) -> None:
            self.run = run

    @contextlib.contextmanager
    def leading(run: Any, address: Any, options: MasterOptions) -> Iterator[Led]:
        assert (address.zookeeper, address.id, options.bind) == ("127.0.0.1:1", "master", "127.0.0.1")
        runs.append(run.conf.run.partition("-")[0])
        yield Led(run)

    monkeypatch.setattr(inference, "_leading", leading)
    return runs


def network(n_out: int = 2, activation: str = "softmax", loss: str = "mcxent") -> MultiLayerNetwork:
    layers = (DenseLayer(n_in=3, n_out=4), OutputLayer(n_out=n_out, activation=activation, loss=loss))
    return MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=2), layers=layers))


def rows(count: int = 2500) -> DataSet:
    rng = np.random.default_rng(3)
    features = rng.normal(50, 9, (count, 3)).astype(np.float32)
    return DataSet.of_classes(features, features[:, 0] > 50, 2)


def test_whatever_the_examples_come_in_is_scaled_and_answered_alike(led_here: list[str]) -> None:
    data = rows()
    model = TrainedModel(network(), Reading(normalizer=NormalizerStandardize().fit(data), label_names=("no", "yes")))
    ours = ClusterInference(model, workers=2, **WHERE)
    batches = list(data.batch_by(1024))
    outputs = np.concatenate([model.answer(batch.features) for batch in batches])
    given = (data.features, data.features.tolist(), [b.features for b in batches], (b.features for b in batches))
    for features in given:
        assert ours.output(features).tobytes() == outputs.tobytes()
    assert ours.predict(data.features).tolist() == outputs.argmax(axis=1).tolist()
    expected = model.network.evaluate([model.normalize(batch) for batch in batches])
    losses = np.concatenate([model.network.score_examples(model.normalize(batch)) for batch in batches])
    for examples in (data, ListDataSetIterator(data, 1024, shuffle=False), batches, iter(batches)):
        found = ours.evaluate(examples, binary := EvaluationBinary())
        assert found.classification.confusion.tolist() == expected.confusion.tolist()
        assert found.classification.label_names == ("no", "yes") and binary.total_count(0) == len(data)
    assert ours.score_examples(batches).tobytes() == losses.tobytes()
    assert led_here == ["predict"] * 5 + ["evaluate"] * 4 + ["predict"]


@pytest.mark.parametrize("logged", [(), ("y",)])
def test_a_file_is_answered_and_numbers_are_in_the_units_of_their_column(
    tmp_path: Path, led_here: list[str], logged: tuple[str, ...]
) -> None:
    values = np.random.default_rng(3).normal(500, 90, (300, 4)).round(2)
    np.savetxt(tmp_path / "d.csv", values, "%g", ",", header="a,b,c,y", comments="")
    np.savetxt(tmp_path / "rows.csv", values[:, :3], "%g", ",", header="a,b,c", comments="")
    columns = tuple(map(Column, "abcy"))
    schema = TransformProcess(columns=columns, label="y", regression=True, label_log=logged)
    source = load(tmp_path / "d.csv", reading=Reading(transform=schema))
    scale = NormalizerStandardize().fit(source.train)
    model = TrainedModel(
        network(1, "identity", "mse"), Reading(normalizer=scale, label_names=("y",), transform=source.reading.transform)
    )
    ours = ClusterInference(model, workers=1, **WHERE)
    expected = evaluate_model(model, str(tmp_path / "d.csv"))[0]
    found = ours.evaluate(source.test, numbers := RegressionEvaluation())
    assert numbers.to_dict() == found.regression.to_dict() == expected.regression.to_dict()
    assert numbers.columns == ("y",) and 50 < numbers.rmse(0) < 400
    [alone] = predict_blocks([model.answer], rows_in(model, str(tmp_path / "rows.csv"))[0])
    assert ours.output(tmp_path / "rows.csv").tobytes() == alone.outputs.tobytes()


def test_wrong_arguments_are_told_before_a_run_begins(led_here: list[str]) -> None:
    ours, data = ClusterInference(network(), workers=1, **WHERE), rows(5)
    wrong = (
        (lambda: ClusterInference(network(), tracker="memory", zookeeper="127.0.0.1:1"), UsageError, "tracker memory"),
        (lambda: ClusterInference(network(), tracker=WHERE["tracker"], zookeeper="here"), UsageError, "here"),
        (lambda: ours.evaluate(data.features), DataError, "the examples are ndarray; give a DataSet"),
        (lambda: ours.evaluate([]), DataError, "the examples are list"),
        (lambda: ours.evaluate(iter([])), DataError, "no batch"),
        (lambda: ours.evaluate(data, RegressionEvaluation), ConfError, r"give RegressionEvaluation\(\)"),
        (lambda: ours.output(data.features[:, :2]), ShapeError, "takes 3 features, the given data has 2"),
        (lambda: ours.output([data.features, data.features[:, :2]]), ShapeError, "takes 3 features, block 1 has 2"),
        (lambda: ours.predict(iter([])), DataError, "no rows to answer"),
        (lambda: ours.predict("none.csv"), DataError, "none.csv"),
        (lambda: ours.score_examples(data.rows(0, 0)), DataError, "no examples"),
    )
    for call, kind, text in wrong:
        with pytest.raises(kind, match=text):
            call()
    assert not led_here
