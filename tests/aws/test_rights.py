"""What the commands need on AWS is simulated: the same actions as in docs/aws-iam-policy.json, and what is denied."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest
from botocore.stub import ANY, Stubber

from dl4jlegacy.aws.rights import RIGHTS, denied_actions
from dl4jlegacy.doctor import Settings
from dl4jlegacy.doctor.cloud import credentials, rights
from dl4jlegacy.errors import NotAuthorisedError
from dl4jlegacy.storage.s3.session import Aws
from tests.aws.test_policy import POLICY, listed
from tests.support.aws_fixtures import Fault, FaultProxy

ACCOUNT = "123456789012"
OWN_BUCKETS = "YourDataAndModels"
"""A statement about buckets whose names only their owner knows."""


def statements() -> dict[str, dict[str, Any]]:
    policy = json.loads(POLICY.read_text(encoding="utf-8").replace("YOUR-ACCOUNT", ACCOUNT))
    return {each["Sid"]: each for each in policy["Statement"] if each["Sid"] != OWN_BUCKETS}


def test_the_rights_are_those_of_the_policy() -> None:
    policy = {sid: set(listed(each["Action"])) for sid, each in statements().items()}
    ours = {sid: set(right.actions) for sid, right in RIGHTS.items()}
    ours["BucketsOfClusters"] |= ours.pop("ObjectsOfClusters")  # on keys, the policy has both in one
    assert ours == policy


def test_each_right_is_simulated_under_what_its_statement_asks_for() -> None:
    policy = statements()
    for sid, right in RIGHTS.items():
        statement = policy["BucketsOfClusters" if sid == "ObjectsOfClusters" else sid]
        resource = right.resource.format(account=ACCOUNT, region="us-east-1")
        assert any(fnmatchcase(resource, each) for each in listed(statement["Resource"])), sid
        wanted = {key: value for each in statement.get("Condition", {}).values() for key, value in each.items()}
        assert wanted.keys() == right.context.keys(), sid
        for key, value in right.context.items():
            said = value.format(account=ACCOUNT)
            assert any(fnmatchcase(said, each) for each in listed(wanted[key])), (sid, key)


@pytest.fixture
def caller(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    """IAM, which answers with what a test gives it, to a user; it refuses what the real one would."""
    monkeypatch.setattr(aws, "caller", lambda: (ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/me"))
    with Stubber(aws.client("iam")) as iam:
        yield iam


def answer(iam: Stubber, denied: tuple[str, ...], principal: str = f"arn:aws:iam::{ACCOUNT}:user/me") -> None:
    for right in RIGHTS.values():
        found = [
            {"EvalActionName": action, "EvalDecision": "implicitDeny" if action in denied else "allowed"}
            for action in right.actions
        ]
        asked = {
            "PolicySourceArn": principal,
            "ActionNames": list(right.actions),
            "ResourceArns": [right.resource.format(account=ACCOUNT, region="us-east-1")],
            "ContextEntries": ANY,
        }
        half = len(found) // 2 or len(found)  # in two pages, where there is enough
        if half < len(found):
            page = {"EvaluationResults": found[:half], "IsTruncated": True, "Marker": "more"}
            iam.add_response("simulate_principal_policy", page, asked)
            asked = {**asked, "Marker": "more"}
            found = found[half:]
        iam.add_response("simulate_principal_policy", {"EvaluationResults": found, "IsTruncated": False}, asked)


def test_what_is_denied_is_named_wherever_it_stands(aws: Aws, caller: Stubber) -> None:
    denied = ("ec2:RunInstances", "s3:PutObject", "ec2:DescribeImages")
    answer(caller, denied)
    assert denied_actions(aws) == sorted(denied)
    caller.assert_no_pending_responses()


def test_nothing_is_denied_to_who_may_do_everything(aws: Aws, caller: Stubber) -> None:
    answer(caller, ())
    assert denied_actions(aws) == []


def test_of_a_role_that_was_assumed_the_role_is_simulated(
    aws: Aws, caller: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "caller", lambda: (ACCOUNT, f"arn:aws:sts::{ACCOUNT}:assumed-role/builder/session"))
    arn = f"arn:aws:iam::{ACCOUNT}:role/some/path/builder"
    role = {"Path": "/some/path/", "RoleName": "builder", "RoleId": "AROA1234567890123456", "Arn": arn}
    caller.add_response("get_role", {"Role": {**role, "CreateDate": "2026-01-01T00:00:00Z"}}, {"RoleName": "builder"})
    answer(caller, ("iam:PassRole",), arn)
    assert denied_actions(aws) == ["iam:PassRole"]


def test_the_account_itself_is_not_simulated(aws: Aws, caller: Stubber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "caller", lambda: (ACCOUNT, f"arn:aws:iam::{ACCOUNT}:root"))
    assert denied_actions(aws) == []


def test_who_may_not_ask_is_told_so(aws: Aws, caller: Stubber) -> None:
    caller.add_client_error("simulate_principal_policy", "AccessDenied", "no")
    with pytest.raises(NotAuthorisedError, match="SimulatePrincipalPolicy"):
        denied_actions(aws)


def test_the_checks_ask_aws_itself(aws_environment: FaultProxy) -> None:
    found = credentials(Settings())
    assert found.status == "ok" and ACCOUNT in found.found
    aws_environment.judge = lambda request: Fault("error", "ExpiredToken", 403)
    found = credentials(Settings())
    assert found.status == "warning" and "ExpiredToken" in found.found
    aws_environment.judge = lambda request: (
        Fault("error", "AccessDenied", 403) if request.action == "SimulatePrincipalPolicy" else None
    )
    found = rights(Settings())
    assert found.status == "skipped" and "SimulatePrincipalPolicy" in found.found
