"""Who is master: an election among those that want to be, and a lease that says whether one still is (L4).

Each candidate writes a numbered ephemeral node and the lowest number leads, which is the usual recipe. The lease is
ours: leadership counts from the moment at which we last *asked* and were told that our node is first, for as long as
the server keeps a session that it no longer hears of. A process that was frozen, or cut off, therefore knows by its own
clock that it may lead no more, before anybody tells it. The run's safety does not rest on this (two masters only waste
work); that a dead master is replaced within seconds does.

Legacy: none; a dead master ended the run.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec

from dl4jlegacy.errors import NotAuthorisedError, TrackerClosedError, TrackerError
from dl4jlegacy.scaleout.zookeeper.membership import Entry, Info, ensure_group, group_path, read_entry
from dl4jlegacy.scaleout.zookeeper.session import ZooKeeperSession

__all__ = ["MasterElection"]

logger = logging.getLogger(__name__)

DIGITS = 10
"""Zookeeper appends a number of ten digits to the names of sequence nodes."""
YIELD_SECONDS = 1.0
"""For so long those that lost their session let the last master go first."""


class MasterElection:
    """One candidate for master. ``start`` it, then wait for ``on_elected``, or for ``wait`` or ``claim`` to return.

    ``on_elected()`` and ``on_lost(reason)`` run on the session's keeper and must only enqueue. After ``on_lost`` the
    candidate stands again by itself, with the same session or a new one, until it resigns. Reasons: "unconfirmed"
    (Zookeeper did not answer for as long as a session lives), "session" (the session was lost, or the node removed),
    "resigned". Whoever led last stands again at once, others a moment later: when Zookeeper has lost all sessions, a
    master that is well goes on as master.
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
        """Prepare to stand.

        Args:
            session: must outlive the election; its loss is the loss of the office.
            group: the id that the masters compete for.
            info: what others are shown of this candidate; host and pid are added.
            on_elected: called when this candidate begins to lead.
            on_lost: called when it no longer does.
        """
        self._session = session
        self._group = group
        self._folder = group_path(group, "election")
        self._nonce = uuid.uuid4().hex[:16]
        self._entry = Entry(info={"host": socket.gethostname(), "pid": os.getpid(), **(info or {})}, nonce=self._nonce)
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._leads = False  # as far as was told to on_elected and on_lost
        self._lease_end = 0.0
        self._resigned = False
        self._yields_until = 0.0  # stand no earlier; only the one who led last does not wait
        self._led_last = True  # nobody has, at first
        self._fatal: NotAuthorisedError | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.resign()

    @property
    def info(self) -> Info:
        """What this candidate tells of itself."""
        return self._entry.info

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads for certain at this moment, by its own clock."""
        return self._leads and not self._session.closed and time.monotonic() < self._lease_end

    def start(self) -> Self:
        """Stand for election; returns at once."""
        self._session.attend(self._look)
        return self

    def wait(self, seconds: float) -> bool:
        """Wait until this candidate leads, for at most ``seconds``; return whether it does.

        Raises:
            NotAuthorisedError: the group belongs to those who know another secret.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_leader or self._fatal or self._resigned, seconds)
        if self._fatal is not None:
            raise self._fatal
        return self.is_leader

    def claim(self, seconds: float | None = None) -> Self:
        """Start, and lead within ``seconds``: for a master that is to be the only one.

        Args:
            seconds: default is a bit more than a killed predecessor's session lives.

        Raises:
            TrackerError: another master holds the id, the message says which; or Zookeeper does not answer.
        """
        seconds = self._session.session_seconds * 1.5 + 1 if seconds is None else seconds
        if not self.start().wait(seconds):
            try:
                holder = self.holder()
            finally:
                self.resign()
            who = ", ".join(f"{name} {value}" for name, value in sorted(holder.items())) if holder else "unknown"
            raise TrackerError(
                f"another master holds the id {self._group!r} in Zookeeper at {self._session.address} ({who}); "
                "stop that one, start this one as a standby, or give it another id"
            )
        return self

    def holder(self) -> Info | None:
        """Return what the present master tells of itself; None if there is no candidate."""
        for name in sorted(self._session.children(self._folder) or [], key=_number):
            entry = read_entry(self._session, f"{self._folder}/{name}")
            if entry is not None:
                return entry.info
        return None

    def resign(self) -> None:
        """Lead no more and stand no more; the next candidate learns of it at once."""
        if self._resigned:
            return
        self._resigned = True
        self._session.neglect(self._look)
        if not self._session.closed:
            self._session.keeper.perform(self._withdraw, self._session.deadline_seconds)
        self._lose("resigned")

    def _look(self) -> None:
        """See who is first and act on it, on the keeper; runs on every change and four times in a lease."""
        if self._resigned:
            self._withdraw()  # a node whose writing was under way when we resigned
            return
        self._session.keeper.wake(self._look, self._session.session_seconds / 4)
        if not self._session.connected:
            self._expire()
            return
        asked = time.monotonic()
        try:
            names = self._candidates()
            if not self._names_of_this_session(names):
                self._lose("session")
                self._stand_again()
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
            elected, self._leads = not self._leads, True
            self._changed.notify_all()
        if elected:
            logger.info("elected master of %s", self._group)
            if self._on_elected is not None:
                self._on_elected()

    def _candidates(self) -> list[str]:
        """Return the candidates' nodes, the leader's first, without those of ours that are left over."""
        names = sorted(self._session.children(self._folder, watch=self._again) or [], key=_number)
        ours = [name for name in names if name.startswith(self._nonce)]
        keep = self._names_of_this_session(names)[:1]
        for name in ours:  # of lost sessions, and doubles of a request that was sent twice
            if name not in keep:
                self._session.delete(f"{self._folder}/{name}")
                names.remove(name)
        return names

    def _names_of_this_session(self, names: list[str]) -> list[str]:
        return [name for name in names if name.startswith(self._prefix())]

    def _prefix(self) -> str:
        return f"{self._nonce}-{self._session.session_id & (2**64 - 1):016x}-"

    def _stand_again(self) -> None:
        """Stand, after a moment if somebody else led last: he may be back too."""
        now = time.monotonic()
        if not self._led_last and not self._yields_until:
            self._yields_until = now + YIELD_SECONDS
        if now >= self._yields_until:
            self._stand()
        else:
            self._session.keeper.wake(self._look, self._yields_until - now)

    def _stand(self) -> None:
        ensure_group(self._session, self._group, "election")
        data = msgspec.json.encode(self._entry, order="sorted")
        path = f"{self._folder}/{self._prefix()}"
        self._session.create(path, data, ephemeral=True, sequence=True, late=self._look)
        self._session.keeper.wake(self._look)

    def _again(self) -> None:
        self._session.keeper.wake(self._look)

    def _expire(self) -> None:
        """Give up the lead when the lease has ended, and be there when it does."""
        left = self._lease_end - time.monotonic()
        if self._leads and left > 0:
            self._session.keeper.wake(self._look, left)
        else:
            self._lose("unconfirmed")

    def _lose(self, reason: str) -> None:
        with self._changed:
            lost, self._leads = self._leads, False
            self._lease_end = 0.0
            self._changed.notify_all()
        if lost:
            logger.info("no longer master of %s: %s", self._group, reason)
            if self._on_lost is not None:
                self._on_lost(reason)

    def _fail(self, exc: NotAuthorisedError) -> None:
        with self._changed:
            self._fatal = exc
            self._changed.notify_all()
        self._session.neglect(self._look)
        self._lose("session")

    def _withdraw(self) -> None:
        for name in self._session.children(self._folder) or []:
            if name.startswith(self._nonce):
                self._session.delete(f"{self._folder}/{name}")
        self._session.prune(self._folder)


def _number(name: str) -> int:
    digits = name[-DIGITS:]
    return int(digits) if digits.isdecimal() else 10**DIGITS
