"""The event files of a run, read back by TensorBoard itself: each point once, however often the run was interrupted."""

from __future__ import annotations

import errno
import itertools
import logging
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, IrisDataSetIterator, read_history
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.optimization.schedules import ExponentialSchedule
from dl4jlegacy.nn.optimization.updaters import Adam, NoOp, Sgd
from dl4jlegacy.nn.parameter_statistics import named_spans
from dl4jlegacy.observing import tensorboard
from dl4jlegacy.observing.tensorboard import TensorBoardObserver
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun, RunObserver
from dl4jlegacy.scaleout.monitoring.outcome import TrainingResult
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.scaleout.state.aggregate import PARAMS
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.system.clock import RunningClock
from tests.support.cluster_commands import until
from tests.support.command_line import exit_status as dl4j
from tests.support.event_files import read_events

ALL = pytest.mark.usefixtures("every_version")


@pytest.fixture
def every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no version and no layers out."""
    monkeypatch.setattr(tensorboard, "_POINT_SECONDS", 0.0)
    monkeypatch.setattr(tensorboard, "_LAYERS_SECONDS", 0.0)
    monkeypatch.setattr(tensorboard, "_LAYERS_SHARE", float("inf"))


class Models(RunObserver):
    """Keeps all versions of the model."""

    def __init__(self) -> None:
        self.models: dict[int, bytes] = {}

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        self.models[version.version] = bytes(event.frame)


def trained(folder: Path, *, resume: bool = False, tick: Any = None, others: Any = (), **conf: Any) -> TrainingResult:
    """Train irises, with events in ``folder/events`` and the history in ``folder/run``; return the result."""
    given = Conf(multi_layer_conf=zoo.mlp(4, 3), checkpoint_dir=str(folder / "run"), workers=2, **conf)
    observers = [*others, TensorBoardObserver(folder / "events")]
    with ActorNetworkRunner("master", IrisDataSetIterator(16), observers=observers) as runner:
        runner.setup(given, resume=resume)
        result = runner.train(tick)
        assert result is not None
        return result


@ALL
def test_the_curves_are_those_of_the_run_s_history(tmp_path: Path) -> None:
    result = trained(tmp_path, epochs=3, validation=ValidationConf(fraction=0.2))
    curves, _ = read_events(tmp_path / "events")
    history = read_history(tmp_path / "run")
    trainings = [entry for entry in history if entry.validation is None]
    found = [entry for entry in history if entry.validation is not None]
    assert len(found) == 3 and len(trainings) + 3 == result.head.version
    assert curves["score"] == [(e.version, pytest.approx(e.score, rel=1e-6)) for e in trainings]
    assert curves["progress/examples"] == [(e.version, e.examples) for e in trainings]
    assert curves["validation/loss"] == [(e.version, pytest.approx(e.validation.loss, rel=1e-6)) for e in found]
    assert [step for step, _ in curves["validation/accuracy"]] == [e.version for e in found]
    rates = dict(curves["progress/examples_per_second"])
    for before, entry in itertools.pairwise(history):
        if entry.validation is None and before.validation is None:
            expected = (entry.examples - before.examples) / entry.seconds
            assert rates[entry.version] == pytest.approx(expected, rel=1e-5)


@ALL
def test_a_run_that_goes_on_continues_its_curves_and_doubles_no_point(tmp_path: Path) -> None:
    def interrupt(status: Any) -> None:
        if status.head is not None and status.head.round > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, tick=interrupt, epochs=25, checkpoint_every=1000)
    before, _ = read_events(tmp_path / "events")
    assert before["score"]
    result = trained(tmp_path, resume=True, epochs=25)
    curves, _ = read_events(tmp_path / "events")
    assert [step for step, _ in curves["score"]] == list(range(1, result.head.version + 1))
    assert len(list(next((tmp_path / "events").iterdir()).iterdir())) == 2


@ALL
def test_versions_that_are_made_anew_take_the_place_of_those_before(tmp_path: Path) -> None:
    """As after a kill: the process that goes on has an older version than the last that was written."""
    for steps, value in ((range(1, 8), 1.0), (range(5, 7), 2.0)):
        format = tensorboard._Format()
        writer = tensorboard._Writer(tensorboard._EventFile(tmp_path / "events" / "run", format), format, None)
        for step in steps:
            writer.add(tensorboard._Point(step, 1e9, {"score": value}))
        writer.close()
    curves, _ = read_events(tmp_path / "events")
    assert curves["score"] == [*((step, 1.0) for step in range(1, 5)), (5, 2.0), (6, 2.0)]


def test_the_layers_have_their_magnitudes_and_histograms(tmp_path: Path) -> None:
    kept = Models()
    result = trained(tmp_path, epochs=2, others=[kept])
    names = [f"{layer}_{name}" for layer in range(3) for name in ("W", "b")]
    curves, reader = read_events(tmp_path / "events")  # of the first version at least
    assert {f"parameter_mean_magnitude/{name}" for name in names} <= set(curves)
    assert {f"parameters/{name}" for name in names} <= set(reader.Tags()["histograms"])

    last, network = result.head.version, zoo.mlp(4, 3)
    layers = tensorboard._Layers(named_spans(network), tensorboard._Format(), RunningClock())
    values = {one.tag: one for one in layers.values(kept.models[last], kept.models[last - 1])}
    kinds = ("parameter_mean_magnitude", "parameters", "update_mean_magnitude", "update_parameter_ratio", "updates")
    assert sorted(values) == sorted(f"{kind}/{name}" for kind in kinds for name in names)
    count = 4 * network.resolved()[0].n_out
    after, before = (Result.decode(kept.models[v]).arrays[PARAMS][:count] for v in (last, last - 1))
    size, step = np.abs(after).mean(), np.abs(after - before).mean()
    assert values["parameter_mean_magnitude/0_W"].simple_value == pytest.approx(size, rel=1e-5)
    assert values["update_mean_magnitude/0_W"].simple_value == pytest.approx(step, rel=1e-5)
    assert values["update_parameter_ratio/0_W"].simple_value == pytest.approx(step / size, rel=1e-5)
    histogram = values["parameters/0_W"].histo
    assert (sum(histogram.bucket), histogram.num) == (count, count)
    assert (histogram.min, histogram.max) == (pytest.approx(after.min()), pytest.approx(after.max()))
    assert list(histogram.bucket) == list(np.histogram(after.astype(np.float64), 30)[0])


def test_the_layers_take_a_small_share_of_the_time() -> None:
    clock = Seconds()
    layers = tensorboard._Layers([], tensorboard._Format(), clock)
    assert layers.take() and not layers.take()  # one at a time
    layers.values(Result({}, {PARAMS: np.zeros(1, np.float32)}).encode(), None)
    assert not layers.take()
    clock.seconds += tensorboard._LAYERS_SECONDS + 0.1
    assert layers.take()


class Seconds:
    """A clock that a test sets."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def rates_of(network: Any, iteration: int) -> dict[str, float]:
    return tensorboard._learning_rates(tensorboard._updaters(network), iteration)


