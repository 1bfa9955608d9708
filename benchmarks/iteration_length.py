"""When more workers pay: ``python benchmarks/iteration_length.py [--workers 1,2,4,8] [--milliseconds 100,10,1]``.

Deeplearning4j's rule of thumb says of an iteration, which is a batch on one worker: at 100 ms and more training scales
well over a cluster, at 10 ms less than linearly, and at 1 ms and less there is nothing to be gained. Here a worker's
iteration takes exactly that long, whatever machine this is: it waits, and computes nothing, so that eight workers on a
machine with few cores are not in each other's way. All else is a run as ``dl4j master`` and ``dl4j worker`` make it:
processes over Hazelcast and Zookeeper on this machine, and a model of half a million parameters (784-500-250-10),
which every worker sends and gets again after each iteration, or with ``--batches 5`` after every five.

Speed is iterations a second of all workers together, by one that had nothing else to do; so with N workers N is ideal.
Goal: with four workers at least 80 % of that at 100 ms.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import command_line
import measured

GOAL_MILLISECONDS, GOAL_WORKERS, GOAL = 100.0, 4, 0.8
WARM, DEADLINE = 3, 300.0
"""Number of rounds that are not counted; deadline of a run in seconds."""


@dataclass(frozen=True)
class Case:
    """The duration of an iteration, the number of iterations between two averagings, and the number of workers."""

    milliseconds: float
    batches: int
    workers: int
    rounds: int


class Iterations:
    """A performer whose batches take a given time each; its update is the unchanged model."""

    def __init__(self, conf: Any, kernels: Any) -> None:
        self.progress = 0
        self._seconds, self._never = conf.performer_args["milliseconds"] / 1e3, threading.Event()

    def update(self, model: Any) -> None:
        """Keep the model of the round."""
        self._params = model.arrays["params"]

    def perform(self, job: Any) -> Any:
        """Wait for the duration of the job's batches; the end of it is a busy wait, since sleeping ends late."""
        from dl4jlegacy.scaleout.state.job import Result

        end = time.perf_counter() + self._seconds * len(job.work)
        self._never.wait(max(0.0, end - time.perf_counter() - 5e-4))
        while time.perf_counter() < end:
            pass
        self.progress += len(job.work)
        return Result({"examples": len(job.work), "score": 0.0}, {"params": self._params})


