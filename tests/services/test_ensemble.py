"""Servers on several hosts: what is a set of them, what each host's own are told, and what its user is to type."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from dl4jlegacy.cli.commands import services as command
from dl4jlegacy.errors import UsageError
from dl4jlegacy.services import Services, ServicesState, servers
from dl4jlegacy.services.ensemble import Ensemble, ensemble_of, shared_cluster_name
from dl4jlegacy.services.grid import grid_of
from dl4jlegacy.services.java import Java
from dl4jlegacy.services.processes import ServerProcess
from dl4jlegacy.services.settings import member_settings, zookeeper_settings

HOSTS = ("10.7.0.1", "10.7.0.2", "10.7.0.10")
SET = Ensemble(hosts=HOSTS, witnesses=("10.7.0.10",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hosts": HOSTS[:2]}, "give 3, 5 or 7 hosts"),
        ({"hosts": (*HOSTS, "10.7.0.4")}, "give 3, 5 or 7 hosts"),
        ({"hosts": (*HOSTS[:2], "10.7.0.1")}, "one of them is there twice"),
        ({"hosts": ("10.7.0.4", "10.7.0.2", "10.7.0.3")}, "--host 10.7.0.1 is none of --hosts"),
        ({"hosts": ("10.7.0.1:2181", "10.7.0.2", "10.7.0.3")}, "'10.7.0.1:2181' is no numeric address.*without ports"),
        ({"hosts": ("first", "second", "third")}, "'first' is no numeric address"),
        ({"witnesses": ("10.7.0.9",)}, "--witness 10.7.0.9 is none of"),
        ({"witnesses": HOSTS[1:]}, "leaves fewer than two hosts with a Hazelcast member"),
        ({"hosts": (), "witnesses": HOSTS[2:]}, "belongs to --hosts"),
        ({"hazelcast_port": 0}, "port 0, a free one, would be another one on each host"),
        ({"members": 2}, "leave out --members"),
        ({"zookeeper": False}, "one Zookeeper server"),
        (
            {},
            "one --cluster-name NAME on all of them, or the run's secret.*: copy the file of .*; only where",
        ),
    ],
)
def test_what_is_no_set_of_hosts_is_refused_with_what_to_do(tmp_path: Path, monkeypatch, given, message) -> None:
    for name in ("DL4J_SECRET", "DL4J_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    usual = {"host": "10.7.0.1", "hosts": HOSTS, "hazelcast_port": None, "zookeeper_port": None}
    with pytest.raises(UsageError, match=message):
        Services.up(folder=tmp_path, **{**usual, **given})
    assert not (tmp_path / "services.json").exists()


def test_every_host_has_the_same_set_in_whatever_order_it_was_told() -> None:
    one, other = (ensemble_of("10.7.0.2", each, HOSTS[2:], None, None) for each in (HOSTS, HOSTS[::-1]))
    assert one == other == SET
    assert one.hazelcast == ("10.7.0.1:5701", "10.7.0.2:5701")
    assert one.zookeeper == ("10.7.0.1:2181", "10.7.0.2:2181", "10.7.0.10:2181")


def test_the_servers_of_a_host_know_the_others_and_a_witness_has_no_member(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("dl4jlegacy.services.servers.fetch_jars", lambda wanted: [Path("x.jar")])
    started = {}
    for host in HOSTS:
        folder = tmp_path / host
        folder.mkdir()
        factory = servers._ServerFactory(folder, Java(Path("java"), 21), cluster_name="c", heap="1g", host=host)
        started[host] = [server.name for server in factory.servers_of(SET)]
    assert started == {
        "10.7.0.1": ["hazelcast-1", "zookeeper"],
        "10.7.0.2": ["hazelcast-1", "zookeeper"],
        "10.7.0.10": ["zookeeper"],
    }
    second = json.loads((tmp_path / "10.7.0.2/hazelcast-1.yaml").read_text())["hazelcast"]
    network = second["advanced-network"]
    assert network["join"]["tcp-ip"]["member-list"] == ["10.7.0.2:6701", "10.7.0.1:6701"]
    assert [network[end]["interfaces"]["interfaces"] for end in network if "socket" in end] == [["10.7.0.2"]] * 3
    assert second["map"]["default"]["backup-count"] == 1
    assert "split-brain-protection" not in second  # of two the one that is left serves
    asked = [(tmp_path / host / "zookeeper.cfg").read_text().splitlines() for host in HOSTS]
    for lines in asked:
        named = [line for line in lines if line.startswith("server.")]
        assert named == [f"server.{n}={host}:2888:3888" for n, host in enumerate(HOSTS, 1)]
    assert [(tmp_path / host / "zookeeper-data/myid").read_text() for host in HOSTS] == ["1", "2", "3"]


def test_of_three_hosts_with_members_only_the_greater_part_serves_and_a_server_alone_knows_of_no_others() -> None:
    three = json.loads(member_settings(5701, [5701], "c", HOSTS[0], others=HOSTS[1:]))
    assert three["hazelcast"]["split-brain-protection"]["majority"]["minimum-cluster-size"] == 2
    assert "server." not in zookeeper_settings(2181, Path("data")) + zookeeper_settings(2181, Path("data"), HOSTS[0])


def test_all_hosts_derive_one_name_from_the_secret_that_does_not_tell_it() -> None:
    names = {shared_cluster_name({"DL4J_SECRET": secret}) for secret in ("a long secret of it", "another long secret")}
    assert len(names) == 2 and not any("secret" in name for name in names)
    assert shared_cluster_name({"DL4J_SECRET": "a long secret of it"}) in names


@pytest.fixture
def of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServicesState:
    """What the first host has of the set; its servers are taken to run."""
    monkeypatch.setattr(servers.Server, "is_running", True)
    own = [("hazelcast-1", 5701), ("zookeeper", 2181)]
    process = ServerProcess(pid=1, mark="another start")
    there = tuple(servers.Server(name=n, port=port, command=(), host=HOSTS[0], process=process) for n, port in own)
    state = ServicesState(cluster_name="mine", folder=str(tmp_path), servers=there, ensemble=SET)
    (tmp_path / "services.json").write_bytes(msgspec.json.encode(state))
    monkeypatch.setenv("DL4J_SERVICES", str(tmp_path))
    return state


def test_the_addresses_are_those_of_all_hosts_and_a_master_finds_the_clusters_name(of_a_host: ServicesState) -> None:
    assert of_a_host.hazelcast == "10.7.0.1:5701,10.7.0.2:5701"
    assert of_a_host.zookeeper == "10.7.0.1:2181,10.7.0.2:2181,10.7.0.10:2181"
    assert Services.status(Path(of_a_host.folder)) == of_a_host
    in_another_order = "10.7.0.2:5701,10.7.0.1:5701"
    assert grid_of(f"hazelcast://{in_another_order}", None) == (in_another_order, "mine")


def test_a_member_is_waited_for_until_it_sees_those_of_other_hosts(of_a_host, capsys, monkeypatch) -> None:
    seen = [1]
    monkeypatch.setattr(
        servers.Server, "answers", lambda self, members: self.name == "zookeeper" or seen[-1] >= members
    )
    assert of_a_host.silent == ("hazelcast-1",)
    command._show(of_a_host, "text", of_a_host.silent)
    assert "waiting    hazelcast-1: no host may be lost before it sees all 2 members" in capsys.readouterr().out
    seen.append(2)
    assert of_a_host.silent == ()


def test_a_host_says_what_to_type_on_the_others_and_that_it_waits_for_them(of_a_host, capsys, monkeypatch) -> None:
    monkeypatch.setenv("DL4J_SECRET", "a secret of this test")
    command._show(of_a_host, "text", ("zookeeper",))
    out, err = capsys.readouterr()
    assert "waiting    zookeeper: it serves once it sees 2 of 3 hosts" in out and "hazelcast-1: no host" not in out
    for host in HOSTS[1:]:
        flags = f"--host {host} --hosts {','.join(HOSTS)} --witness 10.7.0.10 --cluster-name mine"
        assert f"dl4j services up {flags}" in " ".join(err.split())
    assert f"--tracker hazelcast://{of_a_host.hazelcast}" in err and f"--zookeeper {of_a_host.zookeeper}" in err
