"""The checks of ``dl4jlegacy.testing``: all of this package's parts pass, and each check is seen to fail."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import (
    CollectingAggregator,
    Conf,
    DataSet,
    DigitsDataSetIterator,
    HogWildWorkRouter,
    IrisDataSetIterator,
    IterativeReduceWorkRouter,
    Job,
    ListDataSetIterator,
    Result,
)
from dl4jlegacy.errors import ContractError, DataError, Dl4jError, JobError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.scaleout.actors.worker_pool import network_performer
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.job import DataSetJobIterator
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.strategies import STRATEGIES, create_router
from dl4jlegacy.testing import check_aggregator, check_iterator, check_performer, check_strategy

# --- ours -------------------------------------------------------------------------------------------------------------

CHAINS = [(name, {"asynchronous": True}) for name in ("easgd", "gradient-sharing")]
OURS: list[tuple[str, dict[str, Any]]] = [*((name, {}) for name in STRATEGIES), *CHAINS]


@pytest.mark.parametrize(("name", "args"), OURS, ids=lambda value: value if isinstance(value, str) else "+".join(value))
@pytest.mark.everyday(5)
def test_all_strategies_of_the_package_pass(name: str, args: dict[str, Any]) -> None:
    check_strategy(create_router(name, args, jobs_per_round=4), schedules=8)


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - {"gradient-sharing"}))
def test_all_aggregators_of_the_package_pass(name: str) -> None:
    model = None
    if name == "bmuf":
        vector = np.arange(12, dtype=np.float32)
        model = Result({}, {"params": vector, "updater_state": vector, "momentum": vector})
    check_aggregator(create_router(name, jobs_per_round=4).fold(load("numpy")), model)


def test_a_total_passes() -> None:
    add = CollectingAggregator(lambda total, value: total + value)
    check_aggregator(add, Result({"value": 0}), [Result({"value": value}) for value in range(4)])


@pytest.mark.parametrize("shares", ["iterative-reduce", "hogwild"])
def test_the_performer_of_networks_passes(shares: str) -> None:
    conf = Conf(multi_layer_conf=zoo.mlp(4, 3), router=shares)
    network = build_network(conf.multi_layer_conf, load("numpy"))
    network.init()
    jobs = DataSetJobIterator(IrisDataSetIterator(32), jobs_per_round=2, averaging_frequency=2)
    check_performer(network_performer, jobs, first_model(network), conf=conf)


@pytest.mark.parametrize("data", [IrisDataSetIterator(16), DigitsDataSetIterator(100)], ids=["iris", "digits"])
def test_iterators_of_the_package_pass(data: Any) -> None:
    check_iterator(data)
    check_iterator([data.batch(0, 0), data.batch(0, 1)])
    check_iterator(data.batch(0, index) for index in range(2))


# --- routers that are broken ------------------------------------------------------------------------------------------


class OpensFolded(HogWildWorkRouter):
    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return list(range(min(4, plan.total_slots)))


class LeavesTheLastOut(IterativeReduceWorkRouter):
    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return [number for number in super().open_slots(plan, head) if number != plan.total_slots - 1]


class OpensByChance(HogWildWorkRouter):
    """Opens more or fewer slots each time that it is asked."""

    counts = itertools.cycle((2, 3))

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return super().open_slots(plan, head)[: next(self.counts)]


class FoldsTwice(HogWildWorkRouter):
    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        ready = super().send_work(opened, done)
        return ready[:1] + ready


class FoldsByChance(HogWildWorkRouter):
    sizes = itertools.cycle((1, 0))

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        return super().send_work(opened, done)[: next(self.sizes)]


class NeverFolds(IterativeReduceWorkRouter):
    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        return []


class FoldsTooFarAhead(IterativeReduceWorkRouter):
    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        return sorted(done)


class PromisesTooMuch(HogWildWorkRouter):
    """Says that what is done may be folded ahead, and then does not fold all that is open."""

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        ready = super().send_work(opened, done)
        return ready if len(ready) > 1 or len(opened) == 1 else []

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        return [opened[0]] if opened[0] in done else []


class DependsOnTiming(HogWildWorkRouter):
    """Folds whatever is done, though its jobs are bound to the model."""

    binds_model = True

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        return sorted(done)


@pytest.mark.parametrize(
    ("router", "words"),
    [
        (OpensFolded(), r"OpensFolded\.open_slots has opened slot \d+, .* again.*schedule \d+ of Plan"),
        (LeavesTheLastOut(), r"LeavesTheLastOut\.open_slots has left out slot"),
        (OpensByChance(), r"OpensByChance\.open_slots answers .* and then another way"),
        (FoldsTwice(), r"FoldsTwice\.send_work returned .*each once"),
        (FoldsByChance(), r"FoldsByChance\.send_work answers .* and then another way"),
        (NeverFolds(), r"NeverFolds\.send_work folds nothing, and all open slots are done"),
        (FoldsTooFarAhead(), r"FoldsTooFarAhead\.fold_ahead returned"),
        (PromisesTooMuch(), r"PromisesTooMuch\.fold_ahead returned .* and send_work then"),
        (DependsOnTiming(), "DependsOnTiming binds jobs to the model, and its answer depends on who does which job"),
        (object(), "object has no method open_slots"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_router_that_breaks_its_contract_is_named(router: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        check_strategy(router)


# --- aggregators ------------------------------------------------------------------------------------------------------


class Folding:
    """Aggregates with a function of (model, updates, rounds so far), which gives the parameters."""

    def __init__(self, fold: Any, *, each: bool = False) -> None:
        self.fold, self.each, self.rounds = fold, each, 0

    def begin(self, model: Any, *, version: int, examples: Sequence[int]) -> Any:
        outer, self.rounds = self, self.rounds + 1

        class Sum:
            def __init__(self) -> None:
                self.groups: list[Any] = []

            def add(self, updates: Sequence[Any]) -> None:
                copies = updates if outer.each else [bytes(update) for update in updates]
                self.groups.append([Result.decode(each).arrays["params"] for each in copies])

            def finish(self, *, ends_phase: bool) -> Any:
                begun = Result.decode(model)
                params = outer.fold(begun.arrays["params"], self.groups, outer.rounds)
                return Result({}, {**begun.arrays, "params": params}).encode(), None

        return Sum()


def total(model: Any, groups: Any, rounds: int) -> Any:
    return np.sum([params for group in groups for params in group], axis=0, dtype=np.float32)


@pytest.mark.parametrize(
    ("aggregator", "words"),
    [
        (Folding(lambda m, groups, rounds: total(m, groups, 0) * rounds), r"Folding\.begin makes another model"),
        (
            Folding(lambda m, groups, rounds: groups[-1][-1] * len(groups)),
            r"Folding: .* in groups of \[1, 1, 1, 1",
        ),
        (Folding(total, each=True), r"Folding\.begin makes another model .* or look at updates after add"),
        (Folding(lambda m, groups, rounds: total(m, groups, 0)[:3]), r"Sum\.finish returned params of the form"),
        (Folding(lambda m, groups, rounds: total(m, groups, 0) * np.nan), r"Sum\.finish returned NaN"),
    ],
    ids=["remembers", "depends on groups", "keeps updates", "other form", "NaN"],
)
def test_an_aggregator_that_breaks_its_contract_is_named(aggregator: Any, words: str) -> None:
    check_aggregator(Folding(total))
    with pytest.raises(Dl4jError, match=words):
        check_aggregator(aggregator)


# --- performers -------------------------------------------------------------------------------------------------------


class Adds:
    """Adds a number to the model's; its subclasses do it wrong."""

    def __init__(self, conf: Conf, kernels: Any) -> None:
        self.progress, self.kept = 0, np.zeros(2)

    def update(self, model: Result) -> None:
        self.kept = np.array(model.arrays["kept"])

    def perform(self, job: Job) -> Any:
        self.progress += 1
        return Result({"value": job.work}, {"kept": self.kept + job.work})


