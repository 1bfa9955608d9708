"""The summary of a run on a cluster: what its records say, each job, failure and take-over counted once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dl4jlegacy import IrisDataSetIterator, read_history
from dl4jlegacy.cli.terminal.run_table import run_table
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.outcome import TrainingResult
from dl4jlegacy.scaleout.monitoring.run_summary import RunSummary, WorkerSummary, summarize
from dl4jlegacy.scaleout.persistence.history import Share, add_shares
from dl4jlegacy.scaleout.persistence.journal import Journal, JournalEntry, JournalFile
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.scaleout.state.records import Head, Manifest
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.training.execution import RunExecution
from dl4jlegacy.training.run import resolve
from tests.scaleout.test_monitor import Leadership, Watched, wait_for

HEAD = Head(run="r", version=9, round=9, model=Manifest("", 0, 0), batches=36, examples=576, status="done")


def entry(ran: float, event: str, source: str = "master-1", *, number: int = 0, **fields: Any) -> JournalEntry:
    key = f"log/{number or int(ran * 1e6):020}/{source}"
    return JournalEntry(key=key, time=5e8, source=source, host="h", pid=1, event=event, fields=fields, ran=ran)


def summary(*entries: JournalEntry, shares: dict[str, Share] | None = None, **given: Any) -> RunSummary:
    arguments: dict[str, Any] = {"reissued": {}, "source": "master-1", "now": 100.0, "seconds": 7.0, **given}
    return summarize(HEAD, shares or {}, entries, **arguments)


def of(found: RunSummary, worker: str) -> WorkerSummary:
    (one,) = (each for each in found.workers if each.worker == worker)
    return one


def test_each_worker_has_what_it_did_and_what_happened_to_it() -> None:
    found = summary(
        entry(10.0, "run_began"),
        entry(11.0, "worker_joined", "a", worker="a", threads=2),
        entry(20.0, "job_failed", "a", worker="a-0", round=1, slot=0),
        entry(21.0, "job_failed", "a", worker="a-0", round=1, slot=0),
        entry(30.0, "worker_gone", process="a", silent_seconds=2.0, reason="frozen"),
        entry(40.0, "worker_back", process="a"),
        entry(90.0, "worker_gone", process="b", silent_seconds=0.5, reason="killed"),
        shares={"a-0": Share(10, 160, 2.0), "b-0": Share(26, 416, 0.0)},
        reissued={("b-0", "slow"): 3, ("b-0", "gone"): 1},
    )
    assert [each.worker for each in found.workers] == ["a-0", "a-1", "b-0"]
    assert of(found, "a-0") == WorkerSummary(
        worker="a-0",
        jobs=10,
        examples=160,
        seconds=2.0,
        examples_per_second=80.0,
        failures=2,
        lost_jobs=0,
        lost_seconds=12.0,
    )
    assert (of(found, "a-1").jobs, of(found, "a-1").examples_per_second) == (0, None)
    assert (of(found, "b-0").lost_jobs, of(found, "b-0").lost_seconds) == (4, 10.5)
    assert of(found, "b-0").examples_per_second is None  # its clock says that it took no time
    assert (found.jobs, found.failures, found.backup_jobs, found.broken_leases) == (36, 2, 3, 1)
    assert (found.rounds, found.batches, found.examples, found.seconds) == (9, 36, 576, 7.0)


def test_what_masters_before_gave_away_is_in_the_journal_and_is_counted_once() -> None:
    found = summary(
        entry(1.0, "run_began", "master-0"),
        entry(2.0, "backup_issued", "master-0", worker="a-0", reason="slow", others=4),
        entry(3.0, "lease_broken", "master-0", worker="a-0", reason="expired"),
        entry(4.0, "master_took_over"),
        entry(5.0, "backup_issued", worker="a-0", reason="slow"),
        entry(6.0, "master_took_over", "master-2"),
        reissued={("a-0", "slow"): 2},
    )
    assert (found.backup_jobs, found.broken_leases, found.take_overs) == (7, 1, 2)
    assert of(found, "a-0").lost_jobs == 8


def test_pauses_are_added_up_and_one_that_lasts_counts_to_the_end() -> None:
    found = summary(entry(1.0, "paused"), entry(4.0, "went_on"), entry(98.5, "paused"))
    assert found.paused_seconds == 4.5


def test_what_begins_with_one_master_and_ends_with_another_is_counted_by_both_of_their_clocks() -> None:
    """The wall clocks say nothing of it, nor do those that count how long a process has run, of each other."""
    found = summary(
        entry(5000.0, "run_began", "master-0", number=1),
        entry(5001.0, "paused", "master-0", number=2),
        entry(5004.0, "worker_gone", "master-0", number=3, process="b", silent_seconds=1.0),
        entry(20.0, "master_took_over", number=4),
        entry(22.0, "went_on", number=5),
        entry(23.0, "worker_back", number=6, process="b"),
        now=24.0,
        shares={"b-0": Share(1, 1, 1.0)},
    )
    assert found.paused_seconds == 3.0 + 2.0
    assert of(found, "b-0").lost_seconds == 1.0 + 3.0


def test_a_run_took_as_long_as_all_its_masters_have_led_it() -> None:
    led = msgspec.structs.replace(HEAD, seconds=50.0)
    for head, seconds in ((led, 50.0), (HEAD, 7.0)):
        arguments: dict[str, Any] = {"reissued": {}, "source": "master-1", "now": 100.0, "seconds": 7.0}
        assert summarize(head, {}, [entry(1.0, "run_began", "master-0")], **arguments).seconds == seconds


@pytest.mark.parametrize(
    "fields",
    [
        {"worker": 7, "process": ["a"], "threads": "many", "others": -1, "silent_seconds": "long"},
        {"threads": 1e308, "worker": "a", "others": True, "silent_seconds": float("inf")},
        {},
    ],
)
@pytest.mark.parametrize("event", ["job_failed", "worker_joined", "worker_gone", "backup_issued", "lease_broken"])
def test_entries_of_strangers_end_nothing(fields: dict[str, Any], event: str) -> None:
    found = summary(entry(1.0, event, "somebody", **fields))
    assert len(found.workers) <= 10_000 and found.failures <= 1 and found.backup_jobs <= 2


def test_a_table_has_a_row_for_each_worker_and_fits_a_terminal() -> None:
    name = "ip-10-0-12-34.eu-central-1.compute.internal-12345-0123abcd-0"
    found = summary(
        entry(10.0, "run_began"),
        entry(20.0, "job_failed", "a", worker="a-0"),
        entry(30.0, "worker_gone", process="a", silent_seconds=0.0),
        shares={name: Share(1000, 16_000, 4.0)},
    )
    lines = list(run_table(found.fields()))
    assert lines[0].split() == ["worker", "jobs", "examples", "per", "second", "failed", "given", "away", "gone"]
    assert lines[1].split() == ["a-0", "0", "0", "-", "1", "0", "1:10"]
    assert lines[2].split() == ["…ternal-12345-0123abcd-0", "1,000", "16,000", "4,000", "0", "0", "-"]
    assert lines[3] == "total     1,000 jobs, 9 rounds, 36 batches counted once, in 0:07"
    assert lines[4] == "trouble   1 failed job, 0 backup jobs, 0 broken leases"
    assert lines[5] == "masters   0 take-overs, paused for 0:00"
    assert len(lines) == 6 and max(map(len, lines)) <= 80
    later = list(run_table(summary(first_version=4).fields()))
    assert later[-1].strip() == "(what workers did is known from version 4 of the model on)"


# -- of real runs ------------------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """Ends a run on its way."""


class Hold(TrainingListener):
    """Holds the workers in some update, until the run was seen to have come so far."""

    def __init__(self, update: int) -> None:
        self.update, self.is_over = update, threading.Event()

    def iteration_done(self, network: object, iteration: int, score: float, *, examples: int = 0) -> None:
        assert iteration < self.update or self.is_over.wait(60)


def led(
    tracker: InMemoryStateTracker, folder: Path | None, source: str, *, until: int = 10**9, **changes: Any
) -> tuple[TrainingResult, RunSummary]:
    """Lead a run as a cluster's master does, with two workers in this process, or give up in some round."""
    conf = Conf(
        run="r",
        multi_layer_conf=zoo.mlp(4, 3),
        workers=2,
        epochs=20,
        min_workers=0,
        validation=ValidationConf(fraction=0.2),
        checkpoint_dir="" if folder is None else str(folder),
        **changes,
    )
    takes_over = tracker.head() is not None
    kept = None if folder is None else LocalFolder(folder)
    monitor = ClusterMonitor(
        conf, tracker, source=source, definitions={}, leadership=Leadership(), takes_over=takes_over, folder=kept
    )

    hold = Hold(until)

    def tick(status: Any) -> None:
        if status.head is not None and status.head.round >= until:
            hold.is_over.set()
            raise Interrupted

    data = IrisDataSetIterator(16)
    with monitor, RunExecution(data, tracker=tracker, monitor=monitor, worker_listeners=[hold]) as execution:
        execution.setup(resolve(conf, data, resume=takes_over and folder is not None))
        result = execution.train(tick, progress=False)
        return result, execution.summary(result)


