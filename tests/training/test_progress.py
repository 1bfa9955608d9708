"""Training from Python: its line of progress on a terminal, and what Ctrl-C leaves behind."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, DataSource, ListDataSetIterator
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.links.liveness.quorum import Waiting
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.monitoring.speed import Speed
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.state.records import Head, Manifest
from dl4jlegacy.training import prepare as training
from dl4jlegacy.training.progress import ProgressLine, shown
from dl4jlegacy.training.run import resolve
from tests.support import REPOSITORY
from tests.support.performers import before_each_job

CONF = Conf(multi_layer_conf=zoo.mlp(6, 3, hidden=(5,), seed=7), workers=2, jobs_per_round=2, epochs=3, seed=7)


class Terminal(io.StringIO):
    """A stderr that says whether it is a terminal; ``shown`` is set as soon as a round stands there."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        if "finetune, round " in text:
            self.shown.set()
        return super().write(text)


def data() -> DataSet:
    random = np.random.default_rng(1)
    return DataSet.of_classes(random.random((64, 6), dtype=np.float32), random.integers(0, 3, 64), 3)


def train(event: threading.Event | None = None, **arguments: object) -> None:
    performer = None if event is None else before_each_job(lambda: event.wait(60))
    with ActorNetworkRunner("master", ListDataSetIterator(data(), 8), performer=performer) as runner:
        runner.setup(CONF)
        runner.train(deadline=120, **arguments)  # type: ignore[arg-type]


def test_a_terminal_shows_where_the_run_is_in_one_line_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    train(terminal.shown)
    assert terminal.shown.is_set()
    text = terminal.getvalue()
    assert text.endswith("\r\x1b[K") and "\n" not in text
    assert max(len(line) for line in text.split("\r\x1b[K")) < 80


@pytest.mark.parametrize("arguments", [{"progress": False}, {"tick": lambda status: None}])
def test_the_line_can_be_turned_off_and_gives_way_to_a_display_of_ones_own(
    arguments: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    train(**arguments)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("stream", [Terminal(is_terminal=False), None])
def test_where_stderr_is_no_terminal_nothing_is_shown(stream: Terminal | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    train()
    assert stream is None or stream.getvalue() == ""


@pytest.mark.parametrize("arguments", [{"progress": False}, {"tick": lambda status: None}, {}])
def test_a_training_from_its_data_to_its_report_shows_the_line_once_or_not_at_all(
    arguments: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    given = DataSource("mine", data(), data())
    training.train(resolve(CONF, training.batches(CONF, given)), given, **arguments)  # type: ignore[arg-type]
    assert ("\r\x1b[K" in terminal.getvalue()) == (not arguments)


def test_a_terminal_that_is_gone_does_not_end_the_training() -> None:
    plan = Plan(phases=(Phase(),), batches=4, examples=4, batch_size=1, jobs_per_round=4)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(os.dup(writer), "w", encoding="utf-8") as gone, ProgressLine(gone) as line:
        line.tick(RunStatus(plan, None, 3.0, ()))
        os.close(writer)
        os.close(gone.fileno())
        line.tick(RunStatus(plan, None, 4.0, ()))
        os.dup2(os.open(os.devnull, os.O_WRONLY), gone.fileno())


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, threading, numpy as np
from dl4jlegacy import ActorNetworkRunner, Conf, DataSet, ListDataSetIterator
from dl4jlegacy.nn import zoo

data = DataSet.of_classes(np.eye(4, dtype=np.float32).repeat(16, 0), np.arange(4).repeat(16))
runner = ActorNetworkRunner("master", ListDataSetIterator(data, 4))  # without "with", and nobody calls shutdown
runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 4, hidden=(5,)), workers=3, epochs=10**6, checkpoint_dir=sys.argv[1]))
seen = threading.Event()

def tick(status):
    if status.head is not None and status.head.round > 12 and not seen.is_set():
        seen.set()
        print("under way", flush=True)

