"""What a standby makes of what it finds when its master is gone: no server is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dl4jlegacy.cluster import leadership
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.protocol import write_frame
from dl4jlegacy.scaleout.records import HEAD, Head, encode_record
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, drive

CONF = Conf(run="r")


@pytest.fixture
def tracker() -> InMemoryStateTracker:
    return InMemoryStateTracker()


def takes_over(tracker: InMemoryStateTracker, monkeypatch: pytest.MonkeyPatch, head: Head, lost: bytes | None) -> Any:
    """Return what a standby finds that sees the head, until it is lost, or written over, and then is elected."""
    tracker.store.put(HEAD, encode_record(head))
    answers = iter([False, True])

    def wait(seconds: float) -> bool:
        if is_elected := next(answers):
            tracker.store.delete(HEAD)
            if lost is not None:
                tracker.store.put(HEAD, lost)
        return is_elected

    election = SimpleNamespace(wait=wait)
    address = SimpleNamespace(split=lambda: ("here", 1), id="master")
    candidate: Any = SimpleNamespace(election=election, address=address, session=None)
    registered = SimpleNamespace(find=lambda: CONF)
    monkeypatch.setattr(leadership, "ZookeeperConfigurationRetriever", lambda *given, **more: registered)
    hazelcast: Any = tracker
    return leadership._outlives_master(CONF, candidate, hazelcast, lambda: None)


def head(tracker: InMemoryStateTracker, status: Any) -> Head:
    model = drive(write_frame(tracker.store, "model/7/x", b"parameters"))
    return Head(run="r", version=7, round=3, model=model, status=status)


@pytest.mark.parametrize("lost", [None, b"junk"])
def test_the_head_of_a_run_that_is_done_is_put_back_when_it_is_lost_with_its_master(
    tracker: InMemoryStateTracker, monkeypatch: pytest.MonkeyPatch, lost: bytes | None, caplog
) -> None:
    """Or its last rounds would have to be done again, by workers that have left."""
    done = head(tracker, "done")
    assert takes_over(tracker, monkeypatch, done, lost) == 7
    assert tracker.head() == done
    assert "the head of run r, which is done, was lost with its master; it is there again" in caplog.text


def test_a_head_is_not_put_back_whose_model_is_lost_too_or_that_others_may_follow(
    tracker: InMemoryStateTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert takes_over(tracker, monkeypatch, head(tracker, "running"), None) == 7
    assert tracker.head() is None
    done = head(tracker, "done")
    for key in tracker.store.keys("model/"):
        tracker.store.delete(key)
    assert takes_over(tracker, monkeypatch, done, None) == 7
    assert tracker.head() is None
