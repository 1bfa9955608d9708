"""The cluster monitor of a master: tracks live workers and the run's events, and restores lost globals.

One thread checks everything once a second, and immediately when a worker's connection changes or a hint arrives. The
result of a run does not depend on it: if a live worker is taken for dead, its job is done twice.

Legacy: ``MasterActor``'s clean-up of stale workers, which ran every 120 s.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any, Self

import msgspec

from dl4jlegacy.errors import CheckpointError, Dl4jError, TrackerClosedError, TrackerError, counted
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.identity import MADE_OF, PERFORMER
from dl4jlegacy.scaleout.links.liveness.failure_detector import (
    Change,
    ConnectionState,
    FailureDetector,
    HeartbeatMonitor,
    pid_of,
    process_of,
)
from dl4jlegacy.scaleout.links.liveness.quorum import WORKER_TOPIC, Quorum
from dl4jlegacy.scaleout.links.liveness.server import LivenessServer
from dl4jlegacy.scaleout.links.mesh.messages import Messages
from dl4jlegacy.scaleout.monitoring.last_master import NOBODY_LISTENS, dead_master
from dl4jlegacy.scaleout.monitoring.run_state import (
    AWAY_SECONDS,
    GONE,
    LEADER,
    NO_ANSWER,
    TROUBLES,
    RunFacts,
    RunState,
    StateLog,
    ending_of,
    gone_workers,
    run_state,
)
from dl4jlegacy.scaleout.monitoring.run_summary import RunSummary, summarize
from dl4jlegacy.scaleout.monitoring.stats import StatsCollector
from dl4jlegacy.scaleout.monitoring.still_leader import Leadership, StallGuard
from dl4jlegacy.scaleout.persistence.history import History, HistoryEntry, HistoryFile, add_shares
from dl4jlegacy.scaleout.persistence.journal import (
    JOURNAL_TOPIC,
    MOST_ENTRIES,
    Event,
    Journal,
    JournalEntry,
    JournalFile,
    JournalReader,
)
from dl4jlegacy.scaleout.persistence.jsonl import JsonlWriter
from dl4jlegacy.scaleout.protocol.failures import messages
from dl4jlegacy.scaleout.protocol.poison import SUSPECTED
from dl4jlegacy.scaleout.protocol.slot_watch import ReissueReason
from dl4jlegacy.scaleout.state.records import Crash, Failure, Head, Keys, WorkerRecord
from dl4jlegacy.scaleout.state.untrusted import shortened
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.device_choice import ARITHMETIC
from dl4jlegacy.storage.folders import LinesFolder
from dl4jlegacy.system.clock import RUNNING
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["GONE", "LEADER", "LIVENESS", "WAITING", "ClusterMonitor"]

logger = logging.getLogger(__name__)

LIVENESS, WAITING = "liveness", "waiting"
"""Globals of the run: the address of its master's liveness server, and the reason why the run waits."""
_CHECK_SECONDS = 1.0
_MISSED_BEATS = 5.0
_STALE_SECONDS = 60.0
"""Seconds for which a lost worker stays listed, with the reason."""
_REPEAT_SECONDS = 10.0
_MOST_REMOVED = 10_000


