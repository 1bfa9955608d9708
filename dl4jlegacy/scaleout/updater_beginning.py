"""Initial values of a network's updater state, stored in the model itself.

Processes that fold updates or keep slot states have no network, but must initialize the updater state of a new phase as
a network would. So a model lists in its values the parts of the state whose initial value is not zero; most have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import WireError
from dl4jlegacy.nn.networks import TrainableNetwork
from dl4jlegacy.system.decoding import decodable

__all__ = [
    "begin_state",
    "beginning_of",
    "joined_beginning",
    "kept_beginning",
    "new_state",
    "sliced_beginning",
    "tells_beginning",
]

_BEGINS = "state_begins"


class _Beginning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entry in a model's values: size of the state, parts (from, up to, number), and the slice (index, count)."""

    size: int
    parts: list[tuple[int, int, float]]
    slice: tuple[int, int] = (0, 1)


def beginning_of(network: TrainableNetwork) -> dict[str, Any]:
    """Return the entry of the updater state's initial values, for the values of a network's models."""
    parts = network.updater.beginnings
    return {_BEGINS: {"size": network.updater.state_size, "parts": [list(part) for part in parts]}} if parts else {}


def tells_beginning(values: Mapping[str, Any]) -> bool:
    """Return whether a model's values contain this entry."""
    return _BEGINS in values


def kept_beginning(before: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a model with the entry of the previous model."""
    return {**values, _BEGINS: before[_BEGINS]} if _BEGINS in before else dict(values)


def begin_state(values: Mapping[str, Any], state: Array) -> None:
    """Fill the updater state, or a slice of it, with the initial values that a model's values describe.

    Raises:
        WireError: the entry does not match this state.
    """
    state[:] = 0
    if _BEGINS not in values:
        return
    try:
        said: _Beginning = msgspec.convert(values[_BEGINS], decodable(_Beginning))
        index, count = said.slice
        first, end = said.size * index // count, said.size * (index + 1) // count
    except (msgspec.ValidationError, ZeroDivisionError) as exc:
        raise WireError(f"the model's value {_BEGINS!r} says nothing of an updater state: {exc}") from exc
    if end - first != state.size:
        raise WireError(f"the model's value {_BEGINS!r} is of {end - first} numbers, and its state has {state.size}")
    for start, stop, number in said.parts:
        state[max(0, start - first) : max(0, stop - first)] = number


def new_state(values: Mapping[str, Any], like: Array) -> Array:
    """Return a new updater state of the size of ``like`` for a model with these values; raises as ``begin_state``."""
    state = np.empty_like(like)
    begin_state(values, state)
    return state


def sliced_beginning(values: Mapping[str, Any], index: int, count: int) -> dict[str, Any]:
    """Return the values of slice ``index`` of ``count`` of a model; unchanged if there is only one slice."""
    if _BEGINS not in values or count == 1:
        return dict(values)
    return {**values, _BEGINS: {**values[_BEGINS], "slice": [index, count]}}


def joined_beginning(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the whole model from those of a slice; the inverse of ``sliced_beginning``."""
    if _BEGINS not in values:
        return dict(values)
    return {**values, _BEGINS: {name: said for name, said in values[_BEGINS].items() if name != "slice"}}
