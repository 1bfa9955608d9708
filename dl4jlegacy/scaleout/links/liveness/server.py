"""The master's end of the liveness connections: every worker process connects to it directly.

When a process dies, the kernel closes its connections and the other end sees this at once. When a process is frozen,
its kernel still accepts connections and bytes. Therefore both ends send heartbeats from a thread of their own, and an
end that sends none for ``silence_seconds`` is silent. Silence is measured on the receiver's monotonic clock; a process
that was stopped itself does not judge the others (``StallDetector``).

Both ends authenticate in a handshake (``handshake``). After it every message is a single byte. A peer that sends
anything else, too many bytes, or nothing for too long is disconnected. The reported states are hints: they make a run
faster, its result does not depend on them.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from dl4jlegacy.errors import ConfError, WireError
from dl4jlegacy.scaleout.links.liveness.failure_detector import ConnectionState, StallDetector
from dl4jlegacy.scaleout.links.liveness.handshake import HELLO_NBYTES, Credentials, RefusedError, ServerHandshake
from dl4jlegacy.system.admission import Seldom, most_connections
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["AWAY", "BEAT", "BEAT_SECONDS", "BYE", "LivenessServer", "Peer", "Waker", "parsed_address"]

logger = logging.getLogger(__name__)

BEAT, AWAY, BYE = b"BAE"
"""The messages after the handshake: heartbeat; the sender will reconnect; the sender leaves for good."""
BEAT_SECONDS = 0.5
HANDSHAKE_SECONDS = 2.0
PRESSED_SECONDS = 0.3
"""Maximum seconds for a new connection's hello, and the maximum when others wait for its place."""
MOST_PENDING = 64
MOST_GONE = 1000
"""Limits: connections without a hello, processes remembered after they have gone."""
STALL_SECONDS = 1.0
"""After a longer gap in its thread, an end concludes that its own process was stopped.

It then judges no peer for as long again.
"""
_LOOK_SECONDS = 0.25
_SILENT_KEPT_SECONDS = 60.0
_REFUSALS_SECONDS = 10.0
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Peer:
    """The master's knowledge about a worker process from its connection.

    Attributes:
        state: "alive", "silent", "closed" (it broke: the process or the network failed), "left" (it said goodbye).
        since: when this state began, in monotonic seconds of this process.
        heard: when the last message before that arrived, in the same seconds.
        host: the address of the last connection.
    """

    state: ConnectionState
    since: float
    heard: float
    host: str


class Waker:
    """Interrupts a thread that waits in a selector, from another thread."""

    def __init__(self) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        """End the current wait and all later ones, until ``clear``."""
        with contextlib.suppress(OSError):  # closed already, or full, so that it is woken anyway
            self._writer.send(b"!")

    def clear(self) -> None:
        """Let the next wait block again."""
        with contextlib.suppress(BlockingIOError):
            while len(self.reader.recv(4096)) == 4096:
                continue

    def close(self) -> None:
        """Close both ends."""
        self.reader.close()
        self._writer.close()


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    host: str
    opened: float
    handshake: ServerHandshake
    process: str = ""
    said: bytearray = field(default_factory=bytearray)
    heard: float = 0.0


