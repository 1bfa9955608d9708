"""Who is connected with whom: a tree of processes, in which every one is attached to one that came before it.

Legacy: ``MeshOrganizer`` of Deeplearning4j's parameter server, which a master kept and sent to all. Here each process
keeps its own, made of the same list of processes, and looks up nothing in it but its own upstream. Whatever the others
think meanwhile, nobody is attached to one that came later, so no circle can arise; and who is there is one tree as soon
as all know the same processes. There a process that lost its upstream went to whichever had the fewest downstreams: it
could be one of its own, and the downstreams of one process became a chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["MAX_DOWNSTREAMS", "MESH_BUILD_MODES", "MeshBuildMode", "MeshOrganizer"]

MAX_DOWNSTREAMS = 8
"""So many processes are attached to one, unless all are attached to the root."""
MeshBuildMode = Literal["plain", "mesh"]
MESH_BUILD_MODES = ("plain", "mesh")
"""All processes attached to the first one; or a tree in which each has at most ``MAX_DOWNSTREAMS``."""


@dataclass(slots=True, eq=False)
class _Node:
    id: str
    place: int
    upstream: _Node | None = None
    downstreams: list[_Node] = field(default_factory=list)
    is_online: bool = True


class MeshOrganizer:
    """The tree of the processes that are there, in their order of coming. Used by one thread.

    ``version`` grows with every change.
    """

    def __init__(self, mode: MeshBuildMode) -> None:
        self.mode, self.version = mode, 0
        self._nodes: dict[str, _Node] = {}  # in the order of their places
        self._came = 0
        self._full = 0  # all nodes of lower places are full, or offline

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, id: object) -> bool:
        return id in self._nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    @property
    def root(self) -> str | None:
        """The first of the processes that are online; None if none is."""
        root = self._root()
        return None if root is None else root.id

    def is_online(self, id: str) -> bool:
        """Return whether a process is known, and was not marked offline."""
        return id in self._nodes and self._nodes[id].is_online

    def upstream_of(self, id: str) -> str | None:
        """Return to which process one is attached; None for the root, and for one that is offline."""
        upstream = self._nodes[id].upstream
        return None if upstream is None else upstream.id

    def downstreams_of(self, id: str) -> tuple[str, ...]:
        """Return which processes are attached to one."""
        return tuple(node.id for node in self._nodes[id].downstreams)

    def distance_from_root(self, id: str) -> int:
        """Return over how many connections a message comes from the root to a process."""
        return _distance(self._nodes[id])

    def add_node(self, id: str) -> None:
        """Attach a process that has come: to the first one with room. One that was offline is back."""
        if (known := self._nodes.get(id)) is not None:
            if not known.is_online:
                self.remap_node_and_downstreams(id)
            return
        node = self._nodes[id] = _Node(id, self._came)
        self._came += 1
        self.version += 1
        _attach(node, self._root() if self.mode == "plain" else self._with_room(node))

    def mark_node_offline(self, id: str) -> None:
        """Detach a process, and attach its downstreams to others."""
        node = self._nodes[id]
        if not node.is_online:
            return
        node.is_online = False
        self.version, self._full = self.version + 1, 0
        _detach(node)
        for downstream in sorted(node.downstreams, key=lambda each: each.place):
            self.remap_node(downstream.id)

    def remap_node(self, id: str) -> None:
        """Attach a process to another one that came before it and is not full: the nearest to the root.

        Of several that are equally near it is the one with the fewest downstreams. If all are full, or in the mode
        "plain", it is the root.
        """
        node = self._nodes[id]
        _detach(node)
        self.version, self._full = self.version + 1, 0
        _attach(node, self._nearest(node) or self._root())

    def remap_node_and_downstreams(self, id: str) -> None:
        """Attach a process that has come back, and what is attached to it, to the root."""
        node, root = self._nodes[id], self._root()
        node.is_online = True
        self.version, self._full = self.version + 1, 0
        if root is not None and root.place > node.place:  # this one came first
            _attach(root, node)
            return
        for each in [*node.downstreams, node]:
            _detach(each)
            _attach(each, root)

    def remove_node(self, id: str) -> None:
        """Forget a process that will never come back."""
        self.mark_node_offline(id)
        del self._nodes[id]

    def _root(self) -> _Node | None:
        return next((node for node in self._nodes.values() if node.is_online), None)

    def _with_room(self, node: _Node) -> _Node | None:
        """Return the first of the others that is not full, which is none only if there is no other."""
        for other in self._nodes.values():
            if other.place < self._full or other is node:
                continue
            if other.is_online and len(other.downstreams) < MAX_DOWNSTREAMS:
                return other
            self._full = other.place + 1
        return None

    def _nearest(self, node: _Node) -> _Node | None:
        """Return the earlier process nearest to the root, of those that are not full."""
        root = self._root()
        level = [] if root is None or self.mode == "plain" else [root]
        while level := [other for other in level if other.place < node.place]:
            free = [other for other in level if len(other.downstreams) < MAX_DOWNSTREAMS]
            if free:
                return min(free, key=lambda other: (len(other.downstreams), other.place))
            level = [below for other in level for below in other.downstreams]
        return None


def _attach(node: _Node, upstream: _Node | None) -> None:
    if upstream is not None and upstream is not node:
        node.upstream = upstream
        upstream.downstreams.append(node)


def _detach(node: _Node) -> None:
    if node.upstream is not None:
        node.upstream.downstreams.remove(node)
        node.upstream = None


def _distance(node: _Node) -> int:
    distance = 0
    while node.upstream is not None:
        node, distance = node.upstream, distance + 1
    return distance
