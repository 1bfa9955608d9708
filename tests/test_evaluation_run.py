"""An evaluation that is shared out is that of one thread, bit for bit, whoever does what and whatever fails."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import DataSet, InputType, evaluation_run
from dl4jlegacy.cli import main
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.evaluation_run import EvaluationPerformer, evaluate_with_workers
from dl4jlegacy.inference import evaluate_network, with_features_as_labels
from dl4jlegacy.nn import (
    LSTM,
    BatchNormalization,
    DenseLayer,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RnnOutputLayer,
    write_model,
    zoo,
)
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import GraphBuilder, MultiLayerConfiguration
from dl4jlegacy.nn.networks import Network, build_network

COUNT = 4 * ROWS + 77
NAMES = ("a", "b", "c")


def examples() -> DataSet:
    rng = np.random.default_rng(8)
    return DataSet.of_classes(rng.normal(size=(COUNT, 6)).astype(np.float32), rng.integers(0, 3, COUNT), 3)


def mlp(n_out: int = 3, hidden: str = "tanh", **conf: Any) -> Network:
    layers = (
        DenseLayer(n_in=6, n_out=20, activation=hidden),
        BatchNormalization(n_out=20),
        OutputLayer(n_out=n_out, activation="softmax"),
    )
    return build_network(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=2, **conf), layers=layers))


def graph() -> Network:
    builder = GraphBuilder(NeuralNetConfiguration(seed=2, activation="tanh")).add_inputs("rows")
    builder.set_input_types(InputType.feed_forward(6))
    builder.add_layer("below", DenseLayer(n_out=9), "rows").add_layer("out", OutputLayer(n_out=3), "below")
    return build_network(builder.set_outputs("out").build())


def sequences() -> tuple[Network, DataSet]:
    rng = np.random.default_rng(8)
    features, labels = rng.normal(size=(ROWS + 100, 2, 5)), rng.integers(0, 2, (ROWS + 100, 5))
    mask = (np.arange(5) < rng.integers(1, 6, (ROWS + 100, 1))).astype(np.float32)
    layers = (LSTM(n_in=2, n_out=4), RnnOutputLayer(n_out=2, activation="softmax"))
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=2), layers=layers))
    return network, DataSet(features, np.eye(2)[labels].transpose(0, 2, 1), mask, mask)


def pretrained() -> Network:
    """Two RBMs, nothing else."""
    conf = zoo.select("dbn").build(6, 3, seed=1)
    layers = (*conf.layers[:-1], conf.layers[-1])
    return build_network(MultiLayerConfiguration(conf=conf.conf, layers=layers, pretrain=True, backprop=False))


CASES = {
    "layers": lambda: (mlp(), examples()),
    "float64": lambda: (mlp(dtype="float64"), examples()),
    "a graph": lambda: (graph(), examples()),
    "sequences of different lengths": sequences,
    "its own input": lambda: (mlp(6), with_features_as_labels(examples())),
    "pretrained only": lambda: (pretrained(), with_features_as_labels(examples())),
    "less than one batch": lambda: (mlp(), examples().rows(0, 3)),
}


def same(found: Any, expected: Any) -> None:
    assert found.loss.hex() == expected.loss.hex()
    assert (found.classification is None) == (expected.classification is None)
    if expected.classification is not None:
        assert found.classification.to_dict() == expected.classification.to_dict()


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_workers_finds_what_one_thread_does(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, data = CASES[case]()
    expected = evaluate_network(network, data, NAMES)
    for workers, most_jobs in ((1, 256), (2, 2), (4, 256)):
        monkeypatch.setattr(evaluation_run, "_MOST_JOBS", most_jobs)  # few jobs have several batches each
        same(evaluate_with_workers(network, data, NAMES, workers=workers), expected)


def test_a_job_that_fails_once_is_done_again_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, perform = set(), EvaluationPerformer.perform

    def fails_first(self: EvaluationPerformer, job: Any) -> Any:
        if job.slot not in failed:
            failed.add(job.slot)
            perform(self, job)
            raise OSError("the worker is gone")
        return perform(self, job)

    monkeypatch.setattr(EvaluationPerformer, "perform", fails_first)
    network = mlp()
    same(evaluate_with_workers(network, examples(), NAMES, workers=3), evaluate_network(network, examples(), NAMES))
    assert len(failed) == 5


def test_a_row_whose_loss_is_not_finite_is_named_by_its_place_in_the_data() -> None:
    network, data = mlp(hidden="identity"), examples()
    features = np.array(data.features)
    features[2 * ROWS + 7] = 3e38
    data = DataSet(features, data.labels)
    with pytest.raises(NotFiniteError) as alone:
        evaluate_network(network, data, NAMES)
    with pytest.raises(NotFiniteError) as shared:
        evaluate_with_workers(network, data, NAMES, workers=2)
    assert str(alone.value) in str(shared.value)


def test_the_command_says_the_same_with_workers(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    data = examples()
    write_model(mlp(), "m.zip", label_names=NAMES)
    rows = zip(data.features.tolist(), data.classes.tolist(), strict=True)
    (tmp_path / "d.csv").write_text("".join(f"{','.join(map(str, x))},{NAMES[y]}\n" for x, y in rows))
    said = []
    for words in ((), ("--workers", "1"), ("--workers", "4"), ("--workers", "2", "--format", "text")):
        with pytest.raises(SystemExit) as leave:
            main.main(["evaluate", "m.zip", "--dataset", "d.csv", "--split", "all", "--format", "json", *words])
        assert not leave.value.code
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
    assert json.loads(said[0])["examples"] == COUNT
    assert "Confusion Matrix" in said[3]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("--workers", "0"), 2, "--workers is '0'"),
        (("--tracker", "hazelcast://127.0.0.1:1"), 2, "--zookeeper is missing"),
        (("--zookeeper", "127.0.0.1:1"), 2, "--tracker is missing"),
        (("--tracker", "memory", "--zookeeper", "127.0.0.1:1"), 2, "--tracker memory: give hazelcast://host:port"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_read(words, status, text, capsys) -> None:
    with pytest.raises(SystemExit) as leave:
        main.main(["evaluate", "none.zip", "--dataset", "iris", *words])
    assert leave.value.code == status
    assert text in capsys.readouterr().err


def test_a_cluster_that_is_named_in_the_environment_only_is_not_waited_for(monkeypatch, tmp_path, capsys) -> None:
    """It may be that of the processes of a run."""
    monkeypatch.setenv("DL4J_TRACKER", "hazelcast://127.0.0.1:1")
    monkeypatch.setenv("DL4J_ZOOKEEPER", "127.0.0.1:1")
    network = build_network(zoo.select("mlp").build(4, 3, seed=1))
    write_model(network, tmp_path / "m.zip")
    with pytest.raises(SystemExit) as leave:
        main.main(["evaluate", str(tmp_path / "m.zip"), "--dataset", "iris"])
    assert not leave.value.code and "Accuracy" in capsys.readouterr().out
