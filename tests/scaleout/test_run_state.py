"""The state of a run: each of twelve faults is the same one in every view, and none hides another."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cli.commands import inspect
from dl4jlegacy.cli.commands import runs as cli_runs
from dl4jlegacy.cli.main import main
from dl4jlegacy.cli.terminal import watch
from dl4jlegacy.cli.terminal.watch import Snapshot
from dl4jlegacy.cluster import runs
from dl4jlegacy.cluster.address import Access, ClusterAddress
from dl4jlegacy.cluster.runs import FoundRun, Grid
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.observing.prometheus import PrometheusObserver
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.monitoring.run_state import (
    LEADER,
    STATES,
    RunFacts,
    RunState,
    StateLog,
    facts_of,
    run_state,
    shown_workers,
)
from dl4jlegacy.scaleout.persistence.journal import Journal
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.state.records import WorkerRecord
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.training.progress import status_line
from dl4jlegacy.ui.run_sources import TrackerState
from dl4jlegacy.ui.view import Reading
from dl4jlegacy.ui.watcher import Watcher
from tests.scaleout.test_monitor import Watched
from tests.support import REPOSITORY
from tests.support.dashboards import KeptRun, TrackedRun, history, small_conf
from tests.support.faults import FAULTS, MASTER, Fault, broken_run

ADDRESS = ClusterAddress("127.0.0.1:2181", None)
PLAN = Plan(batches=40, examples=1000, batch_size=25, jobs_per_round=2, phases=(Phase(epochs=2),))
each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))


class Broken(TrackedRun):
    """A dashboard's source under a fault; it has been read before."""

    def __init__(self, fault: Fault, tracker: StateTracker) -> None:
        super().__init__()
        self._fault, self._broken = fault, TrackerState(tracker, self.json(), PLAN, needed=1)

    def read(self) -> Reading:
        if self.is_away:
            raise TrackerError("the state tracker at 127.0.0.1:1 did not answer")
        return self._broken.read(master=self._fault.master, standbys=self._fault.standbys)


def dashboard(fault: Fault, tracker: StateTracker) -> RunState:
    """What the dashboard's view has."""
    watcher = Watcher(Broken(fault, tracker))
    watcher.look()
    watcher.source.is_away = fault.is_away
    watcher.look()
    assert watcher.view.run is not None and (watcher.view.away is not None) == fault.is_away
    return RunState(watcher.view.run.state, watcher.view.run.reason)


def status_of(fault: Fault, tracker: StateTracker) -> dict[str, Any]:
    """The fields of ``dl4j status``."""
    candidates = fault.master, list(fault.standbys)
    return inspect._status_fields(small_conf(), ADDRESS, tracker, [], candidates=candidates)


