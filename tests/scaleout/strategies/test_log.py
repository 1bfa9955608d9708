"""Versions that are not stored as a whole: whoever follows the log, or does jobs again, comes to the same bits."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from dl4jlegacy import Conf
from dl4jlegacy.arrays.wire import digest
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.links.mesh import wire as mesh_wire
from dl4jlegacy.scaleout.links.mesh.configuration import VoidConfiguration
from dl4jlegacy.scaleout.links.mesh.messages import HISTORY, MessageCache
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.protocol import closing, inputs, leasing, log
from dl4jlegacy.scaleout.protocol import slot_watch as watch
from dl4jlegacy.scaleout.protocol import worker as worker_module
from dl4jlegacy.scaleout.protocol.frames import write_frame
from dl4jlegacy.scaleout.scoring import EarlyStopping, Scoring
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    Folded,
    Head,
    JobRecord,
    Keys,
    LogEntry,
    Manifest,
    advance,
    decode_record,
    encode_record,
)
from dl4jlegacy.scaleout.state.state_cache import Copied
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.strategies.gradient_sharing import CODES
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.scaleout.workers.plugins import find_router
from dl4jlegacy.system.clock import RunningClock
from tests.scaleout.protocol.test_protocol import SCHEDULES, WORKS, network_work
from tests.support import hostile_mesh, scenarios, simulator
from tests.support.hostile_copies import HostileCopies
from tests.support.strategy_runs import bits, conf_of, train

ARGS = {"tau": 2e-3}
ROUTER = create_router("gradient-sharing", jobs_per_round=4)
NOWHERE = Manifest("", 0, 0)
NOTICED = r"parameters differ from the serial run's|no progress|began with something else"
"""What a schedule says in which something was wrong."""
SHARES = {"hostile": 8, "failing-run": 16, "sick-worker": 16, "long-rounds": 20}
"""Each scenario has this part of all schedules, by how long one takes."""


def conf(every: int, **fields) -> Conf:
    return conf_of("gradient-sharing", {**ARGS, "state_every": every}, **fields)


@pytest.mark.parametrize("every", [2, 5, 64])
@pytest.mark.everyday(1)
def test_how_often_states_are_saved_changes_no_bit(every: int) -> None:
    assert bits(train(conf(every, workers=2))) == bits(train(conf(1)))


def test_a_version_that_follows_from_the_log_is_made_once_in_a_process(monkeypatch) -> None:
    made, get = Counter[str](), protocol.SharedModels.get

    def counted(self, identity: str, make):
        return get(self, identity, lambda: made.update([identity]) or make())

    monkeypatch.setattr(protocol.SharedModels, "get", counted)
    trained = bits(train(conf(64, workers=3)))
    assert made.total() < 5  # the master has made them; but for a worker that is far behind
    made.clear()
    monkeypatch.setattr(protocol.SharedModels, "put", lambda self, identity, frame: None)
    assert bits(train(conf(64, workers=3))) == trained
    assert made.total() < 1.5 * len(made) and len(made) > 40  # by one of the workers, where there is no master


def test_of_shared_models_the_newest_are_kept() -> None:
    models = protocol.SharedModels()
    for number in range(4):
        models.put(str(number), bytes([number]))
    assert models.newest_of(["0", "1", "2"]) == (3, b"\2")
    assert models.newest_of(["2", "1", "0"]) == (1, b"\2")
    assert models.newest_of(["0", "1"])[0] == 0
    assert [models.get(str(number), lambda: b"made") for number in (3, 2, 0)] == [b"\3", b"\2", b"made"]


class CountedStore(MemoryStore):
    """Counts the bytes that are written, by the first part of their keys."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = Counter[str]()

    def put(self, key, value) -> None:
        self.nbytes[key.partition("/")[0]] += len(value)
        super().put(key, value)

    def put_many(self, items) -> None:
        items = list(items)
        for key, value in items:
            self.nbytes[key.partition("/")[0]] += len(value)
        super().put_many(items)


def test_between_two_stored_versions_only_messages_travel(monkeypatch) -> None:
    # on a busy machine a job takes longer than others do, and what is done twice is written twice
    monkeypatch.setattr(watch, "straggler_seconds", lambda limits, durations: float("inf"))
    stores = {every: CountedStore() for every in (1, 64)}
    for every, store in stores.items():
        train(conf(every, workers=2), tracker=StateTracker(store))
    often, seldom = (store.nbytes for store in stores.values())
    # versions 0, 1 (until then nobody knows how long jobs are) and 48, which is the last one
    assert seldom["model"] / 3 == often["model"] / 49
    assert seldom["state"] / (2 * 4) == often["state"] / (6 * (7 * 4 + 2))
    assert seldom["update"] == often["update"] < seldom["state"] / 10


