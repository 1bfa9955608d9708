"""What a cluster's master keeps an eye on, beside the protocol: who is there, what happened, what must not get lost.

One thread looks once a second, and at once when a worker's connection changes or a hint comes. Nothing here decides
what counts: a wrong belief that a worker is gone costs a job done twice.

Legacy: ``MasterActor``'s clean-up of stale workers, which ran every 120 s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from dl4jlegacy.errors import Dl4jError, TrackerClosedError, TrackerError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.journal import JOURNAL_TOPIC, MOST_ENTRIES, Entry, Event, Journal, JournalFile, Reader
from dl4jlegacy.scaleout.liveness.liveness import LivenessServer
from dl4jlegacy.scaleout.liveness.presence import Change, HeartbeatWatch, LinkState, Presence, process_of
from dl4jlegacy.scaleout.liveness.quorum import WORKER_TOPIC, Quorum
from dl4jlegacy.scaleout.protocol.watch import Late
from dl4jlegacy.scaleout.records import WorkerRecord
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = ["GONE", "LIVENESS", "WAITING", "Office", "Oversight"]

logger = logging.getLogger(__name__)

LIVENESS, GONE, WAITING = "liveness", "gone", "waiting"
"""Globals of the run: where its master listens; which processes are gone, and why; what it waits for."""
_LOOK_SECONDS = 1.0
_BEATS_SILENT = 5.0
_STALE_SECONDS = 10.0
_STOOD_STILL_SECONDS = 3.0
_TOLD_SECONDS = 10.0


class Office(Protocol):
    """Whether this process still is its run's master."""

    def check(self) -> None:
        """Raise ``TrackerError`` if another process is."""
        ...

    def check_begin(self) -> bool:
        """Raise ``TrackerError`` if another process is, or the run is over; return whether that can be told now."""
        ...


