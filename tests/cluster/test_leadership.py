"""What a standby makes of what it finds when its master is gone, or the servers have lost all: no server is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from dl4jlegacy.cluster.standby import end_without
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.protocol import Registered, write_frame
from dl4jlegacy.scaleout.state.records import HEAD, Failure, Head, Manifest, decode_record, encode_record
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.strategies import create_router
from dl4jlegacy.scaleout.tracker import drive
from tests.scaleout.protocol.test_protocol import network_work


class Register:
    """Says what it is told to."""

    process = "me"

    def __init__(self) -> None:
        self.leads, self.there, self.ended = False, Registered("this", "r"), None
        self.leader: protocol.Holder | None = None
        self.stepped_back = 0

    def holder(self) -> protocol.Holder | None:
        return self.leader

    def fence(self) -> str | None:
        return "here" if self.leads else None

    def registered(self) -> Registered:
        return self.there

    def end(self) -> protocol.End | Literal["unknown"] | None:
        return self.ended

    def step_back(self, seconds: float) -> None:
        self.stepped_back, self.leads = self.stepped_back + 1, False


class Kept:
    """A folder that says how the run has ended."""

    end: protocol.End | None = None

    def read(self) -> protocol.End | None:
        return self.end


class Time:
    """A clock that goes on when somebody waits."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Waiting:
    """A standby, and what it waits behind."""

    def __init__(self) -> None:
        self.store, self.names, self.register, self.kept, self.time = (
            *(MemoryStore(), MemoryStore(), Register(), Kept(), Time()),
        )
        self.told: list[str] = []
        self.has_checkpoint = False
        register: Any = self.register
        kept: Any = self.kept
        clock: Any = self.time
        place = protocol.RunPlace("r", "1f", self.store, self.names, register, kept, lambda: iter(()), "the servers")
        self.me = protocol.StandBy(
            place, clock, patience=300.0, yields=9.0, has_checkpoint=lambda: self.has_checkpoint, tell=self.told.append
        )
        self.steps = protocol.outlive_master(self.me)

    def waits(self, seconds: float = 0.0) -> None:
        """Let it look, until it waits for the next look, and let time pass."""
        while next(self.steps) is None:
            pass
        self.time.seconds += seconds

    def ends(self) -> protocol.TakeOver:
        """Let it look once more; return what it makes of it."""
        with pytest.raises(StopIteration) as stop:
            self.waits()
        return stop.value.value

    def put(self, status: Any, *, version: int = 7) -> Head:
        model = drive(write_frame(self.store, "model/7/x", b"parameters"))
        found = Head(run="r", version=version, round=3, model=model, status=status)
        self.store.put(HEAD, encode_record(found))
        return found

    def lose(self, *, zookeeper: bool = True) -> None:
        for key in self.store.keys(""):
            self.store.delete(key)
        if zookeeper:
            self.register.there = Registered("nothing")


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.mark.parametrize("lost", [None, b"junk"])
def test_the_head_of_a_run_that_is_done_is_put_back_when_it_is_lost_with_its_master(
    waiting: Waiting, lost: bytes | None
) -> None:
    """Or its last rounds would have to be done again, by workers that have left."""
    done = waiting.put("done")
    waiting.waits()
    waiting.store.delete(HEAD)
    if lost is not None:
        waiting.store.put(HEAD, lost)
    waiting.register.leads = True
    assert waiting.ends() == protocol.TakeOver("lead", 7)
    assert waiting.store.get(HEAD) == encode_record(done)
    assert waiting.told == ["the head of run r, which is done, was lost with its master; it is there again"]


@pytest.mark.parametrize("status", ["running", "done"])
def test_a_head_is_not_put_back_whose_model_is_lost_too_or_that_others_may_follow(
    waiting: Waiting, status: str
) -> None:
    waiting.put(status)
    waiting.waits()
    waiting.store.delete(HEAD)
    if status == "done":
        waiting.lose(zookeeper=False)
    waiting.has_checkpoint = waiting.register.leads = True
    assert waiting.ends() == protocol.TakeOver("lead", 7)
    assert waiting.store.get(HEAD) is None


# --- both servers have lost everything -------------------------------------------------------------------------------


def test_a_run_that_neither_server_knows_has_not_ended_and_who_has_a_model_goes_first(waiting: Waiting) -> None:
    waiting.put("running")
    waiting.waits()
    waiting.lose()
    waiting.register.leads = True  # faster than the master, whose session is lost as well
    waiting.waits(1.0)
    assert waiting.register.stepped_back == 1
    assert len(waiting.told) == 1 and "nobody has ended it" in waiting.told[0]
    waiting.waits(250.0)
    waiting.put("running", version=8)  # it is back
    waiting.register.there = Registered("this", "r")
    waiting.waits(1.0)
    waiting.lose()
    waiting.waits(250.0)  # patience begins anew
    waiting.put("running", version=9)
    waiting.register.leads = True
    waiting.register.there = Registered("this", "r")
    assert waiting.ends() == protocol.TakeOver("lead", 9)


