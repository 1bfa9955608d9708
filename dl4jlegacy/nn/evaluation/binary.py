"""EvaluationBinary: metrics of a network with independent yes-or-no outputs, for each output.

Follows ``org.nd4j.evaluation.classification.EvaluationBinary``, but returns 0 where that class returns NaN for 0/0, so
that results are always valid JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.evaluation.evaluate import check_column, check_names, java_fixed, unmasked_rows
from dl4jlegacy.nn.evaluation.roc import ROCBinary

__all__ = ["EvaluationBinary"]

_COUNTS = ("true_positives", "true_negatives", "false_positives", "false_negatives")
_HEADERS = ("Accuracy", "F1", "Precision", "Recall")


class EvaluationBinary:
    """Counts of true and false positives and negatives for every output; merges by addition.

    Args:
        label_names: names of the outputs.
        thresholds: one for each output; an output above its threshold means yes. Default 0.5.
        roc_steps: also keep a ``ROCBinary`` with this number of threshold steps (0: exact), for the column AUC.
    """

    merges_exactly = True

    def __init__(
        self,
        label_names: Sequence[str] | None = None,
        *,
        thresholds: Sequence[float] | None = None,
        roc_steps: int | None = None,
    ) -> None:
        self.label_names = tuple(label_names) if label_names else None
        self.thresholds = tuple(float(t) for t in thresholds) if thresholds is not None else None
        if self.thresholds is not None and not all(0 <= t <= 1 for t in self.thresholds):
            raise ConfError(f"EvaluationBinary got thresholds {self.thresholds}; they must lie between 0 and 1")
        self.roc = None if roc_steps is None else ROCBinary(roc_steps)
        self._counts: Array | None = None  # (4, outputs), rows in the order of _COUNTS

    def eval(self, labels: Array, output: Array, mask: Array | None = None) -> None:
        """Count one batch of 0s and 1s against outputs from 0 to 1; shapes and mask as in ``unmasked_rows``.

        Raises:
            ShapeError: the shapes do not agree with each other or with earlier batches.
            NotFiniteError: the output holds NaN.
        """
        actual, found, single = unmasked_rows(labels, output, mask, per_output=True)
        self._expect(actual.shape[1])
        limits = np.asarray(self.thresholds or 0.5, found.dtype)
        yes, predicted = actual > 0.5, found > limits
        counted = np.ones(yes.shape, bool) if single is None else single != 0
        for row, cells in enumerate((yes & predicted, ~yes & ~predicted, ~yes & predicted, yes & ~predicted)):
            self._table()[row] += (cells & counted).sum(axis=0)
        if self.roc is not None:
            self.roc.eval(labels, output, mask)

    def merge(self, other: EvaluationBinary) -> Self:
        """Add the counts of ``other``; raises ``ShapeError`` for another number of outputs or other thresholds."""
        if other._counts is None:
            return self
        if self.thresholds != other.thresholds or (self.roc is None) != (other.roc is None):
            raise ConfError("cannot merge evaluations with different thresholds, or of which only one has a ROC")
        self._expect(other._counts.shape[1])
        self._counts = self._table() + other._counts
        self.label_names = self.label_names or other.label_names
        if self.roc is not None and other.roc is not None:
            self.roc.merge(other.roc)
        return self

    def _expect(self, columns: int) -> None:
        if self._counts is None:
            check_names("EvaluationBinary", self.label_names, columns)
            if self.thresholds is not None and len(self.thresholds) != columns:
                raise ShapeError(f"EvaluationBinary got {len(self.thresholds)} thresholds for {columns} outputs")
            self._counts = np.zeros((4, columns), np.int64)
        if self._counts.shape[1] != columns:
            raise ShapeError(f"evaluation counts {self._counts.shape[1]} outputs, this batch has {columns}")

    def _table(self) -> Array:
        if self._counts is None:
            raise ConfError("this EvaluationBinary has no data yet; evaluate a batch first")
        return self._counts

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, to create an equal evaluation."""
        steps = None if self.roc is None else self.roc.steps
        return {"label_names": self.label_names, "thresholds": self.thresholds, "roc_steps": steps}

    def state(self) -> dict[str, Array]:
        """Return the counts as arrays; ``restore`` reads them back."""
        if self._counts is None:
            return {}
        of_roc = {} if self.roc is None else self.roc.state()
        return {"counts": self._counts.copy(), **{f"roc.{name}": array for name, array in of_roc.items()}}

    def restore(self, state: Mapping[str, Array]) -> Self:
        """Set the counts to ``state``; return this evaluation."""
        self._counts = state["counts"]
        if self.roc is not None:
            of_roc = {name.removeprefix("roc."): array for name, array in state.items() if name != "counts"}
            self.roc.restore(of_roc)
        return self

    # -- counts and metrics ------------------------------------------------------------------------------------------

    @property
    def num_labels(self) -> int:
        """Number of outputs; 0 before the first batch."""
        return 0 if self._counts is None else int(self._counts.shape[1])

    def _count(self, row: int, output: int) -> int:
        check_column("EvaluationBinary", output, self.num_labels)
        return int(self._table()[row, output])

    def true_positives(self, output: int) -> int:
        """Examples that are 1 and were predicted 1."""
        return self._count(0, output)

    def true_negatives(self, output: int) -> int:
        """Examples that are 0 and were predicted 0."""
        return self._count(1, output)

    def false_positives(self, output: int) -> int:
        """Examples that are 0 and were predicted 1."""
        return self._count(2, output)

    def false_negatives(self, output: int) -> int:
        """Examples that are 1 and were predicted 0."""
        return self._count(3, output)

    def total_count(self, output: int) -> int:
        """Unmasked examples of this output."""
        return sum(self._count(row, output) for row in range(4))

    def accuracy(self, output: int) -> float:
        """(tp + tn) / all."""
        return _ratio(self.true_positives(output) + self.true_negatives(output), self.total_count(output))

    def precision(self, output: int) -> float:
        """tp / (tp + fp)."""
        tp = self.true_positives(output)
        return _ratio(tp, tp + self.false_positives(output))

    def recall(self, output: int) -> float:
        """tp / (tp + fn)."""
        tp = self.true_positives(output)
        return _ratio(tp, tp + self.false_negatives(output))

    def f_beta(self, beta: float, output: int) -> float:
        """(1+β²)·p·r / (β²·p + r)."""
        p, r = self.precision(output), self.recall(output)
        return _ratio((1 + beta**2) * p * r, beta**2 * p + r)

    def f1(self, output: int) -> float:
        """Harmonic mean of precision and recall."""
        return self.f_beta(1.0, output)

    def g_measure(self, output: int) -> float:
        """Geometric mean of precision and recall."""
        return math.sqrt(self.precision(output) * self.recall(output))

    def matthews_correlation(self, output: int) -> float:
        """Matthews (1975) correlation, -1..1."""
        tp, tn, fp, fn = (float(self._count(row, output)) for row in range(4))
        return _ratio(tp * tn - fp * fn, math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))

    def false_positive_rate(self, output: int) -> float:
        """fp / (fp + tn)."""
        fp = self.false_positives(output)
        return _ratio(fp, fp + self.true_negatives(output))

    def false_negative_rate(self, output: int) -> float:
        """fn / (fn + tp)."""
        fn = self.false_negatives(output)
        return _ratio(fn, fn + self.true_positives(output))

    def average(self, metric: Callable[[int], float]) -> float:
        """Return the mean of a metric over the outputs: ``e.average(e.f1)``."""
        return _ratio(sum(metric(i) for i in range(self.num_labels)), self.num_labels)

    # -- reports -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return metrics and counts as plain JSON values; ``from_dict`` reads the counts back."""
        report: dict[str, Any] = {name: [] for name in (*_COUNTS, "accuracy", "f1", "precision", "recall")}
        for name, values in report.items():
            values += [getattr(self, name)(i) for i in range(self.num_labels)]
        report["label_names"] = list(self.label_names) if self.label_names else None
        report["thresholds"] = list(self.thresholds) if self.thresholds is not None else None
        report["roc"] = None if self.roc is None else self.roc.to_dict()
        return report

    @classmethod
    def from_dict(cls, report: dict[str, Any]) -> EvaluationBinary:
        """Rebuild an evaluation from ``to_dict``."""
        evaluation = cls(report["label_names"], thresholds=report["thresholds"])
        evaluation.roc = None if report["roc"] is None else ROCBinary.from_dict(report["roc"])
        counts = np.asarray([report[name] for name in _COUNTS], np.int64)
        evaluation._counts = counts if counts.size else None
        return evaluation

    def stats(self, digits: int = 4) -> str:
        """Return DL4J 1.0.0's table, character for character."""
        width = max(15, *(len(name) for name in self.label_names or ("",))) + 5
        text = f"{'Label':<{width}}" + "".join(f"{name:<12}" for name in _HEADERS) + f"{'Total':<8}"
        text += "".join(f"{name:<7}" for name in ("TP", "TN", "FP", "FN")) + (f"{'AUC':<12}" if self.roc else "")
        if self._counts is None:
            return text + "\n-- No Data --\n"
        for i in range(self.num_labels):
            metrics = (self.accuracy(i), self.f1(i), self.precision(i), self.recall(i))
            text += f"\n{self.label_names[i] if self.label_names else i!s:<{width}}"
            text += "".join(f"{java_fixed(value, digits):<12}" for value in metrics) + f"{self.total_count(i):<8}"
            text += "".join(f"{self._count(row, i):<7}" for row in range(4))
            text += f"{java_fixed(self.roc.calculate_auc(i), digits):<12}" if self.roc else ""
        if self.thresholds is not None:
            text += "\nPer-output decision thresholds: [" + ", ".join(str(float(t)) for t in self.thresholds) + "]"
        return text


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
