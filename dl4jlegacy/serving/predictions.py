"""Prediction requests from header to answer, as an ASGI application of its own.

It runs on the server's thread; workers do only the reading, computing and writing of rows. There is no layer between it
and the connection, because workers must wait for everything that the server's thread does for a request: only one of
Python's threads runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.models.queue import ClosedError, InferenceRequest, QueueFullError
from dl4jlegacy.serving.answers import (
    JSON,
    LATE,
    NPY,
    RefusedError,
    accepted,
    content_of,
    error_body,
    read_body,
    refusal_of,
)
from dl4jlegacy.serving.models import LoadedModel, ServedModel
from dl4jlegacy.serving.service import ENDING, Service
from dl4jlegacy.system.clock import RUNNING, Deadline

__all__ = ["Message", "Predictions", "Receive", "Send", "internal", "refused_headers"]

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_FIRST, _LAST = "/v1/models/", "/predict"
_BODIES = 8
"""Limit of all partially received bodies together, in multiples of the longest allowed body."""


def refused_headers(status: int) -> dict[str, str]:
    """Return the headers of a refusal, except its type and its length."""
    headers = {429: {"retry-after": "1"}, 503: {"retry-after": "5"}, 401: {"www-authenticate": "Bearer"}}
    closing = {"connection": "close"} if status in (408, 413) else {}  # the rest of the body is not read
    return headers.get(status, {}) | closing


def internal(error: Exception) -> RefusedError:
    """Log a bug, and return the refusal for the client."""
    logger.error("a request failed, which is a bug in dl4jlegacy", exc_info=error)
    return RefusedError(500, "this is a bug in dl4jlegacy; its log says more", "DL4J-INTERNAL")


class Predictions:
    """Answers ``POST`` requests to the prediction addresses; an ASGI application.

    Args:
        service: the served models.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._handover: _Handover | None = None
        self._coming = _Coming(_BODIES * service.limits.body_bytes)

    @staticmethod
    def answers(scope: Message) -> bool:
        """Return whether a request is a prediction request."""
        path: str = scope["path"]
        if scope["method"] != "POST" or not path.endswith(_LAST):
            return False
        return path == _LAST or (path.startswith(_FIRST) and "/" not in path[len(_FIRST) : -len(_LAST)])

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        began, name, path = RUNNING.now(), "", scope["path"]
        try:
            headers = dict(reversed(scope["headers"]))  # of duplicate headers the first one counts
            self._service.check(path, _text(headers, b"host"), _text(headers, b"authorization"))
            served = (
                self._service.only_model() if path == _LAST else self._service.model(path[len(_FIRST) : -len(_LAST)])
            )
            name = served.name
            status, kind, content, more = await self._predicted(served, headers, receive)
        except RefusedError as exc:
            status, kind, content, more = exc.status, JSON, error_body(exc), refused_headers(exc.status)
        except Exception as exc:  # noqa: BLE001  # uvicorn would hang up
            status, kind, content, more = 500, JSON, error_body(internal(exc)), {}
        if name and self._service.metrics is not None:
            self._service.metrics.answered(name, status, RUNNING.now() - began)
        fields = [(b"content-length", str(len(content)).encode()), (b"content-type", kind.encode())]
        fields += [(key.encode(), value.encode()) for key, value in more.items()]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": content})

    async def _predicted(
        self, served: ServedModel, headers: dict[bytes, bytes], receive: Receive
    ) -> tuple[int, str, bytes, dict[str, str]]:
        """Return status, type, content and headers of a model's answer; raises ``RefusedError``."""
        loaded = served.current  # a version loaded meanwhile answers only later requests
        media = _text(headers, b"content-type").partition(";")[0].strip().lower()
        known = accepted(loaded.model)
        if media not in known:
            raise RefusedError(
                415, f"model {served.name} takes no {media or 'body without content-type'}: send {', '.join(known)}"
            )
        as_npy = NPY in _text(headers, b"accept").lower()
        body = await self._body(_text(headers, b"content-length"), receive)
        if served.pending >= self._service.limits.queue:
            raise RefusedError(429, f"{served.pending} requests wait for model {served.name}; try again soon")
        served.pending += 1
        try:
            content = await self._computed(served, loaded, media, body, as_npy=as_npy)
        finally:
            served.pending -= 1
        return 200, NPY if as_npy else JSON, content, {"dl4j-model-version": str(loaded.version)}

    async def _computed(
        self, served: ServedModel, loaded: LoadedModel, media: str, body: bytes, *, as_npy: bool
    ) -> bytes:
        """Let a model's workers compute the answer to a body; raises ``RefusedError``."""
        model, limits = loaded.model, self._service.limits
        if self._handover is None:
            self._handover = _Handover(asyncio.get_running_loop())
        answer, deadline, unknown = _Answer(self._handover), Deadline(limits.seconds), list[str]()

        def succeed(outputs: list[Array], n_in: int) -> None:
            answer.give(content_of(model, outputs, n_in, as_npy=as_npy, unknown=unknown))

        def blocks() -> Iterator[Array]:
            answer.is_begun = True
            yield from read_body(model, media, body, limits, deadline, unknown)

        try:
            served.queue.put(InferenceRequest(loaded.replicated, blocks(), succeed, answer.refuse))
            return await answer.within(deadline)
        except Dl4jError as exc:  # an error of the network
            raise refusal_of(exc) from exc
        except QueueFullError as exc:  # requests that were not answered in time are still in the queue
            raise RefusedError(429, f"{exc}; try again soon") from exc
        except ClosedError as exc:
            raise RefusedError(503, ENDING) from exc

    async def _body(self, declared: str, receive: Receive) -> bytes:
        """Return a request's body; raises ``RefusedError`` if it is too large or too slow."""
        most, seconds = self._service.limits.body_bytes, self._service.limits.body_seconds
        if declared.isdecimal() and int(declared) > most:
            raise RefusedError(413, f"the body has {int(declared):,} bytes, {most:,} are allowed; send it in parts")
        chunks, size, more = list[bytes](), 0, True
        try:
            async with asyncio.timeout(seconds) as until, self._coming.counted(until) as tell:
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise RefusedError(400, "the client left before its body had come")
                    chunks.append(message.get("body", b""))
                    size, more = size + len(chunks[-1]), message.get("more_body", False)
                    if size > most:
                        raise RefusedError(413, f"the body has more than {most:,} bytes; send it in parts")
                    tell(size)
        except TimeoutError as exc:
            raise RefusedError(408, f"the body did not come within {seconds:g} s", LATE) from exc
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


