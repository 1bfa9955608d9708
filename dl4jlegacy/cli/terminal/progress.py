"""The live display of a run: a few fixed lines on a terminal, otherwise one plain line every few seconds.

Always on stderr. ``tick`` draws the display on the thread that waits for the run, so that it costs the workers nothing.
Lines keep their places and only values change; the display is removed at the end.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.text import Text

from dl4jlegacy.cli.terminal.figures import figure_lines, finding_lines
from dl4jlegacy.cli.terminal.next_steps import RunLocation, after_training
from dl4jlegacy.cli.terminal.panel import LABEL_WIDTH, Panel, bar, row
from dl4jlegacy.cli.terminal.run_table import run_table
from dl4jlegacy.errors import DeadlineError, DeviceMemoryError, JobError, NotEnoughWorkersError, NotFiniteError, counted
from dl4jlegacy.kernels.compilation import kernels_being_compiled
from dl4jlegacy.scaleout.links.liveness.quorum import Waiting
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.monitoring.run_state import GOES_ON
from dl4jlegacy.scaleout.monitoring.speed import Speed
from dl4jlegacy.scaleout.persistence.journal import JournalEntry
from dl4jlegacy.scaleout.workers.device_choice import use_device
from dl4jlegacy.system.console import emit, error_fields, open_console
from dl4jlegacy.system.exits import Stopped
from dl4jlegacy.system.strict_json import to_json
from dl4jlegacy.training.progress import compiling, duration, phase, score, status_line

if TYPE_CHECKING:
    from dl4jlegacy.training.prepare import Report

__all__ = ["ProgressDisplay", "show_training", "use_device_and_report"]

_LINE_SECONDS = 5.0
_HEAD_LINES = 7  # bar, round, examples, speed, score, time, and the terminal's own last line
_MAX_WIDTH = 78
_SHOWN_ELSEWHERE = (
    "master_leads",
    "run_began",
    "run_ended",
    "checkpoint_failed",
    "checkpoints_back",
)  # as log, or by how the run ends


class ProgressDisplay:
    """Shows a run's status when ticked. Used by one thread; as a context manager it leaves the terminal clean.

    Args:
        console: on stderr.
        json_lines: lines of JSON instead of text.
        clock: seconds, for tests.
        worker_command: the command that starts a worker, shown while the run waits for workers; "": not shown.
    """

    def __init__(
        self,
        console: Console,
        *,
        json_lines: bool = False,
        clock: Callable[[], float] = time.monotonic,
        worker_command: str = "",
    ) -> None:
        self._console, self._json, self._clock = console, json_lines, clock
        self._worker_command = worker_command
        self._panel: Panel | None = None
        self._next_line = 0.0
        self._speed = Speed()
        self._traces: set[str] = set()
        self._told: set[int] = set()
        self.last: RunStatus | None = None

    def __enter__(self) -> Self:
        self._next_line = self._clock() + _LINE_SECONDS  # short runs stay quiet
        if self._console.is_terminal and not self._console.is_dumb_terminal and not self._json:
            self._panel = Panel(self._console)
            self._panel.start([Text("starting (kernels are compiled on their first use)")])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._panel is not None:
            self._panel.stop()

    def say(self, text: str, fields: Mapping[str, object]) -> None:
        """Print a line of text above the display, or these fields as JSON."""
        self._console.print(Text(to_json(fields) if self._json else text), soft_wrap=True)

    def begin(self, opening: Sequence[str], warning: str) -> None:
        """Print lines about the run that begins, and a warning if it is not empty."""
        for line in opening:
            self.announce("opening", line)
        if warning:
            self.announce("warning", warning)

    def announce(self, event: str, text: str, **fields: object) -> None:
        """Print a line about a process that waits for something; it stays visible while nothing else is shown."""
        self.say(text, {"event": event, **fields, "text": text})
        if self._panel is not None:
            self._panel.show([])

    def tick(self, status: RunStatus) -> None:
        """Show a new status if one is due, and new journal entries at once."""
        self.last = status
        for worker, text, device in status.devices:
            if worker not in self._told:  # a worker stays on its device
                self._told.add(worker)
                fields = {"event": "device", "worker": str(worker), **device.fields(), "text": text}
                self.say(f"worker {worker}: {text}", fields)
        for entry in status.news:
            self._tell(entry)
        if status.head is not None:
            self._speed.add(status.seconds, status.head.examples)
        speed = self._speed.now
        if self._panel is not None:
            self._panel.show(_lines(status, speed, self._console, self._worker_command))
        elif self._clock() >= self._next_line:
            self._next_line = self._clock() + _LINE_SECONDS
            self.say(status_line(status, speed, self._worker_command), _event(status, speed))

    def _tell(self, entry: JournalEntry) -> None:
        """Print an entry of the run's journal, with its traceback unless an equal one was printed before."""
        if entry.event in _SHOWN_ELSEWHERE and not self._json:
            return
        fields = {"event": entry.event, "time": entry.time, "source": entry.source, **entry.fields}
        self.say(entry.line(), fields)
        trace = str(entry.fields.get("traceback") or "").rstrip()
        if trace and trace not in self._traces and not self._json:
            self._traces.add(trace)
            self._console.print(Text(trace), soft_wrap=True)


