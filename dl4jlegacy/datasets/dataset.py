"""DataSet: examples with their labels, checked once on construction and read-only afterwards.

Follows ``org.nd4j.linalg.dataset.DataSet``. Unlike that, a DataSet never changes: shuffling and splitting return new
objects. So threads can share a DataSet, and a row range is a view instead of a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.precision import equal_columns, far_in, float_type_of, kept_where_far
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.datasets.splitting import class_numbers, split_order, stratified
from dl4jlegacy.errors import DataError, counted

__all__ = ["DataSet", "SplitTestAndTrain", "frame_names", "one_hot", "split_order", "stored_data_set"]

_LARGEST_LABELS = 1 << 31  # values
_NAMES = ("features", "labels", "features_mask", "labels_mask")
_SPARSE = ("offsets", "indices", "values", "columns")


class SplitTestAndTrain(NamedTuple):
    """The two parts of a split, named as in DL4J."""

    train: DataSet
    test: DataSet


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DataSet:
    """Examples and labels, row by row.

    C-contiguous float32 or float64 arrays are not copied: the DataSet holds a read-only view, and the caller should not
    change the array. Other numeric types become float32, or float64 where float32 would change a number. Labels get the
    dtype of the features, which become float64 if the labels need that.

    Attributes:
        features: ``(examples, n_in)``; images ``(examples, channels, height, width)``; sequences
            ``(examples, n_in, time steps)``. Or ``SparseFeatures``, to which a scipy.sparse matrix is converted.
        labels: ``(examples, n_out)``, one-hot or real; ``(examples, n_out, time steps)`` for one label per time step;
            None for no labels, stored as ``(examples, 0)``.
        features_mask: ``(examples, time steps)``, 1 for time steps of the sequence and 0 after its end; None: no mask.
        labels_mask: the same for labels; ``(examples,)`` or ``(examples, n_out)`` if they are no sequences.
        columns: the names of the feature columns, if they came in a data frame; a loaded model finds columns by name.

    Raises:
        DataError: not numeric, different numbers of examples, a value that is NaN or infinite (named), or a mask that
            does not fit its array.
    """

    features: Any  # an Array or SparseFeatures; code that needs an array gets an error that says so
    labels: Array
    features_mask: Array | None
    labels_mask: Array | None
    columns: tuple[str, ...]

    def __init__(
        self,
        features: npt.ArrayLike | SparseFeatures,
        labels: npt.ArrayLike | None = None,
        features_mask: npt.ArrayLike | None = None,
        labels_mask: npt.ArrayLike | None = None,
    ) -> None:
        x = _features(features)
        y = np.zeros((len(x), 0), x.dtype) if labels is None else _numeric("labels", labels)
        is_array = not isinstance(x, SparseFeatures)
        if is_array and y.dtype != x.dtype and x.dtype == np.float32 and (far_in(y).any() or equal_columns(y)):
            x = x.astype(np.float64)
        y = _of_dtype(y, x.dtype)
        if y.ndim != 2 and not (y.ndim == 3 and x.ndim > 2):
            raise DataError(f"labels have shape {y.shape}; expected (examples, n_out) or (examples, n_out, time steps)")
        if len(x) != len(y):
            raise DataError(
                f"features have {counted(len(x), 'example')} and labels have {len(y)}; every example needs its label"
            )
        if not isinstance(x, SparseFeatures):
            _check_finite("features", x)
        elif features_mask is not None:
            raise DataError("sparse features are no sequences, and only those have a features mask")
        _check_finite("labels", y)
        _set(self, x, y, _mask("features", x, features_mask), _mask("labels", y, labels_mask))
        object.__setattr__(self, "columns", frame_names(features))

    @classmethod
    def of_classes(
        cls, features: npt.ArrayLike | SparseFeatures, classes: npt.ArrayLike, n_classes: int | None = None
    ) -> DataSet:
        """Return a DataSet with ``classes`` (integers, ``(examples,)``) as one-hot labels."""
        x = _features(features)
        found = cls(x, one_hot(classes, n_classes, x.dtype))
        object.__setattr__(found, "columns", frame_names(features))
        return found

    @classmethod
    def from_arrays(cls, get: Callable[[str], Array | None]) -> DataSet:
        """Return the data set whose arrays ``get`` returns by the names that ``arrays`` uses.

        Raises:
            DataError: as the constructor. KeyError: there are no features, or no labels.
        """
        parts = {name: get(f"features.{name}") for name in _SPARSE}
        sparse = {name: part for name, part in parts.items() if part is not None}
        features: Any = SparseFeatures.from_arrays(**sparse) if len(sparse) == len(_SPARSE) else get("features")
        labels = get("labels")
        if features is None or labels is None:
            raise KeyError("features" if features is None else "labels")
        return cls(features, labels, get("features_mask"), get("labels_mask"))

    @property
    def num_examples(self) -> int:
        """Number of rows."""
        return len(self.features)

    @property
    def is_sparse(self) -> bool:
        """Whether the features are ``SparseFeatures``."""
        return isinstance(self.features, SparseFeatures)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    @property
    def n_in(self) -> int:
        """Number of values of one example."""
        return math.prod(self.features.shape[1:])

    @property
    def n_out(self) -> int:
        """Number of labels of one example; 0 without labels."""
        return int(self.labels.shape[1])

    @property
    def classes(self) -> npt.NDArray[np.intp]:
        """The class of every example, ``(examples,)``: the index of its largest label."""
        if not self.n_out:
            raise DataError(
                f"a data set of {counted(self.num_examples, 'example')} has no labels, so its classes are unknown"
            )
        classes: npt.NDArray[np.intp] = np.argmax(self.labels, axis=1)
        return classes

    def rows(self, start: int, stop: int) -> DataSet:
        """Return rows ``start`` to ``stop`` (exclusive) as a view."""
        if not 0 <= start <= stop <= self.num_examples:
            raise DataError(f"rows {start}:{stop} lie outside a data set of {counted(self.num_examples, 'example')}")
        return self._each(lambda array: array[start:stop])

    def take(self, indices: npt.NDArray[np.intp]) -> DataSet:
        """Return the rows at ``indices`` in that order, copied; may be called from several threads at once."""
        return self._each(lambda array: array.take(indices, axis=0))

    def batch_by(self, size: int) -> Iterator[DataSet]:
        """Return consecutive parts of ``size`` rows (the last may have fewer), as views."""
        if size < 1:
            raise DataError(
                f"a data set was to be cut into batches of {counted(size, 'example')}; a batch has at least 1"
            )
        return (self.rows(start, min(start + size, len(self))) for start in range(0, len(self), size))

    def shuffle(self, stream: Stream) -> DataSet:
        """Return the same rows in the order that ``stream`` draws."""
        return self.take(stream.generator().permutation(self.num_examples))

    def split_test_and_train(
        self, fraction: float, seed: int | None = None, *, stratify: bool = False
    ) -> SplitTestAndTrain:
        """Return the first ``fraction`` of the rows as train and the rest as test.

        Args:
            fraction: the share of the *training* part, as in DL4J, between 0 and 1 and rounded to whole rows; neither
                part is ever empty.
            seed: shuffles the rows first; None keeps their order.
            stratify: both parts get the same shares of the classes; a class with a single row goes to the training
                part.

        Raises:
            DataError: there are too few rows; or ``stratify`` is set and the labels are not one class for each row.
        """
        first, second = split_order(len(self), fraction, seed)
        if stratify:
            first, second = stratified(class_numbers(self.labels), (first, second))
        if seed is None and not stratify:
            return SplitTestAndTrain(self.rows(0, len(first)), self.rows(len(first), len(self)))
        whole = self.take(np.concatenate([first, second]))
        return SplitTestAndTrain(whole.rows(0, len(first)), whole.rows(len(first), len(self)))

    @staticmethod
    def merge(parts: Iterable[DataSet]) -> DataSet:
        """Return the rows of all ``parts`` in order; shorter sequences are padded with masked steps, as in DL4J."""
        given = list(parts)
        for number, part in enumerate(given):
            if not isinstance(part, DataSet):
                raise DataError(f"DataSet.merge takes DataSets, and part {number} is {repr(part)[:200]}")
        given = _equally_long(given)
        if len({(part.features.shape[1:], part.labels.shape[1:]) for part in given}) != 1:
            shapes = ", ".join(f"{part.features.shape}/{part.labels.shape}" for part in given)
            raise DataError(f"data sets to merge must agree in columns and outcomes; got {shapes or 'none'}")
        sparse = [part.features for part in given if part.is_sparse]
        if sparse and len(sparse) < len(given):
            raise DataError("data sets to merge must all have sparse features, or none of them")
        x = SparseFeatures.concatenated(sparse) if sparse else np.concatenate([part.features for part in given])
        y = np.concatenate([part.labels for part in given]).astype(x.dtype, copy=False)
        columns = given[0].columns if len({part.columns for part in given}) == 1 else ()
        return _trusted(x, y, _merged("features", given), _merged("labels", given), columns=columns)

    def far(self) -> npt.NDArray[np.bool_]:
        """Return a mask ``(columns,)`` of the feature columns in which float32 would lose differences."""
        return np.zeros(self.n_in, bool) if self.is_sparse else far_in(self.features, self.features_mask)

    def rounded(self, far: npt.NDArray[np.bool_] | None = None) -> DataSet:
        """Return the data set as float32, or as float64 with rounded values if some columns must keep their precision.

        ``far`` marks these columns (None: those of ``far()``); all other columns are rounded to float32.
        """
        if self.features.dtype == np.float32 or self.is_sparse:
            return self
        x = kept_where_far(self.features, self.far() if far is None else far)
        others = (None if a is None else _of_dtype(a, x.dtype) for a in (self.features_mask, self.labels_mask))
        return _trusted(x, _of_dtype(self.labels, x.dtype), *others, columns=self.columns)

    def arrays(self) -> dict[str, Array]:
        """Return the existing arrays by name: ``features``, ``labels``, and those masks that are not None.

        Sparse features are ``features.offsets`` and so on.
        """
        every = {name: getattr(self, name) for name in _NAMES}
        if self.is_sparse:
            every |= {"features": None, **{f"features.{name}": a for name, a in self.features.arrays().items()}}
        return {name: array for name, array in every.items() if array is not None}

    def _each(self, rows: Callable[[Any], Any]) -> DataSet:
        masks = [None if mask is None else rows(mask) for mask in (self.features_mask, self.labels_mask)]
        return _trusted(rows(self.features), rows(self.labels), *masks, columns=self.columns)

    def __len__(self) -> int:
        return len(self.features)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataSet):
            return NotImplemented
        ours, theirs = self.arrays(), other.arrays()
        return ours.keys() == theirs.keys() and all(
            a.dtype == theirs[name].dtype and np.array_equal(a, theirs[name]) for name, a in ours.items()
        )

    __hash__ = None  # type: ignore[assignment]  # equal by content, too large to hash

    def __repr__(self) -> str:
        return f"DataSet({self.features.shape} {self.features.dtype} -> {self.labels.shape})"


def frame_names(values: Any) -> tuple[str, ...]:
    """Return the column names of a data frame; () for anything else, or if the names are no strings."""
    names = getattr(values, "column_names", None)
    if names is None:
        names = getattr(values, "columns", None)
    if not isinstance(names, Iterable) or isinstance(names, str) or len(getattr(values, "shape", ())) != 2:
        return ()
    found = tuple(names)
    return found if all(isinstance(name, str) for name in found) else ()


def one_hot(classes: npt.ArrayLike, n_classes: int | None = None, dtype: npt.DTypeLike = np.float32) -> Array:
    """Return ``(examples, n_classes)`` with a 1 in the column of each class.

    Args:
        classes: integers from 0, ``(examples,)``.
        n_classes: number of columns; by default as many as the largest class needs.
        dtype: of the result.

    Raises:
        DataError: a class that is no whole number or lies outside ``0 .. n_classes - 1``; names it and its row.
    """
    y = np.asarray(classes)
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise DataError(f"class labels have shape {y.shape} and dtype {y.dtype}; expected whole numbers (examples,)")
    columns = n_classes if n_classes is not None else (int(np.nanmax(y)) + 1 if len(y) else 0)
    wrong = (y < 0) | (y >= columns) | (y != np.floor(y)) if y.dtype.kind != "b" else y >= columns
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"label {y[row]} of example {row} is out of range: classes are 0 to {columns - 1}")
    if len(y) * columns > _LARGEST_LABELS:
        raise DataError(
            f"{counted(len(y), 'example')} of {counted(columns, 'class', 'classes')} are too many to be one-hot; "
            "is this the label column?"
        )
    labels = np.zeros((len(y), columns), dtype)
    labels[np.arange(len(y)), y.astype(np.intp)] = 1
    return labels


def _trusted(
    features: Any,
    labels: Array,
    features_mask: Array | None = None,
    labels_mask: Array | None = None,
    *,
    columns: tuple[str, ...] = (),
) -> DataSet:
    """Return a DataSet of arrays that come from a checked DataSet, without checks."""
    dataset = object.__new__(DataSet)
    _set(dataset, features, labels, features_mask, labels_mask)
    object.__setattr__(dataset, "columns", columns)
    return dataset


def stored_data_set(features: Array, labels: Array) -> DataSet:
    """Return a DataSet of float32 arrays in files, which were checked when written and are not read here."""
    return _trusted(features, labels)


def _set(dataset: DataSet, *arrays: Any) -> None:
    for name, array in zip(_NAMES, arrays, strict=True):
        view = array
        if isinstance(array, np.ndarray):  # other arrays never change
            view = array.view()
            view.flags.writeable = False
        object.__setattr__(dataset, name, view)  # the class is frozen


def _features(values: npt.ArrayLike | SparseFeatures) -> Any:
    """Return checked features: ``SparseFeatures``, or an array."""
    if isinstance(values, SparseFeatures):
        return values
    return SparseFeatures.of(values) if hasattr(values, "tocsr") else _numeric("features", values)


def _mask(name: str, array: Array, values: npt.ArrayLike | None) -> Array | None:
    """Return the checked mask of ``array`` in the dtype of that array."""
    if values is None:
        return None
    mask = np.ascontiguousarray(values, array.dtype)
    fitting: list[tuple[int, ...]] = [(array.shape[0], array.shape[-1])]
    if array.ndim != 3:
        fitting = [(len(array),), (len(array), 1), array.shape] if name == "labels" else []
    if mask.shape not in fitting:
        wanted = " or ".join(map(str, fitting)) or "none, since only sequences have one"
        raise DataError(f"the {name} mask has shape {mask.shape}, {name} have {array.shape}; expected {wanted}")
    _check_finite(f"{name} mask", mask)
    return mask


def _equally_long(parts: list[DataSet]) -> list[DataSet]:
    """Return parts with sequences padded to one length by zeros and masks; other parts are returned unchanged.

    Labels have their own length, because layers may shorten sequences.
    """
    if any(part.features.ndim != 3 for part in parts):
        return parts
    longest = max((part.features.shape[2] for part in parts), default=0)
    labels = max((part.labels.shape[2] for part in parts if part.labels.ndim == 3), default=0)
    return [_lengthened(part, longest, labels) for part in parts]


def _lengthened(part: DataSet, steps: int, of_labels: int) -> DataSet:
    """Return a part padded to ``steps`` time steps, and its labels to ``of_labels`` if they are sequences."""
    x, y = part.features, part.labels
    if x.shape[2] == steps and (y.ndim == 2 or y.shape[2] == of_labels):
        return part

    def longer(array: Array, length: int) -> Array:
        return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, length - array.shape[-1])])

    def mask(own: Array | None, array: Array, length: int) -> Array:
        return longer(np.ones((len(part), array.shape[2]), x.dtype) if own is None else own, length)

    features_mask = mask(part.features_mask, x, steps)
    if y.ndim == 2:
        return _trusted(longer(x, steps), y, features_mask, part.labels_mask)
    is_alike = part.labels_mask is None and y.shape[2] == x.shape[2]
    own = part.features_mask if is_alike else part.labels_mask
    return _trusted(longer(x, steps), longer(y, of_labels), features_mask, mask(own, y, of_labels))


def _merged(name: str, parts: list[DataSet]) -> Array | None:
    """Return the masks of all parts concatenated, with ones for parts without a mask; None if no part has one."""
    masks = [getattr(part, f"{name}_mask") for part in parts]
    known = next((mask for mask in masks if mask is not None), None)
    if known is None:
        return None
    ones = [np.ones((len(part), *known.shape[1:]), known.dtype) for part in parts]
    return np.concatenate([one if mask is None else mask for mask, one in zip(masks, ones, strict=True)])


def _numeric(name: str, values: npt.ArrayLike) -> Array:
    """Return ``values`` as a C-contiguous array of float32 or float64, of at least two dimensions."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # ragged lists
        raise DataError(f"{name} are not a rectangular array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} have dtype {array.dtype}; expected numbers")
    if array.ndim < 2:
        hint = "; DataSet.of_classes takes class numbers" if name == "labels" else ""
        raise DataError(f"{name} have shape {array.shape}; expected one row per example: (examples, columns){hint}")
    return _of_dtype(array, float_type_of(array))


def _of_dtype(array: Array, dtype: npt.DTypeLike) -> Array:
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is then named
        return np.ascontiguousarray(array, dtype)


def _check_finite(name: str, array: Array) -> None:
    if not array.size:
        return
    with np.errstate(all="ignore"):
        if np.isfinite(array.sum()):  # a sum shows any NaN or infinity; much cheaper than checking each value
            return
    wrong = ~np.isfinite(array)
    if wrong.any():
        row, *column = np.unravel_index(int(np.argmax(wrong)), array.shape)
        place = ", ".join(str(int(index)) for index in column)
        raise DataError(
            f"{name} of example {int(row)}, column {place} (from 0) are {array[(row, *column)]}; "
            f"{int(wrong.sum())} values of {array.size} are not finite: remove or impute them"
        )
