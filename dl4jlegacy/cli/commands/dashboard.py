"""``dl4j dashboard``: a page that shows a run, from the folder of its checkpoints or on its cluster."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dl4jlegacy.cli.commands.observing import ObservedTrainOptions
from dl4jlegacy.cli.options.declarations import number_option, option
from dl4jlegacy.cli.options.read import ClusterName, Format, Id, Tracker, Zookeeper, cluster_address
from dl4jlegacy.cli.options.values import not_empty, whole_number
from dl4jlegacy.cli.outputs.answer import Answer
from dl4jlegacy.errors import ConfError, UsageError, how_to_install
from dl4jlegacy.system.console import open_console
from dl4jlegacy.system.strict_json import to_json

if TYPE_CHECKING:
    from dl4jlegacy.cluster.address import ClusterAddress
    from dl4jlegacy.scaleout.tracker import StateTracker
    from dl4jlegacy.training.run import Run
    from dl4jlegacy.ui.run_sources import Source

__all__ = ["add_commands", "cluster_source", "dashboard", "in_browser", "local_source"]

_PORT = "DL4J_UI_PORT"


def add_commands(app: typer.Typer) -> None:
    """Add this module's command to ``dl4j``."""
    app.command()(dashboard)


def dashboard(
    folder: Annotated[
        str | None, typer.Argument(metavar="DIR", help="The checkpoint folder (or s3://...) of a run, over or not.")
    ] = None,
    zookeeper: Zookeeper = None,
    id: Id = None,
    tracker: Tracker = None,
    cluster_name: ClusterName = None,
    host: Annotated[
        str,
        option("--host", metavar="HOST", help="Where to listen; beyond loopback a token is demanded.", read=not_empty),
    ] = "127.0.0.1",
    port: Annotated[
        int, number_option("--port", metavar="PORT", help="0: any that is free.", least=0, variable=_PORT)
    ] = 9000,
    format: Format = "text",
) -> None:
    """Show a run as a page in the browser, live, until Ctrl-C: curves, workers, events, and a button that stops it."""
    _check_installed()
    from dl4jlegacy.system.listening import bind
    from dl4jlegacy.system.secret import has_secret
    from dl4jlegacy.ui.endpoints import Panel
    from dl4jlegacy.ui.server import Dashboard, policy_for, told
    from dl4jlegacy.ui.watcher import Watcher

    policy = policy_for(host, os.environ, is_signed=has_secret(os.environ))
    source = _source(folder, zookeeper, id, tracker, cluster_name)
    with bind(host, port, "the dashboard") as listening, Watcher(source) as watcher:
        shown = Dashboard(Panel(watcher=watcher, policy=policy), listening)
        found = watcher.view.run
        with told(shown.url, policy, os.environ, sys.stdout) as (url, token_file):
            text = f"run {found.run if found else '?'} is shown at {url} (Ctrl-C ends this){_token_in(token_file)}"
            fields = {"url": url, "run": found.run if found else None, "token_file": token_file}
            Answer(fields, text).print(as_json=format == "json")
            shown.serve()


def _token_in(file: str | None) -> str:
    """Return in words where the token is."""
    return f"; its token is in {file}" if file else ""


def _source(
    folder: str | None, zookeeper: str | None, id: str | None, tracker: str | None, cluster_name: str | None
) -> Source:
    """Return the source of the run to show; raises ``Dl4jError`` if there is no run."""
    if folder is not None:
        from dl4jlegacy.ui.run_sources import FolderSource

        if zookeeper is not None and "DL4J_ZOOKEEPER" not in os.environ:
            raise UsageError("give either the folder of a run, or the --zookeeper in which it is registered")
        found = FolderSource(folder)
        found.read()
        return found
    if not zookeeper:
        raise UsageError("there is no run to show: give the folder of its checkpoints, or --zookeeper host:port")
    from dl4jlegacy.services.grid import grid_of
    from dl4jlegacy.ui.cluster_source import ClusterSource

    address = cluster_address(zookeeper, id)
    on_cluster = ClusterSource(address, grid_of(tracker, cluster_name) if tracker else None)
    try:
        on_cluster.read()
    except BaseException:
        on_cluster.close()
        raise
    return on_cluster


@contextlib.contextmanager
def in_browser(options: ObservedTrainOptions, source: Callable[[], Source]) -> Iterator[None]:
    """Show a run in the browser while the body trains it, if ``--ui`` is given; prints the address on stderr.

    Raises:
        ConfError: the libraries are not installed.
    """
    if not options.ui:
        yield
        return
    _check_installed()
    from dl4jlegacy.system.listening import bind
    from dl4jlegacy.system.secret import has_secret
    from dl4jlegacy.ui.endpoints import Panel
    from dl4jlegacy.ui.server import PORT, Dashboard, policy_for, told
    from dl4jlegacy.ui.watcher import Watcher

    host, policy = "127.0.0.1", policy_for("127.0.0.1", os.environ, is_signed=has_secret(os.environ))
    try:
        listening = bind(host, whole_number(_PORT, os.environ.get(_PORT, str(PORT)), 0), "the dashboard")
    except UsageError:
        listening = bind(host, 0, "the dashboard")  # another dashboard's port must not fail a training
    with (
        listening,
        Watcher(source(), looks_at_once=False) as watcher,
        Dashboard(Panel(watcher=watcher, policy=policy), listening) as shown,
        told(shown.url, policy, os.environ, sys.stderr) as (url, token_file),
    ):
        json_lines = options.log_format == "json"
        text = f"the run is shown at {url}, until it ends{_token_in(token_file)}"
        line = to_json({"event": "dashboard", "url": url, "token_file": token_file}) if json_lines else text
        open_console(json_lines=json_lines).print(line, markup=False, highlight=False, soft_wrap=True)
        yield


def local_source(run: Run, tracker: StateTracker) -> Source:
    """Return the source of a run in this process."""
    from dl4jlegacy.ui.run_sources import LocalSource

    return LocalSource(tracker, run.conf, run.plan)


def cluster_source(address: ClusterAddress) -> Source:
    """Return the source of a run on a cluster, which need not be registered yet."""
    from dl4jlegacy.ui.cluster_source import ClusterSource

    return ClusterSource(address)


def _check_installed() -> None:
    """Raise ``ConfError`` if the dashboard's libraries are not installed."""
    try:
        import dl4jlegacy.ui.server  # noqa: F401  # to see whether it can be
    except ModuleNotFoundError as exc:
        raise ConfError(f"the dashboard needs {str(exc.name).partition('.')[0]}; {how_to_install('ui')}") from exc
