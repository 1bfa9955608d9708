"""The copies of slots' states of a simulated run (``simulator``), of which some are never made and some not found."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dl4jlegacy.scaleout.state.state_cache import Copied

__all__ = ["HostileCopies"]


class HostileCopies:
    """Those of one host. ``StateCopies``; what a killed process has copied stays, also what nobody should want."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"copies of {seed}")
        self.copies: dict[int, list[tuple[str, bytes]]] = {}
        self.found = self.missed = 0

    def keep(self, slot: int, update: str, frame: bytes) -> None:
        if self.rng.random() < 0.8:
            kept = self.copies.setdefault(slot, [])
            kept.insert(self.rng.randrange(len(kept) + 1), (update, bytes(frame)))
            del kept[4:]

    def remove_others(self, slot: int) -> None:
        pass

    def is_near(self, worker: str) -> bool:
        return self.rng.random() < 0.9

    def find(self, slot: int, updates: Sequence[str]) -> Copied | None:
        best: Copied | None = None
        for update, frame in self.copies.get(slot, []) if self.rng.random() < 0.9 else []:
            if update in updates and (best is None or updates.index(update) >= best.done):
                best = Copied(updates.index(update) + 1, frame)
        self.found, self.missed = self.found + (best is not None), self.missed + (best is None)
        return best
