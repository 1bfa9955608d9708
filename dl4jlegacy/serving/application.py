"""The addresses of the served models, as an ASGI application; all but the computing is done on the server's thread."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from dl4jlegacy.backend import Array
from dl4jlegacy.clock import Deadline
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.inference_queue import ClosedError, InferenceRequest, QueueFullError
from dl4jlegacy.serving.answers import (
    JSON,
    LATE,
    NPY,
    Limits,
    RefusedError,
    accepted,
    content_of,
    error_body,
    read_body,
    refusal_of,
)
from dl4jlegacy.serving.models import LoadedModel, ServedModel
from dl4jlegacy.serving.openapi import document
from dl4jlegacy.strict_json import to_json

__all__ = ["Service", "application"]

logger = logging.getLogger(__name__)

Respond = Callable[[Request], Awaitable[Response]]
_OPEN = ("/health", "/ready")  # without a token: what looks whether a server lives has none
_LOCAL = ("localhost", "127.0.0.1", "[::1]")


@dataclass(slots=True)
class Service:
    """What is served, and how.

    Attributes:
        models: by their names.
        limits: of requests.
        token: that a request must bring, ``Authorization: Bearer TOKEN``; None: none, and then only requests to a name
            of this machine's loopback are answered, so that no page of somebody else's reads the answers in a browser.
        is_ending: whether the server takes no new requests.
    """

    models: Mapping[str, ServedModel]
    limits: Limits = field(default_factory=Limits)
    token: str | None = field(default=None, repr=False)
    is_ending: bool = False

    def check(self, request: Request) -> None:
        """Raise ``RefusedError`` unless a request may be answered."""
        if self.token is None:
            host = request.headers.get("host", "").lower()
            if (host if host.endswith("]") else host.rpartition(":")[0] or host) not in _LOCAL:
                raise RefusedError(403, f"host {host[:100]!r} is no name of this machine's loopback", "DL4J-AUTH")
        elif request.url.path not in _OPEN:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                raise RefusedError(401, "the token is missing or wrong: send Authorization: Bearer TOKEN", "DL4J-AUTH")
        if self.is_ending and request.url.path != "/health":
            raise RefusedError(503, "the server ends; ask another one, or later")

    def model(self, name: str) -> ServedModel:
        """Return a model; raises ``RefusedError``."""
        if name not in self.models:
            raise RefusedError(404, f"there is no model {name[:100]!r}; there are {', '.join(sorted(self.models))}")
        return self.models[name]

    def only_model(self) -> ServedModel:
        """Return the model that is meant without a name; raises ``RefusedError`` if there are several."""
        if len(self.models) > 1:
            names = ", ".join(sorted(self.models))
            raise RefusedError(404, f"there are several models, {names}; ask /v1/models/NAME/predict")
        return next(iter(self.models.values()))

    def metadata(self, served: ServedModel) -> dict[str, Any]:
        """Return what people and programs want to know of a model."""
        model = served.current.model
        kind = "values" if model.predicts_numbers else "labels" if model.is_multi_label else "classes"
        found = {"name": served.name, "version": served.current.version, "n_in": model.network.n_in}
        found |= {
            "n_out": model.network.n_out,
            "predicts": kind,
            "label_names": list(model.output_names(model.network.n_in)),
        }
        if model.transform is not None:
            labels = model.transform.label_columns
            found["columns"] = [c.name for c in model.transform.columns if c.name not in labels]
        return {**found, "accepts": list(accepted(model)), "problem": served.problem, "pending": served.pending}

    async def predict(self, served: ServedModel, request: Request) -> Response:
        """Return the answer of a model to a request; raises ``RefusedError``."""
        loaded = served.current  # a version that comes meanwhile answers the requests after this one
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        known = accepted(loaded.model)
        if media not in known:
            raise RefusedError(
                415, f"model {served.name} takes no {media or 'body without content-type'}: send {', '.join(known)}"
            )
        if served.pending >= self.limits.queue:
            raise RefusedError(429, f"{served.pending} requests wait for model {served.name}; try again soon")
        as_npy = NPY in request.headers.get("accept", "").lower()
        served.pending += 1
        try:
            body = await self._body(request)
            content = await self._computed(served, loaded, media, body, as_npy=as_npy)
        finally:
            served.pending -= 1
        version = {"dl4j-model-version": str(loaded.version)}
        return Response(content, media_type=NPY if as_npy else JSON, headers=version)

    async def _computed(
        self, served: ServedModel, loaded: LoadedModel, media: str, body: bytes, *, as_npy: bool
    ) -> bytes:
        """Have the workers of a model compute the answer to a body; raises ``RefusedError``."""
        model, deadline = loaded.model, Deadline(self.limits.seconds)
        answer = _Answer(asyncio.get_running_loop())

        def succeed(outputs: list[Array], n_in: int) -> None:
            answer.give(content_of(model, outputs, n_in, as_npy=as_npy))

        def blocks() -> Iterator[Array]:
            answer.is_begun = True
            yield from read_body(model, media, body, self.limits, deadline)

        try:
            served.queue.put(InferenceRequest(loaded.replicated, blocks(), succeed, answer.refuse))
            return await answer.within(deadline)
        except Dl4jError as exc:  # of the network
            raise refusal_of(exc) from exc
        except QueueFullError as exc:  # others are not answered in time, and stand there still
            raise RefusedError(429, f"{exc}; try again soon") from exc
        except ClosedError as exc:
            raise RefusedError(503, "the server ends; ask another one, or later") from exc

    async def _body(self, request: Request) -> bytes:
        """Return a request's body; raises ``RefusedError`` if it is too large or too slow."""
        most, seconds = self.limits.body_bytes, self.limits.body_seconds
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise RefusedError(413, f"the body has {int(declared):,} bytes, {most:,} are allowed; send it in parts")
        content, size = [], 0
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    content.append(chunk)
                    size += len(chunk)
                    if size > most:
                        raise RefusedError(413, f"the body has more than {most:,} bytes; send it in parts")
        except TimeoutError as exc:
            raise RefusedError(408, f"the body did not come within {seconds:g} s", LATE) from exc
        return b"".join(content)


