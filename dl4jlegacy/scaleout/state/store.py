"""The store below the state tracker: keys and values with compare-and-set, and hints.

``MemoryStore`` is the store of one process; a cluster's store (Hazelcast) has the same operations. Each operation is
atomic on its key. The run protocol needs nothing more: no locks and no queues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeGuard, runtime_checkable

from dl4jlegacy.errors import NotAuthorisedError, TrackerClosedError
from dl4jlegacy.scaleout.state.untrusted import UntrustedKeys

__all__ = ["BatchStore", "Buffer", "MemoryStore", "Store", "is_batch_store"]

Buffer = bytes | bytearray | memoryview


_BATCH_CLASSES: dict[type, bool] = {}


class Store(Protocol):
    """A key-value store with compare-and-set on single keys. Values are bytes-like and never change once written."""

    chunk_nbytes: int
    """Longest value that the store handles well; the protocol splits longer frames."""
    checksums: bool
    """Whether chunks may arrive damaged, so that manifests have a digest that readers verify."""
    foreign: UntrustedKeys
    """Values found by readers that do not belong to the run."""

    def get(self, key: str) -> Buffer | None:
        """Return the newest value, or None."""
        ...

    def put(self, key: str, value: Buffer) -> None:
        """Write a value, replacing any other."""
        ...

    def put_for(self, key: str, value: Buffer, seconds: int) -> None:
        """``put`` a value that the store removes after so many seconds."""
        ...

    def put_if_absent(self, key: str, value: Buffer) -> bool:
        """Atomically write a value if there is none; return whether it was written."""
        ...

    def replace_if_same(self, key: str, expected: Buffer, value: Buffer) -> bool:
        """Atomically replace a value that still equals ``expected``; return whether it was replaced."""
        ...

    def delete(self, key: str) -> None:
        """Remove a key; no error if it does not exist."""
        ...

    def delete_if_same(self, key: str, expected: Buffer) -> bool:
        """Atomically remove a key whose value still equals ``expected``; return whether it was removed."""
        ...

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        ...

    def publish(self, topic: str) -> None:
        """Notify listeners that something changed; a lost hint costs a poll interval, never correctness."""
        ...

    def listen(self, topic: str, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after each ``publish``, on any thread (it must only enqueue); return a stop function."""
        ...

    def close(self) -> None:
        """Close the store; later calls raise ``TrackerClosedError``."""
        ...


@runtime_checkable
class BatchStore(Store, Protocol):
    """A store that performs many operations at once, faster than one by one; each is atomic, in any order."""

    def put_many(self, items: Iterable[tuple[str, Buffer]]) -> None:
        """``put`` each (key, value); all are written when this returns."""
        ...

    def put_many_if_absent(self, items: Iterable[tuple[str, Buffer]]) -> list[bool]:
        """``put_if_absent`` each (key, value), whose keys differ; return for each whether it was written."""
        ...

    def replace_many_if_same(self, items: Iterable[tuple[str, Buffer, Buffer]]) -> list[bool]:
        """``replace_if_same`` each (key, expected, value), whose keys differ; return for each whether it was."""
        ...

    def get_many(self, keys: Iterable[str]) -> Iterator[Buffer | NotAuthorisedError | None]:
        """Yield what ``get`` returns for each key, in order; only values in transit are in memory.

        The error that ``get`` would raise for a refused value is yielded in its place.
        """
        ...

    def delete_many(self, keys: Iterable[str]) -> None:
        """``delete`` each key."""
        ...


def is_batch_store(store: Store) -> TypeGuard[BatchStore]:
    """Return whether a store is a ``BatchStore``; cached per class, as ``isinstance`` takes 25 us for a protocol."""
    kind = type(store)
    if kind not in _BATCH_CLASSES:
        _BATCH_CLASSES[kind] = isinstance(store, BatchStore)
    return _BATCH_CLASSES[kind]


class MemoryStore:
    """The store of a run within one process. Thread-safe; values are shared, not copied."""

    chunk_nbytes = 1 << 40
    checksums = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Buffer] = {}
        self._listeners: dict[str, tuple[Callable[[], None], ...]] = {}
        self._closed = False
        self.foreign = UntrustedKeys()

    def _open(self) -> None:
        if self._closed:
            raise TrackerClosedError("the in-process state tracker was shut down; its run is over")

    def get(self, key: str) -> Buffer | None:
        """See ``Store``."""
        with self._lock:
            self._open()
            return self._values.get(key)

    def put(self, key: str, value: Buffer) -> None:
        """See ``Store``."""
        with self._lock:
            self._open()
            self._values[key] = value

    def put_for(self, key: str, value: Buffer, seconds: int) -> None:
        """See ``Store``; here the value stays until the process ends."""
        self.put(key, value)

    def put_if_absent(self, key: str, value: Buffer) -> bool:
        """See ``Store``."""
        with self._lock:
            self._open()
            if key in self._values:
                return False
            self._values[key] = value
            return True

    def replace_if_same(self, key: str, expected: Buffer, value: Buffer) -> bool:
        """See ``Store``."""
        with self._lock:
            self._open()
            if self._values.get(key) != expected:
                return False
            self._values[key] = value
            return True

    def delete_if_same(self, key: str, expected: Buffer) -> bool:
        """See ``Store``."""
        with self._lock:
            self._open()
            if self._values.get(key) != expected:
                return False
            del self._values[key]
            return True

    def delete(self, key: str) -> None:
        """See ``Store``."""
        with self._lock:
            self._open()
            self._values.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        """See ``Store``."""
        with self._lock:
            self._open()
            return sorted(key for key in self._values if key.startswith(prefix))

    def put_many(self, items: Iterable[tuple[str, Buffer]]) -> None:
        """See ``BatchStore``."""
        for key, value in items:
            self.put(key, value)

    def put_many_if_absent(self, items: Iterable[tuple[str, Buffer]]) -> list[bool]:
        """See ``BatchStore``."""
        return [self.put_if_absent(key, value) for key, value in items]

    def replace_many_if_same(self, items: Iterable[tuple[str, Buffer, Buffer]]) -> list[bool]:
        """See ``BatchStore``."""
        return [self.replace_if_same(key, expected, value) for key, expected, value in items]

    def get_many(self, keys: Iterable[str]) -> Iterator[Buffer | NotAuthorisedError | None]:
        """See ``BatchStore``."""
        for key in keys:
            try:
                yield self.get(key)
            except NotAuthorisedError as exc:  # raised by a store built on this one
                yield exc

    def delete_many(self, keys: Iterable[str]) -> None:
        """See ``BatchStore``."""
        for key in keys:
            self.delete(key)

    def publish(self, topic: str) -> None:
        """See ``Store``; the listeners run on the publisher's thread, outside the lock."""
        for listener in self._listeners.get(topic, ()):
            listener()

    def listen(self, topic: str, listener: Callable[[], None]) -> Callable[[], None]:
        """See ``Store``."""
        with self._lock:
            self._listeners[topic] = (*self._listeners.get(topic, ()), listener)

        def stop() -> None:
            with self._lock:
                self._listeners[topic] = tuple(x for x in self._listeners.get(topic, ()) if x is not listener)

        return stop

    def close(self) -> None:
        """See ``Store``."""
        with self._lock:
            self._closed = True
            self._values.clear()
            self._listeners.clear()
