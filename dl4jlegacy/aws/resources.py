"""The AWS resources of a cluster besides its instances: security group, key pair, secret, role, bucket.

Every ``ensure_...`` creates what is missing and may be repeated; removing may be repeated too. Resources are tagged in
the call that creates them where AWS can do that. Their names follow from the cluster, so those that a broken ``up``
left behind are found without a record.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

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
)
from dl4jlegacy.aws.cluster_spec import BOUNDARY, CLUSTER, IAM_PATH, OWNER, Names, Tags, tag_list
from dl4jlegacy.errors import CloudError, ConfError, Dl4jError
from dl4jlegacy.storage.s3.session import Aws, error_code, translate_errors
from dl4jlegacy.system.strict_json import to_json

__all__ = ["ClusterResources"]

logger = logging.getLogger(__name__)

_SSH = 22
_MISSING = {
    *("InvalidGroup.NotFound", "InvalidGroupId.NotFound", "InvalidKeyPair.NotFound", "NoSuchEntity", "NoSuchBucket"),
    *("ParameterNotFound", "NoSuchUpload", "404"),
}
_RETRIED = {
    *("InvalidGroup.NotFound", "InvalidGroupId.NotFound", "NoSuchEntity", "NoSuchBucket", "OperationAborted"),
    *("ConcurrentModification", "DependencyViolation", "InvalidGroup.InUse", "DeleteConflict", "BucketNotEmpty"),
}
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


class ClusterResources:
    """The resources of one cluster. Used by one thread at a time."""

    def __init__(self, aws: Aws, names: Names) -> None:
        self._aws, self.names = aws, names

    # --- security group -----------------------------------------------------------------------------------------------

    def ensure_security_group(self, vpc: str, allow: str, tags: Tags) -> str:
        """Return the id of the security group, which admits the cluster itself, and SSH from ``allow``."""
        with translate_errors(f"security group {self.names.group}"):
            group = self._find_or_create_group(vpc, tags)
            pairs = [{"GroupId": group, "Description": "the cluster"}]
            self._allow(group, {"IpProtocol": "-1", "UserIdGroupPairs": pairs})
        self.admit(group, allow, "who started it")
        return group

    def admit(self, group: str, allow: str, who: str) -> None:
        """Let a security group admit SSH from one more network (CIDR, of IPv4 or IPv6)."""
        ranges = (
            {"Ipv6Ranges": [{"CidrIpv6": allow, "Description": who}]}
            if ":" in allow
            else {"IpRanges": [{"CidrIp": allow, "Description": who}]}
        )
        with translate_errors(f"admitting SSH from {allow} to security group {group}"):
            self._allow(group, {"IpProtocol": "tcp", "FromPort": _SSH, "ToPort": _SSH, **ranges})

    def _find_or_create_group(self, vpc: str, tags: Tags) -> str:
        from botocore.exceptions import ClientError

        ec2, name, found = self._aws.client("ec2"), self.names.group, self.security_groups()
        if found:
            return found[0]
        tagged = [{"ResourceType": "security-group", "Tags": tag_list(tags)}]
        what = f"dl4jlegacy cluster {self.names.cluster}"
        try:
            made = ec2.create_security_group(GroupName=name, Description=what, VpcId=vpc, TagSpecifications=tagged)
            return str(made["GroupId"])
        except ClientError as exc:
            if error_code(exc) != "InvalidGroup.Duplicate":
                raise
        filters = [{"Name": "group-name", "Values": [name]}, {"Name": f"tag:{CLUSTER}", "Values": [self.names.cluster]}]
        found = [group["GroupId"] for group in ec2.describe_security_groups(Filters=filters)["SecurityGroups"]]
        if not found:
            raise ConfError(
                f"there is a security group {name} that is not this cluster's; give the cluster another name"
            )
        return found[0]

    def _allow(self, group: str, rule: dict[str, Any]) -> None:
        from botocore.exceptions import ClientError

        ec2 = self._aws.client("ec2")
        try:
            self._aws.eventually(
                lambda: ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule]), _RETRIED
            )
        except ClientError as exc:
            if error_code(exc) != "InvalidPermission.Duplicate":
                raise

    def security_groups(self) -> list[str]:
        """Return the ids of the cluster's security groups."""
        filters = [{"Name": f"tag:{CLUSTER}", "Values": [self.names.cluster]}]
        pages = self._aws.client("ec2").get_paginator("describe_security_groups").paginate(Filters=filters)
        return [group["GroupId"] for page in pages for group in page["SecurityGroups"]]

    # --- key pair, secret ---------------------------------------------------------------------------------------------

    def ensure_key_pair(self, public_key: str, tags: Tags, *, in_use: bool) -> str:
        """Return the name of the key pair, which has this public key (OpenSSH).

        One with another key is replaced, unless it is ``in_use`` by instances.

        Raises:
            ConfError: it has another key, and is in use.
        """
        ec2, name = self._aws.client("ec2"), self.names.key_pair
        with translate_errors(f"key pair {name}"):
            present = self._describe_key_pairs()
            if [_key_of(pair.get("PublicKey", "")) for pair in present] == [_key_of(public_key)]:
                return name
            if present and in_use:
                raise ConfError(
                    f"key pair {name} has another key than {self.names.key_folder / 'key'}, so the cluster was started "
                    f"from another machine; copy the key from there to that file, and repeat `dl4j aws up`"
                )
            if present:
                ec2.delete_key_pair(KeyName=name)
            ec2.import_key_pair(
                KeyName=name,
                PublicKeyMaterial=public_key.encode(),
                TagSpecifications=[{"ResourceType": "key-pair", "Tags": tag_list(tags)}],
            )
        return name

    def key_pairs(self) -> list[str]:
        """Return the names of the cluster's key pairs."""
        return [str(pair["KeyName"]) for pair in self._describe_key_pairs()]

    def _describe_key_pairs(self) -> list[dict[str, Any]]:
        filters = [{"Name": f"tag:{CLUSTER}", "Values": [self.names.cluster]}]
        return list(self._aws.client("ec2").describe_key_pairs(Filters=filters, IncludePublicKey=True)["KeyPairs"])

    def ensure_secret(self, tags: Tags) -> None:
        """Put a random secret for the run's processes into the parameter store, unless there is one."""
        ssm, name = self._aws.client("ssm"), self.names.secret
        from botocore.exceptions import ClientError

        with translate_errors(f"parameter {name}"):
            try:
                value = secrets.token_urlsafe(32)
                ssm.put_parameter(Name=name, Value=value, Type="SecureString", Tags=tag_list(tags))
            except ClientError as exc:
                if error_code(exc) != "ParameterAlreadyExists":
                    raise

    def read_secret(self) -> bytes:
        """Return the run's secret."""
        with translate_errors(f"parameter {self.names.secret}"):
            found = self._aws.client("ssm").get_parameter(Name=self.names.secret, WithDecryption=True)
        return str(found["Parameter"]["Value"]).encode()

    # --- role ---------------------------------------------------------------------------------------------------------

    def ensure_role(self, buckets: tuple[str, ...], tags: Tags) -> str:
        """Return the name of the instance profile, whose role may read the cluster's bucket and secret.

        Whatever policy the role has or gets, it may do no more than the permissions boundary says.

        Args:
            buckets: of the run's data and model; the role may read and write there.
            tags: of role and profile.
        """
        iam, name = self._aws.client("iam"), self.names.role
        listed = tag_list(tags)
        with translate_errors(f"role {name}"):
            self._create_if_absent(
                lambda: iam.create_role(
                    RoleName=name,
                    Path=IAM_PATH,
                    AssumeRolePolicyDocument=to_json(_TRUST),
                    PermissionsBoundary=self.names.boundary,
                    Tags=listed,
                )
            )
            self._aws.eventually(
                lambda: iam.put_role_policy(
                    RoleName=name, PolicyName="dl4jlegacy", PolicyDocument=to_json(self._policy(buckets))
                ),
                _RETRIED,
            )
            self._create_if_absent(
                lambda: iam.create_instance_profile(InstanceProfileName=name, Path=IAM_PATH, Tags=listed)
            )
            profile = self._aws.eventually(lambda: iam.get_instance_profile(InstanceProfileName=name), _RETRIED)
            if not profile["InstanceProfile"]["Roles"]:
                self._aws.eventually(
                    lambda: iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name), _RETRIED
                )
        return name

    def check_boundary(self) -> None:
        """Raise ``ConfError`` if the account lacks the permissions boundary of the role."""
        iam, arn = self._aws.client("iam"), self.names.boundary
        with translate_errors(f"permissions boundary {arn}"):
            if self._ignore_missing(lambda: iam.get_policy(PolicyArn=arn)) is None:
                raise ConfError(
                    f"this account has no policy {arn}, which bounds what instances may do; let an administrator make "
                    f"it once: aws iam create-policy --policy-name {BOUNDARY} --policy-document "
                    "file://docs/aws-iam-boundary.json (docs/aws-permissions.md)"
                )

    def _create_if_absent(self, create: Callable[[], Any]) -> None:
        from botocore.exceptions import ClientError

        try:
            self._aws.eventually(create, {"ConcurrentModification"})
        except ClientError as exc:
            if error_code(exc) != "EntityAlreadyExists":
                raise

    def _policy(self, buckets: tuple[str, ...]) -> dict[str, Any]:
        aws = self.names.partition
        own = f"arn:{aws}:s3:::{self.names.bucket}"
        secret = f"arn:{aws}:ssm:{self._aws.region}:{self.names.account}:parameter{self.names.secret}"
        statements = [
            {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": f"{own}/*"},
            {"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": f"{own}/{own_key('${aws:userid}', '*')}"},
            {"Effect": "Allow", "Action": ["ssm:GetParameter"], "Resource": secret},
        ]
        if buckets:
            arns = [f"arn:{aws}:s3:::{bucket}" for bucket in buckets]
            objects = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
            parts = ["s3:ListMultipartUploadParts"]
            listing = ["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetBucketLocation", "s3:CreateBucket"]
            statements += [
                {"Effect": "Allow", "Action": objects + parts, "Resource": [f"{arn}/*" for arn in arns]},
                {"Effect": "Allow", "Action": listing, "Resource": arns},
            ]
        return {"Version": "2012-10-17", "Statement": statements}

    # --- bucket -------------------------------------------------------------------------------------------------------

    def ensure_bucket(self, tags: Tags) -> str:
        """Return the name of the cluster's own bucket, private and tagged."""
        from botocore.exceptions import ClientError

        s3, name = self._aws.client("s3"), self.names.bucket
        where = {} if self._aws.region == "us-east-1" else {"LocationConstraint": self._aws.region}
        with translate_errors(f"bucket {name}"):
            try:
                create = {"CreateBucketConfiguration": where} if where else {}
                self._aws.eventually(lambda: s3.create_bucket(Bucket=name, **create), {"OperationAborted"})
            except ClientError as exc:
                if error_code(exc) != "BucketAlreadyOwnedByYou":
                    raise
            private = dict.fromkeys(
                ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
            )
            tagging = {"TagSet": tag_list(tags)}
            self._aws.eventually(lambda: s3.put_bucket_tagging(Bucket=name, Tagging=tagging), _RETRIED)
            self._aws.eventually(
                lambda: s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=private), _RETRIED
            )
        return name

    def upload(self, key: str, body: bytes) -> None:
        """Put an object into the cluster's bucket."""
        s3, name = self._aws.client("s3"), self.names.bucket
        with translate_errors(f"s3://{name}/{key}"):
            self._aws.eventually(lambda: s3.put_object(Bucket=name, Key=key, Body=body), _RETRIED)

    # --- what instances say about themselves --------------------------------------------------------------------------

    def _user_id(self, instance_id: str) -> str:
        """Return an instance's ``aws:userid``."""
        iam, name = self._aws.client("iam"), self.names.role
        with translate_errors(f"role {name}"):
            role = self._aws.eventually(lambda: iam.get_role(RoleName=name), _RETRIED)["Role"]
        return f"{role['RoleId']}:{instance_id}"

    def read_host_keys(self, instance_id: str) -> str | None:
        """Return the host keys that an instance has written to the bucket, or None if it has not yet."""
        found = read_object(self._aws, self.names.bucket, own_key(self._user_id(instance_id), HOST_KEYS))
        return None if found is None else found[0].decode()

    def write_servers(self, servers: Sequence[tuple[str, str]]) -> None:
        """Tell all instances which ones are the master and the others with servers: their addresses and ids."""
        present = [PresentMaster(address, self._user_id(instance_id)) for address, instance_id in servers]
        self.upload(PRESENT_MASTER, Servers(tuple(present)).to_bytes())

    def servers(self) -> Servers | None:
        """Return which instances are, or were, the last master and the others with servers, None if none were."""
        return read_servers(self._aws, self.names.bucket)

    def run_done(self) -> Done | None:
        """Return what the last master, or its standby, has said about the end of the run; None if nothing."""
        servers = self.servers()
        said = (read_done(self._aws, self.names.bucket, each) for each in (servers.leaders if servers else ()))
        return next((done for done in said if done is not None), None)

    def journals(self) -> dict[str, str]:
        """Return the keys of the kept journals by the ids of their instances, which may have ended long ago."""
        s3, name, found = self._aws.client("s3"), self.names.bucket, {}

        def look() -> None:
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name, Prefix=INSTANCES):
                for key in (each["Key"] for each in page.get("Contents", [])):
                    user_id, _, what = key.removeprefix(INSTANCES).partition("/")
                    if what == JOURNAL:
                        found[user_id.rpartition(":")[2]] = key

        with translate_errors(f"looking for journals in s3://{name}"):
            self._ignore_missing(look)
        return found

    def read_journal(self, instance_id: str) -> str | None:
        """Return the newest part of what an instance's services said, or None if nothing is kept."""
        key = self.journals().get(instance_id)
        found = read_object(self._aws, self.names.bucket, key) if key else None
        return None if found is None else found[0].decode(errors="replace")

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove(self, *, keep_owner: bool = False) -> list[str]:
        """Remove all resources; return the reasons for those that could not be. Instances must be terminated before.

        The bucket goes last, with the object that says whose the cluster is: only once all else is gone, and not at
        all with ``keep_owner``.
        """
        steps = (
            self._remove_groups,
            self._remove_key_pairs,
            self._remove_role,
            self._remove_secret,
            self._clear_bucket,
        )
        failures = []
        for step in [*steps, self._clear_bucket]:
            try:
                step()
            except Dl4jError as exc:
                failures.append(str(exc))
        if not failures and not keep_owner:
            try:
                self._remove_bucket()
            except Dl4jError as exc:
                failures.append(str(exc))
        return failures

    def _ignore_missing(self, call: Callable[[], Any], retried: Collection[str] = ()) -> Any:
        """Return what ``call`` returns, None if the resource does not exist; repeat it over errors in ``retried``."""
        from botocore.exceptions import ClientError

        try:
            return self._aws.eventually(call, retried)
        except ClientError as exc:
            if error_code(exc) not in _MISSING:
                raise
        return None

    def _remove_groups(self) -> None:
        ec2 = self._aws.client("ec2")
        in_use = {"DependencyViolation", "InvalidGroup.InUse"}
        with translate_errors(f"removing security group {self.names.group}"):
            for group in self.security_groups():
                self._ignore_missing(partial(ec2.delete_security_group, GroupId=group), in_use)

    def _remove_key_pairs(self) -> None:
        ec2 = self._aws.client("ec2")
        with translate_errors(f"removing key pair {self.names.key_pair}"):
            for name in self.key_pairs():
                ec2.delete_key_pair(KeyName=name)

    def _remove_role(self) -> None:
        iam, name = self._aws.client("iam"), self.names.role
        with translate_errors(f"removing role {name}"):
            profile = self._ignore_missing(lambda: iam.get_instance_profile(InstanceProfileName=name))
            for role in profile["InstanceProfile"]["Roles"] if profile else ():
                detach = partial(iam.remove_role_from_instance_profile, InstanceProfileName=name)
                self._ignore_missing(partial(detach, RoleName=role["RoleName"]))
            self._ignore_missing(lambda: iam.delete_instance_profile(InstanceProfileName=name), {"DeleteConflict"})
            self._ignore_missing(lambda: iam.delete_role_policy(RoleName=name, PolicyName="dl4jlegacy"))
            self._ignore_missing(lambda: iam.delete_role(RoleName=name), {"DeleteConflict"})

    def _remove_secret(self) -> None:
        ssm, name = self._aws.client("ssm"), self.names.secret
        with translate_errors(f"removing parameter {name}"):
            self._ignore_missing(lambda: ssm.delete_parameter(Name=name))

    def _clear_bucket(self) -> None:
        """Remove all from the bucket but the object that says whose the cluster is."""
        with translate_errors(f"emptying bucket {self.names.bucket}"):
            self._ignore_missing(self._empty_bucket)

    def _remove_bucket(self) -> None:
        s3, name = self._aws.client("s3"), self.names.bucket
        with translate_errors(f"removing bucket {name}"):
            self._ignore_missing(lambda: s3.delete_object(Bucket=name, Key=OWNER))
            self._ignore_missing(lambda: s3.delete_bucket(Bucket=name), {"BucketNotEmpty", "OperationAborted"})

    def _empty_bucket(self) -> None:
        s3, name = self._aws.client("s3"), self.names.bucket
        for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=name):
            for upload in page.get("Uploads", []):
                s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
            keys = [{"Key": found["Key"]} for found in page.get("Contents", []) if found["Key"] != OWNER]
            if keys:
                failed = s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True}).get("Errors", [])
                if failed:
                    raise CloudError(f"bucket {name}: {failed[0]['Key']} cannot be deleted: {failed[0].get('Code')}")

    # --- listing ------------------------------------------------------------------------------------------------------

    def existing(self) -> list[str]:
        """Return the resources that exist, each as ``kind name``."""
        names, found = self.names, []
        with translate_errors(f"looking for what cluster {names.cluster} has"):
            found += [f"security group {group}" for group in self.security_groups()]
            found += [f"key pair {pair}" for pair in self.key_pairs()]
            iam, ssm, s3 = (self._aws.client(service) for service in ("iam", "ssm", "s3"))
            lookups: tuple[tuple[str, Callable[[], Any]], ...] = (
                (f"role {names.role}", lambda: iam.get_role(RoleName=names.role)),
                (
                    f"instance profile {names.role}",
                    lambda: iam.get_instance_profile(InstanceProfileName=names.role),
                ),
                (f"parameter {names.secret}", lambda: ssm.get_parameter(Name=names.secret)),
                (f"bucket {names.bucket}", lambda: s3.head_bucket(Bucket=names.bucket)),
            )
            found += [what for what, look_up in lookups if self._ignore_missing(look_up) is not None]
        return found

    def find_subnets(self, subnet: str = "") -> tuple[str, list[str]]:
        """Return the VPC and the subnets to start in; raises ``ConfError`` if there is no default VPC."""
        ec2 = self._aws.client("ec2")
        with translate_errors(f"subnet {subnet or 'of the default VPC'}"):
            if subnet:
                [found] = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]
                return str(found["VpcId"]), [subnet]
            filters = [{"Name": "default-for-az", "Values": ["true"]}]
            subnets = ec2.describe_subnets(Filters=filters)["Subnets"]
        if not subnets:
            raise ConfError(
                f"region {self._aws.region} has no default VPC; make one (aws ec2 create-default-vpc) or give --subnet"
            )
        vpc = str(subnets[0]["VpcId"])
        ordered = sorted((s["AvailabilityZone"], s["SubnetId"]) for s in subnets if s["VpcId"] == vpc)
        return vpc, [str(subnet_id) for _, subnet_id in ordered]

    def subnet_of(self, address: str, subnets: Sequence[str]) -> str:
        """Return which of the subnets a private address belongs to; raises ``ConfError`` if none of them."""
        with translate_errors(f"the subnet of {address}"):
            found = self._aws.client("ec2").describe_subnets(SubnetIds=list(subnets))["Subnets"]
        own = [s for s in found if ipaddress.IPv4Address(address) in ipaddress.IPv4Network(s["CidrBlock"])]
        if not own:
            raise ConfError(
                f"the lost instance had the address {address}, which another one is to get, and no subnet of "
                f"{', '.join(subnets)} has it; repeat `dl4j aws up` with the --subnet of its first time"
            )
        return str(own[0]["SubnetId"])


def _key_of(public_key: str) -> list[str]:
    """Return type and key of a public key (OpenSSH), without the comment."""
    return public_key.split()[:2]
