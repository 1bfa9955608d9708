"""The index that pandas writes into files beside the columns: which one it is, so that nobody learns from it.

``DataFrame.to_csv`` writes it as a first column without a name, which ``read_csv`` calls ``Unnamed: 0``;
``DataFrame.to_parquet`` as a column that the file's metadata lists, called ``__index_level_0__`` if it has no name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dl4jlegacy import files
from dl4jlegacy.datasets.text_files import csv_rows, is_number
from dl4jlegacy.errors import DataError

__all__ = ["UNNAMED", "counting_columns", "header_names", "listed_columns", "warn_of_index"]

logger = logging.getLogger(__name__)

UNNAMED = "Unnamed: 0"
"""What a first column without a name is called, as pandas does."""
_LEVEL = re.compile(r"__index_level_\d+__")
_SPARSEST = 2  # numbers that an index counts to for each row there is: some rows may have been left out before


def header_names(cells: Sequence[str], known: Iterable[str] = ()) -> list[str]:
    """Return the names of columns, without blanks around them; a first one alone without one gets pandas' name for it.

    So does one elsewhere if that is a ``known`` name, as others of them are.
    """
    names = [cell.strip() for cell in cells]
    if len(names) < 2 or names.count("") != 1:
        return names
    place, others = names.index(""), set(known)
    is_moved = UNNAMED in others and UNNAMED not in names and not others.isdisjoint(names)
    if is_moved or (not place and not any(map(is_number, names[1:]))):
        names[place] = UNNAMED
    return names


def listed_columns(names: Sequence[str], metadata: Mapping[bytes, bytes] | None) -> tuple[str, ...]:
    """Return which columns of a Parquet or Arrow file are pandas' index, by their names and by the metadata."""
    listed: object = []
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        listed = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    wanted = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
    found = tuple(name for name in names if name in wanted or _LEVEL.fullmatch(name))
    return found if len(found) < len(names) else ()


def counting_columns(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the nameless first column of CSV files if it counts the rows of all of them, from 0 or 1, in any order.

    Some numbers may be missing, of rows that were left out before the file was written.

    Raises:
        DataError: a file cannot be read.
    """
    numbers = array("q")
    for path in paths:
        with files.errors_as(DataError, f"cannot read {path}"):
            file = files.open_to_read(path)
        rows = csv_rows(file, str(path))
        try:
            names = header_names(next(rows, (0, [""]))[1])
            if names[0] != UNNAMED:
                return ()
            for _, row in rows:
                cell = row[0].strip()
                if not (cell.isascii() and cell.isdecimal() and len(cell) < 16):
                    return ()
                numbers.append(int(cell))
        finally:
            rows.close()
    found = np.sort(np.frombuffer(numbers, np.int64))
    is_index = len(found) > 1 and found[-1] <= _SPARSEST * len(found) and bool((np.diff(found) > 0).all())
    return (UNNAMED,) if is_index else ()


def warn_of_index(names: Sequence[str], where: str) -> None:
    """Say that columns are pandas' index, and left out; nothing if there are none."""
    if names:
        shown, what = ", ".join(map(repr, names)), "column" if len(names) == 1 else "columns"
        logger.warning("%s: %s %s left out, pandas' index (--keep-index keeps it)", where, what, shown)
