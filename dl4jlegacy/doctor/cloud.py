"""AWS: whether there are credentials, and whether AWS accepts them."""

from __future__ import annotations

import importlib.util

from dl4jlegacy.doctor.check import Check, Finding, Settings, of_error, ok, skipped, warning
from dl4jlegacy.errors import Dl4jError, how_to_install
from dl4jlegacy.storage.s3.session import Aws

__all__ = ["CHECKS", "credentials"]

_ANSWER_SECONDS = 8.0
_NONE = "there are no AWS credentials here"


def credentials(settings: Settings) -> Finding:
    """Ask AWS for the identity behind the credentials; without credentials AWS is not contacted."""
    if importlib.util.find_spec("boto3") is None:
        return skipped("boto3 is not installed, which only AWS and s3:// need", how_to_install("aws"))
    try:
        with Aws(attempts=1, silent_seconds=_ANSWER_SECONDS) as aws:
            reason = aws.why_silent()
            if reason == _NONE:
                return skipped(_NONE, "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
            if reason:
                return warning(reason, "see whether this machine reaches AWS, through which proxy, in which region")
            account, caller = aws.caller()
    except Dl4jError as exc:
        return of_error(exc, "warning")
    return ok(f"{caller}, account {account}, region {aws.region}")


CHECKS = (Check("AWS credentials", "AWS", credentials, is_waiting=True, seconds=60.0),)
