"""How a worker comes to jobs: several at once where many are quickly done, and the next round's with its head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from dl4jlegacy.kernels import load
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.protocol import frames
from dl4jlegacy.scaleout.protocol.leasing import FEW_BLOCKS
from dl4jlegacy.scaleout.protocol.worker_state import BLOCK, QUICK, SEVERAL
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import HEAD, Failure, Head, JobRecord, Keys, decode_record, encode_record
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import drive

SLOTS = (FEW_BLOCKS + 2) * BLOCK
UPDATE = Result({"examples": 1, "score": 0.0}).encode()
FAILURE = Failure("DL4J-JOB", "made to fail", "w")
POLL = protocol.Limits().poll
TAKEN = "another"


class Clock:
    seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Store(MemoryStore):
    """Remembers what was read and replaced at once, and lets another worker be faster at some."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: list[int] = []
        self.read: list[list[str]] = []
        self.lost: set[str] = set()
        self.before_read: Callable[[list[str]], object] = lambda keys: None

    def get_many(self, keys: Iterable[str]) -> Iterator[Any]:
        keys = list(keys)
        self.read.append(keys)
        self.before_read(keys)
        return super().get_many(keys)

    def replace_many_if_same(self, items: Iterable[tuple[str, Any, Any]]) -> list[bool]:
        items = list(items)
        self.replaced.append(len(items))
        for key, expected, _ in items:
            if key in self.lost:
                self.put(key, encode_record(msgspec.structs.replace(decode_record(expected, JobRecord), worker=TAKEN)))
        return super().replace_many_if_same(items)


class Round:
    """A round of many jobs, the first of ``rounds``, and a worker that takes ``seconds`` for each."""

    def __init__(
        self, router: str = "iterative-reduce", slots: int = SLOTS, seconds: float = 0.0, rounds: int = 1, **args: Any
    ) -> None:
        batches = rounds * slots
        self.plan = Plan(phases=(Phase(),), batches=batches, examples=batches, batch_size=1, jobs_per_round=slots)
        self.store, self.clock, self.seconds = Store(), Clock(), seconds
        self.router = create_router(router, args, jobs_per_round=slots)
        self.begin(0)
        self.worker = protocol.Worker(
            *("w", self.store, self.clock, self.plan, self.router),
            aggregator=self.router.fold(load("numpy")),
        )
        self.steps = protocol.worker_steps(self.worker)
        self.reply: Any = None

    def begin(self, round_: int, **other: Any) -> None:
        """Make a round the head's; its jobs are those of a head that differs from it by ``other``."""
        model = drive(protocol.write_frame(self.store, Keys.model(round_, "m"), Result({"score": None}).encode()))
        head = Head(run="r", version=round_, round=round_, model=model)
        self.store.put(HEAD, encode_record(head))
        first = self.plan.number(round_, 0)
        numbers = tuple(range(first, first + self.plan.slots(round_)))
        work = protocol.MoreWork(msgspec.structs.replace(head, **other), numbers)
        binds = self.router.binds_model
        drive(protocol.issue_jobs(self.store, self.plan, work, binds_model=binds, load=None, put_ahead={}))

    def perform(self, answer: Callable[[int], Any] = lambda slot: UPDATE, *, until: int = SLOTS + 1) -> list[int]:
        """Perform jobs until so many are, or the worker waits; return their slots."""
        performed: list[int] = []
        while len(performed) < until:
            event = self.steps.send(self.reply)
            self.reply = None
            if isinstance(event, protocol.Wait):
                break
            if isinstance(event, protocol.Perform):
                self.clock.seconds += self.seconds
                performed.append(event.plan.slot)
                self.reply = answer(event.plan.slot)
        return performed

    def states(self) -> dict[int, JobRecord]:
        raws = self.store.get_many(Keys.job(0, slot) for slot in range(self.plan.jobs_per_round))
        return {slot: decode_record(raw, JobRecord) for slot, raw in enumerate(raws)}


def several(found: Round) -> bool:
    return max(found.store.replaced, default=1) > 1


