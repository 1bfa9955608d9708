"""Job aggregators: how updates become the next model version. Arithmetic only, always in slot order.

An aggregation takes updates one at a time or in groups, as they arrive, so the caller never needs more than one of
them in memory. The resulting bits do not depend on the grouping.

Legacy: ``JobAggregator`` and ``INDArrayAggregator``, whose mean was unweighted, aliased the first worker's array and
was never reset. Here every aggregation starts from the model it is given and returns a new frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

import numpy as np

from dl4jlegacy import wire
from dl4jlegacy.backend import Array
from dl4jlegacy.errors import JobError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.batch_evaluation import BatchEvaluation, merge_evaluations
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.records import Figures
from dl4jlegacy.scaleout.store import Buffer

__all__ = [
    "RATES",
    "Aggregation",
    "CollectedEvaluations",
    "CollectingAggregator",
    "DeltaAggregator",
    "JobAggregator",
    "ParameterAveragingAggregator",
    "UpdateSum",
    "ValidationAggregation",
    "aggregate",
    "evaluation_in",
    "frame_like",
    "result_of",
]

PARAMS, STATE = "params", "updater_state"


class Aggregation(Protocol):
    """The next model version while it is being made. Used by one thread."""

    def add(self, updates: Sequence[Buffer]) -> None:
        """Fold the next updates, in slot order; they may be released afterwards."""
        ...

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """Return the next model's frame and score, the mean score of the updates weighted by examples.

        ``ends_phase`` means that the next job belongs to another phase, whose updater state starts at zero. A frame
        that is the very model with which the aggregation began is not written again, nor read by who has it.
        """
        ...


class JobAggregator(Protocol):
    """Makes the next model from the current one and some updates."""

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """Start an aggregation onto ``model`` with number ``version``. Runs on the master's thread.

        ``examples`` has the number of examples of each update that will be added, in the same order.
        """
        ...


def aggregate(
    aggregator: JobAggregator, model: Buffer, updates: Sequence[Buffer], *, version: int, ends_phase: bool
) -> tuple[Buffer, float | None]:
    """Return the next model's frame and score from all updates at once, weighted by their own example counts."""
    examples = [int(Result.decode(update).values.get("examples", 1)) for update in updates]
    begun = aggregator.begin(model, version=version, examples=examples)
    begun.add(updates)
    return begun.finish(ends_phase=ends_phase)


class _Score:
    """The mean score of updates, weighted by examples; None if no update has a score."""

    def __init__(self) -> None:
        self._sum, self._examples = 0.0, 0

    def add(self, values: Any) -> None:
        if values.get("score") is not None:
            self._sum += values["score"] * values["examples"]
            self._examples += values["examples"]

    def mean(self) -> float | None:
        return self._sum / self._examples if self._examples else None


class ParameterAveragingAggregator:
    """The mean of the workers' parameters, and of their updater states, weighted by examples.

    ``weighted=False`` gives the plain mean of the original. Source: Su and Chen 2015 (arXiv 1507.01239); DL4J's
    ``ParameterAveragingTrainingMaster``. With ``pool``, large vectors use all cores; the bits are the same.
    """

    def __init__(self, kernels: Kernels, *, weighted: bool = True, pool: Executor | None = None) -> None:
        self._kernels, self._weighted, self._pool = kernels, weighted, pool

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        total = sum(examples) if self._weighted else len(examples)
        weights = [float(count if self._weighted else 1) / total for count in examples]
        return _Average(self._kernels, self._pool, model, weights)


