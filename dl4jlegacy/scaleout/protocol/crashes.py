"""How a master counts the crashes of a job: which workers had begun it, whose processes have died of it since.

That a worker computes a job is in the job's record (``leasing.begin_computing``), and so are its crashes, whoever was
master then. That a process has *died* somebody must know: ``Master.death_of``. A worker that is only silent, frozen or
cut off, whose lease ran out, or whose machine is lost, has not died as far as anybody knows, and counts for nothing.
``poison`` says what crashes mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from dl4jlegacy.errors import counted
from dl4jlegacy.scaleout.links.liveness.failure_detector import host_of, process_of
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import STEP, Limits, Steps
from dl4jlegacy.scaleout.protocol.frames import increment, parse_count, read_many
from dl4jlegacy.scaleout.protocol.poison import SUSPECTED, Counts, chance, is_poison
from dl4jlegacy.scaleout.state.records import POISON, Crash, Failure, Head, JobRecord, Keys, encode_record
from dl4jlegacy.scaleout.state.store import Buffer, Store

__all__ = [
    "CRASHES",
    "MOST_EXCUSED",
    "Attempts",
    "CrashWatcher",
    "accusation",
    "describe",
    "is_held_back",
    "note_crashes",
]

CRASHES = "counter/crashes"
"""How many crashes all jobs of the run have had."""
MOST_SHOWN = 8
"""So many crashes are named in a message."""
MOST_EXCUSED = 8
"""Batches of a job that has crashed so often are no progress of the run any more, unless it is finished."""
HELD_BACK = 1 / 6
"""Fraction of a lease: for so long a job that is suspected waits for it to be known whether its last worker died."""


class CrashWatcher(Protocol):
    """What is needed here of a master; see ``Master``."""

    store: Store
    plan: Plan
    limits: Limits
    attempts: Attempts

    def present(self) -> Collection[str]:
        """Return the names of the workers that are there."""
        ...

    def is_gone(self, worker: str, /) -> bool:
        """Return whether a worker's process is known to be dead or frozen."""
        ...

    def death_of(self, worker: str, /) -> str:
        """Return how it is known that a worker's process has died; "": it is not."""
        ...

    def on_crashed(self, slot: tuple[int, int], crash: Crash, count: int, /) -> None:
        """Take note of a crash, the ``count``-th of this job."""
        ...


@dataclass(slots=True)
class Attempts:
    """What this master has seen of workers that compute jobs, by the number of the job and the worker's name."""

    _begun: dict[tuple[int, str], float] = field(default_factory=dict)
    _gone: dict[tuple[int, str], float] = field(default_factory=dict)
    _unnoted: set[str] = field(default_factory=set)
    finished: int = 0
    """How many jobs this master has seen done."""

    def look(self, number: int, record: JobRecord, now: float, is_gone: Callable[[str], bool]) -> None:
        """Take note of who computes a job, and of who is gone."""
        for worker in record.begun:
            self._begun.setdefault((number, worker), now)
            if not is_gone(worker):
                self._gone.pop((number, worker), None)
            else:
                self._gone.setdefault((number, worker), now)

    def seconds(self, number: int, worker: str, now: float) -> float:
        """Return for how long a worker has computed a job, as far as this master has seen it."""
        begun = self._begun.get((number, worker), now)
        return max(0.0, self._gone.get((number, worker), now) - begun)

    def gone_seconds(self, number: int, record: JobRecord, now: float) -> list[float]:
        """Return for how long each worker is gone that has begun a job."""
        return [now - self._gone[number, worker] for worker in record.begun if (number, worker) in self._gone]

    def finish(self, number: int) -> None:
        """Take note that a job is done."""
        self.finished += 1
        for seen in (self._begun, self._gone):
            for key in [key for key in seen if key[0] == number]:
                del seen[key]

    def lose_lease(self, record: JobRecord) -> None:
        """Take note that a worker loses its lease; of a quick job nobody knows whether it was begun."""
        counted = {crash.process for crash in record.crashes}
        process = process_of(record.worker) or record.worker
        if record.state == "leased" and record.worker not in record.begun and process not in counted:
            self._unnoted.add(record.worker)

    def take_dead(self, death_of: Callable[[str], str]) -> list[str]:
        """Return those of them that have died, once."""
        dead = sorted(worker for worker in self._unnoted if death_of(worker))
        self._unnoted.difference_update(dead)
        return dead


