"""MultiDataSet: examples with several arrays of features or labels, and batches of them.

Follows ``org.nd4j.linalg.dataset.MultiDataSet``. Like a ``DataSet``, it is checked once and never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import ListIterator, NumberedBatches
from dl4jlegacy.errors import DataError, counted

__all__ = ["ListMultiDataSetIterator", "MultiDataSet", "MultiDataSetIterator"]

_NAMES = ("features", "labels", "features_masks", "labels_masks")
Arrays = Sequence[npt.ArrayLike]
Masks = Sequence["npt.ArrayLike | None"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MultiDataSet:
    """Features for every input of a ``ComputationGraph`` and labels for every output, row by row.

    Attributes:
        features, labels: arrays as in ``DataSet``; all have the same number of examples.
        features_masks, labels_masks: a mask or None for each of them.

    Raises:
        DataError: as ``DataSet``, or different numbers of examples; the message names the array.
    """

    features: tuple[Array, ...]
    labels: tuple[Array, ...]
    features_masks: tuple[Array | None, ...]
    labels_masks: tuple[Array | None, ...]

    def __init__(
        self,
        features: Arrays,
        labels: Arrays,
        features_masks: Masks | None = None,
        labels_masks: Masks | None = None,
    ) -> None:
        if not features:
            raise DataError("a MultiDataSet got no features; it needs at least one array")
        x_masks, y_masks = _masks("features", features, features_masks), _masks("labels", labels, labels_masks)
        rows = len(np.asarray(features[0]))
        pairs = zip(features, x_masks, strict=True)
        inputs = [_checked(f"features[{i}]", x, None, (m, None), rows) for i, (x, m) in enumerate(pairs)]
        dtype = inputs[0].features.dtype
        outputs = []
        for i, (y, m) in enumerate(zip(labels, y_masks, strict=True)):
            # DataSet checks labels with features, so each label array is checked with a placeholder of the same length.
            outputs.append(_checked(f"labels[{i}]", _beside(y, dtype), y, (None, m), rows))
        object.__setattr__(self, "features", tuple(part.features for part in inputs))
        object.__setattr__(self, "features_masks", tuple(part.features_mask for part in inputs))
        object.__setattr__(self, "labels", tuple(part.labels for part in outputs))
        object.__setattr__(self, "labels_masks", tuple(part.labels_mask for part in outputs))

    @classmethod
    def of(cls, data: DataSet | MultiDataSet) -> MultiDataSet:
        """Return a DataSet as a MultiDataSet with one array of features and one of labels."""
        if isinstance(data, MultiDataSet):
            return data
        return _trusted(((data.features,), (data.labels,), (data.features_mask,), (data.labels_mask,)))

    @property
    def num_examples(self) -> int:
        """Number of rows."""
        return len(self.features[0])

    def rows(self, start: int, stop: int) -> MultiDataSet:
        """Return rows ``start`` to ``stop`` (exclusive) as views."""
        if not 0 <= start <= stop <= self.num_examples:
            raise DataError(f"rows {start}:{stop} lie outside a data set of {counted(self.num_examples, 'example')}")
        return self._each(lambda array: array[start:stop])

    def take(self, indices: npt.NDArray[np.intp]) -> MultiDataSet:
        """Return the rows at ``indices`` in that order, copied."""
        return self._each(lambda array: array.take(indices, axis=0))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, Array]:
        """Return the existing arrays by name: ``features0``, ..., ``labels0``, ..., and masks that are not None."""
        return {
            f"{name}{i}": array for name in _NAMES for i, array in enumerate(getattr(self, name)) if array is not None
        }

    @classmethod
    def from_arrays(cls, features: int, labels: int, get: Callable[[str], Array | None]) -> MultiDataSet:
        """Return the data set with these numbers of feature and label arrays, which ``get`` returns by name.

        Raises:
            DataError: as the constructor. KeyError: an array of features or labels is missing.
        """
        names = [[f"{name}{i}" for i in range(labels if "labels" in name else features)] for name in _NAMES]
        for name in (*names[0], *names[1]):
            if get(name) is None:
                raise KeyError(name)
        x, y, x_masks, y_masks = ([get(name) for name in group] for group in names)
        return cls([a for a in x if a is not None], [a for a in y if a is not None], x_masks, y_masks)

    def _each(self, rows: Callable[[Array], Array]) -> MultiDataSet:
        every = (self.features, self.labels, self.features_masks, self.labels_masks)
        return _trusted(tuple(tuple(None if a is None else rows(a) for a in group) for group in every))

    def __len__(self) -> int:
        return self.num_examples

    def __repr__(self) -> str:
        shapes = (", ".join(str(array.shape) for array in group) for group in (self.features, self.labels))
        return f"MultiDataSet({' -> '.join(shapes)})"


@runtime_checkable
class MultiDataSetIterator(NumberedBatches[MultiDataSet], Protocol):
    """Batches of MultiDataSets by position, and DL4J's methods of iteration, as in ``DataSetIterator``."""


class ListMultiDataSetIterator(ListIterator[MultiDataSet]):
    """Batches of a MultiDataSet in memory, in a new order every epoch; the same order as ``ListDataSetIterator``.

    Args:
        dataset: the examples; a DataSet is one array of features and one of labels.
        batch_size: examples per batch; the last one may have fewer.
        seed: of the shuffling.
        shuffle: False keeps the order of the rows.
    """

    def __init__(
        self, dataset: DataSet | MultiDataSet, batch_size: int, *, seed: int = 123, shuffle: bool = True
    ) -> None:
        super().__init__(MultiDataSet.of(dataset), batch_size, seed=seed, shuffle=shuffle)


def _masks(name: str, arrays: Arrays, masks: Masks | None) -> Masks:
    if masks is None:
        return (None,) * len(arrays)
    if len(masks) != len(arrays):
        raise DataError(f"there are {len(masks)} masks for {len(arrays)} arrays of {name}; give one or None for each")
    return masks


def _checked(
    name: str,
    features: npt.ArrayLike,
    labels: npt.ArrayLike | None,
    masks: tuple[npt.ArrayLike | None, npt.ArrayLike | None],
    rows: int,
) -> DataSet:
    try:
        part = DataSet(features, labels, *masks)
    except DataError as exc:
        raise DataError(f"{name}: {exc}") from exc
    if part.num_examples != rows:
        raise DataError(
            f"features[0] have {counted(rows, 'example')} and {name} {part.num_examples}; every example needs both"
        )
    return part


def _beside(labels: npt.ArrayLike, dtype: npt.DTypeLike) -> Array:
    array = np.asarray(labels)
    return np.zeros((len(array), 1, 1) if array.ndim == 3 else (len(array), 1), dtype)


def _trusted(groups: tuple[tuple[Array | None, ...], ...]) -> MultiDataSet:
    """Return a MultiDataSet of arrays that come from a checked one, without checks."""
    dataset = object.__new__(MultiDataSet)
    for name, group in zip(_NAMES, groups, strict=True):
        for array in group:
            if isinstance(array, np.ndarray) and array.flags.owndata:
                array.flags.writeable = False
        object.__setattr__(dataset, name, group)
    return dataset
