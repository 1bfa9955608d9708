"""The data sets that ship with the package: digits and iris. Origin and licences: ``data/NOTICE``.

The iterators follow DL4J's ``IrisDataSetIterator(batch, numExamples)`` and its MNIST iterator, here with small images.
"""

from __future__ import annotations

import gzip
from importlib import resources

import numpy as np

from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.errors import DataError, counted

__all__ = [
    "DIGITS_NAMES",
    "IRIS_NAMES",
    "DigitsDataSetIterator",
    "IrisDataSetIterator",
    "read_digits",
    "read_iris",
]

DIGITS_NAMES = tuple(str(digit) for digit in range(10))
IRIS_NAMES = ("setosa", "versicolor", "virginica")


def read_digits(num_examples: int | None = None) -> DataSet:
    """Return the handwritten digits, in their original order: 1,797 images of 8 x 8 pixels, scaled to 0..1."""
    text = gzip.decompress(_content("digits.csv.gz")).decode()
    rows = np.loadtxt(text.splitlines(), np.float32, delimiter=",")
    return _first(DataSet.of_classes(rows[:, :-1] / 16, rows[:, -1], 10), num_examples, "digits")


def read_iris(num_examples: int | None = None) -> DataSet:
    """Return Fisher's iris flowers, sorted by species: 150 examples of four lengths in centimetres."""
    rows = [line.split(",") for line in _content("iris.csv").decode().splitlines()[1:]]
    features = np.array([row[:-1] for row in rows], np.float32)
    return _first(DataSet.of_classes(features, [IRIS_NAMES.index(row[-1]) for row in rows]), num_examples, "iris")


class DigitsDataSetIterator(ListDataSetIterator):
    """Batches of the first ``num_examples`` digits (all 1,797 by default)."""

    def __init__(self, batch: int, num_examples: int | None = None, *, seed: int = 123, shuffle: bool = True) -> None:
        super().__init__(read_digits(num_examples), batch, seed=seed, shuffle=shuffle, label_names=DIGITS_NAMES)


class IrisDataSetIterator(ListDataSetIterator):
    """Batches of the first ``num_examples`` iris flowers (all 150 by default; fewer lack some species)."""

    def __init__(self, batch: int, num_examples: int | None = None, *, seed: int = 123, shuffle: bool = True) -> None:
        super().__init__(read_iris(num_examples), batch, seed=seed, shuffle=shuffle, label_names=IRIS_NAMES)


def _content(name: str) -> bytes:
    return (resources.files("dl4jlegacy.datasets") / "data" / name).read_bytes()


def _first(dataset: DataSet, num_examples: int | None, name: str) -> DataSet:
    wanted = dataset.num_examples if num_examples is None else num_examples
    if not 1 <= wanted <= dataset.num_examples:
        raise DataError(f"{counted(wanted, 'example')} of {name} were asked for; it has 1 to {dataset.num_examples}")
    return dataset.rows(0, wanted)
