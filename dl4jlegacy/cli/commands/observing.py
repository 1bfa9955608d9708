"""The options for exporters (TensorBoard, Prometheus, OpenTelemetry, events), and the observers they select."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dl4jlegacy.cli.options.changed_code import ChangedCodeOptions
from dl4jlegacy.cli.options.declarations import count_option, text_option
from dl4jlegacy.cli.options.read import ResumeOptions, TrainOptions, WorkerOptions
from dl4jlegacy.errors import UsageError
from dl4jlegacy.system.console import open_console
from dl4jlegacy.system.strict_json import to_json

if TYPE_CHECKING:
    from dl4jlegacy.observing.events import Receiver
    from dl4jlegacy.scaleout.monitoring.observers import RunObserver

__all__ = [
    "MetricsOptions",
    "ObservedResumeOptions",
    "ObservedTrainOptions",
    "ObservedWorkerOptions",
    "ObservingOptions",
    "observing",
]


@dataclass(frozen=True, kw_only=True)
class MetricsOptions:
    """Options of every process of a run; None: not given."""

    metrics_port: Annotated[
        int | None, count_option("--metrics-port", "Serve metrics for Prometheus at this port (0: any).", least=0)
    ] = None
    metrics_host: Annotated[
        str | None, text_option("--metrics-host", "HOST", "Where to serve them (127.0.0.1); anybody there may read.")
    ] = None
    otel: Annotated[
        bool,
        typer.Option(
            "--otel",
            envvar="DL4J_OTEL",
            show_envvar=False,
            help="Export rounds and jobs as spans of OpenTelemetry, to OTEL_EXPORTER_OTLP_ENDPOINT (localhost).",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ObservingOptions(MetricsOptions):
    """Further options of a master's process."""

    on_event: Annotated[
        str | None,
        text_option("--on-event", "COMMAND", "Start this for each event of the run, which is on its stdin as JSON."),
    ] = None
    webhook: Annotated[
        str | None, text_option("--webhook", "URL", "Send each event of the run to this address, as JSON by POST.")
    ] = None
    tensorboard: Annotated[
        str | None, text_option("--tensorboard", "DIR", "Write curves and histograms for TensorBoard to this folder.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ObservedTrainOptions(ObservingOptions, TrainOptions):
    """The options of ``dl4j train`` and ``dl4j master``."""

    ui: Annotated[
        bool,
        typer.Option("--ui", help="Show the run in the browser, too, at DL4J_UI_PORT (9000), else at a free port."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ObservedResumeOptions(ChangedCodeOptions, ObservingOptions, ResumeOptions):
    """The options of ``dl4j resume``."""


@dataclass(frozen=True, kw_only=True)
class ObservedWorkerOptions(MetricsOptions, WorkerOptions):
    """The options of ``dl4j worker``."""


@contextlib.contextmanager
def observing(
    options: ObservedTrainOptions | ObservedResumeOptions | ObservedWorkerOptions,
) -> Iterator[list[RunObserver]]:
    """Yield the observers of a command's runs, and close them at the end.

    Raises:
        UsageError: two options do not go together, or there is no such port.
        ConfError: a library is not installed, a folder cannot be used, or a port is taken.
    """
    observers: list[RunObserver] = []
    if options.metrics_host is not None and options.metrics_port is None:
        raise UsageError("--metrics-host says where metrics are served, and --metrics-port that they are; give both")
    with contextlib.ExitStack() as stack:
        if isinstance(options, ObservingOptions) and options.tensorboard is not None:
            from dl4jlegacy.observing.tensorboard import TensorBoardObserver

            observers.append(TensorBoardObserver(options.tensorboard))
        if isinstance(options, ObservingOptions) and (receivers := _receivers(options)):
            from dl4jlegacy.observing.events import EventObserver

            observers.append(EventObserver(receivers))
        if isinstance(options, ObservedTrainOptions) and options.ui:
            from dl4jlegacy.observing.ratios import RatiosObserver

            observers.append(RatiosObserver())
        if options.metrics_port is not None:
            from dl4jlegacy.observing.prometheus import PrometheusObserver

            metrics = PrometheusObserver(options.metrics_port, options.metrics_host or "127.0.0.1")
            observers.append(stack.enter_context(metrics))
            _announce("metrics", metrics.url, json_lines=options.log_format == "json")
        if options.otel:
            from dl4jlegacy.observing.opentelemetry import OpenTelemetryObserver

            observers.append(stack.enter_context(OpenTelemetryObserver()))
        yield observers


def _receivers(options: ObservingOptions) -> list[Receiver]:
    """Return the receivers of events; raises ``UsageError`` for an invalid option."""
    from dl4jlegacy.observing.events import Command, Webhook

    commands: list[Receiver] = [] if options.on_event is None else [Command(options.on_event)]
    return [*commands, *([] if options.webhook is None else [Webhook(options.webhook)])]


def _announce(what: str, url: str, *, json_lines: bool) -> None:
    """Print on stderr where something is served, since the port may be chosen at run time."""
    line = to_json({"event": what, "url": url}) if json_lines else f"{what} are served at {url}"
    open_console(json_lines=json_lines).print(line, markup=False, highlight=False, soft_wrap=True)
