"""``ServiceThread``: every thread of the package but those of pools and actors. None of them ends in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from dl4jlegacy.system.exits import exits_as_errors

__all__ = ["ServiceThread"]


class ServiceThread(threading.Thread):
    """A thread beside those that train or lead; by default one that does not keep the process alive.

    Whatever ends it before its time is told with its traceback: ``sys.exit`` too, which Python takes for an orderly
    end of a thread.
    """

    def __init__(
        self, target: Callable[..., None], name: str, args: Iterable[Any] = (), *, daemon: bool = True
    ) -> None:
        super().__init__(target=target, name=name, args=args, daemon=daemon)

    def run(self) -> None:
        """Call the target; ``threading.excepthook`` tells what it raises."""
        with exits_as_errors():
            super().run()
