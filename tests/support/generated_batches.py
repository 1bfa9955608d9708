"""A program that trains on more data than its memory may hold: its own iterator makes each batch from its number.

    python -m tests.support.generated_batches BATCHES ROWS alone
    python -m tests.support.generated_batches BATCHES ROWS ZOOKEEPER TRACKER CLUSTER_NAME --run RUN [EXPORT_DIRECTORY]

It is the master, prints the parameters' digest and its own peak of memory, and exports the batches if it is told where.
1000 batches of 1250 rows are 5 GB.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np

from dl4jlegacy import ActorNetworkRunner, Conf, DataSet
from dl4jlegacy.datasets.iterator import BatchCursor
from dl4jlegacy.nn import zoo
from dl4jlegacy.training.prepare import params_sha256

__all__ = ["COLUMNS", "Generated"]

COLUMNS, CLASSES = 1000, 3


class Generated(BatchCursor):
    """A ``DataSetIterator`` that makes each batch when it is asked for."""

    input_columns, total_outcomes = COLUMNS, CLASSES

    def __init__(self, batches: int, rows: int) -> None:
        self._batches, self.batch_size = batches, rows
        self.total_examples = batches * rows

    @property
    def total_batches(self) -> int:
        return self._batches

    def batch(self, epoch: int, index: int) -> DataSet:
        generator = np.random.default_rng(index)
        features = generator.random((self.batch_size, COLUMNS), dtype=np.float32)
        return DataSet.of_classes(features, generator.integers(0, CLASSES, self.batch_size), CLASSES)


def peak() -> float:
    """Return the most memory that this process has had, in MiB; not its parent's, which ``getrusage`` may tell."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def main(batches: str, rows: str, *rest: str) -> None:
    """Train to the end, and print what came of it."""
    run, where = {"run": "alone", "workers": 2}, {}
    if rest != ("alone",):
        zookeeper, tracker, cluster_name, _, name, *folder = rest
        run = {"run": name, "export_directory": "".join(folder), "min_workers": 2}
        where = {"zookeeper": zookeeper, "tracker": tracker, "cluster_name": cluster_name}
    conf = Conf(
        multi_layer_conf=zoo.mlp(COLUMNS, CLASSES, hidden=(5,), seed=7), jobs_per_round=4, prefetch_buffer=4, **run
    )
    with ActorNetworkRunner("master", Generated(int(batches), int(rows)), **where) as runner:
        by_reference = runner.setup(conf).data_by_reference
        result = runner.train()
        assert result is not None
        report = {
            "params_sha256": params_sha256(runner.network(result).params),
            "lost": result.batches_lost,
            "twice": result.batches_duplicated,
            "batches": result.head.batches,
            "by_reference": by_reference,
            "seconds": result.seconds,
        }
    print(json.dumps({**report, "peak": peak()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
