"""docs/aws-iam-policy.json: it allows every call that the commands make, and nothing that they do not make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest

from dl4jlegacy.aws import session
from dl4jlegacy.aws.cluster_spec import tag_list
from dl4jlegacy.aws.downloader import S3Downloader
from dl4jlegacy.aws.model_saver import S3ModelSaver
from dl4jlegacy.aws.prices import estimate
from dl4jlegacy.aws.reaper import reap
from dl4jlegacy.aws.session import Aws
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.aws.uploader import S3Uploader
from dl4jlegacy.errors import CloudError
from tests.aws.test_cluster import PAYLOAD, SPEC, registered
from tests.support import REPOSITORY
from tests.support.aws_fixtures import Fault, FaultProxy, Request

POLICY = REPOSITORY / session.POLICY
TAGGED = {"CreateSecurityGroup", "ImportKeyPair", "RunInstances"}
IMPLIED = {  # what AWS asks for besides the action itself
    "ec2:RunInstances": ("iam:PassRole",),
    "iam:CreateRole": ("iam:TagRole",),
    "iam:CreateInstanceProfile": ("iam:TagInstanceProfile",),
    "ssm:PutParameter": ("ssm:AddTagsToResource",),
}
NOT_SEEN_BY_MOTO = {"iam:CreateServiceLinkedRole"}  # made by AWS itself, at the account's first spot request
S3_BUCKET = {
    ("GET", "tagging"): "s3:GetBucketTagging",
    ("GET", "uploads"): "s3:ListBucketMultipartUploads",
    ("PUT", "tagging"): "s3:PutBucketTagging",
    ("PUT", "publicAccessBlock"): "s3:PutBucketPublicAccessBlock",
    ("POST", "delete"): "s3:DeleteObject",
    ("HEAD", ""): "s3:ListBucket",
    ("GET", ""): "s3:ListBucket",
    ("PUT", ""): "s3:CreateBucket",
    ("DELETE", ""): "s3:DeleteBucket",
}
S3_OBJECT = {
    ("GET", "uploadId"): "s3:ListMultipartUploadParts",
    ("DELETE", "uploadId"): "s3:AbortMultipartUpload",
    ("POST", "uploads"): "s3:PutObject",
    ("POST", "uploadId"): "s3:PutObject",
    ("PUT", "uploadId"): "s3:PutObject",
    ("HEAD", ""): "s3:GetObject",
    ("GET", ""): "s3:GetObject",
    ("PUT", ""): "s3:PutObject",
    ("DELETE", ""): "s3:DeleteObject",
}


def needed_for_s3(request: Request) -> tuple[str, str]:
    """The action and the resource of a request to S3."""
    split = urlsplit(request.path)
    bucket, _, key = unquote(split.path).strip("/").partition("/")
    if not bucket:
        return "s3:ListAllMyBuckets", "*"
    arguments = parse_qs(split.query, keep_blank_values=True)
    method = request.action.split()[0]
    table, arn = (S3_OBJECT, f"arn:aws:s3:::{bucket}/{key}") if key else (S3_BUCKET, f"arn:aws:s3:::{bucket}")
    [action] = {table[method, name] for name in arguments if (method, name) in table} or {table[method, ""]}
    return action, f"{arn}/*" if action == "s3:DeleteObject" and not key else arn


def needed(request: Request) -> Iterator[tuple[str, str]]:
    """The actions that a request needs, each with the resource that it concerns (``*`` where any may be)."""
    parameters = request.parameters
    if request.service == "s3":
        yield needed_for_s3(request)
        return
    action, resource = f"{request.service}:{request.action}", "*"
    if request.service == "iam" and not request.action.startswith(("ListRoles", "ListInstanceProfiles")):
        kind = "instance-profile" if "InstanceProfileName" in parameters else "role"
        name = parameters.get("InstanceProfileName") or parameters["RoleName"]
        resource = f"arn:aws:iam::123456789012:{kind}/dl4jlegacy/{name}"
    if request.service == "ssm" and request.action != "DescribeParameters":
        resource = f"arn:aws:ssm:us-east-1:123456789012:parameter{json.loads(request.body)['Name']}"
    yield action, resource
    for more in IMPLIED.get(action, ()):
        yield more, "arn:aws:iam::123456789012:role/dl4jlegacy/x" if more == "iam:PassRole" else resource
    if request.service == "ec2" and request.action in TAGGED:
        yield "ec2:CreateTags", "*"


def listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def allows(policy: dict[str, Any], action: str, resource: str) -> bool:
    return any(
        statement["Effect"] == "Allow"
        and action in listed(statement["Action"])
        and any(fnmatchcase(resource, pattern) for pattern in listed(statement["Resource"]))
        for statement in policy["Statement"]
    )


@pytest.fixture
def policy() -> dict[str, Any]:
    return dict(json.loads(POLICY.read_text(encoding="utf-8").replace("YOUR-BUCKET", "models-of-mine")))


@pytest.fixture
def seen(aws: Aws, image: str, fault_proxy: FaultProxy, tmp_path: Path) -> dict[tuple[str, str], str]:
    """Everything that the commands do, as AWS was asked for it: action and resource, with the request's path."""
    big, saver = tmp_path / "big", S3ModelSaver("models-of-mine", "run", aws=aws)
    big.write_bytes(np.random.default_rng(1).bytes(11 << 20))
    setup = ClusterSetup(aws, "digits", list_workers=registered)
    for spot in (False, True):
        spec = replace(SPEC, ami="" if spot else image, spot=spot)
        estimate(aws, spec)
        setup.up(spec, PAYLOAD)
        setup.scale(3)
        setup.scale(1)
        [instance] = [i for i in setup.status().instances if i.role == "master" and i.alive]
        aws.client("ec2").get_console_output(InstanceId=instance.id)
        with pytest.raises(CloudError):
            setup.host_keys(instance)
        setup.resources.read_secret()
        reap(aws, everything=True) if spot else setup.down()
    tags = SPEC.tags("", 0.0, 0.0)
    kind = {"ResourceType": "spot-instances-request", "Tags": tag_list(tags)}
    aws.client("ec2").request_spot_instances(LaunchSpecification={"ImageId": image}, TagSpecifications=[kind])
    fault_proxy.requests.pop()  # moto makes none for RunInstances, as AWS does
    setup.resources.ensure_bucket(tags)
    aws.client("s3").create_multipart_upload(Bucket=setup.names.bucket, Key="unfinished")
    setup.down()
    uploader = S3Uploader(aws, part_nbytes=5 << 20)
    fault_proxy.judge = lambda r: Fault("error", "AccessDenied", 403) if "partNumber=2" in r.path else None
    with pytest.raises(Exception, match="AccessDenied"):
        uploader.multi_part_upload(big, "models-of-mine", "big")
    fault_proxy.judge = lambda request: None
    uploader.multi_part_upload(big, "models-of-mine", "big")
    aws.client("s3").create_multipart_upload(Bucket="models-of-mine", Key="unfinished")
    assert uploader.abort("models-of-mine") == 1
    S3Downloader(aws).download("models-of-mine", "big", tmp_path / "back")
    S3Downloader(aws).buckets()
    saver._write("a", b"content")
    assert saver._names() == ["a"]
    saver._delete("a")
    return {pair: request.path for request in fault_proxy.requests for pair in needed(request)}


