"""Reader of SVMLight files as sparse features: any number of columns, with only the given values in memory.

A feature's index is its column. So files that count from 1 have a column 0 without values, and the columns of a file do
not depend on whether its lines happen to have an index 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dl4jlegacy.datasets.dataset import DataSet, one_hot
from dl4jlegacy.datasets.iterator import ListDataSetIterator
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.datasets.tables.svmlight_files import SparseRows, sparse_blocks, word_of
from dl4jlegacy.datasets.tables.text_rows import open_table
from dl4jlegacy.errors import DataError

__all__ = ["SvmLightDataSetIterator", "read_svmlight", "read_svmlight_files", "sparse_features_of"]


class SvmLightDataSetIterator(ListDataSetIterator):
    """Batches of one SVMLight or LIBSVM file, with sparse features.

    Args:
        batch: examples per batch.
        path: the file; also gzipped.
        columns, regression, label_names: as for ``read_svmlight``.
        seed: of the shuffling.
        shuffle: a new order every epoch.
    """

    def __init__(
        self,
        batch: int,
        path: str | Path,
        *,
        columns: int = 0,
        regression: bool = False,
        label_names: tuple[str, ...] = (),
        seed: int = 123,
        shuffle: bool = True,
    ) -> None:
        dataset, names = read_svmlight(path, columns=columns, regression=regression, label_names=label_names)
        super().__init__(dataset, batch, seed=seed, shuffle=shuffle, label_names=names)


def read_svmlight(
    path: str | Path, *, columns: int = 0, regression: bool = False, label_names: Sequence[str] = ()
) -> tuple[DataSet, tuple[str, ...]]:
    """Return the examples of a file with sparse float32 features, and the names of their classes.

    Args:
        path: the file; also gzipped.
        columns: the number of columns, as in a model's training data; 0: one more than the largest index.
        regression: the labels are numbers to predict; else they are classes, in ascending order.
        label_names: the classes in order, if they are known.

    Raises:
        DataError: the file cannot be read, or a line is wrong: names file, line and value.
    """
    [dataset], names = read_svmlight_files(
        [Path(path)], columns=columns, regression=regression, label_names=label_names
    )
    return dataset, names


def read_svmlight_files(
    paths: Sequence[Path], *, columns: int = 0, regression: bool = False, label_names: Sequence[str] = ()
) -> tuple[list[DataSet], tuple[str, ...]]:
    """Return one data set per file, all with the same columns and classes; args and errors as for ``read_svmlight``."""
    found = [list(sparse_blocks(open_table(path), str(path))) for path in paths]
    blocks = [block for each in found for block in each]
    indices = np.concatenate([block.indices for block in blocks])
    if not len(indices):
        raise DataError(f"{paths[0]} has no index:value pair; there is nothing to learn from")
    most = columns or int(indices.max()) + 1
    if regression:
        return [DataSet(_features(each, most), _labels(each)[:, None].astype(np.float32)) for each in found], ()
    words = sorted({word_of(label) for each in found for label in _labels(each).tolist()}, key=float)
    names = tuple(label_names) or tuple(words)
    places = {name: place for place, name in enumerate(names)}
    return [DataSet(_features(each, most), one_hot(_classes(each, places), len(names))) for each in found], names


def sparse_features_of(file: BinaryIO, name: str, columns: int, *, rows: int) -> Iterator[Any]:
    """Yield the features of a file for a model with ``columns`` columns, in blocks of at most ``rows`` rows.

    Args and errors as for ``sparse_blocks``.
    """
    for block in sparse_blocks(file, name):
        for start in range(0, len(block), rows):
            yield _features([block.between(start, min(start + rows, len(block)))], columns)


def _features(blocks: Sequence[SparseRows], columns: int) -> SparseFeatures:
    for block in blocks:
        _check_indices(block, columns)
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([block.pair_counts for block in blocks]))])
    indices = np.concatenate([block.indices for block in blocks])
    return SparseFeatures(offsets, indices, np.concatenate([b.values for b in blocks]).astype(np.float32), columns)


def _labels(blocks: Sequence[SparseRows]) -> npt.NDArray[np.float64]:
    return np.concatenate([block.single_labels() for block in blocks])


def _classes(blocks: Sequence[SparseRows], places: Mapping[str, int]) -> list[int]:
    """Return the class number of each row."""
    found = []
    for block in blocks:
        for label, line in zip(block.single_labels().tolist(), block.lines.tolist(), strict=True):
            word = word_of(label)
            if word not in places:
                known = ", ".join(list(places)[:10])
                raise DataError(f"{block.name}, line {line}: label {word!r} is none of the classes {known}")
            found.append(places[word])
    return found


def _check_indices(block: SparseRows, columns: int) -> None:
    if len(block.indices) and block.indices.max() >= columns:
        pair = int(block.indices.argmax())
        raise DataError(
            f"{block.name}, line {block.line_of_pair(pair)}: index {block.indices[pair]} is larger than {columns - 1}, "
            "the largest in the data that the model learned from; leave it out, or train anew with these data"
        )
