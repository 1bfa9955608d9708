"""DataSetIterator: the batches of a data set, addressed by epoch and index.

Follows ``org.nd4j.linalg.dataset.api.iterator.DataSetIterator``. New is ``batch(epoch, index)``, which always returns
the same batch for a position, on any thread. So a resumed run, or a worker that takes over a job, gets the same rows.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.read_ahead import MOST_BATCHES, ReadAhead
from dl4jlegacy.errors import DataError, counted

__all__ = [
    "BatchCursor",
    "DataSetIterator",
    "ListDataSetIterator",
    "ListIterator",
    "NumberedBatches",
    "NumberedDataSetIterator",
]


class _Batch(Protocol):
    @property
    def nbytes(self) -> int: ...


class _Rows(_Batch, Protocol):
    def __len__(self) -> int: ...
    def rows(self, start: int, stop: int) -> Self: ...
    def take(self, indices: npt.NDArray[np.intp]) -> Self: ...


B = TypeVar("B", bound=_Batch)
G = TypeVar("G", bound=_Batch, covariant=True)
R = TypeVar("R", bound=_Rows)


class NumberedBatches(Protocol[G]):
    """Batches by position, and also DL4J's methods of iteration.

    ``batch`` is a pure function and safe on any thread; ``has_next``, ``next``, ``reset`` and ``seek`` move a cursor
    that belongs to one thread.
    """

    @property
    def batch_size(self) -> int:
        """Examples per batch; the last batch of an epoch may have fewer."""

    @property
    def total_examples(self) -> int:
        """Examples per epoch."""

    @property
    def total_batches(self) -> int:
        """Batches per epoch."""

    def batch(self, epoch: int, index: int) -> G:
        """Return batch ``index`` of ``epoch``, both from 0; always the same one, on any thread."""

    def has_next(self) -> bool:
        """Return whether the current epoch has a batch left."""

    def next(self) -> G:
        """Return the batch under the cursor and advance the cursor."""

    def reset(self) -> None:
        """Go to the start of an epoch: the next one, unless the current one is still untouched."""

    def seek(self, epoch: int, index: int) -> None:
        """Move the cursor to batch ``index`` of ``epoch``."""

    def __iter__(self) -> Iterator[G]:
        """Reset, then iterate over one epoch."""


@runtime_checkable
class DataSetIterator(NumberedBatches[DataSet], Protocol):
    """Batches of DataSets by position; see ``NumberedBatches``."""

    @property
    def input_columns(self) -> int:
        """Values per example (n_in)."""

    @property
    def total_outcomes(self) -> int:
        """Labels per example (n_out)."""


class BatchCursor(ABC, Generic[B]):
    """DL4J's methods of iteration over batches of kind ``B``, for iterators that return batches by position.

    The cursor belongs to one thread. Iterating over an epoch (``for batch in iterator``) reads slow batches ahead on
    other threads (``read_ahead``); batches, order and cursor stay the same.
    """

    _epoch = _index = 0

    @property
    @abstractmethod
    def total_batches(self) -> int:
        """Batches per epoch."""

    @abstractmethod
    def batch(self, epoch: int, index: int) -> B:
        """Return batch ``index`` of ``epoch``."""

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and index of the batch that ``next`` will return."""
        return self._epoch, self._index

    def has_next(self) -> bool:
        """Return whether the current epoch has a batch left."""
        return self._index < self.total_batches

    def next(self) -> B:
        """Return the batch under the cursor and advance; raises ``DataError`` at the end of the epoch."""
        if not self.has_next():
            raise DataError(f"epoch {self._epoch} has no batch after its {self.total_batches}; call reset() first")
        part = self.batch(self._epoch, self._index)
        self._index += 1
        return part

    def reset(self) -> None:
        """Go to the start of the next epoch; stay if the current one is untouched."""
        if self._index:
            self._epoch, self._index = self._epoch + 1, 0

    def seek(self, epoch: int, index: int) -> None:
        """Move the cursor to batch ``index`` of ``epoch``; ``total_batches`` means the end of the epoch."""
        self.check(epoch, index, self.total_batches)
        self._epoch, self._index = epoch, index

    def __iter__(self) -> Iterator[B]:
        self.reset()
        ahead = ReadAhead[tuple[int, int], B](lambda place: self.batch(*place), lambda batch: batch.nbytes)
        try:
            while self.has_next():
                part = ahead.get(self.position, self._following)
                self._index += 1
                yield part
        finally:
            ahead.forget()

    def _following(self) -> Iterator[tuple[int, int]]:
        """Return the positions of the next few batches of the cursor's epoch."""
        last = min(self.total_batches, self._index + 1 + MOST_BATCHES)
        return ((self._epoch, index) for index in range(self._index + 1, last))

    def __len__(self) -> int:
        return self.total_batches

    def check(self, epoch: int, index: int, last: int) -> None:
        """Raise ``DataError`` unless ``epoch`` and ``index`` are not negative, and ``index`` is at most ``last``."""
        if epoch < 0 or not 0 <= index <= last:
            raise DataError(f"no batch {index} of epoch {epoch}: epochs start at 0, batches run from 0 to {last}")


