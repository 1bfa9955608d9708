"""ROC of several outputs: independent ones (``ROCBinary``), or the classes of one softmax, each against the rest.

Follow ``org.nd4j.evaluation.classification.ROCBinary`` and ``ROCMultiClass``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.nn.evaluation.roc import ROC, PrecisionRecallCurve, RocCurve
from dl4jlegacy.nn.evaluation.rows import check_column, check_names, fixed, rows

__all__ = ["ROCBinary", "ROCMultiClass"]


class _RocColumns:
    """A ``ROC`` for every column.

    Args:
        steps: of the threshold; 0: exact.
        label_names: names of the columns.
        remove_redundant: as in ``ROC``.
    """

    _single_masks = False

    def __init__(
        self, steps: int = 0, label_names: Sequence[str] | None = None, *, remove_redundant: bool = True
    ) -> None:
        self.steps = ROC(steps).steps
        self.label_names = tuple(label_names) if label_names else None
        self.remove_redundant = remove_redundant
        self.columns: list[ROC] = []

    def eval(self, labels: Array, output: Array, mask: Array | None = None) -> None:
        """Take in one batch; shapes and mask as in ``evaluation_rows.rows``."""
        actual, found, single = rows(labels, output, mask, per_output=self._single_masks)
        self._expect(actual.shape[1])
        for i, roc in enumerate(self.columns):
            counted = slice(None) if single is None else single[:, i] != 0
            roc.eval_columns(actual[counted, i], found[counted, i])

    def merge(self, other: Self) -> Self:
        """Take in what ``other`` has seen; raises for another number of columns or of steps."""
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
        """Number of columns; 0 while nothing was evaluated."""
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
        """Return the mean of ``calculate_auc`` over the columns."""
        self.roc(0)
        return float(np.mean([roc.calculate_auc() for roc in self.columns]))

    def calculate_average_aucpr(self) -> float:
        """Return the mean of ``calculate_aucpr`` over the columns."""
        self.roc(0)
        return float(np.mean([roc.calculate_aucpr() for roc in self.columns]))

    def to_dict(self) -> dict[str, Any]:
        """Return areas and state as plain JSON values; ``from_dict`` reads the state back."""
        return {
            "columns": [roc.to_dict() for roc in self.columns],
            "steps": self.steps,
            "label_names": list(self.label_names) if self.label_names else None,
            "remove_redundant": self.remove_redundant,
        }

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
            text += "".join(f"{fixed(area, digits):<12}" for area in areas)
            text += f"{roc.positives:<10}{roc.negatives:<10}"
        return text


class ROCBinary(_RocColumns):
    """ROC of independent yes-or-no outputs; a mask may leave out single outputs."""

    _single_masks = True

    def stats(self, digits: int = 4) -> str:
        """Return DL4J 1.0.0's table, character for character."""
        return self._table(digits, with_aucpr=True) + (self.columns[0].note() if self.columns else "")


class ROCMultiClass(_RocColumns):
    """ROC of every class against the rest."""

    def stats(self, digits: int = 4) -> str:
        """Return DL4J 1.0.0's table, character for character (but for a line break that is missing there)."""
        text = self._table(digits, with_aucpr=False)
        if not self.columns:
            return text
        text += f"\nAverage AUC: {fixed(self.calculate_average_auc(), digits):<12}"
        return text + self.columns[0].note()