class Registries(runs._Registries):
    """The registry that a Zookeeper has under a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__("", Access())
        masters = {} if fault.master is None else {"master": fault.master}
        self._found = {ADDRESS.zookeeper: runs._Registry({"master": small_conf()}, masters, {"master": fault.standbys})}


def listed(fault: Fault, tracker: StateTracker) -> tuple[FoundRun, list[str]]:
    """A run as ``dl4j runs`` lists it, and its lines."""
    run = FoundRun("r1", small_conf().incarnation, Grid("127.0.0.1:1"), "master", ADDRESS.zookeeper)
    if fault.is_away:
        run = dataclasses.replace(run, unseen="unreachable")
    else:
        run = dataclasses.replace(run, facts=facts_of(tracker, 0), leader=tracker.get(LEADER))
    found = runs._judged(run, Registries(fault))
    return found, list(cli_runs._lines(found, False))


def seen_of(fault: Fault, tracker: StateTracker) -> Snapshot:
    error = TrackerError("the state tracker at 127.0.0.1:1 did not answer") if fault.is_away else None
    return Snapshot(2, status_of(fault, tracker), 0.0, error=error, away_seconds=4.0 if error else 0.0)


@each_fault
def test_every_view_that_is_no_process_of_the_run_says_the_same(fault: Fault) -> None:
    tracker, seen = broken_run(fault), seen_of(fault, broken_run(fault))
    shown = dashboard(fault, tracker)
    assert (shown.state, fault.words in shown.reason) == (fault.state, True), shown
    run, shown_run = listed(fault, tracker)
    known = cli_runs._fields(run)
    assert (known["state"], fault.words.replace("did not", "does not") in known["reason"]) == (fault.state, True), known
    assert f": {fault.state}" in shown_run[0] and fault.words.replace("did not", "does not") in "\n".join(shown_run)
    as_json = watch._fields(seen)
    assert (as_json["state"], fault.words in as_json["reason"]) == (fault.state, True), as_json
    rows = [line.plain for line in watch.rows(seen, 300, 40)]
    assert any(line.startswith(fault.state) for line in rows) and any(fault.words in line for line in rows), rows
    assert any(fault.words in line for line in rows)
    assert re.search(rf"\b{fault.state}\b", watch._line(seen)) and fault.words in watch._line(seen)
    if not fault.is_away:  # it is an error then, of which the caller tells
        lines = list(inspect._status_lines(seen.fields or {}, ADDRESS))
        assert f": {fault.state}, round 3" in lines[0] and fault.words in "\n".join(lines), lines
        assert [line for line in lines if line.startswith("worker p-0: gone (")] or "p" not in fault.gone


@each_fault
def test_the_master_says_the_same_on_its_terminal_and_in_its_metrics(fault: Fault, tmp_path: Path) -> None:
    if fault.master is not MASTER:
        return  # there is none that could say anything
    tracker, monitor = broken_run(fault), Watched(tmp_path).monitor
    monitor._records, monitor.head = tuple(tracker.workers()), tracker.head()
    monitor._gone = {process: (why, 0.0) for process, why in fault.gone.items()}
    monitor.troubles = dict(fault.troubles)
    monitor._tracker.away_seconds = lambda: 4.0 if fault.is_away else 0.0
    state = monitor.state()
    assert state.state == fault.state and (fault.is_away or fault.words in state.reason), state
    if fault.state in ("degraded", "stalled"):
        line = status_line(RunStatus(PLAN, monitor.head, 1.0, (), state=state), 0.0)
        assert line.startswith(f"{fault.state}: ")
    run = ObservedRun(small_conf(), PLAN, "me", tracker, monitor.workers, state=monitor.state)
    with PrometheusObserver(0) as metrics:
        metrics.begin(run)
        metrics.sample()
        found = dict(values(metrics))
    assert {state for state in STATES if found["dl4j_run_state", state] == 1.0} == {fault.state}
    missed = sum(why != "left" for why in fault.gone.values())
    assert (found["dl4j_workers", "gone"], found["dl4j_workers", "working"]) == (missed, 2 - missed)


def values(metrics: PrometheusObserver) -> Iterator[tuple[tuple[str, str], float]]:
    for family in metrics.collect():
        for sample in family.samples:
            yield (sample.name, str(sample.labels.get("state", ""))), float(sample.value)


def test_what_stops_a_run_comes_before_what_hinders_it() -> None:
    here = tuple(WorkerRecord(id=f"{name}-0", host="h", pid=1) for name in "pq")
    facts = RunFacts(
        status="running", workers=here, gone={"p": "closed"}, needed=2, troubles={"checkpoints": "full"}, standbys=1
    )
    assert run_state(facts).text().startswith("waiting for workers: 1 of 2")
    changes: list[tuple[dict[str, Any], str]] = [
        ({"needed": 1}, "degraded"),
        ({"has_master": False}, "waiting"),
        ({"unanswered": "no"}, "stalled"),
        ({"silence": "no news"}, "stalled"),
        ({"status": "stopped"}, "ended"),
        ({"is_over": True}, "ended"),
    ]
    known = {name: getattr(facts, name) for name in facts.__struct_fields__}
    for change, state in changes:
        known |= change
        assert run_state(RunFacts(**known)).state == state


def test_a_worker_that_left_in_an_orderly_way_is_not_missed_and_a_stuck_one_is() -> None:
    here = tuple(WorkerRecord(id=f"{name}-0", host="h", pid=1) for name in "pq")
    left = RunFacts(status="running", workers=here, gone={"p": "left"}, needed=1)
    assert run_state(left) == RunState("running")
    stuck = (here[0], WorkerRecord(id="r-0", host="h", pid=1, state="stuck"))
    assert (
        run_state(RunFacts(status="running", workers=stuck, needed=1)).text()
        == "degraded: 1 of 2 workers is stuck: r-0"
    )


def test_a_masters_terminal_tells_workers_apart_and_names_those_that_are_gone(tmp_path: Path) -> None:
    monitor = Watched(tmp_path).monitor
    names = ("alpha-31000-0123abcd", "alpha-31001-4567abcd")
    monitor._records = tuple(WorkerRecord(id=f"{name}-0", host="alpha", pid=1, job="3/0") for name in names)
    monitor._gone = {names[0]: ("closed", 0.0)}
    shown = shown_workers(monitor.workers(), is_here=False)
    assert shown == (("0123abcd-0", "gone (closed) 3/0"), ("4567abcd-0", "idle 3/0"))
    assert shown_workers(monitor.workers(), is_here=True)[0][0] == "0"  # threads of one process


def test_the_history_of_a_run_has_its_states_between_its_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = KeptRun(tmp_path / "run")
    kept.write(history(3))
    kept.journal(("state_changed", {"state": "degraded", "reason": "a worker is gone", "before": "running"}))
    dl4j(["logs", str(kept.path), "--history"])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and said[-1].endswith(
        "state changed: state degraded, reason a worker is gone, before running"
    )
    dl4j(["logs", str(kept.path), "--history", "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert [entry["state"] for entry in found["states"]] == ["degraded"] and len(found["history"]) == 3


def dl4j(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


class Hours:
    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_changes_are_told_once_from_when_it_runs_and_the_seconds_of_each_state_add_up() -> None:
    clock = Hours()
    log, told = StateLog(clock), list[tuple[str, str]]()
    log.on_change = lambda before, state: told.append((before, state.state))
    for state in ("waiting", "running", "running", "degraded", "stalled", "running", "ended"):
        clock.seconds += 2.0
        log.note(RunState(state))
    assert told == [("running", "degraded"), ("degraded", "stalled"), ("stalled", "running")]
    assert [state.state for _, state in log.take()] == ["degraded", "stalled", "running"] and log.take() == []
    assert log.seconds() == {"running": 6.0, "degraded": 2.0, "waiting": 4.0, "stalled": 2.0}


def test_a_full_disk_and_its_end_are_in_the_journal_and_in_the_tracker(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with watched.monitor:
        watched.begin()
        watched.monitor.storage_changed("checkpoints", "No space left on device")
        entry = wait_for_entry(watched.tracker, "checkpoint_failed")
        assert entry.fields == {"message": "No space left on device"}
        watched.monitor.storage_changed("checkpoints", "")
        wait_for_entry(watched.tracker, "checkpoints_back")


def wait_for_entry(tracker: StateTracker, event: str) -> Any:
    from tests.scaleout.test_monitor import wait_for

    def found() -> list[Any]:
        return [entry for entry in Journal.read(tracker) if entry.event == event]

    wait_for(found)
    return found()[-1]


def test_the_page_says_which_state_each_fault_is() -> None:
    page = (REPOSITORY / "docs" / "status.md").read_text(encoding="utf-8")
    table = page.partition("\n## Which fault leads to which state\n")[2]
    rows = dict(re.findall(r"^\| ([^|]+) \| `(\w+)` \|", table, re.MULTILINE))
    assert {name: rows.get(name) for name in FAULTS if name != "nothing"} == {
        name: fault.state for name, fault in FAULTS.items() if name != "nothing"
    }
