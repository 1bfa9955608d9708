"""The state tracker: what a run knows of itself, in the legacy's words, over any store.

Everything durable about a run is here; actors hold nothing that cannot be rebuilt from it. The step functions of
``protocol`` work on the same store; this class is for those who look at a run or steer it from outside.

Legacy: ``StateTracker`` and ``HazelCastStateTracker`` (some 60 methods, get-then-set, everything polled). A numbered
model version replaces ``addReplicate/needsReplicate/doneReplicating``, job records with leases replace
``recentlyCleared`` and ``enableWorker``.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from dl4jlegacy.errors import DeadlineError, NotAuthorisedError, TrackerError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.records import (
    HEAD,
    Failure,
    Head,
    JobRecord,
    Keys,
    Status,
    WorkerRecord,
    decode_record,
    encode_record,
)
from dl4jlegacy.scaleout.store import Buffer, Clock, MemoryStore, Store, SystemClock, is_batch_store

__all__ = ["InMemoryStateTracker", "StateTracker", "drive"]

T = TypeVar("T")
logger = logging.getLogger(__name__)


def drive(steps: protocol.Steps[T]) -> T:
    """Run steps that yield no event to their end and return their value."""
    while True:
        try:
            event = next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
        if event is not None:
            raise TrackerError(f"steps that were to run through asked for {event}; drive them with an actor")


class StateTracker:
    """The state of one run. Thread-safe, as its store is.

    What is refused when something is read for the first time is a ``NotAuthorisedError``: this process may have another
    secret. Whoever has read a value of the run knows better: a record that is refused then was damaged, which is told,
    and it counts as missing until the master has mended it.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self._is_one_of_us = False

    # -- workers ------------------------------------------------------------------------------------------------------

    def add_worker(self, worker: WorkerRecord) -> None:
        """Register a worker, or renew its registration: a heartbeat."""
        self.store.put(Keys.worker(worker.id), encode_record(worker))

    def remove_worker(self, worker_id: str) -> None:
        """Forget a worker; a job that it holds is issued again when its lease ends."""
        self.store.delete(Keys.worker(worker_id))

    def workers(self) -> list[WorkerRecord]:
        """Return the registered workers, by id."""
        raws = self._read_many(self.store.keys("worker/"))
        return [decode_record(raw, WorkerRecord) for raw in raws if raw is not None]

    def num_workers(self) -> int:
        """Return how many workers are registered (0 is no error)."""
        return len(self.store.keys("worker/"))

    def heart_beats(self) -> dict[str, float]:
        """Return the clock time of every worker's last heartbeat."""
        return {worker.id: worker.beat for worker in self.workers()}

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def current_jobs(self, plan: Plan) -> dict[tuple[int, int], JobRecord]:
        """Return the records of the head's round by (round, slot)."""
        head = self.head()
        if head is None or head.round >= plan.total_rounds:
            return {}
        addresses = [(head.round, slot) for slot in range(plan.slots(head.round))]
        raws = dict(zip(addresses, self._read_many([Keys.job(*address) for address in addresses]), strict=True))
        return {address: decode_record(raw, JobRecord) for address, raw in raws.items() if raw is not None}

    def job_for(self, worker_id: str, plan: Plan) -> tuple[int, int] | None:
        """Return the (round, slot) that a worker holds a lease on, or None."""
        for address, record in self.current_jobs(plan).items():
            if record.state == "leased" and record.worker == worker_id:
                return address
        return None

    # -- model --------------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """Return the head, or None before the run has begun, and while it is damaged."""
        raw = self._read(HEAD)
        return None if raw is None else decode_record(raw, Head)

    def get_current(self) -> Result | None:
        """Return the current model; None before the run has begun."""
        for _ in range(100):  # the model may be overtaken and swept between the two reads
            head = self.head()
            if head is None:
                return None
            frame = drive(protocol.read_frame(self.store, head.model))
            if frame is not None:
                return Result.decode(frame)
        raise DeadlineError("the current model could not be read in 100 tries; is the store losing data?")

    # -- counters and globals -----------------------------------------------------------------------------------------

    def increment(self, key: str, by: int = 1) -> None:
        """Add to a counter, atomically."""
        drive(protocol.increment(self.store, f"counter/{key}", by))

    def count(self, key: str) -> int:
        """Return a counter; 0 if nobody has added to it."""
        raw = self._read(f"counter/{key}")
        return 0 if raw is None else int(bytes(raw))

    def define(self, key: str, value: Any) -> None:
        """Set a global JSON value."""
        self.store.put(f"global/{key}", msgspec.json.encode(value))

    def define_once(self, key: str, value: Any) -> Any:
        """Set a global JSON value unless there is one; return the one that is there."""
        if self.store.put_if_absent(f"global/{key}", msgspec.json.encode(value)):
            return value
        return self.get(key)

    def get(self, key: str) -> Any:
        """Return a global value; None if it is not defined."""
        raw = self._read(f"global/{key}")
        return None if raw is None else msgspec.json.decode(raw)

    def _read(self, key: str) -> Buffer | None:
        try:
            raw = self.store.get(key)
        except NotAuthorisedError as exc:
            if not self._is_one_of_us:
                raise
            logger.warning("%s; it is taken as missing", exc)
            return None
        self._is_one_of_us = self._is_one_of_us or raw is not None
        return raw

    def _read_many(self, keys: list[str]) -> list[Buffer | None]:
        """Read at once, where the store can and all of it is accepted."""
        if keys and self._is_one_of_us and is_batch_store(self.store):
            with suppress(NotAuthorisedError):
                return list(self.store.get_many(keys))
        return [self._read(key) for key in keys]

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Whether the run has ended, in whatever way."""
        head = self.head()
        return head is not None and head.status != "running"

    def finish(self, status: Status = "stopped", failure: Failure | None = None) -> Head | None:
        """End a running run with ``status``; return the head. Masters and workers see it and leave."""
        while True:
            raw = self.store.get(HEAD)
            if raw is None:
                return None
            head = decode_record(raw, Head)
            if head.status != "running":
                return head
            ended = msgspec.structs.replace(head, status=status, failure=failure)
            if self.store.replace_if_same(HEAD, raw, encode_record(ended)):
                self.store.publish(protocol.HEAD_TOPIC)
                return ended

    def shutdown(self) -> None:
        """Let go of the store; later calls raise ``TrackerClosedError``."""
        self.store.close()


class InMemoryStateTracker(StateTracker):
    """The tracker of a run that lives in one process."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(MemoryStore(), clock or SystemClock())