def test_the_policy_allows_all_that_is_done_and_every_action_in_it_is_needed(seen, policy) -> None:
    assert len(seen) > 50
    refused = {pair: path for pair, path in seen.items() if not allows(policy, *pair)}
    assert not refused
    granted = {action for statement in policy["Statement"] for action in listed(statement["Action"])}
    assert not [action for action in granted if "*" in action]
    assert granted - {action for action, _ in seen} == NOT_SEEN_BY_MOTO
    for statement in policy["Statement"]:
        for action in set(listed(statement["Action"])) - NOT_SEEN_BY_MOTO:
            less = {**statement, "Action": [other for other in listed(statement["Action"]) if other != action]}
            others = [less if each is statement else each for each in policy["Statement"]]
            assert not all(allows({"Statement": others}, *pair) for pair in seen), f"{statement['Sid']}: {action}"


def test_destroying_is_bound_to_our_tag_or_our_names(policy) -> None:
    for statement in policy["Statement"]:
        destroys = [a for a in listed(statement["Action"]) if re.search(r":(Delete|Terminate|Cancel|Remove)", a)]
        if destroys and listed(statement["Resource"]) == ["*"]:
            assert statement["Condition"] == {"StringLike": {"aws:ResourceTag/dl4jlegacy:cluster": "*"}}


def test_the_policy_is_one_that_iam_takes(aws: Aws) -> None:
    text = POLICY.read_text(encoding="utf-8")
    aws.client("iam").create_policy(PolicyName="dl4jlegacy", PolicyDocument=text)
    assert len(re.sub(r"\s", "", text)) <= 6144  # IAM's limit
