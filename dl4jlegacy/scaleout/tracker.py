"""The state tracker: the state of a run, by the legacy's method names, over any store.

All durable state of a run is in the store; actors hold nothing that cannot be rebuilt from it. The step functions of
``protocol`` use the same store. This class is for code that inspects or controls a run from outside.

Legacy: ``StateTracker`` and ``HazelCastStateTracker`` (some 60 methods, get-then-set, everything polled). A numbered
model version replaces ``addReplicate/needsReplicate/doneReplicating``, job records with leases replace
``recentlyCleared`` and ``enableWorker``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec

from dl4jlegacy.errors import DeadlineError, NotAuthorisedError, NotFiniteError, TrackerError, WireError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import (
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
from dl4jlegacy.scaleout.state.store import Buffer, MemoryStore, Store
from dl4jlegacy.system.clock import RUNNING, Clock
from dl4jlegacy.system.strict_json import to_json

__all__ = ["InMemoryStateTracker", "Memory", "StateTracker", "drive"]

T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)
_FOREIGN = object()
"""Stands for a value that no process of the run has written."""


def drive(steps: protocol.Steps[T]) -> T:
    """Run steps that yield no events to their end, and return their value."""
    while True:
        try:
            event = next(steps)
        except StopIteration as stop:
            value: T = stop.value
            return value
        if event is not None:
            raise TrackerError(f"steps without events yielded {event}; drive them with an actor")


def _global(name: str, value: Any) -> tuple[str, bytes]:
    """Return a global's key, and its value as JSON; raises the errors of ``StateTracker.define``."""
    try:
        encoded = to_json(value, separators=(",", ":"), ensure_ascii=False).encode()
        msgspec.json.decode(encoded)
    except NotFiniteError as exc:
        raise NotFiniteError(f"global {name!r} cannot be defined: {exc}") from exc
    except (TypeError, ValueError, RecursionError, msgspec.DecodeError) as exc:
        raise TrackerError(f"global {name!r} cannot be defined: it is no JSON value that can be read: {exc}") from exc
    return _own_key("global", name), encoded


def _shown(value: Any) -> str:
    """Return a value as text for messages: shortened, or only its type if it cannot be shown."""
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"
    return text if len(text) <= 300 else f"{text[:300]}..."


def _own_key(kind: str, name: str) -> str:
    """Return the key of a counter, a global or a worker.

    Raises ``TrackerError`` if readers would take the key for foreign.
    """
    if not Keys.is_of_run(key := f"{kind}/{name}"):
        raise TrackerError(f"{_shown(name)} cannot be the name of a {kind}: give it 1 to 900 printable characters")
    return key


def _own_record(record: R, kind: type[R]) -> bytes:
    """Return the bytes of a record from the user's program; raises ``TrackerError`` if they could not be decoded.

    A struct does not check the types of its fields.
    """
    try:
        encoded = encode_record(record)
        decode_record(encoded, kind)
    except (TypeError, ValueError, OverflowError, RecursionError, WireError) as exc:
        raise TrackerError(f"{_shown(record)} cannot be written, as no process could read it: {exc}") from exc
    return encoded


class Memory(NamedTuple):
    """The memory of a grid: number of members, ``nbytes`` in total, and number of copies of each value."""

    members: int
    nbytes: int
    copies: int


