"""Several runs of one name under a seeded scheduler: in one grid, under two ids of one Zookeeper, one after another and
at the same time. Masters and workers run the project's own step functions; they are killed, frozen past the end of
their session, resumed by others, and wake up during the next run.

    python -m tests.support.several_runs [schedules] [first seed] [--router=NAME]

Every run that ends must end in exactly its own updates, each folded once, and a run that is under way must be
registered. What is modelled of Zookeeper: one leader for each id until its session expires, one Conf for each id.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.state.aggregate import CollectingAggregator
from dl4jlegacy.scaleout.state.job import CollectionJobIterator, Result
from dl4jlegacy.scaleout.state.records import HEAD, Head, decode_record, keyspace
from dl4jlegacy.scaleout.state.untrusted import UntrustedKeys
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.system.clock import Clock, RunningClock
from tests.support.simulator import Machines, SimulatedStore

NAME, IDS, RUNS = "run", ("a", "b"), 2
ROLES = tuple(f"{role}{id}" for id in IDS for role in ("m0", "m1", "w0", "w1"))
"""Two masters and two workers of each id, each on a machine of its own."""
LEASE, SESSION = 60.0, 60.0
LIMITS = protocol.Limits(lease=LEASE, poll=8.0, attempts=1_000_000, straggler_least=LEASE / 2)
AGGREGATOR = CollectingAggregator(lambda total, value: [*total, value])
JOBS = CollectionJobIterator(list(range(9)), jobs_per_round=3)
KILLS, FREEZES = 0.004, 0.004


class RefusedError(Exception):
    """A command ends with an error; nothing that it did counts."""


class Keyspace:
    """The part of one store that belongs to one keyspace."""

    checksums = False
    chunk_nbytes = 1 << 20

    def __init__(self, store: SimulatedStore, space: str) -> None:
        self._store, self._prefix = store, f"{space}:"
        self.foreign = UntrustedKeys()

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Return an operation on a key, which is moved into the keyspace."""
        perform = getattr(self._store, operation)
        return lambda key, *values: perform(self._prefix + key, *values)

    def keys(self, prefix: str) -> list[str]:
        return [key.removeprefix(self._prefix) for key in self._store.keys(self._prefix + prefix)]

    def publish(self, topic: str) -> None:
        """Hints are lost."""

    def destroy(self) -> None:
        self._store.operations += 1
        for key in [key for key in self._store.now if key.startswith(self._prefix)]:
            del self._store.now[key]


@dataclass(frozen=True)
class Begun:
    """What a Conf says of its run."""

    incarnation: str
    tag: str


@dataclass
class Design:
    """What tells runs apart; each can be left out, to see that it is missed."""

    keyspaces: bool = True
    names: bool = True
    fences: bool = True
    ends: bool = True
    """Whether whoever takes over a run that is done writes its model."""


@dataclass
class Zookeeper:
    """The leader of each id, and the Conf that is registered for it."""

    leader: dict[str, object] = field(default_factory=dict)
    conf: dict[str, Begun] = field(default_factory=dict)


class Process:
    """A command that somebody started: its steps, until when it is frozen."""

    def __init__(self, steps: Iterator[Any]) -> None:
        self.steps, self.asleep = steps, 0.0
        self.leads: tuple[str, object] | None = None


