"""Training steps of whole networks, ours and its peers side by side: ``python benchmarks/nn_cpu.py [CASE ...]``.

    --peer-python PATH   an interpreter that has the peers, e.g. of a virtual environment (default: this one)
    --threads 1,4        numbers of threads (default 1)
    --batch N            examples in a batch (default 128, of the LSTM 32); the goals are for that one
    --rounds N --seconds S

Every contender lives in a process of its own with its own thread pools; they take turns, in reversed order every second
round. Printed are medians, and the median of the rounds' ratios to the better PyTorch (NCHW or channels-last, whichever
has the higher median). The case "compile" has no peers: it prints how long the first use of every zoo model's kernels
takes with an empty cache. Exit status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import command_line

WORKER = Path(__file__).with_name("nn_contenders.py")
TORCH = ("torch", "torch-channels-last")
BATCH = 128
BATCHES = {"lstm": 32}  # of 64 time steps
CASES = {  # contenders, and the goals against the better PyTorch by number of threads
    "lenet": (("ours", "ours-numpy", *TORCH, "jax"), {1: 3.5, 4: 3.0}),
    "lenet-stride1": (("ours", "ours-numpy", *TORCH), {1: 2.2}),
    "alexnet-small": (("ours", *TORCH), {1: 2.0}),
    "mlp": (("ours", "ours-numpy", "torch", "sklearn", "jax"), {1: 1.3, 4: 1.6}),
    "rbm": (("ours", "ours-numpy", "torch", "sklearn"), {1: 1.25}),
    "lstm": (("ours", "ours-numpy", "torch"), {1: 1.3}),
}
COMPILED = ("mlp", "dbn", "lenet", "alexnet-small", "char-lstm", "deep-autoencoder", "vae")
COMPILE_SECONDS = 2


class Contender:
    """A process that trains on request."""

    def __init__(self, case: str, who: str, threads: int, python: str, batch: int) -> None:
        ours = who.startswith("ours")
        own = "1" if who == "ours-4-workers" else str(threads)
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])] if ours else []
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
            "PYTHONPATH": os.pathsep.join(paths)
        }
        command = [sys.executable if ours else python, str(WORKER), case, who, str(batch), own]
        self.name = who
        self.rates: list[float] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        answer = self._read()
        self.missing = answer.removeprefix("MISSING ") if answer != "READY" else ""

    def turn(self, seconds: float) -> None:
        """Let it train for ``seconds``, and store the rate."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        self.rates.append(json.loads(self._read()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def race(case: str, threads: int, arguments: argparse.Namespace) -> bool:
    """Print one table; return whether the goal was reached (or there is none)."""
    names, goals = CASES[case]
    if threads > 1:
        names = tuple(name for name in names if name not in ("ours-numpy", "jax", "sklearn"))
        names += ("ours-4-workers",) if threads == 4 and case in ("lenet", "lenet-stride1", "mlp") else ()
    batch = arguments.batch or BATCHES.get(case, BATCH)
    print(f"{case}, batch {batch}, {threads} thread{'s' * (threads > 1)}: examples/s", flush=True)
    all_of_them = [Contender(case, name, threads, arguments.peer_python, batch) for name in names]
    for absent in (c for c in all_of_them if c.missing):
        library = absent.missing.split(".")[0]
        print(f"  {absent.name:<22} needs {library}, which is not installed: type '{command_line.INSTALL}'")
    present = [c for c in all_of_them if not c.missing]
    for number in range(arguments.rounds):
        for contender in present[:: -1 if number % 2 else 1]:
            time.sleep(0.05)  # until spinning pools have fallen asleep
            contender.turn(arguments.seconds)
    for contender in all_of_them:
        contender.close()
    return report(present, goals.get(threads))


def report(present: list[Contender], goal: float | None) -> bool:
    """Print medians and ratios to the better PyTorch."""
    medians = {c.name: statistics.median(c.rates) for c in present}
    peers = [c for c in present if c.name in TORCH]
    base = max(peers or present, key=lambda c: medians[c.name])
    best = 0.0
    for contender in present:
        ratio = statistics.median(a / b for a, b in zip(contender.rates, base.rates, strict=True))
        if contender.name in ("ours", "ours-4-workers"):
            best = max(best, ratio)
        print(f"  {contender.name:<22}{medians[contender.name]:12,.0f}{ratio:8.2f}x {base.name}")
    if goal is None or not peers:
        return True
    print(f"  goal {goal}x: {'reached' if best >= goal else 'MISSED'} ({best:.2f}x)", flush=True)
    return best >= goal


def compilation() -> bool:
    """Print the time of each model's first batch with an empty cache; return whether all are fast enough."""
    print("first use of a model's kernels with an empty cache, alone and with other compilers: seconds", flush=True)
    reached = True
    for model in COMPILED:
        alone, second = first_use(model)
        helped, _ = first_use(model, "--compilers")
        reached &= alone < COMPILE_SECONDS
        print(f"  {model:<22}{alone:8.1f}{helped:8.1f}  then {1000 * second:.1f} ms a batch")
    print(f"  goal below {COMPILE_SECONDS} s, alone: {'reached' if reached else 'MISSED'}", flush=True)
    return reached


def first_use(model: str, *options: str) -> tuple[float, float]:
    """Return the seconds of a model's first batch with an empty cache beyond those of the second, and the latter."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NUMBA_CACHE_DIR": folder, "PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, str(WORKER.with_name("nn_compile.py")), model, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    first, second = json.loads(done.stdout)
    return first - second, second


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join([*CASES, "compile"]))
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.4)
    arguments = parser.parse_args()
    chosen = arguments.cases or [*CASES, "compile"]
    unknown = set(chosen) - {*CASES, "compile"}
    if unknown:
        parser.error(f"unknown case {min(unknown)}; known: {', '.join(CASES)}, compile")
    counts = [int(count) for count in arguments.threads.split(",")]
    reached = [race(case, threads, arguments) for case in chosen if case in CASES for threads in counts]
    if "compile" in chosen:
        reached.append(compilation())
    return 0 if all(reached) else 1


if __name__ == "__main__":
    raise SystemExit(main())
