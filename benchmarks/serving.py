"""LeNet behind ``dl4j serve``, beside a bare loop and PyTorch: ``python benchmarks/serving.py [ROUNDS]``.

In turns: a loop that calls ``network.output`` with 32 rows, and the server, of whose keep-alive connections each sends
requests of 32 rows as ``.npy`` bodies one after the other; then the same for a PyTorch LeNet, behind the same server
with its ``predict`` in the place of ours. All have one BLAS thread; load, server and network share the cores. On a
machine that others use too, the server with its threads gets more of the cores than the loop: what a second of the
processor is enough for is printed beside. At half of the server's own throughput requests come at random times
(Poisson), and latencies count from when each was to be sent.

Goals: the server has at least 0.9 of the loop's rows per second, and its p99 at half load is below twice the batching
delay.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

import numpy as np
from http_load import Load, request_of
from measured import ENVIRONMENT, Contender
from serving_contenders import ROWS, features, write_lenet

CONTENDERS = Path(__file__).with_name("serving_contenders.py")
GOAL, WARM_SECONDS, HALF = 0.9, 1.0, 0.5
NPY = [("content-type", "application/x-npy"), ("accept", "application/x-npy")]


@contextmanager
def dl4j_serve(model: Path, limit: int, delay: float) -> Iterator[tuple[str, int]]:
    """Yield the address of our LeNet served by the command, and its process id."""
    words = ["serve", str(model), "--port", "0", "--format", "json", "--max-queue", "1024"]
    words += ["--batch-limit", str(limit), "--batch-delay", str(delay)]
    process = subprocess.Popen(
        [sys.executable, "-m", "dl4jlegacy", *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"], process.pid
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def torch_serve(model: Path, limit: int, delay: float) -> Iterator[tuple[str, int]]:
    """Yield the address of PyTorch's LeNet served by the same server, and its process id."""
    own = Contender(
        str(CONTENDERS), "torch", "--model", str(model), "--batch-limit", str(limit), "--batch-delay", str(delay)
    )
    try:
        yield own.ask("url"), own.process.pid
    finally:
        own.stop()


def body() -> bytes:
    """Return the body of a request."""
    content = io.BytesIO()
    np.save(content, features(ROWS))
    return content.getvalue()


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(step: Callable[[], float], pid: int, seconds: float) -> tuple[float, float]:
    """Return the rows per second that ``step`` returns, and the rows per processor second of a process."""
    began = cpu_seconds(pid)
    rows = step()
    return rows, rows * seconds / max(cpu_seconds(pid) - began, 1e-3)


def throughput(name: str, loop: Contender, url: str, pid: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Print and return the median rows per second of a server, and its ratio to the loop, turn by turn."""
    seconds, found = arguments.seconds, {"bare": list[tuple[float, float]](), "served": list[tuple[float, float]]()}
    with Load(url, request_of(f"{url}/predict", body(), NPY), arguments.connections) as load:
        load.closed_loop(WARM_SECONDS)
        steps = {
            "bare": lambda: measured(lambda: loop.ask(str(seconds)), loop.process.pid, seconds),
            "served": lambda: measured(lambda: ROWS * load.closed_loop(seconds), pid, seconds),
        }
        for turn in range(arguments.rounds):
            for who in list(steps) if turn % 2 == 0 else list(reversed(steps)):
                found[who].append(steps[who]())
    pairs = list(zip(found["served"], found["bare"], strict=True))
    ratio, per_cpu = (statistics.median(mine[kind] / base[kind] for mine, base in pairs) for kind in (0, 1))
    bare, served = (statistics.median(rows for rows, _ in found[who]) for who in steps)
    print(f"  {name:<8} bare loop at batch {ROWS} {bare:>10,.0f} rows/s")
    print(f"  {name:<8} behind the server   {served:>10,.0f} rows/s   {ratio:5.2f}x the loop", flush=True)
    print(f"  {name:<8} for each second of the processor that the server takes, {per_cpu:.2f}x the rows of the loop")
    return served, ratio


def latency(name: str, url: str, rate: float, arguments: argparse.Namespace) -> float:
    """Print the latencies at a rate of requests per second; return p99 in milliseconds."""
    delay = 1e3 * arguments.batch_delay
    rng, p50s, p99s = np.random.default_rng(7), list[float](), list[float]()
    with Load(url, request_of(f"{url}/predict", body(), NPY), arguments.connections) as load:
        load.closed_loop(WARM_SECONDS)
        for _ in range(arguments.rounds):
            gaps = rng.exponential(1 / rate, round(rate * arguments.seconds))
            p50, p99 = np.percentile(1e3 * np.array(load.open_loop(np.cumsum(gaps).tolist())), (50, 99))
            p50s.append(float(p50))
            p99s.append(float(p99))
    p50, p99 = statistics.median(p50s), statistics.median(p99s)
    print(
        f"  {name:<8} at {rate:,.0f} requests/s: p50 {p50:.2f} ms, p99 {p99:.2f} ms; "
        f"twice the batching delay is {2 * delay:g} ms",
        flush=True,
    )
    return p99


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=7, help="turns of each (7)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn (3)")
    parser.add_argument("--connections", type=int, default=16, help="that are kept alive (16)")
    parser.add_argument("--batch-limit", type=int, default=256, help="rows computed together at most (256)")
    parser.add_argument(
        "--batch-delay", type=float, default=0.01, help="seconds that a request waits for others (0.01)"
    )
    parser.add_argument("--without-torch", action="store_true", help="ours only")
    arguments = parser.parse_args()
    if not arguments.without_torch:
        command_line.require("torch")
    libraries = ", ".join(name for name in ("httptools", "uvloop") if command_line.is_installed(name)) or "h11 only"
    print(
        f"LeNet, requests of {ROWS} rows, {arguments.connections} connections, batch limit {arguments.batch_limit}; "
        f"{side_by_side.cores()} cores; {libraries}"
    )
    ratios, p99s = {}, {}
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-") as folder:
        model = Path(folder) / "lenet.zip"
        write_lenet(model)
        servers = {"ours": dl4j_serve} if arguments.without_torch else {"ours": dl4j_serve, "PyTorch": torch_serve}
        for name, serve in servers.items():
            with ExitStack() as stack:
                loop = Contender(str(CONTENDERS), "bare" if name == "ours" else "bare-torch")
                stack.callback(loop.stop)
                url, pid = stack.enter_context(serve(model, arguments.batch_limit, arguments.batch_delay))
                rows, ratios[name] = throughput(name, loop, url, pid, arguments)
                p99s[name] = latency(name, url, HALF * rows / ROWS, arguments)
    most = 2e3 * arguments.batch_delay
    reached = ratios["ours"] >= GOAL and p99s["ours"] < most
    print(
        f"goals: {GOAL}x: {'reached' if ratios['ours'] >= GOAL else 'MISSED'} ({ratios['ours']:.2f}x); "
        f"p99 at half load below {most:g} ms: {'reached' if p99s['ours'] < most else 'MISSED'} ({p99s['ours']:.2f} ms)"
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
