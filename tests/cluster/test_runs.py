"""``dl4j runs``: what lies in a grid and in Zookeeper is listed, and what nobody can go on with is removed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from dl4jlegacy.cli.main import main
from dl4jlegacy.cluster.address import Access, find_incarnation
from dl4jlegacy.cluster.runs import FoundRun, Grid, clean, find_runs
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker, HazelcastStore
from dl4jlegacy.scaleout.protocol import NAMES
from dl4jlegacy.scaleout.state.records import HEAD, WorkerRecord
from dl4jlegacy.scaleout.tracker import drive
from tests.support.cluster_commands import Cluster, error, until
from tests.support.places import SECRET, Place, head

pytestmark = pytest.mark.cluster


def begin(
    place: Place, id: str, name: str, *, registers: bool = True, status: str = "running", **changes: object
) -> Conf:
    """Begin a run; its master leads until ``leave``."""
    master, _, tracker = place.master(place.conf(run=f"{place.name}-{name}", **changes), id)
    master.claim_name(takes_over=False)
    if registers:
        master.register(takes_over=False)
    if status:
        tracker.store.put(HEAD, head(2, status))
    return master._conf


def leave(place: Place, conf: Conf) -> None:
    """End a master as if it was killed."""
    place.masters[conf.incarnation]._election.resign()


@pytest.fixture
def grid(place: Place) -> Grid:
    return Grid(place.servers.hazelcast, place.servers.cluster_name)


@pytest.fixture
def found(place: Place, grid: Grid) -> Callable[..., dict[str, FoundRun]]:
    """Return the runs of this test, by what follows the test's name in theirs."""

    def find(zookeeper: str = place.servers.zookeeper, secret: bytes | None = SECRET) -> dict[str, FoundRun]:
        runs = find_runs(zookeeper, [grid], Access(secret))
        return {run.run.removeprefix(f"{place.name}-"): run for run in runs if run.run.startswith(place.name)}

    return find


@pytest.fixture
def dl4j(place: Place, monkeypatch, capsys) -> Callable[..., str]:
    """Run a command in this process; return what it prints."""
    monkeypatch.setenv("DL4J_SECRET", SECRET.decode())

    def run(*arguments: str, status: int = 0) -> str:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert left.value.code == status, err
        return out or err

    return run


@pytest.mark.long
def test_each_kind_of_run_is_told_from_the_others_and_only_what_is_abandoned_is_removed(place, found, dl4j, grid):
    confs = {
        "live": begin(place, "a", "live"),
        "beginning": begin(place, "b", "beginning", registers=False, status=""),
        "interrupted": begin(place, "c", "interrupted"),
        "failed": begin(place, "d", "failed", status="failed"),
        "over": begin(place, "e", "over", status="stopped"),
        "unwritten": begin(place, "i", "unwritten", status="done"),
        "unbegun": begin(place, "f", "unbegun", status=""),
        "kept": begin(place, "g", "kept", status="", checkpoint_dir="/somewhere"),
        "replaced": begin(place, "h", "replaced"),
    }
    for name in ("interrupted", "failed", "over", "unwritten", "unbegun", "kept", "replaced"):
        leave(place, confs[name])
    confs["next"] = begin(place, "h", "next")  # under the same id: nobody can resume the one before any more
    stranger = place.tracker(place.conf(run=f"{place.name}-foreign"), b"another secret of this test")
    stranger.store.put(HEAD, head(1))
    stranger.store.sibling(NAMES).put(f"{place.name}-foreign/{'0' * 16}", b"its record")
    standings = {
        **dict.fromkeys(("live", "beginning", "next"), "live"),
        **dict.fromkeys(("interrupted", "failed", "unwritten", "kept"), "resumable"),
        **dict.fromkeys(("over", "unbegun", "replaced"), "abandoned"),
        "foreign": "unknown",
    }
    assert {name: run.standing for name, run in found().items()} == standings
    states = {name: run.state() for name, run in found().items()}
    assert states.pop("foreign") is None
    assert {name: state.state for name, state in states.items()} == {
        **dict.fromkeys(("live", "beginning", "next"), "waiting"),  # for workers
        **dict.fromkeys(("failed", "over", "unwritten", "replaced"), "ended"),
        **dict.fromkeys(("interrupted", "unbegun", "kept"), "stalled"),
    }
    assert found()["live"].master["pid"] == os.getpid()
    flags = ("--tracker", f"hazelcast://{grid.members}", "--cluster-name", grid.cluster_name)
    flags = (*flags, "--zookeeper", place.servers.zookeeper)
    entries = json.loads(dl4j("runs", *flags, "--clean", "--format", "json"))["runs"]
    ours = {e["run"].removeprefix(f"{place.name}-"): e for e in entries if e["run"].startswith(place.name)}
    assert {name for name, entry in ours.items() if entry["removed"]} == {"over", "unbegun", "replaced"}
    assert (ours["live"]["version"], ours["live"]["round"], ours["live"]["status"]) == (2, 2, "running")
    assert ours["live"]["bytes"] > 0 and 0 <= ours["live"]["age_seconds"] < 120
    left = {name: standing for name, standing in standings.items() if standing != "abandoned"}
    assert {name: run.standing for name, run in found().items()} == left
    store = place.tracker(confs["live"]).store
    for name, conf in confs.items():
        assert (find_incarnation(store, conf.run) == "") == (name in ("over", "unbegun", "replaced")), name
    assert place.registered("h") == confs["next"] and place.registered("e") is None
    shown = dl4j("runs", *flags, "--clean")
    assert "dl4j resume" in next(line for line in shown.splitlines() if "goes on with it" in line)
    stranger.store.sibling(NAMES).delete(f"{place.name}-foreign/{'0' * 16}")


