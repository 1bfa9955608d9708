"""A Hazelcast client whose maps and topics transfer plain bytes, send each request once, and never unpickle.

This is the only module that uses the ``hazelcast`` package below its public interface. Everything it replaces is
replaced on the clients it opens; the package itself, and other clients in the process, are unchanged:

* maps and topics send and return bytes and text. The package creates an object from every value that is read, with
  ``pickle`` if the value says so: anybody who can write to a map could run code here. If another path of the client
  ever leads to its pickle, that path refuses;
* a request of a map or topic is sent once. The package repeats failed requests for two minutes, long after the caller
  has stopped waiting; here the store decides what is repeated, and for how long;
* maps and topics are created and removed without waiting: the package waits for the member's answer without a deadline;
* frames are bounded: a longer one is skipped unread, one of negative length ends the connection (``FrameReader``);
* the reactor's waker can no longer lose a wake-up (``_mend_waker``);
* the reactor's timers use a clock that cannot be set (``_mend_timers``).

All of this depends on the package's internals, so ``open_client`` accepts only the releases that were tested.
"""

from __future__ import annotations

import io
import socket
import struct
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dl4jlegacy.errors import VersionError, WireError
from dl4jlegacy.scaleout.state.store import Buffer

with warnings.catch_warnings():  # Python 3.11 warns of its own asyncore, which the client imports
    warnings.simplefilter("ignore", DeprecationWarning)
    import hazelcast
    from hazelcast.client import HazelcastClient
    from hazelcast.config import ReconnectMode
    from hazelcast.connection import _Reader
    from hazelcast.errors import HazelcastClientNotActiveError, HazelcastSerializationError
    from hazelcast.invocation import Invocation
    from hazelcast.lifecycle import LifecycleState
    from hazelcast.protocol.codec import client_destroy_proxy_codec
    from hazelcast.proxy import MAP_SERVICE, TOPIC_SERVICE
    from hazelcast.reactor import Timer
    from hazelcast.serialization.data import Data

__all__ = ["TESTED_RELEASES", "HazelcastClientNotActiveError", "check_release", "open_client"]

TESTED_RELEASES = ("5.5.0", "5.6.0", "5.7.0")
"""The releases of hazelcast-python-client that were tested; ``setup.cfg`` names the same range."""

_HEAD = struct.Struct(">iii")  # of serialized text or bytes: partition hash (0: from the data), type id, length
_STRING, _BYTES = -11, -12  # Hazelcast's type ids
_BUFFER = 1 << 20  # bytes that the system may hold for a socket in each direction
_PAST = 1.0  # the time until which a request may be repeated: never
_HEADER_NBYTES = 6  # of a frame: its length, these included, and its flags
_MOST_FRAME_NBYTES = 4 << 20  # values have at most 1 MiB
_MOST_MESSAGE_NBYTES = 1 << 30  # for example of a list of all keys
_PackageReader: Any = _Reader
_Timer: Any = Timer
_Base: Any = HazelcastClient  # the package is typed only in parts, and only since 5.7
_Data: Any = Data
_Invocation: Any = Invocation
_destroy_request: Any = client_destroy_proxy_codec.encode_request


def check_release(found: str) -> None:
    """Raise ``VersionError`` unless ``found`` is a release of hazelcast-python-client that was tested."""
    if found not in TESTED_RELEASES:
        raise VersionError(
            f"hazelcast-python-client {found} is installed; the releases tested are {', '.join(TESTED_RELEASES)}. "
            f"Install one of them, type: {sys.executable} -m pip install "
            f"'hazelcast-python-client=={TESTED_RELEASES[-1]}'"
        )


def open_client(addresses: Sequence[str], cluster_name: str, on_connected: Callable[[bool], None]) -> Any:
    """Return a client that connects, and reconnects, in the background with jittered back-off.

    Args:
        addresses: ``host:port`` of members.
        cluster_name: the name of the members' cluster; the members compare nothing else.
        on_connected: called with True when the first member is connected, and with False when no member is connected
            any more; on the client's thread.

    Raises:
        VersionError: the installed client is a release that was not tested.
    """
    check_release(hazelcast.__version__)

    def hear(state: str) -> None:
        if state in (LifecycleState.CONNECTED, LifecycleState.DISCONNECTED):
            on_connected(state == LifecycleState.CONNECTED)

    return _Client(
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
        lifecycle_listeners=[hear],
        socket_options=[(socket.SOL_SOCKET, option, _BUFFER) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)],
    )


