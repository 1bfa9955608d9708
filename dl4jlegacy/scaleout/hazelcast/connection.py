"""How bytes come from and go to a Hazelcast member, in place of the client's own way (layer 3).

Importing this module changes the ``hazelcast`` package in some places, which is why that is pinned to one release:

* small messages are sent by the thread that makes them, if nobody is sending just then, instead of by waking the
  reactor's thread for each: a third of the time of a short request;
* messages go out as the pieces they consist of. The client joins what waits, and copies what the socket has not taken
  yet once more after each partial write;
* large values are received into the memory they stay in; the client copies them twice more;
* answers go straight to who asked; and the system is told once which sockets to watch, not in each of the reactor's
  turns: half of what an answer costs;
* the reactor's pipe is emptied first and declared asleep after. The client does it the other way round and can lose
  its wake-up for good, after which every request is served 10 ms late.
"""

from __future__ import annotations

import logging
import os
import select
import struct
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from dl4jlegacy.scaleout.store import Buffer

with warnings.catch_warnings():  # Python 3.11 warns of its own asyncore, which the client imports
    warnings.simplefilter("ignore", DeprecationWarning)
    from hazelcast import reactor
    from hazelcast.protocol.client_message import Frame, InboundMessage

__all__ = ["Frames", "Pieces", "Receiver", "frames_of", "gathered"]

logger = logging.getLogger(__name__)

Pieces = Buffer | tuple[Buffer, ...]
"""A message, whole or in pieces that follow each other; they must not change until it has been answered."""

_REACTOR: Any = reactor
Frames = list[tuple[Buffer, int]]
"""What a message consists of: bodies and flags."""

_Frame: Any = Frame
_InboundMessage: Any = InboundMessage
_FRAME_HEAD = struct.Struct("<iH")  # length with this head, flags
_FINAL, _WHOLE, _EVENTS = 1 << 13, 0xC000, 1 << 9 | 1 << 7
_ANSWER = struct.Struct("<iqB")  # kind (0: an error), number of the request, backups that will report
_LARGE = 1 << 14  # frames from here on get memory of their own
_ROOM = 1 << 16
_DIRECT = 1 << 14  # longer messages are left to the reactor: who made them has the next one to make meanwhile
_SENT_AT_ONCE = 1 << 21
_PIECES_AT_ONCE = 256  # the system takes up to 1,024
_WAKE_NBYTES = 4096
_READABLE = select.POLLIN | select.POLLPRI
_TURN_MS = 20  # the reactor's timers are no finer
_gathering = threading.local()


class Receiver:
    """Makes messages of what a connection receives. Belongs to the reactor's thread.

    ``room()`` says where the next bytes shall go, ``received(n)`` that ``n`` have come.
    """

    def __init__(self, on_message: Callable[[Frames], None]) -> None:
        self._on_message = on_message
        self._buffer = memoryview(bytearray(_ROOM))
        self._end = 0
        self._large: bytearray | None = None  # and no view: the codecs of strings call its methods
        self._large_end = self._large_flags = 0
        self._frames: Frames = []

    def room(self) -> memoryview:
        """Return the memory to receive into; never empty."""
        return self._buffer[self._end :] if self._large is None else memoryview(self._large)[self._large_end :]

    def received(self, count: int) -> None:
        """Take ``count`` bytes over; passes on each message that they complete. Raises ``OSError`` on nonsense."""
        if self._large is None:
            self._end += count
            self._take_frames()
            return
        self._large_end += count
        if self._large_end == len(self._large):
            whole, self._large = self._large, None
            self._add(whole, self._large_flags)

    def _take_frames(self) -> None:
        """Take the whole frames out of the buffer; what remains is part of one."""
        buffer, start, end = self._buffer, 0, self._end
        while end - start >= _FRAME_HEAD.size:
            length, flags = _FRAME_HEAD.unpack_from(buffer, start)
            body = start + _FRAME_HEAD.size
            if length < _FRAME_HEAD.size:
                raise OSError(f"a member sent a frame of {length} bytes; it is not speaking Hazelcast's protocol")
            if start + length <= end:
                self._add(bytes(buffer[body : start + length]), flags)
                start += length
                continue
            if length >= _LARGE:
                self._large, self._large_flags = bytearray(length - _FRAME_HEAD.size), flags
                self._large_end = end - body
                self._large[: self._large_end] = buffer[body:end]
                start = end
            break
        self._end = end - start
        if start and self._end:
            buffer[: self._end] = bytes(buffer[start:end])

    def _add(self, body: Buffer, flags: int) -> None:
        self._frames.append((body, flags))
        if flags & _FINAL:
            frames, self._frames = self._frames, []
            self._on_message(frames)


@contextmanager
def gathered(connections: Callable[[], Iterable[Any]]) -> Iterator[None]:
    """Send the small messages that this thread makes meanwhile together at the end, on each of ``connections()``."""
    _gathering.on = True
    try:
        yield
    finally:
        _gathering.on = False
        for connection in connections():
            connection.flush()


_Base: Any = reactor.AsyncoreConnection


