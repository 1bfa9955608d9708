"""For how long a process waits for a tracker that is away: once for all its threads, and it says so."""

from __future__ import annotations

import logging
import threading

import pytest

from dl4jlegacy.errors import TrackerLostError
from dl4jlegacy.scaleout.hazelcast import store as hazelcast_store
from dl4jlegacy.scaleout.hazelcast.link import Reply
from dl4jlegacy.scaleout.hazelcast.retry_deadline import LAST_SECONDS, RetryDeadline


class Time:
    """A clock that a test sets."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def patience(time: Time) -> RetryDeadline:
    return RetryDeadline("here:1", 60.0, time)


def test_all_requests_wait_together_from_the_first_that_is_not_answered(patience: RetryDeadline, time: Time) -> None:
    first = patience.begin()
    time.seconds = 10.0
    patience.unanswered(first, "lost")
    second = patience.begin()
    assert patience.left(first) == patience.left(second) == 50.0
    time.seconds = 60.0
    assert patience.left(first) <= 0
    assert patience.left(patience.begin()) == LAST_SECONDS  # a look whether it is back


def test_an_answer_ends_the_wait_of_all_but_the_request_that_waits_itself(patience: RetryDeadline, time: Time) -> None:
    begun = patience.begin()
    time.seconds = 50.0
    patience.unanswered(begun, "lost")
    patience.answered(patience.begin())
    assert patience.left(patience.begin()) == 60.0
    assert patience.left(begun) == 10.0
    assert patience.waited() == 50.0


def test_no_second_counts_twice_when_one_thread_is_answered_and_another_still_waits(
    patience: RetryDeadline, time: Time
) -> None:
    begun = patience.begin()
    for time.seconds, waited in ((40.0, 40.0), (41.0, 41.0), (45.0, 45.0)):
        patience.unanswered(begun, "lost")  # the same request, which another thread's answers do not help
        assert patience.waited() == waited
        patience.answered(patience.begin())
        assert patience.waited() == waited
    time.seconds = 60.0
    assert patience.waited() == 45.0
    patience.unanswered(patience.begin(), "lost")
    time.seconds = 62.0
    assert patience.waited() == 47.0


def test_it_is_said_once_that_the_process_waits_and_that_it_is_over(
    patience: RetryDeadline, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    begun = patience.begin()
    for time.seconds in (0.5, 2.0, 4.0, 6.0):
        patience.unanswered(begun, "there is no connection")
    time.seconds = 9.0
    patience.answered(begun)
    patience.answered(patience.begin())
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    waits, answers = (record.getMessage() for record in caplog.records)
    assert "at here:1 does not answer (there is no connection); this process waits for it, up to 56 s more" in waits
    assert "at here:1 answers again, after 9 s" in answers


def test_of_one_member_that_is_away_it_is_said_once_while_the_others_answer(
    patience: RetryDeadline, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = 1.0, 2.0
    for time.seconds in (2.0, 4.0, 6.0, 8.0):
        for begun in (first, second):
            patience.unanswered(begun, "it hangs")
            patience.answered(patience.begin())
    assert patience.waited() == 7.0
    time.seconds = 9.0
    patience.answered(first)
    assert [record.getMessage().partition(" does not answer")[0] for record in caplog.records] == [
        "the state tracker at here:1"
    ]
    time.seconds = 11.0
    patience.answered(second)
    assert caplog.records[1].getMessage().endswith("answers again, after 10 s")
    caplog.clear()
    patience.unanswered(11.0, "it hangs")
    patience.forget(11.0)  # given up by whoever asked
    time.seconds = 15.0
    patience.unanswered(11.5, "it hangs")
    patience.forget(11.5)
    patience.answered(patience.begin())
    assert [record.getMessage().rpartition(", ")[2] for record in caplog.records] == ["up to 56 s more", "after 4 s"]


def test_a_member_that_is_replaced_soon_is_not_worth_a_word(
    patience: RetryDeadline, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    begun = patience.begin()
    patience.unanswered(begun, "lost")
    time.seconds = 2.0
    patience.answered(begun)
    assert not caplog.records and patience.waited() == 2.0


class AwayLink:
    """A link that comes and goes; requests fail at once, or hang, while it is away."""

    def __init__(self, addresses: list[str], cluster_name: str, name: str) -> None:
        self.where, self.away = ",".join(addresses), ""

    def connected(self) -> bool:
        return self.away != "fails"

    def running(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""

    def keys(self) -> Reply[list[str]]:
        return self._reply([])

    def get(self, key: str) -> Reply[None]:
        return self._reply(None)

    def _reply(self, value: object) -> Reply:
        reply: Reply = Reply(self.where)
        if self.away == "fails":
            reply.set_exception(OSError("gone"))
        elif not self.away:
            reply.set_result(value)
        return reply


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> hazelcast_store.HazelcastStateTracker:
    monkeypatch.setattr(hazelcast_store, "HazelcastLink", AwayLink)
    given = {"cluster_name": "c", "run": "r", "secret": None, "patience_seconds": 3600.0}
    return hazelcast_store.HazelcastStateTracker("here:1", **given)


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_request_goes_on_where_the_tracker_is_back(tracker: hazelcast_store.HazelcastStateTracker, how: str) -> None:
    link, patience = tracker.store._link, tracker.store.patience
    link.away, unanswered = how, threading.Event()
    patience.unanswered = lambda begun, cause, note=patience.unanswered: (note(begun, cause), unanswered.set())
    asked: list[object] = []
    waits = threading.Thread(target=lambda: asked.append(tracker.store.get("a")), daemon=True)
    pending = link.get

    def remember(key: str) -> Reply:
        replies.append(pending(key))
        return replies[-1]

    replies: list[Reply] = []
    link.get = remember
    waits.start()
    assert unanswered.wait(60)
    link.away = ""
    replies[-1].set_result(None)  # of a member that goes on after it was frozen
    waits.join(60)
    assert asked == [None]
    assert 0 < tracker.waited_seconds() < 3600


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_process_that_leaves_waits_no_longer_than_for_a_new_tracker(
    tracker: hazelcast_store.HazelcastStateTracker, how: str
) -> None:
    tracker.store._link.away = how
    clock = Time()
    tracker.store.patience._clock = clock
    begun = tracker.store.patience.begin()
    clock.seconds = 100.0
    tracker.store.patience.unanswered(begun, "lost")
    tracker.leave()
    assert tracker.store.patience.left(begun) == hazelcast_store.DEADLINE_SECONDS - 100.0
    tracker.store.patience.seconds = 0.0
    with pytest.raises(TrackerLostError, match="did not read 'a' within 0 s"):
        tracker.store.get("a")


def test_a_request_that_was_given_up_does_not_keep_it_from_being_said_that_the_tracker_is_back(
    tracker: hazelcast_store.HazelcastStateTracker, caplog: pytest.LogCaptureFixture
) -> None:
    tracker.store._link.away, tracker.store.patience.seconds = "hangs", 0.2
    with pytest.raises(TrackerLostError):
        tracker.store.get("a")
    tracker.store._link.away = ""
    assert tracker.store.get("a") is None
    told = [record.getMessage() for record in caplog.records]
    assert ["does not answer" in one for one in told] == [True, False] and "answers again" in told[1]


def test_threads_that_wait_are_let_go_when_the_process_leaves(tracker: hazelcast_store.HazelcastStateTracker) -> None:
    tracker.store._link.away, waits = "hangs", threading.Event()
    tracker.store.patience.unanswered = lambda begun, cause: waits.set()
    tracker._least, caught = 0.0, []

    def ask() -> None:
        try:
            tracker.store.get("a")
        except TrackerLostError as exc:
            caught.append(exc)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert waits.wait(60)
    tracker.leave()
    thread.join(60)
    assert caught
