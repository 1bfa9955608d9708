"""Predictions as a run: the answers of one thread in the order of the rows, one model for all rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, NormalizerStandardize, Reading
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.datasets.text.texts import UNKNOWN, TextReader
from dl4jlegacy.errors import DataError, JobError, NotFiniteError, ShapeError
from dl4jlegacy.models.model import TrainedModel, score_examples
from dl4jlegacy.models.prediction import Form, PredictedRows, predict_blocks, rows_in, texts_of
from dl4jlegacy.nn import LSTM, DenseLayer, NeuralNetConfiguration, OutputLayer, RnnOutputLayer, zoo
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.protocol import Limits
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.system.clock import RUNNING
from dl4jlegacy.training import prediction_run
from dl4jlegacy.training.prediction_run import PredictionPerformer, PredictionRun, ScoringRun, Spool

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
    rows: Iterable[np.ndarray] | None = None,
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


def fail_each_job_once(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    failed, perform = set(), PredictionPerformer.perform

    def fails_first(self: PredictionPerformer, job: Any) -> Any:
        if job.slot not in failed:
            failed.add(job.slot)
            raise OSError("the worker is gone")
        return perform(self, job)

    monkeypatch.setattr(PredictionPerformer, "perform", fails_first)
    return failed


def recurrent(n_in: int, n_out: int) -> Network:
    layers = (LSTM(n_in=n_in, n_out=5), RnnOutputLayer(n_out=n_out, activation="softmax"))
    return build_network(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=3), layers=layers))


def steps_in(folder: Path) -> str:
    """Write sequences of 1 to 9 steps, one of them long, and return their folder."""
    rng = np.random.default_rng(5)
    folder.mkdir()
    for number in range(40):
        steps = 300 if number == 20 else 1 + number % 9
        np.savetxt(
            folder / f"{number}.csv", rng.normal(3, 2, (steps, 2)).round(3), "%g", ",", header="a,b", comments=""
        )
    return str(folder)


def lines_in(file: Path, words: Sequence[str], between: str) -> str:
    """Write lines of 1 to 30 words, and empty ones; return the file's name."""
    rng = np.random.default_rng(7)
    file.write_text("\n\n".join(between.join(rng.choice(words, 1 + row % 30)) for row in range(50)))
    return str(file)


def characters(folder: Path) -> tuple[TrainedModel, str]:
    names = tuple("abc ")
    return TrainedModel(recurrent(4, 4), Reading(label_names=names, text=TextReader())), lines_in(
        folder / "f.txt", names, ""
    )


def words(folder: Path) -> tuple[TrainedModel, str]:
    names = (UNKNOWN, *(f"word{number}" for number in range(19)))
    network = zoo.select("word-lstm").build(1, 20, seed=1)
    model = TrainedModel(build_network(network), Reading(label_names=names, text=TextReader(tokens="words")))
    return model, lines_in(folder / "f.txt", [*names[1:], "zebra"], " ")


def sequences(folder: Path, align: str) -> tuple[TrainedModel, str]:
    scaled = NormalizerStandardize().fit(DataSet(np.random.default_rng(5).normal(3, 2, (9, 2, 4))))
    reader = SequenceRecordReader(align=align, skip_lines=1, columns=2)
    return TrainedModel(
        recurrent(2, 3), Reading(normalizer=scaled, label_names=("x", "y", "z"), sequences=reader)
    ), steps_in(folder / "steps")


def numbers(folder: Path, align: str) -> tuple[TrainedModel, str]:
    """One of them so far from 0 that float32 would lose what differs in it."""
    used, place = sequences(folder, align)
    scale: dict[str, Any] = {"label_means": (30.0, 1.7e12, 0.0), "label_stds": (5.0, 2.0, 0.1)}
    reader = SequenceRecordReader(align=align, skip_lines=1, columns=2, regression=True, **scale)
    return dataclasses.replace(used, reading=used.reading.replace(sequences=reader)), place


