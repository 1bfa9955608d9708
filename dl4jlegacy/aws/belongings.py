"""Belongings: everything of a cluster but its instances: security group, key pair, secret, role, bucket.

Each is made so that making it again changes nothing, tagged in the same call where AWS can do that, and removed so that
removing it again is no error. Names follow from the cluster, so what a broken ``up`` left is found without a record.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from dl4jlegacy.aws.cluster_spec import CLUSTER, IAM_PATH, Names, Tags, tag_list
from dl4jlegacy.aws.session import Aws, code_of, translated
from dl4jlegacy.errors import CloudError, ConfError, Dl4jError

__all__ = ["Belongings"]

logger = logging.getLogger(__name__)

_SSH = 22
_GONE = {
    *("InvalidGroup.NotFound", "InvalidGroupId.NotFound", "InvalidKeyPair.NotFound", "NoSuchEntity", "NoSuchBucket"),
    *("ParameterNotFound", "NoSuchUpload", "404"),
}
_NOT_YET = {
    *("InvalidGroup.NotFound", "InvalidGroupId.NotFound", "NoSuchEntity", "NoSuchBucket", "OperationAborted"),
    *("ConcurrentModification", "DependencyViolation", "InvalidGroup.InUse", "DeleteConflict", "BucketNotEmpty"),
}
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


class Belongings:
    """The belongings of one cluster; used by one thread at a time."""

    def __init__(self, aws: Aws, names: Names) -> None:
        self._aws, self.names = aws, names

    # --- security group -----------------------------------------------------------------------------------------------

    def security_group(self, vpc: str, allow: str, tags: Tags) -> str:
        """Return the id of the group that admits the cluster itself, and SSH from ``allow``."""
        with translated(f"security group {self.names.group}"):
            group = self._group_of(vpc, tags)
            for rule in (
                {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group, "Description": "the cluster"}]},
                {
                    "IpProtocol": "tcp",
                    "FromPort": _SSH,
                    "ToPort": _SSH,
                    "IpRanges": [{"CidrIp": allow, "Description": "who started it"}],
                },
            ):
                self._admit(group, rule)
        return group

    def _group_of(self, vpc: str, tags: Tags) -> str:
        from botocore.exceptions import ClientError

        ec2, name, found = self._aws.client("ec2"), self.names.group, self.groups()
        if found:
            return found[0]
        tagged = [{"ResourceType": "security-group", "Tags": tag_list(tags)}]
        what = f"dl4jlegacy cluster {self.names.cluster}"
        try:
            made = ec2.create_security_group(GroupName=name, Description=what, VpcId=vpc, TagSpecifications=tagged)
            return str(made["GroupId"])
        except ClientError as exc:
            if code_of(exc) != "InvalidGroup.Duplicate":
                raise
        filters = [{"Name": "group-name", "Values": [name]}, {"Name": f"tag:{CLUSTER}", "Values": [self.names.cluster]}]
        found = [group["GroupId"] for group in ec2.describe_security_groups(Filters=filters)["SecurityGroups"]]
        if not found:
            raise ConfError(
                f"there is a security group {name} that is not this cluster's; give the cluster another name"
            )
        return found[0]

    def _admit(self, group: str, rule: dict[str, Any]) -> None:
        from botocore.exceptions import ClientError

        ec2 = self._aws.client("ec2")
        try:
            self._aws.eventually(
                lambda: ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule]), _NOT_YET
            )
        except ClientError as exc:
            if code_of(exc) != "InvalidPermission.Duplicate":
                raise

    def groups(self) -> list[str]:
        """Return the ids of the cluster's security groups."""
        filters = [{"Name": f"tag:{CLUSTER}", "Values": [self.names.cluster]}]
        pages = self._aws.client("ec2").get_paginator("describe_security_groups").paginate(Filters=filters)
        return [group["GroupId"] for page in pages for group in page["SecurityGroups"]]

    # --- key pair, secret ---------------------------------------------------------------------------------------------

    def key_pair(self, public_key: str, tags: Tags) -> str:
        """Return the name of the key pair with this public key (OpenSSH); another one of that name is replaced."""
        ec2, name = self._aws.client("ec2"), self.names.key_pair
        with translated(f"key pair {name}"):
            if self.key_pairs():
                ec2.delete_key_pair(KeyName=name)
            ec2.import_key_pair(
                KeyName=name,
                PublicKeyMaterial=public_key.encode(),
                TagSpecifications=[{"ResourceType": "key-pair", "Tags": tag_list(tags)}],
            )
        return name

    def key_pairs(self) -> list[str]:
        """Return the names of the cluster's key pairs."""
        filters = [{"Name": f"tag:{CLUSTER}", "Values": [self.names.cluster]}]
        pairs = self._aws.client("ec2").describe_key_pairs(Filters=filters)["KeyPairs"]
        return [str(pair["KeyName"]) for pair in pairs]

    def secret(self, tags: Tags) -> None:
        """Keep a random secret for the run's processes in the parameter store, unless there is one."""
        ssm, name = self._aws.client("ssm"), self.names.secret
        from botocore.exceptions import ClientError

        with translated(f"parameter {name}"):
            try:
                value = secrets.token_urlsafe(32)
                ssm.put_parameter(Name=name, Value=value, Type="SecureString", Tags=tag_list(tags))
            except ClientError as exc:
                if code_of(exc) != "ParameterAlreadyExists":
                    raise

    def read_secret(self) -> bytes:
        """Return the run's secret."""
        with translated(f"parameter {self.names.secret}"):
            found = self._aws.client("ssm").get_parameter(Name=self.names.secret, WithDecryption=True)
        return str(found["Parameter"]["Value"]).encode()

    # --- role ---------------------------------------------------------------------------------------------------------

    def role(self, buckets: tuple[str, ...], tags: Tags) -> str:
        """Return the name of the instance profile whose role may read the cluster's bucket and secret.

        Args:
            buckets: where the run's data are and its model goes; the role may read and write there.
            tags: of role and profile.
        """
        iam, name = self._aws.client("iam"), self.names.role
        listed = tag_list(tags)
        with translated(f"role {name}"):
            self._unless_there(
                lambda: iam.create_role(
                    RoleName=name, Path=IAM_PATH, AssumeRolePolicyDocument=json.dumps(_TRUST), Tags=listed
                )
            )
            self._aws.eventually(
                lambda: iam.put_role_policy(
                    RoleName=name, PolicyName="dl4jlegacy", PolicyDocument=json.dumps(self._policy(buckets))
                ),
                _NOT_YET,
            )
            self._unless_there(
                lambda: iam.create_instance_profile(InstanceProfileName=name, Path=IAM_PATH, Tags=listed)
            )
            profile = self._aws.eventually(lambda: iam.get_instance_profile(InstanceProfileName=name), _NOT_YET)
            if not profile["InstanceProfile"]["Roles"]:
                self._aws.eventually(
                    lambda: iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name), _NOT_YET
                )
        return name

    def _unless_there(self, create: Callable[[], Any]) -> None:
        from botocore.exceptions import ClientError

        try:
            self._aws.eventually(create, {"ConcurrentModification"})
        except ClientError as exc:
            if code_of(exc) != "EntityAlreadyExists":
                raise

    def _policy(self, buckets: tuple[str, ...]) -> dict[str, Any]:
        aws = "aws-cn" if self._aws.region.startswith("cn-") else "aws"
        own = f"arn:{aws}:s3:::{self.names.bucket}"
        secret = f"arn:{aws}:ssm:{self._aws.region}:{self.names.account}:parameter{self.names.secret}"
        statements = [
            {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": f"{own}/*"},
            {"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": f"{own}/hosts/*"},
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

    def bucket(self, tags: Tags) -> str:
        """Return the name of the cluster's own bucket, private and tagged."""
        from botocore.exceptions import ClientError

        s3, name = self._aws.client("s3"), self.names.bucket
        where = {} if self._aws.region == "us-east-1" else {"LocationConstraint": self._aws.region}
        with translated(f"bucket {name}"):
            try:
                create = {"CreateBucketConfiguration": where} if where else {}
                self._aws.eventually(lambda: s3.create_bucket(Bucket=name, **create), {"OperationAborted"})
            except ClientError as exc:
                if code_of(exc) != "BucketAlreadyOwnedByYou":
                    raise
            closed = dict.fromkeys(
                ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
            )
            tagging = {"TagSet": tag_list(tags)}
            self._aws.eventually(lambda: s3.put_bucket_tagging(Bucket=name, Tagging=tagging), _NOT_YET)
            self._aws.eventually(
                lambda: s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=closed), _NOT_YET
            )
        return name

    def upload(self, key: str, body: bytes) -> None:
        """Put an object into the cluster's bucket."""
        s3, name = self._aws.client("s3"), self.names.bucket
        with translated(f"s3://{name}/{key}"):
            self._aws.eventually(lambda: s3.put_object(Bucket=name, Key=key, Body=body), _NOT_YET)

    def host_keys(self, key: str) -> str | None:
        """Return what an instance told of its host keys, or None if it has not yet."""
        from botocore.exceptions import ClientError

        with translated(f"s3://{self.names.bucket}/{key}"):
            try:
                found = self._aws.client("s3").get_object(Bucket=self.names.bucket, Key=key)
                return str(found["Body"].read().decode())
            except ClientError as exc:
                if code_of(exc) in ("NoSuchKey", "NoSuchBucket", "404"):
                    return None
                raise

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove(self) -> list[str]:
        """Remove everything; return what could not be, with the reasons. The instances must be gone before."""
        steps = (
            self._remove_groups,
            self._remove_key_pairs,
            self._remove_role,
            self._remove_secret,
            self._remove_bucket,
        )
        failures = []
        for step in steps:
            try:
                step()
            except Dl4jError as exc:
                failures.append(str(exc))
        return failures

    def _removed(self, call: Callable[[], Any], not_yet: Collection[str] = ()) -> Any:
        """Call; what is gone already is no error, what is still in use is waited for."""
        from botocore.exceptions import ClientError

        try:
            return self._aws.eventually(call, not_yet)
        except ClientError as exc:
            if code_of(exc) not in _GONE:
                raise
        return None

    def _remove_groups(self) -> None:
        ec2 = self._aws.client("ec2")
        in_use = {"DependencyViolation", "InvalidGroup.InUse"}
        with translated(f"removing security group {self.names.group}"):
            for group in self.groups():
                self._removed(partial(ec2.delete_security_group, GroupId=group), in_use)

    def _remove_key_pairs(self) -> None:
        ec2 = self._aws.client("ec2")
        with translated(f"removing key pair {self.names.key_pair}"):
            for name in self.key_pairs():
                ec2.delete_key_pair(KeyName=name)

    def _remove_role(self) -> None:
        iam, name = self._aws.client("iam"), self.names.role
        with translated(f"removing role {name}"):
            profile = self._removed(lambda: iam.get_instance_profile(InstanceProfileName=name))
            for role in profile["InstanceProfile"]["Roles"] if profile else ():
                detach = partial(iam.remove_role_from_instance_profile, InstanceProfileName=name)
                self._removed(partial(detach, RoleName=role["RoleName"]))
            self._removed(lambda: iam.delete_instance_profile(InstanceProfileName=name), {"DeleteConflict"})
            self._removed(lambda: iam.delete_role_policy(RoleName=name, PolicyName="dl4jlegacy"))
            self._removed(lambda: iam.delete_role(RoleName=name), {"DeleteConflict"})

    def _remove_secret(self) -> None:
        ssm, name = self._aws.client("ssm"), self.names.secret
        with translated(f"removing parameter {name}"):
            self._removed(lambda: ssm.delete_parameter(Name=name))

    def _remove_bucket(self) -> None:
        s3, name = self._aws.client("s3"), self.names.bucket
        with translated(f"removing bucket {name}"):
            self._removed(self._empty_bucket)
            self._removed(lambda: s3.delete_bucket(Bucket=name), {"BucketNotEmpty", "OperationAborted"})

    def _empty_bucket(self) -> None:
        s3, name = self._aws.client("s3"), self.names.bucket
        for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=name):
            for upload in page.get("Uploads", []):
                s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
            keys = [{"Key": found["Key"]} for found in page.get("Contents", [])]
            if keys:
                failed = s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True}).get("Errors", [])
                if failed:
                    raise CloudError(f"bucket {name}: {failed[0]['Key']} cannot be deleted: {failed[0].get('Code')}")

    # --- looking ------------------------------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Return what is there of all this, each as ``kind name``."""
        names, found = self.names, []
        with translated(f"looking for what cluster {names.cluster} has"):
            found += [f"security group {group}" for group in self.groups()]
            found += [f"key pair {pair}" for pair in self.key_pairs()]
            iam, ssm, s3 = (self._aws.client(service) for service in ("iam", "ssm", "s3"))
            looks: tuple[tuple[str, Callable[[], Any]], ...] = (
                (f"role {names.role}", lambda: iam.get_role(RoleName=names.role)),
                (
                    f"instance profile {names.role}",
                    lambda: iam.get_instance_profile(InstanceProfileName=names.role),
                ),
                (f"parameter {names.secret}", lambda: ssm.get_parameter(Name=names.secret)),
                (f"bucket {names.bucket}", lambda: s3.head_bucket(Bucket=names.bucket)),
            )
            found += [what for what, look in looks if self._removed(look) is not None]
        return found

    def default_subnets(self, subnet: str = "") -> tuple[str, list[str]]:
        """Return the VPC and the subnets to start in; raises ``ConfError`` if there is no default VPC."""
        ec2 = self._aws.client("ec2")
        with translated(f"subnet {subnet or 'of the default VPC'}"):
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
