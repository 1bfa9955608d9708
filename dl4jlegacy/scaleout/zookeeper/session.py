"""A session with Zookeeper with deadlines: the only module that imports kazoo.

kazoo's blocking calls wait forever while the server is away, its state listeners must not block, its log lines contain
credentials, and stopping a client that is connecting takes as long as the connection attempt. Here every call has a
deadline, answers are values instead of kazoo's exceptions, and failures are errors of this package.

Legacy: ``ZookeeperBuilder`` (15 s sleeps until connected, forever; a new client after an expiry, which no one used).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import AUTH_XID, ConnectionHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL

from dl4jlegacy.errors import ConfError, Dl4jError, NotAuthorisedError, TrackerClosedError, TrackerError
from dl4jlegacy.scaleout.zookeeper.permissions import CLOCK, Rights, is_open, is_same, owner_of, shown
from dl4jlegacy.scaleout.zookeeper.scheduler import Step, StepScheduler
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["REMOVED", "Node", "ZooKeeperSession"]

logger = logging.getLogger(__name__)

REMOVED = b"removed by dl4jlegacy"
"""Replacement content of a node that could not be removed, because an outsider had taken the rights to its folder."""
CONNECT_SECONDS = 2.0
"""Limit of one attempt to connect; attempts continue until the session's deadline."""
ANSWER_SECONDS = 0.75
"""Maximum time for a server's first answer on a connection; doubled after each failure."""
CLOSE_SECONDS = 1.0
"""Maximum time for a server to answer the end of a session."""
PAUSE_SECONDS = 0.05
ANY_VERSION = -1
_CLOCK_READINGS = 3
_PASSING = (ConnectionLoss, OperationTimeoutError, SessionExpiredError)

Errors = type[Exception] | tuple[type[Exception], ...]


class Node(NamedTuple):
    """The content of a node.

    ``data``, ``version``, the session that owns the node (0 if it is not ephemeral), and its position in the order in
    which all nodes were created.
    """

    data: bytes
    version: int
    owner: int
    created: int


class _KazooLog(logging.Logger):
    """Receives kazoo's log: remembers the last warning, logs everything as DEBUG, removes credentials."""

    def __init__(self) -> None:
        super().__init__(f"{__name__}.kazoo", level=1)
        self.trouble = ""
        self.negotiated_seconds = 0.0

    def handle(self, record: logging.LogRecord) -> None:
        args = record.args if isinstance(record.args, tuple) else ()
        if str(record.msg).startswith("Session created") and len(args) > 2:
            self.negotiated_seconds = float(str(args[2])) / 1000
        # Levels below DEBUG contain packets and session passwords; requests of type Auth contain the credential.
        if record.levelno < logging.DEBUG or any(type(arg).__name__ == "Auth" for arg in args):
            return
        if record.levelno >= logging.WARNING:
            self.trouble = record.getMessage()
        logger.debug("kazoo: %s", record.getMessage())


class _OrderedConnection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's connection, for sessions that send keys while requests are in flight.

    Zookeeper answers a key at once, before requests that were sent earlier. kazoo would take that for the answer to the
    oldest of these, and its thread would end at the next one. Used by that thread alone.
    """

    def _read_header(self, timeout: float | None) -> Any:
        header, buffer, offset = super()._read_header(timeout)
        if header.xid == AUTH_XID:
            pending = self.client._pending
            keys = [place for place, (_, _, xid) in enumerate(pending) if xid == AUTH_XID]
            if keys:
                asked = pending[keys[0]]
                del pending[keys[0]]
                pending.appendleft(asked)
        return header, buffer, offset


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with short connection timeouts and a socket that can be shut down from outside.

    A server that is starting accepts connections but never answers on them. kazoo would wait there for a whole session
    timeout, and the session would be lost.
    """

    _socket: socket.socket | None = None
    _is_cut = False
    _greets = False
    _patience = ANSWER_SECONDS
    before_greeting: Step = staticmethod(lambda: None)
    """Called for each new connection, before anything is sent."""

    def create_connection(self, *args: Any, timeout: float, **options: Any) -> socket.socket:
        connected: socket.socket = super().create_connection(*args, timeout=min(timeout, CONNECT_SECONDS), **options)
        self._socket, self._greets = connected, True
        if self._is_cut:
            connected.close()
            raise ConnectionAbortedError("the session was closed meanwhile")
        self.before_greeting()
        return connected

    def select(self, readers: list[Any], writers: list[Any], others: list[Any], timeout: float | None = None) -> Any:
        """Wait as kazoo asks, but with a shorter limit for the first answers on a new connection."""
        if len(readers) > 1:  # kazoo's loop, once the session is established
            self._greets, self._patience = False, ANSWER_SECONDS
        if not self._greets or not readers or timeout is None:
            return super().select(readers, writers, others, timeout)
        ready = super().select(readers, writers, others, min(timeout, self._patience))
        if not any(ready):
            self._patience *= 2
        return ready

    def cut(self) -> None:
        """End all current and future waits on the connection; callable on any thread."""
        self._is_cut = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                logger.debug("the connection was already closed")


