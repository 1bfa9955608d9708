"""Servers on several hosts that form one set: a Zookeeper ensemble, and Hazelcast members with backups on other hosts.

Each host starts its own servers (``dl4j services up --host A --hosts A,B,C``). If one of three hosts is lost, the run's
state and a majority of the Zookeeper servers remain. A witness has only a Zookeeper server, whose vote decides which
other hosts continue; a witness may be a small machine.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence

import msgspec

from dl4jlegacy.errors import UsageError
from dl4jlegacy.services.settings import HAZELCAST_PORT, ZOOKEEPER_PORT
from dl4jlegacy.system.secret import GET_SECRET, read_secret

__all__ = ["Ensemble", "ensemble_of", "shared_cluster_name"]


class Ensemble(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a set, in the same order on each of them, and the common ports of their servers."""

    hosts: tuple[str, ...]
    witnesses: tuple[str, ...] = ()
    hazelcast_port: int = HAZELCAST_PORT
    zookeeper_port: int = ZOOKEEPER_PORT

    @property
    def member_hosts(self) -> tuple[str, ...]:
        """The hosts with a Hazelcast member."""
        return tuple(host for host in self.hosts if host not in self.witnesses)

    @property
    def hazelcast(self) -> tuple[str, ...]:
        """``host:port`` of each Hazelcast member."""
        return tuple(f"{host}:{self.hazelcast_port}" for host in self.member_hosts)

    @property
    def zookeeper(self) -> tuple[str, ...]:
        """``host:port`` of each Zookeeper server."""
        return tuple(f"{host}:{self.zookeeper_port}" for host in self.hosts)

    def number_of(self, host: str) -> int:
        """Return the number of a host's server in the Zookeeper ensemble."""
        return self.hosts.index(host) + 1

    def flags(self, host: str) -> str:
        """Return the flags of ``dl4j services up`` for the servers of a host."""
        flags = f"--host {host} --hosts {','.join(self.hosts)}"
        if self.witnesses:
            flags += f" --witness {','.join(self.witnesses)}"
        if self.hazelcast_port != HAZELCAST_PORT:
            flags += f" --hazelcast-port {self.hazelcast_port}"
        return flags if self.zookeeper_port == ZOOKEEPER_PORT else f"{flags} --zookeeper-port {self.zookeeper_port}"


def ensemble_of(
    host: str, hosts: Sequence[str], witnesses: Sequence[str], hazelcast_port: int | None, zookeeper_port: int | None
) -> Ensemble | None:
    """Return the set to which a host's servers belong; None if this host is alone.

    Args:
        host: this host's address.
        hosts: the addresses of all hosts, in any order; empty: this host is alone.
        witnesses: the hosts without a Hazelcast member.
        hazelcast_port, zookeeper_port: on all hosts; None: the default ports.

    Raises:
        UsageError: the hosts do not form such a set.
    """
    if not hosts:
        if witnesses:
            raise UsageError(f"--witness {','.join(witnesses)} belongs to --hosts, which is not given")
        return None
    for flag, named in (("--hosts", hosts), ("--witness", witnesses)):
        for each in named:
            _check_address(flag, each)
    given = f"--hosts {','.join(hosts)}"
    if len(set(hosts)) != len(hosts):
        raise UsageError(f"{given}: one of them is there twice")
    if len(hosts) not in (3, 5, 7):
        raise UsageError(
            f"{given}: give 3, 5 or 7 hosts. More than half of the Zookeeper servers must be left when a host is lost, "
            "and of two that is both; --witness HOST is one with a Zookeeper server only"
        )
    if host not in hosts:
        raise UsageError(f"--host {host} is none of {given}: give this host's own address of them")
    strange = [each for each in witnesses if each not in hosts]
    if strange:
        raise UsageError(f"--witness {strange[0]} is none of {given}")
    if len(hosts) - len(set(witnesses)) < 2:
        raise UsageError(f"--witness {','.join(witnesses)} leaves fewer than two hosts with a Hazelcast member")
    if 0 in (hazelcast_port, zookeeper_port):
        raise UsageError(f"{given}: port 0, a free one, would be another one on each host; give one for all")
    return Ensemble(
        hosts=tuple(sorted(hosts, key=ipaddress.IPv4Address)),
        witnesses=tuple(sorted(set(witnesses), key=ipaddress.IPv4Address)),
        hazelcast_port=hazelcast_port or HAZELCAST_PORT,
        zookeeper_port=zookeeper_port or ZOOKEEPER_PORT,
    )


def _check_address(flag: str, text: str) -> None:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        raise UsageError(
            f"{flag}: {text!r} is no numeric address; give those of the hosts with commas between them, like "
            "10.7.0.1,10.7.0.2,10.7.0.3, without ports"
        ) from None


def shared_cluster_name(environ: Mapping[str, str]) -> str:
    """Return the name of the Hazelcast cluster, which all hosts derive from the run's secret, and nobody else can.

    Raises:
        UsageError: there is no secret. ConfError: the secret cannot be read.
    """
    secret = read_secret(environ)
    if secret is None:
        raise UsageError(
            "the members on several hosts need one --cluster-name NAME on all of them, or the run's secret, from which "
            f"they derive one: {GET_SECRET}"
        )
    return f"dl4j-{hmac.digest(secret, b'dl4jlegacy hazelcast cluster name', hashlib.sha256).hex()[:16]}"
