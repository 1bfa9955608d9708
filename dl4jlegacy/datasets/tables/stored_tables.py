"""Tables larger than memory: transformed once, and stored in files from which batches are read.

The transformed examples lie in a folder of the cache (``$DL4J_TABLES_CACHE``, or ``~/.deeplearning4j/tables``) as
float32, the training rows first, in the same order as in memory. The folder's name is a digest of the contents of the
table's files, of the schema and of the split: other contents have another folder. A folder is written under a temporary
name and renamed when it is complete. The least recently used ones are removed to limit the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.columns.transforms import Filter
from dl4jlegacy.datasets.dataset import stored_data_set
from dl4jlegacy.datasets.precision import warn_of_equal
from dl4jlegacy.datasets.splitting import Split, stratified
from dl4jlegacy.datasets.tables.column_fit import fit_by_columns, unscaled_columns
from dl4jlegacy.datasets.tables.column_store import ColumnStore
from dl4jlegacy.datasets.tables.label_cells import class_name
from dl4jlegacy.datasets.tables.stored_array import ShuffleBuckets, StoredArray
from dl4jlegacy.datasets.tables.svmlight_files import TooWideError, count_lines, survey
from dl4jlegacy.datasets.tables.table_files import is_arrow, is_numpy, is_svmlight
from dl4jlegacy.datasets.tables.transform_process import TransformedTables, TransformProcess
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.system import files
from dl4jlegacy.system.strict_json import to_json

__all__ = ["LARGE", "MOST", "cache_folder", "is_large", "not_kept", "stored_tables"]

logger = logging.getLogger(__name__)

LARGE = 64 << 20
"""Bytes of a table's files from which on it is not held in memory."""
MOST = 64 << 30
"""Maximum bytes of the cache; the table in use may be larger."""
_NBYTES = 8  # per number while a table is read
_MOST_TIMES = 8  # a smaller table may become this many times larger by bins
_PACKED = 4  # assumed compression ratio of compressed rows
_BLOCK = 16 << 20
_FORMAT = "dl4jlegacy-table-1"
_SUMMARY = "table.json"
_REMEDY = "make room there, or name another folder in DL4J_TABLES_CACHE"
_aside: ContextVar[contextlib.ExitStack | None] = ContextVar("_aside", default=None)