def test_jobs_whose_worker_is_gone_are_done_again_from_what_they_began_with() -> None:
    worlds = simulator.simulate(network_work(), 4, 2, "gradient-sharing")
    assert sum(world.replayed for world in worlds if world.router.state_every == 64) > 100
    assert not any(world.replayed for world in worlds if world.router.state_every == 1)


def master() -> protocol.Master:
    """One with the workers "here", and "dead", which is."""
    work = network_work()
    return protocol.Master(
        "m",
        MemoryStore(),
        RunningClock(),
        work.plan,
        ROUTER,
        aggregator=work.aggregator(ROUTER.name),
        start=protocol.RunStart("run", work.first_model, lambda: None),
        is_gone=lambda worker: worker == "dead",
        present=lambda: ["here", "dead"],
    )


def memory(**more) -> inputs.WorkerMemory:
    plan = network_work().plan
    return inputs.WorkerMemory("w1", MemoryStore(), plan, ROUTER, ROUTER.fold(load_kernels("numpy")), **more)


def test_a_job_that_comes_to_another_update_when_it_is_done_again_fails_and_says_what_differs() -> None:
    job = Folded(number=1, worker="w0", key="update/0/1/w0.1", update=b"as it was")
    claim = inputs.Claim(9, JobRecord(state="leased", model="m"), b"", 0.0)
    steps = inputs._done_again(memory(), claim, job, inputs.Earlier(3, b"model", None))
    event = next(steps)
    assert (event.plan[:2], event.job, event.version) == (
        (0, 1),
        network_work().plan.slot(*network_work().plan.at(9)),
        3,
    )
    with pytest.raises(StopIteration) as stopped:
        steps.send(protocol.Performed(b"another", b"state"))
    failure = stopped.value.value
    assert failure.code == inputs.REPLAY_DIFFERS
    for part in ("round 0, slot 1", "worker w0", "worker w1", "state_every=1"):
        assert part in failure.message


@pytest.mark.parametrize("is_over", [False, True])
def test_no_job_is_done_again_for_one_whose_round_is_over(is_over: bool) -> None:
    """As it is for who needed long to come to the model; there may be hundreds of jobs to be done again."""
    me = memory()
    head = Head(run="run", version=5, round=5, model=Manifest("model/5/m", 1, 1), logged=0)
    newer = msgspec.structs.replace(head, version=6, round=6, model=Manifest("model/6/m", 1, 1))
    me.store.put(HEAD, encode_record(newer if is_over else head))
    claim = inputs.Claim(9, JobRecord(state="leased", model=head.identity), b"", 0.0)
    found = drive(inputs._replayed(me, head, claim, None))
    assert found == (protocol.ABANDONED if is_over else inputs.Lost("what version 5 follows from"))


def test_where_devices_differ_states_are_saved_with_every_round() -> None:
    assert find_router(conf(64, mixed_devices=True)).state_every == 1
    assert find_router(conf(64)).state_every == 64
    assert find_router(conf_of("easgd", mixed_devices=True)).log_every == 0
    with pytest.raises(ConfError, match="state_every is 0; it must be at least 1"):
        find_router(conf(0))


@pytest.mark.parametrize(("seconds", "keeps"), [([], 0), ([0.1] * 3, 7), ([10.0] * 8, 2), ([1000.0], 0)])
def test_the_longer_jobs_are_the_more_often_states_are_saved(monkeypatch, seconds: list[float], keeps: int) -> None:
    """At once if nobody knows how long they are; and by the end of a phase at the latest, here after 8 rounds."""
    me, plan = master(), network_work().plan
    me.durations[False] = seconds
    head = closing.with_keeps(me, Head(run="run", version=0, round=0, model=NOWHERE))
    assert head.keeps == min(keeps, plan.unbroken(0, 64))
    validated = msgspec.structs.replace(head, round=plan.total_rounds)
    assert closing.with_keeps(me, validated) == validated


