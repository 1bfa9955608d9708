"""MapDataSetIterator: batches of a map-style data set, which returns examples by number, as in PyTorch.

Hugging Face's data sets are map-style, too. Neither library is imported: only ``len(dataset)`` and ``dataset[number]``
are used. An example is a pair of features and label, as in a ``torch.utils.data.Dataset``, or a row of named columns,
as in a ``datasets.Dataset``. Its values are anything that NumPy converts to arrays (also tensors), or Pillow images,
whose transparent parts are drawn on white.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet, one_hot
from dl4jlegacy.datasets.images.image_modes import shown
from dl4jlegacy.datasets.iterator import NumberedDataSetIterator
from dl4jlegacy.errors import DataError, Dl4jError, nearest
from dl4jlegacy.system.exits import error_text, exits_as_errors

__all__ = ["MapDataSetIterator", "gives_examples"]

_LABEL_COLUMNS = ("label", "labels", "target")


def gives_examples(data: Any) -> bool:
    """Return whether ``data`` is map-style, with examples by number as in PyTorch and Hugging Face, and not batches.

    Data that are also iterable count as batches, unless their first item is a row of named columns.
    """
    if not _is_map_style(data):
        return False
    return not hasattr(data, "__iter__") or (len(data) > 0 and isinstance(data[0], Mapping))


def _is_map_style(data: Any) -> bool:
    if isinstance(data, list | tuple | str | bytes | Mapping) or hasattr(data, "dtype"):
        return False
    return hasattr(data, "__len__") and hasattr(data, "__getitem__")


class MapDataSetIterator(NumberedDataSetIterator):
    """Batches of a map-style data set, in a new order every epoch; the same order as ``ListDataSetIterator`` by seed.

    An example is read each time a batch needs it, by one thread at a time. The data set must return the same example
    for the same number; otherwise resumed runs and repeated jobs see other data. Batches are float32, or float64 where
    float32 would change a number, because a normalizer may still scale it.

    Args:
        dataset: has ``len()`` and returns an example for a number from 0; if it has ``__getitems__``, the examples of a
            batch are read together.
        batch_size: examples per batch.
        features: the feature columns, which are concatenated; None: all but the label. Not for pairs.
        label: the label column; None: ``label``, ``labels`` or ``target``, whichever exists. Not for pairs.
        n_classes: the number of classes, if labels are class numbers; 0: labels are real numbers to predict; None:
            taken from the data set (``features[label].names`` or ``classes``), else whole numbers are refused.
        seed, shuffle, drop_last: as for ``ListDataSetIterator``.
        label_names: names of the labels, for reports; by default those of the data set.

    Attributes:
        source: the data set.

    Raises:
        DataError: there is no example, the first example is unusable, or a column is missing; names the nearest.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        features: str | Sequence[str] | None = None,
        label: str | None = None,
        n_classes: int | None = None,
        seed: int = 123,
        shuffle: bool = True,
        drop_last: bool = False,
        label_names: tuple[str, ...] = (),
    ) -> None:
        if not _is_map_style(dataset):
            raise DataError(
                f"{type(dataset).__name__} does not give examples by their number (len() and []): a data set that can "
                "only be gone through is given to ActorNetworkRunner as it is, in batches"
            )
        if not len(dataset):
            raise DataError(f"{type(dataset).__name__} has no example")
        self.source, self._reading = dataset, threading.Lock()
        super().__init__(len(dataset), batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last)
        first = self._examples([0])[0]
        self._columns = _columns_of(first, features, label)
        names = _class_names(dataset, self._columns)
        self._n_classes = len(names) or None if n_classes is None else n_classes
        self.label_names = tuple(label_names) or names
        shape = self._read([0])
        self.input_columns, self.total_outcomes = shape.n_in, shape.n_out

    def _read(self, numbers: list[int]) -> DataSet:
        pairs = [_pair(example, self._columns) for example in self._examples(numbers)]
        names = () if self._columns is None else self._columns[0]
        arrays = [(number, *_arrays(number, pair, names)) for number, pair in zip(numbers, pairs, strict=True)]
        features = _as_needed(_stacked("features", [(number, x) for number, x, _ in arrays]))
        labelled = [(number, y) for number, _, y in arrays if y is not None]
        if not labelled:
            return DataSet(features)
        if len(labelled) < len(arrays):
            number = next(number for number, _, y in arrays if y is None)
            raise DataError(f"example {number} has no label, and others have one; leave such examples out")
        return DataSet(features, self._labels(_stacked("label", labelled), numbers))

    def _labels(self, labels: Array, numbers: list[int]) -> Array:
        """Return labels ``(examples, n_out)``: class numbers as one-hot, all others unchanged."""
        if labels.ndim > 1 and labels[0].size != 1:
            return labels
        column = labels.reshape(len(labels))
        if self._n_classes:
            try:
                return one_hot(column, self._n_classes)
            except DataError as exc:
                raise DataError(f"examples {numbers[:8]} ...: {exc}") from exc
        if self._n_classes is None and column.dtype.kind in "biu":
            raise DataError(
                f"the label of example {numbers[0]} is {column[0]}, and {type(self.source).__name__} does not say how "
                "many classes there are: give n_classes=10, or n_classes=0 if it is an amount to predict"
            )
        return column[:, None]

    def _examples(self, numbers: list[int]) -> list[Any]:
        """Return examples by number; an error of the data set is raised with the numbers."""
        several = getattr(self.source, "__getitems__", None)
        try:
            with exits_as_errors(), self._reading:
                return list(several(numbers)) if callable(several) else [self.source[number] for number in numbers]
        except Exception as exc:
            what = str(exc) if isinstance(exc, Dl4jError) else error_text(exc)
            asked = ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")
            raise DataError(f"{type(self.source).__name__} failed at example {asked}: {what}") from exc


