"""Job aggregators: how updates become the next model version. Arithmetic only, always in slot order.

Legacy: ``JobAggregator`` and ``INDArrayAggregator``, whose mean was unweighted, aliased the first worker's array and
was never reset; here every aggregation starts from the model it is given and returns a new frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

import numpy as np

from dl4jlegacy import wire
from dl4jlegacy.backend import Array
from dl4jlegacy.kernels import Kernels
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.store import Buffer

__all__ = ["CollectingAggregator", "DeltaAggregator", "JobAggregator", "ParameterAveragingAggregator", "mean_score"]

PARAMS, STATE = "params", "updater_state"


class JobAggregator(Protocol):
    """Makes the next model from the current one and some updates."""

    def aggregate(
        self, model: Buffer, updates: Sequence[Buffer], *, version: int, ends_phase: bool
    ) -> tuple[Buffer, float | None]:
        """Return the next model's frame and its score.

        ``updates`` are in slot order. ``version`` is the model's; ``ends_phase`` says that the next job belongs to
        another phase, whose updater state starts at zero. Runs on the master's thread.
        """
        ...


def mean_score(updates: Sequence[Result]) -> float | None:
    """Return the mean score of the updates weighted by examples; None if they have none."""
    scored = [(u.values["score"], u.values["examples"]) for u in updates if u.values.get("score") is not None]
    total = sum(examples for _, examples in scored)
    return sum(score * examples for score, examples in scored) / total if total else None


class ParameterAveragingAggregator:
    """The mean of the workers' parameters, and of their updater states, weighted by examples.

    With ``weighted=False`` the plain mean of the original. Source: Su and Chen 2015 (arXiv 1507.01239); DL4J's
    ``ParameterAveragingTrainingMaster``. ``pool`` lets large vectors use all cores; the bits do not depend on it.
    """

    def __init__(self, kernels: Kernels, *, weighted: bool = True, pool: Executor | None = None) -> None:
        self._kernels, self._weighted, self._pool = kernels, weighted, pool

    def aggregate(
        self, model: Buffer, updates: Sequence[Buffer], *, version: int, ends_phase: bool
    ) -> tuple[Buffer, float | None]:
        """See ``JobAggregator``."""
        results = [Result.decode(frame) for frame in updates]
        counts = [float(r.values["examples"]) if self._weighted else 1.0 for r in results]
        weights = [count / sum(counts) for count in counts]
        score = mean_score(results)
        frame, arrays = _like(Result.decode(model), score)
        for name, out in arrays.items():
            if name == STATE and ends_phase:
                out[:] = 0
            elif name in results[0].arrays:
                self._kernels.weighted_sum([r.arrays[name] for r in results], weights, out, self._pool)
            else:
                out[:] = Result.decode(model).arrays[name]
        return frame, score


class DeltaAggregator:
    """Adds the updates' deltas one after the other, each divided by its staleness. For asynchronous routers.

    Source: Zhang, Gupta, Lian, Liu 2015 (arXiv 1511.05950): alpha(tau) = alpha / tau for tau > 0. The staleness of an
    update is the number of versions between the one it started from and the current one, plus those folded before it
    in the same call. The updater state moves towards the worker's by the same factor, so it never leaves the range of
    states that workers really had.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def aggregate(
        self, model: Buffer, updates: Sequence[Buffer], *, version: int, ends_phase: bool
    ) -> tuple[Buffer, float | None]:
        """See ``JobAggregator``."""
        results = [Result.decode(frame) for frame in updates]
        current = Result.decode(model)
        score = mean_score(results)
        frame, arrays = _like(current, score)
        for name, out in arrays.items():
            out[:] = current.arrays[name]
        for position, result in enumerate(results):
            staleness = version - int(result.values["version"]) + position
            factor = 1.0 / max(1, staleness)
            self._kernels.axpy(arrays[PARAMS], result.arrays["delta"], factor)
            if STATE in result.arrays and STATE in arrays:
                self._kernels.weighted_sum([arrays[STATE], result.arrays[STATE]], [1 - factor, factor], arrays[STATE])
        if ends_phase and STATE in arrays:
            arrays[STATE][:] = 0
        return frame, score


class CollectingAggregator:
    """Folds JSON values with a function of the caller's: ``fold(total, value) -> total``. For jobs that are no network.

    The total of the whole run is the model; it begins as ``empty``.
    """

    def __init__(self, fold: Callable[[Any, Any], Any]) -> None:
        self._fold = fold

    def aggregate(
        self, model: Buffer, updates: Sequence[Buffer], *, version: int, ends_phase: bool
    ) -> tuple[Buffer, float | None]:
        """See ``JobAggregator``."""
        total = Result.decode(model).values["value"]
        results = [Result.decode(frame) for frame in updates]
        for result in results:
            total = self._fold(total, result.values["value"])
        return Result({"value": total}).encode(), mean_score(results)


def _like(model: Result, score: float | None) -> tuple[Buffer, dict[str, Array]]:
    """Return a new frame laid out as the model's, and its arrays to be written."""
    layout = {name: (np.dtype(array.dtype).str, array.shape) for name, array in model.arrays.items()}
    return wire.allocate({**model.values, "score": score}, layout)
