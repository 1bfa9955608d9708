"""Ec2BoxCreator: EC2 instances of one cluster: start, wait for, list, end (layer 5).

Every instance carries the cluster's tags from its first moment, ends (not stops) when it powers itself off, and gives
its role's keys to IMDSv2 only. Every destructive call is filtered by tag.

Legacy: ``Ec2BoxCreator``; its ``allRunning`` waited for every instance of the account, and ``createSpot`` started an
image, a size and a security group of its own at 0.03 $.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dl4jlegacy.aws.cluster_spec import CLUSTER, CREATED, EXPIRES, ROLE, Tags, tag_list
from dl4jlegacy.aws.session import CAPACITY, Aws, code_of, translated
from dl4jlegacy.errors import ConfError, DeadlineError, NotEnoughWorkersError

__all__ = ["Box", "Ec2BoxCreator", "SizeInfo", "boxes_of"]

logger = logging.getLogger(__name__)

_DEBIAN = "136693071363"
_GONE_STATES = ("terminated",)
_NOT_YET = {
    "InvalidGroup.NotFound",
    "InvalidParameterValue",  # of an instance profile that EC2 has not heard of yet
    "InvalidKeyPair.NotFound",
    "InvalidIamInstanceProfileArn.Malformed",
}


@dataclass(frozen=True, slots=True)
class Box:
    """An instance as AWS last described it; empty texts where it has none (yet)."""

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

    @property
    def alive(self) -> bool:
        """Whether it may still cost something."""
        return self.state not in _GONE_STATES


@dataclass(frozen=True, slots=True)
class SizeInfo:
    """What AWS says of an instance type; memory in MiB."""

    name: str
    cores: int
    memory: int
    architecture: str
    gpus: int


def boxes_of(aws: Aws, cluster: str = "") -> list[Box]:
    """Return the instances of a cluster, or of all clusters, oldest first; ended ones are told for about an hour."""
    wanted = {"Name": f"tag:{CLUSTER}", "Values": [cluster]} if cluster else {"Name": "tag-key", "Values": [CLUSTER]}
    with translated(f"describing the instances of {cluster or 'all clusters'}"):
        pages = aws.client("ec2").get_paginator("describe_instances").paginate(Filters=[wanted])
        found = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
    return sorted((_box(instance) for instance in found), key=lambda box: (box.launched, box.role, box.id))


def _box(instance: dict[str, Any]) -> Box:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    return Box(
        id=instance["InstanceId"],
        state=instance["State"]["Name"],
        cluster=tags.get(CLUSTER, ""),
        role=tags.get(ROLE, ""),
        size=instance["InstanceType"],
        spot=instance.get("InstanceLifecycle") == "spot",
        public_address=instance.get("PublicIpAddress") or "",
        private_address=instance.get("PrivateIpAddress") or "",
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        launched=instance["LaunchTime"].timestamp(),
        created=tags.get(CREATED, ""),
        expires=tags.get(EXPIRES, ""),
    )


class Ec2BoxCreator:
    """Creates boxes that are alike.

    Args:
        aws: where.
        ami: the image; empty for the newest Debian 12 of the size's architecture.
        num_boxes: how many ``create`` makes.
        size: the instance type.
        security_group_id: in which they are.
        key_pair: whose owner may log in.
        tags: of instances, volumes and spot requests.
        profile: the instance profile that gives them their role.
        subnets: tried one after the other where there is no capacity.
    """

    def __init__(
        self,
        aws: Aws,
        ami: str,
        num_boxes: int,
        size: str,
        security_group_id: str,
        key_pair: str,
        *,
        tags: Tags,
        profile: str = "",
        subnets: Sequence[str] = (),
        user_data: str = "",
    ) -> None:
        self._aws, self.ami, self.num_boxes, self.size = aws, ami, num_boxes, size
        self.security_group_id, self.key_pair, self._tags = security_group_id, key_pair, tags
        self._profile, self._subnets, self._user_data = profile, tuple(subnets) or ("",), user_data
        self.boxes_created: list[str] = []

    def create(self) -> list[str]:
        """Start the boxes on demand, all or none; return their ids. Raises ``NotEnoughWorkersError``."""
        return self._start(spot=False)

    def create_spot(self, *, fall_back: bool = True) -> list[str]:
        """Start the boxes at the spot price; on demand instead where there is no capacity, if ``fall_back``."""
        try:
            return self._start(spot=True)
        except NotEnoughWorkersError as exc:
            if not fall_back:
                raise
            logger.warning("no spot capacity, so on demand: %s", str(exc))
            return self._start(spot=False)

    def _start(self, *, spot: bool) -> list[str]:
        from botocore.exceptions import ClientError

        ami = self.ami or newest_ami(self._aws, size_info(self._aws, self.size).architecture)
        with translated(f"starting {self.num_boxes} {self.size} from {ami}{' at the spot price' if spot else ''}"):
            for subnet in self._subnets:
                request = self._request(ami, subnet, spot=spot)
                try:
                    started = self._aws.eventually(
                        partial(self._aws.client("ec2").run_instances, **request), self._not_yet()
                    )
                    break
                except ClientError as exc:
                    if code_of(exc) not in CAPACITY or subnet == self._subnets[-1]:
                        raise
                    logger.warning("no capacity for %s in subnet %s; trying the next", self.size, subnet)
        ids = [str(instance["InstanceId"]) for instance in started["Instances"]]
        self.boxes_created += ids
        return ids

    def _not_yet(self) -> set[str]:
        return _NOT_YET if self._profile else _NOT_YET - {"InvalidParameterValue"}

    def _request(self, ami: str, subnet: str, *, spot: bool) -> dict[str, Any]:
        kinds = ("instance", "volume", "spot-instances-request") if spot else ("instance", "volume")
        request: dict[str, Any] = {
            "ImageId": ami,
            "InstanceType": self.size,
            "MinCount": self.num_boxes,
            "MaxCount": self.num_boxes,
            "SecurityGroupIds": [self.security_group_id],
            "UserData": self._user_data,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
            "TagSpecifications": [{"ResourceType": kind, "Tags": tag_list(self._tags)} for kind in kinds],
        }
        if self.key_pair:
            request["KeyName"] = self.key_pair
        if subnet:
            request["SubnetId"] = subnet
        if self._profile:
            request["IamInstanceProfile"] = {"Name": self._profile}
        if spot:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return request

    def block_till_all_running(self, *, seconds: float = 600.0) -> None:
        """Return once the boxes created here run.

        Raises:
            DeadlineError: not in time. NotEnoughWorkersError: one ended.
        """
        if not self.boxes_created:
            return
        end = self._aws.pace.now() + seconds
        while True:
            boxes = {b.id: b for b in boxes_of(self._aws, self._tags[CLUSTER])}
            states = {box: boxes[box].state if box in boxes else "pending" for box in self.boxes_created}
            if all(state == "running" for state in states.values()):
                return
            ended = [box for box, state in states.items() if state not in ("pending", "running")]
            if ended:
                raise NotEnoughWorkersError(f"{', '.join(ended)} ended instead of starting; try another -s or -ami")
            if self._aws.pace.now() >= end:
                raise DeadlineError(
                    f"{', '.join(states)} did not start within {seconds:.0f} s; `dl4j aws down` ends them"
                )
            self._aws.pace.wait(3.0)

    def all_running(self) -> bool:
        """Whether every box created here runs."""
        boxes = {b.id: b.state for b in boxes_of(self._aws, self._tags[CLUSTER])}
        return all(boxes.get(box) == "running" for box in self.boxes_created)

    def get_hosts(self) -> list[str]:
        """Return the public addresses of the boxes created here that are alive."""
        return [
            b.public_address for b in boxes_of(self._aws, self._tags[CLUSTER]) if b.id in self.boxes_created and b.alive
        ]

    def blowup_boxes(self) -> None:
        """End the boxes created here, and no others, and wait until they have."""
        end_boxes(self._aws, [b for b in boxes_of(self._aws, self._tags[CLUSTER]) if b.id in self.boxes_created])


def end_boxes(aws: Aws, boxes: Sequence[Box], *, seconds: float = 600.0) -> None:
    """End these boxes and return once they have; raises ``DeadlineError``. Those without a cluster's tag are left."""
    ids = [box.id for box in boxes if box.alive and box.cluster]
    if not ids:
        return
    ec2, end = aws.client("ec2"), aws.pace.now() + seconds
    with translated(f"ending {len(ids)} instances"):
        for first in range(0, len(ids), 100):
            aws.eventually(
                partial(ec2.terminate_instances, InstanceIds=ids[first : first + 100]),
                {"InvalidInstanceID.NotFound"},
            )
        clusters = {box.cluster for box in boxes}
        while True:
            alive = [b.id for name in clusters for b in boxes_of(aws, name) if b.alive and b.id in ids]
            if not alive:
                return
            if aws.pace.now() >= end:
                raise DeadlineError(f"{', '.join(alive)} have not ended within {seconds:.0f} s; repeat `dl4j aws down`")
            aws.pace.wait(3.0)


