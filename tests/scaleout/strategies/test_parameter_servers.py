"""Parameter servers: workers fold slices of a round, and the bits are those of a master that folds it alone."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, CollectingAggregator, CollectionJobIterator, Conf
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.protocol import closing, inputs, parameter_servers
from dl4jlegacy.scaleout.protocol.events import Wait
from dl4jlegacy.scaleout.protocol.frames import keys_of, read_frame, write_frame, write_slices
from dl4jlegacy.scaleout.protocol.slot_watch import OpenSlots
from dl4jlegacy.scaleout.state.aggregate import aggregate, aggregation_tree
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    MODEL_LOST,
    Failure,
    FoldRecord,
    Head,
    JobRecord,
    Keys,
    Manifest,
    decode_record,
    encode_record,
)
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import STRATEGIES, create_router
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.system.clock import RunningClock
from tests.scaleout.protocol.test_protocol import SCHEDULES, network_work, simulate
from tests.support import scenarios, simulator
from tests.support.strategy_runs import Copies, bits, conf_of, data, train

ROUTERS = ["iterative-reduce", "bmuf"]
SERVERS = 3


def conf(router: str = "iterative-reduce", servers: int = SERVERS, depth: int = 1, **fields) -> Conf:
    return conf_of(router, {"parameter_servers": servers, "aggregation_depth": depth}, **fields)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("servers", [1, 2, 4])
@pytest.mark.everyday(1)
def test_the_bits_are_those_of_a_master_that_folds_alone(router: str, servers: int) -> None:
    ends = {bits(train(conf(router, servers, workers=workers))) for workers in (1, 3)}
    assert ends == {bits(train(conf_of(router)))}


@pytest.mark.long
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("workers", [2, 8])
def test_so_they_are_with_more_workers(router: str, workers: int) -> None:
    assert bits(train(conf(router, 4, workers=workers))) == bits(train(conf_of(router)))


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_of_a_tree_the_bits_depend_on_its_depth_alone(router: str) -> None:
    deep = {bits(train(conf(router, *case, workers=workers))) for case, workers in (((0, 2), 1), ((3, 2), 3))}
    assert len(deep) == 1
    assert deep != {bits(train(conf_of(router)))}


@pytest.mark.parametrize("weighted", [True, False])
def test_a_tree_comes_to_the_mean_of_all_updates(*, weighted: bool) -> None:
    """In float64 and with slots of different size, but for the rounding."""
    more = {"jobs_per_round": 7, "batch_size": 3, "weighted_average": weighted, "epochs": 1}
    flat, deep = (np.frombuffer(bits(train(conf(depth=depth, workers=2, **more))), np.float32) for depth in (1, 3))
    np.testing.assert_allclose(deep, flat, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("count", "depth"), [*itertools.product([1, 2, 3, 7, 8, 9, 64, 1000], [1, 2, 3, 10, 32])])
def test_a_tree_has_each_result_once_and_no_more_levels_than_it_may(count: int, depth: int) -> None:
    tree = aggregation_tree(count, depth)
    assert 1 <= len(tree) <= depth and len(tree[-1]) == 1
    for level, before in zip(tree, [count, *map(len, tree)], strict=False):
        assert list(itertools.chain(*level)) == list(range(before))
        assert all(len(group) ** depth < count or (len(group) - 1) ** depth < count for group in level)


class SeenStore(MemoryStore):
    """Remembers who has read what: the keys, by the names of threads."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[Head] = []

    def replace_if_same(self, key, expected, value) -> bool:
        if replaced := super().replace_if_same(key, expected, value):
            self.heads += [decode_record(value, Head)] if key == HEAD else []
        return replaced


def test_every_version_is_stored_in_slices_that_workers_have_written() -> None:
    store = SeenStore()
    train(conf(workers=2), tracker=StateTracker(store))
    versions = {head.version: head.model for head in store.heads if head.version}
    assert len(versions) == 48
    for version, model in versions.items():
        assert len(model.parts) == SERVERS and model.chunks == 0
        writers = {part.key.rpartition(".")[0] for part in model.parts}
        assert all(part.key.startswith(f"model/{version}/") for part in model.parts), model
        assert model.key.rpartition(".")[0] not in writers
    assert store.keys("fold/") == [Keys.fold(48, index) for index in range(SERVERS)]  # cleared up with the run


