"""How a process with workers joins the mesh of its run (layer 5).

Legacy: the Spark driver kept the mesh, and a worker process asked the driver for its place (``VoidConfiguration``'s
``controllerAddress``). Here Zookeeper lists the members, and every process works out its own place.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.links.liveness.failure_detector import host_of
from dl4jlegacy.scaleout.links.mesh.node import Member, MeshNode
from dl4jlegacy.scaleout.zookeeper import MESH, MeshMembers, WorkerRegistration, ZooKeeperSession
from dl4jlegacy.system.secret import beyond_loopback

__all__ = ["joined_mesh", "reachable_members"]

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def joined_mesh(
    conf: Conf, address: ClusterAddress, session: ZooKeeperSession, name: str, *, workers: int = 1
) -> Iterator[MeshNode | None]:
    """Join the mesh of a run as the process ``name``; yields None if there is no mesh, or it cannot be joined here.

    A process without workers does not join.

    Raises:
        NotAuthorisedError: the process would listen beyond loopback without a secret.
        TrackerError: Zookeeper does not answer.
    """
    node = _started(conf, address, name) if workers else None
    if node is None:
        yield None
        return
    info = {"run": conf.keyspace, "address": node.address}
    with contextlib.ExitStack() as stack:
        stack.callback(node.stop)
        stack.enter_context(WorkerRegistration(session, name, info, group=address.id, folder=MESH))
        stack.enter_context(
            MeshMembers(
                session,
                group=address.id,
                on_change=lambda found: node.set_members(reachable_members(found, conf.keyspace, name, node.address)),
            )
        )
        yield node


def _started(conf: Conf, address: ClusterAddress, name: str) -> MeshNode | None:
    """Return a listening node; None if the run has no mesh, or this machine has no address to listen on."""
    configuration = conf.void_configuration
    if configuration is None:
        return None
    host = configuration.listening_host()
    if host is None:
        logger.warning(
            "this machine has no address in %s, the network_mask of run %s; its workers get all messages from the "
            "tracker",
            configuration.network_mask,
            conf.run,
        )
        return None
    address.access.check("the mesh of the workers", f"[{host}]:{configuration.unicast_port}")
    node = MeshNode(host, name=name, run=conf.keyspace, secret=address.secret, configuration=configuration)
    try:
        return node.start()
    except ConfError as exc:
        logger.warning("%s; the workers of this process get all messages from the tracker", exc)
        return None


def reachable_members(found: Sequence[tuple[str, dict[str, Any]]], run: str, name: str, address: str) -> list[Member]:
    """Return the registered mesh members of a run that the process ``name`` at ``address`` can connect with.

    A process that listens on loopback connects only with loopback processes on the same machine.
    """
    members = []
    for process, info in found:
        where = info.get("address")
        if info.get("run") != run or not isinstance(where, str):
            continue
        is_here = not beyond_loopback(where)
        if is_here == (not beyond_loopback(address)) and (not is_here or host_of(process) == host_of(name)):
            members.append(Member(process, where))
    return members
