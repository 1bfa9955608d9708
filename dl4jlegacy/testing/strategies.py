"""Checks that a user's own router opens and folds each slot once, in whatever order the jobs are done."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

from dl4jlegacy.errors import ContractError
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.contract import check_opened, check_router
from dl4jlegacy.scaleout.plan import Phase, Plan, Validation
from dl4jlegacy.scaleout.state.records import Head, Manifest, account, advance
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of
from dl4jlegacy.testing.serial_run import trained

__all__ = ["check_strategy"]


def check_strategy(router: WorkRouter, *, jobs_per_round: int = 4, schedules: int = 20, seed: int = 1) -> None:
    """Check that a router follows ``WorkRouter``, and trains a small network with every batch counted once.

    The router is called with plans that have several phases, validations, warm starts and short rounds, while jobs are
    done in random orders. Then three workers train, in random turns; a router whose jobs are bound to the model must
    produce the same bits twice.

    Args:
        router: an object, as returned by the factory that ``register_router`` takes.
        jobs_per_round: of the plans, if the router requires a certain number.
        schedules: number of orders to try with each plan.
        seed: of these orders.

    Raises:
        ContractError: names class, method and plan.
    """
    check_router(router)
    for plan in _plans(jobs_per_round):
        for number in range(schedules):
            try:
                _fold_all(router, plan, random.Random(f"{seed} {number}"))
            except ContractError as exc:
                raise ContractError(f"{exc} (schedule {number} of {plan})") from exc
    results = [trained(router, zoo.mlp(4, 3), jobs_per_round, random.Random(seed + turn)) for turn in range(2)]
    if router.binds_model and results[0] != results[1]:
        raise ContractError(
            f"{type(router).__name__} binds jobs to the model, and its answer depends on who does which job when"
        )


def _plans(jobs_per_round: int) -> Iterator[Plan]:
    """Yield plans of all kinds: several phases, short rounds, validations, a warm start."""
    batches = 2 * jobs_per_round + 1
    data: dict[str, Any] = {
        "batches": batches,
        "examples": 3 * batches - 1,
        "batch_size": 3,
        "jobs_per_round": jobs_per_round,
    }
    two = (Phase(kind="pretrain", layer=0), Phase(epochs=2))
    yield Plan(phases=(Phase(epochs=2),), **data)
    yield Plan(phases=two, averaging_frequency=2, **data)
    yield Plan(phases=two, validation=Validation(batches=3, examples=9, batch_size=3, every=1), **data)
    yield Plan(phases=two, warm_start=0.5, **data)


def _fold_all(router: WorkRouter, plan: Plan, order: random.Random) -> None:
    """Do the jobs that a router opens, in random order, until the plan is done."""
    head = Head(run="checked", version=0, round=0, model=Manifest("", 0, 0))
    done: set[int] = set()
    while head.round < plan.total_rounds:
        opened = _asked(router, plan, head)
        done = set() if router_of(router, plan, head.round).binds_model else done & set(opened)
        folded = _folded_next(router_of(router, plan, head.round), opened, done, order)
        head = advance(head, plan, folded)
        done -= set(folded)
    if account(head, plan) != (0, 0):
        raise ContractError(f"{type(router).__name__}: {account(head, plan)} batches were lost and folded twice")


def _asked(router: WorkRouter, plan: Plan, head: Head) -> list[int]:
    """Return the slots that a router opens; raises ``ContractError`` unless it returns the same again."""
    opened = list(router.open_slots(plan, head))
    if not all(type(number) is int for number in opened) or opened != sorted(set(opened)):
        raise ContractError(
            f"{type(router).__name__}.open_slots returned {opened!r}; slots must be in order, each once"
        )
    check_opened(router, plan, head, opened)
    if list(copy.deepcopy(router).open_slots(plan, head)) != opened or list(router.open_slots(plan, head)) != opened:
        raise ContractError(
            f"{type(router).__name__}.open_slots answers {opened!r}, and then another way, of the same head: it must "
            "be a pure function, which each process of a run calls for itself"
        )
    return opened


def _folded_next(router: WorkRouter, opened: Sequence[int], done: set[int], order: random.Random) -> list[int]:
    """Do open jobs until a router folds some of them; return these."""
    name, left = type(router).__name__, [number for number in opened if number not in done]
    ahead: list[int] = []
    order.shuffle(left)
    while True:
        chosen = list(router.send_work(list(opened), set(done)))
        if list(router.send_work(list(opened), set(done))) != chosen:
            raise ContractError(f"{name}.send_work answers {chosen!r}, and then another way, of the same slots")
        if chosen != sorted(set(chosen)) or not set(chosen) <= done & set(opened):
            raise ContractError(
                f"{name}.send_work returned {chosen!r}; it must be done slots, each once, in order: open are "
                f"{list(opened)!r}, and done {sorted(done)!r}"
            )
        if chosen:
            break
        if not left:
            raise ContractError(f"{name}.send_work folds nothing, and all open slots are done: a run would never go on")
        found = list(router.fold_ahead(list(opened), set(done)))
        if found != list(opened[: len(found)]) or not set(found) <= done:
            raise ContractError(
                f"{name}.fold_ahead returned {found!r}; it must be the first of the open slots, and done"
            )
        ahead = max(ahead, found, key=len)
        done.add(left.pop())
    if ahead and chosen != list(opened):
        raise ContractError(
            f"{name}.fold_ahead returned {ahead!r}, and send_work then {chosen!r}, which is not all that was open"
        )
    return chosen
