"""Whatever a part of a program of one's own raises, ``sys.exit`` included, it is a failure of that part.

For each part, each kind of exception that is no ``Exception`` must come to the same as a ``ValueError`` there: the same
error or the same warning, in the same words but for the name, with the traceback.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from dl4jlegacy.cluster.parallel_wrapper import ParallelWrapper
from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.observers import RunObserver
from dl4jlegacy.scaleout.protocol import Limits
from dl4jlegacy.scaleout.state.aggregate import CollectingAggregator
from dl4jlegacy.scaleout.state.job import CollectionJobIterator, Result
from dl4jlegacy.scaleout.strategies import GradientSharingWorkRouter, IterativeReduceWorkRouter, WorkRouter
from dl4jlegacy.scaleout.workers.plugins import ROUTERS
from dl4jlegacy.system.exits import error_text
from dl4jlegacy.system.service_threads import ServiceThread

QUICK = Limits(lease=1.0, poll=0.05, attempts=2)
TEXT = "no licence"


class OwnExit(BaseException):
    """What a program may have made of its own."""


EXITS = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, OwnExit)


class Came(NamedTuple):
    """What a program came to: its end, in words, and whether it told where in the part the error was."""

    end: str
    warnings: tuple[str, ...]
    has_traceback: bool


class Raising:
    """Raises an exception wherever it is called; ``Raising(kind).boom``."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind, self.called = kind, 0

    def boom(self, *args: Any, **given: Any) -> Any:
        self.called += 1
        raise self.kind(TEXT)


# --- programs, each with one part that raises -------------------------------------------------------------------------


class Performer:
    """Answers a job with its number; a method of it may be replaced by one that raises."""

    def __init__(self, raising: Raising | None = None, where: str = "") -> None:
        self.progress = 0
        if where:
            setattr(self, where, raising.boom)

    def update(self, model: Result) -> None:
        """Numbers need no model."""

    def perform(self, job: Any) -> Result:
        self.progress += 1
        return Result({"value": [job.work]})


class Silent(Performer):
    """A performer whose progress cannot be told."""

    def __init__(self, raising: Raising) -> None:
        self._raising = raising

    progress = property(lambda self: self._raising.boom(), lambda self, value: None)


class Jobs(CollectionJobIterator):
    """Three jobs, whose work may raise."""

    def __init__(self, work: Callable[..., Any] | None = None) -> None:
        super().__init__(["a", "b", "c"])
        self._own = work

    def work(self, slot: Any) -> Any:
        return super().work(slot) if self._own is None else self._own(slot)


class Aggregator(CollectingAggregator):
    """One of whose methods raises."""

    def __init__(self, raising: Raising, where: str) -> None:
        super().__init__(lambda total, value: [*total, *value])
        self._raising, self._where = raising, where

    def begin(self, *args: Any, **given: Any) -> Any:
        if self._where == "begin":
            self._raising.boom()
        aggregation = super().begin(*args, **given)
        setattr(aggregation, self._where, self._raising.boom)
        return aggregation


def jobs_of_own(by_reference: bool = True, jobs: Any = None, **parts: Any) -> Any:
    """Train on jobs that are no network's."""
    given: dict[str, Any] = {
        "performer": lambda conf, kernels: Performer(),
        "aggregator": CollectingAggregator(lambda total, value: [*total, *value]),
        "first_model": Result({"value": []}),
        **parts,
    }
    with ActorNetworkRunner("master", jobs or Jobs(), **given) as runner:
        runner.setup(Conf(workers=2, limits=QUICK, data_by_reference=by_reference))
        return runner.train(deadline=30, progress=False)


NETWORK = MultiLayerConfiguration(
    conf=NeuralNetConfiguration(), layers=(DenseLayer(n_in=4, n_out=3), OutputLayer(n_out=2, activation="softmax"))
)
ROWS = DataSet(np.ones((16, 4), np.float32), np.eye(2, dtype=np.float32)[np.arange(16) % 2])


