"""Checks that a user's own iterator gives the same batches in any order, at any time, and on any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dl4jlegacy.datasets.batches import Batch, BatchIterator
from dl4jlegacy.errors import DataError
from dl4jlegacy.scaleout.state.job import batch_of

__all__ = ["check_iterator"]

_MOST_BATCHES = 64
_SECONDS = 600.0
"""Maximum seconds for an iterator to return its batches on another thread."""
_Found = TypeVar("_Found")


def check_iterator(data: Any, *, epochs: int = 2) -> None:
    """Check that an iterator follows ``DataSetIterator`` or ``MultiDataSetIterator``.

    For any other iterable, check that all passes have the same rows.

    Args:
        data: the iterator; at most 64 batches of each epoch are read.
        epochs: number of epochs to read.

    Raises:
        DataError: a batch has another size than announced, or other rows when it is requested again; names class and
            method.
    """
    if isinstance(data, BatchIterator):
        _check_positions(data, epochs)
    elif isinstance(data, Iterable) and not isinstance(data, Batch):
        _check_passes(data, epochs)
    else:
        needed = ("batch", "total_batches", "total_examples", "batch_size")
        lacking = [name for name in needed if not hasattr(data, name)]
        raise DataError(f"{type(data).__name__} is no iterator of batches: it lacks {', '.join(lacking)}")


def _check_positions(data: BatchIterator, epochs: int) -> None:
    name, count = type(data).__name__, data.total_batches
    if count != -(-data.total_examples // data.batch_size) or count < 1:
        raise DataError(
            f"{name} has total_batches {count}; {data.total_examples} examples in batches of {data.batch_size} make "
            f"{-(-data.total_examples // data.batch_size)}"
        )
    step = max(1, -(-count // _MOST_BATCHES))
    places = [(epoch, index) for epoch in range(epochs) for index in sorted({*range(0, count, step), count - 1})]
    once = {place: _bytes(batch_of(data, *place)) for place in places}
    again = _on_another_thread(lambda: {place: _bytes(batch_of(data, *place)) for place in reversed(places)}, name)
    for place in places:
        if again[place] != once[place]:
            raise DataError(
                f"{name}.batch{place} returns other rows when it is asked for again, in another order and on another "
                "thread; a batch must follow from epoch and index alone"
            )
    _check_walk(data, once)


def _on_another_thread(ask: Callable[[], _Found], name: str) -> _Found:
    """Return the result of ``ask`` on another thread; raises its errors, or ``DataError`` after ``_SECONDS``."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="dl4j-check-iterator")
    asked = pool.submit(ask)
    try:
        return asked.result(_SECONDS)
    except TimeoutError as exc:
        raise DataError(f"{name} has not given its batches on another thread within {_SECONDS:g} s") from exc
    finally:
        pool.shutdown(wait=asked.done())


def _check_walk(data: BatchIterator, once: dict[tuple[int, int], Any]) -> None:
    """Raise ``DataError`` unless each of two passes gives ``total_examples`` rows."""
    for epoch in range(2):
        rows = sum(batch.num_examples for batch in data)
        if rows != data.total_examples:
            raise DataError(
                f"{type(data).__name__}: pass {epoch + 1} over it gave {rows} rows, and total_examples is "
                f"{data.total_examples}"
            )


def _check_passes(data: Iterable[Any], epochs: int) -> None:
    if iter(data) is iter(data):  # it allows one pass only, such as a generator; a run keeps its batches
        return
    rows = [[_rows(batch) for batch in data] for _ in range(epochs)]
    for number, each in enumerate(rows[1:], 2):
        if each != rows[0]:
            raise DataError(
                f"{type(data).__name__}: pass {number} over it gave batches of {each} rows, and the first one of "
                f"{rows[0]}"
            )


def _rows(batch: Any) -> int:
    return batch.num_examples if isinstance(batch, Batch) else len(batch[0])


def _bytes(batch: Batch) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in batch.arrays().items()}
