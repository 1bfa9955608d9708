"""What stands in a cluster's bucket about its instances: written by ``up``, or by each instance about itself.

``up`` writes which instance is the present master, where no instance can write. An instance writes below a prefix that
has its ``aws:userid``, the ids of its role and of itself with a colon between, since that is what a policy can bind an
instance to: its SSH host keys, what its services say, and, if it is the master, that its run is done.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from dl4jlegacy.aws.cluster_spec import utc
from dl4jlegacy.aws.session import ABSENT, Aws, error_code, translate_errors
from dl4jlegacy.errors import CloudError

__all__ = [
    "DONE",
    "HOST_KEYS",
    "INSTANCES",
    "JOURNAL",
    "PRESENT_MASTER",
    "Done",
    "PresentMaster",
    "own_key",
    "own_user_id",
    "read_done",
    "read_object",
    "read_present_master",
    "write_object",
]

INSTANCES = "instances/"
"""Prefix of what instances say about themselves."""
HOST_KEYS, JOURNAL, DONE = "host-keys", "journal", "done"
PRESENT_MASTER = "present-master"


def own_key(user_id: str, what: str) -> str:
    """Return the key of what the instance with this ``aws:userid`` says about itself."""
    return f"{INSTANCES}{user_id}/{what}"


def own_user_id(aws: Aws) -> str:
    """Return the ``aws:userid`` of the instance on which this process runs; raises what ``translate_errors`` raises."""
    with translate_errors("asking AWS which instance this is"):
        return str(aws.client("sts").get_caller_identity()["UserId"])


@dataclass(frozen=True, slots=True)
class PresentMaster:
    """The private address of the master's instance, and its ``aws:userid``."""

    address: str
    user_id: str

    @property
    def instance_id(self) -> str:
        """The id of the instance."""
        return self.user_id.rpartition(":")[2]

    def to_bytes(self) -> bytes:
        """Return it as the bucket has it."""
        return f"{self.address} {self.user_id}".encode()


@dataclass(frozen=True, slots=True)
class Done:
    """That a run is done: since when, as tags have times, and where its model is."""

    since: str
    model: str


def read_object(aws: Aws, bucket: str, key: str) -> tuple[bytes, str] | None:
    """Return an object and when it was written, None if there is none.

    Raises what ``translate_errors`` raises; for an object that is not there ``NotAuthorisedError``, if whoever asks may
    not list the bucket, as instances may not.
    """
    from botocore.exceptions import ClientError

    with translate_errors(f"s3://{bucket}/{key}"):
        try:
            found = aws.client("s3").get_object(Bucket=bucket, Key=key)
            return found["Body"].read(), utc(found["LastModified"].timestamp())
        except ClientError as exc:
            if error_code(exc) not in ABSENT:
                raise
            return None


def write_object(aws: Aws, bucket: str, key: str, content: bytes) -> None:
    """Write an object; raises what ``translate_errors`` raises."""
    with translate_errors(f"writing s3://{bucket}/{key}"):
        aws.client("s3").put_object(Bucket=bucket, Key=key, Body=content)


def read_present_master(aws: Aws, bucket: str) -> PresentMaster | None:
    """Return which instance is the master, None if nobody has said so yet.

    Raises:
        CloudError: the object holds something else. And what ``read_object`` raises.
    """
    found = read_object(aws, bucket, PRESENT_MASTER)
    if found is None:
        return None
    try:
        address, user_id = found[0].decode().split(" ")
        return PresentMaster(str(ipaddress.IPv4Address(address)), user_id)
    except ValueError as exc:
        raise CloudError(f"s3://{bucket}/{PRESENT_MASTER} is not as `up` writes it: {found[0][:80]!r}") from exc


def read_done(aws: Aws, bucket: str, master: PresentMaster) -> Done | None:
    """Return what the master has said about the end of its run, None if nothing; raises what ``read_object`` raises."""
    found = read_object(aws, bucket, own_key(master.user_id, DONE))
    return None if found is None else Done(found[1], found[0].decode(errors="replace"))
