"""RegressionEvaluation: errors of a network's outputs against real-valued labels, for each column.

Follows ``org.nd4j.evaluation.regression.RegressionEvaluation``. The state is the count, the means, and the sums of
squares about the means, merged by Chan, Golub and LeVeque (1979), so that no large sums are subtracted from each other
and parts of the data merge without loss (DL4J's merge omits the labels' sum, which makes its R² wrong).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.evaluation.evaluate import check_column, check_names, java_scientific, unmasked_rows

__all__ = ["RegressionEvaluation"]

_STATE = ("count", "mean", "mean_output", "squares", "squares_output", "products", "squared_errors", "absolute_errors")
_METRICS = ("mse", "mae", "rmse", "rse", "pc", "r2")
_ROUNDING = 4 * np.finfo(np.float64).eps


class RegressionEvaluation:
    """MSE, MAE, RMSE, RSE, Pearson's correlation and R² of every column.

    Args:
        columns: names of the columns; by default ``col_0`` ..., as many as in the first batch.
        digits: number of digits in ``stats()``.
    """

    merges_exactly = False  # sums and means are rounded

    def __init__(self, columns: Sequence[str] | None = None, *, digits: int = 5) -> None:
        self.columns: tuple[str, ...] | None = tuple(columns) if columns else None
        self.digits = digits
        self._state: Array | None = None  # (len(_STATE), columns), float64

    def eval(self, labels: Array, output: Array, mask: Array | None = None) -> None:
        """Add one batch; shapes and mask as in ``unmasked_rows``.

        Raises:
            ShapeError: the shapes do not agree with each other or with earlier batches.
            NotFiniteError: the output holds NaN.
        """
        self._add(_state_of(labels, output, mask))

    def merge(self, other: RegressionEvaluation) -> Self:
        """Add the statistics of ``other``; raises ``ShapeError`` for another number of columns."""
        if other._state is not None:
            self.columns = self.columns or other.columns
            self._add(other._state)
        return self

    def scaled(
        self, scale: float | Sequence[float], shift: float | Sequence[float], columns: Sequence[str] | None = None
    ) -> RegressionEvaluation:
        """Return the evaluation of the labels and outputs after ``value * scale + shift``, with new column names.

        ``scale`` and ``shift`` are one number for all columns, or one for each.
        """
        evaluation = RegressionEvaluation(columns or self.columns, digits=self.digits)
        if self._state is not None:
            by, plus = (np.broadcast_to(np.asarray(given, float), self.num_columns) for given in (scale, shift))
            one, none = np.ones_like(by), np.zeros_like(by)
            factors = np.stack([one, by, by, *[by**2] * 4, np.abs(by)])
            evaluation._state = self._state * factors + np.stack([none, plus, plus, *[none] * 5])
        return evaluation

    def _add(self, part: Array) -> None:
        if self._state is None:
            check_names("RegressionEvaluation", self.columns, part.shape[1])
            self.columns = self.columns or tuple(f"col_{i}" for i in range(part.shape[1]))
            self._state = part  # as it is, so that eval of a batch and merge of its evaluation give the same bits
            return
        whole = self._state
        if whole.shape != part.shape:
            raise ShapeError(f"evaluation has {whole.shape[1]} columns, this batch has {part.shape[1]}")
        count = whole[0] + part[0]
        share = part[0] / np.maximum(count, 1)
        delta, delta_output = part[1] - whole[1], part[2] - whole[2]
        between = whole[0] * share
        merged = whole + part
        merged[1], merged[2] = whole[1] + delta * share, whole[2] + delta_output * share
        merged[3] += delta * delta * between
        merged[4] += delta_output * delta_output * between
        merged[5] += delta * delta_output * between
        self._state = merged

    # -- metrics -----------------------------------------------------------------------------------------------------

    @property
    def num_columns(self) -> int:
        """Number of columns; 0 while it is unknown."""
        return len(self.columns or ())

    def _of(self, column: int) -> dict[str, float]:
        check_column("RegressionEvaluation", column, 0 if self._state is None else self.num_columns)
        assert self._state is not None
        s = dict(zip(_STATE, self._state[:, column].tolist(), strict=True))
        for mean, squares in (("mean", "squares"), ("mean_output", "squares_output")):
            if s[squares] <= s["count"] * (_ROUNDING * s[mean]) ** 2:  # all equal except for the mean's last digit
                s[squares] = 0.0
        return s

    def count(self, column: int) -> int:
        """Number of unmasked values of this column."""
        return int(self._of(column)["count"])

    def mse(self, column: int) -> float:
        """Mean squared error."""
        s = self._of(column)
        return s["squared_errors"] / s["count"] if s["count"] else 0.0

    def mae(self, column: int) -> float:
        """Mean absolute error."""
        s = self._of(column)
        return s["absolute_errors"] / s["count"] if s["count"] else 0.0

    def rmse(self, column: int) -> float:
        """Root of the mean squared error."""
        return math.sqrt(self.mse(column))

    def rse(self, column: int) -> float:
        """Squared error relative to that of predicting the labels' mean; infinite if all labels are equal."""
        s = self._of(column)
        return s["squared_errors"] / s["squares"] if s["squares"] else math.inf

    def pc(self, column: int) -> float:
        """Pearson's correlation of labels and output; 0 if one of them is constant (DL4J: NaN)."""
        s = self._of(column)
        spread = math.sqrt(s["squares"]) * math.sqrt(s["squares_output"])
        return s["products"] / spread if spread else 0.0

    def r2(self, column: int) -> float:
        """Coefficient of determination; 0 if all labels are equal (DL4J: NaN)."""
        s = self._of(column)
        return 1 - s["squared_errors"] / s["squares"] if s["squares"] else 0.0

    def output_mean(self, column: int) -> float:
        """Mean of the outputs."""
        return self._of(column)["mean_output"]

    def output_spread(self, column: int) -> float:
        """Standard deviation of the outputs, in standard deviations of the labels; 0 if all labels are equal."""
        s = self._of(column)
        return math.sqrt(s["squares_output"] / s["squares"]) if s["squares"] else 0.0

    def average(self, metric: str) -> float:
        """Return the mean of "mse", "mae", "rmse", "rse", "pc" or "r2" over the columns."""
        if metric not in _METRICS:
            raise ConfError(f"a RegressionEvaluation has no metric {metric!r}; there are {', '.join(_METRICS)}")
        check_column("RegressionEvaluation", 0, 0 if self._state is None else self.num_columns)
        return float(sum(getattr(self, metric)(i) for i in range(self.num_columns)) / self.num_columns)

    # -- reports -----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return averages and state as plain JSON values (infinity as None); ``from_dict`` reads the state back."""
        report: dict[str, Any] = {"columns": list(self.columns) if self.columns else None, "digits": self.digits}
        report["state"] = None if self._state is None else self._state.tolist()
        if self._state is not None:
            averages = {name: self.average(name) for name in _METRICS}
            report |= {name: value if math.isfinite(value) else None for name, value in averages.items()}
        return report

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments, to create an equal evaluation."""
        return {"columns": self.columns, "digits": self.digits}

    def state(self) -> dict[str, Array]:
        """Return the state as arrays; ``restore`` reads it back."""
        return {} if self._state is None else {"state": self._state}

    def restore(self, state: Mapping[str, Array]) -> Self:
        """Set the state to ``state``; return this evaluation."""
        self._state = state["state"]
        return self

    @classmethod
    def from_dict(cls, report: dict[str, Any]) -> RegressionEvaluation:
        """Rebuild an evaluation from ``to_dict``."""
        evaluation = cls(report["columns"], digits=report["digits"])
        if report["state"] is not None:
            evaluation._state = np.asarray(report["state"], np.float64)
        return evaluation

    def stats(self) -> str:
        """Return DL4J 1.0.0's table, character for character."""
        if self._state is None:
            return "RegressionEvaluation: No Data"
        names = self.columns or ()
        label, width = max(len(name) for name in names) + 5, self.digits + 10
        header = (f"{name:<{width}}" for name in ("MSE", "MAE", "RMSE", "RSE", "PC", "R^2"))
        lines = [f"{'Column':<{label}}" + "".join(header)]
        for i, name in enumerate(names):
            cells = (f"{java_scientific(getattr(self, metric)(i), self.digits):<{width}}" for metric in _METRICS)
            lines.append(f"{name:<{label}}" + "".join(cells))
        return "\n".join([*lines, ""])


def _state_of(labels: Array, output: Array, mask: Array | None) -> Array:
    """Return the state of an evaluation of one batch, ``(8, columns)`` float64; args and errors as for ``eval``."""
    actual, found, single = unmasked_rows(labels, output, mask, per_output=True)
    x, y = actual.astype(np.float64), found.astype(np.float64)
    w = np.ones(x.shape) if single is None else single
    y = np.where(w != 0, y, 0)
    count = w.sum(axis=0)
    divisor = np.maximum(count, 1)
    mean, mean_output = (x * w).sum(axis=0) / divisor, (y * w).sum(axis=0) / divisor
    dx, dy, error = (x - mean) * w, (y - mean_output) * w, (y - x) * w
    sums = [(a * b).sum(axis=0) for a, b in ((dx, dx), (dy, dy), (dx, dy), (error, error))]
    return np.stack([count, mean, mean_output, *sums, np.abs(error).sum(axis=0)])