class _Coming:
    """Counts the bytes of partially received bodies. If they exceed the limit, the oldest body is given up."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[asyncio.Timeout, int] = {}

    @contextlib.asynccontextmanager
    async def counted(self, until: asyncio.Timeout) -> AsyncIterator[Callable[[int], None]]:
        """Yield a function that records how many bytes of a body have arrived; ``until`` is the body's timeout."""

        def tell(size: int) -> None:
            self._sizes[until] = size
            while len(self._sizes) > 1 and sum(self._sizes.values()) > self._most:
                first = next(iter(self._sizes))
                del self._sizes[first]
                first.reschedule(0.0)

        try:
            yield tell
        finally:
            self._sizes.pop(until, None)


class _Handover:
    """Passes calls from workers to the server's thread, which is woken once for all waiting calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._done: deque[Callable[[], None]] = deque()
        self._is_called = False

    def put(self, tell: Callable[[], None]) -> None:
        """Let the server's thread call ``tell``; may be called on any thread."""
        self._done.append(tell)
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the server has ended
                self.loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._is_called = False  # first: later calls may come too late for the loop below
        while self._done:
            self._done.popleft()()


class _Answer:
    """The answer of a worker, awaited on the server's thread."""

    def __init__(self, handover: _Handover) -> None:
        self._handover = handover
        self._future: asyncio.Future[bytes] = handover.loop.create_future()
        self.is_begun = False

    def give(self, content: bytes) -> None:
        """Set the content of the answer; on any thread."""
        self._handover.put(functools.partial(self._tell, content))

    def refuse(self, error: Exception) -> None:
        """Set an error as the answer; on any thread."""
        self._handover.put(functools.partial(self._tell, error))

    def _tell(self, found: bytes | Exception) -> None:
        if self._future.done():  # no longer awaited
            return
        if isinstance(found, Exception):
            self._future.set_exception(found)
        else:
            self._future.set_result(found)

    async def within(self, deadline: Deadline) -> bytes:
        """Return the content; raises the error that was set, or ``RefusedError`` after the deadline."""
        timer = [self._handover.loop.call_later(deadline.left(), lambda: look())]

        def look() -> None:
            if self._future.done():
                return
            if not deadline.passed():  # this process was suspended meanwhile, which does not count
                timer[0] = self._handover.loop.call_later(deadline.left(), look)
                return
            limit = f"{deadline.seconds:g} s"
            late = f"the answer took longer than {limit}; send fewer rows"
            others = f"others took all of its {limit}; try again soon"
            self._future.set_exception(RefusedError(503, late if self.is_begun else others, LATE))

        try:
            return await self._future
        finally:
            timer[0].cancel()
            self._future.cancel()
