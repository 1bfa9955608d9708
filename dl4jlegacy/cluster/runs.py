"""Finds the runs in grids and in Zookeeper, active or not, and removes abandoned ones.

A master that is killed leaves its run in the grid, so that somebody can resume it. Once another run gets its id, the
run cannot be resumed any more. Grids are searched by the list of runs that ``RunName`` keeps in each grid.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from dl4jlegacy.cluster.address import MASTER, Access, ClusterAddress, closing, open_tracker, zookeeper_servers
from dl4jlegacy.cluster.ending import forget
from dl4jlegacy.errors import ConfError, Dl4jError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.monitoring.run_state import LEADER, RunFacts, RunState, facts_of, run_state, who_leads
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.tracker import StateTracker, drive
from dl4jlegacy.scaleout.zookeeper import MasterElection, ZookeeperConfigurationRetriever, ZooKeeperSession, prune_group
from dl4jlegacy.scaleout.zookeeper.permissions import ROOT
from dl4jlegacy.system.decoding import decodable

__all__ = ["FoundRun", "Grid", "Standing", "clean", "find_runs"]

_UNREADABLE = (NotAuthorisedError, ConfError, VersionError)
_QUIET_SECONDS = 3.0
"""Seconds within which a live master becomes visible, even if its records were removed."""
_NOTHING_KNOWN = RunFacts()
_CHUNK = re.compile(r"(?P<frame>(?:data|update|model)/.+)/(?P<number>[0-9]{1,9})")

Standing = Literal["live", "resumable", "abandoned", "unknown"]
"""Has a master; has none, and ``dl4j resume`` continues the run; has none and cannot be resumed; is not known."""
Unseen = Literal["", "unreadable", "unreachable", "not asked"]


@dataclass(frozen=True, slots=True)
class Grid:
    """A Hazelcast cluster: its members as ``host:port[,host:port]``, and its name."""

    members: str
    cluster_name: str = "dev"


@dataclass(frozen=True, slots=True)
class FoundRun:
    """One incarnation of a run that was found.

    Attributes:
        run, incarnation: name and incarnation; "" if only an id is known, whose Conf cannot be read.
        grid: where the run's state is kept.
        id, zookeeper: where the run was registered; ``conf`` None: it is no longer registered, or its Conf cannot be
            read.
        facts: the known facts from which the run's state follows.
        unseen: why the grid says nothing of the run. "unreadable": the run has another secret; "unreachable": the grid
            does not answer; "not asked": the grid is beyond loopback, and there is no secret; "": the grid was read.
        version, round, rounds: from the run's head and plan; None: unknown.
        began: in seconds since 1970, by the clock of the first master; None: unknown.
        nbytes: size of the run in the grid, without backups.
        master: the election record (host, pid) of the master or of the process elected last; None: there is none, or it
            is unknown.
        leader: the name of the leading process, as recorded in the grid.
        standing: whether the run has a master, or could get one.
        beat: the newest heartbeat of the run's workers, 0.0 if there is none.
    """

    run: str
    incarnation: str
    grid: Grid = Grid("")
    id: str = ""
    zookeeper: str = ""
    conf: Conf | None = None
    facts: RunFacts = _NOTHING_KNOWN
    unseen: Unseen = ""
    version: int | None = None
    round: int | None = None
    rounds: int | None = None
    began: float | None = None
    nbytes: int = 0
    master: Mapping[str, Any] | None = None
    leader: Any = None
    standing: Standing = "unknown"
    beat: float = 0.0

    def state(self) -> RunState | None:
        """Return the state of the run, as every view shows it; None: unknown."""
        if self.unseen in ("unreadable", "not asked"):
            return None
        state = run_state(self.facts)
        return None if self.standing == "unknown" and state.state not in ("ended", "stalled") else state

    def is_same_as(self, other: FoundRun) -> bool:
        """Return whether both are the same run, without any activity in between."""
        return _what_changes(self) == _what_changes(other)


@dataclass(frozen=True, slots=True)
class _Registry:
    """The contents of one Zookeeper by id: the Conf (None: unreadable), the master's election record, the standbys."""

    confs: Mapping[str, Conf | None]
    masters: Mapping[str, Mapping[str, Any]]
    standbys: Mapping[str, Sequence[Mapping[str, Any]]]

    def id_of(self, run: str, incarnation: str) -> str | None:
        """Return the id under which an incarnation is registered."""
        for id, conf in self.confs.items():
            if conf is not None and (conf.run, conf.incarnation) == (run, incarnation):
                return id
        return None