class _Average:
    """The weighted mean; product and sum are rounded separately, so that it can be split between any two updates."""

    def __init__(self, kernels: Kernels, pool: Executor | None, model: Buffer, weights: Sequence[float]) -> None:
        self._kernels, self._pool, self._model, self._weights = kernels, pool, model, weights
        start = Result.decode(model)
        self._frame, self._arrays = frame_like(start.values, start.arrays)
        self._added, self._score = 0, _Score()
        self._names: frozenset[str] = frozenset()

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        results = [Result.decode(frame) for frame in updates]
        weights = self._weights[self._added : self._added + len(results)]
        if self._added == 0:
            self._names = frozenset(results[0].arrays) & frozenset(self._arrays)
        for name in self._names:
            out, vectors = self._arrays[name], [r.arrays[name] for r in results]
            if self._added:
                self._kernels.weighted_sum([out, *vectors], [1.0, *weights], out, self._pool)
            else:
                self._kernels.weighted_sum(vectors, weights, out, self._pool)
        for result in results:
            self._score.add(result.values)
        self._added += len(results)

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        if self._added != len(self._weights):
            raise JobError(f"{self._added} updates were folded where {len(self._weights)} were announced")
        before = Result.decode(self._model).arrays
        for name, out in self._arrays.items():
            if name == STATE and ends_phase:
                out[:] = 0
            elif name not in self._names:
                out[:] = before[name]
        return self._frame, self._score.mean()


RATES = ("staleness", "constant")
"""By what an update is multiplied before it is added: by one divided by its staleness, or by one."""


class DeltaAggregator:
    """Adds the updates' deltas, each multiplied by its rate. For asynchronous strategies.

    Source: Zhang, Gupta, Lian, Liu 2015 (arXiv 1511.05950): alpha(tau) = alpha / tau for tau > 0. The staleness of an
    update is the number of versions between the one it started from and the current one. The updater state moves
    towards the worker's by the same factor, so it always stays within the range of the workers' states.

    Args:
        rate: one of ``RATES``.
        together: whether the mean of the deltas is added, instead of one after another, of which each is staler by one
            than the one before it.
    """

    def __init__(self, kernels: Kernels, *, rate: str = "staleness", together: bool = False) -> None:
        self._kernels, self._rate, self._together = kernels, rate, together

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        kind = _MeanDelta if self._together else _Deltas
        return kind(self._kernels, model, version, rate=self._rate, count=len(examples))


class _Deltas:
    """The model with the deltas that have been added so far."""

    def __init__(self, kernels: Kernels, model: Buffer, version: int, *, rate: str, count: int) -> None:
        self._kernels, self._version, self._rate, self._count = kernels, version, rate, count
        current = Result.decode(model)
        self._frame, self._arrays = frame_like(current.values, current.arrays)
        for name, out in self._arrays.items():
            out[:] = current.arrays[name]
        self._added, self._score = 0, _Score()

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        for frame in updates:
            result = Result.decode(frame)
            self._fold(result, self._version - int(result.values["version"]))
            self._score.add(result.values)
            self._added += 1

    def _fold(self, result: Result, staleness: int) -> None:
        """Add one update."""
        factor = self._factor(staleness + self._added)
        self._kernels.axpy(self._arrays[PARAMS], result.arrays["delta"], factor)
        if STATE in result.arrays and STATE in self._arrays:
            state = self._arrays[STATE]
            self._kernels.weighted_sum([state, result.arrays[STATE]], [1 - factor, factor], state)

    def _factor(self, staleness: int) -> float:
        return 1.0 / max(1, staleness) if self._rate == "staleness" else 1.0

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        if ends_phase and STATE in self._arrays:
            self._arrays[STATE][:] = 0
        return self._frame, self._score.mean()


class _MeanDelta(_Deltas):
    """The model with the mean of the deltas, of which some have been added so far."""

    def __init__(self, kernels: Kernels, model: Buffer, version: int, *, rate: str, count: int) -> None:
        super().__init__(kernels, model, version, rate=rate, count=count)
        state = self._arrays.get(STATE)
        self._states = None if state is None else np.zeros_like(state)
        self._weights = 0.0

    def _fold(self, result: Result, staleness: int) -> None:
        """Add one update."""
        weight = self._factor(staleness) / self._count
        self._kernels.axpy(self._arrays[PARAMS], result.arrays["delta"], weight)
        if STATE in result.arrays and self._states is not None:
            self._kernels.axpy(self._states, result.arrays[STATE], weight)
            self._weights += weight

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        if self._states is not None:
            state = self._arrays[STATE]
            self._kernels.weighted_sum([state, self._states], [1 - self._weights, 1.0], state)
        return super().finish(ends_phase=ends_phase)


