"""``dl4j data``: inspects and validates tables, and shows the schema with which they are learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import (
    Format,
    Images,
    ImageSize,
    KeepIndex,
    Label,
    Missing,
    MultiLabel,
    Regression,
    option,
)
from dl4jlegacy.cli.options.values import not_empty
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import DataError, OutputError, counted

if TYPE_CHECKING:
    from pathlib import Path

    from dl4jlegacy.datasets.images.image_files import ImageRecordReader
    from dl4jlegacy.datasets.tables.column_summary import ColumnSummary
    from dl4jlegacy.datasets.tables.inspection import Inspection, Problem
    from dl4jlegacy.datasets.tables.transform_process import TransformProcess

    _Pairs = list[tuple[Inspection, Sequence[Problem]]]

__all__ = ["add_commands", "inspect", "validate"]

_SHOWN = 5  # words of a column
_MOST_CLASSES = 20

_app = typer.Typer(name="data", help="Inspect and validate data files.", no_args_is_help=True, rich_markup_mode=None)


def add_commands(app: typer.Typer) -> None:
    """Add ``dl4j data`` to ``app``."""
    app.add_typer(_app)


_Path = typer.Argument(metavar="PATH", help="A table: CSV, JSON lines, Parquet, Arrow or NumPy; or a folder of them.")
_Data = typer.Argument(metavar="PATH", help="A table, a folder of tables, or one of images by their classes.")


@_app.command()
def inspect(
    path: Annotated[str, _Path],
    label: Label = None,
    regression: Regression = False,
    multi_label: MultiLabel = False,
    missing: Missing = None,
    keep_index: KeepIndex = False,
    images: Images = None,
    out: Annotated[
        str | None,
        option("--out", metavar="FILE", help="Write the schema to this file, for --schema of train.", read=not_empty),
    ] = None,
    format: Format = "text",
) -> Answer:
    """Print the columns of a table, their types, ranges and gaps, the labels, and the schema of dl4j train.

    A label of real numbers is one to predict, also without --regression.
    """
    from dl4jlegacy.datasets.images.image_tables import image_schema
    from dl4jlegacy.datasets.reading import place_of
    from dl4jlegacy.datasets.tables.inspection import GUESSED_ROWS, inspect_csv
    from dl4jlegacy.datasets.tables.schema_guess import guess_schema
    from dl4jlegacy.training.run_data import can_be_encoded

    file, index = _files(path)[0], _index(path, keep_index)
    if images is not None:
        label = _labels_of_images(file, images, label)
    read: dict[str, Any] = {"index": index, "missing": _gaps(missing)}
    found = inspect_csv(file, label or "", **read)
    numbers = found.has_numbers(regression=regression, multi_label=multi_label)
    if multi_label:
        found.check_answers()
    if images is not None:
        schema = image_schema(file, images, label=label or "", regression=numbers, multi_label=multi_label)
    else:
        start = found if found.rows <= GUESSED_ROWS else inspect_csv(file, label or "", rows=GUESSED_ROWS, **read)
        kind = {"regression": numbers, "multi_label": multi_label, "encode": can_be_encoded(place_of(path))}
        schema = guess_schema(start, label=label or "", **kind)
    if out is not None:
        _write(out, schema.to_json())
    lines = [*_lines(found, schema), *([f"schema       {out}"] if out else [])]
    return Answer({**_fields(found, schema), "schema_path": out}, lines)


@_app.command()
def validate(
    path: Annotated[str, _Data],
    label: Label = None,
    regression: Regression = False,
    multi_label: MultiLabel = False,
    missing: Missing = None,
    keep_index: KeepIndex = False,
    images: Images = None,
    image_size: ImageSize = None,
    format: Format = "text",
) -> Answer:
    """Count what is missing, invalid or duplicated, with examples; fails if training would refuse the file."""
    from dl4jlegacy.training.prepare import refusal

    kind: dict[str, Any] = {
        "regression": regression,
        "multi_label": multi_label,
        "missing": missing,
        "keep_index": keep_index,
    }
    reader = _reader(images, image_size)
    pairs = list(_images(path, reader) if images is None else _listed(path, images, label, reader, **kind))
    if pairs:
        error = _error_of(pairs) or refusal(path, label=label or "", images=reader, **kind)
    else:
        pairs, error = _judged(path, label or "", reader, **kind)
    verdict = f"takes this{', with the problems above' if any(parts for _, parts in pairs) else ''}"
    if error is not None:
        verdict = "refuses this; the error says what to correct"
    lines = [line for pair in pairs for line in _problem_lines(*pair)]
    fields = {"is_accepted": error is None, "files": [_problems(*pair) for pair in pairs]}
    return Answer(fields, [*lines, f"verdict: dl4j train {verdict}"], error)


def _error_of(pairs: _Pairs) -> DataError | None:
    """Return an error that names all problems for which training refuses the data; None if there are none."""
    refused = [f"{one.name}: {part.what}, {part.count:,}" for one, parts in pairs for part in parts if part.is_refused]
    return DataError(f"{'; '.join(refused)}; correct these, or leave them out") if refused else None


def _reader(images: str | None, size: str | None) -> ImageRecordReader | None:
    """Return the image reader that ``dl4j train`` uses with these options; None without any."""
    from dl4jlegacy.cli.options.images import image_size
    from dl4jlegacy.datasets.images.image_files import ImageRecordReader

    if images is None and size is None:
        return None
    height, width = (0, 0) if size is None else image_size(size)
    return ImageRecordReader(height=height, width=width, column=images or "")


def _judged(path: str, label: str, reader: ImageRecordReader | None, **kind: Any) -> tuple[_Pairs, DataError | None]:
    """Return the problems of tables, and the error with which training refuses them, if it does.

    ``kind`` are the other options, as for ``training.refusal``.

    Raises:
        DataError: the tables are refused, and there is nothing to list.
    """
    from dl4jlegacy.training.prepare import refusal

    try:
        pairs = list(_tables(path, label, **kind))
    except DataError as exc:
        _files(path)
        raise refusal(path, label=label, images=reader, **kind) or exc from None
    error = refusal(path, label=label, images=reader, inspected=pairs[0][0], **kind)
    return pairs, None if error is None else _error_of(pairs) or error


def _images(path: str, reader: ImageRecordReader | None) -> list[tuple[Inspection, Sequence[Problem]]]:
    """Return the problems of a folder of images; an empty list if the path is no such folder."""
    from dl4jlegacy.datasets.images.image_data import has_images
    from dl4jlegacy.datasets.images.image_inspection import inspect_images
    from dl4jlegacy.datasets.reading import place_of

    if "://" in path:  # S3 and the Web provide only tables
        return []
    place = place_of(path)
    if not has_images(place, asked=reader is not None):
        return []
    found = inspect_images(place.path, is_sized=reader is not None)
    return [(found, found.problems)]


def _labels_of_images(file: Path, images: str, label: str | None) -> str:
    """Return the labels of a table of images; its last column need not be a label."""
    from dl4jlegacy.datasets.images.image_tables import image_columns

    return ",".join(image_columns(file, images, label or "")[1])


def _listed(
    path: str, images: str, label: str | None, reader: ImageRecordReader | None, **kind: Any
) -> Iterator[tuple[Inspection, Sequence[Problem]]]:
    """Yield the problems of tables that list images, and of the images."""
    from pathlib import Path

    from dl4jlegacy.datasets.images.image_inspection import problems_of_listed
    from dl4jlegacy.datasets.images.image_tables import image_schema

    file, places = _files(path)[0], dict[Path, str]()
    label = _labels_of_images(file, images, label)
    schema = image_schema(file, images, label=label, regression=True)
    column = schema.columns[0].name
    for found, problems in _tables(path, label, **kind):
        is_sized = reader is not None and reader.height > 0
        listed = problems_of_listed(Path(found.name), column, schema, places, is_sized=is_sized)
        yield found, [*problems, *listed]


def _tables(
    path: str, label: str, *, regression: bool, multi_label: bool, missing: Sequence[str] | None, keep_index: bool
) -> Iterator[tuple[Inspection, Sequence[Problem]]]:
    from dl4jlegacy.datasets.tables.inspection import inspect_csv

    index = _index(path, keep_index)
    gaps = _gaps(missing)
    every = [inspect_csv(file, label, index=index, allows_nameless=True, missing=gaps) for file in _files(path)]
    numbers = every[0].has_numbers(regression=regression, multi_label=multi_label)  # the schema is guessed from it
    for found in every:
        yield found, found.all_problems(regression=numbers, multi_label=multi_label, is_whole=len(every) == 1)


def _files(path: str) -> list[Path]:
    from dl4jlegacy.datasets.reading import place_of
    from dl4jlegacy.storage import paths as storage

    found = place_of(storage.local(path)).tables
    if not found:
        raise DataError(f"{path} is neither a table nor a folder of them")
    return found


def _index(path: str, keep_index: bool) -> tuple[str, ...]:
    """Return the columns that are ignored because they are pandas' index."""
    from dl4jlegacy.datasets.tables.table_files import index_columns

    return () if keep_index else index_columns(_files(path))


