"""Time every CPU kernel, compiled and NumPy side by side, and one RBM step against scikit-learn.

    OPENBLAS_NUM_THREADS=1 python benchmarks/kernels_cpu.py [--rounds 15]

Contenders take turns within a round; printed are medians in microseconds and the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import command_line
import numpy as np

from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.protocol import Kernels

Step = Callable[[], object]
NUMBA, NUMPY = load("numba"), load("numpy")


def seconds(step: Step, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        step()
    return (time.perf_counter() - start) / repeat


def race(label: str, ours: Step, peer: Step, rounds: int) -> None:
    """Print the medians of both, and the speed of ``ours`` relative to ``peer``."""
    ours(), peer()  # compile, touch memory
    repeat = max(1, int(0.005 / max(seconds(peer, 1), 1e-7)))
    times = [(seconds(ours, repeat), seconds(peer, repeat)) for _ in range(rounds)]
    ratio = statistics.median(peer / our for our, peer in times)
    our, peer_time = (statistics.median(column) * 1e6 for column in zip(*times, strict=True))
    print(f"{label:<34}{our:12.1f} us{peer_time:12.1f} us{ratio:8.2f}x")


def layer_steps(kernels: Kernels) -> dict[str, Step]:
    rng = np.random.default_rng(1)
    z, x = rng.standard_normal((128, 500), np.float32), rng.standard_normal((128, 784), np.float32)
    b, gb, out = np.zeros(500, np.float32), np.empty(500, np.float32), np.empty_like(x)
    y, dy = np.tanh(z), np.ones_like(z)
    small, labels = rng.standard_normal((128, 10), np.float32), np.eye(10, dtype=np.float32)[np.arange(128) % 10]
    p, dz = np.full_like(small, 0.1), np.empty_like(small)
    steps: dict[str, Step] = {}
    for f in ("relu", "sigmoid", "tanh"):
        steps[f"bias + {f} 128x500"] = lambda f=f: kernels.bias_activation(z, b, f)
        steps[f"backward {f} + bias 128x500"] = lambda f=f: kernels.activation_backward_bias(dy, y, gb, f)
    steps["softmax 128x10"] = lambda: kernels.softmax(small)
    steps["cross-entropy 128x10"] = lambda: kernels.softmax_cross_entropy(p, labels, dz)
    steps["uniform 100k"] = lambda: kernels.uniform(out.reshape(-1), 3)
    steps["gaussian 100k"] = lambda: kernels.gaussian(out.reshape(-1), 3)
    steps["dropout 128x784"] = lambda: kernels.dropout(x, out, 0.5, 3)
    visible, sample = np.zeros(784, np.float32), np.empty_like(x)
    steps["sigmoid + sample 128x784"] = lambda: kernels.sigmoid_sample(x, visible, out, sample, 3)
    return steps


def vector_steps(kernels: Kernels, n: int = 520_000) -> dict[str, Step]:
    rng = np.random.default_rng(2)
    params, gradient, v, h, a, b, c = (rng.random(n, np.float32) for _ in range(7))
    adam = (1e-3, 0.9, 0.999, 1e-8, 3)
    return {
        "sgd 520k": lambda: kernels.sgd(params, gradient, 1e-3),
        "nesterovs 520k": lambda: kernels.nesterovs(params, gradient, v, 1e-3, 0.9),
        "adagrad 520k": lambda: kernels.adagrad(params, gradient, h, 1e-2, 1e-6),
        "adam 520k": lambda: kernels.adam(params, gradient, a, b, *adam),
        "amsgrad 520k": lambda: kernels.amsgrad(params, gradient, a, b, c, *adam),
        "adadelta 520k": lambda: kernels.adadelta(params, gradient, a, b, 0.95, 1e-6),
        "regularization 520k": lambda: kernels.add_regularization(h, params, 1e-9, 1e-9),
        "all finite 520k": lambda: kernels.all_finite(params),
    }


def race_sums(rounds: int) -> None:
    """Averaging four vectors, against one single-threaded copy of one vector (below 1x is slower than the copy)."""
    with ThreadPoolExecutor(4) as pool:
        for n in (500_000, 5_000_000, 14_600_000):
            vectors, out = [np.full(n, i, np.float32) for i in range(4)], np.zeros(n, np.float32)
            copy = np.zeros(n, np.float32)
            for name, workers in (("serial", None), ("4 threads", pool)):
                race(
                    f"sum of 4 x {n / 1e6:.1f}M {name} / copy",
                    lambda v=vectors, o=out, w=workers: NUMBA.weighted_sum(v, [0.25] * 4, o, w),
                    lambda v=vectors, c=copy: np.copyto(c, v[0]),
                    rounds,
                )


def rbm_step(kernels: Kernels, batch: int = 128, n_in: int = 784, n_out: int = 500) -> Step:
    """CD-1 from the primitives: three products, and one for both phases, ``[v0; -v1]' [p0; p1]``."""
    rng = np.random.default_rng(3)
    x = (rng.random((batch, n_in)) > 0.8).astype(np.float32)
    W = rng.standard_normal((n_in, n_out), np.float32) * np.float32(0.01)
    b, vb, rate = np.zeros(n_out, np.float32), np.zeros(n_in, np.float32), 0.01 / batch
    v, h, gradient = np.empty((2 * batch, n_in), np.float32), np.empty((2 * batch, n_out), np.float32), np.empty_like(W)
    sample, mean = np.empty((batch, n_out), np.float32), np.empty((batch, n_in), np.float32)
    key = iter(range(1 << 40))

    def step() -> None:
        v[:batch] = x
        np.matmul(v[:batch], W, out=h[:batch])
        kernels.sigmoid_sample(h[:batch], b, h[:batch], sample, next(key))
        np.matmul(sample, W.T, out=mean)
        kernels.sigmoid_sample(mean, vb, mean, v[batch:], next(key))
        np.matmul(v[batch:], W, out=h[batch:])
        kernels.sigmoid_bias(h[batch:], b)
        np.negative(v[batch:], out=v[batch:])
        np.matmul(v.T, h, out=gradient)
        kernels.axpy(W.reshape(-1), gradient.reshape(-1), rate)
        b[...] += rate * (h[:batch].sum(0) - h[batch:].sum(0))
        vb[...] += rate * v.sum(0)

    return step


