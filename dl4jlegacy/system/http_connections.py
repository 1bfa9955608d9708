"""Limits number and duration of an HTTP server's connections; parses them by httptools if installed, else h11.

uvicorn itself accepts all clients, until no file can be opened any more. It waits without limit for the headers of a
request, and for a client to read its answer. Here slow clients are closed, and a silent client loses its place to the
next one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dl4jlegacy.system.admission import Places, Seldom

__all__ = ["HEADER_SECONDS", "BoundedServer", "connection_type", "event_loop"]

logger = logging.getLogger(__name__)

HEADER_SECONDS = 10.0
UNREAD_SECONDS = (5.0, 60.0)
"""Seconds until a client that reads nothing is closed: if many bytes wait for such clients, and if few do."""
_AT_ONCE = 64
_MOST_WAITING, _MOST_WAITING_BYTES = 64, 1 << 16
"""Maximum requests, or bytes, that wait for an earlier answer; reading then pauses after one more chunk."""
_ACCEPT_AGAIN_SECONDS = 1.0
_NO_LINGER = struct.pack("ii", 1, 0)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 63\r\n"
    b"retry-after: 5\r\nconnection: close\r\n\r\n"
    b"requests are under way on all connections; try again in a while"
)


class _Clients:
    """The connected clients, and the bytes that wait for clients that do not read. Belongs to the loop's thread."""

    def __init__(self, most: int, most_unread: int) -> None:
        self.places: Places[_Client] = Places(most)
        self.unread: dict[_Client, int] = {}
        self._most_unread = most_unread

    @property
    def too_much_is_unread(self) -> bool:
        return sum(self.unread.values()) > self._most_unread


class _Client:
    """The state of a connection: whether its client has to send or to read, and until when."""

    def __init__(self, clients: _Clients, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._clients, self._loop, self._transport = clients, loop, transport
        self._says: asyncio.TimerHandle | None = None
        self._reads: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=0)  # so that every unread byte is reported
        leaves = clients.places.enter(self)
        if leaves is self:
            transport.write(_FULL)
            transport.close()
        elif leaves is not None:
            leaves.abort()
        self.expect()

    def expect(self) -> None:
        """Close the connection unless the client sends the expected data in time; see ``HEADER_SECONDS``."""
        if self._says is None:
            self._says = self._loop.call_later(HEADER_SECONDS, self._is_late)

    def _is_late(self) -> None:
        self._says = None
        if self._transport.is_reading() or self._transport.is_closing():
            self._transport.close()
        else:  # the client's data are not read yet
            self.expect()

    def expect_no_more(self) -> None:
        """Cancel the time limit."""
        if self._says is not None:
            self._says.cancel()
            self._says = None

    def serve(self) -> None:
        """Record that the client has sent a whole request."""
        self.expect_no_more()
        self._clients.places.serve(self)

    def wait(self) -> None:
        """Record that the client's next request is awaited."""
        self._clients.places.wait(self)

    def abort(self) -> None:
        """Close the connection at once, and discard unsent data."""
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def stall(self) -> None:
        """Record that the client does not read fast enough."""
        self._note_unread()
        self._reads = self._loop.call_later(UNREAD_SECONDS[0], self._still_stalls)

    def _note_unread(self) -> None:
        self._clients.unread[self] = self._transport.get_write_buffer_size()

    def _still_stalls(self, has_time: bool = True) -> None:
        before = self._clients.unread[self]
        self._note_unread()
        if self._clients.too_much_is_unread or not (has_time or self._clients.unread[self] < before):
            self.abort()
        else:
            self._reads = self._loop.call_later(UNREAD_SECONDS[1], self._still_stalls, False)

    def flow(self) -> None:
        """Record that the client has read."""
        self._clients.unread.pop(self, None)
        if self._reads is not None:
            self._reads.cancel()
            self._reads = None

    def leave(self) -> None:
        """Record that the connection is closed."""
        self.expect_no_more()
        self.flow()
        self._clients.places.leave(self)


