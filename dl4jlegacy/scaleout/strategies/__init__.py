"""Strategies: how what the workers have learned becomes the next model, by the name in ``Conf.router``.

Legacy: ``IterativeReduceWorkRouter`` and ``HogWildWorkRouter`` with ``INDArrayAggregator``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, TypeGuard

import msgspec

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.aggregate import JobAggregator
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.strategies.asynchronous import (
    BoundedStalenessWorkRouter,
    HogWildWorkRouter,
    SoftSyncWorkRouter,
)
from dl4jlegacy.scaleout.strategies.averaging import IterativeReduceWorkRouter
from dl4jlegacy.scaleout.strategies.block_momentum import BlockMomentumWorkRouter
from dl4jlegacy.scaleout.strategies.elastic_averaging import ElasticAveragingWorkRouter
from dl4jlegacy.scaleout.strategies.gradient_sharing import GradientSharingWorkRouter
from dl4jlegacy.scaleout.strategies.row_averaging import RowAveragingWorkRouter
from dl4jlegacy.scaleout.strategies.strategy import LoggedStrategy, SlotStrategy, Strategy, WorkRouter
from dl4jlegacy.system.decoding import described

__all__ = [
    "BUILT_IN",
    "STRATEGIES",
    "BlockMomentumWorkRouter",
    "BoundedStalenessWorkRouter",
    "ElasticAveragingWorkRouter",
    "GradientSharingWorkRouter",
    "HogWildWorkRouter",
    "IterativeReduceWorkRouter",
    "LoggedStrategy",
    "RowAveragingWorkRouter",
    "SlotStrategy",
    "SoftSyncWorkRouter",
    "Strategy",
    "WorkRouter",
    "aggregator_of",
    "check_own_aggregator",
    "check_servers",
    "create_router",
    "logged_strategy",
    "router_of",
    "serving",
    "slot_strategy",
]

STRATEGIES: Mapping[str, Callable[..., Strategy]] = {
    kind.name: kind
    for kind in (
        IterativeReduceWorkRouter,
        HogWildWorkRouter,
        SoftSyncWorkRouter,
        BoundedStalenessWorkRouter,
        BlockMomentumWorkRouter,
        ElasticAveragingWorkRouter,
        GradientSharingWorkRouter,
    )
}
"""Those that one chooses from."""
BUILT_IN: Mapping[str, Callable[..., Strategy]] = {**STRATEGIES, RowAveragingWorkRouter.name: RowAveragingWorkRouter}
"""All of them: the last one comes with sparse features, which have no other."""
_SYNCHRONOUS = IterativeReduceWorkRouter()
_SLOT_CLASSES: dict[type, bool] = {}
_LOGGED_CLASSES: dict[type, bool] = {}


def create_router(
    name: str,
    args: Mapping[str, Any] | None = None,
    *,
    window: int = 0,
    jobs_per_round: int = 1,
    weighted_average: bool = True,
) -> Strategy:
    """Return a strategy.

    Args:
        name: one of ``BUILT_IN``.
        args: its own options, as ``Conf.router_args`` has them.
        window, jobs_per_round, weighted_average: of the run's ``Conf``.

    Raises:
        ConfError: there is no such strategy or option, or a value is not allowed, or what is given would change
            nothing; says what there is.
    """
    if name not in BUILT_IN:
        raise ConfError(f"unknown router {name!r}{nearest(name, list(STRATEGIES))}")
    kind: Any = BUILT_IN[name]
    fields = _fields(kind)
    run: dict[str, Any] = {"window": window, "jobs_per_round": jobs_per_round, "weighted_average": weighted_average}
    options = [field for field in fields if field not in run]
    for option in args or {}:
        if option not in options:
            known = nearest(option, options) if options else "; it takes none"
            raise ConfError(f"Conf.router_args of {name} has {option!r}{known}")
    for field, usual in (("window", 0), ("weighted_average", True)):
        if run[field] != usual and field not in fields:
            having = [each for each, other in STRATEGIES.items() if field in _fields(other)]
            raise ConfError(
                f"Conf.{field} is {run[field]!r}, and the router {name} has no use for it ({', '.join(having)} have); "
                "leave it out"
            )
    given = {field: value for field, value in run.items() if field in fields}
    try:
        made: Any = msgspec.convert({**(args or {}), **given}, described(kind))
    except (msgspec.ValidationError, ConfError) as exc:
        raise ConfError(f"Conf.router_args of {name}: {exc}") from exc
    for option, reason in getattr(made, "idle_options", {}).items():
        if option in (args or {}):
            raise ConfError(f"Conf.router_args of {name} has {option!r}, which is idle: {reason}; leave it out")
    strategy: Strategy = made
    return strategy


def _fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def aggregator_of(
    router: WorkRouter, kernels: Kernels, *, weighted_average: bool = True, pool: Executor | None = None
) -> JobAggregator:
    """Return what folds the updates of a run: the strategy's own, or for a router without one what suits its updates.

    Args:
        router: of the run.
        kernels: of the master's process.
        weighted_average: of the run's ``Conf``, for a router without an aggregator.
        pool: threads for large vectors.
    """
    if isinstance(router, Strategy):
        return router.aggregator(kernels, pool)
    if router.shares == "delta":
        return HogWildWorkRouter().aggregator(kernels, pool)
    return IterativeReduceWorkRouter(weighted_average=weighted_average).aggregator(kernels, pool)


def router_of(router: WorkRouter, plan: Plan, head: Head) -> WorkRouter:
    """Return the router of the round that the head is in: every run validates synchronously."""
    return _SYNCHRONOUS if plan.is_validation(head.round) else router


def slot_strategy(router: WorkRouter, plan: Plan, round_: int) -> SlotStrategy | None:
    """Return the router if its jobs of a round leave states in their slots, else None: validations leave none."""
    return router if _is_slot_strategy(router) and not plan.is_validation(round_) else None


def logged_strategy(router: WorkRouter, plan: Plan, round_: int) -> LoggedStrategy | None:
    """Return the router if it checks the updates of a round itself, and versions may follow from them, else None."""
    return router if _is_logged_strategy(router) and not plan.is_validation(round_) else None


def _is_slot_strategy(router: WorkRouter) -> TypeGuard[SlotStrategy]:
    """Return whether a router is a ``SlotStrategy``; cached per class, as ``isinstance`` takes 25 us for a protocol."""
    kind = type(router)
    if kind not in _SLOT_CLASSES:
        _SLOT_CLASSES[kind] = isinstance(router, SlotStrategy)
    return _SLOT_CLASSES[kind]


def _is_logged_strategy(router: WorkRouter) -> TypeGuard[LoggedStrategy]:
    kind = type(router)
    if kind not in _LOGGED_CLASSES:
        _LOGGED_CLASSES[kind] = isinstance(router, LoggedStrategy)
    return _LOGGED_CLASSES[kind]


def serving(router: WorkRouter, plan: Plan, round_: int) -> IterativeReduceWorkRouter | None:
    """Return the router if workers fold its updates of a round, in slices; None if the master does, whole.

    Validations are the master's.
    """
    if not isinstance(router, IterativeReduceWorkRouter) or plan.is_validation(round_):
        return None
    return router if router.slices else None


def check_own_aggregator(
    router: WorkRouter, name: str, args: Mapping[str, Any], *, weighted_average: bool = True
) -> None:
    """Raise ``ConfError`` for what a ``Conf`` says of folding, in a run that has an aggregator of its own for that.

    Args:
        router: of the run.
        name, args, weighted_average: ``Conf.router``, ``Conf.router_args`` and the like.
    """
    check_servers(router, None)
    void = [] if weighted_average else ["Conf.weighted_average is false"]
    if name in STRATEGIES:
        if isinstance(router, BlockMomentumWorkRouter | SlotStrategy):
            void.append(f"Conf.router is {name!r}, which is a way to fold them (rounds are 'iterative-reduce')")
        elif "rate" in args:
            void.append(f"Conf.router_args has 'rate' {args['rate']!r}")
    if void:
        raise ConfError(
            f"{', and '.join(void)}, but the run has an aggregator of its own, which folds the updates in its own way; "
            "leave one of them out"
        )


def check_servers(router: WorkRouter, size: int | None) -> None:
    """Raise ``ConfError`` if the run has no vector that the router's parameter servers could share.

    Args:
        router: of the run.
        size: how many parameters the network has; None: the run folds something else, with an aggregator of its own.
    """
    slices = router.slices if isinstance(router, IterativeReduceWorkRouter) else 0
    if slices and size is None:
        raise ConfError(
            "Conf.router_args has parameter_servers or aggregation_depth, and the run has an aggregator of its own: "
            "workers can only fold the mean of a network's parameters; leave them out"
        )
    if size is not None and slices > size:
        raise ConfError(
            f"Conf.router_args has parameter_servers {slices}, and the network has {size} parameters; give at most "
            "that many, and no more than there are workers to fold at the same time"
        )
