"""Cutting a graph's batch along time: segments for truncated backpropagation, and single time steps.

What ``sequences`` is to stacks of layers. Legacy: ``ComputationGraph.doTruncatedBPTT`` and ``rnnTimeStep``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dl4jlegacy.arrays.backend import Array, get_array_module
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.graph.stack import Batch
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.sequences import as_sequences

__all__ = ["all_as_sequences", "segments"]


def segments(conf: Any, batch: Batch) -> list[Batch]:
    """Return the segments of a batch that are learned one by one: the batch itself unless ``conf`` truncates BPTT.

    Sequences are cut every ``tbptt_fwd_length`` time steps; features that are no sequences go with every segment.

    Raises:
        ShapeError: labels that are no sequences, or sequences of different lengths.
    """
    if conf.backprop_type != "truncated_bptt":
        return [batch]
    lengths = {x.shape[2] for x in (*batch.features, *batch.labels) if x.ndim == 3}
    if len(lengths) != 1 or any(y.ndim != 3 for y in batch.labels):
        shapes = ", ".join(str(x.shape) for x in (*batch.features, *batch.labels))
        raise ShapeError(
            f"truncated_bptt cuts features and labels along time, but they have shapes {shapes}; labels must be "
            "(examples, n, time steps), all of one length, or choose backprop_type='standard'"
        )
    steps, length = lengths.pop(), conf.tbptt_fwd_length
    return [_cut(batch, slice(start, min(start + length, steps))) for start in range(0, steps, length)]


def _cut(batch: Batch, steps: slice) -> Batch:
    def arrays(group: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(get_array_module(x).ascontiguousarray(x[:, :, steps]) if x.ndim == 3 else x for x in group)

    def masks(group: Sequence[Array], given: Sequence[Array | None]) -> tuple[Array | None, ...]:
        pairs = zip(group, given, strict=True)
        return tuple(mask[:, steps] if mask is not None and x.ndim == 3 else mask for x, mask in pairs)

    features, labels = batch.features, batch.labels
    return Batch(
        arrays(features),
        arrays(labels),
        masks(features, batch.features_masks),
        masks(labels, batch.labels_masks),
    )


def all_as_sequences(x: Sequence[Array], kinds: Sequence[AnyInputType]) -> tuple[list[Array], bool]:
    """Return recurrent inputs as sequences, the others as they are, and whether all sequences had one time step."""
    found = [as_sequences(array, kind) for array, kind in zip(x, kinds, strict=True)]
    given = [is_one for (_, is_one), kind in zip(found, kinds, strict=True) if kind.kind == "recurrent"]
    return [array for array, _ in found], bool(given) and all(given)
