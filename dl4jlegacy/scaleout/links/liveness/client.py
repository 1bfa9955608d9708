"""The worker's end of the liveness connection (``server`` is the master's).

It finds the master, authenticates with it in both directions, sends heartbeats and listens for those of the master.
When the connection ends, it looks the master's address up again and reconnects, with jittered back-off, until closed.
"""

from __future__ import annotations

import contextlib
import logging
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from dl4jlegacy.errors import Dl4jError, NotAuthorisedError
from dl4jlegacy.scaleout.links.liveness.failure_detector import ConnectionState, StallDetector
from dl4jlegacy.scaleout.links.liveness.handshake import CHALLENGE_NBYTES, WELCOME_NBYTES, ClientHandshake, Credentials
from dl4jlegacy.scaleout.links.liveness.server import (
    AWAY,
    BEAT,
    BEAT_SECONDS,
    BYE,
    HANDSHAKE_SECONDS,
    STALL_SECONDS,
    Waker,
    parsed_address,
)
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["LivenessClient"]

logger = logging.getLogger(__name__)

_PAUSES = (0.1, 1.0)
"""Seconds: the first and the longest pause before reconnecting; less than a silence, so that no end seems gone."""
_REFUSED_SECONDS = 5.0
_LOOK_SECONDS = 0.25


class _Stopped(Exception):  # noqa: N818  # not an error: the client is being closed
    pass