def network(data: Any = None, conf: dict[str, Any] | None = None, **parts: Any) -> Any:
    """Train a network."""
    with ActorNetworkRunner("master", data or ListDataSetIterator(ROWS, 8), **parts) as runner:
        usual = {"multi_layer_conf": NETWORK, "workers": 2, "epochs": 1, "limits": QUICK}
        runner.setup(Conf(**{**usual, **(conf or {})}))
        return runner.train(deadline=30, progress=False)


def wrapped(data: Any = None, of_network: tuple[Any, ...] = (), of_wrapper: tuple[Any, ...] = ()) -> None:
    """Train a network by a ``ParallelWrapper``."""
    trained = MultiLayerNetwork(NETWORK)
    trained.listeners = list(of_network)
    with ParallelWrapper(trained, workers=2) as wrapper:
        wrapper.set_listeners(*of_wrapper)
        wrapper.fit(data or ListDataSetIterator(ROWS, 8))


def raising_at(cls: type, method: str, raising: Raising) -> Any:
    """Return an object of a class, made anew, one of whose methods raises."""
    return type(f"Own{cls.__name__}", (cls,), {method: lambda self, *args, **given: raising.boom()})


def listening(raising: Raising) -> Any:
    return type("OwnListener", (), {"iteration_done": lambda self, *args, **given: raising.boom()})()


def saving(raising: Raising) -> Any:
    return type("OwnSaver", (), {"save": lambda self, head, model: raising.boom()})()


def observing(method: str) -> Callable[[Raising], Any]:
    """Return a program with an observer one of whose methods raises, and in which all of them are called."""

    def program(raising: Raising) -> Any:
        observer = raising_at(RunObserver, method, raising)()
        type(observer).wants_phases = True
        failed: list[Any] = []

        def fails_once(conf: Any, kernels: Any) -> Performer:
            performer = Performer()
            perform = performer.perform

            def performing(job: Any) -> Result:
                if not failed:
                    failed.append(job)
                    raise ValueError("only once")
                return perform(job)

            performer.perform = performing  # type: ignore[method-assign]
            return performer

        return jobs_of_own(observers=[observer], performer=fails_once)

    return program


def routing(make: Callable[[Raising], WorkRouter]) -> Callable[[Raising], Any]:
    """Return a program with a router of its own."""

    def program(raising: Raising) -> Any:
        ROUTERS.parts["own"] = lambda conf: make(raising)
        try:
            return network(conf={"router": "own"})
        finally:
            del ROUTERS.parts["own"]

    return program


def router_raising_at(cls: Any, method: str) -> Callable[[Raising], Any]:
    return routing(lambda raising: raising_at(cls, method, raising)())


def slots_raising_at(method: str) -> Callable[[Raising], Any]:
    def make(raising: Raising) -> WorkRouter:
        router = GradientSharingWorkRouter()
        router.memory.__class__ = raising_at(type(router.memory), method, raising)
        return router

    return routing(make)


def batches(raising: Raising) -> Iterator[Any]:
    yield ROWS
    raising.boom()


class Examples:
    """A data set of PyTorch's kind."""

    def __init__(self, raising: Raising) -> None:
        self._raising = raising

    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> Any:
        return (np.ones(4, np.float32), np.eye(2)[number % 2]) if number < 8 else self._raising.boom()


