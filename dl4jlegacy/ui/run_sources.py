"""Sources from which the dashboard reads a run: its checkpoint folder, its tracker in this process, or its cluster.

Sources keep only caches that make the next reading cheaper. Each is used by one thread; only the methods that control a
run may be called by other threads, since they use their own connections.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec

from dl4jlegacy.errors import CheckpointError, TrackerError, UsageError
from dl4jlegacy.observing.ratios import RatiosEntry
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.monitor import WAITING
from dl4jlegacy.scaleout.monitoring.run_state import (
    LEADER,
    STATES,
    RunFacts,
    RunState,
    ending_of,
    facts_of,
    run_state,
    who_leads,
)
from dl4jlegacy.scaleout.monitoring.silence import Silence
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.persistence.history import FollowedHistory, HistoryEntry
from dl4jlegacy.scaleout.persistence.journal import FollowedJournal, JournalEntry, JournalReader
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.storage.folders import Folder
from dl4jlegacy.system.clock import RUNNING, Clock
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.ui.evaluation import EvaluationView, evaluate_newest
from dl4jlegacy.ui.run_models import FolderModels, Model, newest_of
from dl4jlegacy.ui.view import Reading, RunView, job_views, run_view, worker_views, workers_of_history

__all__ = ["OF_CHECKPOINTS", "FolderSource", "LocalSource", "RunFiles", "Source", "TrackerState"]

T = TypeVar("T")

_REST, _MOST_REST_SECONDS = 100, 10.0
"""A file is not read again for this multiple of its last reading time, up to the given number of seconds."""
_MOST_EVENTS = 2000
_TURNS = ("run_ended", "run_began", "master_leads", "master_took_over")
"""Journal events; the last one of them says whether a run has ended or goes on."""
OF_CHECKPOINTS = ("save", "evaluate")
"""Actions that need readable checkpoints."""


class Source(Protocol):
    """A place from which a run can be read. ``read`` and ``close`` are called on one thread, the rest on any thread."""

    place: str
    """Description of the place, in words."""
    can: tuple[str, ...]
    """The available actions among "stop", "drain", "save" and "evaluate"."""
    rest: int
    """Pause before the next reading, as a multiple of the last reading's time; larger if reading slows the run down."""

    def read(self) -> Reading:
        """Return the present state of the run. Blocks.

        Raises:
            Dl4jError: the run cannot be read now.
        """
        ...

    def stop(self) -> str:
        """Stop the run; return the outcome in words. Blocks; raises ``Dl4jError``."""
        ...

    def drain(self, worker: str) -> str:
        """Ask a worker's process to leave after it has finished its jobs; return the request in words. As ``stop``."""
        ...

    def save(self, out: str) -> str:
        """Write the newest stored model to the file ``out``; return a description. Blocks; as ``stop``."""
        ...

    def models(self, after: int) -> Sequence[Model]:
        """Return the readable models after a version, oldest first; all of them if all are older.

        Called by one thread at a time, which may change. Blocks; raises ``Dl4jError``.
        """
        ...

    def ratios(self) -> Sequence[RatiosEntry]:
        """Return the ratios of update to parameter, if the run stores them; as ``models``."""
        ...

    def evaluate(self) -> EvaluationView:
        """Return the evaluation of the newest checkpoint on held-out data. Blocks; as ``stop``."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class _Rested(Generic[T]):
    """Caches the result of a slow reading; the reading is repeated only after a sufficient pause."""

    def __init__(self, read: Callable[[], T], clock: Clock = RUNNING) -> None:
        self._read, self._clock, self._next = read, clock, -1.0
        self._last: T | None = None

    def get(self) -> T:
        """Return the present or a recent result; raises what ``read`` raises."""
        now = self._clock.now()
        if self._last is None or now >= self._next:
            self._last = self._read()
            took = self._clock.now() - now
            self._next = now + min(_MOST_REST_SECONDS, _REST * took)
        return self._last


def _if_there(read: Callable[[], list[T]]) -> list[T]:
    """Return the contents of a file; an empty list if the file does not exist yet."""
    try:
        return read()
    except CheckpointError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            return []
        raise


_Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class _Images(msgspec.Struct, frozen=True):
    height: _Count | None = None
    width: _Count | None = None
    channels: _Count | None = None


class _Looked(msgspec.Struct, frozen=True):
    """The fields of a run's Conf that are checked; the others may be of another version."""

    run: str = ""
    incarnation: str = ""
    checkpoint_dir: str | None = None
    batch_size: _Count | None = None
    validation: dict[str, Any] | None = None
    early_stopping: dict[str, Any] | None = None
    images: _Images | None = None
    multi_layer_conf: dict[str, Any] | None = None
    computation_graph_conf: dict[str, Any] | None = None


