"""docs/aws-iam-policy.json: it allows every call that the commands make, and nothing that they do not make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pytest

from dl4jlegacy.aws import on_instance
from dl4jlegacy.aws.cluster_bucket import DONE, HOST_KEYS, INSTANCES, JOURNAL, PRESENT_MASTER, own_key
from dl4jlegacy.aws.cluster_spec import tag_list
from dl4jlegacy.aws.prices import estimate
from dl4jlegacy.aws.reaper import reap
from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.errors import CloudError, ConfError
from dl4jlegacy.storage.s3 import session
from dl4jlegacy.storage.s3.downloader import S3Downloader
from dl4jlegacy.storage.s3.folder import S3Folder
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import S3Uploader
from tests.aws.test_cluster import PAYLOAD, SPEC, registered
from tests.support import REPOSITORY
from tests.support.aws_fixtures import IMAGE, Fault, FaultProxy, Request

POLICY = REPOSITORY / session.POLICY
BOUNDARY_FILE = REPOSITORY / "docs/aws-iam-boundary.json"
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
        name = parameters.get("InstanceProfileName") or parameters.get("RoleName")
        resource = parameters.get("PolicyArn") or f"arn:aws:iam::123456789012:{kind}/dl4jlegacy/{name}"
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
    text = POLICY.read_text(encoding="utf-8").replace("YOUR-BUCKET", "models-of-mine")
    return dict(json.loads(text.replace("YOUR-ACCOUNT", "123456789012")))


@pytest.fixture
def seen(aws: Aws, fault_proxy: FaultProxy, tmp_path: Path) -> dict[tuple[str, str], str]:
    """Everything that the commands do, as AWS was asked for it: action and resource, with the request's path."""
    big, kept = tmp_path / "big", S3Folder(Location("models-of-mine", "run"), aws=aws)
    big.write_bytes(np.random.default_rng(1).bytes(11 << 20))
    setup = ClusterSetup(aws, "digits", list_workers=registered)
    for spot in (False, True):
        spec = replace(SPEC, ami="" if spot else IMAGE, spot=spot)
        estimate(aws, spec)
        setup.up(spec, PAYLOAD)
        setup.scale(3)
        setup.scale(1)
        [instance] = [i for i in setup.status().instances if i.role == "master" and i.alive]
        aws.client("ec2").get_console_output(InstanceId=instance.id)
        with pytest.raises(CloudError):
            setup.host_keys(instance)
        setup.resources.read_secret()
        assert setup.resources.journals() == {}
        reap(aws, everything=True) if spot else setup.down()
    tags = SPEC.tags("", 0.0, 0.0)
    kind = {"ResourceType": "spot-instances-request", "Tags": tag_list(tags)}
    aws.client("ec2").request_spot_instances(LaunchSpecification={"ImageId": IMAGE}, TagSpecifications=[kind])
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
    kept.write("a", b"content")
    assert kept.names() == ["a"]
    kept.delete("a")
    return {pair: request.path for request in fault_proxy.requests for pair in needed(request)}


@pytest.mark.long
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


@pytest.mark.parametrize("file", [POLICY, BOUNDARY_FILE], ids=["policy", "boundary"])
def test_the_policy_is_one_that_iam_takes(file: Path, aws: Aws) -> None:
    text = file.read_text(encoding="utf-8")
    aws.client("iam").create_policy(PolicyName="another", PolicyDocument=text)
    assert len(re.sub(r"\s", "", text)) <= 6144  # IAM's limit


# --- what nobody becomes by making roles ------------------------------------------------------------------------------

ESCALATES = {  # each would let its holder, or a role that he gives to an instance, do whatever an administrator may
    *("iam:AttachRolePolicy", "iam:CreatePolicy", "iam:CreatePolicyVersion", "iam:SetDefaultPolicyVersion"),
    *("iam:PutRolePermissionsBoundary", "iam:DeleteRolePermissionsBoundary", "iam:UpdateAssumeRolePolicy"),
    *("iam:AttachUserPolicy", "iam:PutUserPolicy", "iam:AddUserToGroup", "iam:CreateAccessKey", "sts:AssumeRole"),
    *("iam:DeletePolicy", "iam:DeletePolicyVersion", "iam:AttachGroupPolicy", "iam:PutGroupPolicy"),
}