def test_quick_jobs_are_leased_and_committed_several_at_a_time_until_few_are_left() -> None:
    many = Round()
    performed = many.perform()
    assert sorted(performed) == list(range(SLOTS))
    assert {record.state for record in many.states().values()} == {"done"}
    assert {record.token for record in many.states().values()} == {1}
    assert max(many.store.replaced) == SEVERAL
    together = sum(many.store.replaced) // 2  # each is leased, and committed
    assert SLOTS - FEW_BLOCKS * BLOCK - BLOCK <= together < SLOTS - 1  # the first one's time is not known


@pytest.mark.parametrize(
    "alone",
    [
        {"slots": FEW_BLOCKS * BLOCK},
        {"seconds": 1.1 * QUICK * POLL},
        {"router": "hogwild"},
        {"router": "easgd"},
        {"parameter_servers": 2},
    ],
    ids=["few are free", "they are not quick", "each begins with the newest model", "they leave states", "in slices"],
)
def test_otherwise_they_are_leased_one_at_a_time(alone: dict[str, Any]) -> None:
    one_by_one = Round(**alone)
    answer = protocol.Performed(UPDATE, UPDATE) if one_by_one.router.name == "easgd" else UPDATE
    one_by_one.perform(lambda slot: answer, until=20)
    assert sum(record.state == "done" for record in one_by_one.states().values()) == 19
    assert not several(one_by_one)


def test_what_another_worker_was_faster_to_lease_is_left_to_it() -> None:
    found = Round()
    first = found.perform(until=1)[0]
    theirs = [(first + 2) % SLOTS, (first + 4) % SLOTS]
    found.store.lost = {Keys.job(0, slot) for slot in theirs}
    performed = [first, *found.perform(until=12)]
    assert several(found) and not set(performed) & set(theirs)
    records = found.states()
    assert {records[slot].worker for slot in theirs} == {TAKEN}


def test_jobs_whose_turn_does_not_come_in_time_are_given_back_and_those_that_are_done_count() -> None:
    found = Round()
    found.perform(until=1)
    found.seconds = 0.4 * SEVERAL * QUICK * POLL  # the third is begun in time, and done too late
    assert len(found.perform(until=3)) == 3
    found.perform(until=1)  # of the next ones
    records = found.states().values()
    assert sum(record.state == "done" for record in records) == 4
    given_back = [record for record in records if record.state == "ready" and record.token == 1]
    assert len(given_back) == SEVERAL - 3
    assert {record.worker for record in given_back} == {""}


def test_a_worker_that_stops_commits_what_is_done_and_gives_the_rest_back() -> None:
    found = Round()
    found.perform(until=1)
    done: list[int] = []

    def stops(slot: int) -> Any:
        done.append(slot)
        return UPDATE if len(done) <= 3 else None

    found.perform(stops)
    records = found.states()
    assert len(done) == 4
    assert [records[slot].state for slot in done] == ["done"] * 3 + ["ready"]
    assert sum(record.state == "done" for record in records.values()) == 4
    assert not [record for record in records.values() if record.state == "leased"]


def test_a_job_that_fails_among_several_fails_alone() -> None:
    found = Round()
    first = found.perform(until=1)[0]
    bad = (first + 3) % SLOTS
    performed = found.perform(lambda slot: FAILURE if slot == bad else UPDATE, until=12)
    records = found.states()
    assert bad in performed and records[bad].state == "failed"
    assert [records[slot].state for slot in performed[:8] if slot != bad] == ["done"] * 7
    assert [failure.worker for failure in records[bad].failures] == ["w"]


def test_also_after_failures_jobs_whose_turn_does_not_come_in_time_are_given_back() -> None:
    found = Round()
    found.perform(until=1)
    found.seconds = 1.1 * SEVERAL * QUICK * POLL
    failed = found.perform(lambda slot: FAILURE, until=1)
    found.perform(until=1)  # of the next ones
    records = found.states()
    assert records[failed[0]].state == "failed"
    given_back = [record for record in records.values() if record.state == "ready" and record.token == 1]
    assert len(given_back) == SEVERAL - 1