def _lines(status: RunStatus, speed: float, console: Console, worker_command: str = "") -> list[Text]:
    """Return the lines of the display, each a label and a value, at most as many as the terminal has."""
    plan, head = status.plan, status.head
    round_, examples = (0, 0) if head is None else (head.round, head.examples)
    left = f", {duration((plan.total_examples - examples) / speed)} left" if speed > 0 else ""
    hint = [("start one", worker_command)] if status.waiting is not None and worker_command else []
    troubled = status.state.state in ("degraded", "stalled")
    workers = _shown(status, console.height - _HEAD_LINES - len(hint) - troubled)
    rows = (
        ("round", f"{round_:,} of {plan.total_rounds:,}"),
        ("examples", f"{examples:,} of {plan.total_examples:,}"),
        ("speed", f"{speed:,.0f} examples/s" if speed > 0 and status.state.state in GOES_ON else "-"),
        ("score", score(status)),
        ("time", f"{duration(status.seconds)}{left}{compiling()}"),
        *hint,
        *workers,
    )
    width = min(_MAX_WIDTH, console.width - 1) - LABEL_WIDTH - 2
    done = bar(round_ / max(1, plan.total_rounds), width)
    first = row(phase(status), done) if status.waiting is None else row("waiting", Text(_countdown(status.waiting)))
    if troubled:
        rows = ((status.state.state, status.state.reason), *rows)
    return [first, *(row(label, Text(value)) for label, value in rows)]


def _countdown(waiting: Waiting) -> str:
    return waiting.text().removeprefix("waiting ")


def _shown(status: RunStatus, lines: int) -> list[tuple[str, str]]:
    """Return a line for every worker; if there are too many, one line for the rest together."""
    workers = sorted(status.workers, key=lambda worker: (len(worker[0]), worker[0]))
    now = 0 if status.head is None else status.head.round
    rows = [(f"worker {name}" if name.isdecimal() else name, _doing(state, now)) for name, state in workers]
    if len(rows) <= lines:
        return rows
    kept = max(0, lines - 1)
    busy = sum(state.startswith("working") for _, state in workers[kept:])
    return [*rows[:kept], (f"{len(workers) - kept} more", f"{busy} of them working")] if lines > 0 else []


def _doing(state: str, now: int) -> str:
    """Return a worker's state and job (``working 12/3``) in words; a job of an earlier round is omitted."""
    verb, _, job = state.partition(" ")
    round_, _, slot = job.partition("/")
    return f"{verb} on job {slot} of round {round_}" if slot and int(round_) >= now else verb


def _event(status: RunStatus, speed: float) -> dict[str, object]:
    head, waiting = status.head, status.waiting
    return {
        "event": "progress",
        **status.state.fields(),
        "phase": phase(status),
        "round": 0 if head is None else head.round,
        "rounds": status.plan.total_rounds,
        "examples": 0 if head is None else head.examples,
        "examples_per_second": round(speed, 1),
        "score": None if head is None else head.score,
        "workers": len(status.workers),
        **({} if waiting is None else {"waiting": dataclasses.asdict(waiting)}),
        **({"compiling": names} if (names := sorted(set(kernels_being_compiled()))) else {}),
    }


@contextmanager
def use_device_and_report(device: str | None) -> Iterator[Any]:
    """Use a device (see ``scaleout.compute.use_device``); print it on stderr if it is a GPU or a CPU fallback."""
    with use_device(device) as (kernels, used):
        if used.is_gpu or used.reason:
            open_console().print(used.text, markup=False, soft_wrap=True)
        yield kernels, used


