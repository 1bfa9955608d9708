"""Checks for a cluster: Java and local servers, the secret, and the named tracker and Zookeeper."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from operator import attrgetter
from pathlib import Path

from dl4jlegacy.cluster.address import Access, zookeeper_servers
from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, of_error, ok, skipped, warning
from dl4jlegacy.doctor.network import clock_finding, reach
from dl4jlegacy.errors import ConfError, Dl4jError, NotAuthorisedError, TrackerError, counted
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession
from dl4jlegacy.services.grid import grid_of
from dl4jlegacy.services.jars import pinned_jars
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

__all__ = ["CHECKS"]

_ANSWER_SECONDS = 8.0


def java(settings: Settings) -> Finding:
    """Look for a Java that can run the servers."""
    try:
        found = find_java()
    except TrackerError as exc:
        if settings.environ.get("JAVA_HOME") or shutil.which("java"):
            return of_error(exc, "warning")
        return skipped("there is none, which only dl4j services needs", of_error(exc).remedy)
    return ok(f"Java {found.version}, {found.path}")


def _services_folder(settings: Settings) -> Path | None:
    folder = settings.environ.get("DL4J_SERVICES")
    return Path(folder) if folder else None


def local_services(settings: Settings) -> Finding:
    """Check whether the local servers that were started here run and answer."""
    try:
        state = Services.status(_services_folder(settings))
    except Dl4jError as exc:
        return of_error(exc, "warning")
    if state is None:
        return skipped("none were started here", "dl4j services up starts a Hazelcast member and a Zookeeper server")
    if state.stopped or state.silent:
        faults = [f"{name} has ended" for name in state.stopped] + [f"{name} does not answer" for name in state.silent]
        remedy = f"see the logs in {state.folder}; after dl4j services down, dl4j services up starts them again"
        return warning("; ".join(faults), remedy)
    servers = [each for each in (state.hazelcast, state.zookeeper) if each]
    return ok(f"{' and '.join(servers)} run and answer, cluster name {state.cluster_name}")


def secret(settings: Settings) -> Finding:
    """Check the run's secret: readable, long enough, private to its owner; never shows it."""
    try:
        found, unsigned = read_secret(settings.environ), allows_unsigned(settings.environ)
        for what, where in (("the tracker", settings.tracker), ("Zookeeper", settings.zookeeper)):
            Access(found, unsigned).check(what, where)
    except (ConfError, NotAuthorisedError) as exc:
        return failed(str(exc).partition(f"; {GET_SECRET}")[0], _how_to_get(settings))
    if found is None:
        if named := _beyond(settings):
            return warning(f"there is none, and {named[0]} is used without ({ALLOW_UNSIGNED})", _how_to_get(settings))
        return skipped("there is none, which servers of this machine's loopback do not ask for")
    if len(found) < LEAST_NBYTES:  # a new one is needed, for all machines
        return warning(f"it has {counted(len(found), 'byte')}: whoever reads what it signs can guess it", MAKE_SECRET)
    file = settings.environ.get(SECRET_FILE)
    if file and os.stat(file).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(f"its file {file} is open to other users", f"type: chmod 600 {file}")
    return ok(f"it has {counted(len(found), 'byte')}" + (f", in {file}" if file else ""))


def _beyond(settings: Settings) -> list[str]:
    """Return the named servers that are not on this machine's loopback."""
    return [*beyond_loopback(settings.tracker), *beyond_loopback(settings.zookeeper)]


def _how_to_get(settings: Settings) -> str:
    """Return the remedy: create a secret, or copy the run's secret if servers of other machines are named."""
    named = _beyond(settings)
    with contextlib.suppress(Dl4jError):
        state = Services.last(_services_folder(settings))
        own = {server.host for server in state.servers} if state is not None and state.ensemble is None else set()
        named = [address for address in named if address.rpartition(":")[0] not in own]
    return GET_SECRET if named else MAKE_SECRET


