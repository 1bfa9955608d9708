"""Workers that evaluate a model against one that does: ``python benchmarks/evaluation_cpu.py [ROUNDS]``.

LeNet on MNIST's 10,000 test images (``DL4J_DATA_DIR``), as ``dl4j evaluate --workers N`` and the validation rounds of a
training do it: whole runs of the protocol, in turns, whose counts are compared. Goal: 4 workers 3x one worker on 4
cores.
"""

from __future__ import annotations

import statistics
import sys
import time

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

from dl4jlegacy.datasets import load
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.training.evaluation_run import evaluate_with_workers

GOAL, WORKERS = 3.0, (1, 2, 4)


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=7, help="runs of each (7)")
    rounds = parser.parse_args().rounds
    examples = load("mnist").test
    network = build_network(zoo.lenet(784, 10))
    network.init()
    found = set()

    def run(workers: int) -> float:
        began = time.perf_counter()
        evaluation = evaluate_with_workers(network, examples, (), workers=workers)
        found.add((evaluation.loss, evaluation.classification.confusion.tobytes()))
        return len(examples) / (time.perf_counter() - began)

    run(1)  # compile
    rates: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    for turn in range(rounds):
        for workers in WORKERS if turn % 2 == 0 else WORKERS[::-1]:
            rates[workers].append(run(workers))
    print(f"LeNet on MNIST's {len(examples):,} test images; {side_by_side.cores()} cores")
    ratios = {w: statistics.median(r / b for r, b in zip(own, rates[1], strict=True)) for w, own in rates.items()}
    for workers, own in rates.items():
        print(f"  {workers} workers {statistics.median(own):>10,.0f} examples/s   {ratios[workers]:5.2f}x one")
    print(f"  {len(found)} different results")
    print(f"goal {GOAL}x: {'reached' if ratios[4] >= GOAL else 'MISSED'} ({ratios[4]:.2f}x)")
    return 0 if ratios[4] >= GOAL and len(found) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
