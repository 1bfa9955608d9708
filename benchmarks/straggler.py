"""One slow worker of four: ``python benchmarks/straggler.py [--rounds 12] [--turns 3] [--slots 16] [--format json]``.

Whole synchronous runs of a master and four worker processes, in turns undisturbed and with one worker that is stopped
(SIGSTOP) for 40 ms of every 50, so that it has a fifth of its speed. Timed from the second round to the last head; the
first round, in which everybody joins, does not count, on either side. Goal: 1.35x the undisturbed run, same parameters.
A fifth of one worker's speed leaves 3.2 of 4 workers, so 1.25x is what perfect balance would give.
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

ON, OFF, GOAL = 0.01, 0.04, 1.35


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


def run(servers: object, task: Task, *, slow: bool) -> tuple[float, str]:
    """Return the run's seconds and the hash of its parameters."""
    with ClusterRun(servers, task) as running:
        running.wait_for_round(1)
        if slow:
            with slowed(running.processes[0].pid):
                report = running.finish()
        else:
            report = running.finish()
        return running.seconds(2), report["params_sha256"]


def compare(report: measured.Report, servers: object, task: Task, turns: int) -> None:
    hashes: list[str] = []

    def contender(slow: bool) -> float:
        seconds, found = run(servers, task, slow=slow)
        hashes.append(found)
        return seconds

    taken = measured.take_turns({"even": lambda: contender(False), "slow": lambda: contender(True)}, turns)
    rounds = task.rounds - 2
    report.add(f"{task.slots} jobs a round, undisturbed", statistics.median(taken["even"]) / rounds, "s a round")
    report.add(
        f"{task.slots} jobs a round, one worker slowed 5x", statistics.median(taken["slow"]) / rounds, "s a round"
    )
    ratio = measured.median_ratio(taken["slow"], taken["even"])
    report.add(f"{task.slots} jobs a round, by the undisturbed", ratio, "x", GOAL, note=f"{turns} turns")
    report.add(f"{task.slots} jobs a round, different parameters", len(set(hashes)) - 1, "", 0)


def main() -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="of a run (12)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--slots", type=int, action="append", help="jobs of a round (16, 8 and 32)")
    arguments = parser.parse_args()
    report = measured.Report("one worker of four slowed 5x, synchronous rounds over Hazelcast", arguments.format)
    with measured.services() as servers:
        for slots in arguments.slots or [16, 8, 32]:
            task = Task(rounds=arguments.rounds, slots=slots, hidden=(256, 256), n_in=32, batch=512, batches=5)
            compare(report, servers, task, arguments.turns)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
