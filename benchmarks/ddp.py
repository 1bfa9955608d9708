"""Workers against PyTorch's DistributedDataParallel: ``python benchmarks/ddp.py [--turns 5] [--format json]``.

784-500-250-10, plain SGD, batches of 128 on each of four workers of one thread each, all on this machine. DDP has four
processes over gloo, which average the gradients of every batch. Ours are measured in both ways in which a run has four
workers on one machine: "processes" are a master and four workers over a tracker, as ``dl4j master`` and ``dl4j worker``
make them, "threads" are those of ``ActorNetworkRunner``, as in ``dl4j train --workers 4``. All processes, DDP's too,
have the data in their own memory. They average parameters after each batch (with plain SGD that is what DDP does),
share gradients, or average every five batches.

A turn runs each once. Processes, DDP's too, are timed from when all of them take part; runs with threads, which have
nobody to wait for, as a whole. Goals, for machines with a core for every worker: 2x, 2x and 2.6x DDP.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import measured
import numpy as np
from cluster_run import ClusterRun, Task, conf_of, invented

WORKERS, BATCH, WARM, DEADLINE = 4, 128, 5, 300.0
WAYS = ("processes", "threads")
SHARING = {"router": "gradient-sharing", "router_args": {"average": True}}
NETWORK = Task(
    rounds=1, slots=WORKERS, n_in=784, hidden=(500, 250), n_out=10, batch=BATCH, min_workers=WORKERS, notes=False
)


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to combine the workers' results; ``goal`` as a multiple of DDP's examples a second."""

    name: str
    task: Task
    goal: float


MODES = (
    Mode("averaging each batch", NETWORK, 2.0),
    Mode("gradient sharing", dataclasses.replace(NETWORK, **SHARING), 2.0),
    Mode("averaging every 5 batches", dataclasses.replace(NETWORK, batches=5), 2.6),
)


def rounds_of(mode: Mode, batches: int) -> Mode:
    """Return the mode with ``batches`` batches for each worker."""
    rounds = WARM + max(1, batches // mode.task.batches)
    return dataclasses.replace(mode, task=dataclasses.replace(mode.task, rounds=rounds))


# -- ours --------------------------------------------------------------------------------------------------------------


def with_files(task: Task, folder: Path) -> Task:
    """Return a task whose workers read their data themselves: generated features, as files in MNIST's format."""
    train, side = invented(task).train, math.isqrt(task.n_in)
    images = np.rint(255 * train.features).astype(np.uint8).reshape(-1, side, side)
    labels = (np.arange(len(images)) % task.n_out).astype(np.uint8)  # every class must occur
    folder.mkdir()
    for kind in ("train", "t10k"):
        (folder / f"{kind}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *images.shape) + images.tobytes())
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, labels.size) + labels.tobytes())
    return dataclasses.replace(task, dataset=str(folder))


def in_processes(servers: Any, task: Task) -> float:
    """Return the examples a second of a cluster run, without its first rounds."""
    with ClusterRun(servers, task, WORKERS) as running:
        running.finish()
        return (task.rounds - WARM) * task.slots * task.batches * task.batch / running.seconds(WARM)


def be_threads(given: str) -> None:
    """Serve as a contender's process; runs count as a whole, except the first one, which compiles."""
    from dl4jlegacy import ActorNetworkRunner
    from dl4jlegacy.datasets import ListDataSetIterator

    task = Task(**json.loads(given))
    data, conf = invented(task).train, conf_of(task)

    def run() -> float:
        with ActorNetworkRunner("master", ListDataSetIterator(data, task.batch)) as runner:
            runner.setup(conf)
            result = runner.train(deadline=DEADLINE)
        assert result is not None
        return float(result.examples_per_second)

    run()
    measured.serve({"run": run})


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def with_ddp(batches: int) -> float:
    """Return the examples a second of DDP's processes together."""
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-") as folder:
        environment = {**measured.ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), "--meeting", folder, "--batches", str(batches)],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(WORKERS)
        ]
        try:
            answers = [process.communicate(timeout=DEADLINE)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"processes of DDP ended with {[process.returncode for process in processes]}")
    return float(json.loads(answers[0]))


