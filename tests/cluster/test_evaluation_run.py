"""An evaluation that is shared out is that of one thread, bit for bit, whoever does what and whatever fails."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import DataSet, InputType, ListDataSetIterator
from dl4jlegacy.cli import main
from dl4jlegacy.datasets import ListMultiDataSetIterator, MultiDataSet
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.errors import ConfError, JobError, NotFiniteError, ShapeError
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.models.model import TrainedModel, evaluate_network, with_features_as_labels
from dl4jlegacy.nn import (
    LSTM,
    ROC,
    BatchNormalization,
    DenseLayer,
    Evaluation,
    EvaluationBinary,
    EvaluationCalibration,
    MultiLayerNetwork,
    NeuralNetConfiguration,
    OutputLayer,
    RegressionEvaluation,
    RnnOutputLayer,
    ROCBinary,
    ROCMultiClass,
    write_model,
    zoo,
)
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import GraphBuilder, MultiLayerConfiguration
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training import evaluation_run
from dl4jlegacy.training.evaluation_run import EvaluationPerformer, evaluate_with_workers
from dl4jlegacy.training.prediction_run import ScoringRun

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
    "sparse rows": lambda: (mlp(), DataSet(SparseFeatures.of(examples().features), examples().labels)),
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


def every_kind(n_out: int) -> list[Any]:
    """Return evaluations, two of a kind among them, and one that has data already."""
    used = RegressionEvaluation([f"column {i}" for i in range(n_out)])
    used.eval(np.eye(n_out), np.full((n_out, n_out), 0.25))
    own = [ROC(), ROC(20)] if n_out == 2 else [ROCMultiClass(30), ROCBinary(10)]
    return [*own, ROCMultiClass(), Evaluation(top_n=2), EvaluationCalibration(), EvaluationBinary(roc_steps=0), used]


@pytest.mark.parametrize("case", ["layers", "float64", "a graph", "sequences of different lengths", "one iterator"])
@pytest.mark.everyday(2)
def test_evaluations_beside_each_other_are_those_of_one_process(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, in one pass over the data, however many workers there are; each job fails once."""
    passes, scored = list[int](), MultiLayerNetwork.scored_output
    monkeypatch.setattr(MultiLayerNetwork, "scored_output", lambda *a: passes.append(1) or scored(*a))
    network, data = CASES["layers" if case == "one iterator" else case]()
    batches = list(data.batch_by(ROWS))
    if case == "one iterator":
        data = ListDataSetIterator(data, 300, shuffle=False)
        batches = list(data)
    expected = every_kind(network.n_out)
    with one_thread():
        for evaluation in expected:
            network.evaluate(batches, evaluation)
    rows, size = (data.dataset, 300) if case == "one iterator" else (data, ROWS)
    loss = evaluate_network(network, rows, NAMES, batch_size=size).loss
    for workers, most_jobs in ((1, 256), (2, 2), (3, 256)):
        monkeypatch.setattr(evaluation_run, "_MOST_JOBS", most_jobs)
        found = every_kind(network.n_out)
        passes.clear()
        with monkeypatch.context() as patch:
            failed = fail_each_job_once(patch)
            whole = evaluate_with_workers(network, data, NAMES, workers=workers, evaluations=found)
        assert [one.to_dict() for one in found] == [one.to_dict() for one in expected]
        assert whole.loss.hex() == loss.hex()
        assert len(failed) == min(most_jobs, len(batches))
        if case != "a graph":
            assert len(passes) == 2 * len(batches) + 1  # each job twice, and one example beforehand


