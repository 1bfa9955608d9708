"""The ASGI application with all routes of the model server; only the computing runs on other threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dl4jlegacy.errors import how_to_install
from dl4jlegacy.serving.answers import JSON, RefusedError, error_body
from dl4jlegacy.serving.openapi import document
from dl4jlegacy.serving.predictions import Message, Predictions, Receive, Send, internal, refused_headers
from dl4jlegacy.serving.service import Service
from dl4jlegacy.system.strict_json import to_json

__all__ = ["application"]

Respond = Callable[[Request], Awaitable[Response]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def application(service: Service) -> Application:
    """Return the ASGI application of a service."""
    predictions, rest = Predictions(service), _rest(service)

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        await (predictions if predictions.answers(scope) else rest)(scope, receive, send)

    return answer


def _rest(service: Service) -> Starlette:
    """Return the application for all routes except predictions."""

    async def health(_: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(_: Request) -> Response:
        return _json({"status": "ready", "models": sorted(service.models)})

    async def metrics(_: Request) -> Response:
        if service.metrics is None:
            raise RefusedError(404, f"metrics need prometheus-client, which is not here: {how_to_install('metrics')}")
        content, kind = service.metrics.text()
        return Response(content, headers={"content-type": kind})

    async def described(_: Request) -> Response:
        models = {name: served.current.model for name, served in service.models.items()}
        return _json(document(models, service.limits, has_token=service.token is not None))

    async def listed(_: Request) -> Response:
        return _json({"models": [service.metadata(served) for served in service.models.values()]})

    async def one(request: Request) -> Response:
        return _json(service.metadata(service.model(request.path_params["name"])))

    def route(path: str, respond: Respond) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                headers = request.headers
                service.check(request.url.path, headers.get("host", ""), headers.get("authorization", ""))
                return await respond(request)
            except RefusedError:
                raise
            except Exception as exc:  # noqa: BLE001  # Starlette would raise it again, and uvicorn hang up
                return await _refused(request, internal(exc))

        return Route(path, endpoint, methods=["GET"])

    predictions = Predictions(service)  # for the answers to other methods there
    routes = [
        route("/health", health),
        route("/ready", ready),
        route("/metrics", metrics),
        route("/openapi.json", described),
        route("/v1/models", listed),
        route("/v1/models/{name}", one),
        Route("/v1/models/{name}/predict", predictions, methods=["POST"]),
        Route("/predict", predictions, methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {RefusedError: _refused, HTTPException: _not_there}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # it would redirect to whatever host the header Host names
    return app


def _json(content: dict[str, Any]) -> Response:
    return Response(to_json(content), media_type=JSON)


async def _refused(_: Request, error: RefusedError) -> Response:
    return Response(error_body(error), error.status, refused_headers(error.status), media_type=JSON)


async def _not_there(request: Request, error: HTTPException) -> Response:
    what = f"there is no {request.method} here" if error.status_code == 405 else "there is nothing here"
    return await _refused(request, RefusedError(error.status_code, f"{what}; /openapi.json lists what there is"))
