"""The project's commands as processes on one set of servers, for the tests of the cluster."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from dl4jlegacy.cli.commands.inspect import STALLED
from dl4jlegacy.cluster.address import find_incarnation
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.protocol import NAMES, listed_runs
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession
from dl4jlegacy.scaleout.zookeeper.permissions import CLOCK, ENDED, ROOT
from dl4jlegacy.services import ServicesState
from tests.support import REPOSITORY
from tests.support.forked_commands import ForkedProcess, Forks
from tests.support.progress_lines import without_progress

__all__ = [
    *("COMMAND", "LONG", "RUN", "SECRET", "SHORTER", "Cluster", "Command"),
    *("cluster", "embedded", "error", "freeze", "nodes_below", "on_own", "same", "servers", "spawn", "until"),
]

COMMAND = [sys.executable, "-m", "dl4jlegacy"]
RUN = ["--model", "dbn", "--dataset", "digits", "--jobs-per-round", "4", "--seed", "7", "--pretrain-epochs", "1"]
RUN += ["--no-validation"]
LONG = "500"
"""Epochs of a run that somebody ends: more than it ever gets to."""
SHORTER = "3"
"""Epochs of a run that has to come to its end: some 115 rounds. If it must not do so too soon, hold it."""
SECRET = "a secret of this test"
STANDING = re.compile(rf"{ROOT}|{CLOCK}|{ENDED}.*|/[^/]+:[0-9]+(/tmp)?")
"""What stays in Zookeeper: the folders that its server makes, and the records of ends, which go after a while."""
HOLDS = """
import pathlib as held_pathlib, threading as held_threading
import dl4jlegacy.scaleout.workers.perform as held_module
unheld, held_from = held_module.MultiLayerNetworkPerformer.perform, held_pathlib.Path({held_from!r})
def is_held(job):
    try:
        return job.slot.round >= int(held_from.read_text())
    except FileNotFoundError:
        return False
def hold(self, job):
    while is_held(job):
        held_threading.Event().wait(0.01)
    return unheld(self, job)
held_module.MultiLayerNetworkPerformer.perform = hold
"""
"""A worker that begins no job of the round in a file, or of a later one, while there is such a file."""


def until(condition: Callable[[], object], seconds: float = 180.0, what: str = "") -> float:
    """Wait until ``condition()`` is true; return how many seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, f"not within {seconds} s: {what or condition}"
        time.sleep(0.01)
    return time.monotonic() - began


