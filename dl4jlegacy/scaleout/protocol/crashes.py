"""How a master counts the crashes of a job: workers that began it and whose processes died before it was done.

The job's record says which workers compute the job (``leasing.begin_computing``), and lists its crashes, so that both
survive a change of master. Whether a process has *died* must be known from elsewhere: ``Master.death_of``. A worker
that is only silent, frozen or cut off, whose lease expired, or whose machine is lost, is not known to have died, and is
not counted. ``poison`` decides what crashes mean.
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
"""Key of the counter of all crashes of the run."""
MOST_SHOWN = 8
"""Maximum number of crashes named in a message."""
MOST_EXCUSED = 8
"""After this many crashes, batches of an unfinished job no longer count as progress of the run."""
HELD_BACK = 1 / 6
"""Fraction of a lease: how long a suspected job waits for evidence whether its last worker died."""


class CrashWatcher(Protocol):
    """The members of ``Master`` that this module uses."""

    store: Store
    plan: Plan
    limits: Limits
    attempts: Attempts

    def present(self) -> Collection[str]:
        """Return the names of the workers that are present."""
        ...

    def is_gone(self, worker: str, /) -> bool:
        """Return whether a worker's process is known to be dead or frozen."""
        ...

    def death_of(self, worker: str, /) -> str:
        """Return the evidence that a worker's process has died; "" if it is not known to be dead."""
        ...

    def on_crashed(self, slot: tuple[int, int], crash: Crash, count: int, /) -> None:
        """Take note of a crash, the ``count``-th of this job."""
        ...


@dataclass(slots=True)
class Attempts:
    """When this master saw workers begin jobs and disappear, by the number of the job and the worker's name."""

    _begun: dict[tuple[int, str], float] = field(default_factory=dict)
    _gone: dict[tuple[int, str], float] = field(default_factory=dict)
    _unnoted: set[str] = field(default_factory=set)
    finished: int = 0
    """Number of finished jobs that this master has seen."""

    def look(self, number: int, record: JobRecord, now: float, is_gone: Callable[[str], bool]) -> None:
        """Note which workers compute a job, and which of them are gone."""
        for worker in record.begun:
            self._begun.setdefault((number, worker), now)
            if not is_gone(worker):
                self._gone.pop((number, worker), None)
            else:
                self._gone.setdefault((number, worker), now)

    def seconds(self, number: int, worker: str, now: float) -> float:
        """Return for how many seconds a worker has computed a job, as seen by this master."""
        begun = self._begun.get((number, worker), now)
        return max(0.0, self._gone.get((number, worker), now) - begun)

    def gone_seconds(self, number: int, record: JobRecord, now: float) -> list[float]:
        """Return, for each worker that began the job and is gone, the seconds since it was first seen gone."""
        return [now - self._gone[number, worker] for worker in record.begun if (number, worker) in self._gone]

    def finish(self, number: int) -> None:
        """Note that a job is done."""
        self.finished += 1
        for seen in (self._begun, self._gone):
            for key in [key for key in seen if key[0] == number]:
                del seen[key]

    def lose_lease(self, record: JobRecord) -> None:
        """Note that a worker loses its lease. For a quick job it is not recorded whether it was begun."""
        counted = {crash.process for crash in record.crashes}
        process = process_of(record.worker) or record.worker
        if record.state == "leased" and record.worker not in record.begun and process not in counted:
            self._unnoted.add(record.worker)

    def take_dead(self, death_of: Callable[[str], str]) -> list[str]:
        """Return the workers that lost an unrecorded lease and have died since; each is returned once."""
        dead = sorted(worker for worker in self._unnoted if death_of(worker))
        self._unnoted.difference_update(dead)
        return dead


def note_crashes(
    me: CrashWatcher, number: int, record: JobRecord, raw: Buffer, now: float
) -> Steps[tuple[JobRecord, Buffer] | None]:
    """Move workers that died during a job to its crashes; return the record, or None if another process changed it."""
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
        if process not in counted:  # two workers of one process may have had the job
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
    """Return whether a job whose worker is gone must wait before it is given to another worker.

    A suspected job waits while it is unknown whether its last worker has died, and while another suspected job is being
    tried. If a process computed several jobs when it died, only one of them may be to blame. The others must be
    finished by processes that do not have that one.
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
    """Return the failure that accuses a job of killing its workers; None if uncertain, or if the job is being tried."""
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
    """Return a message: which job it is, which processes died of it, why that is no coincidence, and what to do.

    ``where`` is the argument with which ``cli.one_job`` finds the run.
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
