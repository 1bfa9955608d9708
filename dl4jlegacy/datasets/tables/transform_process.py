"""TransformProcess: turns the columns of a table into features and labels; an immutable value that is stored as JSON.

It is fitted to the training rows, and stored with the run (in its ``Conf``) and the model (in its file), so that
evaluations and predictions transform other rows in the same way. Follows DataVec's
``org.datavec.api.transform.TransformProcess`` and ``Schema``.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.quantiles import MOST_BINS, QuantileBins
from dl4jlegacy.datasets.columns.step import is_numeric
from dl4jlegacy.datasets.columns.table import Column, Table
from dl4jlegacy.datasets.columns.transforms import Linear, RemoveColumns, Step, mean_and_std_of
from dl4jlegacy.datasets.dataset import DataSet, one_hot
from dl4jlegacy.datasets.label_scale import LabelScale, signed_log
from dl4jlegacy.datasets.tables.data_frames import FrameColumns
from dl4jlegacy.datasets.tables.label_cells import class_name, classes_of, label_gaps, numbers_in
from dl4jlegacy.datasets.tables.table_blocks import table_blocks
from dl4jlegacy.datasets.tables.text_rows import MISSING, open_table
from dl4jlegacy.datasets.unseen_words import UnseenWords
from dl4jlegacy.errors import ConfError, DataError, counted, nearest
from dl4jlegacy.system.decoding import decodable

__all__ = ["TransformProcess", "TransformedTables", "no_answer"]

logger = logging.getLogger(__name__)

_ROWS = 8192


class TransformProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The columns of a file, and the steps that turn them into features.

    Attributes:
        columns: of the file, in order; other columns in the file are ignored.
        label: the column to learn; ``""`` for none.
        regression: the label is a number to predict; else it is a class, whatever its cells contain.
        labels: several columns to learn instead of ``label``, one output each: numbers to predict, or with
            ``multi_label`` any number of columns with 0 or 1, which do not exclude each other.
        steps: applied in this order; see ``datasets.transforms``.
        missing: cells that mark a missing value, in lower case; in a class label only empty cells do, unless the list
            is given.
        classes: of the label, in the order of the outputs; learned if empty.
        label_mean, label_std: of the number to predict, which the network learns standardized; learned if 0.
        label_means, label_stds: those of ``labels``; learned if empty.
        label_log: the labels whose logarithm is learned: log(1 + y), and -log(1 - y) where y is negative. Mean and
            deviation are then those of the logarithm. Predictions are in the label's units.
        label_limits: the smallest and the largest value of each label in ``label_log``, between which its predictions
            stay; learned if empty.
    """

    columns: tuple[Column, ...]
    label: str = ""
    regression: bool = False
    steps: tuple[Step, ...] = ()
    missing: tuple[str, ...] = MISSING
    classes: tuple[str, ...] = ()
    label_mean: float = 0.0
    label_std: float = 0.0
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    label_means: tuple[float, ...] = ()
    label_stds: tuple[float, ...] = ()
    label_log: tuple[str, ...] = ()
    label_limits: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names) or "" in names:
            twice = sorted({name for name in names if names.count(name) > 1})
            what = f"a column twice: {', '.join(twice)}" if twice else "no columns, or one without a name"
            raise ConfError(f"the schema has {what}")
        if self.label and self.label not in names:
            raise ConfError(f"label {self.label!r} is not a column of the schema{nearest(self.label, names)}")
        self._check_labels(names)
        if not (math.isfinite(self.label_mean) and 0 <= self.label_std < math.inf):
            raise ConfError(f"the schema's label_mean and label_std are {self.label_mean} and {self.label_std}")
        self._check_steps()

    def _check_labels(self, names: list[str]) -> None:
        for name in self.labels:
            if name not in names:
                raise ConfError(f"label {name!r} is not a column of the schema{nearest(name, names)}")
            if self.labels.count(name) > 1:
                raise ConfError(f"the schema lists label {name!r} twice")
        if (self.labels and self.label) or (self.multi_label and (self.regression or not self.labels)):
            raise ConfError(
                f"the schema has label {self.label!r}, labels {list(self.labels)}, regression {self.regression} and "
                f"multi_label {self.multi_label}; give one label, or labels, which are numbers (regression), or 0 and "
                "1 (multi_label)"
            )
        if self.labels and not self.multi_label and not self.regression:
            raise ConfError("the schema has several labels, which are no classes; give regression, or multi_label")
        if not all(map(math.isfinite, (*self.label_means, *self.label_stds))) or any(
            len(given) not in (0, len(self.labels)) for given in (self.label_means, self.label_stds)
        ):
            raise ConfError(
                f"the schema's label_means and label_stds are {self.label_means} and {self.label_stds}; give a number "
                "for each of its labels"
            )
        if set(self.label_log) - set(self.label_columns if self.regression else ()):
            raise ConfError(
                f"the schema's label_log is {list(self.label_log)}; name labels that are numbers to predict"
            )
        if len(self.label_limits) not in (0, len(self.label_log)) or not all(
            -math.inf < low < high < math.inf for low, high in self.label_limits
        ):
            raise ConfError(
                f"the schema's label_limits are {self.label_limits}; give the smallest and the largest value of each "
                "label in label_log"
            )

    def _check_steps(self) -> None:
        known = {column.name for column in self.columns} - set(self.label_columns)
        for step in self.steps:
            tag = step.__struct_config__.tag
            for name in _read_by(step):
                if name in self.label_columns:
                    raise ConfError(f"step {tag!r} of the schema names the label {name!r}; steps are for features")
                if name not in known and "[" not in name:
                    raise ConfError(
                        f"step {tag!r} of the schema names column {name!r}, which is not there"
                        f"{nearest(name, sorted(known))}"
                    )
            known |= set(step.made())
            if isinstance(step, RemoveColumns):
                known -= set(step.columns)
            if isinstance(step, Linear) and step.base and self.label_log:
                raise ConfError(
                    f"step {tag!r} of the schema begins at column {step.base!r}, and label_log has the network learn "
                    "the logarithm of the label; leave one of them out"
                )

    @property
    def is_fitted(self) -> bool:
        """Whether nothing is left to learn from the training rows."""
        return self.is_label_fitted and all(step.is_fitted for step in self.steps)

    @property
    def is_label_fitted(self) -> bool:
        """Whether nothing is left to learn from the labels."""
        if not self.regression:
            return self.multi_label or not self.label or bool(self.classes)
        is_scaled = bool(self.label_stds) if self.labels else not self.label or self.label_std > 0
        return is_scaled and len(self.label_limits) == len(self.label_log)

    @property
    def scales(self) -> bool:
        """Whether a step scales numbers."""
        return any(step.__struct_config__.tag in ("standardize", "min-max") for step in self.steps)

    @property
    def bins(self) -> int:
        """The number of columns that the steps ``quantiles`` add, at most."""
        numbers = [column.name for column in self.columns if column.type == "number"]
        steps = [step for step in self.steps if isinstance(step, QuantileBins)]
        return sum((step.bins or MOST_BINS) * len(step.columns or numbers) for step in steps)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the outputs: the classes, or the columns to predict."""
        return self.label_columns if self.regression or self.multi_label else self.classes

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features that a fitted process makes, in order."""
        left_out = self._not_needed() | set(self.label_columns)
        empty: dict[str, Array] = {
            column.name: np.empty(0, np.float64 if column.type == "number" else object)
            for column in self.columns
            if column.name not in left_out
        }
        return tuple(self.apply(Table("the schema", empty, np.empty(0, np.int64), {})).columns)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns to learn, one or several."""
        return self.labels or ((self.label,) if self.label else ())

    @property
    def label_scale(self) -> LabelScale | None:
        """The scale of the numbers to predict; None for classes."""
        if not self.regression:
            return None
        limits = dict(zip(self.label_log, self.label_limits, strict=False))
        return LabelScale(
            self.label_means or (self.label_mean,),
            self.label_stds or (self.label_std,),
            tuple(limits.get(name) for name in self.label_columns) if limits else (),
        )

    def to_json(self) -> str:
        """Return the process as JSON, to be read and edited."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @staticmethod
    def from_json(text: str | bytes) -> TransformProcess:
        """Return the process that ``to_json`` wrote; raises ``ConfError``."""
        try:
            return msgspec.json.decode(text, type=decodable(TransformProcess))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise ConfError(f"not a schema: {exc}") from exc

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, path: Path) -> Table:
        """Return the labelled rows of a table's file; raises ``DataError``, which names the cell."""
        if not self.label_columns:
            raise ConfError(f"the schema for {path} names no label; give --label COLUMN, or 'label' in the schema")
        return Table.merge(list(self.blocks(open_table(path), str(path), rows=_ROWS, labelled=True)))

    def blocks(
        self, file: BinaryIO | FrameColumns, name: str, *, rows: int, labelled: bool = False, warns: bool = False
    ) -> Iterator[Table]:
        """Yield the rows of a table's file in blocks of ``rows`` rows; args and errors as for ``table_blocks``.

        With ``labelled``, only labelled rows, with the labels separated; else the label column may be missing.
        """
        kind: Literal["number", "category"] = "number" if self.regression or self.multi_label else "category"
        columns = [Column(c.name, kind) if c.name in self.label_columns else c for c in self.columns]
        unread, label = self._not_needed(), ""
        if not labelled:
            unread, label = unread | set(self.label_columns), self.label
        gaps = {self.label: label_gaps(self.missing)} if kind == "category" else {}
        found = table_blocks(
            file, name, columns, rows=rows, missing=self.missing, gaps_of=gaps, unread=unread, label=label, warns=warns
        )
        with contextlib.closing(found) as tables:
            for table in tables:
                yield self._with_labels(table) if labelled else table

    def _not_needed(self) -> frozenset[str]:
        """Return the columns that are removed before any step uses them."""
        removed: set[str] = set()
        used: set[str] = set()
        for step in self.steps:
            if isinstance(step, RemoveColumns):
                removed |= set(step.columns) - used
            else:
                used |= set(_read_by(step))
        return frozenset(removed)

    def _with_labels(self, table: Table) -> Table:
        """Return the labelled rows, with the labels separated from the features."""
        apart = table.labelled(self.labels or self.label)
        labels = _labels_of(apart)
        is_gap: Array = np.isnan(labels) if self.regression or self.multi_label else labels == ""
        there: npt.NDArray[np.bool_] = np.atleast_1d(~is_gap.reshape(len(labels), -1).any(axis=1))
        if there.all():
            return apart
        logger.warning(
            "%s: %s without a value in the label %r left out; the first is %s %s",
            table.name,
            "1 row" if (~there).sum() == 1 else f"{(~there).sum():,} rows",
            ", ".join(self.label_columns),
            table.unit,
            table.lines[int((~there).argmax())],
        )
        return apart.take(there)

    # -- learning ------------------------------------------------------------------------------------------------------

    def with_classes_learned(self, train: Table) -> TransformProcess:
        """Return the process with the classes of a separate training part, in which one row per class is enough.

        A process that knows its classes, or predicts numbers, is returned unchanged.
        """
        if self.regression or self.multi_label or self.classes:
            return self
        return self.with_classes(_labels_of(train).tolist())

    def with_classes_of(self, tables: Sequence[Table]) -> TransformProcess:
        """Return the process with the classes in all tables; unchanged if it knows them, or predicts numbers.

        Raises:
            DataError: a class occurs once, so that it can be trained on or evaluated, but not both.
        """
        if self.regression or self.multi_label or self.classes:
            return self
        counts: dict[str, int] = {}
        for table in tables:
            for label in map(class_name, _labels_of(table).tolist()):
                counts[label] = counts.get(label, 0) + 1
        for table in tables if 1 in counts.values() else ():
            for row, label in enumerate(map(class_name, _labels_of(table).tolist())):
                if counts[label] == 1:
                    raise DataError(
                        f"{table.place(row, self.label)}: label {label!r} occurs once, and a class needs two rows at "
                        "least, one to learn from and one to be judged by: correct it, or leave the row out"
                        f"{self._perhaps_numbers(counts)}"
                    )
        return self.with_classes(counts)

    def with_classes(self, words: Iterable[str]) -> TransformProcess:
        """Return the process with the classes made from these label words, sorted."""
        return msgspec.structs.replace(self, classes=classes_of(words))

    @staticmethod
    def _perhaps_numbers(counts: dict[str, int]) -> str:
        return "; to predict numbers, give --regression" if numbers_in(counts) else ""

    def fit(self, table: Table) -> TransformProcess:
        """Return the process fitted to the training rows; steps that are fitted already stay unchanged.

        Raises:
            DataError: a step does not fit the columns, or nothing can be learned.
        """
        fitted: list[Step] = []
        for step in self.steps:
            learned = step if step.is_fitted else self._learned(step, table)
            if learned.columns:  # a step for all columns of a type that does not occur is dropped
                fitted.append(learned)
                table = learned.apply(table)
        return msgspec.structs.replace(self, steps=tuple(fitted)).with_scale_of(table)

    def _learned(self, step: Step, table: Table) -> Step:
        """Return a step fitted to the training rows as the earlier steps leave them."""
        if isinstance(step, Linear):
            labels, stds = self.standardized_labels(table)
            if labels:
                return step.fit_to(labels, table, lambda name, start, end: table.columns[name][start:end], stds=stds)
        fitted: Step = step.fit(table)
        return fitted

    def standardized_labels(self, table: Table) -> tuple[dict[str, Array], tuple[float, ...]]:
        """Return the numbers to predict of the training rows, float64, as the network learns them, and their divisors.

        Both are empty for classes.
        """
        scale = self.with_scale_of(table).label_scale if self.label_columns else None
        if scale is None:
            return {}, ()
        columns = scale.standardized(_labels_of(table).reshape(len(table), -1)).T
        return dict(zip(self.label_columns, columns, strict=True)), scale.stds

    def with_scale_of(self, table: Table) -> TransformProcess:
        """Return the process with mean and standard deviation of the numbers to predict; raises as ``fit``."""
        if self.multi_label and (
            same := [n for n, y in zip(self.labels, _labels_of(table).T, strict=True) if not np.ptp(y)]
        ):
            logger.warning("%s: labels that are the same in all training rows: %s", table.name, ", ".join(same))
        if not self.regression or not self.label_columns or self.is_label_fitted:
            return self
        columns, fields = _labels_of(table).reshape(-1, len(self.label_columns)), dict[str, Any]()
        for name, values in zip(self.label_columns, columns.T, strict=True):
            _check_varies(table, name, values)
        logged = [self.label_columns.index(name) for name in self.label_log]
        scales = [mean_and_std_of(values) for values in signed_log(columns, logged).T]
        if self.labels and not self.label_stds:
            fields["label_means"], fields["label_stds"] = zip(*scales, strict=True)
        elif not self.labels and not self.label_std:
            [(fields["label_mean"], fields["label_std"])] = scales
        if not self.label_limits:
            fields["label_limits"] = tuple((float(columns[:, i].min()), float(columns[:, i].max())) for i in logged)
        return msgspec.structs.replace(self, **fields)

    # -- applying ------------------------------------------------------------------------------------------------------

    def apply(self, table: Table, *, new_rows: bool = False, unseen: UnseenWords | None = None) -> Table:
        """Return the table after all steps: numbers only, without gaps.

        Args:
            table: with the columns of the process.
            new_rows: whether the rows are to be predicted, so that none is dropped.
            unseen: collects the words that no step has learned.

        Raises:
            DataError: names the cell, or a column that still holds words.
        """
        for step in self.steps:
            if step.on_new_rows or not new_rows:
                if unseen is not None:
                    step.count_unseen(table, unseen)
                table = step.apply(table)
        for name, values in table.columns.items():
            if not is_numeric(values):
                raise DataError(
                    f"{table.name}: column {name!r} holds words, and no step of the schema makes numbers of them; add "
                    "one-hot or index, or remove it"
                )
        if not table.columns:
            raise DataError(f"{table.name}: no column is left to learn from, besides the label {self.label!r}")
        return table

    def features(self, table: Table, *, new_rows: bool = False) -> Array:
        """Return the features, ``(rows, n_in)`` float32; args and errors as for ``apply``."""
        return self.exact_features(table, new_rows=new_rows).astype(np.float32)

    def exact_features(self, table: Table, *, new_rows: bool = False, unseen: UnseenWords | None = None) -> Array:
        """Return the features, ``(rows, n_in)`` float64, finite in float32; args and errors as for ``apply``."""
        return _matrix(self.apply(table, new_rows=new_rows, unseen=unseen))

    def data_set(self, table: Table) -> DataSet:
        """Return features and labels of a table from ``read``; raises as ``apply``.

        They are float32, or float64 according to ``DataSet.rounded``.
        """
        return self._exact(table)[0].rounded()

    def _exact(self, table: Table) -> tuple[DataSet, tuple[str, ...]]:
        """Return the result of ``data_set`` as float64, and the names of the columns."""
        unseen = UnseenWords()
        done = self.apply(table, unseen=unseen)
        unseen.say(table.name)
        if not len(done):
            raise DataError(f"{table.name}: the schema's filters leave no row of {counted(len(table), 'row')}")
        return DataSet(_matrix(done), self.targets(done)), tuple(done.columns)

    def arrays(self, done: Table) -> tuple[Array, Array]:
        """Return features ``(rows, n_in)`` and labels ``(rows, n_out)``, float32, of a table from ``apply``."""
        return _matrix(done).astype(np.float32), self.targets(done)

    def targets(self, table: Table) -> Array:
        """Return the labels of a table from ``read`` as the network learns them, ``(rows, n_out)`` float32."""
        scale = self.label_scale
        if scale is not None:
            labels = _labels_of(table)
            return scale.standardized(labels.reshape(len(labels), -1)).astype(np.float32)
        if self.multi_label:
            return self._checked_answers(table)
        return one_hot(self.class_numbers(table), len(self.classes))

    def _checked_answers(self, table: Table) -> Array:
        """Return the multi-label values, 0 or 1, ``(rows, labels)`` float32; raises ``DataError`` for other values."""
        labels = _labels_of(table)
        wrong = (labels != 0) & (labels != 1)
        if wrong.any():
            row, column = divmod(int(wrong.argmax()), labels.shape[1])
            raise no_answer(table.place(row, self.labels[column]), f"{labels[row, column]:g}")
        return labels.astype(np.float32)

    def class_numbers(self, table: Table) -> npt.NDArray[np.intp]:
        """Return the number of each row's class, ``(rows,)``; raises ``DataError`` for an unknown class."""
        if self.regression or self.multi_label:
            what = (
                "a number to predict" if len(self.label_columns) == 1 and self.regression else "several, and no class"
            )
            raise DataError(
                f"{table.name}: the label {', '.join(self.label_columns)!r} is {what}, so that there are no classes to "
                "be shared out; leave --stratify out"
            )
        labels, number = _labels_of(table), {class_name(name): index for index, name in enumerate(self.classes)}
        classes = np.array([number.get(class_name(label), -1) for label in labels.tolist()], np.intp)
        if (classes < 0).any():
            row = int((classes < 0).argmax())
            raise DataError(
                f"{table.place(row, self.label)}: label {labels[row]!r} is unknown; known: "
                f"{', '.join(self.classes[:20])}"
            )
        return classes

    def in_units(self, outputs: Array) -> Array:
        """Return a network's outputs in the label's own units; unchanged if it classifies."""
        return outputs if self.label_scale is None else self.label_scale.in_units(outputs)


