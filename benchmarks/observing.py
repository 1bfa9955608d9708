"""Runs that are followed against runs that are not: ``python benchmarks/observing.py [ROUNDS] [--both]``.

Whole runs in one process, in turns: with a history, with metrics for Prometheus that are fetched every 5 s, with
event files for TensorBoard, with a dashboard in the same process whose page is open, with history, metrics and
dashboard together, with the event files beside them, and with spans of OpenTelemetry. Whoever looks at the page and
fetches the metrics is in a process of its own, as browsers are; no checkpoint is made, whose cost is another matter.

One network is as networks are (784-500-250-10, batch 128, averaged every 5 batches), in runs of some 20 seconds, since
what is said of a second is meant, and not what a server takes to start; the other has rounds of some milliseconds,
where following costs most. All end in the same parameters. Beside the speed stands how many examples a second of the
processor is enough for: on a machine that others use too, only that says what following costs, and it is what the goal
is about. Goal: with history, metrics and dashboard together at least 0.98 of what the first one needs without;
``--both`` runs only these two, as often as the machine's other users make necessary: what one pair says of two percent
is chance.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

import numpy as np
from training_stats import network

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, DigitsDataSetIterator, ListDataSetIterator
from dl4jlegacy.nn import zoo
from dl4jlegacy.observing.opentelemetry import OpenTelemetryObserver
from dl4jlegacy.observing.prometheus import PrometheusObserver
from dl4jlegacy.observing.ratios import RatiosObserver
from dl4jlegacy.observing.tensorboard import TensorBoardObserver
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.observers import ObservedRun, RunObserver
from dl4jlegacy.training.prepare import params_sha256

GOAL, WORKERS, SCRAPE_SECONDS = 0.98, 2, 5.0
PAGE_SECONDS, VISIT_SECONDS = 2.0, 60.0
NOTHING, THREE = "nothing", "all three"
CONTENDERS: dict[str, tuple[str, ...]] = {
    NOTHING: (),
    "history": ("history",),
    "metrics": ("metrics",),
    "TensorBoard": ("tensorboard",),
    "dashboard": ("history", "dashboard"),
    THREE: ("history", "metrics", "dashboard"),
    "and TensorBoard": ("history", "metrics", "tensorboard", "dashboard"),
    "spans": ("spans",),
}


def scrape(url: str, over: threading.Event) -> None:
    """Fetch metrics periodically, as Prometheus does."""
    while not over.wait(SCRAPE_SECONDS):
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()


def follow(url: str, over: threading.Event) -> None:
    """Request from a dashboard what its page requests, over a persistent connection, as browsers do."""
    with (
        urllib.request.urlopen(f"{url}api/v1/stream", timeout=30) as stream,
        contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)) as kept,
    ):
        page = Page(kept)
        for line in stream:
            if over.is_set():
                return
            if line.startswith(b"data: "):
                page.show(json.loads(line.removeprefix(b"data: ")))


class Page:
    """The requests of the dashboard's page, with and without a new view: ``ui/page`` in Python."""

    def __init__(self, kept: http.client.HTTPConnection) -> None:
        self._kept = kept
        self._marks: dict[str, Any] = {}
        self._asked = {"history": float("-inf"), "model": float("-inf")}
        self._version, self._shown = -1, -1

    def show(self, view: dict[str, Any]) -> None:
        """Handle a view."""
        if self._is_new(view, "history") and self._is_due("history"):
            self._ask("history?points=300")
            self._marks["history"] = view["history"]
        if self._is_new(view, "events"):
            self._ask("events?limit=300")
            self._ask("log?lines=200")
            self._marks["events"] = view["events"]
        if view["run"] is not None and view["run"]["version"] != self._version and self._is_due("model"):
            self._show_model(view["run"]["version"])

    def _show_model(self, version: int) -> None:
        found = json.loads(self._ask("model?points=300"))["model"]
        if found is None:
            return
        if found["version"] == version:
            self._version = version
        if found["version"] != self._shown:
            self._shown = found["version"]
            self._ask("filters")

    def _is_new(self, view: dict[str, Any], what: str) -> bool:
        return bool(view[what] != self._marks.get(what))

    def _is_due(self, what: str) -> bool:
        """Return whether it was not requested within the last two seconds; then record a request now."""
        now = time.monotonic()
        if now - self._asked[what] < PAGE_SECONDS:
            return False
        self._asked[what] = now
        return True

    def _ask(self, path: str) -> bytes:
        self._kept.request("GET", f"/api/v1/{path}")
        return self._kept.getresponse().read()


