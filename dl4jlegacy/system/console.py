"""The process boundary, shared by the command lines: stdout, stderr, signals, exit statuses (layer 5).

Results go to stdout, everything else to stderr. Every failure ends as one message and one exit status; with
``--format json`` stdout then holds one object with the key ``error``.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from dl4jlegacy.errors import Dl4jError, JobError, OutputError, counted
from dl4jlegacy.system.exits import Stopped
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.system.strict_json import to_json

__all__ = ["EXIT_INTERNAL", "emit", "error_fields", "open_console", "printable", "run_guarded"]

EXIT_INTERNAL = 70
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOHUP = (signal.SIGHUP, signal.SIG_IGN)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MOST_LINES = 1000
"""Maximum log lines of other threads that wait to be printed; further lines are only counted."""
_SHOW_CURSOR = b"\x1b[?25h"
_AT_ONCE = getattr(select, "PIPE_BUF", 512) // 4
"""Characters, of up to four bytes each, that a pipe takes as one piece, without mixing in other writers' output."""


def emit(text: str, end: str = "\n") -> bool:
    """Print a result on stdout at once; return whether the reader is still there: its end (``| head``) is no error.

    ``end`` is printed after the text: "" for a part of a line.

    Raises:
        OutputError: stdout cannot take it, for instance because the disk is full.
    """
    try:
        for piece in _pieces(printable(text) + end):
            sys.stdout.write(piece)
            sys.stdout.flush()
    except BrokenPipeError:
        _to_nowhere(sys.stdout)
        return False
    except OSError as exc:
        _to_nowhere(sys.stdout)
        raise OutputError(f"the results cannot be written to standard output: {exc.strerror or exc}") from exc
    return True


def _pieces(text: str) -> Iterator[str]:
    """Yield ``text`` in pieces of whole lines: with ``2>&1`` a log line must not be printed inside a result."""
    start = 0
    while start < len(text):
        stop = start + _AT_ONCE
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or text.find("\n", stop) + 1 or len(text)
        yield text[start:stop]
        start = stop


def printable(text: str) -> str:
    """Return ``text`` with control characters escaped: a name in a file must not control the terminal."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _to_nowhere(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, so that its last flush does not fail."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


class _Console(Console):
    """A console on stderr; if its reader ends, it prints nothing more, and the work continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _to_nowhere(sys.stderr)


class _Log(logging.Handler):
    """Writes log records as lines of text, or of JSON; records of exceptions include the traceback.

    The main thread waits until its lines are printed. Other threads never wait: their lines go to a queue, which a
    separate thread prints, so that a paused reader (``2>&1 | less``) does not delay any actor.
    """

    def __init__(self, console: Console, *, as_json: bool) -> None:
        super().__init__()
        self._console, self._json = console, as_json
        self._lines: deque[str | int] = deque()  # a number stands for that many omitted lines
        self._own_lock = threading.Lock()
        self._printer: ServiceThread | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit without the lock of ``Handler``, which a blocked thread would keep from all other threads."""
        is_wanted = bool(self.filter(record))
        if is_wanted:
            self.emit(record)
        return is_wanted

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, or queue it."""
        trace = "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else ""
        line = self._line(record.levelname.lower(), record.getMessage(), trace)
        if threading.current_thread() is threading.main_thread():
            self.flush()
            self._print(line)
        else:
            self._hand_over(line)

    def flush(self) -> None:
        """Wait until all lines of other threads are printed."""
        with self._own_lock:
            printer = self._printer
        if printer is not None:
            printer.join()

    def _hand_over(self, line: str) -> None:
        with self._own_lock:
            if len(self._lines) < _MOST_LINES:
                self._lines.append(line)
            elif isinstance(self._lines[-1], int):
                self._lines[-1] += 1
            else:
                self._lines.append(1)
            if self._printer is None:
                printer = ServiceThread(target=self._print_all, name="dl4j-log")
                with contextlib.suppress(RuntimeError):  # no thread can be started: the next line tries again
                    printer.start()
                    self._printer = printer

    def _next(self) -> str | None:
        """Return the next queued line; None if there is none, and then the next line starts another thread."""
        with self._own_lock:
            if not self._lines:
                self._printer = None
                return None
            line = self._lines.popleft()
        if isinstance(line, str):
            return line
        return self._line("warning", f"{counted(line, 'line')} of the log left out: nobody read on", "")

    def _print_all(self) -> None:
        while (line := self._next()) is not None:
            self._print(line)

    def _line(self, level: str, message: str, trace: str) -> str:
        fields = {"event": "log", "level": level, "message": message, **({"traceback": trace} if trace else {})}
        return to_json(fields) if self._json else f"{level}: {message}{trace and chr(10)}{trace}"

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # stderr cannot be written to, or is closed: the work continues
            self._console.print(Text(printable(line)), soft_wrap=True)


