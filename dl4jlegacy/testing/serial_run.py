"""A complete run on one thread: the project's own master and workers take turns on a store in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from dl4jlegacy.datasets import IrisDataSetIterator
from dl4jlegacy.errors import ContractError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.contract import fold_of
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.monitoring.outcome import failure_of
from dl4jlegacy.scaleout.plan import Phase
from dl4jlegacy.scaleout.state.job import DataSetJobIterator, Job, Result, decode_work, encode_work
from dl4jlegacy.scaleout.state.records import Head, account
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer, perform_in_slot
from dl4jlegacy.system.clock import RunningClock

__all__ = ["trained"]

_WORKERS, _STEPS = 3, 200_000


class _Clock(RunningClock):
    """A clock that advances by one second at each reading."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0

    def now(self) -> float:
        """Return the next second."""
        self._seconds += 1.0
        return self._seconds


def trained(router: WorkRouter, network: MultiLayerConfiguration, jobs_per_round: int, order: random.Random) -> bytes:
    """Train a network on the Iris data for two epochs, and return the frame of the model.

    Args:
        router: of the run.
        network: maps four columns to three classes.
        jobs_per_round: slots of a round.
        order: chooses the role that takes the next step.

    Raises:
        ContractError: batches were lost or folded twice, or the run does not end. Errors of a failed job are raised
            too.
    """
    iterator = IrisDataSetIterator(16)
    jobs = DataSetJobIterator(iterator, jobs_per_round=jobs_per_round, phases=(Phase(epochs=2),))
    store, ended = MemoryStore(), list[protocol.NewModel]()
    workers = [_worker(f"w{number}", router, network, jobs, store) for number in range(_WORKERS)]
    roles = [_master(router, network, jobs, store, ended), *workers]
    for _ in range(_STEPS):
        role = order.choice(roles)
        if next(role, None) is None and len(roles) > 1:
            roles.remove(role)
        if ended:
            break
    else:
        raise ContractError(f"{type(router).__name__}: a run of {jobs.plan.total_slots} jobs does not come to its end")
    head = ended[0].head
    if account(head, jobs.plan) != (0, 0):
        raise ContractError(f"{type(router).__name__}: {account(head, jobs.plan)} batches were lost and folded twice")
    return bytes(ended[0].frame)


def _master(
    router: WorkRouter, network: Any, jobs: DataSetJobIterator, store: MemoryStore, ended: list[protocol.NewModel]
) -> Iterator[bool]:
    kernels = load("numpy")
    begun = build_network(network, kernels)
    begun.init()
    start = protocol.RunStart("checked", lambda: first_model(begun).encode(), lambda: None)
    plan = jobs.plan
    me = protocol.Master("m", store, _Clock(), plan, router, aggregator=fold_of(router, kernels), start=start)
    put_ahead: dict[int, Any] = {}
    steps = protocol.master_steps(me)
    while True:
        try:
            event = next(steps)
        except StopIteration as stop:
            head: Head = stop.value
            if head.status != "done":
                raise failure_of(head) from None
            return
        if isinstance(event, protocol.MoreWork):
            yield from (
                True
                for _ in protocol.issue_jobs(
                    store,
                    plan,
                    event,
                    binds_model=router.binds_model,
                    load=lambda slot: encode_work(jobs.work(slot)),
                    put_ahead=put_ahead,
                )
            )
        if isinstance(event, protocol.NewModel) and event.last:
            ended.append(event)
        yield True


def _worker(
    name: str, router: WorkRouter, network: Any, jobs: DataSetJobIterator, store: MemoryStore
) -> Iterator[bool]:
    kernels, plan = load("numpy"), jobs.plan
    performer = MultiLayerNetworkPerformer(
        build_network(network, kernels),
        seed=1,
        update_kind=router.update_kind,
    )
    steps = protocol.worker_steps(
        protocol.Worker(name, store, _Clock(), plan, router, aggregator=fold_of(router, kernels))
    )
    answer: Any = None
    while True:
        try:
            event = steps.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(event, protocol.Perform):
            phase = plan.work_of(event.plan.round)
            job = Job(event.plan, phase, decode_work(event.data or b""), worker_id=name, version=event.version)
            used = router_of(router, plan, event.plan.round)
            state = None if event.state is None else Result.decode(event.state)
            done = perform_in_slot(performer, used, job, Result.decode(event.model), state, kernels)
            frames = [bytes(each.encode()) for each in done or ()]
            answer = frames[0] if used.memory is None else protocol.Performed(*frames)
        yield True
