"""The ``Conf`` in Zookeeper, where workers and standby masters find it: ``/<host>:<port>/tmp/<id>``.

A node holds an envelope of canonical JSON: its format, the package's version, the ``Conf`` and, with a secret, a
signature, so that no outsider can give the workers another ``Conf``.

Legacy: ``ZookeeperPathBuilder``, ``ZooKeeperConfigurationRegister``, ``ZookeeperConfigurationRetriever``; they stored a
Java-serialized object, and a retriever that found nothing returned null.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Self

import msgspec

from dl4jlegacy.errors import ConfError, Dl4jError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.zookeeper.session import REMOVED, Node, ZooKeeperSession
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.secret import read_secret
from dl4jlegacy.version import __version__

__all__ = [
    "CONF_NBYTES",
    "ZooKeeperConfigurationRegister",
    "ZookeeperConfigurationRetriever",
    "build_path",
    "names_of",
]

logger = logging.getLogger(__name__)

CONF_NBYTES = 1_000_000
"""Maximum size of an envelope: above 1 MiB (``jute.maxbuffer``) a Zookeeper server closes the connection silently."""
FORMAT = 5
"""Version of the format of a Conf and of a run's records.

2: a Conf contains its incarnation. 3: job records contain small data and updates. 4: each id has its own key to its
nodes. 5: AdaGrad and RmsProp follow Deeplearning4j, and a short round counts as its actual number of updates.
"""
PAUSE_SECONDS = 0.05
JAVA = b"\xac\xed\x00\x05"


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    conf: msgspec.Raw
    format: int
    package: str
    signature: str = ""


class _Begun(msgspec.Struct, frozen=True):
    """The fields of a Conf that identify its run."""

    run: str = ""
    incarnation: str = ""


class _Unsigned(msgspec.Struct, frozen=True):
    conf: _Begun


class _Format(msgspec.Struct, frozen=True):
    format: int
    package: str = "an unknown version"


def build_path(host: str, port: int, *names: str) -> str:
    """Return ``/<host>:<port>/<name>/...``, as the legacy ``ZookeeperPathBuilder`` did.

    Raises:
        ConfError: a name is not valid in Zookeeper.
    """
    if not 0 < port < 65536:
        raise ConfError(f"{port} is not a port; it must be from 1 to 65535")
    for name in (host, *names):
        if not name or "/" in name or name in (".", "..") or not name.isprintable():
            raise ConfError(f"{name!r} cannot be a name in Zookeeper; it must be printable, not empty, without '/'")
    return "/" + "/".join((f"{host}:{port}", *names))


def names_of(host: str) -> list[str]:
    """Return possible names of a host's server in paths: the given one, and those that the machine has for itself."""
    return list(dict.fromkeys((host, "127.0.0.1", "localhost", socket.gethostname())))


def _paths_of(host: str, port: int, id: str) -> list[str]:
    """Return possible paths of an id's Conf: under the host's name, and under a machine's names for itself."""
    return [build_path(name, port, "tmp", id) for name in names_of(host)]