class UpdateSum:
    """The model to whose parameters some updates have been added, in slot order. An ``Aggregation``.

    The rest of the model stays as it is.

    Args:
        model: the version that they are added to.
        add: adds what an update says to the parameters, in place.
    """

    def __init__(self, model: Buffer, add: Callable[[Array, Result], None]) -> None:
        current = Result.decode(model)
        self._frame, self._arrays = frame_like(current.values, current.arrays)
        for name, out in self._arrays.items():
            out[:] = current.arrays[name]
        self._add, self._score = add, _Score()

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        for frame in updates:
            result = Result.decode(frame)
            self._add(self._arrays[PARAMS], result)
            self._score.add(result.values)

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        return self._frame, self._score.mean()


class CollectingAggregator:
    """Folds JSON values with a function of the caller's: ``fold(total, value) -> total``. For jobs without a network.

    The total of the whole run is the model, whose first value is ``first_model``'s.
    """

    def __init__(self, fold: Callable[[Any, Any], Any]) -> None:
        self._fold = fold

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        return _Collection(self._fold, Result.decode(model).values["value"])


class _Collection:
    """The total so far."""

    def __init__(self, fold: Callable[[Any, Any], Any], total: Any) -> None:
        self._fold, self._total, self._score = fold, total, _Score()

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        for frame in updates:
            values = Result.decode(frame).values
            self._total = self._fold(self._total, values["value"])
            self._score.add(values)

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        return Result({"value": self._total}).encode(), self._score.mean()


class CollectedEvaluations:
    """The evaluations in updates so far. Part of an ``Aggregation``."""

    def __init__(self) -> None:
        self.parts: list[BatchEvaluation] = []

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        self.parts += [evaluation_in(Result.decode(frame)) for frame in updates]


class ValidationAggregation(CollectedEvaluations):
    """Merges the evaluations of a validation round; the model stays as it is.

    Args:
        label_scales: as for ``Validation``.
    """

    def __init__(self, label_scales: tuple[float, ...] = ()) -> None:
        super().__init__()
        self._label_scales = label_scales

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """Not to be called: there is no new model."""
        raise JobError("a validation round makes no model")

    def figures(self) -> Figures:
        """Return what all updates together say."""
        merged = merge_evaluations(self.parts)
        if self._label_scales:
            merged = merged.in_units(self._label_scales, 0.0, ())
        return Figures(loss=merged.loss, examples=sum(part.examples for part in self.parts), **merged.metrics())


def evaluation_in(result: Result) -> BatchEvaluation:
    """Return the evaluation in the result of a validation job."""
    losses = tuple(float(loss) for loss in result.values["losses"])
    confusion = result.arrays.get("confusion")
    regressions = tuple(state.copy() for state in result.arrays.get("regressions", ()))
    confusion = None if confusion is None else confusion.copy()
    binary = result.arrays.get("binary")
    binary = None if binary is None else binary.copy()
    return BatchEvaluation(losses, int(result.values["examples"]), confusion, regressions, binary)


def result_of(parts: Sequence[BatchEvaluation]) -> Result:
    """Return the result of a validation job from the evaluations of its batches, in their order."""
    counts = [part.confusion for part in parts if part.confusion is not None]
    losses = [loss for part in parts for loss in part.losses]
    arrays = {"confusion": np.asarray(np.sum(counts, axis=0, dtype=np.int64))} if counts else {}
    states = [state for part in parts for state in part.regressions]
    if states:
        arrays["regressions"] = np.stack(states)
    answers = [part.binary for part in parts if part.binary is not None]
    if answers:
        arrays["binary"] = np.asarray(np.sum(answers, axis=0, dtype=np.int64))
    return Result({"losses": losses, "examples": sum(part.examples for part in parts)}, arrays)


def frame_like(values: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[Buffer, dict[str, Array]]:
    """Return a new frame with ``values`` and with arrays of these names, types and shapes, which are not filled."""
    return wire.allocate(values, {name: (np.dtype(array.dtype).str, array.shape) for name, array in arrays.items()})
