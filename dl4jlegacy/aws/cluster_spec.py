"""The specification of a cluster on AWS, its names and its tags. Nothing here calls AWS.

All resources of a cluster have the same tags, and names derived from cluster, account and region, so that they can be
found whatever happened to the process that created them.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dl4jlegacy.errors import ConfError, UsageError, counted

__all__ = [
    "BOUNDARY",
    "CLUSTER",
    "CREATED",
    "DISK",
    "EXPIRES",
    "IAM_PATH",
    "MASTER",
    "OWNER",
    "ROLE",
    "STANDBY",
    "WITNESS",
    "WITNESS_SIZES",
    "WORKER",
    "ClusterSpec",
    "Names",
    "Tags",
    "buckets_in",
    "check_key_file",
    "check_name",
    "parse_cidr",
    "parse_ttl",
    "seconds_of",
    "tag_list",
    "tagged",
    "utc",
    "value_of",
]

CLUSTER, CREATED = "dl4jlegacy:cluster", "dl4jlegacy:created"
EXPIRES, ROLE = "dl4jlegacy:expires", "dl4jlegacy:role"
DISK = "dl4jlegacy:disk"
MASTER, WORKER = "master", "worker"
STANDBY, WITNESS = "standby", "witness"
"""Roles in a cluster with a standby: the one that takes over, and the one with the deciding third Zookeeper server."""
WITNESS_SIZES = {"x86_64": "t3.small", "arm64": "t4g.small"}
"""Instance type of a witness, by the architecture of the master."""
IAM_PATH = "/dl4jlegacy/"
BOUNDARY = "dl4jlegacy-boundary"
"""The managed policy, created once by an administrator, that limits the role of every instance."""
OWNER = "owner.json"
"""Key of the object in the cluster's bucket that names the owner."""
Tags = dict[str, str]

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,14}[a-z0-9])?")
_TTL = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS = {"s": 1, "m": 60, "": 60, "h": 3600, "d": 86400}
_NO_GPUS = "instances get neither the GPU's driver nor CuPy"
_LEAST_TTL, _MOST_TTL = 300, 30 * 86400


def check_name(name: str) -> str:
    """Return ``name`` if it is valid for a cluster; raises ``UsageError`` otherwise."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a cluster cannot be called {name!r}: give up to 16 of a-z, 0-9 and -, beginning with a letter, not "
            "ending with -"
        )
    return name


def parse_ttl(text: str) -> int:
    """Return a time to live in seconds: ``90m``, ``4h``, ``1d``, or minutes; raises ``UsageError``."""
    found = _TTL.fullmatch(text.strip())
    seconds = int(float(found[1]) * _SECONDS[found[2]]) if found else 0
    if not _LEAST_TTL <= seconds <= _MOST_TTL:
        raise UsageError(
            f"--ttl is {text!r}; instances must end by themselves some time: give from 5m to 30d, for instance 4h"
        )
    return seconds


def parse_cidr(text: str) -> str:
    """Return an address or network as CIDR; raises ``UsageError`` for other text or too large a network."""
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise UsageError(
            f"--allow is {text!r}; give your public address, such as 203.0.113.7, 203.0.113.0/28 or 2001:db8::/64"
        ) from None
    least = 16 if network.version == 4 else 32
    if network.prefixlen < least:
        raise UsageError(f"--allow {text} admits too many: give a network of at least /{least}, best one address")
    return str(network)


def check_key_file(path: Path) -> Path:
    """Return the path of a private key that only its owner can read; raises ``ConfError``."""
    path = path.expanduser()
    try:
        mode = path.stat().st_mode
        path.open("rb").close()
    except OSError as exc:
        raise ConfError(f"the key file {path} cannot be read: {exc.strerror or exc}; give another -kpath") from exc
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfError(f"the key file {path} is open to other users (mode {stat.S_IMODE(mode):o}); 'chmod 600' it")
    return path


def utc(seconds: float) -> str:
    """Return a time, in seconds since 1970, in the format of tags."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """Return the time in a tag, in seconds since 1970; 0 if the text is no time."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def buckets_in(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the buckets of all ``s3://bucket/...`` in ``texts``, sorted."""
    found = {match for text in texts for match in re.findall(r"s3://([a-z0-9][a-z0-9.-]+)", text)}
    return tuple(sorted(found))


