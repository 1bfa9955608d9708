"""``VoidConfiguration``: how the workers of a run push each other their messages, under DL4J's names."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from typing import ClassVar

import msgspec

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.nn.arguments import Described
from dl4jlegacy.scaleout.links.mesh.messages import MESSAGES_NBYTES
from dl4jlegacy.scaleout.links.mesh.organizer import MESH_BUILD_MODES

__all__ = ["PORTS", "VoidConfiguration"]

PORTS = 64
"""So many ports from ``unicast_port`` on may be used by the processes of one machine."""
_LOOPBACK = "127.0.0.1"
_LEAST_NBYTES = 1 << 20


class VoidConfiguration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=Described):
    """How the workers of a run push each other their messages.

    Attributes:
        mesh_build_mode: ``"plain"``: all are connected with the first one, for some dozens; ``"mesh"``: they are a
            tree, in which each has eight downstreams at most.
        unicast_port: the first port on which a worker's process may listen; it takes the first of ``PORTS`` that is
            free, since each process of a machine needs its own. 0: any that is free.
        network_mask: the network on whose address a worker's machine listens, as ``10.7.0.0/24``; without the length
            it is a /24. "": on the loopback, so that only processes of one machine are connected.
        chunks_buffer_size: bytes of messages that a process keeps at hand; a message longer than a quarter of it is
            not pushed. 1 MiB or more.
    """

    positional: ClassVar[tuple[str, ...]] = ()

    mesh_build_mode: str = "plain"
    unicast_port: int = 0
    network_mask: str = ""
    chunks_buffer_size: int = MESSAGES_NBYTES

    def __post_init__(self) -> None:
        mode = self.mesh_build_mode
        if mode not in MESH_BUILD_MODES:
            raise ConfError(f"VoidConfiguration.mesh_build_mode is {mode!r}{nearest(mode, list(MESH_BUILD_MODES))}")
        if not 0 <= self.unicast_port <= 65536 - PORTS:
            raise ConfError(
                f"VoidConfiguration.unicast_port is {self.unicast_port}; it must be 0, or a port up to {65536 - PORTS}"
            )
        if self.chunks_buffer_size < _LEAST_NBYTES:
            raise ConfError(
                f"VoidConfiguration.chunks_buffer_size is {self.chunks_buffer_size}; it must be {_LEAST_NBYTES} or more"
            )
        if self.network_mask:
            self._network()

    @property
    def longest_nbytes(self) -> int:
        """The length of the longest message that is pushed."""
        return self.chunks_buffer_size // 4

    @property
    def ports(self) -> range:
        """The ports on which a process may listen; 0: any."""
        return range(self.unicast_port, self.unicast_port + PORTS) if self.unicast_port else range(1)

    def listening_host(self) -> str | None:
        """Return the address of this machine that is in the network of ``network_mask``; None if it has none there."""
        if not self.network_mask:
            return _LOOPBACK
        network = self._network()
        family = socket.AF_INET if network.version == 4 else socket.AF_INET6
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(network[min(1, network.num_addresses - 1)]), 9))  # sends nothing: it asks for the route
            host = str(probe.getsockname()[0])
            return host if ipaddress.ip_address(host) in network else None
        return None

    def _network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        mask = self.network_mask
        try:
            return ipaddress.ip_network(mask if "/" in mask else f"{mask}/24", strict=False)
        except ValueError as exc:
            raise ConfError(
                f"VoidConfiguration.network_mask is {mask!r}; it must be a network, such as 10.7.0.0/24: {exc}"
            ) from exc