class Noted:
    """A saver that saves nothing, and records the time of each version."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def save(self, head: Any, model: Any) -> None:
        """Record the time."""
        self.seen.append((time.monotonic(), head.round))

    def rounds_a_second(self) -> float:
        """Return the rounds a second after the first rounds."""
        (begin, first), (end, last) = next(each for each in self.seen if each[1] >= WARM), self.seen[-1]
        return (last - first) / (end - begin)


def be_master(case: Case, run: str, tracker: dict[str, str], zookeeper: str) -> None:
    """Lead a run as its master; print its rounds a second."""
    import numpy as np

    from dl4jlegacy import (
        ActorNetworkRunner,
        Conf,
        DenseLayer,
        ListDataSetIterator,
        MultiLayerConfiguration,
        NeuralNetConfiguration,
        OutputLayer,
    )
    from dl4jlegacy.datasets import DataSet

    count = case.rounds * case.workers * case.batches
    data = DataSet(np.zeros((count, 784), np.float32), np.eye(10, dtype=np.float32)[np.arange(count) % 10])
    network = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=1),
        layers=(DenseLayer(n_in=784, n_out=500), DenseLayer(n_out=250), OutputLayer(n_out=10, activation="softmax")),
    )
    conf = Conf(
        multi_layer_conf=network,
        performer="iterations",
        performer_args={"milliseconds": case.milliseconds},
        run=run,
        workers=case.workers,
        min_workers=case.workers,
        jobs_per_round=case.workers,
        averaging_frequency=case.batches,
        batch_size=1,
        checkpoint_every=1,
    )
    noted = Noted()
    with ActorNetworkRunner(
        "master", ListDataSetIterator(data, 1, shuffle=False), **tracker, zookeeper=zookeeper, saver=noted
    ) as runner:
        runner.setup(conf)
        runner.train(deadline=DEADLINE, progress=False)
    print(json.dumps(noted.rounds_a_second()), flush=True)


def be_worker(zookeeper: str) -> None:
    """Work for the run."""
    from dl4jlegacy import ActorNetworkRunner
    from dl4jlegacy.scaleout.workers.plugins import register_performer

    register_performer("iterations")(Iterations)
    with ActorNetworkRunner("worker", zookeeper=zookeeper) as runner:
        runner.setup()
        runner.train(progress=False)


def rounds_a_second(servers: Any, case: Case, number: int) -> float:
    """Return the rounds a second of a run of processes."""
    common = [sys.executable, __file__, "--zookeeper", servers.zookeeper]
    where = {"tracker": f"hazelcast://{servers.hazelcast}", "cluster_name": servers.cluster_name}
    master = [
        *common,
        *("--role", "master", "--run", f"iterations-{os.getpid()}-{number}", "--case", json.dumps(vars(case))),
        *("--tracker", json.dumps(where)),
    ]
    commands = [master, *[[*common, "--role", "worker"] for _ in range(case.workers)]]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=measured.ENVIRONMENT) for command in commands
    ]
    try:
        answer = processes[0].communicate(timeout=DEADLINE)[0]
        if processes[0].returncode:
            raise RuntimeError(f"the master of {case} ended with {processes[0].returncode}")
        for process in processes[1:]:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return float(json.loads(answer))


def compare(report: measured.Report, given: Any) -> None:
    cases = [
        Case(length, given.batches, workers, WARM + max(20, int(given.seconds * 1e3 / (length * given.batches) / 4)))
        for length in given.milliseconds
        for workers in given.workers
    ]
    paces: dict[Case, list[float]] = {case: [] for case in cases}
    with measured.services() as servers:
        for turn in range(given.turns):
            for case in cases if turn % 2 == 0 else reversed(cases):
                paces[case].append(rounds_a_second(servers, case, turn * len(cases) + cases.index(case)))
    for case, found in paces.items():
        alone = 1e3 / (case.milliseconds * case.batches)
        speed = case.workers * statistics.median(found) / alone
        has_goal = (case.milliseconds, case.workers) == (GOAL_MILLISECONDS, GOAL_WORKERS)
        name = f"{case.milliseconds:g} ms, {case.workers} worker{'s' * (case.workers > 1)}"
        report.add(name, speed, "x", GOAL * GOAL_WORKERS if has_goal else None, at_least=True)
    report.details["rounds a second"] = {json.dumps(vars(case)): found for case, found in paces.items()}


def numbers(kind: Any) -> Any:
    """Return a parser of numbers separated by commas."""

    def read(text: str) -> Sequence[Any]:
        return [kind(each) for each in text.split(",")]

    return read


def main(given: list[str] | None = None) -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--milliseconds", type=numbers(float), default=[100.0, 10.0, 1.0], help="100,10,1")
    parser.add_argument("--workers", type=numbers(int), default=[1, 2, 4, 8], help="1,2,4,8")
    parser.add_argument("--batches", type=int, default=1, help="between two averagings (1)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a run that scales well, about (10)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (3)")
    own = parser.add_argument_group("of its own processes")
    for flag in ("--role", "--run", "--case", "--tracker", "--zookeeper"):
        own.add_argument(flag)
    arguments = parser.parse_args(given)
    if arguments.role == "master":
        case = Case(**json.loads(arguments.case))
        be_master(case, arguments.run, json.loads(arguments.tracker), arguments.zookeeper)
        return 0
    if arguments.role == "worker":
        be_worker(arguments.zookeeper)
        return 0
    command_line.require("jgo")
    report = measured.Report(
        "iterations of a given length, by one worker that has nothing else to do", arguments.format
    )
    compare(report, arguments)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