class ZooKeeperSession:
    """One session with a Zookeeper server or ensemble, connected when the constructor returns. Thread-safe.

    Every method raises ``TrackerError`` when Zookeeper does not answer within the deadline, ``TrackerClosedError``
    after ``close()``, and ``NotAuthorisedError`` if a node is protected by another secret. A call that timed out may
    still take effect later; all callers here handle that.
    """

    def __init__(
        self,
        address: str,
        *,
        secret: bytes | None = None,
        session_seconds: float = 3.0,
        deadline_seconds: float = 10.0,
    ) -> None:
        """Connect to ``address``, ``host:port[,host:port]``.

        Args:
            address: of the servers.
            secret: if given, only processes that know it can read and write the nodes. It is not transmitted.
            session_seconds: how long the server keeps the session without hearing from it; the server may adjust this.
            deadline_seconds: the deadline of every call and of connecting.

        Raises:
            ConfError: the address is invalid, or the secret is empty. TrackerError: no server answers there.
        """
        if secret is not None and not secret:
            raise ConfError("the run's secret is empty; give a longer one, or none at all")
        self.address = address
        self.deadline_seconds = deadline_seconds
        self.scheduler = StepScheduler(f"zookeeper-{address}")
        self.secret = secret
        self._asked_seconds = session_seconds
        self._connected = threading.Event()
        self._steps: tuple[Step, ...] = ()
        self._closing = threading.Event()
        self._log = _KazooLog()
        self._handler = _Handler()
        self._handler.before_greeting = self._take_any_server
        self._away_since = time.monotonic()
        self.rights = Rights(secret)
        self._sent: set[str] = set()
        """The owners of nodes whose keys were sent to the servers."""
        self._client = self._new_client()
        self._client.add_listener(self._on_state)
        self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ZooKeeperSession({self.address!r}, secret={'***' if self.secret else None})"

    def derived(self, purpose: str) -> str:
        """See ``Rights``."""
        return self.rights.derived(purpose)

    @property
    def session_id(self) -> int:
        """The server's number for this session; 0 while there is none. It changes when the session is lost."""
        return int((self._client.client_id or (0,))[0] or 0)

    @property
    def session_seconds(self) -> float:
        """How long the server keeps the session without hearing from it, as negotiated."""
        return self._log.negotiated_seconds or self._asked_seconds

    @property
    def connected(self) -> bool:
        """Whether the connection is established, as last reported by kazoo."""
        return self._connected.is_set()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closing.is_set()

    def get(self, path: str, *, watch: Step | None = None) -> Node | None:
        """Return the node at ``path``, or None. ``watch`` is called when that changes; it must only enqueue."""
        found = self._call(path, lambda: self._client.get_async(path, watch=_watcher(watch)), NoNodeError)
        if found is None:
            return None
        data, stat = found
        return Node(data or b"", stat.version, stat.ephemeralOwner, stat.czxid)

    def exists(self, path: str, *, watch: Step | None = None) -> bool:
        """Return whether ``path`` exists; ``watch`` as for ``get``, also for a node that does not exist yet."""
        return self._call(path, lambda: self._client.exists_async(path, watch=_watcher(watch))) is not None

    def created(self, path: str) -> int | None:
        """Return the position of ``path`` in the creation order of all nodes, or None if it does not exist.

        This also works for a node that this process may not read.
        """
        stat = self._call(path, lambda: self._client.exists_async(path))
        return None if stat is None else int(stat.czxid)

    def children(self, path: str, *, watch: Step | None = None) -> list[str] | None:
        """Return the names under ``path``, sorted; None if it does not exist. ``watch`` as for ``get``."""
        names = self._call(path, lambda: self._client.get_children_async(path, watch=_watcher(watch)), NoNodeError)
        return None if names is None else sorted(names)

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, late: Step | None = None
    ) -> bool:
        """Create a node; return False if it exists or has no parent. ``late`` is scheduled if the answer is late."""
        acl = self.rights.of_node(path)
        made = self._call(
            path,
            lambda: self._client.create_async(path, data, acl=acl, ephemeral=ephemeral, sequence=sequence),
            (NodeExistsError, NoNodeError),
            late,
        )
        return made is not None

    def replace(self, path: str, data: bytes | None, version: int | None, *, fence: str = "") -> bool:
        """Replace a node and its access rights atomically, together with its children, which are empty.

        If an outsider has taken the rights to its folder, only the node's content is replaced; a node that should be
        removed then stays with the content ``REMOVED``.

        Args:
            path: of the node; its parents exist.
            data: the new content; None: the node is removed.
            version: version of the node to replace; None: there is no node yet.
            fence: a node that must exist at the same moment; "": none.

        Returns False if any of these conditions is not met.
        """
        below, acl = [] if version is None else self.children(path) or [], self.rights.of_node(path)

        def start() -> Any:
            transaction = self._client.transaction()
            if fence:
                transaction.check(fence, ANY_VERSION)
            if version is not None:
                for name in below:
                    transaction.delete(f"{path}/{name}")
                transaction.delete(path, version)
            if data is not None:
                transaction.create(path, data, acl=acl)
                for name in below:
                    transaction.create(f"{path}/{name}", b"", acl=acl)
            return transaction.commit_async()

        def start_in_place() -> Any:
            transaction = self._client.transaction()
            if fence:
                transaction.check(fence, ANY_VERSION)
            transaction.set_data(path, REMOVED if data is None else data, version)
            return transaction.commit_async()

        results = self._call(path, start)
        if version is not None and any(isinstance(result, NoAuthError) for result in results):
            results = self._call(path, start_in_place)
            if not any(isinstance(result, Exception) for result in results):
                logger.warning("%s", self._not_authorised(path.rpartition("/")[0] or "/"))
        if any(isinstance(result, NoAuthError) for result in results):
            raise self._not_authorised(path)
        return not any(isinstance(result, Exception) for result in results)

    def delete(self, path: str) -> bool:
        """Delete a node; return False if it has children or does not exist."""
        return self._call(path, lambda: self._client.delete_async(path), (NoNodeError, NotEmptyError)) is not None

    def ensure(self, path: str, *, guarded: str = "") -> None:
        """Create ``path`` and its parents; the secret protects the folder ``guarded`` and the folders in it.

        Starts again if another process prunes a parent meanwhile; raises ``TrackerError`` if that continues until the
        deadline.
        """
        parts, deadline = path.strip("/").split("/"), Deadline(self.deadline_seconds)
        folders = ["/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        while not all(self._ensure(folder, guarded) for folder in folders):
            if deadline.passed():
                raise TrackerError(f"{path} in Zookeeper at {self.address}: its parents are removed again and again")

    def _ensure(self, folder: str, guarded: str) -> bool:
        """Create a folder; return False if it has no parent."""
        is_guarded = bool(guarded) and (folder + "/").startswith(guarded + "/")
        of_others = None if owner_of(folder) else self.rights.of_folder()
        acl = self.rights.of_node(folder) if is_guarded else of_others
        if not self.exists(folder):
            there = (NodeExistsError, NoNodeError)
            made = self._call(folder, lambda: self._client.create_async(folder, b"", acl=acl), there)
            if made is None and not self.exists(folder):
                return False
        if acl is not None and (is_guarded or is_open(self.acl(folder) or ())):
            self.set_acl(folder, acl)
        return True

    def acl(self, path: str) -> Sequence[ACL] | None:
        """Return the rights of a node; None if the node does not exist, or the rights are not revealed."""
        found = self._call(path, lambda: self._client.get_acls_async(path), (NoNodeError, NoAuthError))
        return None if found is None else tuple(found[0])

    def set_acl(self, path: str, acl: Sequence[ACL]) -> None:
        """Set the rights of a node that an outsider, or a run without a secret, may have created earlier."""
        if not is_same(self.acl(path) or (), acl):
            self._call(path, lambda: self._client.set_acls_async(path, list(acl)), NoNodeError)

    def create_folder(self, path: str, acl: Sequence[ACL]) -> bool:
        """Create a folder with these rights; return False if it exists or has no parent."""
        there = (NodeExistsError, NoNodeError)
        return not self.exists(path) and (
            self._call(path, lambda: self._client.create_async(path, b"", acl=list(acl)), there) is not None
        )

    def seconds_ahead(self, now: Callable[[], float] = time.time) -> float:
        """Return by how many seconds the servers' clock is ahead of this machine's, up to half a request's duration.

        Creates temporary nodes and uses the quickest reading; the nodes end with the session at the latest.
        """
        readings = [self._clock_reading(now) for _ in range(_CLOCK_READINGS)]
        return min(readings, key=lambda reading: reading[1])[0]

    def _clock_reading(self, now: Callable[[], float]) -> tuple[float, float]:
        """Return (seconds that the servers are ahead, seconds that the request took)."""
        self.ensure(CLOCK)
        path, sent = f"{CLOCK}/{uuid.uuid4().hex}", now()
        self.create(path, b"", ephemeral=True)
        answered = now()
        try:
            stat = self._call(path, lambda: self._client.exists_async(path))
        finally:
            self.prune(path)
        if stat is None:
            raise TrackerError(f"Zookeeper at {self.address}: {path} was made, and is not there; try again")
        return float(stat.ctime) / 1000 - (sent + answered) / 2, answered - sent

    def prune(self, path: str) -> None:
        """Delete ``path`` and then its parents, as long as they are empty."""
        try:
            while path and self.delete(path):
                path = path.rpartition("/")[0]
        except NotAuthorisedError as exc:
            logger.debug("%s stays: %s", path, exc)  # a folder of the server's, or one that an outsider has taken

    def add_listener(self, step: Step) -> None:
        """Run ``step`` now and whenever the connection is lost or established, on the session's scheduler."""
        self._steps = (*self._steps, step)
        self.scheduler.schedule(step)

    def remove_listener(self, step: Step) -> None:
        """Undo ``add_listener``."""
        self._steps = tuple(other for other in self._steps if other != step)
        self.scheduler.cancel(step)

    def close(self) -> None:
        """End the session, which removes its ephemeral nodes; ends in bounded time even without an answer."""
        if self.closed:
            return
        self._closing.set()
        self.scheduler.stop(self.deadline_seconds)
        closer = ServiceThread(target=self._stop_client, name="zookeeper-closer")
        closer.start()
        closer.join(CLOSE_SECONDS if self.connected else 0.0)
        self._handler.cut()
        closer.join(CONNECT_SECONDS + CLOSE_SECONDS)

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except KazooException as exc:
            logger.debug("the session with Zookeeper at %s did not end well: %s", self.address, exc)

    def _new_client(self) -> KazooClient:
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_jitter=0.4, max_delay=0.5)
        folders = self.rights.credential("")
        credentials = [] if folders is None else [("digest", folders)]
        try:
            client = KazooClient(
                self.address,
                timeout=self._asked_seconds,
                handler=self._handler,
                auth_data=credentials,
                connection_retry=retry,
                logger=self._log,
            )
            client._connection = _OrderedConnection(client, client._conn_retry.copy(), logger=self._log)
            return client
        except ValueError as exc:
            raise ConfError(f"{self.address!r} is not an address of Zookeeper ({exc}); write host:port") from exc

    def _connect(self) -> None:
        try:
            self._client.start_async()
            if not Deadline(self.deadline_seconds).wait(self._connected.wait):
                raise self._unreachable(self.deadline_seconds)
        except BaseException:
            self.close()
            raise

    def _on_state(self, state: str) -> None:
        """Handle a state change from kazoo, on its connection thread: only enqueue."""
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            if self._connected.is_set():
                self._away_since = time.monotonic()
            self._connected.clear()
        for step in self._steps:
            self.scheduler.schedule(step)

    def _take_any_server(self) -> None:
        """Once the session has ended, accept servers with an older state than this client has seen.

        By default, a server that has lost its data would refuse all earlier clients for ever. After the session's end
        everything is read again, and what was seen before does not matter. Runs on kazoo's connection thread.
        """
        if time.monotonic() - self._away_since > self.session_seconds:
            self._client.last_zxid = 0

    def _call(self, path: str, start: Callable[[], Any], passing: Errors = (), late: Step | None = None) -> Any:
        """Return the answer to the request ``start``, None for errors in ``passing``; retry after lost connections."""
        seconds = self.deadline_seconds
        if self.scheduler.is_current():  # its steps are repeated soon and must not delay each other
            seconds = min(seconds, self.session_seconds / 4)
        deadline = Deadline(seconds)
        while True:
            if self.closed:
                raise TrackerClosedError(f"the session with Zookeeper at {self.address} was closed")
            self._prove(path)
            answer = start()
            if not deadline.wait(answer.wait):
                if late is not None:
                    answer.rawlink(lambda _: self.scheduler.schedule(late))
                raise self._unreachable(seconds)
            try:
                return answer.get_nowait()
            except passing:
                return None
            except _PASSING:
                if deadline.passed():
                    raise self._unreachable(seconds) from None
                self._closing.wait(PAUSE_SECONDS)
            except KazooException as exc:
                raise self._explained(exc, path) from exc

    def _prove(self, path: str) -> None:
        """Send the servers the key to a node, once per owner; kazoo repeats it when necessary."""
        owner, credential = owner_of(path), self.rights.credential(path)
        if credential is not None and owner and owner not in self._sent:
            self._sent.add(owner)
            self._client.add_auth_async("digest", credential)

    def _explained(self, exc: KazooException, path: str) -> Dl4jError:
        if isinstance(exc, ConnectionClosedError):
            return TrackerClosedError(f"the session with Zookeeper at {self.address} was closed")
        if isinstance(exc, NoAuthError | AuthFailedError):
            return self._not_authorised(path)
        return TrackerError(f"Zookeeper at {self.address} refused {path}: {type(exc).__name__} {exc}".rstrip())

    def _not_authorised(self, path: str) -> NotAuthorisedError:
        folder = (path.rpartition("/")[0] if owner_of(path) else path) or "/"
        found = None if owner_of(folder) else self._rights_told(folder)
        if found is not None and not is_open(found) and not is_same(found, self.rights.of_folder()):
            return NotAuthorisedError(
                f"Zookeeper at {self.address}: {path} is refused. The rights to {folder} are {shown(found)}: either "
                "these servers were started with a run's secret, which this process does not have, or somebody has "
                "taken them. Give this process that secret, let Zookeeper's super user set world:anyone:cdrwa there, "
                "or empty the servers (dl4j services down, and up)"
            )
        how = "this process has another one" if self.secret else "this process has none"
        return NotAuthorisedError(
            f"Zookeeper at {self.address}: {path} is protected by a run's secret and {how}, or another version of "
            "dl4jlegacy; give this process the run's secret, or use another id"
        )

    def _rights_told(self, path: str) -> Sequence[ACL] | None:
        """Return the rights of a node for a message; None if they are not available now."""
        try:
            answer = self._client.get_acls_async(path)
            return tuple(answer.get_nowait()[0]) if answer.wait(ANSWER_SECONDS) else None
        except KazooException:
            return None

    def _unreachable(self, seconds: float) -> TrackerError:
        trouble = f" ({self._log.trouble})" if self._log.trouble else ""
        return TrackerError(
            f"Zookeeper at {self.address} did not answer within {seconds:g} s{trouble}; check the address and that "
            "the server runs ('dl4j services up' starts one on this machine)"
        )


def _watcher(watch: Step | None) -> Callable[[object], None] | None:
    return None if watch is None else _Watcher(watch)


class _Watcher:
    """A watch with the argument that kazoo passes; equal for equal watches, so that kazoo keeps one of each."""

    def __init__(self, watch: Step) -> None:
        self._watch = watch

    def __call__(self, event: object) -> None:
        self._watch()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Watcher) and other._watch == self._watch

    def __hash__(self) -> int:
        return hash(self._watch)
