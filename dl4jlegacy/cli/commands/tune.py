"""``dl4j tune``: a hyperparameter search; each trial is a run of its own."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.declarations import count_option
from dl4jlegacy.cli.options.read import (
    Bind,
    ClusterName,
    Id,
    KeepIndex,
    Label,
    Missing,
    MultiLabel,
    Regression,
    ReportFormat,
    Tracker,
    Zookeeper,
    add_command,
    cluster_address,
    number_option,
    option,
)
from dl4jlegacy.cli.options.values import not_empty, one_of, text_or_json
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.cli.terminal.next_steps import command
from dl4jlegacy.errors import UsageError, counted
from dl4jlegacy.system.console import open_console
from dl4jlegacy.system.exits import Stopped
from dl4jlegacy.system.strict_json import to_json

if TYPE_CHECKING:
    from dl4jlegacy.tuning import FinishedTrial, SearchCluster, SearchResult

__all__ = ["TuneOptions", "add_commands", "tune"]


def _pruner(label: str, text: str) -> str:
    return one_of(label, text, ("median", "none"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of ``dl4j tune``; None: not given."""

    conf: Annotated[Path, typer.Argument(metavar="CONF", help="A Conf file, JSON or YAML, with a section search.")]
    trials: Annotated[
        int, number_option("--trials", help="Trials in the end, those of earlier calls included (20).", least=1)
    ] = 20
    workers: Annotated[
        int | None,
        count_option("--workers", "Worker threads of all trials together (4); of this process, on a cluster.", least=0),
    ] = None
    at_once: Annotated[int, number_option("--at-once", help="Trials that run at the same time (1).", least=1)] = 1
    seed: Annotated[int, number_option("--seed", help="Seed of the search (123).", least=-(2**63))] = 123
    storage: Annotated[
        str | None,
        option(
            "--storage",
            metavar="FILE|URL",
            help="Keep the trials in an SQLite file, or any storage of Optuna's; the same command goes on from there.",
            read=not_empty,
        ),
    ] = None
    study: Annotated[
        str, option("--study", metavar="NAME", help="The search's name in the storage (search).", read=not_empty)
    ] = "search"
    pruner: Annotated[
        str,
        option(
            "--pruner",
            metavar="median|none",
            help="End trials that are worse than the median of those before (median).",
            read=_pruner,
        ),
    ] = "median"
    tracker: Tracker = None
    cluster_name: ClusterName = None
    zookeeper: Zookeeper = None
    id: Id = None
    bind: Bind = "127.0.0.1"
    label: Label = None
    regression: Regression = False
    multi_label: MultiLabel = False
    missing: Missing = None
    keep_index: KeepIndex = False
    out_conf: Annotated[
        str | None,
        option(
            "--out-conf",
            metavar="FILE",
            help="Write the best Conf to this file, JSON or YAML, for dl4j train.",
            read=not_empty,
        ),
    ] = None
    out: Annotated[
        str | None, option("--out", metavar="FILE", help="Save the best model to this file.", read=not_empty)
    ] = None
    plot: Annotated[
        str | None,
        option("--plot", metavar="FILE", help="Write a page of plots of the search, HTML.", read=not_empty),
    ] = None
    format: ReportFormat = "text"
    log_format: Annotated[
        str,
        option("--log-format", metavar="text|json", help="Progress as text, or as lines of JSON.", read=text_or_json),
    ] = "text"


def add_commands(app: typer.Typer) -> None:
    """Add this module's command."""
    add_command(app, tune, TuneOptions)


def tune(options: TuneOptions) -> Answer:
    """Search for good settings: train with those that the section search of CONF allows, and keep the best.

    Each trial is scored on its validation data (a fifth of the training data). Needs Optuna: ./install tune.
    """
    from dl4jlegacy import tuning
    from dl4jlegacy.cli.terminal.progress import ProgressDisplay

    conf, given, space = tuning.read_search(options.conf)
    conf = conf.replace(keep_index=True) if options.keep_index else conf
    chosen = tuning.SearchOptions(
        trials=options.trials,
        workers=options.workers,
        at_once=options.at_once,
        seed=options.seed,
        storage=options.storage or "",
        study=options.study,
        pruner=options.pruner,
        out=options.out or "",
        out_conf=options.out_conf or "",
        plot=options.plot or "",
        label=options.label or "",
        regression=options.regression,
        multi_label=options.multi_label,
        missing=options.missing,
        cluster=_cluster(options),
    )
    as_lines = options.log_format == "json"
    console = open_console(json_lines=as_lines)
    display = ProgressDisplay(console, json_lines=as_lines)
    metric = conf.scoring.metric

    def on_trial(trial: FinishedTrial) -> None:
        display.announce("trial", _line(trial, metric), **_fields(trial))

    try:
        with display:
            found = tuning.tune(conf, space, chosen, given=given, tick=display.tick, on_trial=on_trial)
    except Stopped as stop:
        stop.hint = _how_to_go_on(options)
        raise
    return Answer(_report(found, options), _text(found, options))


