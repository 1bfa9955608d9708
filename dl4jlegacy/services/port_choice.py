"""Chooses the ports of a folder's servers: the requested ones, their earlier ones, the default ones, or free ones."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping, Sequence

from dl4jlegacy.errors import UsageError, counted
from dl4jlegacy.services.ports import free_ports, is_free
from dl4jlegacy.services.settings import HAZELCAST_PORT, MAX_HAZELCAST_PORT, ZOOKEEPER_PORT, member_ports

__all__ = ["MEMBER", "ZOOKEEPER", "PortChoice", "check_numbers"]

logger = logging.getLogger(__name__)

MEMBER, ZOOKEEPER = "hazelcast-{}", "zookeeper"
"""The servers' names; the members are numbered from 1."""


class PortChoice:
    """Chooses the ports of the servers at one address of this machine.

    Args:
        host: the address.
        had: the earlier ports of the servers there, by name. They are kept unless others are requested: processes that
            still run know the servers by these.
    """

    def __init__(self, host: str, had: Mapping[str, int]) -> None:
        self._host, self._had = host, had

    def choose(
        self, members: int, member_port: int | None, zookeeper_port: int | None, zookeeper: bool
    ) -> tuple[list[int], int]:
        """Return the members' ports and Zookeeper's (0 without one); 0 asks for any port, None for the default.

        On loopback a free port replaces one that is taken, with a warning. Raises ``UsageError`` for invalid port
        numbers, ``TrackerError`` if there are not enough free ports.
        """
        kept = self._kept([MEMBER.format(i + 1) for i in range(members)] if not member_port else [], zookeeper_port)
        if not member_port and members > len(kept):
            member_port = self._first_of_new(members, member_port, kept, zookeeper_port)
        if not zookeeper_port and zookeeper:
            named = _all_member_ports(member_port, members) if member_port else []
            zookeeper_port = self._kept([ZOOKEEPER], *named).get(ZOOKEEPER, zookeeper_port)
        if zookeeper_port is None:
            zookeeper_port = self._usual_or_free("Zookeeper", [ZOOKEEPER_PORT] * zookeeper, taken=None)
        check_numbers(members, member_port or 0, zookeeper_port, zookeeper)
        if member_port:
            ports = [member_port + i for i in range(members)]
        else:
            ports = self._kept_and_free(members, kept, zookeeper_port)
        if zookeeper and not zookeeper_port:
            taken = [each for port in ports for each in member_ports(port)]
            [zookeeper_port] = free_ports(1, taken=taken, host=self._host)
        return ports, zookeeper_port

    def _kept(self, names: Sequence[str], *taken: int | None) -> dict[str, int]:
        """Return the earlier ports of these servers that can be used again."""
        kept = {}
        for name in names:
            if (port := self._had.get(name, 0)) == 0:
                continue
            wanted = (port,) if name == ZOOKEEPER else member_ports(port)
            if set(taken).isdisjoint(wanted) and (self._is_reached() or all(is_free(p, self._host) for p in wanted)):
                kept[name] = port
            else:
                said = "port %d of %s, which %s had, is taken: it gets another, and what still runs will not find it"
                logger.warning(said, port, self._host, name)
        return kept

    def _first_of_new(
        self, members: int, asked: int | None, kept: Mapping[str, int], zookeeper_port: int | None
    ) -> int:
        """Return the port of the first member if there are more members than before; 0 if any port will do."""
        first = kept.get(MEMBER.format(1), 0)
        if not kept:
            usual = _all_member_ports(HAZELCAST_PORT, members)
            return self._usual_or_free("Hazelcast", usual, taken=zookeeper_port) if asked is None else 0
        following = _all_member_ports(first, members)
        free = zookeeper_port not in following and all(is_free(port, self._host) for port in following)
        return first if len(kept) == 1 and first and (self._is_reached() or free) else 0

    def _kept_and_free(self, members: int, kept: Mapping[str, int], zookeeper_port: int) -> list[int]:
        taken = [zookeeper_port, *(each for port in kept.values() for each in member_ports(port))]
        new = iter(free_ports(members - len(kept), taken=taken, host=self._host, together=member_ports))
        return [kept.get(MEMBER.format(i + 1)) or next(new) for i in range(members)]

    def _usual_or_free(self, what: str, usual: Sequence[int], *, taken: int | None) -> int:
        """Return the first of the default ports; on loopback 0 with a warning if one of them is taken."""
        first = usual[0] if usual else 0
        if self._is_reached():
            return first
        for port in usual:
            if port == taken or not is_free(port, self._host):
                logger.warning("port %d of %s is taken: %s gets a free one instead", port, self._host, what)
                return 0
        return first

    def _is_reached(self) -> bool:
        """Return whether other hosts connect to the servers here; then a taken port cannot be replaced by another."""
        return not ipaddress.ip_address(self._host).is_loopback


def check_numbers(members: int, member_port: int, zookeeper_port: int, zookeeper: bool) -> None:
    """Raise ``UsageError`` for an impossible number of members, or an invalid port of the first member or Zookeeper."""
    if not 0 <= members <= 16 or members + zookeeper == 0:
        raise UsageError(f"{counted(members, 'member')}: 1 to 16 Hazelcast members can run on one machine")
    last = MAX_HAZELCAST_PORT + 1 - members
    for name, first, most in (("hazelcast", member_port, last), ("zookeeper", zookeeper_port, 65_535)):
        if first and not 1024 <= first <= most:
            raise UsageError(f"{name} port {first}: 1024 to {most}, or 0 for a free one")
    if zookeeper and member_port and zookeeper_port in _all_member_ports(member_port, members):
        raise UsageError(f"port {zookeeper_port} is to be Zookeeper's and a Hazelcast member's; give another one")


def _all_member_ports(first: int, members: int) -> list[int]:
    """Return all ports of ``members`` members, of which the first uses ``first`` for clients."""
    return [port for i in range(members) for port in member_ports(first + i)]
