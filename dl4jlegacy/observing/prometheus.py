"""A run's metrics for Prometheus, served by the processes of its master and of its workers.

They are in a registry of their own, apart from the metrics of the program. The values of labels are fixed beforehand,
so that neither a run nor a stranger in its grid can increase their number: there is no metric for each worker.

``METRICS`` lists them; a test compares it with the table in ``docs/prometheus.md`` and with what is served.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import TracebackType
from typing import Any, Literal, Self, get_args
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from dl4jlegacy.errors import ConfError, Dl4jError, UsageError, how_to_install
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun, RunObserver
from dl4jlegacy.scaleout.monitoring.run_state import STATES as RUN_STATES
from dl4jlegacy.scaleout.monitoring.run_state import StateName
from dl4jlegacy.scaleout.monitoring.silence import Silence
from dl4jlegacy.scaleout.monitoring.speed import Speed
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.phases import PHASES, EventStats
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.protocol.slot_watch import ReissueReason
from dl4jlegacy.scaleout.state.records import Failure, Figures, Head, WorkerRecord
from dl4jlegacy.system.admission import Places, Seldom, most_connections
from dl4jlegacy.system.clock import RUNNING, Clock
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["METRICS", "Metric", "PrometheusObserver", "Values", "families"]

logger = logging.getLogger(__name__)

STATES = ("idle", "working", "stuck", "gone", "other")
"""States of workers; a state that this version does not know counts as ``other``."""
_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
"""Bounds of the histograms."""
_SAMPLE_SECONDS = 0.5
_REQUEST_SECONDS, _MOST_LEAVING, _LEAVING_SECONDS, _BACKLOG = 5.0, 8, 1.0, 64
"""Seconds for each read and write of a client; clients that may be closing at a time; seconds for that; backlog."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, kind and help text, its labels separated by commas, and the processes that serve it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    label: str = ""
    of: Literal["both", "master", "worker"] = "both"


METRICS = (
    Metric(
        "dl4j_run_info", "gauge", "1; its labels say which run it is, and whose process", "run,incarnation,router,role"
    ),
    Metric("dl4j_run_active", "gauge", "1 while the run is under way in this process, else 0"),
    Metric("dl4j_phase_seconds", "histogram", "seconds that a phase of a round took in this process", "phase"),
    Metric(
        "dl4j_jobs_failed_total", "counter", "attempts at jobs that failed: on a master, of jobs that are in the model"
    ),
    Metric("dl4j_tracker_wait_seconds_total", "counter", "seconds waited for a tracker that did not answer"),
    Metric("dl4j_tracker_sent_bytes_total", "counter", "bytes of values written to the tracker; 0 within a process"),
    Metric("dl4j_tracker_received_bytes_total", "counter", "bytes of values read from the tracker; 0 within a process"),
    Metric("dl4j_rounds_total", "counter", "rounds that are done, since the run began", of="master"),
    Metric("dl4j_rounds_planned", "gauge", "rounds that the plan of the run has", of="master"),
    Metric("dl4j_model_version", "gauge", "the newest version of the model", of="master"),
    Metric("dl4j_batches_total", "counter", "batches in the model, since the run began", of="master"),
    Metric("dl4j_examples_total", "counter", "examples in the model, since the run began", of="master"),
    Metric("dl4j_examples_per_second", "gauge", "examples per second, of the last 10 s", of="master"),
    Metric("dl4j_score", "gauge", "mean training score of the newest version", of="master"),
    Metric("dl4j_validation", "gauge", "what the newest validation has found", "metric", of="master"),
    Metric("dl4j_round_seconds", "histogram", "seconds from one version of the model to the next", of="master"),
    Metric(
        "dl4j_staleness_versions",
        "gauge",
        "versions between a job's model and its place, mean of one version",
        of="master",
    ),
    Metric("dl4j_jobs_done_total", "counter", "jobs folded into the model by this process", of="master"),
    Metric(
        "dl4j_jobs_reissued_total",
        "counter",
        "jobs that were given to another worker as well, and why",
        "reason",
        of="master",
    ),
    Metric(
        "dl4j_updates_dropped_total",
        "counter",
        "updates that came too late, or twice, since the run began",
        of="master",
    ),
    Metric("dl4j_workers", "gauge", "workers that are known, by what they do", "state", of="master"),
    Metric(
        "dl4j_heartbeat_age_seconds",
        "gauge",
        "seconds since the worker was heard of that has been silent longest",
        of="master",
    ),
    Metric("dl4j_run_state", "gauge", "1 for the state that the run is in, else 0", "state", of="master"),
    Metric("dl4j_checkpoints_failed_total", "counter", "checkpoints that could not be written", of="master"),
)
"""All metrics but those of ``prometheus_client`` about the process: ``process_resident_memory_bytes`` ..."""
Values = dict[str, float | dict[tuple[str, ...], float]]
"""The value of each metric by name; for metrics with labels: the value for each tuple of label values."""
_FIGURES = tuple(name for name in Figures.__struct_fields__ if name != "examples")


