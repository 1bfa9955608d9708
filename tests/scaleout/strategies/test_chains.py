"""Chains of slots without rounds: what opens when, that nothing of an update is lost on the way, and real runs."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dl4jlegacy import Conf
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.persistence.history import HistoryFile
from dl4jlegacy.scaleout.protocol import inputs
from dl4jlegacy.scaleout.protocol import slot_watch as watch
from dl4jlegacy.scaleout.protocol import worker as worker_module
from dl4jlegacy.scaleout.state.aggregate import aggregate
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    MODEL_LOST,
    Head,
    JobRecord,
    Keys,
    Manifest,
    SlotState,
    Snapshot,
    account,
    advance,
    decode_record,
    encode_record,
)
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import chains as chains_module
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.system.clock import RunningClock
from tests.scaleout.protocol.test_protocol import network_work
from tests.support import simulator
from tests.support.strategy_runs import BEGINNING, PLAN, SLOTS, Copies, bits, conf_of, interrupt, train

KERNELS = load_kernels("numpy")
NAMES = ["easgd", "gradient-sharing"]
ARGS = {"easgd": {"beta": 0.7}, "gradient-sharing": {"tau": 2e-3}}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def conf(name: str, **fields) -> Conf:
    return conf_of(name, {**ARGS[name], "asynchronous": True}, **fields)


def chains(name: str = "easgd", **args):
    return create_router(name, {"asynchronous": True, **args}, jobs_per_round=SLOTS)


# --- which jobs there are ---


def test_a_slots_next_job_opens_when_its_last_one_is_folded(name: str) -> None:
    strategy = chains(name)
    first = advance(BEGINNING, PLAN, [1])
    assert [PLAN.at(number) for number in strategy.open_slots(PLAN, first)] == [(0, 0), (0, 2), (0, 3), (1, 1)]
    second = advance(first, PLAN, [PLAN.number(1, 1)])
    assert [PLAN.at(number) for number in strategy.open_slots(PLAN, second)] == [(0, 0), (0, 2), (0, 3)]
    assert not strategy.binds_model and strategy.send_work([0, 1, 2], {2, 0}) == [0, 2]
    assert strategy.fold_ahead([0, 1, 2], {0}) == []


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_slot_is_further_ahead_than_the_bound_and_no_update_staler(name: str, bound: int) -> None:
    """Whatever the order in which jobs are begun and done, each is folded once, and the chain of a slot in order."""
    strategy, stalest = chains(name, bound=bound), 0
    for seed in range(30):
        rng, head, begun, count, newest = random.Random(seed), BEGINNING, {}, 0, {}
        while head.round < PLAN.total_rounds:
            opened = strategy.open_slots(PLAN, head)
            if PLAN.is_validation(head.round):
                head, newest = advance(head, PLAN, opened), {}
                continue
            assert len({PLAN.at(number)[1] for number in opened}) == len(opened)
            assert all(PLAN.at(number)[0] <= head.round + bound for number in opened)
            begun |= {number: count for number in opened if number not in begun and rng.random() < 0.5}
            now = strategy.send_work(opened, {number for number in opened if number in begun and rng.random() < 0.5})
            for place, number in enumerate(now):
                slot = PLAN.at(number)[1]
                assert newest.get(slot, -1) < number
                newest[slot] = number
                stalest = max(stalest, count + place - begun[number])
            count += len(now)
            head = advance(head, PLAN, now) if now else head
        assert account(head, PLAN) == (0, 0) and head.examples == PLAN.total_examples
    assert 0 < stalest <= (SLOTS - 1) * (2 * bound + 1)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"asynchronous": True, "bound": -1}, "bound is -1; it must not be negative"),
        ({"asynchronous": True, "bound": 0.5}, "Expected `int | null`, got `float` - at `\\$.bound`"),
        ({"asynchronous": "yes"}, "Expected `bool`, got `str` - at `\\$.asynchronous`"),
        ({"bound": 2}, "bound is 2, and asynchronous is false"),
        ({"asynchron": True}, "'asynchron'; did you mean 'asynchronous'"),
    ],
)
def test_options_that_mean_nothing_are_refused(name: str, args: dict, words: str) -> None:
    with pytest.raises(ConfError, match=f"Conf.router_args of {name}.*{words}"):
        create_router(name, args)


def test_asynchronous_states_are_saved_with_every_job() -> None:
    with pytest.raises(ConfError, match="state_every is 7, and asynchronous is true"):
        chains("gradient-sharing", state_every=7)
    assert chains("gradient-sharing", state_every=1).log_every == 0
    assert create_router("gradient-sharing", {"state_every": 7}).log_every == 7


# --- the arithmetic ---


@pytest.mark.parametrize(("average", "added"), [(False, 0.5), (True, 0.5 / SLOTS)])
def test_a_message_is_added_whole_or_divided_by_the_slots(average: bool, added: float) -> None:
    strategy = chains("gradient-sharing", threshold="fixed", tau=0.5, average=average)
    model = Result({}, {"params": np.zeros(2, np.float32), "updater_state": np.zeros(1, np.float32)})
    done = Result({"examples": 1}, {"delta": np.float32([0.6, 0.1]), "updater_state": np.zeros(1, np.float32)})
    update = bytes(strategy.memory.settle(model, None, done, KERNELS)[0].encode())
    for count in (1, 2):
        frame, _ = aggregate(strategy.fold(KERNELS), model.encode(), [update] * count, version=0, ends_phase=False)
        assert Result.decode(frame).arrays["params"].tolist() == [count * added, 0]


# --- the protocol ---


def watched(name: str, begins: str, states: dict[int, SlotState]) -> tuple[JobRecord | None, int]:
    """What a master makes of the done job of slot 1 in round 1, which began with the state of that key; its slot."""
    work, router = network_work(), chains(name)
    number = work.plan.number(1, 1)
    snapshot = Manifest("snapshot/5/m", 1, 1)
    head = Head(run="r", version=5, round=1, model=Manifest("model/5/m", 1, 1), snapshot=snapshot, keeps=1)
    me = protocol.Master(
        "m",
        MemoryStore(),
        RunningClock(),
        work.plan,
        router,
        aggregator=work.aggregator(name),
        start=protocol.RunStart("r", work.first_model, lambda: None),
        snapshot=(snapshot.key, Snapshot(states)),
    )
    update, saved = Manifest("update/1/1/w.1", 1, 1), Manifest("state/1/1/w.1", 1, 1)
    done = JobRecord(state="done", model="", token=1, worker="w", update=update, saved=saved, begins=begins)
    slots = watch.OpenSlots(head, b"", b"", router.open_slots(work.plan, head))
    return watch._reissued(me, slots, number, done, encode_record(done)), number


def test_a_job_counts_only_if_it_went_on_with_what_the_last_folded_one_of_its_slot_has_left(name: str) -> None:
    """A head that the store has lost may have had another one in front of it."""
    left = {1: SlotState(1, 0, Manifest("state/0/1/w.7", 1, 1))}
    assert watched(name, "state/0/1/w.7", left)[0] is None
    for begins, states in (("state/0/1/w.3", left), ("", left), ("state/0/1/w.7", {})):
        again, _ = watched(name, begins, states)
        assert again is not None and (again.state, again.update, again.saved) == ("ready", None, None)
    assert watched(name, "", {})[0] is None


def test_who_reads_a_version_too_late_gives_the_job_back_and_accuses_nobody(name: str) -> None:
    work, store, router = network_work(), MemoryStore(), chains(name)
    me = protocol.Worker(
        "w", store, RunningClock(), work.plan, router, aggregator=work.aggregator(name), head=BEGINNING
    )
    lease = JobRecord(state="leased", model="", token=1, worker="w")
    claim = inputs.Claim(0, lease, encode_record(lease), 0.0)
    for version, state in ((1, "ready"), (0, "failed")):
        store.put(Keys.job(0, 0), claim.raw)
        store.put(
            HEAD, encode_record(msgspec.structs.replace(BEGINNING, version=version, model=Manifest(str(version), 1, 1)))
        )
        head = msgspec.structs.replace(BEGINNING, model=Manifest("0", 1, 1))
        drive(worker_module._cannot_read(me, claim, head, "model of version 0"))
        found = decode_record(store.get(Keys.job(0, 0)), JobRecord)
        assert found.state == state
        assert (found.failure is not None and found.failure.code == MODEL_LOST) == (state == "failed")


ROUTERS = [f"{name}{simulator.ASYNCHRONOUS}" for name in NAMES]


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_in_a_few_schedules_nothing_of_an_update_is_lost_and_none_counts_twice(router: str) -> None:
    """Half of them with losses; see ``ChainObserver`` for what is compared after each fold."""
    worlds = simulator.simulate(network_work(), 8, 1, router)
    assert sum(world.chains.checked for world in worlds) > 200
    assert max(world.chains.stalest for world in worlds) > 3
    assert sum(world.born for world in worlds) > 8 * 8


def notices(router: str, words: str, seeds=range(1, 25)) -> None:
    with pytest.raises(AssertionError, match=words):
        for seed in seeds:
            simulator.simulate(network_work(), 1, seed, router)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_job_that_opens_before_the_last_one_of_its_slot_is_folded_is_noticed(router: str, monkeypatch) -> None:
    open_chains = chains_module.open_chains

    def two_of_each(plan, head, bound):
        opened = open_chains(plan, head, bound)
        following = [plan.number(r + 1, s) for r, s in map(plan.at, opened) if plan.goes_on_in(r) == r + 1]
        return sorted({*opened, *(n for n in following if plan.at(n)[0] == plan.at(opened[0])[0] + 1)})

    monkeypatch.setattr(chains_module, "open_chains", two_of_each)
    monkeypatch.setattr(simulator, "STEP_LIMIT", 20_000)
    notices(router, "two jobs of one slot at once|has the state of an older job")


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_a_worker_that_believes_its_own_state_the_newest_is_noticed(router: str, monkeypatch) -> None:
    def any_held(me, number, begins):
        held = me.states.get(me.plan.at(number)[1])
        return None if held is None or begins is None else held.frame

    monkeypatch.setattr(inputs, "_held", any_held)
    notices(router, "did not go on with what the last one of its slot has left")


@pytest.mark.parametrize("router", ROUTERS)
def test_a_state_that_is_committed_without_its_update_is_noticed(router: str, monkeypatch) -> None:
    """By a key of the slot's own, say, so that the last writer's is the slot's."""
    commit = worker_module._commit

    def state_first(me, done, head):
        slot, state = me.plan.at(done[0].claim.number)[1], done[0].state
        if state is not None:
            done = [done[0]._replace(state=states.get((id(me.store), slot), state))]
            states[id(me.store), slot] = state
        yield from commit(me, done, head)

    states: dict[tuple[int, int], bytes] = {}
    monkeypatch.setattr(worker_module, "_commit", state_first)
    notices(router, "nobody has left this state of job", range(2, 3))


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.everyday(1)
def test_a_slot_that_may_run_too_far_ahead_is_noticed(router: str, monkeypatch) -> None:
    open_chains = chains_module.open_chains
    monkeypatch.setattr(chains_module, "open_chains", lambda plan, head, bound: open_chains(plan, head, bound + 2))
    notices(router, "came between start and fold", range(2, 41, 2))


