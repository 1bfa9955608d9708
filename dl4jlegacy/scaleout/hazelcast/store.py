"""The store of a run on a cluster: one Hazelcast map, each operation under a deadline.

Of Community Hazelcast this store uses get, set, put-if-absent, replace-if-same and remove of an ``IMap``'s entries, its
keys, and topics for hints. The map is named after the run and its incarnation, so that two runs of the same name share
nothing. Its values are in envelopes (``envelope``), and nothing is ever deserialized (``connection``).

A request may fail after it took effect: the member died, or the connection broke, before the reply arrived. All
operations are therefore repeated, with jittered pauses, until the deadline. A conditional one is repeated only after
reading the present value: if that is the new value, the operation took effect. Two errors remain possible, both only
after such a fault: an equal value written by another process is taken for one's own, and a change that was overwritten
before it was read back is reported as not made. The protocol's records tolerate both, because they contain the name of
their writer and are read again before the next change. A plain counter may be off by one.

Legacy: ``HazelCastStateTracker``, which read and then wrote, and waited for ever.
"""

from __future__ import annotations

import copy
import random
import re
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from dl4jlegacy.errors import NotAuthorisedError, TrackerClosedError, TrackerError, TrackerLostError, UsageError
from dl4jlegacy.scaleout.hazelcast.link import DisturbedError, HazelcastLink, LateError, Reply
from dl4jlegacy.scaleout.hazelcast.retry_deadline import RetryDeadline
from dl4jlegacy.scaleout.state.envelope import Envelope
from dl4jlegacy.scaleout.state.records import keyspace
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.state.untrusted import UntrustedKeys
from dl4jlegacy.scaleout.tracker import Memory, StateTracker
from dl4jlegacy.system.clock import SLICE_SECONDS, Deadline

__all__ = ["DEADLINE_SECONDS", "HazelcastStateTracker", "HazelcastStore"]

T = TypeVar("T")
R = TypeVar("R")

