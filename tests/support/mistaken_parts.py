"""Mistakes in a user's ``JobIterator``, ``JobAggregator`` and ``Plan``, and the error message for each.

    python -m tests.support.mistaken_parts MISTAKE ZOOKEEPER TRACKER CLUSTER_NAME

The process is the master of a run with that mistake on a cluster, as a program is: what it dies of is its own matter.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dl4jlegacy import (
    ActorNetworkRunner,
    CollectingAggregator,
    CollectionJobIterator,
    Conf,
    DataSet,
    Phase,
    Plan,
    Result,
    SlotPlan,
    register_performer,
)

__all__ = ["MISTAKES", "Lines", "Mistake", "Total", "run"]

PLAN: dict[str, Any] = {"batches": 4, "examples": 4, "batch_size": 1, "jobs_per_round": 2}


def plan(**changed: Any) -> Plan:
    return Plan(**{"phases": (Phase(kind="lines"),), **PLAN, **changed})


class Lines:
    """A good ``JobIterator``: the number of each batch, and whatever ``asked`` makes of its slot instead."""

    def __init__(self, asked: Callable[[SlotPlan], Any] = lambda slot: slot.first, **changed: Any) -> None:
        self.plan = plan(**changed)
        self._asked = asked

    def work(self, slot: SlotPlan) -> Any:
        return self._asked(slot)


class Sum:
    """A good ``Aggregation`` of values, whose methods may be others."""

    def __init__(self, total: Any, methods: dict[str, Any]) -> None:
        self.total = total
        for name, method in methods.items():
            setattr(self, name, method)

    def add(self, updates: Any) -> None:
        self.total += sum(Result.decode(update).values["value"] for update in updates)

    def finish(self, *, ends_phase: bool) -> tuple[Any, float | None]:
        return Result({"value": self.total}).encode(), None


class Total:
    """A good ``JobAggregator``, whose aggregation may have other methods."""

    def __init__(self, **methods: Any) -> None:
        self._methods = methods

    def begin(self, model: Any, *, version: int, examples: Any) -> Sum:
        return Sum(Result.decode(model).values["value"], self._methods)


@register_performer("squares")
class Squares:
    """A good performer, or what returns other values."""

    def __init__(self, conf: Conf, kernels: object) -> None:
        self.progress = 0

    def update(self, model: Result) -> None:
        """The total so far is of no use."""

    def perform(self, job: Any) -> Result:
        self.progress += 1
        return Result({"value": 1, "examples": 1})


class NoMethod:
    plan = plan()


class NoPlan:
    work = Lines.work


class TakesTwo(Lines):
    def work(self, round: int, slot: int) -> Any:  # type: ignore[override]
        return round


class TakesNothing(Lines):
    def work(self) -> Any:  # type: ignore[override]
        return 1


class Yields(Lines):
    def work(self, slot: SlotPlan) -> Any:
        yield slot.first


class OwnPlan(Plan):  # type: ignore[misc]
    pass


class ChangedPlan(Lines):
    def __init__(self) -> None:
        self.plan = OwnPlan(phases=(Phase(),), **PLAN)


class NoBegin:
    pass


class Positional:
    def begin(self, model: Any, version: int) -> Any: ...


class Begins:
    """Begins with what a function returns."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin

    def begin(self, model: Any, *, version: int, examples: Any) -> Any:
        return self._begin()


class Adds:
    def add(self, updates: Any) -> None: ...


def generator(*args: Any, **named: Any) -> Any:
    yield 1


def no_licence(*args: Any, **named: Any) -> Any:
    sys.exit("no licence")


def divides(*args: Any, **named: Any) -> Any:
    return 1 / 0


def writes(updates: Any) -> None:
    updates[0][0] = 0


def made(frame: Any, score: Any = None) -> Total:
    return Total(finish=lambda *, ends_phase: (frame, score))


BATCH = DataSet(np.zeros((1, 2), np.float32), np.zeros((1, 1), np.float32))
COUNTS = itertools.count()


class Mistake(NamedTuple):
    """What is wrong: the jobs, the aggregator, and how a message about it goes; the code of the error."""

    words: str
    jobs: Callable[[], Any] = Lines
    aggregator: Callable[[], Any] = Total
    first: Any = Result({"value": 0})
    code: str = "DL4J-CONTRACT"