@pytest.mark.long
@pytest.mark.parametrize("router", ROUTERS)
def test_a_job_of_a_history_that_is_lost_is_noticed(router: str, monkeypatch) -> None:
    monkeypatch.setattr(watch, "_goes_on", lambda *arguments: True)
    notices(router, "did not go on with what the last one of its slot has left", range(1, 300, 2))


# --- real runs ---


@pytest.mark.everyday(1)
def test_every_batch_counts_once_the_model_learns_and_the_history_says_how_stale_updates_were(
    name: str, tmp_path: Path
) -> None:
    result = train(conf(name, workers=3, epochs=30, checkpoint_dir=str(tmp_path), checkpoint_every=1000))
    assert (result.head.batches, result.head.examples) == (result.plan.total_batches, result.plan.total_examples)
    assert account(result.head, result.plan) == (0, 0)
    versions = HistoryFile(LocalFolder(tmp_path)).read()
    assert 0 < max(version.staleness for version in versions) <= (SLOTS - 1) * 3
    scores = [version.score for version in versions]
    assert np.mean(scores[-20:]) < 0.7 * np.mean(scores[:20])


@pytest.fixture
def stopped(tmp_path: Path, name: str, unhurried: None):
    """The folder of a run as it was in its middle, and its Conf."""
    run, kept = tmp_path / "run", tmp_path / "kept"
    wanted = conf(name, workers=2, checkpoint_dir=str(run), checkpoint_every=2)
    train(wanted, saver=Copies(run, kept))
    return kept, wanted.replace(checkpoint_dir=str(kept))


