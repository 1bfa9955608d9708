"""Loading a data set by its name or path, as training and test part; the meaning of ``--dataset``.

The split depends on the data and on ``seed`` of ``load`` alone, never on a run's seed: training and a later
evaluation must hold out the same examples.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dl4jlegacy.datasets.bundled import DIGITS_NAMES, IRIS_NAMES, read_digits, read_iris
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.images.image_files import ImageRecordReader, read_parts
from dl4jlegacy.datasets.images.image_folders import holds_images
from dl4jlegacy.datasets.images.image_tables import image_schema, read_listed
from dl4jlegacy.datasets.mnist import find_idx_files, read_idx_dataset, read_mnist
from dl4jlegacy.datasets.reading import UNREAD, Reading
from dl4jlegacy.datasets.sequences.sequence_reader import read_sequence_parts
from dl4jlegacy.datasets.splitting import Split, class_numbers, stratified
from dl4jlegacy.datasets.tables.csv_files import read_csv_files
from dl4jlegacy.datasets.tables.pandas_index import warn_of_index
from dl4jlegacy.datasets.tables.sparse_files import read_svmlight_files
from dl4jlegacy.datasets.tables.stored_tables import is_large, stored_tables
from dl4jlegacy.datasets.tables.svmlight_files import TooWideError
from dl4jlegacy.datasets.tables.svmlight_schema import svmlight_schema
from dl4jlegacy.datasets.tables.table import Table
from dl4jlegacy.datasets.tables.table_files import (
    KINDS,
    check_one_kind,
    index_columns,
    is_pattern,
    is_svmlight,
    is_table,
    tables_like,
)
from dl4jlegacy.datasets.tables.transform_process import TransformedTables, TransformProcess
from dl4jlegacy.datasets.text.characters import read_sonnets, read_text
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.errors import DataError, counted, nearest
from dl4jlegacy.system import files

__all__ = ["NAMES", "SPLIT_SEED", "DataSource", "is_of_images", "load", "svmlight_files_of", "table_files_of"]

logger = logging.getLogger(__name__)

NAMES = ("digits", "iris", "mnist", "sonnets")
SPLIT_SEED = 123


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data set, ready to train on and to evaluate with.

    Attributes:
        name: the name or path it was loaded by.
        train: the examples to learn from.
        test: the examples held out.
        reading: how they were read, fitted to the training part.
        columns: the names of the columns of features, where they have names.
    """

    name: str
    train: DataSet
    test: DataSet
    reading: Reading = UNREAD
    columns: tuple[str, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """One name for each outcome."""
        return self.reading.label_names

    def with_reading(self, **changes: Any) -> DataSource:
        """Return it with other values in its reading."""
        return dataclasses.replace(self, reading=self.reading.replace(**changes))

    def rounded(self) -> DataSource:
        """Return it with both parts as ``DataSet.rounded`` returns them, by the columns of the training part."""
        far = self.train.far()
        return dataclasses.replace(self, train=self.train.rounded(far), test=self.test.rounded(far))


def load(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = SPLIT_SEED,
    reading: Reading = UNREAD,
    n_classes: int | None = None,
    columns: int = 0,
    keep_index: bool = False,
    rounded: bool = True,
) -> DataSource:
    """Return the data set called ``name_or_path``.

    Args:
        name_or_path: digits, iris, mnist, sonnets; a table (CSV, JSON lines, Parquet, Arrow, Feather, NumPy or
            SVMLight, by its ending, CSV by default); a pattern such as ``part-*.csv`` for parts of a table; a text
            (.txt), of which windows of characters, or words, are taken whose labels are those that follow; or a folder
            with 4 IDX files under MNIST's names (read without comparing checksums), with a table called train and one
            called test, with other tables, or with a folder of images for each class (or with these in folders train
            and test).
        data_dir: where MNIST is looked for and stored.
        test_fraction: the share held out where the data set does not come in two parts.
        seed: of the shuffling before that split.
        reading: how it is read, as a trained model has it, or as far as it is known:
            ``label_names`` are the classes of tables and images in order, of which files may not hold all, and the
            characters or words of texts; a ``transform`` is fitted to the training part unless it is already, and
            without one the columns of tables are numbers and a class (SVMLight files get a schema without steps);
            without ``images`` those in folders keep their size, which must be the same for all, and with a ``column``
            they are those that tables list, whose labels ``transform`` names (None: the column that is called label,
            class or target, or the last one); ``sequences`` are the CSV files in a folder, which else are parts of one
            table; by a ``header`` columns are found that have names. The ``normalizer`` is not used.
        n_classes: the range of class numbers in tables and IDX files, when the files alone do not tell.
        columns: SVMLight files have so many, and are read as sparse features; 0: they are only if they have more than a
            table may have.
        keep_index: pandas' index in a table that no schema or header describes is a column like others; else it is left
            out.
        rounded: features are float32, or float64 if a column of the training part lies so far from 0 that float32
            would lose what differs in it. False: what is read of texts and tables stays float64, to be scaled as a
            model says.

    Raises:
        DataError: unknown, missing or damaged; the message names what was searched for and where. Or it is to be
            ``stratified``, and labels are no classes, or one of these has a single example and is not known already.
    """
    known = bool(reading.label_names)
    name, split = str(name_or_path), Split(test_fraction, seed, reading.stratified, allows_lone=known)
    index = () if keep_index else None
    found = _load(name, split, reading, data_dir=data_dir, n_classes=n_classes, columns=columns, index=index)
    return found.rounded() if rounded else found


def _load(
    name: str,
    split: Split,
    given: Reading,
    *,
    data_dir: str | Path | None,
    n_classes: int | None,
    columns: int,
    index: Sequence[str] | None,
) -> DataSource:
    """Return the data set, with features of tables and sequences as float64."""
    if given.sequences is not None:
        return _load_sequences(name, given, split)
    if given.images is not None and given.images.column:
        return _load_listed(name, given.transform, given.images, split)
    if given.transform is not None:
        return _load_tables(name, given.transform, split)
    if name == "mnist":
        reading = Reading(label_names=tuple(str(digit) for digit in range(10)))
        return DataSource(name, read_mnist("train", data_dir=data_dir), read_mnist("t10k", data_dir=data_dir), reading)
    if name == "digits":
        return _split(name, read_digits(), DIGITS_NAMES, split)
    if name == "iris":
        return _split(name, read_iris(), IRIS_NAMES, split)
    if name == "sonnets":
        return _text(name, read_sonnets(), split, given)
    path, kind = _path_of(name)
    if kind is not None and (found := svmlight_files_of(name)):
        names = given.label_names or None
        try:
            known = svmlight_schema(found, n_classes=n_classes, label_names=names) if not columns else None
        except TooWideError:
            known = None
        if known is None:
            return _load_sparse(name, found, split, columns, names)
        return _load_tables(name, known, split)
    if kind == "file" and path.suffix.lower() == ".txt":
        return _text(name, read_text(path), split, given)
    if kind == "folder" and is_of_images(path, given.images):
        train, test, found_names, images = read_parts(path, given.images, given.label_names or None, split)
        return DataSource(name, train, test, Reading(label_names=found_names, images=images, stratified=split.stratify))
    if kind == "pattern":
        return _load_parts(name, tables_like(name), split, n_classes, given, index)
    if kind == "folder":
        return _load_folder(name, path, split, n_classes, given, index)
    if kind is not None:
        return _load_parts(name, [path], split, n_classes, given, index)
    raise _unknown(name, path)


def _path_of(name: str) -> tuple[Path, str | None]:
    """Return what may be a path, and what kind of thing is there."""
    with files.errors_as(DataError, f"data set {name!r} cannot be read"):
        path = files.expand(name)
        kind = files.kind_of(path) if name else None
        return path, "pattern" if kind is None and is_pattern(name) else kind


def _unknown(name: str, path: Path) -> DataError:
    if _looks_like_path(name):
        known = f"{', '.join(NAMES)}, a table ({KINDS}), a .txt file or a folder"
        hint = f"; there is no such file or folder ({path.absolute()}); give {known}"
    else:
        hint = f"{nearest(name, NAMES)}; or the path of a table ({KINDS}), of a .txt file or of a folder"
    return DataError(f"unknown data set {name!r}{hint}")


def table_files_of(name: str) -> list[Path]:
    """Return the tables that a data set consists of; none if it is no path, or another kind of thing.

    A folder's train file comes first, then its test file, or all its files in the order of their names.

    Raises:
        DataError: there is no such thing.
    """
    if name in NAMES:
        return []
    path, kind = _path_of(name)
    if kind is None:
        raise _unknown(name, path)
    if kind == "pattern":
        return _in_order(tables_like(name))
    if kind == "file":
        return [] if path.suffix.lower() == ".txt" else [path]
    if kind != "folder" or find_idx_files(path):
        return []
    return _in_order(_tables_in(path))


def svmlight_files_of(name: str) -> list[Path]:
    """Return the SVMLight files that a data set consists of; none if it is another one. Raises as above."""
    found = table_files_of(name)
    return found if found and is_svmlight(found[0].name) else []


def _in_order(tables: list[Path]) -> list[Path]:
    """Return the file called train and the one called test, if there are such, else all as they are."""
    parts = {_stem(file): file for file in tables}
    return [parts["train"], parts["test"]] if {"train", "test"} <= parts.keys() else tables


def _tables_in(folder: Path) -> list[Path]:
    with files.errors_as(DataError, f"cannot read folder {folder}"):
        found = [folder / file for file in files.names_in(folder)]
        tables = [file for file in found if is_table(file.name) and files.is_file(file)]
    check_one_kind(tables, f"folder {folder}")
    return tables


def _stem(file: Path) -> str:
    return file.name.lower().partition(".")[0]


def _load_tables(name: str, transform: TransformProcess, split: Split) -> DataSource:
    """Return the tables of a data set, made ready by a schema."""
    found = table_files_of(name)
    if not found:
        raise DataError(
            f"data set {name!r} has no columns to choose from: a schema is for tables ({KINDS}), and it is none"
        )
    parted = [_stem(path) for path in found] == ["train", "test"]
    if is_large(found, len(transform.columns)):
        ready = stored_tables(transform, found, split, parted=parted)
        return _of_process(name, ready.train, ready.test, ready.process, split, ready.process.feature_names)
    tables = [transform.read(path) for path in found]
    if parted:
        train, test = tables
        transform = transform.with_classes_learned(train)  # others in the test part are an error there
    else:
        whole = Table.merge(tables)
        if split.stratify:
            transform = transform.with_classes_of([whole])  # a class with a single row is an error there
            order = stratified(transform.class_numbers(whole), split.parts(len(whole)))
        else:
            order = split.parts(len(whole))
        train, test = whole.take(order[0]), whole.take(order[1])
    ready = TransformedTables.of(transform, train, test)
    return _of_process(name, ready.train, ready.test, ready.process, split, ready.columns)


def _of_process(
    name: str,
    train: DataSet,
    test: DataSet,
    process: TransformProcess,
    split: Split,
    columns: tuple[str, ...] = (),
    images: ImageRecordReader | None = None,
) -> DataSource:
    """Return what a schema has made ready."""
    names = process.label_names
    reading = Reading(transform=process, images=images, label_names=names, stratified=split.stratify)
    return DataSource(name, train, test, reading, columns)


def _load_sparse(
    name: str, found: Sequence[Path], split: Split, columns: int, known: Sequence[str] | None
) -> DataSource:
    """Return SVMLight files with sparse features."""
    ordered = _in_order(list(found))
    datasets, names = read_svmlight_files(ordered, columns=columns, label_names=known or ())
    if [_stem(path) for path in ordered] == ["train", "test"]:
        return DataSource(name, datasets[0], datasets[1], Reading(label_names=names))
    return _split(name, DataSet.merge(datasets), names, split)


def is_of_images(path: Path, images: ImageRecordReader | None = None) -> bool:
    """Tell whether a folder's images are learned, and no tables in it; raises ``DataError``.

    Args:
        path: of the folder.
        images: how they are read; None: nobody has asked for images.
    """
    return (images is not None or not (find_idx_files(path) or _tables_in(path))) and holds_images(path)


def _load_sequences(name: str, given: Reading, split: Split) -> DataSource:
    path, kind = _path_of(name)
    if kind != "folder":
        raise DataError(
            f"data set {name!r} is no folder, and sequences (--sequences, sequences in a Conf) are files in one, a "
            "sequence each; leave it out, or name their folder"
        )
    assert given.sequences is not None
    train, test, names, settled = read_sequence_parts(path, given.sequences, given.label_names or None, split)
    return DataSource(name, train, test, Reading(label_names=names, sequences=settled))


def _load_listed(name: str, transform: TransformProcess | None, images: ImageRecordReader, split: Split) -> DataSource:
    """Return images that tables list; or those in folders of the classes, where these are known already."""
    found = table_files_of(name)
    path, kind = _path_of(name)
    if not found and kind == "folder" and transform is not None and transform.classes and holds_images(path):
        train, test, names, _ = read_parts(path, images, transform.classes, split)
        reading = Reading(label_names=names, transform=transform, images=images, stratified=split.stratify)
        return DataSource(name, train, test, reading)
    if not found:
        raise DataError(
            f"data set {name!r} is no table, and {images.column!r} (--images, images.column in a Conf) is the column "
            "of one, which names the files of images; leave it out for folders of images"
        )
    process = image_schema(found[0], images.column) if transform is None else transform
    parted = [_stem(file) for file in found] == ["train", "test"]
    train, test, process, reader = read_listed(found, images, process, split, parted=parted)
    return _of_process(name, train, test, process, split, images=reader)


def _text(name: str, text: str, split: Split, given: Reading) -> DataSource:
    """Return windows of a text; its end is held out, so that no part of it is in both parts."""
    if split.stratify:
        raise DataError(f"data set {name!r} is a text, whose end is held out, whatever it holds; leave --stratify out")
    reader = given.text or TextReader()
    train, test, names = reader.parts(text, split.test_fraction, given.label_names or None)
    return DataSource(name, train, test, Reading(label_names=names, text=reader))


def _looks_like_path(name: str) -> bool:
    return "/" in name or "." in name


def _split(name: str, dataset: DataSet, label_names: tuple[str, ...], split: Split) -> DataSource:
    if not split.stratify:
        train, test = dataset.split_test_and_train(1 - split.test_fraction, split.seed)
        return DataSource(name, train, test, Reading(label_names=label_names))
    learned, held_out = split.parts_of(class_numbers(dataset.labels), label_names, f"data set {name!r}")
    reading = Reading(label_names=label_names, stratified=True)
    return DataSource(name, dataset.take(learned), dataset.take(held_out), reading)


def _load_folder(
    name: str, path: Path, split: Split, n_classes: int | None, given: Reading, index: Sequence[str] | None
) -> DataSource:
    """Return what ``path`` holds: IDX files first, then tables."""
    if find_idx_files(path):
        train = read_idx_dataset(path, "train", n_classes)
        test = read_idx_dataset(path, "t10k", train.n_out)  # a class that was never learned is an error
        if test.n_in != train.n_in:
            raise DataError(f"{path}: training images have {counted(train.n_in, 'pixel')}, test images {test.n_in}")
        return DataSource(name, train, test, Reading(label_names=tuple(map(str, range(train.n_out)))))
    tables = _tables_in(path)
    if tables:
        if holds_images(path):
            logger.warning(
                "%s has tables, such as %s, and folders with images, which are left out; to learn these, give "
                "--image-channels 3 (or 1), or move the tables elsewhere",
                path,
                tables[0].name,
            )
        return _load_parts(name, tables, split, n_classes, given, index)
    with files.errors_as(DataError, f"cannot read folder {path}"):
        found = files.names_in(path)
    raise DataError(
        f"folder {path} holds no data set: looked for four IDX files under MNIST's names, for tables ({KINDS}), "
        f"and for a folder of images for each class; found {', '.join(found[:5]) or 'nothing'}"
        f"{' ...' if len(found) > 5 else ''}"
    )


def _load_parts(
    name: str,
    tables: list[Path],
    split: Split,
    n_classes: int | None,
    given: Reading,
    index: Sequence[str] | None,
) -> DataSource:
    """Return tables of numbers and a class: one to learn from and one held out, by their names, or parts of one."""
    found, header, known = _in_order(tables), given.header, given.label_names or None
    if [_stem(path) for path in found] == ["train", "test"]:
        index = index_columns(found) if index is None and header is None else index
        learned = read_csv_files(found[:1], n_classes=n_classes, label_names=known, header=header, index=index)
        warn_of_index(learned.left_out, str(found[0]))
        train, names = learned.parts[0], learned.label_names
        test = read_csv_files(found[1:], label_names=names, header=learned.header, index=index).parts[0]
        if test.n_in != train.n_in:
            raise DataError(f"{found[0]} has {counted(train.n_in, 'feature')}, {found[1]} has {test.n_in}")
        return DataSource(name, train, test, Reading(label_names=names, header=learned.header), learned.columns)
    is_new = n_classes is None and known is None
    whole = read_csv_files(found, n_classes=n_classes, label_names=known, is_split=is_new, header=header, index=index)
    parted = _split(name, DataSet.merge(whole.parts), whole.label_names, split)
    return dataclasses.replace(parted, columns=whole.columns).with_reading(header=whole.header)
