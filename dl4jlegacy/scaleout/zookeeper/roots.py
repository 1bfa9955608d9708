"""Creates the folders above those of runs when a server starts, before anybody else can create them.

A process that may change the rights of a folder can lock all others out of it, and by default everybody may change a
new node. So these folders, from the root down, let nobody change their rights. If the server is started with a secret,
only processes with the secret can add nodes at all, so outsiders cannot fill the server's memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

from dl4jlegacy.errors import NotAuthorisedError
from dl4jlegacy.scaleout.zookeeper.configuration import build_path, names_of
from dl4jlegacy.scaleout.zookeeper.permissions import CLOCK, ENDED, OPEN, ROOT, is_same, shown
from dl4jlegacy.scaleout.zookeeper.session import ZooKeeperSession

__all__ = ["guard_roots"]

logger = logging.getLogger(__name__)


def guard_roots(address: str, *, names: Iterable[str] = (), secret: bytes | None = None, seconds: float = 10.0) -> bool:
    """Create and protect the folders of a server above those of runs; return whether they are protected now.

    Args:
        address: ``host:port`` of the server.
        names: other host names by which the server is known.
        secret: only processes that know it may use the server; None: everybody.
        seconds: maximum time for the server to answer.

    Raises:
        TrackerError: the server does not answer.
    """
    host, _, port = address.rpartition(":")
    with ZooKeeperSession(address, secret=secret, deadline_seconds=seconds) as session:
        rights = session.rights
        wanted = {"/": rights.of_server(removes=False)}
        wanted |= {path: rights.of_server(removes=True) for path in (ROOT, ENDED, CLOCK)}
        for name in dict.fromkeys([*names_of(host), *names]):
            wanted[build_path(name, int(port))] = rights.of_server(removes=False, adds=False)
            wanted[build_path(name, int(port), "tmp")] = rights.of_server(removes=True)
        for make in (lambda path: session.create_folder(path, OPEN), lambda path: session.set_acl(path, wanted[path])):
            for path in wanted:  # the root first, and each folder before its content
                with contextlib.suppress(NotAuthorisedError):  # owned by others by now, which is logged below
                    make(path)
        kept = {path: found for path in wanted if not is_same(found := session.acl(path) or (), wanted[path])}
    for path, found in kept.items():
        logger.warning(
            "the rights to %s in Zookeeper at %s are %s: it was started with another secret, or somebody has taken "
            "them; where runs are refused because of that, empty it: dl4j services down, and up",
            path,
            address,
            shown(found),
        )
    return not kept