class LivenessClient:
    """Keeps a worker process connected to its master. A worker that cannot reach the master works without it.

    Args:
        find_address: returns the master's ``host:port``, or None while no master listens. Called on the client's
            thread before each attempt; may block and may raise.
        process: the name of this process, from ``worker_pool.process_name()``.
        run, secret: as for ``LivenessServer``.
        on_change: called with (address, state) when the state of the master at that address changes, on the client's
            thread; it must only enqueue.
        silence_seconds: the master is silent if no heartbeat arrives for this long.

    Raises:
        ConfError: the secret is empty, or ``process`` is not a valid name.
    """

    def __init__(
        self,
        find_address: Callable[[], str | None],
        process: str,
        *,
        run: str,
        secret: bytes | None,
        on_change: Callable[[str, ConnectionState], None] = lambda address, state: None,
        silence_seconds: float = 2.0,
    ) -> None:
        self._find_address, self._process = find_address, process
        self._credentials = Credentials(run, secret)
        ClientHandshake(self._credentials, process)
        self._on_change, self._silence = on_change, silence_seconds
        self._waker: Waker
        self._stopping = threading.Event()
        self._thread = ServiceThread(target=self._run, name="dl4j-liveness-client")
        self._last_logged = ""
        self.state: ConnectionState | None = None
        """State of the connection; None before the first one. May be read on any thread."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start connecting, on a new thread."""
        self._waker = Waker()
        self._thread.start()
        return self

    def close(self, seconds: float = 1.0) -> None:
        """Say goodbye and disconnect; waits up to ``seconds``, then gives up on a ``find_address`` that hangs."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        self._waker.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _PAUSES[0]
        while not self._stopping.is_set():
            pause = min(pause * 1.6, _PAUSES[1])
            try:
                with exits_as_errors():
                    address = self._find_address()
                    if address is not None and self._stay_connected(address):
                        pause = _PAUSES[0]
            except _Stopped:
                break
            except NotAuthorisedError as exc:
                self._log(exc, logging.WARNING)
                pause = _REFUSED_SECONDS
            except (OSError, Dl4jError) as exc:
                self._log(exc, logging.DEBUG)
            except Exception as exc:  # noqa: BLE001  # a bug in find_address: try again later
                self._log(exc, logging.ERROR)
            self._stopping.wait(pause * random.uniform(0.5, 1.0))
        self._waker.close()

    def _log(self, exc: Exception, level: int) -> None:
        """Log why the master cannot be reached; the same reason is logged once."""
        text = f"{type(exc).__name__}: {exc}"
        if text != self._last_logged:
            self._last_logged = text
            trace = exc if level == logging.ERROR else None
            logger.log(level, "no direct connection to the master (the run goes on without): %s", exc, exc_info=trace)

    def _stay_connected(self, address: str) -> bool:
        """Connect, and send heartbeats until the connection ends; return True if the handshake succeeded."""
        with self._connect(address) as line:
            try:
                self._shake_hands(line)
                self._last_logged = ""
                self._change(address, "alive")
                state = self._beat(line)
            except _Stopped:
                _part(line, BYE)  # in mid-handshake, too: the master may have welcomed this process already
                raise
            if state == "silent":
                _part(line, AWAY)  # a master that is only frozen must not take this for the end of the process
        self._change(address, state)
        return True

    def _shake_hands(self, line: socket.socket) -> None:
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        handshake = ClientHandshake(self._credentials, self._process)
        line.send(handshake.hello(self._receive(line, CHALLENGE_NBYTES, deadline)))
        handshake.check_welcome(self._receive(line, WELCOME_NBYTES, deadline))

    def _connect(self, address: str) -> socket.socket:
        """Return a connected non-blocking socket; raises ``OSError`` if the connection fails or takes too long."""
        found = socket.getaddrinfo(*parsed_address(address), type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        line = socket.socket(family, kind, protocol)
        try:
            line.setblocking(False)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(BlockingIOError):
                line.connect(where)
            if not self._wait(line, selectors.EVENT_WRITE, time.monotonic() + HANDSHAKE_SECONDS):
                raise TimeoutError(f"nothing answers at {address} in {HANDSHAKE_SECONDS:g} s")
            error = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, f"{address} cannot be reached")
        except BaseException:
            line.close()
            raise
        return line

    def _wait(self, line: socket.socket, events: int, deadline: float) -> bool:
        """Wait until ``line`` is ready; return False at the deadline. Raises ``_Stopped`` when the client is closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._waker.reader, selectors.EVENT_READ)
            selector.register(line, events)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        if self._stopping.is_set():
            raise _Stopped
        return bool(ready)

    def _receive(self, line: socket.socket, nbytes: int, deadline: float) -> bytes:
        """Return exactly ``nbytes`` bytes; raises ``OSError`` if they do not arrive in time."""
        said = b""
        while len(said) < nbytes:
            if not self._wait(line, selectors.EVENT_READ, deadline):
                raise TimeoutError(f"{len(said)} of {nbytes} bytes of the handshake in {HANDSHAKE_SECONDS:g} s")
            more = line.recv(nbytes - len(said))
            if not more:
                raise ConnectionResetError("the connection was closed during the handshake")
            said += more
        return said

    def _beat(self, line: socket.socket) -> ConnectionState:
        """Send heartbeats until the master is silent or the connection ends; return the new state."""
        heard = next_beat = time.monotonic()
        stall = StallDetector(STALL_SECONDS, grace_seconds=STALL_SECONDS)
        stall.has_stalled(heard)
        while True:
            if self._wait(line, selectors.EVENT_READ, min(next_beat, time.monotonic() + _LOOK_SECONDS)):
                try:
                    said = line.recv(1024)
                except BlockingIOError:
                    continue
                except OSError:
                    return "closed"
                if BYE in said:
                    return "left"
                if not said or said.strip(bytes((BEAT,))):
                    return "closed"
                heard = time.monotonic()
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT_SECONDS
                with contextlib.suppress(OSError):  # a failure shows when reading
                    line.send(bytes((BEAT,)))
            if not stall.has_stalled(now) and now - heard > self._silence:
                return "silent"

    def _change(self, address: str, state: ConnectionState) -> None:
        self.state = state
        try:
            with exits_as_errors():
                self._on_change(address, state)
        except Exception:  # it must not end the thread that sends the heartbeats
            logger.exception("a listener failed when the master at %s became %s", address, state)


def _part(line: socket.socket, message: int) -> None:
    """Send a last message. Reads unread bytes first: closing with unread bytes would reset the connection."""
    with contextlib.suppress(OSError):
        while len(line.recv(4096)) == 4096:
            continue
    with contextlib.suppress(OSError):
        line.send(bytes((message,)))
        line.shutdown(socket.SHUT_WR)