def test_statistics_say_how_long_slices_take() -> None:
    with ActorNetworkRunner("master", data(wanted := conf(workers=2, collect_training_stats=True))) as runner:
        runner.setup(wanted)
        runner.train(deadline=60)
    folds = [event for event in runner.stats.events if event.phase == "WorkerFold"]
    assert Counter(event.round for event in folds) == dict.fromkeys(range(48), SERVERS)
    assert {event.thread for event in folds} <= {"worker-0", "worker-1"}


def test_a_run_is_resumed_with_another_number_of_servers_and_workers(tmp_path, unhurried) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    whole = train(conf("bmuf", 2, workers=2, checkpoint_dir=str(run), checkpoint_every=4), saver=Copies(run, kept))
    again = conf("bmuf", 4, workers=3, checkpoint_dir=str(kept))
    resumed = train(again, resume=True)
    assert resumed.head.version == whole.head.version and bits(resumed) == bits(whole)


# -- under hostile schedules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_a_few_schedules_end_in_the_bits_of_a_serial_run_without_servers(router: str) -> None:
    simulator.simulate(network_work(), 8, 1, router, scenarios.PARAMETER_SERVERS)


def test_a_worker_whose_updates_fit_no_model_is_set_aside_and_the_run_goes_on() -> None:
    scenario = dataclasses.replace(scenarios.GARBLING_WORKER, servers=True)
    worlds = simulator.simulate(network_work(), 6, 1, scenario=scenario)
    assert any(world.set_aside for world in worlds)


