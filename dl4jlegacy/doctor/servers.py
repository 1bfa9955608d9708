"""What a run on a cluster needs: Java and jars for servers of one's own, the servers that are named, the secret."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from dl4jlegacy.cluster.address import Access, zookeeper_servers
from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, of_error, ok, skipped, warning
from dl4jlegacy.doctor.network import clock_finding, servers_finding
from dl4jlegacy.errors import ConfError, Dl4jError, NotAuthorisedError, TrackerError, counted
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession
from dl4jlegacy.services.grid import grid_of
from dl4jlegacy.services.jars import cache_folder, missing_jars, pinned_jars
from dl4jlegacy.services.java import find_java
from dl4jlegacy.services.ports import zookeeper_answers, zookeeper_version, zookeeper_waits
from dl4jlegacy.services.servers import Services
from dl4jlegacy.system.secret import (
    ALLOW_UNSIGNED,
    GET_SECRET,
    LEAST_NBYTES,
    MAKE_SECRET,
    SECRET_FILE,
    allows_unsigned,
    beyond_loopback,
    read_secret,
)

__all__ = ["checks"]

_ANSWER_SECONDS = 8.0
_NO_TRACKER = skipped("no tracker was named", "--tracker hazelcast://HOST:PORT names one")
_NO_ZOOKEEPER = skipped("no Zookeeper was named", "--zookeeper HOST:PORT names one")


# -- servers of one's own ----------------------------------------------------------------------------------------------


def java(settings: Settings) -> Finding:
    """Look for a Java that can run the servers."""
    try:
        found = find_java()
    except TrackerError as exc:
        if settings.environ.get("JAVA_HOME") or shutil.which("java"):
            return of_error(exc, "warning")
        return skipped("there is none, which only dl4j services needs", of_error(exc).remedy)
    return ok(f"Java {found.version}, {found.path}")


def jars(settings: Settings) -> Finding:
    """Look whether the servers' jars are here, each against its checksum; downloads nothing."""
    wanted = [*pinned_jars("hazelcast"), *pinned_jars("zookeeper")]
    folder = cache_folder() / "jars"
    missing = missing_jars(wanted)
    damaged = [jar.file_name for jar in missing if (folder / jar.file_name).exists()]
    if damaged:
        return warning(f"{', '.join(damaged)} in {folder} is damaged", "dl4j services up fetches it again")
    if missing:
        found = f"{counted(len(missing), 'jar')} of {len(wanted)} not in {folder}"
        return skipped(found, "dl4j services up fetches them from a Maven repository, the first time")
    return ok(f"{counted(len(wanted), 'jar')} in {folder}, all whole")


def local_services(settings: Settings) -> Finding:
    """Look at the local servers: whether any were started here, and run, and answer."""
    named = settings.environ.get("DL4J_SERVICES")
    try:
        state = Services.status(Path(named) if named else None)
    except Dl4jError as exc:
        return of_error(exc, "failed" if isinstance(exc, ConfError) else "warning")
    if state is None:
        return skipped("none were started here", "dl4j services up starts a Hazelcast member and a Zookeeper server")
    up = "dl4j services up starts them again"
    if state.stopped:
        return warning(f"{', '.join(state.stopped)} of {state.folder} ended", f"see the logs there; {up}")
    if state.silent:
        found = f"{', '.join(state.silent)} of {state.folder}: running, but not answering"
        return warning(found, f"see the logs there; after dl4j services down, {up}")
    servers = [each for each in (state.hazelcast, state.zookeeper) if each]
    return ok(f"{' and '.join(servers)} run and answer, cluster name {state.cluster_name}")


# -- the secret --------------------------------------------------------------------------------------------------------


