"""Normalizers: scale features to a common range, learn the scale from training data, and are saved with the model.

Layer 1. Follows ``org.nd4j.linalg.dataset.api.preprocessor``: ``NormalizerStandardize``, ``NormalizerMinMaxScaler``,
``ImagePreProcessingScaler``. Statistics are float64. A column that is constant, apart from rounding, is shifted and
divided by 1. Sequences have one scale per column, learned from all unmasked time steps; masked time steps stay 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.batches import Batch
from dl4jlegacy.datasets.columns.column_scale import mean_and_std, width
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.precision import Mask, far_columns
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.system.strict_json import to_json

__all__ = [
    "ImagePreProcessingScaler",
    "Normalizer",
    "NormalizerMinMaxScaler",
    "NormalizerStandardize",
    "as_read",
    "normalizer_from_json",
]

_Vector = npt.NDArray[np.float64]
_DEVIATIONS = 2.0
"""Assumed range of a column: this many standard deviations to both sides of its mean."""
_MOST_COLUMNS = 1 << 26
_STEP = 1 << 20  # values that are scaled at once


class Normalizer(Protocol):
    """Interface of all normalizers; ``transform`` and ``revert`` change only features and return new data sets."""

    def fit(self, data: DataSet | Iterable[DataSet]) -> Self:
        """Learn the scale from a data set, or from one epoch of an iterator; return self."""

    def transform(self, dataset: DataSet) -> DataSet:
        """Return ``dataset`` with scaled features."""

    def revert(self, dataset: DataSet) -> DataSet:
        """Return ``dataset`` with features on their original scale."""

    def to_json(self) -> str:
        """Return type, parameters and learned statistics as canonical JSON."""


class NormalizerStandardize:
    """Scales every column to mean 0 and standard deviation 1 (of the population, as in DL4J).

    Attributes:
        mean: ``(n_in,)`` float64, empty before ``fit``.
        std: ``(n_in,)`` float64; 1 for a column that is constant, apart from rounding.
        pixels: the number of columns in a row that have the same statistics, as those of an image's channel have.
    """

    def __init__(self) -> None:
        self.pixels = 1
        self.mean: _Vector = np.zeros(0)
        self.std: _Vector = np.zeros(0)

    def fit(self, data: DataSet | Iterable[DataSet]) -> Self:
        """Learn mean and standard deviation of every column."""
        self.pixels, (self.mean, self.std) = 1, mean_and_std(_parts(data))
        return self

    def fit_channels(self, images: DataSet, channels: int) -> Self:
        """Learn one mean and one standard deviation of each channel, for all its pixels; channels come first."""
        x = images.features.reshape(len(images), channels, -1)
        self.pixels, step = x.shape[2], _step(images.n_in)

        def parts(channel: int) -> Iterator[Array]:
            for i in range(0, len(x), step):
                yield x[i : i + step, channel].reshape(-1, 1).astype(np.float64)

        found = [mean_and_std(parts(channel)) for channel in range(channels)]
        self.mean, self.std = (np.repeat(np.concatenate(each), self.pixels) for each in zip(*found, strict=True))
        return self

    def transform(self, dataset: DataSet) -> DataSet:
        """Return ``(x - mean) / std``."""
        scale, far = 1 / _fitted(self.std, dataset), self.far_columns()
        shift = np.where(far, 0.0, -self.mean / self.std)
        return _scaled(dataset, scale, shift, np.where(far, self.mean, 0.0))

    def revert(self, dataset: DataSet) -> DataSet:
        """Return ``x * std + mean``; float64 if a column is far from 0."""
        return _scaled(_exact(dataset, self.far_columns()), _fitted(self.std, dataset), self.mean)

    def far_columns(self) -> Mask:
        """Return a mask ``(n_in,)`` of columns so far from 0 for their width that float32 loses differences."""
        far = far_columns(self.mean - _DEVIATIONS * self.std, self.mean + _DEVIATIONS * self.std)
        varying: Mask = far & (self.std != 1.0)
        return varying

    def to_json(self) -> str:
        """Return mean and standard deviation as JSON: only one of each channel, if they were learned so."""
        found = {"mean": self.mean[:: self.pixels].tolist(), "std": self.std[:: self.pixels].tolist()}
        return _to_json(self, **found, **({"pixels": self.pixels} if self.pixels > 1 else {}))


class NormalizerMinMaxScaler:
    """Scales every column to ``min_range .. max_range``; a constant column (apart from rounding) becomes ``min_range``.

    Attributes:
        min: ``(n_in,)`` smallest value of every column, float64.
        max: ``(n_in,)`` largest value of every column.
    """

    def __init__(self, min_range: float = 0.0, max_range: float = 1.0) -> None:
        _check_range(min_range, max_range)
        self.min_range = min_range
        self.max_range = max_range
        self.min: _Vector = np.zeros(0)
        self.max: _Vector = np.zeros(0)

    def fit(self, data: DataSet | Iterable[DataSet]) -> Self:
        """Learn the smallest and the largest value of every column."""
        bounds = [(x.min(axis=0), x.max(axis=0)) for x in _parts(data)]
        self.min = np.min([low for low, _ in bounds], axis=0)
        self.max = np.max([high for _, high in bounds], axis=0)
        return self

    def transform(self, dataset: DataSet) -> DataSet:
        """Return ``(x - min) / (max - min)`` scaled to the range."""
        scale, far = (self.max_range - self.min_range) / self._width(dataset), self.far_columns()
        shift = np.where(far, self.min_range, self.min_range - self.min * scale)
        return _scaled(dataset, scale, shift, np.where(far, self.min, 0.0))

    def revert(self, dataset: DataSet) -> DataSet:
        """Return features on their original scale; float64 if a column is far from 0."""
        scale = self._width(dataset) / (self.max_range - self.min_range)
        return _scaled(_exact(dataset, self.far_columns()), scale, self.min - self.min_range * scale)

    def far_columns(self) -> Mask:
        """Return a mask ``(n_in,)`` of columns so far from 0 for their width that float32 loses differences."""
        return far_columns(self.min, self.max)

    def to_json(self) -> str:
        """Return range and bounds as JSON."""
        bounds = {"min": self.min.tolist(), "max": self.max.tolist()}
        return _to_json(self, min_range=self.min_range, max_range=self.max_range, **bounds)

    def _width(self, dataset: DataSet) -> _Vector:
        return width(self.min, _fitted(self.max, dataset))


class ImagePreProcessingScaler:
    """Scales pixels from ``0 .. max_pixel`` to ``min_range .. max_range``; nothing is learned."""

    def __init__(self, min_range: float = 0.0, max_range: float = 1.0, max_pixel: float = 255.0) -> None:
        _check_range(min_range, max_range)
        _check_range(0.0, max_pixel)
        self.min_range = min_range
        self.max_range = max_range
        self.max_pixel = max_pixel

    def fit(self, data: DataSet | Iterable[DataSet]) -> Self:
        """Do nothing: pixels have a known range."""
        return self

    def transform(self, dataset: DataSet) -> DataSet:
        """Return ``x / max_pixel`` scaled to the range."""
        return _scaled(dataset, (self.max_range - self.min_range) / self.max_pixel, self.min_range)

    def revert(self, dataset: DataSet) -> DataSet:
        """Return the original pixels."""
        scale = self.max_pixel / (self.max_range - self.min_range)
        return _scaled(dataset, scale, -self.min_range * scale)

    def to_json(self) -> str:
        """Return the ranges as JSON."""
        return _to_json(self, min_range=self.min_range, max_range=self.max_range, max_pixel=self.max_pixel)


def normalizer_from_json(text: str | bytes) -> Normalizer:
    """Return the normalizer that ``to_json`` wrote.

    Raises:
        DataError: not JSON, an unknown type, or fields that do not belong to it.
    """
    try:
        fields: dict[str, Any] = json.loads(text)
        kind = fields.pop("type")
        if kind == "NormalizerStandardize":
            result: Any = NormalizerStandardize()
            result.mean, result.std = _vectors(fields.pop("mean"), fields.pop("std"))
            _require(bool((result.std > 0).all()), "a standard deviation is not positive")
            result.pixels = pixels = fields.pop("pixels", 1)
            fits = type(pixels) is int and 0 < pixels <= _MOST_COLUMNS // max(1, len(result.mean))
            _require(fits, f"pixels is {pixels!r}")
            result.mean, result.std = np.repeat(result.mean, pixels), np.repeat(result.std, pixels)
        elif kind == "NormalizerMinMaxScaler":
            result = NormalizerMinMaxScaler(float(fields.pop("min_range")), float(fields.pop("max_range")))
            result.min, result.max = _vectors(fields.pop("min"), fields.pop("max"))
            _require(bool((result.min <= result.max).all()), "a smallest value is above the largest")
        elif kind == "ImagePreProcessingScaler":
            names = ("min_range", "max_range", "max_pixel")
            result = ImagePreProcessingScaler(*(float(fields.pop(name)) for name in names))
        else:
            raise DataError(f"unknown normalizer type {kind!r}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataError(f"not a saved normalizer: {type(error).__name__}: {error}") from error
    if fields:
        raise DataError(f"saved {kind} has unknown fields: {', '.join(sorted(fields))}")
    normalizer: Normalizer = result
    return normalizer


def _parts(data: DataSet | Iterable[DataSet]) -> Iterator[Array]:
    """Yield the features of each part as float64 rows; a sequence has one row per time step that is not masked."""
    empty = True
    for part in [data] if isinstance(data, Batch) else data:
        _check_kind(part)
        rows = np.asarray(part.features).reshape(len(part), -1)
        if _has_time_steps(part):
            steps = np.moveaxis(part.features, 1, 2)
            rows = (
                steps.reshape(-1, part.features.shape[1])
                if part.features_mask is None
                else steps[part.features_mask > 0]
            )
        if len(rows):
            empty = False
            yield rows.astype(np.float64)
    if empty:
        raise DataError("a normalizer was to be fitted to no examples at all")


def _has_time_steps(dataset: DataSet) -> bool:
    return np.asarray(dataset.features).ndim == 3  # an error for sparse features, which cannot become an array


def _check_kind(dataset: object) -> None:
    if not isinstance(dataset, DataSet):
        raise DataError(
            f"a normalizer takes DataSets, and was given {repr(dataset)[:200]}; scale each array in a DataSet of its "
            "own, before they are put together"
        )


def _fitted(vector: _Vector, dataset: DataSet) -> _Vector:
    _check_kind(dataset)
    columns = dataset.features.shape[1] if _has_time_steps(dataset) else dataset.n_in
    if vector.size != columns:
        state = f"was fitted to {counted(vector.size, 'column')}" if vector.size else "was not fitted yet"
        raise DataError(f"a normalizer {state}, the data set has {columns}; call fit with the training data first")
    return vector


def as_read(normalizer: Normalizer | None, dataset: DataSet) -> DataSet:
    """Return a float64 data set rounded to float32, except for columns far from 0 that a normalizer still has to scale.

    The training data were rounded in the same way before the normalizer was fitted. None: all columns are rounded.
    """
    if isinstance(normalizer, NormalizerStandardize | NormalizerMinMaxScaler):
        return dataset.rounded(normalizer.far_columns())
    return dataset.rounded(np.zeros(dataset.n_in, bool))


def _exact(dataset: DataSet, far: Mask) -> DataSet:
    """Return a data set as float64 if some column is far from 0, else unchanged."""
    _check_kind(dataset)
    if not far.any() or dataset.features.dtype == np.float64:
        return dataset
    return DataSet(dataset.features.astype(np.float64), dataset.labels, dataset.features_mask, dataset.labels_mask)


def _scaled(dataset: DataSet, scale: Array | float, shift: Array | float, origin: Array | float = 0.0) -> DataSet:
    """Return ``(features - origin) * scale + shift``, computed in float64, in the features' dtype; 0 where masked.

    The origin of a column far from 0 is subtracted first: the difference of two large numbers would be rounded.
    """
    _check_kind(dataset)
    x = dataset.features
    scale, shift, origin = np.float64(scale), np.float64(shift), np.float64(origin)
    rows = x if _has_time_steps(dataset) else x.reshape(len(dataset), -1)
    if _has_time_steps(dataset):
        scale, shift, origin = (np.atleast_1d(each)[:, None] for each in (scale, shift, origin))
    scaled, is_far, step = np.empty(rows.shape, x.dtype), bool(origin.any()), _step(rows[0].size if len(rows) else 1)
    for i in range(0, len(rows), step):  # float64 copies of all images at once would need too much memory
        part = rows[i : i + step]
        scaled[i : i + step] = (part - origin if is_far else part) * scale + shift
    scaled = scaled.reshape(x.shape)
    if _has_time_steps(dataset) and dataset.features_mask is not None:
        scaled = np.where(dataset.features_mask[:, None] > 0, scaled, 0.0)
    return DataSet(scaled, dataset.labels, dataset.features_mask, dataset.labels_mask)


def _step(values: int) -> int:
    """Return the number of examples of ``values`` values each that are scaled at once."""
    return max(1, _STEP // max(1, values))


def _check_range(low: float, high: float) -> None:
    if not low < high:
        raise DataError(f"a normalizer's range is {low} to {high}; the first must be the smaller one")


def _vectors(*lists: list[float]) -> list[_Vector]:
    vectors = [np.array(values, np.float64) for values in lists]
    same = all(vector.ndim == 1 and vector.shape == vectors[0].shape for vector in vectors)
    _require(same, "statistics are not lists of the same length")
    _require(all(np.isfinite(vector).all() for vector in vectors), "statistics are not finite")
    return vectors


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _to_json(normalizer: object, **fields: Any) -> str:
    return to_json({"type": type(normalizer).__name__, **fields}, sort_keys=True, separators=(",", ":"))