def show_training(
    start: Callable[[ProgressDisplay], Report],
    location: RunLocation,
    *,
    opening: Sequence[str] = (),
    warning: str = "",
    as_json: bool = False,
    json_lines: bool = False,
) -> None:
    """Run a training with its display, print its report, and suggest next steps.

    Args:
        start: trains, with the display's ``tick``.
        location: where the run can be found again.
        opening: lines that are printed before the training begins, unless ``as_json``, since the report has them.
        warning: printed before the training begins, too; "": none.
        as_json: the report is one JSON object on stdout, and no next steps are suggested.
        json_lines: output on stderr is lines of JSON.
    """
    console = open_console(json_lines=json_lines)
    display = ProgressDisplay(console, json_lines=json_lines, worker_command=location.worker_command())
    try:
        with display:
            display.begin(() if as_json else opening, warning)
            report = start(display)
    except Stopped as stop:
        stop.hint = _where_it_stopped(display.last, location)
        raise
    except NotFiniteError as error:
        if location.checkpoints:
            raise NotFiniteError(f"{error}; the checkpoints in {location.checkpoints} are from before") from error
        raise
    except NotEnoughWorkersError as error:
        raise NotEnoughWorkersError(
            f"{error}: `{location.worker_command()}` starts one, `{location.resume_command()}` resumes the run"
        ) from error
    except (DeadlineError, DeviceMemoryError, JobError) as error:
        if resume := location.resume_command():
            error.args = (f"{error}. Once that is mended, `{resume}` resumes the run",)
        raise
    for warning in report.warnings:
        display.say(warning, {"event": "warning", "message": warning})
    ending = report.error
    fields = report.fields if ending is None else {**report.fields, "error": error_fields(ending)}
    emit(to_json(fields) if as_json else _report_text(report))
    if ending is not None:
        ending.is_printed = True
        raise ending
    for step in [] if as_json else after_training(report, location):
        display.say(step, {"event": "next_step", "message": step})


def _where_it_stopped(status: RunStatus | None, location: RunLocation) -> str:
    if status is None or status.head is None:
        where, has_begun = "", False
    else:
        where, has_begun = f" in round {status.head.round}/{status.plan.total_rounds}", True
    if location.address is not None and not has_begun:
        return " before it began; nothing is left of it"
    if resume := location.resume_command():
        since = "there"
        if location.address is None and status is not None and status.head is not None and status.head.logged:
            since = f"round {status.head.round - status.head.logged} or later, where it was stored last"
        return f"{where}; `{resume}` goes on from {since}"
    return f"{where}; nothing is kept: with --checkpoint-dir a run can go on later"


def _scored(fields: Mapping[str, Any]) -> list[str]:
    """Return the report's lines about the best model and the reason of the run's end, if the run was scored."""
    best, stopped = fields.get("best"), fields.get("stopped_by")
    found = [] if stopped is None else [f"stopped   {stopped}"]
    if best is not None:
        where = f"round {best['round']}, epoch {best['epoch'] + 1}"
        saved = ", and saved" if fields["model_path"] else ""
        found.append(f"best      {best['metric']} {best['score']:.6g} in {where}: that model is evaluated here{saved}")
    return found


def _report_text(report: Report) -> str:
    fields: Mapping[str, Any] = report.fields
    lines = [
        report.evaluation.text().strip("\n"),
        "",
        f"run       {fields['run']}: {fields['model'] or 'network'} on {fields['dataset']}, "
        f"{counted(fields['workers'], 'worker')}, {counted(fields['rounds'], 'round')}",
        f"examples  {fields['examples']:,} in {fields['seconds']:.1f} s ({fields['examples_per_second']:,.0f}/s)",
        f"batches   {fields['batches']:,}, lost {fields['batches_lost']}, duplicated {fields['batches_duplicated']}"
        + (f", set aside {fields['batches_set_aside']}" if fields["batches_set_aside"] else ""),
        *_scored(fields),
        *figure_lines(fields),
        *(
            ["features  scaled by their training values, and so are those of predict; --no-scaling leaves them"]
            if fields.get("scaled_features")
            else []
        ),
        f"params    sha256 {fields['params_sha256']}",
    ]
    if fields["model_path"]:
        lines.append(f"model     {fields['model_path']}")
    if "cluster" in fields:
        lines += ["", *run_table(fields["cluster"]), ""]
    return "\n".join([*lines, *finding_lines(fields)])
