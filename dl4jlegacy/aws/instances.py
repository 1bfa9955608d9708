"""EC2 instances of one cluster: start them, wait for them, list and terminate them.

Every instance has the cluster's tags from its first moment, is terminated (not stopped) when it powers itself off, and
gives its role's keys to IMDSv2 only. Every destructive call is filtered by tag.

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
from dl4jlegacy.errors import ConfError, DeadlineError, NotEnoughWorkersError, counted
from dl4jlegacy.storage.s3.session import CAPACITY, Aws, error_code, translate_errors

__all__ = [
    "Ec2BoxCreator",
    "Instance",
    "InstanceType",
    "LaunchSettings",
    "cancel_spot_requests",
    "check_image",
    "describe_instance_type",
    "launch_settings_of",
    "list_instances",
    "newest_image",
    "terminate_instances",
]

logger = logging.getLogger(__name__)

_DEBIAN = "136693071363"
_GONE_STATES = ("terminated",)
_RETRIED = {
    "InvalidGroup.NotFound",
    "InvalidParameterValue",  # of an instance profile that EC2 does not know yet
    "InvalidKeyPair.NotFound",
    "InvalidIamInstanceProfileArn.Malformed",
    "InvalidIPAddress.InUse",  # by the lost instance, which is ending
}


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance as AWS last described it; a field that it does not have (yet) is empty."""

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
        """True if it may still cost something."""
        return self.state not in _GONE_STATES


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type as AWS describes it; memory in MiB."""

    name: str
    cores: int
    memory: int
    architecture: str
    gpus: int


def list_instances(aws: Aws, cluster: str = "") -> list[Instance]:
    """Return the instances of a cluster, or of all, oldest first; AWS lists terminated ones for about an hour."""
    wanted = {"Name": f"tag:{CLUSTER}", "Values": [cluster]} if cluster else {"Name": "tag-key", "Values": [CLUSTER]}
    with translate_errors(f"describing the instances of {cluster or 'all clusters'}"):
        pages = aws.client("ec2").get_paginator("describe_instances").paginate(Filters=[wanted])
        found = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
    return sorted(map(_parse, found), key=lambda instance: (instance.launched, instance.role, instance.id))


def _parse(described: dict[str, Any]) -> Instance:
    tags = {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
    return Instance(
        id=described["InstanceId"],
        state=described["State"]["Name"],
        cluster=tags.get(CLUSTER, ""),
        role=tags.get(ROLE, ""),
        size=described["InstanceType"],
        spot=described.get("InstanceLifecycle") == "spot",
        public_address=described.get("PublicIpAddress") or described.get("Ipv6Address") or "",
        private_address=described.get("PrivateIpAddress") or "",
        zone=described.get("Placement", {}).get("AvailabilityZone", ""),
        launched=described["LaunchTime"].timestamp(),
        created=tags.get(CREATED, ""),
        expires=tags.get(EXPIRES, ""),
    )


class Ec2BoxCreator:
    """Creates instances ("boxes") that are alike.

    Args:
        aws: the region.
        ami: the image; empty for the newest Debian 12 of the size's architecture.
        num_boxes: how many instances ``create`` starts.
        size: the instance type.
        security_group_id: their security group.
        key_pair: its owner may log in.
        tags: of instances, volumes and spot requests.
        profile: the instance profile that gives them their role.
        subnets: tried one after the other where there is no capacity.
        user_data: the cloud-config that they run at their first boot.
        disk: GB of the disk, more if the image needs more.
        private_address: of the one instance, in the one subnet; "": any.
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
        disk: int = 0,
        private_address: str = "",
    ) -> None:
        self._aws, self.ami, self.num_boxes, self.size = aws, ami, num_boxes, size
        self.security_group_id, self.key_pair, self._tags = security_group_id, key_pair, tags
        self._profile, self._subnets, self._user_data = profile, tuple(subnets) or ("",), user_data
        self._disk, self._private_address = disk, private_address
        self.boxes_created: list[str] = []

    def create(self) -> list[str]:
        """Start the instances on demand, all or none; return their ids. Raises ``NotEnoughWorkersError``."""
        return self._start(spot=False)

    def create_spot(self, *, fall_back: bool = True) -> list[str]:
        """Start the instances at the spot price; on demand instead where there is no capacity, if ``fall_back``."""
        try:
            return self._start(spot=True)
        except NotEnoughWorkersError as exc:
            if not fall_back:
                raise
            logger.warning("no spot capacity, so on demand: %s", str(exc))
            return self._start(spot=False)

    def _start(self, *, spot: bool) -> list[str]:
        from botocore.exceptions import ClientError

        ami = self.ami or newest_image(self._aws, describe_instance_type(self._aws, self.size).architecture)
        with translate_errors(
            f"starting {self.num_boxes} {self.size} from {ami}{' at the spot price' if spot else ''}"
        ):
            disk = _encrypted_disk(self._aws, ami, self._disk)
            for subnet in self._subnets:
                request = {**self._request(ami, subnet, spot=spot), "BlockDeviceMappings": [disk]}
                try:
                    started = self._aws.eventually(
                        partial(self._aws.client("ec2").run_instances, **request), self._retried()
                    )
                    break
                except ClientError as exc:
                    if error_code(exc) not in CAPACITY or subnet == self._subnets[-1]:
                        raise
                    logger.warning("no capacity for %s in subnet %s; trying the next", self.size, subnet)
        ids = [str(instance["InstanceId"]) for instance in started["Instances"]]
        self.boxes_created += ids
        return ids

    def _retried(self) -> set[str]:
        return _RETRIED if self._profile else _RETRIED - {"InvalidParameterValue"}

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
        if self._private_address:
            request["PrivateIpAddress"] = self._private_address
        if self._profile:
            request["IamInstanceProfile"] = {"Name": self._profile}
        if spot:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return request

    def block_till_all_running(self, *, seconds: float = 600.0) -> None:
        """Return once the instances created here run.

        Raises:
            DeadlineError: not in time. NotEnoughWorkersError: one ended.
        """
        if not self.boxes_created:
            return
        with self._aws.deadline(seconds) as deadline:
            while True:
                listed = {instance.id: instance.state for instance in self._created()}
                states = {id: listed.get(id, "pending") for id in self.boxes_created}
                if all(state == "running" for state in states.values()):
                    return
                ended = [id for id, state in states.items() if state not in ("pending", "running")]
                if ended:
                    raise NotEnoughWorkersError(f"{', '.join(ended)} ended instead of starting; try another -s or -ami")
                if deadline.passed():
                    raise DeadlineError(
                        f"{', '.join(states)} did not start within {seconds:.0f} s; `dl4j aws down` ends them"
                    )
                self._aws.clock.wait(3.0)

    def all_running(self) -> bool:
        """Return True if every instance created here runs."""
        created = self._created()
        return len(created) == len(self.boxes_created) and all(instance.state == "running" for instance in created)

    def get_hosts(self) -> list[str]:
        """Return the public addresses of the instances created here that are alive."""
        return [instance.public_address for instance in self._created() if instance.alive]

    def blowup_boxes(self) -> None:
        """Terminate the instances created here, and no others, and wait until that is done."""
        terminate_instances(self._aws, self._created())

    def _created(self) -> list[Instance]:
        """Return those of the cluster's instances that were created here and that AWS lists already."""
        return [i for i in list_instances(self._aws, self._tags[CLUSTER]) if i.id in self.boxes_created]