class ListIterator(BatchCursor[R]):
    """Batches of rows in memory, in a new order every epoch; see ``ListDataSetIterator``."""

    dataset: R

    def __init__(self, dataset: R, batch_size: int, *, seed: int, shuffle: bool, drop_last: bool = False) -> None:
        if batch_size < 1:
            raise DataError(f"batch size is {batch_size}; a batch has at least 1 example")
        self.batch_size = batch_size
        self._stream = Stream.of(seed)
        self._shuffle, self._drop_last = shuffle, drop_last
        self._deal_out(dataset)

    def _deal_out(self, dataset: R) -> None:
        smallest = self.batch_size if self._drop_last else 1
        if len(dataset) < smallest:
            raise DataError(f"{dataset!r} has {counted(len(dataset), 'example')}; one batch needs at least {smallest}")
        self.dataset = dataset
        self._epoch = self._index = 0
        self._orders: dict[int, npt.NDArray[np.intp]] = {}
        self._lock = threading.Lock()

    def over(self, dataset: R) -> Self:
        """Return an iterator over another data set with the same batch size, shuffling and other settings."""
        other = copy.copy(self)
        other._deal_out(dataset)
        return other

    @property
    def total_examples(self) -> int:
        """Examples per epoch, without those that ``drop_last`` omits."""
        return self.total_batches * self.batch_size if self._drop_last else len(self.dataset)

    @property
    def total_batches(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (1 if rest and not self._drop_last else 0)

    def batch(self, epoch: int, index: int) -> R:
        """Return batch ``index`` of ``epoch``, both from 0; always the same one, on any thread."""
        self.check(epoch, index, self.total_batches - 1)
        start = index * self.batch_size
        stop = min(start + self.batch_size, len(self.dataset))
        if not self._shuffle:
            return self.dataset.rows(start, stop)
        return self.dataset.take(self._order(epoch)[start:stop])

    def _order(self, epoch: int) -> npt.NDArray[np.intp]:
        """Return the order of the rows in ``epoch``; two epochs are cached, because backup workers may lag by one."""
        with self._lock:
            order = self._orders.get(epoch)
            if order is None:
                order = self._stream.at(epoch, purpose="shuffle").generator().permutation(len(self.dataset))
                while len(self._orders) > 1:
                    self._orders.pop(min(self._orders))
                self._orders[epoch] = order
            return order


class ListDataSetIterator(ListIterator[DataSet]):
    """Batches of a DataSet in memory, in a new order every epoch.

    The order of an epoch is the permutation drawn from ``Stream.of(seed).at(epoch, purpose="shuffle")``.

    Args:
        dataset: the examples; at least one.
        batch_size: examples per batch.
        seed: of the shuffling.
        shuffle: False keeps the order of the rows in every epoch (batches are then views, not copies).
        drop_last: omit the examples that do not fill a batch; with shuffling, different ones every epoch.
        label_names: names of the labels, for reports.
        pre_processor: applied to every batch, for instance ``normalizer.transform``.
    """

    def __init__(
        self,
        dataset: DataSet,
        batch_size: int,
        *,
        seed: int = 123,
        shuffle: bool = True,
        drop_last: bool = False,
        label_names: tuple[str, ...] = (),
        pre_processor: Callable[[DataSet], DataSet] | None = None,
    ) -> None:
        if not isinstance(dataset, DataSet):
            raise DataError(
                f"{type(self).__name__} deals out a DataSet, and was given {repr(dataset)[:200]}; a MultiDataSet's "
                "batches are ListMultiDataSetIterator's"
            )
        super().__init__(dataset, batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last)
        self.label_names, self._pre_processor = label_names, pre_processor

    def whole(self) -> DataSet | None:
        """Return all examples; None if a pre-processor changes them in the batches."""
        return self.dataset if self._pre_processor is None else None

    def pre_processed(self, dataset: DataSet) -> DataSet:
        """Return a data set after the pre-processor of this iterator, if it has one."""
        return dataset if self._pre_processor is None else self._pre_processor(dataset)

    @property
    def input_columns(self) -> int:
        """Values per example."""
        return self.dataset.n_in

    @property
    def total_outcomes(self) -> int:
        """Labels per example."""
        return self.dataset.n_out

    def batch(self, epoch: int, index: int) -> DataSet:
        """Return batch ``index`` of ``epoch``; pure, safe on any thread."""
        return self.pre_processed(super().batch(epoch, index))


class NumberedDataSetIterator(BatchCursor[DataSet]):
    """Batches of examples that are read by number when needed, in the order of ``ListDataSetIterator``."""

    def __init__(self, examples: int, batch_size: int, *, seed: int, shuffle: bool, drop_last: bool) -> None:
        numbers = DataSet(np.arange(examples, dtype=np.float64)[:, None])
        self._numbers = ListDataSetIterator(numbers, batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last)
        self.batch_size = batch_size

    @property
    def total_examples(self) -> int:
        """Examples per epoch, without those that ``drop_last`` omits."""
        return self._numbers.total_examples

    @property
    def total_batches(self) -> int:
        """Batches per epoch."""
        return self._numbers.total_batches

    def batch(self, epoch: int, index: int) -> DataSet:
        """Return batch ``index`` of ``epoch``; safe on any thread.

        Raises:
            DataError: an example cannot be read, or its form differs from the first example's; names it.
        """
        return self._read([int(number) for number in self._numbers.batch(epoch, index).features[:, 0]])

    @abstractmethod
    def _read(self, numbers: list[int]) -> DataSet:
        """Return the examples with these numbers as a batch."""