class _Pulse:
    """Whether a thread has stood still, frozen with its process or its machine perhaps, and the run has moved on."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._doubts = False

    def may_go_on(self, office: Office, tracker: StateTracker) -> bool:
        """Return whether the thread may go on: Zookeeper says so, or it says nothing, and the run is there.

        Raises:
            TrackerError: another process is master, or the run is over.
        """
        last, self._last = self._last, time.monotonic()
        self._doubts = self._doubts or (last is not None and self._last - last > _STOOD_STILL_SECONDS)
        self._doubts = self._doubts and not office.check_begin()
        return not self._doubts or tracker.head() is not None


class Oversight:
    """A master's view of its run's processes, and their journal; a context manager, whose threads end with it.

    Args:
        conf: the run's.
        tracker: the run's; ``definitions`` are its globals, which are put back if a member's loss took them.
        source: this process's name.
        office: whether this process still is the master.
        takes_over: whether another process was before.
        secret: the run's.
        bind: the host on which to listen for the workers' processes; None: not at all.
    """

    def __init__(
        self,
        conf: Conf,
        tracker: StateTracker,
        source: str,
        definitions: Mapping[str, Any],
        office: Office,
        *,
        takes_over: bool,
        secret: bytes | None = None,
        bind: str | None = None,
    ) -> None:
        self.source, self.office, self._takes_over = source, office, takes_over
        self.journal = Journal(tracker, source)
        self.quorum = Quorum(
            conf.run, conf.min_workers, conf.worker_wait_seconds, self.live_count, time.monotonic, self._on_quorum
        )
        self._conf, self._tracker, self._definitions = conf, tracker, dict(definitions)
        self._server = None
        if bind is not None:
            self._server = LivenessServer(bind, run=conf.run, secret=secret, on_change=self._link_changed)
        silence = max(_BEATS_SILENT, _BEATS_SILENT * conf.heartbeat_seconds)
        self._presence = Presence(HeartbeatWatch(silence))
        self._links: deque[tuple[str, LinkState, float]] = deque()
        self._reissued: deque[tuple[tuple[int, int], str, Late]] = deque(maxlen=MOST_ENTRIES)
        self._told: dict[tuple[str, Late], float] = {}
        self._changes: list[Change] = []
        self._gone: dict[str, tuple[str, float]] = {}
        self._records: tuple[WorkerRecord, ...] = ()
        self._live = 0
        self._reader = Reader(tracker)
        self._file: JournalFile | None = None
        self._news: deque[Entry] = deque(maxlen=MOST_ENTRIES)
        self._has_begun = False
        self._master, self._me = _Pulse(), _Pulse()
        self._poll: Callable[[], None] = lambda: None
        self._fail: Callable[[BaseException], None] = lambda error: None
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._stops: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="dl4j-oversight", daemon=True)

    def __enter__(self) -> Self:
        if self._server is not None:
            self._definitions[LIVENESS] = self._server.start().address
        self.journal.watch_refusals()
        try:
            for key, value in {**self._definitions, GONE: {}, WAITING: None}.items():
                self._tracker.define(key, value)
            self._reader.read()  # what happened before is no news
            topics = (JOURNAL_TOPIC, WORKER_TOPIC)
            self._stops = [self._tracker.store.listen(topic, self._woken.set) for topic in topics]
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
        self._woken.set()
        self._thread.join(30.0)
        self._stop_server()
        self._guarded(self._read_journal)

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.stop()

    # -- for the runner and the master's actor ------------------------------------------------------------------------

    def begin(self, poll: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Say that the run is under way here: from now on its journal's copy is kept.

        Args:
            poll: makes the master look again; called when workers come or go.
            fail: ends the master; called when another process has become master.
        """
        if self._conf.checkpoint_dir:
            self._file = JournalFile(Path(self._conf.checkpoint_dir))
            self._guarded(lambda: self._keep(Journal.read(self._tracker)))
        self.journal.write("master_took_over" if self._takes_over else "run_began", run=self._conf.run)
        self._poll, self._fail = poll, fail
        self._woken.set()

    def check_in(self) -> bool:
        """Say that the master is at work, on its thread; return whether it may be, or has to wait.

        Raises:
            TrackerError: it stood still meanwhile, and another took over, or the run is over.
        """
        return self._master.may_go_on(self.office, self._tracker)

    def reissued(self, slot: tuple[int, int], worker: str, why: Late) -> None:
        """Take note of a job that is given to somebody else, on the master's thread."""
        self._reissued.append((slot, worker, why))
        self._woken.set()

    def end(self) -> None:
        """Say that the run is over, if it is."""
        self._guarded(self._write_end)

    def _write_end(self) -> None:
        head = self._tracker.head()
        if head is not None and head.status != "running":
            ended = {"status": head.status, "round": head.round, "examples": head.examples, "score": head.score}
            self.journal.write("run_ended", run=head.run, **ended)

    # -- for any thread -----------------------------------------------------------------------------------------------

    def workers(self) -> tuple[WorkerRecord, ...]:
        """Return the registered workers as they were a second ago at most."""
        return self._records

    def live_count(self) -> int:
        """Return how many registered workers are not known to be gone."""
        return sum(not self.is_gone(record.id) for record in self._records)

    def is_gone(self, worker: str) -> bool:
        """Whether a worker's process is known to be gone or frozen."""
        return self._presence.is_gone(worker)

    def news(self) -> tuple[Entry, ...]:
        """Return what was written into the journal since the last call, by whichever process."""
        entries = []
        while self._news:
            entries.append(self._news.popleft())
        return tuple(entries)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _link_changed(self, process: str, state: LinkState) -> None:
        """Take the server's word, on its thread: only enqueue."""
        self._links.append((process, state, time.monotonic()))
        self._woken.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.wait(_LOOK_SECONDS)
            self._woken.clear()
            self._guarded(self._look)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do what can be done again a second later, if it fails now."""
        try:
            step()
        except TrackerClosedError:
            self._stopped.set()
        except Dl4jError as exc:
            logger.debug("the master's oversight looks again later: %s", exc)
        except Exception:  # the run goes on without
            logger.exception("the master's oversight failed")

    def _look(self) -> None:
        if not self._still_leads():
            return
        while self._links:
            process, state, when = self._links.popleft()
            self._changes += self._presence.link_changed(process, state, when, self._silent_seconds(process, when))
        if self._changes:
            self._poll()  # before anything that takes time
        self._records = tuple(self._tracker.workers())
        self._changes += self._presence.feed({record.id: record.beat for record in self._records}, time.monotonic())
        live, self._live = self._live, self.live_count()
        if self._changes or live != self._live:
            self._poll()
        if self._changes:
            self._tell_changes()
        if self._links:  # more has happened meanwhile, which is to be known first; we are woken again at once
            return
        self._tell_reissued()
        self._forget_stale()
        self._define_again()
        self._read_journal()

    def _still_leads(self) -> bool:
        """Whether this process still is the master: it must leave no trace in a run that is another's, or over."""
        try:
            self.office.check()
            return self._me.may_go_on(self.office, self._tracker) and not self._stopped.is_set()
        except TrackerError as exc:
            self._stopped.set()
            self._fail(exc)
            return False

    def _silent_seconds(self, process: str, now: float) -> float:
        peer = None if self._server is None else self._server.peers().get(process)
        return 0.0 if peer is None else max(0.0, now - peer.heard)

    def _tell_changes(self) -> None:
        """Write who is gone and who is back; one that said good-bye, or is not registered any more, has left."""
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
        self._tracker.define(GONE, {process: reason for process, (reason, _) in self._gone.items()})

    def _tell_reissued(self) -> None:
        """Write which jobs were given to somebody else; of one worker, and for one reason, not too often."""
        while self._reissued:
            (round_, slot), worker, why = self._reissued.popleft()
            now = time.monotonic()
            if now - self._told.get((worker, why), -_TOLD_SECONDS) < _TOLD_SECONDS:
                continue
            self._told[worker, why] = now
            event: Event = "backup_issued" if why == "slow" else "lease_broken"
            self.journal.write(event, worker=worker, round=round_, slot=slot, reason=why)

    def _forget_stale(self) -> None:
        """Take workers out of the register whose processes have been gone for long; a frozen one puts itself back."""
        now = time.monotonic()
        for record in self._records:
            _, since = self._gone.get(process_of(record.id), ("", now))
            if now - since > _STALE_SECONDS:
                self._tracker.remove_worker(record.id)

    def _define_again(self) -> None:
        for key, value in self._definitions.items():
            if self._tracker.get(key) is None:
                self._tracker.define(key, value)
        waiting = self.quorum.waiting
        text = None if waiting is None else waiting.text()
        if text != self._tracker.get(WAITING):
            self._tracker.define(WAITING, text)

    def _read_journal(self) -> None:
        new = self._reader.read()
        self._news.extend(new)
        self._keep(new)
        if self._reader.count > MOST_ENTRIES + MOST_ENTRIES // 10:
            Journal.prune(self._tracker)

    def _keep(self, entries: list[Entry]) -> None:
        if self._file is not None:
            self._file.append(entries)

    def _on_quorum(self, waits: bool) -> None:
        """Tell the journal, on the master's thread; not of waiting for the first workers, which is no interruption."""
        told, self._has_begun = self._has_begun, self._has_begun or not waits
        if told:
            event: Event = "paused" if waits else "went_on"
            self.journal.write(event, workers=self.live_count(), needed=self._conf.min_workers)
