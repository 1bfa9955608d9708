"""The definition of an endpoint: its path, its parameters, its answers, and its handler.

The server's routes, the parsing of parameters and the OpenAPI document are made from these definitions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dl4jlegacy.errors import Dl4jError, UsageError, nearest
from dl4jlegacy.ui.evaluation import EvaluationView
from dl4jlegacy.ui.guard import Policy
from dl4jlegacy.ui.model_watcher import ModelWatcher
from dl4jlegacy.ui.watcher import Watcher

__all__ = [
    "Endpoint",
    "Handler",
    "Panel",
    "Parameter",
    "Refused",
    "Values",
    "alone",
    "json_response",
    "route_of",
    "steered",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_DIGITS = 18


class Refused(Exception):  # noqa: N818  # an answer, not a failure of this program
    """A request that is refused with a status, a code and a reason."""

    def __init__(self, status: int, message: str, code: str = UsageError.code) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def response(self) -> Response:
        """Return the HTTP response of the refusal."""
        return json_response({"error": {"code": self.code, "message": str(self)}}, self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of an endpoint, in its query or its path; ``least`` and ``most`` bound a number."""

    name: str
    text: str
    kind: Literal["integer", "string"] = "string"
    place: Literal["query", "path"] = "query"
    default: int | str | None = None
    least: int = 0
    most: int = 10**_MOST_DIGITS - 1

    def read(self, given: str) -> int | str:
        """Return the value of a parameter's text; raises ``Refused``."""
        if self.kind == "string":
            return given
        digits = given.removeprefix("-")
        is_number = digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
        if not is_number or not self.least <= int(given) <= self.most:
            raise Refused(
                400, f"{self.name} is {given[:100]!r}; it must be a whole number from {self.least} to {self.most}"
            )
        return int(given)


@dataclass(slots=True, kw_only=True)
class Panel:
    """The state behind the endpoints; one for every server.

    Attributes:
        watcher: reads the run.
        policy: the access rules, with the dashboard's token.
        folder: where a model is saved.
        is_closing: returns whether the server is about to end.
        steering: held while the run is controlled or a model is saved, so that this happens one at a time.
        evaluating: held while a model is evaluated; a separate lock, since that may be slow and must not delay a stop.
        streams: number of open event streams.
        models: reads the models of the run.
        evaluation: result of the last evaluation of the newest checkpoint; None: none yet.
    """

    watcher: Watcher
    policy: Policy
    folder: str = "."
    is_closing: Callable[[], bool] = lambda: False
    steering: threading.Lock = field(default_factory=threading.Lock)
    evaluating: threading.Lock = field(default_factory=threading.Lock)
    streams: int = 0
    models: ModelWatcher = field(init=False)
    evaluation: EvaluationView | None = None

    def __post_init__(self) -> None:
        self.models = ModelWatcher(self.watcher)


Values = Mapping[str, Any]
Handler = Callable[[Panel, Values], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint of the interface.

    Attributes:
        method, path: as OpenAPI writes them, ``/statetracker/minibatch/{num}``.
        handler: computes the answer from the panel and the values of the parameters by name.
        summary: one sentence.
        answers: statuses with their meaning, besides those of every endpoint.
        media: media type of a successful answer.
        shape: the fields of a successful JSON answer with their types; a single type: of the whole answer. None: no
            JSON.
    """

    method: Literal["GET", "POST", "PUT"]
    path: str
    handler: Handler
    summary: str
    parameters: tuple[Parameter, ...] = ()
    answers: Mapping[int, str] = field(default_factory=lambda: {200: "as it is"})
    media: str = "application/json"
    shape: Any = None


def json_response(value: Any, status: int = 200) -> Response:
    """Return a value as a JSON response; NaN and infinite numbers become null."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def route_of(endpoint: Endpoint, panel: Panel) -> Route:
    """Return the route of an endpoint."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint.handler(panel, _values(endpoint, request))
        except Refused as refused:
            return refused.response()
        except Exception:  # Starlette would raise it again, and uvicorn would not report it
            logger.exception("a request failed, which is a bug in dl4jlegacy")
            return Refused(500, "this is a bug in dl4jlegacy; its log says more", Dl4jError.code).response()

    return Route(endpoint.path, answer, methods=[endpoint.method])


def _values(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    """Return the values of an endpoint's parameters; raises ``Refused`` for unknown or repeated parameters."""
    known = {parameter.name: parameter for parameter in endpoint.parameters}
    values = {name: parameter.default for name, parameter in known.items()}
    given = [*request.query_params.multi_items(), *request.path_params.items()]
    for name, text in given:
        if name not in known:
            there = nearest(name[:100], list(known)) if known else "; this takes none"
            raise Refused(400, f"there is no parameter {name[:100]!r}{there}")
        if [each for each, _ in given].count(name) > 1:
            raise Refused(400, f"{name} is given more than once")
        values[name] = known[name].read(text)
    return values


async def steered(panel: Panel, act: Callable[[], str]) -> str:
    """Call an action that controls the run or saves its model, on a thread of its own; return its message.

    Raises:
        Refused: the action is not possible, or another one is in progress.
    """
    return await alone(panel.steering, act, "the run is being steered, or its model saved")


async def alone(lock: threading.Lock, act: Callable[[], T], what: str) -> T:
    """Call ``act`` on a thread of its own while the lock is held; return its result.

    Raises:
        Refused: ``act`` raised a ``Dl4jError``; or the lock is taken: ``what`` says by which action.
    """
    if not lock.acquire(blocking=False):
        raise Refused(409, f"{what} at this moment; look again in a while")
    try:
        return await run_in_threadpool(act)
    except Dl4jError as exc:
        raise Refused(409, str(exc), exc.code) from exc
    finally:
        lock.release()
