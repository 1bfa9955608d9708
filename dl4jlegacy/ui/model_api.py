"""``/api/v1``: the network, its parameters and its evaluation, each computed on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.ui.endpoints import Endpoint, Panel, Parameter, Refused, Values, alone, json_response
from dl4jlegacy.ui.evaluation import EvaluationView
from dl4jlegacy.ui.model_view import ImageView, ModelView, NetworkView

__all__ = ["ENDPOINTS", "thinned"]

_POINTS = 300
T = TypeVar("T")


async def _looked(look: Callable[[], T]) -> T:
    """Call a reading function on a thread of its own; raises ``Refused`` if it fails."""
    try:
        return await run_in_threadpool(look)
    except Dl4jError as exc:
        raise Refused(409, str(exc), exc.code) from exc


async def _network(panel: Panel, values: Values) -> Response:
    return json_response({"network": await _looked(panel.models.network)})


async def _model(panel: Panel, values: Values) -> Response:
    found = await _looked(panel.models.model)
    if found is not None:
        found = msgspec.structs.replace(found, ratios=thinned(found.ratios, values["points"]))
    return json_response({"model": found})


def thinned(points: Sequence[T], most: int) -> tuple[T, ...]:
    """Return every k-th point, including the last one, with the smallest k that gives at most ``most`` points."""
    step = max(1, -(-len(points) // most))
    return tuple(points[::-1][::step][::-1])


async def _filters(panel: Panel, values: Values) -> Response:
    return json_response({"filters": await _looked(panel.models.filters)})


async def _evaluation(panel: Panel, values: Values) -> Response:
    return json_response({"evaluation": panel.evaluation})


async def _evaluate(panel: Panel, values: Values) -> Response:
    panel.evaluation = await alone(panel.evaluating, panel.watcher.source.evaluate, "the model is being evaluated")
    return json_response({"evaluation": panel.evaluation})


_READ = {200: "as it is; null: there is none", 409: "it cannot be read: why"}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/api/v1/network",
        handler=_network,
        summary="The network that is trained, and where everything is in its drawing.",
        answers=_READ,
        shape={"network": NetworkView | None},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/model",
        handler=_model,
        summary="The newest model that can be read: its parameters, their updates, and the ratios of these.",
        parameters=(
            Parameter(
                name="points",
                text="So many points of the ratios at most.",
                kind="integer",
                default=_POINTS,
                least=1,
                most=100_000,
            ),
        ),
        answers=_READ,
        shape={"model": ModelView | None},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/filters",
        handler=_filters,
        summary="The first layer of that model as an image, if it looks at images.",
        answers=_READ,
        shape={"filters": ImageView | None},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/evaluation",
        handler=_evaluation,
        summary="What was found when the newest checkpoint was evaluated last; null: it was not.",
        shape={"evaluation": EvaluationView | None},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/evaluate",
        handler=_evaluate,
        summary="Evaluate the newest checkpoint on what was held out, in the dashboard's process.",
        answers={200: "done", 409: "not possible: why"},
        shape={"evaluation": EvaluationView},
    ),
)