def cache_folder() -> Path:
    """Return the cache folder of large tables."""
    given = os.environ.get("DL4J_TABLES_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".deeplearning4j" / "tables"


@contextlib.contextmanager
def not_kept() -> Iterator[None]:
    """Remove the tables that are stored inside this context at its end; for checks that do not train."""
    with contextlib.ExitStack() as aside:
        token = _aside.set(aside)
        try:
            yield
        finally:
            _aside.reset(token)


def is_large(tables: Sequence[Path], columns: int = 0, bins: int = 0) -> bool:
    """Return whether a table is too large to be held in memory.

    Args:
        tables: the files.
        columns: the number of the table's columns; 0: unknown. For an SVMLight file the size of its dense table counts;
            if it has too many columns for that, it is held in memory with sparse features.
        bins: the number of columns that a schema adds for quantiles. If they are many, smaller files are large.

    Raises:
        DataError: a file cannot be read.
    """
    total = 0
    for path in tables:
        with files.errors_as(DataError, f"cannot read {path}"):
            size = path.stat().st_size
        total += size * _PACKED if is_arrow(path.name) or is_numpy(path.name) or path.suffix == ".gz" else size
    if total < LARGE and tables and is_svmlight(tables[0].name):
        try:
            columns, rows = (columns, _lines(tables)) if columns else _size(tables)
        except TooWideError:
            return False
        total = max(total, columns * rows * _NBYTES)
    return total >= LARGE or (bins > 0 and total * (columns + bins) >= LARGE * _MOST_TIMES * columns)


def _size(tables: Sequence[Path]) -> tuple[int, int]:
    found = survey(tables)
    return found.columns, found.rows


def _lines(tables: Sequence[Path]) -> int:
    return sum(map(count_lines, tables))


def _check_room(folder: Path, tables: Sequence[Path], columns: int) -> None:
    """Raise ``DataError`` before SVMLight files are expanded if the disk is too small for their table."""
    if not is_svmlight(tables[0].name):
        return
    rows, free = _lines(tables), shutil.disk_usage(folder).free
    needed = rows * columns * _NBYTES * 2  # the columns as read; the rows in buckets, then in order
    if needed > free:
        raise DataError(
            f"{tables[0]} is a table of {counted(rows, 'row')} and {counted(columns, 'column')} with every 0 written "
            f"out, which needs {needed / 2**30:,.1f} GiB of {folder}, where {free / 2**30:,.1f} are free; {_REMEDY}, "
            "or leave out features that are rare"
        )


def stored_tables(
    process: TransformProcess, tables: Sequence[Path], split: Split, *, parted: bool = False
) -> TransformedTables:
    """Return the transformed table, stored in files; equal to the result in memory.

    Args:
        process: the schema, which is fitted to the training part unless it is fitted already.
        tables: the files, in order.
        split: how a part is held out.
        parted: whether the files are the training part and the held-out part, so that they are not split.

    Raises:
        DataError: as in memory; a file cannot be written; or a table changed while it was read.
    """
    folder, content = cache_folder(), f"{_digest(tables)} {split} {'classes of train' if parted else parted}"
    place = folder / _key(process, content)
    with files.errors_as(DataError, f"the table cannot be kept in {folder}", _REMEDY):
        found = _opened(place)
        if found is None:
            folder.mkdir(parents=True, exist_ok=True)
            _clean(folder)
            if (asked := _aside.get()) is not None:
                folder = Path(tempfile.mkdtemp(prefix=f".{os.getpid()}-", dir=folder))
                asked.callback(shutil.rmtree, folder, ignore_errors=True)
                place = folder / place.name
            _check_room(folder, tables, len(process.columns))
            with _new_folder(folder, place) as aside:
                _build(aside, process, tables, None if parted else split)
            found = _opened(place)
            _make_room(folder, place)
        if found is not None:
            _name_again(place, folder / _key(found.process, content))
    if found is None:
        raise DataError(f"the table just kept in {place} is gone, or damaged; is something else at work there?")
    return found


def _key(process: TransformProcess, content: str) -> str:
    """Return a digest of everything that determines the examples."""
    return hashlib.sha256(f"{_FORMAT} {content} {process.to_json()}".encode()).hexdigest()


def _digest(tables: Sequence[Path]) -> str:
    """Return a digest of the contents of files."""
    whole = hashlib.sha256()
    for path in tables:
        with files.errors_as(DataError, f"cannot read {path}"), files.open_to_read(path) as file:
            content = hashlib.file_digest(cast(io.BufferedReader, file), "sha256").hexdigest()
        whole.update(f" {''.join(path.suffixes[-2:])} {content}".encode())
    return whole.hexdigest()


# -- the cache ---------------------------------------------------------------------------------------------------------


def _opened(place: Path) -> TransformedTables | None:
    """Return the table in a folder of the cache; None if there is none, or it is incomplete."""
    try:
        summary = json.loads(files.read(place / _SUMMARY))
        process = TransformProcess.from_json(to_json(summary["process"]))
        train, test, columns, outcomes = (int(summary[name]) for name in ("train", "test", "columns", "outcomes"))
        x = StoredArray.open(place / "features", (train + test, columns))
        y = StoredArray.open(place / "labels", (train + test, outcomes))
        os.utime(place / _SUMMARY)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, RecursionError):
        return None
    whole = stored_data_set(x, y)
    return TransformedTables(process, whole.rows(0, train), whole.rows(train, train + test), process.feature_names)


@contextlib.contextmanager
def _new_folder(folder: Path, place: Path) -> Iterator[Path]:
    """Yield a new folder; rename it to ``place`` at the end, or remove it after an error."""
    aside = Path(tempfile.mkdtemp(prefix=f".{os.getpid()}-", dir=folder))
    try:
        yield aside
        if place.is_symlink():
            place.unlink()
        elif place.exists() and _opened(place) is None:
            shutil.rmtree(place)
        with contextlib.suppress(FileExistsError):
            try:
                os.rename(aside, place)
            except OSError:
                if not place.exists():  # another process may have stored the same table meanwhile
                    raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _name_again(place: Path, fitted: Path) -> None:
    """Link the table under the key of the fitted schema, too, which a model or a resumed run has."""
    if place != fitted and not fitted.is_symlink():
        with contextlib.suppress(FileExistsError):
            fitted.symlink_to(place.name)


def _clean(folder: Path) -> None:
    """Remove unfinished folders of processes that have ended, and dangling links."""
    for path in folder.glob(".[0-9]*-*"):
        owner = path.name[1:].partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.iterdir():
        if path.is_symlink() and not path.exists():
            path.unlink(missing_ok=True)


def _make_room(folder: Path, used: Path) -> None:
    """Remove the least recently used tables until the rest fits into the limit; ``used`` stays."""
    found = []
    for place in folder.iterdir():
        if place.is_symlink():
            continue
        with contextlib.suppress(OSError):
            nbytes = sum(file.stat().st_size for file in place.iterdir())
            found.append(((place / _SUMMARY).stat().st_mtime, nbytes, place))
    total = sum(nbytes for _, nbytes, _ in found)
    for _, nbytes, place in sorted(found):
        if total <= MOST:
            return
        if place != used.resolve():
            logger.warning("%s, a large table that was used longest ago, makes room in %s", place.name, folder)
            shutil.rmtree(place, ignore_errors=True)
            total -= nbytes


# -- making a table ready ----------------------------------------------------------------------------------------------


