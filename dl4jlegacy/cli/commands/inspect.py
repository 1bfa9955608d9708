"""``dl4j status``, ``logs`` and ``stop``: inspect or end a run on a cluster from outside.

They read the tracker and Zookeeper themselves, so they need no answer from the master.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dl4jlegacy.cli.options.read import Format, Id, Zookeeper, cluster_address, option
from dl4jlegacy.cli.options.values import seconds
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import TrackerError, UsageError, counted
from dl4jlegacy.system.console import emit, open_console
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.strict_json import to_json

if TYPE_CHECKING:
    from dl4jlegacy.cluster.address import ClusterAddress
    from dl4jlegacy.scaleout.conf import Conf
    from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
    from dl4jlegacy.scaleout.persistence.history import HistoryEntry
    from dl4jlegacy.scaleout.persistence.journal import JournalEntry, JournalReader
    from dl4jlegacy.scaleout.plan import Plan
    from dl4jlegacy.scaleout.state.records import WorkerRecord
    from dl4jlegacy.scaleout.tracker import StateTracker
    from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession

__all__ = ["add_commands", "drain", "logs", "status", "stop"]

STALLED = 13
"""Exit status of ``dl4j status`` for a stalled run: no process works on it until somebody intervenes."""
_FAILURES = 5
_FOLLOW_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
"""Seconds that ``dl4j status`` waits to reach the tracker, which takes some tenths; later it waits as all views do."""


def add_commands(app: typer.Typer) -> None:
    """Add this module's commands to ``dl4j``."""
    for command in (status, logs, drain, stop):
        app.command()(command)


# --- status -----------------------------------------------------------------------------------------------------------


def status(
    zookeeper: Zookeeper = None,
    id: Id = None,
    is_watched: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Keep it in view until the run ends; with JSON: a line for every look."),
    ] = False,
    every: Annotated[
        float | None, option("--every", metavar="SECONDS", help="Between two looks of --watch (1).", read=seconds)
    ] = None,
    format: Format = "text",
) -> Answer | None:
    """Show where a registered run is: its master, its workers, and what last failed."""
    from dl4jlegacy.cluster.address import closing, find_conf, open_tracker
    from dl4jlegacy.scaleout.monitoring.run_state import AWAY_SECONDS
    from dl4jlegacy.scaleout.persistence.journal import Journal

    if every is not None and not is_watched:
        raise UsageError("--every is how often --watch looks; give --watch too, or leave it out")
    address = cluster_address(zookeeper, id)
    if is_watched:
        from dl4jlegacy.cli.terminal.watch import watch

        look = _Look(address)
        watch(look, every=1.0 if every is None else every, close=look.close, as_json=format == "json")
        return None
    conf = find_conf(address)
    master, standbys = _candidates(address)
    try:
        opened = open_tracker(
            conf, address, registered=True, patience_seconds=AWAY_SECONDS, deadline_seconds=_CONNECT_SECONDS
        )
        with closing(opened) as tracker:
            failures = _failures(Journal.read(tracker))
            fields = _status_fields(conf, address, tracker, failures, candidates=(master, standbys))
    except TrackerError as exc:
        raise TrackerError(f"run {conf.run} is stalled: {exc}") from exc
    return Answer(fields, _status_lines(fields, address), exit_status=STALLED if fields["state"] == "stalled" else 0)