VISITS = {"scrape": scrape, "follow": follow}


def serve_visits(commands: Connection) -> None:
    """Visit and leave addresses as told; the main loop of the process."""
    visits: dict[str, tuple[threading.Thread, threading.Event]] = {}
    while words := commands.recv_bytes().decode():
        kind, _, url = words.partition(" ")
        if kind in visits:
            thread, over = visits.pop(kind)
            over.set()
            thread.join()
        else:
            over = threading.Event()
            thread = threading.Thread(target=VISITS[kind], args=(url, over))
            visits[kind] = thread, over
            thread.start()
        commands.send_bytes(b"done")


class Visitor:
    """Visits a run's observers from a process of its own, as browsers and Prometheus do. A context manager."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._commands, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve_visits, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *exc: object) -> None:
        self._commands.send_bytes(b"")
        self._process.join(VISIT_SECONDS)

    @contextlib.contextmanager
    def visiting(self, kind: str, url: str) -> Iterator[None]:
        """Let a URL be visited in this way."""
        self._tell(f"{kind} {url}")
        try:
            yield
        finally:
            self._tell(kind)

    def _tell(self, words: str) -> None:
        self._commands.send_bytes(words.encode())
        if not self._commands.poll(VISIT_SECONDS):
            raise TimeoutError(f"the process that visits has not answered {words!r} within {VISIT_SECONDS:.0f} s")
        self._commands.recv_bytes()


class Shown(RunObserver):
    """Shows a run in this process, as ``dl4j train --ui`` does, to a visitor with its page and its model open."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor, self._stack = visitor, contextlib.ExitStack()

    def begin(self, run: ObservedRun) -> None:
        """See ``RunObserver``."""
        from dl4jlegacy.system.listening import bind
        from dl4jlegacy.ui.endpoints import Panel
        from dl4jlegacy.ui.guard import Policy
        from dl4jlegacy.ui.run_sources import LocalSource
        from dl4jlegacy.ui.server import Dashboard
        from dl4jlegacy.ui.watcher import Watcher

        listening = self._stack.enter_context(bind("127.0.0.1", 0, "the dashboard"))
        source = LocalSource(run.tracker, run.conf, run.plan)
        watcher = self._stack.enter_context(Watcher(source, looks_at_once=False))
        shown = self._stack.enter_context(Dashboard(Panel(watcher=watcher, policy=Policy()), listening))
        self._stack.enter_context(self._visitor.visiting("follow", shown.url))

    def end(self) -> None:
        """See ``RunObserver``."""
        self._stack.close()