class ZooKeeperConfigurationRegister:
    """Writes a ``Conf`` where workers look for it. The node outlives its master, so that a run can be resumed.

    With a secret, the node has a child that only processes with the secret can delete. Zookeeper deletes no node that
    has children, so outsiders cannot delete the Conf either, although everybody may change the folder it is in.
    """

    def __init__(
        self,
        conf: Conf,
        id: str,
        host: str,
        port: int,
        *,
        secret: bytes | None = None,
        session: ZooKeeperSession | None = None,
        fence: Callable[[], str | None] = lambda: "",
        deadline_seconds: float = 10.0,
    ) -> None:
        """Connect, unless a session is given, whose secret is then used.

        Args:
            conf: the Conf to write.
            id: its id.
            host, port: the name of the server in the path.
            secret: of the run.
            session: with that server.
            fence: returns the node that must exist whenever something is changed, such as ``MasterElection.fence``; "":
                none; None: nothing can be changed at the moment.
            deadline_seconds: maximum time for a change.

        Raises:
            ConfError: the Conf is too large for Zookeeper. TrackerError: no server answers there.
        """
        self._paths, self._id = _paths_of(host, port, id), id
        self.path = self._paths[0]
        self._guard = f"{self.path}/guard"
        conf_json = conf.to_json().encode()
        self._own_session = session is None
        if len(conf_json) + 1000 > CONF_NBYTES:
            raise ConfError(
                f"the Conf takes {len(conf_json):,} bytes as JSON and Zookeeper holds at most {CONF_NBYTES:,} in a "
                "node; name files in it instead of carrying their content"
            )
        self._session = session or ZooKeeperSession(
            _address(host, port), secret=secret, deadline_seconds=deadline_seconds
        )
        self._data = _seal(conf_json, id, self._session)
        self._mine, self._fence = _Begun(conf.run, conf.incarnation), fence

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def register(self, *, takes_over: bool = False) -> None:
        """Write the Conf, replacing another with the same id atomically.

        Call ``MasterElection.claim`` before this: it checks that no other master with this id is alive.

        Args:
            takes_over: whether the run is already under way; if so, another run that now has its id is not replaced.

        Raises:
            NotAuthorisedError: another run's secret protects that id.
            TrackerError: no answer within the deadline; or this process does not lead; or the id is another run's.
        """
        self._change(lambda node, fence: self._written(node, fence, takes_over=takes_over), "written", self.path)
        self._protect()

    def restore(self, fence: str) -> bool:
        """Write the Conf again if it is missing, or was made unreadable by an outsider; return whether it was written.

        A Conf that is readable, and signed if there is a secret, is kept: its writer knows the secret.

        Args:
            fence: the node that must exist at the time of writing, so that the caller's knowledge still holds; "":
                none.

        Raises:
            NotAuthorisedError, TrackerError: as for ``register``.
        """
        node = self._session.get(self.path)
        try:
            if node is not None:
                _open(node, self.path, self._id, self._session)
                return False
        except (ConfError, NotAuthorisedError, VersionError) as exc:
            logger.debug("the Conf is put back: %s", exc)
        if not self._written(node, fence, takes_over=True):
            return False
        self._protect()
        return True

    def remove(self) -> None:
        """Remove the Conf of a finished run, and its parent folders if they are empty; another run's Conf is kept.

        All names of the server's machine are tried, since the process that began the run may have used another name.

        Raises:
            TrackerError: no answer within the deadline; or this process does not lead.
        """
        for path in self._paths:
            self._change(partial(self._removed, path), "removed", path)
            self._session.prune(path.rpartition("/")[0])

    def close(self) -> None:
        """Close the session; the Conf stays."""
        if self._own_session:
            self._session.close()

    def _change(self, change: Callable[[Node | None, str], bool], done: str, path: str) -> None:
        """Repeat ``change(node at path, fence)`` until it succeeds; raises ``TrackerError`` at the deadline."""
        deadline = Deadline(self._session.deadline_seconds)
        while True:
            fence = self._fence()  # read first: then no other master has written anything found below
            if fence is not None and change(self._session.get(path), fence):
                return
            if deadline.passed():
                why = "this process is not the master" if fence is None else "it changes faster than that"
                raise TrackerError(
                    f"{path} in Zookeeper at {self._session.address} was not {done} in "
                    f"{self._session.deadline_seconds:g} s: {why}; are there several masters with this id?"
                )
            if fence is None:
                time.sleep(PAUSE_SECONDS)

    def _protect(self) -> None:
        if self._session.secret:
            self._session.ensure(self._guard, guarded=self.path)

    def _written(self, node: Node | None, fence: str, *, takes_over: bool) -> bool:
        if node is None:
            self._session.ensure(self.path.rpartition("/")[0])
            return self._session.replace(self.path, self._data, None, fence=fence)
        if node.data == self._data:
            return True
        there = _begun(node)
        if takes_over and there not in (None, self._mine):
            raise TrackerError(
                f"the id of run {self._mine.run} has been given to another run, {there and there.run}, meanwhile "
                f"({self.path} in Zookeeper at {self._session.address}); stop that one first (dl4j stop)"
            )
        logger.info("%s held another Conf; it is replaced", self.path)
        return self._session.replace(self.path, self._data, node.version, fence=fence)

    def _removed(self, path: str, node: Node | None, fence: str) -> bool:
        if node is None or node.data == REMOVED:
            return True
        there = _begun(node)
        if there != self._mine and (there is not None or path != self.path):
            logger.info("%s is not this run's, and stays", path)
            return True
        return self._session.replace(path, None, node.version, fence=fence)