class RunFiles:
    """The files in a run's checkpoint folder, as far as they exist.

    Args:
        folder: the run's.
        incarnation: of the run to read; None: any. The files of another incarnation are ignored.
    """

    def __init__(self, folder: Folder, incarnation: str | None = None) -> None:
        self._folder, self._incarnation = folder, incarnation
        history, journal = FollowedHistory(folder), FollowedJournal(folder)
        self._history = _Rested(lambda: _if_there(history.read))
        self._events = _Rested(lambda: _if_there(journal.read))
        self._conf = _Rested(self._read_conf)
        self._head = _Rested(lambda: (CheckpointStore(folder).newest_head(),))

    def conf(self) -> dict[str, Any]:
        """Return the run's Conf, as JSON.

        Raises:
            CheckpointError: there is none, or it cannot be read. CloudError and similar errors: what AWS reports.
        """
        return self._conf.get()

    def is_of_run(self) -> bool:
        """Return whether the folder can be read here and belongs to the run in question."""
        try:
            return self._incarnation in (None, self.conf().get("incarnation"))
        except CheckpointError:
            return False

    def history(self) -> list[HistoryEntry]:
        """Return the versions of the run's model; raises ``CheckpointError`` as ``HistoryFile.read``."""
        return self._history.get()

    def events(self) -> list[JournalEntry]:
        """Return the entries of the run's journal; raises ``CheckpointError`` as ``JournalFile.read``."""
        return self._events.get()

    def head(self) -> Head | None:
        """Return the head of the run's newest checkpoint; None if it has none."""
        return self._head.get()[0]

    def read(self) -> Reading:
        """Return the reading of the run from the files alone; raises as the other methods."""
        conf, history, head, events = self.conf(), self.history(), self.head(), self.events()
        run = run_view(conf, head, None, history)
        last = next((entry for entry in reversed(events) if entry.event in (*_TURNS, "state_changed")), None)
        if last is not None and last.event == "run_ended":
            run = msgspec.structs.replace(run, status=str(last.fields.get("status") or "done"))
        return Reading(
            run=msgspec.structs.replace(run, **_state_of(run, conf, head, last).fields()),
            workers=workers_of_history(history),
            history=history,
            events=events,
            conf=conf,
        )

    def _read_conf(self) -> dict[str, Any]:
        place = self._folder.place
        try:
            content = self._folder.read("conf.json")
            msgspec.json.decode(content, type=decodable(_Looked))
            found: dict[str, Any] = msgspec.json.decode(content)
            return found
        except FileNotFoundError as exc:
            raise CheckpointError(
                f"{place} holds no run: it has no conf.json; give what --checkpoint-dir was, or --zookeeper"
            ) from exc
        except OSError as exc:
            raise CheckpointError(f"{place} cannot be read: {exc.strerror or exc}") from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise CheckpointError(f"the conf.json in {place} is none: {exc}") from exc


