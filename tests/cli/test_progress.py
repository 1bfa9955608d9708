"""The progress display: fixed lines on a terminal that leave nothing behind, plain lines elsewhere."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from rich.text import Text

from dl4jlegacy.cli.terminal.progress import ProgressDisplay
from dl4jlegacy.kernels.compilation import report_compilation
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.state.records import Head, Manifest
from dl4jlegacy.training.progress import status_line

PLAN = Plan(
    phases=(Phase(kind="pretrain", layer=0, epochs=1), Phase(kind="finetune", epochs=9)),
    batches=100,
    examples=1000,
    batch_size=10,
    jobs_per_round=4,
)


def status(round_: int | None = None, seconds: float = 0.0, workers: int = 3) -> RunStatus:
    head = None
    if round_ is not None:
        model = Manifest("", 0, 0)
        head = Head(run="r", version=round_, round=round_, model=model, examples=40 * round_, score=0.25)
    states = tuple((str(i), f"working {round_ or 0}/{i}" if i else "idle") for i in range(workers))
    return RunStatus(PLAN, head, seconds, states)


class Screen:
    """As much of a terminal as the display uses: lines, wrapped at its width, and a cursor."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file,
            force_terminal=True,
            color_system=None,
            width=width,
            height=height,
            legacy_windows=False,
            _environ={"TERM": "xterm"},  # whatever the terminal is that the tests run in
        )

    def lines(self) -> list[str]:
        """Return what stands there after everything that was written."""
        rows, row = [""], 0
        text = self.file.getvalue()
        while text:
            if text.startswith("\x1b["):
                end = next(i for i, c in enumerate(text[2:], 2) if c.isalpha())
                code, text = text[2 : end + 1], text[end + 1 :]
                if code == "1A":
                    row -= 1
                elif code == "2K":
                    rows[row] = ""
                else:
                    assert code in ("?25l", "?25h"), code
                continue
            char, text = text[0], text[1:]
            if char == "\n":
                row += 1
                rows += [""] * (row + 1 - len(rows))
            elif char != "\r":
                rows[row] += char
        return [line.rstrip() for line in rows if line.strip()]


def test_the_display_shows_bar_round_speed_score_workers_and_time_left() -> None:
    screen = Screen()
    with ProgressDisplay(screen.console) as display:
        assert screen.lines() == ["starting (kernels are compiled on their first use)"]
        display.tick(status(None, 0.5))
        display.tick(status(25, 1.0))
        display.tick(status(125, 3.0))
        lines = screen.lines()
        assert lines[0].startswith("finetune    ━━━")
        assert lines[0].endswith(" 50%")
        assert lines[1:6] == [
            "round       125 of 250",
            "examples    5,000 of 10,000",
            "speed       2,000 examples/s",
            "score       0.2500",
            "time        0:03, 0:02 left",
        ]
        assert lines[6:] == [
            "worker 0    idle",
            "worker 1    working on job 1 of round 125",
            "worker 2    working on job 2 of round 125",
        ]
    assert screen.lines() == []
    assert screen.file.getvalue().endswith("\x1b[?25h")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (20, 8), (12, 4)])
def test_the_display_fits_any_terminal(width: int, height: int) -> None:
    screen = Screen(width, height)
    with ProgressDisplay(screen.console) as display:
        display.tick(status(125, 3.0, workers=40))
        lines = screen.lines()
        assert max(map(len, lines)) < width
        assert len(lines) < max(height, 7)
        if height == 24:
            assert lines[-1] == "24 more     24 of them working"
    assert screen.lines() == []


def test_a_log_line_goes_above_the_display() -> None:
    screen = Screen()
    with ProgressDisplay(screen.console) as display:
        display.tick(status(10, 1.0))
        screen.console.print(Text("warning: something"))
        assert screen.lines()[0] == "warning: something"
        assert screen.lines()[1].startswith("pretrain 0")
        display.tick(status(11, 1.2))
    assert screen.lines() == ["warning: something"]


def test_a_terminal_made_narrower_is_cleaned_of_what_it_wrapped() -> None:
    screen = Screen(80, 24)
    with ProgressDisplay(screen.console) as display:
        display.tick(status(10, 1.0, workers=1))
        screen.file.truncate(0)
        screen.file.seek(0)
        screen.console.width = 40
        display.tick(status(11, 1.2, workers=1))
        ups = screen.file.getvalue().count("\x1b[1A")
        assert ups == 7 + 1  # seven lines, of which the bar had become two


def test_without_a_terminal_there_is_a_line_every_five_seconds_and_none_for_short_runs() -> None:
    now = [100.0]
    file = io.StringIO()
    console = Console(file=file, force_terminal=False, width=40)
    with ProgressDisplay(console, clock=lambda: now[0]) as display:
        for tenth in range(120):
            now[0] = 100 + tenth / 10
            display.tick(status(tenth, tenth / 10))
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == ("finetune, round 50/250, 2,000 examples, 400/s, score 0.2500, ETA 0:20, 2/3 workers busy")


def test_as_json_every_line_is_an_object() -> None:
    now = [0.0]
    file = io.StringIO()
    with ProgressDisplay(Console(file=file), json_lines=True, clock=lambda: now[0]) as display:
        display.tick(status(1, 1.0))
        now[0] = 6.0
        display.tick(status(3, 2.0))
    event = json.loads(file.getvalue())
    assert event["event"] == "progress"
    assert (event["phase"], event["round"], event["rounds"], event["examples"]) == ("pretrain 0", 3, 250, 120)
    assert (event["score"], event["examples_per_second"], event["workers"]) == (0.25, 80.0, 3)


def test_a_run_that_has_not_begun_says_so() -> None:
    assert status_line(status(None, 3.0), 0.0) == "starting (3 s)"


def test_while_kernels_are_compiled_the_display_says_so() -> None:
    screen, file, now = Screen(width=100), io.StringIO(), [0.0]
    plain = ProgressDisplay(Console(file=file, force_terminal=False), clock=lambda: now[0])
    with (
        plain,
        ProgressDisplay(screen.console) as display,
        report_compilation("conv_forward"),
        report_compilation("pool_forward"),
    ):
        display.tick(status(None, 3.0))
        assert "time        0:03, compiling conv_forward, pool_forward (once)" in screen.lines()
        now[0] = 6.0
        plain.tick(status(None, 6.0))
        assert status_line(status(1, 3.0), 9.0).endswith(", compiling conv_forward, pool_forward (once)")
    assert file.getvalue() == "starting (6 s), compiling conv_forward, pool_forward (once)\n"
    assert status_line(status(None, 3.0), 0.0) == "starting (3 s)"
