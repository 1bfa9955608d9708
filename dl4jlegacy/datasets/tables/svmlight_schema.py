"""The schema of SVMLight files, which stores the number of features and whether indices start at 0 or 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dl4jlegacy.datasets.columns.transforms import Impute
from dl4jlegacy.datasets.tables.inspection import inspect_svmlight
from dl4jlegacy.datasets.tables.schema_guess import guess_schema
from dl4jlegacy.datasets.tables.svmlight_files import LABEL, numbered_columns
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.errors import DataError

__all__ = ["features_only", "svmlight_schema"]


def svmlight_schema(
    paths: Sequence[Path],
    *,
    label: str = "",
    regression: bool = False,
    multi_label: bool = False,
    scale: bool = False,
    n_classes: int | None = None,
    label_names: Sequence[str] | None = None,
) -> TransformProcess:
    """Return the schema of the SVMLight files of a data set; reads all of them.

    Args:
        paths: the files.
        label: the label column; "": the label of each line, or all of its labels.
        regression: the label is a number to predict.
        multi_label: each line has labels that do not exclude each other.
        scale: whether features are standardized.
        n_classes: the number of classes, for class numbers, if the files alone do not show it.
        label_names: the classes in order, if they are known.

    Raises:
        DataError: as ``inspect_svmlight`` and ``guess_schema``.
    """
    found = inspect_svmlight(paths, multi_label=multi_label)
    if multi_label and not label:
        label = ",".join(column.name for column in found.columns if column.name.startswith(f"{LABEL} "))
    schema = guess_schema(found, label=label or LABEL, regression=regression, multi_label=multi_label, scale=scale)
    classes = tuple(label_names or ())
    if n_classes is not None and not classes:
        classes = tuple(map(str, range(n_classes)))
        for word in found.column(LABEL).counts:
            if word not in classes:
                raise DataError(f"{found.name}: label {word!r} is out of range: classes are 0 to {n_classes - 1}")
    steps = tuple(step for step in schema.steps if not isinstance(step, Impute))  # SVMLight files have no gaps
    return msgspec.structs.replace(schema, steps=steps, classes=classes if schema.label == LABEL else ())


def features_only(n_in: int) -> TransformProcess:
    """Return a schema to read rows to predict, for a model with ``n_in`` features and no schema; indices start at 1."""
    return TransformProcess(columns=numbered_columns(n_in))
