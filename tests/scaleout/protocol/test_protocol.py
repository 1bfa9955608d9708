"""The run protocol under hostile schedules, with a tiny real network; and that the simulator would notice if it broke.

Set ``DL4J_SCHEDULES`` to run more schedules than the test command does (thousands by hand before a release).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import os
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import AdaGrad
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.plan import Phase
from dl4jlegacy.scaleout.protocol import closing as closing_module
from dl4jlegacy.scaleout.protocol import frames, leasing
from dl4jlegacy.scaleout.protocol import master as master_module
from dl4jlegacy.scaleout.protocol import slot_watch as watch_module
from dl4jlegacy.scaleout.protocol import worker as worker_module
from dl4jlegacy.scaleout.protocol.frames import read_frame
from dl4jlegacy.scaleout.scoring import EarlyStopping, Scoring
from dl4jlegacy.scaleout.state.job import DataSetJobIterator, Job, Result, decode_work, encode_work
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    Failure,
    Head,
    JobRecord,
    Keys,
    Manifest,
    decode_record,
    encode_record,
)
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import STRATEGIES, create_router, router_of
from dl4jlegacy.scaleout.tracker import drive
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer, perform_in_slot
from dl4jlegacy.system.clock import RunningClock
from tests.support import REPOSITORY, scenarios, simulator

SCHEDULES = int(os.environ.get("DL4J_SCHEDULES", "80"))
FEW_SCHEDULES = 24
"""So many find every mistake that ``tools/promises.yaml`` makes in the protocol, in seconds, with those of the next."""
LOST_HEADS = 77, 93
"""Schedules in which the head is lost while no master remembers it: the run goes on from its checkpoint."""
ROUTERS = ["iterative-reduce", "hogwild"]
KERNELS = load("numpy")
CONF = MultiLayerConfiguration(
    conf=NeuralNetConfiguration(seed=5, updater=AdaGrad(learning_rate=0.1)),
    layers=(RBM(n_in=3, n_out=4), OutputLayer(n_out=2, activation="softmax", drop_out=0.8)),
    pretrain=True,
)


def examples(count: int, seed: int) -> DataSet:
    random = np.random.default_rng(seed)
    labels = np.eye(2, dtype=np.float32)[random.integers(0, 2, count)]
    return DataSet(random.random((count, 3), dtype=np.float32), labels)


@functools.cache
def network_work() -> simulator.Work:
    """A deep belief network of 30 parameters with drop-out and sampling, pretrained and finetuned: 12 rounds."""
    return work_of(network_jobs())


@functools.cache
def warm_work() -> simulator.Work:
    """The same, with three rounds of two slots at the beginning of each phase."""
    return work_of(network_jobs(warm_start=0.5, warm_start_jobs=2))


def network_jobs(**more) -> DataSetJobIterator:
    random = np.random.default_rng(3)
    data = DataSet(random.random((21, 3), dtype=np.float32), np.eye(2, dtype=np.float32)[random.integers(0, 2, 21)])
    return DataSetJobIterator(
        ListDataSetIterator(data, 2, seed=5),
        jobs_per_round=4,
        phases=(Phase(kind="pretrain", layer=0, epochs=2), Phase(kind="finetune", epochs=2)),
        **more,
    )


def validated_work(scoring: Scoring, epochs: int) -> simulator.Work:
    """The same network, validated after every second round and every epoch: less pretraining, more rounds."""
    jobs = DataSetJobIterator(
        ListDataSetIterator(examples(21, 3), 2, seed=5),
        jobs_per_round=4,
        phases=(Phase(kind="pretrain", layer=0), Phase(kind="finetune", epochs=epochs)),
        validation=ListDataSetIterator(examples(9, 4), 2, shuffle=False),
        validate_every=2,
    )
    return dataclasses.replace(work_of(jobs), scoring=scoring, max_keys=190)


def work_of(jobs: DataSetJobIterator) -> simulator.Work:
    network = MultiLayerNetwork(CONF, kernels=KERNELS)
    performers = {
        kind: MultiLayerNetworkPerformer(MultiLayerNetwork(CONF, kernels=KERNELS), seed=5, update_kind=kind)
        for kind in ("params", "delta")
    }

    def first():
        network.init()
        return first_model(network).encode()

    known: dict[tuple, bytes | protocol.Performed] = {}

    def perform(slot, version, model, data, router, state=None):
        """Train; synchronous results are pure functions of slot, model and state, so each is worked out once."""
        key = (slot, router.name, bytes(model), bytes(state or b""))
        if router.binds_model and key in known:
            return known[key]
        performer, used = performers[router.update_kind], router_of(router, jobs.plan, slot.round)
        begins, left = Result.decode(model), None if state is None else Result.decode(state)
        job = Job(slot, jobs.plan.work_of(slot.round), decode_work(data), "w", version)
        frames = [bytes(r.encode()) for r in perform_in_slot(performer, used, job, begins, left, KERNELS)]
        done = frames[0] if used.memory is None else protocol.Performed(*frames)
        if router.binds_model:
            known[key] = done
        return done

    def aggregator(name):
        return create_router(name, jobs_per_round=jobs.plan.jobs_per_round).fold(KERNELS)

    return simulator.Work(
        plan=jobs.plan,
        first_model=first,
        load=lambda slot: encode_work(jobs.work(slot)),
        perform=perform,
        aggregator=aggregator,
        chunk_nbytes=300,
        max_keys=130,
    )


@functools.cache
def scored_work() -> simulator.Work:
    """A run that is validated to the end of its plan."""
    return validated_work(Scoring(metric="loss"), epochs=2)


@functools.cache
def stopping_work() -> simulator.Work:
    """A run that stops early, some validations after its best one."""
    return validated_work(Scoring(metric="loss", stopping=EarlyStopping(epochs_without_improvement=2)), epochs=20)


WORKS = {"network": network_work, "warm": warm_work, "scored": scored_work, "stopping": stopping_work}


def simulate(count: int, router: str, scenario: str = "hostile", work: str = "network") -> None:
    """Run schedules without a word of what they lose, which would be told hundreds of times."""
    logging.disable(logging.WARNING)
    try:
        simulator.simulate(WORKS[work](), count, 1, router, scenarios.SCENARIOS[scenario])
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.long
def test_every_schedule_ends_in_the_serial_runs_parameters_with_every_batch_counted_once():
    simulate(max(SCHEDULES, *LOST_HEADS), "iterative-reduce")


@pytest.mark.long
def test_asynchronous_schedules_count_every_batch_once():
    simulate(max(1, SCHEDULES // 4), "hogwild")


REPLAY = """
import logging
from tests.scaleout.protocol.test_protocol import network_work
from tests.support import simulator
logging.disable(logging.WARNING)
for seed in (3, 19, 43, 51):
    world = simulator.run(network_work(), seed, losses=True, router="gradient-sharing")
    print(seed, world.time, world.store.operations, world.replayed, world.rng.random())
