"""Addresses that name several servers."""

from __future__ import annotations

import itertools

import pytest

from dl4jlegacy.cluster.address import ClusterAddress, zookeeper_servers
from dl4jlegacy.errors import NotAuthorisedError, UsageError

SERVERS = ("127.0.0.2:2181", "127.0.0.10:2181", "127.0.0.3:2182")


def test_a_run_is_registered_in_one_place_in_whatever_order_its_servers_are_named() -> None:
    addresses = {ClusterAddress(",".join(each)) for each in itertools.permutations(SERVERS)}
    assert len(addresses) == 1
    [address] = addresses
    assert sorted(address.zookeeper.split(",")) == sorted(SERVERS)
    assert ClusterAddress(",".join([*SERVERS, SERVERS[0]])) == address
    assert address.split() in [("127.0.0.2", 2181), ("127.0.0.10", 2181), ("127.0.0.3", 2182)]
    assert address.zookeeper in address.flags()


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("127.0.0.1:2181,127.0.0.2", "'127.0.0.2' is not"),
        ("127.0.0.1:2181,", "'' is not"),
        ("127.0.0.1:2181, 127.0.0.2:2181", "' 127.0.0.2:2181' is not"),
        ("127.0.0.1:2181,127.0.0.2:2181/chroot", "'127.0.0.2:2181/chroot' is not"),
        ("here", "give it as host:port"),
        (":2181", "give it as host:port"),
    ],
)
def test_a_list_with_something_else_in_it_is_refused_with_what_is_wrong(given: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=r"--zookeeper .*host:port,host:port,host:port") as refused:
        zookeeper_servers(given)
    assert wrong in str(refused.value)


def test_one_of_them_beyond_loopback_needs_the_secret() -> None:
    with pytest.raises(NotAuthorisedError, match=r"10\.0\.0\.1:2181"):
        ClusterAddress(f"{SERVERS[0]},10.0.0.1:2181")
    ClusterAddress(f"{SERVERS[0]},10.0.0.1:2181", secret=b"a secret of this test")
