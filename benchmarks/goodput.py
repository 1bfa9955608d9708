"""A worker killed and replaced every 20 s: ``python benchmarks/goodput.py [--seconds 100] [--every 20]``.

The same run of a master and four worker processes twice: undisturbed, and with one worker after the other killed
(SIGKILL) and at once replaced by a new process, which needs its second or two to start. Timed from the second round to
the last head; the start, which is the same for both, does not count; the replacements' starts do. Goal: at least 90 %
of the undisturbed run's speed, no batch lost or counted twice, same parameters.
"""

from __future__ import annotations

import sys
import time

import command_line
import measured
from cluster_run import ClusterRun, Task

GOAL = 90.0


def task_of(rounds: int) -> Task:
    return Task(
        rounds=rounds, slots=16, hidden=(256, 256), n_in=32, batch=512, batches=5, min_workers=1, deadline=900.0
    )


def run(servers: object, rounds: int, every: float) -> tuple[float, dict[str, object], int]:
    """Return the run's seconds, its report, and how many workers were killed; ``every`` 0: none."""
    killed = 0
    with ClusterRun(servers, task_of(rounds)) as running:
        running.wait_for_round(2)
        begun = time.monotonic()
        while every and running.master is not None:
            time.sleep(max(0.0, begun + (killed + 0.5) * every - time.monotonic()))
            if running.master.poll() is not None or running.heads[-1].round >= rounds:
                break
            victim = running.processes[killed % 4]
            victim.kill()
            victim.wait()
            running.processes[killed % 4] = running.add_worker()
            running.processes.pop()
            killed += 1
        report = running.finish()
        return running.seconds(2), report, killed


def main() -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--seconds", type=int, default=100, help="of a run (100)")
    parser.add_argument("--every", type=int, default=20, help="seconds from one kill to the next (20)")
    arguments = parser.parse_args()
    seconds, every = arguments.seconds, arguments.every
    report = measured.Report(f"one of four workers killed and replaced every {every} s", arguments.format)
    with measured.services() as servers:
        trial, _, _ = run(servers, 30, 0)
        rounds = max(30, round(seconds / trial * 28))
        speeds, answers, kills = {}, [], 0
        for name, period in (("undisturbed", 0), ("disturbed", every)):
            taken, answer, killed = run(servers, rounds, period)
            speeds[name] = (rounds - 2) / taken
            answers.append(answer)
            kills += killed
            report.add(f"{name}: rounds a second", speeds[name], "1/s", note=f"{taken:.1f} s, {killed} killed")
    report.add("goodput", 100 * speeds["disturbed"] / speeds["undisturbed"], "%", GOAL, at_least=True)
    report.add("workers killed", kills, "", 1, at_least=True)
    report.add(
        "batches lost or counted twice", sum(a["batches_lost"] + a["batches_duplicated"] for a in answers), "", 0
    )
    report.add("different parameters", len({a["params_sha256"] for a in answers}) - 1, "", 0)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
