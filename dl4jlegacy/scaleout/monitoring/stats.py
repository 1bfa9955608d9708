"""The training statistics of a run: the phases of all its processes.

The processes of a cluster write their events into the tracker, beside the protocol's records. Each process has ``RING``
keys that it uses in turn, so that a run without a master does not fill the grid. The master keeps the newest events in
memory and writes all of them to the run's checkpoint folder. Only then it removes them from the tracker: if it is
killed before, the next master finds them. The training waits for none of this.

The last second or two of a killed process are lost. Events are also lost if there is no room for them, because a
process records too many or there is no master for too long. Gaps in the events' numbers show how many are lost.

Legacy: ``SparkTrainingStats``, ``ParameterAveragingTrainingMasterStats``, ``ParameterAveragingTrainingWorkerStats``.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median

import msgspec

from dl4jlegacy.errors import CheckpointError, Dl4jError, TrackerClosedError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.persistence.jsonl import MOST_WAITING, JsonlFile, JsonlWriter
from dl4jlegacy.scaleout.phases import PHASES, EventStats, PhaseRecorder
from dl4jlegacy.scaleout.state.records import Keys, encode_record
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.storage.folders import LinesFolder
from dl4jlegacy.system import files
from dl4jlegacy.system.clock import Clock
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = [
    "NOT_COLLECTED",
    "MasterStats",
    "PhaseStats",
    "StatsCollector",
    "StatsFile",
    "StatsSender",
    "TrainingStats",
    "duration",
    "read_lines",
    "sending",
    "side_of",
    "to_all",
]

logger = logging.getLogger(__name__)

NOT_COLLECTED = (
    "statistics are collected if the run is told to: `dl4j train --collect-training-stats --checkpoint-dir DIR`, or "
    "Conf(collect_training_stats=True)"
)
MOST_KEPT = 200_000
"""Maximum number of events kept in memory; a file has all."""
CHUNK = 1000
"""Maximum number of events in one value of the tracker."""
RING = 64
"""Maximum number of values of a process in the tracker."""
_PREFIX = "stats/"
_SEND_SECONDS, _CLOSE_SECONDS = 0.5, 5.0
_Event = tuple[int, str, str, int | None, int | None, float, float]


class _Chunk(msgspec.Struct, frozen=True):
    """Events of one process in transfer format: number, thread, phase, round, slot, start, seconds."""

    machine: str
    process: str
    events: tuple[_Event, ...]


@dataclass(frozen=True, slots=True)
class PhaseStats:
    """The figures of one phase, in seconds.

    Attributes:
        phase: its name.
        count, total, mean, median, p95: number of events, and statistics of their durations; ``p95`` is the 95th
            percentile.
        share: fraction of the time measured on the same side (workers or master): 0 to 1.
    """

    phase: str
    count: int
    total: float
    mean: float
    median: float
    p95: float
    share: float


@dataclass(frozen=True)
class TrainingStats:
    """The statistics of a run, as far as they are known. DL4J: ``SparkTrainingStats``.

    Args:
        found: the events, in any order; duplicates are allowed.
        damaged: number of lines in the file that are not events.
    """

    found: tuple[EventStats, ...] = ()
    damaged: int = 0
    events: tuple[EventStats, ...] = field(init=False)
    """The events without duplicates, ordered by their start."""

    def __post_init__(self) -> None:
        unique = {(event.process, event.number): event for event in self.found}
        events = tuple(sorted(unique.values(), key=lambda event: (event.start, event.process, event.number)))
        object.__setattr__(self, "events", events)
        object.__setattr__(self, "found", events)

    @cached_property
    def lost(self) -> Mapping[str, int]:
        """Number of missing events for each process with gaps, up to its last known event."""
        counts = Counter(event.process for event in self.events)
        last = dict[str, int]()
        for event in self.events:
            last[event.process] = max(event.number, last.get(event.process, 0))
        missing = {process: last[process] + 1 - count for process, count in counts.items()}
        return {process: count for process, count in sorted(missing.items()) if count}

    def get_key_set(self) -> tuple[str, ...]:
        """Return the phases that occurred, in the order of ``PHASES``; unknown ones after them."""
        found = {event.phase for event in self.events}
        return (*(phase for phase in PHASES if phase in found), *sorted(found.difference(PHASES)))

    def get_value(self, key: str) -> list[EventStats]:
        """Return the events of a phase; none if it did not occur."""
        return [event for event in self.events if event.phase == key]

    @cached_property
    def phases(self) -> tuple[PhaseStats, ...]:
        """The figures of each phase that occurred."""
        seconds: defaultdict[str, list[float]] = defaultdict(list)
        for event in self.events:
            seconds[event.phase].append(event.seconds)
        sides: Counter[str] = Counter()
        for phase, own in seconds.items():
            sides[side_of(phase)] += math.fsum(own)  # type: ignore[assignment]  # a Counter adds floats as well
        return tuple(_figures(phase, seconds[phase], sides[side_of(phase)]) for phase in self.get_key_set())

    def stats_as_string(self) -> str:
        """Return one line per phase: its name, and all durations in milliseconds."""
        lines = []
        for key in self.get_key_set():
            shown = ",".join(f"{1000 * event.seconds:.3f}" for event in self.get_value(key))
            lines.append(f"{key:<55}{shown}")
        return "".join(f"{line}\n" for line in lines)


def side_of(phase: str) -> str:
    """Return the side of a phase: ``worker``, ``master``, or "" for a phase that this version does not know."""
    return next((side for side in ("worker", "master") if phase.lower().startswith(side)), "")


def _figures(phase: str, seconds: Sequence[float], measured: float) -> PhaseStats:
    """Return the figures of a phase; ``measured`` is the total number of seconds of its side."""
    ordered, total = sorted(seconds), math.fsum(seconds)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    share = total / measured if measured else 0.0
    return PhaseStats(phase, len(ordered), total, fmean(ordered), median(ordered), p95, share)


def duration(seconds: float) -> str:
    """Return a duration with three digits and its unit: 12.3 ms."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:,.{2 if seconds < 10 * unit else 1 if seconds < 100 * unit else 0}f} {name}"
    return f"{seconds / 1e-6:.0f} us"


