"""Structs of the output with ``--format json`` of the commands for servers and clouds; see ``cli.outputs``."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from dl4jlegacy.cli.outputs.write import Output

__all__ = ["CloudCluster", "CloudDown", "DryRun", "Price", "Reaped", "ServersDown", "ServersUp"]


class ServersUp(Output):
    """Local servers: which have ended, and which do not answer."""

    hazelcast: str
    zookeeper: str
    pids: dict[str, int]
    cluster_name: str
    folder: str
    stopped: list[str]
    silent: list[str]


class ServersDown(Output):
    """The servers that were stopped."""

    stopped: list[str]
    folder: str


class RolePrice(Output):
    """What one instance costs."""

    size: str
    dollars_per_hour: float
    source: str


class Price(Output):
    """What a cluster costs."""

    dollars_per_hour: float
    dollars_at_most: float
    ttl_seconds: float
    workers: int
    processes: int | None
    jobs_per_round: int | None
    master: RolePrice
    worker: RolePrice
    standby: RolePrice | UnsetType = UNSET
    witness: RolePrice | UnsetType = UNSET


class DryRun(Output):
    """What a cluster would cost, as far as that is known, and what could not be checked."""

    dry_run: Literal[True]
    unchecked: list[str]
    dollars_per_hour: float | UnsetType = UNSET
    dollars_at_most: float | UnsetType = UNSET
    ttl_seconds: float | UnsetType = UNSET
    workers: int | UnsetType = UNSET
    processes: int | UnsetType | None = UNSET
    jobs_per_round: int | UnsetType | None = UNSET
    master: RolePrice | UnsetType = UNSET
    worker: RolePrice | UnsetType = UNSET
    standby: RolePrice | UnsetType = UNSET
    witness: RolePrice | UnsetType = UNSET


class CloudOwner(Output):
    """Whose cluster it is."""

    arn: str
    since: str


class CloudDone(Output):
    """When its run was done, and where the model is."""

    since: str
    model: str


class Box(Output):
    """An instance."""

    id: str
    state: str
    cluster: str
    role: str
    size: str
    spot: bool
    public_address: str
    private_address: str
    zone: str
    launched: float
    created: str
    expires: str


class CloudCluster(Output):
    """A cluster in a cloud; ``workers`` null: it is not known which have registered."""

    cluster: str
    region: str
    expires: str
    owner: CloudOwner | None
    done: CloudDone | None
    boxes: list[Box]
    belongings: list[str]
    workers: list[str] | None
    price: Price | UnsetType = UNSET


class CloudDown(Output):
    """What of a cluster was removed."""

    cluster: str
    region: str
    removed: list[str]


class Orphan(Output):
    """A cluster that was, or would be, ended."""

    name: str
    belongings: list[str]
    alive: int
    created: float
    expires: float


class Reaped(Output):
    """The clusters of a region that nobody will remove any more."""

    region: str
    dry_run: bool
    clusters: list[Orphan]
