"""Access to a cluster run: its ``Conf`` in Zookeeper, its tracker, and the compatibility checks (layer 5).

Several runs can share one Zookeeper and one grid; each run has an id of its own, under which its processes meet.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.arrays import wire
from dl4jlegacy.errors import NotAuthorisedError, TrackerError, UsageError, VersionError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import DEADLINE_SECONDS, HazelcastStateTracker, HazelcastStore
from dl4jlegacy.scaleout.identity import MODULE
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.zookeeper import ZookeeperConfigurationRetriever, ZooKeeperSession
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.secret import ALLOW_UNSIGNED, GET_SECRET, MAKE_SECRET, beyond_loopback
from dl4jlegacy.version import __version__

__all__ = [
    "MASTER",
    "Access",
    "ClusterAddress",
    "NotDefinedError",
    "check_fits",
    "check_versions",
    "closing",
    "defined",
    "find_conf",
    "find_incarnation",
    "find_registered",
    "flags_of",
    "open_tracker",
    "versions",
    "warned_once",
    "zookeeper_servers",
]

logger = logging.getLogger(__name__)

_RESTORED_SECONDS = 3.0
_UNSIGNED = (
    "run %s is not signed: whoever reaches Zookeeper at %s or its tracker can change it, and choose files that a "
    "standby or dl4j resume reads and writes; for one that is, %s"
)
MASTER = "master"
"""The default id of a run, as in the legacy."""


def flags_of(zookeeper: str, id: str) -> str:
    """Return the command-line flags that select the run with an id in a Zookeeper."""
    return f"--zookeeper {zookeeper}" + ("" if id == MASTER else f" --id {id}")


@dataclass(frozen=True, slots=True)
class Access:
    """The rights with which a process accesses servers.

    Attributes:
        secret: the secret of its runs; None: they have none.
        allow_unsigned: whether the process may use servers beyond this machine's loopback without a secret.
    """

    secret: bytes | None = None
    allow_unsigned: bool = False

    def check(self, what: str, addresses: str) -> None:
        """Refuse servers beyond loopback if this process cannot verify what strangers write there.

        Args:
            what: the service at the addresses, for the message.
            addresses: ``host:port``, separated by commas.

        Raises:
            NotAuthorisedError: there is no secret, and unsigned access is not allowed.
        """
        beyond = beyond_loopback(addresses)
        if self.secret is not None or self.allow_unsigned or not beyond:
            return
        raise NotAuthorisedError(
            f"{what} at {beyond[0]} is beyond this machine's loopback, and this process has no secret: whoever reaches "
            f"that server could change the run, and choose the files that it reads and writes; {GET_SECRET}; where "
            f"everybody on the network is trusted, {ALLOW_UNSIGNED}=1 does without"
        )


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The meeting place of a run's processes.

    Attributes:
        zookeeper: ``host:port`` of the cluster's Zookeeper, or of the servers of an ensemble, separated by commas;
            stored in one order, whatever order was given.
        secret: the run's; None: it has none.
        id: the run's id in Zookeeper.
        allow_unsigned: whether a run without a secret may use servers beyond this machine's loopback.

    Raises:
        UsageError: Zookeeper's address is malformed.
        NotAuthorisedError: the address is beyond loopback, and ``Access`` does not allow that.
    """

    zookeeper: str
    secret: bytes | None = None
    id: str = MASTER
    allow_unsigned: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "zookeeper", zookeeper_servers(self.zookeeper))
        self.access.check("Zookeeper", self.zookeeper)

    @property
    def access(self) -> Access:
        """The rights with which the run's servers are accessed."""
        return Access(self.secret, self.allow_unsigned)

    def split(self) -> tuple[str, int]:
        """Return host and port of the (first) server; the run is registered under its name."""
        host, _, port = self.zookeeper.split(",")[0].rpartition(":")
        return host, int(port)

    def session(self) -> ZooKeeperSession:
        """Return a session with any server that answers; raises ``TrackerError`` if none does."""
        return ZooKeeperSession(self.zookeeper, secret=self.secret)

    def warn_unsigned(self, run: str) -> None:
        """Warn if the run has no secret."""
        if self.secret is None:
            logger.warning(_UNSIGNED, run, self.zookeeper, MAKE_SECRET)

    def flags(self) -> str:
        """Return the command-line flags by which another command finds the run."""
        return flags_of(self.zookeeper, self.id)


@contextmanager
def warned_once() -> Iterator[None]:
    """Warn only once in this process of unsigned runs, for a search, which has one run after the other."""
    said = False

    def is_first(record: logging.LogRecord) -> bool:
        nonlocal said
        first, said = not said or record.msg != _UNSIGNED, said or record.msg == _UNSIGNED
        return first

    logger.addFilter(is_first)
    try:
        yield
    finally:
        logger.removeFilter(is_first)


