"""The common parts of all evaluations: ``IEvaluation``, the loop over a network's outputs, and removal of masked rows.

Legacy: ``org.nd4j.evaluation.IEvaluation``, ``BaseEvaluation.reshapeAndExtractNotMasked``, and ``doEvaluation`` of
``MultiLayerNetwork`` and ``ComputationGraph``.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.datasets.batches import Data
from dl4jlegacy.errors import ConfError, DataError, NotFiniteError, ShapeError
from dl4jlegacy.nn.arrays import as_labels
from dl4jlegacy.nn.layers.output import BaseOutputLayer

__all__ = [
    "Compared",
    "IEvaluation",
    "check_column",
    "check_names",
    "compared",
    "do_evaluation",
    "java_fixed",
    "java_scientific",
    "label_mask",
    "unmasked_rows",
]


class IEvaluation(Protocol):
    """Compares labels with a network's output, batch by batch; evaluations of parts of the data can be merged."""

    def eval(self, labels: Array, output: Array, mask: Array | None = None) -> None:
        """Add one batch; shapes as in ``unmasked_rows``."""

    def merge(self, other: Self) -> Self:
        """Add the counts of ``other``; return this evaluation."""

    def stats(self) -> str:
        """Return a report for people."""

    def to_dict(self) -> dict[str, Any]:
        """Return metrics and state as plain JSON values; the class's ``from_dict`` reads the state back."""


class Compared(NamedTuple):
    """The arguments of ``IEvaluation.eval``, in the layout outside the network and on the host."""

    labels: Array
    output: Array
    mask: Array | None


def compared(
    layer: object, labels: Array, output: Array, labels_mask: Array | None, output_mask: Array | None
) -> Compared:
    """Return the arrays that evaluations compare for a batch, with labels in the shape of the output for any loss.

    Args:
        layer: the output layer; a layer without a loss leaves labels unchanged.
        labels: as for ``fit``.
        output: of the network.
        labels_mask: of the labels, in the layout outside the network.
        output_mask: the mask of the output's time steps.

    Raises:
        ShapeError, DataError: the labels do not fit the output; see ``BaseOutputLayer.targets``.
    """
    labels, output = to_host(labels), to_host(output)
    if isinstance(layer, BaseOutputLayer):
        labels = layer.targets(as_labels(labels, layer), output)
    mask = label_mask(labels, labels_mask, output_mask)
    return Compared(labels, output, None if mask is None else to_host(mask))


class _Network(Protocol):
    def batches(self, data: Data) -> Iterator[Any]: ...

    def compared(self, batch: Any) -> list[Compared]: ...


def do_evaluation(network: _Network, data: Data, *evaluations: IEvaluation) -> None:
    """Add the (first) output of a network of either kind, over one epoch of ``data``, to evaluations of any kind.

    Raises like ``network.output`` and ``eval`` of the evaluations.
    """
    for batch in network.batches(data):
        first = network.compared(batch)[0]
        for evaluation in evaluations:
            evaluation.eval(*first)


def label_mask(labels: Array, labels_mask: Array | None, output_mask: Array | None) -> Array | None:
    """Return the mask of the labels: their own, or for sequences without one the mask of the output."""
    return output_mask if labels_mask is None and labels.ndim == 3 else labels_mask


