"""The error for full GPU memory: the failed request, the largest other allocations, and a batch size that would fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dl4jlegacy.arrays.devices import memory_text
from dl4jlegacy.errors import DeviceMemoryError

__all__ = ["Allocation", "largest_batch", "out_of_memory"]

_NAMED = 3


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory in use: ``parameters``, ``updater state``, ``layer 2 (convolution)``, ...

    ``per_example``: whether the memory grows with the batch, as the buffers of layers do.
    """

    what: str
    size: int
    per_example: bool = False


def out_of_memory(
    *,
    device: str,
    layer: str,
    buffer: str,
    shape: tuple[int, ...],
    asked: int,
    held: Sequence[Allocation],
    batch: int,
    available: int,
) -> DeviceMemoryError:
    """Return the error for a buffer that did not fit into a GPU's memory.

    Args:
        device: the GPU, for people (``Device.text``).
        layer: the layer's title, such as ``layer 2 (convolution)``.
        buffer, shape, asked: the buffer's name, shape and bytes.
        held: the memory already in use; the message names the largest parts.
        batch: examples of the batch; 0: unknown.
        available: total bytes of the GPU that the process may use; 0: unknown.
    """
    largest = sorted(held, key=lambda part: -part.size)[:_NAMED]
    named = ", ".join(f"{part.what} {memory_text(part.size)}" for part in largest if part.size)
    total = memory_text(sum(part.size for part in held))
    of = f" of {memory_text(available)}" if available else ""
    used = f"in use are {total}{of}: {named}" if named else f"nothing of this network is in use{of} yet"
    return DeviceMemoryError(
        f"the memory of {device} is full: {layer} asked for its buffer {buffer!r} of shape {shape}, "
        f"{memory_text(asked)}; {used}; {_remedy(largest_batch(asked, held, batch, available), batch)}"
    )


def largest_batch(asked: int, held: Sequence[Allocation], batch: int, available: int) -> int | None:
    """Return the largest batch whose known buffers fit beside the memory that does not grow with the batch.

    0: not even one example fits; None: unknown. Layers after the failed one have not allocated memory yet, so an even
    smaller batch may be needed.
    """
    growing = asked + sum(part.size for part in held if part.per_example)
    if batch < 1 or available < 1 or growing < 1:
        return None
    room = available - sum(part.size for part in held if not part.per_example)
    return max(0, min(room * batch // growing, batch - 1))


def _remedy(fits: int | None, batch: int) -> str:
    others = "a GPU with more memory, or a larger --device-memory-limit if there is one"
    if fits is None:
        return f"take a smaller --batch-size, or {others}"
    if fits < 1:
        return f"of the batch of {batch} not even 1 example fits: take {others}"
    return f"of the batch of {batch} up to here {fits} would fit: take --batch-size {fits} or less, or {others}"
