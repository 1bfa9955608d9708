"""The connections of the model server, by httptools where it is installed, else by h11, which is several times slower.

uvicorn itself waits for ever for the headers of a request; here a connection whose client does not send them in time is
closed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HEADER_SECONDS", "connection_type", "event_loop"]

HEADER_SECONDS = 10.0


class _HeaderTimer:
    """Closes a connection unless it is disarmed in time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop, self._transport = loop, transport
        self._handle: asyncio.TimerHandle | None = None
        self.arm()

    def arm(self) -> None:
        """Begin to wait, unless it does already."""
        if self._handle is None:
            self._handle = self._loop.call_later(HEADER_SECONDS, self._transport.close)

    def disarm(self) -> None:
        """Wait no longer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def _forget_ended(protocol: Any) -> None:
    """Leave tasks that have ended out of those that uvicorn compares with its limit, before it does.

    The loop takes them out, but may read many more requests before: of those that have just been answered, too. With as
    many connections as there may be, such a request would be sent away.
    """
    if len(protocol.tasks) >= protocol.limit_concurrency:
        protocol.tasks.difference_update([task for task in protocol.tasks if task.done()])


class _H11Connection(H11Protocol):
    _timer: _HeaderTimer | None = None

    def handle_events(self) -> None:
        _forget_ended(self)
        super().handle_events()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._timer = _HeaderTimer(self.loop, transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is None:
            return
        if self.conn.their_state is not h11.IDLE:
            self._timer.disarm()
        else:  # the beginning of another request on the same connection
            self._timer.arm()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.disarm()
        super().connection_lost(exc)


def _httptools_connection() -> type[asyncio.Protocol]:
    """Return the same for httptools; raises ``ImportError`` without it."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Connection(HttpToolsProtocol):
        _timer: _HeaderTimer | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            self._timer = _HeaderTimer(self.loop, transport)

        def on_headers_complete(self) -> None:
            _forget_ended(self)
            super().on_headers_complete()
            if self._timer is not None:
                self._timer.disarm()

        def on_body(self, body: bytes) -> None:
            if self.cycle.body or self.cycle.response_complete:
                super().on_body(body)
                return
            # As it is: uvicorn copies it twice, and stops to read from the connection beyond 64 kB, for each request.
            self.cycle.body = body  # type: ignore[assignment]  # it only adds to it, and asks for it as bytes
            self.cycle.message_event.set()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._timer is not None:
                self._timer.arm()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.disarm()
            super().connection_lost(exc)

    return Connection


def connection_type() -> type[Any]:
    """Return the protocol of connections."""
    try:
        return _httptools_connection()
    except ImportError:
        return _H11Connection


def event_loop() -> str:
    """Return the name of the event loop, as uvicorn calls it."""
    try:
        import uvloop  # noqa: F401  # to see whether it is there
    except ImportError:
        return "asyncio"
    return "uvloop"
