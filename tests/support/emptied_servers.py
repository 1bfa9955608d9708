"""The grid, Zookeeper, or both are emptied under a run, at any step: the project's own step functions of a master,
standbys and workers, over a simulated grid and a simulated Zookeeper with its sessions, its election and its outages.

    python -m tests.support.emptied_servers [schedules] [first seed] [--router=NAME]

Every schedule must end in the parameters of a serial run (synchronous routers) with each batch counted once, unless all
that held the run is gone: the servers are empty, nobody lives who knows its model, and there is no checkpoint. Nobody
may take an empty server for the end of the run, or begin it again once it has ended; no standby may begin it anew
that somebody else may have, no master leave with more than whoever has replaced it; and nobody may wait for ever.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.state.records import HEAD, Head, Manifest, decode_record
from tests.support import simulator
from tests.support.scenarios import HOSTILE
from tests.support.simulator import CHECKPOINT_EVERY, MASTERS, WORKERS, SimulatedStore, Work, World

INCARNATION, RUN = "1f", "run"
ROLES = (*MASTERS, "m2", *WORKERS)
SCENARIO = dataclasses.replace(HOSTILE, hostility=0.5)
SESSION, PATIENCE, LOOK = 60.0, 3000.0, 25
"""Seconds of a session with Zookeeper, and of a standby's patience; so many steps between two looks of a monitor."""
EMPTIED, OUTAGE = 0.002, 120
"""How likely servers are emptied at a step, and for how long Zookeeper is away then at most."""
STEP_LIMIT = 60_000
Which = Literal["grid", "zookeeper", "both"]


@dataclass
class SimulatedZookeeper:
    """One run's Conf, the records of ends, and the candidates for its master, the first of whom leads."""

    conf: bool = False
    ends: dict[str, protocol.End] = field(default_factory=dict)
    candidates: dict[int, SimulatedRegister] = field(default_factory=dict)
    number: int = 0
    away_until: float = 0.0

    def leader(self) -> int | None:
        return min(self.candidates, default=None)

    def expire(self, now: float) -> None:
        """End the sessions of processes that have not been heard of."""
        heard = self.candidates.items()
        self.candidates = {number: each for number, each in heard if each.heard + SESSION >= now}

    def remove(self, who: SimulatedRegister) -> None:
        self.candidates = {number: each for number, each in self.candidates.items() if each is not who}


class SimulatedRegister:
    """What a process asks Zookeeper; see ``protocol.Register``. It knows that it leads until its lease is over."""

    def __init__(self, world: EmptiedWorld, process: str, *, is_standby: bool) -> None:
        self._world, self._zookeeper, self.process, self.is_standby = world, world.zookeeper, process, is_standby
        self._led: tuple[int, float] | None = None
        self._stands_from = 0.0
        self.heard = world.time
        """When Zookeeper last heard of this process."""

    def keep(self) -> None:
        """Stand for election, if this process does not; and look whether it leads. What its election's thread does."""
        world, zookeeper = self._world, self._zookeeper
        if world.time < zookeeper.away_until:
            return
        self.heard = world.time
        mine = [number for number, each in zookeeper.candidates.items() if each is self]
        if not mine and world.time >= self._stands_from and world.rng.random() < 0.5:
            zookeeper.number += 1
            zookeeper.candidates[zookeeper.number] = self
            mine = [zookeeper.number]
        leads = bool(mine) and zookeeper.leader() == mine[0]
        self._led = (mine[0], world.time) if leads else None

    def fence(self) -> str | None:
        if self._led is None or self._world.time > self._led[1] + SESSION:
            return None
        return str(self._led[0])

    def _answers(self) -> bool:
        return self._world.time >= self._zookeeper.away_until

    def stands(self, fence: str) -> bool:
        return not self._answers() or int(fence) in self._zookeeper.candidates

    def holder(self) -> protocol.Holder | None:
        leader = self._zookeeper.leader()
        if not self._answers() or leader is None:
            return None
        process = self._zookeeper.candidates[leader]
        return protocol.Holder(process.process, RUN, process.process, process.is_standby)

    def registered(self) -> protocol.Registered:
        if not self._answers():
            return protocol.Registered("unknown")
        return protocol.Registered("this", RUN) if self._zookeeper.conf else protocol.Registered("nothing")

    def restore(self, fence: str) -> None:
        if self._answers() and int(fence) in self._zookeeper.candidates:
            self._zookeeper.conf = True

    def remove_conf(self) -> bool:
        """Remove the Conf, as ``restore`` writes it; return whether it is gone, or left to another leader."""
        fence, holder = self.fence(), self.holder()
        if self._answers() and fence is not None and int(fence) in self._zookeeper.candidates:
            self._zookeeper.conf = False
        return not self._zookeeper.conf or (holder is not None and holder.process != self.process)

    def end(self) -> protocol.End | Literal["unknown"] | None:
        return self._zookeeper.ends.get(INCARNATION) if self._answers() else "unknown"

    def write_end(self, status: protocol.End) -> bool:
        fence = self.fence()
        if fence is None or not self._answers():
            holder = self.holder()
            return holder is None or holder.process == self.process
        if int(fence) not in self._zookeeper.candidates:
            return False
        self._zookeeper.ends[INCARNATION] = status
        return True

    def withdraw_end(self) -> None:
        self._zookeeper.ends.pop(INCARNATION, None)

    def step_back(self, seconds: float) -> None:
        self._zookeeper.remove(self)
        self._led, self._stands_from = None, self._world.time + seconds