def zookeeper_servers(text: str) -> str:
    """Return the addresses of the Zookeeper servers in a canonical order.

    A run is registered under the name of the first server, so all its processes must agree on which server is first.

    Raises:
        UsageError: one address is not ``host:port``.
    """
    servers = text.split(",")
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or any(each.isspace() or each == "/" for each in host) or not (port.isascii() and port.isdigit()):
            which = "" if len(servers) == 1 else f"; {server!r} is not"
            raise UsageError(
                f"--zookeeper {text}: give it as host:port, or several servers of one ensemble as "
                f"host:port,host:port,host:port{which}"
            )
    return ",".join(sorted(dict.fromkeys(servers)))


def versions(kernels: str) -> dict[str, str]:
    """Return the versions that all processes of a run must share; other versions round or encode differently."""
    return {
        "dl4jlegacy": __version__,
        "wire": str(wire.VERSION),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": ".".join(np.__version__.split(".")[:2]),
        "kernels": kernels,
    }


def open_tracker(
    conf: Conf,
    address: ClusterAddress,
    *,
    registered: bool = False,
    takes_part: bool = False,
    patience_seconds: float | None = None,
    deadline_seconds: float | None = None,
) -> HazelcastStateTracker:
    """Return the tracker that a Conf names.

    Args:
        conf: the run's.
        address: where the run meets.
        registered: the Conf was found in Zookeeper, so the secret that verified its signature is the run's secret.
        takes_part: this process belongs to the run, and waits as long as the run's processes do if the tracker is away.
        patience_seconds: how long any other process waits then; None: as ``HazelcastStore``.
        deadline_seconds: longest time for connecting; None: as ``HazelcastStore``.

    Raises:
        TrackerError: the tracker cannot be reached.
        NotAuthorisedError: the tracker is beyond loopback, and there is no secret.
    """
    address.access.check("the tracker", conf.state_tracker_connection_string)
    return HazelcastStateTracker(
        conf.state_tracker_connection_string,
        cluster_name=conf.cluster_name or "dev",
        run=conf.run,
        incarnation=conf.incarnation,
        secret=address.secret,
        deadline_seconds=DEADLINE_SECONDS if deadline_seconds is None else deadline_seconds,
        patience_seconds=conf.tracker_wait_seconds if takes_part else patience_seconds,
        is_authorised=registered and address.secret is not None,
    )


def find_incarnation(store: HazelcastStore, run: str) -> str:
    """Return the incarnation that has a run's name in the grid of ``store``; "" if there is none."""
    raw = store.sibling(protocol.NAMES).get(run)
    record = protocol.parse_record(store, run, raw, protocol.RunRecord)
    return "" if record is None else record.incarnation


def find_conf(address: ClusterAddress, *, wait_seconds: float = 0.0) -> Conf:
    """Return the Conf that a master has registered; raises ``TrackerError`` if none is registered in time."""
    with address.session() as session:
        retriever = ZookeeperConfigurationRetriever(*address.split(), address.id, session=session)
        return retriever.retrieve(wait_seconds=wait_seconds)


def find_registered(address: ClusterAddress) -> Conf | None:
    """Return the currently registered Conf; None if there is none."""
    with address.session() as session:
        return ZookeeperConfigurationRetriever(*address.split(), address.id, session=session).find()


class NotDefinedError(TrackerError):
    """A registered run has no entries in the tracker: they were lost, or another run is just replacing it."""


def defined(tracker: StateTracker, key: str, conf: Conf) -> Any:
    """Return a global of the run; its master defines globals before it registers, and restores damaged ones.

    Raises:
        NotDefinedError: the global has been missing for a while.
    """
    value, deadline = tracker.get(key), Deadline(_RESTORED_SECONDS)
    while value is None and not deadline.passed():
        time.sleep(0.1)
        value = tracker.get(key)
    if value is None:
        raise NotDefinedError(
            f"run {conf.run} has no {key} in the tracker at {conf.state_tracker_connection_string}: it has ended, or "
            f"the member was restarted; resume it (dl4j resume {conf.run}) or start its master again"
        )
    return value


def check_fits(tracker: StateTracker, conf: Conf, ours: dict[str, str]) -> None:
    """Raise ``VersionError`` if a worker with ``conf`` and the versions ``ours`` would compute different results."""
    check_versions(defined(tracker, "versions", conf), ours, f"this worker cannot join run {conf.run}")
    if defined(tracker, "conf", conf) != conf.to_json():
        raise VersionError(
            f"this worker cannot join run {conf.run}: the Conf in Zookeeper is not the one that the run began with in "
            "the tracker; it was changed during the run, or is another run's of the same name: stop one of them"
        )


def check_versions(theirs: dict[str, str], ours: dict[str, str], consequence: str) -> None:
    """Raise ``VersionError`` if the versions of a run's master and those of this process differ.

    Modules that only one of the two was told to use are ignored.
    """
    known = {name: own for name, own in ours.items() if name in theirs or not name.startswith(MODULE)}
    different = [
        f"{name} {theirs.get(name)} there, {own} here" for name, own in known.items() if theirs.get(name) != own
    ]
    if different:
        raise VersionError(f"{consequence}: {'; '.join(different)}; install what the master has")


@contextmanager
def closing(tracker: HazelcastStateTracker) -> Iterator[HazelcastStateTracker]:
    """Shut the tracker down at the end, whatever happens."""
    try:
        yield tracker
    finally:
        tracker.shutdown()
