"""Finds clusters that nobody will remove any more, in one region, by tags and names, and removes them.

A cluster is an orphan when its time to live is over, or when it has no instance left and is older than an hour: then
a broken ``up`` or ``down`` has left it, or its instances have ended by themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dl4jlegacy.aws.cluster_spec import CLUSTER, CREATED, EXPIRES, IAM_PATH, utc
from dl4jlegacy.aws.instances import list_instances
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import CloudError, Dl4jError
from dl4jlegacy.storage.s3.session import Aws, error_code, translate_errors

__all__ = ["GRACE_SECONDS", "FoundCluster", "find_clusters", "reap"]

GRACE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """A cluster of which something exists; times in seconds since 1970, 0 if no tag says."""

    name: str
    resources: tuple[str, ...]
    alive: int
    created: float
    expires: float

    def fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "name": self.name,
            "belongings": list(self.resources),
            "alive": self.alive,
            "created": self.created,
            "expires": self.expires,
        }

    def is_orphan(self, now: float) -> bool:
        """Return True if nobody will remove it any more."""
        if self.expires and self.expires <= now:
            return True
        return not self.alive and self.created + GRACE_SECONDS <= now


class _Inventory:
    """Collects resources by cluster."""

    def __init__(self) -> None:
        self.resources: dict[str, list[str]] = {}
        self.alive: dict[str, int] = {}
        self.created: dict[str, list[float]] = {}
        self.expires: dict[str, list[float]] = {}

    def add(self, cluster: str, resource: str, tags: dict[str, str], *, alive: bool = False) -> None:
        if not cluster:
            return
        self.resources.setdefault(cluster, []).append(resource)
        self.alive[cluster] = self.alive.get(cluster, 0) + alive
        for name, kept in ((CREATED, self.created), (EXPIRES, self.expires)):
            if tags.get(name):
                kept.setdefault(cluster, []).append(_seconds(tags[name]))

    def clusters(self) -> list[FoundCluster]:
        return [
            FoundCluster(
                name=name,
                resources=tuple(sorted(resources)),
                alive=self.alive[name],
                created=max(self.created.get(name, []), default=0.0),
                expires=max(self.expires.get(name, []), default=0.0),
            )
            for name, resources in sorted(self.resources.items())
        ]


def find_clusters(aws: Aws) -> list[FoundCluster]:
    """Return every cluster of which something exists in the region."""
    inventory = _Inventory()
    for instance in list_instances(aws):
        if instance.alive:
            inventory.add(
                instance.cluster,
                f"instance {instance.id}",
                {CREATED: instance.created, EXPIRES: instance.expires},
                alive=True,
            )
    account = aws.account()
    with translate_errors(f"looking for clusters in {aws.region}"):
        _find_in_ec2(aws, inventory)
        _find_in_iam(aws, inventory)
        _find_parameters(aws, inventory)
        _find_buckets(aws, inventory, account)
    return inventory.clusters()


def _tags(listed: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in listed}


def _find_in_ec2(aws: Aws, inventory: _Inventory) -> None:
    ec2, tagged = aws.client("ec2"), [{"Name": "tag-key", "Values": [CLUSTER]}]
    for page in ec2.get_paginator("describe_security_groups").paginate(Filters=tagged):
        for group in page["SecurityGroups"]:
            tags = _tags(group.get("Tags", []))
            inventory.add(tags.get(CLUSTER, ""), f"security group {group['GroupId']}", tags)
    for pair in ec2.describe_key_pairs(Filters=tagged)["KeyPairs"]:
        tags = _tags(pair.get("Tags", []))
        inventory.add(tags.get(CLUSTER, ""), f"key pair {pair['KeyName']}", tags)


def _find_in_iam(aws: Aws, inventory: _Inventory) -> None:
    """Add roles and profiles, which belong to the account; their names say the region."""
    from botocore.exceptions import ClientError

    iam = aws.client("iam")
    ours = re.compile(rf"dl4j-(.+)-{re.escape(aws.region)}")
    listings = (
        ("role", "list_roles", "Roles", "RoleName", "list_role_tags"),
        ("instance profile", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName", ""),
    )
    for kind, lister, plural, name_of, tagger in listings:
        for page in iam.get_paginator(lister).paginate(PathPrefix=IAM_PATH):
            for item in page[plural]:
                found = ours.fullmatch(item[name_of])
                if not found:
                    continue
                listed = item.get("Tags", [])
                if tagger:
                    try:
                        listed = iam.list_role_tags(RoleName=item[name_of])["Tags"]
                    except ClientError as exc:
                        if error_code(exc) != "NoSuchEntity":
                            raise
                inventory.add(found[1], f"{kind} {item[name_of]}", _tags(listed))


def _find_parameters(aws: Aws, inventory: _Inventory) -> None:
    filters = [{"Key": "Name", "Option": "BeginsWith", "Values": ["/dl4jlegacy/"]}]
    for page in aws.client("ssm").get_paginator("describe_parameters").paginate(ParameterFilters=filters):
        for parameter in page["Parameters"]:
            found = re.fullmatch(r"/dl4jlegacy/([^/]+)/secret", parameter["Name"])
            if found:
                inventory.add(found[1], f"parameter {parameter['Name']}", {})


def _find_buckets(aws: Aws, inventory: _Inventory, account: str) -> None:
    from botocore.exceptions import ClientError

    s3, ours = aws.client("s3"), re.compile(rf"dl4j-(.+)-{account}-{re.escape(aws.region)}")
    for bucket in s3.list_buckets()["Buckets"]:
        found = ours.fullmatch(bucket["Name"])
        if not found:
            continue
        tags = {CREATED: utc(bucket["CreationDate"].timestamp())}  # it is tagged a moment later
        try:
            tags = _tags(s3.get_bucket_tagging(Bucket=bucket["Name"])["TagSet"])
        except ClientError as exc:
            if error_code(exc) not in ("NoSuchTagSet", "NoSuchBucket"):
                raise
        inventory.add(found[1], f"bucket {bucket['Name']}", tags)


def reap(aws: Aws, *, dry_run: bool = False, everything: bool = False) -> list[FoundCluster]:
    """Remove every orphan, or every cluster with ``everything``; return those removed, or with ``dry_run`` to remove.

    Raises:
        CloudError: some could not be removed; all were tried.
    """
    now = aws.clock.wall()
    chosen = [found for found in find_clusters(aws) if everything or found.is_orphan(now)]
    failures = []
    for found in [] if dry_run else chosen:
        try:
            ClusterSetup(aws, found.name).down()
        except Dl4jError as exc:
            failures.append(str(exc))
    if failures:
        raise CloudError("; ".join(failures))
    return chosen


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
