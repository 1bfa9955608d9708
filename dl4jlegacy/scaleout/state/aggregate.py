"""Folds: how updates become the next model version. Arithmetic only, always in slot order.

An aggregation takes updates one at a time or in groups, as they arrive, so only one needs to be in memory. The bits do
not depend on the grouping.

Legacy: ``JobAggregator`` and ``INDArrayAggregator``, whose mean was unweighted, aliased the first worker's array and
was never reset. Here every aggregation starts from the model it is given and returns a new frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, ClassVar, Protocol

import numpy as np

from dl4jlegacy.arrays import wire
from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.errors import ContractError, JobError, WireError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.batch_evaluation import BatchEvaluation, join_evaluations, merge_evaluations
from dl4jlegacy.nn.evaluation.packed import packed, unpacked
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.own_parts import check_callable, in_words, name_of, told
from dl4jlegacy.scaleout.state.records import Figures
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.updater_beginning import begin_state

__all__ = [
    "RATES",
    "Aggregation",
    "CollectedEvaluations",
    "CollectingAggregator",
    "DeltaAggregator",
    "Fold",
    "JobAggregator",
    "MeanScore",
    "ParameterAveragingAggregator",
    "UpdateSum",
    "ValidationAggregation",
    "aggregate",
    "aggregation_tree",
    "check_update",
    "copy_frame",
    "evaluation_in",
    "frame_like",
    "result_of",
]

PARAMS, STATE = "params", "updater_state"


class Aggregation(Protocol):
    """The computation of the next model version. Used by one thread."""

    def add(self, updates: Sequence[Buffer]) -> None:
        """Fold the next updates, in slot order; they may be released afterwards."""
        ...

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """Return the frame of the next model, and its score: the mean of the updates' scores, weighted by examples.

        ``ends_phase``: the next job belongs to another phase and starts from a new updater state. (If a user's own
        aggregator leaves the old state of a network's model, the run replaces it.) If the returned frame is the very
        object that the aggregation started from, it is not written again.
        """
        ...


class JobAggregator(Protocol):
    """Makes the next model from the current one and some updates. A program may pass its own to a run."""

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """Start an aggregation onto ``model`` with number ``version``. Runs on the master's thread.

        ``examples`` has the number of examples of each update that will be added, in the same order.
        """
        ...


class Fold:
    """The ``JobAggregator`` of a strategy; used by workers and masters. A subclass must define ``begin``."""

    is_elementwise: ClassVar[bool] = False
    """Whether an element of the next model depends only on the same element of the model and of the updates.

    Then the slices of the model can be folded separately, each from the same slice of all updates (``slices.cut``), and
    joined to the bits of the whole (``slices.joined``).
    """
    works_in_place: ClassVar[bool] = False
    """Whether ``in_place`` saves the memory of a second model."""

    def check(self, update: Buffer, model: Buffer) -> None:
        """Raise ``WireError`` if an update cannot be folded into a model; both may be slices."""
        check_update(update, model)

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False) -> Aggregation:
        """See ``JobAggregator``. With ``in_place`` the callee owns the model and may overwrite it."""
        raise NotImplementedError

    def begin_group(self, *, examples: Sequence[int]) -> Aggregation:
        """Start to fold some updates into one update that represents all of them.

        Raises:
            JobError: this fold does not support that, which is the default.
        """
        raise JobError(f"{type(self).__name__} cannot fold a part of a round")

    def follow(
        self,
        model: Buffer,
        rounds: Iterable[tuple[Sequence[int], Sequence[Buffer]]],
        *,
        version: int,
        in_place: bool = False,
    ) -> Buffer:
        """Return the model after some rounds that do not end a phase.

        Args:
            model: the model with number ``version``.
            rounds: for each round the ``examples``, as for ``begin``, and the updates.
            in_place: as for ``begin``. If this method then raises, ``model`` is lost.
        """
        for number, (examples, updates) in enumerate(rounds, version):
            begun = self.begin(model, version=number, examples=examples, in_place=in_place)
            begun.add(updates)
            model, in_place = begun.finish(ends_phase=False)[0], True
        return model


def aggregation_tree(count: int, depth: int) -> list[list[range]]:
    """Return the levels of a tree that folds ``count`` updates in at most ``depth`` steps.

    Each level lists ranges of results of the previous level that are folded together; the first level has ranges of
    updates, and the last one a single range. No range is longer than the smallest ``width`` with ``width ** depth >=
    count``.

    Source: Spark's ``treeAggregate``; legacy: ``ParameterAveragingTrainingMaster.aggregationDepth``.
    """
    width = next(width for width in range(1, count + 1) if width**depth >= count)
    levels, left = [], count
    while left > width:
        groups = -(-left // width)
        levels.append([range(left * index // groups, left * (index + 1) // groups) for index in range(groups)])
        left = groups
    return [*levels, [range(left)]]


def check_update(update: Buffer, model: Buffer, update_kind: str = "") -> None:
    """Raise ``WireError`` if an update cannot be folded into a model.

    Args:
        update, model: their frames.
        update_kind: the array that the update of a network must have; "": any.
    """
    found, wanted = Result.decode(update), Result.decode(model).arrays
    if update_kind and PARAMS in wanted and update_kind not in found.arrays:
        raise WireError(f"it has the arrays {sorted(found.arrays)}, and no {update_kind}")
    for name, array in found.arrays.items():
        like = wanted.get(PARAMS if name == "delta" else name)
        if like is not None and (array.shape, array.dtype) != (like.shape, like.dtype):
            raise WireError(f"its {name} has the form {_form(array)}, and that of the model {_form(like)}")
    values = found.values
    if "delta" in found.arrays and type(values.get("version")) is not int:
        raise WireError(f"it says that it began with version {values.get('version')!r}; that must be a whole number")
    if values.get("score") is not None and not (
        isinstance(values["score"], int | float) and type(values.get("examples")) is int
    ):
        raise WireError(f"it has the score {values['score']!r} of {values.get('examples')!r} examples")


def _form(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"


def aggregate(
    aggregator: JobAggregator, model: Buffer, updates: Sequence[Buffer], *, version: int, ends_phase: bool
) -> tuple[Buffer, float | None]:
    """Return the frame and the score of the next model, from all updates at once and their own example counts."""
    examples = [int(Result.decode(update).values.get("examples", 1)) for update in updates]
    begun = aggregator.begin(model, version=version, examples=examples)
    if updates:
        begun.add(updates)
    return begun.finish(ends_phase=ends_phase)


class MeanScore:
    """The mean score of updates, weighted by examples; None if no update has a score."""

    def __init__(self) -> None:
        self._sum, self._examples = 0.0, 0

    def add(self, values: Any) -> None:
        """Add the score of an update, if its values have one."""
        if values.get("score") is not None:
            self._sum += values["score"] * values["examples"]
            self._examples += values["examples"]

    @property
    def examples(self) -> int:
        """Number of examples in the mean."""
        return self._examples

    def mean(self) -> float | None:
        """Return the mean score per example; None if no update has a score."""
        return self._sum / self._examples if self._examples else None


class ParameterAveragingAggregator(Fold):
    """The mean of the workers' parameters, and of their updater states, weighted by examples.

    ``weighted=False`` gives the plain mean of the original. Source: Su and Chen 2015 (arXiv 1507.01239); DL4J's
    ``ParameterAveragingTrainingMaster``. With ``pool``, large vectors use all cores; the bits are the same.
    """

    is_elementwise = True

    def __init__(self, kernels: Kernels, *, weighted: bool = True, pool: Executor | None = None) -> None:
        self._kernels, self._weighted, self._pool = kernels, weighted, pool

    def check(self, update: Buffer, model: Buffer) -> None:
        """See ``Fold``."""
        check_update(update, model, PARAMS)

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False) -> Aggregation:
        """See ``Fold``."""
        total = sum(examples) if self._weighted else len(examples)
        weights = [float(count if self._weighted else 1) / total for count in examples]
        return _Average(self._kernels, self._pool, model, weights)

    def begin_group(self, *, examples: Sequence[int]) -> Aggregation:
        """See ``Fold``."""
        total = sum(examples)
        return _GroupMean(self._kernels, self._pool, [count / total for count in examples])


class _Mean:
    """The weighted mean of updates.

    Product and sum are rounded separately, so the computation can be split between any two updates.
    """

    def __init__(self, kernels: Kernels, pool: Executor | None, weights: Sequence[float]) -> None:
        self._kernels, self._pool, self._weights = kernels, pool, weights
        self._means: dict[str, Array] = {}
        self._added, self._score = 0, MeanScore()

    def _begun(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return arrays for the means, with the names of the first update's arrays."""
        return {name: np.empty_like(array) for name, array in arrays.items()}

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        results = [Result.decode(frame) for frame in updates]
        weights = self._weights[self._added : self._added + len(results)]
        if self._added == 0:
            self._means = self._begun(results[0].arrays)
        for name, out in self._means.items():
            vectors = [result.arrays[name] for result in results]
            if self._added:
                self._kernels.weighted_sum([out, *vectors], [1.0, *weights], out, self._pool)
            else:
                self._kernels.weighted_sum(vectors, weights, out, self._pool)
        for result in results:
            self._score.add(result.values)
        self._added += len(results)

    def _check_all(self) -> None:
        if self._added != len(self._weights):
            raise JobError(f"{self._added} updates were folded, and {len(self._weights)} were announced")


class _Average(_Mean):
    """An ``Aggregation`` whose result, the mean, is the next model."""

    def __init__(self, kernels: Kernels, pool: Executor | None, model: Buffer, weights: Sequence[float]) -> None:
        super().__init__(kernels, pool, weights)
        self._before = Result.decode(model)
        self._frame, self._arrays = frame_like(self._before.values, self._before.arrays)

    def _begun(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {name: out for name, out in self._arrays.items() if name in arrays}

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        self._check_all()
        for name, out in self._arrays.items():
            if name == STATE and ends_phase:
                begin_state(self._before.values, out)
            elif name not in self._means:
                out[:] = self._before.arrays[name]
        return self._frame, self._score.mean()


class _GroupMean(_Mean):
    """An ``Aggregation`` whose result, the mean, is an update for all examples of the group."""

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """Return the update and its score; the phase makes no difference."""
        self._check_all()
        values = {"examples": self._score.examples, "score": self._score.mean()}
        return Result(values, self._means).encode(), self._score.mean()


RATES = ("staleness", "constant")
"""Rules for the factor of an update: 1 / its staleness, or 1."""


class DeltaAggregator(Fold):
    """Adds the deltas of updates, each multiplied by its rate. For asynchronous strategies.

    Source: Zhang, Gupta, Lian, Liu 2015 (arXiv 1511.05950): alpha(tau) = alpha / tau for tau > 0. The staleness of an
    update is the number of versions between the one it started from and the current one. The updater state moves
    towards the worker's state by the same factor, so it always stays within the range of the workers' states.

    Args:
        rate: one of ``RATES``.
        together: whether the mean of the deltas is added. If not, they are added one after the other, and each one
            increases the staleness of the following ones by one.
    """

    is_elementwise = True

    def __init__(self, kernels: Kernels, *, rate: str = "staleness", together: bool = False) -> None:
        self._kernels, self._rate, self._together = kernels, rate, together

    def check(self, update: Buffer, model: Buffer) -> None:
        """See ``Fold``."""
        check_update(update, model, "delta")

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False) -> Aggregation:
        """See ``Fold``."""
        kind = _MeanDelta if self._together else _Deltas
        return kind(self._kernels, model, version, rate=self._rate, count=len(examples))


class _Deltas:
    """The model with the deltas added so far."""

    def __init__(self, kernels: Kernels, model: Buffer, version: int, *, rate: str, count: int) -> None:
        self._kernels, self._version, self._rate, self._count = kernels, version, rate, count
        self._frame, self._arrays = copy_frame(model)
        self._values, self._added, self._score = Result.decode(model).values, 0, MeanScore()

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
            begin_state(self._values, self._arrays[STATE])
        return self._frame, self._score.mean()


class _MeanDelta(_Deltas):
    """The model with the mean of the deltas, as far as it has been added."""

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
    """A model with some updates added to its parameters, in slot order; the rest is unchanged. An ``Aggregation``.

    Args:
        model: the version that the updates are added to.
        add: adds an update to the parameters, in place.
        in_place: whether ``model`` may be overwritten.
    """

    def __init__(self, model: Buffer, add: Callable[[Array, Result], None], *, in_place: bool = False) -> None:
        self._frame, self._arrays = (model, wire.writable(model)) if in_place else copy_frame(model)
        self._add, self._score = add, MeanScore()

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        for frame in updates:
            result = Result.decode(frame)
            self._add(self._arrays[PARAMS], result)
            self._score.add(result.values)

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``."""
        return self._frame, self._score.mean()


class CollectingAggregator(Fold):
    """Folds JSON values with a user's function: ``fold(total, value) -> total``. For jobs without a network.

    The total is the model of the run; it starts from the value of ``first_model``.

    Raises:
        ContractError: ``fold`` cannot be called with two arguments; during a run: it raises, or returns None.
    """

    def __init__(self, fold: Callable[[Any, Any], Any]) -> None:
        check_callable(fold, "CollectingAggregator's fold", "fold(total, value)", None, None)
        self._fold = fold

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False) -> Aggregation:
        """See ``Fold``."""
        return _Collection(self._fold, Result.decode(model).values["value"])


class _Collection:
    """The total so far. An ``Aggregation``."""

    def __init__(self, fold: Callable[[Any, Any], Any], total: Any) -> None:
        self._fold, self._total, self._score = fold, total, MeanScore()
        self.what = f"{name_of(fold)}, CollectingAggregator's fold,"
        """The name of the fold in messages."""

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``; raises ``ContractError`` if the fold function raises or returns None."""
        for frame in updates:
            values = Result.decode(frame).values
            if "value" not in values:
                raise ContractError(
                    f"a job's result has the values {sorted(values)}, and CollectingAggregator folds 'value': let the "
                    'performer return Result({"value": ...})'
                )
            with told(self.what):
                self._total = self._fold(self._total, values["value"])
            if self._total is None:
                raise ContractError(f"{self.what} returned None; it must return the new total")
            self._score.add(values)

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``; raises ``ContractError`` if the total is not a JSON value."""
        try:
            return Result({"value": self._total}).encode(), self._score.mean()
        except WireError as exc:
            raise ContractError(
                f"{self.what} returned {in_words(self._total, exc)}; it must return a JSON value"
            ) from exc


class CollectedEvaluations:
    """The evaluations found in updates so far. Part of an ``Aggregation``."""

    def __init__(self) -> None:
        self.parts: list[BatchEvaluation] = []

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        self.parts += [evaluation_in(Result.decode(frame)) for frame in updates]


class ValidationAggregation(CollectedEvaluations):
    """Merges the evaluations of a validation round; the model is unchanged.

    Args:
        label_scale: as for ``Validation``.
    """

    def __init__(self, label_scale: LabelScale | None = None) -> None:
        super().__init__()
        self._label_scale = label_scale

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """Raise ``JobError``: a validation makes no new model."""
        raise JobError("a validation round makes no model")

    def figures(self) -> Figures:
        """Return the metrics over all updates."""
        merged = merge_evaluations(self.parts).in_units(self._label_scale, ())
        return Figures(loss=merged.loss, examples=sum(part.examples for part in self.parts), **merged.metrics())


def evaluation_in(result: Result) -> BatchEvaluation:
    """Return the evaluation in the result of a validation job; raises ``WireError`` if there is none."""
    values, evaluations = result.values, {}
    try:
        for name, description in values["evaluations"].items():
            own = f"{name}."
            arrays = {key.removeprefix(own): array for key, array in result.arrays.items() if key.startswith(own)}
            evaluations[name] = unpacked(description, arrays)
        return BatchEvaluation(tuple(result.arrays["losses"].tolist()), int(values["examples"]), evaluations)
    except (KeyError, AttributeError, TypeError, ValueError) as exc:
        raise WireError(f"the result of an evaluation is incomplete: {exc!r}") from exc


def result_of(parts: Sequence[BatchEvaluation]) -> Result:
    """Return the result of a validation job from the evaluations of its batches, in their order."""
    whole = join_evaluations(parts)
    each = {name: packed(evaluations) for name, evaluations in whole.evaluations.items()}
    values = {"examples": whole.examples, "evaluations": {name: said for name, (said, _) in each.items()}}
    arrays = {f"{name}.{key}": array for name, (_, own) in each.items() for key, array in own.items()}
    return Result(values, {"losses": np.array(whole.losses, np.float64), **arrays})


def frame_like(values: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[Buffer, dict[str, Array]]:
    """Return a new frame with ``values``, and its unfilled arrays with these names, types and shapes."""
    return wire.allocate(values, {name: (np.dtype(array.dtype).str, array.shape) for name, array in arrays.items()})


def copy_frame(model: Buffer) -> tuple[Buffer, dict[str, Array]]:
    """Return a copy of a frame, and its writable arrays."""
    current = Result.decode(model)
    frame, arrays = frame_like(current.values, current.arrays)
    for name, out in arrays.items():
        out[...] = current.arrays[name]
    return frame, arrays