class KeptEnd:
    """The end in the folder of checkpoints, if the run has one."""

    def __init__(self, world: EmptiedWorld) -> None:
        self._world = world

    def read(self) -> protocol.End | None:
        return self._world.kept_end

    def write(self, status: protocol.End) -> None:
        self._world.kept_end = status if self._world.has_folder else None

    def remove(self) -> None:
        self._world.kept_end = None


@dataclass
class Process:
    """A process of a role: its threads, until when each sleeps, and until when all of it is frozen."""

    name: str
    threads: list[Iterator[float]] = field(default_factory=list)
    asleep: list[float] = field(default_factory=list)
    frozen: float = 0.0
    register: SimulatedRegister | None = None
    master: protocol.Master | None = None
    is_doubtful: bool = False
    """Whether it was frozen, and has not made sure since that it is the master."""

    def freeze(self, until: float) -> None:
        self.frozen, self.is_doubtful = max(until, self.frozen), True

    def begin(self, *threads: Iterator[float]) -> None:
        self.threads, self.asleep = list(threads), [0.0] * len(threads)


class EmptiedWorld(World):
    """A world in which a master must be elected, and its servers are emptied."""

    def __init__(self, work: Work, router: str, seed: int) -> None:
        super().__init__(work, router, seed, losses=True, scenario=SCENARIO)
        self.names_store = SimulatedStore(work.chunk_nbytes)
        self.zookeeper = SimulatedZookeeper()
        self.has_folder, self.checkpoint_every = seed % 3 != 0, CHECKPOINT_EVERY * (1 + seed % 2)
        self.kept_end: protocol.End | None = None
        self.machines = simulator.Machines(ROLES, seed)
        self.emptied: list[Which] = []
        self.left_to_empty = 1 + seed // 3 % 4
        self.processes: dict[str, Process] = {}
        self.ended = self.is_lost = False
        self.gave_up = self.took_over = self.handed_over = 0

    # -- the servers --------------------------------------------------------------------------------------------------

    def empty(self, which: Which) -> None:
        self.emptied.append(which)
        if which != "zookeeper":
            for store in (self.store, self.names_store):
                store.now.clear()
                store.before.clear()
        if which != "grid":
            zookeeper = self.zookeeper
            zookeeper.conf, zookeeper.ends, zookeeper.candidates = False, {}, {}
            zookeeper.away_until = self.time + self.rng.randrange(OUTAGE)

    def maybe_empty(self) -> None:
        """Empty servers a few times in a schedule, and often at its very end."""
        raw = self.store.now.get(HEAD)
        is_end = raw is not None and decode_record(raw, Head).status == "done"
        if self.ended and not self.has_folder:
            return  # then nobody could know that it has ended
        if self.left_to_empty and self.rng.random() < (20 * EMPTIED if is_end else EMPTIED):
            self.left_to_empty -= 1
            self.empty(self.rng.choice(("grid", "zookeeper", "both", "both")))
            for process in self.processes.values():  # what empties servers may cut a master off from them
                if process.master is not None and self.rng.random() < 0.5:
                    process.freeze(self.time + self.rng.randrange(3, 9) * SESSION)

    def save(self, event: protocol.NewModel, checkpoints: protocol.DueCheckpoints) -> bool:
        if self.has_folder:
            return super().save(event, checkpoints)
        self.versions.append(self.time)
        return False

    def save_last(self, event: protocol.NewModel, checkpoints: protocol.DueCheckpoints) -> bool:
        is_saved = self.save(event, checkpoints)
        if event.last:
            here = (event.head, event.frame)
            before = self.result or here
            assert bytes(before[1]) == bytes(here[1]) or not self.router.binds_model, f"seed {self.seed}: two models"
            self.result = here
            if event.head.best is not None and event.best is not None:
                self.kept_best = event.head.best, bytes(event.best)
        return is_saved

    # -- processes ----------------------------------------------------------------------------------------------------

    def place(self, process: Process) -> protocol.RunPlace:
        register, names = process.register, self.names_store
        assert register is not None
        mine = protocol.RunRecord(incarnation=INCARNATION, id="master")

        def is_over(record: protocol.RunRecord) -> protocol.Steps[bool]:
            yield from ()
            return False

        return protocol.RunPlace(
            RUN, INCARNATION, self.store, names, register, KeptEnd(self),
            lambda: protocol.keep_name(names, RUN, mine, is_over), "the servers",
        )  # fmt: skip

    def new_process(self, role: str, *, is_first: bool = False) -> None:
        self.born += 1
        process = Process(f"{role}.{self.born}")
        if role in WORKERS:
            self.gone += [self.names[role]] if role in self.names else []
        self.names[role] = process.name
        self.processes[role] = process
        process.register = SimulatedRegister(self, process.name, is_standby=not is_first)
        if role in WORKERS:
            process.begin(self.worker(process.name), self.watches(process))
        else:
            process.begin(self.leads(process, takes_over=False) if is_first else self.stands_by(process))

    def stands_by(self, process: Process) -> Iterator[float]:
        """Wait for a run that is registered, and then behind its master; lead it, or leave."""
        place, clock = self.place(process), self.clock()
        register = process.register
        assert register is not None
        began = self.time
        while register.registered().kind != "this":  # as who starts a standby finds no Conf
            if self.ended or self.time > began + 10 * SESSION:
                return
            yield simulator.POLL
        waiting = protocol.StandBy(
            place, clock, PATIENCE, 3 * SESSION, lambda: self.has_folder and self.checkpoint is not None
        )
        steps, emptied = protocol.outlive_master(waiting), [0]
        while True:
            emptied = [*emptied[-4:], len(self.emptied)]
            try:
                event = next(steps)
            except StopIteration as stop:
                found: protocol.TakeOver = stop.value
                break
            except TrackerError:
                assert self.checkpoint is None, f"seed {self.seed}: a standby gave up a run that has a checkpoint"
                self.gave_up += 1
                return
            yield self.after(event, clock)
        if found.what == "lead":
            has_model = HEAD in self.store.now or self.checkpoint is not None or emptied[0] != len(self.emptied)
            is_new = protocol.OFFICE in self.store.now and waiting.seen is None
            assert has_model or is_new, f"seed {self.seed}: {process.name} begins anew, which may be elsewhere"
            self.took_over += 1
            yield from self.leads(process, takes_over=True)
            return
        assert self.ended, f"seed {self.seed}: {process.name} takes the run for {found}, and nobody has ended it"
        if found.what == "clear up":
            yield from self.clears_up(process, found.end)

    def leads(self, process: Process, *, takes_over: bool) -> Iterator[float]:
        """Register the run and lead it, with a monitor beside, until it is done; then end it and clear it up."""
        register = process.register
        assert register is not None
        while (fence := register.fence()) is None:
            if takes_over:
                return  # it lost its office before it had it
            yield simulator.POLL
        yield 0.0
        if takes_over:
            register.restore(fence)
            yield 0.0
        self.store.put(protocol.OFFICE, f'"{process.name}"'.encode())
        yield 0.0
        if not takes_over:
            register.restore(fence)
        process.begin(self.masters(process), self.monitors(process))
        yield 0.0

    def masters(self, process: Process) -> Iterator[float]:
        place, clock, work = self.place(process), self.clock(), self.work
        start = protocol.RunStart(
            RUN, work.first_model, self.restore, self.best_model, lambda head: self.states,
            (), lambda: protocol.may_begin(place), lambda: protocol.may_hand_over(place),
        )  # fmt: skip
        process.master = me = protocol.Master(
            process.name,
            self.store,
            clock,
            work.plan,
            self.router,
            aggregator=work.aggregator(self.router.name),
            start=start,
            limits=self.limits,
            is_gone=self.is_gone,
            present=self.present,
            scoring=work.scoring,
        )
        put_ahead: dict[int, Manifest] = {}
        checkpoints = protocol.DueCheckpoints(self.checkpoint_every)
        try:
            for event in protocol.master_steps(me):
                if process.is_doubtful:
                    yield from self.makes_sure(process)
                if isinstance(event, protocol.MoreWork):
                    binds = self.router.binds_model
                    steps = protocol.issue_jobs(
                        self.store, work.plan, event, binds_model=binds, load=work.load, put_ahead=put_ahead
                    )
                    for _ in steps:
                        yield 0.0
                elif isinstance(event, protocol.NewModel):
                    self.save_last(event, checkpoints)
                else:
                    yield self.after(event, clock)
            for _ in range(self.rng.randrange(40)):  # evaluates the model and writes it
                yield 0.0
            yield from self.clears_up(process, "done")
        except TrackerError as exc:
            yield from self.leaves(process, exc)

    def makes_sure(self, process: Process) -> Iterator[float]:
        """Make sure, once it was frozen, that it is the master still, as its monitor does."""
        place = self.place(process)
        while process.is_doubtful:
            steps = protocol.may_begin(place)
            try:
                while True:
                    next(steps)
                    yield 0.0
            except StopIteration as stop:
                process.is_doubtful = not stop.value and HEAD not in self.store.now
            if process.is_doubtful:
                yield simulator.POLL

    def monitors(self, process: Process) -> Iterator[float]:
        """Put back what is lost, as a master's monitor does."""
        place = self.place(process)
        try:
            while True:
                for steps in (protocol.check_master(place), protocol.put_back(place)):
                    for _ in steps:
                        yield 0.0
                yield float(LOOK)
        except TrackerError as exc:
            process.begin(self.leaves(process, exc))

    def leaves(self, process: Process, reason: TrackerError) -> Iterator[float]:
        """Leave the run to others, and hand what this process knows to whoever has gone on from less."""
        me, process.master = process.master, None
        process.begin(*process.threads[:1])
        if me is not None:
            yield from self.hands_over(process, me)
        yield from self.takes_back(process)

    def hands_over(self, process: Process, me: protocol.Master) -> Iterator[float]:
        steps, before, emptied = protocol.hand_over(me), self.is_behind(process, me), len(self.emptied)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                self.handed_over += stop.value
                break
            yield 0.0
        lost = before and self.is_behind(process, me) and len(self.emptied) == emptied
        assert not lost, f"seed {self.seed}: {process.name} leaves with version {me.known}, which nobody else has"

    def is_behind(self, process: Process, me: protocol.Master) -> bool:
        """Return whether a standby leads the run from less than this master knows, and could go on from that."""
        raw, leader = self.store.now.get(HEAD), self.zookeeper.leader()
        if me.known is None or leader is None or self.ended or self.time < self.zookeeper.away_until:
            return False
        known, holder = me.known[0], self.zookeeper.candidates[leader]
        in_office = self.store.now.get(protocol.OFFICE) == f'"{holder.process}"'.encode() and self.zookeeper.conf
        is_whole = not known.logged and known.snapshot is None and (known.best is None or me.best_of(known) is not None)
        there = None if raw is None else decode_record(raw, Head)
        is_less = there is None or (there.status == "running" and there.version < known.version)
        return in_office and holder.is_standby and holder.process != process.name and is_whole and is_less

    def takes_back(self, process: Process) -> Iterator[float]:
        """Remove what was written after the run had ended."""
        steps = protocol.is_left_behind(self.place(process))
        while True:
            try:
                next(steps)
                yield 0.0
            except StopIteration as stop:
                if stop.value:
                    yield 0.0
                    self.store.now.clear()
                return

    def clears_up(self, process: Process, end: protocol.End) -> Iterator[float]:
        place, register = self.place(process), process.register
        assert register is not None
        try:
            for _ in protocol.check_master(place):
                yield 0.0
            for _ in protocol.end_run(place, end):
                self.ended = self.ended or register.end() == end or self.kept_end == end
                yield 0.0
        except TrackerError as exc:
            yield from self.leaves(process, exc)
            return
        self.ended = True
        process.master = None
        process.begin(*process.threads[:1])  # no monitor any more
        yield 0.0
        while not register.remove_conf():
            yield simulator.POLL
        for _ in protocol.release_name(self.names_store, RUN, INCARNATION):
            yield 0.0
        yield 0.0
        self.store.operations += 1
        self.store.now.clear()

    def watches(self, process: Process) -> Iterator[float]:
        """Look whether the run has ended, as a worker does beside its work; then all of the process ends."""
        place = self.place(process)
        while True:
            yield float(LOOK)
            raw = self.store.get(HEAD)
            steps = protocol.is_over(place, None if raw is None else decode_record(raw, Head))
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    if stop.value:
                        assert self.ended, f"seed {self.seed}: {process.name} leaves a run that nobody has ended"
                        process.begin(self.takes_back(process))
                        yield 0.0
                        return
                    break
                yield 0.0

    # -- the schedule -------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        alive = [each.name for each in self.processes.values() if each.threads]
        return f"emptied {self.emptied}, ended {self.ended}, Conf {self.zookeeper.conf}, alive {alive}"

    def is_gone_for_good(self) -> bool:
        """Return whether all that held the run is gone."""
        holders = [each for each in self.processes.values() if each.master is not None and each.master.known]
        begun = bool(self.versions) or (self.zookeeper.conf and protocol.OFFICE not in self.store.now)
        return begun and not holders and self.checkpoint is None and HEAD not in self.store.now


