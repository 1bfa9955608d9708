"""Which instances a cluster's servers are on, and how the instances of one ``up`` are launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dl4jlegacy.aws.cluster_bucket import Servers
from dl4jlegacy.aws.cluster_spec import MASTER, STANDBY, WITNESS, WORKER, ClusterSpec, Names
from dl4jlegacy.aws.instances import Ec2BoxCreator, Instance
from dl4jlegacy.aws.resources import ClusterResources
from dl4jlegacy.aws.user_data import InstanceConfig, user_data
from dl4jlegacy.errors import ConfError
from dl4jlegacy.storage.s3.session import Aws

__all__ = ["Launcher", "ServerPlace", "leaders", "server_places"]


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where servers of the cluster are to be: on an instance that runs, or on one that is to be launched.

    Attributes:
        role: of the instance.
        address: the private address that it must have, since the other servers look for it there; "": any.
        instance: that runs; None: it is missing.
    """

    role: str
    address: str = ""
    instance: Instance | None = None


def server_places(spec: ClusterSpec, former: Servers | None, instances: Sequence[Instance]) -> list[ServerPlace]:
    """Return where the servers of a cluster are to be: the master's, or also those of a standby and of a witness.

    One of three that was lost is replaced by an instance with its address, which begins no run: another one leads that.

    Args:
        spec: of the cluster.
        former: which instances had the servers; None: none had.
        instances: that run, or are starting.

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
    """Return what is, or is to be, at an address where servers were."""
    role = STANDBY if role == MASTER and leaders(kept) else role
    return ServerPlace(role, address, next((each for each in kept if each.private_address == address), None))


def leaders(instances: Sequence[Instance]) -> list[Instance]:
    """Return those that lead the run, or may have to, the first of them first."""
    return [each for role in (MASTER, STANDBY) for each in instances if each.role == role]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Launches the instances of one ``up``."""

    aws: Aws
    spec: ClusterSpec
    group: str
    key_pair: str
    profile: str
    subnets: tuple[str, ...]
    now: float
    expires: float
    witness_size: str = ""

    def launch(self, config: InstanceConfig, count: int, address: str = "") -> list[str]:
        """Launch ``count`` instances, a single one with a private address if that is given; return their ids."""
        spec = self.spec
        sizes = {WORKER: spec.size, WITNESS: self.witness_size}
        resources = ClusterResources(self.aws, Names(spec.name, self.aws.region, ""))
        creator = Ec2BoxCreator(
            self.aws,
            ami=spec.ami,
            num_boxes=count,
            size=sizes.get(config.role, spec.master_size or spec.size),
            security_group_id=self.group,
            key_pair=self.key_pair,
            tags=spec.tags(config.role, self.now, self.expires),
            profile=self.profile,
            subnets=(resources.subnet_of(address, self.subnets),) if address else self.subnets,
            user_data=user_data(config),
            disk=spec.disk,
            private_address=address,
        )
        if spec.spot and config.role == WORKER:  # losing the master costs more than the difference
            return creator.create_spot(fall_back=not spec.spot_only)
        return creator.create()