def entry_of(version: int, before: str, previous: tuple[Manifest, ...] = ()) -> bytes:
    return encode_record(LogEntry(version=version, before=before, folded=(), previous=previous))


def logged_head(count: int) -> tuple[MemoryStore, Head, list[Manifest]]:
    """A head so many versions ahead of its model, and where their entries are."""
    store, head = MemoryStore(), Head(run="run", version=5, round=5, model=Manifest("model/5/m", 1, 1))
    written, known = [], log.KnownLog(head.identity)
    for _ in range(count):
        version, previous = head.version + 1, known.following(head)
        frame = entry_of(version, head.identity, previous)
        manifest = drive(write_frame(store, Keys.entry(version, "m"), frame))
        head = msgspec.structs.replace(head, version=version, round=version, entry=manifest, logged=head.logged + 1)
        known = log.KnownLog(head.identity, previous)
        written.append(manifest)
    return store, head, written


@pytest.mark.parametrize("count", [1, 2, log.PREVIOUS + 1, log.PREVIOUS + 2, 3 * log.PREVIOUS])
def test_the_log_is_read_back_to_what_is_known_or_to_the_stored_model(count: int) -> None:
    store, head, written = logged_head(count)
    versions = [entry.version for entry in drive(log.read_log(store, head))]
    assert versions == list(range(6, 6 + count))
    for known in range(1, count):
        entries = drive(log.read_log(store, head, written[known - 1].key))
        assert [entry.version for entry in entries if entry.version > 5 + known] == list(range(6 + known, 6 + count))
        assert known < count - log.PREVIOUS or entries[0].before == written[known - 1].key
    store.delete(f"{written[0].key}/0")
    assert drive(log.read_log(store, head)) is None
    assert not drive(protocol.is_model_there(store, head))


def test_what_the_log_needs_is_not_deleted_before_a_later_model_is_stored() -> None:
    head = Head(run="run", version=20, round=20, model=Manifest("model/12/m", 1, 1), logged=8, replay_round=11)
    useless = [number for number in range(20) if Keys.is_useless(Keys.entry(number, "m.1") + "/0", head)]
    assert useless == list(range(12))
    assert [number for number in range(21) if Keys.is_useless(Keys.data(number, 0) + "/0", head)] == list(range(11))
    assert not Keys.is_useless("model/12/m/0", head)
    whole = msgspec.structs.replace(head, logged=0)
    assert [number for number in range(21) if Keys.is_useless(Keys.data(number, 0) + "/0", whole)] == list(range(19))


def test_a_head_is_taken_back_to_the_stored_model_with_the_counts_it_had_there() -> None:
    plan = network_work().plan
    heads = [Head(run="run", version=0, round=0, model=Manifest("model/0/m", 1, 1))]
    for round_ in range(3):
        numbers = [plan.number(round_, slot) for slot in range(plan.slots(round_))]
        following = advance(heads[-1], plan, numbers)
        heads.append(msgspec.structs.replace(following, entry=Manifest(f"entry/{round_ + 1}/m", 1, 1)))
    for logged in (1, 2, 3):
        head = msgspec.structs.replace(heads[-1], logged=logged)
        assert protocol.rewound(head, plan) == msgspec.structs.replace(heads[-1 - logged], entry=None)