def unmasked_rows(
    labels: Array, output: Array, mask: Array | None, *, per_output: bool = False
) -> tuple[Array, Array, Array | None]:
    """Return labels and output as ``(rows, columns)`` without masked rows, and a mask per output if there is one.

    Args:
        labels: ``(examples, columns)``, or ``(examples, columns, time steps)``: one row for every time step.
        output: of the network, same shape.
        mask: 0 excludes: ``(examples,)`` or ``(examples, 1)``; ``(examples, time steps)`` for sequences; the shape of
            the labels: single outputs.
        per_output: whether a mask of single outputs is allowed; it is then returned as ``(rows, columns)`` of 0 and 1.

    Raises:
        ShapeError: the shapes of the three do not fit.
        NotFiniteError: an unmasked output is NaN.
        DataError: an unmasked label is NaN or infinite.
    """
    labels, output = to_host(labels), to_host(output)
    if labels.ndim not in (2, 3) or labels.shape != output.shape:
        raise ShapeError(
            f"labels {labels.shape} and output {output.shape} must have the same shape (examples, classes), "
            "or (examples, classes, time steps)"
        )
    shape = labels.shape
    labels, output = _flat(labels), _flat(output)
    single = None
    if mask is not None:
        mask = to_host(mask)
        if mask.shape == shape and shape[1] != 1:
            single = (_flat(mask) != 0).astype(np.float64)
        else:
            keep = _keep(mask, shape)
            labels, output = labels[keep], output[keep]
    if single is not None and not per_output:
        raise ShapeError(f"a mask of shape {shape} leaves out single outputs; here it must leave out whole examples")
    _check_no_nan(output if single is None else np.where(single != 0, output, 0))
    _check_labels(labels if single is None else np.where(single != 0, labels, 0))
    return labels, output, single


def check_names(kind: str, names: tuple[str, ...] | None, columns: int) -> None:
    """Raise ``ShapeError`` unless there are as many names as columns, or none."""
    if names and len(names) != columns:
        raise ShapeError(f"{kind} got {len(names)} names for {columns} columns; give one per column")


def check_column(kind: str, column: int, columns: int) -> None:
    """Raise ``ConfError`` unless ``column`` is one of ``columns`` columns; 0 columns: no batch was evaluated yet."""
    if not columns:
        raise ConfError(f"this {kind} has no data yet; evaluate a batch first")
    if not 0 <= column < columns:
        raise ConfError(f"column {column} asked for, but the columns are 0..{columns - 1}")


def java_fixed(value: float, digits: int) -> str:
    """Return the output of Java's ``%.<digits>f``, which rounds the digits of ``repr`` half up."""
    if not np.isfinite(value):
        return _odd(value)
    return format(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP), "f")


def java_scientific(value: float, digits: int) -> str:
    """Return the output of Java's ``%.<digits>e``."""
    if not np.isfinite(value):
        return _odd(value)
    number = Decimal(repr(float(value)))
    if number:
        number = number.quantize(Decimal(1).scaleb(number.adjusted() - digits), ROUND_HALF_UP)
    return format(float(number), f".{digits}e")


def _odd(value: float) -> str:
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _flat(array: Array) -> Array:
    """Reshape ``(examples, columns, time steps)`` to ``(examples * time steps, columns)``."""
    return array if array.ndim == 2 else array.transpose(0, 2, 1).reshape(-1, array.shape[1])


def _keep(mask: Array, shape: tuple[int, ...]) -> Array:
    wanted: list[tuple[int, ...]] = [(shape[0],), (shape[0], 1)]
    if len(shape) == 3:
        wanted = [(shape[0], shape[2]), (shape[0], 1, shape[2])]
    if mask.shape not in wanted:
        if len(shape) == 2 and mask.ndim < 3:
            raise ShapeError(f"mask has {len(mask)} entries, the batch has {shape[0]} examples; one for each is needed")
        raise ShapeError(f"mask has shape {mask.shape}, the labels have {shape}; expected {wanted[0]}")
    keep: Array = mask.reshape(-1) != 0
    return keep


def _check_labels(labels: Array) -> None:
    bad = np.argwhere(~np.isfinite(labels))
    if bad.size:
        row, column = bad[0]
        raise DataError(
            f"the label of example {row}, column {column}, is {labels[row, column]}: it belongs to no class and is no "
            "number to compare; leave the example out, or give a mask"
        )


def _check_no_nan(output: Array) -> None:
    bad = np.argwhere(np.isnan(output))
    if bad.size:
        row, column = bad[0]
        raise NotFiniteError(
            f"network output is NaN for example {row}, class {column}; the model has diverged: "
            "train again with a lower learning rate or normalised features"
        )
