"""Training steps on a GPU, ours and PyTorch's side by side: ``python benchmarks/nn_gpu.py [CASE ...]``.

    --precision float32|tf32|bf16 (default float32)   --rounds N --steps N

Cases: mlp (784-2048-2048-10, batch 512), lenet (batch 512), lstm (512 units, batch 128, 64 time steps), dbn (one step
of contrastive divergence, 784-1024, batch 512), averaging and threshold (vectors of 14.6 million floats, against the
card's own copy). Both sides run in this process and take turns, in reversed order every second round; a turn is so many
steps between two synchronisations. Printed are device, precision, medians, and the median of the rounds' ratios. The
case "profile" counts the calls inside our loop that wait for the device. Exit status 1 if a goal is missed, 3 if
there is no GPU: then nothing was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import command_line
import nn_gpu_ours as ours
import numpy as np

from dl4jlegacy.arrays import devices
from dl4jlegacy.arrays.backend import import_cupy
from dl4jlegacy.errors import DeviceError
from dl4jlegacy.kernels import load

Step = Callable[[], Any]
SIZES = {"mlp": (512, 2048, 0), "lenet": (512, 0, 0), "lstm": (128, 512, 64)}  # batch, hidden units, time steps
GOALS = {"torch": 1.0, "torch-graph": 0.95}
RBM_GOAL, BANDWIDTH_GOAL = 1.2, 0.6
FLOATS = 14_600_000
WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaMalloc",
           "cudaFree")  # fmt: skip


def race(contenders: Mapping[str, Step], wait: Callable[[], None], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the microseconds of a step, per contender and round."""
    for step in contenders.values():
        for _ in range(5):  # compile, capture, fill pools
            step()
    wait()
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            step = contenders[name]
            wait()
            start = time.perf_counter()
            with getattr(step, "turn", contextlib.nullcontext)():
                for _ in range(steps):
                    step()
            wait()
            taken[name].append((time.perf_counter() - start) / steps * 1e6)
    return taken


def report(title: str, taken: Mapping[str, list[float]], goals: Mapping[str, float]) -> bool:
    """Print one table with our speed relative to each contender's; return whether all goals were reached."""
    print(title, flush=True)
    reached = True
    for name, times in taken.items():
        ratio = statistics.median(theirs / own for theirs, own in zip(times, taken["ours"], strict=True))
        goal = goals.get(name)
        text = "" if goal is None else f"   goal {goal}x: {'reached' if ratio >= goal else 'MISSED'}"
        reached &= goal is None or ratio >= goal
        print(f"  {name:<18}{statistics.median(times):12,.1f} us   ours is {ratio:5.2f}x as fast{text}", flush=True)
    return reached


def network(case: str, arguments: argparse.Namespace) -> bool:
    """Race one network against PyTorch."""
    import nn_gpu_torch as peer

    peer.set_precision(arguments.precision)
    batch, hidden, steps = SIZES[case]
    data = ours.batch_of(case, batch, steps)
    own = {"precision": arguments.precision}
    contenders = {
        "ours": ours.training(case, batch, hidden, steps, from_host=False, **own),
        "ours-from-host": ours.training(case, batch, hidden, steps, from_host=True, **own),
        "torch": peer.training(case, hidden, data, graph=False, **own),
        "torch-graph": peer.training(case, hidden, data, graph=True, **own),
    }
    taken = race(contenders, synchronize, arguments.rounds, arguments.steps)
    return report(f"{case}, batch {batch}, {arguments.precision}", taken, GOALS)


def dbn(arguments: argparse.Namespace) -> bool:
    """Race contrastive divergence against the same computation in PyTorch."""
    import nn_gpu_torch as peer

    peer.set_precision(arguments.precision)
    contenders = {
        "ours": ours.pretraining(512, 1024, precision=arguments.precision),
        "torch": peer.pretraining(512, 1024),
    }
    taken = race(contenders, synchronize, arguments.rounds, arguments.steps)
    return report(f"dbn, batch 512, {arguments.precision}", taken, {"torch": RBM_GOAL})


