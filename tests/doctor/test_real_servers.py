"""The checks of a tracker and a Zookeeper, with real ones: what they say, and that nothing of them stays there."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dl4jlegacy.doctor import Result, Settings, all_checks, examine
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession
from dl4jlegacy.services import ServicesState
from dl4jlegacy.services.jars import pinned_jars

pytestmark = pytest.mark.cluster
OF_SERVERS = ("tracker", "Zookeeper")


def looked(state: ServicesState, cluster_name: str, **environ: str) -> dict[str, Result]:
    settings = Settings(
        tracker=f"hazelcast://{state.hazelcast}", cluster_name=cluster_name, zookeeper=state.zookeeper, environ=environ
    )
    checks = [check for check in all_checks() if check.name.startswith(OF_SERVERS)]
    return {result.name: result for result in examine(checks, settings)}


def test_running_servers_are_ok_and_nothing_stays_in_them(session_services: ServicesState) -> None:
    with ZooKeeperSession(session_services.zookeeper) as session:
        before = session.children("/")
        found = looked(session_services, session_services.cluster_name)
        assert session.children("/") == before
    assert [(each.status, each.needed) for each in found.values()] == [("ok", True)] * 3
    for name, server in (("tracker", "hazelcast"), ("Zookeeper", "zookeeper")):
        assert found[name].found.split()[1].rstrip(":") == pinned_jars(server)[0].coordinates.rpartition(":")[2]
    assert "differ by 0." in found["Zookeeper session"].found


@pytest.mark.long
def test_servers_that_were_started_with_a_secret_are_asked_with_it(
    own_services: Callable[..., ServicesState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DL4J_SECRET", "a secret of this test")
    servers = own_services()
    without = looked(servers, servers.cluster_name)["Zookeeper session"]
    assert without.status == "skipped" and "give the secret" in without.remedy
    found = looked(servers, servers.cluster_name, DL4J_SECRET="a secret of this test")
    assert {name: result.status for name, result in found.items()} == dict.fromkeys(found, "ok")
    assert "differ by 0." in found["Zookeeper session"].found


def test_a_tracker_of_another_cluster_is_no_tracker(session_services: ServicesState) -> None:
    found = looked(session_services, "not-ours")
    assert found["tracker"].is_fatal and "not-ours" in found["tracker"].found + found["tracker"].remedy
    assert found["Zookeeper session"].status == "ok"


def test_zookeeper_s_clock_is_compared_with_this_one(session_services: ServicesState) -> None:
    with ZooKeeperSession(session_services.zookeeper) as session:
        assert abs(session.seconds_ahead()) < 2
        assert 3598 < session.seconds_ahead(lambda: time.time() - 3600) < 3602
