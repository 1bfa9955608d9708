"""The contract of every store and state tracker: what the protocol may rely on. One file for all implementations."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from dl4jlegacy.errors import NotAuthorisedError, NotFiniteError, TrackerClosedError, TrackerError
from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.persistence.journal import Journal
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.protocol import frames
from dl4jlegacy.scaleout.protocol.leasing import lease_jobs
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import (
    HEAD,
    Failure,
    Head,
    JobRecord,
    Keys,
    Manifest,
    WorkerRecord,
    decode_record,
    encode_record,
)
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, StateTracker, drive
from dl4jlegacy.system.clock import RunningClock

PLAN = Plan(phases=(Phase(),), batches=8, examples=8, batch_size=1, jobs_per_round=4)


RUNS = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def servers(request):
    """Started before the first test that asks for them, so that no test is blamed for leaving them behind."""
    if any(item.module is request.module and item.get_closest_marker("cluster") for item in request.session.items):
        return request.getfixturevalue("session_services")
    return None


@pytest.fixture(params=["memory", pytest.param("hazelcast", marks=pytest.mark.cluster)])
def tracker(request, servers):
    if request.param == "memory":
        tracker = InMemoryStateTracker()
        yield tracker
        tracker.shutdown()
        return
    tracker = HazelcastStateTracker(
        servers.hazelcast, cluster_name=servers.cluster_name, run=f"contract-{next(RUNS)}", secret=b"only for tests"
    )
    yield tracker
    tracker.shutdown()


def begin(tracker, status="running"):
    """Put version 0 and the first round's jobs into the tracker; return the head."""
    model = drive(protocol.write_frame(tracker.store, Keys.model(0, "m"), Result({"score": None}).encode()))
    head = Head(run="r", version=0, round=0, model=model, status=status)
    tracker.store.put(HEAD, encode_record(head))
    work = protocol.MoreWork(head, tuple(range(4)))
    drive(protocol.issue_jobs(tracker.store, PLAN, work, binds_model=True, load=None, put_ahead={}))
    return head


def test_a_value_is_there_until_it_is_deleted(tracker):
    store = tracker.store
    assert store.get("a") is None
    store.put("a", b"1")
    store.put("a", b"2")
    assert bytes(store.get("a")) == b"2"
    store.delete("a")
    store.delete("a")
    assert store.get("a") is None


def test_put_if_absent_writes_once(tracker):
    assert tracker.store.put_if_absent("a", b"1")
    assert not tracker.store.put_if_absent("a", b"2")
    assert bytes(tracker.store.get("a")) == b"1"


def test_replace_if_same_compares_the_whole_value(tracker):
    store = tracker.store
    assert not store.replace_if_same("a", b"", b"1")
    store.put("a", b"1")
    assert not store.replace_if_same("a", b"0", b"2")
    assert store.replace_if_same("a", b"1", b"2")
    assert bytes(store.get("a")) == b"2"


def test_keys_are_listed_by_prefix_in_order(tracker):
    for key in ("job/1/0", "job/0/1", "model/0", "job/0/0"):
        tracker.store.put(key, b"x")
    assert tracker.store.keys("job/0/") == ["job/0/0", "job/0/1"]


def test_hints_reach_listeners_until_they_stop(tracker):
    heard = threading.Semaphore(0)
    stop = tracker.store.listen("topic", heard.release)
    tracker.store.publish("topic")
    assert heard.acquire(timeout=60)
    stop()
    tracker.store.publish("topic")
    tracker.store.publish("other")
    assert not heard.acquire(blocking=False)


def test_frames_of_any_size_come_back_from_their_chunks(tracker):
    tracker.store.chunk_nbytes = 100
    frame = Result({"x": 1}, {}).encode()
    big = bytes(range(256)) * 10
    for key, value in (("small", frame), ("big", big)):
        manifest = drive(protocol.write_frame(tracker.store, key, value))
        assert bytes(drive(protocol.read_frame(tracker.store, manifest))) == bytes(value)
    tracker.store.delete("big/3")
    assert drive(protocol.read_frame(tracker.store, manifest)) is None


def test_a_frame_in_one_piece_is_read_without_a_copy():
    store, frame = MemoryStore(), Result({"x": 1}, {"a": np.arange(1000, dtype=np.float32)}).encode()
    whole = drive(protocol.write_frame(store, "whole", frame))
    found = drive(protocol.read_frame(store, whole))
    assert np.shares_memory(np.frombuffer(found, np.uint8), np.frombuffer(frame, np.uint8))
    store.put("odd/0", memoryview(b"x" + bytes(frame))[1:])
    copied = drive(protocol.read_frame(store, msgspec.structs.replace(whole, key="odd")))
    assert bytes(copied) == bytes(frame) and Result.decode(copied).arrays["a"].ctypes.data % 64 == 0
    for wrong in (msgspec.structs.replace(whole, nbytes=len(frame) - 1), msgspec.structs.replace(whole, digest="0")):
        assert drive(protocol.read_frame(store, wrong)) is None