def sparse(folder: Path) -> tuple[TrainedModel, str]:
    rows = (f"0 {1 + row}:0.5 {50_000 + row}:1 {119_000 + row % 7}:{row / 9:.2f}" for row in range(ROWS + 90))
    (folder / "f.svm").write_text("\n".join(rows))
    layers = (DenseLayer(n_in=120_000, n_out=2, activation="tanh"), OutputLayer(n_out=3, activation="softmax"))
    conf = MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=1), layers=layers)
    return TrainedModel(build_network(conf), Reading(label_names=("a", "b", "c"))), str(folder / "f.svm")


FILES = {
    "a text's next characters": characters,
    "a text's next words": words,
    "a class at each step": lambda folder: sequences(folder, "equal"),
    "a class of each sequence": lambda folder: sequences(folder, "end"),
    "numbers at each step": lambda folder: numbers(folder, "equal"),
    "numbers of each sequence": lambda folder: numbers(folder, "end"),
    "sparse rows": sparse,
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.everyday(1)
def test_what_one_process_says_of_a_file_is_said_by_any_number_of_workers(kind: str, tmp_path: Path) -> None:
    """To the byte: texts, a line each, and sequences of different lengths; each job fails once."""
    used, file = FILES[kind](tmp_path)
    alone = list(predict_blocks([used.answer], rows_in(used, file)[0], used.answers))
    answers = sum(len(rows.classes) for rows in alone)
    for workers in (1, 2, 3):
        with pytest.MonkeyPatch.context() as patch:
            failed = fail_each_job_once(patch)
            blocks, of_each = rows_in(used, file)
            found = list(predicted(workers, rows=blocks, used=used))
        assert len(failed) > 1 and sum(len(rows.classes) for rows in found) == answers
        for form in (Form("text", True, of_each), Form("jsonl", files=of_each), Form("json", files=of_each)):
            assert "\n".join(texts_of(used, found, form)) == "\n".join(texts_of(used, alone, form))


def test_what_is_not_finite_is_named_by_its_row_or_its_block() -> None:
    layers = (DenseLayer(n_in=5, n_out=8, activation="identity"), OutputLayer(n_out=3, activation="softmax"))
    conf = MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=1), layers=layers)
    wide = TrainedModel(build_network(conf))
    wide.network.set_params(np.array(wide.network.params) * 3e37)
    good, bad = np.zeros((3, 5), np.float32), np.full((2, 5), 9.0, np.float32)
    for rows, text in (
        ([good, good, bad], "in the rows from 6 on"),
        ([bad[:1], good, good, bad], "row 0"),
        ([good[:1], good, bad], "in the blocks from 2 on"),
    ):
        with pytest.raises(NotFiniteError, match=text):
            list(predicted(1, rows=iter(rows), used=wide))


def test_nothing_to_answer_and_sequences_that_are_no_one_array_are_refused() -> None:
    with pytest.raises(DataError, match="no rows to answer"):
        next(predicted(1, rows=iter([])))
    plain = TrainedModel(recurrent(2, 3))
    with pytest.raises(ShapeError, match="sequences of different lengths"):
        next(predicted(1, rows=iter([np.zeros((1, 2, 4)), np.zeros((1, 2, 5))]), used=plain))


def test_losses_are_those_of_one_process() -> None:
    rng = np.random.default_rng(6)
    data = DataSet.of_classes(rng.normal(size=(5 * ROWS + 9, 5)), rng.integers(0, 3, 5 * ROWS + 9), 3)
    expected = np.concatenate(list(score_examples(model().network, data)))
    for workers in (1, 3):
        run = ScoringRun(model(), data)
        resolved = run.resolve(Conf(workers=workers), workers=workers)
        found = np.concatenate(list(run.found(lambda run=run, resolved=resolved: run.perform(resolved))))
        assert found.tobytes() == expected.tobytes()


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
    failed = fail_each_job_once(monkeypatch)
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
