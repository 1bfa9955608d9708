"""What failures of jobs say: of the job, or of the worker. Worker names are ``<process>-<index>``."""

from __future__ import annotations

import pytest

from dl4jlegacy.scaleout.protocol.failures import Suspects, add_failure, is_hopeless, messages
from dl4jlegacy.scaleout.state.records import Failure, JobRecord


def failures(*workers: str) -> tuple[Failure, ...]:
    return tuple(Failure("DL4J-JOB", f"no luck on {worker}", worker) for worker in workers)


def done(worker: str, *failed: str) -> JobRecord:
    return JobRecord(state="done", model="m", worker=worker, failures=failures(*failed))


@pytest.mark.parametrize(
    ("failed", "present", "hopeless"),
    [
        ("a-0 a-0", "a-0", False),  # a worker alone has three attempts
        ("a-0 a-0 a-0", "a-0", True),
        ("a-0 a-0 a-0 a-0", "a-0 b-0", False),  # of two workers, each must try
        ("a-0 b-0", "a-0 b-0", False),  # and three times in all
        ("a-0 a-0 b-0", "a-0 b-0", True),
        ("a-0 a-0 a-0", "b-0", False),  # who failed has left
        ("a-0 a-0 a-0", "", False),  # everybody has: somebody may come
        ("a-0 b-0 c-0", "a-0 b-0 c-0 d-0 e-0", True),  # of many workers, three are enough
        ("a-0 a-1 a-2", "a-0 a-1 a-2 b-0", False),  # but not three of one process, if there is another
        ("a-0 a-1 b-0", "a-0 a-1 a-2 b-0 c-0", True),
        ("a-0 a-1 a-2", "a-0 a-1 a-2 a-3 a-4", True),  # which is not so where all are in one
        ("a-0 a-1 a-2", "", False),
    ],
)
def test_a_job_is_hopeless_when_it_failed_on_every_worker_or_on_enough_different_ones(
    failed: str, present: str, hopeless: bool
) -> None:
    assert is_hopeless(failures(*failed.split()), present.split(), 3) is hopeless


def test_a_worker_is_suspected_of_jobs_that_others_did_until_it_does_one_itself() -> None:
    suspects = Suspects(3)
    assert suspects.add(0, done("b-0", "a-0", "a-0", "a-0")) == []  # one job, however often it failed
    assert suspects.add(1, done("b-0", "a-0")) == []
    assert suspects.add(1, done("c-0", "a-0")) == []  # the same slot once more, because its update was lost
    assert suspects.add(2, done("a-0", "b-0")) == []  # it can do something: all is forgotten
    assert suspects.add(3, done("b-0", "a-0")) == []
    assert suspects.add(4, done("b-0", "a-0")) == []
    assert suspects.add(5, done("b-0", "a-0")) == ["a-0"]
    assert suspects.add(6, done("b-0")) == ["a-0"]  # until it is set aside
    assert [failure.worker for failure in suspects.pop("a-0")] == ["a-0"] * 3
    assert suspects.add(7, done("b-0")) == []


def test_a_job_that_fails_everywhere_makes_nobody_suspect() -> None:
    suspects = Suspects(1)
    assert suspects.add(0, done("a-0", "a-0", "a-0")) == []


def test_of_many_failures_the_last_keeps_its_traceback_and_messages_are_told_once() -> None:
    kept: tuple[Failure, ...] = ()
    for number in range(6):
        kept = add_failure(kept, Failure("DL4J-JOB", f"reason {number // 2}", "a-0", f"trace {number}"))
    assert [failure.traceback for failure in kept] == [""] * 5 + ["trace 5"]
    assert messages(kept) == "reason 0; reason 1; reason 2"
