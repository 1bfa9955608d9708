"""Exceptions that end a thread or the process without being an ``Exception``, distinguished from failures of a part.

A signal or Ctrl-C ends the process; the exception arrives on the main thread. Other such exceptions, for example
``sys.exit`` in a listener or a ``CancelledError`` in a performer, would end a thread silently, and code that waits for
the thread would never continue. So code that handles or reports a part's errors runs the part inside
``exits_as_errors()``; actors and ``ServiceThread`` do so for all their work.
"""

from __future__ import annotations

import signal
import threading
from contextlib import AbstractContextManager
from types import TracebackType

__all__ = ["ExitError", "Stopped", "error_name", "error_text", "exits_as_errors"]


class Stopped(BaseException):
    """A signal asked the process to stop; running code cleans up. ``hint`` says what is saved.

    It is no ``KeyboardInterrupt``, because libraries would turn that into their own errors.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_status = 128 + number
        self.hint = ""


class ExitError(Exception):
    """A part raised an exception that would end its thread silently: the ``__cause__``, which the message names.

    It counts as a failure of that part like any other ``Exception``, and is no error class of this package.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(_told(type(cause).__name__, cause))
        self.name = type(cause).__name__


def exits_as_errors() -> AbstractContextManager[None]:
    """Return a context manager that turns any ``BaseException`` that is no ``Exception`` into an ``ExitError``.

    On the main thread ``KeyboardInterrupt`` and ``Stopped`` pass: there they come from the user, and end the process. A
    generator must not yield inside it, because it could not be closed then.
    """
    return _EXITS_AS_ERRORS


def error_name(error: BaseException) -> str:
    """Return the name of the exception type that was raised originally."""
    return error.name if isinstance(error, ExitError) else type(error).__name__


def error_text(error: BaseException) -> str:
    """Return an error in its usual form: ``ValueError: no licence``, ``SystemExit: no licence``."""
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