class World:
    """One grid and one Zookeeper with the commands that use them."""

    def __init__(self, router: str, seed: int, design: Design) -> None:
        self.random, self.design, self.seed = random.Random(seed), design, seed
        self.store, self.zookeeper, self.router = (
            SimulatedStore(1 << 20),
            Zookeeper(),
            create_router(router, jobs_per_round=JOBS.plan.jobs_per_round),
        )
        self.time, self.born, self.ended = 0.0, 0, dict.fromkeys(IDS, 0)
        self.written: dict[str, list[str]] = {}
        """The model of each incarnation, as written at its end."""
        self.written_again = 0
        self.under_way: dict[str, tuple[object, Begun]] = {}
        self.processes: dict[str, Process] = {}
        self.machines = Machines(list(ROLES), seed)

    def clock(self) -> Clock:
        """Return the clock of a process, such as it has from its tracker; here it is read now and then only."""
        return RunningClock(gap_seconds=math.inf)

    def event(self, event: protocol.Event, clock: Clock) -> protocol.Event:
        """Return an event of a process as it is in the time of all."""
        return protocol.Wait(self.time + event.until - clock.now()) if isinstance(event, protocol.Wait) else event

    def space(self, begun: Begun) -> Keyspace:
        return Keyspace(self.store, keyspace(NAME, begun.incarnation if self.design.keyspaces else ""))

    def fence(self, id: str, me: object) -> None:
        if self.design.fences and self.zookeeper.leader.get(id) is not me:
            raise RefusedError("not the master")

    # -- the commands -------------------------------------------------------------------------------------------------

    def lead(self, role: str, id: str) -> Iterator[Any]:
        """Be the master of an id: of the run that is registered there and has none, or of a new one."""
        me, zookeeper = object(), self.zookeeper
        self.born += 1
        number = self.born
        while zookeeper.leader.get(id) is not None:
            yield protocol.Wait(self.time + LIMITS.poll)
        zookeeper.leader[id] = me
        self.processes[role].leads = (id, me)
        begun = zookeeper.conf.get(id)
        if begun is None:
            begun = Begun(f"{number}", f"{id}{number}")
            yield from self.claim(id, begun)
        elif self.design.names:
            mine = self.record(id, begun)
            names, is_over = Keyspace(self.store, protocol.NAMES), self.is_over(id, [])
            if not (yield from protocol.keep_name(names, NAME, mine, is_over)):
                raise RefusedError("another run has got its name")
        yield from self.register(id, me, begun)
        self.under_way[id] = (me, begun)
        head = yield from self.head(begun)
        if self.design.ends or head is None or head.status == "running":
            model = yield from self.train(role, id, me, begun)
            yield from self.write(begun, model)
        if self.under_way.get(id, ("",))[0] is me:
            del self.under_way[id]
        yield from self.clear_up(id, me, begun)
        assert begun.incarnation in self.written, f"seed {self.seed}: run {begun.tag} is over and has no model"
        self.ended[id] += 1
        if zookeeper.leader.get(id) is me:
            del zookeeper.leader[id]

    def record(self, id: str, begun: Begun) -> protocol.RunRecord:
        return protocol.RunRecord(incarnation=begun.incarnation, id=id)

    def claim(self, id: str, begun: Begun) -> Iterator[Any]:
        names = Keyspace(self.store, protocol.NAMES)

        if not self.design.names:
            head = yield from self.head(begun)
            if head is not None and head.status == "running":
                raise RefusedError("there is a run of this name")
            yield None
            self.space(begun).destroy()
            return
        mine = self.record(id, begun)
        over: list[Begun] = []
        if (yield from protocol.claim_name(names, NAME, mine, self.is_over(id, over))) != mine:
            raise RefusedError("there is a run of this name")
        for run in over:
            yield None
            self.space(run).destroy()

    def is_over(self, id: str, over: list[Begun]) -> Callable[[protocol.RunRecord], protocol.Steps[bool]]:
        """Return what the leader of ``id`` asks of the record of a run that has the name."""

        def is_over(record: protocol.RunRecord) -> protocol.Steps[bool]:
            head = yield from self.head(Begun(record.incarnation, ""))
            there = self.zookeeper.conf.get(record.id)
            is_registered = there is not None and there.incarnation == record.incarnation
            if head is not None and (head.status == "running" or is_registered):
                return False
            if head is not None:
                over.append(Begun(record.incarnation, ""))
            return head is not None or record.id == id or self.zookeeper.leader.get(record.id) is None

        return is_over

    def head(self, begun: Begun) -> protocol.Steps[Head | None]:
        yield None
        raw = self.space(begun).get(HEAD)
        return None if raw is None else decode_record(raw, Head)

    def register(self, id: str, me: object, begun: Begun) -> Iterator[Any]:
        yield None
        self.fence(id, me)
        self.zookeeper.conf[id] = begun

    def train(self, role: str, id: str, me: object, begun: Begun) -> Generator[Any, Any, list[str]]:
        """Lead a run until it is done; return its model."""
        model: list[str] = []
        first = Result({"value": []}).encode()

        def restore() -> None:
            """A master that was frozen makes sure that the run is not over before it begins it again."""
            self.fence(id, me)

        clock = self.clock()
        master = protocol.Master(
            f"{role}.{self.born}.{self.random.random()}",
            self.space(begun),
            clock,
            JOBS.plan,
            self.router,
            aggregator=AGGREGATOR,
            start=protocol.RunStart(NAME, lambda: first, restore),
            limits=LIMITS,
        )
        for event in protocol.master_steps(master):
            if isinstance(event, protocol.MoreWork):
                yield from protocol.issue_jobs(
                    master.store, JOBS.plan, event, binds_model=self.router.binds_model, load=None, put_ahead={}
                )
            elif isinstance(event, protocol.NewModel) and event.last:
                model = Result.decode(event.frame).values["value"]
                self.check(begun, model)
            else:
                yield self.event(event, clock)
        return model

    def write(self, begun: Begun, model: list[str]) -> Iterator[Any]:
        """Evaluate a model, which takes a while, and write it, in one step."""
        for _ in range(self.random.randrange(20)):
            yield None
        self.written_again += begun.incarnation in self.written
        there = self.written.setdefault(begun.incarnation, model)
        assert there == model, f"seed {self.seed}: run {begun.tag} ended in {there} and in {model}"

    def clear_up(self, id: str, me: object, begun: Begun) -> Iterator[Any]:
        yield None
        self.fence(id, me)
        if not self.design.fences or self.zookeeper.conf.get(id) == begun:
            self.zookeeper.conf.pop(id, None)
        if self.design.names:
            yield from protocol.release_name(Keyspace(self.store, protocol.NAMES), NAME, begun.incarnation)
        yield None
        self.space(begun).destroy()

    def work(self, role: str, id: str) -> Iterator[Any]:
        """Work for whichever run is registered, and go over to the next one."""
        while True:
            begun = self.zookeeper.conf.get(id)
            yield None if begun else protocol.Wait(self.time + LIMITS.poll)
            if begun is None:
                continue
            self.born += 1
            name, clock = f"{role}.{self.born}", self.clock()
            worker = protocol.Worker(
                name, self.space(begun), clock, JOBS.plan, self.router, aggregator=AGGREGATOR, limits=LIMITS
            )
            steps, answer = protocol.worker_steps(worker), None
            while self.zookeeper.conf.get(id) == begun:
                try:
                    event = steps.send(answer)
                except StopIteration:
                    break
                answer = None
                yield self.event(event, clock)
                if isinstance(event, protocol.Perform):
                    for _ in range(self.random.randrange(4)):
                        yield None
                    number = JOBS.plan.number(event.plan.round, event.plan.slot)
                    answer = Result({"value": f"{begun.tag}/{number}", "examples": 1, "score": 0.0}).encode()
            yield None

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self, begun: Begun, folded: list[str]) -> None:
        expected = [f"{begun.tag}/{number}" for number in range(JOBS.plan.total_slots)]
        assert sorted(folded) == sorted(expected), f"seed {self.seed}: run {begun.tag} ended in {folded}"

    def check_registered(self) -> None:
        for id, (me, begun) in self.under_way.items():
            if self.zookeeper.leader.get(id) is me:
                there = self.zookeeper.conf.get(id)
                assert there == begun, f"seed {self.seed}: run {begun.tag} is under way, and {there} is registered"


