"""Runs that are followed against runs that are not: ``python benchmarks/observing.py [ROUNDS]``.

Whole runs in one process, in turns: with a history, with metrics for Prometheus that are fetched every 5 s, with
event files for TensorBoard, with a dashboard in the same process whose page is open, its model too, with all four, and
with spans of OpenTelemetry. One network is as networks are
(784-500-250-10, batch 128, averaged every 5 batches); the other has rounds of some milliseconds, where following costs
most. All end in the same parameters. Beside the speed stands how many examples a second of the processor is enough for:
on a machine that others use too, only that says what following costs, and it is what the goal is about. Goal: with all
four at least 0.98 of what the first one needs without.
"""

from __future__ import annotations

import contextlib
import http.client
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

import numpy as np
from training_stats import network

from dl4jlegacy.datasets import DataSet, DigitsDataSetIterator, ListDataSetIterator
from dl4jlegacy.nn import zoo
from dl4jlegacy.observing.opentelemetry import OpenTelemetryObserver
from dl4jlegacy.observing.prometheus import PrometheusObserver
from dl4jlegacy.observing.ratios import RatiosObserver
from dl4jlegacy.observing.tensorboard import TensorBoardObserver
from dl4jlegacy.runner import ActorNetworkRunner
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.observers import ObservedRun, RunObserver
from dl4jlegacy.training import params_sha256

GOAL, WORKERS, SCRAPE_SECONDS = 0.98, 2, 5.0
PAGE_SECONDS = 2.0
NOTHING, ALL = "nothing", "all four"
CONTENDERS: dict[str, tuple[str, ...]] = {
    NOTHING: (),
    "history": ("history",),
    "metrics": ("metrics",),
    "TensorBoard": ("tensorboard",),
    "dashboard": ("history", "dashboard"),
    ALL: ("history", "metrics", "tensorboard", "dashboard"),
    "spans": ("spans",),
}


