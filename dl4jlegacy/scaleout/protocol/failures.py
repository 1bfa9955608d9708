"""What failures of jobs say: of the job, so that the run ends, or of the worker, so that it is set aside."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dl4jlegacy.scaleout.links.liveness.failure_detector import process_of
from dl4jlegacy.scaleout.state.records import Failure, JobRecord

__all__ = ["Suspects", "add_failure", "is_hopeless", "messages"]

_MOST_MESSAGES = 3


def add_failure(failures: Sequence[Failure], failure: Failure) -> tuple[Failure, ...]:
    """Return the failures of a job with a new one; only that keeps its traceback."""
    return (*(Failure(old.code, old.message, old.worker) for old in failures), failure)


def messages(failures: Sequence[Failure]) -> str:
    """Return what failures say, each message once, and only a few of them."""
    return "; ".join(list(dict.fromkeys(failure.message for failure in failures))[-_MOST_MESSAGES:])


def is_hopeless(failures: Sequence[Failure], present: Collection[str], attempts: int) -> bool:
    """Return whether a job will fail on whatever worker: it has on every one there is, or on enough of them.

    Args:
        failures: of the job's attempts.
        present: the names of the workers that could do it; if there is none, somebody may still come.
        attempts: so many attempts are made if all workers fail, and so many different workers are enough. They are not
            if all are of one process and there is another: then it may be the machine.
    """
    failed = {failure.worker for failure in failures}
    untried = set(present) - failed
    if not present or not untried:
        return bool(present) and len(failures) >= attempts
    processes = {process_of(worker) for worker in failed}
    return len(failed) >= attempts and (len(processes) > 1 or {process_of(worker) for worker in untried} <= processes)


class Suspects:
    """The workers whose failures are probably their own: others did the same jobs, and they did none in between.

    Args:
        attempts: so many jobs make a worker a sick one.
    """

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._failures: dict[str, dict[int, Failure]] = {}
        self._refused: set[str] = set()

    def add(self, number: int, record: JobRecord, *, is_checked: bool = True) -> list[str]:
        """Take note that the job of a slot is done, and of who had failed on it; return the sick workers.

        If its update will yet be checked, and is waited for, ``clear`` is to be called then; so it is with a worker of
        which an update was refused.
        """
        if is_checked and record.worker not in self._refused:
            self.clear(record.worker)
        for failure in record.failures:
            if failure.worker != record.worker:
                self._failures.setdefault(failure.worker, {})[number] = failure
        return [worker for worker, failed in self._failures.items() if len(failed) >= self._attempts]

    def clear(self, worker: str) -> None:
        """Take note that a worker has done a job well."""
        self._refused.discard(worker)
        self._failures.pop(worker, None)

    def refuse(self, worker: str) -> None:
        """Take note that an update of a worker fits no model."""
        self._refused.add(worker)

    def pop(self, worker: str) -> tuple[Failure, ...]:
        """Return the failures of a worker that is set aside, and forget them."""
        return tuple(self._failures.pop(worker, {}).values())
