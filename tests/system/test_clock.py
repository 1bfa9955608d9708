"""A process that was stopped blames nobody: deadlines count only time in which it ran."""

from __future__ import annotations

import ast
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pykka
import pytest
from botocore.exceptions import ClientError

from dl4jlegacy.arrays import devices
from dl4jlegacy.aws import provision
from dl4jlegacy.cluster import registration
from dl4jlegacy.errors import NotEnoughWorkersError, TrackerError
from dl4jlegacy.scaleout.actors import worker_pool
from dl4jlegacy.scaleout.hazelcast.retry_deadline import RetryDeadline
from dl4jlegacy.scaleout.links.liveness.quorum import Quorum
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.storage.s3.session import Aws, Clock
from dl4jlegacy.system import subprocesses as commands
from dl4jlegacy.system.clock import GAP_SECONDS, SLICE_SECONDS, Deadline, RunningClock
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


def test_a_wait_for_workers_is_no_standstill_and_does_not_end_one(machine: Machine) -> None:
    """Or workers that come and die in turn would keep a run from being given up."""
    outcome = Outcome(machine.clock)
    for is_excused in (False, True, False, True):
        machine.runs(50.0)
        outcome.look(is_excused=is_excused)
    assert outcome.idle_seconds == pytest.approx(100.0)
    outcome.progressed()
    assert outcome.idle_seconds == 0.0


def test_a_master_that_was_stopped_does_not_miss_its_workers(machine: Machine) -> None:
    quorum = Quorum("r", needed=1, wait_seconds=300.0, present=lambda: 0, clock=machine.clock.now)
    assert not quorum.is_met()
    machine.stops(86400.0)
    assert not quorum.is_met()
    machine.runs(300.0)
    with pytest.raises(NotEnoughWorkersError):
        quorum.is_met()


def test_a_process_that_was_stopped_amid_a_request_does_not_give_the_tracker_up(machine: Machine) -> None:
    patience = RetryDeadline("here:1", 20.0, machine.clock)
    begun = patience.begin()
    machine.stops(86400.0)
    assert patience.left(begun) >= 20.0 - GAP_SECONDS


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> Callable[[], None]:
    """Return what stops this process for an hour, whose waits ask this machine's clock; it goes on at once."""
    monkeypatch.setattr(time, "monotonic", lambda: machine.seconds)
    return lambda: machine.stops(3600.0)


def test_a_master_that_was_stopped_amid_its_farewell_looks_again(stop: Callable[[], None]) -> None:
    looks: list[bool] = []

    def is_gone() -> bool:
        stop()
        looks.append(len(looks) == 2)
        return looks[-1]

    registration._await(is_gone)
    assert looks == [False, False, True]


def test_a_process_that_was_stopped_amid_its_end_waits_for_its_actors(stop: Callable[[], None]) -> None:
    class Stopping:
        """An actor that has stopped when it is asked for the third time."""

        actor_class, asked = pykka.ThreadingActor, 0

        def is_alive(self) -> bool:
            return True

        def stop(self, *, block: bool) -> Stopping:
            return self

        def get(self, *, timeout: float) -> None:
            stop()
            self.asked += 1
            assert timeout <= SLICE_SECONDS
            if self.asked < 3:
                raise pykka.Timeout

    actors: list[Any] = [Stopping(), Stopping()]
    assert worker_pool.stop_actors(actors, timeout=20.0) == []
    assert [actor.asked for actor in actors] == [3, 3]


def test_a_process_that_was_stopped_amid_a_trial_does_not_give_the_gpu_up(stop: Callable[[], None]) -> None:
    class Event:
        """An event that has happened when it is looked at for the third time."""

        looks = 0

        def __init__(self, **options: bool) -> None:
            pass

        def record(self) -> None:
            pass

        @property
        def done(self) -> bool:
            stop()
            Event.looks += 1
            return Event.looks == 3

    devices._wait_for_trial(SimpleNamespace(cuda=SimpleNamespace(Event=Event)), 0)
    assert Event.looks == 3