def test_a_run_that_somebody_does_anything_for_since_it_was_listed_is_not_removed(place, found):
    beats, comes_back, finished = (begin(place, id, id, registers=id != "a") for id in "abc")
    for conf in (beats, comes_back, finished):
        leave(place, conf)
    assert found()["a"].standing == "abandoned"
    place.tracker(finished).store.put(HEAD, head(2, "stopped"))
    place.tracker(comes_back).store.put(HEAD, head(2, "stopped"))
    runs = list(found().values())
    assert {run.standing for run in runs} == {"abandoned"}
    place.tracker(beats).add_worker(WorkerRecord(id="w", host="h", pid=1, beat=5.0))
    master, _, _ = place.master(comes_back, "b")
    assert [run.run for run in clean(runs, Access(SECRET), quiet_seconds=0.0)] == [finished.run]
    assert place.registered("b") == comes_back and place.registered("c") is None
    for conf in (beats, comes_back):
        assert place.tracker(conf).head() is not None
    master.clear_up()


DEAD = "127.0.0.1:1"
"""Where no grid is."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connecting where no grid is take a moment only."""
    connect = HazelcastStore.__init__

    def connect_soon(store: HazelcastStore, address: str, **given: Any) -> None:
        connect(store, address, **{**given, **({"deadline_seconds": 0.2} if address == DEAD else {})})

    monkeypatch.setattr(HazelcastStore, "__init__", connect_soon)


def test_a_run_whose_grid_is_gone_for_ever_is_removed_on_request(place, dl4j, impatient, monkeypatch):
    conf = begin(place, "a", "a", state_tracker_connection_string=DEAD, checkpoint_dir="/somewhere")
    leave(place, conf)
    flags = ("--zookeeper", place.servers.zookeeper)
    its = (*flags, "--id", place.address("a").id)
    gone = f"`dl4j stop {' '.join(its)} --lost-grid`"
    listed = dl4j("runs", *flags, "--clean")
    assert f"no master, and its grid at {DEAD} does not answer: stays" in listed and gone in listed
    assert f"  stalled: its grid at {DEAD} does not answer" in listed
    assert gone in dl4j("stop", *its, status=4)
    monkeypatch.setenv("DL4J_SECRET", "another secret of this test")
    assert "secret" in dl4j("stop", *its, "--lost-grid", status=6)
    monkeypatch.setenv("DL4J_SECRET", SECRET.decode())
    assert place.registered("a") == conf
    elsewhere = ("--zookeeper", place.servers.zookeeper.replace("127.0.0.1", "localhost"), *its[2:])
    assert "it is not registered any more" in dl4j("stop", *elsewhere, "--lost-grid")
    assert place.registered("a") is None and not place.exists(f"/dl4jlegacy/{place.address('a').id}")
    store = place.tracker(conf).store
    assert find_incarnation(store, conf.run) == conf.incarnation and store.get(HEAD)  # as far as it is anywhere
    assert begin(place, "a", "next") == place.registered("a")


def test_without_its_zookeeper_nothing_is_taken_for_abandoned(place, found, grid):
    conf = begin(place, "a", "a", registers=False)
    leave(place, conf)
    other = place.servers.zookeeper.replace("127.0.0.1", "localhost")
    assert found(other)["a"].standing == "unknown"
    assert found("")["a"].standing == "abandoned"  # the run itself says which Zookeeper it is
    assert clean([found(other)["a"]], Access(SECRET), quiet_seconds=0.0) == []
    live = begin(place, "b", "b")
    assert found(other)["b"].standing == "unknown"
    assert found("")["b"].standing == "live"
    leave(place, live)


