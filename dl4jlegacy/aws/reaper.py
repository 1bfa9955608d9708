"""Finds the orphaned clusters of a region by tags and names, and removes them.

A cluster is an orphan when its time to live is over, or when it has no instance left and is older than an hour: then
``up`` or ``down`` has failed, or its instances have ended by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dl4jlegacy.aws.calls import call
from dl4jlegacy.aws.cluster_spec import CLUSTER, CREATED, EXPIRES, IAM_PATH, seconds_of, utc
from dl4jlegacy.aws.instances import list_instances
from dl4jlegacy.aws.resources import failures_of
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import CloudError
from dl4jlegacy.storage.s3.session import Aws

__all__ = ["GRACE_SECONDS", "FoundCluster", "find_clusters", "reap"]

GRACE_SECONDS = 3600.0


@dataclass(slots=True)
class FoundCluster:
    """A cluster that has at least one resource; times in seconds since 1970, 0 if no tag gives them."""

    name: str
    belongings: list[str] = field(default_factory=list)
    alive: int = 0
    created: float = 0.0
    expires: float = 0.0

    def is_orphan(self, now: float) -> bool:
        """Return whether the cluster is orphaned."""
        if self.expires and self.expires <= now:
            return True
        return not self.alive and self.created + GRACE_SECONDS <= now


def find_clusters(aws: Aws) -> list[FoundCluster]:
    """Return every cluster that has at least one resource in the region."""
    found: dict[str, FoundCluster] = {}
    for name, what, tags in _find_resources(aws):
        cluster = found.setdefault(name, FoundCluster(name))
        cluster.belongings.append(what)
        cluster.alive += what.startswith("instance i-")
        cluster.created = max(cluster.created, seconds_of(tags.get(CREATED, "")))
        cluster.expires = max(cluster.expires, seconds_of(tags.get(EXPIRES, "")))
    for cluster in found.values():
        cluster.belongings.sort()
    return [found[name] for name in sorted(found)]


def _find_resources(aws: Aws) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the cluster, the kind and name, and the tags of every resource that may belong to a cluster."""
    for instance in list_instances(aws):
        if instance.alive:
            yield instance.cluster, f"instance {instance.id}", {CREATED: instance.created, EXPIRES: instance.expires}
    tagged = [{"Name": "tag-key", "Values": [CLUSTER]}]
    for group in call(aws, "ec2", "describe_security_groups", Filters=tagged)["SecurityGroups"]:
        yield _tags(group["Tags"])[CLUSTER], f"security group {group['GroupId']}", _tags(group["Tags"])
    for pair in call(aws, "ec2", "describe_key_pairs", Filters=tagged)["KeyPairs"]:
        yield _tags(pair["Tags"])[CLUSTER], f"key pair {pair['KeyName']}", _tags(pair["Tags"])
    # roles and profiles belong to the account, and buckets to the world; their names say the region
    region = re.escape(aws.region)
    for role in call(aws, "iam", "list_roles", PathPrefix=IAM_PATH)["Roles"]:
        if ours := re.fullmatch(rf"dl4j-(.+)-{region}", role["RoleName"]):
            listed = call(aws, "iam", "list_role_tags", passed={"NoSuchEntity"}, RoleName=role["RoleName"]) or {}
            yield ours[1], f"role {role['RoleName']}", _tags(listed.get("Tags", []))
    for profile in call(aws, "iam", "list_instance_profiles", PathPrefix=IAM_PATH)["InstanceProfiles"]:
        if ours := re.fullmatch(rf"dl4j-(.+)-{region}", profile["InstanceProfileName"]):
            yield ours[1], f"instance profile {profile['InstanceProfileName']}", _tags(profile.get("Tags", []))
    named = [{"Key": "Name", "Option": "BeginsWith", "Values": ["/dl4jlegacy/"]}]
    for parameter in call(aws, "ssm", "describe_parameters", ParameterFilters=named)["Parameters"]:
        if ours := re.fullmatch(r"/dl4jlegacy/([^/]+)/secret", parameter["Name"]):
            yield ours[1], f"parameter {parameter['Name']}", {}
    account, _ = aws.caller()
    for bucket in call(aws, "s3", "list_buckets")["Buckets"]:
        if ours := re.fullmatch(rf"dl4j-(.+)-{account}-{region}", bucket["Name"]):
            passed = {"NoSuchTagSet", "NoSuchBucket"}  # the bucket is tagged a moment after its creation
            listed = call(aws, "s3", "get_bucket_tagging", passed=passed, Bucket=bucket["Name"])
            made = {CREATED: utc(bucket["CreationDate"].timestamp())}
            yield ours[1], f"bucket {bucket['Name']}", _tags(listed["TagSet"]) if listed else made


def _tags(listed: list[dict[str, Any]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in listed}


def reap(aws: Aws, *, dry_run: bool = False, everything: bool = False) -> list[FoundCluster]:
    """Remove every orphan, or with ``everything`` every cluster; return them; with ``dry_run`` only return them.

    Raises:
        CloudError: some could not be removed; all were tried.
    """
    now = aws.clock.wall()
    chosen = [found for found in find_clusters(aws) if everything or found.is_orphan(now)]
    removed = [] if dry_run else chosen
    if failures := failures_of([ClusterSetup(aws, found.name).down for found in removed]):
        raise CloudError("; ".join(failures))
    return chosen
