"""Detects the index that pandas writes into files as a column, so that it is not used as a feature.

``DataFrame.to_csv`` writes it as a first column without a name, which ``read_csv`` calls ``Unnamed: 0``.
``DataFrame.to_parquet`` writes it as a column that the file's metadata lists, called ``__index_level_0__`` if it has no
name. ``reset_index`` turns it into a column ``index``, which then appears in every kind of file, such as the records of
``to_json``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dl4jlegacy.datasets.tables.text_rows import is_number

__all__ = ["UNNAMED", "counts_rows", "header_names", "is_index_name", "listed_columns", "warn_of_index"]

logger = logging.getLogger(__name__)

UNNAMED = "Unnamed: 0"
"""The name of a first column without a name, as in pandas."""
_LEVEL = re.compile(r"__index_level_\d+__")
_SPARSEST = 2  # maximum ratio of index range to rows, because rows may have been dropped before


def header_names(cells: Sequence[str], known: Iterable[str] = ()) -> list[str]:
    """Return the names of columns, stripped; a single unnamed column in first place gets pandas' name for it.

    An unnamed column elsewhere gets that name, too, if ``known`` contains that name and one of the others here.
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
    """Return the columns of a Parquet or Arrow file that are pandas' index, by their names and the metadata."""
    listed: object = []
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        listed = json.loads((metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    wanted = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
    found = tuple(name for name in names if name in wanted or _LEVEL.fullmatch(name))
    return found if len(found) < len(names) else ()


def is_index_name(name: str) -> bool:
    """Return whether pandas gives this name to an index that becomes a column, for instance by ``reset_index``."""
    return name in (UNNAMED, "index", "level_0") or _LEVEL.fullmatch(name) is not None


def counts_rows(name: str, parts: Sequence[array[int]]) -> bool:
    """Return whether the numbers in a column with an index name count the rows from 0 or 1, in any order.

    They count the rows of all files together, or of each file separately. In an unnamed column numbers may be missing,
    because rows were dropped before the file was written. In other columns no number may be missing, because the name
    may have another meaning.
    """
    whole = np.concatenate([np.frombuffer(part, np.int64) for part in parts])
    if name == UNNAMED:
        found = np.sort(whole)
        return len(found) > 1 and bool(found[-1] <= _SPARSEST * len(found) and (np.diff(found) > 0).all())
    return _counts_all(whole) or all(_counts_all(np.frombuffer(part, np.int64)) for part in parts)


def _counts_all(numbers: npt.NDArray[np.int64]) -> bool:
    found = np.sort(numbers)
    return len(found) > 1 and bool(found[0] in (0, 1) and (found == found[0] + np.arange(len(found))).all())


def warn_of_index(names: Sequence[str], where: str) -> None:
    """Warn that columns are dropped because they are pandas' index; do nothing if there are none."""
    if names:
        shown, what = ", ".join(map(repr, names)), "column" if len(names) == 1 else "columns"
        logger.warning("%s: %s %s left out, pandas' index (--keep-index keeps it)", where, what, shown)
