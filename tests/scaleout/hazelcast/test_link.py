"""How requests become bytes and bytes replies, and how these come and go, without a member."""

import os
import random
import socket
import struct
import threading

import pytest
from hazelcast.hash import murmur_hash3_x86_32
from hazelcast.protocol.client_message import ClientMessageBuilder
from hazelcast.protocol.codec import (
    map_delete_codec,
    map_get_codec,
    map_put_if_absent_codec,
    map_replace_if_same_codec,
    map_set_codec,
)
from hazelcast.serialization.data import Data

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.hazelcast import connection, message
from dl4jlegacy.scaleout.hazelcast.link import DisturbedError, Reply

KEYS = ["", "a", "ab", "abc", "head", "job/0/17", "update/3/1/host-12-9f-0.7/0", "größe", "x" * 97]


# -- requests ----------------------------------------------------------------------------------------------------------


def data(kind, raw):
    return Data(struct.pack(">iii", 0, kind, len(raw)) + raw)


def sent(request):
    """The bytes of a request with a number and a partition, as the client would send it."""
    request.set_correlation_id(77)
    request.set_partition_id(11)
    request.set_backup_aware_flag()
    return b"".join(request.buf) if isinstance(request.buf, tuple) else bytes(request.buf)


@pytest.mark.parametrize("nbytes", [0, 1, 1000, 100_000])
def test_requests_are_the_bytes_that_the_clients_own_codecs_make(nbytes):
    name, head = "dl4j.run", b"HEAD"
    map_frame = message.frame_of(name.encode())
    value = random.Random(nbytes).randbytes(nbytes)
    for key in KEYS:
        ours, theirs = data(-11, key.encode()), data(-12, head + value)
        pairs = [
            (message.GET.request(map_frame, key), map_get_codec.encode_request(name, ours, 1)),
            (message.DELETE.request(map_frame, key), map_delete_codec.encode_request(name, ours, 1)),
            (
                message.SET.request(map_frame, key, (head, value)),
                map_set_codec.encode_request(name, ours, theirs, 1, -1),
            ),
            (
                message.PUT_IF_ABSENT.request(map_frame, key, (head, memoryview(value))),
                map_put_if_absent_codec.encode_request(name, ours, theirs, 1, -1),
            ),
            (
                message.REPLACE.request(map_frame, key, (head, value), b"old"),
                map_replace_if_same_codec.encode_request(name, ours, data(-12, b"old"), theirs, 1),
            ),
        ]
        for mine, reference in pairs:
            assert sent(mine) == sent(reference)
            assert mine.get_correlation_id() == 77


def test_a_long_value_is_not_copied():
    value = memoryview(bytearray(100_000))
    pieces = message.SET.request(b"", "key", (b"head", value)).buf
    assert pieces[-1] is value


def test_keys_go_to_the_partitions_that_the_members_expect():
    for key in [*KEYS, *(random.Random(i).randbytes(i).hex() for i in range(60))]:
        assert message.partition_hash(key) == murmur_hash3_x86_32(data(-11, key.encode()).buffer)


# -- replies -----------------------------------------------------------------------------------------------------------