def averaging(arguments: argparse.Namespace) -> bool:
    """Compare the weighted mean of four vectors with the card's copy: bytes read and written per second."""
    kernels = load("cupy")
    vectors = [kernels.xp.full(FLOATS, float(k), np.float32) for k in range(4)]
    out = kernels.xp.empty(FLOATS, np.float32)
    return bandwidth("averaging of 4", lambda: kernels.weighted_sum(vectors, [0.25] * 4, out), 5, arguments)


def threshold(arguments: argparse.Namespace) -> bool:
    """Compare threshold encoding with the card's copy; one in 300 elements is sent."""
    kernels = load("cupy")
    random = np.random.default_rng(1).standard_normal(FLOATS).astype(np.float32)
    residual, codes = kernels.xp.asarray(random), kernels.xp.empty(FLOATS // 16, np.int32)
    fresh = kernels.xp.asarray(random)

    def step() -> None:
        kernels.axpy(residual, fresh, 1e-6)  # counted too: 12 bytes an element
        kernels.threshold_encode(residual, 2.94, codes)

    return bandwidth("threshold encoding (with its update)", step, 3 + 2, arguments)


def bandwidth(title: str, step: Step, passes: int, arguments: argparse.Namespace) -> bool:
    """Race ``step``, which must read or write ``passes`` vectors, against a plain copy."""
    xp = load("cupy").xp
    source, target = xp.zeros(FLOATS, np.float32), xp.empty(FLOATS, np.float32)

    def copy() -> None:
        target[...] = source

    taken = race({"ours": step, "copy": copy}, synchronize, arguments.rounds, arguments.steps)
    speeds = {name: (passes if name == "ours" else 2) * 4 * FLOATS / statistics.median(times) / 1e3
              for name, times in taken.items()}  # fmt: skip
    ratio = speeds["ours"] / speeds["copy"]
    verdict = "reached" if ratio >= BANDWIDTH_GOAL else "MISSED"
    print(f"{title}, {FLOATS:,} floats: {speeds['ours']:,.0f} GB/s, copy {speeds['copy']:,.0f} GB/s: "
          f"{ratio:.0%} of it   goal {BANDWIDTH_GOAL:.0%}: {verdict}", flush=True)  # fmt: skip
    return ratio >= BANDWIDTH_GOAL


def profile(arguments: argparse.Namespace) -> bool:
    """Count the runtime calls that wait for the device in fifty steps of every network, batches from the host."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    reached = True
    for case, (batch, hidden, steps) in SIZES.items():
        step = ours.training(case, batch, hidden, steps, precision=arguments.precision, from_host=True)
        for _ in range(60):  # until every slot of the staging exists
            step()
        synchronize()
        with profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
            for _ in range(50):
                step()
        waits = {event.key: event.count for event in found.key_averages() if event.key in WAITING}
        print(f"profile, {case}: 50 steps, calls that wait: {waits or 'none'}", flush=True)
        reached &= not waits
    return reached


def synchronize() -> None:
    """Wait for everything on the device, ours and PyTorch's."""
    import_cupy().cuda.Device().synchronize()  # part of every turn: nothing may be allocated here


CASES: dict[str, Callable[[argparse.Namespace], bool]] = {
    **{case: functools.partial(network, case) for case in SIZES},
    "dbn": dbn,
    "averaging": averaging,
    "threshold": threshold,
    "profile": profile,
}


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    unknown = [case for case in arguments.cases if case not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(CASES)}")
    try:
        [device, *_] = devices.choose("gpu")
    except DeviceError as exc:
        print(f"nothing was measured: {exc}", file=sys.stderr)
        return 3
    if set(arguments.cases or CASES) - {"averaging", "threshold"}:  # those two race only the card's own copy
        command_line.require("torch")
    print(f"{device.text}, {arguments.precision}, medians of {arguments.rounds} rounds of {arguments.steps} steps")
    reached = [CASES[case](arguments) for case in arguments.cases or CASES]  # all, even if the first misses its goal
    return 0 if all(reached) else 1


if __name__ == "__main__":
    raise SystemExit(main())