def test_a_process_that_was_stopped_amid_a_remote_command_reads_it_to_its_end(stop: Callable[[], None]) -> None:
    class Channel:
        """A command's output; the command has ended when it is looked at for the third time."""

        eof_received, looks = True, 0

        def __init__(self, line: socket.socket) -> None:
            self.fileno = line.fileno

        def recv_ready(self) -> bool:
            stop()
            return False

        recv_stderr_ready = recv_ready

        def exit_status_ready(self) -> bool:
            self.looks += 1
            return self.looks == 3

        def recv_exit_status(self) -> int:
            return 7

    here, there = socket.socketpair()
    with here, there:
        there.send(b"readable")
        assert provision._read_to_end(Channel(here), 20.0).status == 7


def test_a_process_that_was_stopped_amid_a_command_lets_it_come_to_its_end(
    monkeypatch: pytest.MonkeyPatch, stop: Callable[[], None]
) -> None:
    communicate, asked = subprocess.Popen.communicate, []

    def communicate_late(process: Any, timeout: float) -> Any:
        stop()
        asked.append(timeout)
        if len(asked) < 3:
            raise subprocess.TimeoutExpired(process.args, timeout)
        return communicate(process)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate_late)
    done = commands.run_command([sys.executable, "-c", "print('out'); exit(7)"], 20.0)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "")
    assert max(asked) <= SLICE_SECONDS


def test_a_command_that_takes_too_long_is_killed() -> None:
    with pytest.raises(TimeoutError, match=r"was not done after 0\.3 s"):
        commands.run_command([sys.executable, "-c", "import time; time.sleep(60)"], 0.3)


class BlockingCall:
    """A call to AWS that says that it does not know a resource, after so many seconds; the clock is ``machine``'s.

    Args:
        machine: another thread's readings of its clock let a second pass.
        seconds: that the call blocks.
        stops: whether the process is stopped for an hour when the call has ended.
    """

    def __init__(self, machine: Machine, seconds: float, *, stops: bool) -> None:
        self.machine, self.seconds, self.stops, self.count = machine, seconds, stops, 0
        self._caller, self._passed, self._over = threading.get_ident(), 0.0, threading.Event()

    def now(self) -> float:
        if threading.get_ident() != self._caller and not self._over.is_set():
            self.machine.seconds += GAP_SECONDS
            self._passed += GAP_SECONDS
            if self._passed >= self.seconds:
                self._over.set()
        return self.machine.clock.now()

    def __call__(self) -> str:
        self._passed, self.count = 0.0, self.count + 1
        self._over.clear()
        assert self._over.wait(30), "nobody reads the clock while a call blocks"
        if self.stops:
            self.machine.stops(3600.0)
        raise ClientError({"Error": {"Code": "NotYet"}}, "Describe")


@pytest.mark.parametrize("stops", [False, True])
def test_a_deadline_of_aws_counts_calls_that_block_but_not_when_the_process_is_stopped(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, stops: bool
) -> None:
    monkeypatch.setattr("dl4jlegacy.system.clock.SLICE_SECONDS", 0.001)
    call = BlockingCall(machine, 20.0, stops=stops)
    with (
        Aws("us-east-1", clock=Clock(now=call.now, wait=lambda seconds: None)) as aws,
        pytest.raises(ClientError, match="NotYet"),
    ):
        aws.eventually(call, {"NotYet"}, seconds=59.0)
    assert call.count == 3


REALLY_STOPPED = """
import sys, threading, time
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.scaleout.hazelcast.link import LateError, Reply
reply, deadline, asked = Reply("here:1"), Deadline(6.0), time.monotonic()
def read():
    sys.stdin.readline()
    reply.set_result("answered")
threading.Thread(target=read, daemon=True).start()
def wait(seconds):
    global asked
    before, asked = asked, time.monotonic()
    print("goes on" if asked - before > 6.0 else "waits", flush=True)
    try:
        return bool(reply.wait(seconds))
    except LateError:
        return False
print("in time" if deadline.wait(wait) else "blames the server", flush=True)
"""