def _build(folder: Path, process: TransformProcess, tables: Sequence[Path], split: Split | None) -> None:
    """Write the table into a folder; without a ``split`` its files are its two parts."""
    rows = max(256, min(65536, _BLOCK // (8 * (len(process.columns) + process.bins + 1))))
    with tempfile.TemporaryFile(dir=folder) as file:
        store = ColumnStore(file, _tables(process, tables, rows))
        if split is None:
            cut = store.rows_of[str(tables[0])]
            train, test = np.arange(cut), np.arange(cut, store.rows)
            learned = Table(str(tables[0]), {}, train, {}, store.labels()[:cut])
            process = process.with_classes_learned(learned)
        else:
            train, test = split.parts(store.rows)
            if split.stratify:
                process = _with_classes(process, store, np.arange(store.rows))
                labels = Table(str(tables[0]), {}, np.arange(store.rows), {}, store.labels())
                train, test = stratified(process.class_numbers(labels), (train, test))
        process = _with_classes(process, store, np.concatenate([train, test]))
        if not process.is_fitted:
            process = fit_by_columns(process, store, train)
        for column, values in unscaled_columns(process, store, train):
            warn_of_equal(values[:, None], str(tables[0]), (column,))
        _write(folder, process, store, train, test)


def _tables(process: TransformProcess, tables: Sequence[Path], rows: int) -> Iterator[Table]:
    """Yield the labelled rows of the files."""
    for path in tables:
        with files.errors_as(DataError, f"cannot read {path}"):
            before = path.stat()
            file = files.open_to_read(path)
        yield from process.blocks(file, str(path), rows=rows, labelled=True)
        with files.errors_as(DataError, f"cannot read {path}"):
            after = path.stat()
        if (before.st_mtime_ns, before.st_size, before.st_ino) != (after.st_mtime_ns, after.st_size, after.st_ino):
            raise DataError(f"{path} was changed while it was read; begin again when it is whole")


def _with_classes(process: TransformProcess, store: ColumnStore, order: npt.NDArray[np.intp]) -> TransformProcess:
    if process.regression or process.multi_label or process.classes:
        return process
    counts: dict[str, int] = {}
    for word, count in store.label_counts().items():
        counts[class_name(word)] = counts.get(class_name(word), 0) + count
    if 1 in counts.values():
        alone = {word for word in store.label_counts() if counts[class_name(word)] == 1}
        labels = store.labels()
        row = next(row for row in order.tolist() if labels[row] in alone)
        others = np.array([word for word in counts if counts[word] > 1] * 2, object)
        rest = Table("", {}, np.arange(len(others)), {}, others)
        return process.with_classes_of((store.row(row), rest))  # this raises an error
    return process.with_classes(counts)


def _write(
    folder: Path,
    process: TransformProcess,
    store: ColumnStore,
    train: npt.NDArray[np.intp],
    test: npt.NDArray[np.intp],
) -> None:
    """Write features and labels, each row to its position."""
    places, sizes = _places(process, store, train, test)
    columns, total = len(process.apply(store.empty()).columns), sum(sizes)
    width = columns + len(process.label_names)
    with contextlib.ExitStack() as opened:
        piles = ShuffleBuckets(opened, folder, total, width)
        for first, table in store.tables():
            there = places[first : first + len(table)] >= 0
            if there.any():
                done = process.apply(table.take(there))
                piles.add(places[first : first + len(table)][there], np.concatenate(process.arrays(done), axis=1))
        x, y = (opened.enter_context((folder / name).open("wb")) for name in ("features", "labels"))
        for rows in piles.in_order():
            x.write(np.ascontiguousarray(rows[:, :columns]).data)
            y.write(np.ascontiguousarray(rows[:, columns:]).data)
        for file in (x, y):
            file.flush()
            os.fsync(file.fileno())
    summary = {"process": json.loads(process.to_json()), "train": sizes[0], "test": sizes[1]}
    shape = {"columns": columns, "outcomes": width - columns}
    files.write(folder / _SUMMARY, to_json({**summary, **shape}).encode())


def _places(
    process: TransformProcess, store: ColumnStore, train: npt.NDArray[np.intp], test: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], tuple[int, int]]:
    """Return the position of each row of the store, -1 if a filter drops it, and the numbers of rows of both parts."""
    kept = np.ones(store.rows, bool)
    if any(isinstance(step, Filter) for step in process.steps):
        for first, table in store.tables():
            kept[first : first + len(table)] = np.isin(table.lines, process.apply(table).lines)
    places = np.full(store.rows, -1)
    start, sizes = 0, []
    for part in (train, test):
        there = part[kept[part]]
        if not len(there):
            name = store.row(int(part[0])).name if len(part) else "the table"
            raise DataError(f"{name}: the schema's filters leave no row of {counted(len(part), 'row')}")
        places[there] = np.arange(start, start + len(there))
        start += len(there)
        sizes.append(len(there))
    return places, (sizes[0], sizes[1])
