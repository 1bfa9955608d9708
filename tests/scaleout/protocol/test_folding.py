"""What a master folds, and in which order, while updates are committed, lost and committed again."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.phases import NO_PHASES
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.protocol import slot_watch as watch_module
from dl4jlegacy.scaleout.protocol.crashes import Attempts
from dl4jlegacy.scaleout.protocol.failures import Suspects
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import HEAD, Head, JobRecord, Keys, Manifest, decode_record, encode_record
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import drive

SLOTS = 6
PLAN = Plan(phases=(Phase(),), batches=SLOTS, examples=SLOTS, batch_size=1, jobs_per_round=SLOTS)


class Aggregator:
    """Notes what it is told will come, and what comes."""

    def __init__(self):
        self.announced, self.added = 0, []

    def begin(self, model, *, version, examples):
        self.announced, self.added = len(examples), []
        return self

    def add(self, updates):
        self.added += [Result.decode(update).values["slot"] for update in updates]

    def finish(self, *, ends_phase):
        raise AssertionError("watching makes no model")


class Grid:
    """A store with the slots of one head, whose updates ``change`` commits and loses at random."""

    def __init__(self, router, seed, chunks):
        self.random, self.store, self.router = random.Random(seed), MemoryStore(), router
        self.store.chunk_nbytes = 8
        self.model = "m" if router.binds_model else ""
        head = Head(run="r", version=3, round=0, model=Manifest("m", chunks, 0))
        self.slots = watch_module.OpenSlots(head, encode_record(head), Result({}).encode(), list(range(SLOTS)))
        self.store.put(HEAD, self.slots.raw)
        for slot in range(SLOTS):
            self.store.put(Keys.job(0, slot), encode_record(JobRecord(state="ready", model=self.model)))

    def commit(self, slot):
        record = decode_record(self.store.get(Keys.job(0, slot)), JobRecord)
        if record.state != "done":
            key = Keys.update(0, slot, f"w.{self.random.random()}")
            manifest = drive(protocol.write_frame(self.store, key, Result({"slot": slot}).encode()))
            done = JobRecord(state="done", model=self.model, token=record.token + 1, update=manifest)
            self.store.put(Keys.job(0, slot), encode_record(done))

    def change(self):
        for slot in range(SLOTS):
            if self.random.random() < 0.5:
                self.commit(slot)
            if self.random.random() < 0.3:
                for key in self.store.keys(f"update/0/{slot}/"):
                    self.store.delete(key)


@pytest.mark.parametrize("router", ["iterative-reduce", "hogwild"])
@pytest.mark.parametrize("chunks", [1, 2], ids=["whole", "streamed"])
@pytest.mark.parametrize("group_nbytes", [1, 120, 1 << 20], ids=["one by one", "by twos or threes", "at once"])
def test_whatever_is_lost_while_it_is_folded_each_update_is_folded_once(monkeypatch, router, chunks, group_nbytes):
    monkeypatch.setattr(watch_module, "GROUP_NBYTES", group_nbytes)
    for seed in range(12):
        grid, aggregator = Grid(create_router(router), seed, chunks), Aggregator()
        me = SimpleNamespace(
            store=grid.store,
            clock=SimpleNamespace(now=lambda: 0.0),
            plan=PLAN,
            router=grid.router,
            aggregator=aggregator,
            limits=protocol.Limits(),
            durations={},
            phases=NO_PHASES,
            must_reread_model=False,
            spare=None,
            on_progress=lambda: None,
            suspects=Suspects(3),
            attempts=Attempts(),
            death_of=lambda worker: "",
            present=lambda: (),
        )
        for step, _ in enumerate(watch_module.watch(me, grid.slots)):
            assert step < 20_000, f"seed {seed}: nothing is folded"
            if grid.random.random() < 0.4:
                grid.change()
        folded = grid.slots.folded
        assert folded and len(set(folded)) == len(folded), f"seed {seed}: folded {folded}"
        assert aggregator.added == folded, f"seed {seed}"
        assert aggregator.announced == len(folded), f"seed {seed}"
