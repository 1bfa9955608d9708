"""Predictions as a run: the answers of one thread in the order of the rows, one model for all rounds."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import prediction_run
from dl4jlegacy.clock import RUNNING
from dl4jlegacy.errors import DataError, JobError, NotFiniteError
from dl4jlegacy.inference import TrainedModel
from dl4jlegacy.nn import DenseLayer, NeuralNetConfiguration, OutputLayer
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.prediction import PredictedRows, predict_blocks
from dl4jlegacy.prediction_run import PredictionPerformer, PredictionRun, Spool
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.outcome import Outcome
from dl4jlegacy.scaleout.protocol import Limits
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker

BATCHES = 41


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-one rounds, the last of them short."""
    monkeypatch.setattr(prediction_run, "_JOBS_PER_ROUND", 2)
    monkeypatch.setattr(prediction_run, "_JOB_NBYTES", 1)


@functools.cache
def model() -> TrainedModel:
    layers = (DenseLayer(n_in=5, n_out=8, activation="tanh"), OutputLayer(n_out=3, activation="softmax"))
    network = build_network(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=1), layers=layers))
    network.set_params(np.random.default_rng(4).normal(0, 1, network.num_params).astype(np.float32))
    return TrainedModel(network)


def blocks() -> Iterator[np.ndarray]:
    rng = np.random.default_rng(6)
    for _ in range(BATCHES - 1):
        yield rng.normal(size=(ROWS, 5)).astype(np.float32)
    yield rng.normal(size=(77, 5)).astype(np.float32)


def predicted(
    workers: int,
    tracker: Any = None,
    rows: Iterator[np.ndarray] | None = None,
    used: TrainedModel | None = None,
    **conf: Any,
) -> Generator[PredictedRows, None, None]:
    with contextlib.closing(Spool(blocks() if rows is None else rows)) as spool:
        run = PredictionRun(used or model(), spool)
        resolved = run.resolve(Conf(workers=workers, **conf), workers=workers)
        yield from run.predicted(lambda: run.perform(resolved, tracker=tracker))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_answers_are_those_of_one_thread_in_the_order_of_the_rows(workers: int) -> None:
    expected = list(predict_blocks([model().output], blocks()))
    found = list(predicted(workers))
    assert [rows.first for rows in found] == list(
        itertools.accumulate([0, *(len(rows.classes) for rows in found[:-1])])
    )
    for name in ("outputs", "classes"):
        assert np.array_equal(*(np.concatenate([getattr(rows, name) for rows in some]) for some in (found, expected)))


def test_the_model_is_written_once_and_what_a_round_has_found_is_forgotten() -> None:
    tracker = InMemoryStateTracker()
    written: list[str] = []
    most = 0
    for rows in predicted(2, tracker):
        keys = tracker.store.keys("")
        written += [key for key in keys if key.startswith("model/")]
        most = max(most, len(keys))
        assert rows.outputs.shape[1] == 3
    assert len({key.split("/")[1] for key in written}) == 1
    assert most < 60  # of 41 jobs, each with a record and an update, and the model


def test_a_job_that_fails_once_is_done_again_and_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, perform = set(), PredictionPerformer.perform

    def fails_first(self: PredictionPerformer, job: Any) -> Any:
        if job.slot not in failed:
            failed.add(job.slot)
            raise OSError("the worker is gone")
        return perform(self, job)

    monkeypatch.setattr(PredictionPerformer, "perform", fails_first)
    expected = [number for rows in predict_blocks([model().output], blocks()) for number in rows.classes]
    assert [number for rows in predicted(2) for number in rows.classes] == expected
    assert len(failed) == BATCHES


def test_what_goes_wrong_is_raised_where_the_answers_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wrong(self: Any, job: Any) -> Any:
        raise OSError("no")

    wide = TrainedModel(build_network(model().network.conf))
    wide.network.set_params(np.full_like(model().network.params, 3e38))
    with pytest.raises(NotFiniteError, match="NaN or infinite"):
        list(predicted(1, used=wide))
    monkeypatch.setattr(PredictionPerformer, "perform", wrong)
    with pytest.raises(JobError, match="OSError: no"):
        list(predicted(1))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(DataError, match="line 7"):
        next(predicted(1, rows=map(fails, [None])))


def fails(_: object) -> np.ndarray:
    raise DataError("line 7")


def test_a_reader_who_leaves_ends_the_run() -> None:
    found = predicted(2)
    assert next(found).first == 0
    found.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("dl4j-predict")]


class SetClock:
    """A clock that goes on as the machine's, and is set forward by a test."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return RUNNING.now() + self.ahead


def test_a_reader_may_pause_for_longer_than_a_run_may_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind ``| less``, or in front of a pipe that is full: the run waits with few rounds unread, and goes on."""
    clock, progressed, held, performed = SetClock(), threading.Event(), threading.Event(), list[Any]()
    progress, perform, is_read = Outcome.progressed, PredictionPerformer.perform, prediction_run._Aggregator.is_read

    def performing(self: PredictionPerformer, job: Any) -> Any:
        performed.append(job.slot)
        return perform(self, job)

    def progressing(self: Outcome) -> None:
        progress(self)
        progressed.set()

    def reading(self: Any) -> bool:
        found = is_read(self)
        if not found:
            held.set()
        return found

    monkeypatch.setattr(PredictionPerformer, "perform", performing)
    monkeypatch.setattr(Outcome, "progressed", progressing)
    monkeypatch.setattr(prediction_run._Aggregator, "is_read", reading)
    stuck_seconds, limits = 10.0, Limits(poll=0.05)
    stall = stuck_seconds * (limits.attempts + 1)
    found = predicted(2, InMemoryStateTracker(clock), stuck_seconds=stuck_seconds, limits=limits)
    answers = [*next(found).classes]
    assert held.wait(20), "from here on nothing is done, so that progress is what is said of the waiting"
    for _ in range(5):  # each step is shorter than the run may stand still, all of them are three times as long
        progressed.clear()
        clock.ahead += 0.6 * stall
        assert progressed.wait(20)
    assert len(set(performed)) < BATCHES / 2
    answers += [number for rows in found for number in rows.classes]
    assert answers == [number for rows in predict_blocks([model().output], blocks()) for number in rows.classes]
