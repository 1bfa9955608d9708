"""Checks that a user's own aggregator makes the same model, however its updates arrive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from dl4jlegacy.errors import ContractError
from dl4jlegacy.scaleout.contract import added, begun, finished
from dl4jlegacy.scaleout.contract import check_aggregator as check_aggregator_methods
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, JobAggregator
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.store import Buffer

__all__ = ["check_aggregator"]

_SIZE, _SLOTS = 12, 5
_OTHERS = itertools.cycle(range(1, 60))
"""Bytes that overwrite an update after it was added, since it may not be used any more."""


def check_aggregator(
    aggregator: JobAggregator, model: Result | None = None, updates: Sequence[Result] | None = None
) -> None:
    """Check that an aggregator follows ``JobAggregator``, whatever the groups in which updates arrive.

    Args:
        aggregator: an object, as ``ActorNetworkRunner`` takes it.
        model: the initial model; None: 12 parameters and updater states.
        updates: the updates to fold; None: five, with parameters, differences of them, and updater states.

    Raises:
        ContractError: it changes its inputs, remembers something from one round to the next, makes another model for
            other groups, or makes no model; names class and method.
        NotFiniteError: a model contains NaN or infinity.
    """
    random = np.random.default_rng(1)
    if model is None:
        model = Result({}, {PARAMS: _vector(random), STATE: _vector(random)})
    if updates is None:
        updates = [_update(random, examples=slot + 1) for slot in range(_SLOTS)]
    frame, frames = bytes(model.encode()), [bytes(update.encode()) for update in updates]
    name = type(aggregator).__name__
    whole = _made(aggregator, frame, frames, [len(frames)])
    if _made(aggregator, frame, frames, [len(frames)]) != whole:
        raise ContractError(
            f"{name}.begin makes another model of the same updates when it is called again; does it remember "
            "something, or look at updates after add()?"
        )
    for sizes in ([1] * len(frames), [1, len(frames) - 1], [len(frames) - 1, 1]):
        if _made(aggregator, frame, frames, sizes) != whole:
            raise ContractError(
                f"{name}: the updates come to another model if add() gets them in groups of {sizes} instead of all at "
                "once; the bits must not depend on it"
            )
    _made(aggregator, frame, frames, [len(frames)], ends_phase=True)
    _made(aggregator, frame, frames[:1], [1])  # a short round


def _vector(random: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return random.standard_normal(_SIZE).astype(np.float32)


def _update(random: np.random.Generator, *, examples: int) -> Result:
    arrays = {name: _vector(random) for name in (PARAMS, "delta", "difference", STATE)}
    return Result({"examples": examples, "score": float(random.random()), "version": 0}, arrays)


def _made(
    aggregator: JobAggregator, model: bytes, updates: Sequence[bytes], sizes: Sequence[int], *, ends_phase: bool = False
) -> tuple[bytes, float | None]:
    """Return the model, and its score, made from the updates in groups of these sizes."""
    check_aggregator_methods(aggregator)
    name, given = type(aggregator).__name__, bytearray(model)
    examples = [int(Result.decode(update).values.get("examples", 1)) for update in updates]
    aggregation, first = begun(aggregator, memoryview(given), version=1, examples=examples), 0
    for size in sizes:
        group: list[Buffer] = [memoryview(bytearray(update)) for update in updates[first : first + size]]
        added(aggregation, group)
        if [bytes(each) for each in group] != list(updates[first : first + size]):
            raise ContractError(f"{name}: add() has changed an update; it belongs to whoever sent it")
        for each in group:  # they may be released afterwards
            each[:] = bytes([next(_OTHERS)]) * len(each)  # type: ignore[index]
        first += size
    frame, score = finished(aggregation, memoryview(given), ends_phase=ends_phase)
    if bytes(given) != model:
        raise ContractError(f"{name} has changed the model that it began with; it must return a new one")
    return bytes(frame), score
