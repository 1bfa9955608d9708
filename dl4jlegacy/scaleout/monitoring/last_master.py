"""Determines whether the previous master of a run has died, or is only frozen or cut off."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.links.liveness.failure_detector import host_of
from dl4jlegacy.scaleout.links.liveness.server import parsed_address

__all__ = ["NOBODY_LISTENS", "dead_master"]

NOBODY_LISTENS = "nobody listens at its port any more"
_SECONDS = 2.0


def dead_master(process: Any, address: Any) -> str:
    """Return ``process``, the run's last master, if it has died; "" if it has not, or that is unknown.

    The kernel refuses connections to the port of a dead process, but accepts them for a frozen one. A machine that is
    down does not answer.

    Args:
        process, address: from the tracker: the process's name, and the address of its liveness server.
    """
    if not isinstance(process, str) or not isinstance(address, str):
        return ""
    try:
        host, port = parsed_address(address)
        if _is_loopback(host) and host_of(process) != socket.gethostname():
            return ""
        with socket.create_connection((host, port), timeout=_SECONDS):
            return ""
    except ConnectionRefusedError:
        return process
    except (OSError, WireError):
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