STOPPED_WITH_AWS = """
from botocore.exceptions import ClientError
from dl4jlegacy.storage.s3.session import Aws
calls = iter((False, False, True))
def call():
    print("asks", flush=True)
    if not next(calls):
        raise ClientError({"Error": {"Code": "NotYet"}}, "Describe")
    return "known"
with Aws("us-east-1") as aws:
    print(aws.eventually(call, {"NotYet"}, seconds=6.0), flush=True)
"""


@contextlib.contextmanager
def really_stopped(code: str, first: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is stopped, once it has said its first line, for longer than the six seconds of its deadline."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == first
        waiting.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        until(lambda: time.monotonic() - stopped > 8.0)
        waiting.send_signal(signal.SIGCONT)
        yield waiting


@pytest.mark.long
def test_a_process_that_is_really_stopped_while_it_waits_for_aws_asks_again() -> None:
    with really_stopped(STOPPED_WITH_AWS, "asks\n") as waiting:
        said, _ = waiting.communicate(timeout=60)
    assert said == "asks\nasks\nknown\n"


@pytest.mark.long
def test_a_process_that_is_really_stopped_for_longer_than_its_deadline_hears_the_answer() -> None:
    with really_stopped(REALLY_STOPPED, "waits\n") as waiting:
        assert waiting.stdout is not None
        line = next(line for line in waiting.stdout if line != "waits\n")
        said, _ = waiting.communicate("now\n", timeout=60)
    assert line == "goes on\n"
    assert said.split("\n")[-2] == "in time"


# --- the sweep --------------------------------------------------------------------------------------------------------

READ_BY = {
    "dl4jlegacy.system.clock": "it is the clock that all others wait by",
    "dl4jlegacy.cli.terminal.progress": "what is shown",
    "dl4jlegacy.datasets.read_ahead": "how long reading took, and so whether a thread is worth it",
    "dl4jlegacy.kernels.compilation": "how long a compilation took, for people",
    "dl4jlegacy.kernels.numba.team": "how long a look for work takes, and its own threads take to end",
    "dl4jlegacy.nn.compiling.warm_up": "how long a compilation took, for people",
    "dl4jlegacy.nn.listeners": "how long iterations took, for people",
    "dl4jlegacy.nn.fitting.early_stopping": "how long a training took, for people",
    "dl4jlegacy.training.execution": "how long a training took, for people",
    "dl4jlegacy.scaleout.hazelcast.connection": "when a timer of the client goes off",
    "dl4jlegacy.scaleout.persistence.jsonl": "for how long its writer rests, which nobody is blamed for",
    "dl4jlegacy.scaleout.links.liveness.client": "silence, with a stall detector of its own",
    "dl4jlegacy.scaleout.links.liveness.server": "silence, with a stall detector of its own",
    "dl4jlegacy.scaleout.phases": "when phases began, for people",
    "dl4jlegacy.scaleout.monitoring.still_leader": "that it was stopped itself, with a stall detector",
    "dl4jlegacy.scaleout.monitoring.monitor": "silence, with a stall detector of its own",
    "dl4jlegacy.scaleout.zookeeper.election": "a lease, which ends for others while this process is stopped",
    "dl4jlegacy.scaleout.zookeeper.scheduler": "when a step is due",
    "dl4jlegacy.scaleout.zookeeper.session": "a session, which ends for the server while this process is stopped",
}
"""Which modules may measure with a clock that goes on while their process is stopped, and why."""


def test_every_wait_that_blames_somebody_else_goes_by_the_process_own_clock() -> None:
    found = {
        name for name, path in MODULES.items() if name.startswith("dl4jlegacy") and reads_monotonic(path.read_text())
    }
    assert found == READ_BY.keys()


SLEEPS = {
    "dl4jlegacy.storage.s3.session": "while somebody else reads the clock",
    "dl4jlegacy.cli.commands.inspect": "follows a journal, with no deadline",
    "dl4jlegacy.cluster.address": "short slices of a deadline",
    "dl4jlegacy.cluster.leadership": "short slices of a deadline",
    "dl4jlegacy.cluster.registration": "short slices of a deadline",
    "dl4jlegacy.cluster.runs": "what lives makes itself seen meanwhile",
    "dl4jlegacy.cluster.search_trials": "short slices of a deadline",
    "dl4jlegacy.cluster.worker": "short slices of a deadline",
    "dl4jlegacy.arrays.devices": "short slices of a deadline",
    "dl4jlegacy.kernels.numba.compile": "short slices of a deadline",
    "dl4jlegacy.scaleout.persistence.run_folder": "short slices of a deadline",
    "dl4jlegacy.scaleout.zookeeper.configuration": "short slices of a deadline",
    "dl4jlegacy.services.jars": "short slices of a deadline",
    "dl4jlegacy.services.processes": "short slices of a deadline",
    "dl4jlegacy.services.servers": "short slices of a deadline",
    "dl4jlegacy.services.supervisor": "short slices of a deadline",
}
"""Which modules may sleep, for how long a wait does not read the clock otherwise, and why."""


def test_nobody_sleeps_but_for_short_slices() -> None:
    found = {
        name
        for name, path in MODULES.items()
        if name.startswith("dl4jlegacy") and names_of_time(path.read_text()) & {"sleep"}
    }
    assert found == SLEEPS.keys()


LIMITED_COMMANDS = {
    "dl4jlegacy.aws.watch": "reads a journal, and does so again in five minutes",
}
"""Which modules may run a command with a limit of ``subprocess.run``, which counts on while this process is stopped."""


def test_commands_get_the_time_that_this_process_ran() -> None:
    found = {name for name, path in MODULES.items() if name.startswith("dl4jlegacy") and limits_runs(path.read_text())}
    assert found == LIMITED_COMMANDS.keys()


def limits_runs(source: str) -> bool:
    """Return whether a module runs a command with a limit."""
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("run", "call", "check_call", "check_output")
        and any(given.arg == "timeout" for given in node.keywords)
        for node in (ast.walk(ast.parse(source)) if "subprocess" in source else ())
    )