class StateTracker:
    """The state of one run. Thread-safe, like its store.

    If the first value read is refused, this raises ``NotAuthorisedError``: this process may have a different secret.
    After a value was accepted, or if ``is_authorised`` says that the secret is known to be the run's, a refused record
    must be foreign or damaged: it is noted and counts as missing until the master has rewritten it.
    """

    def __init__(self, store: Store, clock: Clock | None = None, *, is_authorised: bool = False) -> None:
        self.store = store
        self.clock = clock or RUNNING
        self._is_authorised = is_authorised

    # -- workers ------------------------------------------------------------------------------------------------------

    def add_worker(self, worker: WorkerRecord) -> None:
        """Register a worker, or renew its registration (a heartbeat).

        Raises:
            TrackerError: the record could not be read by any process: a field has a wrong type, or the id is not a
                valid name.
        """
        encoded = _own_record(worker, WorkerRecord)
        self.store.put(_own_key("worker", worker.id), encoded)

    def remove_worker(self, worker_id: str) -> None:
        """Remove a worker; its job is issued again when the lease expires."""
        self.store.delete(Keys.worker(worker_id))

    def workers(self) -> list[WorkerRecord]:
        """Return the registered workers, by id."""
        keys = [key for key in self.store.keys("worker/") if Keys.is_of_run(key)]
        raws = zip(keys, self._read_many(keys), strict=True)
        records = [protocol.parse_record(self.store, key, raw, WorkerRecord) for key, raw in raws]
        return [record for record in records if record is not None]

    def num_workers(self) -> int:
        """Return the number of registered workers (0 is not an error)."""
        return len(self.store.keys("worker/"))

    def heart_beats(self) -> dict[str, float]:
        """Return the time of day of every worker's last heartbeat, by the clock of its machine."""
        return {worker.id: worker.beat for worker in self.workers()}

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def current_jobs(self, plan: Plan) -> dict[tuple[int, int], JobRecord]:
        """Return the records of the head's round by (round, slot)."""
        head = self.head()
        if head is None or head.round >= plan.total_rounds:
            return {}
        addresses = {Keys.job(head.round, slot): (head.round, slot) for slot in range(plan.slots(head.round))}
        raws = zip(addresses, self._read_many(list(addresses)), strict=True)
        records = {addresses[key]: protocol.parse_record(self.store, key, raw, JobRecord) for key, raw in raws}
        return {address: record for address, record in records.items() if record is not None}

    def job_for(self, worker_id: str, plan: Plan) -> tuple[int, int] | None:
        """Return the (round, slot) that a worker holds a lease on, or None."""
        for address, record in self.current_jobs(plan).items():
            if record.state == "leased" and record.worker == worker_id:
                return address
        return None

    # -- model --------------------------------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """Return the head; None before the run has begun or while the record is damaged."""
        return protocol.parse_record(self.store, HEAD, self._read(HEAD), Head)

    def get_current(self) -> Result | None:
        """Return the newest model that is stored as a whole (see ``Head.logged``); None before the run has begun."""
        for _ in range(100):  # the model may be replaced and deleted between the two reads
            head = self.head()
            if head is None:
                return None
            frame = drive(protocol.read_frame(self.store, head.model))
            if frame is not None:
                return Result.decode(frame)
        raise DeadlineError("the current model could not be read in 100 tries; is the store losing data?")

    # -- counters and globals -----------------------------------------------------------------------------------------

    def increment(self, key: str, by: int = 1) -> None:
        """Add to a counter, atomically; it may fall below 0.

        Raises:
            TrackerError: ``by`` is not an integer, the sum does not fit into 64 bits, or ``key`` is not a valid name.
        """
        try:
            whole = operator.index(by)
        except TypeError:
            raise TrackerError(f"counter {key!r} counts in whole numbers; {_shown(by)} is none") from None
        drive(protocol.increment(self.store, _own_key("counter", key), whole))

    def count(self, key: str) -> int:
        """Return a counter; 0 if it does not exist."""
        return protocol.parse_count(self.store, f"counter/{key}", self._read(f"counter/{key}"))

    def define(self, key: str, value: Any) -> None:
        """Set a global JSON value.

        Raises:
            NotFiniteError: the value contains NaN or infinity, which JSON does not have.
            TrackerError: it is not a JSON value, or ``key`` is not a valid name.
        """
        self.store.put(*_global(key, value))

    def define_once(self, key: str, value: Any) -> Any:
        """Set a global JSON value unless it exists; return the existing or new value. Raises as ``define``."""
        place, encoded = _global(key, value)
        while not self.store.put_if_absent(place, encoded):
            raw = self._read(place)
            found = _FOREIGN if raw is None else self._decoded(key, raw)
            if found is not _FOREIGN:
                return found
            self.store.delete(place)
        return value

    def undefine(self, key: str) -> None:
        """Remove a global value, if it is defined."""
        self.store.delete(f"global/{key}")

    def get(self, key: str) -> Any:
        """Return a global value; None if it is not defined."""
        raw = self._read(f"global/{key}")
        found = None if raw is None else self._decoded(key, raw)
        return None if found is _FOREIGN else found

    def _decoded(self, key: str, raw: Buffer) -> Any:
        """Return a global's value; ``_FOREIGN`` if it is not JSON."""
        try:
            return msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            self.store.foreign.note(f"global/{key}", f"the value of global {key!r} is foreign: {exc}")
            return _FOREIGN

    def _read(self, key: str) -> Buffer | None:
        try:
            raw = self.store.get(key)
        except NotAuthorisedError as exc:
            if not self._is_authorised:
                raise
            self.store.foreign.note(key, str(exc))
            return None
        self._is_authorised = self._is_authorised or raw is not None
        return raw

    def _read_many(self, keys: list[str]) -> list[Buffer | None]:
        """Read all keys at once if the store supports it; otherwise one by one."""
        if self._is_authorised:
            return drive(protocol.read_many(self.store, keys))
        return [self._read(key) for key in keys]

    def remove_foreign(self, keys: Iterable[str]) -> None:
        """Delete those of ``keys`` that are not keys of a run, or whose value is still foreign; for the master."""
        keys = list(keys)
        doubtful = [key for key in keys if Keys.is_of_run(key)]
        raws = zip(doubtful, drive(protocol.read_many(self.store, doubtful, clears=True)), strict=True)
        workers = [(key, raw) for key, raw in raws if raw is not None and key.startswith("worker/")]
        useless = [key for key, raw in workers if protocol.parse_record(self.store, key, raw, WorkerRecord) is None]
        drive(protocol.delete_many(self.store, [*useless, *(key for key in keys if not Keys.is_of_run(key))]))

    # -- life cycle ---------------------------------------------------------------------------------------------------

    def is_done(self) -> bool:
        """Return whether the run has ended, with any status."""
        head = self.head()
        return head is not None and head.status != "running"

    def finish(self, status: Status = "stopped", failure: Failure | None = None) -> Head | None:
        """End a running run with ``status``; return the head. Masters and workers notice this and leave.

        Raises:
            TrackerError: ``status`` is not a final status, or ``failure`` is not a ``Failure`` that can be written.
        """
        ends = [each for each in get_args(Status) if each != "running"]
        if not isinstance(status, str) or status not in ends:
            raise TrackerError(f"a run cannot end with status {_shown(status)}; it ends with one of {', '.join(ends)}")
        if failure is not None:
            _own_record(failure, Failure)
        while True:
            raw = self._read(HEAD)
            head = protocol.parse_record(self.store, HEAD, raw, Head)
            if raw is None or head is None:
                return None
            if head.status != "running":
                return head
            ended = msgspec.structs.replace(head, status=status, failure=failure)
            if self.store.replace_if_same(HEAD, raw, encode_record(ended)):
                self.store.publish(protocol.HEAD_TOPIC)
                return ended

    def waited_seconds(self) -> float:
        """Return the total seconds that this process has waited for an unresponsive store, including a current wait."""
        return 0.0

    def away_seconds(self) -> float:
        """Return the seconds since the store stopped answering; 0.0 if it answers."""
        return 0.0

    def traffic(self) -> tuple[int, int]:
        """Return the bytes of values that this process has sent to its store and received; 0 within one process."""
        return 0, 0

    def memory(self) -> Memory | None:
        """Return the memory available to the store; None if unknown."""
        return None

    def leave(self) -> None:
        """Shorten the wait for a store that does not answer, because this process is about to leave.

        The wait is then at most as long as for a new store.
        """

    def shutdown(self) -> None:
        """Close the store; later calls raise ``TrackerClosedError``."""
        self.store.close()


class InMemoryStateTracker(StateTracker):
    """The tracker of a run within one process."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(MemoryStore(), clock)