def secret(settings: Settings) -> Finding:
    """Look at the run's secret: readable, long enough, its owner's only; never shows it."""
    try:
        found, unsigned = read_secret(settings.environ), allows_unsigned(settings.environ)
        for what, where in (("the tracker", settings.tracker), ("Zookeeper", settings.zookeeper)):
            Access(found, unsigned).check(what, where)
    except (ConfError, NotAuthorisedError) as exc:
        return failed(str(exc).partition(f"; {GET_SECRET}")[0], _how_to_get(settings))
    if found is None:
        named = beyond_loopback(settings.tracker) or beyond_loopback(settings.zookeeper)
        if named:
            found_none = f"there is none, and {named[0]} is used without, as {ALLOW_UNSIGNED} says"
            return warning(found_none, _how_to_get(settings))
        return skipped("there is none, which servers of this machine's loopback do not ask for")
    if len(found) < LEAST_NBYTES:  # a new one is needed, for all machines
        return warning(f"it has {counted(len(found), 'byte')}: whoever reads what it signs can guess it", MAKE_SECRET)
    file = settings.environ.get(SECRET_FILE)
    if file and os.stat(file).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(f"its file {file} is open to other users", f"type: chmod 600 {file}")
    return ok(f"it has {counted(len(found), 'byte')}" + (f", in {file}" if file else ""))


def _how_to_get(settings: Settings) -> str:
    """Return how this machine gets a secret: a new one, unless it names servers of others, whose run has one."""
    named = beyond_loopback(settings.tracker) + beyond_loopback(settings.zookeeper)
    with contextlib.suppress(Dl4jError):
        folder = settings.environ.get("DL4J_SERVICES")
        state = Services.last(Path(folder) if folder else None)
        own = {server.host for server in state.servers} if state is not None and state.ensemble is None else set()
        named = [address for address in named if address.rpartition(":")[0] not in own]
    return GET_SECRET if named else MAKE_SECRET


# -- the tracker that is named -----------------------------------------------------------------------------------------


def tracker_address(settings: Settings) -> Finding:
    """Connect to the members that are named."""
    return servers_finding(_members(settings)) if settings.tracker else _NO_TRACKER


def tracker(settings: Settings) -> Finding:
    """Open the grid as a run would, and list what keys it has under a name that no run has."""
    members, cluster_name = grid_of(settings.tracker, settings.cluster_name)
    with _grid(members, cluster_name):
        return ok(f"Hazelcast at {members} answers, cluster name {cluster_name}")


def tracker_version(settings: Settings) -> Finding:
    """Compare the member's version with the one that the tests run."""
    members, cluster_name = grid_of(settings.tracker, settings.cluster_name)
    with _grid(members, cluster_name) as store:
        return _version_finding("Hazelcast", store.member_version(), _pinned("hazelcast"))


@contextlib.contextmanager
def _grid(members: str, cluster_name: str) -> Iterator[HazelcastStore]:
    store = HazelcastStore(
        members, cluster_name=cluster_name, run="doctor", secret=None, deadline_seconds=_ANSWER_SECONDS
    )
    try:
        yield store
    finally:
        store.close()


def _members(settings: Settings) -> str:
    return settings.tracker.removeprefix("hazelcast://").rstrip("/")


# -- the Zookeeper that is named ---------------------------------------------------------------------------------------


def zookeeper_address(settings: Settings) -> Finding:
    """Connect to the servers that are named."""
    return servers_finding(zookeeper_servers(settings.zookeeper)) if settings.zookeeper else _NO_ZOOKEEPER


def zookeeper(settings: Settings) -> Finding:
    """Ask each server whether it serves, or waits for the others of its ensemble, or is something else."""
    servers = [_host_and_port(each) for each in zookeeper_servers(settings.zookeeper).split(",")]
    serving = [f"{host}:{port}" for host, port in servers if zookeeper_answers(port, host)]
    waiting = [f"{host}:{port}" for host, port in servers if zookeeper_waits(port, host)]
    silent = [name for name in (f"{host}:{port}" for host, port in servers) if name not in (*serving, *waiting)]
    if waiting and not serving:
        found = f"{', '.join(waiting)} runs, but serves nobody: it does not see the greater part of its ensemble"
        return failed(found, "start the ensemble's other servers, and let them reach each other")
    if not serving:
        return failed(
            f"what listens at {', '.join(silent)} does not answer as Zookeeper does",
            "see whether it hangs, or correct the address; a server must allow srvr (4lw.commands.whitelist)",
        )
    if waiting or silent:
        others = ", ".join([*waiting, *silent])
        return warning(f"{', '.join(serving)} serves, {others} does not", "look at the log of those that do not")
    return ok(f"{', '.join(serving)} serves")