def run(work: Work, seed: int, router: str) -> EmptiedWorld:
    """Run one schedule to its end and return the world; raises AssertionError naming the seed."""
    world = EmptiedWorld(work, router, seed)
    with simulator.as_seeded(world):
        for role in ROLES:
            world.new_process(role, is_first=role == MASTERS[0])
        for _ in range(STEP_LIMIT):
            if not _step(world):
                break
        else:
            raise AssertionError(f"seed {seed}: no end after {STEP_LIMIT} steps; {world}")
    _check(world)
    return world


def _step(world: EmptiedWorld) -> bool:
    """Let one process take a step; return whether there is anything left to do."""
    rng = world.rng
    world.time += 1.0
    role = rng.choice(ROLES)
    world.machines.tick(world.time, role)
    process, dice, hostility = world.processes[role], rng.random(), world.scenario.hostility
    world.maybe_empty()
    if world.ended and not any(each.threads for each in world.processes.values()):
        return False
    if not world.ended and dice < simulator.KILLS * hostility and process.threads:
        _kill(world, role)
        return True
    if simulator.KILLS <= dice < simulator.KILLS + simulator.FREEZES * hostility and process.threads:
        process.freeze(world.time + rng.randrange(20 * int(SESSION)))
    world.zookeeper.expire(world.time)
    if process.frozen > world.time:
        return True
    if not process.threads:
        return _start_again(world, role)
    if role not in WORKERS and process.register is not None:
        process.register.keep()
    _advance(world, process, rng)
    return True