class _Client(_Base):  # type: ignore[misc]
    """The package's client, with the parts that the module's docstring lists replaced before it starts."""

    def _start(self) -> None:
        """Replace parts, then start; called by the package when all parts of the client exist and none is running."""
        _refuse_pickle(self._serialization_service._python_serializer)
        _mend_waker(self._reactor._loop)
        _mend_timers(self._reactor._loop)
        _bound_frames(self._reactor)
        self._context.serialization_service = PlainValues()  # maps and topics use only these two
        self._context.invocation_service = _SentOnce(self._invocation_service)
        super()._start()

    def map_named(self, name: str) -> Any:
        """Return a map; it is created with its first entry."""
        return self._proxy_manager.get_or_create(MAP_SERVICE, name, create_on_remote=False)

    def topic_named(self, name: str) -> Any:
        """Return a topic; raises the package's ``ClientOfflineError`` before the first connection."""
        return self._proxy_manager.get_or_create(TOPIC_SERVICE, name, create_on_remote=False)

    def member_version(self) -> str:
        """Return the version of a connected member, such as ``5.7.0``; "" if none is connected, or it is unknown."""
        connection = self._connection_manager.get_random_connection()
        version = -1 if connection is None else int(connection.server_version)  # 50700
        return "" if version < 0 else f"{version // 10000}.{version // 100 % 100}.{version % 100}"

    def member_attributes(self, name: str) -> list[str | None]:
        """Return the attribute ``name`` of each member that stores data; empty until members are known."""
        members = self.cluster_service.get_members(lambda member: not member.lite_member)
        return [member.attributes.get(name) for member in members]

    def remove_map(self, name: str) -> Any:
        """Request that a map be removed with all its entries; return the package's future."""
        invocation = _Invocation(_destroy_request(name, MAP_SERVICE))
        self._context.invocation_service.invoke(invocation)
        return invocation.future


class PlainValues:
    """A replacement for the package's serialization in maps and topics: passes text and bytes, creates no objects."""

    def to_data(self, value: str | tuple[Buffer, ...]) -> Any:
        """Return text, or bytes given as consecutive pieces, in Hazelcast's format."""
        if isinstance(value, str):
            raw = value.encode()
            return _Data(_HEAD.pack(0, _STRING, len(raw)) + raw)
        nbytes = sum(len(piece) for piece in value)
        return _Data(b"".join((_HEAD.pack(0, _BYTES, nbytes), *value)))

    def to_object(self, data: Any) -> str | memoryview | None:
        """Return text, a view of bytes, None for no value, and an empty view for any other kind of value."""
        if data is None:
            return None
        view = memoryview(data.buffer)
        if len(view) < _HEAD.size:
            return view[:0]
        _, kind, nbytes = _HEAD.unpack_from(view)
        if kind == _STRING:
            return bytes(view[_HEAD.size :]).decode("utf-8", "replace")
        return view[_HEAD.size :] if kind == _BYTES and nbytes == len(view) - _HEAD.size else view[:0]


