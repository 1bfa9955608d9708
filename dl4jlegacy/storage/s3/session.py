"""One region's AWS clients, and the translation of boto3's errors; the package's only import of boto3.

Credentials come from boto3's chain; before that, the two legacy properties are accepted as environment variables. boto3
itself reads ``AWS_ENDPOINT_URL`` and similar variables. No message and no ``repr`` shows a key.

Legacy: ``BaseS3``, which made a new client for every call and knew two places for credentials.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from dl4jlegacy.errors import (
    CloudError,
    ConfError,
    DeadlineError,
    Dl4jError,
    NotAuthorisedError,
    NotEnoughWorkersError,
    how_to_install,
    nearest,
)
from dl4jlegacy.system.clock import RUNNING, Deadline, read_often

__all__ = [
    "ABSENT",
    "ACCESS_KEY",
    "ACCESS_SECRET",
    "CAPACITY",
    "POLICY",
    "Aws",
    "Clock",
    "error_code",
    "translate_errors",
]

ACCESS_KEY = "org.deeplearning4j.aws.accessKey"
ACCESS_SECRET = "org.deeplearning4j.aws.accessSecret"
"""The legacy properties; as environment variables also in capitals with underscores."""

POLICY = "docs/aws-iam-policy.json"
_ATTEMPTS = 6
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
T = TypeVar("T")

_BAD_CREDENTIALS = {
    *("AuthFailure", "UnrecognizedClientException", "InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken"),
    *(
        "ExpiredTokenException",
        "RequestExpired",
        "InvalidAccessKeyId",
        "IncompleteSignature",
        "MissingAuthenticationToken",
    ),
}
_DENIED = {
    *("UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AllAccessDisabled", "OptInRequired", "403"),
    "Forbidden",
}
_BUCKET_TAKEN = {"BucketAlreadyExists"}
ABSENT = frozenset({"404", "NoSuchBucket", "NoSuchKey", "NotFound"})
"""Error codes of S3 for a missing object or bucket."""
CAPACITY = frozenset(
    {
        *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacity", "SpotMaxPriceTooLow"),
        *("MaxSpotInstanceCountExceeded", "InsufficientFreeAddressesInSubnet", "InsufficientReservedInstanceCapacity"),
    }
)
"""Error codes of a request that may succeed elsewhere or at another price."""
_QUOTA = {
    *("InstanceLimitExceeded", "VcpuLimitExceeded", "VPCIdNotSpecified", "SecurityGroupLimitExceeded", "LimitExceeded"),
    *("TooManyBuckets", "ResourceLimitExceeded", "ParameterLimitExceeded"),
}
_INVALID = re.compile(r"Invalid|Malformed|Unsupported|ValidationError|ValidationException|NotFound|NoSuch|Missing")
_MOST_ATTEMPTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """Measures durations, waits and tells the time, in seconds; tests replace it."""

    now: Callable[[], float] = RUNNING.now
    wait: Callable[[float], None] = time.sleep
    wall: Callable[[], float] = time.time


def error_code(exc: BaseException) -> str:
    """Return the error code of AWS, or ""."""
    response = getattr(exc, "response", None)
    error = response.get("Error", {}) if isinstance(response, Mapping) else {}
    return str(error.get("Code", ""))


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Translate boto3's errors into this package's; ``what`` names the operation and its object.

    Raises:
        NotAuthorisedError: credentials are missing, unknown, or not sufficient. NotEnoughWorkersError: a quota is
        reached, or there is no capacity. ConfError: AWS rejects a value. CloudError: AWS cannot be reached, or
        any other error.
    """
    import botocore.exceptions as boto
    from botocore.parsers import ResponseParserError

    try:
        yield
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as exc:
        raise NotAuthorisedError(
            f"{what}: no AWS credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a "
            "profile in AWS_PROFILE, or run where an instance role gives them"
        ) from exc
    except boto.ClientError as exc:
        raise _translate(what, exc) from exc
    except boto.WaiterError as exc:
        raise DeadlineError(f"{what}: AWS was not ready in time; look with `dl4j aws status`, then repeat") from exc
    except (
        boto.ParamValidationError,
        boto.InvalidRegionError,
        boto.ProfileNotFound,
        boto.NoRegionError,
    ) as exc:
        raise ConfError(f"{what}: {_one_line(exc)}") from exc
    except (boto.BotoCoreError, ResponseParserError, OSError) as exc:
        raise CloudError(f"{what}: AWS could not be reached: {_one_line(exc)}; check the network, then repeat") from exc


def _one_line(exc: BaseException) -> str:
    return " ".join(str(exc).split())[:400]


def _translate(what: str, exc: Any) -> Dl4jError:
    code, message = error_code(exc), exc.response.get("Error", {}).get("Message", "")
    said = " ".join(re.sub(r"Encoded authorization failure message: \S+", "", message).split())[:400]
    said = f"{code} ({said})" if said else code
    action = exc.operation_name
    if code in _BAD_CREDENTIALS:
        return NotAuthorisedError(
            f"{what}: AWS does not accept these credentials: {code}; renew them, or check the clock"
        )
    if code in _BUCKET_TAKEN:
        return NotAuthorisedError(f"{what}: that bucket belongs to somebody else; choose another name")
    if code in _DENIED:
        return NotAuthorisedError(f"{what}: AWS denies {action}: {said}; the policy in {POLICY} is what is needed")
    if code in CAPACITY:
        return NotEnoughWorkersError(
            f"{what}: AWS has no capacity: {said}; try another -s, another -region, fewer workers, or no --spot"
        )
    if code in _QUOTA:
        return NotEnoughWorkersError(
            f"{what}: a quota of this account is reached: {said}; ask for more in AWS's Service Quotas, end what runs "
            "(`dl4j aws reap`), or take fewer workers or a smaller -s size"
        )
    if _INVALID.search(code):
        return ConfError(f"{what}: AWS refused it: {said}")
    return CloudError(f"{what}: {action} failed: {said}; repeat, or look at AWS's health page")