def _kill(world: EmptiedWorld, role: str) -> None:
    process = world.processes[role]
    process.threads.clear()
    process.master = None
    if role in WORKERS:
        world.new_process(role)


def _start_again(world: EmptiedWorld, role: str) -> bool:
    """Start a process again that was killed, or has left; return whether there is anything left to do."""
    if world.ended or world.rng.random() > 0.02:
        return True
    masters = [world.processes[each] for each in ROLES if each not in WORKERS]
    is_led = any(each.threads for each in masters)
    if role in WORKERS:
        world.new_process(role)
    elif world.is_gone_for_good():
        if not is_led:  # those who waited for it have given up
            world.is_lost = world.ended = True
            for each in world.processes.values():
                each.threads.clear()
    elif world.zookeeper.conf:
        world.new_process(role)
    elif not is_led:
        world.new_process(role, is_first=True)  # somebody resumes it from its folder
    return True


def _advance(world: EmptiedWorld, process: Process, rng: random.Random) -> None:
    number = rng.randrange(len(process.threads))
    if process.asleep[number] > world.time and rng.random() > 0.05:
        return
    thread, before = process.threads[number], world.store.operations + world.names_store.operations
    try:
        seconds = next(thread)
    except StopIteration:
        if thread in process.threads:
            process.threads.clear()  # what was beside it ends with it
        if process.register is not None and not process.threads:
            world.zookeeper.remove(process.register)
        return
    if thread in process.threads:
        process.asleep[process.threads.index(thread)] = world.time + min(seconds, 3 * simulator.POLL)
    taken = world.store.operations + world.names_store.operations - before
    assert taken <= 1, f"seed {world.seed}: {process.name} took {taken} store operations in one step"
    if world.chains is not None:
        world.chains.look()


