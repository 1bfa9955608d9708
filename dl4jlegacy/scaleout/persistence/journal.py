"""The journal of a run: entries about events, written by all its processes, for ``dl4j logs`` and the master.

Each entry is written once, under its own key, so writers never conflict. Keys begin with a number from a counter that
all writers share, so they sort in the order of writing, whatever the machines' clocks say. A process that has read a
number never uses a lower one, so the order also holds if a grid that lost everything restarts the counter. Writing is
best effort, because nothing in a run depends on it. The master deletes the oldest entries.

Legacy: none; each process had its own log file.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from dl4jlegacy.errors import CheckpointError, Dl4jError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.persistence.jsonl import JsonlFile
from dl4jlegacy.scaleout.protocol.frames import COUNTS
from dl4jlegacy.scaleout.state.records import Failure, Keys, encode_record
from dl4jlegacy.scaleout.state.untrusted import shortened
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.storage.folders import LinesFolder

__all__ = [
    "JOURNAL_TOPIC",
    "MOST_ENTRIES",
    "Event",
    "FollowedJournal",
    "Journal",
    "JournalEntry",
    "JournalFile",
    "JournalReader",
]

logger = logging.getLogger(__name__)

JOURNAL_TOPIC = "log"
MOST_ENTRIES = 1000
_MOST_CHARACTERS = 16_000
_MOST_REFUSALS = 100
_PREFIX = "log/"
_COUNTER = "counter/dl4j.journal"
"""Key of the counter with the newest entry's number."""

Event = Literal[
    "run_began",
    "run_ended",
    "master_leads",
    "master_took_over",
    "worker_joined",
    "worker_left",
    "worker_gone",
    "worker_back",
    "worker_set_aside",
    "lease_broken",
    "job_failed",
    "worker_crashed",
    "job_suspected",
    "job_set_aside",
    "backup_issued",
    "paused",
    "went_on",
    "checkpoint_failed",
    "checkpoints_back",
    "state_changed",
    "frame_refused",
]


@runtime_checkable
class RefusingStore(Protocol):
    """A store that reports the values it refused, by key and reason."""

    on_refused: Callable[[str, str], None]


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An event, written by the process named ``source``.

    ``time`` is for display: seconds since 1970 by the clock of ``host``. ``ran`` is the running time of the process in
    seconds. It gives the time between two entries of the same process, and cannot be compared between processes.
    """

    key: str
    time: float
    source: str
    host: str
    pid: int
    event: str
    fields: dict[str, Any] = {}
    ran: float = 0.0

    def line(self) -> str:
        """Return the entry as one line of text, without a traceback."""
        shown = ", ".join(
            f"{name.replace('_', ' ')} {value}"
            for name, value in self.fields.items()
            if name != "traceback" and value != ""
        )
        event = self.event.replace("_", " ")
        return f"{event}: {shown}" if shown else event

    def text(self) -> str:
        """Return the entry as text: time in this machine's time zone, process, event, and traceback if any."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time)) + f".{int(self.time * 1000) % 1000:03}"
        trace = str(self.fields.get("traceback") or "").rstrip()
        return "\n  ".join([f"{when} {self.host} {self.pid} {self.line()}", *trace.splitlines()])

    def flat(self) -> dict[str, Any]:
        """Return the entry as one flat JSON object."""
        own = {"time": self.time, "source": self.source, "host": self.host, "pid": self.pid, "event": self.event}
        return {**own, **self.fields}


