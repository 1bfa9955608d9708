"""Faults under a run over processes: servers that die, sessions that expire, frames that are not the run's.

Whatever happens, the run ends with the embedded tracker's parameters and every batch counted once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_cluster import COMMAND, RUN, SECRET, Cluster

from dl4jlegacy.scaleout.hazelcast_link import HazelcastLink
from dl4jlegacy.scaleout.hazelcast_store import HazelcastStateTracker
from dl4jlegacy.scaleout.records import Head, Manifest
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession
from dl4jlegacy.scaleout.zookeeper.membership import group_path
from dl4jlegacy.services import Services, ServicesState

pytestmark = pytest.mark.cluster

EPOCHS = ("--epochs", "12")
SECONDS = 120.0
GARBAGE = b"\x80\x04" + bytes(range(256)) * 4


@pytest.fixture(scope="module")
def embedded() -> dict:
    """What the embedded tracker says."""
    done = subprocess.run(
        [*COMMAND, "train", *RUN, *EPOCHS, "--format", "json"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return json.loads(done.stdout)


class Run(Cluster):
    """A run whose state can be looked at, and whose processes write what they have to say into files."""

    def __init__(self, servers: ServicesState, name: str, folder: Path) -> None:
        super().__init__(servers.hazelcast, servers.zookeeper, servers.cluster_name)
        self.servers, self.name, self._folder = servers, name, folder
        self._closing = contextlib.ExitStack()
        self._tracker: HazelcastStateTracker | None = None

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        said = self._closing.enter_context((self._folder / f"{len(self._started)}.stderr").open("w"))
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, "DL4J_SECRET": SECRET},
        )
        self._started.append(process)
        return process

    def begin(self, workers: int = 2) -> tuple[subprocess.Popen[str], list[subprocess.Popen[str]]]:
        """Start a master and workers; return them in the middle of the run."""
        master = self.master(*EPOCHS, "--run", self.name)
        started = [self.worker() for _ in range(workers)]
        self.wait_until(lambda: self.head_now() is not None)
        self.advances(8)
        return master, started

    def said(self, process: subprocess.Popen[str]) -> str:
        """Return what a process has written to stderr so far."""
        return (self._folder / f"{self._started.index(process)}.stderr").read_text()

    @property
    def tracker(self) -> HazelcastStateTracker:
        if self._tracker is None:
            self._tracker = HazelcastStateTracker(
                self.servers.hazelcast, cluster_name=self.servers.cluster_name, run=self.name, secret=SECRET.encode()
            )
            self._closing.callback(self._tracker.shutdown)
        return self._tracker

    def head_now(self) -> Head | None:
        return self.tracker.head()

    def wait_until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        end, pause = time.monotonic() + seconds, threading.Event()
        while not condition():
            dead = [p for p in self._started if p.poll() not in (None, 0, -signal.SIGKILL)]
            assert not dead, self.said(dead[0])
            assert time.monotonic() < end, f"not within {seconds} s: {''.join(map(self.said, self._started))}"
            pause.wait(0.01)

    def advances(self, rounds: int, seconds: float = SECONDS) -> None:
        """Wait until the run is so many rounds further; assert that it is not over then."""
        head = self.head_now()
        begin = 0 if head is None else head.round

        def there() -> bool:
            head = self.head_now()
            assert head is not None
            assert head.status == "running", "the run is over before anything could happen to it; make it longer"
            return head.round >= begin + rounds

        self.wait_until(there, seconds)

    def same(self, master: subprocess.Popen[str], expected: dict) -> None:
        """Assert that the run ends as it should."""
        out, _ = master.communicate(timeout=SECONDS)
        assert master.returncode == 0, self.said(master)
        report = json.loads(out)
        assert report["params_sha256"] == expected["params_sha256"]
        assert (report["batches_lost"], report["batches_duplicated"]) == (0, 0)
        assert report["examples"] == expected["examples"]

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        try:
            super().end()
        finally:
            self._closing.close()


@pytest.fixture
def run_on(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[ServicesState], Run]]:
    """Prepare a run on given servers; all its processes are ended with the test."""
    with contextlib.ExitStack() as stack:

        def prepare(servers: ServicesState) -> Run:
            run = Run(servers, f"faults-{time.monotonic_ns()}", tmp_path)
            stack.callback(run.end)
            return run

        yield prepare


# --- servers ---------------------------------------------------------------------------------------------------------


def test_one_of_two_members_is_killed_comes_back_and_the_other_one_is_killed(own_services, run_on, embedded) -> None:
    servers = own_services(members=2)
    run = run_on(servers)
    master, workers = run.begin()
    os.kill(servers.pids["hazelcast-1"], signal.SIGKILL)
    run.advances(5)
    Services.restart("hazelcast-1", Path(servers.folder))  # returns once it has joined and holds its share
    run.advances(5)
    os.kill(servers.pids["hazelcast-2"], signal.SIGKILL)
    run.advances(5)
    run.same(master, embedded)
    for worker in workers:
        worker.communicate(timeout=SECONDS)
        assert worker.returncode == 0, run.said(worker)


def test_zookeeper_is_away_for_a_while_and_the_run_goes_on(own_services, run_on, embedded) -> None:
    servers = own_services()
    run = run_on(servers)
    master, _ = run.begin()
    os.kill(servers.pids["zookeeper"], signal.SIGKILL)
    run.advances(10)
    Services.restart("zookeeper", Path(servers.folder))
    late = run.worker()
    name = f"-{late.pid}-"
    run.wait_until(lambda: any(name in worker.id for worker in run.tracker.workers()))
    run.same(master, embedded)


# --- sessions with Zookeeper -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def frozen(process: subprocess.Popen[str]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("role", ["worker", "master"])
def test_a_process_loses_its_session(role: str, session_services, run_on, embedded) -> None:
    run = run_on(session_services)
    master, workers = run.begin()
    with ZooKeeperSession(session_services.zookeeper, secret=SECRET.encode()) as session:
        folder, process = ("election", master) if role == "master" else ("workers", workers[0])

        def node() -> tuple[str, int]:
            """Return the process's ephemeral node, and the number of the session that keeps it."""
            where = group_path("master", folder)
            for name in session.children(where) or []:
                found = session.get(f"{where}/{name}")
                if found is not None and (role == "master" or f"-{process.pid}-" in name):
                    return name, found.owner
            return "", 0

        name, owner = node()
        assert name
        with frozen(process):  # until Zookeeper has forgotten it
            run.wait_until(lambda: node()[1] != owner)
        run.wait_until(lambda: node()[1] not in (0, owner))
        run.advances(3)
    run.same(master, embedded)


# --- frames ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def vandal(run: Run) -> Iterator[Callable[[Manifest], None]]:
    """Give a writer of garbage over a frame's chunks, which does not know the secret."""
    link = HazelcastLink(run.servers.hazelcast.split(","), run.servers.cluster_name, run.tracker.store.map_name)
    try:
        run.wait_until(link.connected)

        def write(manifest: Manifest) -> None:
            for index in range(manifest.chunks):
                link.set(f"{manifest.key}/{index}", b"", GARBAGE).wait(10)

        yield write
    finally:
        link.close()


def test_a_corrupt_frame_over_the_model(session_services, run_on, embedded) -> None:
    run = run_on(session_services)
    master, workers = run.begin()
    for worker in workers:
        worker.kill()  # who has the model already would not look at it again
        worker.wait(10)
    with vandal(run) as write:
        head = run.head_now()
        assert head is not None
        write(head.model)
        late = run.worker()
        run.wait_until(lambda: "is refused" in run.said(late))
        run.advances(3)
    run.same(master, embedded)
