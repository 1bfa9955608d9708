"""One process's connection to a Hazelcast cluster: requests and replies as bytes (layer 3).

The ``hazelcast`` package is used below its public interface, here and in the two modules beside this one, which is why
it is pinned to one release:

* the client deserializes every value that it reads, with ``pickle`` if the value says so: whoever can write to a map
  could run code here. Replies are taken as bytes here and nothing is deserialized; besides, the client's pickle is
  replaced by one that refuses, should any other path lead to it;
* the client repeats failed requests on its own, for two minutes, long after nobody waits for them any more. Here a
  request is sent once, and the store decides what is repeated and for how long;
* the client waits for a reply without a deadline;
* the client's codecs (``hazelcast.message``), its futures and its way with sockets (``hazelcast.connection``) take two
  to four times the processor's time that a request costs here, and copy a value five times on its way out.
"""

from __future__ import annotations

import logging
import socket
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, Generic, NoReturn, TypeVar

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.hazelcast.connection import Frames, gathered
from dl4jlegacy.scaleout.hazelcast.message import (
    DELETE,
    GET,
    PUT_IF_ABSENT,
    REPLACE,
    SET,
    Call,
    Operation,
    frame_of,
    partition_hash,
    text_of,
)
from dl4jlegacy.scaleout.store import Buffer

with warnings.catch_warnings():  # Python 3.11 warns of its own asyncore, which the client imports
    warnings.simplefilter("ignore", DeprecationWarning)
    from hazelcast.client import HazelcastClient
    from hazelcast.config import ReconnectMode
    from hazelcast.errors import HazelcastClientNotActiveError, HazelcastSerializationError
    from hazelcast.protocol.codec import (
        client_destroy_proxy_codec,
        map_key_set_codec,
        topic_add_message_listener_codec,
        topic_publish_codec,
        topic_remove_message_listener_codec,
    )
    from hazelcast.serialization import serializer
    from hazelcast.serialization.data import Data

__all__ = ["DisturbedError", "HazelcastLink", "Reply"]

T = TypeVar("T")
logger = logging.getLogger(__name__)
logging.getLogger("hazelcast").addHandler(logging.NullHandler())  # else its warnings go to the terminal

_CODEC: Any = SimpleNamespace(  # none of them is typed
    destroy=client_destroy_proxy_codec,
    keys=map_key_set_codec,
    listen=topic_add_message_listener_codec,
    publish=topic_publish_codec,
    stop=topic_remove_message_listener_codec,
)
_Data: Any = Data
_EMPTY_TEXT = _Data(text_of(""))
_IS_STRING = (-11).to_bytes(4, "big", signed=True)  # Hazelcast's type id
_TEXT_AT = 12  # behind partition hash, type id and length
_BUFFER = 1 << 20


class _NoPickle:
    """Stands where the client has ``pickle``."""

    @staticmethod
    def loads(*_: object) -> NoReturn:
        """Refuse."""
        raise HazelcastSerializationError("a pickled value is refused: reading it could run foreign code")

    @staticmethod
    def dumps(*_: object) -> NoReturn:
        """Refuse."""
        raise HazelcastSerializationError("only bytes and text are sent; this object would have been pickled")


vars(serializer)["pickle"] = _NoPickle


class DisturbedError(TrackerError):
    """A request failed on its way; whether it took effect is unknown, and it may be repeated with care."""


class Reply(Generic[T]):
    """What a request will bring: one lock, which is a future's least form. Set once, by any thread."""

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
            TrackerError: the client was shut down, or there was no reply in ``seconds``.
        """
        if not self._pending.acquire(timeout=max(0.0, seconds)):
            raise TrackerError(
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
        raise DisturbedError(f"{type(failure).__name__}: {failure}") from failure

    def nbytes(self) -> int:
        """Return the length of the value that came, 0 if there is none."""
        return len(self._value) if isinstance(self._value, memoryview) else 0

    def done(self) -> bool:
        """Whether it is there; the client asks."""
        return not self._pending.locked()

    def set_result(self, value: Any) -> None:
        """Called by the client."""
        if self._pending.locked():
            self._value = value
            self._pending.release()

    def set_exception(self, failure: BaseException, _: object = None) -> None:
        """Called by the client."""
        if self._pending.locked():
            self._failure = failure
            self._pending.release()


def _reply_of(future: Any, where: str) -> Reply[Any]:
    """Return a future of the client's as a reply."""
    reply: Reply[Any] = Reply(where)

    def pass_on(done: Any) -> None:
        if done.is_success():
            reply.set_result(done.result())
        else:
            reply.set_exception(done.exception())

    future.add_done_callback(pass_on)
    return reply


