"""Calls of AWS operations: with all pages of an answer, and repeated while AWS does not know a new resource yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from dl4jlegacy.storage.s3.session import Aws, error_code, translate_errors

__all__ = ["MISSING", "attempts", "call"]

MISSING = frozenset(
    {
        *("InvalidGroup.NotFound", "InvalidGroupId.NotFound", "NoSuchEntity", "NoSuchBucket", "NoSuchKey"),
        *("ParameterNotFound", "NoSuchUpload", "404"),
    }
)
"""Error codes for a resource that does not exist."""


def call(
    aws: Aws,
    service: str,
    operation: str,
    *,
    what: str = "",
    retried: Collection[str] = (),
    passed: Collection[str] = (),
    **arguments: Any,
) -> Any:
    """Return AWS's answer to an operation of boto3's client, all its pages joined; None after an error in ``passed``.

    Args:
        aws: the region.
        service, operation: such as ``"ec2", "describe_instances"``.
        what: the beginning of an error's message; "": the operation and its first text argument.
        retried: error codes after which the call is repeated, since AWS may not know a new resource yet.
        passed: error codes that are no failure.
        **arguments: of the operation.

    Raises:
        Dl4jError: as ``translate_errors`` says.
    """
    from botocore.exceptions import ClientError

    name = next((value for value in arguments.values() if isinstance(value, str)), "")
    with translate_errors(what or f"{operation.replace('_', ' ')} {name}".strip()):
        client = aws.client(service)
        request: Callable[[], Any] = partial(getattr(client, operation), **arguments)
        if client.can_paginate(operation):
            request = client.get_paginator(operation).paginate(**arguments).build_full_result
        try:
            return aws.eventually(request, retried)
        except ClientError as exc:
            if error_code(exc) not in passed:
                raise
            return None


def attempts(aws: Aws, seconds: float, *, pause: float) -> Iterator[None]:
    """Yield at once, and again after every ``pause``, until ``seconds`` are over."""
    with aws.deadline(seconds) as deadline:
        yield
        while not deadline.passed():
            aws.clock.wait(pause)
            yield
