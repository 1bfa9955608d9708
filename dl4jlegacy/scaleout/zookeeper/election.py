"""The election of the master among candidates, and a lease that tells a master whether it still is one.

Each candidate writes a numbered ephemeral node, and the lowest number leads, as in the usual recipe. The lease is
specific to this package: leadership lasts, from the start of the last query that confirmed our node as the first, for
as long as the server keeps a session without hearing from it. Therefore a process that was frozen or disconnected knows
by its own clock that it no longer leads, before it is notified. The safety of a run does not depend on this (two
masters only waste work), but a dead master is replaced within seconds.

Legacy: none; a dead master ended the run.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Self

import msgspec

from dl4jlegacy.errors import NotAuthorisedError, TrackerClosedError, TrackerError
from dl4jlegacy.scaleout.zookeeper.membership import ELECTION, Info, Member, ensure_group, group_path, read_member
from dl4jlegacy.scaleout.zookeeper.session import ZooKeeperSession
from dl4jlegacy.system.clock import Deadline

__all__ = ["MasterElection"]

logger = logging.getLogger(__name__)

DIGITS = 10
"""Number of digits that Zookeeper appends to the names of sequence nodes."""
YIELD_SECONDS = 1.0
"""Seconds for which the other candidates let the last master go first after a lost session."""


class MasterElection:
    """A candidate for master. Call ``start`` and wait for ``on_elected``, or call ``wait`` or ``claim``.

    ``on_elected()`` and ``on_lost(reason)`` run on the session's scheduler and must only enqueue. After ``on_lost`` the
    candidate stands again automatically, with the same session or a new one, until it resigns. Reasons: "unconfirmed"
    (no answer from Zookeeper for a session's lifetime), "session" (the session was lost, or the node was removed),
    "resigned". The last master stands again immediately, the others a moment later, so that a healthy master stays the
    master when Zookeeper has lost all sessions.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        *,
        group: str = "master",
        info: Mapping[str, Any] | None = None,
        on_elected: Callable[[], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare the candidate.

        Args:
            session: must outlive the election; when it is lost, leadership is lost.
            group: the id for which the candidates compete.
            info: information about this candidate for other processes; host and pid are added.
            on_elected: called when this candidate becomes the leader.
            on_lost: called when it is no longer the leader.
        """
        self._session = session
        self._group = group
        self._folder = group_path(group, ELECTION)
        self.nonce = uuid.uuid4().hex[:16]
        """The unique name of this candidate: two containers may have the same host name and the same pids."""
        self._member = Member(info={"host": socket.gethostname(), "pid": os.getpid(), **(info or {})}, nonce=self.nonce)
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._leads = False  # as reported to on_elected and on_lost
        self._lease_end = 0.0
        self._node: str | None = None
        self._resigned = False
        self._yields_until = 0.0  # do not stand before this; the last leader does not wait
        self._led_last = True  # at first there is no last leader
        self._fatal: NotAuthorisedError | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.resign()

    @property
    def info(self) -> Info:
        """The information about this candidate that other processes see."""
        return self._member.info

    @property
    def is_leader(self) -> bool:
        """Whether this candidate certainly leads at this moment, by its own clock."""
        return self._leads and not self._session.closed and time.monotonic() < self._lease_end

    @property
    def fence(self) -> str | None:
        """The node by which this candidate leads; None if it does not lead.

        As long as the node exists, no other candidate leads. So a change to Zookeeper that requires this node cannot
        come from a process that was replaced without noticing yet.
        """
        return self._node

    def start(self) -> Self:
        """Stand for election; returns immediately."""
        self._session.add_listener(self._look)
        return self

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until this candidate leads; return whether it leads.

        Raises:
            NotAuthorisedError: the group is protected by another secret.
        """
        with self._changed:
            Deadline(seconds).wait(lambda pause: bool(self._changed.wait_for(self._is_decided, pause)))
        if self._fatal is not None:
            raise self._fatal
        return self.is_leader

    def _is_decided(self) -> bool:
        return self.is_leader or self._fatal is not None or self._resigned

    def claim(self, seconds: float | None = None) -> Self:
        """Start, and become the leader within ``seconds``: for a master that must be the only one.

        Args:
            seconds: default: a little longer than the session of a killed master lives. If there is no leader by then,
                this waits for the same time again.

        Raises:
            TrackerError: another master, named in the message, holds the id; or Zookeeper does not answer.
        """
        seconds = self._session.session_seconds * 1.5 + 1 if seconds is None else seconds
        self.start()
        for _ in range(2):
            if self.wait(seconds):
                return self
            try:
                leader = self.leader()
            except BaseException:
                self.resign()
                raise
            if leader is not None and leader.nonce != self.nonce:
                break  # else the leader has just lost its session and will return, or this candidate leads soon
        self.resign()
        if leader is None or leader.nonce == self.nonce:
            raise TrackerError(
                f"this master did not get the id {self._group!r} in Zookeeper at {self._session.address} within "
                f"{2 * seconds:.0f} s, though no other is known to hold it: the server or this machine is too slow, or "
                "somebody else wrote there; try again, or give it another id"
            )
        who = ", ".join(f"{name} {value}" for name, value in sorted(leader.info.items()))
        raise TrackerError(
            f"another master holds the id {self._group!r} in Zookeeper at {self._session.address} ({who}); "
            "stop that one, start this one as a standby, or give it another id"
        )

    def leader(self) -> Member | None:
        """Return the present master's nonce and information; None if there is no candidate."""
        return next(self._members(), None)

    def holder(self) -> Info | None:
        """Return the information about the present master; None if there is no candidate."""
        leader = self.leader()
        return None if leader is None else leader.info

    def standbys(self) -> list[Info]:
        """Return the information about the standbys, the next master first."""
        return [member.info for member in list(self._members())[1:] if member.info.get("standby")]

    def _members(self) -> Iterator[Member]:
        """Yield the members' records of the candidates, the present master first."""
        for name in sorted(self._session.children(self._folder) or [], key=_number):
            member = read_member(self._session, f"{self._folder}/{name}")
            if member is not None:
                yield member

    def step_back(self, seconds: float) -> None:
        """Give up leadership, and let all other candidates go first for so many seconds; then stand again."""
        self._session.scheduler.run(partial(self._let_go, seconds), self._session.deadline_seconds)

    def _let_go(self, seconds: float) -> None:
        self._yields_until, self._led_last = time.monotonic() + seconds, False
        for name in self._session.children(self._folder) or []:
            if name.startswith(self.nonce):
                self._session.delete(f"{self._folder}/{name}")
        self._lose("stepped back")

    def resign(self) -> None:
        """Give up leadership and candidacy; the next candidate is notified immediately."""
        if self._resigned:
            return
        self._resigned = True
        self._session.remove_listener(self._look)
        if not self._session.closed:
            self._session.scheduler.run(self._withdraw, self._session.deadline_seconds)
        self._lose("resigned")

    def _look(self) -> None:
        """Read which candidate is first and act on it; runs on the scheduler, on every change and 4 times per lease."""
        if self._resigned:
            self._withdraw()  # a node that was still being written when we resigned
            return
        self._session.scheduler.schedule(self._look, self._session.session_seconds / 4)
        if not self._session.connected:
            self._expire()
            return
        asked = time.monotonic()
        try:
            names = self._candidates()
            if not self._names_of_this_session(names):
                self._lose("session")
                self._stand_again(names)
                return
        except TrackerClosedError:
            return
        except NotAuthorisedError as exc:
            self._fail(exc)
            return
        except TrackerError as exc:
            logger.debug("election of %s: %s", self._group, exc)
            self._expire()
            return
        self._decide(names, asked)

    def _decide(self, names: list[str], asked: float) -> None:
        mine = self._names_of_this_session(names)
        self._led_last = names[0] == mine[0]
        self._yields_until = 0.0
        if not self._led_last:
            self._lose("session")
            return
        with self._changed:
            self._lease_end = asked + self._session.session_seconds
            self._node = f"{self._folder}/{mine[0]}"
            elected, self._leads = not self._leads, True
            self._changed.notify_all()
        if elected:
            logger.info("elected master of %s", self._group)
            if self._on_elected is not None:
                self._on_elected()

    def _candidates(self) -> list[str]:
        """Return the candidates' nodes, the leader's first; delete old nodes of this candidate."""
        names = sorted(self._session.children(self._folder, watch=self._again) or [], key=_number)
        ours = [name for name in names if name.startswith(self.nonce)]
        keep = self._names_of_this_session(names)[:1]
        for name in ours:  # from lost sessions, or duplicates of a repeated request
            if name not in keep:
                self._session.delete(f"{self._folder}/{name}")
                names.remove(name)
        return names

    def _names_of_this_session(self, names: list[str]) -> list[str]:
        return [name for name in names if name.startswith(self._prefix())]

    def _prefix(self) -> str:
        return f"{self.nonce}-{self._session.session_id & (2**64 - 1):016x}-"

    def _stand_again(self, others: list[str]) -> None:
        """Become a candidate again; if another one led last, only after a moment, since it may return."""
        now = time.monotonic()
        if not self._led_last and not self._yields_until:
            self._yields_until = now + YIELD_SECONDS
        if now >= self._yields_until:
            self._led_last = not others  # set now: this session may be lost before the next look
            self._stand()
        else:
            self._session.scheduler.schedule(self._look, self._yields_until - now)

    def _stand(self) -> None:
        ensure_group(self._session, self._group, ELECTION)
        data = msgspec.json.encode(self._member, order="sorted")
        path = f"{self._folder}/{self._prefix()}"
        self._session.create(path, data, ephemeral=True, sequence=True, late=self._look)
        self._session.scheduler.schedule(self._look)

    def _again(self) -> None:
        self._session.scheduler.schedule(self._look)

    def _expire(self) -> None:
        """Give up leadership if the lease has expired; otherwise check again when it expires."""
        left = self._lease_end - time.monotonic()
        if self._leads and left > 0:
            self._session.scheduler.schedule(self._look, left)
        else:
            self._lose("unconfirmed")

    def _lose(self, reason: str) -> None:
        with self._changed:
            lost, self._leads = self._leads, False
            self._lease_end = 0.0
            self._node = None
            self._changed.notify_all()
        if lost:
            logger.info("no longer master of %s: %s", self._group, reason)
            if self._on_lost is not None:
                self._on_lost(reason)

    def _fail(self, exc: NotAuthorisedError) -> None:
        with self._changed:
            self._fatal = exc
            self._changed.notify_all()
        self._session.remove_listener(self._look)
        self._lose("session")

    def _withdraw(self) -> None:
        for name in self._session.children(self._folder) or []:
            if name.startswith(self.nonce):
                self._session.delete(f"{self._folder}/{name}")
        self._session.prune(self._folder)


def _number(name: str) -> int:
    digits = name[-DIGITS:]
    return int(digits) if digits.isdecimal() else 10**DIGITS
