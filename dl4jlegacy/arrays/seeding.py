"""Random streams addressed by position in the run: the same position gives the same numbers on every worker.

A ``Stream`` is a 64-bit key derived from the run's seed, a position (epoch, round, slot, batch, layer, ...) and a
purpose. Kernels pass the key to the counter-based Philox generator; host code uses ``generator()``. The numbers do not
depend on which worker draws them, in which order, or how often.

Source of the generator: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np

__all__ = ["Stream"]


@dataclass(frozen=True, slots=True)
class Stream:
    """A named, addressable source of random numbers.

    ``key`` is an unsigned 64-bit integer. ``Stream.of(seed)`` is the root; ``at`` returns a child: different
    sequences of ``at`` calls give independent streams, equal sequences give the same stream.
    """

    key: int

    @classmethod
    def of(cls, seed: int) -> Stream:
        """Return the root stream of a run."""
        return cls(0).at(seed, purpose="run")

    def at(self, *position: int, purpose: str = "") -> Stream:
        """Return the stream at ``position`` below this one, for ``purpose`` ('weights', 'dropout', ...)."""
        text = purpose.encode()
        packed = struct.pack(f"<QI{len(text)}s{len(position)}q", self.key, len(text), text, *position)
        return Stream(int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little"))

    def generator(self) -> np.random.Generator:
        """Return a new numpy generator for this stream, for numbers that are drawn once (weights, shuffling)."""
        return np.random.Generator(np.random.Philox(key=self.key))
