"""A data set whose batches are the objects below a prefix in S3, each read when it is needed.

An object is one batch: a CSV file (the label last, numbered classes), or an ``.npz`` with ``features`` and ``labels``,
which ``upload_batches`` writes. Two are held at a time, so a data set may be larger than memory.

Legacy: ``BaseS3DataSetIterator``, which went through every bucket of the account.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.iterator import BatchCursor
from dl4jlegacy.datasets.tables.csv_files import read_csv_files
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.storage.s3.downloader import S3Downloader
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import S3Uploader

__all__ = ["BaseS3DataSetIterator", "upload_batches"]

_SUFFIXES = (".npz", ".csv")
_HELD = 2


def upload_batches(aws: Aws, batches: Iterable[DataSet], bucket: str, prefix: str) -> int:
    """Write batches as objects that ``BaseS3DataSetIterator`` reads; return how many."""
    uploader, count = S3Uploader(aws), 0
    uploader.ensure_bucket(bucket)
    for batch in batches:
        content = io.BytesIO()
        np.savez(content, features=batch.features, labels=batch.labels)
        uploader.put(content.getvalue(), Location(bucket, f"{prefix.rstrip('/')}/batch-{count:08d}.npz"))
        count += 1
    return count


class BaseS3DataSetIterator(BatchCursor[DataSet]):
    """Batches from S3; a ``DataSetIterator``. ``batch`` is safe on any thread.

    Args:
        aws: where.
        bucket, prefix: the objects that are batches, in the order of their keys.
        n_classes: the range of class numbers in CSV files, where one file does not hold all.
        seed: of the order of the batches in an epoch.
        shuffle: False keeps the order of the keys.

    Raises:
        DataError: there are none, or they do not fit together. All are read once, to count their examples.
    """

    def __init__(
        self,
        aws: Aws,
        bucket: str,
        prefix: str = "",
        *,
        n_classes: int | None = None,
        seed: int = 123,
        shuffle: bool = True,
    ) -> None:
        self._downloader, self._bucket, self._n_classes = S3Downloader(aws), bucket, n_classes
        self._shuffle, self._stream = shuffle, Stream.of(seed)
        self._lock, self._held = threading.Lock(), dict[str, DataSet]()
        self._keys = [k for k in self._downloader.iterate_bucket(bucket, prefix) if k.endswith(_SUFFIXES)]
        if not self._keys:
            raise DataError(f"no object at s3://{bucket}/{prefix} ends in {' or '.join(_SUFFIXES)}; is it spelt right?")
        first = self._load(self._keys[0])
        self.input_columns, self.total_outcomes = first.n_in, first.n_out
        sizes = [first.num_examples, *(self._load(key).num_examples for key in self._keys[1:])]
        self.batch_size, self.total_examples, self._batches = max(sizes), sum(sizes), len(sizes)

    @property
    def total_batches(self) -> int:
        """Batches per epoch."""
        return self._batches

    def _load(self, key: str) -> DataSet:
        with self._lock:
            held = self._held.get(key)
        if held is not None:
            return held
        content = self._downloader.object_for_key(self._bucket, key)
        dataset = self._decoded(key, content)
        shape = (dataset.n_in, dataset.n_out)
        expected = (getattr(self, "input_columns", shape[0]), getattr(self, "total_outcomes", shape[1]))
        if shape != expected:
            raise DataError(
                f"s3://{self._bucket}/{key} has {counted(shape[0], 'feature')} and "
                f"{counted(shape[1], 'class', 'classes')}, the first "
                f"{expected[0]} and {expected[1]}; all batches must be alike (n_classes says how many classes)"
            )
        with self._lock:
            while len(self._held) >= _HELD:
                self._held.pop(next(iter(self._held)))
            self._held[key] = dataset
        return dataset

    def _decoded(self, key: str, content: bytes) -> DataSet:
        try:
            if key.endswith(".csv"):
                with tempfile.NamedTemporaryFile(prefix="dl4j-batch-", suffix=".csv") as file:
                    file.write(content)
                    file.flush()
                    # Not as float32 where a batch does not need more: another batch may.
                    return read_csv_files([Path(file.name)], n_classes=self._n_classes).parts[0]
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return DataSet(arrays["features"], arrays["labels"])
        except (ValueError, KeyError, OSError, EOFError, DataError) as exc:
            raise DataError(f"s3://{self._bucket}/{key} is no batch: {exc}") from exc

    def batch(self, epoch: int, index: int) -> DataSet:
        """Return batch ``index`` of ``epoch``, both from 0."""
        self.check(epoch, index, self.total_batches - 1)
        if self._shuffle:
            generator = self._stream.at(epoch, purpose="shuffle").generator()
            index = int(generator.permutation(self.total_batches)[index])
        return self._load(self._keys[index])