def test_a_standby_goes_on_from_the_newest_checkpoint_if_nobody_comes_back_who_has_more(waiting: Waiting) -> None:
    waiting.put("running")
    waiting.waits()
    waiting.lose()
    waiting.has_checkpoint = True
    waiting.register.leads = True
    waiting.waits(9.0)
    assert waiting.register.stepped_back == 1
    waiting.register.leads = True
    assert waiting.ends() == protocol.TakeOver("lead", 7)


@pytest.mark.parametrize("zookeeper", [True, False])
@pytest.mark.parametrize("leads", [True, False])
def test_a_standby_that_has_nothing_to_put_back_gives_up_and_says_why(
    waiting: Waiting, leads: bool, zookeeper: bool
) -> None:
    """A run that is registered still, in a grid that has lost it, is not begun anew: somebody may have it."""
    waiting.put("running")
    waiting.waits()
    waiting.lose(zookeeper=zookeeper)
    waiting.waits(299.0)
    waiting.register.leads = leads
    waiting.waits(2.0)
    waiting.register.leads = leads
    with pytest.raises(TrackerError, match=r"run r cannot go on here: .*no model of it for 301 s.*no checkpoint"):
        waiting.waits()


def test_a_run_that_has_not_begun_is_led_at_once_and_one_that_its_grid_has_lost_is_not(waiting: Waiting) -> None:
    """A standby that has seen no model of it knows by the office: who registers a new run has taken that before."""
    waiting.register.leads = True
    waiting.waits()
    assert waiting.register.stepped_back == 1 and "nobody has ended it" in waiting.told[0]
    waiting.store.put(protocol.OFFICE, b'"another"')
    waiting.register.leads = True
    assert waiting.ends() == protocol.TakeOver("lead", 0)


def test_the_patience_of_a_standby_begins_anew_once_a_master_holds_the_run(waiting: Waiting) -> None:
    waiting.waits(299.0)
    waiting.register.leader = protocol.Holder("master", "r", "there")
    waiting.waits(299.0)
    waiting.register.leader = protocol.Holder("another", "r", "there", is_standby=True)
    waiting.waits(299.0)
    waiting.waits(2.0)
    with pytest.raises(TrackerError, match="no model of it for 301 s"):
        waiting.waits()


@pytest.mark.parametrize(("lost", "has_checkpoint"), [(True, False), (True, True), (False, False)])
def test_a_standby_that_is_asked_to_stop_says_that_it_leaves_a_run_which_nobody_has(
    waiting: Waiting, lost: bool, has_checkpoint: bool
) -> None:
    waiting.put("running")
    waiting.waits()
    if lost:
        waiting.lose()
        waiting.waits(12.0)
    waiting.has_checkpoint = has_checkpoint
    error = protocol.asked_to_stop(waiting.me)
    if not lost or has_checkpoint:
        assert error is None
    else:
        assert "no model of it for 12 s, and this standby, which was asked to stop, has none either" in str(error)


@pytest.mark.parametrize("leads", [True, False])
def test_a_run_that_somebody_stops_while_nobody_has_it_is_no_good_end_for_a_standby(
    waiting: Waiting, leads: bool
) -> None:
    waiting.put("running")
    waiting.waits()
    waiting.lose()
    waiting.waits(12.0)
    waiting.register.ended, waiting.register.leads = "stopped", leads
    error = "run r was stopped while the servers had no model of it"
    assert waiting.ends() == protocol.TakeOver("clear up" if leads else "ended", end="stopped", error=error)


# --- a master that was cut off until a standby took office ------------------------------------------------------------


def replaced(waiting: Waiting, *, knows: int, standby: bool = True) -> protocol.Master:
    """Return a master that knows a version, of a run that another one leads, who is in office."""
    waiting.register.leader = protocol.Holder("another", "r", "there", is_standby=standby)
    waiting.store.put(protocol.OFFICE, b'"another"')
    plan = network_work().plan
    router = create_router("iterative-reduce", jobs_per_round=plan.jobs_per_round)
    start = protocol.RunStart(
        "r",
        lambda: b"first",
        lambda: None,
        may_hand_over=lambda: protocol.may_hand_over(waiting.me.place),
    )
    me = protocol.Master(
        "me",
        waiting.store,
        waiting.me.clock,
        plan,
        router,
        aggregator=network_work().aggregator(router.name),
        start=start,
    )
    me.known = (Head(run="r", version=knows, round=5, model=Manifest("model/lost", 1, 5)), b"newer")
    return me


@pytest.mark.parametrize("there", [None, 7])
def test_it_hands_what_it_knows_to_a_standby_that_has_gone_on_from_less(waiting: Waiting, there: int | None) -> None:
    if there is not None:
        waiting.put("running", version=there)
    assert drive(protocol.hand_over(replaced(waiting, knows=9)))
    head = decode_record(waiting.store.get(HEAD) or b"", Head)
    assert (head.version, head.round, head.status) == (9, 5, "running")
    assert bytes(drive(protocol.read_frame(waiting.store, head.model)) or b"") == b"newer"


