"""The cluster monitor: who is gone is known at once, told once, and what a lost member took is put back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.links.liveness.client import LivenessClient
from dl4jlegacy.scaleout.links.liveness.quorum import WORKER_TOPIC
from dl4jlegacy.scaleout.monitoring.monitor import GONE, LIVENESS, ClusterMonitor
from dl4jlegacy.scaleout.persistence.journal import Journal, JournalFile
from dl4jlegacy.scaleout.protocol import STEP, Steps
from dl4jlegacy.scaleout.state.records import HEAD, Head, Manifest, WorkerRecord, encode_record
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.storage.folders import LocalFolder


class Leadership:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.error: TrackerError | None = None
        self.answers = True
        self.asked, self.restored = threading.Event(), threading.Event()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def may_begin(self) -> Steps[bool]:
        yield STEP
        self.asked.set()
        self.check()
        return self.answers

    def may_hand_over(self) -> Steps[bool]:
        yield STEP
        return False

    def restore(self) -> None:
        self.restored.set()


class Watched:
    """A monitor under way, on a tracker in this process."""

    def __init__(self, folder: Path) -> None:
        self.tracker, self.leadership = InMemoryStateTracker(), Leadership()
        conf = Conf(run="r", min_workers=1, checkpoint_dir=str(folder))
        self.monitor = ClusterMonitor(
            conf,
            self.tracker,
            source="master-1",
            definitions={"plan": {"a": 1}},
            leadership=self.leadership,
            takes_over=False,
            bind="127.0.0.1",
            folder=LocalFolder(folder),
        )
        self.polled, self.failed = threading.Event(), threading.Event()

    def begin(self) -> None:
        self.monitor.begin(self.polled.set, lambda error: self.failed.set())

    def link(self, process: str) -> LivenessClient:
        return LivenessClient(lambda: self.tracker.get(LIVENESS), process, run="r", secret=None)

    def register(self, worker: str) -> None:
        self.tracker.add_worker(WorkerRecord(id=worker, host="h", pid=1, beat=time.monotonic()))
        self.tracker.store.publish(WORKER_TOPIC)

    def cut(self) -> None:
        """Break all connections, as a network would."""
        for connection in list(self.monitor._server._connected.values()):
            connection.socket.shutdown(socket.SHUT_RDWR)

    def events(self) -> list[str]:
        return [entry.event for entry in Journal.read(self.tracker)]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    with watched.monitor:
        watched.begin()
        yield watched


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        threading.Event().wait(0.01)


def test_a_worker_that_registers_counts_and_the_master_is_told(watched):
    assert not watched.monitor.quorum.is_met()
    watched.polled.clear()
    watched.register("p-0")
    assert watched.polled.wait(60)
    assert watched.monitor.live_count() == 1
    assert watched.monitor.quorum.is_met()


def test_a_process_whose_connection_breaks_is_gone_at_once_and_back_when_it_connects_anew(watched):
    link = watched.link("p").start()
    watched.register("p-0")
    wait_for(lambda: watched.monitor.live_count() == 1 and link.state == "alive")
    watched.cut()
    wait_for(lambda: {"worker_gone", "worker_back"} <= set(watched.events()))  # the link connects anew by itself
    assert not watched.monitor.is_gone("p-0")
    told = len(watched.events())
    link.close()
    wait_for(lambda: watched.monitor.is_gone("p-0"))
    assert len(watched.events()) == told  # it said good-bye, which is no failure


def test_of_several_that_go_each_is_told_before_anything_else_is_done(watched, monkeypatch):
    for worker in ("p-0", "q-0"):
        watched.register(worker)
    wait_for(lambda: watched.monitor.live_count() == 2)
    done: list[str] = []
    write = watched.monitor.journal.write

    def written(event: str, **fields: str) -> None:
        write(event, **fields)
        done.append(fields["process"])
        if fields["process"] == "p":
            watched.monitor._connection_changed("q", "closed")

    monkeypatch.setattr(watched.monitor.journal, "write", written)
    monkeypatch.setattr(watched.monitor, "_restore_globals", lambda: done.append("the rest"))
    watched.monitor._connection_changed("p", "closed")
    wait_for(lambda: "q" in done)
    assert done[done.index("p") :] == ["p", "q", *["the rest"] * (len(done) - done.index("q") - 1)]


def test_a_worker_that_is_gone_is_shown_for_a_while_and_then_removed(watched, monkeypatch):
    link = watched.link("p").start()
    watched.register("p-0")
    wait_for(lambda: watched.monitor.live_count() == 1 and link.state == "alive")
    link.close()
    wait_for(lambda: watched.tracker.get(GONE) == {"p": "left"})
    watched.leadership.restored.clear()
    assert watched.leadership.restored.wait(60)  # it has looked for those that are to be removed since
    assert [worker.id for worker in watched.tracker.workers()] == ["p-0"]
    monkeypatch.setattr("dl4jlegacy.scaleout.monitoring.monitor._STALE_SECONDS", 0.0)
    wait_for(lambda: not watched.tracker.workers())


def test_globals_that_a_member_took_along_are_put_back(watched):
    address = watched.tracker.get(LIVENESS)
    for key in ("plan", LIVENESS):
        watched.tracker.store.delete(f"global/{key}")
    watched.tracker.store.publish(WORKER_TOPIC)
    wait_for(lambda: watched.tracker.get("plan") == {"a": 1} and watched.tracker.get(LIVENESS) == address)


def test_a_registration_that_somebody_removed_is_put_back(watched):
    wait_for(watched.leadership.restored.is_set)


def test_another_master_ends_this_one(watched):
    watched.leadership.error = TrackerError("another master")
    watched.tracker.store.publish(WORKER_TOPIC)
    assert watched.failed.wait(60)


def test_a_master_that_stood_still_asks_whether_it_still_is_one(watched, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert watched.monitor.check_in()
    assert watched.monitor.check_in()
    assert not watched.leadership.asked.is_set()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60.0)
    watched.leadership.error = TrackerError("another master")
    with pytest.raises(TrackerError, match="another master"):
        watched.monitor.check_in()


def test_a_master_that_stood_still_does_not_begin_the_run_again_before_zookeeper_has_answered(watched, monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert watched.monitor.check_in()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60.0)
    watched.leadership.answers = False
    for _ in range(2):
        assert not watched.monitor.check_in()  # there is no head
    watched.tracker.store.put(HEAD, encode_record(Head(run="r", version=0, round=0, model=Manifest("m", 1, 1))))
    assert watched.monitor.check_in()
    watched.tracker.store.delete(HEAD)
    assert not watched.monitor.check_in()
    watched.leadership.answers = True
    assert watched.monitor.check_in()
    watched.leadership.answers = False
    assert watched.monitor.check_in()


def test_what_happened_is_news_once_and_is_kept_in_the_run_s_folder(watched, tmp_path: Path):
    Journal(watched.tracker, "p").write("worker_joined", worker="p")
    kept = JournalFile(LocalFolder(tmp_path))
    wait_for(
        lambda: (
            (tmp_path / JournalFile.NAME).exists() and [e.event for e in kept.read()] == ["run_began", "worker_joined"]
        )
    )
    assert [entry.event for entry in watched.monitor.news()] == ["run_began", "worker_joined"]
    assert watched.monitor.news() == ()


def test_a_next_master_adds_to_the_journal_s_copy_only_what_is_not_in_it(tmp_path: Path):
    first = Watched(tmp_path)
    with first.monitor:
        first.begin()
    second = Watched(tmp_path)
    second.tracker = second.monitor._tracker
    for entry in Journal.read(first.tracker):
        second.tracker.store.put(entry.key, first.tracker.store.get(entry.key))
    with second.monitor:
        second.begin()
    assert [entry.event for entry in JournalFile(LocalFolder(tmp_path)).read()] == ["run_began", "run_began"]


def test_jobs_given_to_others_are_told_by_reason_and_not_again_and_again(watched):
    for slot in range(5):
        watched.monitor.job_reissued((3, slot), "p-0", "slow")
    watched.monitor.job_reissued((3, 1), "p-0", "gone")
    wait_for(lambda: "lease_broken" in watched.events())
    entries = [entry for entry in Journal.read(watched.tracker) if entry.fields.get("worker") == "p-0"]
    assert [(e.event, e.fields["round"], e.fields["slot"]) for e in entries] == [
        ("backup_issued", 3, 0),
        ("lease_broken", 3, 1),
    ]


def test_no_process_is_gone_for_those_who_look_when_nothing_is_known(watched):
    assert not watched.monitor.is_gone("never-heard-of-0")
    assert watched.tracker.get(GONE) == {}