def lines(words: str, asked: Callable[[SlotPlan], Any]) -> Mistake:
    return Mistake(words, lambda: Lines(asked))


def jobs(words: str, jobs: Callable[[], Any], code: str = "DL4J-CONTRACT") -> Mistake:
    return Mistake(words, jobs, code=code)


def folding(words: str, aggregator: Callable[[], Any], code: str = "DL4J-CONTRACT") -> Mistake:
    return Mistake(words, aggregator=aggregator, code=code)


def fold(words: str, function: Any, code: str = "DL4J-CONTRACT") -> Mistake:
    return folding(words, lambda: CollectingAggregator(function), code)


WORK, PLACE = r"Lines\.work, for round 0, slot 0,", r"\(mistaken_parts\.py, line \d+\)"
MISTAKES = {
    "no plan": jobs(
        r"NoPlan is no JobIterator: that has a Plan, as plan, and a method work\(slot\)", NoPlan, "DL4J-CONF"
    ),
    "no work": jobs(r"NoMethod is no JobIterator: that has .* a method work\(slot\)", NoMethod, "DL4J-CONF"),
    "jobs are a class": jobs("the class Lines is no JobIterator", lambda: Lines, "DL4J-CONF"),
    "plan of a class of one's own": jobs(r"ChangedPlan\.plan is OwnPlan, .* make it with Plan\(", ChangedPlan),
    "plan with 40 examples": jobs(
        "Lines.plan has 4 batches of 1, and 40 examples are 40; one of", lambda: Lines(examples=40), "DL4J-CONF"
    ),
    "plan of texts": jobs(r"Plan\.batches is '4'; it must be a whole number", lambda: Lines(batches="4"), "DL4J-CONF"),
    "phases are a list": jobs(r"Plan\.phases is \[Phase.* a tuple", lambda: Lines(phases=[Phase()]), "DL4J-CONF"),
    "phase of a text": jobs(
        r"Phase\.epochs is '2'; it must be a whole",
        lambda: Lines(phases=(Phase(epochs="2"),)),
        "DL4J-CONF",  # type: ignore[arg-type]
    ),
    "work without slot": jobs(r"TakesNothing\.work takes \(\), and a run calls it as work\(slot\): too", TakesNothing),
    "work of two": jobs(r"TakesTwo\.work takes \(round, slot\), .* as work\(slot\): missing .* 'slot'", TakesTwo),
    "work is a generator": jobs(r"Yields\.work, for round 0, slot 0, returned generator; it must be a list of", Yields),
    "work is None": lines(rf"{WORK} returned None; it must be a list of DataSets", lambda slot: None),
    "work is a set": lines(rf"{WORK} returned set; it must be", lambda slot: {1}),
    "work is an array": lines(rf"{WORK} returned ndarray; it must be", lambda slot: np.arange(3)),
    "work has numbers as keys": lines(rf"{WORK} returned dict, and it has the key 1 of type int", lambda slot: {1: 2}),
    "work is too large": lines(rf"{WORK} returned str, and it has 2\d+ bytes, .*limit", lambda slot: "x" * 2_000_000),
    "work is one batch": lines(rf"{WORK} returned DataSet; .*: give \[data\], a list of one", lambda slot: BATCH),
    "work is mixed": lines(rf"{WORK} returned list, and it\[0\] has a value of type DataSet", lambda slot: [BATCH, 1]),
    "work raises": lines(rf"{WORK} raised ZeroDivisionError: division by zero {PLACE}", divides),
    "work exits": lines(rf"{WORK} raised SystemExit: no licence {PLACE}", no_licence),
    "work changes": lines(r"Lines\.work, for round \d, slot \d, returned other work than", lambda slot: next(COUNTS)),
    "items are a text": jobs("CollectionJobIterator got str", lambda: CollectionJobIterator("abc"), "DL4J-DATA"),
    "items are none": jobs("CollectionJobIterator got no item", lambda: CollectionJobIterator([]), "DL4J-DATA"),
    "an item is a set": jobs(
        r"CollectionJobIterator\.work, for round 0, slot 0, returned set", lambda: CollectionJobIterator([{1}])
    ),
    "aggregator is a class": folding("Total is a class, and an aggregator is an object: give Total", lambda: Total),
    "aggregator is a function": folding(r"divides has no method begin; an aggregator has begin\(", lambda: divides),
    "no begin": folding(r"NoBegin has no method begin; an aggregator has begin\(model, version=\.\.\., ex", NoBegin),
    "begin of two": folding(r"Positional\.begin takes \(model, version\), .* keyword argument 'examples'", Positional),
    "begin returns nothing": folding(r"Begins\.begin returned NoneType; it must be", lambda: Begins(lambda: None)),
    "no finish": folding(r"Begins\.begin returned Adds; it must be an Aggregation", lambda: Begins(Adds)),
    "begin raises": folding(
        rf"Begins\.begin raised ZeroDivisionError: division by zero {PLACE}", lambda: Begins(divides)
    ),
    "add of none": folding(r"Sum\.add takes \(\), and a run calls it as add\(updates\)", lambda: Total(add=lambda: 1)),
    "add raises": folding(rf"Sum\.add raised ZeroDivisionError: .* {PLACE}", lambda: Total(add=divides)),
    "add is a generator": folding(r"Sum\.add returned generator: nothing was added", lambda: Total(add=generator)),
    "add writes": folding(
        rf"Sum\.add raised TypeError: cannot modify read-only memory {PLACE}", lambda: Total(add=writes)
    ),
    "finish of none": folding(r"Sum\.finish takes \(\), .* 'ends_phase'", lambda: Total(finish=lambda: None)),
    "finish raises": folding(rf"Sum\.finish raised ZeroDivisionError: .* {PLACE}", lambda: Total(finish=divides)),
    "finish exits": folding(rf"Sum\.finish raised SystemExit: no licence {PLACE}", lambda: Total(finish=no_licence)),
    "finish is a generator": folding(r"Sum\.finish returned generator; it must be", lambda: Total(finish=generator)),
    "finish gives no score": folding(
        r"Sum\.finish returned memoryview; it must be the model's frame and its score",
        lambda: Total(finish=lambda *, ends_phase: Result({"value": 1}).encode()),
    ),
    "finish gives a Result": folding(r"Sum\.finish returned no model, but Result", lambda: made(Result({"value": 1}))),
    "finish gives other bytes": folding(r"Sum\.finish returned no model, but bytes", lambda: made(b"abc")),
    "score is a word": folding(
        "returned the score 'good'; it must be a number", lambda: made(Result({}).encode(), "good")
    ),
    "model with NaN": folding(
        r"Sum\.finish returned NaN", lambda: made(Result({"value": float("nan")}).encode()), "DL4J-NOTFINITE"
    ),
    "fold of one": fold(
        r"CollectingAggregator's fold takes \(total\), .* as fold\(total, value\)", lambda total: total
    ),
    "fold is a number": fold(r"CollectingAggregator's fold is 3; it must be a function", 3),
    "fold returns nothing": fold(r"<lambda>, CollectingAggregator's fold, returned None", lambda total, value: None),
    "fold raises": fold(rf"divides, CollectingAggregator's fold, raised ZeroDivisionError: .* {PLACE}", divides),
    "fold makes a set": fold(r"fold, returned set; it must return a JSON value", lambda total, value: {1}),
    "first model without a value": Mistake(
        r"first_model has the values \[\], and CollectingAggregator begins with 'value'",
        aggregator=lambda: CollectingAggregator(lambda total, value: total + value),
        first=Result({}),
        code="DL4J-CONF",
    ),
    "first model is a dict": Mistake(
        "need an aggregator and a first_model, which is a Result", first={}, code="DL4J-CONF"
    ),
}


def run(mistake: Mistake, **where: Any) -> Any:
    """Run the jobs with the mistake, in this process or at the servers of ``where``; return the model's value."""
    with ActorNetworkRunner(
        "master", mistake.jobs(), aggregator=mistake.aggregator(), first_model=mistake.first, **where
    ) as runner:
        runner.setup(Conf(workers=2, performer="squares", run="mistaken" if where else ""))
        result = runner.train(deadline=60)
        assert result is not None
        return result.model.values["value"]


if __name__ == "__main__":
    name, zookeeper, tracker, cluster_name = sys.argv[1:]
    run(MISTAKES[name], zookeeper=zookeeper, tracker=tracker, cluster_name=cluster_name)