def _cluster(options: TuneOptions) -> SearchCluster | None:
    """Return the cluster to train on; None: none is given. Raises ``UsageError``."""
    from dl4jlegacy import tuning

    if not options.tracker:
        if options.zookeeper:
            raise UsageError(
                f"--tracker is missing: a search in Zookeeper, here at {options.zookeeper}, has its state in a "
                "grid; give --tracker hazelcast://host:port, or leave --zookeeper out to search here alone"
            )
        return None
    if not options.zookeeper:
        raise UsageError(
            f"--zookeeper is missing: a search with --tracker {options.tracker} is registered at its host:port"
        )
    address = cluster_address(options.zookeeper, options.id)
    return tuning.SearchCluster(
        tracker=options.tracker,
        zookeeper=address.zookeeper,
        id=address.id,
        cluster_name=options.cluster_name or "",
        bind=options.bind,
    )


def _how_to_go_on(options: TuneOptions) -> str:
    if not options.storage:
        return "; nothing is kept: with --storage FILE a search can go on later"
    from dl4jlegacy.tuning.storage_address import spoken_storage

    shown = replace(options, storage=spoken_storage(options.storage))
    if options.missing is not None:
        shown = replace(shown, missing=",".join(options.missing))
    if not options.tracker:  # the variable for Zookeeper may be set for other commands
        shown = replace(shown, zookeeper=None, id=None)
    words = [shlex.quote(str(options.conf))]
    for each in fields(TuneOptions):
        value = getattr(shown, each.name)
        is_told = value != each.default and each.name not in ("conf", "format", "log_format")
        if is_told or each.name == "trials":
            flag = f"--{each.name.replace('_', '-')}"
            words += [flag] if value is True else [flag, shlex.quote(str(value))]
    return f"; `{command('tune', *words)}` goes on from there"


def _line(trial: FinishedTrial, metric: str) -> str:
    """Return the result of a trial in one line."""
    params = ", ".join(f"{path} {_short(value)}" for path, value in sorted(trial.params.items()))
    score = "" if trial.score is None else f" {metric} {trial.score:.6g}"
    return f"trial {trial.number} {trial.state}{score}: {params}{trial.error and '; '}{trial.error}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) if isinstance(value, str | int) else to_json(value)


def _fields(trial: FinishedTrial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "state": trial.state,
        "score": trial.score,
        "params": trial.params,
        "scores": list(trial.scores),
        "seconds": trial.seconds,
        "params_sha256": trial.params_sha256 or None,
        "is_start": trial.is_start,
        "failure": trial.error or None,
    }


def _report(found: SearchResult, options: TuneOptions) -> dict[str, Any]:
    """Return the search as one JSON object."""
    from dl4jlegacy.tuning.storage_address import spoken_storage

    return {
        "study": options.study,
        "storage": None if options.storage is None else spoken_storage(options.storage),
        "seed": options.seed,
        "metric": found.metric,
        "trials": [_fields(trial) for trial in found.trials],
        "best": _fields(found.best),
        "start_score": None if found.start is None else found.start.score,
        "evaluation": found.evaluation,
        "conf_path": options.out_conf,
        "model_path": options.out,
        "plot_path": options.plot,
    }


def _text(found: SearchResult, options: TuneOptions) -> str:
    """Return the search as a table of its trials, with the best one."""
    paths = sorted(found.best.params)
    head = ["trial", "state", found.metric, "seconds", *paths]
    rows = [_cells(trial, paths, is_best=trial.number == found.best.number) for trial in found.trials]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
    states = [trial.state for trial in found.trials]
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed") if state in states
    )
    start = found.start
    given = "" if start is None or start.score is None else f"; the Conf as it was given: {start.score:.6g}"
    figures = ", ".join(
        f"{name} {value:.4f}" for name, value in found.evaluation.items() if isinstance(value, float) and name != "loss"
    )
    lines = [
        *table,
        "",
        f"trials    {counted(len(states), 'trial')}: {counts}",
        f"best      trial {found.best.number}: {found.metric} {found.best.score:.6g}{given}",
        f"held out  {figures or 'loss ' + str(found.evaluation['loss'])}",
        f"params    sha256 {found.best.params_sha256}",
    ]
    lines += [f"conf      {options.out_conf}"] if options.out_conf else []
    lines += [f"model     {options.out}"] if options.out else []
    return "\n".join([*lines, f"plots     {options.plot}"] if options.plot else lines)


def _cells(trial: FinishedTrial, paths: list[str], *, is_best: bool) -> list[str]:
    score = "-" if trial.score is None else f"{trial.score:.6g}{' best' if is_best else ''}"
    return [str(trial.number), trial.state, score, f"{trial.seconds:.1f}", *(_short(trial.params[p]) for p in paths)]