"""


def test_a_schedule_is_replayed_exactly_by_another_process():
    """Sets are iterated in an order of each process's own: what the protocol does must not depend on one."""
    environments = [{**os.environ, "PYTHONHASHSEED": str(seed)} for seed in range(2)]
    command = [sys.executable, "-c", REPLAY]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=REPOSITORY, text=True) for env in environments
    ]
    said = [process.communicate(timeout=600)[0] for process in processes]
    assert len(said[0].splitlines()) == 4 and set(said) == {said[0]}


CHAINS = [f"{name}{simulator.ASYNCHRONOUS}" for name in ("easgd", "gradient-sharing")]
OTHERS = [*sorted(STRATEGIES.keys() - set(ROUTERS)), *CHAINS]


@pytest.mark.parametrize("router", OTHERS)
@pytest.mark.everyday(1)
def test_a_few_schedules_of_the_other_strategies_count_every_batch_once(router):
    simulator.simulate(network_work(), 4, first=1, router=router)


@pytest.mark.parametrize("router", ["iterative-reduce", "hogwild", "gradient-sharing", *CHAINS])
@pytest.mark.everyday(1)
def test_a_few_schedules_with_a_warm_start_count_every_batch_once(router):
    """The synchronous ones end in the serial run's parameters."""
    simulator.simulate(warm_work(), 4, first=1, router=router)


