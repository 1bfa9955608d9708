"""One contender of ``nn_cpu.py``, in a process of its own: ``python nn_contenders.py CASE WHO BATCH THREADS``.

Prints READY, then for every line with a number of seconds on stdin the examples per second it trained in that time.
Every contender trains the same network on the same data, batch by batch, and reads the loss of every batch.
"""

from __future__ import annotations

import os
import sys

THREADS = sys.argv[4] if __name__ == "__main__" and len(sys.argv) > 4 else "1"  # importers use one
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = THREADS  # before NumPy is imported
if hasattr(os, "sched_setaffinity") and "workers" not in "".join(sys.argv[2:3]):  # JAX asks for the number of cores
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(THREADS)])

import json  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import Any  # noqa: E402

import command_line  # noqa: E402
import nn_rbm  # noqa: E402
import nn_sequences  # noqa: E402
import numpy as np  # noqa: E402

EXAMPLES = 2048
RATE = 0.01
Epoch = Callable[[], int]


def data(case: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.random((EXAMPLES, 784), dtype=np.float32)
    return x * (x > 0.8), rng.integers(0, 10, EXAMPLES)


# -- ours --------------------------------------------------------------------------------------------------------------


def configuration(case: str) -> Any:
    from dl4jlegacy.nn import AdaGrad, DenseLayer, MultiLayerConfiguration, NeuralNetConfiguration, OutputLayer, zoo

    if case == "mlp":
        conf = NeuralNetConfiguration(activation="relu", updater=AdaGrad(learning_rate=RATE))
        layers = (DenseLayer(n_in=784, n_out=500), DenseLayer(n_out=250), OutputLayer(n_out=10))
        return MultiLayerConfiguration(conf=conf, layers=layers)
    if case == "alexnet-small":
        return zoo.alexnet_small(784, 10)
    conf = zoo.lenet(784, 10)
    if case == "lenet-stride1":
        import msgspec

        layers = list(conf.layers)
        layers[2] = msgspec.structs.replace(layers[2], stride=(1, 1))
        conf = conf.replace(layers=tuple(layers))
    return conf.replace(conf=conf.conf.replace(updater=AdaGrad(learning_rate=RATE), l2=0.0))


def ours(case: str, batch: int, kernels: str) -> Epoch:
    """The public ``fit``, with a listener that reads the score."""
    from dl4jlegacy.datasets import DataSet, ListDataSetIterator
    from dl4jlegacy.kernels import load
    from dl4jlegacy.nn import CollectScoresListener, MultiLayerNetwork

    network = MultiLayerNetwork(configuration(case), kernels=load(kernels))
    network.listeners.append(CollectScoresListener())
    x, classes = data(case)
    iterator = ListDataSetIterator(DataSet.of_classes(x, classes, 10), batch, shuffle=False)

    def epoch() -> int:
        network.fit(iterator)
        return EXAMPLES

    return epoch


def workers(case: str, batch: int, count: int) -> Epoch:
    """Workers of the embedded tracker that average every five batches; the time of a run without its start."""
    from dl4jlegacy import ActorNetworkRunner, Conf
    from dl4jlegacy.datasets import DataSet, ListDataSetIterator

    x, classes = data(case)
    whole = DataSet.of_classes(np.tile(x, (16, 1)), np.tile(classes, 16), 10)
    runs = [0]

    def epoch() -> int:
        runs[0] += 1
        conf = Conf(
            multi_layer_conf=configuration(case), workers=count, jobs_per_round=count, averaging_frequency=5, epochs=1,
            batch_size=batch, run=f"bench{runs[0]}",
        )  # fmt: skip
        with ActorNetworkRunner("master", ListDataSetIterator(whole, batch, shuffle=False)) as runner:
            runner.setup(conf)
            start = time.perf_counter()
            runner.train()
            measured.append(len(whole) / (time.perf_counter() - start))
        return len(whole)

    return epoch


measured: list[float] = []  # rates measured by a contender itself


# -- peers -------------------------------------------------------------------------------------------------------------


def torch(case: str, batch: int, *, channels_last: bool = False) -> Epoch:
    import torch
    from torch import nn

    torch.set_num_threads(int(THREADS))
    x_data, classes = data(case)
    x, labels = torch.from_numpy(x_data), torch.from_numpy(classes)
    net = torch_network(case)
    if case != "mlp":
        x = x.view(-1, 1, 28, 28)
    if channels_last:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    if case == "alexnet-small":
        optimizer: Any = torch.optim.SGD(
            net.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
        )
    else:
        optimizer = torch.optim.Adagrad(net.parameters(), lr=RATE, eps=1e-6, fused=True)
    loss_of = nn.CrossEntropyLoss()

    def epoch() -> int:
        for start in range(0, EXAMPLES, batch):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(net(x[start : start + batch]), labels[start : start + batch])
            loss.backward()
            optimizer.step()
            loss.item()
        return EXAMPLES

    return epoch


def torch_network(case: str) -> Any:
    """Return the layers of ``configuration`` in PyTorch."""
    from torch import nn

    if case == "mlp":
        return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 250), nn.ReLU(), nn.Linear(250, 10))
    if case == "alexnet-small":
        layers: list[nn.Module] = []
        for before, filters in ((1, 32), (32, 64)):
            layers += [
                nn.Conv2d(before, filters, 5, padding=2), nn.ReLU(), nn.LocalResponseNorm(5, alpha=5e-4, k=2),
                nn.MaxPool2d(3, 2, padding=1),
            ]  # fmt: skip
        layers += [nn.Conv2d(64, 96, 3, padding=1), nn.ReLU(), nn.Conv2d(96, 64, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2, padding=1), nn.Flatten()]
        dense = [nn.Dropout(0.5), nn.Linear(1024, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10)]
        return nn.Sequential(*layers, *dense)
    stride, flat = (1, 800) if case == "lenet-stride1" else (2, 200)
    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5, stride=stride), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(flat, 200), nn.ReLU(), nn.Linear(200, 10),
    )  # fmt: skip


