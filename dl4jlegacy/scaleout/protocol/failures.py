"""Decides whether failures are the job's fault, so that the run ends, or a worker's, so that it is set aside."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dl4jlegacy.scaleout.links.liveness.failure_detector import process_of
from dl4jlegacy.scaleout.state.records import Failure, JobRecord

__all__ = ["Suspects", "add_failure", "is_hopeless", "messages"]

_MOST_MESSAGES = 3


def add_failure(failures: Sequence[Failure], failure: Failure) -> tuple[Failure, ...]:
    """Return the failures of a job with a new one added; only the new one keeps its traceback."""
    return (*(Failure(old.code, old.message, old.worker) for old in failures), failure)


def messages(failures: Sequence[Failure]) -> str:
    """Return the last few messages of failures as one text, each message once."""
    return "; ".join(list(dict.fromkeys(failure.message for failure in failures))[-_MOST_MESSAGES:])


def is_hopeless(failures: Sequence[Failure], present: Collection[str], attempts: int) -> bool:
    """Return whether a job fails on any worker: it failed on all present workers, or on enough different ones.

    Args:
        failures: those of the job's attempts.
        present: the names of the workers that could do the job; if empty, another worker may still come.
        attempts: number of attempts if all workers fail, and number of different workers that is enough. It is not
            enough if all of them belong to one process and another one is present: then the machine may be at fault.
    """
    failed = {failure.worker for failure in failures}
    untried = set(present) - failed
    if not present or not untried:
        return bool(present) and len(failures) >= attempts
    processes = {process_of(worker) for worker in failed}
    return len(failed) >= attempts and (len(processes) > 1 or {process_of(worker) for worker in untried} <= processes)


class Suspects:
    """The workers whose failures are probably their own fault: other workers did the same jobs.

    A worker that completes a job in between is no longer suspected.

    Args:
        attempts: number of failed jobs after which a worker counts as sick.
    """

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._failures: dict[str, dict[int, Failure]] = {}
        self._refused: set[str] = set()

    def add(self, number: int, record: JobRecord, *, is_checked: bool = True) -> list[str]:
        """Note that a slot's job is done, and which workers had failed on it; return the sick workers.

        If its update is going to be checked later, pass ``is_checked=False`` and call ``clear`` after the check. The
        same holds for a worker whose update was refused.
        """
        if is_checked and record.worker not in self._refused:
            self.clear(record.worker)
        for failure in record.failures:
            if failure.worker != record.worker:
                self._failures.setdefault(failure.worker, {})[number] = failure
        return [worker for worker, failed in self._failures.items() if len(failed) >= self._attempts]

    def clear(self, worker: str) -> None:
        """Note that a worker has done a job correctly."""
        self._refused.discard(worker)
        self._failures.pop(worker, None)

    def refuse(self, worker: str) -> None:
        """Note that an update of a worker did not fit the model."""
        self._refused.add(worker)

    def pop(self, worker: str) -> tuple[Failure, ...]:
        """Return and forget the failures of a worker that is set aside."""
        return tuple(self._failures.pop(worker, {}).values())
