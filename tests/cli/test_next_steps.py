"""What a command says on stderr about what to do next: every command line in it can be pasted."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
import typer
from rich.console import Console

from dl4jlegacy.cli.commands import inspect, services
from dl4jlegacy.cli.main import declared
from dl4jlegacy.cli.terminal.next_steps import RunLocation, after_training
from dl4jlegacy.cli.terminal.progress import ProgressDisplay
from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.scaleout.links.liveness.quorum import Waiting
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.services.ensemble import Ensemble
from dl4jlegacy.services.servers import Server, ServicesState
from dl4jlegacy.training.prepare import Report
from dl4jlegacy.training.progress import status_line
from tests.cli.test_progress import Screen

ADDRESS = ClusterAddress("127.0.0.1:2181", None, "mine")
PLAN = Plan(phases=(Phase(kind="finetune", epochs=9),), batches=100, examples=1000, batch_size=10, jobs_per_round=4)
WAITING = RunStatus(PLAN, None, 7.0, (), waiting=Waiting(0, 1, 293.0))
WORKER = "dl4j worker --zookeeper 127.0.0.1:2181 --id mine"


def parsed(line: str) -> dict[str, object]:
    """Return the options of the ``dl4j`` command at the end of a line; fails if the command line does not take it."""
    _, program, arguments = line.partition("dl4j ")
    assert program, line
    name, *rest = shlex.split(arguments.rstrip("`"))
    command = typer.main.get_command(declared([name])).commands[name]  # type: ignore[attr-defined]
    return {"command": name, **command.make_context(name, rest).params}


def report(held_out: int = 30, trained_on: int = 120, **fields: object) -> Report:
    body = {"model_path": None, "dataset": "iris", "accuracy": 0.9, **fields}
    return Report(body, None, (), trained_on=trained_on, held_out=held_out)  # type: ignore[arg-type]


def commands(lines: Iterable[str]) -> list[dict[str, object]]:
    return [parsed(line) for line in lines if "dl4j " in line]


@pytest.mark.parametrize(
    ("fields", "location", "wanted"),
    [
        ({}, RunLocation(), []),
        ({}, RunLocation("my runs/1"), [{"command": "resume", "run": "my runs/1", "out": "model.zip"}]),
        (
            {"model_path": "m y.zip", "dataset": "my data.csv"},
            RunLocation("c"),
            [
                {"command": "evaluate", "model": "m y.zip", "dataset": "my data.csv"},
                {"command": "predict", "model": "m y.zip", "file": "FILE.csv"},
            ],
        ),
        (
            {"model_path": "m.zip", "dataset": "mnist", "accuracy": None},
            RunLocation(data_dir="/some where"),
            [{"command": "evaluate", "dataset": "mnist", "data_dir": "/some where"}],
        ),
        (
            {},
            RunLocation("c d", "r1", ADDRESS),
            [{"command": "resume", "run": "c d", "out": "model.zip"}, {"command": "logs", "folder": "c d"}],
        ),
        ({}, RunLocation("s3://b/c", "r1", ADDRESS), [{"command": "resume", "run": "s3://b/c"}]),
    ],
)
def test_every_command_after_a_training_is_one_that_the_command_line_takes(fields, location, wanted) -> None:
    found = commands(after_training(report(**fields), location))
    assert len(found) == len(wanted)
    for given, has in zip(wanted, found, strict=True):
        assert has | given == has


def test_only_a_fifth_is_called_a_fifth() -> None:
    def first(*counts: int) -> str:
        return next(after_training(report(*counts), RunLocation()))

    assert "held-out fifth of the data: 359 examples" in first(359, 1438)
    assert "held-out part of the data: 10,000 examples" in first(10_000, 60_000)
    assert "1 example, which" in first(1, 4)


def test_a_run_is_found_again_where_it_is() -> None:
    assert RunLocation().resume_command() == RunLocation().worker_command() == ""
    assert parsed(RunLocation("c d").resume_command())["run"] == "c d"
    found = parsed(RunLocation("c", "r1", ADDRESS).resume_command())
    assert (found["run"], found["zookeeper"], found["id"]) == ("r1", "127.0.0.1:2181", "mine")


def test_a_command_off_the_path_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["a folder/dl4j", "train"])
    assert RunLocation("c").resume_command() == f"'{folder}/dl4j' resume c"
    monkeypatch.setattr(sys, "argv", ["/usr/lib/python3/pytest"])
    assert RunLocation("c").resume_command() == "dl4j resume c"


# -- waiting for workers -----------------------------------------------------------------------------------------------


def test_who_waits_for_workers_says_how_to_start_one() -> None:
    file, screen, now = io.StringIO(), Screen(), [0.0]
    with (
        ProgressDisplay(Console(file=file), clock=lambda: now[0], worker_command=WORKER) as plain,
        ProgressDisplay(screen.console, worker_command=WORKER) as display,
    ):
        now[0] = 6.0
        plain.tick(WAITING)
        display.tick(WAITING)
        assert f"start one   {WORKER}" in screen.lines()
    assert file.getvalue() == f"waiting for workers: 0 of 1, giving up in 293 s; start one with: {WORKER}\n"
    assert parsed(file.getvalue())["zookeeper"] == "127.0.0.1:2181"
    assert status_line(WAITING, 0.0) == "waiting for workers: 0 of 1, giving up in 293 s"  # in one process


def status_fields(**fields: object) -> dict[str, object]:
    nothing = {
        "state": "running",
        "reason": "",
        "waiting": None,
        "master": None,
        "standbys": [],
        "workers": [],
        "failures": [],
    }
    return {"run": "r1", "round": 1, "rounds": 9, "examples": 1, "score": None, "head": None, **nothing, **fields}


def test_status_shows_standbys_and_says_how_to_start_what_is_missing() -> None:
    lines = list(inspect._status_lines(status_fields(), ADDRESS))
    assert lines[0] == "run r1: running, round 1 of 9, 1 example, score -"
    assert parsed(lines[-1])["command"] == "worker"
    assert "dl4j resume r1 --zookeeper 127.0.0.1:2181 --id mine" in lines[1]
    standby = {"host": "away", "pid": 7, "standby": True}
    lines = list(inspect._status_lines(status_fields(master={"host": "here", "pid": 6}, standbys=[standby]), ADDRESS))
    assert lines[1:3] == ["master: here, pid 6", "standby: away, pid 7; takes over if the master dies"]


def test_status_shows_the_best_model_of_a_run_that_is_scored_and_what_has_stopped_it() -> None:
    head = {"best": {"score": 0.96875, "round": 7}, "scores": {"without_improvement": 3}, "stopped_by": "MaxEpochs: 4"}
    lines = list(inspect._status_lines(status_fields(state="ended", metric="accuracy", head=head), ADDRESS))
    assert lines[1] == "best: accuracy 0.9688 in round 7, 3 in a row without improvement since"
    assert lines[2] == "stopped by MaxEpochs: 4"
    lines = list(inspect._status_lines(status_fields(head={"best": None, "scores": None, "stopped_by": ""}), ADDRESS))
    assert lines[1].startswith("master: ")


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ServicesState:
    """Servers that are taken to run and to answer; this machine has no secret."""
    for name in ("DL4J_SECRET", "DL4J_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Server, "is_running", True)
    members = tuple(Server(name=f"hazelcast-{i}", port=5700 + i, command=(), host="10.7.0.1") for i in (1, 2))
    zookeeper = Server(name="zookeeper", port=2182, command=(), host="10.7.0.1")
    return ServicesState(cluster_name="mine", folder="/f", servers=(*members, zookeeper))


def test_after_services_up_master_worker_and_standby_are_ready_to_paste(servers, capsys) -> None:
    services._show(servers, "text")
    lines = capsys.readouterr().err.splitlines()
    master, worker, standby = commands(line for line in lines if line.startswith("  "))
    assert (master["command"], worker["command"], standby["command"]) == ("master", "worker", "master")
    assert master["tracker"] == "hazelcast://10.7.0.1:5701,10.7.0.1:5702"
    assert (master["cluster_name"], master["standby"], standby["standby"]) == ("mine", False, True)
    assert {options["zookeeper"] for options in (master, worker, standby)} == {"10.7.0.1:2182"}
    assert "DL4J_SECRET" in lines[-1]
    assert (master["bind"], worker.get("bind")) == ("10.7.0.1", None)
    typed = [line.split()[0] + " " + line.split()[1] for line in lines if line.startswith(("  ", "and on"))]
    assert typed == ["dl4j master", "and on", "dl4j worker", "dl4j master"]  # what other hosts must type stands below


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("DL4J_SECRET_FILE", "/my secret", "export DL4J_SECRET_FILE='/my secret'"),
        ("DL4J_SECRET", "shh", "export the same DL4J_SECRET in every terminal"),
    ],
)
def test_a_secret_is_asked_for_and_never_shown(servers, capsys, monkeypatch, variable, value, words) -> None:
    monkeypatch.setenv(variable, value)
    services._show(servers, "text")
    err = capsys.readouterr().err
    assert words in err and "shh" not in err


@pytest.mark.parametrize("is_set", [False, True])
def test_a_host_of_a_set_is_told_to_copy_a_secret_and_one_alone_to_make_it(servers, capsys, is_set) -> None:
    hosts = Ensemble(hosts=("10.7.0.1", "10.7.0.2", "10.7.0.3"))
    services._show(msgspec.structs.replace(servers, ensemble=hosts if is_set else None), "text")
    last = capsys.readouterr().err.splitlines()[-1]
    begins = "copy the file of the run's secret from a machine" if is_set else "make a file with"
    assert last.startswith(f"These need a secret, since others may reach these servers: {begins}")


def test_as_json_and_for_servers_that_are_down_nothing_is_added(servers, capsys, monkeypatch) -> None:
    services._show(servers, "json")
    services._show(servers, "text", silent=("zookeeper",))
    monkeypatch.setattr(Server, "is_running", False)
    services._show(servers, "text")
    assert capsys.readouterr().err == ""
