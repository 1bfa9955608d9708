"""``dl4j status --watch``: what is in view of a run, however small the terminal, and whatever is away for a while."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from rich.console import Console

from dl4jlegacy.cli.terminal import watch
from dl4jlegacy.cli.terminal.watch import Screen, Snapshot, StatusPoller, rows
from dl4jlegacy.errors import NotAuthorisedError, TrackerError
from tests.cli.test_progress import Screen as Terminal
from tests.support import REPOSITORY
from tests.support.cluster_commands import until

AWAY = TrackerError("the state tracker at 127.0.0.1:5701 did not read within 10 s: it hangs")


def worker(number: int, state: str = "working", **given: Any) -> dict[str, Any]:
    fields = {"id": f"host-{40 + number}-0123abcd-{number}", "host": "host", "pid": 40 + number, "state": state}
    return {**fields, "job": "12/3", "jobs_done": 7, "beat": 1.0, "device": "", **given}


def status(round_: int | None = 12, state: str = "running", **given: Any) -> dict[str, Any]:
    """The fields of ``dl4j status``, as far as they are shown."""
    fields: dict[str, Any] = {
        "run": "digits",
        "id": "master",
        "state": "waiting" if round_ is None else "running" if state == "running" else "ended",
        "reason": "",
        "status": None if round_ is None else state,
        "round": round_,
        "rounds": 48,
        "examples": None if round_ is None else 100 * round_,
        "total_examples": 4800,
        "score": None if round_ is None else 0.25,
        "metric": None,
        "waiting": None,
        "master": {"host": "host", "pid": 7},
        "standbys": [],
        "workers": [worker(0), worker(1, "idle", job="")],
        "failures": [],
        "head": None if round_ is None else {},
    }
    return {**fields, **given}


def texts(seen: Snapshot, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain.rstrip() for line in rows(seen, width, height)]


class Answers:
    """A look at a run whose answers are given one by one; the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)
        self.closed = threading.Event()

    def __call__(self) -> Any:
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Hours:
    """A clock of running time that is set by hand."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


@contextmanager
def looking(*answers: Any, clock: Any = None) -> Iterator[Callable[[], Snapshot]]:
    """Yield what makes the next look, on the caller's thread: no thread is started."""
    looker = StatusPoller(Answers(*answers), every=1.0, close=lambda: None, clock=clock or Hours())

    def look() -> Snapshot:
        looker._look_once()
        return looker.next(0)

    yield look


def shown(capsys: pytest.CaptureFixture[str], *answers: Any, as_json: bool = False) -> list[str]:
    """What ``watch`` prints of a run with these answers, the last of which must end it."""
    look = Answers(*answers)
    watch.watch(look, every=0.001, close=look.closed.set, as_json=as_json)
    assert look.closed.is_set()
    return capsys.readouterr().out.splitlines()


# -- the lines of a terminal -------------------------------------------------------------------------------------------


def test_a_terminal_shows_where_the_run_is_and_what_each_worker_does() -> None:
    lines = texts(Snapshot(2, status(), 0.0, speed=50.0))
    assert re.fullmatch(r"running +━+╸?─+   25%", lines[0])
    assert lines[1:9] == [
        "run         digits (id master)",
        "round       12 of 48",
        "examples    1,200 of 4,800",
        "speed       50 examples/s, 1:12 left",
        "score       0.2500",
        "master      host 7",
        "0123abcd-0  working 12/3, 7 jobs, host 40",
        "0123abcd-1  idle, 7 jobs, host 41",
    ]
    assert re.fullmatch(r"seen        \d\d:\d\d:\d\d", lines[9])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (40, 12), (20, 5), (10, 2), (200, 60)])
@pytest.mark.parametrize("workers", [0, 2, 40])
def test_it_fits_every_terminal(width: int, height: int, workers: int) -> None:
    failure = {"round": 3, "slot": 1, "worker": "host-40-0123abcd-0", "message": "a\nmessage " * 50}
    fields = status(
        workers=[worker(number, "working" if number % 2 else "idle") for number in range(workers)],
        failures=[failure],
        standbys=[{"host": "other", "pid": 9}],
        waiting="waiting for workers: 0 of 1",
        run="r" * 300,
    )
    lines = texts(Snapshot(2, fields, 0.0, error=AWAY, away_seconds=70.0), width, height)
    assert len(lines) <= max(1, height - 1) and max(map(len, lines)) <= width - 1
    assert lines[0].startswith("no answer"[: width - 2])
    if height >= 24:
        assert lines[-1].startswith("seen") and any(line.startswith("failed") for line in lines)
    if workers == 40 and height == 24:
        assert any(re.fullmatch(r"\d+ more +\d+ of them working", line) for line in lines)


