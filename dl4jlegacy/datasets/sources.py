"""Loading a data set by its name or path, as training and test part; the meaning of ``--dataset``.

The split depends on the data and on ``seed`` of ``load`` alone, never on a run's seed: training and a later
evaluation must hold out the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dl4jlegacy import files
from dl4jlegacy.datasets.bundled import DIGITS_NAMES, IRIS_NAMES, read_digits, read_iris
from dl4jlegacy.datasets.characters import LENGTH, alphabet_of, character_windows, read_sonnets, read_text
from dl4jlegacy.datasets.csv_files import read_csv, read_csv_files
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.mnist import find_idx_files, read_idx_dataset, read_mnist
from dl4jlegacy.errors import DataError, counted, nearest

__all__ = ["NAMES", "SPLIT_SEED", "DataSource", "load"]

NAMES = ("digits", "iris", "mnist", "sonnets")
SPLIT_SEED = 123


@dataclass(frozen=True, slots=True)
class DataSource:
    """A data set, ready to train on and to evaluate with.

    Attributes:
        name: the name or path it was loaded by.
        train: the examples to learn from.
        test: the examples held out.
        label_names: one name per outcome.
    """

    name: str
    train: DataSet
    test: DataSet
    label_names: tuple[str, ...]


def load(
    name_or_path: str | Path,
    *,
    data_dir: str | Path | None = None,
    test_fraction: float = 0.2,
    seed: int = SPLIT_SEED,
    n_classes: int | None = None,
    label_names: Sequence[str] | None = None,
) -> DataSource:
    """Return the data set called ``name_or_path``.

    Args:
        name_or_path: digits, iris, mnist, sonnets; a CSV file; a text (.txt), of which windows of characters are
            taken whose labels are the characters that follow; or a folder with four IDX files under MNIST's names (read
            without comparing checksums), with train.csv and test.csv, or with other CSV files.
        data_dir: where MNIST is looked for and stored.
        test_fraction: the share held out where the data set does not come in two parts.
        seed: of the shuffling before that split.
        n_classes: the range of class numbers in CSV and IDX files, when the files alone do not tell.
        label_names: the classes of CSV files in order, where they are known: a file may not hold all of them; the
            characters of texts.

    Raises:
        DataError: unknown, missing or damaged; the message names what was searched for and where.
    """
    name = str(name_or_path)
    if name == "mnist":
        names = tuple(str(digit) for digit in range(10))
        return DataSource(name, read_mnist("train", data_dir=data_dir), read_mnist("t10k", data_dir=data_dir), names)
    if name == "digits":
        return _split(name, read_digits(), DIGITS_NAMES, test_fraction, seed)
    if name == "iris":
        return _split(name, read_iris(), IRIS_NAMES, test_fraction, seed)
    if name == "sonnets":
        return _text(name, read_sonnets(), test_fraction, label_names)
    with files.errors_as(DataError, f"data set {name!r} cannot be read"):
        path = files.expand(name)
        kind = files.kind_of(path) if name else None
    if kind == "file" and path.suffix.lower() == ".txt":
        return _text(name, read_text(path), test_fraction, label_names)
    if kind == "folder":
        return _load_folder(name, path, test_fraction=test_fraction, seed=seed, n_classes=n_classes, known=label_names)
    if kind is not None:
        dataset, names = read_csv(path, n_classes=n_classes, label_names=label_names)
        return _split(name, dataset, names, test_fraction, seed)
    if _looks_like_path(name):
        known = f"{', '.join(NAMES)}, a CSV or .txt file or a folder"
        hint = f"; there is no such file or folder ({path.absolute()}); give {known}"
    else:
        hint = f"{nearest(name, NAMES)}; or the path of a CSV or .txt file or a folder"
    raise DataError(f"unknown data set {name!r}{hint}")


def _text(name: str, text: str, test_fraction: float, alphabet: Sequence[str] | None) -> DataSource:
    """Return windows of a text; its end is held out, so that no character is in both parts."""
    _check_fraction(test_fraction)
    letters = tuple(alphabet) if alphabet is not None else alphabet_of(text)
    cut = round(len(text) * (1 - test_fraction))
    train = character_windows(text[:cut], alphabet=letters, stride=LENGTH // 2)
    return DataSource(name, train, character_windows(text[cut:], alphabet=letters), letters)


def _looks_like_path(name: str) -> bool:
    return "/" in name or "." in name


def _check_fraction(test_fraction: float) -> None:
    if not 0 < test_fraction < 1:
        raise DataError(f"test fraction is {test_fraction}; it must lie between 0 and 1 (exclusive)")


def _split(name: str, dataset: DataSet, label_names: tuple[str, ...], test_fraction: float, seed: int) -> DataSource:
    _check_fraction(test_fraction)
    train, test = dataset.split_test_and_train(1 - test_fraction, seed)
    return DataSource(name, train, test, label_names)


def _load_folder(
    name: str, path: Path, *, test_fraction: float, seed: int, n_classes: int | None, known: Sequence[str] | None
) -> DataSource:
    """Return what ``path`` holds: IDX files first, then CSV files."""
    if find_idx_files(path):
        train = read_idx_dataset(path, "train", n_classes)
        test = read_idx_dataset(path, "t10k", train.n_out)  # a class that was never learned is an error
        if test.n_in != train.n_in:
            raise DataError(f"{path}: training images have {counted(train.n_in, 'pixel')}, test images {test.n_in}")
        return DataSource(name, train, test, tuple(str(number) for number in range(train.n_out)))
    with files.errors_as(DataError, f"cannot read folder {path}"):
        found = [path / file for file in files.names_in(path)]
        tables = [file for file in found if file.suffix.lower() == ".csv" and files.is_file(file)]
    parts = {file.stem.lower(): file for file in tables}
    if {"train", "test"} <= parts.keys():
        train, label_names = read_csv(parts["train"], n_classes=n_classes, label_names=known)
        test, _ = read_csv(parts["test"], label_names=label_names)
        if test.n_in != train.n_in:
            raise DataError(f"{parts['train']} has {counted(train.n_in, 'feature')}, {parts['test']} has {test.n_in}")
        return DataSource(name, train, test, label_names)
    if tables:
        datasets, label_names = read_csv_files(tables, n_classes=n_classes, label_names=known)
        return _split(name, DataSet.merge(datasets), label_names, test_fraction, seed)
    raise DataError(
        f"folder {path} holds no data set: looked for four IDX files under MNIST's names and for CSV files, "
        f"found {', '.join(file.name for file in found[:5]) or 'nothing'}{' ...' if len(found) > 5 else ''}"
    )