# -- in a file ---------------------------------------------------------------------------------------------------------


class StatsFile(JsonlFile[EventStats]):
    """The events in a run's folder, one per line."""

    NAME = "stats.jsonl"

    def __init__(self, folder: LinesFolder) -> None:
        super().__init__(folder, self.NAME, EventStats, "the run's statistics")
        self._in = folder

    def read(self) -> TrainingStats:
        """Return the statistics from all complete lines.

        Raises:
            CheckpointError: there is no file, it cannot be read, or no line is an event. CloudError and its like:
                errors reported by AWS.
        """
        try:
            lines = self._in.read_lines(self.NAME)
        except FileNotFoundError as exc:
            raise CheckpointError(f"{self.place}: there are no statistics of this run; {NOT_COLLECTED}") from exc
        except OSError as exc:
            raise CheckpointError(f"{self.place} cannot be read: {exc.strerror or exc}") from exc
        return read_lines(self.place, lines)

    @staticmethod
    def read_alone(path: Path) -> TrainingStats:
        """Return the statistics from all complete lines of a local file of any name; errors as for ``read``."""
        with files.errors_as(CheckpointError, f"{path} cannot be read"):
            return read_lines(str(path), files.read(path).splitlines())


def read_lines(place: str, lines: Iterable[bytes]) -> TrainingStats:
    """Return the statistics in the lines of a file; raises ``CheckpointError`` if none of them is an event."""
    events, damaged = [], 0
    decoder = msgspec.json.Decoder(decodable(EventStats))
    for line in lines:
        try:
            event = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            damaged += 1
            continue
        if _is_sound(event.number, event.start, event.seconds):
            events.append(event)
        else:
            damaged += 1
    if damaged and not events:
        raise CheckpointError(f"{place} holds no statistics of a run: none of its lines is an event; {NOT_COLLECTED}")
    return TrainingStats(tuple(events), damaged)


def _is_sound(number: int, start: float, seconds: float) -> bool:
    """Return whether the numbers can belong to an event: finite, and times within a plausible range."""
    return number >= 0 and 0 <= start < 1e11 and 0 <= seconds < 1e11


# -- from the processes to the master ----------------------------------------------------------------------------------