def test_a_run_that_has_not_begun_and_one_without_workers_are_shown() -> None:
    lines = texts(Snapshot(1, status(None, workers=[], waiting="waiting for workers: 0 of 1, 290 s left"), 0.0))
    assert re.fullmatch(r"waiting     ─+    0%", lines[0])
    assert lines[2:5] == [
        "master      host 7",
        "waiting     for workers: 0 of 1, 290 s left",
        "workers     none",
    ]


def test_no_answer_a_lost_master_and_silent_workers_are_said() -> None:
    lines = texts(Snapshot(2, status(), 0.0, error=AWAY, away_seconds=75.0))
    assert lines[0] == "no answer   for 1:15, trying again"
    assert " ".join(" ".join(lines[1:3]).split()) == str(AWAY)
    assert "master      no master" in texts(Snapshot(2, status(master=None), 0.0))
    waits = status(master=None, standbys=[{"host": "b", "pid": 9}])
    assert "master      no master: a standby takes over" in texts(Snapshot(2, waits, 0.0))
    late = texts(Snapshot(2, status(), 0.0, silent={"host-40-0123abcd-0": 12.0}))
    assert "0123abcd-0  silent for 0:12, working 12/3, 7 jobs, host 40" in late


def test_what_others_wrote_does_not_command_the_terminal() -> None:
    evil = "\x1b[2J\x07\nhost"
    fields = status(run=evil, workers=[worker(0, evil, host=evil)], master={"host": evil, "pid": 7})
    assert not re.search(r"[\x00-\x1f\x7f]", "".join(texts(Snapshot(1, fields, 0.0), 300)))


def test_a_screen_changes_in_place_and_stays_at_the_end() -> None:
    terminal = Terminal(40, 24)
    screen = Screen(terminal.console)
    screen.show(Snapshot(1, status(12), 0.0))
    screen.show(Snapshot(2, status(24, workers=[worker(0)]), 0.0))
    screen.close()
    lines = terminal.lines()
    assert lines[0].endswith(" 50%") and "round       24 of 48" in lines
    assert not any("0123abcd-1" in line for line in lines)
    assert terminal.file.getvalue().endswith("\x1b[?25h")  # the cursor is back


# -- looking -----------------------------------------------------------------------------------------------------------


def test_what_is_away_for_a_while_ends_nothing() -> None:
    clock = Hours()
    with looking(status(12), AWAY, AWAY, status(13), clock=clock) as look:
        assert look().fields == status(12)
        clock.seconds += 10
        away = look()
        assert (away.fields, away.error, away.away_seconds) == (status(12), AWAY, 10.0)
        clock.seconds += 5
        assert look().away_seconds == 15.0
        back = look()
        assert (back.fields, back.error, back.away_seconds, back.is_over) == (status(13), None, 0.0, False)


def test_a_look_that_is_not_answered_is_said_before_it_fails() -> None:
    clock, known = Hours(), list[Snapshot]()

    def look() -> dict[str, Any]:
        for _ in range(3):
            known.append(poller._meanwhile())
            clock.seconds += 2
        return status(12)

    poller = StatusPoller(look, every=1.0, close=lambda: None, clock=clock)
    for _ in range(2):
        poller._look_once()
        assert poller.next(0).error is None
    assert [each.away_seconds for each in known[3:]] == [0.0, 0.0, 4.0]
    assert "has not answered so far" in str(known[-1].error) and known[-1].fields == status(12)


def test_a_run_that_is_not_there_from_the_beginning_is_an_error_as_without_watching() -> None:
    with looking(AWAY) as look, pytest.raises(TrackerError, match="did not read"):
        look()


def test_the_speed_is_that_of_the_last_looks() -> None:
    clock = Hours()
    with looking(status(12), status(14), clock=clock) as look:
        look()
        clock.seconds += 2
        assert look().speed == pytest.approx(100.0)


def test_a_worker_is_silent_whose_sign_of_life_does_not_change() -> None:
    clock, alive = Hours(), worker(1, beat=1.0)
    answers = [status(workers=[worker(0), {**alive, "beat": float(beat)}]) for beat in range(3)]
    with looking(*answers, clock=clock) as look:
        assert look().silent == {}
        clock.seconds += 4
        assert look().silent == {}
        clock.seconds += 3
        assert look().silent == {"host-40-0123abcd-0": 7.0}


