"""Reads a cluster run for the dashboard: Zookeeper names the run, and the run's Conf names its tracker.

Servers that do not answer, a replaced master and another run under the same id are normal events here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from dl4jlegacy.cluster.address import ClusterAddress, closing, find_conf, open_tracker
from dl4jlegacy.cluster.ending import drain_worker, stop_run
from dl4jlegacy.errors import Dl4jError, TrackerClosedError, TrackerError, UsageError
from dl4jlegacy.observing.ratios import RatiosEntry
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.monitoring.run_state import RunFacts, run_state
from dl4jlegacy.scaleout.monitoring.silence import Silence
from dl4jlegacy.scaleout.zookeeper import MasterElection, ZookeeperConfigurationRetriever, ZooKeeperSession
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.ui.evaluation import EvaluationView, evaluate_newest
from dl4jlegacy.ui.run_models import FolderModels, Model, newest_of
from dl4jlegacy.ui.run_sources import OF_CHECKPOINTS, RunFiles, TrackerState, exported
from dl4jlegacy.ui.view import Reading, run_view

__all__ = ["ClusterSource"]

_PATIENCE_SECONDS, _CONNECT_SECONDS, _ZOOKEEPER_SECONDS = 2.0, 5.0, 2.0
"""Seconds to wait for a server before it counts as away: tracker calls, connecting to it, Zookeeper."""


class ClusterSource:
    """Reads the run that is currently registered under an id.

    Args:
        address: where the run is registered.
        members: the grid's members as reached from this machine, and the cluster's name; None: as in the run's Conf.
    """

    def __init__(self, address: ClusterAddress, members: tuple[str, str] | None = None) -> None:
        self._address, self._members = address, members
        self.place = f"Zookeeper at {address.zookeeper}, id {address.id}"
        self.can: tuple[str, ...] = ("stop", "drain")
        self.rest = 20
        self._session: ZooKeeperSession | None = None
        self._tracker: HazelcastStateTracker | None = None
        self._state: TrackerState | None = None
        self._silence = Silence()
        self._files: RunFiles | None = None
        self._models: tuple[str, FolderModels] | None = None
        self._last: Reading | None = None
        self._conf: Conf | None = None
        self._json: dict[str, Any] = {}

    def read(self) -> Reading:
        """See ``Source``.

        Raises:
            TrackerError: a server does not answer, or no run has been registered yet.
            NotAuthorisedError: the run has another secret.
        """
        if self._conf is None:
            self._follow(self._reached(find_conf(self._address)))
        notices: list[str] = []
        is_registered, known = self._look_into_zookeeper(notices)
        files = self._files if self._files is not None and self._files.is_of_run() else None
        self.can = ("stop", "drain", *(() if files is None else OF_CHECKPOINTS))
        try:
            reading = self._opened().read(files, id=self._address.id, **known)
        except TrackerError:
            self._close_tracker()  # the next attempt reconnects, with the errors that a new client gets
            raise
        if is_registered is False and reading.run.status == "not begun":
            reading = self._left_over(files)
            notices.append("the run is not registered any more: it has ended, and its entries in the grid are cleared")
        elif reading.run.status != "not begun":
            self._last = reading
        return dataclasses.replace(reading, notices=(*reading.notices, *notices))

    def stop(self) -> str:
        """See ``Source``. The master and the workers leave; what a dead master has left behind is removed."""
        conf = self._reached(find_conf(self._address))
        with closing(open_tracker(conf, self._address, registered=True)) as tracker:
            return stop_run(conf, self._address, tracker)

    def drain(self, worker: str) -> str:
        """See ``Source``."""
        conf = self._reached(find_conf(self._address))
        with closing(open_tracker(conf, self._address, registered=True)) as tracker:
            return drain_worker(conf, self._address, tracker, worker)

    def save(self, out: str) -> str:
        """See ``Source``."""
        return exported(self._checkpoints(), out)

    def models(self, after: int) -> Sequence[Model]:
        """See ``Source``. If the checkpoints cannot be read, the model comes from the grid, over its own connection."""
        conf = self._conf
        if conf is None:
            return []
        if "save" in self.can:
            return self._kept_models(conf).after(after)
        opened = open_tracker(conf, self._address, registered=True, patience_seconds=_PATIENCE_SECONDS)
        with closing(opened) as tracker:
            return newest_of(tracker, after)

    def ratios(self) -> Sequence[RatiosEntry]:
        """See ``Source``."""
        conf = self._conf
        return [] if conf is None or "save" not in self.can else self._kept_models(conf).ratios()

    def _kept_models(self, conf: Conf) -> FolderModels:
        """Return the models in the run's checkpoint folder; used by the thread that calls ``models`` and ``ratios``."""
        if self._models is None or self._models[0] != conf.incarnation:
            self._models = conf.incarnation, FolderModels(conf.checkpoint_dir, conf.incarnation)
        return self._models[1]

    def evaluate(self) -> EvaluationView:
        """See ``Source``."""
        return evaluate_newest(self._checkpoints())

    def _checkpoints(self) -> str:
        """Return the run's checkpoint folder; raises ``UsageError`` if it cannot be read from here."""
        conf = self._conf
        folder = "" if conf is None else conf.checkpoint_dir
        if "save" not in self.can:
            raise UsageError(
                f"the checkpoints of run {self._json.get('run', '')} cannot be read from here"
                + (f": they are in {folder} on its master's machine" if folder else ": it keeps none")
            )
        return folder

    def close(self) -> None:
        """See ``Source``."""
        self._close_tracker()
        self._close_session()

    # -- which run ----------------------------------------------------------------------------------------------------

    def _reached(self, conf: Conf) -> Conf:
        """Return the Conf with the grid's address as reached from this machine."""
        if self._members is None:
            return conf
        return conf.replace(state_tracker_connection_string=self._members[0], cluster_name=self._members[1])

    def _follow(self, conf: Conf) -> None:
        """Read the run with this Conf from now on."""
        self._close_tracker()
        self._conf, self._last, self._silence = conf, None, Silence()
        self._json = msgspec.json.decode(conf.to_json(), type=dict[str, Any])
        self._files = None
        if conf.checkpoint_dir:
            with contextlib.suppress(Dl4jError):
                self._files = RunFiles(storage.open_folder(conf.checkpoint_dir), conf.incarnation)

    def _look_into_zookeeper(self, notices: list[str]) -> tuple[bool | None, dict[str, Any]]:
        """Return whether the run is registered, and its master and standbys; None and {} if Zookeeper is away."""
        try:
            session, host_and_port = self._opened_session(), self._address.split()
            found = ZookeeperConfigurationRetriever(*host_and_port, self._address.id, session=session).find()
            now = (self._json.get("incarnation"), self._json.get("run"))
            if found is not None and (found.incarnation, found.run) != now:
                self._follow(self._reached(found))
            election = MasterElection(session, group=self._address.id)
            master, standbys = election.holder(), election.standbys()
        except TrackerError as exc:
            self._close_session()
            notices.append(f"Zookeeper does not answer: {exc}")
            return None, {}
        if found is not None and master is None:
            notices.append("the run has no master now; `dl4j resume` goes on with it, and so does a standby")
        return found is not None, {"master": master, "standbys": tuple(standbys)}

    def _left_over(self, files: RunFiles | None) -> Reading:
        """Return the reading of a run that has ended and was cleared up, from its files or from the last reading."""
        if files is not None:
            return files.read()
        last = self._last or Reading(run=run_view(self._json, None, None, id=self._address.id))
        over = run_state(RunFacts(is_over=True, status="" if last.run.status == "not begun" else last.run.status))
        return dataclasses.replace(last, run=msgspec.structs.replace(last.run, **over.fields()))

    # -- connections --------------------------------------------------------------------------------------------------

    def _opened(self) -> TrackerState:
        """Return the reader of the run's tracker; its connection is kept until it fails."""
        if self._tracker is None or self._state is None:
            assert self._conf is not None
            was_reached = self._last is not None
            tracker = open_tracker(
                self._conf,
                self._address,
                registered=True,
                patience_seconds=_PATIENCE_SECONDS,
                deadline_seconds=_CONNECT_SECONDS if was_reached else None,
            )
            self._tracker, self._state = (
                tracker,
                TrackerState(tracker, self._json, silence=self._silence, needed=self._conf.min_workers),
            )
        return self._state

    def _opened_session(self) -> ZooKeeperSession:
        if self._session is None:
            where, secret = self._address.zookeeper, self._address.secret
            self._session = ZooKeeperSession(where, secret=secret, deadline_seconds=_ZOOKEEPER_SECONDS)
        return self._session

    def _close_tracker(self) -> None:
        tracker, self._tracker, self._state = self._tracker, None, None
        if tracker is not None:
            with contextlib.suppress(TrackerClosedError):
                tracker.shutdown()

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
