"""The actors' own rules, asked without a thread."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pykka

from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.actors import WorkerActor
from dl4jlegacy.scaleout.actors.ticker import Ticker
from dl4jlegacy.scaleout.actors.worker import LOOK_SECONDS
from dl4jlegacy.scaleout.monitoring.outcome import Outcome
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import HEAD, Head, JobRecord, Manifest, encode_record
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import StateTracker
from tests.scaleout.protocol.test_protocol import SetClock, network_work


class LongJob:
    """A performer whose batches take a second each; it stops when its job is not wanted any more."""

    progress = 0

    def __init__(self, clock: SetClock) -> None:
        self.clock = clock

    def update(self, model: Result) -> None:
        pass

    def perform(self, job):
        while job.is_wanted():
            self.clock.seconds += 1.0
            self.progress += 1
            assert self.progress < 1000, "nobody looked"


def test_a_worker_leaves_a_job_that_nobody_wants_though_no_hint_came():
    work, store, clock = network_work(), MemoryStore(), SetClock()
    tracker = StateTracker(store, clock)
    store.put(HEAD, encode_record(Head(run="run", version=1, round=1, model=Manifest("model/1/m", 0, 0))))
    router = create_router("iterative-reduce")
    worker = protocol.Worker("w", store, clock, work.plan, router, aggregator=work.aggregator(router.name))
    performer, record = LongJob(clock), JobRecord(state="leased", model="model/0/m", token=1, worker="w")
    actor = WorkerActor(
        Outcome(clock), tracker, worker, performer, heartbeat=None, jobs=None, kernels=load_kernels("numpy")
    )
    event = protocol.Perform(work.plan.slot(0, 0), record, 0, work.first_model(), work.load(work.plan.slot(0, 0)))
    assert actor._perform(event) is protocol.ABANDONED
    assert performer.progress == LOOK_SECONDS


def test_a_job_is_not_done_again_for_one_that_nobody_wants_any_more():
    """It may be one of hundreds, each too short for a look in between."""
    work, store, clock = network_work(), MemoryStore(), SetClock()
    store.put(HEAD, encode_record(Head(run="run", version=1, round=1, model=Manifest("model/1/m", 0, 0))))
    router = create_router("gradient-sharing", jobs_per_round=4)
    worker = protocol.Worker("w", store, clock, work.plan, router, aggregator=work.aggregator(router.name))
    actor = WorkerActor(
        *(Outcome(clock), StateTracker(store, clock), worker, None), heartbeat=None, jobs=None, kernels=None
    )
    record = JobRecord(state="leased", model="model/0/m", token=1, worker="w")
    earlier, leased = work.plan.slot(0, 0), work.plan.slot(1, 0)
    clock.seconds += LOOK_SECONDS
    assert actor._perform(protocol.Perform(earlier, record, 0, b"", None, leased=leased)) is protocol.ABANDONED


def test_an_actor_that_stops_just_when_it_is_to_be_told_something_ends_no_timer():
    told = threading.Event()

    def stopped(message):
        raise pykka.ActorDeadError("it stopped after it had been asked whether it is alive")

    actors = [
        SimpleNamespace(is_alive=lambda: True, actor_inbox=SimpleNamespace(empty=lambda: True), tell=tell)
        for tell in (stopped, lambda message: told.set())
    ]
    ticker = Ticker([(0.001, actor, "tick") for actor in actors])
    ticker.start()
    try:
        assert told.wait(10)
    finally:
        ticker.stop()