class _Look:
    """Polls a registered run; keeps its connections, and opens new ones after an error.

    Used by one thread.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self._address = address
        self._session: ZooKeeperSession | None = None
        self._tracker: HazelcastStateTracker | None = None
        self._journal: JournalReader
        self._conf: Conf | None = None
        self._failures: list[dict[str, Any]] = []

    def __call__(self) -> dict[str, Any] | None:
        """Return the fields of ``dl4j status``; None: the run has ended since, and is not registered any more.

        Raises:
            TrackerError: there is no run, Zookeeper or the tracker does not answer, or they have lost the run.
        """
        try:
            return self._look()
        except BaseException:
            self.close()
            raise

    def _look(self) -> dict[str, Any] | None:
        from dl4jlegacy.scaleout.zookeeper import MasterElection, ZookeeperConfigurationRetriever

        session = self._session = self._session or self._address.session()
        retriever = ZookeeperConfigurationRetriever(*self._address.split(), self._address.id, session=session)
        conf = retriever.retrieve() if self._conf is None else retriever.find()
        if conf is None:
            self._check_ended(session)
            return None
        election = MasterElection(session, group=self._address.id)
        candidates = election.holder(), election.standbys()
        tracker = self._open(conf)
        self._failures = [*self._failures, *_failures(self._journal.read())][-_FAILURES:]
        return _status_fields(conf, self._address, tracker, self._failures, candidates=candidates)

    def _check_ended(self, session: ZooKeeperSession) -> None:
        """Raise ``TrackerError`` unless the end of the missing run is recorded: restarted servers may have lost it."""
        from dl4jlegacy.cluster.register import NothingKept, ZookeeperRegister, place_of
        from dl4jlegacy.scaleout import protocol
        from dl4jlegacy.scaleout.tracker import drive

        conf = self._conf
        assert conf is not None
        register = ZookeeperRegister(conf, self._address, session)
        if register.end() in ("done", "stopped"):  # the grid may be gone for good
            return
        place = place_of(conf, self._address, self._open(conf), register, kept=NothingKept())
        if drive(protocol.find_end(place)) not in ("done", "stopped"):
            raise TrackerError(
                f"{place.servers} have nothing of run {conf.run}, and nobody has ended it; who has it puts it back"
            )

    def _open(self, conf: Conf) -> HazelcastStateTracker:
        """Return the run's tracker; the run may have been replaced, or its tracker may have moved."""
        from dl4jlegacy.cluster.address import open_tracker
        from dl4jlegacy.scaleout.persistence.journal import JournalReader

        if self._tracker is None or self._conf is None or _place(conf) != _place(self._conf):
            self._close_tracker()
            self._tracker = open_tracker(conf, self._address, registered=True)
            self._journal = JournalReader(self._tracker)
        self._conf = conf
        return self._tracker

    def _close_tracker(self) -> None:
        tracker, self._tracker, self._failures = self._tracker, None, []
        if tracker is not None:
            tracker.shutdown()

    def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        try:
            self._close_tracker()
        finally:
            if session is not None:
                session.close()


def _place(conf: Conf) -> tuple[str, str, str]:
    return conf.run, conf.incarnation, conf.state_tracker_connection_string


def _failures(entries: Iterable[JournalEntry]) -> list[dict[str, Any]]:
    """Return the journal entries of the last jobs that failed or whose process died."""
    failed = ("job_failed", "worker_crashed")
    return [entry.flat() for entry in entries if entry.event in failed][-_FAILURES:]


def _candidates(address: ClusterAddress) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the election records (host, pid, ...) of the master (None: there is none), and of each standby."""
    from dl4jlegacy.scaleout.zookeeper import MasterElection, ZooKeeperSession

    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        election = MasterElection(session, group=address.id)
        return election.holder(), election.standbys()


def _status_fields(
    conf: Conf,
    address: ClusterAddress,
    tracker: StateTracker,
    failures: list[dict[str, Any]],
    *,
    candidates: tuple[Mapping[str, Any] | None, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    from dl4jlegacy.scaleout.monitoring.run_state import LEADER, facts_of, run_state, who_leads

    master, standbys = who_leads(tracker.get(LEADER), *candidates)
    head, found, facts = tracker.head(), tracker.get("plan"), facts_of(tracker, conf.min_workers)
    plan = None if found is None else _plan(found)
    facts = msgspec.structs.replace(facts, has_master=master is not None, standbys=len(standbys))
    return {
        "run": conf.run,
        "id": address.id,
        **run_state(facts).fields(),
        "status": None if head is None else head.status,
        "round": None if head is None else head.round,
        "rounds": None if plan is None else plan.total_rounds,
        "examples": None if head is None else head.examples,
        "total_examples": None if plan is None else plan.total_examples,
        "score": None if head is None else head.score,
        "metric": conf.scoring.metric if conf.validation or conf.early_stopping else None,
        "waiting": tracker.get("waiting") if master else None,
        "master": master,
        "standbys": list(standbys),
        "workers": [_worker(record, facts.gone) for record in facts.workers],
        "failures": failures,
        "head": None if head is None else msgspec.to_builtins(head),
    }


def _plan(found: Any) -> Plan:
    from dl4jlegacy.scaleout.plan import Plan

    return msgspec.convert(found, decodable(Plan))


def _worker(record: WorkerRecord, gone: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a worker."""
    from dl4jlegacy.scaleout.links.liveness.failure_detector import process_of

    reason = gone.get(process_of(record.id))
    fields: dict[str, Any] = msgspec.to_builtins(record)
    state = record.state if reason is None else f"gone ({reason})"
    return {**fields, "state": state}


