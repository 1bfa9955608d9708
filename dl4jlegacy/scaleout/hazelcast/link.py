"""One process's connection to a Hazelcast cluster: requests and replies as bytes.

The package's futures wait for a reply without a deadline, hence ``Reply``. Other differences from the package's own
client are in ``connection``.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.hazelcast.connection import HazelcastClientNotActiveError, open_client
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.system.exits import exits_as_errors

__all__ = ["DisturbedError", "HazelcastLink", "LateError", "Reply", "Traffic"]

T = TypeVar("T")
logger = logging.getLogger(__name__)


class DisturbedError(TrackerError):
    """A request failed in transit; whether it took effect is unknown, and it may be repeated with care."""


class LateError(TrackerError):
    """A request has not been answered so far."""


class Reply(Generic[T]):
    """The future reply to a request. Set once, by any thread."""

    __slots__ = ("_failure", "_pending", "_value", "_where")

    def __init__(self, where: str) -> None:
        self._where = where
        self._failure: BaseException | None = None
        self._value: Any = None
        self._pending = threading.Lock()
        self._pending.acquire()

    def wait(self, seconds: float) -> T:
        """Return the reply.

        Raises:
            DisturbedError: the request failed.
            LateError: there was no reply in ``seconds``.
            TrackerError: the client was shut down.
        """
        if not self._pending.acquire(timeout=max(0.0, seconds)):
            raise LateError(
                f"Hazelcast at {self._where} did not answer in time; it hangs, or the network loses packets. Look at "
                "the member's log and load, then resume the run"
            )
        self._pending.release()
        failure = self._failure
        if failure is None:
            value: T = self._value
            return value
        if isinstance(failure, HazelcastClientNotActiveError):
            raise TrackerError(f"the connection to Hazelcast at {self._where} was shut down") from failure
        raise DisturbedError(f"{type(failure).__name__}: {_without_frames(str(failure))}") from failure

    def nbytes(self) -> int:
        """Return the length of the value received, or 0 if there is none."""
        return len(self._value) if isinstance(self._value, memoryview) else 0

    def done(self) -> bool:
        """Whether the reply has arrived."""
        return not self._pending.locked()

    def set_result(self, value: T) -> None:
        """Set the value, unless the reply has arrived already."""
        if self._pending.locked():
            self._value = value
            self._pending.release()

    def set_exception(self, failure: BaseException) -> None:
        """Set the error, unless the reply has arrived already."""
        if self._pending.locked():
            self._failure = failure
            self._pending.release()


class Traffic:
    """Counts the bytes of values written and read over a connection. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent = self._received = 0

    def sent(self, *pieces: Buffer) -> None:
        """Count bytes that will be written."""
        with self._lock:
            self._sent += sum(map(len, pieces))

    def received(self, value: object) -> memoryview | None:
        """Count a value that was read, and return it unchanged; text becomes an empty view."""
        if value is None:
            return None
        view = value if isinstance(value, memoryview) else memoryview(b"")
        with self._lock:
            self._received += len(view)
        return view

    def nbytes(self) -> tuple[int, int]:
        """Return (sent, received)."""
        with self._lock:
            return self._sent, self._received


