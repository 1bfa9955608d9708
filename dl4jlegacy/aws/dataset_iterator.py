"""A data set whose batches are the objects below a prefix in S3, each read when it is needed.

An object is one batch: a CSV file (the label last, numbered classes), or an ``.npz`` with ``features`` and ``labels``,
which ``upload_batches`` writes. Two are held at a time, so a data set may be larger than memory.

Legacy: ``BaseS3DataSetIterator``, which went through every bucket of the account.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dl4jlegacy.aws.downloader import S3Downloader
from dl4jlegacy.aws.locations import Location
from dl4jlegacy.aws.session import Aws
from dl4jlegacy.aws.uploader import S3Uploader
from dl4jlegacy.datasets import DataSet, read_csv
from dl4jlegacy.errors import DataError, counted
from dl4jlegacy.seeding import Stream

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


class BaseS3DataSetIterator:
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
        self.batch_size, self.total_examples, self.total_batches = max(sizes), sum(sizes), len(sizes)
        self._epoch = self._index = 0

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
                    return read_csv(Path(file.name), n_classes=self._n_classes)[0]
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return DataSet(arrays["features"], arrays["labels"])
        except (ValueError, KeyError, OSError, EOFError, DataError) as exc:
            raise DataError(f"s3://{self._bucket}/{key} is no batch: {exc}") from exc

    def batch(self, epoch: int, index: int) -> DataSet:
        """Return batch ``index`` of ``epoch``, both from 0."""
        if epoch < 0 or not 0 <= index < self.total_batches:
            raise DataError(
                f"no batch {index} of epoch {epoch}: epochs start at 0, batches run from 0 to {self.total_batches - 1}"
            )
        if self._shuffle:
            generator = self._stream.at(epoch, purpose="shuffle").generator()
            index = int(generator.permutation(self.total_batches)[index])
        return self._load(self._keys[index])

    def has_next(self) -> bool:
        """Tell whether the current epoch has a batch left."""
        return self._index < self.total_batches

    def next(self) -> DataSet:
        """Return the batch under the cursor and move on; ``DataError`` at the end of the epoch."""
        if not self.has_next():
            raise DataError(f"epoch {self._epoch} has no batch after its {self.total_batches}; call reset() first")
        self._index += 1
        return self.batch(self._epoch, self._index - 1)

    def reset(self) -> None:
        """Go to the start of the next epoch; stay if the current one is untouched."""
        if self._index:
            self._epoch, self._index = self._epoch + 1, 0

    def seek(self, epoch: int, index: int) -> None:
        """Put the cursor before batch ``index`` of ``epoch``; ``total_batches`` means its end."""
        if epoch < 0 or not 0 <= index <= self.total_batches:
            raise DataError(f"no place {index} in epoch {epoch}; batches run from 0 to {self.total_batches}")
        self._epoch, self._index = epoch, index

    def __iter__(self) -> Iterator[DataSet]:
        self.reset()
        while self.has_next():
            yield self.next()
