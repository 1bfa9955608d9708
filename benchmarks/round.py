"""What a round costs beside the computation: ``python benchmarks/round.py [--rounds 200] [--format json]``.

A master, four workers, Hazelcast and Zookeeper, each a process of its own on this machine; a network of 90 parameters,
jobs of one batch of eight examples, data travelling with the jobs, everything signed.

* Synchronous rounds of 4 jobs: from the moment before a job is issued until its commit is done (goal: median 10 ms),
  and a round's time from head to head less the longest computation in it (goal: median 25 ms).
* Rounds of 400 jobs: jobs a second, from head to head (goal: 1,500).
* The master's memory while it averages 8 updates of 14.6 M parameters, a round's peak less what it has when idle, in
  models (goal: 3).
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable

import command_line
import measured
from cluster_run import ClusterRun, Task

SKIPPED = 5  # rounds in which caches and compilers warm up


def short_rounds(report: measured.Report, servers: object, rounds: int) -> None:
    with ClusterRun(servers, Task(rounds=rounds, slots=4)) as run:
        run.finish()
        jobs = run.jobs()
    overheads, latencies, leases = [], [], []
    for before, after in zip(run.heads[SKIPPED:], run.heads[SKIPPED + 1 :], strict=False):
        if after.round != before.round + 1:
            continue  # the end of the run
        notes = [jobs[f"job/{before.round}/{slot}"] for slot in range(4)]
        overheads.append(after.time - before.time - max(note["computed"] for note in notes))
        latencies += [note["committed"] - note["issued"] for note in notes]
        leases += [note["committed"] - note["leased"] for note in notes]
    report.add("job, from before it is issued to its commit", 1e3 * statistics.median(latencies), "ms", 10.0)
    report.add("job, from its lease to its commit", 1e3 * statistics.median(leases), "ms")
    report.add("round of 4 jobs, beside the computation", 1e3 * statistics.median(overheads), "ms", 25.0)
    slow = statistics.quantiles(overheads, n=20)[-1]
    report.add("the same, 95th percentile", 1e3 * slow, "ms", note=f"{len(overheads)} rounds")


def long_rounds(report: measured.Report, servers: object, rounds: int) -> None:
    slots = 400
    with ClusterRun(servers, Task(rounds=rounds, slots=slots)) as run:
        run.finish()
    times = [head.time for head in run.heads if head.round >= 2]
    rates = [slots / (after - before) for before, after in itertools.pairwise(times) if after - before > 0.01]
    total = slots * (len(times) - 2) / (times[-2] - times[0])
    report.add("jobs a second, rounds of 400 jobs", total, "1/s", 1500.0, at_least=True)
    report.add("the same, median round", statistics.median(rates), "1/s", note=f"{len(rates)} rounds")


def memory(report: measured.Report, servers: object) -> None:
    hidden = (2560, 3000, 2240)  # 14.6 M parameters with 64 inputs
    sizes = (64, *hidden, 2)
    parameters = sum(a * b + b for a, b in itertools.pairwise(sizes))
    model = parameters * 4
    task = Task(rounds=5, slots=8, hidden=hidden, n_in=64, batch=16)
    with ClusterRun(servers, task) as run:
        run.wait_for_round(1)
        assert run.master is not None
        idle = lowest(run.master.pid, until=lambda: any(head.round >= 4 for head in run.heads))
        run.finish()
    before = run.heads[0].rss
    peak = max(head.peak for head in run.heads if 2 <= head.round <= 4)  # each since the previous head
    report.details["memory"] = {"model": model, "before": before, "idle": idle, "peak": peak}
    report.say(
        f"{parameters:,} parameters, {model / 1e6:.1f} MB; the master has {before / 1e6:.0f} MB before its run, "
        f"{idle / 1e6:.0f} MB while it waits for updates, {peak / 1e6:.0f} MB at most"
    )
    report.add("the master's peak while averaging 8 updates", (peak - idle) / model, "models", 3.0)
    report.add("the same, above the process before its run", (peak - before) / model, "models")


def lowest(pid: int, until: Callable[[], bool]) -> int:
    """Return the least memory of a process in bytes, sampled every 2 ms."""
    import psutil  # optional: the extra "bench"

    process, found = psutil.Process(pid), sys.maxsize
    while not until():
        found = min(found, process.memory_info().rss)
        time.sleep(0.002)
    return found


def main() -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="of 4 jobs (200)")
    arguments = parser.parse_args()
    command_line.require("psutil")
    rounds = arguments.rounds
    report = measured.Report("a round over Hazelcast, a master and 4 workers", arguments.format)
    with measured.services(heap="2g") as servers:
        short_rounds(report, servers, rounds)
        long_rounds(report, servers, max(10, rounds // 8))
        memory(report, servers)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