def stack(first: Any, second: Any) -> MultiLayerConfiguration:
    layers = (DenseLayer(n_in=4, n_out=5, updater=first), OutputLayer(n_out=3, activation="softmax", updater=second))
    return MultiLayerConfiguration(conf=NeuralNetConfiguration(activation="tanh"), layers=layers)


def test_the_learning_rate_follows_its_schedule_and_each_layer_that_has_one_of_its_own() -> None:
    scheduled = Sgd(learning_rate=0.1, schedule=ExponentialSchedule(gamma=0.5))
    assert rates_of(stack(scheduled, scheduled), 2) == {"learning_rate": pytest.approx(0.025)}
    assert rates_of(stack(Adam(learning_rate=0.01), scheduled), 1) == {
        "learning_rate/0_W": pytest.approx(0.01),
        "learning_rate/1_W": pytest.approx(0.05),
    }
    assert rates_of(stack(NoOp(), NoOp()), 0) == {}


def test_a_graph_s_parameters_have_the_names_of_its_vertices() -> None:
    graph = (
        NeuralNetConfiguration.builder()
        .activation("tanh")
        .graph_builder()
        .add_inputs("in")
        .add_layer("hidden", DenseLayer(n_in=4, n_out=5), "in")
        .add_layer("out", OutputLayer(n_out=3, activation="softmax"), "hidden")
        .set_outputs("out")
        .build()
    )
    assert isinstance(graph, ComputationGraphConfiguration)
    assert [one.name for one in named_spans(graph)] == ["hidden_W", "hidden_b", "out_W", "out_b"]


