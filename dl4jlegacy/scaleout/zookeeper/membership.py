"""The registration of workers: ephemeral nodes, which disappear with the process that wrote them.

A lost session also removes its node, and kazoo does not restore it: ``WorkerRegistration`` does.

Legacy: workers were entries of a Hazelcast list that the master removed after 120 s without a heartbeat.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec

from dl4jlegacy.errors import ConfError, TrackerError
from dl4jlegacy.scaleout.zookeeper.permissions import ROOT
from dl4jlegacy.scaleout.zookeeper.session import Node, ZooKeeperSession
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.decoding import decodable

__all__ = [
    "MESH",
    "MeshMembers",
    "WorkerRegistration",
    "group_path",
    "is_deserted",
    "prune_group",
    "registered_members",
    "registered_workers",
]

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1
LOOK_SECONDS = 10.0
"""Seconds between reads of the members if no change was reported."""

Info = dict[str, Any]


WORKERS, MESH, TRIALS, ELECTION = "workers", "mesh", "trials", "election"
"""The folders of a group: its workers' processes, those of its mesh, a search's trials, the candidates for master."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an ephemeral node: information about its owner, and a number that only the owner knows."""

    info: Info
    nonce: str


def group_path(group: str, folder: str) -> str:
    """Return the path of a group's folder, for its workers or its election; a group is a master's id.

    The path does not contain the server's name, which may differ between the processes of a group.
    """
    if not group or "/" in group or group in (".", "..") or not group.isprintable():
        raise ConfError(f"{group!r} cannot be an id; it must be printable, not empty, without '/'")
    return f"{ROOT}/{group}/{folder}"


def ensure_group(session: ZooKeeperSession, group: str, folder: str) -> None:
    """Create a group's folder; with a secret, only processes that know it can change anything in it."""
    session.ensure(group_path(group, folder), guarded=f"{ROOT}/{group}")


def read_member(session: ZooKeeperSession, path: str) -> Member | None:
    """Return the content of an ephemeral node; None if it does not exist or has another format."""
    node = session.get(path)
    return None if node is None else _decoded(session, path, node)


def _decoded(session: ZooKeeperSession, path: str, node: Node) -> Member | None:
    try:
        return msgspec.json.decode(node.data, type=decodable(Member))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        logger.warning("%s in Zookeeper at %s is not a node of dl4jlegacy", path, session.address)
        return None


class WorkerRegistration:
    """A worker's ephemeral node in a folder of its group, which is restored after lost sessions until ``close``."""

    def __init__(
        self,
        session: ZooKeeperSession,
        worker_id: str,
        info: Mapping[str, Any],
        *,
        group: str = "master",
        folder: str = WORKERS,
    ) -> None:
        group_path(worker_id, "")
        self.path = f"{group_path(group, folder)}/{worker_id}"
        self.renewed = 0
        """Number of times that the node was restored."""
        self._session = session
        self._group, self._folder = group, folder
        self._member = Member(info=dict(info), nonce=uuid.uuid4().hex)
        self._data = msgspec.json.encode(self._member, order="sorted")
        self._is_closed = False

    def __enter__(self) -> Self:
        return self.register()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def register(self, *, wait_seconds: float | None = None) -> Self:
        """Write the node, and restore it whenever it is lost, until ``close``.

        Args:
            wait_seconds: how long to wait for the node of a dead worker with this id to disappear; the default is a
                little longer than a session lives without its process.

        Raises:
            TrackerError: another worker with this id is alive, or no server answers.
        """
        seconds = self._session.session_seconds * 1.5 + 1 if wait_seconds is None else wait_seconds
        deadline = Deadline(seconds)
        while not self._present():
            gone = threading.Event()
            if self._session.exists(self.path, watch=gone.set) and not deadline.wait(gone.wait):
                other = read_member(self._session, self.path)
                raise TrackerError(
                    f"{self.path} in Zookeeper at {self._session.address}: a worker with this id is registered and "
                    f"alive ({_described(other)}); give this worker another id, or stop that one"
                )
        self._session.add_listener(self._keep)
        return self

    def close(self) -> None:
        """Remove the node now instead of at the end of the session, and the group's folders if they are empty."""
        self._session.remove_listener(self._keep)
        if not self._is_closed and not self._session.closed:
            self._session.scheduler.run(self._withdraw, self._session.deadline_seconds)
        self._is_closed = True

    def _present(self) -> bool:
        """Write the node unless it exists already; return False if a node of another process exists."""
        node = self._session.get(self.path)
        if node is not None and node.data == self._data:
            if node.owner == self._session.session_id:
                return True
            # Our own node of a lost session: it would disappear later, when the server notices.
            self._session.delete(self.path)
            node = None
        if node is not None:
            return False
        ensure_group(self._session, self._group, self._folder)
        return self._session.create(self.path, self._data, ephemeral=True, late=self._keep)

    def _keep(self) -> None:
        """Restore the node if it is gone; runs on the scheduler whenever the node or the connection changes."""
        if self._is_closed:
            self._withdraw()  # a node that was still being written when this was closed
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
        self._session.scheduler.schedule(self._keep, PAUSE_SECONDS)  # to watch the new node

    def _again(self) -> None:
        if not self._is_closed:
            self._session.scheduler.schedule(self._keep)

    def _withdraw(self) -> None:
        self._is_closed = True
        node = self._session.get(self.path)
        if node is not None and node.data == self._data:
            self._session.prune(self.path)


