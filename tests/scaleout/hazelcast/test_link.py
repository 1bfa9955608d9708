"""Requests and their replies, without a member."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hazelcast.errors import OperationTimeoutError, SplitBrainProtectionError, TargetDisconnectedError
from hazelcast.future import Future, ImmediateFuture

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout.hazelcast.link import DisturbedError, HazelcastLink, Reply

NOBODY = "127.0.0.1:1"


@pytest.fixture
def link():
    """A link to an address where nobody listens."""
    opened = HazelcastLink([NOBODY], "c", "dl4j.run")
    yield opened
    opened.close()


def test_requests_without_a_connection_fail_at_once_and_are_not_repeated(link):
    requests = [
        link.get("a"),
        link.set("a", b"", b"x"),
        link.put_if_absent("a", b"", b"x"),
        link.replace_if_same("a", b"", b"", b"x"),
        link.delete("a"),
        link.keys(),
        link.destroy(),
        link.listen("topic", lambda: None),
    ]
    link.publish("topic")
    for reply in requests:
        assert reply.done()
        with pytest.raises(DisturbedError):
            reply.wait(0)
    assert not link.connected()
    assert link.running()


def test_a_request_that_fails_is_not_repeated_by_the_client(link):
    """The package's own way: an ``OSError`` is retried for two minutes."""
    client, sent = link._client, []
    service = client._invocation_service
    service._do_invoke = lambda invocation: (
        sent.append(invocation),
        service._notify_error(invocation, OSError("lost")),
    )
    reply = link._ask(lambda: client.remove_map("m"))
    with pytest.raises(DisturbedError, match="lost") as caught:
        reply.wait(0)
    assert isinstance(caught.value.__cause__, OperationTimeoutError)
    assert len(sent) == 1


def test_a_link_that_is_closed_says_so(link):
    link.close()
    with pytest.raises(TrackerError, match="was shut down") as caught:
        link.keys().wait(1)
    assert not isinstance(caught.value, DisturbedError)


def test_an_answer_that_cannot_be_read_is_the_askers_error(link):
    reply = link._ask(lambda: ImmediateFuture([]), lambda answer: answer[5])
    with pytest.raises(DisturbedError, match="IndexError"):
        reply.wait(0)


def test_a_members_error_is_told_on_one_line_without_its_java_stack(link):
    frames = "".join(f"\tat com.hazelcast.spi.Operation{i}.run(Operation{i}.java:{i})\n" for i in range(50))
    cause = TargetDisconnectedError(f"Exception from server: com.hazelcast.Gone: a member left\n {frames}")
    error = SplitBrainProtectionError(f"Exception from server: com.hazelcast.Split: too few members\n {frames}", cause)
    failed = link._ask(Future)
    failed.set_exception(error)
    with pytest.raises(DisturbedError) as caught:
        failed.wait(0)
    assert str(caught.value) == (
        "SplitBrainProtectionError: Exception from server: com.hazelcast.Split: too few members; "
        "Caused by: Exception from server: com.hazelcast.Gone: a member left"
    )
    assert caught.value.__cause__ is error


def test_an_answer_that_never_comes_ends_at_the_deadline(link):
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(link._ask(Future).wait, 0.05)
        assert isinstance(error := waits.exception(60), TrackerError)
    assert "did not answer in time" in str(error)


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
        waiter.join(60)
        assert not waiter.is_alive()
    assert reply.wait(0) == b"abc"
    assert reply.nbytes() == 3
    failed = Reply("here")
    failed.set_exception(OSError("broken"))
    with pytest.raises(DisturbedError, match="OSError: broken"):
        failed.wait(0)