class _Registries:
    """The registries of all Zookeepers in question; each Zookeeper is asked once.

    Args:
        only: the address of the only Zookeeper that may be asked; "": any.
        access: the rights to ask them.
    """

    def __init__(self, only: str, access: Access) -> None:
        self._only, self._access = only, access
        self._found: dict[str, _Registry | None] = {}

    def of(self, zookeeper: str) -> _Registry | None:
        """Return the registry of a Zookeeper; None if it does not answer or may not be asked."""
        if self._only not in ("", zookeeper) or not zookeeper:
            return None
        if zookeeper not in self._found:
            try:
                self._found[zookeeper] = _registry(_address(zookeeper, self._access))
            except Dl4jError:
                self._found[zookeeper] = None
        return self._found[zookeeper]


def find_runs(zookeeper: str, grids: Sequence[Grid], access: Access) -> list[FoundRun]:
    """Return all runs in Zookeeper, in the grids that the registered Confs name, and in the given grids.

    Args:
        zookeeper: ``host:port[,host:port]``; "": the Zookeeper that each run in a grid names.
        grids: further grids to search.
        access: decides which servers are asked and what can be read.

    Raises:
        TrackerError: ``zookeeper`` or one of ``grids`` cannot be reached.
        NotAuthorisedError: one of them is beyond loopback, and there is no secret.
    """
    zookeeper = zookeeper and zookeeper_servers(zookeeper)
    registries = _Registries(zookeeper, access)
    registered = _registry(_address(zookeeper, access)) if zookeeper else _Registry({}, {}, {})
    named = {_grid_of(conf) for conf in registered.confs.values() if conf is not None}
    found: list[FoundRun] = []
    silent: dict[Grid, Unseen] = {}
    for grid in sorted(named | set(grids), key=lambda grid: (grid.members, grid.cluster_name)):
        try:
            with _open(grid, access) as names:
                found += [_judged(run, registries) for run in _in_grid(names, grid)]
        except (TrackerError, NotAuthorisedError) as exc:
            if grid in grids:
                raise
            silent[grid] = "unreachable" if isinstance(exc, TrackerError) else "not asked"
    there = {(run.run, run.incarnation) for run in found}
    for id, conf in registered.confs.items():
        if conf is None:
            found.append(FoundRun("", "", id=id, zookeeper=zookeeper, unseen="unreadable"))
        elif (conf.run, conf.incarnation) not in there:
            run = FoundRun(
                conf.run, conf.incarnation, _grid_of(conf), id, zookeeper, unseen=silent.get(_grid_of(conf), "")
            )
            found.append(_judged(run, registries))
    return found


def clean(runs: Sequence[FoundRun], access: Access, *, quiet_seconds: float = _QUIET_SECONDS) -> list[FoundRun]:
    """Remove the abandoned runs among ``runs``; return the removed ones.

    Each is checked once more after ``quiet_seconds``, and stays if there was any activity since.

    Raises:
        TrackerError: a grid or a Zookeeper cannot be reached.
    """
    abandoned = [run for run in runs if run.standing == "abandoned"]
    if abandoned:
        time.sleep(quiet_seconds)
    return [run for run in abandoned if _removed(run, access)]


def _what_changes(run: FoundRun) -> tuple[Any, ...]:
    return run.run, run.incarnation, run.standing, run.unseen, run.facts.status, run.version, run.beat


def _grid_of(conf: Conf) -> Grid:
    return Grid(conf.state_tracker_connection_string, conf.cluster_name or "dev")


def _address(zookeeper: str, access: Access, id: str = MASTER) -> ClusterAddress:
    return ClusterAddress(zookeeper, access.secret, id, access.allow_unsigned)


def _registry(address: ClusterAddress) -> _Registry:
    host, port = address.split()
    confs: dict[str, Conf | None] = {}
    masters: dict[str, Mapping[str, Any]] = {}
    standbys: dict[str, Sequence[Mapping[str, Any]]] = {}
    with ZooKeeperSession(address.zookeeper, secret=address.secret) as session:
        for id in ZookeeperConfigurationRetriever(host, port, MASTER, session=session).ids():
            try:
                conf = ZookeeperConfigurationRetriever(host, port, id, session=session).find()
            except _UNREADABLE:
                confs[id] = None
                continue
            if conf is not None:
                confs[id] = conf
        for id in sorted({*confs, *(session.children(ROOT) or [])}):
            try:
                election = MasterElection(session, group=id)
                holder, waiting = election.holder(), election.standbys()
            except (NotAuthorisedError, ConfError):
                continue  # the run under this id has another secret, and is unreadable, too
            if holder is not None:
                masters[id], standbys[id] = holder, waiting
    return _Registry(confs, masters, standbys)


@contextmanager
def _open(grid: Grid, access: Access) -> Iterator[HazelcastStore]:
    """Connect to the entries that all runs in a grid share."""
    access.check("the tracker", grid.members)
    names = HazelcastStore(grid.members, cluster_name=grid.cluster_name, run=protocol.NAMES, secret=access.secret)
    try:
        yield names
    finally:
        names.close()


