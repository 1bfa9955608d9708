"""Checks of the return values of routers and aggregators, before they are stored.

A user's own router that opens a slot twice, or an aggregator that returns text as score, could cause a run that never
ends, or a head that cannot be read. So each return value is checked against the contract (``WorkRouter``,
``JobAggregator``), and the first wrong one ends the run with an error that names class and method. All models must be
finite; the other checks are only for users' own classes, since tests check those of this package
(``dl4jlegacy.testing``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ContractError, NotFiniteError, WireError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, Aggregation, Fold, JobAggregator
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.own_parts import check_methods, is_own, is_unfinished, told
from dl4jlegacy.scaleout.state.records import Head, covered
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies import SlotMemory, WorkRouter, router_of
from dl4jlegacy.scaleout.updater_beginning import kept_beginning, new_state, tells_beginning

__all__ = [
    "added",
    "begun",
    "check_aggregator",
    "check_finite",
    "check_opened",
    "check_router",
    "check_settled",
    "finished",
    "fold_of",
    "open_slots",
    "slots_to_fold",
    "slots_to_fold_ahead",
]

_KINDS = ("params", "delta")
_RENAMED = {
    "shares": "update_kind",
    "aggregator": "fold, which returns a Fold",
    "is_logged": "log_every (0: no log)",
    "replica": "in memory, a SlotMemory",
    "settle": "in memory, a SlotMemory",
    "check": "in the Fold that fold returns",
}
"""Members of a router in earlier versions, and their replacements."""


def check_router(router: WorkRouter) -> None:
    """Raise ``ContractError`` if a router is not a ``WorkRouter``, or one of its members has an invalid value."""
    name = type(router).__name__
    check_methods(router, "a router", WorkRouter, ("open_slots", "send_work", "fold_ahead"))
    if renamed := [f"{old} is now {new}" for old, new in _RENAMED.items() if hasattr(router, old)]:
        raise ContractError(f"{name} is written for an earlier version of dl4jlegacy: {'; '.join(renamed)}")
    if not isinstance(router, WorkRouter):
        raise ContractError(f"{name} must be a subclass of dl4jlegacy.WorkRouter, which has defaults for all methods")
    check_methods(router, "a router", WorkRouter, ("fold",))
    kind, binds, log, memory = router.update_kind, router.binds_model, router.log_every, router.memory
    if kind not in _KINDS:
        raise ContractError(f"{name}.update_kind is {kind!r}; it must be 'params' or 'delta'")
    if not isinstance(binds, bool):
        raise ContractError(f"{name}.binds_model is {binds!r}; it must be True or False")
    if type(log) is not int or log < 0 or (log and not binds):
        raise ContractError(
            f"{name}.log_every is {log!r} and binds_model {binds}; it must be a whole number, and 0 unless binds_model "
            "is True"
        )
    if not isinstance(memory, SlotMemory | None):
        raise ContractError(f"{name}.memory is {memory!r}; it must be a SlotMemory or None")
    if memory is not None and type(memory).settle is SlotMemory.settle:
        raise ContractError(f"{type(memory).__name__} has no settle of its own; a SlotMemory needs one")


def fold_of(router: WorkRouter, kernels: Kernels, pool: Executor | None = None) -> Fold:
    """Return the fold of a router; raises ``ContractError`` if a user's own router returns none that can be used."""
    if not is_own(router):
        return router.fold(kernels, pool)
    what = f"{type(router).__name__}.fold"
    with told(what):
        made = router.fold(kernels, pool)
    if not isinstance(made, Fold):
        raise ContractError(f"{what} returned {type(made).__name__}; it must be a dl4jlegacy.Fold")
    if type(made).begin is Fold.begin:
        raise ContractError(f"{what} returned {type(made).__name__}, which has no begin of its own; a Fold needs one")
    check_methods(made, "a fold", Fold, ("begin", "check", "begin_group", "follow"))
    return made