class RecordedHeads(MemoryStore):
    """Keeps all heads that were current."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[Head] = []

    def replace_if_same(self, key, expected, value) -> bool:
        is_replaced = super().replace_if_same(key, expected, value)
        if is_replaced and key == HEAD:
            self.heads.append(decode_record(value, Head))
        return is_replaced


def test_a_round_that_may_bring_a_score_is_stored() -> None:
    """A head that is taken back to the stored version keeps its scores, so these must be those of that version."""
    store = RecordedHeads()
    stopping = EarlyStopping(epochs_without_improvement=3)
    train(conf(64, workers=2, early_stopping=stopping, epochs=3), tracker=StateTracker(store))
    stored = {head.version: head for head in store.heads if not head.logged}
    logged = [head for head in store.heads if head.logged]
    assert {head.version - head.logged for head in logged} >= {1, 8, 16}  # the first round, then the ends of epochs
    for head in logged:
        then = stored[head.version - head.logged]
        assert (head.scores, head.best) == (then.scores, then.best), head
    assert [head.scores.round for head in stored.values() if head.version in (8, 16, 24)] == [7, 15, 23]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_that_stops_between_two_stored_versions_ends_with_its_whole_model(
    tmp_path: Path, monkeypatch, workers: int
) -> None:
    monkeypatch.setattr(
        Scoring, "_reason", lambda self, plan, head, score: "MaxTime: enough" if head.round >= 5 else ""
    )
    ends = []
    for every in (1, 64):
        store, folder = RecordedHeads(), tmp_path / f"{every}"
        stopping = EarlyStopping(max_seconds=1000.0)
        result = train(
            conf(every, workers=workers, early_stopping=stopping, checkpoint_dir=str(folder)),
            tracker=StateTracker(store),
        )
        assert (result.head.round, result.head.stopped_by, result.head.logged) == (5, "MaxTime: enough", 0)
        assert [head.logged for head in store.heads if head.version == 4] == [0 if every == 1 else 3]
        head, frame = CheckpointStore(folder).newest()
        assert head.round == 5 and Result.decode(frame).arrays["params"].tobytes() == bits(result)
        ends.append(bits(result))
    assert ends[0] == ends[1]


def test_jobs_are_left_to_the_worker_that_has_the_state_for_as_long_as_doing_its_jobs_again_takes() -> None:
    clock = RunningClock()
    worker = protocol.Worker(
        "w1", MemoryStore(), clock, network_work().plan, ROUTER, aggregator=ROUTER.fold(load_kernels("numpy"))
    )

    def may_take(home: str, seconds: float) -> bool:
        record = JobRecord(state="ready", model="m", home=home, reserved=seconds)
        return leasing._may_take(worker, 0, record, {"w0": 0, "w1": 0, "": 0})

    assert may_take("w1", 1e6)
    assert may_take("", 1e6)
    assert not may_take("w0", 1e6)
    assert may_take("w0", 0.0)
    worker.seen[0] = clock.now() - 2e6
    assert may_take("w0", 1e6)


@pytest.mark.parametrize("near", [(), ("w0",)])
def test_of_several_jobs_that_are_left_to_one_worker_others_take_the_second_if_they_find_its_copies(near) -> None:
    """Or it would do the jobs of a killed worker for ever, while the one that replaces that has nothing to do."""
    work = network_work()
    head = Head(run="run", version=3, round=3, model=Manifest("m", 1, 1), logged=2)
    numbers = [work.plan.number(3, slot) for slot in range(4)]
    records = [
        JobRecord(state=state, model=head.identity, home=home, reserved=1e6)
        for state, home in (("leased", "w0"), ("ready", "w0"), ("ready", "w2"), ("ready", "w3"))
    ]
    worker = protocol.Worker(
        *("w1", MemoryStore(), RunningClock(), work.plan, ROUTER),
        aggregator=ROUTER.fold(load_kernels("numpy")),
        copies=SimpleNamespace(is_near=lambda worker: worker in near),
    )
    worker.head, order = head, [2, 3, 0, 1]
    for state in ("ready", "leased", "done"):  # whatever that one is doing, its first job is its own
        records[0] = msgspec.structs.replace(records[0], state=state)
        raws = [encode_record(records[slot]) for slot in order]
        free = leasing._free(worker, head, [numbers[slot] for slot in order], raws)
        assert [number for number, _, _ in free] == ([numbers[1]] if near else [])


@pytest.mark.parametrize(("home", "is_free"), [("here", False), ("dead", True), ("never heard of", True)])
def test_a_job_that_is_left_to_a_worker_which_is_gone_is_anybodys(home: str, is_free: bool) -> None:
    me = master()
    head = Head(run="run", version=3, round=3, model=Manifest("m", 1, 1), logged=2)
    slots = watch.OpenSlots(head, b"", b"", [12])
    record = JobRecord(state="ready", model="m", home=home, reserved=9.0)
    again = watch._reissued(me, slots, 12, record, b"")
    assert again == (msgspec.structs.replace(record, home="") if is_free else None)


def test_data_that_a_job_needs_which_is_done_again_are_written_again(monkeypatch) -> None:
    """In this schedule they are lost after their job was folded."""
    monkeypatch.setattr(simulator, "STEP_LIMIT", 60_000)
    (world,) = simulator.simulate(network_work(), 1, 5, "gradient-sharing")
    assert world.losses and world.replayed > 0


@pytest.mark.parametrize(("behind", "reason"), [(0, "slow"), (3, "slow"), (4, None), (9, None)])
def test_who_does_jobs_again_is_given_the_time_for_it(behind: int, reason: str | None) -> None:
    """Of the others' jobs each takes a second, and four make one slow."""
    me = master()
    me.durations[False] = [1.0] * 8
    now = me.clock.now()
    me.clock = SimpleNamespace(now=lambda: now + 4.5 * me.limits.straggler_factor)
    head = Head(run="run", version=3, round=3, model=Manifest("m", 1, 1), logged=2)
    record = JobRecord(state="leased", model="m", worker="here", token=1, behind=behind)
    lease = watch.Lease(1, b"", now, me.clock.now())
    assert watch._reissue_reason(me, watch.OpenSlots(head, b"", b"", [12]), lease, record) == reason


