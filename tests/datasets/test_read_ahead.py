"""Reading ahead: what is read before it is asked for, how much of it, and that nothing is different by it."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest

from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.iterator import BatchCursor
from dl4jlegacy.datasets.read_ahead import ReadAhead
from dl4jlegacy.errors import DataError

THREAD = "dl4j-read-ahead"


def wait_for_threads() -> None:
    """Wait until no thread reads ahead any more."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(10)
            assert not thread.is_alive()


class Source:
    """Notes what is read, and on which threads."""

    def __init__(self) -> None:
        self.read, self.threads = list[int](), set[str]()
        self.wrong = set[int]()

    def __call__(self, key: int) -> bytes:
        self.read.append(key)
        self.threads.add(threading.current_thread().name)
        if key in self.wrong:
            raise DataError(f"value {key} is damaged")
        return bytes([key] * 10)


def ahead_of(source: Source, worthwhile: float = 0.0, **bounds: int) -> ReadAhead[int, bytes]:
    return ReadAhead(source, len, worthwhile=worthwhile, **bounds)


def get_in_order(ahead: ReadAhead[int, bytes], count: int) -> list[bytes]:
    return [ahead.get(key, functools.partial(range, key + 1, 9)) for key in range(count)]


def test_the_values_behind_one_are_read_on_threads_up_to_a_number() -> None:
    source = Source()
    ahead = ahead_of(source, most=3)
    assert ahead.get(0, lambda: range(1, 9)) == bytes(10)  # the first one tells how large they are
    ahead.get(1, lambda: range(2, 9))
    wait_for_threads()
    assert sorted(source.read) == [0, 1, 2, 3, 4] and THREAD in source.threads
    source.threads.clear()
    assert [ahead.get(key) for key in (2,)] == [bytes([2] * 10)]
    assert not source.threads  # it was there


def test_as_many_are_read_as_fit_into_the_memory() -> None:
    source = Source()
    ahead = ahead_of(source, most_bytes=35)
    ahead.get(0)
    ahead.get(1, lambda: range(2, 20))
    wait_for_threads()
    assert sorted(source.read) == [0, 1, 2, 3, 4]
    ahead.get(2, lambda: range(3, 20))  # makes room for one
    wait_for_threads()
    assert sorted(source.read) == [0, 1, 2, 3, 4, 5]


def test_a_value_larger_than_the_memory_is_read_when_it_is_asked_for() -> None:
    source = Source()
    ahead = ahead_of(source, most_bytes=5)
    assert get_in_order(ahead, 4) == [bytes([key] * 10) for key in range(4)]
    wait_for_threads()
    assert source.read == [0, 1, 2, 3]


def test_what_is_quickly_read_is_read_by_who_asks() -> None:
    source = Source()
    ahead = ahead_of(source, worthwhile=60.0)
    get_in_order(ahead, 5)
    assert source.read == [0, 1, 2, 3, 4] and source.threads == {threading.current_thread().name}


def test_an_error_is_raised_where_its_value_is_asked_for_and_the_next_time_it_is_read_anew() -> None:
    source = Source()
    source.wrong = {3}
    ahead = ahead_of(source)
    ahead.get(0)
    ahead.get(1, lambda: (2, 3, 4))
    wait_for_threads()
    assert ahead.get(2, lambda: (3, 4))[0] == 2
    with pytest.raises(DataError, match="value 3 is damaged"):
        ahead.get(3, lambda: (4,))
    source.wrong.clear()
    assert ahead.get(3, lambda: (4,))[0] == 3 and ahead.get(4)[0] == 4


def test_who_asks_for_what_is_being_read_waits_for_it() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read(key: int) -> bytes:
        if key == 2:
            begun.set()
            assert go_on.wait(10)
        return bytes([key])

    ahead = ReadAhead(read, len, worthwhile=0.0, threads=1)
    ahead.get(0)
    ahead.get(1, lambda: (2,))
    assert begun.wait(10)
    found: list[bytes] = []
    asks = threading.Thread(target=lambda: found.append(ahead.get(2)))
    asks.start()
    go_on.set()
    asks.join(10)
    assert found == [b"\x02"]


def test_what_nobody_wants_any_more_is_forgotten() -> None:
    source = Source()
    ahead = ahead_of(source)
    ahead.get(0)
    ahead.get(1, lambda: (2, 3))
    wait_for_threads()
    ahead.get(7, lambda: (8,))
    wait_for_threads()
    source.read.clear()
    assert ahead.get(2)[0] == 2
    assert source.read == [2]
    ahead.forget()


class Slow(BatchCursor):
    """Batches that each take long enough to be read ahead."""

    def __init__(self) -> None:
        self.threads = set[str]()

    @property
    def total_batches(self) -> int:
        return 12

    def batch(self, epoch: int, index: int) -> DataSet:
        self.check(epoch, index, 11)
        self.threads.add(threading.current_thread().name)
        threading.Event().wait(0.002)
        return DataSet(np.full((2, 3), 100 * epoch + index))


def test_going_through_an_epoch_reads_ahead_and_gives_the_same_batches() -> None:
    data = Slow()
    for epoch in range(2):
        places, values = [], []
        for batch in data:
            places.append(data.position)
            values.append(int(batch.features[0, 0]))
        assert values == [100 * epoch + index for index in range(12)]
        assert places == [(epoch, index + 1) for index in range(12)]  # as with next()
    assert THREAD in data.threads


def test_an_epoch_that_is_left_in_its_middle_goes_on_where_it_was_left_and_leaves_no_thread() -> None:
    data = Slow()
    for batch in data:
        if int(batch.features[0, 0]) == 4:
            break
    wait_for_threads()
    assert data.position == (0, 5)
    assert int(data.next().features[0, 0]) == 5
    data.seek(0, 3)
    assert [int(batch.features[0, 0]) for batch in data][:2] == [100, 101]  # the next epoch