def open_slots(router: WorkRouter, plan: Plan, head: Head) -> list[int]:
    """Return the slots that a router opens under a head, without those that are set aside.

    After the last round there are none, whatever the router returns.

    Raises:
        ContractError: the return value is not allowed for ``WorkRouter.open_slots``.
    """
    if head.round >= plan.total_rounds:
        return []
    if is_own(router):
        what = f"{type(router).__name__}.open_slots"
        with told(what):
            numbers = _numbers(what, router.open_slots(plan, head))
        check_opened(router, plan, head, numbers)
    else:
        numbers = router.open_slots(plan, head)
    return [n for n in numbers if not covered(head.jobs_set_aside, n)] if head.jobs_set_aside else numbers


def check_opened(router: WorkRouter, plan: Plan, head: Head, numbers: Sequence[int]) -> None:
    """Raise ``ContractError`` unless a router may open these slots under a head."""
    what = f"{type(router).__name__}.open_slots"
    first = head.folded[0][1] if covered(head.folded, 0) else 0
    if not numbers or numbers[0] > first:
        raise ContractError(f"{what} has left out slot {first}, {_place(plan, first)}, which is the next to be folded")
    if numbers[0] < 0 or numbers[-1] >= plan.total_slots:
        raise ContractError(f"{what} has opened {list(numbers)!r}; the run has the slots 0 to {plan.total_slots - 1}")
    if folded := [number for number in numbers if covered(head.folded, number)]:
        raise ContractError(
            f"{what} has opened slot {folded[0]}, {_place(plan, folded[0])}, again: it is folded into version "
            f"{head.version} already"
        )
    last, validates = plan.at(numbers[-1])[0], plan.is_validation(head.round)
    if validates and list(numbers) != list(range(first, plan.number(head.round, 0) + plan.slots(head.round))):
        raise ContractError(f"{what} has opened {list(numbers)!r} in a validation round; it must open all of it")
    crosses = plan.training_round(last) - plan.training_round(head.round) != last - head.round
    if not validates and (crosses or plan.is_validation(last) or plan.phase_of(last) != plan.phase_of(head.round)):
        raise ContractError(
            f"{what} has opened slot {numbers[-1]}, {_place(plan, numbers[-1])}, beyond the end of a phase or a "
            f"validation: round {head.round} must be complete before"
        )
    if router_of(router, plan, head.round).memory is not None:
        _check_chains(what, plan, head, numbers)


def _check_chains(what: str, plan: Plan, head: Head, numbers: Sequence[int]) -> None:
    """Raise ``ContractError`` if a slot with memory is opened while an earlier job of it is not folded."""
    for number in numbers:
        round_, slot = plan.at(number)
        before = [r for r in range(head.round, round_) if not plan.is_validation(r) and slot < plan.slots(r)]
        if late := [r for r in before if not covered(head.folded, plan.number(r, slot))]:
            raise ContractError(
                f"{what} has opened {_place(plan, number)}, before round {late[0]} of that slot is folded; a slot that "
                "remembers something has one open job at a time"
            )


def slots_to_fold(router: WorkRouter, opened: Sequence[int], done: Collection[int]) -> list[int]:
    """Return the done slots that a router folds now.

    Raises:
        ContractError: the return value is not allowed for ``WorkRouter.send_work``.
    """
    if not is_own(router):
        return router.send_work(opened, done)
    what = f"{type(router).__name__}.send_work"
    with told(what):
        numbers = _numbers(what, router.send_work(opened, done))
    if others := [number for number in numbers if number not in opened]:
        raise ContractError(f"{what} folds slot {others[0]}, which is not open; open are {list(opened)!r}")
    if undone := [number for number in numbers if number not in done]:
        raise ContractError(f"{what} folds slot {undone[0]}, which is not done")
    if not numbers and all(number in done for number in opened):
        raise ContractError(f"{what} folds nothing, and all open slots are done: the run would never go on")
    return numbers


