"""Evaluation of a classifier: counts of (actual, predicted) class pairs, and the metrics computed from them.

The input is the network's output on held-out examples; the results are numbers and DL4J's ``stats()`` text. The
confusion matrix is the whole state, so evaluations from different workers merge by addition, in any order, without
loss. Follows ``org.nd4j.evaluation.classification.Evaluation`` of Deeplearning4j 1.0.0, but returns 0 where that class
returns NaN for 0/0, so that results are always valid JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, DataError, ShapeError
from dl4jlegacy.nn.evaluation.evaluate import unmasked_rows

__all__ = ["Averaging", "Evaluation"]

Averaging = Literal["macro", "micro"]

_CONFUSION_PRINT_MAX_CLASSES = 20
_WARNING_PRINT_MAX_CLASSES = 16


class Evaluation:
    """Accuracy, precision, recall, F1 and related metrics of a classifier, accumulated batch by batch.

    Without ``n_classes``, ``label_names`` or the first batch decides. With exactly two classes the
    precision, recall, F1 and so on of ``binary_positive_class`` are reported, as in DL4J; pass ``None`` to get
    macro averages instead. ``top_n`` > 1 also counts an example as top-N correct if fewer than N classes got a
    higher probability than the true one.

    Not thread-safe: one thread accumulates, or each thread has its own object and the objects are merged.
    """

    merges_exactly = True

    def __init__(
        self,
        n_classes: int | None = None,
        label_names: Sequence[str] | None = None,
        *,
        top_n: int = 1,
        binary_positive_class: int | None = 1,
    ) -> None:
        if n_classes is None and label_names:
            n_classes = len(label_names)
        if n_classes is not None and n_classes < 1:
            raise ConfError(f"Evaluation got n_classes={n_classes}; it needs at least 1")
        if label_names and len(label_names) != n_classes:
            raise ShapeError(f"Evaluation got {len(label_names)} names for {n_classes} classes; give one per class")
        if top_n < 1:
            raise ConfError(f"Evaluation got top_n={top_n}; it must be at least 1")
        self.label_names: tuple[str, ...] | None = tuple(label_names) if label_names else None
        self.top_n = top_n
        self.binary_positive_class = binary_positive_class
        self._confusion: Array | None = None if n_classes is None else np.zeros((n_classes, n_classes), np.int64)
        self._top_n_correct = 0

    # -- accumulating ------------------------------------------------------------------------------------------------

    def eval(self, labels: Array, output: Array, mask: Array | None = None) -> None:
        """Count one batch.

        Args:
            labels: ``(examples, n_classes)``, one-hot or probabilities; or ``(examples, 1)`` holding 0 and 1; or
                ``(examples, n_classes, time steps)``, where every time step counts.
            output: the network's output, same shape; a single column is read as the probability of class 1,
                predicted above 0.5 (a tie is class 0, as between two columns).
            mask: ``(examples,)`` or ``(examples, 1)``, for sequences ``(examples, time steps)``; 0 leaves out.

        Raises:
            ShapeError: the shapes do not agree with each other or with earlier batches.
            NotFiniteError: the output holds NaN. DataError: the labels hold NaN or infinity.
        """
        labels, output, _ = unmasked_rows(labels, output, mask)
        if output.shape[1] == 1:
            self._count((labels[:, 0] > 0.5).astype(np.intp), (output[:, 0] > 0.5).astype(np.intp), 2)
            self._top_n_correct += len(output) if self.top_n > 1 else 0  # with two classes, both are in the top 2
            return
        actual = labels.argmax(axis=1)
        self._count(actual, output.argmax(axis=1), output.shape[1])
        if self.top_n > 1:
            of_actual = np.take_along_axis(output, actual[:, None], axis=1)
            self._top_n_correct += int(((output > of_actual).sum(axis=1) < self.top_n).sum())

    def eval_classes(self, actual: Iterable[int], predicted: Iterable[int]) -> None:
        """Count examples given by class numbers; needs ``n_classes`` to be known, and ``top_n`` to be 1.

        Raises:
            ConfError: ``top_n`` is greater than 1, for which class numbers are not sufficient.
            DataError: the values are not class numbers. ShapeError: there is not one of each per example.
        """
        if self.top_n > 1:
            raise ConfError(f"class numbers do not say which {self.top_n} classes are the most probable; use eval")
        a, p = _class_numbers("actual", actual), _class_numbers("predicted", predicted)
        if a.shape != p.shape:
            raise ShapeError(f"{a.size} actual classes but {p.size} predicted ones; give one of each per example")
        self._count(a, p, self.n_classes)

    def merge(self, other: Evaluation) -> Self:
        """Add the counts of ``other`` to this one and return this one.

        Raises:
            ShapeError: both have data, for different numbers of classes.
            ConfError: the two have different ``top_n``.
        """
        if other._confusion is None:
            return self
        if self.top_n != other.top_n:
            raise ConfError(f"cannot merge an evaluation of top {other.top_n} into one of top {self.top_n}")
        self._counts(other.n_classes)
        self._confusion = self.confusion + other._confusion
        self._top_n_correct += other._top_n_correct
        self.label_names = self.label_names or other.label_names
        return self

    def _count(self, actual: Array, predicted: Array, n_classes: int) -> None:
        counts = self._counts(n_classes)
        n = counts.shape[0]
        for name, classes in (("actual", actual), ("predicted", predicted)):
            bad = np.flatnonzero((classes < 0) | (classes >= n))
            if bad.size:
                raise DataError(f"{name} class {classes[bad[0]]} of example {bad[0]} is outside 0..{n - 1}")
        counts += np.bincount(actual * n + predicted, minlength=n * n).reshape(n, n)

    def _counts(self, n_classes: int) -> Array:
        if self._confusion is None:
            self._confusion = np.zeros((n_classes, n_classes), np.int64)
        if self._confusion.shape[0] != n_classes:
            raise ShapeError(
                f"evaluation counts {self._confusion.shape[0]} classes, this batch has {n_classes}; "
                "use one Evaluation per network"
            )
        return self._confusion

    # -- counts ------------------------------------------------------------------------------------------------------

    @property
    def n_classes(self) -> int:
        """Number of classes; raises ``ConfError`` while it is unknown."""
        if self._confusion is None:
            raise ConfError("this Evaluation does not know its classes yet; pass n_classes or evaluate a batch first")
        return int(self._confusion.shape[0])

    @property
    def examples(self) -> int:
        """Number of examples counted so far."""
        return 0 if self._confusion is None else int(self._confusion.sum())

    @property
    def confusion(self) -> Array:
        """Counts ``(actual class, predicted class)``, int64, as a copy."""
        return self._counts(self.n_classes).copy()

    @property
    def true_positives(self) -> Array:
        """Per class: examples of the class that were predicted as this class."""
        return self.confusion.diagonal().copy()

    @property
    def false_positives(self) -> Array:
        """Per class: examples of other classes that were predicted as this class."""
        c = self.confusion
        return np.asarray(c.sum(axis=0) - c.diagonal())

    @property
    def false_negatives(self) -> Array:
        """Per class: examples of the class that were predicted as another class."""
        c = self.confusion
        return np.asarray(c.sum(axis=1) - c.diagonal())

    @property
    def true_negatives(self) -> Array:
        """Per class: examples of other classes that were not predicted as this class."""
        return np.asarray(self.examples - self.true_positives - self.false_positives - self.false_negatives)

    # -- metrics -----------------------------------------------------------------------------------------------------

    def accuracy(self) -> float:
        """Share of examples whose predicted class is the actual one; 0.0 without examples."""
        return int(self.true_positives.sum()) / self.examples if self.examples else 0.0

    def top_n_accuracy(self) -> float:
        """Share of examples whose actual class is among the ``top_n`` most probable ones."""
        if self.top_n == 1:
            return self.accuracy()
        return self._top_n_correct / self.examples if self.examples else 0.0

    def precision(self, label: int | None = None, averaging: Averaging | None = None) -> float:
        """tp / (tp + fp) of one class, or averaged; classes never predicted are left out of the macro average."""
        return self._metric(_precision, label, averaging)

    def recall(self, label: int | None = None, averaging: Averaging | None = None) -> float:
        """tp / (tp + fn) of one class, or averaged; classes without examples are left out of the macro average."""
        return self._metric(_recall, label, averaging)

    def f_beta(self, beta: float, label: int | None = None, averaging: Averaging | None = None) -> float:
        """(1+β²)·p·r / (β²·p + r); classes whose precision or recall is 0/0 are left out of the macro average."""
        return self._metric(lambda *counts: _f_beta(beta, *counts), label, averaging)

    def f1(self, label: int | None = None, averaging: Averaging | None = None) -> float:
        """Harmonic mean of precision and recall (``f_beta`` with β = 1)."""
        return self.f_beta(1.0, label, averaging)

    def g_measure(self, label: int | None = None, averaging: Averaging | None = None) -> float:
        """Geometric mean of precision and recall; an undefined one counts as 0."""
        return self._metric(_g_measure, label, averaging)

    def matthews_correlation(self, label: int | None = None, averaging: Averaging | None = None) -> float:
        """Matthews (1975) correlation of a class against the rest, -1..1; 0 where it is undefined."""
        return self._metric(_matthews, label, averaging)

    def false_positive_rate(self, label: int | None = None, averaging: Averaging | None = None) -> float:
        """fp / (fp + tn); 0 where undefined."""
        return self._metric(lambda tp, fp, fn, tn: _or_zero(_ratio(fp, fp + tn)), label, averaging)

    def false_negative_rate(self, label: int | None = None, averaging: Averaging | None = None) -> float:
        """fn / (fn + tp); 0 where undefined."""
        # Legacy: DL4J's micro average divides by fn + tn, which is not a false negative rate.
        return self._metric(lambda tp, fp, fn, tn: _or_zero(_ratio(fn, fn + tp)), label, averaging)

    def false_alarm_rate(self) -> float:
        """Mean of the false positive and the false negative rate."""
        return (self.false_positive_rate() + self.false_negative_rate()) / 2.0

    def excluded_classes(self, metric: Literal["precision", "recall", "f1"]) -> tuple[int, ...]:
        """Classes that the macro average of ``metric`` excludes because the metric is 0/0 there."""
        formula = {"precision": _precision, "recall": _recall, "f1": lambda *c: _f_beta(1.0, *c)}[metric]
        return tuple(int(i) for i in np.flatnonzero(np.isnan(formula(*self._tallies()))))

    def _tallies(self) -> tuple[Array, Array, Array, Array]:
        tallies = (self.true_positives, self.false_positives, self.false_negatives, self.true_negatives)
        tp, fp, fn, tn = (t.astype(np.float64) for t in tallies)
        return tp, fp, fn, tn

    def _metric(self, formula: Any, label: int | None, averaging: Averaging | None) -> float:
        """Apply ``formula(tp, fp, fn, tn)`` to a class, or average it over classes; the mean leaves out NaN."""
        counts = self._tallies()
        if label is None and averaging is None and self.n_classes == 2:
            label = self.binary_positive_class
        if label is not None:
            if not 0 <= label < self.n_classes:
                raise ConfError(f"class {label} asked for, but the classes are 0..{self.n_classes - 1}")
            return float(_or_zero(formula(*counts))[label])
        if averaging == "micro":
            return float(_or_zero(formula(*(c.sum(keepdims=True) for c in counts)))[0])
        values = formula(*counts)
        defined = values[~np.isnan(values)]
        return float(defined.mean()) if defined.size else 0.0

    # -- reports -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return metrics and counts as plain JSON values; ``from_dict`` reads the counts back."""
        report: dict[str, Any] = {
            "examples": self.examples,
            "classes": self.n_classes,
            "accuracy": self.accuracy(),
            "precision": self.precision(),
            "recall": self.recall(),
            "f1": self.f1(),
            "confusion": self.confusion.tolist(),
            "top_n": self.top_n,
            "top_n_correct": self._top_n_correct,
            "binary_positive_class": self.binary_positive_class,
            "label_names": list(self.label_names) if self.label_names else None,
        }
        if self.top_n > 1:
            report["top_n_accuracy"] = self.top_n_accuracy()
        return report

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, to create an equal evaluation."""
        return {
            "n_classes": None if self._confusion is None else self.n_classes,
            "label_names": self.label_names,
            "top_n": self.top_n,
            "binary_positive_class": self.binary_positive_class,
        }

    def state(self) -> dict[str, Array]:
        """Return the counts as arrays; ``restore`` reads them back."""
        if self._confusion is None:
            return {}
        return {"confusion": self.confusion, "top_n_correct": np.array(self._top_n_correct, np.int64)}

    def restore(self, state: Mapping[str, Array]) -> Self:
        """Set the counts to ``state``; return this evaluation."""
        self._confusion, self._top_n_correct = state["confusion"], int(state["top_n_correct"])
        return self

    @classmethod
    def from_dict(cls, report: dict[str, Any]) -> Evaluation:
        """Rebuild an evaluation from ``to_dict``, for example to merge evaluations of several workers."""
        confusion = np.asarray(report["confusion"], np.int64)
        if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1] or (confusion < 0).any():
            raise DataError(f"confusion matrix of shape {confusion.shape} is not a square matrix of counts")
        positive = report.get("binary_positive_class", 1)
        names, top_n = report.get("label_names"), report.get("top_n", 1)
        evaluation = cls(len(confusion), names, top_n=top_n, binary_positive_class=positive)
        evaluation._confusion = confusion
        evaluation._top_n_correct = int(report.get("top_n_correct", 0))
        return evaluation

    def stats(self, *, suppress_warnings: bool = False, include_confusion: bool | None = None) -> str:
        """Return DL4J 1.0.0's report text, character for character, but with a line break after every warning.

        The confusion matrix is included for at most 20 classes, or as ``include_confusion`` says.
        """
        if not self.examples:
            return "Evaluation: No data available (no evaluation has been performed)"
        n = self.n_classes
        lines = ["", "", "========================Evaluation Metrics========================"]
        lines += [*self._score_lines(), "", ""]
        text = "\n".join(lines)
        if not suppress_warnings:
            text += self._warning("precision") + self._warning("recall")
        if include_confusion or (include_confusion is None and n <= _CONFUSION_PRINT_MAX_CLASSES):
            text += "\n=========================Confusion Matrix=========================\n" + self.confusion_matrix()
        elif include_confusion is None:
            text += f"\n\nNote: Confusion matrix not generated due to space requirements for {n} classes.\n"
            text += "Use stats(include_confusion=True) to generate anyway"
        return text + "\n" + "=" * 66

    def _score_lines(self) -> list[str]:
        n, positive = self.n_classes, self.binary_positive_class
        lines = [f" # of classes:    {n}", f" Accuracy:        {self.accuracy():.4f}"]
        if self.top_n > 1:
            lines.append(f" Top {self.top_n} Accuracy:  {self.top_n_accuracy():.4f}")
        lines.append(f" Precision:       {self.precision():.4f}{self._excluded_note('precision')}")
        lines.append(f" Recall:          {self.recall():.4f}{self._excluded_note('recall')}")
        lines.append(f" F1 Score:        {self.f1():.4f}{self._excluded_note('f1')}")
        if n != 2 or positive is None:
            lines.append(f"Precision, recall & F1: macro-averaged (equally weighted avg. of {n} classes)")
        else:
            name = f' - "{self.label_names[positive]}"' if self.label_names else ""
            lines.append(f"Precision, recall & F1: reported for positive class (class {positive}{name}) only")
        return lines

    def _excluded_note(self, metric: Literal["precision", "recall", "f1"]) -> str:
        count = len(self.excluded_classes(metric))
        if self.n_classes <= 2 or not count:
            return ""
        return f"\t({count} class{'es' if count > 1 else ''} excluded from average)"

    def _warning(self, metric: Literal["precision", "recall"]) -> str:
        classes = list(self.excluded_classes(metric))
        if not classes:
            return ""
        es, was = ("", "was") if len(classes) == 1 else ("es", "were")
        text = f"Warning: {len(classes)} class{es} {was} never predicted by the model and {was} excluded from average"
        text += f" {metric}\n"
        if len(classes) <= _WARNING_PRINT_MAX_CLASSES:
            text += f"Classes excluded from average {metric}: {classes}\n"
        return text

    def confusion_matrix(self) -> str:
        """Return the confusion matrix as text: rows are actual classes, columns predicted ones."""
        counts, n = self.confusion, self.n_classes
        digits = max(1, math.ceil(math.log10(max(1, int(counts.max()), n))))
        width = digits + 1
        names = self.label_names or tuple(str(i) for i in range(n))
        lines = ["".join(f"{i:{width}d}" for i in range(n)), "-" * (width * n + 1)]
        for i, row in enumerate(counts):
            lines.append("".join(f"{count:{width}d}" for count in row) + f" | {i} = {names[i]}")
        return "\n".join([*lines, "", "Confusion matrix format: Actual (rowClass) predicted as (columnClass) N times"])

    def __repr__(self) -> str:
        if not self.examples:
            return "Evaluation(no examples)"
        return f"Evaluation({self.examples} examples, {self.n_classes} classes, accuracy {self.accuracy():.4f})"


def _ratio(part: Array, whole: Array) -> Array:
    """Elementwise part / whole, NaN where whole is 0."""
    ratio: Array = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole != 0)
    return ratio


def _or_zero(values: Array) -> Array:
    return np.nan_to_num(values, nan=0.0)


def _precision(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    return _ratio(tp, tp + fp)


def _recall(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    return _ratio(tp, tp + fn)


def _f_beta(beta: float, tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    p, r = _ratio(tp, tp + fp), _ratio(tp, tp + fn)
    score = _or_zero(_ratio((1 + beta**2) * p * r, beta**2 * p + r))
    return np.where(np.isnan(p) | np.isnan(r), np.nan, score)


def _g_measure(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    p, r = _or_zero(_ratio(tp, tp + fp)), _or_zero(_ratio(tp, tp + fn))
    return np.asarray(np.sqrt(p * r))


def _class_numbers(name: str, classes: Iterable[int]) -> Array:
    """Return class numbers as an array; raises ``DataError`` for values that are not whole numbers."""
    found = np.asarray(list(classes))
    if found.size and (found.dtype.kind not in "iufb" or not (found == np.floor(found)).all()):
        raise DataError(f"{name} classes {found[:3].tolist()}... are no class numbers; they must be whole numbers")
    return found.astype(np.intp)


def _matthews(tp: Array, fp: Array, fn: Array, tn: Array) -> Array:
    scale = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return _or_zero(_ratio(tp * tn - fp * fn, scale))
