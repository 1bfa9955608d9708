"""ROC and precision-recall curves: how well a probability separates two classes at every threshold, and the areas.

``ROC`` is for one yes-or-no output, ``ROCBinary`` for several independent ones, ``ROCMultiClass`` for the classes of a
softmax, each against the rest. They follow the classes of these names in ``org.nd4j.evaluation.classification``.
Exact (the default) keeps every probability; with ``steps`` it counts at fixed thresholds. Unlike in DL4J, examples with
the same probability are one point of a curve, so that the areas do not depend on the order of the examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.evaluation.evaluate import check_column, check_names, java_fixed, unmasked_rows

__all__ = ["ROC", "PrecisionRecallCurve", "PrecisionRecallPoint", "ROCBinary", "ROCMultiClass", "RocCurve"]


@dataclass(frozen=True, slots=True, eq=False)
class RocCurve:
    """False positive rate (x) and true positive rate (y) at falling (thresholded: rising) thresholds."""

    threshold: Array
    false_positive_rate: Array
    true_positive_rate: Array

    def area(self) -> float:
        """Return the area under the curve, by trapezoids."""
        return _area(self.false_positive_rate, self.true_positive_rate)


@dataclass(frozen=True, slots=True)
class PrecisionRecallPoint:
    """One point of a precision-recall curve, with its confusion counts."""

    threshold: float
    precision: float
    recall: float
    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int


@dataclass(frozen=True, slots=True, eq=False)
class PrecisionRecallCurve:
    """Precision (y) and recall (x) at rising thresholds, with the underlying counts; ``total`` examples."""

    threshold: Array
    precision: Array
    recall: Array
    true_positives: Array
    false_positives: Array
    false_negatives: Array
    total: int

    def area(self) -> float:
        """Return the area under the curve, by trapezoids."""
        return _area(self.recall, self.precision)

    def point(self, index: int) -> PrecisionRecallPoint:
        """Return point number ``index``."""
        tp, fp, fn = (int(c[index]) for c in (self.true_positives, self.false_positives, self.false_negatives))
        threshold, precision, recall = (float(c[index]) for c in (self.threshold, self.precision, self.recall))
        return PrecisionRecallPoint(threshold, precision, recall, tp, fp, fn, self.total - tp - fp - fn)

    def at_threshold(self, threshold: float) -> PrecisionRecallPoint:
        """Return the point at ``threshold``, or at the next higher one of the curve."""
        index = int(np.searchsorted(self.threshold, threshold))
        return self.point(min(index, len(self.threshold) - 1))

    def at_precision(self, precision: float) -> PrecisionRecallPoint:
        """Return the point of the lowest threshold with at least this precision."""
        found = np.flatnonzero(self.precision >= precision)
        return self.point(int(found[0]) if found.size else len(self.threshold) - 1)

    def at_recall(self, recall: float) -> PrecisionRecallPoint:
        """Return the most precise of the points with the lowest recall that is at least ``recall``."""
        found = np.flatnonzero(self.recall >= recall)
        if not found.size:
            return self.point(0)
        same = found[self.recall[found] == self.recall[found[-1]]]
        best = same[self.precision[same] == self.precision[same].max()]
        return self.point(int(best[0]))


class ROC:
    """ROC and precision-recall curve of one yes-or-no output; merges without loss.

    Args:
        steps: number of threshold steps from 0 to 1; 0: exact.
        remove_redundant: omit points on straight lines of an exact curve, which does not change the areas.
    """

    merges_exactly = True

    def __init__(self, steps: int = 0, *, remove_redundant: bool = True) -> None:
        if steps < 0:
            raise ConfError(f"ROC got steps={steps}; it must be 0 (exact) or more")
        self.steps = steps
        self.remove_redundant = remove_redundant
        self._parts: list[Array] = []  # exact: (2, examples), probability and label
        self._counts = np.zeros((2, steps + 1 if steps else 0), np.int64)  # true and false positives by threshold
        self._actual = [0, 0]  # positives, negatives

    def eval(self, labels: Array, output: Array, mask: Array | None = None) -> None:
        """Add one batch: one column, or two columns of which the second is the probability of "yes".

        Shapes and mask are as in ``unmasked_rows``.

        Raises:
            ShapeError: shapes that do not agree, or more than two columns.
            NotFiniteError: the output holds NaN.
        """
        actual, found, _ = unmasked_rows(labels, output, mask)
        if actual.shape[1] > 2:
            raise ShapeError(f"ROC got {actual.shape[1]} columns; it takes 1 or 2 (ROCMultiClass and ROCBinary: more)")
        self.eval_columns(actual[:, -1], found[:, -1])

    def eval_columns(self, labels: Array, probabilities: Array) -> None:
        """Add labels 0 and 1 and probabilities, both ``(rows,)``."""
        yes = labels > 0.5
        self._actual[0] += int(yes.sum())
        self._actual[1] += int((~yes).sum())
        if not self.steps:
            self._parts.append(np.stack([probabilities.astype(np.float64), yes.astype(np.float64)]))
            return
        above = probabilities[:, None] >= self._thresholds().astype(probabilities.dtype)
        above[:, -1] = False  # as in DL4J: at threshold 1 nothing is predicted "yes"
        self._counts[0] += (above & yes[:, None]).sum(axis=0)
        self._counts[1] += (above & ~yes[:, None]).sum(axis=0)

    def merge(self, other: ROC) -> Self:
        """Add the counts of ``other``; raises ``ConfError`` for other steps."""
        if self.steps != other.steps:
            raise ConfError(f"cannot merge a ROC of {other.steps} threshold steps into one of {self.steps}")
        self._parts += other._parts
        self._counts = self._counts + other._counts
        self._actual = [a + b for a, b in zip(self._actual, other._actual, strict=True)]
        return self

    # -- curves ------------------------------------------------------------------------------------------------------

    @property
    def positives(self) -> int:
        """Examples that are "yes"."""
        return self._actual[0]

    @property
    def negatives(self) -> int:
        """Examples that are "no"."""
        return self._actual[1]

    def roc_curve(self) -> RocCurve:
        """Return the ROC curve; raises ``ConfError`` without data."""
        threshold, tp, fp = self._falling()
        x, y = fp / max(self.negatives, 1), tp / max(self.positives, 1)
        if self.steps:
            return RocCurve(threshold[::-1], x[::-1], y[::-1])
        x, y = np.append(x, 1.0), np.append(y, 1.0)
        threshold = np.append(threshold, 0.0)
        kept = _needed(x, y) if self.remove_redundant else slice(None)
        return RocCurve(threshold[kept], x[kept], y[kept])

    def precision_recall_curve(self) -> PrecisionRecallCurve:
        """Return the precision-recall curve; raises ``ConfError`` without data."""
        threshold, tp, fp = (values[::-1] for values in self._falling())
        if not self.steps:  # the far end: everything is "yes"
            threshold = np.insert(threshold, 0, 0.0)
            tp, fp = np.insert(tp, 0, self.positives), np.insert(fp, 0, self.negatives)
        predicted = tp + fp
        precision = np.where(predicted == 0, 1.0, tp / np.maximum(predicted, 1))
        recall = tp / self.positives if self.positives else np.ones(len(tp))
        kept = _needed(precision, recall) if self.remove_redundant and not self.steps else slice(None)
        threshold, precision, recall, tp, fp = (v[kept] for v in (threshold, precision, recall, tp, fp))
        return PrecisionRecallCurve(threshold, precision, recall, tp, fp, self.positives - tp, sum(self._actual))

    def _falling(self) -> tuple[Array, Array, Array]:
        """Return thresholds from 1 down, with the true and false positives at each."""
        if not sum(self._actual):
            raise ConfError("this ROC has no data yet; evaluate a batch first")
        if self.steps:
            return self._thresholds()[::-1], self._counts[0][::-1], self._counts[1][::-1]
        probability, yes = np.concatenate(self._parts, axis=1)
        order = np.argsort(-probability, kind="stable")
        probability, yes = probability[order], yes[order].astype(np.int64)
        last = np.append(probability[1:] != probability[:-1], True)  # last example of each probability
        tp, seen = yes.cumsum()[last], np.flatnonzero(last) + 1
        return np.insert(probability[last], 0, 1.0), np.insert(tp, 0, 0), np.insert(seen - tp, 0, 0)

    def _thresholds(self) -> Array:
        return np.arange(self.steps + 1) / self.steps

    def calculate_auc(self) -> float:
        """Return the area under the ROC curve; NaN if there are no examples of one class."""
        area = self.roc_curve().area()
        return area if all(self._actual) else math.nan

    def calculate_aucpr(self) -> float:
        """Return the area under the precision-recall curve; NaN without positives, where recall is undefined."""
        area = self.precision_recall_curve().area()
        return area if self.positives else math.nan

    # -- reports -----------------------------------------------------------------------------------------------------

    def stats(self) -> str:
        """Return DL4J 1.0.0's text."""
        if not sum(self._actual):
            return "ROC: No data available (no evaluation has been performed)"
        areas = ("NaN" if math.isnan(area) else str(area) for area in (self.calculate_auc(), self.calculate_aucpr()))
        names = ("AUC (Area under ROC Curve):                ", "AUPRC (Area under Precision/Recall Curve): ")
        return "\n".join(name + area for name, area in zip(names, areas, strict=True)) + self.note()

    def note(self) -> str:
        """Return a line on the precision of thresholded results; empty if results are exact."""
        if not self.steps:
            return ""
        return f"\n[Note: Thresholded AUC/AUPRC calculation used with {self.steps} steps); " + (
            "accuracy may reduced compared to exact mode]"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return areas (None: undefined) and state as plain JSON values; ``from_dict`` reads the state back."""
        parts = np.concatenate(self._parts, axis=1).tolist() if self._parts else None
        return {
            "auc": self.calculate_auc() if all(self._actual) else None,
            "aucpr": self.calculate_aucpr() if self.positives else None,
            "steps": self.steps,
            "remove_redundant": self.remove_redundant,
            "examples": parts,
            "counts": self._counts.tolist(),
            "actual": self._actual,
        }

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, to create an equal evaluation."""
        return {"steps": self.steps, "remove_redundant": self.remove_redundant}

    def state(self) -> dict[str, Array]:
        """Return the counts as arrays; ``restore`` reads them back."""
        examples = np.concatenate([np.zeros((2, 0)), *self._parts], axis=1)
        return {"examples": examples, "counts": self._counts, "actual": np.array(self._actual, np.int64)}

    def restore(self, state: Mapping[str, Array]) -> Self:
        """Set the counts to ``state``; return this evaluation."""
        self._parts, self._counts = [state["examples"]] if state["examples"].size else [], state["counts"]
        self._actual = [int(count) for count in state["actual"]]
        return self

    @classmethod
    def from_dict(cls, report: dict[str, Any]) -> ROC:
        """Rebuild an evaluation from ``to_dict``."""
        roc = cls(report["steps"], remove_redundant=report["remove_redundant"])
        roc._parts = [] if report["examples"] is None else [np.asarray(report["examples"], np.float64)]
        roc._counts = np.asarray(report["counts"], np.int64)
        roc._actual = list(report["actual"])
        return roc


def _mean(areas: Sequence[float]) -> float:
    defined = [area for area in areas if not math.isnan(area)]
    return sum(defined) / len(defined) if defined else math.nan


def _area(x: Array, y: Array) -> float:
    return float((np.abs(np.diff(x)) * (y[1:] + y[:-1]) / 2).sum())


def _needed(x: Array, y: Array) -> Array:
    """Return a mask of the necessary points of a curve: the ends, and those not inside a straight segment."""
    inner = slice(1, -1)
    flat = (y[:-2] == y[inner]) & (y[inner] == y[2:])
    steep = (x[:-2] == x[inner]) & (x[inner] == x[2:])
    return np.concatenate([[True], ~(flat | steep), [True]])


class _RocColumns:
    """A ``ROC`` for every column.

    Args:
        steps: number of threshold steps; 0: exact.
        label_names: names of the columns.
        remove_redundant: as in ``ROC``.
    """

    merges_exactly = True
    _single_masks = False

    def __init__(
        self, steps: int = 0, label_names: Sequence[str] | None = None, *, remove_redundant: bool = True
    ) -> None:
        self.steps = ROC(steps).steps
        self.label_names = tuple(label_names) if label_names else None
        self.remove_redundant = remove_redundant
        self.columns: list[ROC] = []

    def eval(self, labels: Array, output: Array, mask: Array | None = None) -> None:
        """Add one batch; shapes and mask as in ``unmasked_rows``."""
        actual, found, single = unmasked_rows(labels, output, mask, per_output=self._single_masks)
        self._expect(actual.shape[1])
        for i, roc in enumerate(self.columns):
            counted = slice(None) if single is None else single[:, i] != 0
            roc.eval_columns(actual[counted, i], found[counted, i])

    def merge(self, other: Self) -> Self:
        """Add the counts of ``other``; raises for another number of columns or of steps."""
        if other.columns:
            self._expect(len(other.columns))
            for mine, theirs in zip(self.columns, other.columns, strict=True):
                mine.merge(theirs)
            self.label_names = self.label_names or other.label_names
        return self

    def _expect(self, columns: int) -> None:
        if not self.columns:
            check_names(type(self).__name__, self.label_names, columns)
            self.columns = [ROC(self.steps, remove_redundant=self.remove_redundant) for _ in range(columns)]
        if len(self.columns) != columns:
            raise ShapeError(f"{type(self).__name__} has {len(self.columns)} columns, this batch has {columns}")

    @property
    def num_labels(self) -> int:
        """Number of columns; 0 before the first batch."""
        return len(self.columns)

    def roc(self, column: int) -> ROC:
        """Return the ROC of one column."""
        check_column(type(self).__name__, column, len(self.columns))
        return self.columns[column]

    def roc_curve(self, column: int) -> RocCurve:
        """Return the ROC curve of one column."""
        return self.roc(column).roc_curve()

    def precision_recall_curve(self, column: int) -> PrecisionRecallCurve:
        """Return the precision-recall curve of one column."""
        return self.roc(column).precision_recall_curve()

    def calculate_auc(self, column: int) -> float:
        """Return the area under the ROC curve of one column."""
        return self.roc(column).calculate_auc()

    def calculate_aucpr(self, column: int) -> float:
        """Return the area under the precision-recall curve of one column."""
        return self.roc(column).calculate_aucpr()

    def calculate_average_auc(self) -> float:
        """Return the mean of ``calculate_auc`` over the columns where it is defined; NaN if there are none."""
        self.roc(0)
        return _mean([roc.calculate_auc() for roc in self.columns])

    def calculate_average_aucpr(self) -> float:
        """Return the mean of ``calculate_aucpr`` over the columns where it is defined; NaN if there are none."""
        self.roc(0)
        return _mean([roc.calculate_aucpr() for roc in self.columns])

    def to_dict(self) -> dict[str, Any]:
        """Return areas and state as plain JSON values; ``from_dict`` reads the state back."""
        return {
            "columns": [roc.to_dict() for roc in self.columns],
            "steps": self.steps,
            "label_names": list(self.label_names) if self.label_names else None,
            "remove_redundant": self.remove_redundant,
        }

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, to create an equal evaluation."""
        names = ("steps", "label_names", "remove_redundant")
        return {name: getattr(self, name) for name in names}

    def state(self) -> dict[str, Array]:
        """Return the counts as arrays; ``restore`` reads them back."""
        if not self.columns:
            return {}
        states = [roc.state() for roc in self.columns]
        examples = np.concatenate([state["examples"] for state in states], axis=1)
        lengths = np.array([state["examples"].shape[1] for state in states], np.int64)
        stacked = {name: np.stack([state[name] for state in states]) for name in ("counts", "actual")}
        return {"examples": examples, "lengths": lengths, **stacked}

    def restore(self, state: Mapping[str, Array]) -> Self:
        """Set the counts to ``state``; return this evaluation."""
        self.columns = []
        self._expect(len(state["lengths"]))
        parts = np.split(state["examples"], np.cumsum(state["lengths"])[:-1], axis=1)
        for roc, examples, counts, actual in zip(self.columns, parts, state["counts"], state["actual"], strict=True):
            roc.restore({"examples": examples, "counts": counts, "actual": actual})
        return self

    @classmethod
    def from_dict(cls, report: dict[str, Any]) -> Self:
        """Rebuild an evaluation from ``to_dict``."""
        evaluation = cls(report["steps"], report["label_names"], remove_redundant=report["remove_redundant"])
        evaluation.columns = [ROC.from_dict(column) for column in report["columns"]]
        return evaluation

    def _table(self, digits: int, *, with_aucpr: bool) -> str:
        width = max(15, *(len(name) for name in self.label_names or ("",))) + 5
        text = f"{'Label':<{width}}{'AUC':<12}" + (f"{'AUPRC':<12}" if with_aucpr else "")
        text += f"{'# Pos':<10}{'# Neg':<10}"
        if not self.columns:
            return text + "\n-- No Data --\n"
        for i, roc in enumerate(self.columns):
            text += f"\n{self.label_names[i] if self.label_names else i!s:<{width}}"
            areas = (roc.calculate_auc(), roc.calculate_aucpr()) if with_aucpr else (roc.calculate_auc(),)
            text += "".join(f"{java_fixed(area, digits):<12}" for area in areas)
            text += f"{roc.positives:<10}{roc.negatives:<10}"
        return text


class ROCBinary(_RocColumns):
    """ROC of independent yes-or-no outputs; a mask may exclude single outputs."""

    _single_masks = True

    def stats(self, digits: int = 4) -> str:
        """Return DL4J 1.0.0's table, character for character."""
        return self._table(digits, with_aucpr=True) + (self.columns[0].note() if self.columns else "")


class ROCMultiClass(_RocColumns):
    """ROC of every class against the rest."""

    def stats(self, digits: int = 4) -> str:
        """Return DL4J 1.0.0's table, character for character (except for a line break that DL4J omits)."""
        text = self._table(digits, with_aucpr=False)
        if not self.columns:
            return text
        text += f"\nAverage AUC: {java_fixed(self.calculate_average_auc(), digits):<12}"
        return text + self.columns[0].note()