@pytest.mark.long
@pytest.mark.parametrize("work", ["network", "stopping"])
@pytest.mark.parametrize("router", ROUTERS)
def test_schedules_end_in_the_bits_of_a_serial_run_without_servers(router: str, work: str) -> None:
    simulate(max(1, SCHEDULES // 8), router, scenario="parameter-servers", work=work)


# -- step by step ------------------------------------------------------------------------------------------------------


class Round:
    """The first round of a run, all of whose slots are done, and its master."""

    def __init__(self, servers: int = SERVERS, depth: int = 1) -> None:
        self.work, self.store, self.clock = network_work(), MemoryStore(), RunningClock()
        args = {"parameter_servers": servers, "aggregation_depth": depth}
        self.plan, self.router = self.work.plan, create_router("iterative-reduce", args)
        self.model = bytes(self.work.first_model())
        self.head = Head(run="run", version=0, round=0, model=drive(write_frame(self.store, "model/0/m.1", self.model)))
        self.store.put(HEAD, encode_record(self.head))
        self.numbers = self.router.open_slots(self.plan, self.head)
        self.updates = [self.update(number) for number in self.numbers]
        self.gone: set[str] = set()
        self.written = itertools.count(1)
        self.master = protocol.Master(
            "m",
            self.store,
            self.clock,
            self.plan,
            self.router,
            aggregator=self.aggregator(),
            start=protocol.RunStart("run", self.work.first_model, lambda: None),
            limits=protocol.Limits(attempts=2),
            is_gone=lambda worker: worker in self.gone,
            present=lambda: ["w1"],
        )
        self.slots = self.open_slots()

    def aggregator(self):
        return self.router.fold(load_kernels("numpy"))

    def update(self, number: int) -> bytes:
        slot = self.plan.slot(*self.plan.at(number))
        return bytes(self.work.perform(slot, 0, self.model, self.work.load(slot), self.router))

    def open_slots(self, writer: str = "w1.1") -> OpenSlots:
        slots = OpenSlots(self.head, self.store.get(HEAD), self.model, self.numbers, folded=list(self.numbers))
        for number, update in zip(self.numbers, self.updates, strict=True):
            key = Keys.update(*self.plan.at(number), writer)
            manifest = drive(write_slices(self.store, key, update, self.router.parameter_servers))
            record = JobRecord(state="done", model=self.head.identity, worker="w1", update=manifest)
            slots.records[number] = record
            self.store.put(Keys.job(*self.plan.at(number)), encode_record(record))
        return slots

    def folding(self) -> Iterator[object]:
        return parameter_servers.fold_by_workers(self.master, self.slots)

    def memory(self, name: str = "w1") -> inputs.WorkerMemory:
        return inputs.WorkerMemory(name, self.store, self.plan, self.router, self.aggregator())

    def serve(self, memory: inputs.WorkerMemory | None = None) -> bool:
        """Be a worker that looks for something to fold, once."""
        memory = memory or self.memory()
        server = parameter_servers.Server(
            self.clock, protocol.Limits(attempts=2), lambda: f"{memory.name}.{next(self.written)}"
        )
        return drive(parameter_servers.serve(memory, self.head, server))

    def record(self, index: int) -> FoldRecord:
        return decode_record(self.store.get(Keys.fold(1, index)), FoldRecord)

    def expected(self) -> bytes:
        return bytes(aggregate(self.aggregator(), self.model, self.updates, version=0, ends_phase=False)[0])


def to_wait(steps: Iterator[object]) -> None:
    """Let a master go on until it waits."""
    assert any(isinstance(event, Wait) for event in steps), "it ended"


def ended(steps: Iterator[object]) -> object:
    """Let a master go on to the end; return what it comes to."""
    while True:
        try:
            assert not isinstance(next(steps), Wait), "it waits"
        except StopIteration as stop:
            return stop.value


def test_slices_are_folded_from_the_models_slice_alone_and_make_the_masters_model() -> None:
    it = Round()
    folding = it.folding()
    to_wait(folding)
    memory = it.memory()
    assert [it.serve(memory) for _ in range(SERVERS + 1)] == [True] * SERVERS + [False]
    folded = ended(folding)
    whole = Manifest("model/1/m.1", 0, sum(part.nbytes for part in folded.slices), parts=folded.slices)
    assert bytes(drive(read_frame(it.store, whole))) == it.expected()
    for part in whole.parts:
        assert not Keys.is_useless(f"{part.key}/0", msgspec.structs.replace(it.head, version=9, model=whole))
        assert Keys.is_useless(f"{part.key}/0", msgspec.structs.replace(it.head, version=9))
    # the next round's slices are folded from the slices of this version, and from nothing else
    it.head = msgspec.structs.replace(it.head, version=1, round=1, model=whole, folded=((0, 4),))
    later = it.memory()
    fold = parameter_servers._Fold(Keys.fold(1, 1), SERVERS, it.record(1), b"", 0.0)
    reads: list[str] = []
    it.store.get_many = lambda keys: (reads.append(key) or MemoryStore.get(it.store, key) for key in keys)
    assert drive(parameter_servers._slice_of(later, it.head, fold)) is not None
    assert reads == keys_of(whole.parts[1])


def test_a_slice_whose_worker_is_gone_is_given_to_another_one_and_the_first_may_still_commit() -> None:
    it = Round(servers=1)
    folding = it.folding()
    to_wait(folding)
    late = parameter_servers.serve(
        it.memory("dead"), it.head, parameter_servers.Server(it.clock, protocol.Limits(), lambda: "dead.1")
    )
    while it.record(0).state != "leased":
        next(late)
    it.gone.add("dead")
    to_wait(folding)
    assert it.record(0).state == "ready"
    assert it.serve()
    for _ in late:  # it wakes up
        pass
    assert it.record(0).worker == "w1"
    assert it.store.keys("model/1/dead") == []
    assert [part.key for part in ended(folding).slices] == ["model/1/w1.1"]


def test_an_update_that_is_lost_makes_its_slot_ready_again_and_the_slices_wait_for_it() -> None:
    it = Round()
    folding = it.folding()
    to_wait(folding)
    update = it.slots.records[it.numbers[2]].update
    it.store.delete(keys_of(update.parts[1])[0])
    memory = it.memory()
    while it.serve(memory):
        pass
    assert {it.record(index).state for index in range(SERVERS)} == {"done", "failed"}
    assert ended(folding) is None
    records = [decode_record(it.store.get(Keys.job(*it.plan.at(number))), JobRecord) for number in it.numbers]
    assert [record.state for record in records] == ["done", "done", "ready", "done"]
    # the slot is done again, under other keys: every slice is folded from these
    it.slots = it.open_slots("w2.7")
    again = it.folding()
    to_wait(again)
    assert {it.record(index).state for index in range(SERVERS)} == {"ready"}
    while it.serve(memory):
        pass
    assert len(ended(again).slices) == SERVERS


def test_what_a_worker_alone_cannot_read_is_its_own_failure_and_ends_the_run_when_all_have_failed() -> None:
    it = Round(servers=1)
    folding = it.folding()
    failure = Failure(parameter_servers.UPDATE_LOST, "1 of 4 updates could not be read", "w1")
    for attempt in (1, 2):
        to_wait(folding) if attempt == 1 else None
        record = it.record(0)
        failed = msgspec.structs.replace(
            record, state="failed", failure=failure, failures=(failure,) * attempt, bad=(2,)
        )
        it.store.put(Keys.fold(1, 0), encode_record(failed))
        if attempt == 1:
            to_wait(folding)
            assert it.record(0).state == "ready"
    assert ended(folding) is None
    assert it.slots.failure == failure


def test_a_worker_that_has_failed_often_enough_leaves_a_slice_to_others() -> None:
    it = Round(servers=1)
    to_wait(it.folding())
    failures = (Failure("X", "x", "w1"),) * 2
    it.store.put(Keys.fold(1, 0), encode_record(msgspec.structs.replace(it.record(0), failures=failures)))
    assert not it.serve()
    assert it.serve(it.memory("w2"))


def test_a_lost_model_is_read_again_by_the_master() -> None:
    it = Round(servers=1)
    folding = it.folding()
    to_wait(folding)
    it.store.delete(keys_of(it.head.model)[0])
    it.serve()
    assert it.record(0).failure.code == MODEL_LOST
    assert ended(folding) is None
    assert it.master.must_reread_model


def test_a_group_that_is_lost_is_folded_again() -> None:
    it = Round(servers=1, depth=2)
    folding, memory = it.folding(), it.memory()
    to_wait(folding)
    assert [it.serve(memory) for _ in range(3)] == [True, True, False]
    to_wait(folding)  # both groups are there: the last job is put
    it.store.delete(keys_of(it.record(1).made)[0])
    assert it.serve(memory)
    assert (it.record(2).state, it.record(2).bad) == ("failed", (1,))
    assert ended(folding) is None
    assert [it.record(index).state for index in range(2)] == ["done", "ready"]
    again = it.folding()
    to_wait(again)
    assert it.serve(memory)
    to_wait(again)
    assert it.serve(memory)
    folded = ended(again)
    updates = [bytes(update) for update in it.updates]
    made = simulator.fold(it.aggregator(), it.model, updates, 2, version=0, ends_phase=False)[0]
    assert bytes(drive(read_frame(it.store, folded.slices[0]))) == bytes(made)
    assert set(keys_of(it.record(0).made)) < set(folded.keys)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("garbled", ["bytes", "another length"])
def test_an_update_that_fits_no_model_is_a_failure_of_the_worker_that_has_sent_it(garbled: str, depth: int) -> None:
    it = Round(servers=2, depth=depth)
    part = it.slots.records[it.numbers[1]].update.parts[1]
    short = Result({"examples": 1}, {"params": np.zeros(1, np.float32)}).encode()
    it.store.put(keys_of(part)[0], b"x" * part.nbytes if garbled == "bytes" else short)
    if garbled != "bytes":
        record = it.slots.records[it.numbers[1]]
        like = msgspec.structs.replace(part, nbytes=len(short))
        update = msgspec.structs.replace(record.update, parts=(record.update.parts[0], like))
        it.slots.records[it.numbers[1]] = record = msgspec.structs.replace(record, update=update)
        it.store.put(Keys.job(*it.plan.at(it.numbers[1])), encode_record(record))
    folding, memory = it.folding(), it.memory("w2")
    to_wait(folding)
    while it.serve(memory):
        pass
    records = [decode_record(it.store.get(key), FoldRecord) for key in it.store.keys("fold/")]
    failed = [record.failure.code for record in records if record.state == "failed"]
    assert failed == [parameter_servers.UPDATE_UNFIT] and len(records) == 2 * depth
    assert ended(folding) is None and it.slots.failure is None
    record = decode_record(it.store.get(Keys.job(*it.plan.at(it.numbers[1]))), JobRecord)
    assert (record.state, record.failure.worker) == ("failed", "w1")
    assert "the update of worker w1 for round 0, slot 1 was refused: " in record.failure.message


def test_a_worker_whose_updates_were_folded_is_no_suspect_any_more() -> None:
    it = Round(servers=1)
    folding, suspects = it.folding(), it.master.suspects
    failed = JobRecord(state="done", model="m", worker="w2", failures=(Failure("X", "x", "w1"),))
    suspects.refuse("w1")
    assert suspects.add(7, failed) == []
    to_wait(folding)
    assert it.serve() and ended(folding) is not None
    assert suspects.add(8, failed) == []  # it would be the second in a row
    assert suspects.add(9, failed) == ["w1"]


def test_fold_jobs_of_another_history_are_replaced_and_never_folded() -> None:
    it = Round()
    job = FoldRecord(model="model/0/other", updates=(), examples=(), place=0, makes_model=True)
    foreign = msgspec.structs.replace(job, state="done", made=Manifest("model/1/x", 1, 1))
    for index in range(SERVERS):
        it.store.put(Keys.fold(1, index), encode_record(foreign) if index else b"\xff")
    assert not it.serve()
    folding = it.folding()
    to_wait(folding)
    to_wait(folding)
    assert [it.record(index).state for index in range(SERVERS)] == ["ready"] * SERVERS
    assert [it.record(index).model for index in range(SERVERS)] == [it.head.identity] * SERVERS


def test_two_masters_may_close_a_round_with_the_same_slices_and_the_slower_one_deletes_none() -> None:
    it = Round()
    folding = it.folding()
    to_wait(folding)
    while it.serve():
        pass
    folded = ended(folding)
    it.store.put(HEAD, encode_record(msgspec.structs.replace(it.head, updates_dropped=1)))  # another one was faster
    drive(closing.close_round(it.master, it.slots, folded))
    assert all(it.store.get(key) is not None for part in folded.slices for key in keys_of(part))


# -- wrong input -------------------------------------------------------------------------------------------------------


def test_wrong_numbers_of_servers_are_refused_by_name() -> None:
    with pytest.raises(ConfError, match="parameter_servers is -1; it must not be negative"):
        create_router("iterative-reduce", {"parameter_servers": -1})
    with pytest.raises(ConfError, match="aggregation_depth is 0; it must be from 1 to 32"):
        create_router("iterative-reduce", {"aggregation_depth": 0})
    with pytest.raises(ConfError, match=r"Conf\.router_args of bmuf: Expected `int`"):
        create_router("bmuf", {"parameter_servers": 1.5})
    with pytest.raises(ConfError, match=r"parameter_servers 1000000, and the network has [0-9]+ parameters; give at"):
        train(conf(servers=10**6))
    for name in STRATEGIES.keys() - set(ROUTERS):
        with pytest.raises(ConfError, match="has 'parameter_servers'"):
            create_router(name, {"parameter_servers": 2})


def test_jobs_that_are_no_networks_are_folded_by_their_master() -> None:
    jobs = CollectionJobIterator(["a b", "b"], jobs_per_round=2)
    parts = {"aggregator": CollectingAggregator(lambda total, value: total), "first_model": Result({"value": {}})}
    wanted = Conf(router_args={"parameter_servers": 2})
    with (
        ActorNetworkRunner("master", jobs, performer=lambda conf, kernels: None, **parts) as runner,
        pytest.raises(ConfError, match="parameter_servers or aggregation_depth, and the run has an aggregator"),
    ):
        runner.setup(wanted)
