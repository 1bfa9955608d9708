"""EC2 instances of one cluster: launch, list and terminate them.

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
from typing import Any

from dl4jlegacy.aws.calls import attempts, call
from dl4jlegacy.aws.cluster_spec import CLUSTER, CREATED, DISK, EXPIRES, ROLE, Tags, tagged
from dl4jlegacy.errors import ConfError, DeadlineError, NotEnoughWorkersError
from dl4jlegacy.storage.s3.session import CAPACITY, Aws

__all__ = [
    "Ec2BoxCreator",
    "Instance",
    "InstanceType",
    "boxes_like",
    "cancel_spot_requests",
    "check_image",
    "describe_instance_type",
    "list_instances",
    "newest_image",
    "terminate_instances",
]

logger = logging.getLogger(__name__)

_DEBIAN = "136693071363"
_RETRIED = {
    "InvalidGroup.NotFound",
    "InvalidParameterValue",  # of an instance profile that EC2 does not know yet
    "InvalidKeyPair.NotFound",
    "InvalidIamInstanceProfileArn.Malformed",
    "InvalidIPAddress.InUse",  # by the lost instance, which is ending
}


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance as AWS last described it; fields that AWS does not give (yet) are empty."""

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
        """Whether the instance may still cost something."""
        return self.state != "terminated"


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type as AWS describes it; memory in MiB."""

    cores: int
    memory: int
    architecture: str
    gpus: int


def list_instances(aws: Aws, cluster: str = "") -> list[Instance]:
    """Return the instances of a cluster, or of all, oldest first; AWS lists terminated ones for about an hour."""
    wanted = {"Name": f"tag:{CLUSTER}", "Values": [cluster]} if cluster else {"Name": "tag-key", "Values": [CLUSTER]}
    listed = call(
        aws, "ec2", "describe_instances", what=f"the instances of {cluster or 'all clusters'}", Filters=[wanted]
    )
    found = [instance for reservation in listed["Reservations"] for instance in reservation["Instances"]]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2BoxCreator:
    """Launches identical instances ("boxes").

    Attributes:
        aws: the region.
        ami: the image; empty for the newest Debian 12 of the size's architecture.
        num_boxes: number of instances to launch.
        size: the instance type.
        security_group_id: the security group of the instances.
        key_pair: the key pair whose owner may log in.
        tags: of instances, volumes and spot requests.
        profile: the instance profile that gives the instances their role.
        subnets: tried one after the other if there is no capacity.
        user_data: the cloud-config that the instances run at their first boot.
        disk: GB of the disk, more if the image needs more.
        private_address: for a single instance in a single subnet; "": any.
    """

    aws: Aws
    ami: str
    num_boxes: int
    size: str
    security_group_id: str
    key_pair: str
    tags: Tags
    profile: str
    subnets: tuple[str, ...]
    user_data: str
    disk: int
    private_address: str = ""

    def create(self, *, spot: bool = False, fall_back: bool = True) -> list[str]:
        """Launch the instances, all or none; return their ids.

        Args:
            spot: at the spot price.
            fall_back: whether they are launched on demand where there is no spot capacity.

        Raises:
            NotEnoughWorkersError: a quota is reached, or there is no capacity.
        """
        try:
            return self._launch(spot=spot)
        except NotEnoughWorkersError as exc:
            if not (spot and fall_back):
                raise
            logger.warning("no spot capacity, so on demand: %s", str(exc))
            return self._launch(spot=False)

    def _launch(self, *, spot: bool) -> list[str]:
        request = self._request(spot=spot)
        started: Any = None
        for subnet in self.subnets:
            started = call(
                self.aws,
                "ec2",
                "run_instances",
                what=f"starting {self.num_boxes} {self.size}{' at the spot price' if spot else ''}",
                retried=_RETRIED,
                passed=() if subnet == self.subnets[-1] else CAPACITY,
                SubnetId=subnet,
                **request,
            )
            if started is not None:
                break
            logger.warning("no capacity for %s in subnet %s; trying the next", self.size, subnet)
        return [str(instance["InstanceId"]) for instance in started["Instances"]]

    def _request(self, *, spot: bool) -> dict[str, Any]:
        ami = self.ami or newest_image(self.aws, describe_instance_type(self.aws, self.size).architecture)
        request: dict[str, Any] = {
            "ImageId": ami,
            "InstanceType": self.size,
            "MinCount": self.num_boxes,
            "MaxCount": self.num_boxes,
            "SecurityGroupIds": [self.security_group_id],
            "KeyName": self.key_pair,
            "IamInstanceProfile": {"Name": self.profile},
            "UserData": self.user_data,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
            "TagSpecifications": tagged(self.tags, "instance", "volume", *["spot-instances-request"] * spot),
            "BlockDeviceMappings": [self._encrypted_disk(ami)],
        }
        if self.private_address:
            request["PrivateIpAddress"] = self.private_address
        if spot:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return request

    def _encrypted_disk(self, ami: str) -> dict[str, Any]:
        """Return the mapping of the image's root device: gp3, encrypted with the account's key of EBS."""
        image = _describe_image(self.aws, ami)
        name = image["RootDeviceName"]
        sizes = [m["Ebs"]["VolumeSize"] for m in image["BlockDeviceMappings"] if m["DeviceName"] == name]
        disk = {"Encrypted": True, "DeleteOnTermination": True, "VolumeType": "gp3"}
        return {"DeviceName": name, "Ebs": {**disk, "VolumeSize": max([self.disk, *sizes])}}


def boxes_like(aws: Aws, instance: Instance, count: int, profile: str, subnets: Sequence[str]) -> Ec2BoxCreator:
    """Return a creator of ``count`` instances like a running one, in its subnet or else in one of ``subnets``."""
    [reservation] = call(aws, "ec2", "describe_instances", InstanceIds=[instance.id])["Reservations"]
    [described] = reservation["Instances"]
    asked = {"InstanceId": instance.id, "Attribute": "userData"}
    encoded = call(aws, "ec2", "describe_instance_attribute", **asked)["UserData"]["Value"]
    tags = {tag["Key"]: tag["Value"] for tag in described["Tags"] if not tag["Key"].startswith("aws:")}
    return Ec2BoxCreator(
        aws=aws,
        ami=described["ImageId"],
        num_boxes=count,
        size=instance.size,
        security_group_id=described["SecurityGroups"][0]["GroupId"],
        key_pair=described["KeyName"],
        tags=tags,
        profile=profile,
        subnets=tuple(dict.fromkeys((described["SubnetId"], *subnets))),
        user_data=base64.b64decode(encoded).decode(),
        disk=int(tags[DISK]),
    )


def terminate_instances(aws: Aws, instances: Sequence[Instance], *, seconds: float = 600.0) -> None:
    """Terminate instances and wait for the termination; instances without a cluster's tag are left alone.

    Raises:
        DeadlineError: this did not end within ``seconds``.
    """
    ids = [instance.id for instance in instances if instance.alive and instance.cluster]
    if not ids:
        return
    for first in range(0, len(ids), 100):
        some = ids[first : first + 100]
        call(aws, "ec2", "terminate_instances", retried={"InvalidInstanceID.NotFound"}, InstanceIds=some)
    alive = ids
    for _ in attempts(aws, seconds, pause=3.0):
        alive = [i.id for name in {each.cluster for each in instances} for i in list_instances(aws, name) if i.alive]
        if not (alive := [id for id in alive if id in ids]):
            return
    raise DeadlineError(f"{', '.join(alive)} have not ended within {seconds:.0f} s; repeat `dl4j aws down`")


def cancel_spot_requests(aws: Aws, cluster: str) -> None:
    """Cancel the cluster's spot requests that are still open or active."""
    wanted = {f"tag:{CLUSTER}": [cluster], "state": ["open", "active"]}
    filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
    found = call(aws, "ec2", "describe_spot_instance_requests", what=f"the spot requests of {cluster}", Filters=filters)
    ids = [each["SpotInstanceRequestId"] for each in found["SpotInstanceRequests"] if each["State"] in wanted["state"]]
    if ids:
        call(
            aws,
            "ec2",
            "cancel_spot_instance_requests",
            what=f"the spot requests of {cluster}",
            SpotInstanceRequestIds=ids,
        )


