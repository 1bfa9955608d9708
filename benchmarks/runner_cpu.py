"""Workers against one worker, through ``ActorNetworkRunner``: ``python benchmarks/runner_cpu.py [ROUNDS]``.

784-500-250-10, batch 128, AdaGrad, parameters and updater state averaged every 5 batches; whole runs, started in
turns, with everything that belongs to them (jobs, leases, frames, aggregation, head). Goal: 4 workers 2.5x one worker
on 4 cores.
"""

from __future__ import annotations

import statistics
import sys

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

import numpy as np

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.optimization.updaters import AdaGrad
from dl4jlegacy.scaleout.conf import Conf

GOAL, WORKERS, BATCH, BATCHES = 2.5, (1, 2, 4), 128, 160


def network() -> MultiLayerConfiguration:
    conf = NeuralNetConfiguration(activation="relu", updater=AdaGrad(learning_rate=0.01))
    output = OutputLayer(n_in=250, n_out=10, activation="softmax")
    return MultiLayerConfiguration(
        conf=conf, layers=(DenseLayer(n_in=784, n_out=500), DenseLayer(n_in=500, n_out=250), output)
    )


def run(dataset: DataSet, workers: int) -> float:
    """Return examples per second of one whole run."""
    with ActorNetworkRunner("master", ListDataSetIterator(dataset, BATCH)) as runner:
        runner.setup(Conf(multi_layer_conf=network(), workers=workers, averaging_frequency=5, epochs=8))
        return runner.train(deadline=300).examples_per_second


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=7, help="runs of each (7)")
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(1)
    x = rng.random((BATCH * BATCHES, 784), dtype=np.float32)
    dataset = DataSet.of_classes(x * (x > 0.8), rng.integers(0, 10, len(x)), 10)
    run(dataset, 1)  # compile
    rates: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    for turn in range(rounds):
        for workers in WORKERS if turn % 2 == 0 else WORKERS[::-1]:
            rates[workers].append(run(dataset, workers))
    print(f"ActorNetworkRunner, 784-500-250-10, batch {BATCH}, averaging every 5; {side_by_side.cores()} cores")
    ratios = {w: statistics.median(r / b for r, b in zip(own, rates[1], strict=True)) for w, own in rates.items()}
    for workers, own in rates.items():
        best = max(own) / max(rates[1])
        print(
            f"  {workers} workers {statistics.median(own):>10,.0f} examples/s   "
            f"{ratios[workers]:5.2f}x one (best {best:.2f}x)"
        )
    print(f"goal {GOAL}x: {'reached' if ratios[4] >= GOAL else 'MISSED'} ({ratios[4]:.2f}x)")
    return 0 if ratios[4] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
