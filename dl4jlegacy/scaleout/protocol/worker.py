"""The worker's role: lease jobs, perform them, commit their updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.contract import open_slots
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import ABANDONED, DROPPED, STEP, UPDATE_TOPIC, Perform, Performed, Steps, Wait
from dl4jlegacy.scaleout.protocol.failures import add_failure
from dl4jlegacy.scaleout.protocol.frames import (
    delete_many,
    increment,
    keys_of,
    parse_record,
    read_many,
    replace_many_if_same,
    small_nbytes,
    write_frame,
    write_frames,
    write_slices,
)
from dl4jlegacy.scaleout.protocol.inputs import Claim, HeldState, Lost, Ready, prepare
from dl4jlegacy.scaleout.protocol.leasing import begin_computing, change_lease, give_back, lease_jobs
from dl4jlegacy.scaleout.protocol.parameter_servers import Server, serve
from dl4jlegacy.scaleout.protocol.worker_state import Worker
from dl4jlegacy.scaleout.state.records import HEAD, MODEL_LOST, Failure, Head, JobRecord, Keys, Manifest, encode_record
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of, serving

__all__ = ["is_wanted", "worker_steps"]

HINT = 0.01
"""Fraction of a poll interval: commits are announced at most this often while more jobs are free."""


class Done(NamedTuple):
    """A performed job: its update and, for a strategy with slot memory, the state that it leaves.

    ``begins`` is the key of the state that the job started from.
    """

    claim: Claim
    update: Buffer
    state: Buffer | None
    begins: str


class Commit(NamedTuple):
    """A job that is done, and the manifests written for it; ``version`` is the model version it started from."""

    done: Done
    version: int
    update: Manifest
    saved: Manifest | None


def worker_steps(me: Worker) -> Steps[Head]:
    """Run a worker's role until the run has ended, or this worker is set aside; return the last head seen."""
    while True:
        searching = me.phases.begin()
        claims = yield from lease_jobs(me)
        if me.head is not None and (me.head.status != "running" or me.name in me.head.set_aside):
            yield from _give_back_all(me, claims)
            return me.head
        if not claims or me.head is None:
            if me.owes_hint:
                me.hint()
            if me.head is not None and (yield from serve(me.memory, me.head, Server(me.clock, me.limits, me.writer))):
                continue
            with me.phases.phase("WorkerWait"):
                yield Wait(me.searched + me.limits.poll)
            continue
        searching.end("WorkerGetJob", me.plan.at(claims[0].number))
        yield from _perform_all(me, me.head, claims)


def _perform_all(me: Worker, head: Head, claims: Sequence[Claim]) -> Steps[None]:
    """Perform leased jobs one after the other, and commit their results together.

    If that takes longer than quick jobs should, the remaining jobs are given back.
    """
    done: list[Done] = []
    left, until = list(claims), me.clock.now() + len(claims) * me.quick_seconds()
    while True:
        answer = yield from _perform(me, head, left.pop(0))
        if isinstance(answer, Done):
            done.append(answer)
        waits = answer is None
        if waits or not left or me.clock.now() > until:
            break
        left[0] = left[0]._replace(since=me.clock.now())
    if done:
        with me.phases.phase("WorkerSend", me.plan.at(done[-1].claim.number)):
            yield from _commit(me, done, head)
    yield from _give_back_all(me, left)
    if waits:
        yield Wait(me.clock.now() + me.limits.poll)  # a worker that is stopping ends here, before the next lease


def _perform(me: Worker, head: Head, claim: Claim) -> Steps[Any]:
    """Perform a leased job and return it as ``Done``.

    Otherwise returns its ``Failure``, which is then in its record; ``ABANDONED`` if the job is no longer useful; or
    None if the job was given back and this worker must wait before its next job, because a value cannot be read or the
    worker is to stop.
    """
    begun, number, record = me.clock.now(), claim.number, claim.record
    result, begins = (yield from prepare(me.memory, head, claim, me.fetched.pop(number, None))), ""
    if isinstance(result, Ready):
        if result.replayed:
            claim = result.claim._replace(since=me.clock.now())
        begins = result.begins
        claim = yield from begin_computing(me, claim)
        record = claim.record
        plan = me.plan.slot(*me.plan.at(number))
        result = yield Perform(plan, record, head.version, result.model, result.data, result.state)
        me.took = me.clock.now() - begun
    if isinstance(result, Lost):
        yield from _cannot_read(me, claim, head, result.text)
        return None
    if isinstance(result, Failure):
        yield from _report(me, number, record, result)
    elif result is None:
        yield from give_back(me, number, record)
    elif result is not ABANDONED:
        update, state = result if isinstance(result, Performed) else (result, None)
        return Done(claim, update, state, begins)
    return result


def is_wanted(router: WorkRouter, plan: Plan, head: Head, number: int, record: JobRecord) -> bool:
    """Return whether a job's update would still count under this head."""
    binds = router_of(router, plan, head.round).binds_model
    if head.status != "running" or (binds and record.model != head.identity):
        return False
    return number in open_slots(router, plan, head)


