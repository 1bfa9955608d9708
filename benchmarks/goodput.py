"""A worker killed and replaced every so often: ``python benchmarks/goodput.py [--task sharing] [--seconds 100]``.

The same run of a master and four worker processes twice: undisturbed, and with one worker after the other killed
(SIGKILL) and at once replaced by a new process, which needs its second or two to start. Timed from the second round to
the last head; the start, which is the same for both, does not count; the replacements' starts do. No batch may be lost
or counted twice, and the parameters must be the same. Where other things run on the same cores, the processor time of
master and workers, with all starts, says more than seconds do. The task is one of these:

* averaging: a network of 76,802 parameters, a kill every 20 s; goal: 90 % of the undisturbed run's speed.
* sharing: gradient sharing of 14.6 million parameters (784-2700-2700-1910-10, MNIST, which workers read themselves), a
  kill every 60 s; goal: 95 %. Whoever takes over a slot does its jobs again since its state was saved last.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import sys
import time

import command_line
import measured
from cluster_run import ClusterRun, Task
from compression import widths

MNIST = 60_000
SPARSE = {"threshold": "target-sparsity", "tau": 1e-3, "sparsity": 3e-3, "clip": 0.0, "average": True}


@dataclasses.dataclass(frozen=True)
class Kind:
    """The training; an epoch has ``rounds`` rounds, and ``trial`` epochs show how long they take."""

    task: Task
    rounds: int
    trial: int
    every: float
    goal: float


KINDS = {
    "averaging": Kind(
        Task(rounds=0, slots=16, hidden=(256, 256), n_in=32, batch=512, batches=5, min_workers=1),
        rounds=1,
        trial=30,
        every=20.0,
        goal=90.0,
    ),
    "sharing": Kind(
        Task(
            rounds=0,
            slots=4,
            hidden=(2700, 2700, 1910),
            n_in=784,
            n_out=10,
            batch=128,
            min_workers=1,
            router="gradient-sharing",
            router_args=SPARSE,
            dataset="mnist",
            notes=False,
        ),
        rounds=-(-MNIST // (4 * 128)),
        trial=1,
        every=60.0,
        goal=95.0,
    ),
}


@dataclasses.dataclass(frozen=True)
class Ran:
    """The result of a run: its seconds, its report, the number of killed workers, the processor seconds.

    The processor seconds are those of all its processes.
    """

    seconds: float
    report: dict[str, object]
    killed: int
    cpu: float


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(servers: object, task: Task, rounds: int, every: float) -> Ran:
    """Perform a run; with ``every`` 0 no worker is killed."""
    killed, before = 0, cpu_of_children()
    with ClusterRun(servers, task) as running:
        running.wait_for_round(2, task.deadline)
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
    return Ran(running.seconds(2), report, killed, cpu_of_children() - before)


def main(given: list[str] | None = None) -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--task", choices=KINDS, default="averaging", help="what is trained (averaging)")
    parser.add_argument("--seconds", type=int, default=100, help="of a run (100)")
    parser.add_argument("--every", type=float, help="seconds from one kill to the next (20, or of sharing 60)")
    parser.add_argument("--hidden", type=widths, help="widths of the network (those above)")
    parser.add_argument("--epochs", type=int, help="passes over the data, instead of --seconds")
    parser.add_argument("--turns", type=int, default=1, help="runs of each (1)")
    arguments = parser.parse_args(given)
    kind = KINDS[arguments.task]
    every = kind.every if arguments.every is None else arguments.every
    report = measured.Report(f"one of four workers killed and replaced every {every:g} s", arguments.format)
    with measured.services(heap="3g" if arguments.task == "sharing" else "1g") as servers:
        hidden = kind.task.hidden if arguments.hidden is None else tuple(arguments.hidden)
        task = dataclasses.replace(kind.task, hidden=hidden, deadline=max(900.0, 10 * arguments.seconds))
        epochs = arguments.epochs or epochs_for(servers, kind, task, arguments.seconds)
        task, rounds = dataclasses.replace(task, rounds=epochs), epochs * kind.rounds
        runs: dict[str, list[Ran]] = {"undisturbed": [], "disturbed": []}
        for turn in range(arguments.turns):
            for name in list(runs) if turn % 2 == 0 else list(reversed(runs)):
                runs[name].append(ran := run(servers, task, rounds, every if name == "disturbed" else 0.0))
                report.say(f"{name}: {ran.seconds:.1f} s, {ran.cpu:.1f} s of processors, {ran.killed} killed")
    tell(report, runs, rounds, kind.goal)
    return report.end()


def tell(report: measured.Report, runs: dict[str, list[Ran]], rounds: int, goal: float) -> None:
    """Report the runs; ratios are computed turn by turn."""
    for name, each in runs.items():
        report.add(f"{name}: rounds a second", (rounds - 2) / statistics.median(one.seconds for one in each), "1/s")
    even, hit = runs["undisturbed"], runs["disturbed"]
    goodput = measured.median_ratio([one.seconds for one in even], [one.seconds for one in hit])
    report.add("goodput", 100 * goodput, "%", goal, at_least=True)
    spent = measured.median_ratio([one.cpu for one in even], [one.cpu for one in hit])
    report.add("the same, by processor time", 100 * spent, "%")
    report.add("workers killed", sum(one.killed for one in hit), "", 1, at_least=True)
    answers = [one.report for one in (*even, *hit)]
    report.add(
        "batches lost or counted twice", sum(a["batches_lost"] + a["batches_duplicated"] for a in answers), "", 0
    )
    report.add("different parameters", len({a["params_sha256"] for a in answers}) - 1, "", 0)


def epochs_for(servers: object, kind: Kind, task: Task, seconds: float) -> int:
    """Return how many epochs take ``seconds``; at least those of a trial."""
    rounds = kind.trial * kind.rounds
    trial = run(servers, dataclasses.replace(task, rounds=kind.trial), rounds, 0)
    return max(kind.trial, round(seconds / trial.seconds * (rounds - 2) / kind.rounds))


if __name__ == "__main__":
    sys.exit(main())
