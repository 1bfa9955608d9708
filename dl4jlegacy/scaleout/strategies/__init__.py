"""Strategies, by their names in ``Conf.router``: how updates of workers become the next model.

Legacy: ``IterativeReduceWorkRouter`` and ``HogWildWorkRouter`` with ``INDArrayAggregator``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.scaleout.plan import Plan
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
from dl4jlegacy.scaleout.strategies.strategy import SlotMemory, WorkRouter
from dl4jlegacy.system.decoding import decodable

__all__ = [
    "BUILT_IN",
    "STRATEGIES",
    "BlockMomentumWorkRouter",
    "BoundedStalenessWorkRouter",
    "ElasticAveragingWorkRouter",
    "GradientSharingWorkRouter",
    "HogWildWorkRouter",
    "IterativeReduceWorkRouter",
    "RowAveragingWorkRouter",
    "SlotMemory",
    "SoftSyncWorkRouter",
    "WorkRouter",
    "check_own_aggregator",
    "check_servers",
    "create_router",
    "router_of",
    "serving",
]

STRATEGIES: Mapping[str, Callable[..., WorkRouter]] = {
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
"""Those to choose from."""
BUILT_IN: Mapping[str, Callable[..., WorkRouter]] = {**STRATEGIES, RowAveragingWorkRouter.name: RowAveragingWorkRouter}
"""All of them: a run with sparse features always uses the last one."""
_SYNCHRONOUS = WorkRouter()


def create_router(
    name: str,
    args: Mapping[str, Any] | None = None,
    *,
    window: int = 0,
    jobs_per_round: int = 1,
    weighted_average: bool = True,
) -> WorkRouter:
    """Return a strategy.

    Args:
        name: one of ``BUILT_IN``.
        args: its own options, as ``Conf.router_args`` has them.
        window, jobs_per_round, weighted_average: of the run's ``Conf``.

    Raises:
        ConfError: there is no such strategy or option, a value is not allowed, or an option has no effect.
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
        made: WorkRouter = msgspec.convert({**(args or {}), **given}, decodable(kind))
    except (msgspec.ValidationError, ConfError) as exc:
        raise ConfError(f"Conf.router_args of {name}: {exc}") from exc
    for option, reason in made.idle_options.items():
        if option in (args or {}):
            raise ConfError(f"Conf.router_args of {name} has {option!r}, which is idle: {reason}; leave it out")
    return made


def _fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def router_of(router: WorkRouter, plan: Plan, round_: int) -> WorkRouter:
    """Return the router of a round: validation rounds of every run are synchronous and remember nothing."""
    return _SYNCHRONOUS if plan.is_validation(round_) else router


def serving(router: WorkRouter, plan: Plan, round_: int) -> IterativeReduceWorkRouter | None:
    """Return the router if workers fold the updates of a round in slices; None if the master folds them whole."""
    router = router_of(router, plan, round_)
    return router if isinstance(router, IterativeReduceWorkRouter) and router.slices else None


def check_own_aggregator(
    router: WorkRouter, name: str, args: Mapping[str, Any], *, weighted_average: bool = True
) -> None:
    """Raise ``ConfError`` if a run has an aggregator of its own and its ``Conf`` sets how to fold.

    Args:
        router: of the run.
        name, args, weighted_average: ``Conf.router``, ``Conf.router_args`` and the like.
    """
    check_servers(router, None)
    void = [] if weighted_average else ["Conf.weighted_average is false"]
    if name in STRATEGIES:
        if isinstance(router, BlockMomentumWorkRouter) or router.memory is not None:
            void.append(f"Conf.router is {name!r}, which is a way to fold them (rounds are 'iterative-reduce')")
        elif "rate" in args:
            void.append(f"Conf.router_args has 'rate' {args['rate']!r}")
    elif router.log_every:
        void.append(f"Conf.router is {name!r}, whose workers fold a log of updates themselves")
    if void:
        raise ConfError(
            f"{', and '.join(void)}, but the run has an aggregator of its own, which folds the updates in its own way; "
            "leave one of them out"
        )


def check_servers(router: WorkRouter, size: int | None) -> None:
    """Raise ``ConfError`` if the router's parameter servers cannot fold the model of the run.

    Args:
        router: of the run.
        size: the number of parameters of the network; None: the run has an aggregator of its own.
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