def terminate_instances(aws: Aws, instances: Sequence[Instance], *, seconds: float = 600.0) -> None:
    """Terminate instances and wait until that is done; those without a cluster's tag are left alone.

    Raises:
        DeadlineError: not in ``seconds``.
    """
    ids = [instance.id for instance in instances if instance.alive and instance.cluster]
    if not ids:
        return
    ec2 = aws.client("ec2")
    with translate_errors(f"ending {counted(len(ids), 'instance')}"), aws.deadline(seconds) as deadline:
        for first in range(0, len(ids), 100):
            aws.eventually(
                partial(ec2.terminate_instances, InstanceIds=ids[first : first + 100]),
                {"InvalidInstanceID.NotFound"},
            )
        clusters = {instance.cluster for instance in instances}
        while True:
            alive = [i.id for name in clusters for i in list_instances(aws, name) if i.alive and i.id in ids]
            if not alive:
                return
            if deadline.passed():
                raise DeadlineError(f"{', '.join(alive)} have not ended within {seconds:.0f} s; repeat `dl4j aws down`")
            aws.clock.wait(3.0)


def cancel_spot_requests(aws: Aws, cluster: str) -> list[str]:
    """Cancel the cluster's spot requests that are still open or active; return their ids."""
    filters = [
        {"Name": f"tag:{CLUSTER}", "Values": [cluster]},
        {"Name": "state", "Values": ["open", "active"]},
    ]
    with translate_errors(f"cancelling the spot requests of {cluster}"):
        found = aws.client("ec2").describe_spot_instance_requests(Filters=filters)["SpotInstanceRequests"]
        ids = [str(request["SpotInstanceRequestId"]) for request in found if request["State"] in ("open", "active")]
        if ids:
            aws.client("ec2").cancel_spot_instance_requests(SpotInstanceRequestIds=ids)
    return ids