def _gaps(missing: Sequence[str] | None) -> tuple[str, ...]:
    """Return the cells that count as missing values, by --missing."""
    from dl4jlegacy.datasets.tables.label_cells import listed_gaps
    from dl4jlegacy.datasets.tables.text_rows import MISSING

    return MISSING if missing is None else listed_gaps(missing)


def _write(out: str, text: str) -> None:
    from dl4jlegacy.system import files

    with files.errors_as(OutputError, f"the schema cannot be written to {out}", "choose another --out"):
        files.write(files.expand(out), f"{text}\n".encode())


def _fields(found: Inspection, schema: TransformProcess) -> dict[str, Any]:
    import json

    is_class = not (schema.regression or schema.multi_label)
    return {
        "path": found.name,
        "rows": found.rows,
        "header": found.has_header,
        "columns": [column.fields() for column in found.columns],
        "label": schema.label or list(schema.labels),
        "regression": schema.regression,
        "multi_label": schema.multi_label,
        "classes": dict(found.column(schema.label).as_names().counts.most_common()) if is_class else None,
        "ones": {name: _ones(found.column(name)) for name in schema.labels} if schema.multi_label else None,
        "schema": json.loads(schema.to_json()),
    }


def _lines(found: Inspection, schema: TransformProcess) -> Iterator[str]:
    header = "with a header" if found.has_header else "without a header"
    yield f"{found.name}: {counted(found.rows, 'row')} of {counted(len(found.columns), 'column')}, {header}"
    width = max(len(column.name) for column in found.columns)
    for column in found.columns:
        yield f"{column.number:>4}  {column.name:<{width}}  {column.type:<8}  {_summary(column)}"
    if found.index:
        yield f"left out     {', '.join(found.index)}, pandas' index (--keep-index keeps it)"
    for name in schema.label_columns:
        yield f"label        {name}, {_label_line(found.column(name), schema)}"
    for step in schema.steps:
        yield f"{step.__struct_config__.tag:<11}  {', '.join(step.columns) or 'all columns of numbers'}"


