"""What Zookeeper and the checkpoint folder say of a run, for the steps of ``protocol.leading`` (layer 5)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.errors import ConfError, Dl4jError, NotAuthorisedError, TrackerError, VersionError
from dl4jlegacy.scaleout import protocol, saved_run
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.zookeeper import (
    MasterElection,
    ZooKeeperConfigurationRegister,
    ZookeeperConfigurationRetriever,
    ZooKeeperSession,
    find_end,
    remove_end,
    write_end,
)
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system.decoding import decodable

__all__ = ["KeptEndFile", "NothingKept", "ZookeeperRegister", "master_in_words", "place_of"]

logger = logging.getLogger(__name__)

_END = "end.json"
"""File in the checkpoint folder that records how the run has ended."""


def master_in_words(info: dict[str, Any]) -> str:
    """Return host and pid of an elected process, in words, from its election record."""
    return f"on {info.get('host')}, pid {info.get('pid')}"


class ZookeeperRegister:
    """The Zookeeper records of a run; see ``protocol.Register``.

    Args:
        conf: the run's.
        address: where the run is registered.
        session: the Zookeeper session.
        election: the election in which this process is a candidate; None: it is none.
        register: writes the Conf; None: this process does not write it.
    """

    def __init__(
        self,
        conf: Conf,
        address: ClusterAddress,
        session: ZooKeeperSession,
        election: MasterElection | None = None,
        register: ZooKeeperConfigurationRegister | None = None,
    ) -> None:
        host, port = address.split()
        self._conf, self._session, self._election, self._register = conf, session, election, register
        self._asked = election or MasterElection(session, group=address.id)
        self._retriever = ZookeeperConfigurationRetriever(host, port, address.id, session=session)
        self.process = self._asked.nonce

    def fence(self) -> str | None:
        """See ``protocol.Register``."""
        if self._election is None or not self._election.is_leader:
            return None
        return self._election.fence

    def stands(self, fence: str) -> bool:
        """See ``protocol.Register``."""
        return self._ask(lambda: self._session.exists(fence)) is not False

    def holder(self) -> protocol.Holder | None:
        """See ``protocol.Register``."""
        found = self._ask(self._asked.leader)
        if found is None:
            return None
        info = found.info
        return protocol.Holder(found.nonce, str(info.get("run")), master_in_words(info), info.get("standby") is True)

    def registered(self) -> protocol.Registered:
        """See ``protocol.Register``."""
        there = self._ask(lambda: self._retriever.find() or "nothing")
        if there is None:
            return protocol.Registered("unknown")
        if not isinstance(there, Conf):
            return protocol.Registered("nothing")
        return protocol.Registered("this" if there.incarnation == self._conf.incarnation else "another", there.run)

    def restore(self, fence: str) -> None:
        """See ``protocol.Register``."""
        assert self._register is not None
        try:
            if self._register.restore(fence):
                run = self._conf.run
                logger.warning("the Conf of run %s was gone or damaged in Zookeeper; it is there again", run)
        except (TrackerError, NotAuthorisedError) as exc:
            logger.debug("the Conf of run %s cannot be put back now: %s", self._conf.run, exc)

    def end(self) -> protocol.End | Literal["unknown"] | None:
        """See ``protocol.Register``."""
        found = self._ask(lambda: find_end(self._session, self._conf.incarnation) or "nothing")
        return "unknown" if found is None else None if found == "nothing" else found

    def write_end(self, status: protocol.End) -> bool:
        """See ``protocol.Register``; a process that is no candidate writes in any case."""
        fence: str | None = ""
        if self._election is not None:
            self._election.wait(self._session.session_seconds)  # it may have lost its session just now
            fence = self.fence()
        if fence is None:
            holder = self.holder()
            return holder is None or holder.process == self.process
        try:
            return write_end(self._session, self._conf.incarnation, status, fence=fence)
        except (TrackerError, NotAuthorisedError) as exc:
            logger.debug("the end of run %s cannot be written into Zookeeper: %s", self._conf.run, exc)
            return True

    def withdraw_end(self) -> None:
        """See ``protocol.Register``."""
        remove_end(self._session, self._conf.incarnation)

    def step_back(self, seconds: float) -> None:
        """See ``protocol.Register``."""
        if self._election is not None:
            self._election.step_back(seconds)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return Zookeeper's answer; None if there is no answer, no readable one, or no connection now."""
        try:
            return question() if self._session.connected else None
        except (TrackerError, NotAuthorisedError, ConfError, VersionError) as exc:
            logger.debug("what Zookeeper has of run %s cannot be told: %s", self._conf.run, exc)
            return None