class Journal:
    """Writes the journal entries of one process. Thread-safe.

    Args:
        tracker: of the run.
        source: the process's name.
    """

    def __init__(self, tracker: StateTracker, source: str) -> None:
        self._tracker, self._source = tracker, source
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._lock = threading.Lock()
        self._last = 0
        self._refusals: set[str] = set()

    def write(self, event: Event, **fields: Any) -> None:
        """Write an entry. Never raises: an entry that cannot be written is only logged.

        Args:
            event: the kind of event.
            fields: JSON values; very long texts are cut in the middle.
        """
        entry = JournalEntry(
            key="",
            time=time.time(),
            ran=self._tracker.clock.now(),
            source=self._source,
            host=self._host,
            pid=self._pid,
            event=event,
            fields={name: _bounded(value) for name, value in fields.items()},
        )
        try:
            logger.info("%s", entry.line())
            encode_record(entry)  # fails before a number is taken
            entry = msgspec.structs.replace(entry, key=self._key())
            self._tracker.store.put(entry.key, encode_record(entry))
            self._tracker.store.publish(JOURNAL_TOPIC)
        except (Dl4jError, TypeError, ValueError, OverflowError, RecursionError) as exc:  # a field is not a JSON value
            logger.info("the journal's entry %s could not be written: %s", event, exc)

    def job_failed(self, event: protocol.Perform, failure: Failure) -> None:
        """Write that a job failed in this process, and why."""
        self.write(
            "job_failed",
            worker=failure.worker,
            host=self._host,
            pid=self._pid,
            round=event.plan.round,
            slot=event.plan.slot,
            attempt=len(event.record.failures) + 1,
            code=failure.code,
            message=failure.message,
            traceback=failure.traceback,
        )

    def watch_refusals(self) -> None:
        """Write an entry whenever the store refuses a value, once per key: somebody else writes to the store."""
        if isinstance(self._tracker.store, RefusingStore):
            self._tracker.store.on_refused = self._refused

    def _refused(self, key: str, reason: str) -> None:
        with self._lock:
            if key in self._refusals or len(self._refusals) >= _MOST_REFUSALS:
                return
            self._refusals.add(key)
        self.write("frame_refused", key=key, reason=reason)

    def _key(self) -> str:
        """Return a key greater than all keys that this process has written or read."""
        number = drive(protocol.next_number(self._tracker.store, _COUNTER, self._last))
        self._note(number)
        return f"{_PREFIX}{number:020}/{self._source}"

    def _note(self, number: int) -> None:
        with self._lock:
            self._last = max(self._last, number)

    def came_after(self, entries: Iterable[JournalEntry]) -> None:
        """Note entries that others have written, so that later entries of this process get higher numbers."""
        for entry in entries:
            self._note(_number(entry.key))

    def restore(self, keys: Iterable[str]) -> None:
        """Write the counter again if it is missing in the store's ``keys``, so that others continue from it."""
        if self._last and _COUNTER not in keys:
            drive(protocol.next_number(self._tracker.store, _COUNTER, self._last))

    @staticmethod
    def read(tracker: StateTracker, after: str = "") -> list[JournalEntry]:
        """Return the entries with keys greater than ``after``, oldest first, without foreign ones."""
        return [entry for entry in JournalReader(tracker).read() if entry.key > after]

    @staticmethod
    def prune(tracker: StateTracker, most: int = MOST_ENTRIES) -> None:
        """Delete foreign values, and all but the newest ``most`` entries; for the master."""
        reader = JournalReader(tracker)
        reader.read()
        reader.prune(most)


class JournalReader:
    """Reads the new entries of a run's journal, each once, even if they arrive out of order. For one thread."""

    def __init__(self, tracker: StateTracker) -> None:
        self._tracker = tracker
        self._entries: set[str] = set()
        self._foreign: set[str] = set()

    def needs_pruning(self) -> bool:
        """Return whether there are foreign values among the entries, or many more entries than are kept."""
        return bool(self._foreign) or len(self._entries) > MOST_ENTRIES + MOST_ENTRIES // 10

    def read(self, keys: Iterable[str] | None = None) -> list[JournalEntry]:
        """Return the entries that were not returned before, oldest first; ``keys`` are the store's, if just listed."""
        listed = self._tracker.store.keys(_PREFIX) if keys is None else [k for k in keys if k.startswith(_PREFIX)]
        present = {key for key in listed if Keys.is_of_run(key)}
        new = [key for key in listed if key in present and key not in self._entries and key not in self._foreign]
        found = _entries(self._tracker, new)
        entries = {entry.key for entry in found}
        self._foreign = (self._foreign & present) | (set(new) - entries)
        self._entries = (self._entries & present) | entries
        return found

    def prune(self, most: int = MOST_ENTRIES) -> None:
        """Delete foreign values, and the oldest of more than ``most`` entries; for the master."""
        old = sorted(self._entries)[:-most]
        drive(protocol.delete_many(self._tracker.store, [*self._foreign, *old]))
        self._foreign.clear()
        self._entries.difference_update(old)