class HazelcastLink:
    """A client of one cluster, for one map. Thread-safe; not to be used after a fork.

    Connecting goes on in the background, again and again with jittered back-off, as does reconnecting; requests
    while there is no connection are ``DisturbedError``.

    Args:
        addresses: ``host:port`` of members.
        cluster_name: the name that the members carry; the only thing that they compare.
        name: of the map, and what the names of topics begin with.
    """

    def __init__(self, addresses: Sequence[str], cluster_name: str, name: str) -> None:
        self.where = ",".join(addresses)
        self._name = name
        self._map_frame = frame_of(name.encode())
        sizes = [(socket.SOL_SOCKET, option, _BUFFER) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
        self._client: Any = HazelcastClient(
            cluster_name=cluster_name,
            cluster_members=list(addresses),
            async_start=True,
            reconnect_mode=ReconnectMode.ASYNC,
            connection_timeout=2.0,
            retry_initial_backoff=0.1,
            retry_max_backoff=1.5,
            retry_multiplier=1.5,
            retry_jitter=0.3,
            heartbeat_interval=1.0,
            heartbeat_timeout=10.0,
            operation_backup_timeout=1.0,
            fail_on_indeterminate_operation_state=True,
            redo_operation=False,
            statistics_enabled=False,
            socket_options=sizes,
        )

    def connected(self) -> bool:
        """Whether there is a member to talk to."""
        return bool(self._client._connection_manager.active_connections)

    def running(self) -> bool:
        """Whether the client tries; it gives up for good when a cluster of another kind takes the address."""
        return bool(self._client.lifecycle_service.is_running())

    def gathered(self) -> AbstractContextManager[None]:
        """While it is open, what this thread requests is sent together at its end; do not wait for a reply in it."""
        return gathered(lambda: list(self._client._connection_manager.active_connections.values()))

    def get(self, key: str) -> Reply[memoryview | None]:
        """Request a value; anything but plain bytes comes as an empty view."""
        return self._send(GET, key)

    def set(self, key: str, head: bytes, value: Buffer) -> Reply[None]:
        """Request that ``head + value`` be written; ``value`` must not change until the reply is there."""
        return self._send(SET, key, head, value)

    def put_if_absent(self, key: str, head: bytes, value: Buffer) -> Reply[bool]:
        """Request that ``head + value`` be written if there is nothing."""
        return self._send(PUT_IF_ABSENT, key, head, value)

    def replace_if_same(self, key: str, expected: bytes, head: bytes, value: Buffer) -> Reply[bool]:
        """Request that ``head + value`` be written if there are the bytes ``expected``."""
        return self._send(REPLACE, key, head, value, expected=expected)

    def delete(self, key: str) -> Reply[None]:
        """Request that a key be removed."""
        return self._send(DELETE, key)

    def keys(self) -> Reply[list[str]]:
        """Request all keys that are text."""
        request = _CODEC.keys.encode_request(self._name)
        return self._invoke(request, -1, lambda frames: _texts(frames[1:]))

    def destroy(self) -> Reply[None]:
        """Request that the map and all that is in it be removed."""
        return self._invoke(_CODEC.destroy.encode_request(self._name, "hz:impl:mapService"), -1, lambda _: None)

    def publish(self, topic: str) -> None:
        """Send a hint and look no further after it."""
        name = f"{self._name}.{topic}"
        self._invoke(_CODEC.publish.encode_request(name, _EMPTY_TEXT), self._partition(name), lambda _: None)

    def listen(self, topic: str, listener: Callable[[], None]) -> Reply[str]:
        """Request hints, now and after each reconnection; the reply is for ``stop_listening``."""

        def hear(_: object) -> None:
            try:
                listener()
            except Exception:  # it would close the client's connection
                logger.exception("a listener for hints on %r failed; the hint is lost", topic)

        name = f"{self._name}.{topic}"
        future = self._client._listener_service.register_listener(
            _CODEC.listen.encode_request(name, True),
            _CODEC.listen.decode_response,
            lambda number: _CODEC.stop.encode_request(name, number),
            hear,
        )
        return _reply_of(future, self.where)

    def stop_listening(self, registration: str) -> Reply[bool]:
        """Request that a listener's hints end; it is not called any more from now on."""
        return _reply_of(self._client._listener_service.deregister_listener(registration), self.where)

    def close(self) -> None:
        """Shut the client down; whoever waits for a reply is told so."""
        self._client.shutdown()

    def _send(self, operation: Operation, key: str, *value: Buffer, expected: bytes | None = None) -> Reply[Any]:
        request = operation.request(self._map_frame, key, value, expected)
        return self._invoke(request, self._partition(key), operation.decode)

    def _partition(self, key: str) -> int:
        """Return the partition of a key; without partitions (-1) any member passes the request on."""
        count = self._client._internal_partition_service.partition_count
        return abs(partition_hash(key)) % count if count else -1

    def _invoke(self, request: Any, partition: int, decode: Callable[[Frames], T]) -> Reply[T]:
        reply: Reply[T] = Reply(self.where)
        call = Call(request, reply, partition, decode)
        self._client._invocation_service.invoke(call)
        return reply


def _texts(frames: Frames) -> list[str]:
    """The texts in a list of values; keys of other kinds are nobody's of ours."""
    values = [memoryview(body) for body, _ in frames if len(body) >= _TEXT_AT]  # the list's begin and end are empty
    raws = [bytes(value[_TEXT_AT:]) for value in values if value[4:8] == _IS_STRING]
    return [raw.decode("utf-8", "replace") for raw in raws]
