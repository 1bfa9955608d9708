"""``dl4j plot``: draws the curves of runs from their histories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dl4jlegacy.cli.options.read import Format, Id, Zookeeper, cluster_address, option
from dl4jlegacy.cli.options.values import not_empty, one_of
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import CheckpointError, OutputError, UsageError
from dl4jlegacy.system import files

if TYPE_CHECKING:
    from dl4jlegacy.scaleout.monitoring.curves import RunCurves

__all__ = ["add_commands", "plot"]

_OVER = ("examples", "rounds", "seconds")


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(plot)


def plot(
    out: Annotated[str, option("--out", metavar="FILE", help="The SVG file to write.", read=not_empty)],
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|DIR",
            help="Checkpoint folders (or s3://...) of runs, over or not; or names in Zookeeper.",
        ),
    ] = None,
    zookeeper: Zookeeper = None,
    id: Id = None,
    over: Annotated[
        str,
        option(
            "--over",
            metavar="|".join(_OVER),
            help="What the curves are drawn over (examples).",
            read=lambda label, text: one_of(label, text, _OVER),
        ),
    ] = "examples",
    log: Annotated[
        bool,
        typer.Option("--log/--linear", help="Draw by logarithms, where all values are above 0, or as they are."),
    ] = True,
    format: Format = "text",
) -> Answer:
    """Draw how runs went: their score, validation and learning rate, each over the others."""
    from dl4jlegacy.scaleout import saved_run
    from dl4jlegacy.scaleout.monitoring.curves import OVER, curves_of
    from dl4jlegacy.scaleout.monitoring.curves_svg import MOST_RUNS, curves_svg

    places = _places(runs or [], zookeeper, id)
    if len(places) > MOST_RUNS:
        raise UsageError(f"{len(places)} runs are too many to tell apart in one drawing; give at most {MOST_RUNS}")
    found, axis = [], next(each for each in OVER if each == over)
    for name, place in zip(_names(places), places, strict=True):
        history = saved_run.read_history(place)
        if not history:
            raise CheckpointError(f"the history of the run in {place} is empty: it has no version of its model yet")
        found.append(curves_of(name, history, axis))
        if not found[-1].curves:
            raise CheckpointError(f"the history of the run in {place} has no score, validation or learning rate")
    drawing = curves_svg(found, over=axis, log=log)
    with files.errors_as(OutputError, f"{out} cannot be written", "choose another --out"):
        files.write(files.expand(out), drawing.encode(errors="replace"))
    return Answer(_fields(found, places, out), _lines(found, out))


def _places(runs: Sequence[str], zookeeper: str | None, id: str | None) -> list[str]:
    """Return the folders of the named runs, without repetitions; raises ``UsageError`` if none is named."""
    if not runs and not zookeeper:
        raise UsageError("name the checkpoint folder of a run, or several; or give --zookeeper for one under way")
    if not runs:
        from dl4jlegacy.cluster.address import find_conf

        address = cluster_address(zookeeper, id)
        conf = find_conf(address)
        return [_kept(conf.run, conf.checkpoint_dir)]
    return list(dict.fromkeys(_place(not_empty("RUN", run), zookeeper, id) for run in runs))


def _place(run: str, zookeeper: str | None, id: str | None) -> str:
    """Return the folder of a run that is given by its folder, or by its name in Zookeeper."""
    from dl4jlegacy.storage import paths as storage

    if not zookeeper or storage.is_remote(run) or _is_here(run):
        return run
    from dl4jlegacy.cluster.leadership import find_run

    _, conf = find_run(cluster_address(zookeeper, id), run, id_given=id is not None)
    return _kept(conf.run, conf.checkpoint_dir)


def _is_here(path: str) -> bool:
    with files.errors_as(CheckpointError, f"{path} cannot be looked into"):
        return files.kind_of(files.expand(path)) is not None


def _kept(run: str, folder: str) -> str:
    """Return the folder of a registered run; raises ``CheckpointError`` if it has none."""
    if not folder:
        raise CheckpointError(
            f"run {run} keeps no history: its master was given no --checkpoint-dir, and only `dl4j status` shows it"
        )
    return folder


def _names(places: Sequence[str]) -> list[str]:
    """Return short names of the runs: the last parts of their folders, or else the whole paths."""
    names = [Path(place.rstrip("/")).name or place for place in places]
    return names if len(set(names)) == len(names) else list(places)


def _fields(found: Sequence[RunCurves], places: Sequence[str], out: str) -> dict[str, Any]:
    """Return the drawn curves as one JSON object."""
    return {
        "svg": out,
        "runs": [
            {
                "name": run.name,
                "place": place,
                "versions": run.versions,
                "examples": run.examples,
                "seconds": round(run.seconds, 3),
                "curves": {measure: curve.fields() for measure, curve in run.curves.items()},
            }
            for run, place in zip(found, places, strict=True)
        ],
    }


def _lines(found: Sequence[RunCurves], out: str) -> Iterator[str]:
    from dl4jlegacy.scaleout.monitoring.curves_svg import described

    yield from (described(run) for run in found)
    yield f"drawn in {out}"
