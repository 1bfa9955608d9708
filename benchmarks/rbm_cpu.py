"""CD-1 steps of a 784-500 RBM against scikit-learn's BernoulliRBM: ``python benchmarks/rbm_cpu.py [BATCH]``.

Ours: ``pretrain_batch`` with plain SGD, with its score. Theirs: ``partial_fit`` (persistent CD, without a score). One
thread each. Goal at batch 128: 2.8x.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

import numpy as np

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Sgd

GOAL = 2.8
EXAMPLES = 2048


def data() -> np.ndarray:
    return (np.random.default_rng(1).random((EXAMPLES, 784)) > 0.8).astype(np.float32)


def rows(x: np.ndarray, batch: int) -> Callable[[], np.ndarray]:
    start = [0]

    def take() -> np.ndarray:
        row = start[0]
        start[0] = (row + batch) % (EXAMPLES - batch + 1)
        return x[row : row + batch]

    return take


def ours(kernels: str, batch: int) -> Callable[[], int]:
    take = rows(data(), batch)
    conf = NeuralNetConfiguration(updater=Sgd(learning_rate=0.01))
    layers = (RBM(n_in=784, n_out=500), OutputLayer(n_in=500, n_out=10, activation="softmax"))
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers, pretrain=True), kernels=load(kernels))
    root, count = Stream.of(7), [0]

    def step() -> int:
        network.pretrain_batch(0, take(), iteration=count[0], stream=root.at(count[0]))
        count[0] += 1
        return batch

    return step


def sklearn(batch: int) -> Callable[[], int]:
    from sklearn.neural_network import BernoulliRBM  # optional: the extra "bench"

    take = rows(data(), batch)
    model = BernoulliRBM(500, learning_rate=0.01, batch_size=batch, random_state=0)

    def step() -> int:
        model.partial_fit(take())
        return batch

    return step


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("batch", nargs="?", type=int, default=128, help="examples of a batch (128)")
    batch = parser.parse_args().batch
    command_line.require("sklearn")
    print(f"RBM 784-500 CD-1, batch {batch}, one thread; median of rounds, ratios within a round")
    contenders = {"scikit-learn": sklearn(batch)} | {f"dl4jlegacy {k}": ours(k, batch) for k in ("numba", "numpy")}
    ratios = side_by_side.race(contenders, "scikit-learn", rounds=7, seconds=0.4)
    reached = ratios["dl4jlegacy numba"]
    print(f"goal {GOAL}x: {'reached' if reached >= GOAL else 'MISSED'} ({reached:.2f}x)")
    return 0 if reached >= GOAL or batch != 128 else 1


if __name__ == "__main__":
    sys.exit(main())
