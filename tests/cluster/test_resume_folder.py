"""``dl4j resume DIR --tracker ... --zookeeper ...``: a run goes on where nobody has ever seen it."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dl4jlegacy.cli.options.conf_options import resume_changes
from dl4jlegacy.cli.options.read import ResumeOptions
from dl4jlegacy.cluster.leadership import MasterOptions
from dl4jlegacy.cluster.master import resume_from_checkpoints, resume_run, run_master, stand_by
from dl4jlegacy.errors import CheckpointError, Dl4jError, TrackerError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity
from dl4jlegacy.scaleout.state.records import HEAD
from dl4jlegacy.training import prepare as training
from dl4jlegacy.training import run_data
from dl4jlegacy.training.run import resolve
from tests.support.cluster_commands import RUN, SHORTER, Cluster, error, same, until
from tests.support.places import Place, head, interrupted

pytestmark = pytest.mark.cluster

Resume = Callable[..., training.Report]


@pytest.fixture
def resume(place: Place) -> Resume:
    def resume(conf: Conf, id: str = "a", **changes: object) -> training.Report:
        members = {
            "state_tracker_connection_string": place.servers.hazelcast,
            "cluster_name": place.servers.cluster_name,
        }
        return resume_from_checkpoints(conf.replace(**members, **changes), place.address(id), MasterOptions())

    return resume


def test_a_run_from_elsewhere_goes_on_with_the_same_bits(place, stopped, resume):
    conf, expected = stopped
    folder = CheckpointStore(conf.checkpoint_dir)
    begun = folder.newest()[0].batches
    report = resume(conf)
    assert 0 < begun < report.fields["batches"]
    for name in ("params_sha256", "examples", "batches", "rounds", "score", "batches_lost", "batches_duplicated"):
        assert report.fields[name] == expected.fields[name], name
    assert folder.kept("incarnation") == conf.incarnation
    assert folder.kept("state_tracker_connection_string") == place.servers.hazelcast
    assert place.registered("a") is None and place.tracker(conf).store.keys("") == []


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(place, stopped, resume, caplog):
    """Only its Conf is there: what a master is started again with, whatever the folder has."""
    conf, expected = stopped
    for file in Path(conf.checkpoint_dir).glob("*-*"):
        file.unlink()
    report = resume(conf)
    assert report.fields["params_sha256"] == expected.fields["params_sha256"]
    assert f"run {conf.run} goes on before its first round" in caplog.messages


def in_use(place: Place, conf: Conf) -> None:
    other = CheckpointStore(conf.checkpoint_dir, owner=RunIdentity.of(conf))
    place.callback(other.release)
    other.keep_conf(conf)


def led_elsewhere(place: Place, conf: Conf) -> None:
    master, _, tracker = place.master(conf.replace(state_tracker_connection_string=place.servers.hazelcast), "b")
    master.claim_name(takes_over=True)
    tracker.store.put(HEAD, head(1))


def name_taken(place: Place, conf: Conf) -> None:
    master, _, tracker = place.master(place.conf(run=conf.run), "b")
    master.claim_name(takes_over=False)
    tracker.store.put(HEAD, head(1))


def id_taken(place: Place, conf: Conf) -> None:
    master, election, _ = place.master(place.conf(run=f"{place.name}-other"), "a")
    master.register(takes_over=False)
    election.resign()


def no_checkpoints(place: Place, conf: Conf) -> None:
    for file in Path(conf.checkpoint_dir).glob("checkpoint-*"):
        file.write_text("{}")


@pytest.mark.parametrize(
    ("before", "kind", "words"),
    [
        (in_use, CheckpointError, "is in use by another run or process"),
        (led_elsewhere, TrackerError, "has a master already, on .* with the id .*-b"),
        (name_taken, TrackerError, "another run has got its name"),
        (id_taken, TrackerError, "has been given to another run, .*-other"),
        (no_checkpoints, CheckpointError, "none of the .* checkpoints in .* is usable"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_go_on_is_refused_and_changes_nothing(place, stopped, resume, before, kind: type[Dl4jError], words):
    conf, _ = stopped
    before(place, conf)
    registered, folder = place.registered("a"), Path(conf.checkpoint_dir)
    files = {file.name: file.read_bytes() for file in folder.glob("*.*") if file.name not in (".lock", "conf.json")}
    with pytest.raises(kind, match=words):
        resume(conf)
    assert place.registered("a") == registered
    assert {file.name: file.read_bytes() for file in folder.glob("*.*") if file.name in files} == files


@pytest.mark.long
def test_what_the_grid_has_of_the_same_run_is_newer_and_counts(place, stopped, resume):
    conf, expected = stopped
    conf = conf.replace(state_tracker_connection_string=place.servers.hazelcast)
    tracker = place.tracker(conf)
    tracker.store.put(HEAD, head(3, "stopped"))
    with pytest.raises(Dl4jError, match="was stopped"):
        resume(conf)
    assert resume(conf).fields["params_sha256"] == expected.fields["params_sha256"]  # it was cleared up then


@pytest.mark.long
def test_a_killed_run_goes_on_elsewhere_with_workers_that_join(cluster: Cluster, tmp_path: Path) -> None:
    """With processes: killed on this machine without any cluster, it goes on in one, is killed there, and once more."""
    folder = tmp_path / "checkpoints"
    cluster.hold(5)
    flags = ("--epochs", SHORTER, "--workers", "2", "--checkpoint-dir", str(folder), "--checkpoint-every", "2")
    first = cluster.start("train", *RUN, *flags, "--run", "r1")
    until(lambda: CheckpointStore(folder).versions(), what="a checkpoint")
    first.process.send_signal(signal.SIGKILL)
    first.wait()
    cluster.hold(9)
    again = ("resume", str(folder), *cluster.master_flags, "--id", "mine", "--format", "json")
    second = cluster.start(*again)
    worker = cluster.worker("--id", "mine")
    worker.says("joined")
    until(lambda: (cluster.status("--id", "mine").get("round") or 0) > 8)
    second.process.kill()
    second.wait()
    cluster.let_go()
    third = cluster.start(*again, "--workers", "0")  # with the worker that waits for it
    assert same(third, int(SHORTER))["run"] == "r1"
    assert worker.wait() == 0
    events = [json.loads(line)["event"] for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert events.count("master_took_over") == 2
    assert cluster.left_over() == []


@pytest.mark.long
def test_where_it_is_to_go_on_is_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = cluster.start("train", "--dataset", "iris", "--epochs", "1", "--checkpoint-dir", str(folder))
    assert done.wait() == 0
    error(cluster.start("resume", str(folder), "--tracker", "hazelcast://127.0.0.1:1"), 2, "--zookeeper is missing")
    error(cluster.start("resume", str(folder), "--tracker", "grid"), 2, "give hazelcast://host:port")
    assert cluster.start("resume", str(folder), "--zookeeper", "127.0.0.1:1").wait() == 0  # on this machine


# --- taking over, with or without the run's checkpoints ---------------------------------------------------------------


ELSEWHERE = r"had come to version .* none of its checkpoints is in .* give all masters of a run the same folder"


@pytest.mark.long
@pytest.mark.parametrize(
    ("in_grid", "in_folder", "words"),
    [(True, True, ""), (True, False, "none of the checkpoints of run"), (False, True, "from a checkpoint, since")],
)
def test_a_run_is_resumed_from_the_grid_or_else_from_a_checkpoint(place, stopped, caplog, in_grid, in_folder, words):
    conf, election = interrupted(place, stopped[0], in_grid=in_grid, in_folder=in_folder)
    election.resign()
    report = resume_run(conf, place.address("a"), MasterOptions())
    assert report.fields["params_sha256"] == stopped[1].fields["params_sha256"]
    warnings = [record.getMessage() for record in caplog.records if "checkpoint" in record.getMessage()]
    assert [words in warning for warning in warnings] == ([True] if words else [])


def test_a_run_whose_checkpoints_are_elsewhere_is_not_begun_anew_by_resume(place, stopped):
    conf, election = interrupted(place, stopped[0], in_grid=False, in_folder=False)
    election.resign()
    before = place.tracker(conf).head()
    with pytest.raises(CheckpointError, match=ELSEWHERE):
        resume_run(conf, place.address("a"), MasterOptions())
    assert place.tracker(conf).head() == before and place.registered("a") == conf
    assert not Path(conf.checkpoint_dir).exists()


@pytest.mark.parametrize(
    ("loses", "error", "words"),
    [
        ("the model", CheckpointError, ELSEWHERE),
        ("everything", TrackerError, "have had no model of it for .* and no ch"),
    ],
)
def test_a_run_whose_checkpoints_are_elsewhere_is_not_begun_anew_by_a_standby(place, stopped, loses, error, words):
    conf, election = interrupted(place, stopped[0], in_grid=False, in_folder=False, wait_seconds=1.0)
    stands_by = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        standby = pool.submit(stand_by, conf, place.address("a"), MasterOptions(), on_stand_by=stands_by.set)
        assert stands_by.wait(60)
        if loses == "everything":
            place.tracker(conf).store.destroy()
        election.resign()
        with pytest.raises(error, match=words):
            standby.result(60)
    assert not Path(conf.checkpoint_dir).exists()
    assert place.registered("a") == conf


def test_folders_are_registered_so_that_they_mean_the_same_elsewhere(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resume_changes(ResumeOptions(run="r", data_dir="data"), Conf())["data_dir"] == str(tmp_path / "data")
    conf = Conf(dataset="iris", epochs=1, workers=1, checkpoint_dir="mine", run=f"{place.name}-r")
    conf = conf.replace(
        state_tracker_connection_string=place.servers.hazelcast, cluster_name=place.servers.cluster_name
    )
    data = run_data.load_data("iris")
    conf = training.with_network(conf, data, frozenset({"epochs", "workers"}))
    run = resolve(conf, training.batches(conf, data), on_cluster=True)
    run_master(run, data, place.address("a"))
    kept = CheckpointStore(tmp_path / "mine").kept("checkpoint_dir")
    assert kept == str(tmp_path / "mine")
