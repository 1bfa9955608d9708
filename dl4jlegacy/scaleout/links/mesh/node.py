"""A process's end of the mesh: it listens for its downstreams, connects to its upstream, and passes messages on.

A message goes to all neighbours but the one that it came from, and one that was there before goes nowhere, so it comes
once to every process of the tree. All of it is a cache: what is lost, late, or refused here is read from the tracker.

Legacy: ``ModelParameterServer`` over Aeron, whose updates came by this way alone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from dl4jlegacy.arrays.wire import Frame, digest
from dl4jlegacy.errors import ConfError, WireError
from dl4jlegacy.scaleout.links.liveness.handshake import (
    CHALLENGE_NBYTES,
    HELLO_NBYTES,
    WELCOME_NBYTES,
    ClientHandshake,
    Credentials,
    RefusedError,
    ServerHandshake,
)
from dl4jlegacy.scaleout.links.liveness.server import (
    HANDSHAKE_SECONDS,
    MOST_PENDING,
    PRESSED_SECONDS,
    Waker,
    parsed_address,
)
from dl4jlegacy.scaleout.links.mesh.configuration import VoidConfiguration
from dl4jlegacy.scaleout.links.mesh.messages import HISTORY, MessageCache
from dl4jlegacy.scaleout.links.mesh.organizer import MeshOrganizer
from dl4jlegacy.scaleout.links.mesh.wire import MESSAGES, MessageReader, header
from dl4jlegacy.system.admission import Seldom, most_connections
from dl4jlegacy.system.clock import RUNNING
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["Member", "MeshNode"]

logger = logging.getLogger(__name__)

MESSAGE_SECONDS = 30.0
"""A neighbour that is silent for so long in the middle of a message, or takes none for so long, is disconnected."""
AWAY_SECONDS = (1.0, 300.0)
"""After how long an upstream is tried again that could not be reached: the first time, and at most."""
REFUSED_SECONDS = 60.0
"""For how long a process is not let in again that has sent what is no message."""
_LOOK_SECONDS, _AGAIN_SECONDS = 0.25, 1.0
_TELL_SECONDS = 10.0
_READ_NBYTES = 1 << 18


class Member(NamedTuple):
    """A process of the mesh: its name, which no other process ever has, and its ``host:port``, a numeric address."""

    process: str
    address: str


@dataclass(slots=True, eq=False)
class _Link:
    """A connection; ``process`` is "" until the other end has said it, and proven it."""

    socket: socket.socket
    address: str
    handshake: ClientHandshake | ServerHandshake
    reader: MessageReader
    opened: float
    moved: float = 0.0
    process: str = ""
    is_connected: bool = True
    is_open: bool = False
    said_hello: bool = False
    said: bytearray = field(default_factory=bytearray)
    out: deque[memoryview] = field(default_factory=deque)
    out_nbytes: int = 0

    @property
    def is_upstream(self) -> bool:
        return isinstance(self.handshake, ClientHandshake)


class MeshNode:
    """The mesh as one process has it. ``Messages``; its own thread has all connections.

    Args:
        host: the address on which to listen, and which others are told.
        name: of this process, from ``worker_pool.process_name()``.
        run: what processes of other runs, or other incarnations, do not prove: ``Conf.keyspace``.
        secret: the run's; None: it has none.
        configuration: of the run.
        on_change: called with an event (``open``, ``closed``, ``refused``, ``message``) and of whom or what it is, on
            the node's thread; it must only enqueue.

    Raises:
        ConfError: the secret is empty, or ``name`` is not a valid name.
    """

    def __init__(
        self,
        host: str,
        *,
        name: str,
        run: str,
        secret: bytes | None,
        configuration: VoidConfiguration,
        on_change: Callable[[str, str], None] = lambda event, what: None,
    ) -> None:
        self.name, self.cache = name, MessageCache(configuration.chunks_buffer_size)
        self.counts: Counter[str] = Counter()
        """How many messages were ``sent``, ``taken``, there before (``doubled``), and ``dropped`` for a neighbour."""
        self._host, self._configuration, self._on_change = host, configuration, on_change
        self._longest = configuration.longest_nbytes
        self._credentials = Credentials(run, secret, MESSAGES)
        ClientHandshake(self._credentials, name)
        self._organizer = MeshOrganizer("mesh" if configuration.mesh_build_mode == "mesh" else "plain")
        self._addresses: dict[str, str] = {}
        self._came: deque[tuple[Member, ...]] = deque(maxlen=1)
        self._pushes: deque[tuple[str, bytes]] = deque(maxlen=HISTORY)
        self._links: set[_Link] = set()
        self._upstream: _Link | None = None
        self._away: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._refused: dict[str, float] = {}
        self._told = float("-inf")
        self._selector: selectors.BaseSelector
        self._waker: Waker
        self._listener: socket.socket | None = None
        self._listens, self._listens_again = False, float("-inf")
        self._most = most_connections("mesh")
        self._unaccepted = Seldom()
        self._stopping = threading.Event()
        self._thread = ServiceThread(target=self._run, name="dl4j-mesh")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """``host:port`` where this process listens; known after ``start``."""
        assert self._listener is not None
        port = self._listener.getsockname()[1]
        return f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"

    def start(self) -> Self:
        """Start listening, on a new thread; raises ``ConfError`` if no port is free."""
        self._listener = self._listening()
        self._listener.setblocking(False)
        self._selector, self._waker = selectors.DefaultSelector(), Waker()
        self._selector.register(self._waker.reader, selectors.EVENT_READ)
        self._thread.start()
        return self

    def _listening(self) -> socket.socket:
        ports = self._configuration.ports
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        for port in ports:
            try:
                return socket.create_server((self._host, port), family=family, backlog=MOST_PENDING)
            except OSError as exc:
                error = exc
        raise ConfError(
            f"this process cannot listen for other workers on {self._host}, ports {ports[0]} to {ports[-1]}: "
            f"{error.strerror or error}; choose another VoidConfiguration.unicast_port, or 0"
        ) from error

    def stop(self, seconds: float = 5.0) -> None:
        """Close everything; waits up to ``seconds``."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        self._waker.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def set_members(self, members: Sequence[Member]) -> None:
        """Say which processes there are, in their order of coming, this one among them. For any thread."""
        self._came.append(tuple(members))
        self._waker.wake()

    def find(self, digest: str) -> bytes | None:
        """See ``Messages``."""
        return self.cache.find(digest)

    def add(self, frame: Frame) -> None:
        """See ``Messages``."""
        self.cache.add(frame)

    def commit(self, frame: Frame) -> None:
        """See ``Messages``: push a message to the neighbours. For any thread; never waits."""
        named = digest(frame)
        if self.cache.take(named, frame) and 0 < len(frame) <= self._longest:
            self._pushes.append((named, bytes(frame)))
            self._waker.wake()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with exits_as_errors():
                while not self._stopping.is_set():
                    self._turn()
        except Exception:  # the run goes on: everything is in the tracker
            logger.exception("the mesh of process %s has failed; it goes on with the tracker alone", self.name)
        finally:
            self._close()

    def _turn(self) -> None:
        """Wait for connections and for what is to be sent, a moment at most, and do what is due."""
        self._listen(RUNNING.now())
        for key, events in self._selector.select(_LOOK_SECONDS):
            if isinstance(key.data, _Link):
                if key.data in self._links:  # else it was closed while another event was handled
                    self._handle(key.data, events)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._waker.clear()
        now = RUNNING.now()
        self._take_members()
        while self._pushes:
            self._pass_on(*self._pushes.popleft(), None)
        self._expire(now)
        self._follow(now)

    def _close(self) -> None:
        for link in self._links:
            link.socket.close()
        assert self._listener is not None
        self._listener.close()
        self._waker.close()
        self._selector.close()

    def _take_members(self) -> None:
        """Bring the tree to the processes that there are."""
        if not self._came:
            return
        self._addresses = {member.process: member.address for member in self._came.pop()}
        for gone in [process for process in self._organizer if process not in self._addresses]:
            self._organizer.remove_node(gone)
            self._away.pop(gone, None)
            self._failures.pop(gone, None)
            for link in [link for link in self._links if link.process == gone]:
                self._drop(link)
        for process in self._addresses:
            if process not in self._organizer:
                self._organizer.add_node(process)

    def _follow(self, now: float) -> None:
        """Be connected with the upstream that the tree has for this process."""
        for process in [process for process, until in self._away.items() if until <= now]:
            del self._away[process]
            self._organizer.add_node(process)
        wanted = self._organizer.upstream_of(self.name) if self.name in self._organizer else None
        if self._upstream is not None and self._upstream.process != wanted:
            self._drop(self._upstream)
        if self._upstream is None and wanted is not None:
            self._connect(wanted, now)

    def _connect(self, process: str, now: float) -> None:
        address = self._addresses[process]
        try:
            host, port = parsed_address(address)
            family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
            line = socket.socket(family, socket.SOCK_STREAM)
        except (ValueError, WireError, OSError) as exc:
            self._fail(process, f"{address} is no address to connect to: {exc}", now)
            return
        line.setblocking(False)
        with contextlib.suppress(BlockingIOError, OSError):  # a failure shows when it is writable
            line.connect((host, port))
        handshake = ClientHandshake(self._credentials, self.name)
        link = _Link(line, address, handshake, MessageReader(self._longest), now, process=process, is_connected=False)
        self._upstream = link
        self._enter(link)

    def _listen(self, now: float) -> None:
        """Take connections only while there is room; the others wait in the kernel's queue."""
        assert self._listener is not None
        wanted = not self._is_full and len(self._links) < self._most and now >= self._listens_again
        if wanted != self._listens:
            self._listens = wanted
            if wanted:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)

    @property
    def _is_full(self) -> bool:
        """Whether as many have not proven themselves as may stand here at a time."""
        return sum(not link.is_open for link in self._links) >= min(MOST_PENDING, self._most // 2)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            accepted, (host, port, *_) = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as exc:  # for example: no more files can be opened
            if self._unaccepted.happens():
                count = self._unaccepted.count
                logger.warning("the mesh of process %s can take no connection: %s (%d times)", self.name, exc, count)
            self._listens_again = RUNNING.now() + _AGAIN_SECONDS
            return
        accepted.setblocking(False)
        handshake = ServerHandshake(self._credentials)
        link = _Link(accepted, f"{host}:{port}", handshake, MessageReader(self._longest), RUNNING.now())
        self._enter(link)
        self._send(link, handshake.challenge)

    def _enter(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            link.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links.add(link)
        self._selector.register(link.socket, self._events(link), link)

    @staticmethod
    def _events(link: _Link) -> int:
        wants_to_write = link.out or not link.is_connected
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if wants_to_write else 0)

    def _handle(self, link: _Link, events: int) -> None:
        """Read and write what can be read and written; whoever does not keep to the protocol is disconnected."""
        try:
            if not link.is_connected:
                error = link.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, f"{link.address} cannot be reached")
                link.is_connected = True
            if events & selectors.EVENT_WRITE:
                self._write(link)
            if events & selectors.EVENT_READ:
                self._read(link)
        except RefusedError as exc:
            if exc.answer:
                with contextlib.suppress(OSError):
                    link.socket.send(exc.answer)
            self._refuse(link, str(exc))
        except WireError as exc:
            self._refuse(link, str(exc))
        except OSError as exc:
            self._lose(link, str(exc))
        else:
            self._watch(link)

    def _watch(self, link: _Link) -> None:
        if link in self._links:
            self._selector.modify(link.socket, self._events(link), link)

    def _read(self, link: _Link) -> None:
        try:
            said = link.socket.recv(_READ_NBYTES)
        except BlockingIOError:
            return
        if not said:
            self._lose(link, "it has closed the connection")
            return
        link.moved = RUNNING.now()
        if not link.is_open:
            link.said += said
            said = self._greeted(link)
        for named, message in link.reader.feed(said):
            self._hear(link, named, message)
        if link.reader.is_amid and self._is_stranger(link):
            self._bound_strangers()

    def _is_stranger(self, link: _Link) -> bool:
        """Return whether a process is not, or not yet, one of those that the run knows."""
        return link.process not in self._addresses

    def _bound_strangers(self) -> None:
        """Keep no more parts of strangers' messages than the longest message has bytes: the oldest of them leave."""
        amid = [link for link in self._links if link.reader.is_amid and self._is_stranger(link)]
        nbytes = sum(link.reader.nbytes for link in amid)
        for link in sorted(amid, key=lambda each: each.opened):
            if nbytes <= self._longest:
                return
            nbytes -= link.reader.nbytes
            self._refuse(link, "the run does not know it, and too much of such processes' messages waits here")

    def _greeted(self, link: _Link) -> bytes:
        """Go on with the handshake; return what came behind it."""
        if not link.said_hello:
            MESSAGES.check(bytes(link.said[:CHALLENGE_NBYTES]), "a worker")
        if isinstance(link.handshake, ServerHandshake):
            greeting = link.handshake.receive_hello(bytes(link.said))
            if greeting is None and len(link.said) >= HELLO_NBYTES:
                raise WireError("a hello that is too long")
            if greeting is not None:
                link.process, welcome = greeting
                link.said.clear()
                self._send(link, welcome)
                self._open(link)
            return b""
        if not link.said_hello:
            if len(link.said) < CHALLENGE_NBYTES:
                return b""
            self._send(link, link.handshake.hello(bytes(link.said[:CHALLENGE_NBYTES])))
            link.said_hello = True
            del link.said[:CHALLENGE_NBYTES]
        if len(link.said) < WELCOME_NBYTES:
            return b""
        link.handshake.check_welcome(bytes(link.said[:WELCOME_NBYTES]))
        behind = bytes(link.said[WELCOME_NBYTES:])
        link.said.clear()
        self._failures.pop(link.process, None)
        self._open(link)
        return behind

    def _open(self, link: _Link) -> None:
        """Take a neighbour that has proven itself; it takes the place of an earlier connection of its process."""
        if self._refused.get(link.process, 0.0) > RUNNING.now():
            self._drop(link)
            return
        for other in [o for o in self._links if o.process == link.process and o is not link and not o.is_upstream]:
            self._drop(other)
        link.is_open = True
        self._on_change("open", link.process)

    def _hear(self, link: _Link, named: str, message: bytes) -> None:
        if self.cache.take(named, message):
            self.counts["taken"] += 1
            self._pass_on(named, message, link)
            self._on_change("message", named)
        else:
            self.counts["doubled"] += 1

    def _pass_on(self, named: str, message: bytes, source: _Link | None) -> None:
        """Send a message to all neighbours but the one that it came from."""
        strange = sum(link.out_nbytes for link in self._links if self._is_stranger(link))
        for link in [link for link in self._links if link.is_open and link is not source]:
            waits = strange if self._is_stranger(link) else link.out_nbytes
            if waits and waits + len(message) > self._longest:
                self.counts["dropped"] += 1  # it does not take them as fast as they come, and reads from the tracker
                continue
            self.counts["sent"] += 1
            before = link.out_nbytes
            self._send(link, header(named, len(message)), message)
            strange += link.out_nbytes - before if self._is_stranger(link) else 0
            self._watch(link)

    def _send(self, link: _Link, *parts: bytes) -> None:
        if not link.out:
            link.moved = RUNNING.now()
        link.out.extend(memoryview(part) for part in parts)
        link.out_nbytes += sum(len(part) for part in parts)
        with contextlib.suppress(OSError):  # a failure shows when reading
            self._write(link)

    def _write(self, link: _Link) -> None:
        while link.out and link.is_connected:
            try:
                count = link.socket.send(link.out[0])
            except BlockingIOError:
                return
            link.moved, link.out_nbytes = RUNNING.now(), link.out_nbytes - count
            if count == len(link.out[0]):
                link.out.popleft()
            else:
                link.out[0] = link.out[0][count:]

    def _expire(self, now: float) -> None:
        """Disconnect who does not come to an end with the handshake, or with a message."""
        is_full = self._is_full
        for link in list(self._links):
            if not link.is_open:
                patience = PRESSED_SECONDS if is_full and not link.is_upstream else HANDSHAKE_SECONDS
                if now - link.opened > patience:
                    self._lose(link, f"no answer in {patience:g} s")
            elif (link.out or link.reader.is_amid) and now - link.moved > MESSAGE_SECONDS:
                self._lose(link, f"a message has stood still for {MESSAGE_SECONDS:g} s")

    def _refuse(self, link: _Link, why: str) -> None:
        """Disconnect who is not of the run, or sends what nobody of it would."""
        who = f"process {link.process} at {link.address}" if link.process else link.address
        if link.is_open:
            self._refused = {n: t for n, t in self._refused.items() if t > RUNNING.now()}
            self._refused[link.process] = RUNNING.now() + REFUSED_SECONDS
        self.counts["refused"] += 1
        if RUNNING.now() - self._told > _TELL_SECONDS:
            self._told = RUNNING.now()
            count = self.counts["refused"]
            logger.warning("the mesh does not take %s: %s (%d refused so far); the run goes on", who, why, count)
        self._lose(link, why)
        self._on_change("refused", f"{who}: {why}")

    def _lose(self, link: _Link, why: str) -> None:
        """Disconnect a neighbour that is not to be reached; if it is the upstream, another one takes its place."""
        if link.is_upstream and link is self._upstream:
            self._fail(link.process, why, RUNNING.now())
        self._drop(link)

    def _fail(self, process: str, why: str, now: float) -> None:
        if process not in self._organizer:
            return
        logger.debug("process %s of the mesh cannot be reached: %s", process, why)
        least, most = AWAY_SECONDS
        self._away[process] = now + min(most, least * 2.0 ** min(self._failures[process], 10))
        self._failures[process] += 1
        self._organizer.mark_node_offline(process)

    def _drop(self, link: _Link) -> None:
        """Close a connection."""
        if link not in self._links:
            return
        self._links.discard(link)
        if link is self._upstream:
            self._upstream = None
        self._selector.unregister(link.socket)
        link.socket.close()
        if link.is_open:
            self._on_change("closed", link.process)
