"""EvaluationCalibration: whether a network's probabilities agree with the observed frequencies.

Reliability diagrams (Niculescu-Mizil and Caruana 2005), residual plots (Wallace and Dahabreh 2012) and histograms of
the probabilities. Follows ``org.nd4j.evaluation.classification.EvaluationCalibration``; all parts merge (DL4J's merge
omits the histograms).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.evaluation.evaluate import check_column, unmasked_rows

__all__ = ["EvaluationCalibration", "Histogram", "ReliabilityDiagram"]

_COUNTS = ("positives", "totals", "residuals", "probabilities", "labels", "predictions", "all")


@dataclass(frozen=True, slots=True, eq=False)
class ReliabilityDiagram:
    """Mean predicted probability (x) and share of positives (y) of every bin; on the diagonal if well calibrated."""

    title: str
    mean_predicted: Array
    fraction_positives: Array


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Counts of values between ``lower`` and ``upper`` in bins of equal width."""

    title: str
    lower: float
    upper: float
    counts: Array


class EvaluationCalibration:
    """Reliability diagrams, residual plots and probability histograms of a classifier.

    Args:
        reliability_bins: number of bins of a reliability diagram.
        histogram_bins: number of bins of the histograms.
        exclude_empty_bins: omit empty bins from reliability diagrams.
    """

    merges_exactly = False  # sums of predictions are rounded

    def __init__(
        self, reliability_bins: int = 10, histogram_bins: int = 50, *, exclude_empty_bins: bool = True
    ) -> None:
        if min(reliability_bins, histogram_bins) < 1:
            raise ConfError(
                f"EvaluationCalibration got {reliability_bins} and {histogram_bins} bins; both must be at least 1"
            )
        self.reliability_bins = reliability_bins
        self.histogram_bins = histogram_bins
        self.exclude_empty_bins = exclude_empty_bins
        self._counts: dict[str, Array] = {}
        self._sums: Array | None = None  # sums of predictions, (reliability bins, classes)

    def eval(self, labels: Array, output: Array, mask: Array | None = None) -> None:
        """Add one batch of one-hot labels; shapes and mask as in ``unmasked_rows``.

        Raises:
            ShapeError: the shapes do not agree with each other or with earlier batches.
            NotFiniteError: the output holds NaN.
        """
        actual, p, _ = unmasked_rows(labels, output, mask)
        yes = actual > 0.5
        columns = p.shape[1]
        bins = _bin(p, self.reliability_bins)
        residual, probability = (_bin(v, self.histogram_bins) for v in (np.abs(actual - p), p))
        predicted = np.zeros(p.shape, bool)
        predicted[np.arange(len(p)), p.argmax(axis=1)] = True
        every = np.ones(p.shape, bool)
        counts = {
            "positives": _count(bins, yes, self.reliability_bins),
            "totals": _count(bins, every, self.reliability_bins),
            "residuals": _count(residual, yes, self.histogram_bins),
            "probabilities": _count(probability, yes, self.histogram_bins),
            "labels": yes.sum(axis=0),
            "predictions": predicted.sum(axis=0),
            "all": np.stack([_count(b, every, self.histogram_bins).sum(axis=1) for b in (residual, probability)]),
        }
        sums = np.zeros((self.reliability_bins, columns))
        np.add.at(sums, (np.maximum(bins, 0), np.arange(columns)), np.where(bins < 0, 0.0, p))
        self._add(counts, sums)

    def merge(self, other: EvaluationCalibration) -> Self:
        """Add the counts of ``other``; raises for other bins or another number of classes."""
        mine, theirs = ((e.reliability_bins, e.histogram_bins) for e in (self, other))
        if mine != theirs:
            raise ConfError(f"cannot merge a calibration with {theirs} bins into one with {mine}")
        if other._sums is not None:
            self._add(other._counts, other._sums)
        return self

    def _add(self, counts: dict[str, Array], sums: Array) -> None:
        if self._sums is None:
            self._counts, self._sums = dict(counts), sums.copy()
            return
        if self._sums.shape != sums.shape:
            raise ShapeError(f"calibration has {self._sums.shape[1]} classes, this batch has {sums.shape[1]}")
        self._counts = {name: self._counts[name] + counts[name] for name in _COUNTS}
        self._sums = self._sums + sums

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 before the first batch."""
        return 0 if self._sums is None else int(self._sums.shape[1])

    def _of(self, name: str, label: int = 0) -> Array:
        check_column("EvaluationCalibration", label, self.num_classes)
        return self._counts[name]

    def reliability_diagram(self, label: int) -> ReliabilityDiagram:
        """Return the reliability diagram of one class."""
        totals, positives = self._of("totals", label)[:, label], self._of("positives", label)[:, label]
        assert self._sums is not None
        kept = totals > 0 if self.exclude_empty_bins else np.ones(len(totals), bool)
        whole = np.maximum(totals[kept], 1)
        title = f"Reliability Diagram: Class {label}"
        return ReliabilityDiagram(title, self._sums[kept, label] / whole, positives[kept] / whole)

    def label_counts(self) -> Array:
        """Return the number of examples of every class."""
        return self._of("labels")

    def prediction_counts(self) -> Array:
        """Return how often every class was the most probable one."""
        return self._of("predictions")

    def residual_plot(self, label: int | None = None) -> Histogram:
        """Return the histogram of |label - probability| over all classes, or over the examples of one class."""
        if label is None:
            return self._histogram("Residual Plot - All Predictions and Classes", self._of("all")[0])
        counts = self._of("residuals", label)[:, label]
        return self._histogram(f"Residual Plot - Predictions for Label Class {label}", counts)

    def probability_histogram(self, label: int | None = None) -> Histogram:
        """Return the histogram of all probabilities, or of one class's probability over the examples of that class."""
        if label is None:
            return self._histogram("Network Probabilities Histogram - All Predictions and Classes", self._of("all")[1])
        title = f"Network Probabilities Histogram - P(class {label}) - Data Labelled Class {label} Only"
        return self._histogram(title, self._of("probabilities", label)[:, label])

    def _histogram(self, title: str, counts: Array) -> Histogram:
        return Histogram(title, 0.0, 1.0, counts)

    def expected_calibration_error(self) -> float:
        """Return the mean gap between probability and frequency over all bins, weighted by their counts."""
        totals, positives = self._of("totals"), self._of("positives")
        assert self._sums is not None
        return float(np.abs(self._sums - positives).sum() / max(int(totals.sum()), 1))

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON values; ``from_dict`` reads it back."""
        return {
            "reliability_bins": self.reliability_bins,
            "histogram_bins": self.histogram_bins,
            "exclude_empty_bins": self.exclude_empty_bins,
            "counts": {name: counts.tolist() for name, counts in self._counts.items()},
            "sums": None if self._sums is None else self._sums.tolist(),
        }

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, to create an equal evaluation."""
        names = ("reliability_bins", "histogram_bins", "exclude_empty_bins")
        return {name: getattr(self, name) for name in names}

    def state(self) -> dict[str, Array]:
        """Return the counts as arrays; ``restore`` reads them back."""
        return {} if self._sums is None else {**self._counts, "sums": self._sums}

    def restore(self, state: Mapping[str, Array]) -> Self:
        """Set the counts to ``state``; return this evaluation."""
        self._counts, self._sums = {name: state[name] for name in _COUNTS}, state["sums"]
        return self

    @classmethod
    def from_dict(cls, report: dict[str, Any]) -> EvaluationCalibration:
        """Rebuild an evaluation from ``to_dict``."""
        bins: Sequence[int] = (report["reliability_bins"], report["histogram_bins"])
        evaluation = cls(*bins, exclude_empty_bins=report["exclude_empty_bins"])
        evaluation._counts = {name: np.asarray(counts, np.int64) for name, counts in report["counts"].items()}
        evaluation._sums = None if report["sums"] is None else np.asarray(report["sums"], np.float64)
        return evaluation

    def stats(self) -> str:
        """Return DL4J's text, which has only the number of reliability bins."""
        return f"EvaluationCalibration(nBins={self.reliability_bins})"


def _bin(values: Array, bins: int) -> Array:
    """Return every value's bin, ``lower <= value < upper``; 1 is in the last bin; -1 for values outside 0..1."""
    edges = (np.arange(bins) / bins).astype(values.dtype)  # k / bins, rounded once: 0.3 is the start of one of ten bins
    found = np.searchsorted(edges, values, side="right") - 1
    return np.where(values > 1, -1, found)


def _count(bins: Array, counted: Array, n_bins: int) -> Array:
    """Return ``(bins, columns)``: the number of counted cells of each column in each bin."""
    table = np.zeros((n_bins, bins.shape[1]), np.int64)
    np.add.at(table, (np.maximum(bins, 0), np.arange(bins.shape[1])), counted & (bins >= 0))
    return table
