"""The context of a layer's computation: kernels, random numbers, and work buffers reused from batch to batch.

Layers are frozen, so everything that outlives a call belongs to the network's ``Workspace``. A network is used by one
thread at a time; networks in different threads share nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array, asarray, get_array_module, out_of_memory
from dl4jlegacy.arrays.devices import current_device, used_memory
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import DeviceMemoryError
from dl4jlegacy.kernels.host_memory import host_vector
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.memory import Allocation
from dl4jlegacy.nn.memory import out_of_memory as memory_full

__all__ = ["Step", "Workspace", "flat_vector"]


def flat_vector(size: int, dtype: npt.DTypeLike, xp: ModuleType) -> Array:
    """Return a flat array in the memory of ``xp``; its content is undefined."""
    if xp is np:
        return host_vector(size, dtype)
    vector: Array = xp.empty(size, dtype)
    return vector


class Workspace:
    """Named buffers that grow to the largest requested size: the memory of one network's forward and backward pass.

    Args:
        titles: names of the layers for messages, by their numbers.
        besides: other allocations of the network in the same memory.

    Attributes:
        batch: examples of the current batch; 0 if unknown.
    """

    __slots__ = ("_constants", "_flat", "batch", "besides", "titles")

    def __init__(self, titles: Sequence[str] = (), besides: Sequence[Allocation] = ()) -> None:
        self.titles, self.besides, self.batch = tuple(titles), tuple(besides), 0
        self._flat: dict[tuple[int, str], Array] = {}
        self._constants: dict[tuple[int, str], Array] = {}

    def buffer(
        self, key: tuple[int, str], shape: tuple[int, ...], like: Array, dtype: npt.DTypeLike | None = None
    ) -> Array:
        """Return an array of ``shape`` on the device of ``like``; its content is undefined.

        Args:
            key: the layer's number, and the buffer's name.
            shape: of the array.
            like: an array on the same device; its dtype is the default.
            dtype: of the array.

        Raises:
            DeviceMemoryError: the GPU's memory is full.
        """
        size, kind = math.prod(shape), like.dtype if dtype is None else np.dtype(dtype)
        flat = self._flat.get(key)
        if flat is None or flat.size < size or flat.dtype != kind or type(flat) is not type(like):
            self._flat.pop(key, None)  # the smaller buffer is freed first
            del flat
            try:
                flat = self._flat[key] = flat_vector(size, kind, get_array_module(like))
            except out_of_memory() as exc:
                raise self._full(key, shape, size * kind.itemsize) from exc
        return flat[:size].reshape(shape)

    def constant(self, key: tuple[int, str], values: Sequence[float], like: Array) -> Array:
        """Return ``values`` with the dtype and device of ``like``; they are uploaded once, and must not change."""
        known = self._constants.get(key)
        if known is None or known.dtype != like.dtype or type(known) is not type(like):
            known = self._constants[key] = asarray(values, like=like)
        return known

    def arrays(self) -> list[Array]:
        """Return the current buffers."""
        return [*self._flat.values(), *self._constants.values()]

    def bytes_by_layer(self) -> dict[int, int]:
        """Return the bytes of each layer's buffers, by the layer's number."""
        total: dict[int, int] = {}
        for (layer, _), flat in self._flat.items():
            total[layer] = total.get(layer, 0) + int(flat.nbytes)
        return total

    def title(self, layer: int) -> str:
        """Return a layer's name for messages: ``layer 1 (dense)``; before the first, ``the network's input``."""
        if layer < 0:
            return "the network's input"
        return f"layer {layer} ({self.titles[layer]})" if layer < len(self.titles) else f"layer {layer}"

    def _full(self, key: tuple[int, str], shape: tuple[int, ...], asked: int) -> DeviceMemoryError:
        device = current_device()
        used, limit = used_memory(device)
        buffers = [Allocation(self.title(layer), size, True) for layer, size in self.bytes_by_layer().items()]
        held = [*self.besides, *buffers]
        others = Allocation("other arrays of this process", max(0, used - sum(part.size for part in held)))
        return memory_full(
            device=device.text,
            layer=self.title(key[0]),
            buffer=key[1],
            shape=shape,
            asked=asked,
            held=[*held, others],
            batch=self.batch,
            available=limit or device.memory,
        )


class Step(msgspec.Struct, frozen=True):
    """One pass through one layer: whether it is training, its random numbers, kernels and buffers.

    ``stream`` is the stream of the batch; ``layer`` distinguishes the layers' buffers and random numbers. ``examples``
    is the number in the batch; ``rows`` is the number of images in a convolutional layer: the examples, or all their
    time steps.

    ``mask (time steps, examples)`` is 1 inside a sequence and 0 behind its end; None: there is no mask.
    ``labels_mask`` is the same for the labels, ``(examples,)`` if they are not sequences. ``memory`` holds the states
    that recurrent layers carry from one call to the next, by ``(layer, name)``; None: every sequence starts anew.
    ``back_length`` limits how many time steps truncated backpropagation looks back; 0: all of them. ``part``
    distinguishes the parts of a layer, such as the two directions of a bidirectional one.
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
        """Return the same pass for another layer, with ``changes`` applied."""
        return msgspec.structs.replace(self, layer=layer, **changes)

    def buffer(self, name: str, shape: tuple[int, ...], like: Array, dtype: npt.DTypeLike | None = None) -> Array:
        """Return this layer's buffer ``name``; valid until the layer's next pass asks for it again."""
        return self.workspace.buffer((self.layer, self.part + name), shape, like, dtype)

    def constant(self, name: str, values: Sequence[float], like: Array) -> Array:
        """Return numbers of this layer's configuration as an array like ``like``, uploaded once."""
        return self.workspace.constant((self.layer, self.part + name), values, like)

    def uniforms(self, purpose: str, like: Array) -> Array:
        """Return uniforms in [0, 1) in the shape of ``like``, in a buffer on its device, drawn for ``purpose``."""
        drawn = self.buffer(f"{purpose} uniforms", like.shape, like)
        self.kernels.uniform(drawn, self.key(purpose))
        return drawn

    def random(self, purpose: str, index: int = 0) -> Stream:
        """Return this layer's random stream for ``purpose``; every call returns the same one."""
        return self.stream.at(self.layer, index, purpose=self.part + purpose)

    def key(self, purpose: str, index: int = 0) -> int:
        """Return the 64-bit key of ``random``, for the kernels."""
        return self.random(purpose, index).key