@pytest.mark.everyday(1)
def test_a_run_that_is_resumed_with_another_number_of_workers_goes_on_with_the_states_of_its_slots(
    stopped, name: str, monkeypatch
) -> None:
    folder, wanted = stopped
    checkpoints = CheckpointStore(folder)
    states = checkpoints.states(checkpoints.newest()[0])
    began, kind, lock = {}, type(create_router(name).memory), threading.Lock()
    settle = kind.settle

    def remember(self, model, state, result, kernels):
        with lock:
            began.setdefault(threading.get_ident(), []).append(None if state is None else bytes(state.encode()))
        return settle(self, model, state, result, kernels)

    monkeypatch.setattr(kind, "settle", remember)
    result = train(wanted.replace(workers=3), resume=True)
    assert account(result.head, result.plan) == (0, 0) and result.head.examples == result.plan.total_examples
    used = {state for of_worker in began.values() for state in of_worker}
    assert states and {bytes(Result.decode(saved.frame).encode()) for saved in states.values()} <= used
    assert None not in used  # no slot has begun anew


def test_a_run_that_is_interrupted_goes_on_from_where_it_was(name: str, tmp_path: Path) -> None:
    wanted = conf(name, workers=2, checkpoint_dir=str(tmp_path), checkpoint_every=1000)
    interrupt(wanted)
    head = CheckpointStore(tmp_path).newest()[0]
    assert 6 <= head.round < 48 and CheckpointStore(tmp_path).states(head)
    result = train(wanted.replace(workers=3), resume=True)
    assert account(result.head, result.plan) == (0, 0)