@dataclass(slots=True)
class _State:
    """The state of the run; changed by the run's threads and read by the server's, under one lock."""

    run: ObservedRun
    silence: Silence
    active: bool = True
    is_in: StateName = "waiting"
    version: HistoryEntry | None = None
    head: Head | None = None
    validation: Figures | None = None
    jobs_done: int = 0
    jobs_failed: int = 0
    checkpoints_failed: int = 0
    reissued: Counter[ReissueReason] = field(default_factory=Counter)
    workers: tuple[WorkerRecord, ...] = ()
    speed: Speed = field(default_factory=Speed)


class _Histogram:
    """Histogram of seconds of a metric, with bounds ``_SECONDS``, per value of its label ("": none). Thread-safe.

    The library's own histogram takes a lock three times for each value, and there are thousands of phases in a second.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric, self._lock = metric, threading.Lock()
        self._counts: dict[str, list[int]] = {} if metric.label else {"": self._none()}
        self._sums: dict[str, float] = dict.fromkeys(self._counts, 0.0)

    def observe(self, values: Sequence[tuple[str, float]]) -> None:
        """Count values, each a pair of label and seconds."""
        with self._lock:
            for label, seconds in values:
                if label not in self._counts:
                    self._counts[label], self._sums[label] = self._none(), 0.0
                self._counts[label][bisect_left(_SECONDS, seconds)] += 1
                self._sums[label] += seconds

    def collect(self, library: Any) -> Any:
        """Return the histogram as the library serves it."""
        metric = self._metric
        made = library.core.HistogramMetricFamily(
            metric.name, metric.text, labels=[metric.label] if metric.label else None
        )
        with self._lock:
            for label, counts in self._counts.items():
                bounds = [*map(library.utils.floatToGoString, _SECONDS), "+Inf"]
                made.add_metric(
                    [label] if label else [], list(zip(bounds, accumulate(counts), strict=True)), self._sums[label]
                )
        return made

    def _none(self) -> list[int]:
        return [0] * (len(_SECONDS) + 1)


class PrometheusObserver(RunObserver):
    """Serves a run's metrics at ``http://HOST:PORT/metrics`` until it is closed; a context manager.

    Args:
        port: 0: any free port; see ``url``.
        host: where to listen; there is no password, so beyond loopback anybody who reaches the port can read.
        clock: of running time.

    Raises:
        ConfError: prometheus_client is not installed, or the port or the host is not available.
        UsageError: the port number is invalid.
    """

    wants_phases = True

    def __init__(self, port: int, host: str = "127.0.0.1", *, clock: Clock = RUNNING) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._state: _State | None = None
        self._library = _library()
        self._registry = self._library.CollectorRegistry()
        self._library.ProcessCollector(registry=self._registry)
        self._phases, self._rounds = (_Histogram(metric) for metric in METRICS if metric.kind == "histogram")
        self._registry.register(self)
        self._server = _Server.listening(host, port, self._library.make_wsgi_app(self._registry), self.sample)
        self._thread = ServiceThread(target=self._server.serve_forever, args=(_SAMPLE_SECONDS,), name="dl4j-metrics")
        self._thread.start()

    @property
    def url(self) -> str:
        """The address of the metrics."""
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/metrics"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; all threads have ended on return. May be called more than once."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    # -- a run's threads ----------------------------------------------------------------------------------------------

    def begin(self, run: ObservedRun) -> None:
        """See ``RunObserver``."""
        with self._lock:
            self._state = _State(run, Silence(self._clock))

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        """See ``RunObserver``."""
        self._rounds.observe([("", version.seconds)])
        with self._lock:
            state = self._state
            if state is None:
                return
            state.head = event.head
            state.jobs_done += len(event.jobs)
            state.jobs_failed += sum(len(job.failures) for job in event.jobs.values())
            if version.validation is None:
                state.version = version
            else:
                state.validation = version.validation

    def phases(self, events: Sequence[EventStats]) -> None:
        """See ``RunObserver``."""
        self._phases.observe([(event.phase, event.seconds) for event in events if event.phase in PHASES])

    def job_failed(self, slot: tuple[int, int], failure: Failure) -> None:
        """See ``RunObserver``; a master counts the failures of all its workers with each new version."""
        with self._lock:
            if self._state is not None and not self._state.run.is_master:
                self._state.jobs_failed += 1

    def job_reissued(self, reason: ReissueReason) -> None:
        """See ``RunObserver``."""
        with self._lock:
            if self._state is not None:
                self._state.reissued[reason] += 1

    def checkpoint_failed(self, message: str) -> None:
        """See ``RunObserver``."""
        with self._lock:
            if self._state is not None:
                self._state.checkpoints_failed += 1

    def end(self) -> None:
        """See ``RunObserver``; the last values stay until this is closed."""
        self.sample()
        with self._lock:
            if self._state is not None:
                self._state.active, self._state.workers, self._state.silence = False, (), Silence(self._clock)
                self._state.is_in = "ended"

    # -- the server's threads -----------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Read the workers, their heartbeats and the speed; called twice a second."""
        with self._lock:
            state = self._state
        if state is None or not state.active:
            return
        try:
            state.is_in = state.run.state().state
            workers = tuple(state.run.workers())
        except Dl4jError as exc:  # the tracker is away, or closed already
            logger.debug("the workers cannot be looked at: %s", exc)
            return
        now = self._clock.now()
        with self._lock:
            state.workers = workers
            state.silence.update({one.id: one.beat for one in workers})
            state.speed.add(now, 0 if state.head is None else state.head.examples)

    def collect(self) -> Iterator[Any]:
        """Yield all metrics except those of the process; called by the registry."""
        yield self._phases.collect(self._library)
        yield self._rounds.collect(self._library)
        with self._lock:
            state = self._state
            values = {} if state is None else self._values(state)
        yield from families(self._library, METRICS, values)

    def describe(self) -> Iterable[Any]:
        """Return nothing: the metrics are known when a run has begun."""
        return ()

    def _values(self, state: _State) -> Values:
        run = state.run
        role = "master" if run.is_master else "worker"
        sent, received = run.tracker.traffic()
        values: Values = {
            "dl4j_run_info": {(run.conf.run, run.conf.incarnation, run.conf.router, role): 1.0},
            "dl4j_run_active": float(state.active),
            "dl4j_jobs_failed_total": state.jobs_failed,
            "dl4j_tracker_wait_seconds_total": run.tracker.waited_seconds(),
            "dl4j_tracker_sent_bytes_total": sent,
            "dl4j_tracker_received_bytes_total": received,
        }
        return values | self._values_of_master(state) if run.is_master else values

    def _values_of_master(self, state: _State) -> Values:
        head, version, validation = state.head, state.version, state.validation
        words = [one.state.partition(" ")[0] for one in state.workers]
        counts = Counter(word if word in STATES else "other" for word in words)
        values: Values = {
            "dl4j_rounds_planned": state.run.plan.total_rounds,
            "dl4j_rounds_total": 0 if head is None else head.round,
            "dl4j_model_version": 0 if head is None else head.version,
            "dl4j_batches_total": 0 if head is None else head.batches,
            "dl4j_examples_total": 0 if head is None else head.examples,
            "dl4j_updates_dropped_total": 0 if head is None else head.updates_dropped,
            "dl4j_examples_per_second": state.speed.now,
            "dl4j_jobs_done_total": state.jobs_done,
            "dl4j_jobs_reissued_total": {(why,): state.reissued[why] for why in get_args(ReissueReason)},
            "dl4j_run_state": {(name,): float(name == state.is_in) for name in RUN_STATES},
            "dl4j_workers": {(name,): counts[name] for name in STATES},
            "dl4j_heartbeat_age_seconds": max(state.silence.seconds().values(), default=0.0),
            "dl4j_checkpoints_failed_total": state.checkpoints_failed,
        }
        if version is not None:
            values["dl4j_score"] = {} if version.score is None else version.score
            values["dl4j_staleness_versions"] = version.staleness
        if validation is not None:
            figures = {(name,): getattr(validation, name) for name in _FIGURES}
            values["dl4j_validation"] = {label: value for label, value in figures.items() if value is not None}
        return values