def describe_instance_type(aws: Aws, size: str) -> InstanceType:
    """Return AWS's description of an instance type; raises ``ConfError`` if the region does not have it."""
    what = f"instance type {size!r} in {aws.region}"
    found = call(aws, "ec2", "describe_instance_types", what=what, InstanceTypes=[size])["InstanceTypes"]
    if not found:
        raise ConfError(f"region {aws.region} has no instance type {size!r}; give another -s, for instance m5.large")
    [info] = found
    return InstanceType(
        cores=int(info["VCpuInfo"]["DefaultVCpus"]),
        memory=int(info["MemoryInfo"]["SizeInMiB"]),
        architecture="arm64" if "arm64" in info["ProcessorInfo"]["SupportedArchitectures"] else "x86_64",
        gpus=sum(int(gpu["Count"]) for gpu in info.get("GpuInfo", {}).get("Gpus", [])),
    )


def check_image(aws: Aws, ami: str, architecture: str) -> None:
    """Raise ``ConfError`` if the region has no such image, or if the image is for another architecture."""
    theirs = _describe_image(aws, ami).get("Architecture", architecture)
    if theirs != architecture:
        raise ConfError(f"image {ami} is for {theirs}, the size for {architecture}; give another -ami or -s")


def _describe_image(aws: Aws, ami: str) -> dict[str, Any]:
    images = call(aws, "ec2", "describe_images", what=f"image {ami} in {aws.region}", ImageIds=[ami])["Images"]
    if not images:
        raise ConfError(f"region {aws.region} has no image {ami}; give another -ami, or none for Debian's newest")
    return dict(images[0])


def newest_image(aws: Aws, architecture: str) -> str:
    """Return the newest official Debian 12 image; raises ``ConfError`` if the region has none."""
    name = f"debian-12-{'arm64' if architecture == 'arm64' else 'amd64'}-*"
    wanted = {"name": name, "state": "available", "architecture": architecture}
    filters = [{"Name": key, "Values": [value]} for key, value in wanted.items()]
    images = call(aws, "ec2", "describe_images", what=f"image {name}", Owners=[_DEBIAN], Filters=filters)["Images"]
    if not images:
        raise ConfError(f"region {aws.region} has no image {name} of Debian's; name a Debian 12 image with -ami")
    return str(max(images, key=lambda image: image["CreationDate"])["ImageId"])