def reads_monotonic(source: str) -> bool:
    """Return whether a module reads a clock that goes on while its process is stopped."""
    clocks = {"monotonic", "perf_counter", "clock_gettime", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME"}
    return bool(names_of_time(source) & {*clocks, *(f"{clock}_ns" for clock in clocks)})


def names_of_time(source: str) -> set[str]:
    """Return which attributes of modules, and names of the module ``time``, a module uses."""
    found = set()
    for node in ast.walk(ast.parse(source)) if "time" in source else ():
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import time\nend = time.monotonic() + 3",
        "import time as t\nclock = t.monotonic_ns",
        "from time import monotonic as now",
        "import time\ntime.perf_counter()",
        "import time\ntime.clock_gettime(time.CLOCK_MONOTONIC)",
    ],
)
def test_the_sweep_finds_every_way_to_a_clock_that_is_not_the_process_own(source: str) -> None:
    assert reads_monotonic(source)


def test_a_wait_for_zookeeper_asks_for_short_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession

    asked = AskedSeconds(monkeypatch)
    with pytest.raises(TrackerError, match=r"did not answer within 0\.7 s"):
        ZooKeeperSession("127.0.0.1:1", deadline_seconds=0.7)
    waits = [seconds for seconds in asked.all if seconds <= 0.7]
    assert waits and max(waits) <= SLICE_SECONDS