def note_crashes(
    me: CrashWatcher, number: int, record: JobRecord, raw: Buffer, now: float
) -> Steps[tuple[JobRecord, Buffer] | None]:
    """Move the workers of a job that have died of it to its crashes; return the record, None if it has changed."""
    if record.state == "done":
        me.attempts.finish(number)
    if not record.begun:
        return record, raw
    me.attempts.look(number, record, now, me.is_gone)
    died = {worker: how for worker in record.begun if (how := me.death_of(worker))}
    if not died:
        return record, raw
    counted, slack = {crash.process for crash in record.crashes}, me.limits.poll
    crashes = list(record.crashes)
    for worker, how in died.items():
        process = process_of(worker) or worker
        if process not in counted:  # two workers of a process may have had one job
            counted.add(process)
            seconds = max(0.0, me.attempts.seconds(number, worker, now) - slack)
            crashes.append(Crash(process, host_of(process), how, seconds))
    begun = tuple(worker for worker in record.begun if worker not in died)
    new = msgspec.structs.replace(record, begun=begun, crashes=tuple(crashes))
    changed = encode_record(new)
    yield STEP
    if not me.store.replace_if_same(Keys.job(*me.plan.at(number)), raw, changed):
        return None
    for count, crash in enumerate(crashes[len(record.crashes) :], 1 + len(record.crashes)):
        yield from increment(me.store, CRASHES)
        me.on_crashed(me.plan.at(number), crash, count)
    return new, changed


def is_held_back(me: CrashWatcher, number: int, record: JobRecord, others: Mapping[int, JobRecord], now: float) -> bool:
    """Return whether a job whose worker is gone is not to be given to the next one yet.

    So it is with one that is suspected while nobody knows whether its last worker has died, or as long as another one
    that is suspected is tried: of several jobs that a process computed when it died only one may be to blame, and the
    others are to be finished by processes that do not have that.
    """
    gone = me.attempts.gone_seconds(number, record, now)
    if len(record.crashes) + len(gone) < SUSPECTED:
        return False
    if any(seconds < HELD_BACK * me.limits.lease for seconds in gone):
        return True
    return len(record.crashes) >= SUSPECTED and any(
        len(other.crashes) >= SUSPECTED
        and (other.state == "ready" or (other.state == "leased" and not me.is_gone(other.worker)))
        for key, other in others.items()
        if key != number
    )


def accusation(
    me: CrashWatcher,
    head: Head,
    number: int,
    record: JobRecord,
    *,
    records: Mapping[int, JobRecord],
    durations: Sequence[float],
) -> Steps[Failure | None]:
    """Return what is to be said of a job that kills its workers; None if that is not certain, or it is tried now."""
    is_tried = record.state == "leased" and not me.is_gone(record.worker)
    if len(record.crashes) <= SUSPECTED or is_tried:
        return None
    deaths = parse_count(me.store, CRASHES, (yield from read_many(me.store, [CRASHES]))[0])
    finished = sum(last - first for first, last in head.folded)
    finished += sum(other.state == "done" for other in records.values())
    typical = sorted(durations)[len(durations) // 2] if durations else 0.0
    suspects = max((len(other.crashes) for key, other in records.items() if key != number), default=0)
    counts = Counts(finished, deaths, typical, suspects if suspects >= SUSPECTED else 0)
    hosts = {host_of(process_of(worker) or worker) for worker in me.present() if not me.is_gone(worker)}
    if not is_poison(record.crashes, counts, jobs=me.plan.total_slots, hosts=hosts):
        return None
    where = f"{head.run} --zookeeper HOST:PORT"
    text = describe(me.plan, number, record.crashes, counts, where=where)
    text += ", or resume it with --poison-jobs set-aside to go on without them"
    return Failure(POISON, text, record.crashes[-1].process, fatal=True)


def describe(plan: Plan, number: int, crashes: Sequence[Crash], counts: Counts, *, where: str) -> str:
    """Return which job it is, who died of it, why that is no coincidence, and what to do.

    ``where`` is what ``cli.one_job`` is to be given to find the run.
    """
    round_, slot = plan.at(number)
    at = plan.slot(round_, slot)
    what = "validation" if at.validates else f"epoch {at.epoch}"
    odds = chance(crashes, counts)
    shown = "; ".join(f"{crash.process} ({crash.how})" for crash in crashes[:MOST_SHOWN])
    more = f"; and {len(crashes) - MOST_SHOWN} more" if len(crashes) > MOST_SHOWN else ""
    return (
        f"the job of {what}, round {round_}, slot {slot} (batches {at.first} to {at.last - 1}, "
        f"{counted(plan.examples_of(number), 'example')}) kills its workers: {len(crashes)} processes died while they "
        f"computed it, and none has finished it, while the run finished {counts.finished} other jobs; the odds of that "
        f"are {odds:.1g} for a job that is not to blame. They were: {shown}{more}. Their exit codes are known where "
        f"they were started. `python -m dl4jlegacy.cli.one_job {where} {round_}/{slot}` performs it alone and changes "
        "nothing. Mend or leave out its data, then resume the run"
    )
