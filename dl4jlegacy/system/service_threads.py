"""``ServiceThread``: the class of all the package's threads except those of pools and actors; none ends silently."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from dl4jlegacy.system.exits import exits_as_errors

__all__ = ["ServiceThread"]


class ServiceThread(threading.Thread):
    """A thread that neither trains nor leads; by default a daemon.

    If the thread ends early, the traceback is reported, also for ``sys.exit``, which Python treats as a normal end of a
    thread.
    """

    def __init__(
        self, target: Callable[..., None], name: str, args: Iterable[Any] = (), *, daemon: bool = True
    ) -> None:
        super().__init__(target=target, name=name, args=args, daemon=daemon)

    def run(self) -> None:
        """Call the target; ``threading.excepthook`` reports its errors."""
        with exits_as_errors():
            super().run()