def race(count, work):
    """Run ``work(i)`` on ``count`` threads at once; return the results in order."""
    barrier = threading.Barrier(count, timeout=60)

    def run(index):
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        return [f.result(timeout=60) for f in [pool.submit(run, i) for i in range(count)]]


def issued(tracker, head, numbers, ahead=()):
    work = protocol.MoreWork(head, tuple(numbers), tuple(ahead))
    drive(protocol.issue_jobs(tracker.store, PLAN, work, binds_model=True, load=None, put_ahead={}))


def test_a_new_round_is_issued_without_looking_and_changes_no_job_that_is_there(tracker, monkeypatch):
    head = begin(tracker)
    key = Keys.job(0, 2)
    raw = tracker.store.get(key)
    tracker.store.put(key, changed := encode_record(msgspec.structs.replace(decode_record(raw, JobRecord), token=7)))
    with monkeypatch.context() as patch:
        patch.setattr(type(tracker.store), "get_many", lambda *_: pytest.fail("it looked"))
        issued(tracker, head, range(8), ahead=(8,))
    assert bytes(tracker.store.get(key)) == bytes(changed)
    assert decode_record(tracker.store.get(Keys.job(1, 3)), JobRecord).state == "ready"


def test_a_worker_begins_a_round_where_it_began_the_last_one(tracker):
    head, router = begin(tracker), create_router("iterative-reduce")
    me = protocol.Worker("w", tracker.store, tracker.clock, PLAN, router, aggregator=router.fold(load("numpy")))
    own, other = (PLAN.at(drive(lease_jobs(me))[0].number) for _ in range(2))
    assert own[0] == other[0] == 0 and own != other
    following = msgspec.structs.replace(head, version=1, round=1, folded=((0, 4),))
    tracker.store.put(HEAD, encode_record(following))
    issued(tracker, following, range(4, 8))
    me.spare.clear()  # those of the last round, which others have done
    assert PLAN.at(drive(lease_jobs(me))[0].number) == (1, own[1])


def test_of_many_who_claim_a_job_exactly_one_wins(tracker):
    head = begin(tracker)
    router = create_router("iterative-reduce")

    def claim(index):
        me = protocol.Worker(
            f"w{index}", tracker.store, tracker.clock, PLAN, router, aggregator=router.fold(load("numpy"))
        )
        steps = protocol.worker_steps(me)
        event = next(event for event in steps if event is not protocol.STEP)
        return event.plan.slot if isinstance(event, protocol.Perform) else None

    won = [slot for slot in race(12, claim) if slot is not None]
    assert sorted(won) == [0, 1, 2, 3]
    records = tracker.current_jobs(PLAN)
    assert {r.state for r in records.values()} == {"leased"}
    assert {r.model for r in records.values()} == {head.model.key}
    assert all(tracker.job_for(r.worker, PLAN) == address for address, r in records.items())


@pytest.mark.parametrize("is_small", [True, False])
def test_of_many_who_commit_a_job_exactly_one_is_accepted_and_the_rest_are_counted(tracker, is_small, monkeypatch):
    monkeypatch.setattr(frames, "SMALL_NBYTES", 1000 if is_small else 0)
    begin(tracker)
    for slot in (1, 2, 3):
        tracker.store.delete(Keys.job(0, slot))
    key, update = Keys.job(0, 0), Result({"examples": 1, "score": 0.0}).encode()

    def hold(index):
        """Take slot 0, whose lease then counts as expired, so that the next one takes it too."""
        router = create_router("iterative-reduce")
        aggregator = router.fold(load("numpy"))
        me = protocol.Worker(f"w{index}", tracker.store, tracker.clock, PLAN, router, aggregator=aggregator)
        steps = protocol.worker_steps(me)
        event = next(event for event in steps if event is not protocol.STEP)
        assert isinstance(event, protocol.Perform) and event.plan.slot == 0
        record = decode_record(tracker.store.get(key), JobRecord)
        tracker.store.put(key, encode_record(msgspec.structs.replace(record, state="ready", worker="")))
        return steps

    holders = [hold(index) for index in range(8)]

    def commit(index):
        event = holders[index].send(update)
        while event is protocol.STEP:
            event = next(holders[index])

    race(8, commit)
    record = decode_record(tracker.store.get(key), JobRecord)
    assert record.state == "done" and record.update is not None
    assert tracker.store.keys("update/") == ([] if is_small else [f"{record.update.key}/0"])
    assert drive(protocol.read_frame(tracker.store, record.update)) == update
    assert int(bytes(tracker.store.get(protocol.DROPPED))) == 7


