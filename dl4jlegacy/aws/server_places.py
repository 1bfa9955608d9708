"""The instances on which a cluster's servers run, or should run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dl4jlegacy.aws.cluster_bucket import Servers
from dl4jlegacy.aws.cluster_spec import MASTER, STANDBY, ClusterSpec
from dl4jlegacy.aws.instances import Instance
from dl4jlegacy.errors import ConfError

__all__ = ["ServerPlace", "leaders", "server_places"]


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A place for servers of the cluster: an instance that runs, or one to be launched.

    Attributes:
        role: of the instance.
        address: the private address that it must have, since the other servers expect it there; "": any.
        instance: the running instance; None: it is missing.
    """

    role: str
    address: str = ""
    instance: Instance | None = None


def server_places(spec: ClusterSpec, former: Servers | None, instances: Sequence[Instance]) -> list[ServerPlace]:
    """Return the places of a cluster's servers: the master's, or also those of a standby and of a witness.

    If one of three was lost, an instance with the same address replaces it; that instance begins no run, since another
    one leads the run.

    Args:
        spec: of the cluster.
        former: the instances that had the servers; None: none had.
        instances: the instances that run, or are starting.

    Raises:
        ConfError: the cluster runs, and was started without a standby, or with one.
    """
    roles = spec.server_roles
    if former is not None and instances and len(former.instances) != len(roles):
        has, word = ("a", "with") if len(former.instances) > 1 else ("no", "without")
        raise ConfError(
            f"cluster {spec.name} runs and has {has} standby: repeat `dl4j aws up` {word} --standby, or "
            f"`dl4j aws down {spec.name}` first"
        )
    addresses = [each.address for each in former.instances] if former and len(roles) > 1 else []
    kept = [each for each in instances if each.private_address in addresses]
    if kept:
        return [_place(role, address, kept) for role, address in zip(roles, addresses, strict=True)]
    return [ServerPlace(role, "", next((i for i in instances if i.role == role), None)) for role in roles]


def _place(role: str, address: str, kept: Sequence[Instance]) -> ServerPlace:
    """Return the place at a former address of servers."""
    role = STANDBY if role == MASTER and leaders(kept) else role
    return ServerPlace(role, address, next((each for each in kept if each.private_address == address), None))


def leaders(instances: Sequence[Instance]) -> list[Instance]:
    """Return the masters and standbys among instances, masters first."""
    return [each for role in (MASTER, STANDBY) for each in instances if each.role == role]