class _Answer:
    """What a worker's thread hands over to the server's, where somebody waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[bytes] = loop.create_future()
        self.is_begun = False

    def give(self, content: bytes) -> None:
        """Be answered; on any thread."""
        self._tell(lambda: self._future.set_result(content))

    def refuse(self, error: Exception) -> None:
        """Be refused; on any thread."""
        self._tell(lambda: self._future.set_exception(error))

    def _tell(self, tell: Callable[[], None]) -> None:
        def on_loop() -> None:
            if not self._future.done():  # else nobody waits any more
                tell()

        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(on_loop)

    async def within(self, deadline: Deadline) -> bytes:
        """Return the content; raises what it was refused with, and ``RefusedError`` if it does not come in time."""
        try:
            while not self._future.done():
                await asyncio.wait((self._future,), timeout=deadline.left())
                if not self._future.done() and deadline.passed():
                    limit = f"{deadline.seconds:g} s"
                    late = f"the answer took longer than {limit}; send fewer rows"
                    others = f"others took all of its {limit}; try again soon"
                    raise RefusedError(503, late if self.is_begun else others, LATE)
            return self._future.result()
        finally:
            self._future.cancel()


def application(service: Service) -> Starlette:
    """Return the ASGI application of a service."""

    async def health(_: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(_: Request) -> Response:
        return _json({"status": "ready", "models": sorted(service.models)})

    async def described(_: Request) -> Response:
        models = {name: served.current.model for name, served in service.models.items()}
        return _json(document(models, service.limits, has_token=service.token is not None))

    async def listed(_: Request) -> Response:
        return _json({"models": [service.metadata(served) for served in service.models.values()]})

    async def one(request: Request) -> Response:
        return _json(service.metadata(service.model(request.path_params["name"])))

    async def predict_one(request: Request) -> Response:
        return await service.predict(service.model(request.path_params["name"]), request)

    async def predict_only(request: Request) -> Response:
        return await service.predict(service.only_model(), request)

    def route(path: str, respond: Respond, method: str = "GET") -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                service.check(request)
                return await respond(request)
            except (RefusedError, ClientDisconnect):
                raise
            except Exception as exc:  # noqa: BLE001  # Starlette would raise it again, and uvicorn hang up
                return await _failed(request, exc)

        return Route(path, endpoint, methods=[method])

    routes = [
        route("/health", health),
        route("/ready", ready),
        route("/openapi.json", described),
        route("/v1/models", listed),
        route("/v1/models/{name}", one),
        route("/v1/models/{name}/predict", predict_one, "POST"),
        route("/predict", predict_only, "POST"),
    ]
    handlers: dict[Any, Any] = {RefusedError: _refused, HTTPException: _not_there, ClientDisconnect: _gone}
    return Starlette(routes=routes, exception_handlers=handlers)


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(to_json(content), status, media_type=JSON)


async def _refused(_: Request, error: RefusedError) -> Response:
    headers = {429: {"retry-after": "1"}, 503: {"retry-after": "5"}, 401: {"www-authenticate": "Bearer"}}
    closing = {"connection": "close"} if error.status in (408, 413) else {}  # the rest of the body is not read
    return Response(error_body(error), error.status, headers.get(error.status, {}) | closing, media_type=JSON)


async def _not_there(request: Request, error: HTTPException) -> Response:
    what = f"there is no {request.method} here" if error.status_code == 405 else "there is nothing here"
    return await _refused(request, RefusedError(error.status_code, f"{what}; /openapi.json lists what there is"))


async def _gone(request: Request, error: ClientDisconnect) -> Response:
    return await _refused(request, RefusedError(400, "the client left before its body had come"))


async def _failed(request: Request, error: Exception) -> Response:
    logger.error("a request failed, which is a bug in dl4jlegacy", exc_info=error)
    return await _refused(request, RefusedError(500, "this is a bug in dl4jlegacy; its log says more", "DL4J-INTERNAL"))