def test_batches_are_written_read_in_order_and_deleted(tracker):
    names = [f"model/0/m/{i}" for i in range(30)]
    tracker.store.put_many((name, name.encode()) for name in names)
    assert [bytes(value) for value in tracker.store.get_many(names)] == [name.encode() for name in names]
    assert list(tracker.store.get_many(["absent"])) == [None]
    tracker.store.delete_many([*names[:20], "absent"])
    assert tracker.store.keys("model/") == sorted(names[20:])


def test_a_batch_of_conditional_writes_says_of_each_whether_it_was_written(tracker):
    store = tracker.store
    store.put("job/0/3", b"old")
    items = [(f"job/0/{slot}", f"{slot}".encode()) for slot in range(30)]
    assert store.put_many_if_absent(iter(items)) == [slot != 3 for slot in range(30)]
    assert store.put_many_if_absent([*items[:2], ("job/0/30", b"30")]) == [False, False, True]
    values = {key: bytes(value) for (key, _), value in zip(items, store.get_many(k for k, _ in items), strict=True)}
    assert values == {**dict(items), "job/0/3": b"old"}
    assert store.put_many_if_absent([]) == []


def test_a_batch_of_replacements_says_of_each_whether_it_was_replaced(tracker):
    store = tracker.store
    store.put_many((f"job/0/{slot}", b"old") for slot in range(30))
    store.put("job/0/3", b"other")
    items = [(f"job/0/{slot}", b"old", f"{slot}".encode()) for slot in range(31)]
    assert store.replace_many_if_same(iter(items)) == [slot not in (3, 30) for slot in range(31)]
    assert [bytes(value) for value in store.get_many(["job/0/2", "job/0/3"])] == [b"2", b"other"]
    assert store.get("job/0/30") is None
    assert store.replace_many_if_same([]) == []


def test_of_many_who_write_the_same_batch_each_entry_is_written_by_exactly_one(tracker):
    def add(index):
        return tracker.store.put_many_if_absent((f"job/0/{slot}", f"{index}".encode()) for slot in range(40))

    written = race(6, add)
    assert [sum(column) for column in zip(*written, strict=True)] == [1] * 40
    for slot in range(40):
        assert written[int(bytes(tracker.store.get(f"job/0/{slot}")))][slot]


def test_counters_lose_no_count(tracker):
    race(8, lambda index: [tracker.increment("words", 2) for _ in range(50)])
    assert tracker.count("words") == 800
    assert tracker.count("others") == 0


def test_a_counter_falls_below_zero_and_comes_back(tracker):
    for by, count in ((5, 5), (-2, 3), (-5, -2), (-10, -12), (np.int64(12), 0), (7, 7), (True, 8)):
        tracker.increment("words", by)
        assert tracker.count("words") == count
    assert tracker.store.foreign.count == 0


@pytest.mark.parametrize("by", [0.5, 2.0, "1", None, np.float32(1), 2**63, -(2**63) - 6, 10**30], ids=repr)
def test_what_is_no_whole_number_of_64_bits_is_not_added(by):
    tracker = InMemoryStateTracker()
    tracker.increment("words", 5)
    with pytest.raises(TrackerError, match="words"):
        tracker.increment("words", by)
    assert tracker.count("words") == 5


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