def open_console(*, json_lines: bool = False) -> Console:
    """Return the console on stderr, and direct the package's log to it."""
    console = _Console(stderr=True, highlight=False, force_terminal=None if sys.stderr.isatty() else False)
    logger = logging.getLogger("dl4jlegacy")
    for before in logger.handlers:
        before.flush()
    logger.handlers = [_Log(console, as_json=json_lines)]
    logger.setLevel(logging.WARNING)
    return console


def run_guarded(command: Callable[[], Any], *, as_json: bool = False, json_lines: bool = False) -> int:
    """Run a command; return the exit status of the process, after one message on stderr for a failure.

    Args:
        command: the function to run; an integer result is the exit status, other results are ignored.
        as_json: print errors to stdout, too, as one JSON object.
        json_lines: print the message on stderr as a line of JSON.
    """
    _standard_streams()
    open_console(json_lines=json_lines)  # sets up the log
    report = _Reporter(as_json, json_lines)
    with _signals():
        try:
            with _told_log():
                status = command()
        except Stopped as stop:
            message = f"stopped by {stop.name}{stop.hint}"
            return report(f"DL4J-{stop.name}", message, stop.exit_status, line=message)
        except Dl4jError as error:
            if error.is_printed:
                return _Reporter(False, json_lines)(error.code, str(error), error.exit_status)
            if isinstance(error, JobError) and error.worker_traceback:
                _say(error.worker_traceback.rstrip())
            return report(error.code, str(error), error.exit_status)
        except MemoryError as error:
            return report("DL4J-MEMORY", f"this machine's memory is full: {error}; train something smaller", 1)
        except OSError as error:
            if error.filename is None:
                _to_nowhere(sys.stdout)
            what = error.filename or "standard output, or a connection,"
            return report(OutputError.code, f"{what} cannot be used: {error.strerror or error}", 1)
        except Exception:  # noqa: BLE001  # the last resort: an internal bug, with its traceback
            _say(traceback.format_exc().rstrip())
            return report("DL4J-INTERNAL", "this is a bug in dl4jlegacy: the traceback is on stderr", EXIT_INTERNAL)
    return status if isinstance(status, int) and not isinstance(status, bool) else 0


@contextlib.contextmanager
def _told_log() -> Iterator[None]:
    """Wait at the end of the body until the log of its threads is printed, before the final error message."""
    try:
        yield
    finally:
        for handler in logging.getLogger("dl4jlegacy").handlers:
            handler.flush()


def error_fields(error: Dl4jError) -> dict[str, Any]:
    """Return the JSON object of an error, for the key ``error``."""
    return _fields(error.code, str(error), error.exit_status)


def _fields(code: str, message: str, status: int) -> dict[str, Any]:
    return {"code": code, "message": message, "exit": status}


class _Reporter:
    """Reports an error once; returns the exit status."""

    def __init__(self, as_json: bool, json_lines: bool) -> None:
        self._json, self._lines = as_json, json_lines

    def __call__(self, code: str, message: str, status: int, *, line: str = "") -> int:
        body = _fields(code, message, status)
        _say(to_json({"event": "error", **body}) if self._lines else line or f"error [{code}]: {message}")
        if self._json:
            with contextlib.suppress(OutputError):
                emit(to_json({"error": body}))
        return status


def _say(text: str) -> None:
    try:
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
    except OSError:
        _to_nowhere(sys.stderr)


def _standard_streams() -> None:
    """Make stdout and stderr usable: closed ones (``2>&-``) discard output, and all characters can be printed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open as long as the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn the first signal into ``Stopped``; a second one exits at once, until the process has ended.

    SIGHUP counts unless ``nohup`` ignores it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.signal(n, _first) for n in _SIGNALS if (n, signal.getsignal(n)) != _NOHUP}
    atexit.register(_deaf)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is not _second:
            atexit.unregister(_deaf)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _first(number: int, frame: Any) -> None:
    for other in _SIGNALS:
        signal.signal(other, _second)
    raise Stopped(number)


def _deaf() -> None:
    """Ignore signals while the interpreter shuts down; otherwise their default action would kill the process.

    Registered before the command runs, and so called after the command's own exit handlers.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _second(number: int, frame: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), _SHOW_CURSOR + b"\n")
    os._exit(128 + number)