class ForgetfulStore(MemoryStore):
    """Loses the frame of one state while the run is under way, once somebody has folded its job."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: list[str] = []

    def replace_if_same(self, key, expected, value) -> bool:
        done = super().replace_if_same(key, expected, value)
        if done and key == HEAD and not self.lost and decode_record(value, Head).version >= 10:
            self.lost = super().keys("state/")
            for state in self.lost:
                super().delete(state)
        return done


def test_states_that_are_lost_send_the_run_back_to_its_checkpoint(name: str, tmp_path: Path, unhurried: None) -> None:
    store = ForgetfulStore()
    wanted = conf(name, workers=2, checkpoint_dir=str(tmp_path), checkpoint_every=2)
    result = train(wanted, tracker=StateTracker(store))
    assert store.lost and account(result.head, result.plan) == (0, 0)
    assert result.head.examples == result.plan.total_examples


@pytest.mark.everyday(1)
def test_with_one_worker_and_no_room_ahead_a_run_can_be_repeated(name: str) -> None:
    """Then there is but one order: nobody else folds anything between start and fold."""
    ends = {
        bits(train(conf_of(name, {**ARGS[name], "asynchronous": True, "bound": 0}, jobs_per_round=1, workers=1)))
        for _ in range(2)
    }
    assert len(ends) == 1