def slots_to_fold_ahead(router: WorkRouter, opened: Sequence[int], done: Collection[int]) -> list[int]:
    """Return the done slots that a router allows to be folded while others are not done.

    Raises:
        ContractError: the return value is not allowed for ``WorkRouter.fold_ahead``.
    """
    if not is_own(router):
        return router.fold_ahead(opened, done)
    what = f"{type(router).__name__}.fold_ahead"
    with told(what):
        numbers = _numbers(what, router.fold_ahead(opened, done))
    if numbers != list(opened[: len(numbers)]) or not all(number in done for number in numbers):
        raise ContractError(f"{what} returned {numbers!r}; it must be the first of {list(opened)!r}, and done")
    return numbers


def _numbers(what: str, answer: Any) -> list[int]:
    """Return the slot numbers in a return value; raises ``ContractError`` unless they are ascending integers."""
    try:
        numbers = [operator.index(number) for number in answer]
    except TypeError as exc:
        raise ContractError(f"{what} returned {answer!r}; it must be a list of the numbers of slots") from exc
    if twice := [number for number, other in pairwise(sorted(numbers)) if number == other]:
        raise ContractError(f"{what} has slot {twice[0]} twice in {numbers!r}")
    if numbers != sorted(numbers):
        raise ContractError(f"{what} returned {numbers!r}; slots must be in their order")
    return numbers


def _place(plan: Plan, number: int) -> str:
    round_, slot = plan.at(number)
    return f"slot {slot} of round {round_}"


def begun(
    aggregator: JobAggregator, model: Buffer, *, version: int, examples: Sequence[int], in_place: bool = False
) -> Aggregation:
    """Begin to fold updates; raises ``ContractError`` if a user's own aggregator returns no ``Aggregation``.

    ``in_place`` as for ``Fold.begin``; for a ``Fold`` only.
    """
    given: dict[str, Any] = {"version": version, "examples": examples} | ({"in_place": True} if in_place else {})
    if not is_own(aggregator):
        return aggregator.begin(model, **given)
    what = f"{type(aggregator).__name__}.begin"
    with told(what):
        made = aggregator.begin(model, **given)
    if not (callable(getattr(made, "add", None)) and callable(getattr(made, "finish", None))):
        raise ContractError(
            f"{what} returned {type(made).__name__}; it must be an Aggregation, with add(updates) and "
            "finish(ends_phase=...)"
        )
    check_methods(made, f"what {what} returns", Aggregation, ("add", "finish"))
    return made


def check_aggregator(aggregator: JobAggregator) -> None:
    """Raise ``ContractError`` if a user's own aggregator cannot be called as one."""
    check_methods(aggregator, "an aggregator", JobAggregator, ("begin",))


def added(aggregation: Aggregation, updates: Sequence[Buffer]) -> None:
    """Fold updates; raises ``ContractError``, with class and method, if a user's own aggregation is wrong.

    A user's own aggregation gets read-only updates.
    """
    if not is_own(aggregation):
        aggregation.add(updates)
        return
    what = f"{type(aggregation).__name__}.add"
    with told(what):
        add: Callable[[Sequence[Buffer]], Any] = aggregation.add  # a user's own may return something
        answer = add([memoryview(update).toreadonly() for update in updates])
    if is_unfinished(answer):
        raise ContractError(f"{what} returned {type(answer).__name__}: nothing was added; take 'yield' or 'async' out")