def cancel_spot_requests(aws: Aws, cluster: str) -> list[str]:
    """Cancel the cluster's spot requests that are still open or active; return their ids."""
    filters = [
        {"Name": f"tag:{CLUSTER}", "Values": [cluster]},
        {"Name": "state", "Values": ["open", "active"]},
    ]
    with translated(f"cancelling the spot requests of {cluster}"):
        found = aws.client("ec2").describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]
        ids = [str(request["SpotInstanceRequestId"]) for request in found if request["State"] in ("open", "active")]
        if ids:
            aws.client("ec2").cancel_spot_instance_requests(SpotInstanceRequestIds=ids)
    return ids


def size_info(aws: Aws, size: str) -> SizeInfo:
    """Return what AWS knows of a size; raises ``ConfError`` if the region has none such."""
    with translated(f"instance type {size!r} in {aws.region}"):
        found = aws.client("ec2").describe_instance_types(InstanceTypes=[size])["InstanceTypes"]
    if not found:
        raise ConfError(f"region {aws.region} has no instance type {size!r}; give another -s, for instance m5.large")
    [info] = found
    architectures = info.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
    return SizeInfo(
        name=size,
        cores=int(info.get("VCpuInfo", {}).get("DefaultVCpus", 1)),
        memory=int(info.get("MemoryInfo", {}).get("SizeInMiB", 0)),
        architecture="arm64" if "arm64" in architectures else "x86_64",
        gpus=sum(int(gpu.get("Count", 0)) for gpu in info.get("GpuInfo", {}).get("Gpus", [])),
    )