def _status_lines(fields: dict[str, Any], address: ClusterAddress) -> Iterable[str]:
    from dl4jlegacy.cli.terminal.next_steps import command, worker_command
    from dl4jlegacy.scaleout.monitoring.run_state import RunState

    state = RunState(fields["state"], fields["reason"])
    if fields["round"] is None:
        yield f"run {fields['run']}: {state.state}, has not begun"
    else:
        score = "-" if fields["score"] is None else f"{fields['score']:.4f}"
        yield (
            f"run {fields['run']}: {state.state}, round {fields['round']} of {fields['rounds'] or '?'}, "
            f"{counted(fields['examples'], 'example')}, score {score}"
        )
    if state.reason:
        yield state.text()
    yield from _scores(fields)
    master = fields["master"]
    if master is None and fields["standbys"]:
        yield "master: none; a standby takes over"
    elif master is None:
        yield f"master: none; `{command('resume', fields['run'], address.flags())}` goes on with the run"
    else:
        yield f"master: {master.get('host')}, pid {master.get('pid')}"
    if fields["waiting"]:
        yield str(fields["waiting"])
    for standby in fields["standbys"]:
        yield f"standby: {standby.get('host')}, pid {standby.get('pid')}; takes over if the master dies"
    if not fields["workers"]:
        yield "workers: none"
    if fields["waiting"] or not fields["workers"]:
        yield f"start a worker with: {worker_command(address)}"
    for worker in fields["workers"]:
        job = f" on job {worker['job']}" if worker["job"] else ""
        device = f"{worker['device']}, " if worker["device"] else ""
        yield (
            f"worker {worker['id']}: {worker['state']}{job}, {worker['host']}, pid {worker['pid']}, "
            f"{device}{counted(worker['jobs_done'], 'job')} done, last beat at {_time(worker['beat'])}"
        )
    for failure in fields["failures"]:
        yield (
            f"failed: round {failure['round']}, slot {failure['slot']}, attempt {failure['attempt']} on worker "
            f"{failure['worker']} ({failure['host']}, pid {failure['pid']}): {failure['message']}"
        )
    if fields["failures"]:
        yield fields["failures"][-1]["traceback"].rstrip()


def _scores(fields: dict[str, Any]) -> Iterable[str]:
    """Yield the best model of a scored run, and the reason why the run stopped."""
    head = fields["head"] or {}
    if head.get("best"):
        best, last = head["best"], head["scores"]
        without = f", {last['without_improvement']} in a row without improvement since" if last else ""
        yield f"best: {fields['metric']} {best['score']:.4f} in round {best['round']}{without}"
    if head.get("stopped_by"):
        yield f"stopped by {head['stopped_by']}"


# --- logs -------------------------------------------------------------------------------------------------------------


def logs(
    folder: Annotated[
        str | None, typer.Argument(metavar="DIR", help="The checkpoint folder (or s3://...) of a run, over or not.")
    ] = None,
    zookeeper: Zookeeper = None,
    id: Id = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new entries until the run ends.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Show each version of the model instead: score, speed, workers.")
    ] = False,
    format: Format = "text",
) -> Answer | None:
    """Show what happened in a run: who came and went, what failed, who took over; or how its model got better."""
    from dl4jlegacy.cluster.address import closing, find_conf, open_tracker
    from dl4jlegacy.scaleout import saved_run
    from dl4jlegacy.scaleout.persistence.journal import Journal, JournalFile
    from dl4jlegacy.storage import paths as storage

    if folder is not None:
        if follow:
            raise UsageError("--follow needs a run that is registered; leave the folder out and give --zookeeper")
        if history:
            return _history(saved_run.read_history(folder), _states(folder))
        return _journal(JournalFile(storage.open_folder(folder)).read())
    if history:
        raise UsageError("--history needs the folder of the run's checkpoints: dl4j logs DIR --history")
    address = cluster_address(zookeeper, id)
    conf = find_conf(address)
    with closing(open_tracker(conf, address, registered=True)) as tracker:
        if not follow:
            return _journal(Journal.read(tracker))
        _follow(tracker, as_json=format == "json")
        if conf.checkpoint_dir and format == "text":
            from dl4jlegacy.cli.terminal.next_steps import command

            shown = command("logs", shlex.quote(conf.checkpoint_dir))
            open_console().print(f"the run has ended; its journal is kept: {shown}", markup=False, soft_wrap=True)
        return None


def _journal(entries: list[JournalEntry]) -> Answer:
    return Answer({"entries": [entry.flat() for entry in entries]}, (entry.text() for entry in entries))


def _states(folder: str) -> list[JournalEntry]:
    """Return the changes of state in a run's journal; none if it keeps no journal."""
    from dl4jlegacy.errors import CheckpointError
    from dl4jlegacy.scaleout.persistence.journal import JournalFile
    from dl4jlegacy.storage import paths as storage

    told = ("state_changed", "checkpoint_failed", "checkpoints_back", "master_took_over", "run_ended")
    try:
        return [entry for entry in JournalFile(storage.open_folder(folder)).read() if entry.event in told]
    except CheckpointError:
        return []


