"""One slow worker of several: ``python benchmarks/straggler.py [--router ssp] [--rounds 12] [--turns 3] [--slots 16]``.

Whole runs of a master and worker processes, in turns undisturbed and with one worker that is stopped (SIGSTOP) for 80
ms of every 100, so that it has a fifth of its speed. Timed from the second round to the last head; the first round, in
which everybody joins, does not count, on either side. A fifth of one worker's speed leaves 3.2 of 4 workers, so 1.25x
the undisturbed run is what perfect balance would give. Goals: with synchronous rounds 1.35x, and the same parameters;
with ``hogwild``, ``softsync`` and ``ssp`` 85 % of that balance's speed (1.47x).

Every worker needs a core of its own, or the others run faster while one is stopped. Where there are fewer cores the
workers take turns: each runs for its share of every 100 ms, the slow one for a fifth of that, and no more of them at a
time than there are cores. On both sides: the machine is then one with slower cores, one for each worker.
"""

from __future__ import annotations

import itertools
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import command_line
import measured
from cluster_run import ClusterRun, Task

PERIOD, SLOW = 0.1, 0.2
SERVERS = 0.1  # of the cores, for master, tracker and this process, if the workers take turns
SYNCHRONOUS, GOAL, LEAST = "iterative-reduce", 1.35, 0.85
ROUTERS = (SYNCHRONOUS, "hogwild", "softsync", "ssp")


def slices(workers: int, cores: int, *, slow: bool) -> list[tuple[float, float]]:
    """Return the start and end of each worker's time in every period, as fractions of it; the first may be slow.

    >>> slices(4, 2, slow=True)
    [(0.0, 0.09), (0.25, 0.7), (0.5, 0.95), (0.75, 1.2)]
    """
    share = 1.0 if cores >= workers else (1.0 - SERVERS) * cores / workers
    begins = [0.0 if share == 1.0 else number / workers for number in range(workers)]
    runs = [share * (SLOW if slow and number == 0 else 1.0) for number in range(workers)]
    return [(begin, round(begin + run, 9)) for begin, run in zip(begins, runs, strict=True)]


@contextmanager
def sliced(processes: Sequence[subprocess.Popen[str]], when: Sequence[tuple[float, float]]) -> Iterator[None]:
    """Let processes run only in these parts of every period."""
    over, start = threading.Event(), time.monotonic()
    switches = [
        (at % 1.0, number, kind)
        for number, (begin, end) in enumerate(when)
        if end - begin < 1.0
        for at, kind in ((begin, signal.SIGCONT), (end, signal.SIGSTOP))
    ]

    def switch() -> None:
        for period in itertools.count():
            for at, number, kind in sorted(switches):
                if over.wait(max(0.0, start + PERIOD * (period + at) - time.monotonic())):
                    return
                processes[number].send_signal(kind)  # no effect if the process has ended

    thread = threading.Thread(target=switch)
    if switches:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if switches:
            thread.join()
        for process in processes:
            process.send_signal(signal.SIGCONT)


def goal_of(task: Task, workers: int) -> float:
    """Return how many times longer a run may take with one worker at a fifth of its speed."""
    return GOAL if task.router == SYNCHRONOUS else workers / (workers - 1 + SLOW) / LEAST


def run(servers: object, task: Task, workers: int, *, slow: bool) -> tuple[float, str]:
    """Return the run's seconds and the hash of its parameters."""
    with ClusterRun(servers, task, workers) as running:
        running.wait_for_round(1)
        with sliced(running.processes, slices(workers, measured.cores(), slow=slow)):
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
    report.add(f"{what}, by the undisturbed", ratio, "x", goal_of(task, workers), note=f"{turns} turns")
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
        report.say(f"{measured.cores()} cores for {workers} workers, which take turns on both sides")
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