def race_rbm(rounds: int) -> None:
    race("CD-1 784->500 batch 128, NumPy", rbm_step(NUMBA), rbm_step(NUMPY), rounds)
    if not command_line.is_installed("sklearn"):
        print(f"CD-1 against scikit-learn, which is not installed: type '{command_line.INSTALL}'")
        return
    from sklearn.neural_network import BernoulliRBM  # optional: the extra "bench"

    warnings.simplefilter("ignore")
    x = (np.random.default_rng(3).random((128, 784)) > 0.8).astype(np.float32)
    machine = BernoulliRBM(500, learning_rate=0.01, batch_size=128, random_state=0, n_iter=20)
    # partial_fit keeps float64 weights whatever it is given; only fit computes in the data's float32, as we do.
    # Twenty batches each, so that drawing the initial weights in fit hardly counts
    step = rbm_step(NUMBA)
    race("20 x CD-1, scikit fit (f4)", lambda: [step() for _ in range(20)], lambda: machine.fit(x), rounds)
    del machine.components_
    race("CD-1 784->500, scikit partial (f8)", rbm_step(NUMBA), lambda: machine.partial_fit(x), rounds)


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(f"{'kernel':<34}{'compiled':>15}{'peer':>15}{'ratio':>9}")
    for steps in (layer_steps, vector_steps):
        for (label, ours), peer in zip(steps(NUMBA).items(), steps(NUMPY).values(), strict=True):
            race(label, ours, peer, rounds)
    race_sums(rounds)
    race_rbm(rounds)


if __name__ == "__main__":
    main()
