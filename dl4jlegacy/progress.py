"""The live display of a run: a few fixed lines on a terminal, otherwise one plain line every few seconds.

Always on stderr. The display is drawn by ``tick``, on the thread that waits for the run, and by nobody else: it costs
the workers nothing and leaves nothing behind. Its lines keep their places, only values change.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dl4jlegacy.runner import RunStatus

__all__ = ["ProgressDisplay", "status_line"]

_LINE_SECONDS = 5.0
_WINDOW_SECONDS = 10.0
_HEAD_LINES = 6  # bar, round, examples, score, time, and the terminal's own last line
_LABEL_WIDTH = 10
_MAX_WIDTH = 78


class ProgressDisplay:
    """Shows a run's status when ticked. Used from one thread; as a context manager it leaves the terminal clean.

    Args:
        console: on stderr.
        json_lines: lines of JSON instead of text.
        clock: seconds, for tests.
    """

    def __init__(
        self, console: Console, *, json_lines: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._json, self._clock = console, json_lines, clock
        self._live: Live | None = None
        self._next_line = 0.0
        self._speed = _Speed()
        self.last: RunStatus | None = None

    def __enter__(self) -> Self:
        self._next_line = self._clock() + _LINE_SECONDS  # short runs stay quiet
        if self._console.is_terminal and not self._console.is_dumb_terminal and not self._json:
            waiting = Text("starting (kernels are compiled once, on their first use)", no_wrap=True, overflow="crop")
            self._live = Live(waiting, console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self, status: RunStatus) -> None:
        """Show a new status, if it is time to."""
        self.last = status
        if status.head is not None:
            self._speed.add(status.seconds, status.head.examples)
        if self._live is not None:
            self._live.update(_panel(status, self._speed.now, self._console), refresh=True)
        elif self._clock() >= self._next_line:
            self._next_line = self._clock() + _LINE_SECONDS
            speed = self._speed.now
            line = json.dumps(_event(status, speed)) if self._json else status_line(status, speed)
            self._console.print(Text(line), soft_wrap=True)


class _Speed:
    """Examples per second over the last few seconds: phases differ, and compiling kernels does not count."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, seconds: float, examples: int) -> None:
        if not self._seen or seconds > self._seen[-1][0]:
            self._seen.append((seconds, examples))
        while len(self._seen) > 2 and self._seen[1][0] <= seconds - _WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def now(self) -> float:
        if len(self._seen) < 2:
            return 0.0
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start)


def status_line(status: RunStatus, speed: float) -> str:
    """Return where a run is, in one line; ``speed`` in examples per second."""
    plan, head = status.plan, status.head
    if head is None:
        return f"starting ({status.seconds:.0f} s)"
    working = sum(state.startswith("working") for _, state in status.workers)
    return (
        f"{_phase(status)}, round {head.round}/{plan.total_rounds}, {head.examples:,} examples, {speed:,.0f}/s, "
        f"score {_score(status)}, {working}/{len(status.workers)} workers busy, "
        f"ETA {_duration((plan.total_examples - head.examples) / speed) if speed > 0 else '?'}"
    )


def _phase(status: RunStatus) -> str:
    plan, head = status.plan, status.head
    if head is None:
        return "start"
    phase = plan.phases[plan.phase_of(min(head.round, plan.total_rounds - 1))]
    return f"{phase.kind} {phase.layer}" if phase.layer >= 0 else phase.kind


def _score(status: RunStatus) -> str:
    return "-" if status.head is None or status.head.score is None else f"{status.head.score:.4f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _panel(status: RunStatus, speed: float, console: Console) -> RenderableType:
    """Return the display: label and value on every line, none of them wrapped, none beyond the terminal's height."""
    plan, head = status.plan, status.head
    width = min(_MAX_WIDTH, console.width - 1)
    round_, examples = (0, 0) if head is None else (head.round, head.examples)
    left = f", {_duration((plan.total_examples - examples) / speed)} left" if speed > 0 else ""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.width = width
    grid.add_column(width=_LABEL_WIDTH, no_wrap=True, style="dim")
    grid.add_column(no_wrap=True, overflow="crop", ratio=1)
    grid.add_row(_phase(status), _bar(round_ / max(1, plan.total_rounds), width - _LABEL_WIDTH - 2))
    grid.add_row("round", Text(f"{round_:,} of {plan.total_rounds:,}"))
    grid.add_row("examples", Text(f"{examples:,} of {plan.total_examples:,}, {speed:,.0f}/s"))
    grid.add_row("score", Text(_score(status)))
    grid.add_row("time", Text(f"{_duration(status.seconds)}{left}"))
    for name, state in _shown(status.workers, console.height - _HEAD_LINES):
        grid.add_row(name, Text(state))
    return grid


def _bar(done: float, width: int) -> RenderableType:
    percent = Text(f"{done:4.0%}")
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(ProgressBar(total=1.0, completed=done, width=max(4, width - 6)), percent)
    return Group(row)


def _shown(workers: Sequence[tuple[str, str]], lines: int) -> list[tuple[str, str]]:
    """Return a line for every worker; where they are too many, for the first ones and for all others together."""
    rows = [(f"worker {name}", _doing(state)) for name, state in sorted(workers, key=_order)]
    if len(rows) <= lines:
        return rows
    kept = max(0, lines - 1)
    hidden = [state for _, state in sorted(workers, key=_order)[kept:]]
    busy = sum(state.startswith("working") for state in hidden)
    return [*rows[:kept], (f"and {len(hidden)}", f"{busy} of them busy")] if lines > 0 else []


def _order(worker: tuple[str, str]) -> tuple[int, str]:
    return len(worker[0]), worker[0]


def _doing(state: str) -> str:
    """Return a worker's state and job (``working 12/3``) in words."""
    verb, _, job = state.partition(" ")
    round_, _, slot = job.partition("/")
    return f"{verb}, round {round_} slot {slot}" if slot else verb


def _event(status: RunStatus, speed: float) -> dict[str, object]:
    head = status.head
    return {
        "event": "progress",
        "phase": _phase(status),
        "round": 0 if head is None else head.round,
        "rounds": status.plan.total_rounds,
        "examples": 0 if head is None else head.examples,
        "examples_per_second": round(speed, 1),
        "score": None if head is None else head.score,
        "workers": len(status.workers),
    }