@contextmanager
def full_disk(nbytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_a_warning_and_what_was_missing_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "_WRITE_SECONDS", 0.001)
    format = tensorboard._Format()
    writer = tensorboard._Writer(tensorboard._EventFile(tmp_path / "events" / "run", format), format, None)
    with full_disk(2000), caplog.at_level(logging.WARNING):
        for step in range(1, 200):
            writer.add(tensorboard._Point(step, 1e9, {"score": 1.0}))
        until(lambda: caplog.records)
        [file] = (tmp_path / "events" / "run").iterdir()
        assert file.stat().st_size <= 2000
        assert [record.getMessage() for record in caplog.records] == [
            f"TensorBoard's events in {file.parent} cannot be written: [Errno {errno.EFBIG}] File too large"
        ]
    writer.close()
    curves, _ = read_events(tmp_path / "events")
    assert curves["score"] == [(step, 1.0) for step in range(1, 200)]


def test_a_run_ends_as_usual_though_the_folder_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    observer = TensorBoardObserver(tmp_path / "events")
    (tmp_path / "events").rmdir()
    (tmp_path / "events").write_text("in the way")
    with ActorNetworkRunner("master", IrisDataSetIterator(16), observers=[observer]) as runner:
        runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2))
        assert runner.train().head.status == "done"
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1 and "TensorBoard's events in" in said[0] and "cannot be written" in said[0]


def test_versions_that_follow_too_fast_are_left_out_but_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "_POINT_SECONDS", 1e6)
    monkeypatch.setattr(tensorboard, "_LAYERS_SECONDS", 1e6)
    result = trained(tmp_path, epochs=4)
    curves, _ = read_events(tmp_path / "events")
    assert [step for step, _ in curves["score"]] == [1, result.head.version]
    assert dict(curves["progress/examples"])[result.head.version] == result.head.examples


def test_the_command_writes_them_and_resume_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--tensorboard", str(tmp_path / "events"))
    run = ("--dataset", "iris", "--model", "mlp", "--workers", "2", "--epochs", "3")
    assert dl4j("train", *run, "--checkpoint-dir", str(tmp_path / "run"), *where, "--format", "json") == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    curves, _ = read_events(tmp_path / "events")
    assert curves["score"][-1][0] == report["rounds"]
    assert next((tmp_path / "events").iterdir()).name.startswith(report["run"])


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_said_before_the_run_begins(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert dl4j("train", "--dataset", "iris", "--tensorboard", str(tmp_path / place)) == 3
    shown = capsys.readouterr()
    assert f"the folder for TensorBoard, {tmp_path / place}, cannot be used" in shown.err and shown.out == ""


class Broken(RunObserver):
    """Fails at everything that it is told of a run."""

    def begin(self, run: ObservedRun) -> None:
        self.run = run

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        raise ValueError("no chart today")


def test_an_observer_that_fails_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    kept = Models()
    result = trained(tmp_path, epochs=2, others=[Broken(), kept])
    assert result.warnings == ("Broken failed, and the run went on: ValueError: no chart today",)
    assert sorted(kept.models) == list(range(1, result.head.version + 1))


class Refusing(RunObserver):
    """Cannot begin."""

    def begin(self, run: ObservedRun) -> None:
        raise ConfError("not today")


def test_an_observer_that_cannot_begin_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfError, match="not today"):
        trained(tmp_path, others=[Models(), Refusing()])