@contextlib.contextmanager
def scraped(url: str) -> Iterator[None]:
    """Fetch metrics now and then, as Prometheus does."""
    over = threading.Event()

    def fetch() -> None:
        while not over.wait(SCRAPE_SECONDS):
            with urllib.request.urlopen(url, timeout=30) as answer:
                answer.read()

    thread = threading.Thread(target=fetch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Shown(RunObserver):
    """Shows a run in this process, as ``dl4j train --ui`` does, to somebody who has its page and its model open."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def begin(self, run: ObservedRun) -> None:
        """See ``RunObserver``."""
        from dl4jlegacy.listening import bind
        from dl4jlegacy.ui.endpoints import Panel
        from dl4jlegacy.ui.guard import Policy
        from dl4jlegacy.ui.server import Dashboard
        from dl4jlegacy.ui.sources import LocalSource
        from dl4jlegacy.ui.watcher import Watcher

        listening = self._stack.enter_context(bind("127.0.0.1", 0, "the dashboard"))
        source = LocalSource(run.tracker, run.conf, run.plan)
        watcher = self._stack.enter_context(Watcher(source, looks_at_once=False))
        shown = self._stack.enter_context(Dashboard(Panel(watcher=watcher, policy=Policy()), listening))
        self._stack.enter_context(followed(shown.url))

    def end(self) -> None:
        """See ``RunObserver``."""
        self._stack.close()


@contextlib.contextmanager
def followed(url: str) -> Iterator[None]:
    """Ask a dashboard for what its page asks for, over a connection that is kept, as browsers do."""
    over = threading.Event()

    def follow() -> None:
        with (
            urllib.request.urlopen(f"{url}api/v1/stream", timeout=30) as stream,
            contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)) as kept,
        ):
            asked = 0.0
            for _ in stream:
                if over.is_set():
                    return
                if time.monotonic() - asked > PAGE_SECONDS:
                    asked = time.monotonic()
                    for path in ("history?points=300", "events", "model", "filters"):
                        kept.request("GET", f"/api/v1/{path}")
                        kept.getresponse().read()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def spans() -> OpenTelemetryObserver:
    """What exports spans to nowhere, in batches."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return OpenTelemetryObserver(BatchSpanProcessor(InMemorySpanExporter()))


class Run(NamedTuple):
    """The examples per second of a run, and per second of the processor; the digest of its parameters."""

    rate: float
    per_cpu: float
    digest: str


def run(conf: Conf, data: Any, parts: tuple[str, ...]) -> Run:
    """Train once, with these parts."""
    with contextlib.ExitStack() as stack:
        observers: list[RunObserver] = []
        if "history" in parts:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dl4j-history-"))
            conf = conf.replace(checkpoint_dir=folder, checkpoint_every=10_000)
        if "metrics" in parts:
            metrics = stack.enter_context(PrometheusObserver(0))
            stack.enter_context(scraped(metrics.url))
            observers.append(metrics)
        if "tensorboard" in parts:
            observers.append(
                TensorBoardObserver(stack.enter_context(tempfile.TemporaryDirectory(prefix="dl4j-events-")))
            )
        if "dashboard" in parts:
            observers += [RatiosObserver(), Shown()]
        if "spans" in parts:
            observers.append(stack.enter_context(spans()))
        runner = stack.enter_context(ActorNetworkRunner("master", data, observers=observers))
        runner.setup(conf)
        began = time.process_time()
        result = runner.train(deadline=300, progress=False)
        assert result is not None
    per_cpu = result.examples_here / (time.process_time() - began)  # until all is written, and closed
    return Run(result.examples_per_second, per_cpu, params_sha256(result.model.arrays["params"]))


def compare(name: str, conf: Conf, data: Any, turns: int) -> float:
    """Print all medians and ratios; return that of the processor with all four, the median turn by turn."""
    print(f"{name}:")
    run(conf, data, ())  # compile
    runs: dict[str, list[Run]] = {contender: [] for contender in CONTENDERS}
    for turn in range(turns):
        for contender in list(CONTENDERS) if turn % 2 == 0 else list(reversed(CONTENDERS)):
            runs[contender].append(run(conf, data, CONTENDERS[contender]))
    cost = {}
    for contender, own in runs.items():
        pairs = list(zip(own, runs[NOTHING], strict=True))
        ratio = statistics.median(mine.rate / base.rate for mine, base in pairs)
        cost[contender] = statistics.median(mine.per_cpu / base.per_cpu for mine, base in pairs)
        speed, per_cpu = statistics.median(one.rate for one in own), statistics.median(one.per_cpu for one in own)
        print(
            f"  {contender:<12} {speed:>9,.0f} examples/s   {ratio:5.3f}x {NOTHING}   "
            f"{per_cpu:>9,.0f} a second of the processor   {cost[contender]:5.3f}x",
            flush=True,
        )
    is_same = len({one.digest for own in runs.values() for one in own}) == 1
    print(f"  {'the same parameters' if is_same else 'OTHER PARAMETERS'}")
    return cost[ALL] if is_same else 0.0


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=9, help="runs of each (9)")
    turns = parser.parse_args().rounds
    command_line.require("prometheus_client", "tensorboardX", "opentelemetry", "starlette", "uvicorn")
    rng = np.random.default_rng(1)
    x = rng.random((128 * 40, 784), dtype=np.float32)
    large = ListDataSetIterator(DataSet.of_classes(x * (x > 0.8), rng.integers(0, 10, len(x)), 10), 128)
    print(f"ActorNetworkRunner, {WORKERS} workers; {side_by_side.cores()} cores")
    small = Conf(multi_layer_conf=zoo.mlp(64, 10), workers=WORKERS, epochs=20)
    compare("rounds of a few ms (64-10 digits)", small, DigitsDataSetIterator(16), turns)
    usual = Conf(multi_layer_conf=network(), workers=WORKERS, averaging_frequency=5, epochs=100)
    ratio = compare("784-500-250-10, every 5 batches", usual, large, turns)
    print(f"goal {GOAL}x: {'reached' if ratio >= GOAL else 'MISSED'} ({ratio:.3f}x)")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