class HazelcastLink:
    """A client of one cluster, for one map. Thread-safe; not to be used after a fork.

    Connecting and reconnecting continue in the background with jittered back-off; requests without a connection fail
    with ``DisturbedError``.

    Args:
        addresses: ``host:port`` of members.
        cluster_name: the name of the members' cluster; the members compare nothing else.
        name: of the map, and prefix of the names of topics.

    Raises:
        VersionError: the installed client is a release that was not tested.
    """

    def __init__(self, addresses: Sequence[str], cluster_name: str, name: str) -> None:
        self.where = ",".join(addresses)
        self._name = name
        self.traffic = Traffic()
        self._connected = threading.Event()
        self._client = open_client(addresses, cluster_name, self._on_connected)
        self._map = self._client.map_named(name)

    def connected(self) -> bool:
        """Whether a member is connected."""
        return self._connected.is_set()

    def running(self) -> bool:
        """Whether the client still tries to connect.

        It gives up for good when another kind of cluster takes the address.
        """
        return bool(self._client.lifecycle_service.is_running())

    def member_version(self) -> str:
        """Return the version of a connected member, such as ``5.7.0``; "" if it is unknown."""
        return str(self._client.member_version())

    def member_attributes(self, name: str) -> list[str | None]:
        """Return the attribute ``name`` of each member that stores data; empty until members are known."""
        return list(self._client.member_attributes(name))

    def get(self, key: str) -> Reply[memoryview | None]:
        """Request a value; anything other than plain bytes is returned as an empty view."""
        return self._ask(lambda: self._map.get(key), self.traffic.received)

    def set(self, key: str, head: bytes, value: Buffer, seconds: int | None = None) -> Reply[None]:
        """Request that ``head + value`` be written, for ``seconds``, or for ever if None."""
        self.traffic.sent(head, value)
        return self._ask(lambda: self._map.set(key, (head, value), seconds))

    def put_if_absent(self, key: str, head: bytes, value: Buffer) -> Reply[bool]:
        """Request that ``head + value`` be written if the key has no value."""
        self.traffic.sent(head, value)
        return self._ask(lambda: self._map.put_if_absent(key, (head, value)), lambda before: before is None)

    def replace_if_same(self, key: str, expected: bytes, head: bytes, value: Buffer) -> Reply[bool]:
        """Request that ``head + value`` be written if the present bytes are ``expected``."""
        self.traffic.sent(expected, head, value)
        return self._ask(lambda: self._map.replace_if_same(key, (expected,), (head, value)))

    def delete(self, key: str) -> Reply[None]:
        """Request that a key be removed."""
        return self._ask(lambda: self._map.delete(key))

    def delete_if_same(self, key: str, expected: bytes) -> Reply[bool]:
        """Request that a key be removed if its bytes are ``expected``."""
        return self._ask(lambda: self._map.remove_if_same(key, (expected,)))

    def keys(self) -> Reply[list[str]]:
        """Request all keys that are text; other keys are foreign."""
        return self._ask(self._map.key_set, lambda keys: [key for key in keys if isinstance(key, str)])

    def destroy(self) -> Reply[None]:
        """Request that the map and all its entries be removed."""
        return self._ask(lambda: self._client.remove_map(self._name))

    def sibling(self, name: str) -> HazelcastLink:
        """Return a link for another map over the same connection; closing it closes both."""
        other = copy.copy(self)
        other._name, other._map = name, self._client.map_named(name)
        return other

    def publish(self, topic: str) -> None:
        """Send a hint, without waiting for the reply."""
        self._ask(lambda: self._topic(topic).publish(""))

    def listen(self, topic: str, listener: Callable[[], None]) -> Reply[str]:
        """Request hints, now and after each reconnection; the reply is for ``stop_listening``."""

        def hear(_: object) -> None:
            try:
                with exits_as_errors():
                    listener()
            except Exception:  # it would otherwise close the client's connection
                logger.exception("a listener for hints on %r failed; the hint is lost", topic)

        return self._ask(lambda: self._topic(topic).add_listener(hear))

    def stop_listening(self, topic: str, registration: str) -> Reply[bool]:
        """Request that a listener's hints end; it is not called any more from now on."""
        return self._ask(lambda: self._topic(topic).remove_listener(registration))

    def close(self) -> None:
        """Shut the client down; callers that wait for a reply get an error."""
        self._client.shutdown()

    def _on_connected(self, connected: bool) -> None:
        if connected:
            self._connected.set()
        else:
            self._connected.clear()

    def _topic(self, topic: str) -> Any:
        return self._client.topic_named(f"{self._name}.{topic}")

    def _ask(self, request: Callable[[], Any], decode: Callable[[Any], Any] = lambda answer: answer) -> Reply[Any]:
        """Send a request, which returns the package's future, and return its reply."""
        reply: Reply[Any] = Reply(self.where)

        def pass_on(future: Any) -> None:
            try:
                with exits_as_errors():
                    reply.set_result(decode(future.result()))
            except Exception as exc:  # noqa: BLE001  # the error belongs to the caller, not to the client's thread
                reply.set_exception(exc)

        try:
            with exits_as_errors():
                request().add_done_callback(pass_on)
        except Exception as exc:  # noqa: BLE001  # as above: there is no connection yet
            reply.set_exception(exc)
        return reply


def _without_frames(text: str) -> str:
    """Return a member's answer on one line, without the frames of its Java stack trace, which may be fifty."""
    lines = (line.strip(" ") for line in text.splitlines())
    return "; ".join(line for line in lines if line and not line.startswith("\tat "))
