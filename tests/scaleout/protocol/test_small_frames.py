"""The data and the updates of jobs that are small go with the jobs' records: fewer requests, and nothing to lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dl4jlegacy.arrays import wire
from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.protocol import frames
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import HEAD, Head, JobRecord, Keys, Manifest, decode_record, encode_record
from dl4jlegacy.scaleout.state.store import BatchStore, MemoryStore
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import drive
from dl4jlegacy.system.clock import RunningClock

SMALL = frames.SMALL_NBYTES


class OneByOne:
    """A store without batches, which takes one operation at a time."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        if name in vars(BatchStore):
            raise AttributeError(name)
        return getattr(self._store, name)


def plan_of(slots: int, **changes: Any) -> Plan:
    return Plan(phases=(Phase(),), batches=slots, examples=slots, batch_size=1, jobs_per_round=slots, **changes)


@pytest.mark.parametrize("store", [MemoryStore(), OneByOne()], ids=["batches", "one by one"])
def test_small_frames_are_in_their_manifests_and_are_read_like_any_other(store: Any) -> None:
    contents = [b"a", bytes(range(256)) * 4, b"b" * (SMALL + 1), b""]
    manifests = drive(frames.write_frames(store, [(f"k/{i}", each) for i, each in enumerate(contents)], small=SMALL))
    manifests = [decode_record(encode_record(manifest), Manifest) for manifest in manifests]
    assert [bool(manifest.frame) for manifest in manifests] == [True, True, False, False]
    assert store.keys("") == ["k/2/0"]
    assert [frames.keys_of(manifest) for manifest in manifests] == [[], [], ["k/2/0"], []]
    found = drive(frames.read_frames(store, manifests))
    assert [bytes(each) for each in found] == contents
    assert all(wire.is_aligned(each) for each in found[:2])
    store.delete("k/2/0")
    assert [each is None for each in drive(frames.read_frames(store, manifests))] == [False, False, True, False]


@pytest.mark.parametrize("nbytes", [-1, 0, 2, 4, 1 << 40])
def test_a_manifest_that_says_another_size_than_its_frame_has_names_nothing(nbytes: int) -> None:
    manifest = Manifest("update/0/0/w", 0, nbytes, frame=b"abc")
    assert drive(frames.read_frames(MemoryStore(), [manifest])) == [None]


def test_the_small_frames_of_a_round_are_small_together() -> None:
    for slots in (1, 4, 4096, 5000, 1_000_000):
        assert 2 * slots * frames.small_nbytes(plan_of(slots), 0) <= frames.TOGETHER_NBYTES
    assert frames.small_nbytes(plan_of(400), 0) == SMALL


def test_a_job_of_little_data_and_a_little_update_is_one_record() -> None:
    """From when it is issued to when it is done: nothing else is written, read or deleted."""
    plan, store, clock = plan_of(4), MemoryStore(), RunningClock()
    router = create_router("iterative-reduce", {}, jobs_per_round=4)
    model = drive(protocol.write_frame(store, Keys.model(0, "m"), Result({"score": None}).encode()))
    head = Head(run="r", version=0, round=0, model=model)
    store.put(HEAD, encode_record(head))
    work = protocol.MoreWork(head, tuple(range(4)))
    drive(
        protocol.issue_jobs(
            store, plan, work, binds_model=True, load=lambda slot: b"data of %d" % slot.slot, put_ahead={}
        )
    )
    keys = {HEAD, *frames.keys_of(model), *(Keys.job(0, slot) for slot in range(4))}
    assert set(store.keys("")) == keys
    me = protocol.Worker("w", store, clock, plan, router, aggregator=router.fold(load("numpy")))
    update = bytes(Result({"examples": 1, "score": 0.0}, {"params": np.zeros(3, np.float32)}).encode())
    steps, answer, given = protocol.worker_steps(me), None, {}
    while not isinstance(event := steps.send(answer), protocol.Wait):
        answer = None
        if isinstance(event, protocol.Perform):
            given[event.plan.slot], answer = bytes(event.data), update
    assert given == {slot: b"data of %d" % slot for slot in range(4)}
    assert set(store.keys("")) == keys
    records = [decode_record(store.get(Keys.job(0, slot)), JobRecord) for slot in range(4)]
    assert {record.state for record in records} == {"done"}
    assert {bytes(drive(protocol.read_frame(store, record.update))) for record in records} == {update}
    assert len({record.update.key for record in records}) == 4  # a key is what a state is known by
