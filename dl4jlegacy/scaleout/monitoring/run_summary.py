"""The summary of a run on a cluster: the work of each worker, failures and durations.

It is computed from the run's history (work of the workers), its journal (failures and losses) and its head (batches).

Legacy: none; the master only logged that it was done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dl4jlegacy.scaleout.links.liveness.failure_detector import process_of
from dl4jlegacy.scaleout.persistence.history import Share
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.scaleout.state.records import Head

__all__ = ["RunSummary", "WorkerSummary", "summarize"]

_NOBODY = Share(0, 0, 0.0)
_MOST_THREADS = 10_000  # per process: more are not plausible
_MOST_SECONDS = 1e9  # running time of a process: more is not plausible
_OF_MASTERS = ("run_began", "master_took_over", "worker_gone", "worker_back", "paused", "went_on")


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one worker for a run.

    Attributes:
        worker: its name.
        jobs: number of its jobs that count, including validations.
        examples: number of training examples in these jobs.
        seconds: total duration of these jobs.
        examples_per_second: speed in these jobs; None: the worker did no training job.
        failures: number of jobs that failed there.
        lost_jobs: number of its jobs that were given to another worker, because it was gone, late or slow.
        lost_seconds: from its last sign of life before it was gone until it was back, or until the end of the run.
    """

    worker: str
    jobs: int
    examples: int
    seconds: float
    examples_per_second: float | None
    failures: int
    lost_jobs: int
    lost_seconds: float


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a run.

    Attributes:
        workers: all known workers, by name.
        rounds, batches, examples: those that count in the model, each batch once.
        jobs, failures: of all workers.
        backup_jobs, broken_leases: jobs given to a second worker because the first was slow; because it was gone or
            late.
        take_overs: number of masters after the first one.
        paused_seconds: time in which the run waited for enough workers.
        seconds: time in which masters led the run, each by its own clock; times without a master are not included.
        first_version: the first model version whose jobs are included in the workers' figures; above 1 if an earlier
            master led the run and its history is not available.
        states: seconds that the run was in each state while this master led it.
        checkpoints_failed: number of times that checkpoints were reported as not writable.
    """

    workers: tuple[WorkerSummary, ...]
    rounds: int
    batches: int
    examples: int
    jobs: int
    failures: int
    backup_jobs: int
    broken_leases: int
    take_overs: int
    paused_seconds: float
    seconds: float
    first_version: int
    states: dict[str, float] = {}
    checkpoints_failed: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


def summarize(
    head: Head,
    shares: Mapping[str, Share],
    journal: Sequence[JournalEntry],
    *,
    reissued: Mapping[tuple[str, str], int],
    source: str,
    now: float,
    seconds: float,
    first_version: int = 1,
    states: Mapping[str, float] | None = None,
) -> RunSummary:
    """Return the summary of a run that has ended.

    Args:
        head: the last head.
        shares: the work of each worker, from model version ``first_version`` on.
        journal: its entries, as far as they are kept.
        reissued: by (worker, reason), number of jobs that this master has given to another worker; those of other
            masters are in the journal.
        source: this master's name in the journal.
        now: the running time of this master's process in seconds, as in its entries.
        seconds: time for which this master has led the run.
        first_version, states: as for ``RunSummary``.
    """
    entries = sorted(journal, key=lambda entry: entry.key)
    given = _reissued(entries, reissued, source)
    failures = Counter(_text(entry, "worker") for entry in entries if entry.event == "job_failed")
    axis = _Axis(entries, source, now)
    gone = _between(entries, "worker_gone", "worker_back", axis)
    names = sorted({*shares, *failures, *(worker for worker, _ in given), *_joined(entries)} - {""})
    return RunSummary(
        workers=tuple(
            _worker(
                name,
                shares.get(name, _NOBODY),
                failures=failures[name],
                lost_jobs=sum(count for (worker, _), count in given.items() if worker == name),
                lost_seconds=gone[process_of(name)],
            )
            for name in names
        ),
        rounds=head.round,
        batches=head.batches,
        examples=head.examples,
        jobs=sum(share.jobs for share in shares.values()),
        failures=failures.total(),
        backup_jobs=sum(count for (_, reason), count in given.items() if reason == "slow"),
        broken_leases=sum(count for (_, reason), count in given.items() if reason != "slow"),
        take_overs=sum(entry.event == "master_took_over" for entry in entries),
        paused_seconds=round(sum(_between(entries, "paused", "went_on", axis).values()), 3),
        seconds=round(max(head.seconds, seconds), 3),
        first_version=first_version,
        states=dict(states or {}),
        checkpoints_failed=sum(entry.event == "checkpoint_failed" for entry in entries),
    )


def _worker(name: str, share: Share, *, failures: int, lost_jobs: int, lost_seconds: float) -> WorkerSummary:
    rate = share.examples / share.seconds if share.examples and share.seconds > 0 else None
    return WorkerSummary(
        worker=name,
        jobs=share.jobs,
        examples=share.examples,
        seconds=round(share.seconds, 3),
        examples_per_second=None if rate is None else round(rate, 1),
        failures=failures,
        lost_jobs=lost_jobs,
        lost_seconds=round(lost_seconds, 3),
    )


def _reissued(
    entries: Iterable[JournalEntry], own: Mapping[tuple[str, str], int], source: str
) -> Counter[tuple[str, str]]:
    """Return, by (worker, reason), the number of jobs that any master has given to another worker."""
    given = Counter(own)
    for entry in entries:
        if entry.event in ("backup_issued", "lease_broken") and entry.source != source:
            given[_text(entry, "worker"), _text(entry, "reason")] += 1 + int(_number(entry, "others"))
    return given


def _joined(entries: Iterable[JournalEntry]) -> set[str]:
    """Return the names of the workers of the processes that have joined."""
    joined = (
        (_text(entry, "worker"), _number(entry, "threads")) for entry in entries if entry.event == "worker_joined"
    )
    return {f"{process}-{index}" for process, threads in joined if process for index in range(int(min(threads, 1000)))}


class _Axis:
    """One time axis for the masters of a run, each of which has its own clock: their times follow each other.

    Args:
        entries: the journal, in its order.
        source: the present master; ``now`` is the running time of its process.
    """

    def __init__(self, entries: Sequence[JournalEntry], source: str, now: float) -> None:
        spans: dict[str, list[float]] = {}
        for entry in [entry for entry in entries if entry.event in _OF_MASTERS]:
            spans.setdefault(entry.source, []).append(_ran(entry))
        spans.setdefault(source, []).append(now)
        self._offsets, self.now = dict[str, float](), 0.0
        for each, ran in spans.items():
            self._offsets[each] = self.now - min(ran)
            self.now += max(ran) - min(ran)

    def at(self, entry: JournalEntry) -> float:
        """Return the time of a master's entry on this axis."""
        return self._offsets[entry.source] + _ran(entry)


def _ran(entry: JournalEntry) -> float:
    """Return the running time of the process that wrote an entry; 0 if the value is not plausible."""
    return entry.ran if 0 <= entry.ran < _MOST_SECONDS else 0.0


def _between(entries: Iterable[JournalEntry], begins: str, ends: str, axis: _Axis) -> defaultdict[str, float]:
    """Return the seconds between two kinds of events, by the process in the entries; "" for entries without one."""
    since: dict[str, float] = {}
    total: defaultdict[str, float] = defaultdict(float)
    for entry in entries:
        process = _text(entry, "process")
        if entry.event == begins:
            since.setdefault(process, axis.at(entry) - _number(entry, "silent_seconds"))
        elif entry.event == ends and process in since:
            total[process] += max(0.0, axis.at(entry) - since.pop(process))
    for process, began in since.items():
        total[process] += max(0.0, axis.now - began)
    return total


def _text(entry: JournalEntry, name: str) -> str:
    value = entry.fields.get(name)
    return value if isinstance(value, str) else ""


def _number(entry: JournalEntry, name: str) -> float:
    value = entry.fields.get(name)
    return float(value) if isinstance(value, int | float) and 0 <= value < _MOST_SECONDS else 0.0
