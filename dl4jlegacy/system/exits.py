"""What is raised to end a thread or the process, and is no ``Exception``: told apart from a part that has failed.

A signal and Ctrl-C end the process, and come on the main thread. Whatever else there is, such as ``sys.exit`` in a
listener or a ``CancelledError`` in a performer, ends a thread in silence, and what waits for that thread never ends. So
whoever bears an error of a part, or tells it, runs the part inside ``exits_as_errors()``; an actor and a
``ServiceThread`` have it around all that they do.
"""

from __future__ import annotations

import signal
import threading
from contextlib import AbstractContextManager
from types import TracebackType

__all__ = ["ExitError", "Stopped", "error_name", "error_text", "exits_as_errors"]


class Stopped(BaseException):
    """A signal asked the process to leave; what is running cleans up on the way. ``hint`` says what is kept.

    Not a ``KeyboardInterrupt``, which libraries on the way would turn into something of their own.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_status = 128 + number
        self.hint = ""


class ExitError(Exception):
    """A part has raised what would end its thread in silence; that is the ``__cause__``, and the text names it.

    A failure of that part like any other ``Exception``, and none of this package's own errors.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(_told(type(cause).__name__, cause))
        self.name = type(cause).__name__


def exits_as_errors() -> AbstractContextManager[None]:
    """Return what makes an ``ExitError`` of whatever its body raises that is no ``Exception``.

    On the main thread ``KeyboardInterrupt`` and ``Stopped`` pass: there they are of the user, and end the process. No
    generator may yield inside of it, as it would be kept from being closed.
    """
    return _EXITS_AS_ERRORS


def error_name(error: BaseException) -> str:
    """Return the name of an error's type, as it was raised."""
    return error.name if isinstance(error, ExitError) else type(error).__name__


def error_text(error: BaseException) -> str:
    """Return an error in words that people know it by: ``ValueError: no licence``, ``SystemExit: no licence``."""
    return str(error) if isinstance(error, ExitError) else _told(type(error).__name__, error)


def _told(name: str, error: BaseException) -> str:
    text = str(error)
    return f"{name}: {text}" if text else name


class _ExitsAsErrors:
    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):
            return
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and isinstance(error, KeyboardInterrupt | Stopped):
            return
        raise ExitError(error) from error


_EXITS_AS_ERRORS = _ExitsAsErrors()