def describe_instance_type(aws: Aws, size: str) -> InstanceType:
    """Return what AWS knows of an instance type; raises ``ConfError`` if the region does not have it."""
    with translate_errors(f"instance type {size!r} in {aws.region}"):
        found = aws.client("ec2").describe_instance_types(InstanceTypes=[size])["InstanceTypes"]
    if not found:
        raise ConfError(f"region {aws.region} has no instance type {size!r}; give another -s, for instance m5.large")
    [info] = found
    architectures = info.get("ProcessorInfo", {}).get("SupportedArchitectures", ["x86_64"])
    return InstanceType(
        name=size,
        cores=int(info.get("VCpuInfo", {}).get("DefaultVCpus", 1)),
        memory=int(info.get("MemoryInfo", {}).get("SizeInMiB", 0)),
        architecture="arm64" if "arm64" in architectures else "x86_64",
        gpus=sum(int(gpu.get("Count", 0)) for gpu in info.get("GpuInfo", {}).get("Gpus", [])),
    )


def check_image(aws: Aws, ami: str, architecture: str) -> None:
    """Raise ``ConfError`` if the region has no such image, or it is for another architecture."""
    with translate_errors(f"image {ami} in {aws.region}"):
        images = aws.client("ec2").describe_images(ImageIds=[ami])["Images"]
    if not images:
        raise ConfError(f"region {aws.region} has no image {ami}; give another -ami, or none for Debian's newest")
    theirs = images[0].get("Architecture", architecture)
    if theirs != architecture:
        raise ConfError(f"image {ami} is for {theirs}, the size for {architecture}; give another -ami or -s")


def _encrypted_disk(aws: Aws, ami: str, disk: int) -> dict[str, Any]:
    """Return the mapping of an image's root device that asks for at least ``disk`` GB of gp3.

    It is encrypted with the account's key of EBS.
    """
    images = aws.client("ec2").describe_images(ImageIds=[ami])["Images"]
    if not images:
        raise ConfError(f"region {aws.region} has no image {ami}; give another -ami, or none for Debian's newest")
    name = images[0]["RootDeviceName"]
    sizes = [m["Ebs"]["VolumeSize"] for m in images[0]["BlockDeviceMappings"] if m["DeviceName"] == name]
    size = max([disk, *sizes])
    wanted = {"VolumeSize": size, "VolumeType": "gp3"} if size else {}
    return {"DeviceName": name, "Ebs": {"Encrypted": True, "DeleteOnTermination": True, **wanted}}


def newest_image(aws: Aws, architecture: str) -> str:
    """Return the newest official Debian 12 image; raises ``ConfError`` if the region has none."""
    name = f"debian-12-{'arm64' if architecture == 'arm64' else 'amd64'}-*"
    filters = [
        {"Name": "name", "Values": [name]},
        {"Name": "state", "Values": ["available"]},
        {"Name": "architecture", "Values": [architecture]},
    ]
    with translate_errors(f"looking for an image {name}"):
        images = aws.client("ec2").describe_images(Owners=[_DEBIAN], Filters=filters)["Images"]
    if not images:
        raise ConfError(f"region {aws.region} has no image {name} of Debian's; name a Debian 12 image with -ami")
    return str(max(images, key=lambda image: image["CreationDate"])["ImageId"])


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """How an instance was launched, to launch another one like it."""

    ami: str
    groups: tuple[str, ...]
    key_pair: str
    subnet: str
    tags: Tags
    user_data: str


def launch_settings_of(aws: Aws, instance: Instance) -> LaunchSettings:
    """Return how an instance was launched."""
    ec2 = aws.client("ec2")
    with translate_errors(f"describing {instance.id}"):
        [reservation] = ec2.describe_instances(InstanceIds=[instance.id])["Reservations"]
        [described] = reservation["Instances"]
        encoded = ec2.describe_instance_attribute(InstanceId=instance.id, Attribute="userData")["UserData"]["Value"]
    return LaunchSettings(
        ami=described["ImageId"],
        groups=tuple(group["GroupId"] for group in described["SecurityGroups"]),
        key_pair=described.get("KeyName", ""),
        subnet=described.get("SubnetId", ""),
        tags={t["Key"]: t["Value"] for t in described["Tags"] if not t["Key"].startswith("aws:")},
        user_data=base64.b64decode(encoded).decode(),
    )
