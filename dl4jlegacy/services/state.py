"""A set of servers as its folder keeps it: ``services.json`` lists them, while they run and when they were stopped.

What processes elsewhere know the servers by, the cluster's name and the ports, stays a folder's from then on: whoever
worked with the servers of before finds those that are started there next.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dl4jlegacy.errors import TrackerError
from dl4jlegacy.services.ensemble import Ensemble
from dl4jlegacy.services.jars import locked
from dl4jlegacy.services.ports import member_answers, zookeeper_answers, zookeeper_waits
from dl4jlegacy.services.processes import ServerProcess
from dl4jlegacy.services.settings import HOST, member_ports
from dl4jlegacy.system import files, ownership
from dl4jlegacy.system.decoding import decodable

__all__ = ["Server", "ServicesState", "folder_lock", "forget_state", "read_state", "write_private", "write_state"]

_STATE = "services.json"


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server: ``"hazelcast-1"``, ``"hazelcast-2"``, ... or ``"zookeeper"``, and how it is started."""

    name: str
    port: int
    command: tuple[str, ...]
    process: ServerProcess | None = None
    host: str = HOST

    @property
    def is_running(self) -> bool:
        """True if its process is alive."""
        return self.process is not None and self.process.is_alive()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that must be free when it is started: that of its address, and the two that a member has beside."""
        return (self.port,) if self.name == "zookeeper" else member_ports(self.port)

    def answers(self, members: int) -> bool:
        """Return True if it serves; a Hazelcast member only once it sees all ``members``."""
        if self.name == "zookeeper":
            return zookeeper_answers(self.port, self.host)
        return member_answers(self.port, members, self.host)

    def is_up(self, members: int, *, with_others: bool) -> bool:
        """Return True if it serves, or if it is one of several hosts' and does all that it can without the others."""
        waits = with_others and self.name == "zookeeper" and zookeeper_waits(self.port, self.host)
        return waits or self.answers(members)


class ServicesState(msgspec.Struct, frozen=True, kw_only=True):
    """A set of servers, as ``services.json`` keeps it; with an ensemble they are this host's part of a larger set."""

    cluster_name: str
    folder: str
    servers: tuple[Server, ...] = ()
    ensemble: Ensemble | None = None

    @property
    def hazelcast(self) -> str:
        """The members' addresses, ``host:port`` each, with commas between them; ``""`` if there are none."""
        if self.ensemble is not None:
            return ",".join(self.ensemble.hazelcast)
        return ",".join(s.address for s in self.members)

    @property
    def zookeeper(self) -> str:
        """The Zookeeper server's ``host:port``, or those of all with commas between them; ``""`` if there is none."""
        if self.ensemble is not None:
            return ",".join(self.ensemble.zookeeper)
        return next((s.address for s in self.servers if s.name == "zookeeper"), "")

    @property
    def members(self) -> tuple[Server, ...]:
        """The Hazelcast members on this host."""
        return tuple(s for s in self.servers if s.name != "zookeeper")

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the servers that run, by name."""
        return {s.name: s.process.pid for s in self.servers if s.process is not None and s.is_running}

    @property
    def is_down(self) -> bool:
        """True if all were stopped on purpose: none is to run."""
        return all(s.process is None for s in self.servers)

    def down(self) -> ServicesState:
        """Return the same servers, all of them stopped on purpose."""
        servers = tuple(msgspec.structs.replace(s, process=None) for s in self.servers)
        return msgspec.structs.replace(self, servers=servers)

    @property
    def stopped(self) -> tuple[str, ...]:
        """The names of the servers that should run and do not."""
        return tuple(s.name for s in self.servers if not s.is_running)

    @property
    def silent(self) -> tuple[str, ...]:
        """The names of the servers that run and do not answer; asking each of those takes up to 2 s.

        Of several hosts' also the member that does not see all others, or not all of its entries' backups with them.
        """
        members = 1 if self.ensemble is None else len(self.ensemble.member_hosts)
        return tuple(s.name for s in self.servers if s.is_running and not s.answers(members))

    def to_dict(self) -> dict[str, object]:
        """Return the fields that the command prints as JSON."""
        return {
            "hazelcast": self.hazelcast,
            "zookeeper": self.zookeeper,
            "pids": self.pids,
            "cluster_name": self.cluster_name,
            "folder": self.folder,
            "stopped": list(self.stopped),
        }


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, for its owner only: the cluster's name in it is all that keeps other users out."""
    files.write(path, content, private=True)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if there is none, against other processes that start or stop its servers.

    Raises:
        TrackerError: it cannot be used, or another process holds it for minutes.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        ownership.check_own(folder.stat(), folder)
        with locked(folder / ".lock", 120.0, "another process starts or stops these servers"):
            yield
    except OSError as exc:
        raise TrackerError(
            f"the servers' folder {folder} cannot be used: {exc.strerror or exc}; give another --folder"
        ) from exc


def read_state(folder: Path) -> ServicesState | None:
    """Return what a folder keeps, None if no servers were ever started there.

    It says what is executed, and which processes are ended: nobody else may have written it.

    Raises:
        TrackerError: it cannot be read, or is another user's, or others may write there.
    """
    path = folder / _STATE
    try:
        with files.opened_folder(folder) as opened:
            ownership.check_own(os.fstat(opened), folder)
            file = files.open_in(opened, _STATE, os.O_RDONLY)
        try:
            found = os.fstat(file)
            ownership.check_own(found, path)
            content = files.read_descriptor(file, found.st_size)
        finally:
            os.close(file)
        return msgspec.json.decode(content, type=decodable(ServicesState))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as exc:
        if isinstance(exc, OSError) and exc.errno == errno.EPERM:
            raise TrackerError(f"the servers of {folder} are left alone: {exc.filename}: {exc.strerror}") from exc
        raise TrackerError(f"{path} cannot be read: {exc}; look for servers with ps, stop them, delete it") from exc


def write_state(state: ServicesState) -> None:
    """Keep the state in its folder; raises ``OSError``."""
    write_private(Path(state.folder) / _STATE, msgspec.json.format(msgspec.json.encode(state), indent=2))


def forget_state(folder: Path) -> None:
    """Keep nothing in a folder any more; raises ``OSError``."""
    (folder / _STATE).unlink(missing_ok=True)
