"""Where a training step of a network goes, kernel by kernel: ``python benchmarks/nn_kernels.py [CASE ...]``.

    --batch N     examples of a batch (default 128)
    --steps N     batches that are timed (default 150)

Cases are those of ``nn_cpu.py``. One thread, in whose processor time everything is given. Printed are, for each kernel
and shape, the median of the microseconds of a batch, their share in the whole step, and for those that multiply and add
their operations a second as a share of what this processor reaches in a loop of nothing else, timed in the same run.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, cast

import command_line
import nn_contenders  # before NumPy: one thread
import nn_rbm
from products import peak

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.kernels import load
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.kernels.threads import one_thread
from dl4jlegacy.nn import MultiLayerNetwork

CASES = ("lenet", "lenet-stride1", "mlp", "rbm")
Call = tuple[str, str]


class Timed:
    """Kernels that record the time of each call."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels
        self.seconds: dict[Call, float] = defaultdict(float)
        self.work: dict[Call, float] = defaultdict(float)

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)
        return self._timed(name, kernel) if callable(kernel) and name not in ("lanes", "xp") else kernel

    def _timed(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.thread_time()
            result = kernel(*args)
            spent = time.thread_time() - start
            arrays = [a for a in args if hasattr(a, "shape") and a.ndim]
            key = name, " ".join("x".join(map(str, a.shape)) for a in arrays[:2])
            self.seconds[key] += spent
            self.work[key] += operations(name, args)
            return result

        self.__dict__[name] = call
        return call


def operations(name: str, args: tuple[Any, ...]) -> float:
    """Return the multiplications and additions of a call; 0 for kernels with other work."""
    if name == "matmul":
        return 2.0 * args[0].size * args[1].shape[1]
    if not name.startswith("conv"):
        return 0.0
    tiles = [a for a in args if hasattr(a, "shape") and a.ndim == 5]
    weights = next(a for a in args if hasattr(a, "shape") and a.ndim == 4)
    if name.startswith("conv_pool"):
        places = math.prod(args[-1][0]) * len(weights) * len(tiles[0]) * tiles[0].shape[4]
        return 2.0 * places * weights[0].size * (2 if name.endswith("backward") and args[6] is not None else 1)
    places = tiles[0].size if name == "conv_backward_input" else tiles[1].size
    return 2.0 * places * weights[0].size


def step_of(case: str, batch: int, kernels: Timed) -> Callable[[], object]:
    """Return a function that trains one batch."""
    if case == "rbm":
        machine, visible = nn_rbm.network(kernels), nn_rbm.data()[:batch]
        return functools.partial(machine.pretrain_batch, 0, visible, iteration=0, stream=Stream.of(1))
    network = MultiLayerNetwork(nn_contenders.configuration(case), kernels=cast(Kernels, kernels))
    x, classes = nn_contenders.data(case)
    return functools.partial(network.fit, DataSet.of_classes(x[:batch], classes[:batch], 10))


def profile(case: str, batch: int, steps: int) -> None:
    """Train ``steps`` batches and print the table."""
    kernels = Timed(load("numba"))
    train = step_of(case, batch, kernels)
    for _ in range(5):
        train()  # compile, touch memory
    found: dict[Call, list[float]] = defaultdict(list)
    whole, most = [], 0.0
    for number in range(steps):
        if number % 10 == 0:
            most = max(most, peak())
        kernels.seconds.clear()
        kernels.work.clear()
        start = time.thread_time()
        train()
        whole.append(time.thread_time() - start)
        for key, seconds in kernels.seconds.items():
            found[key].append(seconds)
    report(case, batch, most, statistics.median(whole), {k: statistics.median(v) for k, v in found.items()}, kernels)


def report(case: str, batch: int, most: float, whole: float, medians: dict[Call, float], kernels: Timed) -> None:
    """Print one table, the most expensive kernel first."""
    print(f"{case}, batch {batch}: {1e6 * whole:.0f} us a batch, {batch / whole:,.0f} examples/s; multiply-adds in "
          f"registers: {most / 1e9:.0f} billion operations a second")  # fmt: skip
    print(f"  {'kernel':<72}{'us':>8}{'of step':>9}{'of peak':>9}")
    rest, work = whole, 0.0
    for key, seconds in sorted(medians.items(), key=lambda pair: -pair[1]):
        rest -= seconds
        work += kernels.work[key]
        share = f"{kernels.work[key] / seconds / most:9.0%}" if kernels.work[key] else ""
        if seconds > 0.002 * whole:
            print(f"  {' '.join(key):<72}{1e6 * seconds:8.0f}{seconds / whole:9.1%}{share}")
    print(f"  {'the rest: Python, and copies by NumPy':<72}{1e6 * rest:8.0f}{rest / whole:9.1%}")
    print(f"  {'all multiply-adds of the step':<72}{'':8}{'':9}{work / whole / most:9.0%}", flush=True)


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"no case is called {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if not 1 <= arguments.batch <= nn_contenders.EXAMPLES:
        parser.error(f"--batch {arguments.batch}: 1 to {nn_contenders.EXAMPLES}")
    with one_thread():
        for case in arguments.cases or ("lenet", "lenet-stride1"):
            profile(case, arguments.batch, arguments.steps)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
