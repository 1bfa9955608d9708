"""What the commands show of their work: the devices, a training while it runs, and what came of it (layer 5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dl4jlegacy.console import Stopped, emit, open_console
from dl4jlegacy.errors import NotFiniteError

__all__ = ["entered", "show_training"]


@contextmanager
def entered(device: str | None) -> Iterator[Any]:
    """Enter a device to use a model on it, as ``run_devices.entered``, and say which it is where that is worth it."""
    from dl4jlegacy.scaleout import compute

    with compute.entered(device) as (kernels, used):
        if used.is_gpu or used.reason:
            open_console().print(used.text, markup=False, soft_wrap=True)
        yield kernels, used


def show_training(
    start: Callable[[Callable[[Any], None]], Any],
    *,
    as_json: bool = False,
    json_lines: bool = False,
    checkpoints: str = "",
    goes_on: str = "",
) -> None:
    """Run a training with its display, and print its report.

    ``checkpoints`` is the run's folder, ``goes_on`` the command that goes on with it in a cluster; "": none.
    """
    from rich.text import Text

    from dl4jlegacy.cli.progress import ProgressDisplay

    console = open_console(json_lines=json_lines)
    display = ProgressDisplay(console, json_lines=json_lines)
    try:
        with display:
            report = start(display.tick)
    except Stopped as stop:
        stop.hint = _where_it_stopped(display.last, checkpoints, goes_on)
        raise
    except NotFiniteError as error:
        if checkpoints:
            raise NotFiniteError(f"{error}; the checkpoints in {checkpoints} are from before") from error
        raise
    for warning in report.warnings:
        console.print(Text(json.dumps({"event": "warning", "message": warning}) if json_lines else warning))
    emit(json.dumps(report.fields) if as_json else _report_text(report))


def _where_it_stopped(status: Any, checkpoints: str, goes_on: str) -> str:
    has_begun = status is not None and status.head is not None
    where = f" in round {status.head.round}/{status.plan.total_rounds}" if has_begun else ""
    if goes_on:
        return f"{where}; `{goes_on}` goes on from there" if has_begun else " before it began; nothing is left of it"
    if checkpoints:
        return f"{where}; `dl4j resume {checkpoints}` goes on from there"
    return f"{where}; nothing is kept: with --checkpoint-dir a run can go on later"


def _report_text(report: Any) -> str:
    fields: Mapping[str, Any] = report.fields
    lines = [
        report.evaluation.text().strip("\n"),
        "",
        f"run       {fields['run']}: {fields['model'] or 'network'} on {fields['dataset']}, "
        f"{fields['workers']} workers, {fields['rounds']:,} rounds",
        f"examples  {fields['examples']:,} in {fields['seconds']:.1f} s ({fields['examples_per_second']:,.0f}/s)",
        f"batches   {fields['batches']:,}, lost {fields['batches_lost']}, duplicated {fields['batches_duplicated']}",
        *([] if fields["accuracy"] is None else [f"accuracy  {fields['accuracy']:.4f}, f1 {fields['f1']:.4f}"]),
        f"params    sha256 {fields['params_sha256']}",
    ]
    return "\n".join([*lines, f"model     {fields['model_path']}"] if fields["model_path"] else lines)