def tracker(settings: Settings) -> Finding:
    """Connect to the tracker, open the grid as a run does, and compare its version with the tested one."""
    if not settings.tracker:
        return skipped("no tracker was named", "--tracker hazelcast://HOST:PORT names one")
    members, name = grid_of(settings.tracker.rstrip("/"), settings.cluster_name)
    reached = reach(members)
    if reached.status == "failed":
        return reached
    store = HazelcastStore(members, cluster_name=name, run="doctor", secret=None, deadline_seconds=_ANSWER_SECONDS)
    with contextlib.closing(store):
        version = store.member_version()
    found = f"Hazelcast {version} at {members} answers, cluster name {name}"
    return reached if reached.status == "warning" else _compare_version(found, version, "hazelcast")


def zookeeper(settings: Settings) -> Finding:
    """Connect to Zookeeper, check that it serves requests, and compare its version with the tested one."""
    if not settings.zookeeper:
        return skipped("no Zookeeper was named", "--zookeeper HOST:PORT names one")
    servers = zookeeper_servers(settings.zookeeper)
    reached = reach(servers)
    if reached.status == "failed":
        return reached
    places = [(host.strip("[]"), int(port)) for host, _, port in (each.rpartition(":") for each in servers.split(","))]
    serving = [(host, port) for host, port in places if zookeeper_answers(port, host)]
    if serving:
        versions = [version for host, port in serving if (version := zookeeper_version(port, host))]
        oldest = min(versions, default="")
        found = f"Zookeeper {oldest}: {len(serving)} of {counted(len(places), 'server')} serving"
        if len(serving) < len(places):
            return warning(f"{found}, {servers}", "look at the log of those that do not")
        return _compare_version(found, oldest, "zookeeper")
    if any(zookeeper_waits(port, host) for host, port in places):
        found = f"{servers} runs, but serves nobody: it does not see the greater part of its ensemble"
        return failed(found, "start the ensemble's other servers, and let them reach each other")
    remedy = "see whether it hangs, or correct the address; a server must allow srvr (4lw.commands.whitelist)"
    return failed(f"what listens at {servers} does not answer as Zookeeper does", remedy)


def zookeeper_session(settings: Settings) -> Finding:
    """Open a session as a run does, and compare this machine's clock with Zookeeper's.

    The clock is read from a node that is created for this and removed.
    """
    key = None
    with contextlib.suppress(ConfError):  # the check of the secret reports it
        key = read_secret(settings.environ)
    servers = zookeeper_servers(settings.zookeeper)
    with ZooKeeperSession(servers, secret=key, deadline_seconds=_ANSWER_SECONDS) as session:
        try:
            return clock_finding(session.seconds_ahead(), "Zookeeper's")
        except NotAuthorisedError:
            found = "a session was opened; its clock is unknown, since no node can be made at its root"
            return skipped(found, f"give the secret that it was started with ({SECRET_FILE})")


def _compare_version(found: str, version: str, server: str) -> Finding:
    """Compare a server's version with the tested one; a difference in the third number is ignored."""
    tested = pinned_jars(server)[0].coordinates.rpartition(":")[2]
    if version.split(".")[:2] == tested.split(".")[:2]:
        return ok(found)
    return warning(f"{found}; the tests run {tested}", f"take {tested}, as dl4j services up does")


CHECKS = (
    Check("Java", "Cluster", java, seconds=60.0, is_waiting=True),
    Check("local services", "Cluster", local_services, is_waiting=True),
    Check("secret", "Cluster", secret, is_needed=_beyond),
    Check("tracker", "Cluster", tracker, is_needed=attrgetter("tracker"), is_waiting=True),
    Check("Zookeeper", "Cluster", zookeeper, is_needed=attrgetter("zookeeper"), is_waiting=True),
    Check("Zookeeper session", "Cluster", zookeeper_session, is_needed=attrgetter("zookeeper"), need="Zookeeper"),
)
