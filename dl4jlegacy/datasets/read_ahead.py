"""Reading ahead: values are read and decoded on other threads before they are needed, within a memory limit.

A caller gets the same value or error as without reading ahead. A thread ends when nothing is left to read, or the limit
is reached, so nothing has to be closed.

Legacy: ``AsyncDataSetIterator``, and the ``prefetchBuffer`` of ``ParallelWrapper``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["MOST_BATCHES", "ReadAhead"]

MOST_BATCHES = 16
"""Maximum batches read ahead, as DL4J's ``prefetchBuffer``."""
_MOST_BYTES = 256 << 20
_THREADS = min(4, os.cpu_count() or 1)
_WORTHWHILE = 0.0005  # minimum seconds to read a value; handing it to another thread takes a tenth of that
_WAIT = 1.0  # seconds after which a waiting caller checks whether the reading thread is still alive
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(slots=True, eq=False)
class _Reading:
    """A value that a thread reads or has read: the result, and its size."""

    done: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    value: Any = None
    error: Exception | None = None
    nbytes: int = 0


class ReadAhead(Generic[_Key, _Value]):
    """Values by key, read ahead; safe on any thread.

    Reading ahead begins after the first value that took long enough. A caller who asks for a value that no thread has
    begun reads it on its own thread.

    Args:
        read: returns the value of a key; called on several threads at once.
        nbytes: returns the bytes of a value.
        most: maximum values that are read ahead, or being read.
        most_bytes: their maximum bytes; a value of unknown size counts like the largest one so far.
        threads: threads that read; 0: nothing is read ahead.
        worthwhile: minimum seconds that reading a value must take to be worth a thread.
    """

    def __init__(
        self,
        read: Callable[[_Key], _Value],
        nbytes: Callable[[_Value], int],
        *,
        most: int = MOST_BATCHES,
        most_bytes: int = _MOST_BYTES,
        threads: int = _THREADS,
        worthwhile: float = _WORTHWHILE,
    ) -> None:
        self._read, self._nbytes = read, nbytes
        self._most, self._most_bytes, self._most_threads = most, most_bytes, threads
        self._worthwhile = worthwhile
        self._lock = threading.Lock()
        self._wanted: list[_Key] = []
        self._readings: dict[_Key, _Reading] = {}
        self._largest = self._threads = 0
        self._seconds = 0.0

    def get(self, key: _Key, following: Callable[[], Iterable[_Key]] = tuple) -> _Value:
        """Return the value of a key, or raise the error of reading it.

        Args:
            key: the key.
            following: returns the keys that will be needed next, in order; called under a lock. Values read ahead for
                other keys are dropped.
        """
        with self._lock:
            reading = self._readings.pop(key, None)
            self._expect(following())
        return self._value(key, reading)

    def forget(self) -> None:
        """Drop all values read ahead; threads end after their current value."""
        with self._lock:
            self._expect(())

    def _expect(self, keys: Iterable[_Key]) -> None:
        """Read these keys ahead, and drop all others; the lock is held."""
        if not self._threads and not self._readings and not self._is_worthwhile:
            self._wanted = []
            return
        self._wanted = list(dict.fromkeys(keys))
        for key in self._readings.keys() - set(self._wanted):
            del self._readings[key]
        while self._is_worthwhile and self._threads < self._most_threads and (found := self._next()) is not None:
            reading = self._readings[found] = _Reading()
            thread = ServiceThread(target=self._work, args=(found, reading), name="dl4j-read-ahead")
            reading.thread = thread
            self._threads += 1
            thread.start()

    def _value(self, key: _Key, reading: _Reading | None) -> _Value:
        while reading is not None and not reading.done.wait(_WAIT):
            if reading.thread is None or not reading.thread.is_alive():
                reading = None
        if reading is None:
            return self._timed(key)[0]
        if reading.error is not None:
            raise reading.error
        found: _Value = reading.value
        return found

    def _fill(self, key: _Key, reading: _Reading) -> None:
        """Read a value, and store it or the error."""
        try:
            with exits_as_errors():
                reading.value, reading.nbytes = self._timed(key)
        except Exception as error:  # noqa: BLE001  # raised again for the caller of ``get``
            reading.error = error

    def _timed(self, key: _Key) -> tuple[_Value, int]:
        """Read a value, and record its time and size."""
        begun = time.perf_counter()
        value = self._read(key)
        self._seconds = time.perf_counter() - begun
        nbytes = max(1, self._nbytes(value))
        self._largest = max(self._largest, nbytes)
        return value, nbytes

    @property
    def _is_worthwhile(self) -> bool:
        return self._largest > 0 and self._seconds >= self._worthwhile

    def _next(self) -> _Key | None:
        """Return the next key to read; None if there is none, or the limit is reached; the lock is held."""
        taken = sum(reading.nbytes or self._largest for reading in self._readings.values())
        if len(self._readings) >= self._most or taken + self._largest > self._most_bytes:
            return None
        return next((key for key in self._wanted if key not in self._readings), None)

    def _work(self, key: _Key, reading: _Reading) -> None:
        """Read one value after another on a thread."""
        while True:
            self._fill(key, reading)
            reading.done.set()
            with self._lock:
                following = self._next()
                if following is None:
                    self._threads -= 1
                    return
                key, reading = following, _Reading(thread=threading.current_thread())
                self._readings[key] = reading
