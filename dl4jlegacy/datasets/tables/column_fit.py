"""Fits a ``TransformProcess`` to a large table, one column at a time, with the same result as in memory.

A step learns from each column separately, and a column after the earlier steps depends on few other columns. So each
column is computed from these few, over the training rows in their order, and the step is fitted to it alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.columns.transforms import Derive, Differences, Filter, Linear, Step
from dl4jlegacy.datasets.tables.column_store import ColumnStore
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import DataError
from dl4jlegacy.system import files

__all__ = ["fit_by_columns", "unscaled_columns"]


def fit_by_columns(process: TransformProcess, store: ColumnStore, rows: npt.NDArray[np.intp]) -> TransformProcess:
    """Return the result of ``process.fit`` for these rows of the store, in this order; raises the same errors."""
    steps: list[Step] = []
    shape = store.empty()
    for step in process.steps:
        try:
            if isinstance(step, Linear) and process.regression and not step.is_fitted:
                labels, stds = process.standardized_labels(_labelled(shape, store, rows))
                learned: Step = _fitted_to(labels, stds, step, shape, steps, store, rows)
            else:
                learned = step if step.is_fitted else _fitted(step, shape, steps, store, rows)
        except DataError:
            _name_the_cell(steps, store)
            raise
        if not learned.columns:
            continue
        if isinstance(learned, Filter):
            column = _column_after(steps, learned.columns[0], store, rows)
            kept = learned.apply(_alone(shape, learned.columns[0], column))
            rows = rows[kept.lines]
        shape = learned.apply(shape)
        steps.append(learned)
    done = msgspec.structs.replace(process, steps=tuple(steps))
    is_class = not (process.regression or process.multi_label)
    return done if is_class else done.with_scale_of(_labelled(shape, store, rows))


def unscaled_columns(
    process: TransformProcess, store: ColumnStore, rows: npt.NDArray[np.intp]
) -> Iterator[tuple[str, Array]]:
    """Yield each numeric column that no step of a fitted process changes, without its gaps."""
    changed = {name for step in process.steps if not (step.adds or isinstance(step, Filter)) for name in step.columns}
    for name in store.names:
        if name not in changed and name not in store.words:
            values = store.column(name)[rows]
            yield name, values[~np.isnan(values)]


def _fitted(step: Step, shape: Table, before: Sequence[Step], store: ColumnStore, rows: npt.NDArray[np.intp]) -> Step:
    """Return a step fitted to the rows as the earlier steps leave them; ``shape`` has their columns."""
    names = step.named_in(shape)
    found = [step.learn(_alone(shape, name, _column_after(before, name, store, rows)), name) for name in names]
    fitted: Step = msgspec.structs.replace(step, columns=names, **step.lists(found))
    return fitted


def _fitted_to(
    labels: Mapping[str, Array],
    stds: Sequence[float],
    step: Linear,
    shape: Table,
    before: Sequence[Step],
    store: ColumnStore,
    rows: npt.NDArray[np.intp],
) -> Linear:
    """Return a step fitted to labels; the columns that it learns from lie in a temporary file meanwhile."""
    names = step.named_in(shape)
    refused = "the columns cannot be kept in the temporary folder"
    with files.errors_as(DataError, refused), tempfile.TemporaryFile() as file:
        for name in names:
            file.write(_column_after(before, name, store, rows).astype(np.float64).tobytes())
        file.flush()
        found = np.memmap(file, np.float64, "r", shape=(len(names), len(rows)))
        columns = dict(zip(names, found, strict=True))
        return step.fit_to(labels, shape, lambda name, start, end: columns[name][start:end], stds=stds)


def _labelled(shape: Table, store: ColumnStore, rows: npt.NDArray[np.intp]) -> Table:
    """Return a table of these rows without columns, with their labels."""
    return Table(shape.name, {}, np.arange(len(rows)), {}, store.labels()[rows])


def _name_the_cell(steps: Sequence[Step], store: ColumnStore) -> None:
    """Raise the ``DataError`` of the first cell that the steps do not take, with its place in its file, if any."""
    for _, table in store.tables():
        for step in steps:
            table = step.apply(table)


def _alone(shape: Table, name: str, values: Array) -> Table:
    return Table(shape.name, {name: values}, np.arange(len(values)), shape.places)


def _column_after(steps: Sequence[Step], name: str, store: ColumnStore, rows: npt.NDArray[np.intp]) -> Array:
    """Return a column of these rows after the steps; the caller has dropped the rows that the filters remove."""
    needed, used = {name}, list[Step]()
    for step in reversed(steps):
        made = step.made()
        wanted = needed & made.keys()
        if wanted or not step.adds:
            needed = (needed - wanted).union(*(made[column] for column in wanted))
            used.insert(0, step)
    columns = {column: store.column(column)[rows] for column in store.names if column in needed}
    table = Table("", columns, np.arange(len(rows)), {})
    for step in used:
        part = _only(step, table.columns)
        table = table if part is None else part.apply(table)
    return table.columns[name]


def _only(step: Step, names: Mapping[str, Array]) -> Step | None:
    """Return the step restricted to the columns that exist; None if it changes none of their values."""
    if isinstance(step, Filter):
        return None
    if isinstance(step, Derive | Linear):
        return step if all(column in names for column in step.columns) else None
    kept = [index for index, column in enumerate(step.columns) if column in names]
    if not kept or (isinstance(step, Differences) and step.base not in names):
        return None
    columns = tuple(step.columns[index] for index in kept)
    lists = {field: tuple(getattr(step, field)[index] for index in kept) for field in step.learned}
    part: Step = msgspec.structs.replace(step, columns=columns, **lists)
    return part