def _label_line(label: ColumnSummary, schema: TransformProcess) -> str:
    if schema.multi_label:
        ones = _ones(label)
        return f"0 or 1 (--multi-label): 1 in {ones:,} of {counted(label.numbers, 'row')} ({ones / label.numbers:.1%})"
    if schema.labels:
        return f"a number to predict (--regression): {_summary(label)}"
    if schema.regression:
        return "a number to predict (--regression)"
    names = label.as_names()
    return f"{counted(len(names.counts), 'class', 'classes')}: {_words(names, _MOST_CLASSES)}"


def _ones(label: ColumnSummary) -> int:
    """Return the number of ones in a column whose numbers are 0 or 1."""
    return round(label.total)


def _summary(column: ColumnSummary) -> str:
    parts = []
    if column.type == "number" and column.numbers:
        parts.append(f"{column.low:g} .. {column.high:g}, mean {column.mean:.4g}")
    elif column.counts:
        more = "more than " if column.is_full else ""
        parts.append(f"{more}{counted(len(column.counts), 'word')}: {_words(column, _SHOWN)}")
    parts += [f"{column.missing:,} missing"] if column.missing else []
    parts += [f"{column.invalid:,} invalid"] if column.invalid else []
    return "; ".join(parts)


def _words(column: ColumnSummary, most: int) -> str:
    total = max(1, column.numbers + column.words)
    shown = [f"{word} {count:,} ({count / total:.1%})" for word, count in column.counts.most_common(most)]
    return ", ".join(shown) + (" ..." if len(column.counts) > most else "")


def _problems(found: Inspection, problems: Sequence[Problem]) -> dict[str, Any]:
    return {
        "path": found.name,
        "rows" if found.columns else "images": found.rows,
        "problems": [
            {"what": problem.what, "count": problem.count, "examples": list(problem.examples)} for problem in problems
        ],
    }


def _problem_lines(found: Inspection, problems: Sequence[Problem]) -> Iterator[str]:
    rows = counted(found.rows, "row" if found.columns else "image")
    yield f"{found.name}: {rows}, {counted(len(problems), 'kind')} of problems"
    for problem in problems:
        more = " ..." if problem.count > len(problem.examples) else ""
        yield f"  {problem.count:>7,}  {problem.what}: {', '.join(problem.examples)}{more}"