def _history(entries: list[HistoryEntry], states: list[JournalEntry]) -> Answer:
    """Return the versions of a run's model, and the states between them."""
    fields = {"history": msgspec.to_builtins(entries), "states": [state.flat() for state in states]}
    return Answer(fields, _history_lines(entries, deque(states)))


def _history_lines(entries: list[HistoryEntry], states: deque[JournalEntry]) -> Iterator[str]:
    before = 0
    for entry in entries:
        while states and states[0].time <= entry.time:
            yield _state_line(states.popleft())
        yield _history_line(entry, entry.examples - before)
        before = entry.examples
    yield from map(_state_line, states)


def _state_line(state: JournalEntry) -> str:
    return f"{_time(state.time)} {state.line()}"


def _history_line(entry: HistoryEntry, examples: int) -> str:
    """Return a version as a line; ``examples`` is the number of its new examples."""
    found, score = entry.validation, "-" if entry.score is None else f"{entry.score:.4f}"
    if found is not None:
        score += f", validation loss {found.loss:.4f}" + (
            "" if found.accuracy is None else f", accuracy {found.accuracy:.4f}"
        )
    speed = f", {examples / entry.seconds:,.0f}/s" if entry.seconds and examples > 0 else ""
    stale = f", {entry.staleness:.1f} versions stale" if entry.staleness else ""
    workers = "".join(f", {worker} {rate:,.0f}/s" for worker, rate in sorted(entry.workers.items()))
    changed = f", from here on with changed code: {', '.join(entry.changed_code)}" if entry.changed_code else ""
    return (
        f"{_time(entry.time)} version {entry.version}, round {entry.round}: score {score}, "
        f"{counted(entry.examples, 'example')}{speed}{stale}{workers}{changed}"
    )


def _follow(tracker: StateTracker, *, as_json: bool) -> None:
    """Print new entries until the run's end, each as a line of text or JSON."""
    from dl4jlegacy.scaleout.persistence.journal import JournalReader

    reader, began = JournalReader(tracker), False
    while True:
        head = tracker.head()
        began = began or head is not None
        over = began and (head is None or head.status != "running")  # read before the possibly last entries
        for entry in reader.read():
            emit(to_json(entry.flat()) if as_json else entry.text())
        if over:
            return
        time.sleep(_FOLLOW_SECONDS)


def _time(seconds: float) -> str:
    """Return a time by another machine's clock as time of day in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f".{int(seconds * 1000) % 1000:03}"


# --- drain, stop ------------------------------------------------------------------------------------------------------


def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Its name, as `dl4j status` shows it.")],
    zookeeper: Zookeeper = None,
    id: Id = None,
) -> None:
    """Ask a worker's process to leave a run: it finishes the jobs that it has begun, and leases no other."""
    from dl4jlegacy.cluster.address import closing, find_conf, open_tracker
    from dl4jlegacy.cluster.ending import drain_worker

    address = cluster_address(zookeeper, id)
    conf = find_conf(address)
    with closing(open_tracker(conf, address, registered=True)) as tracker:
        emit(drain_worker(conf, address, tracker, worker))


def stop(
    zookeeper: Zookeeper = None,
    id: Id = None,
    is_grid_lost: Annotated[
        bool,
        typer.Option("--lost-grid", help="If its grid does not answer and it has no master, remove it from Zookeeper."),
    ] = False,
) -> None:
    """Stop a registered run: its master and workers leave. What a dead master has left behind is cleared up."""
    from dl4jlegacy.cluster.address import closing, find_conf, open_tracker
    from dl4jlegacy.cluster.ending import stop_run, unregister

    address = cluster_address(zookeeper, id)
    conf = find_conf(address)
    try:
        opened = open_tracker(conf, address, registered=True)
    except TrackerError as exc:
        if not is_grid_lost:
            raise TrackerError(f"{exc}; {_when_lost(address)}") from exc
        unregister(conf, address)
        grid = conf.state_tracker_connection_string
        emit(f"run {conf.run}: its grid at {grid} does not answer; it is not registered any more")
        return
    with closing(opened) as tracker:
        emit(stop_run(conf, address, tracker))


def _when_lost(address: ClusterAddress) -> str:
    """Return in words what can be done about a run whose grid is lost for good."""
    from dl4jlegacy.cli.terminal.next_steps import command

    gone = command("stop", address.flags(), "--lost-grid")
    return f"when that grid is gone for ever, and the run has no master, `{gone}` removes the run from Zookeeper"
