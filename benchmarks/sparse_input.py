"""A first layer of millions of sparse features: ``python benchmarks/sparse_input.py [--format json]``.

An SVMLight file is invented: 50 values a row, ten of which tell its class. A network of 16 units behind these features
is trained by master and workers in processes of their own, over Hazelcast and Zookeeper: by one worker, by two, and by
four. Said are

- the bytes of a job by the model's: all that the workers' sockets have carried, but for the model, which each reads
  once, by the jobs;
- the most memory that a worker had at a time by the model's: as the system counts it (resident), without what it shares
  with other processes and files, as libraries (anonymous), and both less that of a worker of a small model;
- the master's likewise;
- whether all end in the same parameters.

Memory is looked at five times a second, but for the resident, whose highest value the system keeps.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import command_line
import measured
import numpy as np

from dl4jlegacy import Conf, DenseLayer, MultiLayerConfiguration, NeuralNetConfiguration, OutputLayer, Sgd

CLASSES, SLOTS = 16, 4
BYTES_GOAL, MEMORY_GOAL, MASTER_GOAL = 1 / 50, 1.3, 2.5
SMALL = 120_000
"""Columns of the small model: more than a table may have."""
DEADLINE, LOOK = 900.0, 0.2
RESIDENT, ANONYMOUS = "resident", "anonymous"


def write_rows(path: Path, rows: int, columns: int) -> None:
    """Write an SVMLight file of ``rows`` rows, the same at every call."""
    rng = np.random.default_rng(7)
    with path.open("w") as file:
        for _ in range(rows):
            label = int(rng.integers(0, CLASSES))
            told = rng.integers(1, 5000, 10) * CLASSES + label
            indices = np.unique(np.concatenate([rng.integers(1, columns, 40), told, [columns - 1]]))
            file.write(f"{label} " + " ".join(f"{index}:1" for index in indices) + "\n")


def conf_of(arguments: Any) -> Conf:
    layers = (
        DenseLayer(n_out=CLASSES, activation="tanh"),
        OutputLayer(n_out=CLASSES, activation="softmax"),
    )
    network = MultiLayerConfiguration(layers, NeuralNetConfiguration(seed=4, updater=Sgd(learning_rate=1.0)))
    return Conf(
        multi_layer_conf=network, epochs=arguments.epochs, batch_size=arguments.batch, jobs_per_round=SLOTS, seed=1
    )


@dataclass
class Trained:
    """The result of a run: the master's report, peak memory of the master and of a worker, and the workers' bytes."""

    report: dict[str, Any]
    master: Counter[str]
    worker: Counter[str]
    nbytes: int


@contextlib.contextmanager
def memory_of(processes: dict[str, list[subprocess.Popen[str]]]) -> Iterator[dict[str, Counter[str]]]:
    """Yield the peak memory, by kind, of a process of each group from now on."""
    most: dict[str, Counter[str]] = {name: Counter() for name in processes}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK):
            for name, group in processes.items():
                for process in group:
                    most[name] |= memory(process.pid)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def memory(process: int) -> Counter[str]:
    """Return the bytes of a process: its resident peak, and its present anonymous memory; nothing if it has ended."""
    found: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for file, field, kind in ("status", "VmHWM:", RESIDENT), ("smaps_rollup", "Anonymous:", ANONYMOUS):
            for line in Path(f"/proc/{process}/{file}").read_text().splitlines():
                if line.startswith(field):
                    found[kind] = 1024 * int(line.split()[1])
    return found


def train(servers: Any, conf: Path, data: Path, workers: int) -> Trained:
    """Train over the servers."""
    where = ["--zookeeper", servers.zookeeper]
    told = ["--tracker", f"hazelcast://{servers.hazelcast}", "--workers", str(workers), "--format", "json"]
    options = ["--dataset", str(data), "--cluster-name", servers.cluster_name, *told, *where]
    counts = [conf.with_name(f"bytes-{number}.json") for number in range(workers)]
    counted = [sys.executable, str(Path(__file__).with_name("counted.py"))]
    run: dict[str, Any] = {"text": True, "env": measured.ENVIRONMENT}
    master = subprocess.Popen(
        [sys.executable, "-m", "dl4jlegacy", "master", str(conf), *options], stdout=subprocess.PIPE, **run
    )
    others = [subprocess.Popen([*counted, str(file), "worker", *where, "--wait", "600"], **run) for file in counts]
    try:
        with memory_of({"master": [master], "worker": others}) as most:
            said, _ = master.communicate(timeout=DEADLINE)
            report: dict[str, Any] = json.loads(said or "{}")
            if "params_sha256" not in report:
                raise RuntimeError(f"the run failed with exit status {master.returncode}: {report}")
            for process in others:
                process.wait(DEADLINE)
    finally:
        for process in (master, *others):
            if process.poll() is None:
                process.kill()
                process.wait()
    nbytes = sum(sum(json.loads(file.read_text()).values()) for file in counts)
    return Trained(report, most["master"], most["worker"], nbytes)


def parse(given: Iterable[str] | None = None) -> Any:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--columns", type=int, default=5_000_000, help="sparse features (5000000)")
    parser.add_argument("--rows", type=int, default=20_000, help="examples (20000)")
    parser.add_argument("--batch", type=int, default=100, help="examples of a job (100)")
    parser.add_argument("--epochs", type=int, default=1, help="of each run (1)")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 1, 4], help="processes of each run (2 1 4)")
    return parser.parse_args(None if given is None else list(given))


def said(report: measured.Report, run: Trained, small: Trained, model: int, workers: int) -> None:
    """Report a run in comparison with that of a small model."""
    jobs, told = run.report["batches"], f"{workers} worker{'s' if workers > 1 else ''}"
    each = (run.nbytes - workers * model) / jobs
    note = f"{each / 1e6:.2f} MB; all {jobs} jobs, with the model once a worker: {run.nbytes / 1e6:.0f} MB"
    report.add(f"{told}: bytes of a job", each / model, "x", BYTES_GOAL, note=note)
    for kind in RESIDENT, ANONYMOUS:
        least = small.worker[kind]
        note = f"{run.worker[kind] / 1e6:.0f} MB; of a small model {least / 1e6:.0f} MB"
        report.add(f"{told}: memory of a worker, {kind}", run.worker[kind] / model, "x", MEMORY_GOAL, note=note)
        report.add("  less that of a small model's", (run.worker[kind] - least) / model, "x", MEMORY_GOAL)
    note = f"{run.master[RESIDENT] / 1e6:.0f} MB; of a small model {small.master[RESIDENT] / 1e6:.0f} MB"
    more = (run.master[RESIDENT] - small.master[RESIDENT]) / model
    report.add(f"{told}: memory of the master, less a small model's", more, "x", MASTER_GOAL, note=note)
    report.add(f"{told}: accuracy", run.report["accuracy"], "", note=f"{run.report['seconds']:.0f} s")
    report.say(f"{told}: sha256 of the parameters {run.report['params_sha256']}")


def main(given: Iterable[str] | None = None) -> int:
    arguments = parse(given)
    report = measured.Report("a first layer of sparse features", arguments.format)
    began, found = time.monotonic(), {}
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-") as folder, measured.services(heap="3g") as servers:
        data, few, conf = (Path(folder) / name for name in ("large.svm", "small.svm", "conf.json"))
        write_rows(data, arguments.rows, arguments.columns)
        write_rows(few, arguments.rows, SMALL)
        conf.write_text(conf_of(arguments).to_json())
        model = 4 * (arguments.columns * CLASSES + CLASSES * (CLASSES + 2))
        report.say(f"{arguments.columns:,} columns, a model of {model / 1e6:.0f} MB")
        small = train(servers, conf, few, 1)
        for workers in arguments.workers:
            run = train(servers, conf, data, workers)
            found[workers] = run.report["params_sha256"]
            said(report, run, small, model, workers)
    report.details["params_sha256"] = found
    report.add("different results", len(set(found.values())), "", 1.0, note=f"{time.monotonic() - began:.0f} s in all")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