def value_of(flag: str, words: Sequence[str]) -> str:
    """Return the last value of a flag in a command line; "" if there is none."""
    pairs = [*itertools.pairwise(words), *(word.split("=", 1) for word in words if "=" in word)]
    return next((value for name, value in reversed(pairs) if name == flag), "")


def tag_list(tags: Tags) -> list[dict[str, str]]:
    """Return tags in AWS's format."""
    return [{"Key": name, "Value": text} for name, text in tags.items()]


def tagged(tags: Tags, *kinds: str) -> list[dict[str, Any]]:
    """Return the ``TagSpecifications`` of a call of EC2 that creates resources of these kinds."""
    return [{"ResourceType": kind, "Tags": tag_list(tags)} for kind in kinds]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a cluster's resources."""

    cluster: str
    region: str
    account: str

    @property
    def group(self) -> str:
        """Its security group."""
        return f"dl4j-{self.cluster}"

    @property
    def key_pair(self) -> str:
        """Its key pair."""
        return f"dl4j-{self.cluster}"

    @property
    def role(self) -> str:
        """The role and instance profile of its instances; both belong to the account, so they name the region."""
        return f"dl4j-{self.cluster}-{self.region}"

    @property
    def partition(self) -> str:
        """The partition in the region's ARNs."""
        return "aws-cn" if self.region.startswith("cn-") else "aws"

    @property
    def boundary(self) -> str:
        """The ARN of the role's permissions boundary."""
        return f"arn:{self.partition}:iam::{self.account}:policy/{BOUNDARY}"

    @property
    def secret(self) -> str:
        """The parameter with the run's secret."""
        return f"/dl4jlegacy/{self.cluster}/secret"

    @property
    def bucket(self) -> str:
        """The bucket with the wheel for its instances; bucket names are unique in the world."""
        return f"dl4j-{self.cluster}-{self.account}-{self.region}"

    @property
    def key_folder(self) -> Path:
        """The folder on this machine for the cluster's private key and host keys."""
        return Path.home() / ".dl4jlegacy" / "aws" / f"{self.cluster}-{self.region}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The specification of what ``up`` creates; the flags of the legacy ``ClusterSetup``, with additions.

    Attributes:
        name: of the cluster.
        allow: the network (CIDR) from which SSH is allowed.
        ttl_seconds: time after which instances end by themselves.
        run: the arguments of ``dl4j master``.
        out: ``s3://bucket/key`` of the trained model.
        workers, size, ami, security_group, key_pair, key_path, worker_script, master_script: ``-w -s -ami -sg -kp
            -kpath -wscript -mscript``; empty ones are chosen, or created and removed again.
        master_size: the master's size, if not ``size``.
        spot: workers at the spot price; on demand if there is no spot capacity, unless ``spot_only``.
        subnet: the subnet to start in; by default those of the default VPC, one after the other.
        processes: worker processes of an instance; 0: one for each core.
        disk: GB of each instance's disk; more if the image needs more.
        heap: of the Hazelcast member, in Java's notation; "": half of the master's memory.
        keep: whether instances stay after the end of their run, until their time to live is over.
        standby: whether there are also a standby, on an instance like the master's with a second Hazelcast member, and
            a witness with a third Zookeeper server, so that the run survives the loss of any one of the three.
        user: the login name for SSH.
    """

    name: str
    allow: str
    ttl_seconds: int
    out: str
    run: tuple[str, ...] = ("--model", "dbn", "--dataset", "digits")
    workers: int = 1
    size: str = "m5.large"
    master_size: str = ""
    ami: str = ""
    security_group: str = ""
    key_pair: str = ""
    key_path: str = ""
    worker_script: str = ""
    master_script: str = ""
    spot: bool = False
    spot_only: bool = False
    subnet: str = ""
    processes: int = 0
    disk: int = 16
    heap: str = ""
    keep: bool = False
    standby: bool = False
    user: str = "admin"

    def check(self) -> None:
        """Raise ``UsageError`` or ``ConfError`` for values that are wrong in any case, without asking AWS."""
        check_name(self.name)
        if not 1 <= self.workers <= 1000:
            raise UsageError(f"-w {self.workers}: give a number of workers from 1 to 1000")
        if not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.*[^/]", self.out):
            raise UsageError(
                f"--out is {self.out!r}; instances end and their disks with them, so give the model a place as "
                "s3://bucket/name.zip"
            )
        if bool(self.key_pair) != bool(self.key_path):
            raise UsageError("-kp (the key pair's name) and -kpath (its private key's file) go together")
        if self.key_path:
            check_key_file(Path(self.key_path))
        for flag, script in (("-wscript", self.worker_script), ("-mscript", self.master_script)):
            if script and not Path(script).expanduser().is_file():
                raise ConfError(f"{flag} {script}: there is no such file")
        self.jobs_per_round()
        if not 8 <= self.disk <= 16384:
            raise UsageError(f"--disk {self.disk}: give a number of GB from 8 to 16384")
        if self.heap and not re.fullmatch(r"[1-9][0-9]*[mMgG]", self.heap):
            raise UsageError(f"--heap {self.heap!r}: megabytes or gigabytes as Java writes them, like 512m or 2g")
        if value_of("--device", self.run).startswith("gpu"):
            raise ConfError(f"--device {value_of('--device', self.run)} after --: {_NO_GPUS}; train on cpu")
        if self.spot_only and not self.spot:
            raise UsageError("--spot-only belongs to --spot")

    @property
    def server_roles(self) -> tuple[str, ...]:
        """The roles of the instances that have the run's servers."""
        return (MASTER, STANDBY, WITNESS) if self.standby else (MASTER,)

    def processes_of(self, cores: int) -> int:
        """Return the number of worker processes on an instance with ``cores`` cores (vCPUs)."""
        return self.processes or cores

    def heap_of(self, memory: int) -> str:
        """Return the heap of the Hazelcast member of a master with ``memory`` MiB, in Java's notation."""
        return self.heap or f"{max(memory // 2, 256)}m"

    def check_gpus(self, size: str, gpus: int) -> str:
        """Return a warning if instances of a size have GPUs, which are paid for but stay idle; "" if they have none.

        Raises:
            ConfError: the run has no ``--device cpu``, which would accept that.
        """
        if not gpus:
            return ""
        what = f"{size} has {counted(gpus, 'GPU')}, and {_NO_GPUS}"
        if value_of("--device", self.run) != "cpu":
            raise ConfError(
                f"{what}, so what makes it dear would be idle; take a size without, such as c5.2xlarge, or give "
                "--device cpu after --"
            )
        return f"{what}: it costs what it costs with GPUs, and trains on its CPUs"

    def jobs_per_round(self) -> int:
        """Return the jobs of a round that the run's arguments give; 0: the data decide.

        Raises:
            UsageError: the number in the run's arguments is not valid.
        """
        flag = "--jobs-per-round"
        given = value_of(flag, self.run)
        if not given:
            return 0
        if not (given.isascii() and given.isdigit() and int(given)):
            raise UsageError(f"{flag} is {given!r} after --; it must be a whole number, at least 1")
        return int(given)

    def tags(self, role: str, now: float, expires: float) -> Tags:
        """Return the tags of a resource; times in seconds since 1970."""
        return {
            "Name": f"dl4j-{self.name}" + (f"-{role}" if role else ""),
            CLUSTER: self.name,
            CREATED: utc(now),
            EXPIRES: utc(expires),
            **({ROLE: role, DISK: str(self.disk)} if role else {}),
        }