@pytest.mark.long
@pytest.mark.parametrize("router", [*ROUTERS, *OTHERS])
def test_schedules_with_a_warm_start_count_every_batch_once(router):
    simulate(max(1, SCHEDULES // 8), router, scenario="short-logs", work="warm")


@pytest.mark.long
@pytest.mark.parametrize("router", OTHERS)
def test_schedules_of_the_other_strategies_count_every_batch_once(router):
    is_synchronous = router not in CHAINS and create_router(router).binds_model
    simulate(max(1, SCHEDULES // 8), router, work="stopping" if is_synchronous else "network")


@pytest.mark.long
@pytest.mark.parametrize("work", ["scored", "stopping"])
@pytest.mark.parametrize("router", [*ROUTERS, CHAINS[0]])
def test_every_schedule_with_validations_has_the_serial_runs_best_model_and_end(router, work):
    simulate(max(1, SCHEDULES // 8), router, work=work)


@pytest.mark.parametrize("work", ["scored", "stopping"])
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_a_few_schedules_with_validations_have_the_serial_runs_best_model_and_end(router, work):
    simulator.simulate(WORKS[work](), 4, first=1, router=router)


def test_the_run_that_stops_early_stops_behind_its_best_model():
    """Or these schedules would prove nothing about what becomes of it."""
    head, _, best = simulator.serial(stopping_work())
    assert head.stopped_by.startswith("ScoreImprovementEpochs: loss") and best is not None
    assert head.best.round < head.round - 2 < stopping_work().plan.total_rounds - 20


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["sick-worker", "failing-run"])
@pytest.mark.parametrize("router", ROUTERS)
def test_in_every_schedule_sick_workers_and_failed_runs_change_nothing(router, scenario):
    simulate(max(1, SCHEDULES // 4), router, scenario)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_a_worker_that_fails_in_every_job_is_set_aside_and_the_run_goes_on(router):
    worlds = simulator.simulate(network_work(), 8, 1, router, scenarios.SICK_WORKER)
    assert [world.set_aside[-1].partition(".")[0] for world in worlds] == ["w2"] * len(worlds)


@pytest.mark.parametrize("router", [*ROUTERS, *OTHERS])
@pytest.mark.everyday(1)
def test_a_worker_whose_updates_do_not_fit_is_set_aside_and_the_run_goes_on(router):
    """Without rounds a schedule may be over before any one master has seen enough of it."""
    worlds = simulator.simulate(network_work(), 3, 2, router, scenarios.GARBLING_WORKER)
    aside = [name.partition(".")[0] for world in worlds for name in world.set_aside[-1:]]
    assert set(aside) == {"w2"} and len(aside) >= (3 if worlds[0].router.binds_model else 2)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_run_that_has_failed_is_resumed_where_it_was(router):
    worlds = simulator.simulate(network_work(), 3, 1, router, scenarios.FAILING_RUN)
    assert sum(world.resumed for world in worlds) > 0


def test_what_made_a_run_fail_counts_no_more_when_it_is_resumed():
    store, plan, router = MemoryStore(), network_work().plan, create_router("iterative-reduce")
    failures = tuple(Failure("DL4J-JOB", "no room", worker) for worker in ("a-0", "b-0", "c-0"))
    head = Head(run="r", version=0, round=0, model=Manifest("m", 1, 1), status="failed", failure=failures[-1])
    keys = [Keys.job(*plan.at(number)) for number in (0, 1)]
    for key, state in zip(keys, ("failed", "done"), strict=True):
        job = JobRecord(state=state, model="m", token=3, worker="c-0", failures=failures, failure=failures[-1])
        store.put(key, encode_record(job))
    store.put(HEAD, encode_record(head))
    before = store.get(keys[1])
    assert drive(protocol.reopen(store, plan, router))
    assert decode_record(store.get(HEAD), Head) == msgspec.structs.replace(head, status="running", failure=None)
    assert decode_record(store.get(keys[0]), JobRecord) == JobRecord(state="ready", model="m", token=3)
    assert store.get(keys[1]) == before
    assert not drive(protocol.reopen(store, plan, router))  # it goes on already


def test_a_sick_worker_that_uses_up_the_attempts_of_a_slot_is_noticed(monkeypatch):
    def count_all(failures, present, attempts):
        return len(failures) >= attempts

    monkeypatch.setattr(watch_module, "is_hopeless", count_all)
    with pytest.raises(AssertionError, match=r"seed \d+: ended as .*failed"):
        simulator.simulate(network_work(), 20, 1, scenario=scenarios.SICK_WORKER)


def test_a_failed_run_that_is_resumed_with_its_failures_is_noticed(monkeypatch):
    """The job that made it fail must get new attempts."""

    def keep(store, plan, router):
        yield protocol.STEP
        raw = store.get(HEAD)
        head = None if raw is None else decode_record(raw, Head)
        if head is None or head.status != "failed":
            return False
        yield protocol.STEP
        return store.replace_if_same(HEAD, raw, encode_record(msgspec.structs.replace(head, status="running")))

    monkeypatch.setattr(simulator.protocol, "reopen", keep)
    monkeypatch.setattr(simulator, "STEP_LIMIT", 20_000)
    with pytest.raises(AssertionError, match="no progress after"):
        simulator.simulate(network_work(), 4, 1, scenario=scenarios.FAILING_RUN)


@pytest.mark.long
@pytest.mark.parametrize("router", ROUTERS)
def test_no_schedule_gives_up_a_run_whose_rounds_are_long(router):
    simulate(max(1, SCHEDULES // 20), router, "long-rounds")


@pytest.mark.parametrize("router", ROUTERS)
def test_a_run_is_not_given_up_while_batches_are_done_however_long_its_rounds_are(router):
    (world,) = simulator.simulate(network_work(), 1, 1, router, scenarios.LONG_ROUNDS)
    assert max(after - before for before, after in itertools.pairwise(world.versions)) > world.scenario.patience


def test_a_run_that_is_given_up_because_no_round_has_ended_is_noticed(monkeypatch):
    monkeypatch.setattr(watch_module, "_note_progress", lambda me, slots, number, record: None)
    with pytest.raises(AssertionError, match="seed 1: given up after"):
        simulator.run(network_work(), 1, losses=False, scenario=scenarios.LONG_ROUNDS)


def test_a_few_schedules_end_in_the_serial_runs_parameters():
    simulator.simulate(network_work(), FEW_SCHEDULES, first=1)
    worlds = [world for seed in LOST_HEADS for world in simulator.simulate(network_work(), 1, first=seed)]
    assert all(world.restored for world in worlds), "LOST_HEADS are other ones now"


def test_a_schedule_replays_exactly():
    first, second = (simulator.run(network_work(), 11, losses=True) for _ in range(2))
    assert (first.time, first.born, bytes(first.result[1])) == (second.time, second.born, bytes(second.result[1]))


def test_schedules_are_hostile():
    """Kills, freezes, losses and two masters must really happen, or the simulation proves nothing."""
    worlds = [simulator.run(network_work(), seed, losses=True) for seed in range(1, 25)]
    assert sum(world.born for world in worlds) > 24 * 8
    assert sum(world.result[0].updates_dropped for world in worlds) > 6


@pytest.fixture(params=[(-1500.0,), (1500.0,), (-86400.0, 1500.0, 86400.0)], ids=["back", "forward", "both ways"])
def set_clocks(request, monkeypatch):
    """All machines' wall clocks are set every other step, and live workers are never taken for gone."""
    monkeypatch.setattr(simulator, "STEPS", 0.5)
    monkeypatch.setattr(simulator, "STEP_SECONDS", request.param)
    monkeypatch.setattr(simulator, "TAKEN_FOR_GONE", 0.0)
    return request.param


@pytest.mark.everyday(1)
def test_wall_clocks_that_are_set_again_and_again_change_nothing(set_clocks, monkeypatch):
    schedules = ((2, "iterative-reduce"), (3, "iterative-reduce"), (2, "hogwild"))

    def run():
        worlds = [simulator.run(network_work(), seed, losses=seed % 2 == 1, router=name) for seed, name in schedules]
        return [(world.time, world.born, bytes(world.result[1])) for world in worlds]

    stepped = run()
    monkeypatch.setattr(simulator, "STEPS", 0.0)
    assert stepped == run()


# --- mutations: each breaks one rule of the protocol, and the simulator must notice ---


def notices(work=None, schedules=60):
    with pytest.raises(AssertionError, match="seed"):
        simulator.simulate(work or network_work(), schedules, first=1)


def test_aggregation_in_arrival_order_is_noticed(monkeypatch):
    fold = watch_module._fold

    def in_any_order(me, slots, ready, *, announced):
        arrived = sorted(ready, key=lambda number: slots.records[number].seconds)
        return (yield from fold(me, slots, arrived, announced=announced))

    monkeypatch.setattr(watch_module, "_fold", in_any_order)
    notices()


@pytest.mark.long
def test_expired_leases_that_are_not_issued_again_are_noticed(monkeypatch):
    monkeypatch.setattr(watch_module, "_is_late", lambda *arguments: False)
    notices()


@pytest.mark.parametrize("set_clocks", [(-1500.0,)], indirect=True)
def test_leases_that_are_measured_by_the_wall_clock_are_noticed(set_clocks, monkeypatch):
    class WallClock:
        def now(self):
            return time.time()

    monkeypatch.setattr(simulator.World, "clock", lambda self: WallClock())
    monkeypatch.setattr(simulator, "STEP_LIMIT", 12_000)
    with pytest.raises(AssertionError, match="seed 2: no progress"):
        simulator.run(network_work(), 2, losses=False)


def test_a_head_computed_from_another_than_the_one_compared_is_noticed(monkeypatch):
    advance = closing_module.advance

    def from_the_newest(head, plan, numbers, **changes):
        return advance(newest(head), plan, numbers, **changes)

    def newest(head):
        raw = worlds[-1].store.now.get("head")
        return head if raw is None else decode_record(raw, Head)

    def compare_with_the_newest(self, key, expected, value):
        return replace(self, key, self.now.get(key, b"") if key == "head" else expected, value)

    worlds: list[simulator.World] = []
    replace, init = simulator.SimulatedStore.replace_if_same, simulator.World.__init__

    def remember(self, *args):
        init(self, *args)
        worlds.append(self)

    monkeypatch.setattr(simulator.World, "__init__", remember)
    monkeypatch.setattr(simulator.SimulatedStore, "replace_if_same", compare_with_the_newest)
    monkeypatch.setattr(closing_module, "advance", from_the_newest)
    notices()


def test_a_worker_that_keeps_an_old_model_is_noticed():
    work = network_work()
    kept: list[bytes] = []

    def perform(slot, version, model, data, router, state=None):
        kept.append(bytes(model))
        return work.perform(slot, version, kept[max(0, len(kept) - 3)], data, router)

    notices(simulator.Work(**{**vars_of(work), "perform": perform}), schedules=3)


def test_keys_that_are_never_deleted_are_noticed(monkeypatch):
    def nothing(store, head):
        yield protocol.STEP

    monkeypatch.setattr(master_module, "sweep", nothing)
    notices()


def test_an_update_that_is_folded_twice_is_noticed(monkeypatch):
    fold = watch_module._fold

    def again(me, slots, ready, *, announced):
        folded = yield from fold(me, slots, ready, announced=announced)
        if folded and announced and len(slots.folded) > 1:
            frames = yield from watch_module.read_frames(me.store, [slots.records[slots.folded[0]].update])
            if frames[0] is not None:
                slots.aggregation._added -= 1
                slots.aggregation.add(frames)
        return folded

    monkeypatch.setattr(watch_module, "_fold", again)
    notices()


@pytest.fixture(params=["model/"])
def forgetful(monkeypatch, request):
    """A store that loses chunks of models, and processes that are never killed: nobody reads anything just because."""

    def lose(self, rng):
        chunks = sorted(key for key in self.now if key.startswith(request.param))
        if chunks:
            del self.now[rng.choice(chunks)]

    monkeypatch.setattr(simulator.SimulatedStore, "lose", lose)
    monkeypatch.setattr(simulator, "KILLS", 0.0)
    monkeypatch.setattr(simulator, "RESTARTS", 0.0)


def test_a_model_that_is_lost_while_its_round_is_worked_on_is_written_again(forgetful):
    simulator.simulate(network_work(), 40, first=1)


@pytest.mark.parametrize("forgetful", ["state/"], indirect=True)
@pytest.mark.parametrize("router", ["gradient-sharing", CHAINS[0]])
@pytest.mark.everyday(1)
def test_a_state_that_is_lost_sends_the_run_back_to_its_checkpoint(forgetful, router):
    simulator.simulate(network_work(), 16, first=1, router=router)


@pytest.mark.long
@pytest.mark.parametrize("forgetful", ["snapshot/"], indirect=True)
@pytest.mark.parametrize("router", ["gradient-sharing", CHAINS[0]])
def test_a_snapshot_that_is_lost_sends_the_run_back_to_its_checkpoint(forgetful, router):
    simulator.simulate(network_work(), 16, first=1, router=router)


def test_an_update_without_its_state_is_made_anew(monkeypatch):
    answer = simulator.World.answer

    def forget(self, name, event):
        done = answer(self, name, event)
        return done.update if isinstance(done, protocol.Performed) and self.rng.random() < 0.2 else done

    monkeypatch.setattr(simulator.World, "answer", forget)
    simulator.simulate(network_work(), 4, first=1, router="gradient-sharing")


@pytest.mark.long
def test_a_lost_model_that_nobody_looks_after_is_noticed(forgetful, monkeypatch):
    def nothing(me, claim, head, lost=""):
        yield from leasing.give_back(me, claim.number, claim.record)

    monkeypatch.setattr(worker_module, "_cannot_read", nothing)
    notices()


def test_a_best_model_that_is_deleted_like_any_other_is_noticed(monkeypatch):
    is_useless = Keys.is_useless

    def forget(key, head):
        return is_useless(key, msgspec.structs.replace(head, best=None))

    monkeypatch.setattr(Keys, "is_useless", staticmethod(forget))
    monkeypatch.setattr(simulator, "STEP_LIMIT", 20_000)
    notices(stopping_work(), schedules=12)


def test_a_decision_that_counts_in_a_process_is_noticed(monkeypatch):
    """The evaluations without improvement must be counted in the head."""
    counted = itertools.count(1)
    scored = Scoring._scored

    def count_here(self, plan, before, after, score, figures):
        after = scored(self, plan, before, after, score, figures)
        if after.scores.without_improvement:
            scores = msgspec.structs.replace(after.scores, without_improvement=next(counted))
            return msgspec.structs.replace(after, scores=scores)
        return after

    work = stopping_work()
    expected = simulator.serial(work)
    monkeypatch.setattr(Scoring, "_scored", count_here)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(1, 13):
            world = simulator.run(work, seed, losses=seed % 2 == 1)
            simulator.check_same(world, seed, *expected)


def test_randomness_seeded_by_the_worker_is_noticed():
    work = network_work()
    counter = iter(range(10**9))

    def perform(slot, version, model, data, router, state=None):
        moved = slot._replace(slot=next(counter))
        performer = MultiLayerNetworkPerformer(MultiLayerNetwork(CONF, kernels=KERNELS), seed=5)
        performer.update(Result.decode(model))
        return performer.perform(Job(moved, work.plan.phases[slot.phase], decode_work(data))).encode()

    notices(simulator.Work(**{**vars_of(work), "perform": perform}), schedules=3)


def vars_of(work):
    return {name: getattr(work, name) for name in work.__dataclass_fields__}


def test_a_slot_whose_update_was_lost_is_taken_again_by_the_only_worker_although_it_saw_it_done(monkeypatch):
    monkeypatch.setattr(frames, "SMALL_NBYTES", 0)  # what is in its record cannot be lost alone
    work, store, clock = network_work(), MemoryStore(), RunningClock()
    start = protocol.RunStart("run", work.first_model, lambda: None)
    router = create_router("iterative-reduce")
    master = protocol.master_steps(
        protocol.Master(
            "m", store, clock, work.plan, router, aggregator=work.aggregator("iterative-reduce"), start=start
        )
    )
    more = next(event for event in master if isinstance(event, protocol.MoreWork))
    drive(protocol.issue_jobs(store, work.plan, more, binds_model=True, load=work.load, put_ahead={}))
    worker = protocol.worker_steps(
        protocol.Worker("w", store, clock, work.plan, router, aggregator=work.aggregator(router.name))
    )
    answer, done = None, 0
    while not isinstance(event := worker.send(answer), protocol.Wait):
        answer = None
        if isinstance(event, protocol.Perform):
            answer, done = work.perform(event.plan, event.version, event.model, event.data, router), done + 1
    assert done == 4
    for key in store.keys("update/0/2/"):
        store.delete(key)
    for _ in range(100):  # the master finds that an update is gone, and makes its slot ready again
        next(master)
    assert decode_record(store.get(Keys.job(0, 2)), JobRecord).state == "ready"
    assert decode_record(store.get(HEAD), Head) == more.head
    events = (next(worker) for _ in range(100))
    assert next(e.plan.slot for e in events if isinstance(e, protocol.Perform)) == 2


class SetClock:
    """A clock that a test sets."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_a_job_that_takes_too_long_is_given_to_an_idle_worker_too():
    work, store, clock, router = network_work(), MemoryStore(), SetClock(), create_router("iterative-reduce")
    limits, reissued, put_ahead = protocol.Limits(lease=1000.0, poll=1.0), [], {}
    start = protocol.RunStart("run", work.first_model, lambda: None)
    me = protocol.Master(
        "m",
        store,
        clock,
        work.plan,
        router,
        aggregator=work.aggregator("iterative-reduce"),
        start=start,
        limits=limits,
        on_reissued=lambda slot, worker, why: reissued.append((slot, worker, why)),
    )
    master = protocol.master_steps(me)
    aggregator = work.aggregator("iterative-reduce")
    slow_worker = protocol.Worker("slow", store, clock, work.plan, router, aggregator=aggregator, limits=limits)
    slow, fast = (
        protocol.worker_steps(worker)
        for worker in (
            slow_worker,
            protocol.Worker("fast", store, clock, work.plan, router, aggregator=aggregator, limits=limits),
        )
    )

    def lead():
        while not isinstance(event := next(master), protocol.Wait):
            if isinstance(event, protocol.MoreWork):
                drive(
                    protocol.issue_jobs(store, work.plan, event, binds_model=True, load=work.load, put_ahead=put_ahead)
                )

    def perform(event):
        return work.perform(event.plan, event.version, event.model, event.data, router)

    def work_until_idle(worker, answer=None):
        while not isinstance(event := worker.send(answer), protocol.Wait):
            answer = perform(event) if isinstance(event, protocol.Perform) else None
            clock.seconds += isinstance(event, protocol.Perform)

    def run_to(round_):
        for _ in range(20):
            clock.seconds += limits.poll
            lead()
            if decode_record(store.get(HEAD), Head).round == round_:
                return
            work_until_idle(fast)
        pytest.fail(f"round {round_} was not reached")

    run_to(2)  # eight jobs of one second each
    lead()
    held = next(event for event in slow if isinstance(event, protocol.Perform))
    work_until_idle(fast)
    lead()
    clock.seconds += 10.0
    assert drive(protocol.extend_lease(slow_worker, held.plan, held.record))  # it is alive, only slow
    lead()
    assert reissued == [(held.plan[:2], "slow", "slow")]
    run_to(3)
    slow.send(perform(held))
    work_until_idle(slow)
    assert int(bytes(store.get(protocol.DROPPED))) == 1


@pytest.mark.parametrize(("model", "state", "told"), [("", "ready", 7), ("", "leased", 0), ("older", "ready", 0)])
def test_progress_is_told_in_a_record_that_was_written_anew(model, state, told):
    work, store, lease = network_work(), MemoryStore(), JobRecord(state="leased", model="", token=3, worker="w")
    worker = protocol.Worker(
        "w", store, RunningClock(), work.plan, create_router("hogwild"), aggregator=work.aggregator("hogwild")
    )
    store.put(Keys.job(0, 1), encode_record(JobRecord(state=state, model=model, token=0)))  # the store was emptied
    assert not drive(protocol.extend_lease(worker, work.plan.slot(0, 1), lease, progress=7))
    assert decode_record(store.get(Keys.job(0, 1)), JobRecord).progress == told


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("status", ["running", "stopped"])
def test_a_master_names_a_head_that_went_back_and_puts_its_own_in_its_place(router, status, caplog):
    work, store = network_work(), MemoryStore()
    start = protocol.RunStart("run", work.first_model, lambda: None)
    me = protocol.Master(
        "m", store, RunningClock(), work.plan, create_router(router), aggregator=work.aggregator(router), start=start
    )
    steps = protocol.master_steps(me)
    while me.known is None:
        next(steps)
    older, model = me.known
    newer = msgspec.structs.replace(older, version=older.version + 3, batches=7)
    me.known = newer, model
    store.put(HEAD, encode_record(msgspec.structs.replace(older, status=status)))
    if status == "stopped":  # whoever stops the run, in whatever part of the grid, is heard
        with pytest.raises(StopIteration):
            [next(steps) for _ in range(1000)]
        assert decode_record(store.get(HEAD), Head).status == "stopped" and not caplog.text
        return
    for _ in range(1000):
        next(steps)
    head = decode_record(store.get(HEAD), Head)
    assert (head.version, head.batches, head.status) == (newer.version, 7, "running")
    assert bytes(drive(read_frame(store, head.model))) == bytes(model)
    assert "went back from version 3 to 0" in caplog.text


def test_a_master_whose_run_was_cleared_up_while_it_stood_still_does_not_begin_it_again():
    """It knows the newest model, and finds no head: the grid has lost it, or somebody has ended the run."""
    work, store, may = network_work(), MemoryStore(), [True]

    def may_begin():
        yield protocol.STEP
        if may[0] is None:
            raise TrackerError("it has ended while this master stood still")
        return may[0]

    start = protocol.RunStart("run", work.first_model, lambda: None, may_begin=may_begin)
    router, clock = create_router("iterative-reduce"), RunningClock()
    aggregator = work.aggregator("iterative-reduce")
    me = protocol.Master("m", store, clock, work.plan, router, aggregator=aggregator, start=start)
    steps = protocol.master_steps(me)
    while me.known is None:
        next(steps)
    for answer in (False, True, None):
        store.delete(HEAD)
        may[0] = answer
        if answer is None:
            with pytest.raises(TrackerError, match="while this master stood still"):
                [next(steps) for _ in range(100)]
        else:
            [next(steps) for _ in range(100)]
        assert (store.get(HEAD) is not None) == (answer is True)


class Rollbacks(simulator.SimulatedStore):
    """A store that falls back, whole, to what it was some writes ago: the part of a grid that had been cut off."""

    def __init__(self, chunk_nbytes):
        super().__init__(chunk_nbytes)
        self.older = []

    def _write(self, key, value):
        super()._write(key, value)
        self.older = [*self.older[-50:], dict(self.now)]

    def lose(self, rng):
        if self.older:
            self.now = dict(rng.choice(self.older))


@pytest.mark.parametrize("router", [*ROUTERS, CHAINS[0], pytest.param("gradient-sharing", marks=pytest.mark.long)])
def test_a_grid_that_falls_back_to_an_older_state_changes_nothing(router, monkeypatch):
    monkeypatch.setattr(simulator, "SimulatedStore", Rollbacks)
    simulator.simulate(network_work(), 4, first=1, router=router)
