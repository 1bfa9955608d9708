"""Who is there: workers as ephemeral nodes, which vanish with the process that wrote them (L4).

A lost session takes the node with it and kazoo does not bring it back: ``WorkerRegistration`` does, by itself.

Legacy: workers were entries of a Hazelcast list that the master removed after 120 s without a heartbeat.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec

from dl4jlegacy.errors import ConfError, TrackerError
from dl4jlegacy.scaleout.zookeeper.session import ZooKeeperSession

__all__ = ["WorkerRegistration", "WorkersWatch", "group_path", "registered_workers"]

logger = logging.getLogger(__name__)

ROOT = "/dl4jlegacy"
PAUSE_SECONDS = 0.1

Info = dict[str, Any]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An ephemeral node's content: what its owner tells of itself, and a number that only the owner knows."""

    info: Info
    nonce: str


def group_path(group: str, folder: str) -> str:
    """Return where a group (a master's id) keeps its workers or its election.

    The place does not depend on the name by which a process calls the server, so that all of a group meet there.
    """
    if not group or "/" in group or group in (".", "..") or not group.isprintable():
        raise ConfError(f"{group!r} cannot be an id; it must be printable, not empty, without '/'")
    return f"{ROOT}/{group}/{folder}"


def ensure_group(session: ZooKeeperSession, group: str, folder: str) -> None:
    """Create a group's folder; under a secret only those who know it can write, or remove, anything in it."""
    session.ensure(group_path(group, folder), guarded=f"{ROOT}/{group}")


def read_entry(session: ZooKeeperSession, path: str) -> Entry | None:
    """Return an ephemeral node's content; None if it is gone or none of ours."""
    node = session.get(path)
    try:
        return None if node is None else msgspec.json.decode(node.data, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError):
        logger.warning("%s in Zookeeper at %s is no entry of dl4jlegacy", path, session.address)
        return None


class WorkerRegistration:
    """A worker's ephemeral node, kept alive through lost sessions until ``close``."""

    def __init__(
        self, session: ZooKeeperSession, worker_id: str, info: Mapping[str, Any], *, group: str = "master"
    ) -> None:
        group_path(worker_id, "")
        self.path = f"{group_path(group, 'workers')}/{worker_id}"
        self.renewed = 0
        """How often the node had to be written again."""
        self._session = session
        self._group = group
        self._entry = Entry(info=dict(info), nonce=uuid.uuid4().hex)
        self._data = msgspec.json.encode(self._entry, order="sorted")
        self._is_closed = False

    def __enter__(self) -> Self:
        return self.register()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def register(self, *, wait_seconds: float | None = None) -> Self:
        """Write the node.

        Args:
            wait_seconds: for a node of this name that a predecessor left behind; default is a bit more than a
                session's life after its process.

        Raises:
            TrackerError: another worker with this id lives; the message says where. Or nobody answers.
        """
        seconds = self._session.session_seconds * 1.5 + 1 if wait_seconds is None else wait_seconds
        deadline = time.monotonic() + seconds
        while not self._present():
            gone = threading.Event()
            left = deadline - time.monotonic()
            if self._session.exists(self.path, watch=gone.set) and (left <= 0 or not gone.wait(left)):
                other = read_entry(self._session, self.path)
                raise TrackerError(
                    f"{self.path} in Zookeeper at {self._session.address}: a worker with this id is registered and "
                    f"alive ({_described(other)}); give this worker another id, or stop that one"
                )
        self._session.attend(self._keep)
        return self

    def close(self) -> None:
        """Leave: remove the node now instead of when the session ends, and the group's folders if they are empty."""
        self._session.neglect(self._keep)
        if not self._is_closed and not self._session.closed:
            self._session.keeper.perform(self._withdraw, self._session.deadline_seconds)
        self._is_closed = True

    def _present(self) -> bool:
        """Write the node unless it is there as it should be; False if somebody else's is."""
        node = self._session.get(self.path)
        if node is not None and node.data == self._data:
            if node.owner == self._session.session_id:
                return True
            # Our own, of a session that is lost: it would vanish when the server notices, after we believed it there.
            self._session.delete(self.path)
            node = None
        if node is not None:
            return False
        ensure_group(self._session, self._group, "workers")
        return self._session.create(self.path, self._data, ephemeral=True, late=self._keep)

    def _keep(self) -> None:
        """Put the node back if it is gone, on the keeper; looks again when anything happens to it or the connection."""
        if self._is_closed:
            self._withdraw()  # a node whose writing was under way when we left
            return
        if not self._session.connected:
            return
        node = self._session.get(self.path, watch=self._again)
        if node is not None and node.data == self._data and node.owner == self._session.session_id:
            return
        if self._present():
            self.renewed += 1
            logger.info("%s was gone from Zookeeper and is there again", self.path)
        elif node is not None:
            logger.warning("%s in Zookeeper belongs to another process; waiting for it to go", self.path)
            return
        self._session.keeper.wake(self._keep, PAUSE_SECONDS)  # to watch what is there now

    def _again(self) -> None:
        if not self._is_closed:
            self._session.keeper.wake(self._keep)

    def _withdraw(self) -> None:
        self._is_closed = True
        node = self._session.get(self.path)
        if node is not None and node.data == self._data:
            self._session.prune(self.path)


class WorkersWatch:
    """Tells of every change in who is registered, with all that are: ``on_change({worker id: info})``.

    ``on_change`` runs on the session's keeper and must only enqueue. While Zookeeper is away nothing is told: that a
    worker cannot be seen does not say that it is gone.
    """

    def __init__(
        self, session: ZooKeeperSession, on_change: Callable[[dict[str, Info]], None], *, group: str = "master"
    ) -> None:
        self._session = session
        self._group = group
        self._on_change = on_change
        self._known: dict[str, Entry] | None = None
        self._is_closed = False
        session.attend(self._look)

    def close(self) -> None:
        """Tell no more."""
        self._is_closed = True
        self._session.neglect(self._look)

    def _look(self) -> None:
        if self._is_closed or not self._session.connected:
            return
        known = _entries(self._session, self._group, self._again)
        if known != self._known:
            self._known = known
            self._on_change({worker_id: entry.info for worker_id, entry in known.items()})

    def _again(self) -> None:
        self._session.keeper.wake(self._look)


def registered_workers(session: ZooKeeperSession, group: str = "master") -> dict[str, Info]:
    """Return what the workers of a group tell of themselves, by id."""
    return {worker_id: entry.info for worker_id, entry in _entries(session, group, None).items()}


def _entries(session: ZooKeeperSession, group: str, watch: Callable[[], None] | None) -> dict[str, Entry]:
    folder = group_path(group, "workers")
    names = session.children(folder, watch=watch)
    if names is None and watch is not None and session.exists(folder, watch=watch):
        names = session.children(folder, watch=watch)  # it came just now
    entries = {name: read_entry(session, f"{folder}/{name}") for name in names or []}
    return {name: entry for name, entry in entries.items() if entry is not None}


def _described(entry: Entry | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(entry.info.items())) if entry else "not readable"
