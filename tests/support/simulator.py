"""The run protocol under a seeded scheduler with virtual clocks: the project's own step functions, real frames, and
processes that are killed, frozen, restarted and overtaken, over a store that may lose the newest write of a key. Each
process is on a machine of its own, whose monotonic clock began at some time and whose wall clock is often set.

    python -m tests.support.simulator [schedules] [first seed] [--router=NAME] [--scenario=NAME] [--work=NAME]

Every schedule must end in the parameters of a serial run (synchronous routers), with each batch counted once and the
store's keys bounded; what it stopped by and its best model are the serial run's. A failing seed is printed and replays
exactly.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from dl4jlegacy.arrays.wire import digest
from dl4jlegacy.errors import CheckpointError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.plan import Plan, SlotPlan
from dl4jlegacy.scaleout.protocol import closing, frames, leasing
from dl4jlegacy.scaleout.protocol import slot_watch as watch
from dl4jlegacy.scaleout.protocol.frames import keys_of
from dl4jlegacy.scaleout.scoring import Scoring
from dl4jlegacy.scaleout.state.aggregate import JobAggregator, ValidationAggregation, aggregate, aggregation_tree
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    Best,
    Failure,
    Head,
    Keys,
    Manifest,
    account,
    advance,
    covered,
    decode_record,
)
from dl4jlegacy.scaleout.state.untrusted import UntrustedKeys
from dl4jlegacy.scaleout.strategies import WorkRouter, create_router
from dl4jlegacy.system.clock import Clock, RunningClock
from tests.support.chain_observer import ChainObserver
from tests.support.hostile_copies import HostileCopies
from tests.support.hostile_mesh import HostileMesh
from tests.support.hostile_storage import HostileStorage
from tests.support.scenarios import HOSTILE, SCENARIOS, Scenario

LEASE, POLL = 60.0, 8.0
KILLS, FREEZES, LOSSES, RESTARTS, STEPS = 0.008, 0.004, 0.002, 0.0002, 0.01
STEP_LIMIT = 400_000
STEP_SECONDS = (-86400.0, -1500.0, -2 * LEASE, 2 * LEASE, 1500.0, 86400.0)
"""By how much a wall clock is set forward or back."""
CHECKPOINT_EVERY = 3
OF_VERSIONS = ("entry/", "model/", "snapshot/")
"""What the keys begin with that a master writes while it makes a version."""
LOOK = 8
"""After this many batches a worker looks whether its job is still wanted."""
TAKEN_FOR_GONE = 0.02
"""How often a worker is taken for dead or frozen, wrongly as often as not."""
GROUPS = (watch.GROUP_NBYTES, 1, 600)
"""Sizes of the groups in which a master fetches updates: all at once, one by one, a few at a time."""
MASTERS, WORKERS = ("m0", "m1"), ("w0", "w1", "w2")
LIMITS = protocol.Limits(lease=LEASE, poll=POLL, attempts=1_000_000, straggler_least=LEASE / 2)


class DiedError(Exception):
    """A process dies of what it computes."""


class SimulatedStore:
    """Linearizable per key, one operation a step; ``lose`` forgets the newest write of one key."""

    checksums = True

    def __init__(self, chunk_nbytes: int) -> None:
        self.chunk_nbytes = chunk_nbytes
        self.now: dict[str, bytes] = {}
        self.before: dict[str, bytes | None] = {}
        self.operations = 0
        self.foreign = UntrustedKeys()

    def _write(self, key: str, value: Any) -> None:
        self.before[key] = self.now.get(key)
        if value is None:
            self.now.pop(key, None)
        else:
            self.now[key] = bytes(value)

    def get(self, key: str) -> bytes | None:
        self.operations += 1
        return self.now.get(key)

    def put(self, key: str, value: Any) -> None:
        self.operations += 1
        self._write(key, value)

    def put_for(self, key: str, value: Any, seconds: int) -> None:
        """A schedule is over sooner than that."""
        self.put(key, value)

    def put_if_absent(self, key: str, value: Any) -> bool:
        self.operations += 1
        if key in self.now:
            return False
        self._write(key, value)
        return True

    def replace_if_same(self, key: str, expected: Any, value: Any) -> bool:
        self.operations += 1
        if self.now.get(key) != bytes(expected):
            return False
        self._write(key, value)
        return True

    def delete_if_same(self, key: str, expected: Any) -> bool:
        self.operations += 1
        if self.now.get(key) != bytes(expected):
            return False
        self._write(key, None)
        return True

    def delete(self, key: str) -> None:
        self.operations += 1
        self._write(key, None)

    def keys(self, prefix: str) -> list[str]:
        self.operations += 1
        return sorted(key for key in self.now if key.startswith(prefix))

    def publish(self, topic: str) -> None:
        """Hints are lost: correctness and progress must come from polling alone."""

    def listen(self, topic: str, listener: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def close(self) -> None:
        self.now.clear()

    def lose(self, rng: random.Random) -> None:
        written = sorted(key for key in self.before if key in self.now)
        if written:
            key = rng.choice(written)
            value = self.before.pop(key)
            if value is None:
                self.now.pop(key, None)
            else:
                self.now[key] = value


@dataclass
class Work:
    """What is trained in a simulation: the same for the serial run and every schedule."""

    plan: Plan
    first_model: Callable[[], Any]
    load: Callable[[SlotPlan], Any]
    perform: Callable[[SlotPlan, int, Any, Any, WorkRouter, Any], Any]
    """Does a job, of a slot, a version with its model, data, strategy, and the state of the slot."""
    aggregator: Callable[[str], JobAggregator]
    chunk_nbytes: int = 256
    max_keys: int = 400
    scoring: Scoring = dataclasses.field(default_factory=Scoring)


class Machines:
    """The clocks of several machines in one virtual time: monotonic ones of different origin, wall clocks that step.

    ``at`` is the machine whose clocks ``time.monotonic`` and ``time.time`` show while ``shown``.
    """

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.time, self.at, self._random = 0.0, names[0], random.Random(f"clocks of {seed}")
        self._began = {name: float(self._random.randrange(10**7)) for name in names}
        self._wall = dict.fromkeys(names, 0.0)

    def monotonic(self) -> float:
        return self._began[self.at] + self.time

    def wall(self) -> float:
        return 1.7e9 + self._wall[self.at] + self.time

    def shown(self) -> AbstractContextManager[Any]:
        return mock.patch.multiple("time", monotonic=self.monotonic, time=self.wall)

    def tick(self, now: float, at: str) -> None:
        """Let the time be ``now`` and a process on ``at`` go on; somebody may set that machine's wall clock."""
        self.time, self.at = now, at
        if self._random.random() < STEPS:
            self._wall[at] += self._random.choice(STEP_SECONDS)