_Columns = tuple[tuple[str, ...], str | None] | None
"""The feature columns and the label column; None: examples are pairs."""


def _columns_of(example: Any, features: str | Sequence[str] | None, label: str | None) -> _Columns:
    """Return the columns of an example to use; raises ``DataError`` if columns are named and the example has none."""
    if not isinstance(example, Mapping):
        if features is not None or label is not None:
            raise DataError(f"examples are {type(example).__name__} and have no columns; leave features and label out")
        return None
    known = [str(name) for name in example]
    chosen = label if label is not None else next((name for name in _LABEL_COLUMNS if name in known), None)
    wanted = [features] if isinstance(features, str) else features
    names = tuple(wanted) if wanted is not None else tuple(name for name in known if name != chosen)
    for name in (*names, *([chosen] if chosen is not None else [])):
        if name not in known:
            raise DataError(f"there is no column {name!r}{nearest(name, known)}")
    if not names:
        raise DataError(f"the only column is the label {chosen!r}; name the features")
    return names, chosen


def _class_names(dataset: Any, columns: _Columns) -> tuple[str, ...]:
    """Return the names of the classes from the data set; () if it has none."""
    described = getattr(dataset, "features", None)
    names = None
    if columns is not None and columns[1] is not None and isinstance(described, Mapping):
        names = getattr(described.get(columns[1]), "names", None)
    if names is None and columns is None:
        names = getattr(dataset, "classes", None)
    return tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()


def _pair(example: Any, columns: _Columns) -> tuple[list[Any], Any]:
    """Return the parts of an example's features, and its label (None: no label)."""
    if columns is None:
        if isinstance(example, tuple | list) and len(example) == 2:
            return [example[0]], example[1]
        return [example], None
    names, label = columns
    try:
        return [example[name] for name in names], None if label is None else example[label]
    except (KeyError, TypeError) as exc:
        raise DataError(f"an example has no column {exc}, which the first one has") from exc


def _arrays(number: int, pair: tuple[list[Any], Any], names: tuple[str, ...]) -> tuple[Array, Array | None]:
    """Return an example's features and label as arrays; several columns are concatenated."""
    parts, label = pair
    called = [f"column {name!r}" for name in names] or ["the features"]
    values = [_array(f"{what} of example {number}", part) for what, part in zip(called, parts, strict=True)]
    x = values[0] if len(values) == 1 else np.concatenate([np.atleast_1d(value).reshape(-1) for value in values])
    return np.atleast_1d(x), None if label is None else _array(f"the label of example {number}", label)


def _array(what: str, value: Any) -> Array:
    """Return a value as a numeric array; a Pillow image as ``(channels, height, width)`` with values from 0 to 1."""
    is_image = callable(getattr(value, "getbands", None))
    if is_image:
        value = shown(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as exc:  # PyTorch raises RuntimeError for a tensor with gradients
        raise DataError(f"{what} cannot become an array: {exc}") from exc
    if value is None:
        raise DataError(f"{what} is missing; fill such gaps in, or leave the example out")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} are {type(value).__name__} with dtype {array.dtype}; the data set must give numbers")
    if not is_image:
        return array
    planes = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
    most = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}.get(array.dtype.newbyteorder("="))
    return planes if most is None else planes.astype(np.float32) / np.float32(most)


def _as_needed(x: Array) -> Array:
    """Return numbers as float32 if that changes none of them, else unchanged."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: Array = x.astype(np.float32)
    return rounded if bool((rounded == x).all()) else x


def _stacked(what: str, arrays: list[tuple[int, Array]]) -> Array:
    """Return the arrays of a batch stacked; raises ``DataError`` naming an example with another shape."""
    (first, expected), *others = arrays
    for number, array in others:
        if array.shape != expected.shape:
            raise DataError(
                f"the {what} of example {number} have shape {array.shape}, those of example {first} {expected.shape}; "
                "bring them to one size"
            )
    return np.stack([array for _, array in arrays])
