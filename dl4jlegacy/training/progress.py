"""The progress of a run as one line of text, shown on the terminal while a script trains.

The command line has its own display (``cli.progress``), which uses the same functions.
"""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, TextIO

from dl4jlegacy.errors import counted
from dl4jlegacy.kernels.compilation import kernels_being_compiled
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.monitoring.speed import Speed

__all__ = ["ProgressLine", "compiling", "duration", "phase", "reading", "score", "shown", "status_line"]

_TROUBLE_WIDTH = 160
_NOTEBOOK_SECONDS = 1.0  # minimum time between two updates
_COLUMNS = 80  # for a terminal that does not report its width
_ERASE = "\r\x1b[K"


class ProgressLine:
    """Shows a run's status in one line of a terminal at each ``tick``, and erases the line at the end.

    Used from one thread, as a context manager. Write errors of the terminal are ignored.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._speed = Speed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show("")

    def tick(self, status: RunStatus) -> None:
        """Replace the shown status with a new one."""
        if status.head is not None:
            self._speed.add(status.seconds, status.head.examples)
        self.show(status_line(status, self._speed.now))

    def show(self, line: str) -> None:
        """Replace the shown line, truncated to the width of the terminal."""
        self._show(line[: self._columns() - 1])

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._terminal.fileno()).columns or _COLUMNS
        except (OSError, ValueError):
            return _COLUMNS

    def _show(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._terminal.write(_ERASE + line)
            self._terminal.flush()


@contextlib.contextmanager
def reading() -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the batches and bytes read so far; shows them if stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda batches, nbytes: None
        return
    with ProgressLine(sys.stderr) as line:
        yield lambda batches, nbytes: line.show(
            f"reading data: {counted(batches, 'batch', 'batches')}, {nbytes / 1e6:,.0f} MB"
        )


@contextlib.contextmanager
def shown(tick: Callable[[RunStatus], None] | None, progress: bool) -> Iterator[Callable[[RunStatus], None] | None]:
    """Yield a function to call with the status of a run: ``tick``, or else a function that shows the status on stderr.

    A terminal or a notebook cell gets one line that is updated. Any other stderr, for instance a log, gets a line each
    time the run begins to wait for workers.
    """
    if tick is not None or not progress or sys.stderr is None:
        yield tick
        return
    if not sys.stderr.isatty():
        notebook = _notebook()
        if notebook is None:
            yield _WaitingLines(sys.stderr).tick
            return
        with _NotebookLine(notebook) as cell:
            yield cell.tick
        return
    with ProgressLine(sys.stderr) as line:
        yield line.tick


def _notebook() -> Any:
    """Return IPython's display module if this process is the kernel of a notebook, else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.modules.get("IPython.display") if getattr(shell, "kernel", None) is not None else None


class _NotebookLine:
    """Shows a run's status in one line below a notebook's cell, about once a second, and finally how the run ended.

    Used from one thread, as a context manager. The final line is saved with the notebook.
    """

    def __init__(self, displays: Any) -> None:
        self._displays, self._speed = displays, Speed()
        self._id, self._is_shown = f"dl4j-{uuid.uuid4().hex}", False
        self._next = 0.0
        self._last: RunStatus | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None:
            self._show(_ended(self._last, "" if kind is None else kind.__name__))

    def tick(self, status: RunStatus) -> None:
        """Replace the shown status with a new one."""
        self._last = status
        if status.head is not None:
            self._speed.add(status.seconds, status.head.examples)
        if status.seconds < self._next and status.waiting is None:
            return
        self._next = status.seconds + _NOTEBOOK_SECONDS
        self._show(status_line(status, self._speed.now))

    def _show(self, line: str) -> None:
        show = self._displays.update_display if self._is_shown else self._displays.display
        show({"text/plain": line}, raw=True, display_id=self._id)
        self._is_shown = True


class _WaitingLines:
    """Prints a line each time a run begins to wait for workers."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._is_waiting = stream, False

    def tick(self, status: RunStatus) -> None:
        """Print a line if the run has begun to wait."""
        begins = status.waiting is not None and not self._is_waiting
        self._is_waiting = status.waiting is not None
        if begins and status.waiting is not None:
            with contextlib.suppress(OSError, ValueError):
                print(status.waiting.text(), file=self._stream, flush=True)


def status_line(status: RunStatus, speed: float, worker_command: str = "") -> str:
    """Return a run's progress in one line; ``speed`` is in examples per second, ``worker_command`` starts a worker."""
    plan, head = status.plan, status.head
    if status.waiting is not None:
        return status.waiting.text() + (f"; start one with: {worker_command}" if worker_command else "")
    if head is None:
        return f"starting ({status.seconds:.0f} s){compiling()}"
    state = textwrap.shorten(status.state.text(), _TROUBLE_WIDTH, placeholder=" ...")  # each line repeats it
    troubled = f"{state}; " if status.state.state in ("degraded", "stalled") else ""
    working = sum(state.startswith("working") for _, state in status.workers)
    left = duration((plan.total_examples - head.examples) / speed) if speed > 0 else "?"
    return (
        f"{troubled}{phase(status)}, round {head.round}/{plan.total_rounds}, {counted(head.examples, 'example')}, "
        f"{speed:,.0f}/s, score {score(status)}, ETA {left}, {working}/{counted(len(status.workers), 'worker')} busy"
        f"{compiling()}"
    )


def _ended(status: RunStatus, error: str) -> str:
    """Return how a run ended in one line, from its last status; ``error`` is the class name of its exception, or ""."""
    head = status.head
    if head is None:
        return f"ended by {error}, before it began" if error else "ended"
    where = f"round {head.round}/{status.plan.total_rounds}, {counted(head.examples, 'example')}, score {score(status)}"
    if error or head.status == "failed":
        return f"ended by {error or 'an error'}; last seen in {where}"
    if head.status != "done":
        return f"ended; last seen in {where}"
    return f"done in {duration(status.seconds)}: {where}" + (f"; {head.stopped_by}" if head.stopped_by else "")


def compiling() -> str:
    """Return a note while this process compiles kernels, which happens at their first use on a machine."""
    names = kernels_being_compiled()
    return f", compiling {', '.join(sorted(set(names)))} (once)" if names else ""


def phase(status: RunStatus) -> str:
    """Return the phase of a run; for pretraining with the number of the layer."""
    plan, head = status.plan, status.head
    if head is None:
        return "start"
    now = plan.work_of(min(head.round, plan.total_rounds - 1))
    return f"{now.kind} {now.layer}" if now.layer >= 0 else now.kind


def score(status: RunStatus) -> str:
    """Return the score of a run's model, "-" before there is one."""
    return "-" if status.head is None or status.head.score is None else f"{status.head.score:.4f}"


def duration(seconds: float) -> str:
    """Return seconds in the form ``2:05`` (minutes and seconds), with hours in front if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
