"""Which processes count as gone: what their connections and their heartbeats say together. No clock but the test's."""

from __future__ import annotations

import pytest

from dl4jlegacy.scaleout.links.liveness.failure_detector import (
    DEAD_SECONDS,
    Change,
    FailureDetector,
    HeartbeatMonitor,
    process_of,
)

A, B = "host-a-1-0f", "host-b-2-1e"


def beats(at: float, *processes: str, workers: int = 2) -> dict[str, float]:
    return {f"{process}-{index}": at for process in processes for index in range(workers)}


def test_a_worker_belongs_to_the_process_that_it_is_named_after():
    assert process_of("my-host-12-0f3e-11") == "my-host-12-0f3e"


def test_a_heartbeat_that_does_not_change_is_silence_and_its_value_means_nothing_else():
    monitor = HeartbeatMonitor(3.0, gap_seconds=10)
    assert monitor.update({"a": 1e9, "b": -5.0}, 0.0) == {}
    assert monitor.update({"a": 1e9, "b": -6.0}, 2.0) == {}
    assert monitor.update({"a": 1e9, "b": -7.0}, 4.0) == {"a": 4.0}
    assert monitor.update({"a": 1e9 - 100, "b": -7.0}, 6.0) == {}  # a clock that was set back is a change too
    assert monitor.update({"b": -7.0}, 8.0) == {"b": 4.0}
    assert monitor.update({"a": 1e9 - 100, "b": -7.0}, 9.0) == {"b": 5.0}  # forgotten, and new again


def test_after_a_gap_of_its_own_everybody_begins_anew():
    monitor = HeartbeatMonitor(3.0, gap_seconds=2.0)
    monitor.update({"a": 1.0}, 0.0)
    assert monitor.update({"a": 1.0}, 60.0) == {}  # it was the reader that stood still, or the tracker that was away
    assert monitor.update({"a": 1.0}, 61.5) == {}
    assert monitor.update({"a": 1.0}, 63.5) == {"a": 3.5}


def test_a_process_is_gone_when_its_connection_breaks_and_back_when_it_is_there_again():
    detector = FailureDetector()
    assert detector.update_connection(A, "alive", 0.0) == []
    assert detector.update_connection(A, "closed", 1.0) == [Change(A, True, "closed")]
    assert detector.is_gone(f"{A}-0")
    assert detector.is_gone(f"{A}-17")
    assert not detector.is_gone(f"{B}-0")
    assert detector.gone() == [A]
    assert detector.update_connection(A, "alive", 2.0) == [Change(A, False, "link")]
    assert not detector.is_gone(f"{A}-0")
    assert detector.update_connection(A, "silent", 5.0, 2.0) == [Change(A, True, "silent", 2.0)]
    assert detector.update_connection(A, "closed", 6.0) == []  # gone is gone
    assert detector.is_gone(f"{A}-0")


def test_one_heartbeat_after_the_connection_broke_may_be_an_old_one_two_are_a_sign_of_life():
    detector = FailureDetector()
    detector.update_heartbeats(beats(1.0, A), 0.0)
    detector.update_connection(A, "closed", 0.5)
    assert detector.update_heartbeats(beats(2.0, A), 1.0) == []
    assert detector.is_gone(f"{A}-0")
    assert detector.update_heartbeats(beats(2.0, A), 2.0) == []
    assert detector.update_heartbeats(beats(3.0, A), 3.0) == [Change(A, False, "heartbeat")]  # the port is out of reach
    assert not detector.is_gone(f"{A}-0")
    for now in (4.0, 5.0, 6.0, 7.0, 8.0):
        assert detector.update_heartbeats(beats(3.0, A), now) == []
    assert detector.update_heartbeats(beats(3.0, A), 8.5) == [Change(A, True, "heartbeat", 5.5)]


def test_a_dead_process_with_many_workers_is_not_taken_for_a_live_one():
    detector = FailureDetector()
    detector.update_connection(A, "alive", 0.0)
    detector.update_heartbeats(beats(1.0, A, workers=8), 0.1)
    detector.update_connection(A, "closed", 0.5)
    for now in (1.0, 2.0, 3.0, 4.0, 60.0):  # the last heartbeats of all eight, written before it died
        detector.update_heartbeats(beats(2.0, A, workers=8), now)
        assert detector.is_gone(f"{A}-3")


def test_a_process_without_a_connection_is_watched_by_its_heartbeats():
    detector = FailureDetector()
    assert detector.update_heartbeats(beats(1.0, A, B), 0.0) == []
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        assert detector.update_heartbeats(beats(1.0, A) | beats(now, B), now) == []
    assert detector.update_heartbeats(beats(1.0, A) | beats(5.5, B), 5.5) == [Change(A, True, "heartbeat", 5.5)]
    assert (detector.is_gone(f"{A}-0"), detector.is_gone(f"{B}-0")) == (True, False)
    assert detector.update_heartbeats(beats(7.0, A, B), 6.0) == [Change(A, False, "heartbeat")]


def test_a_live_connection_outweighs_heartbeats_that_do_not_get_through():
    detector = FailureDetector()
    detector.update_connection(A, "alive", 0.0)
    for now in range(20):
        assert detector.update_heartbeats(beats(1.0, A), float(now)) == []
    assert not detector.is_gone(f"{A}-0")


def test_who_left_and_has_no_record_any_more_is_forgotten_in_the_end():
    detector = FailureDetector()
    detector.update_connection(A, "alive", 0.0)
    detector.update_heartbeats(beats(1.0, A, B), 0.0)
    detector.update_connection(A, "left", 1.0)
    detector.update_heartbeats({}, 2.0)
    assert detector.gone() == [A]
    detector.update_heartbeats({}, 4000.0)
    assert detector.gone() == []
    assert not detector._known


@pytest.mark.parametrize("state", ["silent", "left", "alive"])
def test_a_process_whose_connection_was_not_closed_has_not_died_as_far_as_anybody_knows(state):
    detector = FailureDetector()
    detector.update_connection("p", "alive", 0.0)
    detector.update_connection("p", state, 1.0)
    assert not detector.death_of("p-0", 1e6) and not detector.death_of("stranger-0", 1e6)


def test_a_process_whose_connection_was_closed_has_died_if_it_does_not_come_back_nor_writes_heartbeats():
    detector = FailureDetector()
    for process in ("dead", "cut-off", "back"):
        detector.update_connection(process, "alive", 0.0)
        detector.update_connection(process, "closed", 1.0)
    detector.update_connection("back", "alive", 1.5)
    for beat in (1.0, 2.0, 3.0):
        detector.update_heartbeats({"cut-off-0": beat}, beat)
    assert not detector.death_of("dead-0", 1.0 + DEAD_SECONDS / 2)
    assert detector.death_of("dead-0", 1.0 + DEAD_SECONDS)
    assert not detector.death_of("cut-off-0", 1e6) and not detector.death_of("back-0", 1e6)
