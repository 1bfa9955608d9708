"""One process's connection to a Hazelcast cluster: requests and replies as bytes (layer 3).

Only this module imports the ``hazelcast`` package. It reaches below that package's public interface, which is why the
package is pinned to one release; below it, because

* the client deserializes every value that it reads, with ``pickle`` if the value says so: whoever can write to a map
  could run code here. Replies are taken as bytes here and nothing is deserialized; besides, the client's pickle is
  replaced by one that refuses, should any other path lead to it;
* the client repeats failed requests on its own, for two minutes, long after nobody waits for them any more. Here a
  request is sent once, and the store decides what is repeated and for how long;
* the client waits for a reply without a deadline;
* the client's reactor can lose the wake-up of its pipe for good, and then serves every request 10 ms late;
* the client copies a value five times on its way out, and all that the socket has not taken yet once more after each
  partial write. Here a value is copied once.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Generic, NoReturn, TypeVar

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.store import Buffer

with warnings.catch_warnings():  # Python 3.11 warns of its own asyncore, which the client imports
    warnings.simplefilter("ignore", DeprecationWarning)
    from hazelcast.client import HazelcastClient
    from hazelcast.config import ReconnectMode
    from hazelcast.errors import HazelcastClientNotActiveError, HazelcastSerializationError
    from hazelcast.invocation import Invocation
    from hazelcast.protocol.codec import (
        client_destroy_proxy_codec,
        map_delete_codec,
        map_get_codec,
        map_key_set_codec,
        map_put_if_absent_codec,
        map_replace_if_same_codec,
        map_set_codec,
        topic_add_message_listener_codec,
        topic_publish_codec,
        topic_remove_message_listener_codec,
    )
    from hazelcast.reactor import _PipedWaker, _SocketedWaker
    from hazelcast.serialization import serializer
    from hazelcast.serialization.data import Data

__all__ = ["DisturbedError", "HazelcastLink", "Reply"]

T = TypeVar("T")
logger = logging.getLogger(__name__)
logging.getLogger("hazelcast").addHandler(logging.NullHandler())  # else its warnings go to the terminal

_Invocation: Any = Invocation
_Data: Any = Data
_CODEC: Any = SimpleNamespace(  # none of them is typed
    destroy=client_destroy_proxy_codec,
    delete=map_delete_codec,
    get=map_get_codec,
    keys=map_key_set_codec,
    put_if_absent=map_put_if_absent_codec,
    replace=map_replace_if_same_codec,
    set=map_set_codec,
    listen=topic_add_message_listener_codec,
    publish=topic_publish_codec,
    stop=topic_remove_message_listener_codec,
)
_STRING, _BYTES = -11, -12  # Hazelcast's type ids
_DATA_HEAD = struct.Struct(">iii")  # partition hash (0: of the bytes), type id, length
_FRAME_HEAD = 6  # length and flags
_NO_LOCK = 1  # any thread's number: no locks are taken
_FOREVER = -1
_BUFFER = 1 << 20
_WAKE_NBYTES = 4096
_PAST = 1.0  # a request's time limit, in the past: it is never repeated by the client


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


def _drain_then_sleep(read: Callable[[Any], bytes]) -> Callable[[Any], None]:
    """Return a waker's ``handle_read`` that empties the pipe first and clears ``awake`` after.

    The client's own does it the other way round. A ``wake`` in between leaves ``awake`` set and the pipe empty, so that
    nobody ever writes to it again. In this order a ``wake`` in between writes nothing, but what it was for is in the
    connection's queue already, and the reactor looks there before it sleeps.
    """

    def handle_read(waker: Any) -> None:
        try:
            while len(read(waker)) == _WAKE_NBYTES:
                continue
        except OSError:
            logger.debug("a waker had nothing to read")
        waker.awake = False

    return handle_read


_PIPED: Any = _PipedWaker
_PIPED.handle_read = _drain_then_sleep(lambda waker: os.read(waker._read_fd, _WAKE_NBYTES))
_SOCKETED: Any = _SocketedWaker
_SOCKETED.handle_read = _drain_then_sleep(lambda waker: waker._reader.recv(_WAKE_NBYTES))


class DisturbedError(TrackerError):
    """A request failed on its way; whether it took effect is unknown, and it may be repeated with care."""


class Reply(Generic[T]):
    """What a request will bring."""

    def __init__(self, future: Any, where: str) -> None:
        self._future, self._where = future, where
        self._done = threading.Event()
        future.add_done_callback(lambda _: self._done.set())

    def wait(self, seconds: float) -> T:
        """Return the reply.

        Raises:
            DisturbedError: the request failed.
            TrackerError: the client was shut down, or there was no reply in ``seconds``.
        """
        if not self._done.wait(max(0.0, seconds)):
            raise TrackerError(
                f"Hazelcast at {self._where} did not answer in time; it hangs, or the network loses packets. Look at "
                "the member's log and load, then resume the run"
            )
        failure = self._future.exception()
        if failure is None:
            value: T = self._future.result()
            return value
        if isinstance(failure, HazelcastClientNotActiveError):
            raise TrackerError(f"the connection to Hazelcast at {self._where} was shut down") from failure
        raise DisturbedError(f"{type(failure).__name__}: {failure}") from failure


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

    def get(self, key: str) -> Reply[memoryview | None]:
        """Request a value; anything but plain bytes comes as an empty view."""
        data = _text(key)
        request = _CODEC.get.encode_request(self._name, data, _NO_LOCK)
        return self._send(request, data, lambda m: _bytes_of(_CODEC.get.decode_response(m)))

    def set(self, key: str, head: bytes, value: Buffer) -> Reply[None]:
        """Request that ``head + value`` be written."""
        data = _text(key)
        request = _CODEC.set.encode_request(self._name, data, _start(head, value), _NO_LOCK, _FOREVER)
        return self._send(_finish(request, head, value), data, lambda _: None)

    def put_if_absent(self, key: str, head: bytes, value: Buffer) -> Reply[bool]:
        """Request that ``head + value`` be written if there is nothing."""
        data = _text(key)
        request = _CODEC.put_if_absent.encode_request(self._name, data, _start(head, value), _NO_LOCK, _FOREVER)
        decode = _CODEC.put_if_absent.decode_response
        return self._send(_finish(request, head, value), data, lambda m: decode(m) is None)

    def replace_if_same(self, key: str, expected: bytes, head: bytes, value: Buffer) -> Reply[bool]:
        """Request that ``head + value`` be written if there are the bytes ``expected``."""
        data, old = _text(key), _Data(_DATA_HEAD.pack(0, _BYTES, len(expected)) + expected)
        request = _CODEC.replace.encode_request(self._name, data, old, _start(head, value), _NO_LOCK)
        return self._send(_finish(request, head, value), data, _CODEC.replace.decode_response)

    def delete(self, key: str) -> Reply[None]:
        """Request that a key be removed."""
        data = _text(key)
        return self._send(_CODEC.delete.encode_request(self._name, data, _NO_LOCK), data, lambda _: None)

    def keys(self) -> Reply[list[str]]:
        """Request all keys that are text."""
        request = _CODEC.keys.encode_request(self._name)
        return self._send(request, None, lambda m: _texts(_CODEC.keys.decode_response(m)))

    def destroy(self) -> Reply[None]:
        """Request that the map and all that is in it be removed."""
        return self._send(_CODEC.destroy.encode_request(self._name, "hz:impl:mapService"), None, lambda _: None)

    def publish(self, topic: str) -> None:
        """Send a hint and look no further after it."""
        name = f"{self._name}.{topic}"
        self._send(_CODEC.publish.encode_request(name, _text("")), _text(name), lambda _: None)

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
        return Reply(future, self.where)

    def stop_listening(self, registration: str) -> Reply[bool]:
        """Request that a listener's hints end; it is not called any more from now on."""
        return Reply(self._client._listener_service.deregister_listener(registration), self.where)

    def close(self) -> None:
        """Shut the client down; whoever waits for a reply is told so."""
        self._client.shutdown()

    def _send(self, request: Any, key: Any, decode: Callable[[Any], T]) -> Reply[T]:
        partition = -1
        if key is not None and self.connected():  # without partitions any member passes the request on
            partition = self._client._internal_partition_service.get_partition_id(key)
        invocation = _Invocation(request, partition_id=partition, timeout=_PAST, response_handler=decode)
        self._client._invocation_service.invoke(invocation)
        return Reply(invocation.future, self.where)


