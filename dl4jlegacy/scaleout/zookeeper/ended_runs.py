"""The records of runs that have ended, in Zookeeper: ``/dl4jlegacy-ended/<incarnation>``.

They outlive their runs, for processes that were frozen meanwhile. Their number is limited: a process that exceeds the
limit removes the oldest.
"""

from __future__ import annotations

import hashlib
import hmac
import logging

import msgspec

from dl4jlegacy.errors import NotAuthorisedError, TrackerError
from dl4jlegacy.scaleout.protocol import End
from dl4jlegacy.scaleout.zookeeper.permissions import ENDED
from dl4jlegacy.scaleout.zookeeper.session import ZooKeeperSession
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.system.decoding import decodable

__all__ = ["ENDED", "MOST_ENDS", "find_end", "remove_end", "write_end"]

logger = logging.getLogger(__name__)

MOST_ENDS = 256
"""Number of records that are kept; when there are more than twice as many, the oldest are removed."""


class _Ended(msgspec.Struct, frozen=True):
    """How a run has ended; signed if the run has a secret."""

    status: End
    signature: str = ""


def write_end(session: ZooKeeperSession, incarnation: str, status: End, *, fence: str = "") -> bool:
    """Record that a run has ended; return False if the node ``fence`` does not exist ("": no node is required).

    Raises:
        TrackerError: Zookeeper does not answer.
    """
    path = f"{ENDED}/{incarnation}"
    data = msgspec.json.encode(_Ended(status, _sign(session, incarnation, status)), order="sorted")
    deadline = Deadline(session.deadline_seconds)
    while True:
        session.ensure(ENDED)
        if session.replace(path, data, None, fence=fence):
            _prune(session)
            return True
        if fence and not session.exists(fence):
            return False
        if session.exists(path):
            return True
        if deadline.passed():
            raise TrackerError(f"{path} in Zookeeper at {session.address} could not be written: {ENDED} goes again")


def find_end(session: ZooKeeperSession, incarnation: str) -> End | None:
    """Return how a run has ended; None if no process with its secret has recorded an end.

    Raises:
        TrackerError: Zookeeper does not answer.
    """
    path = f"{ENDED}/{incarnation}"
    try:
        node = session.get(path)
    except NotAuthorisedError as exc:
        logger.debug("%s", exc)
        return None
    if node is None:
        return None
    try:
        found = msgspec.json.decode(node.data, type=decodable(_Ended))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        logger.warning("%s in Zookeeper at %s is not a node of dl4jlegacy", path, session.address)
        return None
    if not hmac.compare_digest(found.signature, _sign(session, incarnation, found.status)):
        logger.warning("%s in Zookeeper at %s is not signed with this run's secret", path, session.address)
        return None
    return found.status


def remove_end(session: ZooKeeperSession, incarnation: str) -> None:
    """Remove the record of a run that is continued; raises ``TrackerError`` without an answer."""
    session.delete(f"{ENDED}/{incarnation}")


def _sign(session: ZooKeeperSession, incarnation: str, status: End) -> str:
    if not session.secret:
        return ""
    return hmac.digest(session.derived("end").encode(), f"{incarnation} {status}".encode(), hashlib.sha256).hex()


def _prune(session: ZooKeeperSession) -> None:
    names = session.children(ENDED) or []
    if len(names) <= 2 * MOST_ENDS:
        return
    created = {name: session.created(f"{ENDED}/{name}") or 0 for name in names}
    for name in sorted(names, key=lambda name: created[name])[:-MOST_ENDS]:
        session.delete(f"{ENDED}/{name}")
