"""A run over several hosts that loses one of them with all that is on it: addresses of loopback stand for the hosts."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dl4jlegacy.services import ServicesState
from dl4jlegacy.services.ports import _srvr, member_answers, zookeeper_answers
from tests.support.cluster_commands import Cluster, same, until
from tests.support.forked_commands import Forks

pytestmark = [pytest.mark.cluster, pytest.mark.long]

EPOCHS = "2"
"""Of a run of some hundred rounds, of which most are still to be done when the host is lost."""


@pytest.fixture
def hosts(own_services: Callable[..., ServicesState]) -> dict[str, ServicesState]:
    """Three hosts, the last one a witness, with what each has started; no other test has their addresses."""
    net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
    addresses = [f"{net}.{number}" for number in (9, 10, 11)]
    ports = {"hazelcast_port": None, "zookeeper_port": None}  # the usual ones
    given = {**ports, "hosts": addresses[::-1], "witnesses": addresses[2:], "cluster_name": f"c-{secrets.token_hex(4)}"}
    with ThreadPoolExecutor(3) as pool:
        started = dict(zip(addresses, pool.map(lambda host: own_services(host=host, **given), addresses), strict=True))
    for address in addresses[:2]:
        until(lambda address=address: member_answers(5701, 2, address), 60.0, f"the member at {address} is backed up")
    for address in addresses:
        until(lambda address=address: zookeeper_answers(2181, address), 60.0, f"Zookeeper at {address} serves")
    return started


def kill_host(state: ServicesState) -> None:
    for pid in state.pids.values():
        os.kill(pid, signal.SIGKILL)


def test_a_standby_finishes_the_run_when_all_that_was_on_the_masters_host_is_killed(
    forks: Forks, hosts: dict[str, ServicesState], tmp_path: Path
) -> None:
    [leader] = [host for host in hosts if b"Mode: leader" in _srvr(2181, host)]
    first, second, witness = hosts
    lost = leader if leader != witness else first  # the election of a new leader of Zookeeper is part of it
    other = second if lost == first else first
    there = hosts[lost]
    cluster = Cluster(forks, there.hazelcast, there.zookeeper, there.cluster_name, tmp_path)
    in_another_order = ",".join(reversed(there.zookeeper.split(",")))
    try:
        cluster.hold(10)
        master = cluster.master("--epochs", EPOCHS, "--bind", lost)
        cluster.start("worker", "--zookeeper", in_another_order, "--workers", "2")
        standby = cluster.start(
            *("master", "--standby", "--zookeeper", in_another_order, "--bind", other, "--format", "json")
        )
        standby.says("standing by")
        cluster.wait_for_round(10)
        master.process.kill()
        kill_host(there)
        cluster.let_go()
        same(standby, int(EPOCHS))
        assert "this standby takes over" in standby.err()
        assert cluster.left_at_end() == []
    finally:
        cluster.end()