def test_the_bytes_are_counted_without_reading_them_all(place, found, monkeypatch):
    conf = begin(place, "a", "a")
    store = place.tracker(conf).store
    before = found()["a"].nbytes
    for number, length in enumerate((store.chunk_nbytes, store.chunk_nbytes, 1000)):
        store.put(f"model/1/x.1/{number}", bytes(length))
    store.put("update/0/1/w/0", bytes(10))
    store.put("model/strange", bytes(7))
    read: list[str] = []
    get = type(store._link).get
    monkeypatch.setattr(type(store._link), "get", lambda link, key: read.append(key) or get(link, key))
    head_nbytes = store.value_nbytes - store.chunk_nbytes
    assert found()["a"].nbytes - before == 2 * store.chunk_nbytes + 1017 + 5 * head_nbytes
    assert "model/1/x.1/2" in read and "model/1/x.1/0" not in read


def test_a_listing_that_a_stranger_damaged_or_removed_comes_back(place, found):
    conf = begin(place, "a", "a")
    names = place.tracker(conf).store.sibling(NAMES)
    stranger = place.tracker(place.conf(), b"another secret of this test").store.sibling(NAMES)
    key = f"{conf.run}/{conf.incarnation}"
    for spoil in (lambda: names.delete(key), lambda: stranger.put(key, b"junk"), lambda: names.put(key, b"junk")):
        began = found()["a"].began
        spoil()
        drive(place.masters[conf.incarnation]._name.keep())
        assert found()["a"].standing == "live" and found()["a"].began == pytest.approx(began, abs=1.0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--tracker or --zookeeper is missing"),
        (["--tracker", "memory"], "give hazelcast://host:port"),
        (["--zookeeper", "here"], "give it as host:port"),
    ],
)
def test_a_place_that_is_none_is_a_usage_error(dl4j, flags, words):
    assert words in dl4j("runs", *flags, status=2)


@pytest.mark.long
def test_a_killed_masters_run_and_the_next_one_of_its_id(cluster: Cluster) -> None:
    """The whole story with processes: killed, followed by another run of the id, listed, cleaned; nothing is left."""
    first = cluster.master("--epochs", "500", "--run", "r1")
    worker = cluster.worker()
    cluster.wait_for_round(1, "r1")
    first.process.kill()
    first.wait()
    second = cluster.master("--epochs", "500", "--run", "r2")
    cluster.wait_for_round(1, "r2")
    standby = cluster.start("master", "--standby", "--zookeeper", cluster.zookeeper, "--format", "json")
    standby.says("standing by: takes over run r2")
    flags = ("--tracker", f"hazelcast://{cluster.hazelcast}", "--cluster-name", cluster.cluster_name)
    shown = json.loads(cluster.ask("runs", *flags, "--format", "json").out())["runs"]
    assert {run["run"]: run["standing"] for run in shown} == {"r1": "abandoned", "r2": "live"}
    assert all(run["bytes"] > 10_000 and run["rounds"] for run in shown)
    assert "removed" in cluster.ask("runs", *flags, "--clean").out()
    assert [line for line in cluster.left_over() if "r1" in line] == []
    cluster.ask("stop")
    error(second, 1, "was stopped")
    error(standby, 1, "run r2 was stopped")
    assert json.loads(standby.out())["error"]["code"] == "DL4J-TRAINING"
    assert worker.wait() == 0
    assert cluster.ask("runs", *flags).out() == "there are no runs\n"
    assert cluster.left_over() == []


@pytest.mark.long
def test_what_nobody_reads_leaves_the_grid_by_itself(own_services, monkeypatch) -> None:
    """The member that ``dl4j services`` sets up, with a shorter time."""
    monkeypatch.setattr("dl4jlegacy.services.settings.IDLE_SECONDS", 2)
    state = own_services(zookeeper=False)
    given = {"cluster_name": state.cluster_name, "secret": None}
    old = HazelcastStateTracker(state.hazelcast, run="r", incarnation="0" * 16, **given)
    with contextlib.closing(old.store):
        for key in (HEAD, "model/0/x/0", "global/conf"):
            old.store.put(key, b"x")
        live = old.store.sibling("r", "1" * 16)
        live.put(HEAD, b"x")
        until(lambda: live.get(HEAD) and not old.store.keys(""), what="the end of what is not read")
        assert live.keys("") == [HEAD]