class StatsCollector:
    """Collects the events of all processes of a run, in its master's process. Thread-safe.

    Args:
        folder: of the run's checkpoints; None: there is none, and only the newest events are kept, in memory.
    """

    def __init__(self, folder: LinesFolder | None) -> None:
        self._lock = threading.Lock()
        self._newest: deque[EventStats] = deque(maxlen=MOST_KEPT)
        self._keeper = None if folder is None else JsonlWriter(StatsFile(folder))
        self._taken: dict[str, tuple[Buffer, int]] = {}  # remaining keys in the tracker: value, and count when written

    def add(self, events: Sequence[EventStats]) -> int:
        """Keep events, and queue them for writing; does not wait.

        Returns as ``JsonlWriter.add``; 0 if there is no file. Thread-safe, as ``stats`` is; ``gather`` and ``close``
        are for one thread at a time.
        """
        with self._lock:
            self._newest.extend(events)
        return 0 if self._keeper is None else self._keeper.add(events)

    def gather(self, tracker: StateTracker, keys: Iterable[str] | None = None) -> None:
        """Take the events of other processes from the tracker; ``keys`` are its keys, if they were just listed.

        A value stays in the tracker until its events are in the file, so that the next master finds them if this one is
        killed. Values for which there is no room, for example after a time without a master, stay until the file is
        written.
        """
        listed = tracker.store.keys(_PREFIX) if keys is None else [key for key in keys if key.startswith(_PREFIX)]
        removed = self._remove_written(tracker)
        sent = [key for key in listed if key not in removed and Keys.is_of_run(key)]
        for key, raw in zip(sent, drive(protocol.read_many(tracker.store, sent)), strict=True):
            if raw is None or (key in self._taken and raw == self._taken[key][0]):
                continue  # gone, or refused (the monitor removes it), or waiting to be written
            if not self._has_room():
                break
            chunk = protocol.parse_record(tracker.store, key, raw, _Chunk)
            self._taken[key] = raw, 0 if chunk is None else self.add(_events(chunk))
        self._remove_written(tracker)

    def _has_room(self) -> bool:
        """Return whether one more value's events can wait to be written without dropping earlier ones."""
        return self._keeper is None or self._keeper.added - self._keeper.written <= MOST_WAITING - CHUNK

    def _remove_written(self, tracker: StateTracker) -> set[str]:
        """Remove values whose events are in the file, if any, from the tracker; return the removed keys."""
        written = 0 if self._keeper is None else self._keeper.written
        removed = set()
        for key, (raw, added) in list(self._taken.items()):
            if added <= written:
                if tracker.store.delete_if_same(key, raw):  # else its process has reused the key
                    removed.add(key)
                del self._taken[key]
        return removed

    def stats(self) -> TrainingStats:
        """Return the statistics of the events that are kept in memory."""
        with self._lock:
            return TrainingStats(tuple(self._newest))

    def close(self) -> None:
        """Write the remaining events; later calls do nothing."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()


def _events(chunk: _Chunk) -> list[EventStats]:
    """Return the valid events of a chunk, which an outsider may have written."""
    return [
        EventStats(
            phase=phase,
            machine=chunk.machine,
            process=chunk.process,
            thread=thread,
            number=number,
            round=round_,
            slot=slot,
            start=start,
            seconds=seconds,
        )
        for number, thread, phase, round_, slot, start, seconds in chunk.events[:CHUNK]
        if _is_sound(number, start, seconds)
    ]


def sending(tracker: StateTracker) -> Callable[[Sequence[EventStats]], None]:
    """Return a function for a ``StatsSender`` that sends this process's events to the run's master."""
    sent = 0

    def send(events: Sequence[EventStats]) -> None:
        nonlocal sent
        first = events[0]
        chunk = _Chunk(first.machine, first.process, tuple(_travelling(event) for event in events))
        tracker.store.put(f"{_PREFIX}{first.process}/{sent % RING}", encode_record(chunk))
        sent += 1

    return send


def _travelling(event: EventStats) -> _Event:
    return event.number, event.thread, event.phase, event.round, event.slot, event.start, event.seconds


class StatsSender:
    """Takes the events of this process from its recorder twice a second, on its own thread, and passes them on.

    Args:
        recorder: of the process.
        send: called with up to ``CHUNK`` events; if it raises ``Dl4jError``, these events are lost.
    """

    def __init__(self, recorder: PhaseRecorder, send: Callable[[Sequence[EventStats]], None]) -> None:
        self._recorder, self._send = recorder, send
        self._closed = threading.Event()
        self._thread = ServiceThread(target=self._run, name="dl4j-stats")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Send the remaining events, and end; events that cannot be sent within a few seconds are lost."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.warning("the last statistics of this process were not sent within %.0f s", _CLOSE_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(_SEND_SECONDS)
            try:
                while events := self._recorder.take(CHUNK):
                    self._send(events)
            except TrackerClosedError:
                return
            except Dl4jError as exc:
                logger.debug("statistics were lost: %s", exc)


def to_all(*sends: Callable[[Sequence[EventStats]], object] | None) -> Callable[[Sequence[EventStats]], None]:
    """Return a function that passes events on to each of ``sends``, except None, until one raises."""
    there = [send for send in sends if send is not None]

    def send_all(events: Sequence[EventStats]) -> None:
        for send in there:
            send(events)

    return send_all


class MasterStats:
    """The statistics in a master's process: it records its own and collects those of other processes.

    Args:
        process: its name.
        clock: of running time.
        collector: of a cluster's master, which outlives this object; None: this object creates its own.
        folder: of the run's checkpoints, for a collector of its own; None: there is none.
        collects: whether statistics are collected at all; if not, the process's events are only passed to ``follow``.
        follow: also receives the events of this process.
    """

    def __init__(
        self,
        process: str,
        clock: Clock,
        collector: StatsCollector | None,
        folder: LinesFolder | None,
        *,
        collects: bool = True,
        follow: Callable[[Sequence[EventStats]], None] | None = None,
    ) -> None:
        self.recorder = PhaseRecorder(process, clock)
        self._own = StatsCollector(folder) if collects and collector is None else None
        self.collector = (collector or self._own) if collects else None
        """Collects the events of all processes; None: nothing is collected."""
        self._sender = StatsSender(
            self.recorder, to_all(follow, None if self.collector is None else self.collector.add)
        )
        self._sender.start()

    def close(self) -> None:
        """Collect and write the remaining events. The collected ones can still be read afterwards."""
        self._sender.close()
        if self._own is not None:
            self._own.close()