def be_rank(rank: int, meeting: str, batches: int) -> None:
    """Run as one of DDP's processes; print the examples a second of all of them."""
    import torch  # optional: the extra "bench"
    from torch import distributed, nn

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}/meeting", rank=rank, world_size=WORKERS)
    net = nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 250), nn.ReLU(), nn.Linear(250, 10))
    model, loss_of = nn.parallel.DistributedDataParallel(net), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rng = np.random.default_rng(rank)
    x = torch.from_numpy(rng.random((8 * BATCH, 784), dtype=np.float32))
    labels = torch.from_numpy(rng.integers(0, 10, 8 * BATCH))

    def train(count: int) -> float:
        distributed.barrier()
        began = time.perf_counter()
        for number in range(count):
            start = number % 8 * BATCH
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x[start : start + BATCH]), labels[start : start + BATCH])
            loss.backward()
            optimizer.step()
            loss.item()
        distributed.barrier()
        return time.perf_counter() - began

    train(4 * WARM)
    print(json.dumps(WORKERS * BATCH * batches / train(batches)), flush=True)
    distributed.destroy_process_group()


# -- the comparison ----------------------------------------------------------------------------------------------------


def watched(report: measured.Report, name: str, run: Callable[[], float]) -> Callable[[], float]:
    """Return a contender that prints its result at once: turns take minutes."""

    def turn() -> float:
        rate = run()
        report.say(f"{name}: {rate:,.0f} examples/s")
        return rate

    return turn


def compare(report: measured.Report, ways: list[str], batches: int, turns: int) -> None:
    modes = [rounds_of(mode, batches) for mode in MODES]
    contenders: dict[str, Callable[[], float]] = {"DDP": lambda: with_ddp(batches)}
    threads = []
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-") as folder, measured.services() as servers:
        try:
            for mode in modes:
                if "processes" in ways:
                    stored = with_files(mode.task, Path(folder, mode.name.replace(" ", "-")))
                    contenders[f"{mode.name}, processes"] = lambda task=stored: in_processes(servers, task)
                if "threads" in ways:
                    child = measured.Contender(__file__, "--threads", json.dumps(dataclasses.asdict(mode.task)))
                    threads.append(child)
                    contenders[f"{mode.name}, threads"] = lambda child=child: float(child.ask("run"))
            taken = measured.take_turns({name: watched(report, name, run) for name, run in contenders.items()}, turns)
        finally:
            for child in threads:
                child.stop()
    for name, rates in taken.items():
        report.add(name, statistics.median(rates), "examples/s")
    enough = measured.cores() >= WORKERS
    if not enough:
        report.say(f"{measured.cores()} cores for {WORKERS} workers: too few for the goals")
    for mode in modes:
        for way in ways:
            name = f"{mode.name}, {way}"
            ratio = measured.median_ratio(taken[name], taken["DDP"])
            report.add(f"{name}, by DDP", ratio, "x", mode.goal if enough else None, at_least=True)
    report.details["rates"] = taken


def main(given: list[str] | None = None) -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--batches", type=int, default=200, help="of each worker in a run (200)")
    parser.add_argument("--turns", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--way", choices=WAYS, action="append", help="may be repeated (both)")
    own = parser.add_argument_group("of its own processes")
    own.add_argument("--rank", type=int, help="of a process of DDP")
    own.add_argument("--meeting", metavar="FOLDER", help="where these find each other")
    own.add_argument("--threads", metavar="JSON", help="the task of a process with worker threads")
    arguments = parser.parse_args(given)
    if arguments.threads:
        be_threads(arguments.threads)
        return 0
    command_line.require("torch", "jgo")
    if arguments.rank is not None:
        be_rank(arguments.rank, arguments.meeting, arguments.batches)
        return 0
    report = measured.Report("four workers against DistributedDataParallel, 784-500-250-10", arguments.format)
    compare(report, arguments.way or list(WAYS), arguments.batches, arguments.turns)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