class LivenessServer:
    """Accepts the connections of worker processes, on a thread of its own. ``peers`` may be called on any thread.

    Args:
        host, port: where to listen, for example ``127.0.0.1``; port 0 chooses a free port.
        run: the run's id; processes of other runs are refused.
        secret: the run's secret; None: messages are not signed.
        on_change: called with (process, state) for each change, on the server's thread; it must only enqueue.
        silence_seconds: a process is silent if no heartbeat arrives for this long.
        advertise: the host in ``address``, if workers reach this machine under another name than ``host``.

    Raises:
        ConfError: the secret is empty.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        run: str,
        secret: bytes | None,
        on_change: Callable[[str, ConnectionState], None],
        silence_seconds: float = 2.0,
        advertise: str = "",
    ) -> None:
        self._host, self._port, self._advertise = host, port, advertise
        self._credentials = Credentials(run, secret)
        self._on_change, self._silence = on_change, silence_seconds
        self._selector: selectors.BaseSelector
        self._waker: Waker
        self._listener: socket.socket | None = None
        self._listens = False
        self._listens_again = 0.0
        self._stopping = threading.Event()
        self._thread = ServiceThread(target=self._run, name="dl4j-liveness")
        self._pending: set[_Connection] = set()
        self._connected: dict[str, _Connection] = {}
        self._away: dict[str, float] = {}
        self._peers: dict[str, Peer] = {}  # replaced as a whole, so that other threads may read it
        self._next_beat = 0.0
        self._refusals, self._failures = Seldom(_REFUSALS_SECONDS), Seldom()
        self._most = (
            most_connections("master") - MOST_PENDING if most_connections("master") > 2 * MOST_PENDING else MOST_PENDING
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """``host:port`` where the server listens; known after ``start``."""
        if self._listener is None:
            raise ConfError("the liveness server has no address before it is started")
        host = self._advertise or (socket.gethostname() if self._host in ("", "0.0.0.0", "::") else self._host)
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    def start(self) -> Self:
        """Start listening, on a new thread; raises ``ConfError`` if the host and port are not available."""
        try:
            found = socket.getaddrinfo(self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self._listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=_BACKLOG)
        except OSError as exc:
            raise ConfError(
                f"the master cannot listen for its workers on {self._host}:{self._port}: {exc.strerror or exc}; "
                "choose an address of this machine and a port that is free, or 0"
            ) from exc
        self._port = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self._selector, self._waker = selectors.DefaultSelector(), Waker()
        self._selector.register(self._waker.reader, selectors.EVENT_READ)
        self._thread.start()
        return self

    def peers(self) -> dict[str, Peer]:
        """Return all processes that have connected, by name; of those that are gone, only the latest ``MOST_GONE``."""
        return dict(self._peers)

    def stop(self, seconds: float = 5.0) -> None:
        """Say goodbye to all processes and close everything; waits up to ``seconds``. Reports no change after that."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        self._waker.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        stall = StallDetector(STALL_SECONDS, grace_seconds=STALL_SECONDS)
        stall.has_stalled(time.monotonic())
        try:
            with exits_as_errors():
                while not self._stopping.is_set():
                    self._turn(stall)
            for connection in self._connected.values():
                _say(connection.socket, BYE)
        except Exception:  # the run continues: heartbeats in the tracker show the same, later
            logger.exception("the liveness server at %s failed", self.address)
        finally:
            self._close()

    def _turn(self, stall: StallDetector) -> None:
        """Wait for messages from workers, at most until the next task is due, and handle both."""
        self._listen(time.monotonic())
        for key, _ in self._selector.select(self._pause()):
            if isinstance(key.data, _Connection):
                if key.data.socket.fileno() >= 0:  # else it was closed while another event was handled
                    self._read(key.data)
            elif key.fileobj is self._listener:
                self._accept()
        now = time.monotonic()
        self._beat(now)
        self._expire(now)
        if not stall.has_stalled(now):
            self._find_silent(now)

    def _pause(self) -> float:
        least = PRESSED_SECONDS / 3 if not self._listens else _LOOK_SECONDS
        return max(0.0, min(self._next_beat - time.monotonic(), least))

    def _close(self) -> None:
        for connection in (*self._pending, *self._connected.values()):
            connection.socket.close()
        assert self._listener is not None
        self._listener.close()
        self._waker.close()
        self._selector.close()

    def _listen(self, now: float) -> None:
        """Accept connections only while there is room; the others wait in the kernel's backlog."""
        assert self._listener is not None
        full = len(self._pending) >= MOST_PENDING or len(self._connected) >= self._most
        wanted = not full and now >= self._listens_again
        if wanted != self._listens:
            self._listens = wanted
            if wanted:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)

    def _accept(self) -> None:
        assert self._listener is not None
        now = time.monotonic()
        try:
            accepted, (host, *_) = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as exc:  # for example: no more file descriptors
            if self._failures.happens():
                count = self._failures.count
                logger.warning("the master cannot accept a worker's connection: %s (%d times so far)", exc, count)
            self._listens_again = now + STALL_SECONDS
            return
        accepted.setblocking(False)
        connection = _Connection(accepted, str(host), now, ServerHandshake(self._credentials))
        self._pending.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send(accepted, connection.handshake.challenge)

    def _read(self, connection: _Connection) -> None:
        try:
            said = connection.socket.recv(1024)
        except BlockingIOError:
            return
        except OSError:  # reset, or timed out in the kernel
            said = b""
        if not said:
            self._drop(connection, "closed")
        elif connection.process:
            self._hear(connection, said)
        else:
            connection.said += said
            self._greet(connection)

    def _greet(self, connection: _Connection) -> None:
        try:
            greeting = connection.handshake.receive_hello(bytes(connection.said))
            if greeting is None and len(connection.said) >= HELLO_NBYTES:
                raise WireError("a hello that is too long")
        except RefusedError as exc:
            _send(connection.socket, exc.answer)
            self._drop(connection)
            self._tell_refused(f"{connection.host}: {exc}")
        except WireError as exc:
            logger.debug("the connection from %s is closed: %s", connection.host, exc)
            self._drop(connection)
        else:
            if greeting is not None:
                connection.process, welcome = greeting
                self._welcome(connection, welcome)

    def _welcome(self, connection: _Connection, welcome: bytes) -> None:
        process = connection.process
        self._pending.discard(connection)
        connection.said.clear()
        if process in self._connected:  # the process reconnects before the end of its old connection was noticed
            self._forget(self._connected[process])
        self._away.pop(process, None)
        self._connected[process] = connection
        _send(connection.socket, welcome)
        connection.heard = time.monotonic()
        self._change(process, "alive", connection.host, connection.heard)

    def _hear(self, connection: _Connection, said: bytes) -> None:
        connection.heard = time.monotonic()
        if said.strip(bytes((BEAT, AWAY, BYE))):
            logger.warning(
                "process %s at %s sent no valid message; it is disconnected",
                connection.process,
                connection.host,
            )
            self._drop(connection, "closed")
        elif BYE in said:
            self._drop(connection, "left")
        elif AWAY in said:
            self._away[connection.process] = connection.heard
            self._drop(connection)
        else:
            self._change(connection.process, "alive", connection.host, connection.heard)

    def _beat(self, now: float) -> None:
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_SECONDS
        for connection in list(self._connected.values()):
            _say(connection.socket, BEAT)  # a failure shows when reading

    def _expire(self, now: float) -> None:
        patience = PRESSED_SECONDS if len(self._pending) >= MOST_PENDING else HANDSHAKE_SECONDS
        for connection in [c for c in self._pending if now - c.opened > patience]:
            logger.debug("the connection from %s is closed: no hello in %g s", connection.host, patience)
            self._drop(connection)

    def _find_silent(self, now: float) -> None:
        for process, connection in list(self._connected.items()):
            if now - connection.heard > self._silence:
                self._change(process, "silent", connection.host, connection.heard)
            if now - connection.heard > max(_SILENT_KEPT_SECONDS, self._silence):
                self._forget(connection)  # if it is alive, it will notice and reconnect
        for process in [p for p, since in self._away.items() if now - since > self._silence]:
            heard = self._away.pop(process)
            self._change(process, "silent", self._peers[process].host, heard)

    # -- changes ------------------------------------------------------------------------------------------------------

    def _drop(self, connection: _Connection, state: ConnectionState | None = None) -> None:
        """Close a connection; ``state`` is the new state of its process, if the process is known."""
        self._forget(connection)
        if connection.process and state is not None:
            self._change(connection.process, state, connection.host, connection.heard)

    def _forget(self, connection: _Connection) -> None:
        self._pending.discard(connection)
        if self._connected.get(connection.process) is connection:
            del self._connected[connection.process]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _change(self, process: str, state: ConnectionState, host: str, heard: float) -> None:
        before = self._peers.get(process)
        if before is not None and before.state == state:
            return
        peers = {**self._peers, process: Peer(state, time.monotonic(), heard, host)}
        gone = sorted((peer.since, name) for name, peer in peers.items() if name not in self._connected)
        for _, name in gone[: max(0, len(gone) - MOST_GONE)]:
            del peers[name]
            self._away.pop(name, None)
        self._peers = peers
        try:
            with exits_as_errors():
                self._on_change(process, state)
        except Exception:  # it must not end the thread that serves all workers
            logger.exception("a listener failed when process %s became %s", process, state)

    def _tell_refused(self, what: str) -> None:
        """Log a refused process, at most once in ``_REFUSALS_SECONDS``."""
        if self._refusals.happens():
            logger.warning("%s (%d refused so far)", what, self._refusals.count)


def parsed_address(text: str) -> tuple[str, int]:
    """Return (host, port) from ``host:port``; raises ``WireError`` for any other text."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise WireError(f"{text!r} is not the address of a master; it must be host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _say(to: socket.socket, message: int) -> None:
    _send(to, bytes((message,)))


def _send(to: socket.socket, message: bytes) -> None:
    """Send without waiting. If the send buffer is full, the peer does not read or is gone, and the loss is harmless."""
    with contextlib.suppress(OSError):
        to.send(message)
