"""The worker process's end of the connection that ``liveness`` describes (layer 3).

It finds the master, proves itself, lets the master prove itself, beats, and listens for the master's beats; when the
connection ends, it asks where the master is now and connects anew, with jittered back-off, until it is closed.
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
from dl4jlegacy.scaleout.liveness.handshake import CHALLENGE_NBYTES, WELCOME_NBYTES, ClientHandshake, Credentials
from dl4jlegacy.scaleout.liveness.liveness import (
    AWAY,
    BEAT,
    BEAT_SECONDS,
    BYE,
    HANDSHAKE_SECONDS,
    Fairness,
    Waker,
    parsed_address,
)
from dl4jlegacy.scaleout.liveness.presence import LinkState

__all__ = ["LivenessLink"]

logger = logging.getLogger(__name__)

_PAUSES = (0.1, 1.0)
"""Seconds: the first pause before connecting anew, and the longest; less than a silence, so that nobody seems gone."""
_REFUSED_SECONDS = 5.0
_LOOK_SECONDS = 0.25


class _Stopped(Exception):  # noqa: N818  # no error: the link is being closed
    pass


class LivenessLink:
    """Keeps a process connected to its master. A worker that cannot reach the master goes on without.

    Args:
        find_address: returns the master's ``host:port``, None while no master listens. Called on the link's thread
            before each attempt; may block and fail.
        process: this process's name, ``worker_pool.process_name()``.
        run, secret: of the run, as for ``LivenessServer``.
        on_change: called with (address, state) when the master at that address is "alive", "silent", "closed" (the
            connection broke) or has "left"; on the link's thread, so it must only enqueue.
        silence_seconds: without a beat for so long the master is silent.

    Raises:
        ConfError: the secret is empty, or the name is none.
    """

    def __init__(
        self,
        find_address: Callable[[], str | None],
        process: str,
        *,
        run: str,
        secret: bytes | None,
        on_change: Callable[[str, LinkState], None] = lambda address, state: None,
        silence_seconds: float = 2.0,
    ) -> None:
        self._find_address, self._process = find_address, process
        self._credentials = Credentials(run, secret)
        ClientHandshake(self._credentials, process)
        self._on_change, self._silence = on_change, silence_seconds
        self._waker: Waker
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dl4j-liveness-link", daemon=True)
        self._told = ""
        self.state: LinkState | None = None
        """How the link stands; None before the first connection. May be read on any thread."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Self:
        """Begin to connect, on a thread of its own."""
        self._waker = Waker()
        self._thread.start()
        return self

    def close(self, seconds: float = 1.0) -> None:
        """Say good-bye and disconnect; waits up to ``seconds``, more is only left of a ``find_address`` that hangs."""
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
                address = self._find_address()
                if address is not None and self._attend(address):
                    pause = _PAUSES[0]
            except _Stopped:
                break
            except NotAuthorisedError as exc:
                self._tell(exc, logging.WARNING)
                pause = _REFUSED_SECONDS
            except (OSError, Dl4jError) as exc:
                self._tell(exc, logging.DEBUG)
            except Exception as exc:  # noqa: BLE001  # find_address's own bug: the link goes on
                self._tell(exc, logging.ERROR)
            self._stopping.wait(pause * random.uniform(0.5, 1.0))
        self._waker.close()

    def _tell(self, exc: Exception, level: int) -> None:
        """Log what keeps the link from the master, once for as long as it is the same."""
        text = f"{type(exc).__name__}: {exc}"
        if text != self._told:
            self._told = text
            trace = exc if level == logging.ERROR else None
            logger.log(level, "no direct connection to the master (the run goes on without): %s", exc, exc_info=trace)

    def _attend(self, address: str) -> bool:
        """Be connected for as long as it goes well; return whether it came to that."""
        with self._connect(address) as line:
            deadline = time.monotonic() + HANDSHAKE_SECONDS
            handshake = ClientHandshake(self._credentials, self._process)
            line.send(handshake.hello(self._receive(line, CHALLENGE_NBYTES, deadline)))
            handshake.check(self._receive(line, WELCOME_NBYTES, deadline))
            self._told = ""
            self._change(address, "alive")
            try:
                state = self._beat(line)
            except _Stopped:
                _part(line, BYE)
                raise
            if state == "silent":
                _part(line, AWAY)  # it may only be frozen, and shall not take this for the end of the process
        self._change(address, state)
        return True

    def _connect(self, address: str) -> socket.socket:
        """Return a connected socket that does not block; raises ``OSError`` if there is none in time."""
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
        """Wait until ``line`` is ready; False at the deadline. Raises ``_Stopped`` when the link is being closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._waker.reader, selectors.EVENT_READ)
            selector.register(line, events)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        if self._stopping.is_set():
            raise _Stopped
        return bool(ready)

    def _receive(self, line: socket.socket, nbytes: int, deadline: float) -> bytes:
        """Return exactly so many bytes; raises ``OSError`` if they do not come in time."""
        said = b""
        while len(said) < nbytes:
            if not self._wait(line, selectors.EVENT_READ, deadline):
                raise TimeoutError(f"{len(said)} of {nbytes} bytes of the handshake in {HANDSHAKE_SECONDS:g} s")
            more = line.recv(nbytes - len(said))
            if not more:
                raise ConnectionResetError("the connection was closed during the handshake")
            said += more
        return said

    def _beat(self, line: socket.socket) -> LinkState:
        """Beat and listen until the master does not any more; return what became of it."""
        heard = next_beat = time.monotonic()
        fairness = Fairness(heard)
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
                with contextlib.suppress(OSError):  # reading will tell
                    line.send(bytes((BEAT,)))
            if fairness.judges(now) and now - heard > self._silence:
                return "silent"

    def _change(self, address: str, state: LinkState) -> None:
        self.state = state
        try:
            self._on_change(address, state)
        except Exception:  # it must not end the thread that beats
            logger.exception("a listener failed when the master at %s became %s", address, state)


def _part(line: socket.socket, message: int) -> None:
    """Say a last word; what is unread must be read first, or closing would destroy it on its way."""
    with contextlib.suppress(OSError):
        while len(line.recv(4096)) == 4096:
            continue
    with contextlib.suppress(OSError):
        line.send(bytes((message,)))
        line.shutdown(socket.SHUT_WR)