def _in_grid(names: HazelcastStore, grid: Grid) -> Iterator[FoundRun]:
    for run, incarnation in protocol.listed_runs(names.keys("")):
        yield _looked_at(names, FoundRun(run, incarnation, grid))


def _looked_at(names: HazelcastStore, run: FoundRun) -> FoundRun:
    """Return a run with all facts from its grid."""
    store = names.sibling(run.run, run.incarnation)
    run = replace(run, nbytes=_nbytes(store))
    tracker = StateTracker(store)
    try:
        record = drive(protocol.listing(names, run.run, run.incarnation))
        head, plan, facts, leader = tracker.head(), tracker.get("plan"), facts_of(tracker, 0), tracker.get(LEADER)
        beat = max(tracker.heart_beats().values(), default=0.0)
    except NotAuthorisedError:
        return replace(run, unseen="unreadable")
    if record is not None:
        run = replace(run, id=record.id, zookeeper=record.zookeeper, began=record.began)
    if head is not None:
        run = replace(run, version=head.version, round=head.round)
    return replace(run, facts=facts, leader=leader, rounds=_rounds(plan), beat=beat)


def _rounds(plan: Any) -> int | None:
    try:
        return msgspec.convert(plan, decodable(Plan)).total_rounds
    except msgspec.ValidationError:  # there is no plan, or a malformed one
        return None


def _nbytes(store: HazelcastStore) -> int:
    """Return how many bytes the values of a run take; all chunks of a frame but the last have the same length."""
    last: dict[str, int] = {}
    full, others = 0, []
    for key in store.keys(""):
        chunk = _CHUNK.fullmatch(key)
        if chunk is None:
            others.append(key)
            continue
        full += chunk["frame"] in last
        last[chunk["frame"]] = max(int(chunk["number"]), last.get(chunk["frame"], 0))
    return full * store.value_nbytes + sum(store.lengths([*others, *(f"{frame}/{n}" for frame, n in last.items())]))


def _judged(run: FoundRun, registries: _Registries) -> FoundRun:
    """Return a run with its master, if any, and the standing that follows."""
    if run.unseen == "unreadable":
        return run
    registry = registries.of(run.zookeeper)
    if registry is None:
        return run
    id = registry.id_of(run.run, run.incarnation)
    conf = None if id is None else registry.confs[id]
    master = registry.masters.get(run.id if id is None else id)
    if id is None and master is not None and master.get("run") != run.run:
        master = None  # the master of another run, which has this id by now
    run = replace(run, id=run.id if id is None else id, conf=conf, master=master)
    leads, standbys = who_leads(run.leader, master, () if conf is None else registry.standbys.get(run.id, ()))
    facts = msgspec.structs.replace(
        run.facts,
        has_master=leads is not None,
        standbys=len(standbys),
        needed=0 if conf is None else conf.min_workers,
        is_over=conf is None and master is None,
        unanswered=f"its grid at {run.grid.members} does not answer" if run.unseen == "unreachable" else "",
    )
    return replace(run, facts=facts, standing=_standing(run))


def _standing(run: FoundRun) -> Standing:
    if run.master is not None:
        return "live"
    if run.unseen:
        return "unknown"
    has_begun = bool(run.facts.status)
    goes_on = run.facts.status != "stopped" if has_begun else bool(run.conf and run.conf.checkpoint_dir)
    return "resumable" if run.conf is not None and goes_on else "abandoned"


def _removed(run: FoundRun, access: Access) -> bool:
    """Remove a run if it is still abandoned; return whether it was removed."""
    registries = _Registries(run.zookeeper, access)
    with _open(run.grid, access) as names:
        now = _judged(_looked_at(names, replace(run, facts=_NOTHING_KNOWN, unseen="", conf=None)), registries)
        if not now.is_same_as(run):
            return False
        if now.conf is None:
            _remove_from_grid(names, now)
            if now.zookeeper:
                _prune_group(now, access)
            return True
    address = _address(now.zookeeper, access, now.id)
    with closing(open_tracker(now.conf, address, registered=True)) as tracker:
        try:
            forget(now.conf, address, tracker)
        except TrackerError:
            return False  # the run has just got a master
    return True


def _prune_group(run: FoundRun, access: Access) -> None:
    with (
        contextlib.suppress(NotAuthorisedError),  # by now the id belongs to another run, with another secret
        ZooKeeperSession(run.zookeeper, secret=access.secret) as session,
    ):
        prune_group(session, run.id)


def _remove_from_grid(names: HazelcastStore, run: FoundRun) -> None:
    """Remove the grid entries of one incarnation of a run; another incarnation of the same name stays."""
    drive(protocol.write_end(names, run.run, run.incarnation, "stopped"))
    drive(protocol.release_name(names, run.run, run.incarnation))
    names.sibling(run.run, run.incarnation).destroy()
    drive(protocol.unlist_run(names, run.run, run.incarnation))
