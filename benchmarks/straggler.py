"""One slow worker of several: ``python benchmarks/straggler.py [--router ssp] [--rounds 12] [--turns 3] [--slots 16]``.

Whole runs of a master and worker processes, in turns undisturbed and with one worker that is stopped (SIGSTOP) for 40
ms of every 50, so that it has a fifth of its speed. Timed from the second round to the last head; the first round, in
which everybody joins, does not count, on either side. A fifth of one worker's speed leaves 3.2 of 4 workers, so 1.25x
the undisturbed run is what perfect balance would give. Goals: with synchronous rounds 1.35x, and the same parameters;
with ``hogwild``, ``softsync`` and ``ssp`` 85 % of that balance's speed (1.47x). For these every worker needs a core of
its own: where there are fewer, the others run faster while one is stopped; take fewer ``--workers``.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import command_line
import measured
from cluster_run import ClusterRun, Task

ON, OFF = 0.01, 0.04
SYNCHRONOUS, GOAL, LEAST = "iterative-reduce", 1.35, 0.85
ROUTERS = (SYNCHRONOUS, "hogwild", "softsync", "ssp")


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Let a process run a fifth of the time."""
    over = threading.Event()

    def toggle() -> None:
        try:
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(OFF)
                os.kill(pid, signal.SIGCONT)
                over.wait(ON)
        except ProcessLookupError:
            return  # the run is over

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def goal_of(task: Task, workers: int) -> float:
    """Return how many times as long a run may take with one worker at a fifth of its speed."""
    return GOAL if task.router == SYNCHRONOUS else workers / (workers - 1 + ON / (ON + OFF)) / LEAST


def run(servers: object, task: Task, workers: int, *, slow: bool) -> tuple[float, str]:
    """Return the run's seconds and the hash of its parameters."""
    with ClusterRun(servers, task, workers) as running:
        running.wait_for_round(1)
        if slow:
            with slowed(running.processes[0].pid):
                report = running.finish()
        else:
            report = running.finish()
        return running.seconds(2), report["params_sha256"]


def compare(report: measured.Report, servers: object, task: Task, workers: int, turns: int) -> None:
    hashes: list[str] = []

    def contender(slow: bool) -> float:
        seconds, found = run(servers, task, workers, slow=slow)
        hashes.append(found)
        return seconds

    taken = measured.take_turns({"even": lambda: contender(False), "slow": lambda: contender(True)}, turns)
    rounds, what = task.rounds - 2, f"{task.router}, {task.slots} jobs a round"
    report.add(f"{what}, undisturbed", statistics.median(taken["even"]) / rounds, "s a round")
    report.add(f"{what}, one worker slowed 5x", statistics.median(taken["slow"]) / rounds, "s a round")
    ratio = measured.median_ratio(taken["slow"], taken["even"])
    has_goal = task.router == SYNCHRONOUS or measured.cores() >= workers
    goal = goal_of(task, workers) if has_goal else None
    report.add(f"{what}, by the undisturbed", ratio, "x", goal, note=f"{turns} turns")
    if task.router == SYNCHRONOUS:
        report.add(f"{what}, different parameters", len(set(hashes)) - 1, "", 0)


def main(given: list[str] | None = None) -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--router", choices=ROUTERS, action="append", help="may be repeated (iterative-reduce)")
    parser.add_argument("--workers", type=int, default=4, help="processes (4)")
    parser.add_argument("--rounds", type=int, default=12, help="of a run (12)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--slots", type=int, action="append", help="jobs of a round (16, 8 and 32)")
    arguments = parser.parse_args(given)
    workers = arguments.workers
    report = measured.Report(f"one worker of {workers} slowed 5x, over Hazelcast", arguments.format)
    if measured.cores() < workers:
        report.say(f"{measured.cores()} cores for {workers} workers: too few for the goals without rounds")
    with measured.services() as servers:
        for router in arguments.router or [SYNCHRONOUS]:
            for slots in arguments.slots or [16, 8, 32]:
                task = Task(
                    rounds=arguments.rounds,
                    slots=slots,
                    hidden=(256, 256),
                    n_in=32,
                    batch=512,
                    batches=5,
                    min_workers=workers,
                    router=router,
                )
                compare(report, servers, task, workers, arguments.turns)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
