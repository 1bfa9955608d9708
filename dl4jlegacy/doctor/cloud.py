"""AWS: are there credentials, does AWS accept them, and do they allow what ``dl4j aws`` does."""

from __future__ import annotations

import importlib.util

from dl4jlegacy.aws.rights import RIGHTS, denied_actions
from dl4jlegacy.doctor.check import Check, Finding, Settings, of_error, ok, skipped, warning
from dl4jlegacy.errors import Dl4jError, NotAuthorisedError, how_to_install
from dl4jlegacy.storage.s3.session import POLICY, Aws

__all__ = ["CHECKS", "credentials", "rights"]

_ANSWER_SECONDS = 8.0
_SHOWN = 6
_NONE = "there are no AWS credentials here"


def credentials(settings: Settings) -> Finding:
    """Ask AWS whose the credentials are; without credentials nobody is asked."""
    if importlib.util.find_spec("boto3") is None:
        return skipped("boto3 is not installed, which only AWS and s3:// need", how_to_install("aws"))
    try:
        with _session() as aws:
            reason = aws.why_silent()
            if reason == _NONE:
                return skipped(_NONE, "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
            if reason:
                return warning(reason, "see whether this machine reaches AWS, through which proxy, in which region")
            account, caller = aws.caller()
    except Dl4jError as exc:
        return of_error(exc, "warning")
    return ok(f"{caller}, account {account}, region {aws.region}")


def rights(settings: Settings) -> Finding:
    """Ask IAM's simulator whether the credentials allow what ``dl4j aws`` does; this changes and costs nothing."""
    count = sum(len(right.actions) for right in RIGHTS.values())
    try:
        with _session() as aws:
            denied = denied_actions(aws)
    except NotAuthorisedError as exc:
        remedy = "allow iam:SimulatePrincipalPolicy for this check, or go on without"
        return skipped(f"the simulator cannot be asked: {exc}", remedy)
    except Dl4jError as exc:
        return of_error(exc, "warning")
    if denied:
        more = f" and {len(denied) - _SHOWN} more" if len(denied) > _SHOWN else ""
        found = f"{len(denied)} of {count} actions are not allowed: {', '.join(denied[:_SHOWN])}{more}"
        return warning(found, f"attach the policy in {POLICY} to these credentials' user or role")
    return ok(f"all {count} actions of dl4j aws are allowed")


def _session() -> Aws:
    return Aws(attempts=1, silent_seconds=_ANSWER_SECONDS)


CHECKS = (
    Check("AWS credentials", "AWS", credentials, is_waiting=True, seconds=60.0),
    Check("AWS rights", "AWS", rights, seconds=60.0, need="AWS credentials"),
)