# -- entries whose updates are elsewhere ------------------------------------------------------------------------------


UPDATES = [[b"first of one", b"second of one"], [b"first of two", b"second of two"]]


class ReadStore(MemoryStore):
    """Remembers what was read, in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key):
        self.read.append(key)
        return super().get(key)


def apart(store: MemoryStore) -> tuple[Head, list[Manifest]]:
    """A head two versions ahead of its model, and where the updates of these are."""
    head, written, known = Head(run="run", version=5, round=5, model=Manifest("model/5/m", 1, 1)), [], log.KnownLog()
    for version, updates in zip((6, 7), UPDATES, strict=True):
        known = log.KnownLog(head.identity, known.previous)
        folded = [Folded(number=n, worker="w", key=f"update/{version}/{n}", update=u) for n, u in enumerate(updates)]
        entry = LogEntry(version=version, before=head.identity, folded=folded, previous=known.following(head))
        manifest, messages = drive(log.write_entry(store, Keys.entry(version, "m.1"), entry, apart=True))
        known = log.KnownLog(manifest.key, entry.previous)
        head = msgspec.structs.replace(head, version=version, round=version, entry=manifest, logged=head.logged + 1)
        written.append(messages)
    return head, written


def updates_of(entries: list[LogEntry]) -> list[list[bytes]]:
    return [[job.update for job in entry.folded] for entry in entries]


def test_updates_that_are_at_hand_are_not_read() -> None:
    store, cache = ReadStore(), MessageCache()
    head, _ = apart(store)
    for update in (*UPDATES[0], *UPDATES[1]):
        cache.add(update)
    assert updates_of(drive(log.read_log(store, head, at_hand=cache))) == UPDATES
    assert store.read == ["entry/7/m.1/0", "entry/6/m.1/0"]


@pytest.mark.parametrize("at_hand", [None, 0, 1, 3])
def test_updates_that_are_not_at_hand_are_read_in_one_frame_of_each_entry(at_hand: int | None) -> None:
    """And are at hand from then on."""
    store, cache = ReadStore(), None if at_hand is None else MessageCache()
    head, messages = apart(store)
    for update in (*UPDATES[0], *UPDATES[1])[: at_hand or 0]:
        cache.add(update)
    assert updates_of(drive(log.read_log(store, head, at_hand=cache))) == UPDATES
    lacking = messages[1:] if at_hand == 3 else messages
    assert store.read[2:] == [f"{manifest.key}/0" for manifest in lacking]
    if cache is not None:
        store.read.clear()
        assert updates_of(drive(log.read_log(store, head, at_hand=cache))) == UPDATES
        assert len(store.read) == 2


def test_what_was_lost_of_the_updates_is_known_to_be_lost() -> None:
    for spoil in (
        lambda store, key: store.delete(key),
        lambda store, key: store.put(key, encode_record(log._Updates((b"first of one", b"secund of one")))),
        lambda store, key: store.put(key, bytes(len(store.get(key)))),
    ):
        store = MemoryStore()
        head, messages = apart(store)
        spoil(store, f"{messages[0].key}/0")
        assert drive(log.read_log(store, head)) is None
        assert not drive(protocol.is_model_there(store, head))
        cache = MessageCache()
        for update in UPDATES[0]:
            cache.add(update)
        assert updates_of(drive(log.read_log(store, head, at_hand=cache))) == UPDATES  # who has them needs no other


def test_updates_are_kept_for_as_long_as_their_entry() -> None:
    key = f"{Keys.entry(12, 'm.1')}/messages/0"
    head = Head(run="run", version=20, round=20, model=Manifest("model/12/m", 1, 1), logged=8, replay_round=11)
    assert Keys.is_of_run(key) and not Keys.is_useless(key, head)
    assert Keys.is_useless(key, msgspec.structs.replace(head, logged=7))


class KeptMessages(RecordedHeads):
    """Remembers how many frames of messages there were at most when the head changed."""

    most = 0

    def replace_if_same(self, key, expected, value) -> bool:
        if key == HEAD:
            self.most = max(self.most, sum("/messages/" in kept for kept in self.keys("entry/")))
        return super().replace_if_same(key, expected, value)


def test_updates_are_deleted_as_soon_as_their_entry_is() -> None:
    """And not when the store is swept, which is every sixteen versions."""
    store = KeptMessages()
    train(conf(2, workers=2, void_configuration=VoidConfiguration()), tracker=StateTracker(store))
    assert 2 <= store.most <= 6


@pytest.mark.parametrize("mode", ["plain", "mesh"])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.everyday(1)
def test_a_run_whose_workers_push_messages_ends_in_the_same_bits(mode: str, workers: int) -> None:
    void = VoidConfiguration(mesh_build_mode=mode)
    assert bits(train(conf(64, workers=workers, void_configuration=void))) == bits(train(conf(64)))


def test_a_run_goes_on_with_a_mesh_that_began_without_one_and_the_other_way_round(tmp_path: Path) -> None:
    whole = bits(train(conf(64)))
    for first, then in ((None, VoidConfiguration()), (VoidConfiguration(), None)):
        begun = conf(64, void_configuration=first, epochs=3, checkpoint_dir=str(tmp_path / f"{first is None}"))
        train(begun)
        later = begun.replace(epochs=6, void_configuration=then)
        assert bits(train(later, resume=True)) == whole


def test_messages_of_the_mesh_that_are_lost_late_doubled_torn_or_forged_change_nothing() -> None:
    worlds = simulator.simulate(network_work(), 8, 1, "gradient-sharing", scenarios.PUSHES)
    meshes = [world.mesh for world in worlds]
    caches = [cache for mesh in meshes for cache in mesh.caches.values()]
    assert sum(cache.found for cache in caches) > 100 and sum(cache.missed for cache in caches) > 100
    assert sum(mesh.came for mesh in meshes) > 10 and sum(mesh.refused for mesh in meshes) > 10


def test_only_messages_are_pushed_and_no_results_of_validations() -> None:
    (world,) = simulator.simulate(WORKS["scored"](), 1, 1, "gradient-sharing", scenarios.PUSHES)
    assert world.mesh.committed
    assert all(CODES in Result.decode(frame).arrays for frame in world.mesh.committed)


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["hostile", "long-rounds", "failing-run", "sick-worker"])
def test_in_every_schedule_the_messages_of_the_mesh_change_nothing(scenario: str) -> None:
    pushed = dataclasses.replace(scenarios.SCENARIOS[scenario], pushes=True)
    count = max(1, SCHEDULES // SHARES[scenario])
    simulator.simulate(network_work(), count, 1000, "gradient-sharing", pushed)


def test_messages_that_were_believed_without_their_digest_would_be_noticed(monkeypatch) -> None:
    class Believing:
        """Takes every message for what it says that it is."""

        def __init__(self, longest_nbytes: int) -> None:
            pass

        def feed(self, said: bytes) -> list[tuple[str, bytes]]:
            _, nbytes, raw = mesh_wire._HEADER.unpack_from(said)
            message = said[mesh_wire.HEADER_NBYTES :]
            return [(raw.hex(), message)] if len(message) == nbytes else []

    monkeypatch.setattr(simulator, "STEP_LIMIT", 60_000)
    monkeypatch.setattr(hostile_mesh, "MessageReader", Believing)
    with pytest.raises(AssertionError, match=NOTICED):
        simulator.simulate(network_work(), 60, 16, "gradient-sharing", scenarios.PUSHES)  # in few is one forged so


# -- copies -----------------------------------------------------------------------------------------------------------


def test_with_copies_fewer_jobs_are_done_again_and_some_not_at_all() -> None:
    worlds = {
        scenario: simulator.simulate(network_work(), 8, 1, "gradient-sharing", scenario)
        for scenario in (scenarios.HOSTILE, scenarios.COPIES)
    }
    copies = [world.copies for world in worlds[scenarios.COPIES]]
    assert sum(each.found for each in copies) > 50 and sum(each.missed for each in copies) > 50
    again = {scenario: sum(world.replayed for world in each) for scenario, each in worlds.items()}
    assert 0 < again[scenarios.COPIES] < 0.7 * again[scenarios.HOSTILE]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_copy_is_there_before_the_commit_and_only_a_commit_makes_others_useless(is_late: bool) -> None:
    """Or who takes the slot's next job at once would do all its jobs again; or one that was too late would do harm."""
    happened: list[tuple[str, ...]] = []

    class Store(MemoryStore):
        def replace_if_same(self, key: str, expected, value) -> bool:
            done = super().replace_if_same(key, expected, value)
            happened.append((("committed" if done else "refused"), key))
            return done

    work, store = network_work(), Store()
    head = Head(run="run", version=3, round=3, model=Manifest("m", 1, 1), logged=2, keeps=7)
    number, key = work.plan.number(3, 1), Keys.job(3, 1)
    lease = JobRecord(state="leased", model=head.identity, token=1, worker="w1")
    store.put(key, encode_record(lease))
    claim = inputs.Claim(number, lease, encode_record(lease), 0.0)
    if is_late:
        store.put(key, encode_record(msgspec.structs.replace(lease, state="done", worker="w2")))
    worker = protocol.Worker(
        *("w1", store, RunningClock(), work.plan, ROUTER),
        aggregator=ROUTER.fold(load_kernels("numpy")),
        copies=SimpleNamespace(
            keep=lambda slot, update, frame: happened.append(("kept", slot, update.rpartition("/")[0], frame)),
            remove_others=lambda slot: happened.append(("removed others", slot)),
        ),
    )
    drive(worker_module._commit(worker, [worker_module.Done(claim, b"update", b"state", "")], head))
    kept = ("kept", 1, "update/3/1", b"state")
    assert happened == [kept, *([("refused", key)] if is_late else [("committed", key), ("removed others", 1)])]


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["hostile", "failing-run", "sick-worker"])
def test_in_every_schedule_copies_change_nothing(scenario: str) -> None:
    copied = dataclasses.replace(scenarios.SCENARIOS[scenario], copies=True)
    count = max(1, SCHEDULES // SHARES[scenario])
    simulator.simulate(network_work(), count, 1000, "gradient-sharing", copied)


def test_copies_that_were_believed_by_slot_would_be_noticed(monkeypatch) -> None:
    class Believing(HostileCopies):
        """Takes the first copy of a slot for what is asked for."""

        def find(self, slot: int, updates: list[str]) -> Copied | None:
            return Copied(len(updates), self.copies[slot][0][1]) if self.copies.get(slot) else None

    monkeypatch.setattr(simulator, "STEP_LIMIT", 60_000)
    monkeypatch.setattr(simulator, "HostileCopies", Believing)
    with pytest.raises(AssertionError, match=NOTICED):
        simulator.simulate(network_work(), 60, 1, "gradient-sharing", scenarios.COPIES)


# -- the messages at hand ---------------------------------------------------------------------------------------------


def test_messages_at_hand_are_bounded_in_bytes_and_the_newest_stay() -> None:
    cache = MessageCache(1000)
    messages = [bytes([number]) * 300 for number in range(10)]
    for message in messages:
        cache.add(message)
    assert cache.nbytes == 900
    assert [cache.find(digest(message)) for message in messages] == [None] * 7 + messages[7:]
    assert (cache.found, cache.missed) == (3, 7)
    cache.add(bytes(1001))  # longer than all that is kept
    assert cache.nbytes == 0


def test_messages_are_known_among_the_last_ones_only() -> None:
    cache = MessageCache()
    messages = [f"{number}".encode() for number in range(HISTORY + 1)]
    assert all(cache.take(digest(message), message) for message in messages)
    assert not cache.take(digest(messages[1]), messages[1])
    assert cache.find(digest(messages[0])) is None
    assert cache.take(digest(messages[0]), messages[0])
    assert cache.find(digest(messages[1])) is None
    assert cache.nbytes == sum(map(len, messages)) - len(messages[1])


def test_a_message_that_is_known_and_no_longer_at_hand_is_not_passed_on_again() -> None:
    cache = MessageCache(10)
    assert cache.take(digest(b"a message of old"), b"a message of old")
    assert cache.find(digest(b"a message of old")) is None
    assert not cache.take(digest(b"a message of old"), b"a message of old")