class ClusterMonitor:
    """Monitors the processes of a run and keeps the run's journal; a context manager that owns its threads.

    Args:
        conf: of the run.
        tracker: of the run.
        source: the name of this process.
        definitions: the run's globals, by name; written to the tracker, and again if a member's loss removed them.
        leadership: tells whether this process is still the master.
        takes_over: whether another process was the master before.
        secret: of the run.
        bind: the host on which to listen for worker processes; None: do not listen.
        folder: where a copy of the journal is kept; None: nowhere.
    """

    def __init__(
        self,
        conf: Conf,
        tracker: StateTracker,
        *,
        source: str,
        definitions: Mapping[str, Any],
        leadership: Leadership,
        takes_over: bool,
        secret: bytes | None = None,
        bind: str | None = None,
        folder: LinesFolder | None = None,
    ) -> None:
        self.source, self.leadership, self._takes_over = source, leadership, takes_over
        self._conf, self._tracker, self._definitions = conf, tracker, dict(definitions)
        self.journal = Journal(tracker, source)
        self.quorum = Quorum(
            conf.run,
            needed=conf.min_workers,
            wait_seconds=conf.worker_wait_seconds,
            present=self.live_count,
            clock=RUNNING.now,
            on_change=self._quorum_changed,
        )
        self._server = None
        if bind is not None:
            self._server = LivenessServer(bind, run=conf.keyspace, secret=secret, on_change=self._connection_changed)
        silence = max(_MISSED_BEATS, _MISSED_BEATS * conf.heartbeat_seconds)
        self._detector = FailureDetector(HeartbeatMonitor(silence))
        self._connections: deque[tuple[str, ConnectionState, float]] = deque()  # changes not yet processed
        self._changes: list[Change] = []
        self._gone: dict[str, tuple[str, float]] = {}
        self._records: tuple[WorkerRecord, ...] = ()
        self.head: Head | None = None
        """The run's head, at most one second old as long as its tracker answers."""
        self.troubles: dict[str, str] = {}
        """Parts of the run's storage that cannot be written now, and the reasons; set by any thread."""
        self.states = StateLog()
        self._reissued: deque[tuple[tuple[int, int], str, ReissueReason]] = deque(maxlen=MOST_ENTRIES)
        self._unwritten: deque[tuple[Event, dict[str, Any]]] = deque(maxlen=MOST_ENTRIES)
        """Journal entries that the monitor's thread must write: their events and fields."""
        self._dead_master, self._live = "", 0
        self._last_written: dict[tuple[str, ReissueReason], float] = {}
        self._untold: dict[tuple[str, ReissueReason], tuple[tuple[int, int], int]] = {}
        self.reissued: Counter[tuple[str, str]] = Counter()
        """By (worker, reason): number of jobs that this master has given to another worker."""
        self._reader, self._folder = JournalReader(tracker), folder
        self.stats = StatsCollector(folder) if conf.collect_training_stats else None
        """Collects the statistics of all processes; None: none are collected."""
        self.messages: Messages | None = None
        """The committed messages in memory, if this process is part of the run's mesh."""
        self._keeper: JsonlWriter[JournalEntry] | None = None
        self._news: deque[JournalEntry] = deque(maxlen=MOST_ENTRIES)
        self._on_news: Callable[[Sequence[JournalEntry]], None] = lambda entries: None
        self._has_begun = self._is_set_up = False
        self._master_guard, self._own_guard = StallGuard(leadership, tracker), StallGuard(leadership, tracker)
        self._poll: Callable[[], None] = lambda: None
        self._fail: Callable[[BaseException], None] = lambda error: None
        self._wakeup, self._stopped = threading.Event(), threading.Event()
        self._stops: list[Callable[[], None]] = []
        self._thread = ServiceThread(target=self._run, name="dl4j-monitor")

    def __enter__(self) -> Self:
        self._dead_master = dead_master(self._tracker.get(LEADER), self._tracker.get(LIVENESS))
        self._definitions[LEADER] = self.source
        if self._server is not None:
            self._definitions[LIVENESS] = self._server.start().address
        self.journal.watch_refusals()
        try:
            for key, value in {**self._definitions, GONE: {}, WAITING: None, TROUBLES: {}}.items():
                self._tracker.define(key, value)
            self._reader.read()  # skips the entries from before
            topics = (JOURNAL_TOPIC, WORKER_TOPIC)
            self._stops = [self._tracker.store.listen(topic, self._wakeup.set) for topic in topics]
        except BaseException:
            self._stop_server()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stop in self._stops:
            stop()
        self._stopped.set()
        self._wakeup.set()
        self._thread.join(30.0)
        self._stop_server()
        self._guarded(self._read_journal)
        if self._keeper is not None:
            self._keeper.close()

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.stop()

    # -- for the runner and the master's actor ------------------------------------------------------------------------

    def begin(
        self,
        poll: Callable[[], None],
        fail: Callable[[BaseException], None],
        on_news: Callable[[Sequence[JournalEntry]], None] = lambda entries: None,
    ) -> None:
        """Note that the run has started in this process; from now on the copy of its journal is written.

        Args:
            poll: makes the master check the run; called when workers appear or disappear.
            fail: ends the master; called when another process has become the master.
            on_news: called with new entries of the journal, on the monitor's thread: it must only enqueue.
        """
        if self._folder is not None:
            self._keeper = JsonlWriter(JournalFile(self._folder))
            self._guarded(self._go_on_after_copy)
            self._guarded(lambda: self._keep(Journal.read(self._tracker)))
        self.journal.write("master_took_over" if self._takes_over else "run_began", run=self._conf.run)
        self._poll, self._fail, self._on_news, self._is_set_up = poll, fail, on_news, True
        self._wakeup.set()

    def check_in(self) -> bool:
        """Return whether the master may work now. Called regularly on the master's thread.

        Raises:
            TrackerError: this process was stopped meanwhile, and another took over or the run is over.
        """
        return self._master_guard.may_continue()

    def job_reissued(self, slot: tuple[int, int], worker: str, reason: ReissueReason) -> None:
        """Note that a worker's job was given to another worker; called on the master's thread."""
        self.reissued[worker, reason] += 1
        self._reissued.append((slot, worker, reason))
        self._wakeup.set()

    def worker_set_aside(self, worker: str, failures: tuple[Failure, ...]) -> None:
        """Note that a worker gets no more jobs; called on the master's thread."""
        self._note("worker_set_aside", worker=worker, jobs_failed=len(failures), errors=messages(failures))

    def job_set_aside(self, slot: tuple[int, int], failure: Failure) -> None:
        """Note that the run continues without a job; called on the master's thread."""
        self._note("job_set_aside", round=slot[0], slot=slot[1], message=failure.message)

    def _note(self, event: Event, **fields: Any) -> None:
        """Queue a journal entry, to be written by the monitor's thread."""
        self._unwritten.append((event, fields))
        self._wakeup.set()

    def rights(self) -> dict[str, Any]:
        """Return the arguments of ``protocol.RunStart`` that this monitor provides."""
        return {"may_begin": self.leadership.may_begin, "may_hand_over": self.leadership.may_hand_over}

    def watches(self) -> dict[str, Any]:
        """Return the arguments of ``protocol.Master`` that this monitor provides."""
        return {"is_gone": self.is_gone, "death_of": self.death_of, "on_crashed": self.job_crashed}

    def storage_changed(self, what: str, why: str) -> None:
        """Note that a part of the run's storage cannot be written, and why; "": it can again. For any thread."""
        self.troubles = {**self.troubles, what: why} if why else {k: v for k, v in self.troubles.items() if k != what}
        if why:
            self._note("checkpoint_failed", message=why)
        else:
            self._note("checkpoints_back")

    def job_crashed(self, slot: tuple[int, int], crash: Crash, count: int) -> None:
        """Note that a process died during a job, as the ``count``-th of this job; called on the master's thread."""
        at = {"round": slot[0], "slot": slot[1]}
        message = f"its process died while it computed the job ({crash.how})"
        message += ", which is suspected" if count >= SUSPECTED else ""
        who = {"worker": crash.process, "host": crash.host, "pid": pid_of(crash.process)}
        died = counted(count, "process", "processes")
        self.quorum.known = f". {died} died computing the job of round {slot[0]}, slot {slot[1]}"
        self._note("worker_crashed", **who, **at, attempt=count, message=message, traceback="")
        if count == SUSPECTED:
            text = "the job of round %d, slot %d is suspected of killing its workers: %d have died of it"
            logger.warning(text, *slot, count)
            self._note("job_suspected", **at, crashes=count)

    def gather_stats(self) -> None:
        """Write the statistics that remain in the tracker after the workers have left.

        Called after the context of this monitor was left.
        """
        if self.stats is not None:
            with contextlib.suppress(Dl4jError):  # then they are lost
                self.stats.gather(self._tracker)
            self.stats.close()  # before the run's entries are deleted: a master may be killed between the two

    def summary(self, head: Head, history: History, seconds: float) -> RunSummary:
        """Return the summary of the run, which ended with this head after ``seconds`` of this master."""
        earlier, entries = list[HistoryEntry](), dict[str, JournalEntry]()
        first = history.first_version or head.version + 1
        with contextlib.suppress(Dl4jError):  # data that cannot be read is missing in the summary, without an error
            entries |= {entry.key: entry for entry in Journal.read(self._tracker)}
        if self._folder is not None:
            with contextlib.suppress(Dl4jError):
                entries |= {entry.key: entry for entry in JournalFile(self._folder).read()}
        if self._folder is not None and first > 1:
            with contextlib.suppress(Dl4jError):
                earlier = [entry for entry in HistoryFile(self._folder).read() if entry.version < first]
        shares = dict(history.shares)
        for entry in earlier:
            add_shares(shares, entry.shares)
        return summarize(
            head,
            shares,
            list(entries.values()),
            reissued=self.reissued,
            source=self.source,
            now=self._tracker.clock.now(),
            seconds=seconds,
            states=self.states.seconds(),
            first_version=min([first, *(entry.version for entry in earlier if entry.shares)]),
        )

    def end(self) -> None:
        """Write the remaining journal entries, and the end of the run if it has ended."""
        self._guarded(self._write_untold)
        self._guarded(self._write_noted)
        self._guarded(self._write_end)

    def _write_untold(self) -> None:
        self.leadership.check()
        self._write_reissued(last=True)

    def _write_end(self) -> None:
        head = self._tracker.head()
        if head is not None and head.status != "running":
            ended = {"status": head.status, "round": head.round, "examples": head.examples, "score": head.score}
            self.journal.write("run_ended", run=head.run, **ended)

    # -- for any thread -----------------------------------------------------------------------------------------------

    def workers(self) -> tuple[WorkerRecord, ...]:
        """Return the registered workers, at most one second old; the state of lost ones contains the reason."""
        gone = gone_workers(self._records, self._reasons())
        said = ((one, gone.get(one.id)) for one in self._records)
        return tuple(one if how is None else msgspec.structs.replace(one, state=f"gone ({how})") for one, how in said)

    def state(self) -> RunState:
        """Return the state of the run from what is known in this process, without waiting."""
        head, away = self.head, self._tracker.away_seconds()
        facts = RunFacts(
            status="" if head is None else head.status,
            ending=ending_of(head),
            workers=self._records,
            gone=self._reasons(),
            needed=self._conf.min_workers,
            troubles=dict(self.troubles),
            unanswered=NO_ANSWER if away >= AWAY_SECONDS else "",
        )
        return self.states.note(run_state(facts))

    def _reasons(self) -> dict[str, str]:
        return {process: reason for process, (reason, _) in tuple(self._gone.items())}

    def live_count(self) -> int:
        """Return the number of registered workers that are not known to be gone."""
        return len(self.present())

    def present(self) -> list[str]:
        """Return the names of the registered workers that are not known to be gone."""
        return [record.id for record in self._records if not self.is_gone(record.id)]

    def is_gone(self, worker: str) -> bool:
        """Return whether a worker's process is known to be dead or frozen."""
        return self._detector.is_gone(worker)

    def death_of(self, worker: str) -> str:
        """Return the evidence that a worker's process has died; "" if it is not known to be dead."""
        if self._dead_master and process_of(worker) == self._dead_master:
            return NOBODY_LISTENS
        return self._detector.death_of(worker, time.monotonic())

    def news(self) -> tuple[JournalEntry, ...]:
        """Return the journal entries of all processes since the last call."""
        return tuple(self._news.popleft() for _ in range(len(self._news)))

    # -- the monitor's thread -----------------------------------------------------------------------------------------

    def _connection_changed(self, process: str, state: ConnectionState) -> None:
        """Queue a change from the liveness server; runs on that server's thread."""
        self._connections.append((process, state, time.monotonic()))
        self._wakeup.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wakeup.wait(_CHECK_SECONDS)
            self._wakeup.clear()
            self._guarded(self._check)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step; if it fails, it is repeated a second later."""
        try:
            with exits_as_errors():
                step()
        except TrackerClosedError:
            self._stopped.set()
        except Dl4jError as exc:
            logger.debug("the cluster monitor tries again later: %s", exc)
        except Exception:  # the run continues without the monitor
            logger.exception("the cluster monitor failed")

    def _check(self) -> None:
        if not self._is_still_master():
            return
        while self._connections:
            process, state, when = self._connections.popleft()
            silent = self._silent_seconds(process, when)
            self._changes += self._detector.update_connection(process, state, when, silent)
        if self._changes:
            self._poll()  # before anything that takes time
        self._records, self.head = tuple(self._tracker.workers()), self._tracker.head()
        beats = {record.id: record.beat for record in self._records}
        self._changes += self._detector.update_heartbeats(beats, time.monotonic())
        live, self._live = self._live, self.live_count()
        if self._changes or live != self._live:
            self._poll()
        if self._changes:
            self._write_changes()
        self._write_noted()
        self._write_states()
        if self._connections:  # new changes go first; they have set the wake-up already
            return
        self._write_reissued()
        self._remove_stale()
        self._restore_globals()
        self.leadership.restore()
        keys = self._tracker.store.keys("")
        self._read_journal(keys)
        if self.stats is not None:
            self.stats.gather(self._tracker, keys)
        self._remove_foreign(keys)

    def _is_still_master(self) -> bool:
        """Return whether this process is still the master; if not, it must not write anything to the run any more."""
        try:
            self.leadership.check()
            return self._own_guard.may_continue() and not self._stopped.is_set()
        except TrackerError as exc:
            self._stopped.set()
            self._fail(exc)
            return False

    def _silent_seconds(self, process: str, now: float) -> float:
        peer = None if self._server is None else self._server.peers().get(process)
        return 0.0 if peer is None else max(0.0, now - peer.heard)

    def _write_changes(self) -> None:
        """Journal which processes are gone or back, except those that left in an orderly way or are not registered."""
        changes, self._changes = self._changes, []
        here = {process_of(record.id) for record in self._records}
        for change in changes:
            self._gone.pop(change.process, None)
            if change.is_gone:
                self._gone[change.process] = (change.reason, time.monotonic())
            if change.process not in here or change.reason == "left":
                continue
            if change.is_gone:
                silent = round(change.silent_seconds, 2)
                self.journal.write("worker_gone", process=change.process, reason=change.reason, silent_seconds=silent)
            else:
                self.journal.write("worker_back", process=change.process)
        self._tracker.define(GONE, self._reasons())

    def _write_reissued(self, *, last: bool = False) -> None:
        """Journal the jobs that were given to another worker.

        There is at most one entry per ``_REPEAT_SECONDS`` for each worker and reason. An entry's ``others`` is the
        number of further jobs since the previous entry. With ``last``, all remaining jobs are written.
        """
        while self._reissued:
            slot, worker, reason = self._reissued.popleft()
            first, count = self._untold.get((worker, reason), (slot, 0))
            self._untold[worker, reason] = first, count + 1
        now = time.monotonic()
        for worker, reason in tuple(self._untold):
            if not last and now - self._last_written.get((worker, reason), -_REPEAT_SECONDS) < _REPEAT_SECONDS:
                continue
            (round_, slot_), count = self._untold.pop((worker, reason), ((0, 0), 0))
            if not count:  # the other thread has taken it
                continue
            self._last_written[worker, reason] = now
            event: Event = "backup_issued" if reason == "slow" else "lease_broken"
            others = {"others": count - 1} if count > 1 else {}
            self.journal.write(event, worker=worker, round=round_, slot=slot_, reason=reason, **others)

    def _write_noted(self) -> None:
        while self._unwritten:
            event, fields = self._unwritten.popleft()
            self.journal.write(event, **fields)

    def _write_states(self) -> None:
        self.state()
        for before, state in self.states.take():
            self.journal.write("state_changed", **state.fields(), before=before)

    def _remove_stale(self) -> None:
        """Remove workers whose processes have been gone for long; a process that was only frozen registers again."""
        now = time.monotonic()
        for record in self._records:
            _, since = self._gone.get(process_of(record.id), ("", now))
            if now - since > _STALE_SECONDS:
                self._tracker.remove_worker(record.id)

    def _restore_globals(self) -> None:
        for key in (ARITHMETIC, MADE_OF, PERFORMER):  # set by a worker or the program; others must agree with them
            is_decided = key == ARITHMETIC or self._is_set_up
            if is_decided and key not in self._definitions and (found := self._tracker.get(key)) is not None:
                self._definitions[key] = found
        for key, value in self._definitions.items():
            if self._tracker.get(key) is None:
                self._tracker.define(key, value)
        waiting = self.quorum.waiting
        text = None if waiting is None else waiting.text()
        for key, known in ((WAITING, text), (TROUBLES, dict(self.troubles))):
            if known != self._tracker.get(key):
                self._tracker.define(key, known)

    def _go_on_after_copy(self) -> None:
        """Continue numbering after the journal's copy in the folder, whose entries the tracker may have lost."""
        if self._folder is not None:
            with contextlib.suppress(CheckpointError):  # there is no copy yet
                self.journal.came_after(JournalFile(self._folder).read())

    def _read_journal(self, keys: Sequence[str] | None = None) -> None:
        new = self._reader.read(keys)
        self.journal.came_after(new)
        if keys is not None:
            self.journal.restore(keys)
        self._news.extend(new)
        if new:
            self._on_news(new)
        self._keep(new)
        if self._reader.needs_pruning():
            self._reader.prune()

    def _remove_foreign(self, keys: Sequence[str]) -> None:
        """Remove foreign data from the run's part of the grid: keys that no run has, and refused values."""
        foreign = self._tracker.store.foreign
        strange = list(islice((key for key in keys if not Keys.is_of_run(key)), _MOST_REMOVED))
        for key in strange:
            foreign.note(key, f"{shortened(key)} is no key of a run; it is removed")
        self._tracker.remove_foreign([*strange, *foreign.take(_MOST_REMOVED)])

    def _keep(self, entries: list[JournalEntry]) -> None:
        if self._keeper is not None:
            self._keeper.add(entries)

    def _quorum_changed(self, is_waiting: bool) -> None:
        """Journal a pause and its end, on the master's thread; waiting for the first workers is not a pause."""
        had_begun, self._has_begun = self._has_begun, self._has_begun or not is_waiting
        if had_begun:
            event: Event = "paused" if is_waiting else "went_on"
            self.journal.write(event, workers=self.live_count(), needed=self._conf.min_workers)
