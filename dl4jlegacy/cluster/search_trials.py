"""A search on a cluster: each trial is a run of its own, and the trials share the search's workers (layer 5).

A search has an id like a run; its process is elected under that id, and no ``Conf`` is registered there. Under its id
the search lists the active trials; the run of each trial is registered under an id of its own. Every worker of the
search derives its trial from Zookeeper's lists: nobody assigns trials, so nobody has to withdraw them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Self

from dl4jlegacy.cluster.address import ClusterAddress, closing, find_registered, open_tracker
from dl4jlegacy.cluster.ending import forget
from dl4jlegacy.errors import ConfError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    WorkerRegistration,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
    find_end,
    is_deserted,
    prune_group,
    registered_workers,
    write_end,
)
from dl4jlegacy.scaleout.zookeeper.membership import TRIALS, registered_members
from dl4jlegacy.system.clock import Deadline

__all__ = ["SearchRegistration", "TrialShare", "is_search", "shared_out"]

logger = logging.getLogger(__name__)

_SEARCH, _INCARNATION = "search", "incarnation"
"""Fields that distinguish a search's election record from a run's: the study name, and the key of the recorded end."""
_LOOK_SECONDS = 0.25
_AGAIN_SECONDS = 2.0
"""Seconds after which a trial whose run is over is no longer listed."""


class SearchRegistration:
    """A search led by this process: the id is taken, and the trials are listed while they are active.

    A context manager; once it is entered, it may be used by any thread.

    Args:
        address: where, and under which id.
        study: the search's name, shown to others.

    Raises:
        TrackerError: a run or another search has the id, or Zookeeper cannot be reached.
    """

    def __init__(self, address: ClusterAddress, study: str) -> None:
        self._address, self._study, self._incarnation = address, study, uuid.uuid4().hex[:16]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            session = self._stack.enter_context(self._address.session())
            info = {_SEARCH: self._study, _INCARNATION: self._incarnation}
            election = MasterElection(session, group=self._address.id, info=info).claim()
            self._stack.callback(election.resign)
            self._stack.callback(self._write_end, session)
            conf = find_registered(self._address)
            if conf is not None:
                raise TrackerError(
                    f"the id {self._address.id!r} in Zookeeper at {self._address.zookeeper} is that of run {conf.run}, "
                    f"which has no master; `dl4j resume {conf.run}` goes on with it, `dl4j stop` removes it; or give "
                    "the search another id"
                )
            self._session, self._stack = session, self._stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _write_end(self, session: ZooKeeperSession) -> None:
        with contextlib.suppress(TrackerError):  # its workers then wait a while
            write_end(session, self._incarnation, "done")

    def address_of(self, number: int) -> ClusterAddress:
        """Return the address at which the run of a trial is registered."""
        return dataclasses.replace(self._address, id=f"{self._address.id}-{number}")

    def under_way(self, number: int) -> contextlib.AbstractContextManager[object]:
        """List a trial, whose run is registered, for the search's workers."""
        info = {"id": self.address_of(number).id}
        return WorkerRegistration(self._session, f"{number:06d}", info, group=self._address.id, folder=TRIALS)

    def clear(self, number: int) -> None:
        """Remove what an earlier process or a failed run has left of a trial.

        Raises:
            TrackerError: the trial's run has a master after all.
        """
        address = self.address_of(number)
        conf = find_registered(address)
        if conf is None:
            return
        with closing(open_tracker(conf, address, registered=True)) as tracker:
            forget(conf, address, tracker)


def is_search(address: ClusterAddress, wait_seconds: float) -> bool:
    """Wait for a run or a search under an id; return whether it is a search.

    Raises:
        TrackerError: there is neither in time.
    """
    deadline = Deadline(wait_seconds)
    with address.session() as session:
        registered = ZookeeperConfigurationRetriever(*address.split(), address.id, session=session)
        election = MasterElection(session, group=address.id)
        while True:
            if _SEARCH in (election.holder() or {}):
                return True
            try:
                if registered.find() is not None:
                    return False
            except (ConfError, NotAuthorisedError, VersionError):
                return False  # the worker's own attempt reports the error
            if deadline.passed():
                raise TrackerError(registered.missing(wait_seconds))
            time.sleep(_LOOK_SECONDS)


def shared_out(me: str, workers: Sequence[str], trials: Sequence[str]) -> str | None:
    """Return the trial of a worker: trials are assigned in turn, so worker counts differ by at most one.

    Args:
        me: the worker's name; a worker that is not yet among ``workers`` gets the first worker's trial.
        workers, trials: all names, in any order; every process that sees the same names computes the same assignment.
    """
    if not trials:
        return None
    place = sorted(workers).index(me) if me in workers else 0
    return sorted(trials)[place % len(trials)]


class TrialShare:
    """A worker's share in the trials of a search; a context manager, used by one thread.

    Args:
        address: the search's.
        name: of this process.
    """

    def __init__(self, address: ClusterAddress, name: str) -> None:
        self._address, self._name, self._last = address, name, ""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            self._session = self._stack.enter_context(self._address.session())
            self._stack.callback(self._prune)
            self._stack.enter_context(WorkerRegistration(self._session, self._name, {}, group=self._address.id))
            self._election = MasterElection(self._session, group=self._address.id)
            self._incarnation = ""
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(TrackerError):  # without an answer there is nothing to remove
            self._stack.close()

    def _prune(self) -> None:
        """Remove the remains of a search whose process died, unless other workers wait for it."""
        if is_deserted(self._session, self._address.id):
            prune_group(self._session, self._address.id)

    def next(self, wait_seconds: float) -> ClusterAddress | None:
        """Wait for a trial; return the address of its run, None once the search is over.

        A search is over when its process has recorded the end. A search whose process is gone without that may continue
        within ``wait_seconds``; the same holds for a Zookeeper that is away or has lost everything.
        The trial of the previous call, whose run is usually over, is returned again only if it is still listed a moment
        later.

        Raises:
            TrackerError: Zookeeper has not answered for ``wait_seconds``.
        """
        gone, again = Deadline(wait_seconds), Deadline(_AGAIN_SECONDS)
        while True:
            try:
                trial = self._mine()
                if trial is not None and (trial != self._last or again.passed()):
                    self._last = trial
                    return dataclasses.replace(self._address, id=trial)
                holder = self._election.holder()
                if holder is not None:
                    gone, self._incarnation = Deadline(wait_seconds), str(holder.get(_INCARNATION, ""))
                elif self._incarnation and find_end(self._session, self._incarnation) is not None:
                    return None
                if gone.passed():
                    logger.warning("search %s has had no process for %g s", self._address.id, wait_seconds)
                    return None
            except TrackerError:
                if gone.passed():
                    raise
            time.sleep(_LOOK_SECONDS)

    def _mine(self) -> str | None:
        """Return the id of this worker's present trial."""
        workers = registered_workers(self._session, self._address.id)
        trials = registered_members(self._session, self._address.id, TRIALS)
        chosen = shared_out(self._name, list(workers), list(trials))
        found = None if chosen is None else trials[chosen].get("id")
        return found if isinstance(found, str) and found.startswith(f"{self._address.id}-") else None