class _Connection(_Base):  # type: ignore[misc]  # the package is typed here and there only
    """A connection to a member. Only who holds ``_sending`` takes from the queue, sends, and closes the socket."""

    def __init__(self, *arguments: Any) -> None:
        self._sending = threading.RLock()  # the reactor closes while it sends
        super().__init__(*arguments)
        self._pending: dict[int, Any] = arguments[-1].__self__._pending  # of the service whose method takes messages
        self._receiver = Receiver(self._take)

    def _take(self, frames: Frames) -> None:
        """Answer one of our calls; the client sees to everything else. On the reactor's thread."""
        first, flags = frames[0]
        if flags & (_WHOLE | _EVENTS) == _WHOLE and len(first) >= _ANSWER.size:
            kind, number, backups = _ANSWER.unpack_from(first)
            call: Any = self._pending.get(number)
            if kind and hasattr(call, "answer") and backups <= call.backup_acks_received:
                del self._pending[number]
                call.answer(frames)
                return
        self._builder.on_message(message_of(frames))

    def handle_read(self) -> None:
        """Receive until there is no more for now. On the reactor's thread."""
        receiver = self._receiver
        try:
            while True:
                room = receiver.room()
                count = self.socket.recv_into(room)
                if not count:
                    self.handle_close()
                    return
                self._reactor.bytes_received += count
                self.last_read_time = time.time()
                receiver.received(count)
                if count < len(room):
                    return
        except BlockingIOError:
            return
        except OSError as exc:
            self.close_connection(None, exc)

    def handle_write(self) -> None:
        """Send what the socket takes. On the reactor's thread, when there is something to send and the socket ready."""
        try:
            with self._sending:
                self._transmit()
        except BlockingIOError:
            return
        except OSError as exc:
            self.close_connection(None, exc)

    def _write(self, message: Pieces) -> None:
        """Send a message, or leave it to the reactor. On any thread."""
        self._write_queue.append(message)
        small = not isinstance(message, tuple) and len(message) <= _DIRECT
        if not small:
            self._reactor.wake_loop()
        elif not getattr(_gathering, "on", False):
            self.flush()

    def flush(self) -> None:
        """Send what waits, if nobody is sending, or else leave it to the reactor. On any thread."""
        queue: deque[Pieces] = self._write_queue
        if queue and self.sent_protocol_bytes and self._sending.acquire(blocking=False):
            try:
                if self.live:
                    self._transmit()
            except OSError:  # full: the reactor goes on; broken: it will find out, and closes
                logger.debug("a message is left to the reactor", exc_info=True)
            finally:
                self._sending.release()
        if queue:
            self._reactor.wake_loop()

    def _transmit(self) -> None:
        """Send until nothing waits or the socket takes no more; needs ``_sending``. Raises ``OSError``."""
        queue: deque[Pieces] = self._write_queue
        while queue:
            pieces: list[Buffer] = []
            total = 0
            while queue and total < _SENT_AT_ONCE and len(pieces) < _PIECES_AT_ONCE:
                message = queue.popleft()
                for piece in message if isinstance(message, tuple) else (message,):
                    pieces.append(piece)
                    total += len(piece)
            try:
                sent = self.socket.sendmsg(pieces)
            except OSError:
                queue.extendleft(reversed(pieces))
                raise
            self.sent_protocol_bytes = True
            self.last_write_time = time.time()
            self._reactor.bytes_sent += sent
            if sent < total:
                queue.extendleft(reversed(rest_of(pieces, sent)))
                return

    def _inner_close(self) -> None:
        with self._sending:
            super()._inner_close()


def message_of(frames: Frames) -> Any:
    """Return a message in the client's eyes."""
    message = _InboundMessage(_Frame(*frames[0]))
    for body, flags in frames[1:]:
        message.add_frame(_Frame(body, flags))
    return message


def frames_of(message: Any) -> Frames:
    """Return what a message of the client's consists of."""
    frames, frame = [], message.start_frame
    while frame is not None:
        frames.append((frame.buf, frame.flags))
        frame = frame.next
    return frames


def rest_of(pieces: list[Buffer], sent: int) -> list[Buffer]:
    """Return what remains of ``pieces`` after the first ``sent`` bytes, without copying."""
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []


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


def _run_loop(loop: Any) -> None:
    """Wait for something to happen to the sockets in ``loop._map``, and see to it: one turn of the reactor.

    As ``asyncore.loop``, which tells the system of every socket anew in every turn.
    """
    if "poll" not in vars(loop):
        loop.poll, loop.polled = select.poll(), {}
    watched, polled = loop._map, loop.polled
    for number, socket in list(watched.items()):
        wanted = _READABLE if socket.readable() else 0
        wanted |= select.POLLOUT if socket.writable() else 0
        if polled.get(number, 0) != wanted:
            if wanted:
                loop.poll.register(number, wanted)
            else:
                loop.poll.unregister(number)
            polled[number] = wanted
    for number in polled.keys() - watched.keys():
        if polled.pop(number):
            loop.poll.unregister(number)
    for number, events in loop.poll.poll(_TURN_MS):
        socket = watched.get(number)
        if socket is not None:
            _REACTOR.asyncore.readwrite(socket, events)


_REACTOR.AsyncoreConnection = _Connection
_REACTOR._WakeableLoop.run_loop = _run_loop
_REACTOR._PipedWaker.handle_read = _drain_then_sleep(lambda waker: os.read(waker._read_fd, _WAKE_NBYTES))
_REACTOR._SocketedWaker.handle_read = _drain_then_sleep(lambda waker: waker._reader.recv(_WAKE_NBYTES))