def test_whoever_has_the_policy_makes_no_role_beyond_the_boundary(policy) -> None:
    granted = {action: s for s in policy["Statement"] for action in listed(s["Action"])}
    assert not ESCALATES & set(granted)
    own = "arn:aws:iam::123456789012:policy/dl4jlegacy-boundary"
    for action in ("iam:CreateRole", "iam:PutRolePolicy"):
        [statement] = [s for s in policy["Statement"] if action in listed(s["Action"])]
        assert statement["Condition"] == {"StringEquals": {"iam:PermissionsBoundary": own}}
    passes = granted["iam:PassRole"]
    assert passes["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
    assert listed(passes["Resource"]) == ["arn:aws:iam::*:role/dl4jlegacy/*"]


def test_every_role_is_made_within_the_boundary_and_gets_no_more_than_that(aws: Aws) -> None:
    setup = ClusterSetup(aws, "digits", list_workers=registered)
    setup.up(SPEC, PAYLOAD)
    role = aws.client("iam").get_role(RoleName=setup.names.role)["Role"]
    own = "arn:aws:iam::123456789012:policy/dl4jlegacy-boundary"
    assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == setup.names.boundary == own
    boundary = json.loads(BOUNDARY_FILE.read_text(encoding="utf-8").replace("YOUR-BUCKET", "models-of-mine"))
    does = setup.resources._policy(("models-of-mine",))
    wanted = {(a, r) for s in does["Statement"] for a in listed(s["Action"]) for r in listed(s["Resource"])}
    assert not [pair for pair in wanted if not allows(boundary, *pair)]
    most = {action for statement in boundary["Statement"] for action in listed(statement["Action"])}
    assert most - {action for action, _ in wanted} == {"kms:Decrypt"}  # the parameter store does it, for the role
    assert not [action for action in most if "*" in action or action.startswith(("iam:", "sts:", "ec2:"))]


def test_an_account_without_the_boundary_is_told_how_to_make_it_before_anything_is_made(aws, fault_proxy) -> None:
    aws.client("iam").delete_policy(PolicyArn="arn:aws:iam::123456789012:policy/dl4jlegacy-boundary")
    setup = ClusterSetup(aws, "digits", list_workers=registered)
    with pytest.raises(ConfError, match=r"no policy arn:.*dl4jlegacy-boundary.*aws iam create-policy --policy-name"):
        setup.up(SPEC, PAYLOAD)
    assert not [r for r in fault_proxy.requests if r.action.startswith(("Create", "Put", "Run", "Import"))]


def test_no_instance_writes_what_another_one_says_of_itself(aws: Aws, tmp_path: Path, monkeypatch) -> None:
    """Its policy binds a key to ``aws:userid``, as which AWS knows each instance: its role's id and its own."""
    names = (setup := ClusterSetup(aws, "digits")).names
    policy, bucket = setup.resources._policy(()), f"arn:aws:s3:::{names.bucket}"
    writes = [s["Resource"] for s in policy["Statement"] if "s3:PutObject" in s["Action"]]
    assert writes == [[f"{bucket}/instances/${{aws:userid}}/*"]]
    assert {own_key("ID", what) for what in (HOST_KEYS, JOURNAL, DONE)} == {
        f"{INSTANCES}ID/{what}" for what in ("host-keys", "journal", "done")
    }
    actions = ("s3:GetObject", "s3:PutObject")
    assert [each for each in actions if allows(policy, each, f"{bucket}/{PRESENT_MASTER}")] == ["s3:GetObject"]
    for ensure in (
        setup.resources.ensure_bucket,
        partial(setup.resources.ensure_role, ()),
        setup.resources.ensure_secret,
    ):
        ensure(SPEC.tags("", 0.0, 0.0))
    role = aws.client("iam").get_role(RoleName=names.role)["Role"]["RoleId"]
    setup.resources.upload(f"instances/{role}:i-1/host-keys", b"another")
    (tmp_path / "etc/ssh").mkdir(parents=True)
    (tmp_path / "etc/ssh/ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAA\n")
    monkeypatch.setattr(aws.client("sts"), "get_caller_identity", lambda: {"UserId": f"{role}:i-7"})
    monkeypatch.setattr(on_instance.shutil, "chown", lambda *given: None)
    on_instance.prepare(aws, names.bucket, "digits", tmp_path)
    assert [setup.resources.read_host_keys(i) for i in ("i-7", "i-1", "i-3")] == ["ssh-ed25519 AAAA", "another", None]
    assert (tmp_path / "etc/dl4j/secret").read_bytes() == setup.resources.read_secret()