def check_ami(aws: Aws, ami: str, architecture: str) -> None:
    """Raise ``ConfError`` if there is no such image in the region, or it is for other processors."""
    with translated(f"image {ami} in {aws.region}"):
        images = aws.client("ec2").describe_images(ImageIds=[ami])["Images"]
    if not images:
        raise ConfError(f"region {aws.region} has no image {ami}; give another -ami, or none for Debian's newest")
    theirs = images[0].get("Architecture", architecture)
    if theirs != architecture:
        raise ConfError(f"image {ami} is for {theirs}, the size for {architecture}; give another -ami or -s")


def newest_ami(aws: Aws, architecture: str) -> str:
    """Return the newest official Debian 12 image; raises ``ConfError`` if the region has none."""
    name = f"debian-12-{'arm64' if architecture == 'arm64' else 'amd64'}-*"
    filters = [
        {"Name": "name", "Values": [name]},
        {"Name": "state", "Values": ["available"]},
        {"Name": "architecture", "Values": [architecture]},
    ]
    with translated(f"looking for an image {name}"):
        images = aws.client("ec2").describe_images(Owners=[_DEBIAN], Filters=filters)["Images"]
    if not images:
        raise ConfError(f"region {aws.region} has no image {name} of Debian's; name a Debian 12 image with -ami")
    return str(max(images, key=lambda image: image["CreationDate"])["ImageId"])


@dataclass(frozen=True, slots=True)
class Recipe:
    """What it takes to start another box like one that is there."""

    ami: str
    groups: tuple[str, ...]
    key_pair: str
    subnet: str
    tags: Tags
    user_data: str


def recipe_of(aws: Aws, box: Box) -> Recipe:
    """Return how a box was started."""
    ec2 = aws.client("ec2")
    with translated(f"describing {box.id}"):
        [reservation] = ec2.describe_instances(InstanceIds=[box.id])["Reservations"]
        [instance] = reservation["Instances"]
        encoded = ec2.describe_instance_attribute(InstanceId=box.id, Attribute="userData")["UserData"]["Value"]
    return Recipe(
        ami=instance["ImageId"],
        groups=tuple(group["GroupId"] for group in instance["SecurityGroups"]),
        key_pair=instance.get("KeyName", ""),
        subnet=instance.get("SubnetId", ""),
        tags={t["Key"]: t["Value"] for t in instance["Tags"] if not t["Key"].startswith("aws:")},
        user_data=base64.b64decode(encoded).decode(),
    )