def test_a_reply_is_set_once_and_can_be_waited_for_by_several():
    reply = Reply("here")
    assert not reply.done()
    with pytest.raises(TrackerError, match="here did not answer"):
        reply.wait(0.01)
    waiters = [threading.Thread(target=reply.wait, args=(10,)) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    reply.set_result(memoryview(b"abc"))
    reply.set_exception(OSError("too late"))
    for waiter in waiters:
        waiter.join(10)
        assert not waiter.is_alive()
    assert reply.wait(0) == b"abc"
    assert reply.nbytes() == 3
    failed = Reply("here")
    failed.set_exception(OSError("broken"))
    with pytest.raises(DisturbedError, match="OSError: broken"):
        failed.wait(0)


# -- what comes --------------------------------------------------------------------------------------------------------


def frames(rng, count):
    """Messages of one to four frames each, and their bytes."""
    messages, raw = [], b""
    for _ in range(count):
        bodies = [rng.randbytes(rng.choice((0, 5, 90, 20_000, 70_000, 300_000))) for _ in range(rng.randint(1, 4))]
        for index, body in enumerate(bodies):
            flags = (0xC000 if index == 0 else 0) | (1 << 13 if index == len(bodies) - 1 else 0)
            raw += struct.pack("<iH", 6 + len(body), flags) + body
        messages.append(bodies)
    return messages, raw


@pytest.mark.parametrize("seed", range(12))
def test_messages_come_out_whole_however_the_bytes_arrive(seed):
    rng = random.Random(seed)
    expected, raw = frames(rng, 20)
    found = []
    receiver, start = connection.Receiver(lambda frames: found.append([bytes(body) for body, _ in frames])), 0
    while start < len(raw):
        room = receiver.room()
        assert len(room) > 0
        count = min(len(room), len(raw) - start, rng.choice((1, 7, 1000, 65536, 1 << 20)))
        room[:count] = raw[start : start + count]
        receiver.received(count)
        start += count
    assert found == expected


def test_bytes_that_are_no_frames_are_an_error_and_no_endless_loop():
    receiver = connection.Receiver(lambda inbound: pytest.fail("there is no message"))
    receiver.room()[:6] = struct.pack("<iH", 3, 0)
    with pytest.raises(OSError, match="not speaking"):
        receiver.received(6)


class Service:
    """The client's, as far as connections see it."""

    def __init__(self):
        self._pending, self.taken = {}, []

    def take(self, inbound):
        self.taken.append(inbound)


def answer(number, kind=1, backups=0, flags=0xC000):
    return [(struct.pack("<iqB", kind, number, backups), flags), (b"body", 1 << 13)]


@pytest.fixture
def taking():
    """A connection that takes messages for a service."""
    made, service = connection._Connection.__new__(connection._Connection), Service()
    made._pending, made._builder = service._pending, ClientMessageBuilder(service.take)
    return made, service


def test_an_answer_goes_straight_to_who_asked_and_all_else_to_the_client(taking):
    made, service = taking
    reply = Reply("here")
    service._pending[7] = message.Call(None, reply, 0, lambda frames: bytes(frames[1][0]))
    for frames in (answer(7, kind=0), answer(8), answer(7, backups=1), answer(7, flags=0xC000 | 1 << 9)):
        made._take(frames)
        assert connection.frames_of(service.taken.pop()) == frames
        assert not reply.done()
    made._take(answer(7))
    assert reply.wait(0) == b"body"
    assert not service.taken
    assert not service._pending


def test_an_answer_that_cannot_be_read_is_the_askers_error(taking):
    made, service = taking
    reply = Reply("here")
    service._pending[7] = message.Call(None, reply, 0, lambda frames: frames[5])
    made._take(answer(7))
    with pytest.raises(DisturbedError, match="IndexError"):
        reply.wait(0)


def test_the_reactor_watches_sockets_as_long_as_they_are_there():
    events = []

    class Socket:
        accepting = False

        def __init__(self, name):
            self.name, self.wants_to_write = name, False

        def readable(self):
            return True

        def writable(self):
            return self.wants_to_write

        def handle_read_event(self):
            events.append((self.name, "read"))

        def handle_write_event(self):
            events.append((self.name, "write"))

    class Loop:
        def __init__(self):
            self._map = {}

    ours, theirs = socket.socketpair()
    loop, first = Loop(), Socket("first")
    loop._map[ours.fileno()] = first
    connection._run_loop(loop)
    assert events == []
    theirs.send(b"x")
    connection._run_loop(loop)
    first.wants_to_write = True
    connection._run_loop(loop)
    assert events == [("first", "read"), ("first", "read"), ("first", "write")]
    loop._map[ours.fileno()] = Socket("second, with the number of the first")
    events.clear()
    connection._run_loop(loop)
    assert events == [("second, with the number of the first", "read")]
    loop._map.clear()
    connection._run_loop(loop)
    assert len(events) == 1
    ours.close()
    theirs.close()


# -- what goes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 4, 9, 10])
def test_what_was_not_sent_remains_in_order(count):
    pieces = [b"abc", b"", bytearray(b"d"), memoryview(b"efghij")]
    assert b"".join(connection.rest_of(pieces, count)) == b"abcdefghij"[count:]


class Reactor:
    """Counts how often it was woken."""

    def __init__(self):
        self.bytes_sent, self.woken = 0, threading.Semaphore(0)

    def wake_loop(self):
        self.woken.release()


@pytest.fixture
def pair():
    """A connection that is connected to a socket, and that socket."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(10)
    made = connection._Connection.__new__(connection._Connection)
    made._sending, made._write_queue, made._reactor = threading.RLock(), connection.deque(), Reactor()
    made.socket, made.live, made.sent_protocol_bytes, made.last_write_time = ours, True, True, 0
    yield made, theirs
    ours.close()
    theirs.close()


def receive(theirs, nbytes):
    parts = b""
    while len(parts) < nbytes:
        parts += theirs.recv(1 << 20)
    return parts


def test_a_small_message_is_sent_at_once_and_a_large_one_by_the_reactor(pair):
    made, theirs = pair
    made._write(b"small")
    assert receive(theirs, 5) == b"small"
    assert not made._reactor.woken.acquire(blocking=False)
    made._write((b"head", bytes(50_000)))
    assert made._reactor.woken.acquire(blocking=False)
    made._write(b"behind it")
    assert receive(theirs, 50_013) == b"head" + bytes(50_000) + b"behind it"
    assert not made._write_queue


def test_gathered_messages_go_out_together_at_the_end(pair):
    made, theirs = pair
    with connection.gathered(lambda: [made]):
        for _ in range(5):
            made._write(b"ab")
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
    assert theirs.recv(100) == b"ab" * 5
    made._write(b"alone")
    assert theirs.recv(100) == b"alone"


def test_what_the_socket_does_not_take_is_sent_later_in_order(pair):
    made, theirs = pair
    messages = [os.urandom(10_000) for _ in range(200)]
    for raw in messages:
        made._write(raw)
    assert made._reactor.woken.acquire(blocking=False)
    assert made._write_queue
    got = b""
    while made._write_queue:
        got += theirs.recv(1 << 16)
        made.handle_write()
    assert receive(theirs, 2_000_000 - len(got)) == b"".join(messages)[len(got) :]


def test_messages_of_many_threads_stay_whole(pair):
    made, theirs = pair
    done = threading.Event()

    def write(mark):
        for _ in range(300):
            made._write(mark * 100)

    def pump():  # what the reactor does when the socket is full
        while not done.is_set() or made._write_queue:
            made.handle_write()

    threads = [threading.Thread(target=write, args=(bytes([65 + i]),)) for i in range(4)]
    pumping = threading.Thread(target=pump)
    for thread in (pumping, *threads):
        thread.start()
    got = receive(theirs, 4 * 300 * 100)
    done.set()
    for thread in (pumping, *threads):
        thread.join(10)
    pieces = [got[start : start + 100] for start in range(0, len(got), 100)]
    assert all(len(set(piece)) == 1 for piece in pieces)
    assert [sum(piece[0] == 65 + i for piece in pieces) for i in range(4)] == [300] * 4


def test_a_broken_connection_is_left_for_the_reactor_to_close(pair):
    made, theirs = pair
    closed = []
    made.close_connection = lambda reason, cause: closed.append(cause)
    theirs.close()
    made._write(b"lost")
    assert made._reactor.woken.acquire(blocking=False)
    assert not closed
    made.handle_write()
    assert isinstance(closed[0], OSError)


def test_a_wake_up_while_the_reactor_drains_its_pipe_is_not_lost():
    """The client's own order leaves its waker awake with an empty pipe: every later request is then 10 ms late."""

    class Waker:
        awake = True

    waker = Waker()

    def read(waker):
        waker.awake = True  # another thread wakes the reactor between the two steps
        return b"x"

    connection._drain_then_sleep(read)(waker)
    assert not waker.awake
    for kind in (connection.reactor._PipedWaker, connection.reactor._SocketedWaker):
        assert kind.handle_read.__qualname__.startswith("_drain_then_sleep")
