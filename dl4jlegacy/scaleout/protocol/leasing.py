"""How a worker gets a job and holds it until it is done: search, lease, begin, extend, give back.

If many jobs are free and each is quick, several are leased together. Leasing one at a time, a worker would spend most
of its time waiting for the store. For all other processes each job has a lease of its own.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dl4jlegacy.scaleout.contract import open_slots
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.protocol.events import JOB_TOPIC, STEP, UPDATE_TOPIC, Steps
from dl4jlegacy.scaleout.protocol.frames import parse_record, read_frames, read_many, replace_many_if_same
from dl4jlegacy.scaleout.protocol.inputs import Claim
from dl4jlegacy.scaleout.protocol.worker_state import Free, Worker
from dl4jlegacy.scaleout.state.records import HEAD, Head, JobRecord, Keys, encode_record
from dl4jlegacy.scaleout.state.store import Buffer, is_batch_store
from dl4jlegacy.scaleout.strategies import router_of, serving

__all__ = ["begin_computing", "change_lease", "extend_lease", "give_back", "lease_jobs"]

AHEAD_NBYTES = 1 << 20
"""The data of free jobs is fetched together up to this total size."""
FRESH = 0.1
"""Fraction of a poll interval: how long a head stays recent enough to lease another job without reading it again."""
NOTED = 0.1
"""Fraction of a poll interval: the beginning of jobs that take at least this long is noted in their records."""
FEW_BLOCKS = 2
"""Up to this many blocks are searched completely.

