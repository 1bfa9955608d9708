"""A run without a secret believes whatever it reads: warned of on loopback, refused beyond. No servers are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.cli.commands import legacy
from dl4jlegacy.cluster import address as address_module
from dl4jlegacy.cluster import leadership, master, runs, standby, worker
from dl4jlegacy.cluster.address import Access, ClusterAddress, open_tracker
from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.system.secret import allows_unsigned, beyond_loopback

HERE, THERE = "127.0.0.1:1", "192.0.2.1:2181"
TRAINS = ("--model", "mlp", "--dataset", "iris", "--tracker")
SECRET = "a secret of sixteen bytes or more"
FORGED = Conf(
    run="theirs",
    dataset="/home/somebody/.ssh/id_ed25519",
    checkpoint_dir="/home/somebody/.config/autostart",
    state_tracker_connection_string="203.0.113.9:5701",
    cluster_name="dev",
)


@dataclass(frozen=True)
class OnlyConf:
    """As much of a ``Run`` as is looked at before any server is."""

    conf: Conf


@pytest.fixture
def unsigned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A terminal without a secret, in an empty folder, from which no server is reached."""
    for name in ("DL4J_SECRET", "DL4J_SECRET_FILE", "DL4J_ALLOW_UNSIGNED", "DL4J_ZOOKEEPER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def session(address: str, **given: object) -> NoReturn:
        raise TrackerError(f"no connection to {address}")

    monkeypatch.setattr(leadership, "ZooKeeperSession", session)
    monkeypatch.setattr(address_module, "ZooKeeperSession", session)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(NotAuthorisedError, match=r"203\.0\.113\.9:5701 is beyond this machine's loopback"):
        yield


def leave(call: Callable[[], object]) -> object:
    with pytest.raises(SystemExit) as left:
        call()
    return left.value.code


COMMANDS = [
    ("master", *TRAINS, "hazelcast://127.0.0.1:1"),
    ("train", *TRAINS, "hazelcast://127.0.0.1:1"),
    ("master", "--standby"),
    ("resume", "r1"),
    *(("worker",), ("status",), ("logs",), ("stop",), ("runs",), ("runs", "--clean")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_without_a_secret_goes_to_a_server_beyond_loopback(command, unsigned, capsys) -> None:
    assert leave(lambda: main.main([*command, "--zookeeper", THERE])) == 6
    said = capsys.readouterr().err
    for words in (f"Zookeeper at {THERE} is beyond", "head -c 32 /dev/urandom", "export DL4J_SECRET_FILE="):
        assert words in said
    assert said.index("copy the file of the run's secret") < said.index("only where no machine has one yet, make")
    assert "DL4J_ALLOW_UNSIGNED=1" in said


def test_a_master_without_a_secret_does_not_put_its_run_on_a_tracker_beyond_loopback(unsigned, capsys) -> None:
    named = f"hazelcast://{THERE}"
    for command in (["master", *TRAINS, named, "--zookeeper", HERE], ["runs", "--tracker", named]):
        assert leave(lambda command=command: main.main(command)) == 6
        assert f"the tracker at {THERE} is beyond" in capsys.readouterr().err


def test_a_grid_or_a_zookeeper_elsewhere_that_somebody_has_named_is_not_asked_for_its_runs(
    unsigned, monkeypatch
) -> None:
    def asked(*given: object, **more: object) -> NoReturn:
        pytest.fail(f"it was asked: {given}")

    registry = runs._Registry({"theirs": FORGED}, {}, {})
    monkeypatch.setattr(runs, "_registry", lambda address: registry)
    monkeypatch.setattr(runs, "HazelcastStore", asked)
    [found] = runs.find_runs(HERE, [], Access())
    assert (found.run, found.state(), found.unseen, found.standing) == ("theirs", None, "not asked", "unknown")
    monkeypatch.setattr(runs, "_registry", asked)
    assert runs._Registries("", Access()).of(THERE) is None


def test_the_command_of_2014_is_no_way_around_it(unsigned, capsys) -> None:
    assert leave(lambda: legacy.main(["-t", "worker", "-ad", "192.0.2.1"])) == 6
    assert "192.0.2.1:2181 is beyond" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", [{"DL4J_SECRET": SECRET}, {"DL4J_ALLOW_UNSIGNED": "1"}], ids=["a secret", "the user's leave"]
)
def test_a_secret_or_the_users_leave_lets_it_go_there(given, unsigned, capsys, monkeypatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert leave(lambda: main.main(["worker", "--zookeeper", THERE])) == 4
    assert f"no connection to {THERE}" in capsys.readouterr().err


def test_a_forged_conf_that_names_a_tracker_elsewhere_makes_nobody_touch_a_file(unsigned, monkeypatch) -> None:
    def touched(*given: object, **more: object) -> NoReturn:
        pytest.fail(f"a file that the Conf names was looked for: {given}")

    monkeypatch.setattr(master, "reload", touched)
    address, options = ClusterAddress(HERE), leadership.MasterOptions()
    run: Any = OnlyConf(FORGED)
    data: Any = None
    with refused():
        master.stand_by(FORGED, address, options)
    with refused():
        master.resume_run(FORGED, address, options)
    with refused():
        master.run_master(run, data, address, options)
    with refused():
        open_tracker(FORGED, address, registered=True)  # as a worker, status, logs and stop do


def test_whoever_takes_part_in_a_run_without_a_secret_is_warned(unsigned, monkeypatch, caplog) -> None:
    here = FORGED.replace(state_tracker_connection_string=HERE)
    run: Any = OnlyConf(here)
    data: Any = None
    monkeypatch.setattr(master, "training_data", lambda *given: data)

    def warned(call: Callable[[], object]) -> bool:
        caplog.clear()
        with pytest.raises(TrackerError):
            call()
        return "run theirs is not signed" in caplog.text and "DL4J_SECRET_FILE" in caplog.text

    monkeypatch.setattr(master, "reload", lambda *given, **more: data)
    for module in (leadership, standby):
        monkeypatch.setattr(module, "resolve_registered", lambda *given, **more: run)
    calls = [
        lambda address: master.run_master(run, data, address),
        lambda address: master.stand_by(here, address, leadership.MasterOptions()),
        lambda address: master.resume_run(here, address, leadership.MasterOptions()),
    ]
    for call in calls:
        assert warned(lambda call=call: call(ClusterAddress(HERE)))
        assert not warned(lambda call=call: call(ClusterAddress(HERE, SECRET.encode())))

    def nowhere(*given: object, **more: object) -> NoReturn:
        raise TrackerError("no tracker")

    monkeypatch.setattr(worker, "is_search", lambda *given: False)
    monkeypatch.setattr(worker, "find_conf", lambda *given, **more: here)
    monkeypatch.setattr(worker, "ZooKeeperSession", lambda *given, **more: contextlib.nullcontext())
    monkeypatch.setattr(worker, "open_tracker", nowhere)
    assert warned(lambda: worker.run_worker(ClusterAddress(HERE)))
    assert not warned(lambda: worker.run_worker(ClusterAddress(HERE, SECRET.encode())))


@pytest.mark.parametrize(
    ("addresses", "outside"),
    [
        ("127.0.0.1:5701,127.9.9.9:1,localhost:2,[::1]:3", []),
        ("hazelcast://127.0.0.1:5701", []),
        ("127.0.0.1:5701,10.0.0.1:5701,zk.example:1", ["10.0.0.1:5701", "zk.example:1"]),
        ("0.0.0.0:1,[::]:1,[fd00::1]:1", ["0.0.0.0:1", "[::]:1", "[fd00::1]:1"]),
        (
            "localhost.example:1,127.0.0.1.example:1,localhost",
            ["localhost.example:1", "127.0.0.1.example:1", "localhost"],
        ),
        ("127.0.0.1@10.0.0.1:1,2130706433:1,127.1:1", ["127.0.0.1@10.0.0.1:1", "2130706433:1", "127.1:1"]),
    ],
)
def test_loopback_is_what_is_written_as_loopback(addresses: str, outside: list[str]) -> None:
    assert beyond_loopback(addresses) == outside


def test_the_users_leave_is_given_in_one_way() -> None:
    assert [allows_unsigned(given) for given in ({}, {"DL4J_ALLOW_UNSIGNED": "0"}, {"DL4J_ALLOW_UNSIGNED": "1"})] == [
        *(False, False, True)
    ]
    for other in ("", "yes", "true"):
        with pytest.raises(ConfError, match="1 lets runs without a secret"):
            allows_unsigned({"DL4J_ALLOW_UNSIGNED": other})
