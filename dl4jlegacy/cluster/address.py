"""How a process gets to a cluster's run: the ``Conf`` from Zookeeper, with it the tracker, and what must fit (layer 5).

Several runs can share one Zookeeper and one grid; each has an id of its own, under which its processes meet.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy import wire
from dl4jlegacy.errors import TrackerError, UsageError, VersionError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker, HazelcastStore
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.zookeeper import ZookeeperConfigurationRetriever
from dl4jlegacy.version import __version__

__all__ = [
    "MASTER",
    "ClusterAddress",
    "check_fits",
    "check_versions",
    "closing",
    "defined",
    "find_conf",
    "find_incarnation",
    "open_tracker",
    "versions",
]

_RESTORED_SECONDS = 3.0
MASTER = "master"
"""The id of a run that is given none, as the legacy had it."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a run meets: its cluster's Zookeeper, the run's secret (None: none), and its id there."""

    zookeeper: str
    secret: bytes | None = None
    id: str = MASTER

    def split(self) -> tuple[str, int]:
        """Return host and port of the (first) server; raises ``UsageError``."""
        host, _, port = self.zookeeper.split(",")[0].rpartition(":")
        if not host or not port.isdigit():
            raise UsageError(f"--zookeeper {self.zookeeper}: give it as host:port")
        return host, int(port)

    def flags(self) -> str:
        """Return the flags by which another command finds the run."""
        return f"--zookeeper {self.zookeeper}" + ("" if self.id == MASTER else f" --id {self.id}")


def versions(kernels: str) -> dict[str, str]:
    """Return what all processes of one run must have in common; others round or write differently."""
    return {
        "dl4jlegacy": __version__,
        "wire": str(wire.VERSION),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "numpy": ".".join(np.__version__.split(".")[:2]),
        "kernels": kernels,
    }


def open_tracker(conf: Conf, secret: bytes | None, *, registered: bool = False) -> HazelcastStateTracker:
    """Return the tracker that a Conf names; raises ``TrackerError`` if it cannot be reached.

    Args:
        registered: the Conf was found in Zookeeper, so that a secret that its signature was checked with is the run's.
    """
    return HazelcastStateTracker(
        conf.state_tracker_connection_string,
        cluster_name=conf.cluster_name or "dev",
        run=conf.run,
        incarnation=conf.incarnation,
        secret=secret,
        is_authorised=registered and secret is not None,
    )


def find_incarnation(store: HazelcastStore, run: str) -> str:
    """Return which incarnation has a run's name in the grid, over a connection to it; "" if there is none."""
    raw = store.sibling(protocol.NAMES).get(run)
    record = protocol.parse_record(store, run, raw, protocol.RunRecord)
    return "" if record is None else record.incarnation


def find_conf(address: ClusterAddress, *, wait_seconds: float = 0.0) -> Conf:
    """Return the Conf that a master has registered; raises ``TrackerError`` if there is none in time."""
    host, port = address.split()
    with ZookeeperConfigurationRetriever(host, port, address.id, secret=address.secret) as retriever:
        return retriever.retrieve(wait_seconds=wait_seconds)


def defined(tracker: StateTracker, key: str, conf: Conf) -> Any:
    """Return a global of the run, which its master defines before it registers, and restores if others damage it."""
    value, until = tracker.get(key), time.monotonic() + _RESTORED_SECONDS
    while value is None and time.monotonic() < until:
        time.sleep(0.1)
        value = tracker.get(key)
    if value is None:
        raise TrackerError(
            f"run {conf.run} has no {key} in the tracker at {conf.state_tracker_connection_string}: it has ended, or "
            f"the member was restarted; resume it (dl4j resume {conf.run}) or start its master again"
        )
    return value


def check_fits(tracker: StateTracker, conf: Conf, ours: dict[str, str]) -> None:
    """Raise ``VersionError`` if a worker that has ``conf`` and these versions would compute something else."""
    check_versions(defined(tracker, "versions", conf), ours, f"this worker cannot join run {conf.run}")
    if defined(tracker, "conf", conf) != conf.to_json():
        raise VersionError(
            f"this worker cannot join run {conf.run}: the Conf in Zookeeper is not the one that the run began with in "
            "the tracker; it was changed during the run, or is another run's of the same name: stop one of them"
        )


def check_versions(theirs: dict[str, str], ours: dict[str, str], consequence: str) -> None:
    """Raise ``VersionError`` if the versions of a run's master and those of this process differ."""
    different = [
        f"{name} {theirs.get(name)} there, {own} here" for name, own in ours.items() if theirs.get(name) != own
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