def freeze(pid: int) -> None:
    """Stop a process, and wait until it stands: on a busy machine it may answer for a while after the signal."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, what=f"process {pid} is stopped")


class Command:
    """A process of ``dl4j``, whose output goes to files, so that it can be read as it comes."""

    process: subprocess.Popen[bytes] | ForkedProcess

    def __init__(self, arguments: list[str], folder: Path, start: Callable[[IO[str], IO[str]], Any]) -> None:
        self.arguments, self.out_file, self.err_file = arguments, folder / "out", folder / "err"
        folder.mkdir()
        with self.out_file.open("w") as out, self.err_file.open("w") as err:
            self.process = start(out, err)
        self.pid = self.process.pid

    def out(self) -> str:
        return self.out_file.read_text()

    def err(self) -> str:
        return self.err_file.read_text()

    def wait(self, seconds: float = 180.0) -> int:
        """Wait for the end; return the exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.arguments} did not end in {seconds} s; it said:\n{self.out()}\n{self.err()}")

    def says(self, words: str, seconds: float = 180.0) -> float:
        """Wait until it has printed that on stderr."""
        return until(lambda: words in self.err(), seconds, f"{words!r} of {self.arguments}; it said: {self.err()}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)


def spawn(words: list[str], env: dict[str, str]) -> Callable[[IO[str], IO[str]], subprocess.Popen[bytes]]:
    """Return a function that starts a program of its own with these streams."""

    def begin(out: IO[str], err: IO[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=REPOSITORY, env=env)

    return begin


class PresentStore:
    """The store of whichever incarnation has the name of a run at the moment."""

    def __init__(self, names: HazelcastStore, run: str, seen: set[tuple[str, str]]) -> None:
        self._names, self._run, self._seen = names, run, seen

    def __getattr__(self, name: str) -> Any:
        present = (self._run, find_incarnation(self._names, self._run))
        self._seen.add(present)
        return getattr(self._names.sibling(*present), name)


class Cluster:
    """Starts commands against one set of servers, ends them all, and looks at what they leave."""

    def __init__(self, forks: Forks, hazelcast_address: str, zookeeper: str, cluster_name: str, folder: Path) -> None:
        self._forks = forks
        self.hazelcast, self.zookeeper, self.cluster_name, self.folder = (
            *(hazelcast_address, zookeeper, cluster_name, folder),
        )
        self.master_flags = [
            *("--tracker", f"hazelcast://{hazelcast_address}", "--cluster-name", cluster_name),
            *("--zookeeper", zookeeper),
        ]
        self._started: list[Command] = []
        self._numbers = itertools.count()
        self._runs: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._held_from = folder / "held-from"
        self.run = ""

    def hold(self, round_: int) -> None:
        """Let the runs go on up to this round only, whose jobs wait with their workers until they are let go.

        What has to happen in the middle of a run then does, however fast it is and however slowly what happens to it.
        It takes workers that are started after the first such call, at any later one or :meth:`let_go` all of them.
        """
        whole = self._held_from.with_suffix(".new")
        whole.write_text(str(round_))
        whole.replace(self._held_from)

    def hold_in(self, round_: int) -> None:
        """Let the run that was started last go on up to this round, and wait until it is there.

        Or until all its workers wait: where jobs are bound to no model, they may leave an older one for later.
        """
        self.hold(round_)
        with self.tracker(self.run) as tracker:

            def is_there() -> bool:
                head, jobs = tracker.head(), [worker.job for worker in tracker.workers()]
                all_wait = bool(jobs) and all(job and int(job.partition("/")[0]) >= round_ for job in jobs)
                return head is not None and (head.round >= round_ or all_wait)

            until(is_there, what=f"round {round_}")

    def is_held(self) -> bool:
        """Whether runs go on up to some round only."""
        return self._held_from.exists()

    def let_go(self) -> None:
        """Let all runs go on to their end."""
        self._held_from.unlink()

    def start(
        self,
        *arguments: str,
        patch: str = "",
        env: dict[str, str] | None = None,
        program: list[str] = COMMAND,
    ) -> Command:
        """Start a command; ``patch`` is Python that its process, a fresh one, runs before anything is imported."""
        number = next(self._numbers)
        if "--run" in arguments:
            self.run = arguments[arguments.index("--run") + 1]
            self._runs.add(self.run)
        given = {**os.environ, "DL4J_SECRET": SECRET, **(env or {})}
        hold = HOLDS.format(held_from=str(self._held_from)) if self._held_from.exists() else ""

        def begin(out: IO[str], err: IO[str]) -> Any:
            if program == COMMAND and not patch and self._forks.can(given):
                return self._forks.start(list(arguments), given, out, err, hold)
            if patch or hold:
                site = self.folder / f"site-{number}"
                site.mkdir()
                (site / "sitecustomize.py").write_text(patch + hold)
                given["PYTHONPATH"] = f"{site}:{REPOSITORY}"
            return spawn([*program, *arguments], given)(out, err)

        command = Command(list(arguments), self.folder / f"command-{number}", begin)
        self._started.append(command)
        return command

    def master(self, *flags: str, run: list[str] = RUN, env: dict[str, str] | None = None) -> Command:
        named = () if "--run" in flags else ("--run", f"run-{next(self._numbers)}")
        return self.start("master", *run, *self.master_flags, *named, *flags, "--format", "json", env=env)

    def worker(self, *flags: str, patch: str = "", env: dict[str, str] | None = None) -> Command:
        return self.start("worker", "--zookeeper", self.zookeeper, *flags, patch=patch, env=env)

    def ask(self, command: str, *flags: str, seconds: float = 180.0, patch: str = "") -> Command:
        """Run ``status``, ``logs``, ``stop`` or ``resume`` to its end."""
        started = self.start(command, *flags, "--zookeeper", self.zookeeper, patch=patch)
        started.wait(seconds)
        return started

    def status(self, *flags: str) -> dict:
        """Return the JSON of ``dl4j status``; {} if there is no run."""
        shown = self.ask("status", *flags, "--format", "json")
        return json.loads(shown.out()) if shown.process.returncode in (0, STALLED) else {}

    @contextlib.contextmanager
    def grid(self) -> Iterator[HazelcastStore]:
        """Connect to what all runs share."""
        given = {"cluster_name": self.cluster_name, "run": NAMES, "secret": SECRET.encode()}
        store = HazelcastStore(self.hazelcast, **given, deadline_seconds=90.0)  # a member may have been frozen
        try:
            yield store
        finally:
            store.close()

    @contextlib.contextmanager
    def tracker(self, run: str) -> Iterator[StateTracker]:
        """Open the tracker of whichever incarnation has the name of a run; an empty one while there is none."""
        with self.grid() as names:
            yield StateTracker(PresentStore(names, run, self._seen))

    def wait_for_round(self, round_: int, run: str = "", seconds: float = 180.0) -> None:
        """Wait until a run (by default the one started last) has come so far."""
        with self.tracker(run or self.run) as tracker:

            def is_there() -> bool:
                head: Head | None = tracker.head()
                return head is not None and head.round >= round_

            until(is_there, seconds, f"round {round_}")

    def left_over(self) -> list[str]:
        """Return what of ours is in the grid or in Zookeeper, but for the records of ends, which stay for a while."""
        return [*self._left_in_grid(), *self._left_in_zookeeper()]

    def left_at_end(self) -> list[str]:
        """Wait for all processes to end, and return what of ours is still there.

        A worker that joins while the run ends takes back what it wrote, but only after the master has left.
        """
        for command in self._started:
            command.wait()
        return self.left_over()

    def _left_in_grid(self) -> list[str]:
        with self.grid() as names:
            kept = [f"{NAMES}: {run}" for run in self._runs if find_incarnation(names, run)]
            kept += [f"{NAMES}: {run}/{nonce}" for run, nonce in listed_runs(names.keys("")) if run in self._runs]
            spaces = {f"{run}.{incarnation}": names.sibling(run, incarnation) for run, incarnation in self._seen}
            return kept + [f"{space}: {key}" for space, store in spaces.items() for key in store.keys("")]

    def _left_in_zookeeper(self) -> list[str]:
        with ZooKeeperSession(self.zookeeper, secret=SECRET.encode()) as session:
            return [path for path in nodes_below(session, "/") if not STANDING.fullmatch(path)]

    def take_back(self, run: str) -> None:
        """Take back at the end what is left of a run that others begin."""
        self._runs.add(run)

    def end(self) -> None:
        """Kill what still runs, and take back what it left, so that the next test finds no run."""
        for command in self._started:
            command.end()
        with self.grid() as names:
            self._seen |= {(run, find_incarnation(names, run)) for run in self._runs}
            self._seen |= {found for found in listed_runs(names.keys("")) if found[0] in self._runs}
            for run, incarnation in self._seen:
                names.sibling(run, incarnation).destroy()
                names.delete_many([run, f"{run}/{incarnation}"])
        self.clear_zookeeper()

    def clear_zookeeper(self) -> None:
        """Delete all of this package's nodes."""
        with ZooKeeperSession(self.zookeeper, secret=SECRET.encode()) as session:
            for path in reversed(list(nodes_below(session, "/"))):
                if not STANDING.fullmatch(path):
                    session.delete(path)


def nodes_below(session: ZooKeeperSession, path: str) -> Iterator[str]:
    """Yield the paths of all nodes of ours below one, parents first."""
    for name in session.children(path) or []:
        below = f"{path.rstrip('/')}/{name}"
        if below != "/zookeeper":
            yield below
            yield from nodes_below(session, below)


@pytest.fixture
def cluster(
    forks: Forks, hazelcast_address: str, hazelcast_cluster_name: str, zookeeper_address: str, tmp_path: Path
) -> Iterator[Cluster]:
    cluster = Cluster(forks, hazelcast_address, zookeeper_address, hazelcast_cluster_name, tmp_path)
    cluster.clear_zookeeper()  # of what tests of Zookeeper itself have left
    yield cluster
    cluster.end()


@pytest.fixture
def servers(own_services: Callable[..., ServicesState]) -> ServicesState:
    """Servers of the test's own."""
    return own_services()


@pytest.fixture
def on_own(forks: Forks, servers: ServicesState, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose servers may be killed."""
    cluster = Cluster(forks, servers.hazelcast, servers.zookeeper, servers.cluster_name, tmp_path)
    yield cluster
    cluster.end()


@functools.cache
def embedded(epochs: int) -> dict:
    """Return the embedded tracker's report."""
    done = subprocess.run(
        [*COMMAND, "train", *RUN, "--epochs", str(epochs), "--format", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=REPOSITORY,
    )
    return json.loads(done.stdout)


def same(command: Command, epochs: int, seconds: float = 300.0) -> dict:
    """Assert that a master ends well, with the same answer as the embedded tracker and every batch counted once."""
    assert command.wait(seconds) == 0, command.err()
    report, expected = json.loads(command.out()), embedded(epochs)
    assert report["params_sha256"] == expected["params_sha256"]
    assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
    assert report["examples"] == expected["examples"]
    return report


def error(command: Command, status: int, *words: str, seconds: float = 180.0) -> str:
    """Assert that a command ends with that exit status and one message that has the words; return the message."""
    assert command.wait(seconds) == status, command.err()
    message = without_progress(command.err())
    assert "Traceback" not in message
    missing = [word for word in words if not re.search(re.escape(word), message)]
    assert not missing, f"{missing} not in {message}"
    return message
