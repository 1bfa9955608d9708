"""Time our matrix product beside NumPy's BLAS, on the products of the zoo: ``python benchmarks/products.py``.

    --rounds N    turns that each product takes with either (default 15)

One thread. Printed are billions of operations a second, ours as a share of what this processor's multiply-adds reach in
a loop of nothing else, timed in the same run, and the median of the turns' ratios. Exit status 1 if a goal is missed:
0.95 in the geometric mean over the products, and 0.8 for each; and 1.1 for a layer's forward pass, which is a product,
then bias and activation by the same kernel for both.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import command_line
import numba
import numpy as np
from llvmlite import ir

from dl4jlegacy.kernels.numba.compile import has_wide_registers
from dl4jlegacy.kernels.numba.emission import FLOATS, block, fma, load, nested, store, variables, vector
from dl4jlegacy.kernels.numba.kernels import bias_activation
from dl4jlegacy.kernels.numba.product import matmul
from dl4jlegacy.kernels.threads import one_thread

MEAN, EACH, LAYER = 0.95, 0.8, 1.1
ACCUMULATORS = 24 if has_wide_registers() else 5  # with AVX2 a vector of 64 bytes takes two registers

Shape = tuple[int, int, int]


def dense(batch: int, n_in: int, n_out: int) -> dict[str, tuple[Shape, bool, bool]]:
    """Return the three products of a dense layer: (m, k, n), and which factors are transposed views."""
    name = f"{n_in}-{n_out}, batch {batch}"
    return {
        f"forward {name}": ((batch, n_in, n_out), False, True),
        f"weights {name}": ((n_out, batch, n_in), True, False),
        f"inputs {name}": ((batch, n_out, n_in), False, False),
    }


PRODUCTS = {
    name: product
    for batch in (32, 128, 512)
    for sizes in ((784, 500), (500, 250), (250, 10))
    for name, product in dense(batch, *sizes).items()
}
PRODUCTS |= dense(128, 800, 200) | dense(16, 64, 128) | dense(2048, 64, 512)
PRODUCTS["a time step of an LSTM, batch 32"] = ((32, 128, 512), False, False)
PRODUCTS["2048 cubed"] = ((2048, 2048, 2048), False, False)


def _fma_loop(builder: ir.IRBuilder, x: ir.Value, count: ir.Value) -> None:
    """Add products to independent sums and do nothing else; ``x`` holds the initial values, and gets the total."""
    start = load(builder, x)
    sums = variables(builder, ACCUMULATORS, [start] * ACCUMULATORS)

    def one(_: list[ir.Value]) -> None:
        for total in sums:
            builder.store(fma(builder, start, vector(0.5), builder.load(total)), total)

    nested(builder, (count,), one)
    whole = builder.load(sums[0])
    for total in sums[1:]:
        whole = builder.fadd(whole, builder.load(total))
    store(builder, whole, x)


fma_loop = block(2, 0)(_fma_loop)


@numba.njit
def _loops(x: np.ndarray, count: int) -> None:
    fma_loop(np.uint64(x.ctypes.data), np.uint64(count))


def peak() -> float:
    """Return operations a second of multiply-adds in registers, the best of several attempts."""
    x, count = np.zeros(FLOATS.count, np.float32), 200_000
    _loops(x, count)
    best = min(seconds(lambda: _loops(x, count), 1) for _ in range(9))
    return 2.0 * ACCUMULATORS * FLOATS.count * count / best


def seconds(step: Callable[[], object], repeat: int) -> float:
    """Return the seconds of one step."""
    start = time.perf_counter()
    for _ in range(repeat):
        step()
    return (time.perf_counter() - start) / repeat


def race(product: tuple[Shape, bool, bool], rounds: int, *, layer: bool = False) -> tuple[float, float, float]:
    """Return our median seconds, the BLAS's, and the median ratio of the turns.

    With ``layer`` bias and activation follow the product.
    """
    (m, k, n), a_turned, b_turned = product
    rng = np.random.default_rng(1)
    a = rng.standard_normal((k, m) if a_turned else (m, k), np.float32)
    b = rng.standard_normal((n, k) if b_turned else (k, n), np.float32)
    a, b, out = a.T if a_turned else a, b.T if b_turned else b, np.empty((m, n), np.float32)
    bias = rng.standard_normal(n, np.float32)
    products: tuple[Callable[[], object], ...] = (lambda: matmul(a, b, out), lambda: np.matmul(a, b, out=out))
    steps = [_then_activate(one, out, bias) for one in products] if layer else products
    for step in steps:
        step()  # compile, touch memory
    repeat = max(3, int(5e7 / (m * k * n)))
    times: list[list[float]] = [[], []]
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            times[which].append(seconds(steps[which], repeat))
    ratio = statistics.median(theirs / ours for ours, theirs in zip(*times, strict=True))
    return statistics.median(times[0]), statistics.median(times[1]), ratio


def _then_activate(product: Callable[[], object], out: np.ndarray, bias: np.ndarray) -> Callable[[], object]:
    def step() -> None:
        product()
        bias_activation(out, bias, "relu")

    return step


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with one_thread():
        return report(rounds)


def report(rounds: int) -> int:
    """Print every product; return the exit status."""
    most = peak()
    print(f"multiply-adds in registers: {most / 1e9:.0f} billion operations a second")
    print(f"{'':<36}{'ours':>8}{'of peak':>9}{'BLAS':>8}{'ratio':>8}")
    ratios = []
    for name, product in PRODUCTS.items():
        ours, blas, ratio = race(product, rounds)
        work = 2.0 * math.prod(product[0])
        print(
            f"{name:<36}{work / ours / 1e9:8.1f}{work / ours / most:9.0%}{work / blas / 1e9:8.1f}{ratio:8.2f}",
            flush=True,
        )
        ratios.append(ratio)
    layers = [race(product, rounds, layer=True)[2] for name, product in PRODUCTS.items() if name.startswith("forward")]
    mean, least, layer = statistics.geometric_mean(ratios), min(ratios), statistics.geometric_mean(layers)
    print(f"geometric mean {mean:.2f} (goal {MEAN}), least {least:.2f} (goal {EACH})")
    print(f"forward passes with bias and activation: geometric mean {layer:.2f} (goal {LAYER})")
    return 0 if mean >= MEAN and least >= EACH and layer >= LAYER else 1


if __name__ == "__main__":
    raise SystemExit(main())
