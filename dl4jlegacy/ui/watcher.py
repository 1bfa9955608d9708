"""The thread that reads a run periodically, and the last view made from it: the only state of the dashboard.

Every request is answered from that view, so the number of visitors does not affect the run.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from dl4jlegacy.errors import Dl4jError, TrackerError
from dl4jlegacy.scaleout.monitoring.run_state import RunFacts, run_state
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.system.clock import RUNNING, Clock, Deadline
from dl4jlegacy.system.exits import error_name, exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.ui.run_sources import Source
from dl4jlegacy.ui.view import Away, Marks, Reading, RunView, View

__all__ = ["Watcher", "rest_after"]

logger = logging.getLogger(__name__)

_LEAST_SECONDS, _MOST_SECONDS = 0.5, 1.0
_MOST_OBSERVED = 10_000
_CLOSE_SECONDS = 30.0


def rest_after(seconds: float, rest: int) -> float:
    """Return the seconds until the next reading, after one that took ``seconds``; ``rest`` as ``Source.rest``."""
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, rest * seconds))


class Watcher:
    """Reads a run periodically on a thread of its own; a context manager. Its views may be read from any thread.

    Args:
        source: used on that thread only, except for control actions; closed at the end.
        clock: of running time.
        looks_at_once: whether entering waits for the first view, however long that takes.
    """

    def __init__(self, source: Source, clock: Clock = RUNNING, *, looks_at_once: bool = True) -> None:
        self.source, self._clock, self._looks_at_once = source, clock, looks_at_once
        self.reading: Reading | None = None
        """The last successful reading; None: none yet."""
        self.view = View(source=source.place)
        self._observed: deque[HistoryEntry] = deque(maxlen=_MOST_OBSERVED)
        self._observer = _Observer(clock)
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread = ServiceThread(target=self._run, name="dl4j-watcher")

    def __enter__(self) -> Watcher:
        if self._looks_at_once:
            self.look()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed.set()
        self._thread.join(_CLOSE_SECONDS)
        self.source.close()

    @property
    def history(self) -> Sequence[HistoryEntry]:
        """The versions of the model: those that the run stores, or else those observed by this dashboard."""
        kept = None if self.reading is None else self.reading.history
        return tuple(self._observed) if kept is None else kept

    @property
    def events(self) -> Sequence[JournalEntry]:
        """The entries of the run's journal, oldest first."""
        return () if self.reading is None else self.reading.events

    @contextlib.contextmanager
    def told(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call ``listener`` after every new view, on the watcher's thread; it must only enqueue."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

    def look(self) -> None:
        """Read the run once and make its view; errors are shown in the view."""
        now = time.time()
        try:
            with exits_as_errors():
                reading = self.source.read()
        except Dl4jError as exc:
            run = _unanswered(self.view.run, exc)
            self._show(msgspec.structs.replace(self.view, run=run, away=self._away(now, exc.code, str(exc))))
            return
        except Exception as exc:  # shown on the page; the next reading may succeed
            logger.exception("the run cannot be looked at")
            message = f"this is a bug in dl4jlegacy ({error_name(exc)}); its traceback is where the dashboard runs"
            self._show(msgspec.structs.replace(self.view, away=self._away(now, Dl4jError.code, message)))
            return
        self.reading = reading
        if reading.history is None and (seen := self._observer.entry(reading.run, now)) is not None:
            self._observed.append(seen)
        self._show(self._view_of(reading, now))

    def _view_of(self, reading: Reading, now: float) -> View:
        history, events = self.history, reading.events
        return View(
            source=self.source.place,
            read_at=now,
            notices=reading.notices,
            run=reading.run,
            workers=reading.workers,
            jobs=reading.jobs,
            history=Marks(
                count=len(history),
                last=f"{history[-1].began}/{history[-1].version}" if history else "",
                first=f"{history[0].began}/{history[0].version}" if history else "",
            ),
            events=Marks(
                count=len(events), last=events[-1].key if events else "", first=events[0].key if events else ""
            ),
            is_observed=reading.history is None,
            can=self.source.can,
        )

    def _away(self, now: float, code: str, message: str) -> Away:
        before = self.view.away
        return Away(since=now if before is None else before.since, code=code, message=message)

    def _show(self, view: View) -> None:
        self.view = msgspec.structs.replace(view, number=self.view.number + 1)
        with self._lock:
            listeners = self._listeners
        for listener in listeners:
            listener()

    def _run(self) -> None:
        rest = _LEAST_SECONDS
        while not Deadline(rest, self._clock).wait(self._closed.wait):
            began = self._clock.now()
            self.look()
            rest = rest_after(self._clock.now() - began, self.source.rest)


def _unanswered(run: RunView | None, error: Dl4jError) -> RunView | None:
    """Return the view of a run while its servers do not answer."""
    if run is None or run.state == "ended" or not isinstance(error, TrackerError):
        return run
    return msgspec.structs.replace(run, **run_state(RunFacts(unanswered=str(error))).fields())


class _Observer:
    """Builds the history of a run that stores none, from observations; an entry may stand for several versions."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._began, self._last = clock, time.time(), (-1, 0.0)

    def entry(self, run: RunView, now: float) -> HistoryEntry | None:
        """Return the entry of a new version; None: the version is not new."""
        version, before = self._last
        if run.version == version or run.status == "not begun":
            return None
        if run.version < version:
            self._began = now  # another run, or a run that went back
        self._last = (run.version, self._clock.now())
        if version < 0 or run.version < version:
            return None  # it is unknown how long it had been the newest
        return HistoryEntry(
            began=self._began,
            time=now,
            version=run.version,
            round=run.round,
            batches=run.batches,
            examples=run.examples,
            score=run.score,
            seconds=self._last[1] - before,
            staleness=0.0,
            workers={},
            validation=run.validation,
        )
