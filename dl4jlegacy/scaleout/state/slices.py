"""Slices of a frame: each has the header's values and, of every array, the elements between two bounds.

Models and updates are cut in the same way, so that workers can fold different slices, which are then joined to the same
bytes. Values that depend on positions in an array (``updater_beginning``) include the slice.

Legacy: the shards of ``VoidConfiguration.numberOfShards``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dl4jlegacy.arrays import wire
from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.updater_beginning import joined_beginning, sliced_beginning

__all__ = ["cut", "joined"]


def cut(frame: Buffer, index: int, count: int) -> memoryview:
    """Return a copy of slice ``index`` of ``count`` of a frame, whose arrays must be vectors.

    Raises:
        WireError: an array is not a vector.
    """
    values, arrays = wire.decode(frame)
    parts = {name: _part(name, array, index, count) for name, array in arrays.items()}
    return wire.encode(sliced_beginning(values, index, count), parts)


def joined(frames: Sequence[Buffer]) -> memoryview:
    """Return a new frame joined from these slices, which must be complete and in order.

    Raises:
        WireError: they are not slices of one frame.
    """
    decoded = [(joined_beginning(values), arrays) for values, arrays in map(wire.decode, frames)]
    (values, first), kinds = decoded[0], {_kinds(arrays) for _, arrays in decoded}
    if any(other != values for other, _ in decoded) or len(kinds) > 1 or any(a.ndim != 1 for a in first.values()):
        raise WireError(f"{len(frames)} slices do not belong together: they have other values, or other arrays")
    sizes = {name: sum(arrays[name].size for _, arrays in decoded) for name in first}
    whole, views = wire.allocate(values, {name: (first[name].dtype, (size,)) for name, size in sizes.items()})
    for name, view in views.items():
        np.concatenate([arrays[name] for _, arrays in decoded], out=view)
    return whole


def _kinds(arrays: Mapping[str, Array]) -> tuple[tuple[str, str, int], ...]:
    """Return the names, types and dimensions of arrays, in their order in the frame."""
    return tuple((name, array.dtype.str, array.ndim) for name, array in arrays.items())


def _part(name: str, array: Array, index: int, count: int) -> Array:
    if array.ndim != 1:
        raise WireError(f"array {name!r} of shape {array.shape} cannot be cut into {count} slices; it must be a vector")
    return array[array.size * index // count : array.size * (index + 1) // count]