def test_an_update_that_comes_too_late_is_dropped_and_its_neighbours_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SMALL_NBYTES", 0)
    found = Round()
    first = found.perform(until=1)[0]
    late = (first + 2) % SLOTS
    key = Keys.job(0, late)

    def overtaken(slot: int) -> bytes:
        if slot == late:
            record = decode_record(found.store.get(key), JobRecord)
            found.store.put(key, encode_record(msgspec.structs.replace(record, state="done", worker=TAKEN)))
        return UPDATE

    performed = found.perform(overtaken, until=12)
    records = found.states()
    assert records[late].worker == TAKEN and int(bytes(found.store.get(protocol.DROPPED))) == 1
    assert {records[slot].worker for slot in performed[:8] if slot != late} == {"w"}
    written = {key.split("/")[2] for key in found.store.keys("update/0/")}
    assert str(late) not in written and len(written) == sum(r.state == "done" for r in records.values()) - 1


# -- after a wait ------------------------------------------------------------------------------------------------------


def heads_read(found: Round) -> int:
    return sum(HEAD in keys for keys in found.store.read)


def test_a_worker_that_waited_reads_the_jobs_of_the_next_round_with_the_head_that_opens_them() -> None:
    rounds = Round(slots=4, rounds=3)
    for round_ in range(3):
        if round_:
            rounds.begin(round_)
            rounds.store.read.clear()
        assert len(rounds.perform(until=1)) == 1
        assert round_ == 0 or heads_read(rounds) == 1
        assert len(rounds.perform()) == 3
    assert {record.state for record in rounds.states().values()} == {"done"}


@pytest.mark.parametrize("round_", [1, 2], ids=["the next round", "a later one"])
def test_of_what_was_read_with_a_head_only_its_own_jobs_are_taken(round_: int) -> None:
    rounds = Round(slots=4, rounds=3)
    assert len(rounds.perform()) == 4
    other = drive(protocol.write_frame(rounds.store, "model/other", Result({"score": 1.0}).encode()))
    rounds.begin(round_, model=other)
    assert rounds.perform() == []  # the jobs are those of a head that was lost
    rounds.store.delete_many(Keys.job(round_, slot) for slot in range(4))
    rounds.begin(round_)
    assert len(rounds.perform()) == 4


def test_no_job_of_the_next_round_is_leased_under_a_head_that_has_gone_back_meanwhile() -> None:
    """A round that checks the model leaves it as it is, so its jobs and those of the next one name the same model."""
    rounds, went_back = Round(rounds=2), []
    rounds.begin(1)
    first, free = rounds.plan.number(1, 0), SLOTS - BLOCK  # a job of the last block to be searched
    rounds.store.delete_many(Keys.job(1, slot) for slot in range(SLOTS) if slot != free)
    rounds.worker.cursor, rounds.clock.seconds = first, POLL  # it is time to search all blocks
    before = msgspec.structs.replace(decode_record(rounds.store.get(HEAD), Head), version=0, round=0)

    def go_back(keys: list[str]) -> None:
        if keys[0] == HEAD and len(keys) == 1 + SLOTS // BLOCK:  # the last job of each block
            rounds.store.put(HEAD, encode_record(before))
            went_back.append(keys)

    rounds.store.before_read = go_back
    assert rounds.perform() == [] and went_back
    assert decode_record(rounds.store.get(Keys.job(1, free)), JobRecord).state == "ready"


@pytest.mark.parametrize("slots", [BLOCK, BLOCK + 1], ids=["few", "many"])
def test_jobs_of_the_next_round_are_read_ahead_only_if_they_are_few(slots: int) -> None:
    rounds = Round(slots=slots, rounds=2)
    assert len(rounds.perform()) == slots
    rounds.store.read.clear()
    assert rounds.perform() == []
    assert any(Keys.job(1, 0) in keys for keys in rounds.store.read) == (slots == BLOCK)