@pytest.mark.parametrize(
    ("answers", "state", "round_"),
    [
        ([status(12), status(48, "done"), None], "done", 48),
        ([status(48, "done"), status(None), None], "done", 48),  # it is cleared up
        ([status(48, "done"), status(1), None], "running", 1),  # another run has come
        ([status(12), None], "running", 12),
        ([status(12), status(None), None], "running", 12),  # its grid was emptied, and it has ended since
        ([status(12), status(None, run="other"), None], None, None),  # another run has come, and ended before its head
        ([status(None), None], None, None),
        ([status(12), status(12, "failed", master=None)], "failed", 12),
    ],
)
def test_the_end_of_the_run_ends_it(answers: list[Any], state: str | None, round_: int | None) -> None:
    with looking(*answers) as look:
        seen = [look() for _ in answers]
    assert [each.is_over for each in seen] == [False] * (len(answers) - 1) + [True]
    last = seen[-1].fields
    assert (last["status"], last["round"], last["state"]) == (state, round_, "ended")


@pytest.mark.parametrize(
    "has", [{}, {"master": None, "standbys": [{"host": "b", "pid": 9}]}], ids=["a master", "one who resumes it"]
)
def test_a_run_that_failed_is_watched_as_long_as_somebody_may_go_on_with_it(has: dict[str, Any]) -> None:
    with looking(status(12, "failed", **has)) as look:
        assert not look().is_over


# -- lines -------------------------------------------------------------------------------------------------------------


def test_without_a_terminal_every_news_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    died = status(12, master=None, standbys=[{"host": "b", "pid": 9}])
    after = status(13, master={"host": "b", "pid": 9}, workers=[worker(0, "gone (killed)")])
    lines = shown(capsys, status(12), died, AWAY, after, status(48, "done"), None)
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    said = [line[9:] for line in lines]
    assert said[0] == "run digits: running, round 12/48, 1,200 examples, score 0.2500, 1/2 workers busy, master host 7"
    assert any("no master: a standby takes over" in line for line in said)
    assert any(
        re.match(r"stalled: no answer since \d\d:\d\d:\d\d, trying again: the state tracker", line) for line in said
    )
    assert any(line.startswith("answers again: run digits: ") and "master b 9" in line for line in said)
    assert any("0123abcd-0 gone (killed)" in line for line in said)
    assert said[-1] == "run digits: done in round 48"


def test_lines_that_would_say_the_same_are_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(shown(capsys, *[status(12)] * 20, None)) == 2


def test_json_is_an_object_a_line_of_every_look(capsys: pytest.CaptureFixture[str]) -> None:
    found = [json.loads(line) for line in shown(capsys, status(12), AWAY, status(13), None, as_json=True)]
    assert {each["run"] for each in found} == {"digits"}
    away = [each["away"] for each in found if each["away"]]
    assert away and away[0]["code"] == "DL4J-TRACKER" and away[0]["exit"] == 4 and away[0]["seconds"] >= 0
    assert found[-1]["over"] and not any(each["over"] for each in found[:-1])
    assert found[-1]["round"] == 13


@pytest.mark.parametrize("error", [NotAuthorisedError("another secret"), RuntimeError("a bug")])
def test_what_no_waiting_mends_is_raised(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error), match=str(error)):
        shown(capsys, status(12), error)
    assert "run digits: running" in capsys.readouterr().out


class Deaf(io.StringIO):
    """A reader who leaves after the first line."""

    def write(self, text: str) -> int:
        if self.tell():
            raise BrokenPipeError
        return super().write(text)

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize("as_json", [False, True])
def test_a_reader_who_leaves_ends_it(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Deaf())
    look = Answers(*[status(number) for number in range(1, 40)])
    watch.watch(look, every=0.001, close=look.closed.set, as_json=as_json)
    assert look.closed.is_set()


def test_how_often_belongs_to_watching(dl4j) -> None:
    assert "--every is how often --watch looks" in dl4j("status", "--every", "2", fails=2)
    assert "--every 0: give a number of seconds" in dl4j("status", "--watch", "--every", "0", fails=2)


# -- in a terminal -----------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from dl4jlegacy.cli.terminal.watch import watch
from dl4jlegacy.system.console import run_guarded
from tests.cli.test_watch import status
sys.exit(run_guarded(lambda: watch(lambda: status(12), every=0.01, close=lambda: None, as_json=False)))
"""


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was() -> None:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    env |= {"PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=child, stdout=child, stderr=subprocess.PIPE, cwd=REPOSITORY, env=env
    )
    os.close(child)
    out = b""

    def reads() -> bool:
        nonlocal out
        out += os.read(parent, 4096)
        return b"seen" in out

    try:
        until(reads, 60.0, "the status is shown")
        process.send_signal(signal.SIGINT)
        with pytest.raises(OSError, match="Input/output error"):  # the other side is closed
            until(lambda: reads() and False, 60.0)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"stopped by SIGINT\n"
    finally:
        process.kill()
        process.wait(60)
        process.stderr.close()
        os.close(parent)
    assert out.rstrip().endswith(b"\x1b[?25h")
    console = Console(file=io.StringIO(), width=40)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.decode()).replace("\r", "")
    assert console.width == 40 and max(map(len, plain.split("\n"))) < 40
