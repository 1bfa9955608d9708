"""Versions that are not stored as a whole: whoever follows the log, or does jobs again, comes to the same bits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from dl4jlegacy import Conf
from dl4jlegacy.clock import RunningClock
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.parts import find_router
from dl4jlegacy.scaleout.protocol import closing, inputs, log, watch
from dl4jlegacy.scaleout.protocol import worker as worker_module
from dl4jlegacy.scaleout.protocol.frames import write_frame
from dl4jlegacy.scaleout.records import (
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
from dl4jlegacy.scaleout.scoring import EarlyStopping, Scoring
from dl4jlegacy.scaleout.store import MemoryStore
from dl4jlegacy.scaleout.strategies import aggregator_of, create_router
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from tests.scaleout.protocol.test_protocol import network_work
from tests.support import simulator
from tests.support.strategy_runs import bits, conf_of, train

ARGS = {"tau": 2e-3}
ROUTER = create_router("gradient-sharing", jobs_per_round=4)
NOWHERE = Manifest("", 0, 0)


def conf(every: int, **fields) -> Conf:
    return conf_of("gradient-sharing", {**ARGS, "state_every": every}, **fields)


@pytest.mark.parametrize("every", [2, 5, 64])
def test_how_often_states_are_saved_changes_no_bit(every: int) -> None:
    assert bits(train(conf(every, workers=2))) == bits(train(conf(1)))


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


def test_between_two_stored_versions_only_messages_travel() -> None:
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
    return inputs.WorkerMemory("w1", MemoryStore(), plan, ROUTER, aggregator_of(ROUTER, load_kernels("numpy")), **more)


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


def test_where_devices_differ_states_are_saved_with_every_round() -> None:
    assert find_router(conf(64, mixed_devices=True)).state_every == 1
    assert find_router(conf(64)).state_every == 64
    assert find_router(conf_of("easgd", mixed_devices=True)).state_every == 1
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
        "w1", MemoryStore(), clock, network_work().plan, ROUTER, aggregator=aggregator_of(ROUTER, load_kernels("numpy"))
    )
    ours, nobodys, theirs, soon = (
        JobRecord(state="ready", model="m", home=home, reserved=seconds)
        for home, seconds in (("w1", 1e6), ("", 1e6), ("w0", 1e6), ("w0", 0.0))
    )
    assert worker_module._may_take(worker, 0, ours)
    assert worker_module._may_take(worker, 0, nobodys)
    assert not worker_module._may_take(worker, 0, theirs)
    assert worker_module._may_take(worker, 0, soon)
    worker.seen[0] = clock.now() - 2e6
    assert worker_module._may_take(worker, 0, theirs)


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
    (world,) = simulator.simulate(network_work(), 1, 45, "gradient-sharing")
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