class _SentOnce:
    """A replacement for the package's invocation service in maps and topics: no request is repeated after an error."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def invoke(self, invocation: Any) -> None:
        invocation.timeout = _PAST
        self._service.invoke(invocation)


class FrameReader(_PackageReader):  # type: ignore[misc]
    """Splits a connection's bytes into frames; at most a few MiB are buffered.

    A longer frame, such as a huge value written by an outsider, becomes an empty one, which is then refused like any
    foreign value. The package would buffer data until a frame is complete, whatever length it claims, and would read a
    frame with a length below 6 in an endless loop.
    """

    length: int
    _buf: io.BytesIO
    _frame_size: int
    _bytes_read: int
    _bytes_written: int

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)
        self._surplus = 0  # bytes of an overlong frame that have not arrived yet
        self._message_nbytes = 0

    def read(self, data: bytes) -> None:
        """Take received bytes; raises ``WireError`` if they are not frames."""
        super().read(data)
        if self.length > _MOST_FRAME_NBYTES:  # the caller reads until no more data arrives, before it asks for frames
            self.process()
        if self._bytes_read > _MOST_FRAME_NBYTES:
            self._forget_what_was_read()

    def _read_frame(self) -> bool:
        if self._surplus and not self._pass_surplus():
            return False
        return bool(super()._read_frame())

    def _read_frame_size_and_flags(self) -> None:
        super()._read_frame_size_and_flags()
        self._message_nbytes += _HEADER_NBYTES + min(self._frame_size, _MOST_FRAME_NBYTES)
        if self._frame_size < 0 or self._message_nbytes > _MOST_MESSAGE_NBYTES:
            raise WireError(f"a Hazelcast member sent a frame of {self._frame_size} bytes; it is none, or is damaged")
        if self._frame_size > _MOST_FRAME_NBYTES:
            self._surplus = self._frame_size
            self._frame_size = 0 if self._pass_surplus() else 1  # none of which has arrived

    def _pass_surplus(self) -> bool:
        """Skip the received part of an overlong frame; return whether that was the rest of the frame."""
        skipped = min(self._surplus, self.length)
        self._bytes_read += skipped
        self._surplus -= skipped
        self._frame_size = 0  # as if it had no content
        self._forget_what_was_read()
        return not self._surplus

    def _forget_what_was_read(self) -> None:
        self._buf.seek(self._bytes_read)
        rest = self._buf.read(self.length)
        self._buf.seek(0)
        self._buf.truncate()
        self._buf.write(rest)
        self._bytes_read, self._bytes_written = 0, len(rest)

    def _reset(self) -> None:
        super()._reset()
        self._message_nbytes = 0


def _bound_frames(reactor: Any) -> None:
    """Give each connection that a reactor creates a ``FrameReader``."""
    connect = reactor.connection_factory

    def connect_bounded(*args: Any) -> Any:
        connection = connect(*args)
        connection._reader = FrameReader(connection._builder)
        return connection

    reactor.connection_factory = connect_bounded


def _refuse_pickle(serializer: Any) -> None:
    """Make a client's object serializer refuse to read and to write."""

    def read(_: object) -> NoReturn:
        raise HazelcastSerializationError("a pickled value is refused: reading it could run foreign code")

    def write(*_: object) -> NoReturn:
        raise HazelcastSerializationError("only bytes and text are sent; this object would have been pickled")

    serializer.read, serializer.write = read, write


def _mend_waker(loop: Any) -> None:
    """Make a reactor's waker mark itself as asleep also after it has emptied its pipe, not only before.

    The package does so only before. A ``wake`` in between leaves ``awake`` set and the pipe empty, so that nothing is
    ever written to the pipe again, and every later request is served 10 ms late. With this change the byte of such a
    ``wake`` is lost, but its request is already in a connection's queue, which the reactor checks before it sleeps.
    """
    waker = loop.waker
    empty_pipe = waker.handle_read

    def handle_read() -> None:
        empty_pipe()
        waker.awake = False

    waker.handle_read = handle_read


class _MonotonicTimer(_Timer):  # type: ignore[misc]
    """A timer of the reactor that uses the monotonic clock, whatever time of day the loop passes."""

    def check_timer(self, now: float) -> bool:
        return bool(super().check_timer(time.monotonic()))


def _mend_timers(loop: Any) -> None:
    """Make a reactor's timers use the monotonic clock.

    The package's timers use the wall clock. If that is set back by an hour, for an hour no heartbeat is sent, no lost
    member is detected, and no new member is connected.
    """

    def add_timer(delay: float, callback: Callable[[], None]) -> Any:
        timer = _MonotonicTimer(time.monotonic() + delay, callback)
        loop._new_timers.append((timer.end, timer))
        return timer

    loop.add_timer = add_timer
