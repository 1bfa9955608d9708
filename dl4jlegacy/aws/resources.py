"""The AWS resources of a cluster besides its instances: security group, key pair, secret, role, bucket.

Every ``ensure_...`` creates what is missing and may be repeated; removing may be repeated too. Resources are tagged in
the call that creates them if AWS can do that. Their names are derived from the cluster, so the remains of a broken
``up`` are found without a record.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from dl4jlegacy.aws.calls import MISSING, call
from dl4jlegacy.aws.cluster_bucket import (
    HOST_KEYS,
    INSTANCES,
    JOURNAL,
    PRESENT_MASTER,
    Done,
    PresentMaster,
    Servers,
    own_key,
    read_done,
    read_object,
    read_servers,
    write_object,
)
from dl4jlegacy.aws.cluster_spec import BOUNDARY, CLUSTER, IAM_PATH, OWNER, Names, Tags, tag_list, tagged
from dl4jlegacy.errors import CloudError, ConfError, Dl4jError
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import S3Uploader
from dl4jlegacy.system.strict_json import to_json

__all__ = ["ClusterResources", "failures_of"]

_RETRIED = {
    *("InvalidGroup.NotFound", "InvalidGroupId.NotFound", "NoSuchEntity", "NoSuchBucket", "OperationAborted"),
    "ConcurrentModification",
}
"""Errors that pass once a new resource is known everywhere in AWS."""
_IN_USE = {"DependencyViolation", "InvalidGroup.InUse", "DeleteConflict", "BucketNotEmpty", "OperationAborted"}
"""Errors that pass once everywhere in AWS it is known that the resource is no longer used."""
_POLICY = "dl4jlegacy"
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


def failures_of(steps: Iterable[Callable[[], object]]) -> list[str]:
    """Run every step, also after a failed one; return the errors' messages."""
    failures = []
    for step in steps:
        try:
            step()
        except Dl4jError as exc:
            failures.append(str(exc))
    return failures