def _commit(me: Worker, done: Sequence[Done], head: Head) -> Steps[None]:
    """Set the slots to done with their updates, except where another worker was first or the slot has a new model.

    The commit does not require a valid lease: results are deterministic, so a worker that lost its lease may still be
    the first to finish. It must never change a record of another model. ``head`` is the head that the jobs started
    from.
    """
    commits = yield from _write(me, done, head)
    leases = [each.claim for each in done]
    items = [
        (me.key(claim), claim.raw, encode_record(_done_record(me, claim.record, commit)))
        for claim, commit in zip(leases, commits, strict=True)
    ]
    replaced = yield from replace_many_if_same(me.store, items)
    for commit, is_done in zip(commits, replaced, strict=True):
        if is_done or (yield from _commit_late(me, commit)):
            _note_commit(me, commit)
    if me.owes_hint and (not me.spare or me.clock.now() - me.hinted > me.limits.poll * HINT):
        me.hint()


def _write(me: Worker, done: Sequence[Done], head: Head) -> Steps[list[Commit]]:
    """Write the updates of jobs of one round, and the states that must be saved."""
    writers = [me.writer() for _ in done]
    slots = [me.plan.at(each.claim.number) for each in done]
    keys = [Keys.update(*slot, writer) for slot, writer in zip(slots, writers, strict=True)]
    updates = yield from _write_updates(
        me, slots[0][0], [(key, each.update) for key, each in zip(keys, done, strict=True)]
    )
    commits = []
    for each, update, slot, writer in zip(done, updates, slots, writers, strict=True):
        state, saved = each.state, None
        if state is not None and me.plan.is_last_until(each.claim.number, head.keeps, head.jobs_set_aside):
            saved = yield from write_frame(me.store, Keys.state(*slot, writer), state)
        if state is not None and saved is None and me.copies is not None:
            me.copies.keep(slot[1], update.key, state)  # before the commit, so that whoever sees that finds it
        commits.append(Commit(each, head.version, update, saved))
    return commits


def _write_updates(me: Worker, round_: int, updates: Sequence[tuple[str, Buffer]]) -> Steps[list[Manifest]]:
    """Write updates as a whole, or in one slice per parameter server; small updates go into their manifests.

    A frame that cannot be cut into slices is not a valid update; the master refuses it with an error.
    """
    if (strategy := serving(me.router, me.plan, round_)) is None:
        return (yield from write_frames(me.store, updates, small=small_nbytes(me.plan, round_)))
    written = []
    for key, frame in updates:
        try:
            written.append((yield from write_slices(me.store, key, frame, strategy.slices)))
        except WireError:
            written.append((yield from write_frame(me.store, key, frame)))
    return written


def _done_record(me: Worker, record: JobRecord, commit: Commit) -> JobRecord:
    return msgspec.structs.replace(
        record,
        state="done",
        worker=me.name,
        seconds=me.clock.now() - commit.done.claim.since,
        version=commit.version,
        update=commit.update,
        failure=None,
        saved=commit.saved,
        begins=commit.done.begins,
        begun=(),
        crashes=(),
    )


def _commit_late(me: Worker, commit: Commit) -> Steps[bool]:
    """Commit a job whose record has changed since it was leased; if that is not possible, delete the written values."""
    claim = commit.done.claim
    key, model = me.key(claim), claim.record.model
    while True:
        raw = (yield from read_many(me.store, [key]))[0]
        record = parse_record(me.store, key, raw, JobRecord)
        if raw is None or record is None or record.state == "done" or record.model != model:
            break
        yield STEP
        if me.store.replace_if_same(key, raw, encode_record(_done_record(me, record, commit))):
            return True
    written = [commit.update, *([] if commit.saved is None else [commit.saved])]
    yield from delete_many(me.store, [key for manifest in written for key in keys_of(manifest)])
    yield from increment(me.store, DROPPED)
    return False


def _note_commit(me: Worker, commit: Commit) -> None:
    """Note that a job was committed: keep its state, drop old copies, and commit its update to the message mesh."""
    (claim, update, state, _), saved = commit.done, commit.saved
    me.closed.add(claim.number)
    me.owes_hint = True
    if state is None:
        return
    slot = me.plan.at(claim.number)[1]
    me.memory.states[slot] = HeldState(claim.number, commit.update.key, saved.key if saved else "", state)
    if me.copies is not None and saved is None:
        me.copies.remove_others(slot)
    if me.messages is not None:
        me.messages.commit(update)


def _give_back_all(me: Worker, claims: Sequence[Claim]) -> Steps[None]:
    for claim in claims:
        yield from give_back(me, claim.number, claim.record)


def _cannot_read(me: Worker, claim: Claim, head: Head, lost: str = "") -> Steps[None]:
    """Give back a job with missing inputs: report a lost model or state to the master, or have lost job data rewritten.

    If jobs are not bound to a model, the run continues meanwhile. If the head has changed by now, the values of the old
    head were deleted as usual, and nothing is lost.
    """
    number, lease = claim.number, claim.record
    if lost and not me.binds_model():
        me.update_head((yield from read_many(me.store, [HEAD]))[0])
        if me.head is not None and me.head.identity != head.identity:
            yield from give_back(me, number, lease)
            return
    if lost:
        failure = Failure(MODEL_LOST, f"{lost} could not be read", me.name)
        yield from change_lease(me, number, lease, state="failed", failure=failure)
    else:
        yield STEP
        me.store.delete(Keys.job(*me.plan.at(number)))
    me.store.publish(UPDATE_TOPIC)


def _report(me: Worker, number: int, lease: JobRecord, failure: Failure) -> Steps[None]:
    """Record the failure of a job; the master decides whether the job is retried."""
    failures = add_failure(lease.failures, failure)
    yield from change_lease(me, number, lease, state="failed", failure=failure, failures=failures)
    me.store.publish(UPDATE_TOPIC)