def _legacy_credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials in the legacy properties as arguments for boto3: both keys, or nothing."""
    names = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": ACCESS_SECRET}
    found = {
        key: environ.get(name) or environ.get(re.sub(r"(?=[A-Z])|\.", "_", name).upper(), "")
        for key, name in names.items()
    }
    given = [name for key, name in names.items() if found[key]]
    if len(given) == 1:
        other = ACCESS_SECRET if given[0] == ACCESS_KEY else ACCESS_KEY
        raise NotAuthorisedError(f"{given[0]} is set, {other} is not; set both or neither")
    return found if given else {}


def _attempts_of(environ: Mapping[str, str], default: int) -> int:
    """Return the maximum attempts per request from ``AWS_MAX_ATTEMPTS``, or the default."""
    given = environ.get("AWS_MAX_ATTEMPTS", "").strip()
    if given and not (given.isascii() and given.isdecimal() and 0 < int(given) < _MOST_ATTEMPTS):
        raise ConfError(f"AWS_MAX_ATTEMPTS is {given[:40]!r}; give a whole number of at least 1, or unset it")
    return int(given) if given else default


class Aws:
    """The clients of one region, created when first used, closed with ``close``. Thread-safe.

    Args:
        region: such as ``us-east-1``; None takes boto3's, or else ``us-east-1`` as the legacy class did.
        environ: the environment with the two legacy properties.
        clock: for waits.
        attempts: maximum attempts per request, including the first; ``AWS_MAX_ATTEMPTS`` may lower it.
        silent_seconds: maximum silence of a connection.

    Raises:
        ConfError: boto3 is missing, or region or profile are unknown. NotAuthorisedError: only one legacy property is
            set.
    """

    def __init__(
        self,
        region: str | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Clock | None = None,
        attempts: int = _ATTEMPTS,
        silent_seconds: float = _READ_SECONDS,
    ) -> None:
        try:
            import boto3
        except ImportError as exc:
            raise ConfError(f"AWS needs boto3, which is not installed: {how_to_install('aws')}") from exc
        self.clock = clock or Clock()
        with translate_errors("AWS's configuration"):
            keys: dict[str, Any] = _legacy_credentials(environ)
            self._session = boto3.Session(region_name=region, **keys)
            self.region: str = self._session.region_name or "us-east-1"
            known = self._session.get_available_regions("ec2")
        if self.region not in known and not self.region.startswith(("us-gov-", "cn-", "us-iso")):
            raise ConfError(f"there is no AWS region {self.region!r}{nearest(self.region, known)}")
        self._attempts = min(attempts, _attempts_of(environ, attempts))
        self._silent_seconds = silent_seconds
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Aws({self.region!r})"

    def client(self, service: str, region: str = "") -> Any:
        """Return boto3's client of a service, by default in this region."""
        key = (service, region or self.region)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._new_client(*key)
            return self._clients[key]

    def _new_client(self, service: str, region: str) -> Any:
        from botocore import exceptions as boto
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": self._attempts},
            connect_timeout=min(_CONNECT_SECONDS, self._silent_seconds),
            read_timeout=self._silent_seconds,
            user_agent_extra="dl4jlegacy",
        )
        with translate_errors(f"a client of {service} in {region}"):
            try:
                return self._session.client(service, region_name=region, config=config)
            except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError):
                raise
            except (ValueError, boto.BotoCoreError) as exc:  # no request has been sent to AWS yet
                raise ConfError(
                    f"a client of {service} in {region}: {_one_line(exc)}; look at the variables AWS_..., and at AWS's "
                    "configuration file: AWS_ENDPOINT_URL is an address such as https://host:port"
                ) from exc

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[Deadline]:
        """Yield a deadline that includes the time of blocking calls to AWS."""
        with read_often(self.clock):
            yield Deadline(seconds, self.clock)

    def account(self) -> str:
        """Return the account's number; raises ``NotAuthorisedError`` if AWS rejects the credentials."""
        return self.caller()[0]

    def caller(self) -> tuple[str, str]:
        """Return the account's number and the caller's ARN; raises as ``account`` does."""
        with translate_errors("asking AWS who we are"):
            found = self.client("sts").get_caller_identity()
        return str(found["Account"]), str(found["Arn"])

    def why_silent(self) -> str:
        """Return why AWS cannot be reached from here, ``""`` if it can; with shorter timeouts than other calls.

        Raises:
            NotAuthorisedError: AWS answers, but rejects the credentials.
        """
        from botocore.config import Config

        config = Config(retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=_CONNECT_SECONDS)
        try:
            with translate_errors("asking AWS who we are"):
                if self._session.get_credentials() is None:
                    return "there are no AWS credentials here"
                client = self._session.client("sts", region_name=self.region, config=config)
                with contextlib.closing(client):
                    client.get_caller_identity()
        except CloudError as exc:
            return str(exc)
        return ""

    def eventually(self, call: Callable[[], T], codes: Collection[str], *, seconds: float = 90.0) -> T:
        """Return the result of ``call``; repeat it while it fails with ``codes``, until AWS knows a new resource.

        Raises:
            ClientError: the last one, after ``seconds``, or one with another code at once.
        """
        from botocore.exceptions import ClientError

        pause = 0.5
        with self.deadline(seconds) as deadline:
            while True:
                try:
                    return call()
                except ClientError as exc:
                    if error_code(exc) not in codes or deadline.passed():
                        raise
                self.clock.wait(pause)
                pause = min(pause * 1.6, 10.0)
