"""A process that was stopped blames nobody: deadlines count only time in which it ran."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time

import pytest

from dl4jlegacy.clock import GAP_SECONDS, SLICE_SECONDS, Deadline, RunningClock
from dl4jlegacy.errors import NotEnoughWorkersError, TrackerError
from dl4jlegacy.scaleout.hazelcast.patience import Patience
from dl4jlegacy.scaleout.liveness.quorum import Quorum
from dl4jlegacy.scaleout.outcome import Outcome
from tests.support.cluster_commands import until
from tests.support.waiting import AskedSeconds
from tests.test_layering import MODULES


class Machine:
    """A machine's monotonic clock, which goes on while a process is stopped."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.clock = RunningClock(lambda: self.seconds)

    def runs(self, seconds: float) -> None:
        """Let the process run, which reads its clock every now and then."""
        for _ in range(round(seconds / SLICE_SECONDS)):
            self.seconds += SLICE_SECONDS
            self.clock.now()

    def stops(self, seconds: float) -> None:
        """Stop the process for a while."""
        self.seconds += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_the_clock_stands_still_while_its_process_does(machine: Machine) -> None:
    begun = machine.clock.now()
    machine.runs(20.0)
    assert machine.clock.now() - begun == pytest.approx(20.0)
    machine.stops(3600.0)
    assert machine.clock.now() - begun == pytest.approx(20.0 + GAP_SECONDS)
    machine.seconds -= 10_000.0  # some machines' do that
    machine.clock.now()
    machine.runs(5.0)
    assert machine.clock.now() - begun == pytest.approx(25.0 + GAP_SECONDS)


def test_a_deadline_counts_only_time_in_which_the_process_ran(machine: Machine) -> None:
    deadline = Deadline(20.0, machine.clock)
    machine.runs(10.0)
    machine.stops(3600.0)
    assert deadline.left() == pytest.approx(10.0 - GAP_SECONDS)
    machine.runs(8.0)
    assert not deadline.passed()
    machine.runs(1.2)
    assert deadline.passed() and deadline.left() == 0


def test_an_answer_that_came_while_the_process_was_stopped_is_heard(machine: Machine) -> None:
    asked: list[float] = []

    def wait(seconds: float) -> bool:
        """The process is stopped in the third wait, and the answer is seen in the one after it."""
        asked.append(seconds)
        machine.seconds += 3600.0 if len(asked) == 3 else seconds
        return len(asked) == 4

    assert Deadline(10.0, machine.clock).wait(wait)
    assert max(asked) <= SLICE_SECONDS < GAP_SECONDS


def test_a_wait_ends_at_its_deadline_and_looks_at_least_once(machine: Machine) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        machine.seconds += seconds
        return False

    assert not Deadline(10.0, machine.clock).wait(wait)
    assert sum(waited) == pytest.approx(10.0)
    assert Deadline(0.0, machine.clock).wait(lambda seconds: seconds == 0.0)


# --- who waits so -----------------------------------------------------------------------------------------------------


def test_a_master_that_was_stopped_does_not_give_up_its_run(machine: Machine) -> None:
    outcome = Outcome(machine.clock)
    machine.stops(86400.0)
    assert outcome.idle_seconds <= GAP_SECONDS


def test_a_master_that_was_stopped_does_not_miss_its_workers(machine: Machine) -> None:
    quorum = Quorum("r", needed=1, wait_seconds=300.0, present=lambda: 0, clock=machine.clock.now)
    assert not quorum.is_met()
    machine.stops(86400.0)
    assert not quorum.is_met()
    machine.runs(300.0)
    with pytest.raises(NotEnoughWorkersError):
        quorum.is_met()


def test_a_process_that_was_stopped_amid_a_request_does_not_give_the_tracker_up(machine: Machine) -> None:
    patience = Patience("here:1", 20.0, machine.clock)
    begun = patience.begin()
    machine.stops(86400.0)
    assert patience.left(begun) >= 20.0 - GAP_SECONDS


REALLY_STOPPED = """
import sys, threading, time
from dl4jlegacy.clock import Deadline
from dl4jlegacy.scaleout.hazelcast.link import LateError, Reply
reply, deadline, asked = Reply("here:1"), Deadline(2.0), [time.monotonic()]
def read():
    sys.stdin.readline()
    reply.set_result("answered")
threading.Thread(target=read, daemon=True).start()
def wait(seconds):
    print("goes on" if time.monotonic() - asked[-1] > 2.0 else "waits", flush=True)
    asked.append(time.monotonic())
    try:
        return bool(reply.wait(seconds))
    except LateError:
        return False
print("in time" if deadline.wait(wait) else "blames the server", flush=True)
"""


@pytest.mark.long
def test_a_process_that_is_really_stopped_for_longer_than_its_deadline_hears_the_answer() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", REALLY_STOPPED], **pipes) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        waiting.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        until(lambda: time.monotonic() - stopped > 3.0)
        waiting.send_signal(signal.SIGCONT)
        line = next(line for line in waiting.stdout if line != "waits\n")
        said, _ = waiting.communicate("now\n", timeout=60)
    assert line == "goes on\n"
    assert said.split("\n")[-2] == "in time"


# --- the sweep --------------------------------------------------------------------------------------------------------

READ_BY = {
    "dl4jlegacy.clock": "it is the clock that all others wait by",
    "dl4jlegacy.aws.provision": "a deadline of ssh's own",
    "dl4jlegacy.aws.session": "calls to AWS are waited for with pauses that are longer than a gap",
    "dl4jlegacy.cli.progress": "what is shown",
    "dl4jlegacy.cluster.registration": "a farewell, after which nobody is blamed",
    "dl4jlegacy.devices": "a trial of a GPU",
    "dl4jlegacy.nn.training.early_stopping": "how long a training took, for people",
    "dl4jlegacy.runner": "how long a training took, for people",
    "dl4jlegacy.scaleout.hazelcast.connection": "when a timer of the client goes off",
    "dl4jlegacy.scaleout.liveness.client": "silence, with a stall detector of its own",
    "dl4jlegacy.scaleout.liveness.server": "silence, with a stall detector of its own",
    "dl4jlegacy.scaleout.monitor": "silence, with a stall detector of its own",
    "dl4jlegacy.scaleout.worker_pool": "the end of actors in this process",
    "dl4jlegacy.scaleout.zookeeper.election": "a lease, which ends for others while this process is stopped",
    "dl4jlegacy.scaleout.zookeeper.scheduler": "when a step is due",
    "dl4jlegacy.scaleout.zookeeper.session": "a session, which ends for the server while this process is stopped",
}
"""Which modules may measure with a clock that goes on while their process is stopped, and why."""


def test_every_wait_that_blames_somebody_else_goes_by_the_process_own_clock() -> None:
    found = {
        name
        for name, path in MODULES.items()
        if name.startswith("dl4jlegacy") and "monotonic" in (source := path.read_text()) and reads_monotonic(source)
    }
    assert found == READ_BY.keys()


def reads_monotonic(source: str) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "monotonic")
        or (isinstance(node, ast.ImportFrom) and any(alias.name == "monotonic" for alias in node.names))
        for node in ast.walk(ast.parse(source))
    )


def test_a_wait_for_zookeeper_asks_for_short_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession

    asked = AskedSeconds(monkeypatch)
    with pytest.raises(TrackerError, match=r"did not answer within 0\.7 s"):
        ZooKeeperSession("127.0.0.1:1", deadline_seconds=0.7)
    waits = [seconds for seconds in asked.all if seconds <= 0.7]
    assert waits and max(waits) <= SLICE_SECONDS