class _Ended(msgspec.Struct, frozen=True):
    """The incarnation of an ended run, and how the run has ended."""

    incarnation: str
    status: protocol.End


class KeptEndFile:
    """The record of a run's end in its checkpoint folder; see ``protocol.KeptEnd``.

    A folder that is missing here, or belongs to another run, is left alone.
    """

    def __init__(self, conf: Conf) -> None:
        self._conf = conf

    def read(self) -> protocol.End | None:
        """See ``protocol.KeptEnd``."""
        if not self._conf.checkpoint_dir:
            return None
        try:
            content = storage.open_folder(self._conf.checkpoint_dir).read(_END)
            found = msgspec.json.decode(content, type=decodable(_Ended))
        except (OSError, Dl4jError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            logger.debug("no end of run %s is kept: %s", self._conf.run, exc)
            return None
        return found.status if found.incarnation == self._conf.incarnation else None

    def write(self, status: protocol.End) -> None:
        """See ``protocol.KeptEnd``."""
        if self._is_here():
            content = msgspec.json.encode(_Ended(self._conf.incarnation, status))
            self._try("written", lambda: storage.open_folder(self._conf.checkpoint_dir).write(_END, content))

    def remove(self) -> None:
        """See ``protocol.KeptEnd``."""
        if self.read() is not None:
            self._try("removed", lambda: storage.open_folder(self._conf.checkpoint_dir).delete(_END))

    def _is_here(self) -> bool:
        folder = self._conf.checkpoint_dir
        try:
            return bool(folder) and saved_run.open_checkpoints(folder).kept("incarnation") == self._conf.incarnation
        except Dl4jError as exc:
            logger.debug("%s: %s", folder, exc)
            return False

    def _try(self, what: str, change: Callable[[], None]) -> None:
        try:
            change()
        except (OSError, Dl4jError) as exc:
            logger.debug("the end of run %s cannot be %s in its folder: %s", self._conf.run, what, exc)


class NothingKept:
    """No record of the end, for a process that does not read the run's folder; see ``protocol.KeptEnd``."""

    def read(self) -> None:
        """See ``protocol.KeptEnd``."""

    def write(self, status: protocol.End) -> None:
        """See ``protocol.KeptEnd``."""

    def remove(self) -> None:
        """See ``protocol.KeptEnd``."""


def _keep_no_name() -> protocol.Steps[None]:
    """Restore no name: this process does not lead."""
    yield from ()


def place_of(
    conf: Conf,
    address: ClusterAddress,
    tracker: StateTracker,
    register: protocol.Register,
    *,
    kept: protocol.KeptEnd | None = None,
    keep_name: Callable[[], protocol.Steps[object]] = _keep_no_name,
) -> protocol.RunPlace:
    """Return the place of a run, for the steps of ``protocol.leading``; ``kept`` None: its checkpoint folder."""
    store = tracker.store
    return protocol.RunPlace(
        run=conf.run,
        incarnation=conf.incarnation,
        store=store,
        names=store.sibling(protocol.NAMES) if isinstance(store, HazelcastStore) else store,
        register=register,
        kept=KeptEndFile(conf) if kept is None else kept,
        keep_name=keep_name,
        servers=f"the tracker at {conf.state_tracker_connection_string} and Zookeeper at {address.zookeeper}",
    )