def _text(text: str) -> Any:
    raw = text.encode()
    return _Data(_DATA_HEAD.pack(0, _STRING, len(raw)) + raw)


def _texts(found: Sequence[Any]) -> list[str]:
    """The texts among ``found``; keys of other kinds are nobody's of ours."""
    raws = [bytes(data.buffer[_DATA_HEAD.size :]) for data in found if data.get_type() == _STRING]
    return [raw.decode("utf-8", "replace") for raw in raws]


def _start(head: bytes, value: Buffer) -> Any:
    """The beginning of a value for a codec; the rest is put behind it by ``_finish``, which saves a copy."""
    return _Data(_DATA_HEAD.pack(0, _BYTES, len(head) + len(value)) + head)


def _finish(request: Any, head: bytes, value: Buffer) -> Any:
    """Put ``value`` behind a request whose last frame holds ``_start(head, value)``."""
    whole: bytearray = request.buf
    frame = _FRAME_HEAD + _DATA_HEAD.size + len(head)
    struct.pack_into("<i", whole, len(whole) - frame, frame + len(value))
    whole += value
    request.buf = memoryview(whole)  # slices of it, which partial writes leave, are no copies
    return request


def _bytes_of(data: Any) -> memoryview | None:
    if data is None:
        return None
    view = memoryview(data.buffer)
    if len(view) < _DATA_HEAD.size:
        return view[:0]
    _, kind, length = _DATA_HEAD.unpack_from(view)
    return view[_DATA_HEAD.size :] if kind == _BYTES and length == len(view) - _DATA_HEAD.size else view[:0]
