"""``VoidConfiguration``, and where a process listens that takes part in a mesh."""

from __future__ import annotations

import pytest

from dl4jlegacy import Conf, VoidConfiguration
from dl4jlegacy.cli.options.mesh import mesh_changes
from dl4jlegacy.cli.options.read import TrainOptions
from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.mesh_membership import joined_mesh, reachable_members
from dl4jlegacy.errors import ConfError, NotAuthorisedError, UsageError
from dl4jlegacy.scaleout.links.mesh.configuration import PORTS
from dl4jlegacy.scaleout.links.mesh.node import Member
from dl4jlegacy.scaleout.workers.plugins import find_router


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mesh_build_mode": "tree"}, "mesh_build_mode is 'tree'"),
        ({"unicast_port": -1}, "unicast_port is -1"),
        ({"unicast_port": 65535}, "unicast_port is 65535"),
        ({"network_mask": "10.7"}, "network_mask is '10.7'; it must be a network, such as 10.7.0.0/24"),
        ({"network_mask": "10.7.0.0/33"}, "network_mask is '10.7.0.0/33'"),
        ({"chunks_buffer_size": 1}, "chunks_buffer_size is 1"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name_and_value(fields: dict, said: str) -> None:
    with pytest.raises(ConfError, match=said):
        VoidConfiguration(**fields)


def test_it_travels_with_the_conf_and_has_no_part_in_the_runs_digest() -> None:
    void = VoidConfiguration(mesh_build_mode="mesh", unicast_port=49876, network_mask="10.7.0.0")
    conf = Conf(router="gradient-sharing", void_configuration=void)
    assert Conf.from_json(conf.to_json()) == conf
    assert conf.digest() == conf.replace(void_configuration=None).digest()
    with pytest.raises(ConfError, match="controller_address"):
        Conf.from_json('{"void_configuration": {"controller_address": "10.7.0.1"}}')


def test_a_router_without_messages_has_no_use_for_it() -> None:
    assert find_router(Conf(router="gradient-sharing", void_configuration=VoidConfiguration())).log_every
    for router in ("iterative-reduce", "hogwild", "easgd"):
        with pytest.raises(ConfError, match=f"given with router {router}"):
            find_router(Conf(router=router, void_configuration=VoidConfiguration()))
    without_rounds = Conf(
        router="gradient-sharing", router_args={"asynchronous": True}, void_configuration=VoidConfiguration()
    )
    with pytest.raises(ConfError, match=r"'asynchronous': True.*gradient-sharing in rounds"):
        find_router(without_rounds)


def test_a_process_listens_on_loopback_unless_a_network_is_named_that_its_machine_is_in() -> None:
    assert VoidConfiguration().listening_host() == "127.0.0.1"
    assert VoidConfiguration(network_mask="127.0.0.0/8").listening_host() == "127.0.0.1"
    assert VoidConfiguration(network_mask="127.0.0.1/32").listening_host() == "127.0.0.1"
    assert VoidConfiguration(network_mask="203.0.113.0").listening_host() is None


def test_the_ports_of_a_machine_are_those_from_the_one_that_is_named() -> None:
    assert VoidConfiguration().ports == range(1)
    assert list(VoidConfiguration(unicast_port=49876).ports) == list(range(49876, 49876 + PORTS))


@pytest.mark.parametrize("host", ["10.7.0.1", "2001:db8::1"])
def test_a_mesh_beyond_loopback_needs_a_secret(monkeypatch, host: str) -> None:
    monkeypatch.setattr(VoidConfiguration, "listening_host", lambda self: host)
    conf = Conf(run="r", router="gradient-sharing", void_configuration=VoidConfiguration(network_mask=f"{host}"))
    steps = joined_mesh(conf, ClusterAddress("127.0.0.1:2181"), session=None, name=HERE)
    with pytest.raises(NotAuthorisedError, match=f"the mesh of the workers at .{host}.* has no secret"):
        steps.__enter__()


def test_a_process_without_workers_and_a_run_without_a_mesh_take_no_part() -> None:
    address, void = ClusterAddress("127.0.0.1:2181"), VoidConfiguration()
    with joined_mesh(Conf(run="r"), address, session=None, name=HERE) as node:
        assert node is None
    with joined_mesh(Conf(run="r", void_configuration=void), address, session=None, name=HERE, workers=0) as node:
        assert node is None


def test_a_machine_outside_the_network_or_without_a_port_is_told_and_takes_no_part(monkeypatch, caplog) -> None:
    address, outside = ClusterAddress("127.0.0.1:2181"), VoidConfiguration(network_mask="203.0.113.0/24")
    with joined_mesh(Conf(run="r", void_configuration=outside), address, session=None, name=HERE) as node:
        assert node is None
    monkeypatch.setattr(VoidConfiguration, "listening_host", lambda self: "203.0.113.1")
    signed = ClusterAddress("127.0.0.1:2181", secret=b"a secret of this test")
    with joined_mesh(Conf(run="r", void_configuration=outside), signed, session=None, name=HERE) as node:
        assert node is None
    first, second = (record.getMessage() for record in caplog.records)
    assert "no address in 203.0.113.0/24, the network_mask of run r" in first
    assert "cannot listen for other workers on 203.0.113.1" in second


@pytest.mark.parametrize(
    ("given", "before", "after"),
    [
        ({}, None, None),
        ({"mesh": "plain"}, None, VoidConfiguration()),
        (
            {"mesh": "mesh"},
            VoidConfiguration(unicast_port=7),
            VoidConfiguration(unicast_port=7, mesh_build_mode="mesh"),
        ),
        ({"network_mask": "10.7.0.0"}, VoidConfiguration(), VoidConfiguration(network_mask="10.7.0.0")),
    ],
)
def test_options_make_the_mesh_of_a_conf(given: dict, before, after) -> None:
    conf = Conf(void_configuration=before)
    assert conf.replace(**mesh_changes(TrainOptions(**given), conf)).void_configuration == after


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mesh": "tree"}, "--mesh is 'tree'"),
        ({"network_mask": "10.7.0.0"}, "give --mesh plain or mesh"),
    ],
)
def test_options_that_make_no_mesh_are_refused(given: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mesh_changes(TrainOptions(**given), Conf())


HERE, THERE = "here-11-0a1b2c3d", "there-12-0a1b2c3d"


def test_members_are_those_of_the_run_that_can_be_reached_from_where_a_process_is() -> None:
    found = [
        (HERE, {"run": "r.1", "address": "127.0.0.1:1"}),
        ("here-13-0a1b2c3d", {"run": "r.1", "address": "127.0.0.1:2"}),
        (THERE, {"run": "r.1", "address": "127.0.0.1:3"}),
        ("there-14-0a1b2c3d", {"run": "r.1", "address": "10.7.0.2:4"}),
        ("here-15-0a1b2c3d", {"run": "r.1", "address": "10.7.0.1:5"}),
        ("here-16-0a1b2c3d", {"run": "r.0", "address": "127.0.0.1:6"}),
        ("here-17-0a1b2c3d", {"run": "r.1", "address": 7}),
        ("here-18-0a1b2c3d", {}),
    ]
    assert reachable_members(found, "r.1", HERE, "127.0.0.1:1") == [
        Member(HERE, "127.0.0.1:1"),
        Member("here-13-0a1b2c3d", "127.0.0.1:2"),
    ]
    assert reachable_members(found, "r.1", "here-15-0a1b2c3d", "10.7.0.1:5") == [
        Member("there-14-0a1b2c3d", "10.7.0.2:4"),
        Member("here-15-0a1b2c3d", "10.7.0.1:5"),
    ]