def registered_workers(session: ZooKeeperSession, group: str = "master") -> dict[str, Info]:
    """Return the information about the registered workers of a group, by worker id."""
    return registered_members(session, group, WORKERS)


def registered_members(session: ZooKeeperSession, group: str, folder: str) -> dict[str, Info]:
    """Return the information about everything that is registered in a folder of a group, by name."""
    path = group_path(group, folder)
    members = {name: read_member(session, f"{path}/{name}") for name in session.children(path) or []}
    return {name: member.info for name, member in members.items() if member is not None}


def is_deserted(session: ZooKeeperSession, group: str) -> bool:
    """Return whether no process is registered in a group, neither for its workers nor for the mesh."""
    return not any(session.children(group_path(group, folder)) for folder in (WORKERS, MESH))


def prune_group(session: ZooKeeperSession, group: str) -> None:
    """Remove the folders of a group, as long as nothing is registered there."""
    for folder in (WORKERS, MESH, TRIALS, ELECTION):
        session.prune(group_path(group, folder))


class MeshMembers:
    """The processes of a group's mesh, in the order of their arrival; read again whenever one arrives or leaves.

    Args:
        session: with Zookeeper.
        group: a master's id.
        on_change: called with the (name, information) of all processes, on the session's scheduler.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        *,
        group: str = "master",
        on_change: Callable[[Sequence[tuple[str, Info]]], None],
    ) -> None:
        self._session, self._folder, self._on_change = session, group_path(group, MESH), on_change
        self._known: dict[str, tuple[int, Info]] = {}
        self._is_closed = False

    def __enter__(self) -> Self:
        self._session.add_listener(self._look)
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_closed = True
        self._session.remove_listener(self._look)

    def _look(self) -> None:
        if self._is_closed or not self._session.connected:
            return
        names = self._session.children(self._folder, watch=self._again) or []
        self._known = {name: known for name, known in self._known.items() if name in names}
        for name in names:
            path = f"{self._folder}/{name}"
            if name not in self._known and (node := self._session.get(path)) is not None:
                member = _decoded(self._session, path, node)
                self._known[name] = (node.created, {} if member is None else member.info)
        came = sorted(self._known.items(), key=lambda item: (item[1][0], item[0]))
        self._on_change([(name, info) for name, (_, info) in came])
        self._session.scheduler.schedule(self._look, LOOK_SECONDS)

    def _again(self) -> None:
        if not self._is_closed:
            self._session.scheduler.schedule(self._look)


def _described(member: Member | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(member.info.items())) if member else "not readable"