Of more blocks only the last record of each is read, and all records are read once per poll interval.
"""


def lease_jobs(me: Worker) -> Steps[list[Claim]]:
    """Lease one or several ready jobs by compare-and-set: jobs that were never leased first, then reissued ones.

    The head is read together with every block of records, and the search starts again if the head has changed. The
    other free jobs of a block are tried first at the next call, until another worker was faster. If there are many
    blocks, one record of each shows where to continue.
    """
    while True:
        claims = yield from _claim_spare(me)
        if claims:
            return claims
        raw, blocks, whole = me.raw, _search_order(me), True
        me.second_hand.clear()
        me.many = len(blocks) > FEW_BLOCKS and bool(blocks[0])
        if not me.many:
            claims = yield from _claim_in(me, raw, blocks)
        else:
            claims = yield from _claim_in(me, raw, [] if me.overtaken else blocks[:1])
            if not claims and me.raw is raw:
                whole = me.clock.now() - me.searched >= me.limits.poll
                free = yield from _look(me, [block[-1] for block in blocks])
                claims = yield from _claim_in(me, raw, _promising(blocks, free) + (blocks if whole else []))
        me.overtaken = False
        me.second_hand.sort(key=lambda free: _own_failures(me, free[1]))  # fewest own failures first
        while not claims and me.raw is raw and me.second_hand:
            claims = yield from _lease(me, [me.second_hand.pop(0)])
        if claims:
            return claims
        if me.raw is raw:
            me.waited = True
            if whole:
                me.searched = me.clock.now()
                me.closed.clear()  # the master reopens a slot if its update is lost
            return []
        if me.head is None or me.head.status != "running":
            return []


def _claim_in(me: Worker, raw: Buffer | None, blocks: list[list[int]]) -> Steps[list[Claim]]:
    """Lease jobs that were never leased from one of the blocks that are open under the head ``raw``.

    Returns no jobs if there are none, or if the head has changed. A validation round leaves the model unchanged, so
    jobs of the next round look like jobs of this one when a head goes back.
    """
    for block in blocks:
        free = yield from _look(me, block)
        if me.raw is not raw:
            return []
        me.second_hand += [item for item in free if item[1].token]
        me.spare = [item for item in free if not item[1].token]
        while me.spare:
            if claims := (yield from _lease(me, _next_spare(me))):
                yield from _fetch_ahead(me, claims)
                return claims
    return []


def _promising(blocks: list[list[int]], free: list[Free]) -> list[list[int]]:
    """Return the blocks whose last job is free, starting in the middle of the longest sequence of such blocks.

    The worker that owns a sequence takes jobs from its front. A newcomer takes the second half, so that the two do not
    meet.
    """
    numbers = {number for number, _, _ in free}
    runs: list[list[list[int]]] = [[]]
    for block in blocks:
        if block[-1] in numbers:
            runs[-1].append(block)
        elif runs[-1]:
            runs.append([])
    longest = max(runs, key=len)
    half = len(longest) // 2
    others = [block for run in runs if run is not longest for block in run]
    return [*longest[half:], *longest[:half], *others]


def _look(me: Worker, numbers: list[int]) -> Steps[list[Free]]:
    """Read the head and some job records; return the ready jobs, or none if the head has changed.

    A worker that has waited usually searches for the next round: it reads the jobs of that round together with the head
    that opens them, which saves a second request.
    """
    foreseen, me.foreseen = me.foreseen, {}
    if me.head is not None and numbers and foreseen.keys() >= set(numbers):
        return _free(me, me.head, numbers, [foreseen[number] for number in numbers])
    raw, ahead = me.raw, _following(me)
    raws = yield from read_many(me.store, [HEAD, *(Keys.job(*me.plan.at(n)) for n in (*numbers, *ahead))])
    me.update_head(raws[0])
    if me.head is not None and me.raw is raw:
        return _free(me, me.head, numbers, raws[1 : 1 + len(numbers)])
    me.foreseen = dict(zip(ahead, raws[1 + len(numbers) :], strict=True))
    return []


def _following(me: Worker) -> list[int]:
    """Return the jobs of the next round for a worker that has waited, if they are few and fit into one request."""
    waited, me.waited = me.waited, False
    if not waited or me.head is None or not me.binds_model() or not is_batch_store(me.store):
        return []
    following = me.head.round + 1
    if following >= me.plan.total_rounds or (slots := me.plan.slots(following)) > me.block:
        return []
    first = me.plan.number(following, 0)
    return list(range(first, first + slots))


def _claim_spare(me: Worker) -> Steps[list[Claim]]:
    """Lease jobs that were free when last read; returns none if there are none or the head has changed.

    A job that is still ready belongs to an open round, so the head is not read for each job. It is read periodically to
    see whether the run continues, and always if jobs are not bound to a model version.
    """
    if not me.spare:
        return []
    if not me.binds_model() or me.clock.now() - me.looked > me.limits.poll * FRESH:
        me.update_head((yield from read_many(me.store, [HEAD]))[0])
    wanted = _next_spare(me)
    claims = yield from _lease(me, wanted)
    if not wanted or len(claims) < len(wanted):
        me.overtaken = True
        for number, _, _ in me.spare:
            me.fetched.pop(number, None)
        me.spare.clear()
    return claims


def _next_spare(me: Worker) -> list[Free]:
    """Remove and return the next spare job, or several."""
    count = me.several if _takes_several(me) else 1
    taken, me.spare = me.spare[:count], me.spare[count:]
    return taken


def _takes_several(me: Worker) -> bool:
    """Return whether jobs are quick, enough of them are free for other workers too, and they can be done together.

    With slot memory or parameter servers, a state or slices are written for each job separately. If jobs are not bound
    to a model, each one starts from the newest.
    """
    if me.head is None or not me.many or me.took > me.quick_seconds() or not me.binds_model():
        return False
    at = me.router, me.plan, me.head.round
    return router_of(*at).memory is None and serving(*at) is None


def _fetch_ahead(me: Worker, claims: Sequence[Claim]) -> Steps[None]:
    """Fetch the data of claimed jobs and of the spare jobs, if it is small and the store supports batches."""
    me.fetched.clear()
    records = [(each.number, each.record) for each in claims]
    records += [(number, record) for number, record, _ in me.spare]
    wanted = [(number, record.data) for number, record in records if record.data is not None]
    if not is_batch_store(me.store) or sum(manifest.nbytes for _, manifest in wanted) > AHEAD_NBYTES:
        return
    frames = yield from read_frames(me.store, [manifest for _, manifest in wanted])
    me.fetched = {number: frame for (number, _), frame in zip(wanted, frames, strict=True) if frame is not None}


def _search_order(me: Worker) -> list[list[int]]:
    """Return the open slots in blocks, in the order of the search; at least one block, possibly empty."""
    numbers = [] if me.head is None else [n for n in open_slots(me.router, me.plan, me.head) if n not in me.closed]
    if not numbers:
        return [[]]
    if (home := _home(me, numbers)) is not None:
        me.cursor = home
    elif me.cursor is None or not numbers[0] <= me.cursor <= numbers[-1]:
        me.cursor = numbers[zlib.crc32(f"{me.name} {numbers[0]}".encode()) % len(numbers)]
    turn = bisect_left(numbers, me.cursor)
    numbers = [*numbers[turn:], *numbers[:turn]]
    if states := me.memory.states:  # slots whose state is in memory come first
        numbers.sort(key=lambda number: me.plan.at(number)[1] not in states)
    return [numbers[start : start + me.block] for start in range(0, len(numbers), me.block)]


def _home(me: Worker, numbers: list[int]) -> int | None:
    """Return the job at which the search of a new round begins; None within a round, or if several rounds are open."""
    round_ = me.plan.at(numbers[0])[0]
    if me.home is None or me.home[0] == round_ or me.plan.at(numbers[-1])[0] != round_:
        return None
    found = me.plan.number(round_, me.home[1])
    return found if numbers[0] <= found <= numbers[-1] else None


def _free(me: Worker, head: Head, block: list[int], raws: list[Buffer | None]) -> list[Free]:
    """Return the ready jobs of a block; add the done jobs to ``me.closed``."""
    model = head.identity if me.binds_model() else ""
    found: dict[int, JobRecord] = {}
    for number, raw in zip(block, raws, strict=True):
        record = parse_record(me.store, Keys.job(*me.plan.at(number)), raw, JobRecord)
        if record is not None and record.model == model:
            found[number] = record
    me.closed |= {number for number, record in found.items() if record.state == "done"}
    own = {record.home: number for number, record in sorted(found.items(), reverse=True)}
    ready = {number for number, record in found.items() if record.state == "ready"}
    return [
        (number, found[number], raw)
        for number, raw in zip(block, raws, strict=True)
        if raw is not None and number in ready and _may_take(me, number, found[number], own)
    ]


def _may_take(me: Worker, number: int, record: JobRecord, own: Mapping[str, int]) -> bool:
    """Return whether this worker may take a job that is ready: it has not failed too often, and it is not reserved."""
    return _own_failures(me, record) < me.limits.attempts and not _is_reserved(me, number, record, own)


def _is_reserved(me: Worker, number: int, record: JobRecord, own: Mapping[str, int]) -> bool:
    """Return whether a job is left to the worker that has its slot's state, which can finish it sooner.

    If that worker has the states of several slots, only the first (``own``) is reserved for it. The others may go to
    any worker that finds copies of their states; otherwise one worker would do the jobs of two slots while another is
    idle.
    """
    if record.home in ("", me.name):
        return False
    if own[record.home] != number and me.copies is not None and me.copies.is_near(record.home):
        return False
    now = me.clock.now()
    return now - me.seen.setdefault(number, now) < record.reserved


def _own_failures(me: Worker, record: JobRecord) -> int:
    """Return how often this worker has failed at a job."""
    return sum(failure.worker == me.name for failure in record.failures)


def _lease(me: Worker, free: Sequence[Free]) -> Steps[list[Claim]]:
    """Lease ready jobs; return those that this worker was the first to lease."""
    since, wanted = me.clock.now(), []
    for number, record, _ in free:
        lease = msgspec.structs.replace(
            record, state="leased", token=record.token + 1, worker=me.name, extended=0, progress=0, behind=0
        )
        wanted.append(Claim(number, lease, encode_record(lease), since))
    items = [(me.key(claim), raw, claim.raw) for claim, (_, _, raw) in zip(wanted, free, strict=True)]
    replaced = yield from replace_many_if_same(me.store, items)
    claims = [claim for claim, is_leased in zip(wanted, replaced, strict=True) if is_leased]
    if claims:
        me.cursor, place = claims[-1].number + 1, me.plan.at(claims[0].number)
        if me.home is None or me.home[0] != place[0]:
            me.home = place
    return claims


def _holds(record: JobRecord, lease: JobRecord) -> bool:
    """Return whether a record is still under this lease; the lease may have been extended."""
    return (record.state, record.token, record.worker) == ("leased", lease.token, lease.worker)


def change_lease(me: Worker, number: int, lease: JobRecord, **changes: Any) -> Steps[bool]:
    """Change the record if it is still under this lease; return whether it was changed.

    In any case this worker is removed from the record's ``begun``, since it no longer computes the job.
    """
    key = Keys.job(*me.plan.at(number))
    while True:
        raw = (yield from read_many(me.store, [key]))[0]
        record = parse_record(me.store, key, raw, JobRecord)
        if raw is None or record is None:
            return False
        holds, begun = _holds(record, lease), tuple(name for name in record.begun if name != me.name)
        if not holds and begun == record.begun:
            return False
        new = msgspec.structs.replace(record, begun=begun, **(changes if holds else {}))
        yield STEP
        if me.store.replace_if_same(key, raw, encode_record(new)):
            return holds


def begin_computing(me: Worker, claim: Claim) -> Steps[Claim]:
    """Note in a leased job's record that this worker now computes it; return the claim with the new record.

    If the process dies before it reports the end of the job, that counts as an attempt. The first attempt at a quick
    job is not noted, since the extra write would be most of its cost; if the job kills its worker, the next attempt is
    noted.
    """
    if claim.record.token == 1 and me.took < NOTED * me.limits.poll:
        return claim
    key, raw, record = me.key(claim), claim.raw, claim.record
    while record.state != "done" and record.model == claim.record.model:
        begun = msgspec.structs.replace(record, begun=(*record.begun, me.name))
        encoded = encode_record(begun)
        yield STEP
        if me.store.replace_if_same(key, raw, encoded):
            return claim._replace(record=begun, raw=encoded) if _holds(record, claim.record) else claim
        found = (yield from read_many(me.store, [key]))[0]  # extended meanwhile, or given to another worker
        read = parse_record(me.store, key, found, JobRecord)
        if found is None or read is None:
            break
        raw, record = bytes(found), read
    return claim


def give_back(me: Worker, number: int, lease: JobRecord) -> Steps[None]:
    """Return the lease of a job that was not performed."""
    yield from change_lease(me, number, lease, state="ready", worker="", home="")
    me.store.publish(JOB_TOPIC)
    me.store.publish(UPDATE_TOPIC)


def extend_lease(me: Worker, slot: SlotPlan, lease: JobRecord, progress: int = 0) -> Steps[bool]:
    """Extend the lease of a job with ``progress`` finished batches; return False if the lease is lost.

    Runs on the heartbeat's thread, not the computation's. The progress is reported even after the lease is lost, for
    example because the store lost the record and a master wrote it again, until another worker takes the job: this
    worker continues with it, and may be the only worker.
    """
    key = Keys.job(slot.round, slot.slot)
    while True:
        raw = (yield from read_many(me.store, [key]))[0]
        record = parse_record(me.store, key, raw, JobRecord)
        if raw is None or record is None:
            return False
        holds = _holds(record, lease)
        if not holds and (record.state != "ready" or record.model != lease.model):
            return False
        new = msgspec.structs.replace(record, extended=record.extended + holds, progress=progress)
        yield STEP
        if me.store.replace_if_same(key, raw, encode_record(new)):
            return holds