class ClusterResources:
    """The resources of one cluster. Used by one thread at a time."""

    def __init__(self, aws: Aws, names: Names) -> None:
        self._aws, self.names, self._call = aws, names, partial(call, aws)
        self._ours = [{"Name": f"tag:{CLUSTER}", "Values": [names.cluster]}]

    # --- security group -----------------------------------------------------------------------------------------------

    def ensure_security_group(self, vpc: str, allow: str, tags: Tags) -> str:
        """Return the id of the security group, which admits the cluster itself, and SSH from ``allow``."""
        name, found = self.names.group, self.security_groups()
        if not found:
            made = self._call(
                "ec2",
                "create_security_group",
                passed={"InvalidGroup.Duplicate"},
                GroupName=name,
                Description=f"dl4jlegacy cluster {self.names.cluster}",
                VpcId=vpc,
                TagSpecifications=tagged(tags, "security-group"),
            )
            found = [made["GroupId"]] if made else self.security_groups()
        if not found:
            raise ConfError(f"security group {name} is not this cluster's; give the cluster another name")
        pairs = [{"GroupId": found[0], "Description": "the cluster"}]
        self._allow(found[0], {"IpProtocol": "-1", "UserIdGroupPairs": pairs})
        self.admit(found[0], allow, "who started it")
        return found[0]

    def admit(self, group: str, allow: str, who: str) -> None:
        """Let a security group admit SSH from one more network (CIDR, of IPv4 or IPv6)."""
        ranges, field = ("Ipv6Ranges", "CidrIpv6") if ":" in allow else ("IpRanges", "CidrIp")
        admitted = [{field: allow, "Description": who}]
        self._allow(group, {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, ranges: admitted})

    def _allow(self, group: str, rule: dict[str, Any]) -> None:
        self._call(
            "ec2",
            "authorize_security_group_ingress",
            retried=_RETRIED,
            passed={"InvalidPermission.Duplicate"},
            GroupId=group,
            IpPermissions=[rule],
        )

    def security_groups(self) -> list[str]:
        """Return the ids of the cluster's security groups."""
        found = self._call("ec2", "describe_security_groups", Filters=self._ours)["SecurityGroups"]
        return [group["GroupId"] for group in found]

    # --- key pair, secret ---------------------------------------------------------------------------------------------

    def ensure_key_pair(self, public_key: str, tags: Tags, *, in_use: bool) -> str:
        """Return the name of the key pair with this public key (OpenSSH).

        A key pair with another key is replaced, unless it is ``in_use`` by instances.

        Raises:
            ConfError: the key pair has another key, and is in use.
        """
        name, present = self.names.key_pair, self._key_pairs()
        if [pair.get("PublicKey", "").split()[:2] for pair in present] == [public_key.split()[:2]]:  # no comment
            return name
        if present and in_use:
            raise ConfError(
                f"key pair {name} has another key than {self.names.key_folder / 'key'}, so the cluster was started "
                f"from another machine; copy the key from there to that file, and repeat `dl4j aws up`"
            )
        self._remove_key_pairs()
        self._call(
            "ec2",
            "import_key_pair",
            KeyName=name,
            PublicKeyMaterial=public_key.encode(),
            TagSpecifications=tagged(tags, "key-pair"),
        )
        return name

    def _key_pairs(self) -> list[dict[str, Any]]:
        return list(self._call("ec2", "describe_key_pairs", Filters=self._ours, IncludePublicKey=True)["KeyPairs"])

    def ensure_secret(self, tags: Tags) -> None:
        """Put a random secret for the run's processes into the parameter store, unless there is one."""
        self._call(
            "ssm",
            "put_parameter",
            passed={"ParameterAlreadyExists"},
            Name=self.names.secret,
            Value=secrets.token_urlsafe(32),
            Type="SecureString",
            Tags=tag_list(tags),
        )

    def read_secret(self) -> bytes:
        """Return the run's secret."""
        found = self._call("ssm", "get_parameter", Name=self.names.secret, WithDecryption=True)
        return str(found["Parameter"]["Value"]).encode()

    # --- role ---------------------------------------------------------------------------------------------------------

    def ensure_role(self, buckets: tuple[str, ...], tags: Tags) -> str:
        """Return the name of the instance profile, whose role may read the cluster's bucket and secret.

        The permissions boundary limits the role, whatever policies it has or gets.

        Args:
            buckets: of the run's data and model; the role may read and write there.
            tags: of role and profile.
        """
        name = self.names.role
        create = partial(self._call, "iam", retried={"ConcurrentModification"}, passed={"EntityAlreadyExists"})
        change = partial(self._call, "iam", retried=_RETRIED)
        create(
            operation="create_role",
            RoleName=name,
            Path=IAM_PATH,
            AssumeRolePolicyDocument=to_json(_TRUST),
            PermissionsBoundary=self.names.boundary,
            Tags=tag_list(tags),
        )
        policy = to_json(self._policy(buckets))
        change(operation="put_role_policy", RoleName=name, PolicyName=_POLICY, PolicyDocument=policy)
        create(operation="create_instance_profile", InstanceProfileName=name, Path=IAM_PATH, Tags=tag_list(tags))
        profile = change(operation="get_instance_profile", InstanceProfileName=name)["InstanceProfile"]
        if not profile["Roles"]:
            change(operation="add_role_to_instance_profile", InstanceProfileName=name, RoleName=name)
        return name

    def check_boundary(self) -> None:
        """Raise ``ConfError`` if the account lacks the permissions boundary of the role."""
        if self._call("iam", "get_policy", passed=MISSING, PolicyArn=self.names.boundary) is None:
            raise ConfError(
                f"this account has no policy {self.names.boundary}, which bounds what instances may do; let an "
                f"administrator make it once: aws iam create-policy --policy-name {BOUNDARY} --policy-document "
                "file://docs/aws-iam-boundary.json (docs/aws-permissions.md)"
            )

    def _policy(self, buckets: tuple[str, ...]) -> dict[str, Any]:
        aws = self.names.partition
        own = f"arn:{aws}:s3:::{self.names.bucket}"
        secret = f"arn:{aws}:ssm:{self._aws.region}:{self.names.account}:parameter{self.names.secret}"
        objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        listing = ["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetBucketLocation", "s3:CreateBucket"]
        arns = [f"arn:{aws}:s3:::{bucket}" for bucket in buckets]
        allowed = (
            (["s3:GetObject"], [f"{own}/*"]),
            (["s3:PutObject"], [f"{own}/{own_key('${aws:userid}', '*')}"]),
            (["ssm:GetParameter"], [secret]),
            ([*objects, "s3:ListMultipartUploadParts"], [f"{arn}/*" for arn in arns]),
            (listing, arns),
        )
        statements = [
            {"Effect": "Allow", "Action": actions, "Resource": resources} for actions, resources in allowed if resources
        ]
        return {"Version": "2012-10-17", "Statement": statements}

    # --- bucket -------------------------------------------------------------------------------------------------------

    def ensure_bucket(self, tags: Tags) -> None:
        """Create the cluster's own bucket, private and tagged, unless there is one."""
        name = self.names.bucket
        private = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
        S3Uploader(self._aws).ensure_bucket(name)
        change = partial(self._call, "s3", retried=_RETRIED, Bucket=name)
        change(operation="put_bucket_tagging", Tagging={"TagSet": tag_list(tags)})
        change(
            operation="put_public_access_block",
            PublicAccessBlockConfiguration=dict.fromkeys(private, True),
        )

    def upload(self, key: str, body: bytes) -> None:
        """Put an object into the cluster's bucket."""
        write_object(self._aws, self.names.bucket, key, body)

    # --- what instances say about themselves --------------------------------------------------------------------------

    def _user_id(self, instance_id: str) -> str:
        """Return an instance's ``aws:userid``."""
        role = self._call("iam", "get_role", retried=_RETRIED, RoleName=self.names.role)["Role"]
        return f"{role['RoleId']}:{instance_id}"

    def read_host_keys(self, instance_id: str) -> str | None:
        """Return the host keys that an instance has written to the bucket, or None if it has not yet."""
        found = read_object(self._aws, self.names.bucket, own_key(self._user_id(instance_id), HOST_KEYS))
        return None if found is None else found[0].decode()

    def write_servers(self, servers: Sequence[tuple[str, str]]) -> None:
        """Write addresses and ids of the instances with servers, the master's first, into the cluster's bucket."""
        present = [PresentMaster(address, self._user_id(instance_id)) for address, instance_id in servers]
        self.upload(PRESENT_MASTER, Servers(tuple(present)).to_bytes())

    def servers(self) -> Servers | None:
        """Return the last master and the other instances with servers; None if there were none yet."""
        return read_servers(self._aws, self.names.bucket)

    def run_done(self) -> Done | None:
        """Return the end of the run as the last master or its standby has recorded it; None while it is not over."""
        servers = self.servers()
        said = (read_done(self._aws, self.names.bucket, each) for each in (servers.leaders if servers else ()))
        return next((done for done in said if done is not None), None)

    def journals(self) -> dict[str, str]:
        """Return the keys of the saved journals by instance id; the instances may have ended long ago."""
        listed = self._call("s3", "list_objects_v2", passed=MISSING, Bucket=self.names.bucket, Prefix=INSTANCES) or {}
        keys = [found["Key"] for found in listed.get("Contents", []) if found["Key"].endswith(f"/{JOURNAL}")]
        return {key.split("/")[1].rpartition(":")[2]: key for key in keys}

    def read_journal(self, instance_id: str) -> str:
        """Return the saved end of the journal of an instance's services, "" if there is none."""
        key = self.journals().get(instance_id)
        found = read_object(self._aws, self.names.bucket, key) if key else None
        return "" if found is None else found[0].decode(errors="replace")

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove(self, *, keep_owner: bool = False) -> list[str]:
        """Remove all resources; return the reasons for failures. Instances must be terminated before.

        The bucket, with the object that names the owner, is removed last: only once everything else is gone, and not at
        all with ``keep_owner``.
        """
        steps = (
            self._remove_groups,
            self._remove_key_pairs,
            self._remove_role,
            lambda: self._call("ssm", "delete_parameter", passed=MISSING, Name=self.names.secret),
            self._empty_bucket,
        )
        return failures_of(steps) or ([] if keep_owner else failures_of([self._remove_bucket]))

    def _remove_groups(self) -> None:
        for group in self.security_groups():
            self._call("ec2", "delete_security_group", retried=_IN_USE, passed=MISSING, GroupId=group)

    def _remove_key_pairs(self) -> None:
        for pair in self._key_pairs():
            self._call("ec2", "delete_key_pair", KeyName=pair["KeyName"])

    def _remove_role(self) -> None:
        name = self.names.role
        remove = partial(self._call, "iam", retried=_IN_USE, passed=MISSING)
        remove(operation="remove_role_from_instance_profile", InstanceProfileName=name, RoleName=name)
        remove(operation="delete_instance_profile", InstanceProfileName=name)
        remove(operation="delete_role_policy", RoleName=name, PolicyName=_POLICY)
        remove(operation="delete_role", RoleName=name)

    def _empty_bucket(self) -> None:
        """Remove all objects from the bucket except the owner."""
        change = partial(self._call, "s3", passed=MISSING, Bucket=self.names.bucket)
        for upload in (change(operation="list_multipart_uploads") or {}).get("Uploads", []):
            change(operation="abort_multipart_upload", Key=upload["Key"], UploadId=upload["UploadId"])
        listed = (change(operation="list_objects_v2") or {}).get("Contents", [])
        keys = [{"Key": found["Key"]} for found in listed if found["Key"] != OWNER]
        for first in range(0, len(keys), 1000):
            removed = change(operation="delete_objects", Delete={"Objects": keys[first : first + 1000], "Quiet": True})
            for failed in (removed or {}).get("Errors", []):
                raise CloudError(
                    f"s3://{self.names.bucket}/{failed['Key']} cannot be deleted: {failed.get('Code')}; "
                    f"repeat `dl4j aws down {self.names.cluster}`"
                )

    def _remove_bucket(self) -> None:
        remove = partial(self._call, "s3", retried=_IN_USE, passed=MISSING, Bucket=self.names.bucket)
        remove(operation="delete_object", Key=OWNER)
        remove(operation="delete_bucket")

    # --- listing ------------------------------------------------------------------------------------------------------

    def existing(self) -> list[str]:
        """Return the resources that exist, each as ``kind name``."""
        role, secret, bucket = self.names.role, self.names.secret, self.names.bucket
        lookups = (
            ("role", role, "iam", "get_role", "RoleName"),
            ("instance profile", role, "iam", "get_instance_profile", "InstanceProfileName"),
            ("parameter", secret, "ssm", "get_parameter", "Name"),
            ("bucket", bucket, "s3", "head_bucket", "Bucket"),
        )
        found = [f"security group {group}" for group in self.security_groups()]
        found += [f"key pair {pair['KeyName']}" for pair in self._key_pairs()]
        for kind, name, service, operation, argument in lookups:
            if self._call(service, operation, passed=MISSING, **{argument: name}) is not None:
                found.append(f"{kind} {name}")
        return found

    def find_subnets(self, subnet: str = "") -> tuple[str, list[str]]:
        """Return the VPC and the subnets to start in; raises ``ConfError`` if there is no default VPC."""
        wanted = {"SubnetIds": [subnet]} if subnet else {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
        subnets = self._call("ec2", "describe_subnets", what=f"subnet {subnet or 'of the default VPC'}", **wanted)[
            "Subnets"
        ]
        if not subnets:
            raise ConfError(
                f"region {self._aws.region} has no default VPC; make one (aws ec2 create-default-vpc) or give --subnet"
            )
        vpc = str(subnets[0]["VpcId"])
        ordered = sorted((s["AvailabilityZone"], s["SubnetId"]) for s in subnets if s["VpcId"] == vpc)
        return vpc, [str(subnet_id) for _, subnet_id in ordered]

    def subnet_of(self, address: str, subnets: Sequence[str]) -> str:
        """Return the subnet that contains a private address; raises ``ConfError`` if none does."""
        found = self._call("ec2", "describe_subnets", what=f"the subnet of {address}", SubnetIds=list(subnets))[
            "Subnets"
        ]
        own = [s for s in found if ipaddress.IPv4Address(address) in ipaddress.IPv4Network(s["CidrBlock"])]
        if not own:
            raise ConfError(
                f"the lost instance had the address {address}, which another one is to get, and no subnet of "
                f"{', '.join(subnets)} has it; repeat `dl4j aws up` with the --subnet of its first time"
            )
        return str(own[0]["SubnetId"])