def test_a_graph_of_two_inputs_is_evaluated_and_scored_by_its_first_output() -> None:
    builder = GraphBuilder(NeuralNetConfiguration(seed=2)).add_inputs("a", "b")
    builder.set_input_types(InputType.feed_forward(4), InputType.feed_forward(2))
    builder.add_layer("out", OutputLayer(n_out=3), "a", "b").add_layer("other", OutputLayer(n_out=2), "b")
    network, data = build_network(builder.set_outputs("out", "other").build()), examples()
    other = np.eye(2)[(data.classes > 1).astype(int)]
    several = MultiDataSet((data.features[:, :4], data.features[:, 4:]), (data.labels, other))
    in_one = ListMultiDataSetIterator(several, ROWS, shuffle=False)
    with one_thread():
        expected = network.evaluate(in_one, ROCMultiClass()).to_dict()
        losses = network.score_examples(in_one)
    for given in (several, in_one):
        roc = ROCMultiClass()
        whole = evaluate_with_workers(network, given, NAMES, workers=2, evaluations=[roc])
        assert roc.to_dict() == expected and whole.classification.examples == COUNT
        scoring = ScoringRun(TrainedModel(network), given)
        run = scoring.resolve(Conf(workers=2), workers=2)
        found = np.concatenate(list(scoring.found(lambda scoring=scoring, run=run: scoring.perform(run))))
        assert found.tobytes() == losses.tobytes()
    for refuse in (ScoringRun, lambda model, given: evaluate_with_workers(model.network, given, NAMES, workers=1)):
        with pytest.raises(ConfError, match="takes DataSets"):
            refuse(TrainedModel(mlp()), several)


class OwnRoc(ROC):
    """A user's own."""


ONE = ROCMultiClass()
WRONG = {
    "of too few columns": ([Evaluation(), ROC()], ShapeError, "evaluation 2 of 2, ROC, does not fit .* 3 columns"),
    "of other classes": ([Evaluation(5)], ShapeError, "Evaluation, does not fit .* counts 5 classes"),
    "with data of other columns": ([every_kind(2)[-1]], ShapeError, "RegressionEvaluation, does not fit"),
    "the same twice": ([ONE, Evaluation(), ONE], ConfError, "evaluation 3 of 3, ROCMultiClass, is given twice"),
    "of a class of one's own": ([OwnRoc()], ConfError, "OwnRoc, is of no kind that other processes know: give"),
    "a class": ([ROCMultiClass], ConfError, r"know: give ROCMultiClass\(\)"),
    "a name": (["roc"], ConfError, "evaluation 1 of 1, str, is of no kind"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_evaluation_that_cannot_be_shared_out_is_named_before_anything_runs(case, monkeypatch) -> None:
    monkeypatch.setattr(evaluation_run.EvaluationRun, "lead", lambda *a, **k: pytest.fail("it was run"))
    evaluations, kind, text = WRONG[case]
    with pytest.raises(kind, match=text):
        evaluate_with_workers(mlp(), examples(), NAMES, workers=1, evaluations=evaluations)


def test_what_was_only_pretrained_has_no_outputs_to_evaluate() -> None:
    with pytest.raises(ConfError, match="only pretrained"):
        evaluate_with_workers(*CASES["pretrained only"](), (), workers=1, evaluations=[ROCMultiClass()])


def test_a_run_that_fails_leaves_the_evaluations_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, job: Any) -> Any:
        raise OSError("no")

    monkeypatch.setattr(EvaluationPerformer, "perform", wrong)
    evaluation = Evaluation(3)
    with pytest.raises(JobError, match="OSError: no"):
        evaluate_with_workers(mlp(), examples(), NAMES, workers=1, evaluations=[evaluation])
    assert not evaluation.examples


def fail_each_job_once(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    failed, perform = set(), EvaluationPerformer.perform

    def fails_first(self: EvaluationPerformer, job: Any) -> Any:
        if job.slot not in failed:
            failed.add(job.slot)
            perform(self, job)
            raise OSError("the worker is gone")
        return perform(self, job)

    monkeypatch.setattr(EvaluationPerformer, "perform", fails_first)
    return failed


def test_a_job_that_fails_once_is_done_again_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, network = fail_each_job_once(monkeypatch), mlp()
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