def jax(case: str, batch: int) -> Epoch:
    import jax
    import jax.numpy as jnp
    from jax import lax

    x, classes = data(case)
    rng = np.random.default_rng(2)
    stride, flat = (1, 800) if case == "lenet-stride1" else (2, 200)
    dense = [(784, 500), (500, 250), (250, 10)] if case == "mlp" else [(flat, 200), (200, 10)]
    shapes: list[tuple[int, ...]] = [] if case == "mlp" else [(20, 1, 5, 5), (50, 20, 5, 5)]
    shapes += dense
    weights = [jnp.asarray(rng.standard_normal(s) / np.sqrt(np.prod(s[1:] if len(s) == 4 else s[:1])), jnp.float32)
               for s in shapes]  # fmt: skip
    biases = [jnp.zeros(s[0] if len(s) == 4 else s[1]) for s in shapes]

    def loss_of(params: Any, x: Any, labels: Any) -> Any:
        weights, biases = params
        if case != "mlp":
            x = x.reshape(-1, 1, 28, 28)
        for index, (W, b) in enumerate(zip(weights, biases, strict=True)):
            if W.ndim == 4:
                step = (stride, stride) if index else (1, 1)
                x = lax.conv_general_dilated(x, W, step, "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW"))
                x = jax.nn.relu(x + b[:, None, None])
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
            else:
                x = x.reshape(len(x), -1) @ W + b
                x = jax.nn.relu(x) if index < len(weights) - 1 else x
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1))

    def update(params: Any, history: Any, x: Any, labels: Any) -> Any:
        loss, gradient = jax.value_and_grad(loss_of)(params, x, labels)
        history = jax.tree.map(lambda h, g: h + g * g, history, gradient)
        params = jax.tree.map(lambda p, g, h: p - RATE * g / jnp.sqrt(h + 1e-6), params, gradient, history)
        return params, history, loss

    jitted = jax.jit(update, donate_argnums=(0, 1))
    state = [(weights, biases), jax.tree.map(jnp.zeros_like, (weights, biases))]

    def epoch() -> int:
        for start in range(0, EXAMPLES, batch):
            state[0], state[1], loss = jitted(*state, x[start : start + batch], classes[start : start + batch])
            float(loss)
        return EXAMPLES

    return epoch


def sklearn(case: str, batch: int) -> Epoch:
    """Uses Adam, since it has no AdaGrad."""
    from sklearn.neural_network import MLPClassifier

    x, classes = data(case)
    model = MLPClassifier((500, 250), batch_size=batch, alpha=0, solver="adam", random_state=0)
    model.partial_fit(x, classes, classes=list(range(10)))

    def epoch() -> int:
        model.partial_fit(x, classes)
        return EXAMPLES

    return epoch


CONTENDERS: dict[str, Callable[[str, int], Epoch]] = {
    "ours": lambda case, batch: ours(case, batch, "numba"),
    "ours-numpy": lambda case, batch: ours(case, batch, "numpy"),
    "ours-4-workers": lambda case, batch: workers(case, batch, 4),
    "torch": torch,
    "torch-channels-last": lambda case, batch: torch(case, batch, channels_last=True),
    "jax": jax,
    "sklearn": sklearn,
}
OTHERS = {"lstm": nn_sequences.CONTENDERS, "rbm": nn_rbm.CONTENDERS}


def main() -> int:
    parser = command_line.parser(__doc__)
    for name, kind in (("case", str), ("who", str), ("batch", int), ("threads", int)):
        parser.add_argument(name, metavar=name.upper(), type=kind)
    arguments = parser.parse_args()
    case, who, batch = arguments.case, arguments.who, arguments.batch
    try:
        epoch = OTHERS.get(case, CONTENDERS)[who](case, batch)
    except ImportError as missing:
        print(f"MISSING {missing.name}", flush=True)
        return 0
    for _ in range(2):
        epoch()  # compile, fill caches
    print("READY", flush=True)
    for line in sys.stdin:
        seconds, examples = float(line), 0
        measured.clear()
        start = time.perf_counter()
        while (passed := time.perf_counter() - start) < seconds:
            examples += epoch()
        rate = sum(measured) / len(measured) if measured else examples / passed
        print(json.dumps(rate), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
