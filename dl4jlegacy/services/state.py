"""The stored state of a folder's servers: ``services.json`` lists them, also after they were stopped.

The folder keeps the cluster's name and the ports, by which other processes know the servers, so that these processes
find the servers that are started there next.
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
    """A server: ``"hazelcast-1"``, ``"hazelcast-2"``, ... or ``"zookeeper"``, and its start command."""

    name: str
    port: int
    command: tuple[str, ...]
    process: ServerProcess | None = None
    host: str = HOST

    @property
    def is_running(self) -> bool:
        """Whether its process is alive."""
        return self.process is not None and self.process.is_alive()

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that must be free at its start: the port of its address, and the two further ports of a member."""
        return (self.port,) if self.name == "zookeeper" else member_ports(self.port)

    def answers(self, members: int) -> bool:
        """Return whether it serves; a Hazelcast member serves when it sees all ``members``."""
        if self.name == "zookeeper":
            return zookeeper_answers(self.port, self.host)
        return member_answers(self.port, members, self.host)

    def is_up(self, members: int, *, with_others: bool) -> bool:
        """Return whether it serves, or is a server of an ensemble that only waits for other hosts."""
        waits = with_others and self.name == "zookeeper" and zookeeper_waits(self.port, self.host)
        return waits or self.answers(members)


class ServicesState(msgspec.Struct, frozen=True, kw_only=True):
    """A set of servers as stored in ``services.json``; in an ensemble, this host's part of a larger set."""

    cluster_name: str
    folder: str
    servers: tuple[Server, ...] = ()
    ensemble: Ensemble | None = None

    @property
    def hazelcast(self) -> str:
        """The members' addresses, ``host:port``, separated by commas; ``""`` if there are none."""
        if self.ensemble is not None:
            return ",".join(self.ensemble.hazelcast)
        return ",".join(s.address for s in self.members)

    @property
    def zookeeper(self) -> str:
        """The Zookeeper server's ``host:port``, or those of all, separated by commas; ``""`` if there is none."""
        if self.ensemble is not None:
            return ",".join(self.ensemble.zookeeper)
        return next((s.address for s in self.servers if s.name == "zookeeper"), "")

    @property
    def members(self) -> tuple[Server, ...]:
        """The Hazelcast members on this host."""
        return tuple(s for s in self.servers if s.name != "zookeeper")

    @property
    def pids(self) -> dict[str, int]:
        """The process ids of the running servers, by name."""
        return {s.name: s.process.pid for s in self.servers if s.process is not None and s.is_running}

    @property
    def is_down(self) -> bool:
        """Whether all servers were stopped on purpose, so that none should run."""
        return all(s.process is None for s in self.servers)

    def down(self) -> ServicesState:
        """Return the same servers marked as stopped on purpose."""
        servers = tuple(msgspec.structs.replace(s, process=None) for s in self.servers)
        return msgspec.structs.replace(self, servers=servers)

    @property
    def stopped(self) -> tuple[str, ...]:
        """The names of the servers that should run but do not."""
        return tuple(s.name for s in self.servers if not s.is_running)

    @property
    def silent(self) -> tuple[str, ...]:
        """The names of the running servers that do not answer; each such query takes up to 2 s.

        In an ensemble, this includes a member that does not see all others, or lacks backups of its entries there.
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
    """Write a file atomically, readable for its owner only: the cluster's name in it is the only protection."""
    files.write(path, content, private=True)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder, created if necessary, against other processes that start or stop its servers.

    Raises:
        TrackerError: the folder cannot be used, or another process holds it for minutes.
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
    """Return the stored state of a folder, None if no servers were ever started there.

    The state contains commands to execute and processes to stop, so nobody else may have written it.

    Raises:
        TrackerError: the state cannot be read, belongs to another user, or others may write there.
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
    """Store the state in its folder; raises ``OSError``."""
    write_private(Path(state.folder) / _STATE, msgspec.json.format(msgspec.json.encode(state), indent=2))


def forget_state(folder: Path) -> None:
    """Remove the stored state from a folder; raises ``OSError``."""
    (folder / _STATE).unlink(missing_ok=True)
