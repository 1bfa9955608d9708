"""A first layer of millions of sparse features: ``python benchmarks/sparse_input.py [--format json]``.

An SVMLight file is invented: 50 values a row, ten of which tell its class. A network of 16 units behind these features
is trained by master and workers in processes of their own, over Hazelcast and Zookeeper: by one worker, by two, and by
four. Said are the bytes of a job (its own update, those of its round that a worker reads, and its data) by the model's,
the peak of a worker's memory by the model's, less that of a worker of a small model, and whether all end in the same
parameters. The bytes are counted in a run of this process, of as many jobs a round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import command_line
import measured
import numpy as np
from traffic import CountingStore

from dl4jlegacy import (
    ActorNetworkRunner,
    Conf,
    DenseLayer,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
    OutputLayer,
    Sgd,
)
from dl4jlegacy.datasets.sparse_files import SvmLightDataSetIterator
from dl4jlegacy.scaleout.tracker import StateTracker

CLASSES, SLOTS = 16, 4
BYTES_GOAL, MEMORY_GOAL = 1 / 50, 1.3
SMALL = 120_000
"""Columns of the small model: more than a table may have."""
DEADLINE = 900.0


def write_rows(path: Path, rows: int, columns: int) -> None:
    """Write an SVMLight file of so many rows, the same at every call."""
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


def train(servers: Any, conf: Path, data: Path, workers: int) -> tuple[dict[str, Any], float]:
    """Train over the servers; return the master's report, and the highest peak of a worker's memory in bytes."""
    program = [sys.executable, "-m", "dl4jlegacy"]
    where = ["--zookeeper", servers.zookeeper]
    tracker = [
        "--cluster-name",
        servers.cluster_name,
        "--tracker",
        f"hazelcast://{servers.hazelcast}",
        "--workers",
        str(workers),
    ]
    master = subprocess.Popen(
        [*program, "master", str(conf), "--dataset", str(data), *tracker, *where, "--format", "json"],
        stdout=subprocess.PIPE,
        text=True,
        env=measured.ENVIRONMENT,
    )
    others = [
        subprocess.Popen([*program, "worker", *where, "--wait", "600"], env=measured.ENVIRONMENT)
        for _ in range(workers)
    ]
    try:
        said, _ = master.communicate(timeout=DEADLINE)
        peaks = [os.wait4(process.pid, 0)[2].ru_maxrss * 1024 for process in others]
    finally:
        for process in (master, *others):
            if process.returncode is None and process.poll() is None:
                process.kill()
    report: dict[str, Any] = json.loads(said)
    if "params_sha256" not in report:
        raise RuntimeError(f"the run failed: {report}")
    return report, float(max(peaks))


def job_nbytes(conf: Conf, data: Path) -> float:
    """Return the bytes that a job reads and writes."""
    store, iterator = CountingStore(), SvmLightDataSetIterator(conf.batch_size, data, seed=1)
    network = conf.multi_layer_conf
    assert network is not None
    whole = network.with_sizes(iterator.input_columns, iterator.total_outcomes)
    with ActorNetworkRunner("master", iterator, tracker=StateTracker(store)) as runner:
        runner.setup(conf.replace(multi_layer_conf=whole, workers=1, epochs=1))
        result = runner.train()
    jobs = -(-iterator.total_examples // conf.batch_size)
    own = sum(store.nbytes[kind] for kind in ("update written", "data read")) / jobs
    rounds = result.head.round
    return own + store.nbytes["entry read"] / rounds  # whoever does a job reads all updates of the round before


def parse(given: Iterable[str] | None = None) -> Any:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--columns", type=int, default=5_000_000, help="sparse features (5000000)")
    parser.add_argument("--rows", type=int, default=20_000, help="examples (20000)")
    parser.add_argument("--batch", type=int, default=100, help="examples of a job (100)")
    parser.add_argument("--epochs", type=int, default=2, help="of each run (2)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="processes of each run (1 2 4)")
    return parser.parse_args(None if given is None else list(given))


def main(given: Iterable[str] | None = None) -> int:
    arguments = parse(given)
    report = measured.Report("a first layer of sparse features", arguments.format)
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-") as folder, measured.services(heap="3g") as servers:
        data, small, conf = (Path(folder) / name for name in ("large.svm", "small.svm", "conf.json"))
        write_rows(data, arguments.rows, arguments.columns)
        write_rows(small, 1000, SMALL)
        conf.write_text(conf_of(arguments).to_json())
        model = 4 * (arguments.columns * CLASSES + CLASSES * (CLASSES + 2))
        least = train(servers, conf, small, 1)[1]
        found = {}
        for workers in arguments.workers:
            made, peak = train(servers, conf, data, workers)
            found[workers] = made["params_sha256"]
            note = f"{peak / 1e6:.0f} MB, of a small model {least / 1e6:.0f} MB"
            name = f"memory of a worker by the model's, {workers} workers"
            report.add(name, (peak - least) / model, "x", MEMORY_GOAL, note=note)
            report.add(f"accuracy, {workers} workers", made["accuracy"], "")
        # At last: what this process has taken by then would count as a peak of those that it starts.
        nbytes = job_nbytes(conf_of(arguments), data)
        report.add("bytes of a job by the model's", nbytes / model, "x", BYTES_GOAL, note=f"{model / 1e6:.0f} MB")
    report.details["params_sha256"] = found
    report.add("different results", len(set(found.values())), "", 1.0, note=next(iter(found.values()))[:16])
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