runner.train(tick)
"""


def interrupted(folder: str) -> tuple[int, str]:
    """Run the script until it is under way, press Ctrl-C, and return its exit status and what it wrote to stderr."""
    command = [sys.executable, "-c", SCRIPT, folder]
    settings = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "under way\n"
            process.send_signal(signal.SIGINT)
            err = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    return process.returncode, err


def test_ctrl_c_ends_a_script_that_cleans_nothing_up_and_keeps_a_checkpoint(tmp_path: Path) -> None:
    status, err = interrupted(str(tmp_path / "run"))
    assert status == -signal.SIGINT, err
    saved = CheckpointStore(tmp_path / "run").newest()
    assert saved is not None and saved[0].round > 12
    [note] = [line for line in err.splitlines() if "was stopped" in line]
    assert f"its checkpoint of round {saved[0].round} of " in note
    assert f"is in {tmp_path / 'run'}: setup(conf, resume=True) goes on" in note


def test_ctrl_c_without_a_folder_says_that_nothing_is_kept() -> None:
    status, err = interrupted("")
    assert status == -signal.SIGINT, err
    assert "nothing of it is kept: with Conf(checkpoint_dir=...) a run can go on later" in err


def test_after_ctrl_c_no_thread_is_left_and_the_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    conf = CONF.replace(checkpoint_dir=str(tmp_path / "run"), epochs=4)

    def interrupt(status: RunStatus) -> None:
        if status.head is not None and status.head.round:
            raise KeyboardInterrupt

    before = set(threading.enumerate())
    slow = threading.Event()

    slowed = before_each_job(lambda: slow.wait(0.05))
    runner = ActorNetworkRunner("master", ListDataSetIterator(data(), 8), performer=slowed)
    runner.setup(conf)
    with pytest.raises(KeyboardInterrupt) as caught:
        runner.train(interrupt)
    assert set(threading.enumerate()) <= before
    assert "setup(conf, resume=True)" in caught.value.__notes__[0]
    runner.setup(conf, resume=True)
    result = runner.train(deadline=120)
    runner.shutdown()
    assert 0 < result.examples_here < result.head.examples == result.plan.total_examples


def test_the_speed_is_that_of_the_run_that_is_shown_last() -> None:
    speed = Speed()
    for seconds, examples in ((1.0, 100), (2.0, 300), (3.0, 20)):  # the last one is of another run
        speed.add(seconds, examples)
    assert speed.now == 0.0
    speed.add(4.0, 70)
    assert speed.now == 50.0
    speed.add(1.0, 90)
    speed.add(2.0, 100)
    assert speed.now == 10.0


def test_off_a_terminal_a_wait_for_workers_is_said_once_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    def status(present: int | None) -> RunStatus:
        waiting = None if present is None else Waiting(present, 1, 300.0)
        return RunStatus(
            Plan(phases=(Phase(),), batches=1, examples=1, batch_size=1, jobs_per_round=1),
            None,
            0.0,
            (),
            waiting=waiting,
        )

    with shown(None, progress=True) as show:
        assert show is not None
        for present in (None, 0, 0, None, 0):
            show(status(present))
    assert capsys.readouterr().err == "waiting for workers: 0 of 1, giving up in 300 s\n" * 2
    with shown(None, progress=False) as show:
        assert show is None


class Displays:
    """A stand-in for a notebook's displays: what stands in each place."""

    def __init__(self) -> None:
        self.places: dict[str, list[str]] = {}

    def display(self, line: dict[str, str], *, raw: bool, display_id: str) -> None:
        assert raw and display_id not in self.places
        self.places[display_id] = [line["text/plain"]]

    def update_display(self, line: dict[str, str], *, raw: bool, display_id: str) -> None:
        assert raw
        self.places[display_id].append(line["text/plain"])


@pytest.mark.parametrize("kernel", [object(), None])
def test_a_notebook_shows_one_line_below_its_cell(kernel: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without IPython: stand-ins say that this is a kernel, and keep what it shows."""
    displays = Displays()
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=kernel))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal(is_terminal=False))
    batches = ListDataSetIterator(DataSet(np.ones((20, 6)), np.eye(3)[[0, 1] * 10]), 5)
    with ActorNetworkRunner("master", batches) as runner:
        runner.setup(CONF)
        result = runner.train()
    assert (len(displays.places) == 1) == (kernel is not None) and not terminal.getvalue()
    for lines in displays.places.values():  # the last one is saved with the notebook
        assert re.fullmatch(r"done in .*: round 6/6, 60 examples, score \d+\.\d{4}", lines[-1])
    assert result is not None and repr(result).startswith("<TrainingResult: version ") and len(repr(result)) < 100


@pytest.mark.parametrize(
    ("status", "line"), [("running", "ended by KeyboardInterrupt"), ("failed", "ended by an error")]
)
def test_a_notebook_says_that_a_run_has_failed(status: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dl4jlegacy.training.progress._notebook", lambda: displays)
    monkeypatch.setattr(sys, "stderr", Terminal(is_terminal=False))
    displays, plan = Displays(), Plan(phases=(Phase(),), batches=4, examples=4, batch_size=1, jobs_per_round=1)
    head = Head(run="r", model=Manifest("m", 0, 0), status=status, round=2, examples=2, score=0.5, version=2)  # type: ignore[arg-type]
    with contextlib.suppress(KeyboardInterrupt), shown(None, True) as show:
        assert show is not None
        show(RunStatus(plan, head, 1.0, ()))
        if status == "running":
            raise KeyboardInterrupt
    [lines] = displays.places.values()
    assert lines[-1] == f"{line}; last seen in round 2/4, 2 examples, score 0.5000"