def test_the_jobs_of_a_run_are_counted_once(tmp_path: Path) -> None:
    result, found = led(InMemoryStateTracker(), tmp_path / "run", "m-1-0123abcd")
    assert found.jobs == result.plan.total_slots
    assert sum(each.examples for each in found.workers) == found.examples == result.plan.total_examples
    assert (found.batches, found.rounds) == (result.plan.total_batches, result.plan.total_rounds)
    assert (found.first_version, found.take_overs, found.failures) == (1, 0, 0)
    assert {each.worker for each in found.workers} <= {"m-1-0123abcd-0", "m-1-0123abcd-1"}
    assert all(each.examples_per_second > 0 for each in found.workers if each.examples)
    kept: dict[str, Share] = {}
    for version in read_history(tmp_path / "run"):
        add_shares(kept, version.shares)
    assert {each.worker: (each.jobs, each.examples) for each in found.workers if each.jobs} == {
        worker: (share.jobs, share.examples) for worker, share in kept.items()
    }


def test_a_run_that_was_taken_over_has_what_both_masters_saw(tmp_path: Path) -> None:
    tracker = InMemoryStateTracker()
    with pytest.raises(Interrupted):
        led(tracker, tmp_path / "run", "m-1-0123abcd", until=2)
    assert tracker.head().round > 0
    result, found = led(tracker, tmp_path / "run", "m-2-89abcdef")
    assert (found.first_version, found.take_overs) == (1, 1)
    assert found.jobs == result.plan.total_slots
    assert {each.worker[:3] for each in found.workers} == {"m-1", "m-2"}
    assert sum(each.examples for each in found.workers) == result.plan.total_examples


