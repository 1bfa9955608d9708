"""Objects in a cluster's bucket about its instances, written by ``up`` or by the instances themselves.

``up`` writes which instance is the present master, and which instances have the servers of a cluster with a standby, in
a place where no instance can write. An instance writes its SSH host keys, the journal of its services, and the end of
the run that it has led. Their prefix has the instance's ``aws:userid`` (the ids of its role and of the instance,
separated by a colon), since a policy can restrict an instance to that prefix.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from dl4jlegacy.aws.calls import call
from dl4jlegacy.aws.cluster_spec import utc
from dl4jlegacy.errors import CloudError
from dl4jlegacy.storage.s3.session import ABSENT, Aws, translate_errors

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
"""Prefix of the objects that instances write about themselves."""
HOST_KEYS, JOURNAL, DONE = "host-keys", "journal", "done"
PRESENT_MASTER = "present-master"


def own_key(user_id: str, what: str) -> str:
    """Return the key of an object that the instance with this ``aws:userid`` writes about itself."""
    return f"{INSTANCES}{user_id}/{what}"


def own_user_id(aws: Aws) -> str:
    """Return the ``aws:userid`` of the instance on which this process runs; raises what ``translate_errors`` raises."""
    return str(call(aws, "sts", "get_caller_identity")["UserId"])


@dataclass(frozen=True, slots=True)
class PresentMaster:
    """The private address and the ``aws:userid`` of the master's instance, or of another instance with servers."""

    address: str
    user_id: str

    @property
    def instance_id(self) -> str:
        """The id of the instance."""
        return self.user_id.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Servers:
    """The instances with a cluster's servers: the master's; or the master's, a standby's and a witness's."""

    instances: tuple[PresentMaster, ...]

    @property
    def master(self) -> PresentMaster:
        """The instance on which the run began, or the one that replaced it."""
        return self.instances[0]

    @property
    def leaders(self) -> tuple[PresentMaster, ...]:
        """The instances that may lead the run."""
        return self.instances[:2]

    @property
    def addresses(self) -> str:
        """The private addresses of the instances, separated by commas, that of the witness last."""
        return ",".join(each.address for each in self.instances)

    def to_bytes(self) -> bytes:
        """Return the instances in the format of the bucket's object."""
        return "\n".join(f"{each.address} {each.user_id}" for each in self.instances).encode()


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a run: its time, in the format of tags, and the address of the model."""

    since: str
    model: str


def read_object(aws: Aws, bucket: str, key: str) -> tuple[bytes, str] | None:
    """Return an object and the time when it was written; None if there is none.

    Raises what ``translate_errors`` raises. For a missing object this is ``NotAuthorisedError`` if the caller may not
    list the bucket; instances may not.
    """
    with translate_errors(what := f"s3://{bucket}/{key}"):
        found = call(aws, "s3", "get_object", what=what, passed=ABSENT, Bucket=bucket, Key=key)
        return None if found is None else (found["Body"].read(), utc(found["LastModified"].timestamp()))


def write_object(aws: Aws, bucket: str, key: str, content: bytes) -> None:
    """Write an object; raises what ``translate_errors`` raises."""
    what = f"s3://{bucket}/{key}"
    call(aws, "s3", "put_object", what=what, retried={"NoSuchBucket"}, Bucket=bucket, Key=key, Body=content)


def read_servers(aws: Aws, bucket: str) -> Servers | None:
    """Return the master's instance and the others with servers; None if ``up`` has written none yet.

    Raises:
        CloudError: the object has another content. Also what ``read_object`` raises.
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
    """Return the end of a master's run, None while it is not over; raises as ``read_object`` does."""
    found = read_object(aws, bucket, own_key(master.user_id, DONE))
    return None if found is None else Done(found[1], found[0].decode(errors="replace"))