def run(router: str, seed: int, design: Design | None = None, *, step_limit: int = 300_000) -> World:
    """Run one schedule until each id has had its runs; raises AssertionError naming the seed."""
    world = World(router, seed, design or Design())
    commands: dict[str, Callable[[str], Iterator[Any]]] = {}
    for role in ROLES:
        does = world.lead if role.startswith("m") else world.work
        commands[role] = lambda role, does=does: does(role, role[-1])
        world.processes[role] = Process(commands[role](role))
    steps = 0
    with world.machines.shown():
        while min(world.ended.values()) < RUNS:
            steps += 1
            world.time += 1.0
            assert steps < step_limit, f"seed {seed}: no progress after {steps} steps; {world.ended}"
            _step(world, commands, world.random.choice(ROLES))
            world.check_registered()
    return world


def _step(world: World, commands: dict[str, Callable[[str], Iterator[Any]]], role: str) -> None:
    """Let one process take a step, unless it is killed or frozen; sessions of processes that are gone expire."""
    world.machines.tick(world.time, role)
    process, dice = world.processes[role], world.random.random()
    if dice < KILLS:
        _expire(world, process)
        world.processes[role] = Process(commands[role](role))
        return
    if dice < KILLS + FREEZES:
        process.asleep = world.time + world.random.randrange(40 * int(SESSION))
        if process.asleep > world.time + SESSION:
            _expire(world, process)
    if process.asleep > world.time:
        return
    try:
        event = next(process.steps)
        if isinstance(event, protocol.Wait):
            process.asleep = min(event.until, world.time + 3 * LIMITS.poll)
    except (StopIteration, RefusedError):
        _expire(world, process)
        world.processes[role] = Process(commands[role](role))


def _expire(world: World, process: Process) -> None:
    """End a process's session: it does not lead any more, whatever it believes."""
    id, me = process.leads or ("", None)
    if me is not None and world.zookeeper.leader.get(id) is me:
        del world.zookeeper.leader[id]


def simulate(router: str, count: int, first: int = 1, design: Design | None = None) -> list[World]:
    """Run ``count`` schedules; return their worlds."""
    return [run(router, seed, design) for seed in range(first, first + count)]


if __name__ == "__main__":
    given = [a for a in sys.argv[1:] if not a.startswith("--")]
    schedules, first_seed = (int(a) for a in (given + ["400", "1"][len(given) :])[:2])
    names = [word.removeprefix("--router=") for word in sys.argv if word.startswith("--router=")]
    name = names[-1] if names else "iterative-reduce"
    simulate(name, schedules, first_seed)
    print(f"{schedules} schedules from seed {first_seed}, router {name}: every run ended in its own updates")