ODD_VALUES = [None, "", "\x00", "\ud800", {"\udcff": 1}, b"x", {1}, object(), np.arange(2), np.float32(1), (1, "a"), {}]
ODD_VALUES += [float("nan"), -0.0, 1e308, 2**64, -(2**64), 2**70, 10**400, True, {1: 2}, nested(500), nested(5000)]
ODD_VALUES += [WorkerRecord(id="w", host="h", pid=1), 0.5, -3, "done", "running", ["done"]]
ODD_NAMES = ["a", "", "a/b", "a b", "\u00fc", "a\n", "\x00", "\ud800", "x" * 900, "x" * 1001]
WRITES = {
    "increment": lambda tracker, name, value: tracker.increment(name, value),
    "define": lambda tracker, name, value: tracker.define(name, value),
    "define_once": lambda tracker, name, value: tracker.define_once(name, value),
    "add_worker": lambda tracker, name, value: tracker.add_worker(WorkerRecord(id=name, host=value, pid=1)),
    "add_worker's pid": lambda tracker, name, value: tracker.add_worker(WorkerRecord(id=name, host="h", pid=value)),
    "add_worker's id": lambda tracker, name, value: tracker.add_worker(WorkerRecord(id=value, host=name, pid=1)),
    "add_worker's versions": lambda tracker, name, value: tracker.add_worker(
        WorkerRecord(id="w", host="h", pid=1, versions={name: value})
    ),
    "finish": lambda tracker, name, value: tracker.finish(value),
    "finish's failure": lambda tracker, name, value: tracker.finish("failed", value),
    "finish's words": lambda tracker, name, value: tracker.finish("failed", Failure(value, name, "w")),
    "finish's message": lambda tracker, name, value: tracker.finish("failed", Failure("C", value, name, name)),
    "journal": lambda tracker, name, value: Journal(tracker, "host-1").write("went_on", value=value, name=name),
}


@pytest.mark.parametrize("write", WRITES)
def test_whatever_the_tracker_writes_its_own_reader_takes(write):
    """Each write with each odd name and value is refused in this package's words, or is read as of the run."""
    written = 0
    for name, value in [*((name, 1) for name in ODD_NAMES), *(("a", value) for value in ODD_VALUES)]:
        tracker = InMemoryStateTracker()
        begin(tracker)
        before = set(tracker.store.keys(""))
        try:
            WRITES[write](tracker, name, value)
        except (TrackerError, NotFiniteError):
            assert set(tracker.store.keys("")) == before
            continue
        written += 1
        new = [key for key in tracker.store.keys("") if key not in before]
        assert [key for key in new if not Keys.is_of_run(key)] == []
        assert tracker.head() is not None
        (tracker.count(name), tracker.get(name), tracker.workers(), Journal.read(tracker))
        assert tracker.store.foreign.count == 0, (name, value)
    assert written


def test_globals_are_json_values(tracker):
    tracker.define("table", {"a": [1, 2.5, None]})
    assert tracker.get("table") == {"a": [1, 2.5, None]}
    assert tracker.get("absent") is None


def test_workers_register_beat_and_leave(tracker):
    assert tracker.num_workers() == 0
    for name, beat in (("b", 1.0), ("a", 2.0), ("b", 3.0)):
        tracker.add_worker(WorkerRecord(id=name, host="h", pid=1, beat=beat))
    assert tracker.heart_beats() == {"a": 2.0, "b": 3.0}
    tracker.remove_worker("a")
    assert [w.id for w in tracker.workers()] == ["b"]


def test_finish_ends_a_run_once(tracker):
    assert tracker.finish() is None
    begin(tracker)
    assert not tracker.is_done()
    assert tracker.finish("stopped").status == "stopped"
    assert tracker.finish("failed").status == "stopped"
    assert tracker.is_done()


def test_the_current_model_is_the_heads(tracker):
    assert tracker.get_current() is None
    begin(tracker)
    assert tracker.get_current().values == {"score": None}


def test_a_tracker_that_was_shut_down_says_so(tracker):
    tracker.shutdown()
    with pytest.raises(TrackerClosedError, match="shut down"):
        tracker.head()


def test_records_survive_their_bytes():
    record = JobRecord(state="done", model="m", token=3, update=Manifest("u", 2, 10, "d"))
    assert encode_record(record) == encode_record(JobRecord(state="done", model="m", token=3, update=record.update))


class Refusing(MemoryStore):
    """Refuses the values under some keys, as the grid's store does with damaged ones and with those of strangers."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()

    def get(self, key):
        if key in self.damaged:
            raise NotAuthorisedError(f"the value under {key!r} is refused")
        return super().get(key)


def test_what_is_refused_at_first_sight_is_an_error_and_a_damaged_record_later_is_missing():
    store = Refusing()
    tracker, stranger = StateTracker(store, RunningClock()), StateTracker(store, RunningClock())
    store.put(HEAD, encode_record(Head(run="r", version=0, round=0, model=Manifest("m", 0, 0))))
    tracker.add_worker(WorkerRecord(id="w-0", host="h", pid=1))
    assert tracker.head() is not None
    store.damaged = {HEAD, Keys.worker("w-0"), "global/plan"}
    with pytest.raises(NotAuthorisedError, match="'head' is refused"):
        stranger.head()
    assert tracker.head() is None
    assert tracker.workers() == []
    assert tracker.get("plan") is None