def _state_of(run: RunView, conf: Mapping[str, Any], head: Head | None, last: JournalEntry | None) -> RunState:
    """Return the state of a run from its files alone; ``last`` is the last journal entry about it."""
    news = max(run.last_news or 0.0, 0.0 if last is None else last.time)
    patience, quiet = conf.get("stuck_seconds"), time.time() - news
    is_silent = news > 0 and isinstance(patience, int | float) and quiet > patience
    silence = f"its files have had no news for {quiet / 60:,.0f} min: nobody seems to work on it" if is_silent else ""
    status = "" if run.status == "not begun" else run.status
    found = run_state(RunFacts(status=status, ending=ending_of(head), silence=silence))
    told = "" if last is None or last.event != "state_changed" else str(last.fields.get("state"))
    if last is not None and found.state == "running" and told in STATES:
        return RunState(told, str(last.fields.get("reason") or ""))
    return found


class FolderSource:
    """A run read only from its checkpoint folder: finished, or active on this machine.

    Args:
        folder: path of the folder, here or in S3.
    """

    def __init__(self, folder: str) -> None:
        self.place = folder
        self.can: tuple[str, ...] = OF_CHECKPOINTS
        self.rest = 20
        self._files, self._models = RunFiles(storage.open_folder(folder)), FolderModels(folder)

    def read(self) -> Reading:
        """See ``Source``."""
        return self._files.read()

    def stop(self) -> str:
        """See ``Source``: no process can be reached through a folder."""
        raise UsageError(
            "a run that is looked at in its folder cannot be stopped from here: press Ctrl-C where it trains"
        )

    def drain(self, worker: str) -> str:
        """See ``Source``: no process can be reached through a folder."""
        raise UsageError("a run that is looked at in its folder has no workers that could be asked to leave from here")

    def save(self, out: str) -> str:
        """See ``Source``."""
        return exported(self.place, out)

    def models(self, after: int) -> Sequence[Model]:
        """See ``Source``."""
        return self._models.after(after)

    def ratios(self) -> Sequence[RatiosEntry]:
        """See ``Source``."""
        return self._models.ratios()

    def evaluate(self) -> EvaluationView:
        """See ``Source``."""
        return evaluate_newest(self.place)

    def close(self) -> None:
        """See ``Source``."""


class LocalSource:
    """A run that is trained in this process.

    Args:
        tracker: the run's; its owner closes it.
        conf, plan: the run's, with all defaults resolved.
    """

    def __init__(self, tracker: StateTracker, conf: Conf, plan: Plan) -> None:
        self.place = f"this process, pid {os.getpid()}"
        self._tracker, self._folder, self._run = tracker, conf.checkpoint_dir, conf.run
        self.can: tuple[str, ...] = ("stop", *(OF_CHECKPOINTS if self._folder else ()))
        self.rest = 100  # reading holds up the training threads
        self._files = RunFiles(storage.open_folder(self._folder), conf.incarnation) if self._folder else None
        self._models = FolderModels(self._folder, conf.incarnation) if self._folder else None
        self._state = TrackerState(tracker, msgspec.json.decode(conf.to_json(), type=dict[str, Any]), plan)

    def read(self) -> Reading:
        """See ``Source``."""
        files = self._files if self._files is not None and self._files.is_of_run() else None
        return self._state.read(files)

    def stop(self) -> str:
        """See ``Source``."""
        head = self._tracker.finish("stopped")
        if head is None:
            raise TrackerError(f"run {self._run} has not begun; there is nothing to stop")
        return f"run {self._run}: {head.status} in round {head.round}"

    def drain(self, worker: str) -> str:
        """See ``Source``: the workers are threads of this process."""
        raise UsageError("the workers of a run in one process stay until it ends; --workers says how many there are")

    def save(self, out: str) -> str:
        """See ``Source``."""
        return exported(self._checkpoints(), out)

    def models(self, after: int) -> Sequence[Model]:
        """See ``Source``."""
        return newest_of(self._tracker, after) if self._models is None else self._models.after(after)

    def ratios(self) -> Sequence[RatiosEntry]:
        """See ``Source``."""
        return [] if self._models is None else self._models.ratios()

    def evaluate(self) -> EvaluationView:
        """See ``Source``."""
        return evaluate_newest(self._checkpoints())

    def _checkpoints(self) -> str:
        if not self._folder:
            raise UsageError("the run keeps no checkpoints; give it a --checkpoint-dir")
        return self._folder

    def close(self) -> None:
        """See ``Source``."""


