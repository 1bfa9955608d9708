"""Cutting a graph's batch along time: segments for truncated backpropagation, and single time steps.

It is the counterpart of ``sequences`` for graphs. Legacy: ``ComputationGraph.doTruncatedBPTT`` and ``rnnTimeStep``.
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
    """Return the segments of a batch for truncated BPTT; without truncation in ``conf``, the batch itself.

    Each segment is one update. Sequences are cut every ``tbptt_fwd_length`` time steps; features that are not sequences
    are in every segment.

    Raises:
        ShapeError: labels are not sequences, or sequences differ in length.
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
    """Return the inputs with recurrent ones as sequences, and whether all sequences had a single time step."""
    found = [as_sequences(array, kind) for array, kind in zip(x, kinds, strict=True)]
    given = [is_one for (_, is_one), kind in zip(found, kinds, strict=True) if kind.kind == "recurrent"]
    return [array for array, _ in found], bool(given) and all(given)