def has_ended(waiting: Waiting) -> None:
    waiting.register.ended = "done"


def has_another_run(waiting: Waiting) -> None:
    waiting.register.there = Registered("another", "next")


def leads_again(waiting: Waiting) -> None:
    waiting.register.leads = True


def has_not_taken_office(waiting: Waiting) -> None:
    waiting.store.put(protocol.OFFICE, b'"me"')


@pytest.mark.parametrize("but", [has_ended, has_another_run, leads_again, has_not_taken_office])
def test_it_hands_nothing_over(waiting: Waiting, but: Callable[[Waiting], None]) -> None:
    waiting.put("running")
    me = replaced(waiting, knows=9)
    before = waiting.store.get(HEAD)
    but(waiting)
    assert not drive(protocol.hand_over(me))
    assert waiting.store.get(HEAD) == before


@pytest.mark.parametrize(
    ("version", "status", "standby"), [(9, "running", True), (7, "done", True), (7, "running", False)]
)
def test_it_hands_nothing_to_who_has_as_much_or_is_done_or_was_started_by_hand(
    waiting: Waiting, version: int, status: str, standby: bool
) -> None:
    head = waiting.put(status, version=version)
    assert not drive(protocol.hand_over(replaced(waiting, knows=9, standby=standby)))
    assert waiting.store.get(HEAD) == encode_record(head)


@pytest.mark.parametrize("where", ["grid", "zookeeper", "folder"])
@pytest.mark.parametrize("leads", [True, False])
def test_the_end_of_a_run_is_one_wherever_it_is_written_down(waiting: Waiting, where: str, leads: bool) -> None:
    waiting.put("done")
    waiting.waits()
    waiting.lose()
    if where == "grid":
        drive(protocol.write_end(waiting.names, "r", "1f", "done"))
    elif where == "zookeeper":
        waiting.register.ended = "done"
    else:
        waiting.kept.end = "done"
    waiting.register.leads = leads
    assert waiting.ends() == protocol.TakeOver("clear up" if leads else "ended", end="done")


def test_a_standby_waits_while_its_master_clears_up_and_does_that_if_it_dies(waiting: Waiting) -> None:
    waiting.put("done")
    waiting.register.ended = "done"
    waiting.waits(400.0)
    waiting.register.there = Registered("nothing")
    waiting.waits(400.0)  # its head is still there
    waiting.register.leads = True
    assert waiting.ends() == protocol.TakeOver("clear up", end="done")


def test_a_run_that_is_done_and_whose_conf_is_lost_has_a_model_to_write(waiting: Waiting) -> None:
    waiting.put("done")
    waiting.register.there = Registered("nothing")
    waiting.register.leads = True
    assert waiting.ends() == protocol.TakeOver("lead", 7)


def test_a_stopped_run_is_cleared_up_and_a_failed_one_is_left(waiting: Waiting) -> None:
    waiting.put("stopped")
    waiting.waits()
    waiting.register.leads = True
    assert waiting.ends() == protocol.TakeOver("clear up", end="stopped")
    failed = Waiting()
    failed.put("failed")
    assert failed.ends().what == "failed"


@pytest.mark.parametrize(
    ("found", "failure", "code"),
    [
        (protocol.TakeOver("ended", end="stopped"), None, "DL4J-TRAINING"),
        (protocol.TakeOver("clear up", end="stopped"), None, "DL4J-TRAINING"),
        (protocol.TakeOver("failed"), Failure("DL4J-POISON", "a job kills its workers", ""), "DL4J-POISON"),
        (protocol.TakeOver("failed"), Failure("DL4J-JOB", "a batch is bad", ""), "DL4J-JOB"),
        (protocol.TakeOver("ended", end="stopped", error="nobody had it"), None, "DL4J-TRACKER"),
        (protocol.TakeOver("ended"), None, ""),
        (protocol.TakeOver("clear up", end="done"), None, ""),
        (protocol.TakeOver("lead", 7), None, ""),
    ],
)
def test_a_standby_ends_as_its_master_does(found: protocol.TakeOver, failure: Failure | None, code: str) -> None:
    seen = Head(run="r", version=3, round=3, model=Manifest("model/3", 1, 1), status="failed", failure=failure)
    error = end_without("r", found, seen)
    assert ("" if error is None else error.code) == code
    assert error is None or failure is None or failure.message in str(error)


@pytest.mark.parametrize("leads", [True, False])
def test_an_id_that_another_run_has_got_is_named(waiting: Waiting, leads: bool) -> None:
    waiting.register.there, waiting.register.leads = Registered("another", "q"), leads
    with pytest.raises(TrackerError, match="the id of run r is that of another run, q, by now"):
        waiting.ends()


def test_what_is_not_known_is_waited_for(waiting: Waiting) -> None:
    waiting.register.there, waiting.register.ended, waiting.register.leads = Registered("unknown"), "unknown", True
    waiting.waits(1000.0)
    waiting.waits(1000.0)
    assert not waiting.told and not waiting.register.stepped_back