def exported(folder: str, out: str) -> str:
    """Write the newest checkpoint in a folder to a model file; return a description; raises ``Dl4jError``."""
    from dl4jlegacy.training.checkpoints import export_model

    fields = export_model(folder, out)
    return (
        f"the model of run {fields['run']} in round {fields['round']}, after {fields['examples']:,} examples, is in "
        f"{fields['model_path']}"
    )


class TrackerState:
    """Reads a run from its tracker: the head, the workers, the present round's jobs and the journal. For one thread.

    Args:
        tracker, conf: the run's; ``conf`` as JSON.
        plan: the run's; None: taken from the tracker.
        silence: the workers' silence as observed by an earlier reader of the run; None: not yet observed.
        needed: number of workers below which nothing is computed.
    """

    def __init__(
        self,
        tracker: StateTracker,
        conf: Mapping[str, Any],
        plan: Plan | None = None,
        *,
        silence: Silence | None = None,
        needed: int = 0,
    ) -> None:
        self._needed = needed
        self._tracker, self._conf, self._plan = tracker, conf, plan
        self._silence, self._reader = silence or Silence(), JournalReader(tracker)
        self._events: dict[str, JournalEntry] = {}

    def read(self, files: RunFiles | None = None, **known: Any) -> Reading:
        """Return the reading from the tracker and the run's files; "not begun": the tracker has no head of the run.

        Args:
            files: the run's, if they can be read here.
            known: other fields of ``RunView``.

        Raises:
            TrackerError: the tracker cannot be reached. CheckpointError and similar errors: the files cannot be read.
        """
        head, plan = self._tracker.head(), self._find_plan()
        jobs = job_views({} if plan is None else self._tracker.current_jobs(plan), head)
        facts = facts_of(self._tracker, self._needed)
        if "master" in known:
            master, standbys = who_leads(self._tracker.get(LEADER), known["master"], known["standbys"])
            known = {**known, "master": master, "standbys": standbys}
            facts = msgspec.structs.replace(facts, has_master=master is not None, standbys=len(standbys))
        records = facts.workers
        for entry in self._reader.read():
            self._events[entry.key] = entry
        for key in sorted(self._events)[:-_MOST_EVENTS]:
            del self._events[key]
        history = None if files is None else files.history()
        waiting = self._tracker.get(WAITING) if facts.has_master else None
        news = max([record.beat for record in records], default=0.0) or None
        fields = {"waiting": str(waiting or ""), "last_news": news, **run_state(facts).fields(), **known}
        return Reading(
            run=run_view(self._conf, head, plan, **fields),
            workers=worker_views(
                records,
                facts.gone,
                jobs,
                history or (),
                self._silence.update({record.id: record.beat for record in records}),
            ),
            jobs=jobs,
            history=history,
            events=self._all_events(files),
            conf=self._conf,
        )

    def _find_plan(self) -> Plan | None:
        found = None if self._plan is not None else self._tracker.get("plan")
        if found is not None:
            with contextlib.suppress(msgspec.ValidationError):
                self._plan = msgspec.convert(found, decodable(Plan))
        return self._plan

    def _all_events(self, files: RunFiles | None) -> Sequence[JournalEntry]:
        """Return the journal entries in the tracker, and those that only the journal's file still has."""
        kept = [] if files is None else files.events()
        entries = {entry.key: entry for entry in kept} | self._events
        return [entries[key] for key in sorted(entries)]
