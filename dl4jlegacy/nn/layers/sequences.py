"""Cutting sequences along time: segments for truncated backpropagation, and single time steps.

Legacy: ``MultiLayerNetwork.doTruncatedBPTT`` and ``rnnTimeStep``. Source: Sutskever 2013, "Training recurrent neural
networks", section 2.8.6.
"""

from __future__ import annotations

from typing import Any

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.formats import check_masks
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeRecurrent

__all__ = ["Memory", "Segment", "as_sequences", "layer_states", "segment_count", "segments"]

Memory = dict[tuple[int, str], Array]
"""States that recurrent layers carry between calls, by ``(layer, name)``: ``h`` and ``c``, ``(examples, n)``."""

Segment = tuple[Array, Array, "Array | None", "Array | None"]
"""Features, labels, and their masks."""


def segments(
    conf: Any, x: Array, labels: Array, features_mask: Array | None, labels_mask: Array | None
) -> list[Segment]:
    """Return the segments of a batch for truncated BPTT; without truncation in ``conf``, the batch itself.

    Each segment is one update. Segments have ``tbptt_fwd_length`` time steps; the last one may have fewer.

    Raises:
        ShapeError: features or labels are not sequences, or differ in length.
    """
    if conf.backprop_type != "truncated_bptt":
        return [(x, labels, features_mask, labels_mask)]
    if x.ndim != 3 or labels.ndim != 3 or x.shape[2] != labels.shape[2]:
        raise ShapeError(
            f"truncated_bptt cuts features and labels along time, but they have shapes {x.shape} and {labels.shape}; "
            "both must be (examples, n, time steps), or choose backprop_type='standard'"
        )
    check_masks(x, labels, features_mask, labels_mask)
    length, steps = conf.tbptt_fwd_length, x.shape[2]
    cuts = [slice(start, min(start + length, steps)) for start in range(0, steps, length)]
    return [
        (
            x[:, :, cut],
            labels[:, :, cut],
            None if features_mask is None else features_mask[:, cut],
            None if labels_mask is None else labels_mask[:, cut],
        )
        for cut in cuts
    ]


def segment_count(conf: Any, x: Array) -> int:
    """Return the number of segments into which ``segments`` cuts features of the shape of ``x``."""
    truncates = conf.backprop_type == "truncated_bptt" and x.ndim == 3
    return -(-x.shape[2] // conf.tbptt_fwd_length) if truncates else 1


def as_sequences(x: Array, given: AnyInputType) -> tuple[Array, bool]:
    """Return ``x`` as sequences, and whether ``x`` was a single time step ``(examples, n_in)``."""
    if isinstance(given, InputTypeRecurrent) and x.ndim == 2:
        return x[:, :, None], True
    return x, False


def layer_states(memory: Memory, layer: int) -> dict[str, Array]:
    """Return a copy of a layer's states in ``memory``, by name."""
    return {name: value.copy() for (index, name), value in memory.items() if index == layer}