class Remembers(Adds):
    def perform(self, job: Job) -> Any:
        return Result({"value": job.work}, {"kept": super().perform(job).arrays["kept"] + self.progress})


class KeepsTheView(Adds):
    def update(self, model: Result) -> None:
        self.kept = model.arrays["kept"]


class DrawsAtRandom(Adds):
    def perform(self, job: Job) -> Any:
        return Result({"value": random.random()})


class ReturnsNothing(Adds):
    def perform(self, job: Job) -> Any:
        return None


MODEL = Result({}, {"kept": np.array([1.0, 2.0])})


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (Remembers, ContractError, r"Remembers\.perform: a performer that has done others returns something else"),
        (KeepsTheView, ContractError, r"KeepsTheView\.perform: .* or keep arrays of the model that update\(\) did not"),
        (DrawsAtRandom, ContractError, r"DrawsAtRandom\.perform: a performer that has done others"),
        (ReturnsNothing, JobError, r"ReturnsNothing\.perform returned NoneType, and not a Result"),
        (functools.partial(lambda one, conf, kernels: one, Adds(Conf(), None)), ContractError, "the same performer"),
    ],
)
def test_a_performer_that_breaks_its_contract_is_named(make: Any, error: type[Dl4jError], words: str) -> None:
    check_performer(Adds, [1, 2, 3], MODEL)
    with pytest.raises(error, match=words):
        check_performer(make, [1, 2, 3], MODEL)


# --- iterators --------------------------------------------------------------------------------------------------------


class Shrinks(IrisDataSetIterator):
    def batch(self, epoch: int, index: int) -> Any:
        batch = super().batch(epoch, index)
        return batch.rows(0, batch.num_examples - epoch)


class ShufflesAgain(IrisDataSetIterator):
    def batch(self, epoch: int, index: int) -> Any:
        batch = super().batch(epoch, index)
        order = np.random.default_rng().permutation(batch.num_examples)
        return DataSet(batch.features[order], batch.labels[order])


class Short(ListDataSetIterator):
    """Its walk ends early on the second pass."""

    passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return itertools.islice(super().__iter__(), None if self.passes == 1 else 1)


class Pairs:
    """An iterable that has fewer rows on its second pass."""

    rows = 5

    def __iter__(self) -> Any:
        self.rows -= 1
        return iter([(np.zeros((self.rows, 2)), np.zeros((self.rows, 1)))])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Shrinks(16), r"Shrinks\.batch\(1, 0\) returned 15 examples, and not 16"),
        (ShufflesAgain(16), r"ShufflesAgain\.batch\(\d, \d+\) returns other rows when it is asked for again"),
        (Short(IrisDataSetIterator(150).batch(0, 0), 50), r"Short: pass 2 over it gave 50 rows"),
        (Pairs(), r"Pairs: pass 2 over it gave batches of \[1\] rows, and the first one of \[2\]"),
        (3, "int is no iterator of batches: it lacks batch, total_batches"),
    ],
)
def test_an_iterator_that_breaks_its_contract_is_named(data: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        check_iterator(data)
