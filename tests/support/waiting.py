"""How long a test's thread asks to wait: a busy machine makes waits longer, but asks for none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

__all__ = ["AskedSeconds"]


class AskedSeconds:
    """The seconds that the thread of the test asks for, in every wait with a limit: for an event, for a thread's end.

    A limit that is kept shows in what is asked for, whether the machine is idle or not.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[float] = []
        self._thread = threading.get_ident()
        self._monkeypatch = monkeypatch
        self.count(threading.Condition, "wait")  # an event's too
        self.count(threading.Thread, "join")

    def count(self, kind: type, method: str) -> None:
        """Count the waits of a method, too, whose first argument are the seconds."""
        wait = getattr(kind, method)

        def counted(waiting: object, timeout: float | None = None) -> Any:
            if timeout is not None and threading.get_ident() == self._thread:
                self.all.append(timeout)
            return wait(waiting, timeout)

        self._monkeypatch.setattr(kind, method, counted)

    @property
    def longest(self) -> float:
        """The longest of them; 0 if there was none."""
        return max(self.all, default=0.0)

    @property
    def sum(self) -> float:
        """All of them together, as if none had ended early."""
        return sum(self.all)
