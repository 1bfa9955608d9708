"""Lines at the bottom of a terminal that are updated in place: a label and a value each, and a bar."""

from __future__ import annotations

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

__all__ = ["LABEL_WIDTH", "Panel", "bar", "row"]

LABEL_WIDTH = 10
_DONE, _HALF, _LEFT = "━", "╸", "─"


class Panel(RenderHook):
    """Lines below the console's output that are redrawn in place.

    Unlike rich's ``Live`` it has no thread, pads no line, and finds its place again after the terminal was made
    narrower and has wrapped its lines.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[Text] = []
        self._drawn: list[int] = []

    def start(self, lines: list[Text]) -> None:
        """Show the first lines."""
        self._console.show_cursor(False)
        self._console.push_render_hook(self)
        self.show(lines)

    def show(self, lines: list[Text]) -> None:
        """Replace the shown lines by ``lines``."""
        self._lines = lines
        self._console.print(Control())

    def stop(self, *, leave: bool = False) -> None:
        """Remove the lines, or ``leave`` them visible."""
        if not leave:
            self.show([])
        self._console.pop_render_hook()
        self._console.show_cursor(True)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Put the lines below any printed output; rich calls this for every print."""
        width = self._console.width
        rows = sum(max(1, -(-drawn // width)) for drawn in self._drawn)
        lines = [line.copy() for line in self._lines]
        for line in lines:
            line.truncate(width - 1)
        self._drawn = [line.cell_len for line in lines]
        erase = [(ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)] * rows
        return [Control(ControlType.CARRIAGE_RETURN, *erase), *renderables, *lines]


def row(label: str, value: Text) -> Text:
    """Return a line of a label and a value, aligned in all lines."""
    return Text.assemble((label.ljust(LABEL_WIDTH + 2), "dim"), value, no_wrap=True, overflow="crop")


def bar(done: float, width: int) -> Text:
    """Return a bar for the fraction ``done`` (0 to 1) with its percentage, ``width`` columns wide."""
    cells = max(4, width - 6)
    halves = int(2 * cells * done)
    full = _DONE * (halves // 2) + _HALF * (halves % 2)
    return Text.assemble((full, "green"), (_LEFT * (cells - len(full)), "dim"), f"  {done:4.0%}")
