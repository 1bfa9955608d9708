"""What a layer is lent while it computes: kernels, randomness, and work buffers that are reused from batch to batch.

Layers are frozen, so everything that lives longer than a call belongs to the network's ``Workspace``. One network is
used by one thread at a time; several networks in several threads share nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dl4jlegacy.backend import Array, get_array_module
from dl4jlegacy.kernels import Kernels
from dl4jlegacy.seeding import Stream

__all__ = ["Step", "Workspace", "aligned"]

_CACHE_LINE = 64


def aligned(size: int, dtype: npt.DTypeLike) -> Array:
    """Return an uninitialised flat host array of ``size`` elements that starts at a cache line."""
    item = np.dtype(dtype).itemsize
    raw = np.empty(size * item + _CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % _CACHE_LINE
    return raw[start : start + size * item].view(dtype)


class Workspace:
    """Named buffers that grow to the largest size asked for; the memory of one network's forward and backward pass."""

    __slots__ = ("_flat",)

    def __init__(self) -> None:
        self._flat: dict[tuple[int, str], Array] = {}

    def buffer(self, key: tuple[int, str], shape: tuple[int, ...], like: Array) -> Array:
        """Return an array of ``shape`` with the dtype and device of ``like``; its content is whatever was there."""
        size = math.prod(shape)
        flat = self._flat.get(key)
        if flat is None or flat.size < size or flat.dtype != like.dtype or type(flat) is not type(like):
            xp = get_array_module(like)
            flat = aligned(size, like.dtype) if xp is np else xp.empty(size, like.dtype)
            self._flat[key] = flat
        return flat[:size].reshape(shape)


@dataclass(frozen=True, slots=True)
class Step:
    """One pass through one layer: is it training, which random numbers, which kernels, which buffers.

    ``stream`` is that of the batch; ``layer`` tells the layers' buffers and random numbers apart. ``examples`` are in
    the batch; ``rows`` are the images that a convolutional layer sees: the examples, or all their time steps.

    ``mask (time steps, examples)`` is 1 where a sequence goes on and 0 behind its end, None where there is no mask;
    ``labels_mask`` says the same of the labels, ``(examples,)`` where they are no sequences. ``memory`` holds what
    recurrent layers carry from one call to the next, by ``(layer, name)``; None: every sequence starts anew.
    ``back_length`` limits how many time steps truncated backpropagation looks back; 0: all of them. ``part`` tells the
    parts of a layer apart, such as the two directions of a bidirectional one.
    """

    kernels: Kernels
    workspace: Workspace
    stream: Stream
    train: bool = False
    layer: int = 0
    examples: int = 0
    rows: int = 0
    mask: Array | None = None
    labels_mask: Array | None = None
    memory: dict[tuple[int, str], Array] | None = None
    back_length: int = 0
    part: str = ""

    def at(self, layer: int, **changes: Any) -> Step:
        """Return the same pass at another layer, with other ``changes``."""
        return replace(self, layer=layer, **changes)

    def buffer(self, name: str, shape: tuple[int, ...], like: Array) -> Array:
        """Return this layer's buffer ``name``; valid until the layer's next pass asks for it again."""
        return self.workspace.buffer((self.layer, self.part + name), shape, like)

    def random(self, purpose: str, index: int = 0) -> Stream:
        """Return this layer's random numbers for ``purpose``; asked again, the same ones."""
        return self.stream.at(self.layer, index, purpose=self.part + purpose)

    def key(self, purpose: str, index: int = 0) -> int:
        """Return the 64-bit key of ``random``, for the kernels."""
        return self.random(purpose, index).key