ROUTING = ("open_slots", "send_work", "fold")
PARTS: dict[str, Callable[[Raising], Any]] = {
    "performer": lambda raising: jobs_of_own(performer=raising.boom),
    "performer.update": lambda r: jobs_of_own(performer=lambda conf, kernels: Performer(r, "update")),
    "performer.perform": lambda r: jobs_of_own(performer=lambda conf, kernels: Performer(r, "perform")),
    "performer.progress": lambda raising: jobs_of_own(performer=lambda conf, kernels: Silent(raising)),
    "jobs.work, by reference": lambda raising: jobs_of_own(jobs=Jobs(raising.boom)),
    "jobs.work, with the jobs": lambda raising: jobs_of_own(by_reference=False, jobs=Jobs(raising.boom)),
    "aggregator's function": lambda raising: jobs_of_own(aggregator=CollectingAggregator(raising.boom)),
    "aggregator.begin": lambda raising: jobs_of_own(aggregator=Aggregator(raising, "begin")),
    "aggregation.add": lambda raising: jobs_of_own(aggregator=Aggregator(raising, "add")),
    "aggregation.finish": lambda raising: jobs_of_own(aggregator=Aggregator(raising, "finish")),
    "saver": lambda raising: jobs_of_own(saver=saving(raising)),
    "saver of a network": lambda raising: network(saver=saving(raising)),
    "listeners": lambda raising: network(listeners=[listening(raising)]),
    "listeners of jobs": lambda raising: jobs_of_own(listeners=[listening(raising)]),
    "worker_listeners": lambda raising: network(worker_listeners=[listening(raising)]),
    "stop_if": lambda raising: network(validation=ROWS, stop_if=raising.boom),
    "iterable of batches": lambda raising: network(batches(raising)),
    "iterator.batch": lambda r: network(raising_at(ListDataSetIterator, "batch", r)(ROWS, 8), {"prefetch_buffer": 0}),
    "iterator.batch, ahead": lambda raising: network(raising_at(ListDataSetIterator, "batch", raising)(ROWS, 8)),
    "examples by number": lambda raising: network(Examples(raising), {"batch_size": 8}),
    "validation": lambda raising: network(validation=batches(raising)),
    "router": routing(lambda raising: raising.boom()),
    **{f"router.{name}": router_raising_at(IterativeReduceWorkRouter, name) for name in ROUTING},
    **{f"slots.{name}": slots_raising_at(name) for name in ("replica", "settle")},
    **{f"observer.{name}": observing(name) for name in ("begin", "new_version", "phases", "job_failed", "end")},
    "ParallelWrapper.set_listeners": lambda raising: wrapped(of_wrapper=(listening(raising),)),
    "ParallelWrapper, the network's listeners": lambda raising: wrapped(of_network=(listening(raising),)),
    "ParallelWrapper.fit, iterable": lambda raising: wrapped(batches(raising)),
    "ParallelWrapper.fit, iterator": lambda r: wrapped(raising_at(ListDataSetIterator, "batch", r)(ROWS, 8)),
}
"""Programs by the part of theirs that raises."""


def outcome(program: Callable[[Raising], Any], kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> Came:
    """Run a program on a thread of its own, and return what it came to; one that hangs fails the test."""
    ends: queue.SimpleQueue[Any] = queue.SimpleQueue()
    raising = Raising(kind)

    def run() -> None:
        try:
            ends.put(program(raising))
        except BaseException as error:  # noqa: BLE001  # that is what is looked at
            ends.put(error)

    caplog.clear()
    thread = ServiceThread(target=run, name="program")
    thread.start()
    try:
        end = ends.get(timeout=60)
    except queue.Empty:
        pytest.fail(f"the program hangs after {kind.__name__}")
    thread.join(30)
    assert raising.called, end
    told = [caplog.text]
    if isinstance(end, BaseException):
        told += [
            *traceback.format_exception(end),
            getattr(end, "worker_traceback", "") or getattr(end, "part_traceback", ""),
        ]
        said, warnings = error_text(end), ()
    else:
        said, warnings = "ended normally", getattr(end, "warnings", ())
    return Came(
        _in_general(said, kind),
        tuple(_in_general(warning, kind) for warning in warnings),
        "in boom" in "".join(told) and TEXT in "".join(told),
    )


def _in_general(text: str, kind: type[BaseException]) -> str:
    """Return a text without the name of the error, those of run and workers, which are drawn, and the round.

    The slots of a round are asked for by master and workers, and only the master names run and round.
    """
    text = re.sub(r"run-[0-9a-f]{8}|\S+-\d+-[0-9a-f]{8}-\d+", "...", text.replace(kind.__name__, "the error"))
    return re.sub(r"run \.\.\., round \d+: ", "", text)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.everyday(9)
def test_what_ends_a_thread_is_a_failure_of_the_part_that_raised_it(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    usual = outcome(PARTS[part], ValueError, caplog)
    assert usual.has_traceback
    for kind in EXITS:
        assert outcome(PARTS[part], kind, caplog) == usual, kind.__name__