class _Bounded(asyncio.Protocol):
    """The common part of the connections of both libraries; precedes uvicorn's protocol in the class order."""

    clients: _Clients
    loop: asyncio.AbstractEventLoop
    flow: Any
    _client: _Client
    _many_wait: Callable[[], bool]
    """Whether many requests were read before the answer to an earlier one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._client = _Client(self.clients, self.loop, transport)
        self._read_on = self.flow.resume_reading
        self.flow.resume_reading = self._read_on_unless_many_wait

    def _read_on_unless_many_wait(self) -> None:
        """Resume reading unless many requests wait; uvicorn itself would read more after each answer."""
        if not self._many_wait():
            self._read_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]  # uvicorn's method
        self._read_on_unless_many_wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._client.stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._client.flow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.leave()
        super().connection_lost(exc)


class _H11Connection(_Bounded, H11Protocol):
    def _many_wait(self) -> bool:
        return self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) > _MOST_WAITING_BYTES

    def handle_events(self) -> None:
        super().handle_events()
        is_asked = self.cycle is not None and not self.cycle.response_complete
        if is_asked and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._client.serve()
        elif is_asked:  # the application waits for the body, and sets the time limit
            self._client.expect_no_more()
        elif self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:  # an incomplete request
            self._client.expect()

    def on_response_complete(self) -> None:
        self._client.wait()
        if self.conn.their_state is h11.SEND_BODY:
            self._client.expect()
        super().on_response_complete()


def _httptools_connection() -> type[asyncio.Protocol]:
    """Return the connection class for httptools; raises ``ImportError`` without it."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Connection(_Bounded, HttpToolsProtocol):
        _is_whole = True

        def _many_wait(self) -> bool:
            return len(self.pipeline) > _MOST_WAITING

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._is_whole = False
            self._client.expect()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self._client.expect_no_more()

        def on_body(self, body: bytes) -> None:
            if self.cycle.body or self.cycle.response_complete:
                super().on_body(body)
                return
            # Passed unchanged: uvicorn copies it twice, and pauses reading beyond 64 kB, for each request.
            self.cycle.body = body  # type: ignore[assignment]  # uvicorn only appends to it, and reads it as bytes
            self.cycle.message_event.set()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._is_whole = True
            if not self.cycle.response_complete:
                self._client.serve()

        def on_response_complete(self) -> None:
            if not self.pipeline:
                self._client.wait()
            if not self._is_whole:
                self._client.expect()
            super().on_response_complete()

    return Connection


def connection_type(*, is_fast: bool = True) -> type[Any]:
    """Return the protocol class of connections: httptools if ``is_fast`` and installed, else h11."""
    try:
        return _httptools_connection() if is_fast else _H11Connection
    except ImportError:
        return _H11Connection


def event_loop() -> str:
    """Return the name of the event loop for uvicorn."""
    try:
        import uvloop  # noqa: F401  # only to see whether it is installed
    except ImportError:
        return "asyncio"
    return "uvloop"


class _Acceptor:
    """Accepts connections while there is room; uvicorn treats it as an asyncio server. Used by the loop's thread."""

    def __init__(self, listening: socket.socket, made: Callable[[], asyncio.Protocol], places: Places[_Client]) -> None:
        self._loop, self._listening = asyncio.get_running_loop(), listening
        self._made, self._places = made, places
        self._coming: set[asyncio.Task[Any]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._failures = Seldom()
        listening.setblocking(False)
        self._begin()

    def _begin(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._places.has_room(len(self._coming)):
                break  # replaced clients leave in the next turns of the loop
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as exc:  # for example: too many open files
                if self._failures.happens():
                    logger.warning(
                        "no connection can be taken at %s: %s (%d times so far)",
                        self._listening.getsockname(),
                        exc,
                        self._failures.count,
                    )
                self._loop.remove_reader(self._listening.fileno())
                self._again = self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._begin)
                break
            self._take(accepted)

    def _take(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._made, accepted))
        self._coming.add(task)
        task.add_done_callback(lambda done: self._came(done, accepted))

    def _came(self, task: asyncio.Task[Any], accepted: socket.socket) -> None:
        self._coming.discard(task)
        if task.cancelled() or task.exception() is not None:  # the client left at once
            accepted.close()

    def close(self) -> None:
        """Accept no more connections."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening.fileno())

    async def wait_closed(self) -> None:
        """See ``asyncio.Server``."""


class BoundedServer(uvicorn.Server):
    """uvicorn's server with limited connections.

    Args:
        config: of uvicorn; its ``http`` is a ``connection_type()``.
        most: maximum connections. A new client replaces the client that has sent no whole request for longest; if all
            have sent one, the new client is answered with status 503.
        most_unread: maximum bytes for clients that do not read them.
    """

    def __init__(self, config: uvicorn.Config, most: int, most_unread: int) -> None:
        super().__init__(config)
        self._clients = _Clients(most, most_unread)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See ``uvicorn.Server``, which itself would accept all connections of a socket."""
        await super().startup(sockets=[])

        def made() -> asyncio.Protocol:
            kind: Any = self.config.http_protocol_class
            connection = kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            connection.clients = self._clients
            found: asyncio.Protocol = connection
            return found

        self.servers = [
            _Acceptor(listening, made, self._clients.places)  # type: ignore[misc]  # it has what uvicorn calls
            for listening in sockets or ()
        ]
