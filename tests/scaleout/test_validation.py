"""Runs that are validated and stop early: the same best model and end, whoever works and whatever fails."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil

import msgspec
import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, ConfError, EarlyStopping, ListDataSetIterator, ValidationConf
from dl4jlegacy.datasets import DataSet, MultiDataSet, load
from dl4jlegacy.datasets.normalizers import NormalizerMinMaxScaler
from dl4jlegacy.datasets.validation import in_batches, split_off
from dl4jlegacy.errors import CheckpointError, Dl4jError, NotFiniteError
from dl4jlegacy.models.model import evaluate_network
from dl4jlegacy.nn import DenseLayer, MultiLayerConfiguration, NeuralNetConfiguration, OutputLayer, Sgd
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.scaleout.conf import FREE_FIELDS
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.training.prepare import params_sha256

IRIS = load("iris")
SCALED = NormalizerMinMaxScaler().fit(IRIS.train)
TRAIN, TEST = SCALED.transform(IRIS.train), SCALED.transform(IRIS.test)
NETWORK = MultiLayerConfiguration(
    conf=NeuralNetConfiguration(seed=5, updater=Sgd(learning_rate=2.0)),
    layers=(DenseLayer(n_in=4, n_out=6, activation="relu", drop_out=0.9), OutputLayer(n_out=3, activation="softmax")),
).with_sizes(4, 3)
IN_EIGHTS = ListDataSetIterator(TEST, 8, shuffle=False)
"""More batches than one: small validation data are a single one by default."""
PATIENT = EarlyStopping(epochs_without_improvement=3)


def conf(**fields):
    usual = {"multi_layer_conf": NETWORK, "batch_size": 8, "epochs": 40, "jobs_per_round": 4, "workers": 2, "seed": 9}
    return Conf(**(usual | fields))


def train(conf, validation=IN_EIGHTS, data=TRAIN, **more):
    iterator = ListDataSetIterator(data, conf.batch_size, seed=conf.seed)
    with ActorNetworkRunner("master", iterator, validation=validation, **more) as runner:
        runner.setup(conf)
        return runner.train(deadline=60)


def sha(model):
    return params_sha256(model.arrays["params"])


def end_of(result):
    return result.head.round, result.stopped_by, result.best.round, result.best.score.hex(), sha(result.best_model)


@functools.cache
def patient_run():
    return train(conf(early_stopping=PATIENT))


@pytest.mark.parametrize("workers", [1, 4])
def test_the_end_and_the_best_model_do_not_depend_on_the_number_of_workers(workers):
    two = patient_run()
    assert two.stopped_by.startswith("ScoreImprovementEpochs: loss")
    assert two.head.round < two.plan.total_rounds and two.best.round < two.head.round - 1
    assert (two.batches_lost, two.batches_duplicated) == (0, 0)
    assert sha(two.best_model) != sha(two.model)
    assert end_of(train(conf(early_stopping=PATIENT, workers=workers))) == end_of(two)


def test_the_figures_are_those_of_a_local_evaluation_to_the_last_bit():
    result = patient_run()
    with ActorNetworkRunner("master", ListDataSetIterator(TRAIN, 8), validation=TEST) as runner:
        runner.setup(conf(early_stopping=PATIENT))
        best, newest = runner.network(result, best=True), runner.network(result)
    rows = result.plan.validation.batch_size
    for network, figures in ((best, result.best.figures), (newest, result.validation)):
        local = evaluate_network(network, TEST, IRIS.label_names, batch_size=rows)
        assert figures.loss.hex() == local.loss.hex()
        assert (figures.accuracy, figures.f1) == (local.classification.accuracy(), local.classification.f1())
        assert figures.examples == len(TEST)


@pytest.mark.parametrize("every", [0, 2])
def test_a_validation_changes_nothing_of_the_training(every):
    plain = train(conf(epochs=3), validation=None)
    validated = train(conf(epochs=3, validation=ValidationConf(every_rounds=every)))
    assert plain.best is None and plain.best_model is None and validated.best_model is not None
    assert sha(validated.model) == sha(plain.model)
    assert (validated.head.batches, validated.head.examples) == (plain.head.batches, plain.head.examples)


def test_an_asynchronous_run_is_validated_too_and_counts_every_batch_once():
    result = train(conf(router="hogwild", epochs=4, validation=ValidationConf(metric="accuracy", every_rounds=3)))
    assert (result.head.batches, result.head.examples) == (result.plan.total_batches, result.plan.total_examples)
    with ActorNetworkRunner("master", ListDataSetIterator(TRAIN, 8), validation=TEST) as runner:
        runner.setup(conf(validation=ValidationConf()))
        best = runner.network(result, best=True)
    local = evaluate_network(best, TEST, (), batch_size=result.plan.validation.batch_size)
    assert result.best.figures.loss.hex() == local.loss.hex()


class Copies:
    """Copies the folder of a run as it is right after a version was saved, when its best model is some rounds old."""

    def __init__(self, folder, copy):
        self.folder, self.copy = folder, copy

    def save(self, head, model):
        if head.scores is not None and head.scores.without_improvement == 2 and not self.copy.exists():
            shutil.copytree(self.folder, self.copy)


@pytest.mark.parametrize("validation", [IN_EIGHTS, None], ids=["validated", "training score"])
def test_what_is_resumed_from_its_folder_keeps_best_model_and_patience(tmp_path, validation, unhurried):
    run, kept = tmp_path / "run", tmp_path / "kept"
    wanted = conf(early_stopping=PATIENT, batch_size=16, checkpoint_dir=str(run), checkpoint_every=1)
    whole = train(wanted, validation, saver=Copies(run, kept))
    head, _ = CheckpointStore(kept).newest()
    assert not head.stopped_by and head.best.version < head.version - 1 and head.round < whole.head.round
    iterator = ListDataSetIterator(TRAIN, wanted.batch_size, seed=wanted.seed)
    with ActorNetworkRunner("master", iterator, validation=validation) as runner:  # nothing else is left of it
        runner.setup(wanted.replace(checkpoint_dir=str(kept)), resume=True)
        assert end_of(runner.train(deadline=60)) == end_of(whole)


def test_listeners_are_told_of_trained_models_and_of_no_validation():
    class Listener:
        def iteration_done(self, network, iteration, score, *, examples=0):
            told.append(examples)

    told = []
    result = train(conf(epochs=2, validation=ValidationConf(every_rounds=1)), listeners=[Listener()])
    assert len(told) == 2 * result.plan.rounds_per_epoch and sum(told) == result.head.examples


def test_a_run_that_has_stopped_says_the_same_when_it_is_resumed(tmp_path):
    wanted = conf(early_stopping=PATIENT, batch_size=16, checkpoint_dir=str(tmp_path))
    stopped = train(wanted)
    iterator = ListDataSetIterator(TRAIN, wanted.batch_size, seed=wanted.seed)
    with ActorNetworkRunner("master", iterator, validation=IN_EIGHTS) as runner:
        runner.setup(wanted, resume=True)
        assert end_of(runner.train(deadline=60)) == end_of(stopped)
    assert stopped.stopped_by


def test_a_run_stops_by_the_seconds_that_its_head_has_counted(tmp_path):
    wanted = conf(epochs=20_000, checkpoint_dir=str(tmp_path), checkpoint_every=50, validation=ValidationConf())
    first = train(wanted.replace(early_stopping=EarlyStopping(max_seconds=0.2)))
    assert first.stopped_by.startswith("MaxTime: ") and first.head.seconds >= 0.2
    assert (first.batches_lost, first.batches_duplicated) == (0, 0) and first.head.round < first.plan.total_rounds
    scoring = wanted.replace(early_stopping=EarlyStopping(max_seconds=0.2)).scoring
    again = msgspec.structs.replace(first.head, stopped_by="", status="running")
    assert scoring.closed(first.plan, again, again, None).stopped_by == first.stopped_by


def test_a_checkpoint_whose_best_model_is_damaged_is_passed_over(tmp_path):
    train(conf(epochs=3, validation=ValidationConf(), checkpoint_dir=str(tmp_path), checkpoint_every=1))
    checkpoints = CheckpointStore(tmp_path)
    head, _ = checkpoints.newest()
    assert checkpoints.best_model(head.best) is not None
    (file,) = tmp_path.glob(f"best-{head.best.version:08d}-*")
    file.write_bytes(file.read_bytes()[:-1])
    assert checkpoints.best_model(head.best) is None
    older = [version for version in checkpoints.versions() if version < head.version]
    try:
        assert checkpoints.newest()[0].version in older
    except CheckpointError as exc:
        assert file.name in str(exc)  # all that are kept have this best model


def test_only_the_best_models_that_a_checkpoint_names_are_kept(tmp_path):
    train(conf(epochs=8, validation=ValidationConf(every_rounds=1), checkpoint_dir=str(tmp_path), checkpoint_every=1))
    bodies = [json.loads(path.read_bytes()) for path in tmp_path.glob("checkpoint-*.json")]
    named = {body["best"]["file"] for body in bodies if "best" in body}
    assert {path.name for path in tmp_path.glob("best-*")} == named and 1 <= len(named) <= 3


@pytest.mark.parametrize("router", ["iterative-reduce", "hogwild"])
def test_a_run_whose_model_is_not_finite_any_more_stops_if_it_is_told_to(router):
    wild = NeuralNetConfiguration(seed=5, updater=Sgd(learning_rate=1e38))
    layers = (DenseLayer(n_in=4, n_out=6, activation="relu"), OutputLayer(n_out=3, activation="softmax"))
    network = MultiLayerConfiguration(conf=wild, layers=layers).with_sizes(4, 3)
    wanted = conf(multi_layer_conf=network, router=router, validation=ValidationConf(every_rounds=1))
    with pytest.raises(NotFiniteError):
        train(wanted)
    result = train(wanted.replace(early_stopping=EarlyStopping(invalid_score=True)))
    assert result.stopped_by.startswith("InvalidScore: ") and result.head.round < result.plan.total_rounds
    assert (result.batches_lost, result.batches_duplicated) == (0, 0)
    assert np.isfinite(result.model.arrays["params"]).all()


def test_a_part_of_the_training_data_is_split_off_by_the_runs_seed():
    result = train(conf(epochs=2, validation=ValidationConf(fraction=0.25)), validation=None)
    held_out = round(len(TRAIN) * 0.25)
    assert (result.plan.validation.examples, result.plan.examples) == (held_out, len(TRAIN) - held_out)
    parts = split_off(ListDataSetIterator(TRAIN, 8, seed=3), 0.25, seed=9)
    rows = np.concatenate([parts.training.dataset.features, parts.validation.features])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, TRAIN.features))
    again = split_off(ListDataSetIterator(TRAIN, 8), 0.25, seed=9).validation
    assert np.array_equal(again.features, parts.validation.features)
    assert not np.array_equal(
        split_off(ListDataSetIterator(TRAIN, 8), 0.25, seed=8).validation.features, again.features
    )


@pytest.mark.parametrize("kind", [DataSet, MultiDataSet])
def test_validation_data_are_batches_in_the_order_of_the_examples(kind):
    data = DataSet(np.arange(20, dtype=np.float32)[:, None], np.zeros((20, 2), np.float32))
    batches = in_batches(MultiDataSet.of(data) if kind is MultiDataSet else data, 8)
    features = [np.ravel(MultiDataSet.of(batches.batch(0, index)).features[0]) for index in range(3)]
    assert (batches.total_batches, batches.total_examples) == (3, 20)
    assert np.concatenate(features).tolist() == list(range(20)) and [len(each) for each in features] == [8, 8, 4]


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_figures_are_those_of_the_evaluate_command_whatever_the_jobs_of_a_round(jobs):
    rng = np.random.default_rng(4)
    many = DataSet.of_classes(rng.random((2 * ROWS + 70, 4), np.float32), rng.integers(0, 3, 2 * ROWS + 70), 3)
    wanted = conf(epochs=1, jobs_per_round=jobs)
    result = train(wanted, validation=many)
    with ActorNetworkRunner("master", ListDataSetIterator(TRAIN, 8), validation=many) as runner:
        runner.setup(wanted)
        local = evaluate_network(runner.network(result), many, ())
    assert result.validation.loss.hex() == local.loss.hex()
    assert (result.validation.accuracy, result.validation.examples) == (local.classification.accuracy(), len(many))


def test_batches_of_any_iterable_are_validation_data():
    pieces = [TEST.rows(0, 10), TEST.rows(10, 20), TEST.rows(20, 30)]
    result = train(conf(epochs=1, jobs_per_round=2), validation=iter(pieces))
    assert (result.plan.validation.batches, result.validation.examples) == (3, 30)


def test_validation_data_that_have_changed_are_refused_when_the_run_goes_on(tmp_path):
    wanted = conf(epochs=2, checkpoint_dir=str(tmp_path))
    train(wanted)
    with pytest.raises(CheckpointError, match="began with validation data of fingerprint"):
        ActorNetworkRunner("master", ListDataSetIterator(TRAIN, 8, seed=9), validation=TEST.rows(0, 29)).setup(
            wanted, resume=True
        )


@pytest.mark.parametrize(
    ("fields", "given", "said"),
    [
        ({"validation": ValidationConf()}, None, "names no data"),
        ({"validation": ValidationConf(fraction=0.5)}, TEST, "data besides"),
        (
            {"validation": ValidationConf(metric="accuracy")},
            DataSet(TEST.features, TEST.features),
            "give 'loss'",
        ),
        ({}, DataSet(TEST.features[:, :3], TEST.labels), "the validation data: .*3"),
        ({}, TEST.rows(0, 3).features, "the validation data: batch 0 is ndarray"),
    ],
)
def test_what_cannot_be_validated_is_refused_before_the_run_begins(fields, given, said):
    with pytest.raises(Dl4jError, match=said):
        train(conf(**fields), validation=given)


def test_a_performer_of_a_programs_own_cannot_validate():
    with pytest.raises(ConfError, match="cannot evaluate the model"):
        train(conf(), performer=lambda conf, kernels: None)
    with pytest.raises(ConfError, match="only the workers of a network"):
        Conf(performer="word-count", validation=ValidationConf(fraction=0.1))


def test_a_conf_without_validation_has_the_digest_that_it_had_before():
    plain, scored = conf(), conf(validation=ValidationConf(fraction=0.1))
    body = {name: value for name, value in msgspec.to_builtins(plain).items() if name not in FREE_FIELDS}
    assert body.pop("validation") is None and body.pop("early_stopping") is None and body.pop("router_args") == {}
    assert body.pop("first_epoch") == body.pop("first_iteration") == 0
    assert body.pop("transform") is None and body.pop("images") is None
    assert body.pop("stratify") is False and body.pop("class_weights") is None and body.pop("augment") is None
    assert body.pop("keep_index") is False and body.pop("text") is None and body.pop("sequences") is None
    assert (body.pop("warm_start"), body.pop("warm_start_jobs")) == (0.0, 1)
    assert plain.digest() == hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()
    assert scored.digest() != plain.digest() != plain.replace(early_stopping=PATIENT).digest()
    assert scored.replace(epochs=50).digest() == scored.digest()
    every = scored.replace(validation=ValidationConf(fraction=0.1, every_rounds=7))
    assert every.replace(epochs=50).digest() != every.digest()
