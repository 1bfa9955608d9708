"""The live display of a run: a panel on a terminal, otherwise one plain line every few seconds. Always on stderr."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dl4jlegacy.runner import RunStatus

__all__ = ["ProgressDisplay", "status_line"]

_LINE_SECONDS = 5.0


def status_line(status: RunStatus, speed: float) -> str:
    """Return where a run is, in one line; ``speed`` in examples per second."""
    plan, head = status.plan, status.head
    if head is None:
        return f"starting ({status.seconds:.0f} s)"
    phase = plan.phases[plan.phase_of(min(head.round, plan.total_rounds - 1))]
    what = f"{phase.kind} layer {phase.layer}" if phase.layer >= 0 else phase.kind
    score = "-" if head.score is None else f"{head.score:.4f}"
    return (
        f"{what}, round {head.round}/{plan.total_rounds}, {head.examples:,} examples, {speed:,.0f}/s, "
        f"score {score}, ETA {_eta(plan.total_examples - head.examples, speed)}"
    )


def _eta(left: int, speed: float) -> str:
    if speed <= 0:
        return "?"
    seconds = int(left / speed)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if seconds >= 3600 else f"{seconds} s"


class ProgressDisplay:
    """Shows a run's status when ticked. Used from one thread; as a context manager it leaves the terminal clean."""

    def __init__(self, console: Console, *, json_lines: bool = False) -> None:
        self._console, self._json = console, json_lines
        self._live: Live | None = None
        self._last = 0.0
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._json:
            self._live = Live(console=self._console, refresh_per_second=5, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tick(self, status: RunStatus) -> None:
        """Show a new status, if it is time to."""
        speed = self._speed(status)
        if self._live is not None:
            self._live.update(self._panel(status, speed))
            return
        now = time.monotonic()
        if now - self._last < _LINE_SECONDS:
            return
        if self._last == 0.0:  # the first line comes after an interval, so that short runs stay quiet
            self._last = now
            return
        self._last = now
        if self._json:
            self._line(json.dumps(_event(status, speed)))
        else:
            self._line(status_line(status, speed))

    def _line(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _speed(self, status: RunStatus) -> float:
        """Examples per second since the first model version was seen (compiling kernels does not count)."""
        if status.head is None or status.head.examples == 0:
            return 0.0
        if self._first is None:
            self._first = (status.seconds, status.head.examples)
        seconds = status.seconds - self._first[0]
        return (status.head.examples - self._first[1]) / seconds if seconds > 0 else 0.0

    def _panel(self, status: RunStatus, speed: float) -> Group:
        done = 0 if status.head is None else status.head.round
        workers = Table.grid(padding=(0, 2))
        for name, state in status.workers:
            workers.add_row(Text(f"worker {name}"), Text(state))
        bar = ProgressBar(
            total=max(1, status.plan.total_rounds), completed=done, width=min(60, self._console.width - 2)
        )
        return Group(bar, Text(status_line(status, speed)), workers)


def _event(status: RunStatus, speed: float) -> dict[str, object]:
    head = status.head
    return {
        "event": "progress",
        "round": 0 if head is None else head.round,
        "rounds": status.plan.total_rounds,
        "examples": 0 if head is None else head.examples,
        "examples_per_second": round(speed, 1),
        "score": None if head is None else head.score,
        "workers": len(status.workers),
    }
