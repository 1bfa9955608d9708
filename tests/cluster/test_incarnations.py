"""Runs of one name or id on real servers are told apart: nothing that belonged to an earlier one reaches the next."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from msgspec import json

from dl4jlegacy.cluster.address import find_incarnation
from dl4jlegacy.cluster.ending import drain_worker
from dl4jlegacy.cluster.leadership import standing
from dl4jlegacy.cluster.registration import MasterRegistration
from dl4jlegacy.cluster.run_names import RunName
from dl4jlegacy.errors import NotAuthorisedError, TrackerError, UsageError
from dl4jlegacy.scaleout.protocol import OFFICE, end_run, find_end, listed_runs, write_end
from dl4jlegacy.scaleout.state.records import HEAD, JobRecord, Keys, WorkerRecord, decode_record, encode_record
from dl4jlegacy.scaleout.tracker import drive
from dl4jlegacy.scaleout.zookeeper import (
    MESH,
    WorkerRegistration,
    ZooKeeperConfigurationRegister,
    ZooKeeperSession,
    ended_runs,
    remove_end,
)
from dl4jlegacy.scaleout.zookeeper import write_end as write_end_node
from tests.support.cluster_commands import until
from tests.support.places import SECRET, Place, head

pytestmark = pytest.mark.cluster

# --- one name ---------------------------------------------------------------------------------------------------------


def test_of_many_masters_that_begin_runs_of_one_name_at_the_same_time_one_gets_it(place: Place) -> None:
    masters = [place.master(place.conf(), id)[0] for id in "abcd"]
    ready = threading.Barrier(len(masters))

    def begin(master: MasterRegistration) -> str:
        ready.wait(30)
        try:
            master.claim_name(takes_over=False)
        except TrackerError as exc:
            return str(exc)
        return ""

    with ThreadPoolExecutor(len(masters)) as pool:
        said = sorted(pool.map(begin, masters))
    assert said[0] == ""
    assert all("has just been begun" in text for text in said[1:]), said


def test_a_name_is_free_again_when_its_run_is_over_and_not_before(place: Place) -> None:
    first, second = place.conf(), place.conf()
    one, _, tracker = place.master(first, "a")
    two, _, _ = place.master(second, "b")
    one.claim_name(takes_over=False)
    tracker.store.put(HEAD, head(3))
    with pytest.raises(TrackerError, match=rf"has a run {place.name} already, in round 3; .*dl4j resume"):
        two.claim_name(takes_over=False)
    tracker.store.put(HEAD, head(3, "done"))
    with pytest.raises(TrackerError, match="has a run"):  # its model may still be written, Zookeeper may have lost it
        two.claim_name(takes_over=False)
    drive(end_run(one.place, "done"))
    two.claim_name(takes_over=False)
    assert tracker.store.keys("") == []
    assert find_incarnation(tracker.store, place.name) == second.incarnation
    with pytest.raises(TrackerError, match="another run has got its name"):
        one.claim_name(takes_over=True)
    RunName(first, place.address("a"), place.session(), tracker).release()
    assert find_incarnation(tracker.store, place.name) == second.incarnation


def test_what_a_master_left_that_died_while_it_cleared_up_goes_with_the_next_run_of_its_name(place: Place) -> None:
    died, goes_on = place.conf(), place.conf()
    trackers = {conf.incarnation: place.tracker(conf) for conf in (died, goes_on)}
    for conf, status in ((died, "done"), (goes_on, "running")):
        registration, _, _ = place.master(conf, "a" if conf is died else "b")
        registration.claim_name(takes_over=False)
        trackers[conf.incarnation].store.put(HEAD, head(3, status))
        RunName(conf, place.address("a"), place.session(), trackers[conf.incarnation]).release()
        registration._election.resign()
    next_one, _, _ = place.master(place.conf(), "a")
    next_one.claim_name(takes_over=False)
    names = trackers[died.incarnation].store.sibling("runs")
    listed = {incarnation for _, incarnation in listed_runs(names.keys(f"{place.name}/"))}
    assert listed == {goes_on.incarnation, next_one._conf.incarnation}
    assert trackers[died.incarnation].store.keys("") == []
    assert trackers[goes_on.incarnation].head() is not None


def test_a_name_that_a_master_took_before_it_died_is_taken_from_it(place: Place) -> None:
    dead, _, _ = place.master(place.conf(), "a")
    dead.claim_name(takes_over=False)
    dead._election.resign()
    next_one, _, tracker = place.master(place.conf(), "b")
    next_one.claim_name(takes_over=False)
    assert find_incarnation(tracker.store, place.name) == next_one._conf.incarnation


def test_a_record_that_the_grid_has_lost_or_others_overwrote_is_put_back(place: Place) -> None:
    master, _, tracker = place.master(place.conf())
    names = tracker.store.sibling("runs")
    for spoil in (
        lambda: names.delete(place.name),
        lambda: place.tracker(place.conf(), b"another").store.sibling("runs").put(place.name, b"junk"),
    ):
        drive(master._name.keep())
        spoil()
        drive(master._name.keep())
        assert find_incarnation(tracker.store, place.name) == master._conf.incarnation


# --- one keyspace for each incarnation --------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [SECRET, None], ids=["signed", "unsigned"])
def test_a_worker_of_an_earlier_run_finds_nothing_of_the_next_one_and_changes_nothing(
    place: Place, secret: bytes
) -> None:
    old, new = place.tracker(place.conf(), secret), place.tracker(place.conf(), secret)
    ready = encode_record(JobRecord(state="ready", model=""))  # as hogwild has it: it names no model
    for tracker in (old, new):
        tracker.store.put(Keys.job(0, 0), ready)
    old.store.destroy()
    done = encode_record(JobRecord(state="done", model="", worker="frozen"))
    assert not old.store.replace_if_same(Keys.job(0, 0), ready, done)
    old.store.put(Keys.job(0, 0), done)
    old.store.put(HEAD, head(9))
    assert decode_record(new.store.get(Keys.job(0, 0)), JobRecord).state == "ready"
    assert new.head() is None


def test_a_value_that_is_copied_from_an_earlier_run_is_refused(place: Place) -> None:
    old, new = place.tracker(place.conf()), place.tracker(place.conf())
    old.store.put(HEAD, head(7))
    copied = bytes(old.store._link.get(HEAD).wait(10))
    new.store._link.set(HEAD, b"", copied).wait(10)
    with pytest.raises(NotAuthorisedError, match="signature does not match"):
        new.store.get(HEAD)


# --- one id -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_woken_master_of_an_earlier_run_removes_nothing_of_the_next_one(place: Place) -> None:
    old, old_election, _ = place.master(place.conf())
    old.claim_name(takes_over=False)
    old.register(takes_over=False)
    node = old_election.fence
    old_election.resign()  # as when its session has ended while it was frozen
    new, _, tracker = place.master(place.conf())
    old._election = FrozenElection(node, old_election.info, old_election.nonce)
    old._conf_node._fence = lambda: node
    old.place.register._election = old._election
    new.claim_name(takes_over=False)
    new.register(takes_over=False)
    tracker.store.put(HEAD, head(1))
    with pytest.raises(TrackerError):
        old.register(takes_over=False)
    with pytest.raises(TrackerError, match="is not led by this process any more"):
        old.clear_up()
    assert place.registered() == new._conf
    assert find_incarnation(tracker.store, place.name) == new._conf.incarnation
    assert tracker.head() is not None
    new.clear_up()
    assert place.registered() is None


class FrozenElection:
    """What a process believes that was frozen just after it had made sure that it led."""

    is_leader = True

    def __init__(self, fence: str | None, info: dict, nonce: str) -> None:
        self.fence, self.info, self.nonce = fence, info, nonce

    def wait(self, seconds: float) -> bool:
        return True


def test_a_master_that_has_its_id_back_leaves_the_conf_of_a_run_that_came_between(place: Place) -> None:
    old, first, _ = place.master(place.conf())
    old.register(takes_over=False)
    first.resign()
    between, second, _ = place.master(place.conf(run="another"))
    between.register(takes_over=False)
    second.resign()
    again, _, _ = place.master(old._conf)
    with pytest.raises(TrackerError, match="has been given to another run, another"):
        again.register(takes_over=True)
    with pytest.raises(TrackerError, match="that of another run, another, by now"):
        drive(again.may_begin())
    again.clear_up()
    assert place.registered() == between._conf


@pytest.mark.parametrize("folder", ["workers", MESH])
def test_a_process_that_was_killed_just_before_the_end_leaves_no_folder_in_zookeeper(place: Place, folder: str) -> None:
    master, _, _ = place.master(place.conf())
    master.register(takes_over=False)
    id = place.address("a").id
    killed = place.session()
    WorkerRegistration(killed, "killed", {}, group=id, folder=folder).register()
    killed._handler.cut()  # without a goodbye: its node stays until its session ends
    master.clear_up()
    master._election.resign()
    assert place.session().children(f"/dl4jlegacy/{id}") is None


# --- Zookeeper without its data ---------------------------------------------------------------------------------------


def test_a_master_that_stood_still_while_the_servers_lost_their_data_puts_its_run_back_unless_it_has_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, election, tracker = place.master(place.conf())
    master.register(takes_over=False)
    for found in (head(4), None):  # Zookeeper lost its data; and then the grid, too
        tracker.store.destroy()
        if found is not None:
            tracker.store.put(HEAD, found)
        place.wipe("a")
        until(lambda: election.is_leader and election.fence and place.exists(election.fence), what="an election")
        assert drive(master.may_begin())  # nobody has ended the run
        master.restore()
        assert place.registered() == master._conf
    drive(write_end(tracker.store.sibling("runs"), place.name, master._conf.incarnation, "done"))
    place.wipe("a")
    until(lambda: election.is_leader and election.fence and place.exists(election.fence), what="the next election")
    with pytest.raises(TrackerError, match="has ended while this master stood still: it is done"):
        drive(master.may_begin())
    master.restore()
    assert place.registered() is None
    master.go_on_again()
    monkeypatch.setattr(master.place.register, "_ask", lambda question: None)  # Zookeeper does not answer just now
    master.restore()
    assert place.registered() is None
    assert not drive(master.may_begin())


def test_an_end_is_known_as_long_as_one_of_the_servers_has_it_and_is_gone_when_somebody_goes_on(place: Place) -> None:
    conf = place.conf()
    master, _, tracker = place.master(conf)
    names, session = tracker.store.sibling("runs"), place.session()
    for lose in (
        lambda: remove_end(session, conf.incarnation),
        lambda: names.delete(f"end/{conf.run}/{conf.incarnation}"),
    ):
        drive(end_run(master.place, "stopped"))
        lose()
        assert drive(find_end(master.place)) == "stopped"
        master.go_on_again()
        assert drive(find_end(master.place)) is None
    write_end_node(place.session(), conf.incarnation, "done")
    with closing(ZooKeeperSession(place.servers.zookeeper, secret=b"a stranger's")) as stranger:
        remove_end(stranger, conf.incarnation)
        write_end_node(stranger, conf.incarnation, "done")
    assert drive(find_end(master.place)) is None  # whoever does not know the secret ends nothing
    remove_end(session, conf.incarnation)


def test_only_so_many_ends_are_kept_in_zookeeper(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_runs, "ENDED", f"/dl4jlegacy-ended-{place.name}")
    monkeypatch.setattr(ended_runs, "MOST_ENDS", 3)
    session = place.session()
    for number in range(7):
        write_end_node(session, f"{6 - number}", "done")
    assert session.children(ended_runs.ENDED) == ["0", "1", "2"]  # the newest three
    for name in ("0", "1", "2"):
        remove_end(session, name)
    session.prune(ended_runs.ENDED)


def test_a_master_that_stood_still_after_it_had_looked_puts_nothing_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw its run under way; then another ended it and cleared it up, and it was elected once more."""
    conf = place.conf()
    master, election, tracker = place.master(conf)
    master.claim_name(takes_over=False)
    master.register(takes_over=False)
    tracker.store.put(HEAD, head(4))
    restore = master.place.register.restore

    def stand_still(fence: str) -> None:
        election.resign()
        standby, leads, _ = place.master(conf)
        standby.clear_up()
        leads.resign()
        _, again, _ = place.master(conf)
        master.place.register._election, master._conf_node._fence = again, lambda: again.fence
        restore(fence)

    monkeypatch.setattr(master.place.register, "restore", stand_still)
    master.restore()
    assert place.registered() is None
    assert find_incarnation(tracker.store, place.name) == ""