def families(library: Any, metrics: Sequence[Metric], values: Values) -> Iterator[Any]:
    """Yield the metric families of ``prometheus_client`` for the values of counters and gauges."""
    for metric in metrics:
        if metric.name not in values:
            continue
        found = values[metric.name]
        core = library.core
        family = core.GaugeMetricFamily if metric.kind == "gauge" else core.CounterMetricFamily
        name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
        made = family(name, metric.text, labels=metric.label.split(",") if metric.label else [])
        for labels, value in found.items() if isinstance(found, dict) else [((), found)]:
            made.add_metric(labels, value)
        yield made


def _library() -> Any:
    """Return ``prometheus_client``; raises ``ConfError`` if it is not installed."""
    try:
        import prometheus_client
        import prometheus_client.core
        import prometheus_client.utils
    except ImportError as exc:
        raise ConfError(f"metrics need prometheus-client, which is not installed: {how_to_install('metrics')}") from exc
    return prometheus_client


# -- the server --------------------------------------------------------------------------------------------------------


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Server

    def parse_request(self) -> bool:
        """Keep the place of a client that has sent a whole request until it has its answer."""
        is_whole = super().parse_request()
        if is_whole:
            self.server.serve(self.connection)
        return is_whole

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests at debug level."""
        logger.debug("%s: %s", self.client_address[0], format % args)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A server for a few clients: ``prometheus_client``'s own server keeps threads for silent clients."""

    daemon_threads = False  # so that ``server_close`` waits for them
    request_queue_size = _BACKLOG

    def __init__(self, address: tuple[str, int], look: Callable[[], None]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._places: Places[socket.socket] = Places(most_connections("metrics"))
        self._threads_left = threading.Semaphore(self._places.most + _MOST_LEAVING)
        self._failures = Seldom()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    @classmethod
    def listening(cls, host: str, port: int, app: Any, look: Callable[[], None]) -> _Server:
        """Return a listening server; ``look`` is called twice a second. Errors as for ``PrometheusObserver``."""
        if not 0 <= port <= 65535:
            raise UsageError(
                f"there is no port {port} for metrics: give one from 1 to 65535, or 0 for any that is free"
            )
        try:
            server = cls((host, port), look)
        except (OSError, UnicodeError) as exc:
            raise ConfError(
                f"metrics cannot be served at {host}:{port}: {getattr(exc, 'strerror', None) or exc}; choose another "
                "--metrics-port, 0 for any that is free, or another --metrics-host"
            ) from exc
        server.set_app(app)
        return server

    def server_bind(self) -> None:
        """Bind without resolving the host's full name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def service_actions(self) -> None:
        """Sample the run; called between requests."""
        try:
            with exits_as_errors():
                self._look()
        except Exception:  # what is served stays as it was
            logger.exception("the metrics' look at the run failed")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a client on a thread of its own; beyond the limit close the oldest one without a complete request."""
        if not self._threads_left.acquire(timeout=_LEAVING_SECONDS):  # the clients that were closed are about to end
            super().shutdown_request(request)
            return
        with self._lock:
            leaves = self._places.enter(request)
        if leaves is not None:
            _hang_up(leaves)
        super().process_request(request, client_address)

    def serve(self, request: socket.socket) -> None:
        """Record that a client has sent a whole request. For any thread."""
        with self._lock:
            self._places.serve(request)

    def get_request(self) -> Any:
        """Accept a connection; after a failure pause for a moment, since the caller tries again at once."""
        try:
            return super().get_request()
        except OSError as exc:  # for example: no more files can be opened
            if self._failures.happens():
                logger.warning(
                    "no client of the metrics can be served: %s (%d times so far)", exc, self._failures.count
                )
            threading.Event().wait(_SAMPLE_SECONDS / 2)
            raise

    def shutdown_request(self, request: Any) -> None:
        """Close a client's connection after it was served."""
        with self._lock:
            self._places.leave(request)
        self._threads_left.release()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that has gone or is too slow."""
        logger.debug("a client of the metrics was not served", exc_info=True)

    def server_close(self) -> None:
        """Close everything, and wait for the threads."""
        with self._lock:
            inside = tuple(self._places)
        for request in inside:
            _hang_up(request)
        super().server_close()


def _hang_up(request: socket.socket) -> None:
    """Shut a connection down; the thread that serves it then closes it."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        logger.debug("a client of the metrics is gone already")
