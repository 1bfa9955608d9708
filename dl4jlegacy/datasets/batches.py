"""All forms in which the batches of an epoch may be given: data sets, lists, generators, iterators of both kinds.

Training, evaluation and export all read them with ``batches_of`` or ``epochs_of``, and so accept the same forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import DataSetIterator
from dl4jlegacy.datasets.multi_dataset import MultiDataSet, MultiDataSetIterator
from dl4jlegacy.errors import DataError, Dl4jError
from dl4jlegacy.system.exits import error_text, exits_as_errors

__all__ = ["Batch", "BatchIterator", "Data", "batches_of", "each_batch", "epochs_of", "is_classic"]

Batch = DataSet | MultiDataSet
BatchIterator = DataSetIterator | MultiDataSetIterator
"""Data whose batches are addressed by number."""
Data = Batch | BatchIterator | Iterable[Any]
"""A data set, which is one batch, or anything that yields batches."""


def batches_of(data: Any) -> Iterable[Any] | None:
    """Return the batches of an iterable or of DL4J's classic iterator (``has_next``, ``next``).

    Returns None for data that address their batches, or jobs, by number.

    Raises:
        DataError: the data are none of these.
    """
    if isinstance(data, BatchIterator) or hasattr(data, "work") or hasattr(data, "plan"):
        return None
    if is_classic(data):
        return _classic(data)
    if isinstance(data, Mapping):
        some = ", ".join(map(repr, list(data)[:5]))
        raise DataError(f"the training data are {type(data).__name__}, and no batches; give one of what it has: {some}")
    if isinstance(data, Iterable) and not isinstance(data, Batch | str | bytes):
        return data
    remedy = f"List{type(data).__name__}Iterator(data, batch_size)"
    if not isinstance(data, Batch):
        remedy = "an iterator, or a list of batches"
    raise DataError(f"the training data are {type(data).__name__}, and no batches; give {remedy}")


def epochs_of(data: Data, epochs: int = 1) -> Iterator[Batch]:
    """Yield the batches of some epochs. Each epoch iterates over all ``data``; a data set is one batch.

    Raises:
        DataError: an item is no batch, or an epoch is empty. Errors of the iterator are raised unchanged.
    """
    for epoch in range(epochs):
        index = 0
        whole: Iterable[Any] = [data] if isinstance(data, Batch) else _classic(data) if is_classic(data) else data
        for index, item in enumerate(whole, 1):
            yield _as_batch(item, index - 1)
        if not index:
            raise DataError(_none_in(epoch, epochs, data))


def _none_in(epoch: int, epochs: int, data: object) -> str:
    if epoch:
        return (
            f"epoch {epoch} of {epochs} has no batch: the {type(data).__name__} was used up by the one before; give a "
            "list, or an iterator that begins anew each time"
        )
    return "the data have no batch: the iterator ended before its first one; was it used up already?"


def is_classic(data: Any) -> bool:
    """Return whether ``data`` has only ``has_next`` and ``next``, as DL4J's classic iterators."""
    walks = callable(getattr(data, "has_next", None)) and callable(getattr(data, "next", None))
    return walks and not isinstance(data, BatchIterator)


def _classic(data: Any) -> Iterator[Any]:
    if callable(getattr(data, "reset", None)):
        data.reset()
    while data.has_next():
        yield data.next()


def each_batch(batches: Iterable[Any]) -> Iterator[Batch]:
    """Yield the batches of one epoch; an error of the iterable is raised with the number of the missing batch.

    Raises:
        DataError: an item is no batch, or there is none; or the iterable raised an error.
    """
    index, iterator = 0, None
    while True:
        try:
            with exits_as_errors():
                iterator = iter(batches) if iterator is None else iterator
                item = next(iterator)
        except StopIteration:
            break
        except Exception as exc:
            what = str(exc) if isinstance(exc, Dl4jError) else error_text(exc)
            raise DataError(f"the data's iterator failed at batch {index}: {what}") from exc
        yield _as_batch(item, index)
        index += 1
    if not index:
        raise DataError(_none_in(0, 1, batches))


def _as_batch(item: Any, index: int) -> Batch:
    batch: Batch
    if isinstance(item, Batch):
        batch = item
    elif isinstance(item, tuple | list) and len(item) == 2:
        try:
            batch = DataSet(*item)
        except DataError as exc:
            hint = "; in the place of a DataLoader of PyTorch's give MapDataSetIterator its data set"
            are_classes = getattr(item[1], "ndim", 0) == 1
            raise DataError(f"batch {index}: {exc}{hint if are_classes else ''}") from exc
    elif isinstance(item, Mapping):
        raise DataError(
            f"batch {index} is a row of columns ({', '.join(map(str, list(item)[:5]))}), and no batch: give a data set "
            "that has its rows by number (of Hugging Face's, without streaming), or pairs of features and labels"
        )
    else:
        raise DataError(
            f"batch {index} is {type(item).__name__}; a batch is a DataSet, a MultiDataSet, or a pair of features and "
            "labels"
        )
    if not batch.num_examples:
        raise DataError(f"batch {index} has no example")
    return batch