def zookeeper_release(settings: Settings) -> Finding:
    """Compare the servers' version with the one that the tests run."""
    servers = [_host_and_port(each) for each in zookeeper_servers(settings.zookeeper).split(",")]
    found = [version for host, port in servers if (version := zookeeper_version(port, host))]
    return _version_finding("Zookeeper", min(found, default=""), _pinned("zookeeper"))


def zookeeper_session(settings: Settings) -> Finding:
    """Open a session as a run would."""
    with _session(settings) as session:
        return ok(f"a session with {session.address} is kept for {session.session_seconds:g} s of silence")


def zookeeper_clock(settings: Settings) -> Finding:
    """Compare this machine's clock with Zookeeper's, by the time of a node that is made for it and removed."""
    with _session(settings) as session:
        try:
            return clock_finding(session.seconds_ahead(), "Zookeeper's")
        except NotAuthorisedError:
            found = "Zookeeper lets no node be made at its root, by which its clock could be read"
            return skipped(found, f"give the secret that it was started with ({SECRET_FILE})")


def _session(settings: Settings) -> ZooKeeperSession:
    """Return a session with the servers, such as a run has; a secret that cannot be read has a finding of its own."""
    secret = None
    with contextlib.suppress(ConfError):
        secret = read_secret(settings.environ)
    servers = zookeeper_servers(settings.zookeeper)
    return ZooKeeperSession(servers, secret=secret, deadline_seconds=_ANSWER_SECONDS)


def _host_and_port(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)


def _pinned(server: str) -> str:
    return pinned_jars(server)[0].coordinates.rpartition(":")[2]


def _version_finding(what: str, found: str, tested: str) -> Finding:
    """Compare a server's version with that which is tested: another third number is no difference."""
    if not found:
        return warning(f"{what} does not say which version it is", f"see that it is {tested} or near it")
    if found.split(".")[:2] != tested.split(".")[:2]:
        return warning(f"{what} {found}; the tests run {tested}", f"take {what} {tested}, as dl4j services up does")
    return ok(f"{what} {found}")


# -- all ---------------------------------------------------------------------------------------------------------------


def _beyond(settings: Settings) -> bool:
    return bool(beyond_loopback(settings.tracker) or beyond_loopback(settings.zookeeper))


def _with_tracker(settings: Settings) -> bool:
    return bool(settings.tracker)


def _with_zookeeper(settings: Settings) -> bool:
    return bool(settings.zookeeper)


def checks() -> tuple[Check, ...]:
    """Return the checks of what a cluster needs; those of a server that is named need it to be reached at all."""
    area = "Cluster"
    return (
        Check(name="Java", area=area, look=java, is_waiting=True, seconds=60.0),
        Check(name="jars", area=area, look=jars, is_waiting=True, seconds=30.0),
        Check(name="local services", area=area, look=local_services, is_waiting=True, seconds=30.0),
        Check(name="secret", area=area, look=secret, is_needed=_beyond),
        *_of_server(
            _with_tracker,
            ("tracker address", tracker_address, ""),
            ("tracker", tracker, "tracker address"),
            ("tracker version", tracker_version, "tracker"),
        ),
        *_of_server(
            _with_zookeeper,
            ("Zookeeper address", zookeeper_address, ""),
            ("Zookeeper", zookeeper, "Zookeeper address"),
            ("Zookeeper version", zookeeper_release, "Zookeeper"),
            ("Zookeeper session", zookeeper_session, "Zookeeper"),
            ("Zookeeper clock", zookeeper_clock, "Zookeeper session"),
        ),
    )


def _of_server(
    is_named: Callable[[Settings], bool], *each: tuple[str, Callable[[Settings], Finding], str]
) -> Iterator[Check]:
    """Yield checks of a server: name, function, and the check without which there is nothing to look at."""
    for name, look, need in each:
        needs = (need,) if need else ()
        yield Check(
            name=name, area="Cluster", look=look, is_needed=is_named, is_waiting=True, seconds=30.0, needs=needs
        )
