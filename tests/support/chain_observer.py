"""Watches the chains of slots in a simulated asynchronous run: it sees the store and every job, and no process asks it.

Each time the head changes by a fold, what it names must follow from the head before it: the snapshot has, of each slot
that was folded, the state that its job has left, which began with the state in the snapshot before; the model is the
one before it with the updates that were committed with these states added to it, in order; and no update is staler than
the bound allows. Along each chain nothing of an update may be lost, or count twice.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.frames import read_frame
from dl4jlegacy.scaleout.state.aggregate import PARAMS, aggregate
from dl4jlegacy.scaleout.state.codec import unpack
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import HEAD, Head, Manifest, SlotState, Snapshot, covered, decode_record
from dl4jlegacy.scaleout.strategies import WorkRouter
from dl4jlegacy.scaleout.strategies.elastic_averaging import DIFFERENCE, ElasticAveragingWorkRouter
from dl4jlegacy.scaleout.strategies.gradient_sharing import CODES, RESIDUAL
from dl4jlegacy.scaleout.tracker import drive

__all__ = ["ChainObserver"]


class Job(NamedTuple):
    """A job as some worker has done it: the version and the frames that it began with, and those that it came to."""

    version: int
    model: bytes
    before: bytes | None
    update: bytes
    after: bytes


class Sums(NamedTuple):
    """Of one chain so far: what it began with, what was sent, and what training has made in all, in float64."""

    began: Any
    sent: Any
    steps: Any


@dataclass
class ChainObserver:
    """See the module. ``aggregator`` is that of the masters; ``most`` is how stale an update may be.

    With a store that ``is_forgetful`` versions are made twice, and how stale an update is cannot be told.
    """

    seed: int
    store: Any
    plan: Plan
    strategy: WorkRouter
    aggregator: Any
    most: int
    is_forgetful: bool
    jobs: dict[int, list[Job]] = field(default_factory=lambda: defaultdict(list))
    """What was done of each job, by its number."""
    trained: dict[bytes, Result] = field(default_factory=dict)
    """What the performer made of a job, by the state that it has left."""
    frames: dict[str, bytes] = field(default_factory=dict)
    """The frames that heads have named, by key: they may be gone from the store when they are compared."""
    states: dict[str, Mapping[int, SlotState]] = field(default_factory=dict)
    """What a snapshot says, by its key."""
    sums: dict[str, Sums] = field(default_factory=dict)
    """Those of the chain up to a state, by its key."""
    versions: dict[int, tuple[int, bytes | None]] = field(default_factory=dict)
    """How many updates are in a version, and its model, of the present history."""
    raw: bytes | None = None
    head: Head | None = None
    checked: int = 0
    stalest: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Learn, as long as the context lasts, what training made of each job before the strategy settles it."""
        kind, observer = type(self.strategy.memory), self
        settle: Any = kind.settle

        def settled(self: Any, model: Result, state: Result | None, result: Result, kernels: Any) -> Any:
            copied = Result({}, {name: array.copy() for name, array in result.arrays.items()})
            update, after = settle(self, model, state, result, kernels)
            observer.trained[bytes(after.encode())] = copied
            observer.check_job(model, state, copied, update, after)
            return update, after

        with mock.patch.object(kind, "settle", settled):
            yield

    def check_job(self, model: Result, state: Result | None, trained: Result, update: Result, after: Result) -> None:
        """Compare what a job sends and leaves with what it began with and what it was trained to, exactly."""
        if RESIDUAL in after.arrays:
            before = np.zeros_like(after.arrays[RESIDUAL]) if state is None else state.arrays[RESIDUAL]
            whole = (before + trained.arrays["delta"]).astype(np.float64)
            assert np.array_equal(sent_by(update, whole.size) + after.arrays[RESIDUAL], whole), self.seed
            return
        assert isinstance(self.strategy, ElasticAveragingWorkRouter)
        difference = update.arrays[DIFFERENCE]
        alpha = np.float32(self.strategy.beta / self.plan.jobs_per_round)
        assert np.array_equal(difference, (trained.arrays[PARAMS] - model.arrays[PARAMS]) * alpha), self.seed
        assert np.array_equal(after.arrays[PARAMS], trained.arrays[PARAMS] - difference), self.seed

    def note(self, number: int, event: Any, update: Any, after: Any) -> None:
        """Take note that a worker has done what an event asked for."""
        held = None if event.state is None else bytes(event.state)
        self.jobs[number].append(Job(event.version, bytes(event.model), held, bytes(update), bytes(after)))

    def look(self) -> None:
        """Compare the head with the one before it, if it is another."""
        raw = self.store.now.get(HEAD)
        if raw is None or raw == self.raw:
            return
        before, head = self.head, decode_record(raw, Head)
        self.raw, self.head = raw, head
        is_new = head.snapshot is not None and head.snapshot.key not in self.states  # or somebody has put it back
        self._remember(head)
        self.versions[head.version] = updates_in(head), self.frames.get(head.model.key)
        if before is not None and head.version == before.version + 1 and is_new:
            self._check_fold(before, head)

    def _remember(self, head: Head) -> None:
        """Keep what a head names, as far as it is in the store."""
        self._keep(head.model)
        if head.snapshot is not None and (raw := self._keep(head.snapshot)) is not None:
            self.states[head.snapshot.key] = decode_record(raw, Snapshot).states
            for saved in self.states[head.snapshot.key].values():
                self._keep(saved.state)

    def _keep(self, manifest: Manifest) -> bytes | None:
        if manifest.key not in self.frames and (frame := drive(read_frame(self.store, manifest))) is not None:
            self.frames[manifest.key] = bytes(frame)
        return self.frames.get(manifest.key)

    def _check_fold(self, before: Head, head: Head) -> None:
        plan, seed = self.plan, f"seed {self.seed}, version {head.version}"
        folded = (n for first, last in head.folded for n in range(first, last) if not covered(before.folded, n))
        numbers = [n for n in folded if not covered(head.jobs_set_aside, n)]
        is_known = all(h.snapshot is None or h.snapshot.key in self.states for h in (before, head))
        if not numbers or plan.is_validation(before.round) or head.snapshot is None or not is_known:
            return
        was = {} if before.snapshot is None else self.states[before.snapshot.key]
        now, updates = self.states[head.snapshot.key], []
        if any(saved != was.get(slot) and "/m" in saved.state.key for slot, saved in now.items()):
            return  # a master has written it: the run goes on from a checkpoint
        slots = {plan.at(number)[1]: number for number in numbers}
        assert len(slots) == len(numbers), f"{seed}: two jobs of one slot at once, {numbers}"
        for slot, saved in now.items():
            assert saved.number == slots.get(slot, saved.number), f"{seed}: slot {slot} has the state of an older job"
            assert slot in slots or saved == was.get(slot), f"{seed}: slot {slot} has another state, and no job"
        assert set(now) == set(was) | set(slots), f"{seed}: slots {sorted(now)} have states"
        for place, (slot, number) in enumerate(sorted(slots.items(), key=lambda item: item[1])):
            jobs = self._jobs(number, was.get(slot), now[slot], seed)
            if not jobs:
                return  # a frame was lost before anybody saw it
            updates.append({job.update for job in jobs})
            if not self.is_forgetful:
                self._check_start(number, jobs[0], updates_in(before) + place, seed)
        self._check_model(before, head, updates, seed)
        self.checked += len(numbers)

    def _check_start(self, number: int, job: Job, folded: int, seed: str) -> None:
        """Compare what a job began with with its version, of which there were ``folded`` updates when it was folded."""
        folded_then, model = self.versions[job.version]
        assert job.model == model, f"{seed}: job {number} began with another model than its version's"
        assert folded - folded_then <= self.most, f"{seed}: {folded - folded_then} came between start and fold"
        self.stalest = max(self.stalest, folded - folded_then)

    def _jobs(self, number: int, before: SlotState | None, after: SlotState, seed: str) -> list[Job]:
        """Return the jobs that lead from one state of a slot to the next; none if a frame of it is not known.

        There may be several: of a replica and centres that differ in their last bits.
        """
        left = self.frames.get(after.state.key)
        began = None if before is None else self.frames.get(before.state.key)
        if left is None or (before is not None and began is None):
            return []
        found = [job for job in self.jobs[number] if job.after == left]
        assert found, f"{seed}: nobody has left this state of job {number}"
        found = [job for job in found if job.before == began]
        assert found, f"{seed}: job {number} did not go on with what the last one of its slot has left"
        self._check_sums(number, before, after, found[0], seed)
        return found

    def _check_sums(self, number: int, before: SlotState | None, after: SlotState, job: Job, seed: str) -> None:
        """Compare what a chain has sent, and what it has kept, with what training has made in it."""
        update, left, trained = Result.decode(job.update), Result.decode(job.after), self.trained[job.after]
        if (kept := left.arrays.get(RESIDUAL)) is not None:
            sent, step, begins = sent_by(update, kept.size), trained.arrays["delta"], np.zeros(kept.size)
        else:
            begins = Result.decode(job.model if job.before is None else job.before).arrays[PARAMS].astype(np.float64)
            kept, sent, step = left.arrays[PARAMS], update.arrays[DIFFERENCE], trained.arrays[PARAMS] - begins
        last = None if before is None else self.sums.get(before.state.key)
        if last is None:
            if before is not None:
                return  # the chain was restored from a checkpoint that nobody watched
            last = Sums(begins, np.zeros(kept.size), np.zeros(kept.size))
        sums = Sums(last.began, last.sent + sent, last.steps + step)
        self.sums[after.state.key] = sums
        rest = kept + sums.sent - sums.steps - sums.began
        assert np.abs(rest).max() < 1e-5, f"{seed}: {np.abs(rest).max()} of chain of job {number} is lost, or too much"

    def _check_model(self, before: Head, head: Head, updates: Sequence[Set[bytes]], seed: str) -> None:
        first, then = self.frames.get(before.model.key), self.frames.get(head.model.key)
        if first is None or then is None:
            return
        ends = self.plan.ends_phase(before.round, head.round)
        models = {
            bytes(aggregate(self.aggregator, first, each, version=before.version, ends_phase=ends)[0])
            for each in itertools.product(*updates)
        }
        assert then in models, f"{seed}: the model is not the one before with the updates of these states"


def updates_in(head: Head) -> int:
    """Return how many updates are in a version."""
    folded = (n for first, last in head.folded for n in range(first, last))
    return sum(not covered(head.jobs_set_aside, n) for n in folded)


def sent_by(update: Result, size: int) -> Any:
    """Return what a message of gradient sharing adds to the parameters, in float64."""
    values = update.values
    codes = unpack(values["format"], update.arrays[CODES], count=values["count"], size=size, tau=values["tau"])
    said = np.zeros(size)
    said[np.abs(codes) - 1] = np.sign(codes) * values["tau"]
    return said