def spans() -> OpenTelemetryObserver:
    """Return an observer that exports spans to nowhere, in batches."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return OpenTelemetryObserver(BatchSpanProcessor(InMemorySpanExporter()))


class Run(NamedTuple):
    """The examples per second of a run, and per second of processor time; the digest of its parameters."""

    rate: float
    per_cpu: float
    digest: str


def run(conf: Conf, data: Any, parts: tuple[str, ...], visitor: Visitor) -> Run:
    """Train once, with these observers."""
    with contextlib.ExitStack() as stack:
        observers: list[RunObserver] = []
        if "history" in parts:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dl4j-history-"))
            conf = conf.replace(checkpoint_dir=folder, checkpoint_every=10_000)
        if "metrics" in parts:
            metrics = stack.enter_context(PrometheusObserver(0))
            stack.enter_context(visitor.visiting("scrape", metrics.url))
            observers.append(metrics)
        if "tensorboard" in parts:
            observers.append(
                TensorBoardObserver(stack.enter_context(tempfile.TemporaryDirectory(prefix="dl4j-events-")))
            )
        if "dashboard" in parts:
            observers += [RatiosObserver(), Shown(visitor)]
        if "spans" in parts:
            observers.append(stack.enter_context(spans()))
        runner = stack.enter_context(ActorNetworkRunner("master", data, observers=observers))
        runner.setup(conf)
        began = time.process_time()
        result = runner.train(deadline=300, progress=False)
        assert result is not None
    per_cpu = result.examples_here / (time.process_time() - began)  # until everything is written and closed
    return Run(result.examples_per_second, per_cpu, params_sha256(result.model.arrays["params"]))


def compare(name: str, conf: Conf, data: Any, turns: int, contenders: Sequence[str], visitor: Visitor) -> float:
    """Print all medians and ratios; return the median ratio of processor time with all three, turn by turn."""
    print(f"{name}:")
    run(conf, data, (), visitor)  # compile
    runs: dict[str, list[Run]] = {contender: [] for contender in contenders}
    for turn in range(turns):
        for contender in contenders if turn % 2 == 0 else contenders[::-1]:
            runs[contender].append(run(conf, data, CONTENDERS[contender], visitor))
    costs = {}
    for contender, own in runs.items():
        pairs = list(zip(own, runs[NOTHING], strict=True))
        ratio = statistics.median(mine.rate / base.rate for mine, base in pairs)
        costs[contender] = sorted(mine.per_cpu / base.per_cpu for mine, base in pairs)
        speed, per_cpu = statistics.median(one.rate for one in own), statistics.median(one.per_cpu for one in own)
        print(
            f"  {contender:<15} {speed:>9,.0f} examples/s   {ratio:5.3f}x {NOTHING}   "
            f"{per_cpu:>9,.0f} a second of the processor   {statistics.median(costs[contender]):5.3f}x",
            flush=True,
        )
    print(f"  {THREE} in single turns, a second of the processor: {', '.join(f'{one:.3f}x' for one in costs[THREE])}")
    is_same = len({one.digest for own in runs.values() for one in own}) == 1
    print(f"  {'the same parameters' if is_same else 'OTHER PARAMETERS'}")
    return statistics.median(costs[THREE]) if is_same else 0.0


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--both", action="store_true", help=f"only {NOTHING}, and {THREE}")
    given = parser.parse_args()
    turns, contenders = given.rounds, [NOTHING, THREE] if given.both else list(CONTENDERS)
    command_line.require("prometheus_client", "tensorboardX", "opentelemetry", "starlette", "uvicorn")
    rng = np.random.default_rng(1)
    x = rng.random((128 * 40, 784), dtype=np.float32)
    large = ListDataSetIterator(DataSet.of_classes(x * (x > 0.8), rng.integers(0, 10, len(x)), 10), 128)
    print(f"ActorNetworkRunner, {WORKERS} workers; {side_by_side.cores()} cores")
    small = Conf(multi_layer_conf=zoo.mlp(64, 10), workers=WORKERS, epochs=20)
    usual = Conf(multi_layer_conf=network(), workers=WORKERS, averaging_frequency=5, epochs=250)
    with Visitor() as visitor:
        compare("rounds of a few ms (64-10 digits)", small, DigitsDataSetIterator(16), turns, contenders, visitor)
        ratio = compare("784-500-250-10, every 5 batches", usual, large, turns, contenders, visitor)
    print(f"goal {GOAL}x: {'reached' if ratio >= GOAL else 'MISSED'} ({ratio:.3f}x)")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
