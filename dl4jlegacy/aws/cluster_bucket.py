"""What stands in a cluster's bucket about its instances: written by ``up``, or by each instance about itself.

``up`` writes which instance is the present master, and which ones have the servers of a cluster with a standby, where
no instance can write. An instance writes below a prefix that has its ``aws:userid``, the ids of its role and of itself
with a colon between, since that is what a policy can bind an instance to: its SSH host keys, what its services say, and
that the run is done, if it has led it to its end.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from dl4jlegacy.aws.cluster_spec import utc
from dl4jlegacy.errors import CloudError
from dl4jlegacy.storage.s3.session import ABSENT, Aws, error_code, translate_errors

__all__ = [
    "DONE",
    "HOST_KEYS",
    "INSTANCES",
    "JOURNAL",
    "PRESENT_MASTER",
    "Done",
    "PresentMaster",
    "Servers",
    "own_key",
    "own_user_id",
    "read_done",
    "read_object",
    "read_servers",
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
    """The private address of the master's instance, or of another one with servers, and its ``aws:userid``."""

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
class Servers:
    """The instances with a cluster's servers: the master's; or the master's, a standby's and a witness's."""

    instances: tuple[PresentMaster, ...]

    @property
    def master(self) -> PresentMaster:
        """The one that the run began on, or that took its place."""
        return self.instances[0]

    @property
    def leaders(self) -> tuple[PresentMaster, ...]:
        """Those that may lead the run."""
        return self.instances[:2]

    @property
    def addresses(self) -> str:
        """Their private addresses with commas between them, that of the witness last."""
        return ",".join(each.address for each in self.instances)

    def to_bytes(self) -> bytes:
        """Return them as the bucket has them."""
        return b"\n".join(each.to_bytes() for each in self.instances)


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


def read_servers(aws: Aws, bucket: str) -> Servers | None:
    """Return which instances are the master and the others with servers, None if nobody has said so yet.

    Raises:
        CloudError: the object holds something else. And what ``read_object`` raises.
    """
    found = read_object(aws, bucket, PRESENT_MASTER)
    if found is None:
        return None
    try:
        pairs = [line.split(" ") for line in found[0].decode().split("\n")]
        if len(pairs) not in (1, 3):
            raise ValueError
        return Servers(tuple(PresentMaster(str(ipaddress.IPv4Address(address)), id) for address, id in pairs))
    except ValueError as exc:
        raise CloudError(f"s3://{bucket}/{PRESENT_MASTER} is not as `up` writes it: {found[0][:80]!r}") from exc


def read_done(aws: Aws, bucket: str, master: PresentMaster) -> Done | None:
    """Return what a master has said about the end of its run, None if nothing; raises what ``read_object`` raises."""
    found = read_object(aws, bucket, own_key(master.user_id, DONE))
    return None if found is None else Done(found[1], found[0].decode(errors="replace"))