def test_without_a_folder_it_says_from_where_on_it_knows() -> None:
    tracker = InMemoryStateTracker()
    with pytest.raises(Interrupted):
        led(tracker, None, "m-1-0123abcd", until=2)
    version = tracker.head().version
    result, found = led(tracker, None, "m-2-89abcdef")
    assert version < found.first_version <= result.head.version
    assert 0 < found.jobs < result.plan.total_slots
    assert found.batches == result.plan.total_batches


def test_a_tracker_that_is_away_at_the_end_costs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(tracker: object) -> None:
        raise TrackerError("away")

    monkeypatch.setattr(Journal, "read", away)
    result, found = led(InMemoryStateTracker(), None, "m-1-0123abcd")
    assert found.jobs == result.plan.total_slots and found.seconds == pytest.approx(result.seconds, abs=0.001)


# -- what the journal has for the masters after ------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_jobs_that_are_not_told_one_by_one_are_in_the_journal_by_their_number(watched: Watched, tmp_path: Path) -> None:
    with watched.monitor:
        watched.begin()
        watched.monitor.job_reissued((3, 0), "p-0", "slow")
        wait_for(lambda: "backup_issued" in watched.events())
        for slot in range(1, 8):
            watched.monitor.job_reissued((4, slot), "p-0", "slow")
        watched.monitor.end()
    entries = [each for each in JournalFile(LocalFolder(tmp_path)).read() if each.event == "backup_issued"]
    assert [each.fields["round"] for each in entries] == [3, 4]
    assert sum(1 + each.fields.get("others", 0) for each in entries) == 8
    assert watched.monitor.reissued == {("p-0", "slow"): 8}
    found = summary(*entries, source="another")
    assert found.backup_jobs == 8


def test_a_master_that_was_replaced_writes_nothing_at_its_end(watched: Watched) -> None:
    with watched.monitor:
        watched.begin()
        watched.monitor.job_reissued((3, 0), "p-0", "slow")
        wait_for(lambda: "backup_issued" in watched.events())
        watched.leadership.error = TrackerError("another is the master")
        watched.monitor.job_reissued((3, 1), "p-0", "slow")
        watched.monitor.end()
        assert watched.events().count("backup_issued") == 1
