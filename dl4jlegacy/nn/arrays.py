"""Conversion of arrays as users give them: nested lists, class numbers as labels, a single example."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array, is_on_device
from dl4jlegacy.datasets.batches import Batch, BatchIterator, is_classic
from dl4jlegacy.datasets.dataset import DataSet, one_hot
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeConvolutional
from dl4jlegacy.nn.layers.output import BaseOutputLayer

__all__ = [
    "array_batches",
    "as_data_set",
    "as_features",
    "as_labels",
    "as_numbers",
    "is_data_set",
    "is_several",
    "resolve_epochs",
    "warn_of_one_batch",
]

logger = logging.getLogger(__name__)


def is_data_set(data: Any) -> bool:
    """Return whether ``data`` is a data set or an iterator over batches, and not only features."""
    if isinstance(data, Batch | BatchIterator) or is_classic(data):
        return True
    if isinstance(data, list | tuple):
        return bool(data) and isinstance(data[0], Batch)
    is_array = isinstance(data, str | bytes) or hasattr(data, "__array__") or hasattr(data, "ndim")
    return isinstance(data, Iterable) and not is_array


def as_data_set(batch: Batch, which: str) -> DataSet:
    """Return a batch of a ``MultiLayerNetwork`` as it is; raises ``ConfError`` if it is a ``MultiDataSet``."""
    if isinstance(batch, DataSet):
        return batch
    raise ConfError(
        f"a MultiLayerNetwork takes DataSets, and {which} is {batch!r}; give DataSets, or make the network a "
        "ComputationGraph"
    )


def is_several(given: Any) -> bool:
    """Return whether ``given`` holds several batches of arrays, and is not one batch as nested lists or rows."""
    return isinstance(given, list | tuple) and bool(given) and all(getattr(each, "ndim", 0) > 1 for each in given)


def resolve_epochs(labels: Any, epochs: int | None) -> tuple[Any, int]:
    """Return labels and epochs of ``fit(data, 5)`` or ``fit(features, labels, 5)``: argument two may be either."""
    if isinstance(labels, int | np.integer) and epochs is None:
        return None, int(labels)
    return labels, 1 if epochs is None else int(epochs)


def warn_of_one_batch(data: Any, epochs: int, batch_size: int) -> None:
    """Warn if a large data set is a single batch and there are several epochs: each epoch is then one update."""
    if isinstance(data, DataSet) and epochs > 1 and data.num_examples > batch_size:
        logger.warning(
            "the data set of %s examples is one batch, so that each of the %d epochs makes one update; for batches of "
            "%d give ListDataSetIterator(data_set, %d)",
            f"{data.num_examples:,}",
            epochs,
            batch_size,
            batch_size,
        )


def as_numbers(values: Any, what: str) -> Array:
    """Return ``values`` as an array of numbers; an array of numbers is returned as it is.

    Raises:
        DataError: ``values`` is ragged or holds no numbers; ``what`` names it in the message.
    """
    if is_on_device(values):
        found: Array = values
        return found
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as exc:
        raise DataError(f"{what} are not a rectangular array of numbers: {exc}") from exc
    if array.dtype.kind in "biuf":
        return array
    text = "; turn names into numbers first, with np.unique(names, return_inverse=True)[1]"
    hint = text if array.dtype.kind in "OSU" and array.ndim else ""
    raise DataError(f"{what} have dtype {array.dtype}, shape {array.shape}; give numbers{hint}")


def as_features(x: Any, kind: AnyInputType) -> Array:
    """Return features for a network with inputs of type ``kind``; a single example becomes a batch of one.

    Raises:
        DataError: the features are not numbers.
    """
    array = as_numbers(x, "features")
    if array.ndim == 1 and kind.columns in (1, array.size):
        return array.reshape(-1, kind.columns)
    if isinstance(kind, InputTypeConvolutional) and kind.channels == 1 and array.shape[1:] == kind.shape[1:]:
        return array[:, None]
    return array


def as_labels(labels: Any, layer: BaseOutputLayer) -> Array:
    """Return labels for an output layer; class numbers ``(examples,)`` become one-hot if the layer needs that.

    Raises:
        DataError: the labels are not numbers, or a class is not among the layer's outputs.
    """
    array = as_numbers(labels, "labels")
    is_column = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    if not is_column or is_on_device(array):
        return array
    if layer.takes_indices() or layer.n_out == 1:
        return array.reshape(-1, 1)
    return one_hot(array.reshape(-1), layer.n_out)


def array_batches(
    features: Any, labels: Any, kind: AnyInputType, layer: BaseOutputLayer | None, batch_size: int, seed: int
) -> ListDataSetIterator:
    """Return an iterator over batches of arrays for a network with one input, in a new order in each epoch.

    Args:
        features, labels: as for ``fit``; labels None: there are none.
        kind: the type of the network's input.
        layer: the output layer; None: the network has no loss.
        batch_size, seed: examples in a batch, and the seed of the order.

    Raises:
        DataError: the arrays are not numbers, do not belong together, or hold NaN or infinite values.
    """
    if labels is None and layer is not None:
        raise DataError("labels are missing: give fit(features, labels), a DataSet, or an iterator over batches")
    y = None if labels is None or layer is None else as_labels(labels, layer)
    return ListDataSetIterator(DataSet(as_features(features, kind), y), batch_size, seed=seed)