def _check(world: EmptiedWorld) -> None:
    seed = world.seed
    if world.is_lost:
        assert not world.has_folder or not world.checkpoint, f"seed {seed}: lost with a checkpoint"
        return
    simulator.check(world, seed, 0)
    assert not world.zookeeper.conf, f"seed {seed}: a run that has ended is registered"
    assert not world.store.now, f"seed {seed}: a run that has ended is in the grid: {sorted(world.store.now)[:5]}"


def simulate(work: Work, count: int, first: int, router: str = "iterative-reduce") -> list[EmptiedWorld]:
    """Run ``count`` schedules; synchronous ones must end in the serial run's parameters."""
    known, worlds = None, []
    for seed in range(first, first + count):
        world = run(work, seed, router)
        worlds.append(world)
        if world.router.binds_model and not world.is_lost:
            known = known or simulator.serial(work, router)
            simulator.check_same(world, seed, *known)
    return worlds


if __name__ == "__main__":
    from tests.scaleout.protocol.test_protocol import WORKS

    logging.disable(logging.WARNING)
    given = [a for a in sys.argv[1:] if not a.startswith("--")]
    schedules, first_seed = (int(a) for a in (given + ["400", "1"][len(given) :])[:2])
    flags = dict(a.removeprefix("--").split("=") for a in sys.argv[1:] if a.startswith("--"))
    name = flags.get("router", "iterative-reduce")
    found = simulate(WORKS[flags.get("work", "network")](), schedules, first_seed, name)
    print(
        f"{schedules} schedules from seed {first_seed}, router {name}: {sum(len(w.emptied) for w in found)} emptied, "
        f"{sum(w.took_over for w in found)} taken over, {sum(w.handed_over for w in found)} handed over, "
        f"{sum(w.gave_up for w in found)} given up, "
        f"{sum(w.is_lost for w in found)} lost with all that held them"
    )