class ZookeeperConfigurationRetriever:
    """Finds the ``Conf`` that a master registered."""

    def __init__(
        self,
        host: str,
        port: int,
        id: str = "master",
        *,
        secret: bytes | None = None,
        session: ZooKeeperSession | None = None,
        deadline_seconds: float = 10.0,
    ) -> None:
        """Connect, unless a session is given, whose secret is then used; raises ``TrackerError`` without an answer.

        ``secret`` None: read it from the environment (``DL4J_SECRET_FILE``), as the run's processes do.
        """
        self._paths = _paths_of(host, port, id)
        self._id = id
        self._unreadable: tuple[str, Dl4jError] | None = None
        """The path of the first unreadable node, and the error.

        Under another of a machine's names the node may be an outsider's.
        """
        self._own_session = session is None
        self._session = session or ZooKeeperSession(
            _address(host, port),
            secret=read_secret(os.environ) if secret is None else secret,
            deadline_seconds=deadline_seconds,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def retrieve(self, *, wait_seconds: float = 0.0) -> Conf:
        """Return the Conf, registered under the host's name or one of a machine's names for itself.

        Args:
            wait_seconds: how long to wait for a master to register it.

        Raises:
            TrackerError: there is none; the message lists the registered ones. VersionError: another version wrote it.
            NotAuthorisedError: it is protected by another secret, or not signed with this one.
            ConfError: the node contains something else.
        """
        deadline = Deadline(wait_seconds)
        while True:
            appeared = threading.Event()
            conf = self.find(appeared.set if wait_seconds else None)
            if conf is not None:
                return conf
            if not deadline.wait(appeared.wait):
                raise TrackerError(self.missing(wait_seconds)) if self._unreadable is None else self._unreadable[1]

    def find(self, appeared: Callable[[], None] | None = None) -> Conf | None:
        """Return the Conf like ``retrieve``, or None; in that case ``appeared`` is called once there is one."""
        self._unreadable = None
        for path in self._paths:
            node = None
            try:
                node = self._session.get(path)
                if node is not None and node.data != REMOVED:
                    logger.debug("the Conf is at %s", path)
                    return _open(node, path, self._id, self._session)
            except (ConfError, NotAuthorisedError, VersionError) as exc:
                self._unreadable = self._unreadable or (path, exc)
                node = node or Node(b"", 0, 0, 0)
            if appeared is not None and self._session.exists(path, watch=appeared) and node is None:
                appeared()
        if self._unreadable is not None and self._unreadable[0] == self._paths[0]:
            raise self._unreadable[1]
        return None

    def ids(self) -> list[str]:
        """Return the ids of all Confs that are registered with this server, sorted."""
        folders = [path.rpartition("/")[0] for path in self._paths]
        return sorted({name for folder in folders for name in self._session.children(folder) or []})

    def close(self) -> None:
        """Close the session, unless it was given."""
        if self._own_session:
            self._session.close()

    def missing(self, wait_seconds: float) -> str:
        """Return the message that no run with this id is registered, which ones are, and what to do."""
        waited = f" after {wait_seconds:g} s" if wait_seconds else ""
        found = [
            f"{name} (master with --zookeeper {root})"
            for root in self._session.children("/") or []
            if ":" in root
            for name in self._session.children(f"/{root}/tmp") or []
        ]
        there = f"registered are: {', '.join(found[:20])}" if found else "none is registered"
        return (
            f"no run with the id {self._id!r} is registered in Zookeeper at {self._session.address}{waited}; {there}. "
            "Start the master first, with the same --zookeeper and --id; a run that has ended is no longer registered: "
            "`dl4j logs DIR` shows the journal in its --checkpoint-dir"
        )


def _begun(node: Node) -> _Begun | None:
    """Return which run's Conf a node holds, as stated in it; None if it holds no Conf."""
    try:
        return msgspec.json.decode(node.data, type=decodable(_Unsigned)).conf
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _sign(conf: bytes, id: str, session: ZooKeeperSession) -> str:
    """Return the signature, which includes the id, so that a Conf cannot be moved to another run."""
    text = b"\n".join((str(FORMAT).encode(), __version__.encode(), id.encode(), conf))
    return hmac.digest(session.derived("signature").encode(), text, hashlib.sha256).hex()


def _seal(conf: bytes, id: str, session: ZooKeeperSession) -> bytes:
    signature = _sign(conf, id, session) if session.secret else ""
    envelope = _Envelope(conf=msgspec.Raw(conf), format=FORMAT, package=__version__, signature=signature)
    return msgspec.json.encode(envelope, order="sorted")


def _open(node: Node, path: str, id: str, session: ZooKeeperSession) -> Conf:
    where = f"{path} in Zookeeper at {session.address}"
    try:
        form = msgspec.json.decode(node.data, type=decodable(_Format))
        if (form.format, form.package) != (FORMAT, __version__):
            raise VersionError(
                f"{where} was written by dl4jlegacy {form.package} (format {form.format}) and this is {__version__} "
                f"(format {FORMAT}); run the same version everywhere"
            )
        envelope = msgspec.json.decode(node.data, type=decodable(_Envelope))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        what = "a Java-serialized object" if node.data.startswith(JAVA) else f"{node.data[:16]!r}..."
        raise ConfError(
            f"{where} holds no run of dl4jlegacy but {len(node.data):,} bytes, {what}; remove it, or use another id"
        ) from exc
    conf = bytes(envelope.conf)
    if session.secret and not hmac.compare_digest(envelope.signature, _sign(conf, id, session)):
        signed = "a wrong signature" if envelope.signature else "no signature"
        raise NotAuthorisedError(
            f"{where} has {signed}: whoever wrote it does not know this run's secret; give master and workers the "
            "same secret, or remove the node"
        )
    try:
        return Conf.from_json(conf)
    except ConfError as exc:
        raise ConfError(f"{where}: {exc}") from exc
