"""Interfaces by which a program follows its run: listeners, model savers, observers.

Legacy: ``IterationListener`` and ``ModelSaver``; an error in either ended the actor that called it, and with it the
run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.monitoring.run_state import RunState
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.scaleout.phases import EventStats
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.protocol.slot_watch import ReissueReason
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Failure, Head, WorkerRecord
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.system.exits import error_text, exits_as_errors

__all__ = ["ModelSaver", "ObservedRun", "Observers", "RunObserver", "RunObservers"]

logger = logging.getLogger(__name__)


class ModelSaver(Protocol):
    """Saves models in a user-defined way, in addition to the checkpoints."""

    def save(self, head: Head, model: Result) -> None:
        """Save version ``head.version`` of the run's model, whose arrays are read-only views.

        Called on its own thread, in the order of the versions: with every ``Conf.checkpoint_every``-th version, or the
        next one if the saver was still busy, and with the last. A run that another process takes over may save a
        version again. An error causes a warning, and the run continues.
        """
        ...


class Observers:
    """Calls the listeners and the saver of a run; the first error of each causes a warning, and the run continues.

    Args:
        outcome: receives the warnings.
        listeners: called with every new version, on the master's thread, which waits for them. The number of examples
            of the first version of a resumed run is unknown; it is passed as 0.
        saver: receives the versions to be saved; None: there is none.
        network_of: makes the trained network from a model for the listeners; for jobs without a network, returns the
            model itself.
    """

    def __init__(
        self,
        outcome: Outcome,
        listeners: Sequence[TrainingListener],
        saver: ModelSaver | None,
        network_of: Callable[[Result], Any],
    ) -> None:
        self._listeners, self._saver, self._network_of = listeners, saver, network_of
        self._guarded = _Guard(outcome.warn)
        self._last: Head | None = None
        self._kept = 0

    def on_version(self, event: NewModel) -> None:
        """Call the listeners once with a new version; the last version arrives again at the end of the run.

        They are not called for validations, but they are for rounds that leave the model unchanged.
        """
        head = event.head
        last, self._last = self._last, head
        is_known = last is not None and head.version <= last.version
        if not self._listeners or is_known or event.figures is not None:
            return
        began = 0 if last is None and head.version == 1 else head.examples if last is None else last.examples
        network, examples = self._network_of(Result.decode(event.frame)), head.examples - began
        score = float("nan") if head.score is None else head.score
        for listener in self._listeners:
            done = partial(listener.iteration_done, network, head.version - 1, score, examples=examples)
            self._guarded(listener, done)

    def keep(self, head: Head, frame: Buffer) -> None:
        """Pass a version to the saver, once."""
        saver = self._saver
        if saver is not None and head.version > self._kept:
            self._kept = head.version
            self._guarded(saver, lambda: saver.save(head, Result.decode(frame)))


class _Guard:
    """Calls parts of the program whose errors do not end the run: the first error of each part causes a warning.

    Args:
        warn: receives the warning as text.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._failed: set[str] = set()

    def __call__(self, part: Any, call: Callable[[], object]) -> None:
        """Call a method of ``part``."""
        try:
            with exits_as_errors():
                call()
        except Exception as exc:
            name = str(getattr(part, "name", "")) or type(part).__name__  # a listener that forwards has a name
            if name not in self._failed:
                self._failed.add(name)
                logger.warning("%s failed, and the run goes on without what it does", name, exc_info=True)
                self._warn(f"{name} failed, and the run went on: {error_text(exc)}")


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A run as a ``RunObserver`` sees it, from any of its threads.

    Attributes:
        conf, plan: of the run.
        process: the unique name of this process.
        tracker: of the run.
        workers: returns the known workers without waiting for the tracker; none in a worker's process.
        is_master: whether this process leads the run; otherwise it is a worker's process.
        state: returns the state of the run without waiting; meaningful in a master only.
    """

    conf: Conf
    plan: Plan
    process: str
    tracker: StateTracker
    workers: Callable[[], Sequence[WorkerRecord]] = tuple
    is_master: bool = True
    state: Callable[[], RunState] = RunState


class RunObserver:
    """Follows a run, in the process of its master or of its workers; this base class does nothing.

    The methods must not wait for anything: the run would wait too. The first error of a method other than ``begin``
    causes a warning, and the run continues. An observer may follow several runs, one after the other.
    """

    wants_phases: ClassVar[bool] = False
    """Whether ``phases`` is called; if so, the process records phases."""

    def begin(self, run: ObservedRun) -> None:
        """Called before a run begins in this process; an error ends the run."""

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        """Called once for each new version of the model, on the master's thread, after the next jobs are issued."""

    def phases(self, events: Sequence[EventStats]) -> None:
        """Called twice a second with the phases of this process that have ended, on a separate thread."""

    def job_failed(self, slot: tuple[int, int], failure: Failure) -> None:
        """Called when the job of a (round, slot) failed in this process, on the worker's thread."""

    def job_reissued(self, reason: ReissueReason) -> None:
        """Called when a job is also given to another worker, with the reason, on the master's thread."""

    def checkpoint_failed(self, message: str) -> None:
        """Called when a checkpoint could not be written, on the thread that writes them."""

    def happened(self, entries: Sequence[JournalEntry]) -> None:
        """Called with new entries of the run's journal, on the thread of a master's monitor."""

    def end(self) -> None:
        """Called when the run is over or this process leaves it: write the remaining data, and end all threads."""


class RunObservers(RunObserver):
    """Forwards every call to several observers; the first error of each causes a warning, and the run continues.

    Args:
        observers: in the order in which they are called.
        warn: receives the warnings as text.
    """

    def __init__(self, observers: Sequence[RunObserver], warn: Callable[[str], None]) -> None:
        self._observers, self._guarded = tuple(observers), _Guard(warn)
        self._begun: list[RunObserver] = []

    def __bool__(self) -> bool:
        return bool(self._observers)

    def follow_phases(self) -> bool:
        """Return whether any observer wants phases."""
        return any(observer.wants_phases for observer in self._observers)

    def begin(self, run: ObservedRun) -> None:
        """See ``RunObserver``."""
        for observer in self._observers:
            self._begun.append(observer)
            with exits_as_errors():
                observer.begin(run)

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        """See ``RunObserver``."""
        self._call("new_version", version, event)

    def phases(self, events: Sequence[EventStats]) -> None:
        """See ``RunObserver``; only called for observers that want phases."""
        for observer in self._begun:
            if observer.wants_phases:
                self._guarded(observer, partial(observer.phases, events))

    def job_failed(self, slot: tuple[int, int], failure: Failure) -> None:
        """See ``RunObserver``."""
        self._call("job_failed", slot, failure)

    def job_reissued(self, reason: ReissueReason) -> None:
        """See ``RunObserver``."""
        self._call("job_reissued", reason)

    def checkpoint_failed(self, message: str) -> None:
        """See ``RunObserver``."""
        self._call("checkpoint_failed", message)

    def happened(self, entries: Sequence[JournalEntry]) -> None:
        """See ``RunObserver``."""
        self._call("happened", entries)

    def end(self) -> None:
        """See ``RunObserver``; called once, and only for observers that have begun."""
        self._call("end")
        self._begun.clear()

    def _call(self, method: str, *arguments: object) -> None:
        for observer in self._begun:
            self._guarded(observer, partial(getattr(observer, method), *arguments))
