"""The mesh of a simulated run (``simulator``), which loses, delays, doubles, tears and forges what it carries."""

from __future__ import annotations

import random
from typing import Any

from dl4jlegacy.arrays import wire
from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.links.mesh.messages import MessageCache
from dl4jlegacy.scaleout.links.mesh.wire import MessageReader, header

__all__ = ["HostileMesh", "HostileMessages"]


class HostileMesh:
    """Carries the messages of workers to each other: what comes, comes late, twice, torn, or is something else."""

    def __init__(self, seed: int) -> None:
        self.rng, self.time = random.Random(f"pushes of {seed}"), 0.0
        self.caches: dict[str, MessageCache] = {}
        self.under_way: list[tuple[float, str, bytes]] = []
        self.committed: list[bytes] = []
        self.refused = self.came = 0

    def join(self, name: str) -> HostileMessages:
        self.caches[name] = MessageCache(self.rng.choice((600, 4000, 1 << 20)))
        return HostileMessages(self, name)

    def push(self, sender: str, frame: bytes) -> None:
        named = wire.digest(frame)
        self.committed.append(frame)
        for name in self.caches:
            for _ in range(self.rng.choice((0, 1, 1, 2)) if name != sender else 0):
                due, dice, sent = self.time + self.rng.choice((0, 1, 40, 3000)), self.rng.random(), frame
                if dice < 0.1:  # another message under this one's digest
                    sent = self.rng.choice(self.committed)
                said = header(named if dice < 0.95 else wire.digest(sent + b"!"), len(sent)) + sent
                self.under_way.append((due, name, said[: len(said) // 2] if 0.1 < dice < 0.15 else said))

    def deliver(self, name: str) -> None:
        """Let come what is due for a worker, as its process would take it from a connection."""
        due = [item for item in self.under_way if item[1] == name and item[0] <= self.time]
        self.under_way = [item for item in self.under_way if item not in due]
        for _, _, said in due:
            try:
                for named, message in MessageReader(1 << 20).feed(said):
                    self.came += self.caches[name].take(named, message)
            except WireError:
                self.refused += 1


class HostileMessages:
    """The messages that one worker has at hand. ``Messages``."""

    def __init__(self, mesh: HostileMesh, name: str) -> None:
        self.mesh, self.name, self.cache = mesh, name, mesh.caches[name]

    def find(self, digest: str) -> bytes | None:
        self.mesh.deliver(self.name)
        return self.cache.find(digest)

    def add(self, frame: Any) -> None:
        self.cache.add(frame)

    def commit(self, frame: Any) -> None:
        self.cache.add(frame)
        self.mesh.push(self.name, bytes(frame))
