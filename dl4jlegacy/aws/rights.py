"""What the commands need to be allowed on AWS, and which of it IAM's simulator says that the caller is not.

The simulator changes nothing and costs nothing; it asks for ``iam:SimulatePrincipalPolicy``, which the policy for
people does not have, since no other command needs it.
"""

from __future__ import annotations

import msgspec

from dl4jlegacy.aws.cluster_spec import BOUNDARY
from dl4jlegacy.storage.s3.session import Aws, translate_errors

__all__ = ["RIGHTS", "Right", "denied_actions"]


class Right(msgspec.Struct, frozen=True):
    """Actions that are allowed together: a statement of ``docs/aws-iam-policy.json``.

    Attributes:
        actions: as IAM calls them.
        resource: one on which they are simulated; ``{account}`` is the caller's.
        context: condition keys, and the value with which each is simulated.
    """

    actions: tuple[str, ...]
    resource: str = "*"
    context: dict[str, str] = {}


_ROLE = "arn:aws:iam::{account}:role/dl4jlegacy/doctor"
RIGHTS = {
    "Look": Right(
        (
            *("ec2:DescribeImages", "ec2:DescribeInstanceAttribute", "ec2:DescribeInstanceTypes"),
            *("ec2:DescribeInstances", "ec2:DescribeKeyPairs", "ec2:DescribeSecurityGroups"),
            *("ec2:DescribeSpotInstanceRequests", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets"),
            *("ec2:GetConsoleOutput", "iam:ListInstanceProfiles", "iam:ListRoles", "pricing:GetProducts"),
            *("s3:ListAllMyBuckets", "ssm:DescribeParameters", "sts:GetCallerIdentity"),
        )
    ),
    "Start": Right(("ec2:CreateSecurityGroup", "ec2:ImportKeyPair", "ec2:RunInstances")),
    "TagWhatIsBeingMade": Right(("ec2:CreateTags",), context={"ec2:CreateAction": "RunInstances"}),
    "ChangeAndEndWhatHasOurTag": Right(
        (
            *("ec2:AuthorizeSecurityGroupIngress", "ec2:CancelSpotInstanceRequests", "ec2:DeleteKeyPair"),
            *("ec2:DeleteSecurityGroup", "ec2:TerminateInstances"),
        ),
        context={"aws:ResourceTag/dl4jlegacy:cluster": "doctor"},
    ),
    "RolesOfInstances": Right(
        (
            *("iam:AddRoleToInstanceProfile", "iam:CreateInstanceProfile", "iam:DeleteInstanceProfile"),
            *("iam:DeleteRole", "iam:DeleteRolePolicy", "iam:GetInstanceProfile", "iam:GetRole", "iam:ListRoleTags"),
            *("iam:RemoveRoleFromInstanceProfile", "iam:TagInstanceProfile", "iam:TagRole"),
        ),
        _ROLE,
    ),
    "RolesOnlyWithinTheBoundary": Right(
        ("iam:CreateRole", "iam:PutRolePolicy"),
        _ROLE,
        {"iam:PermissionsBoundary": f"arn:aws:iam::{{account}}:policy/{BOUNDARY}"},
    ),
    "IsTheBoundaryThere": Right(("iam:GetPolicy",), f"arn:aws:iam::{{account}}:policy/{BOUNDARY}"),
    "GiveRolesToInstances": Right(("iam:PassRole",), _ROLE, {"iam:PassedToService": "ec2.amazonaws.com"}),
    "FirstSpotRequestOfTheAccount": Right(
        ("iam:CreateServiceLinkedRole",),
        "arn:aws:iam::{account}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot",
        {"iam:AWSServiceName": "spot.amazonaws.com"},
    ),
    "SecretOfTheRun": Right(
        ("ssm:AddTagsToResource", "ssm:DeleteParameter", "ssm:GetParameter", "ssm:PutParameter"),
        "arn:aws:ssm:{region}:{account}:parameter/dl4jlegacy/doctor",
    ),
    "BucketsOfClusters": Right(
        (
            *("s3:CreateBucket", "s3:DeleteBucket", "s3:GetBucketTagging", "s3:ListBucket"),
            *("s3:ListBucketMultipartUploads", "s3:PutBucketPublicAccessBlock", "s3:PutBucketTagging"),
        ),
        "arn:aws:s3:::dl4j-doctor",
    ),
    "ObjectsOfClusters": Right(
        ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"), "arn:aws:s3:::dl4j-doctor/key"
    ),
}
"""What ``docs/aws-iam-policy.json`` allows, by the names of its statements; a bucket of one's own is not among it."""


def denied_actions(aws: Aws) -> list[str]:
    """Return the actions that the commands need and the caller is not allowed, in order; asks IAM's simulator.

    Raises:
        NotAuthorisedError: the credentials are not accepted, or do not allow the simulator. CloudError: no answer.
    """
    account, caller = aws.caller()
    if caller.endswith(":root"):  # whose rights no policy restricts, and which cannot be simulated
        return []
    principal = _principal(aws, caller)
    denied: set[str] = set()
    with translate_errors(f"asking IAM what {principal} may do"):
        pages = aws.client("iam").get_paginator("simulate_principal_policy")
        for right in RIGHTS.values():
            entries = [
                {
                    "ContextKeyName": key,
                    "ContextKeyValues": [value.format(account=account)],
                    "ContextKeyType": "string",
                }
                for key, value in right.context.items()
            ]
            resource = right.resource.format(account=account, region=aws.region)
            for page in pages.paginate(
                PolicySourceArn=principal,
                ActionNames=list(right.actions),
                ResourceArns=[resource],
                ContextEntries=entries,
            ):
                found = page.get("EvaluationResults", ())
                denied |= {str(each["EvalActionName"]) for each in found if each["EvalDecision"] != "allowed"}
    return sorted(denied)


def _principal(aws: Aws, caller: str) -> str:
    """Return the ARN whose policies count: of a role that was assumed the role's, which has a path of its own."""
    _, _, rest = caller.partition(":assumed-role/")
    if not rest:
        return caller
    name = rest.partition("/")[0]
    with translate_errors(f"looking for role {name}"):
        return str(aws.client("iam").get_role(RoleName=name)["Role"]["Arn"])