ASYNCHRONOUS = "-asynchronous"
"""What the names of strategies end with here whose chains are to be asynchronous."""


def strategy_of(router: str, seed: int, plan: Plan, scenario: Scenario = HOSTILE) -> WorkRouter:
    """Return a strategy: how often states are saved, and who folds, changes nothing in the result.

    In how many steps they fold does.
    """
    name, args = router.removesuffix(ASYNCHRONOUS), {}
    if router != name:
        args = {"asynchronous": True, "bound": (1, 0, 2)[seed // 2 % 3]}
        args |= {"clip": 0.0, "tau": 1e-3} if name == "gradient-sharing" else {}
    elif scenario.servers:
        args = {"parameter_servers": (2, 0, 4, 3)[seed // 2 % 4], "aggregation_depth": (1, 2, 2, 3)[seed // 4 % 4]}
    elif name == "gradient-sharing":
        args = {"state_every": (3, 1, 64, 2)[seed // 2 % 4]}
    return create_router(name, args, jobs_per_round=plan.jobs_per_round)


def garbled(done: Any, rng: random.Random) -> Any:
    """Return what no model can use instead of what a job has come to: other arrays, too many numbers, no frame."""
    if isinstance(done, protocol.Performed):
        return protocol.Performed(done.state, done.state)
    result = Result.decode(done)
    twice = Result(result.values, {name: np.concatenate([array, array]) for name, array in result.arrays.items()})
    return bytes(twice.encode()) if rng.random() < 0.5 else b"no frame"


class World:
    sets_poison_aside = False

    def __init__(self, work: Work, router: str, seed: int, losses: bool, scenario: Scenario = HOSTILE) -> None:
        self.work, self.losses, self.seed, self.scenario = work, losses, seed, scenario
        self.rng = random.Random(seed)
        self.store = SimulatedStore(work.chunk_nbytes)
        self.router = strategy_of(router, seed, work.plan, scenario)
        self.chains = self._observer()
        self.limits = msgspec.structs.replace(LIMITS, attempts=scenario.attempts)
        self.time = 0.0
        self.machines = Machines(MASTERS + WORKERS, seed)
        self.checkpoint: tuple[Head, Any] | None = None
        self.result: tuple[Head, Any] | None = None
        self.kept_best: tuple[Best, bytes] | None = None
        """The best model of the checkpoint, and then of the result."""
        self.states: dict[int, protocol.SavedState] = {}
        """The states of the slots of the checkpoint."""
        self.versions: list[float] = []
        """When each model version was made."""
        self.names: dict[str, str] = {}
        """The name of the process that each role has now."""
        self.gone: list[str] = []
        """The names of killed workers."""
        self.set_aside: list[str] = []
        self.resumed = 0
        self.restored = 0
        """How often a master that remembers nothing found no head, but a checkpoint to go on from."""
        self.mesh = HostileMesh(seed) if scenario.pushes else None
        self.copies = HostileCopies(seed) if scenario.copies else None
        self.storage = HostileStorage(seed) if scenario.storage else None
        self.replayed = 0
        self.begun: dict[tuple[int, int], tuple[str, Any]] = {}  # with which model and state, by round and slot
        """How often a job was done again for a later one of its slot."""
        self.born = 0

    def _observer(self) -> ChainObserver | None:
        """Return what watches the chains of an asynchronous run; None if it has none."""
        if self.router.binds_model or self.router.memory is None:
            return None
        plan, aggregator = self.work.plan, self.work.aggregator(self.router.name)
        most = (plan.jobs_per_round - 1) * (2 * self.router.bound + 1)
        return ChainObserver(self.seed, self.store, plan, self.router, aggregator, most, self.losses)

    def clock(self) -> Clock:
        """Return the clock of a process, such as it has from its tracker; here it is read now and then only."""
        return RunningClock(gap_seconds=math.inf)

    def after(self, event: protocol.Event, clock: Clock) -> float:
        """Return until when a process sleeps that yields this event."""
        return self.time + event.until - clock.now() if isinstance(event, protocol.Wait) else 0.0

    def save(self, event: protocol.NewModel, checkpoints: protocol.DueCheckpoints) -> bool:
        """An atomic write: the newest model replaces the checkpoint, if one is due; return whether it is."""
        self.versions.append(self.time)
        is_saved = checkpoints.take(event)
        if is_saved:
            if event.head.snapshot is not None and not event.states:
                return False  # one was lost just now
            self.checkpoint = (event.head, event.frame)
            self.states = dict(event.states)
            self.kept_best = None
            if event.head.best is not None:
                assert event.best is not None, f"seed {self.seed}: the best model is missing"
                self.kept_best = event.head.best, bytes(event.best)
        return is_saved

    def save_last(self, event: protocol.NewModel, checkpoints: protocol.DueCheckpoints) -> bool:
        """Save a version, and keep the last one as the run's result; return whether it is a checkpoint."""
        is_saved = self.save(event, checkpoints)
        if event.last:
            if event.head.best is not None and event.best is not None:
                self.kept_best = event.head.best, bytes(event.best)
            self.result = (event.head, event.frame)
            if event.head.best is not None:  # it is returned, even where no checkpoint can be made of the last model
                assert event.best is not None, f"seed {self.seed}: the best model is missing"
                self.kept_best = event.head.best, bytes(event.best)
        return is_saved

    def restore(self) -> tuple[Head, Any] | None:
        """Return the checkpoint; None: there is none yet."""
        self.restored += self.checkpoint is not None
        return self.checkpoint

    def best_model(self, best: Best) -> bytes | None:
        """Return the frame of a best model, if it is that of the checkpoint."""
        return self.kept_best[1] if self.kept_best is not None and best.is_same(self.kept_best[0]) else None

    def master(self, name: str) -> Iterator[float]:
        """Be a master; one that ends for want of its checkpoints is started again."""
        while self.result is None:
            try:
                yield from self.master_once(name)
                return
            except CheckpointError:
                assert self.storage is not None
                self.storage.give_up()

    def master_once(self, name: str) -> Iterator[float]:
        work, clock = self.work, self.clock()
        folder = None if self.storage is None else self.storage.of_master(clock)
        start = protocol.RunStart("run", work.first_model, self.restore, self.best_model, lambda head: self.states)
        if self.storage is not None and folder is not None:
            start = self.storage.beginning(work.first_model, folder)
        me = protocol.Master(
            name,
            self.store,
            clock,
            work.plan,
            self.router,
            aggregator=work.aggregator(self.router.name),
            start=start,
            limits=self.limits,
            is_gone=self.is_gone,
            death_of=self.death_of,
            sets_poison_aside=self.sets_poison_aside,
            on_job_set_aside=self.note_set_aside,
            on_progress=lambda: progressed.append(self.time),
            on_set_aside=lambda worker, failures: self.set_aside.append(worker),
            present=self.present,
            scoring=work.scoring,
            shares_models=False,
            pushes_messages=self.mesh is not None and name.startswith(MASTERS[0]),
        )
        progressed, checkpoints = [self.time], protocol.DueCheckpoints(CHECKPOINT_EVERY)
        put_ahead: dict[int, Manifest] = {}
        for event in self.to_the_end(me):
            if isinstance(event, protocol.MoreWork):
                binds = self.router.binds_model
                steps = protocol.issue_jobs(
                    self.store, work.plan, event, binds_model=binds, load=work.load, put_ahead=put_ahead
                )
                for _ in steps:
                    yield 0.0
            elif isinstance(event, protocol.NewModel):
                if self.save_last(event, checkpoints) and folder is not None:
                    folder.keep(event.head, event.frame, event.best, event.states)
            elif isinstance(event, protocol.Wait):
                idle = self.time - progressed[-1]
                assert idle < self.scenario.patience, f"seed {self.seed}: given up after {idle} s without progress"
                yield self.after(event, clock)
            else:
                yield 0.0

    def to_the_end(self, me: protocol.Master) -> protocol.Steps[None]:
        """Be the master until the run is done, or has failed and nobody resumes it."""
        while True:
            head = yield from protocol.master_steps(me)
            if head.status == "done":
                return
            if not self.scenario.is_resumed:
                self.result = (head, b"")
                return
            self.look_at_failure(head)
            if (yield from protocol.reopen(self.store, self.work.plan, self.router)):
                self.resumed += 1

    def is_gone(self, worker: str) -> bool:
        """Whether a worker is taken for dead or frozen."""
        return self.rng.random() < TAKEN_FOR_GONE

    def death_of(self, worker: str) -> str:
        """How it is known that a worker's process has died: nobody looks."""
        return ""

    def note_set_aside(self, slot: tuple[int, int], failure: Failure) -> None:
        """A master goes on without a job."""

    def look_at_failure(self, head: Head) -> None:
        """Somebody reads why the run has failed, before it is resumed."""

    def present(self) -> list[str]:
        """Return the workers that are there, and sometimes one that is not any more."""
        return [*(self.names[role] for role in WORKERS), *(self.gone[-1:] if self.rng.random() < 0.2 else [])]

    def worker(self, name: str) -> Iterator[float]:
        block = (16, 2, 1)[self.seed % 3]  # all of a round at once, or one of each block first
        clock = self.clock()
        me = protocol.Worker(
            name,
            self.store,
            clock,
            self.work.plan,
            self.router,
            aggregator=self.work.aggregator(self.router.name),
            limits=self.limits,
            block=block,
            quick=(math.inf, 2.0, 0.0)[self.seed // 6 % 3],  # all jobs are, some, or none
            messages=None if self.mesh is None or name.startswith(WORKERS[-1]) else self.mesh.join(name),
            copies=None if name.startswith(WORKERS[-1]) else self.copies,
        )
        steps = protocol.worker_steps(me)
        answer: Any = None
        while True:
            try:
                event = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(event, protocol.Perform):
                for batch in range(self.rng.randrange(self.scenario.batches)):
                    yield 0.0
                    if self.rng.random() < 0.3:
                        for _ in protocol.extend_lease(me, event.job, event.record, batch + 1):
                            yield 0.0
                    if batch % LOOK == LOOK - 1 and not self.wants(event):
                        break
                answer = self.answer(name, event)
            else:
                yield self.after(event, clock)

    def answer(self, name: str, event: protocol.Perform) -> Any:
        dice = self.rng.random()
        is_sick = name == self.names.get(self.scenario.sick)
        if dice < self.scenario.failures or (is_sick and not self.scenario.garbles):
            return Failure("DL4J-JOB", "made to fail", name)
        if dice < self.scenario.failures + 0.01:
            return None  # a worker that is told to leave gives its lease back
        if not self.wants(event):
            return protocol.ABANDONED
        self.replayed += event.leased is not None
        if self.router.binds_model and not self.sets_poison_aside:
            begins = digest(event.model), None if event.state is None else digest(event.state)
            same = self.begun.setdefault((event.plan.round, event.plan.slot), begins) == begins
            assert same, f"seed {self.seed}: round {event.plan.round}, slot {event.plan.slot} began with something else"
        done = self.work.perform(event.plan, event.version, event.model, event.data, self.router, event.state)
        if self.chains is not None and isinstance(done, protocol.Performed):
            number = self.work.plan.number(event.plan.round, event.plan.slot)
            self.chains.note(number, event, done.update, done.state)
        return garbled(done, self.rng) if is_sick else done

    def wants(self, event: protocol.Perform) -> bool:
        """Whether a worker that looks at the head between two batches goes on."""
        raw = self.store.now.get(HEAD)
        if raw is None or self.rng.random() < 0.5:
            return True
        number = self.work.plan.number(event.job.round, event.job.slot)
        return protocol.is_wanted(self.router, self.work.plan, decode_record(raw, Head), number, event.record)

    def crowd(self) -> int:
        """Return how many keys are in the store; of a version that is being made, not those that dead masters left.

        Each master that is killed while it writes one leaves some, however many they are, until it is passed.
        """
        keys = self.store.now
        raw = keys.get(HEAD)
        if raw is None or len(keys) <= self.work.max_keys:
            return len(keys)
        head, alive = decode_record(raw, Head), {self.names[role] for role in MASTERS}
        writers = {key: ".".join(key.split("/")[2].split(".")[:2]) for key in keys if key.startswith(OF_VERSIONS)}
        dead = [key for key, by in writers.items() if by.startswith(MASTERS) and by not in alive]
        return len(keys) - sum(not Keys.is_useless(key, head) for key in dead)

    def start(self, role: str) -> Iterator[float]:
        self.born += 1
        name = f"{role}.{self.born}"
        if role in WORKERS:
            self.gone += [self.names[role]] if role in self.names else []
        self.names[role] = name
        return self.master(name) if role in MASTERS else self.worker(name)


def run(
    work: Work,
    seed: int,
    *,
    losses: bool,
    router: str = "iterative-reduce",
    scenario: Scenario = HOSTILE,
    kind: type[World] | None = None,
) -> World:
    """Run one schedule to its end and return the world; raises AssertionError naming the seed."""
    world = (kind or World)(work, router, seed, losses, scenario)
    with as_seeded(world):
        return _run(world)


@contextmanager
def as_seeded(world: World) -> Iterator[None]:
    """Let the protocol be as the seed of a world has it: how much at once, and what is small."""
    seed = world.seed
    long_logs = mock.patch.object(closing, "LONGEST_REPLAY", world.scenario.replay)
    groups = mock.patch.object(watch, "GROUP_NBYTES", GROUPS[seed // 2 % len(GROUPS)])
    # Where jobs leave no states, and enough of them are free, several are leased together.
    few = 0 if seed % 2 and world.router.memory is None else leasing.FEW_BLOCKS
    few_blocks = mock.patch.object(leasing, "FEW_BLOCKS", few)
    # What is small goes with its job in some schedules, and can be lost in all others.
    small = mock.patch.object(frames, "SMALL_NBYTES", frames.SMALL_NBYTES if seed % 8 in (2, 3, 6) else 0)
    watching = nullcontext() if world.chains is None else world.chains.watching()
    with groups, long_logs, few_blocks, small, watching, world.machines.shown():
        yield


def _run(world: World) -> World:
    seed, losses, hostility = world.seed, world.losses, world.scenario.hostility
    rng, roles, lossy = world.rng, MASTERS + WORKERS, hostility * world.scenario.losses
    # A process that lives long must get over what others forget by dying.
    kills, freezes = 0.0 if seed % 4 == 3 else KILLS * hostility, FREEZES * hostility
    alive = {role: world.start(role) for role in roles}
    asleep = dict.fromkeys(roles, 0.0)
    finished: set[str] = set()
    peak = steps = 0
    while world.result is None:
        steps += 1
        world.time += 1.0
        if world.mesh is not None:
            world.mesh.time = world.time
        assert steps < STEP_LIMIT, f"seed {seed}: no progress after {steps} steps"
        peak = max(peak, world.crowd())
        for role in () if world.storage is None else world.storage.tick(world.time, MASTERS):
            alive[role], asleep[role] = world.start(role), 0.0
            finished.discard(role)
        role = rng.choice(roles)
        world.machines.tick(world.time, role)
        dice = rng.random()
        if dice < kills and role != world.scenario.sick:  # SIGKILL and restart: all local state is gone
            alive[role], asleep[role] = world.start(role), 0.0
            finished.discard(role)
            continue
        if KILLS <= dice < KILLS + freezes:  # SIGSTOP for a while, past the lease's end
            asleep[role] = world.time + rng.randrange(3 * int(LEASE))
            continue
        if losses and rng.random() < LOSSES * lossy:
            world.store.lose(rng)
        if losses and rng.random() < RESTARTS * lossy:  # the only member of the grid is started anew
            world.store.now.clear()
        if role in finished and world.scenario.is_resumed and rng.random() < 0.01:  # somebody starts a worker again
            alive[role], asleep[role] = world.start(role), 0.0
            finished.discard(role)
        if role in finished or (asleep[role] > world.time and rng.random() > 0.05):
            continue
        before = world.store.operations
        try:
            asleep[role] = next(alive[role])
        except StopIteration:
            finished.add(role)
        except DiedError:
            alive[role], asleep[role] = world.start(role), 0.0
        assert world.store.operations - before <= 1, f"seed {seed}: {role} took two store operations in one step"
        if world.chains is not None:
            world.chains.look()
    check(world, seed, peak)
    return world


def check(world: World, seed: int, peak: int) -> None:
    head, _ = world.result or (None, None)
    plan = world.work.plan
    assert head is not None and head.status == "done", f"seed {seed}: ended as {head}"
    assert account(head, plan) == (0, 0), f"seed {seed}: lost, duplicated = {account(head, plan)}"
    trained = range(plan.number(head.round, 0) if head.stopped_by else plan.total_slots)
    folded = [number for number in trained if not covered(head.jobs_set_aside, number)]
    planned = sum(map(plan.batches_of, folded)), sum(map(plan.examples_of, folded))
    assert (head.batches, head.examples) == planned, f"seed {seed}: {head}"
    assert bool(head.stopped_by) == (head.round < plan.total_rounds), f"seed {seed}: {head}"
    sick = {world.names.get(world.scenario.sick)}
    assert world.scenario.is_resumed or set(world.set_aside) <= sick, f"seed {seed}: set aside {world.set_aside}"
    garbled = 2 * (world.scenario.attempts - 1) * world.work.plan.jobs_per_round if world.scenario.garbles else 0
    most = world.work.max_keys + garbled  # the updates of attempts that failed, in two chunks, go with their round
    assert world.losses or peak <= most, f"seed {seed}: {peak} keys in the store, {most} expected"
    if plan.validation is not None and head.scores is not None and head.best is not None:
        seen = {head.scores.figures.examples, head.best.figures.examples}
        assert seen == {plan.validation.examples}, f"seed {seed}: a validation has {seen} examples"
    best = [] if head.best is None else keys_of(head.best.model)
    assert world.losses or set(best) <= set(world.store.now), f"seed {seed}: the best model is gone from the store"


def fold(aggregator: Any, model: Any, updates: list[Any], depth: int, *, version: int, ends_phase: bool) -> Any:
    """Return the next model and its score, folded in a tree of this depth."""
    *groups, _ = aggregation_tree(len(updates), depth) if updates else [[]]
    for level in groups:
        sources, updates = updates, []
        for places in level:
            examples = [int(Result.decode(sources[place]).values["examples"]) for place in places]
            mean = aggregator.begin_group(examples=examples)
            mean.add([sources[place] for place in places])
            updates.append(mean.finish(ends_phase=False)[0])
    return aggregate(aggregator, model, updates, version=version, ends_phase=ends_phase)


def serial(
    work: Work, router: str = "iterative-reduce", depth: int = 1, aside: tuple[tuple[int, int], ...] = ()
) -> tuple[Head, Any, Any]:
    """Return the last head, the last and the best model of a run without a store, a clock or a second process.

    The numbers ``aside`` are left out, as ``Head.jobs_set_aside``.
    """
    plan, aggregator = work.plan, work.aggregator(router)
    strategy = create_router(router, jobs_per_round=plan.jobs_per_round)
    model, best = work.first_model(), None
    head = Head(run="run", version=0, round=0, model=Manifest("", 0, 0), jobs_set_aside=aside)
    states: dict[int, bytes] = {}
    while head.round < plan.total_rounds and not head.stopped_by:
        round_, figures, score = head.round, None, head.score
        numbered = [(slot, plan.number(round_, slot)) for slot in range(plan.slots(round_))]
        slots = [plan.slot(round_, slot) for slot, number in numbered if not covered(aside, number)]
        done = [work.perform(slot, round_, model, work.load(slot), strategy, states.get(slot.slot)) for slot in slots]
        updates = [each.update if isinstance(each, protocol.Performed) else each for each in done]
        left = zip(slots, done, strict=True)
        states |= {slot.slot: each.state for slot, each in left if isinstance(each, protocol.Performed)}
        if plan.is_validation(round_):
            aggregation = ValidationAggregation()
            aggregation.add(updates)
            figures = aggregation.figures()
        else:
            ends = plan.ends_phase(round_, round_ + 1)
            model, score = fold(aggregator, model, updates, depth, version=round_, ends_phase=ends)
            states = {} if ends else states
        new = advance(head, plan, [plan.number(round_, slot.slot) for slot in slots], score=score)
        before, head = head, work.scoring.closed(plan, head, new, figures)
        best = model if head.best != before.best else best
    return head, model, best


def simulate(
    work: Work,
    count: int,
    first: int,
    router: str = "iterative-reduce",
    scenario: Scenario = HOSTILE,
    kind: type[World] | None = None,
) -> list[World]:
    """Run ``count`` schedules, half of them with losses; synchronous ones must end in the serial run's parameters."""
    known: dict[Any, tuple[Head, Any, Any]] = {}
    worlds = []
    for seed in range(first, first + count):
        world = run(work, seed, losses=seed % 2 == 1, router=router, scenario=scenario, kind=kind)
        worlds.append(world)
        if world.router.binds_model and world.result is not None:
            depth = getattr(world.router, "aggregation_depth", 1)
            like = depth, world.result[0].jobs_set_aside
            known[like] = known.get(like) or serial(work, router, *like)
            check_same(world, seed, *known[like])
    return worlds


def check_same(world: World, seed: int, head: Head, model: Any, best: Any) -> None:
    """Raise ``AssertionError`` unless a schedule has ended like the serial run."""
    assert world.result is not None
    found, frame = world.result
    assert bytes(frame) == bytes(model), f"seed {seed}: parameters differ from the serial run's"
    assert (found.round, found.scores, found.stopped_by) == (head.round, head.scores, head.stopped_by), f"seed {seed}"
    if head.best is not None:
        assert head.best.is_same(found.best), f"seed {seed}: best {found.best}"
        assert world.kept_best is not None and world.kept_best[1] == bytes(best), f"seed {seed}: another best model"


if __name__ == "__main__":
    from tests.scaleout.protocol.test_protocol import WORKS

    logging.disable(logging.WARNING)  # of what the schedules lose
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    schedules, first_seed = (int(a) for a in (arguments + ["400", "1"][len(arguments) :])[:2])
    flags = dict(a.removeprefix("--").split("=") for a in sys.argv[1:] if a.startswith("--"))
    name, happens = flags.get("router", "iterative-reduce"), flags.get("scenario", "hostile")
    simulate(WORKS[flags.get("work", "network")](), schedules, first_seed, name, SCENARIOS[happens])
    print(
        f"{schedules} {happens} schedules from seed {first_seed}, router {name}: each batch counted once, as expected"
    )