PREFIX = "dl4j."
"""Prefix of the names of all maps of this package; a keyspace follows."""
_VALUE_NBYTES = 1 << 20
_WINDOW, _MANY = 8, 128  # maximum requests in flight, the latter if they are small
_SMALL = 1 << 13  # bytes
_SIGNERS, _SIGNED_ASIDE = 2, 1 << 17  # threads; minimum size of a value that they sign
_PAUSES = (0.01, 0.5)  # seconds: the first pause before a request is repeated, and the longest
_ADDRESS = re.compile(r"(?P<host>[^\s:/,]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
_HEAP = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[kKmMgG])")
_MEMBERS_SECONDS = 5.0
DEADLINE_SECONDS = 20.0
"""Maximum time for connecting."""
_RUN = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class HazelcastStore:
    """A ``BatchStore`` in a Hazelcast cluster. Thread-safe; not to be used after a fork.

    Chunks need no digest in their manifests (``checksums`` is False): each chunk's envelope proves that it is complete
    and under its own key, keys are never written twice, and a signature is stronger than a digest.

    Args:
        address: ``host:port[,host:port ...]`` of members, with or without the prefix ``hazelcast://``.
        cluster_name: the name that the members were started with.
        run: the run's id: letters, digits, ``_``, ``.``, ``-``.
        incarnation: identifies one of the runs with that id; "": none, for data that belongs to no run.
        secret: the run's secret; None: values are not signed.
        deadline_seconds: maximum time for connecting.
        patience_seconds: how long operations wait for members that do not answer, counted from the first unanswered
            one; each is tried for at least half a second. None: as long as for connecting.

    Raises:
        UsageError: ``address`` or ``run`` is malformed.
        TrackerError: there is no Hazelcast at ``address``, or it belongs to another cluster.
    """

    checksums = False

    def __init__(
        self,
        address: str,
        *,
        cluster_name: str,
        run: str,
        incarnation: str = "",
        secret: bytes | None,
        deadline_seconds: float = DEADLINE_SECONDS,
        patience_seconds: float | None = None,
    ) -> None:
        if not _RUN.fullmatch(run):
            raise UsageError(f"a run cannot be named {run!r}: letters, digits, '_', '.', '-', at most 100")
        self._secret = secret
        self._envelope = Envelope(keyspace(run, incarnation), secret)
        self.chunk_nbytes = _VALUE_NBYTES - 256 - self._envelope.nbytes
        self.value_nbytes = self.chunk_nbytes + self._envelope.nbytes
        """Size of a full chunk in the grid."""
        self.map_name = PREFIX + keyspace(run, incarnation)
        self._cluster_name, self._deadline = cluster_name, deadline_seconds
        self.on_refused: Callable[[str, str], None] = lambda key, reason: None
        """Called for each refused value, on the reader's thread, with its key and the reason."""
        self.foreign = UntrustedKeys()
        self._closed = threading.Event()
        self._signers = ThreadPoolExecutor(_SIGNERS, "dl4j-signer")  # threads start when they are needed
        self._link = HazelcastLink(_addresses(address), cluster_name, self.map_name)
        self.patience = RetryDeadline(self._link.where, deadline_seconds)
        try:
            self._connect()
            self.patience.seconds = deadline_seconds if patience_seconds is None else patience_seconds
        except BaseException:
            self.close()
            raise

    # -- Store --------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Buffer | None:
        """See ``Store``; raises ``NotAuthorisedError`` if the value was not written by this run."""
        return self._open(key, self._repeat(lambda: self._link.get(key), f"read {key!r}"))

    def put(self, key: str, value: Buffer) -> None:
        """See ``Store``."""
        self._repeat(lambda: self._set(key, value, partial(self._envelope.head, key, value)), f"write {key!r}")

    def put_for(self, key: str, value: Buffer, seconds: int) -> None:
        """See ``Store``."""
        head = self._envelope.head(key, value)
        self._repeat(lambda: self._link.set(key, head, value, seconds), f"write {key!r}")

    def put_if_absent(self, key: str, value: Buffer) -> bool:
        """See ``Store``."""
        return self._conditionally(key, None, value, lambda: self._add(key, value))

    def replace_if_same(self, key: str, expected: Buffer, value: Buffer) -> bool:
        """See ``Store``."""
        return self._conditionally(key, expected, value, partial(self._replace, key, expected, value))

    def delete_if_same(self, key: str, expected: Buffer) -> bool:
        """See ``Store``."""
        old = self._envelope.head(key, expected) + bytes(expected)
        return self._conditionally(key, expected, None, lambda: self._link.delete_if_same(key, old))

    def delete(self, key: str) -> None:
        """See ``Store``."""
        self._repeat(lambda: self._link.delete(key), f"delete {key!r}")

    def keys(self, prefix: str) -> list[str]:
        """See ``Store``; lists the run's whole map."""
        found = self._repeat(self._link.keys, "list the keys")
        return sorted(key for key in found if key.startswith(prefix))

    def publish(self, topic: str) -> None:
        """See ``Store``; does not wait."""
        self._check_open()
        self._link.publish(topic)

    def listen(self, topic: str, listener: Callable[[], None]) -> Callable[[], None]:
        """See ``Store``; hints stop while there is no connection, and resume after it."""
        registration = self._repeat(lambda: self._link.listen(topic, listener), f"listen to {topic!r}")

        def stop() -> None:
            if not self._closed.is_set():
                self._link.stop_listening(topic, registration)

        return stop

    def member_version(self) -> str:
        """Return the version of a connected member, such as ``5.7.0``; "" if it is unknown."""
        return self._link.member_version()

    def memory(self) -> Memory | None:
        """Return the memory that the members report; None if not all of them report it.

        Members started by ``dl4j services`` or Docker Compose report it as an attribute; a client cannot query it.
        """
        deadline = Deadline(_MEMBERS_SECONDS)
        while not (said := self._link.member_attributes("heap")) and not deadline.passed():
            self._closed.wait(_PAUSES[0])  # the list of members arrives after the connection
        heaps = [_nbytes(each) for each in said if each is not None]
        if not heaps or len(heaps) < len(said) or 0 in heaps:
            return None
        return Memory(len(heaps), sum(heaps), copies=min(len(heaps), 2))

    def close(self) -> None:
        """See ``Store``; the run's data stays in the grid."""
        self._closed.set()
        self._link.close()
        self._signers.shutdown()

    # -- BatchStore ---------------------------------------------------------------------------------------------------

    def put_many(self, items: Iterable[tuple[str, Buffer]]) -> None:
        """See ``BatchStore``."""
        for (key, value, _), reply in self._windowed(self._headed(items), lambda item: self._set(*item)):
            try:
                self._wait(reply, f"write {key!r}", self._begin())
            except DisturbedError:
                self.put(key, value)

    def put_many_if_absent(self, items: Iterable[tuple[str, Buffer]]) -> list[bool]:
        """See ``BatchStore``."""
        return [
            self._conditionally(key, None, value, partial(self._add, key, value), started=reply)
            for (key, value), reply in self._windowed(items, lambda item: self._add(*item))
        ]

    def replace_many_if_same(self, items: Iterable[tuple[str, Buffer, Buffer]]) -> list[bool]:
        """See ``BatchStore``."""
        return [
            self._conditionally(key, expected, value, partial(self._replace, key, expected, value), started=reply)
            for (key, expected, value), reply in self._windowed(items, lambda item: self._replace(*item))
        ]

    def get_many(self, keys: Iterable[str]) -> Iterator[Buffer | NotAuthorisedError | None]:
        """See ``BatchStore``."""
        for key, reply in self._windowed(keys, self._link.get):
            try:
                yield self._answered(key, reply)
            except NotAuthorisedError as exc:
                yield exc

    def _answered(self, key: str, reply: Reply[memoryview | None]) -> Buffer | None:
        try:
            return self._open(key, self._wait(reply, f"read {key!r}", self._begin()))
        except DisturbedError:
            return self.get(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        """See ``BatchStore``."""
        for key, reply in self._windowed(keys, self._link.delete):
            try:
                self._wait(reply, f"delete {key!r}", self._begin())
            except DisturbedError:
                self.delete(key)

    # -- other runs, and a run's end -----------------------------------------------------------------------------------

    def sibling(self, run: str, incarnation: str = "") -> HazelcastStore:
        """Return the store of another run or incarnation over the same connection; close only the original."""
        other = copy.copy(self)
        other._envelope = Envelope(keyspace(run, incarnation), self._secret)
        other.map_name = PREFIX + keyspace(run, incarnation)
        other._link = self._link.sibling(other.map_name)
        return other

    def lengths(self, keys: Iterable[str]) -> Iterator[int]:
        """Yield the size in bytes of the value under each key, whoever wrote it; 0 if there is none."""
        for key, reply in self._windowed(keys, self._link.get):
            try:
                raw = self._wait(reply, f"read {key!r}", self._begin())
            except DisturbedError:
                raw = self._repeat(partial(self._link.get, key), f"read {key!r}")
            yield 0 if raw is None else len(raw)

    def traffic(self) -> tuple[int, int]:
        """Return the number of bytes of values sent and received so far, including siblings."""
        return self._link.traffic.nbytes()

    def destroy(self) -> None:
        """Remove all data of the run from the grid."""
        self._repeat(self._link.destroy, f"remove {self.map_name!r}")

    # -- how ----------------------------------------------------------------------------------------------------------

    def _headed(self, items: Iterable[tuple[str, Buffer]]) -> Iterator[tuple[str, Buffer, Callable[[], bytes]]]:
        """Add to each key and value a function that returns its head.

        Heads of large values are computed on other threads, since signing a large value takes longer than sending it.
        """
        for key, value in items:
            make: Callable[[], bytes] = partial(self._envelope.head, key, value)
            if len(value) > _SIGNED_ASIDE and not self._closed.is_set():
                with suppress(RuntimeError):  # closed just now; sending will raise
                    make = self._signers.submit(make).result
            yield key, value, make

    def _set(self, key: str, value: Buffer, head: Callable[[], bytes]) -> Reply[None]:
        return self._link.set(key, head(), value)

    def _add(self, key: str, value: Buffer) -> Reply[bool]:
        return self._link.put_if_absent(key, self._envelope.head(key, value), value)

    def _replace(self, key: str, expected: Buffer, value: Buffer) -> Reply[bool]:
        old = self._envelope.head(key, expected) + bytes(expected)
        return self._link.replace_if_same(key, old, self._envelope.head(key, value), value)

    def _open(self, key: str, raw: memoryview | None) -> memoryview | None:
        try:
            return None if raw is None else self._envelope.open(key, raw)
        except NotAuthorisedError as exc:
            self.on_refused(key, str(exc))
            raise

    def _windowed(self, items: Iterable[T], start: Callable[[T], Reply[R]]) -> Iterator[tuple[T, Reply[R]]]:
        """Yield each item with its started request, in order, while more requests are in flight.

        More requests are in flight if they are small; their size is known once one has been answered.
        """
        started: deque[tuple[T, Reply[R]]] = deque()
        window, source = _WINDOW, iter(items)
        while True:
            more = list(islice(source, max(0, window - len(started))))  # first: computing the items may use this store
            started.extend((item, start(item)) for item in more)
            if not started:
                return
            for _ in range(max(1, len(started) - window // 2)):
                item, reply = started.popleft()
                yield item, reply
                window = _WINDOW if _is_large(item) or reply.nbytes() > _SMALL else _MANY

    def _conditionally(
        self,
        key: str,
        expected: Buffer | None,
        value: Buffer | None,
        request: Callable[[], Reply[bool]],
        started: Reply[bool] | None = None,
    ) -> bool:
        """Send a conditional request, unless it was ``started``.

        If its outcome is unknown, the present value is read; unless that shows the outcome, the request is sent again.
        """
        begun, what = self._begin(), f"change {key!r}"
        for pause in _pauses():
            reply, started = started or request(), None
            try:
                return self._wait(reply, what, begun)
            except DisturbedError as exc:
                self._pause(pause, begun, what, exc)
            try:
                found = self._open(key, self._repeat(lambda: self._link.get(key), what, begun))
            except NotAuthorisedError:  # a foreign value is not the new one, and not the expected one
                return False
            if found == value:
                return True
            if found != expected:
                return False
        raise AssertionError("pauses never end")

    def _repeat(self, request: Callable[[], Reply[T]], what: str, begun: float | None = None) -> T:
        """Repeat a request until it is answered or the tracker is given up."""
        begun = self._begin() if begun is None else begun
        for pause in _pauses():
            try:
                return self._wait(request(), what, begun)
            except DisturbedError as exc:
                self._pause(pause, begun, what, exc)
        raise AssertionError("pauses never end")

    def _wait(self, reply: Reply[T], what: str, begun: float) -> T:
        """Return a request's reply; raises ``DisturbedError`` if it may be repeated."""
        try:
            value = self._patiently(reply, what, begun)
            self.patience.answered(begun)
            return value
        finally:
            self.patience.forget(begun)

    def _patiently(self, reply: Reply[T], what: str, begun: float) -> T:
        while True:
            left = self.patience.left(begun)
            try:
                return reply.wait(min(left, SLICE_SECONDS))
            except DisturbedError:
                self._check_open()
                raise
            except LateError as exc:
                self._check_open()
                if left <= 0:
                    raise self._lost(what, str(exc)) from exc
                self.patience.unanswered(begun, "it hangs, or the network loses packets")
            except TrackerError as exc:
                self._check_open()
                raise self._lost(what, str(exc)) from exc

    def _pause(self, seconds: float, begun: float, what: str, cause: DisturbedError) -> None:
        """Wait before a request is repeated; raises ``TrackerLostError`` if the deadline would pass."""
        if seconds >= self.patience.left(begun):
            raise self._lost(what, str(cause)) from cause
        self.patience.unanswered(begun, self._cause(str(cause)))
        self._closed.wait(seconds)
        self._check_open()

    def _cause(self, cause: str) -> str:
        return cause if self._link.connected() else f"there is no connection ({cause})"

    def _lost(self, what: str, cause: str) -> TrackerLostError:
        return TrackerLostError(
            f"the state tracker at {self._link.where} did not {what} within {self.patience.seconds:g} s: "
            f"{self._cause(cause)}. Check that the members run and can be reached (dl4j services status); then resume "
            "the run"
        )

    def _begin(self) -> float:
        self._check_open()
        return self.patience.begin()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise TrackerClosedError(f"the connection to the state tracker at {self._link.where} was shut down")

    def _connect(self) -> None:
        """Wait for the connection, which is being established; raises ``TrackerError`` with a diagnosis on failure."""
        begun, deadline = self._begin(), Deadline(self._deadline)
        for pause in _pauses():
            if self._link.connected():
                break
            if pause >= deadline.left() or not self._link.running():
                raise TrackerError(_diagnosis(self._link.where, self._cluster_name, self._deadline))
            self._closed.wait(pause)
        self._repeat(self._link.keys, "list the keys", begun)


class HazelcastStateTracker(StateTracker):
    """The tracker of a run on a cluster; arguments as for ``HazelcastStore`` and ``StateTracker``."""

    def __init__(
        self,
        address: str,
        *,
        cluster_name: str,
        run: str,
        incarnation: str = "",
        secret: bytes | None,
        deadline_seconds: float = DEADLINE_SECONDS,
        patience_seconds: float | None = None,
        is_authorised: bool = False,
    ) -> None:
        store = HazelcastStore(
            address,
            cluster_name=cluster_name,
            run=run,
            incarnation=incarnation,
            secret=secret,
            deadline_seconds=deadline_seconds,
            patience_seconds=patience_seconds,
        )
        super().__init__(store, is_authorised=is_authorised)
        self._patience, self._least, self._traffic = store.patience, deadline_seconds, store.traffic
        self._memory = store.memory

    def waited_seconds(self) -> float:
        """See ``StateTracker``."""
        return self._patience.waited()

    def away_seconds(self) -> float:
        """See ``StateTracker``."""
        return self._patience.away()

    def traffic(self) -> tuple[int, int]:
        """See ``StateTracker``."""
        return self._traffic()

    def memory(self) -> Memory | None:
        """See ``StateTracker``."""
        return self._memory()

    def leave(self) -> None:
        """See ``StateTracker``."""
        self._patience.seconds = min(self._patience.seconds, self._least)


def _addresses(text: str) -> list[str]:
    """Return the ``host:port`` parts of ``text``."""
    parts = text.removeprefix("hazelcast://").rstrip("/").split(",")
    for part in parts:
        match = _ADDRESS.fullmatch(part)
        if match is None or not 0 < int(match["port"]) < 65536:
            raise UsageError(f"{part!r} in the tracker's address {text!r} is not host:port, such as 127.0.0.1:5701")
    return parts


def _nbytes(heap: str) -> int:
    """Return a member's heap size in bytes from Java's notation; 0 if it is malformed."""
    match = _HEAP.fullmatch(heap)
    return 0 if match is None else int(match["count"]) << {"k": 10, "m": 20, "g": 30}[match["unit"].lower()]


def _is_large(item: Any) -> bool:
    """Whether the request for a key, or for a key and its value, is large."""
    return isinstance(item, tuple) and len(item[1]) > _SMALL


def _pauses() -> Iterator[float]:
    """Yield the pauses between repetitions in seconds: they double up to a maximum, with a jitter of 50 %."""
    pause, longest = _PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.5)
        pause = min(2 * pause, longest)


def _diagnosis(where: str, cluster_name: str, deadline: float) -> str:
    """Return why this process could not connect, as text."""
    answers = []
    for address in where.split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
            answers.append(
                f"{address} takes connections, but is no Hazelcast member that lets a client of cluster "
                f"{cluster_name!r} in; compare the cluster name with the one that it was started with"
            )
        except OSError as exc:
            answers.append(f"{address}: {exc}")
    return (
        f"no state tracker could be reached within {deadline:g} s: {'; '.join(answers)}. Start one (dl4j services up), "
        "or correct the address"
    )
