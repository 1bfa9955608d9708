"""Runs that collect training statistics against runs that do not: ``python benchmarks/training_stats.py [ROUNDS]``.

Whole runs in one process, in turns: one with rounds of some milliseconds, where recording their phases costs most
(digits, one batch of 16 in a job), and one as networks are (784-500-250-10, batch 128, averaged every 5 batches). Both
end in the same parameters. Goal: with statistics at least 0.95 of the speed of the second without.
"""

from __future__ import annotations

import statistics
import sys
import tempfile

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

import numpy as np

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, DigitsDataSetIterator, ListDataSetIterator
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import params_sha256

GOAL, WORKERS = 0.95, 2


def network() -> MultiLayerConfiguration:
    layers = (DenseLayer(n_in=784, n_out=500), DenseLayer(n_in=500, n_out=250))
    output = OutputLayer(n_in=250, n_out=10, activation="softmax")
    return MultiLayerConfiguration(conf=NeuralNetConfiguration(activation="relu"), layers=(*layers, output))


def run(conf: Conf, data: ListDataSetIterator, *, collects: bool) -> tuple[float, str]:
    """Return the examples per second of a run, and the digest of its parameters."""
    with (
        tempfile.TemporaryDirectory(prefix="dl4j-stats-") as folder,
        ActorNetworkRunner("master", data) as runner,
    ):
        place = {"checkpoint_dir": folder, "checkpoint_every": 10_000}
        runner.setup(conf.replace(collect_training_stats=collects, **place))
        result = runner.train(deadline=300, progress=False)
        return result.examples_per_second, params_sha256(result.model.arrays["params"])


def compare(name: str, conf: Conf, data: ListDataSetIterator, turns: int) -> float:
    """Print both medians; return the median of the ratios, turn by turn."""
    run(conf, data, collects=False)  # compile
    rates: dict[bool, list[float]] = {False: [], True: []}
    digests = set()
    for turn in range(turns):
        for collects in (False, True) if turn % 2 == 0 else (True, False):
            rate, digest = run(conf, data, collects=collects)
            rates[collects].append(rate)
            digests.add(digest)
    ratio = statistics.median(on / off for on, off in zip(rates[True], rates[False], strict=True))
    off, on = (statistics.median(rates[collects]) for collects in (False, True))
    same = "the same parameters" if len(digests) == 1 else "OTHER PARAMETERS"
    print(f"  {name:<34} {off:>9,.0f} examples/s without   {on:>9,.0f} with   {ratio:5.3f}x   {same}", flush=True)
    return ratio if len(digests) == 1 else 0.0


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=9, help="runs of each (9)")
    turns = parser.parse_args().rounds
    rng = np.random.default_rng(1)
    x = rng.random((128 * 40, 784), dtype=np.float32)
    large = ListDataSetIterator(DataSet.of_classes(x * (x > 0.8), rng.integers(0, 10, len(x)), 10), 128)
    print(f"ActorNetworkRunner, {WORKERS} workers; {side_by_side.cores()} cores")
    small = Conf(multi_layer_conf=zoo.mlp(64, 10), workers=WORKERS, epochs=6)
    compare("rounds of a few ms (64-10 digits)", small, DigitsDataSetIterator(16), turns)
    usual = Conf(multi_layer_conf=network(), workers=WORKERS, averaging_frequency=5, epochs=8)
    ratio = compare("784-500-250-10, every 5 batches", usual, large, turns)
    print(f"goal {GOAL}x: {'reached' if ratio >= GOAL else 'MISSED'} ({ratio:.3f}x)")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