class JournalFile(JsonlFile[JournalEntry]):
    """A copy of a run's journal in its checkpoint folder, which outlives the tracker."""

    NAME = "journal.jsonl"

    def __init__(self, folder: LinesFolder) -> None:
        super().__init__(folder, self.NAME, JournalEntry, "the journal's copy")
        self._written: set[str] | None = None

    def read(self) -> list[JournalEntry]:
        """Return the entries, oldest first, each once: a replaced master may have written some again.

        Raises:
            CheckpointError: there is no such file, or it cannot be read. CloudError and its like: errors reported by
                AWS.
        """
        with self._explained():
            return _in_order(self.lines())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise CheckpointError(
                f"{self.place} cannot be read: {exc.strerror or exc}; the journal is kept in the --checkpoint-dir of "
                "a run on a cluster; `dl4j logs DIR --history` shows how any run with such a folder went"
            ) from exc

    def unwritten(self, records: Sequence[JournalEntry]) -> Sequence[JournalEntry]:
        """Return the entries that are not in the file."""
        if self._written is None:
            self._written = self._keys()
        written = self._written
        return tuple({entry.key: entry for entry in records if entry.key not in written}.values())

    def wrote(self, records: Sequence[JournalEntry]) -> None:
        """See ``JsonlFile``."""
        assert self._written is not None
        self._written.update(entry.key for entry in records)

    def _keys(self) -> set[str]:
        try:
            return {entry.key for entry in self.lines()}
        except FileNotFoundError:
            return set()


class FollowedJournal(JournalFile):
    """A journal's copy that is read repeatedly; each time only the appended part is read. For one thread."""

    def __init__(self, folder: LinesFolder) -> None:
        super().__init__(folder)
        self._entries: list[JournalEntry] = []

    def read(self) -> list[JournalEntry]:
        """Return the entries as ``JournalFile.read`` does, in a list of their own; raises the same errors."""
        with self._explained():
            new, is_all = self.new_lines()
        if new or is_all:
            self._entries = _in_order(new if is_all else [*self._entries, *new])
        return self._entries


def _number(key: str) -> int:
    """Return the number of an entry; 0 if its key contains no valid counter value."""
    digits = key.removeprefix(_PREFIX).partition("/")[0]
    number = int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else 0
    return number if number in COUNTS else 0


def _in_order(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Return the entries, oldest first, each once."""
    return sorted({entry.key: entry for entry in entries}.values(), key=lambda entry: entry.key)


def _entries(tracker: StateTracker, keys: Sequence[str]) -> list[JournalEntry]:
    """Return the entries under ``keys``; values that are not entries are noted as foreign and left out."""
    raws = drive(protocol.read_many(tracker.store, keys))
    found = [protocol.parse_record(tracker.store, key, raw, JournalEntry) for key, raw in zip(keys, raws, strict=True)]
    entries = []
    for key, entry in zip(keys, found, strict=True):
        if entry is not None and entry.key == key:
            entries.append(entry)
        elif entry is not None:
            tracker.store.foreign.note(key, f"the journal's entry under {shortened(key)} belongs under another key")
    return entries


def _bounded(value: Any) -> Any:
    """Return ``value``; a very long text is cut in the middle."""
    if not isinstance(value, str) or len(value) <= _MOST_CHARACTERS:
        return value
    half = _MOST_CHARACTERS // 2
    return f"{value[:half]}\n... {len(value) - 2 * half:,} characters left out ...\n{value[-half:]}"