def finished(aggregation: Aggregation, before: Buffer, *, ends_phase: bool) -> tuple[Buffer, float | None]:
    """Return the next model and its score.

    Args:
        aggregation: after all updates were added.
        before: the model that the aggregation started from.
        ends_phase: as for ``Aggregation.finish``.

    Raises:
        ContractError: the result is not a model of this run, or not a score. NotFiniteError: it contains NaN or
            infinity.
    """
    what = getattr(aggregation, "what", "") or f"{type(aggregation).__name__}.finish"
    try:
        with told(what, passes=(WireError,)):
            answer: Any = aggregation.finish(ends_phase=ends_phase)
    except WireError as exc:
        raise ContractError(f"{what} has made a model that cannot be written: {exc}") from exc
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ContractError(f"{what} returned {type(answer).__name__}; it must be the model's frame and its score")
    frame, score = answer
    if score is not None:
        if isinstance(score, bool) or not isinstance(score, Real):
            raise ContractError(f"{what} returned the score {score!r}; it must be a number, or None")
        score = float(score)
        if not math.isfinite(score):
            raise NotFiniteError(f"{what} returned the score {score}: the run has diverged")
    if frame is before:
        return frame, score
    try:
        model = Result.decode(frame)
    except (WireError, TypeError) as exc:
        raise ContractError(f"{what} returned no model, but {type(frame).__name__}: {exc}") from exc
    if is_own(aggregation):
        began = Result.decode(before)
        _check_like(what, model.arrays, began.arrays)
        check_finite(what, model)
        frame = _begun_like(began, model, frame, ends_phase=ends_phase)
    else:  # a sum of finite updates; an overflow of the updater state only stops its steps
        check_finite(what, Result(model.values, {k: v for k, v in model.arrays.items() if k == PARAMS}))
    return frame, score


def _begun_like(before: Result, model: Result, frame: Buffer, *, ends_phase: bool) -> Buffer:
    """Return the model of a user's own aggregator with the initial values of its updater state restored.

    The values that describe them are kept, and if the phase ends, the state is initialized with them.
    """
    if not tells_beginning(before.values):
        return frame
    values, arrays = kept_beginning(before.values, model.values), dict(model.arrays)
    if ends_phase:
        arrays[STATE] = new_state(values, arrays[STATE])
    return Result(values, arrays).encode() if ends_phase or values != model.values else frame


def _check_like(what: str, arrays: Mapping[str, Array], before: Mapping[str, Array]) -> None:
    """Raise ``ContractError`` unless parameters and updater state exist and have the same type and shape as before."""
    for name in (PARAMS, STATE):
        if name not in before:
            continue
        if name not in arrays:
            raise ContractError(f"{what} returned a model with the arrays {sorted(arrays)}, and no {name}")
        found, wanted = arrays[name], before[name]
        if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
            raise ContractError(
                f"{what} returned {name} of the form {found.dtype} {list(found.shape)}; it must be "
                f"{wanted.dtype} {list(wanted.shape)}"
            )


def check_settled(memory: SlotMemory, answer: Any) -> tuple[Result, Result]:
    """Return the update and the state that ``SlotMemory.settle`` computed from a job.

    Raises:
        ContractError: the return value is something else. NotFiniteError: it contains NaN or infinity.
    """
    if not is_own(memory):
        settled: tuple[Result, Result] = answer
        return settled
    what = f"{type(memory).__name__}.settle"
    if not isinstance(answer, tuple) or len(answer) != 2 or not all(isinstance(each, Result) for each in answer):
        raise ContractError(f"{what} returned {type(answer).__name__}; it must be the update and the state, Results")
    for each in answer:
        check_finite(what, each)
    return answer


def check_finite(what: str, result: Result) -> None:
    """Raise ``NotFiniteError``, naming the method that returned the result, if an array or a value is not finite."""
    for name, array in result.arrays.items():
        if not _is_finite(array):
            raise NotFiniteError(f"{what} returned NaN or infinity in array {name!r}")
    for key, value in result.values.items():
        if not _are_finite(value):
            raise NotFiniteError(f"{what} returned NaN or infinity in value {key!r}")


def _is_finite(array: Array) -> bool:
    """Return whether all numbers of an array are finite; checks each only if their sum is not finite."""
    if array.dtype.kind not in "fc":
        return True
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.sum(array))) or bool(np.isfinite(array).all())


def _are_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_are_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_are_finite, value))