@dataclass(frozen=True, slots=True)
class TransformedTables:
    """Tables transformed by a fitted process: the training part and the held-out part.

    Features are float64, or float32 if they are in files; ``columns`` are their names.
    """

    process: TransformProcess
    train: DataSet
    test: DataSet
    columns: tuple[str, ...] = ()

    @staticmethod
    def of(process: TransformProcess, train: Table, test: Table) -> TransformedTables:
        """Return the tables transformed by the process, which is fitted to ``train`` unless it is fitted already."""
        process = process.with_classes_of((train, test))
        if not process.is_fitted:
            process = process.fit(train)
        learned, columns = process._exact(train)
        return TransformedTables(process, learned, process._exact(test)[0], columns)


def _read_by(step: Step) -> tuple[str, ...]:
    """Return the columns that a step names."""
    base = getattr(step, "base", "")
    return (*step.columns, *((base,) if base and base not in step.columns else ()))


def _labels_of(table: Table) -> Array:
    if table.labels is None:
        raise DataError(f"{table.name}: its rows have no labels; read it with TransformProcess.read")
    return table.labels


def _check_varies(table: Table, name: str, labels: Array) -> None:
    if not np.ptp(labels):
        raise DataError(
            f"{table.name}: the label {name!r} is {labels[0]:g} in all of its "
            f"{counted(len(labels), 'training row')}; there is nothing to learn"
        )


def _matrix(table: Table) -> Array:
    """Return the columns as float64 rows; raises ``DataError`` for a cell that is a gap or not finite in float32."""
    x = np.stack(list(table.columns.values()), axis=1, dtype=np.float64)
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(x.astype(np.float32))
    if wrong.any():
        row, index = divmod(int(wrong.argmax()), x.shape[1])
        name = list(table.columns)[index]
        value = float(table.columns[name][row])
        what = "has no value, and no step of the schema imputes it" if math.isnan(value) else f"is {value} in the end"
        raise DataError(f"{table.place(row, name)}: the cell {what}")
    return x


def no_answer(place: str, found: str) -> DataError:
    """Return the error for a multi-label value ``found`` at ``place`` that is neither 0 nor 1."""
    return DataError(
        f"{place}: the label is {found}, and one of several that do not exclude each other (multi-label) is 0 or 1; "
        "correct it, or predict numbers: --regression"
    )
