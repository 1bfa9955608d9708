"""How a master counts the crashes of jobs: who had begun one, who has died of it, who gets it next."""

from __future__ import annotations

import msgspec
import pytest

from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.protocol import Limits
from dl4jlegacy.scaleout.protocol.crashes import CRASHES, HELD_BACK, Attempts, is_held_back, note_crashes
from dl4jlegacy.scaleout.state.records import Crash, JobRecord, Keys, decode_record, encode_record
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.tracker import drive

PLAN = Plan(phases=(Phase(),), batches=8, examples=8, batch_size=1, jobs_per_round=4)


class Watcher:
    """A master that knows who is gone and who has died."""

    def __init__(self) -> None:
        self.store, self.plan, self.limits, self.attempts = MemoryStore(), PLAN, Limits(), Attempts()
        self.gone: set[str] = set()
        self.dead: set[str] = set()
        self.told: list[tuple[tuple[int, int], str, int]] = []

    def present(self) -> list[str]:
        return ["a-0", "b-0"]

    def is_gone(self, worker: str) -> bool:
        return worker in self.gone

    def death_of(self, worker: str) -> str:
        return "killed" if worker in self.dead else ""

    def on_crashed(self, slot: tuple[int, int], crash: Crash, count: int) -> None:
        self.told.append((slot, crash.process, count))

    def look(self, record: JobRecord, now: float = 0.0, number: int = 1) -> JobRecord:
        """Write a job's record, look at it as the master does, and return what it is then."""
        key, raw = Keys.job(*PLAN.at(number)), encode_record(record)
        self.store.put(key, raw)
        noted = drive(note_crashes(self, number, record, raw, now))
        assert noted is not None and encode_record(noted[0]) == bytes(noted[1])
        assert decode_record(self.store.get(key) or b"", JobRecord) == noted[0]
        return noted[0]


BEGUN = JobRecord(state="leased", model="m", token=2, worker="b-0", begun=("a-0", "b-0"))


def crashed(count: int, state: str = "leased", worker: str = "x-0") -> JobRecord:
    crashes = tuple(Crash(f"p{i}", "h", "killed") for i in range(count))
    return msgspec.structs.replace(BEGUN, state=state, worker=worker, begun=(worker,), crashes=crashes)


def test_who_is_only_gone_has_not_crashed() -> None:
    """Its lease ran out, it is frozen or cut off, or its machine is lost."""
    me = Watcher()
    me.gone = {"a-0", "b-0"}
    assert me.look(BEGUN) == BEGUN
    assert me.told == [] and me.store.get(CRASHES) is None


def test_who_has_died_of_a_job_is_counted_once_in_the_tracker_whoever_holds_the_lease() -> None:
    me = Watcher()
    me.look(BEGUN, 10.0)
    me.gone = me.dead = {"a-0"}
    after = me.look(BEGUN, 14.0)
    assert after.begun == ("b-0",) and after.crashes == (Crash("a", "a", "killed", 4.0 - Limits().poll),)
    assert me.look(after, 15.0) == after
    assert me.told == [((0, 1), "a", 1)] and me.store.get(CRASHES) == b"1"
    assert Watcher().look(after) == after, "the next master has it from the record"


def test_two_workers_of_one_process_are_one_crash() -> None:
    me = Watcher()
    me.dead = {"a-0", "a-1"}
    after = me.look(msgspec.structs.replace(BEGUN, begun=("a-0", "a-1")))
    assert [crash.process for crash in after.crashes] == ["a"] and after.begun == ()


def test_a_lease_that_is_lost_before_anybody_knows_whether_the_job_was_begun_is_a_crash_of_the_run_only() -> None:
    me = Watcher()
    me.attempts.lose_lease(msgspec.structs.replace(BEGUN, worker="c-0"))
    me.attempts.lose_lease(BEGUN)  # its worker is among those who had begun: it is counted by that
    me.attempts.lose_lease(msgspec.structs.replace(crashed(1), worker="p0-0"))  # it has been
    assert me.attempts.take_dead(me.death_of) == []
    me.dead = {"b-0", "c-0", "p0-0"}
    assert me.attempts.take_dead(me.death_of) == ["c-0"]
    assert me.attempts.take_dead(me.death_of) == []


def test_the_first_worker_that_is_gone_holds_nothing_back() -> None:
    me = Watcher()
    me.gone = {"x-0"}
    job = crashed(0)
    me.attempts.look(1, job, 0.0, me.is_gone)
    assert not is_held_back(me, 1, job, {}, 0.0)


def test_a_suspected_job_waits_until_it_is_known_whether_its_last_worker_died_but_not_for_ever() -> None:
    me = Watcher()
    me.gone = {"x-0"}
    job = crashed(1)
    me.attempts.look(1, job, 0.0, me.is_gone)
    most = HELD_BACK * me.limits.lease
    assert is_held_back(me, 1, job, {}, most / 2) and not is_held_back(me, 1, job, {}, most)


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        (crashed(2, "ready"), True),
        (crashed(2, "leased", "y-0"), True),
        (crashed(2, "leased", "gone-0"), False),
        (crashed(2, "done"), False),
        (crashed(1, "ready"), False),
    ],
    ids=["ready", "tried", "its worker is gone", "done", "not suspected"],
)
def test_one_suspected_job_is_tried_at_a_time(other: JobRecord, waits: bool) -> None:
    """So the jobs that other threads of a process computed when one of them killed it are finished elsewhere."""
    me = Watcher()
    me.gone = {"x-0", "gone-0"}
    job = msgspec.structs.replace(crashed(2), begun=())
    assert is_held_back(me, 1, job, {1: job, 2: other}, 1e6) is waits