def test_a_conf_that_another_run_has_registered_since_then_is_not_replaced(place: Place) -> None:
    master, election, tracker = place.master(place.conf())
    master.register(takes_over=False)
    tracker.store.put(HEAD, head(4))
    place.wipe("a")
    host, port = place.address("a").split()
    other = place.conf(run=f"{place.name}-other")
    ZooKeeperConfigurationRegister(other, place.address("a").id, host, port, session=place.session()).register()
    until(lambda: election.is_leader and election.fence and place.exists(election.fence), what="the next election")
    master.restore()
    assert place.registered() == other
    with pytest.raises(TrackerError, match="that of another run"):
        drive(master.may_begin())


# --- one host and one process number, as in two containers ------------------------------------------------------------


def test_a_worker_to_drain_is_told_from_the_master_by_its_process_and_not_by_host_and_number(place: Place) -> None:
    conf = place.conf()
    with standing(place.address("a"), conf) as master:
        tracker, info = place.tracker(conf), master.election.info
        for process in ("vm-1-12345678", master.process):
            record = WorkerRecord(id=f"{process}-0", host=info["host"], pid=info["pid"], beat=0.0)
            tracker.store.put(Keys.worker(record.id), encode_record(record))
        assert "was asked to leave" in drain_worker(conf, place.address("a"), tracker, "vm-1-12345678-0")
        with pytest.raises(UsageError, match="works in the process of the master"):
            drain_worker(conf, place.address("a"), tracker, f"{master.process}-0")


def test_a_master_goes_on_while_a_standby_has_been_elected_that_does_not_take_office(place: Place) -> None:
    conf = place.conf()
    master, election, tracker = place.master(conf)
    master.register(takes_over=False)
    with standing(place.address("a"), conf, standby=True) as standby:
        election.step_back(60.0)
        until(lambda: standby.election.is_leader, what="the standby is elected")
        assert not election.is_leader
        master.check()
        tracker.store.put(OFFICE, json.encode(standby.election.nonce))
        with pytest.raises(TrackerError, match="has another master"):
            master.check()
