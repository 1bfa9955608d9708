"""Full training steps of 784-500-250-10 against scikit-learn's MLPClassifier: ``python benchmarks/mlp_cpu.py [BATCH]``.

Ours: relu, softmax, AdaGrad, score of every step. Theirs: relu, softmax, Adam (it has no AdaGrad). One thread each.
Goal at batch 128: 2.8x.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

import numpy as np

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import AdaGrad

GOAL = 2.8
SKLEARN_EXAMPLES = 2048


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.random((4096, 784), dtype=np.float32)
    return x * (x > 0.8), rng.integers(0, 10, 4096)


def ours(kernels: str, batch: int) -> Callable[[], int]:
    x, classes = data()
    labels = np.eye(10, dtype=np.float32)[classes]
    conf = NeuralNetConfiguration(activation="relu", updater=AdaGrad(learning_rate=0.01))
    layers = (
        DenseLayer(n_in=784, n_out=500),
        DenseLayer(n_in=500, n_out=250),
        OutputLayer(n_in=250, n_out=10, activation="softmax"),
    )
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=conf, layers=layers), kernels=load(kernels))
    stream = Stream.of(7)
    state = {"row": 0, "iteration": 0}

    def step() -> int:
        row = state["row"]
        network.fit_batch(x[row : row + batch], labels[row : row + batch], iteration=state["iteration"], stream=stream)
        state["row"] = (row + batch) % (len(x) - batch + 1)
        state["iteration"] += 1
        return batch

    return step


def sklearn(batch: int) -> Callable[[], int]:
    from sklearn.neural_network import MLPClassifier  # optional: the extra "bench"

    x, classes = data()
    model = MLPClassifier((500, 250), batch_size=batch, max_iter=1, alpha=0, solver="adam", random_state=0)
    model.partial_fit(x[:512], classes[:512], classes=list(range(10)))

    def step() -> int:
        model.partial_fit(x[:SKLEARN_EXAMPLES], classes[:SKLEARN_EXAMPLES])
        return SKLEARN_EXAMPLES

    return step


def main() -> int:
    warnings.simplefilter("ignore")
    parser = command_line.parser(__doc__)
    parser.add_argument("batch", nargs="?", type=int, default=128, help="examples of a batch (128)")
    batch = parser.parse_args().batch
    command_line.require("sklearn")
    print(f"MLP 784-500-250-10, batch {batch}, one thread; median of rounds, ratios within a round")
    contenders = {"scikit-learn": sklearn(batch)} | {f"dl4jlegacy {k}": ours(k, batch) for k in ("numba", "numpy")}
    ratios = side_by_side.race(contenders, "scikit-learn", rounds=7, seconds=0.4)
    reached = ratios["dl4jlegacy numba"]
    print(f"goal {GOAL}x: {'reached' if reached >= GOAL else 'MISSED'} ({reached:.2f}x)")
    return 0 if reached >= GOAL or batch != 128 else 1


if __name__ == "__main__":
    sys.exit(main())
