"""What stale updates do to what is learned: ``python benchmarks/staleness.py [--plot FILE.svg] [--format json]``.

The experiment of Zhang, Gupta, Lian and Liu 2015 (arXiv 1511.05950): 30 workers train a LeNet on MNIST, and an update
is divided by its staleness, or taken as it is, all at one rate of learning. The workers are simulated, one after the
other in this process: each holds the model version that it began with, and they finish in an order that the seed
decides. What is open, when it is folded and how is the strategy's own doing, and real workers' performer does the jobs;
so every figure is the same at each call on one machine. Nothing is timed, and there is no goal; where
the numbers become infinite, it says so and after how many examples.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import command_line
import line_chart
import measured
import msgspec
from threadpoolctl import threadpool_limits

from dl4jlegacy.datasets import DataSource, ListDataSetIterator, load
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.models.model import evaluate_network
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.nn.optimization.updaters import Sgd
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.state.aggregate import PARAMS, aggregate
from dl4jlegacy.scaleout.state.job import DataSetJobIterator, Job, Result
from dl4jlegacy.scaleout.state.records import Head, Manifest, advance
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies import WorkRouter, create_router
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer

MODELS = {"lenet": zoo.lenet, "mlp": zoo.mlp}
WATCHED = 1000  # test examples, at most, that score the model during training
SPREAD = 0.25  # a job takes 1 +- this, in units of the simulation


@dataclass(frozen=True)
class Task:
    """The training and its number of workers; ``watches`` times the model is scored during training."""

    source: DataSource
    model: str
    conf: Conf
    test: int
    watches: int


@dataclass(frozen=True)
class Case:
    """One run of the comparison."""

    router: str
    args: dict[str, Any]

    @property
    def name(self) -> str:
        """The name in the table, without the rate."""
        return f"softsync n={self.args['n']}" if self.router == "softsync" else self.router

    @property
    def rate(self) -> str:
        """The factor of an update, for people."""
        return {"staleness": "1/tau", "constant": "constant"}.get(self.args.get("rate", ""), "-")


@dataclass
class Trained:
    """The result of a run: ``staleness`` of each update, ``curve`` of (examples, accuracy), and where it diverged."""

    staleness: list[int] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    examples: int = 0
    versions: int = 0
    model: Result | None = None
    diverged: str = ""


class Simulation:
    """A run whose workers take turns in one process.

    Args:
        strategy: of the run.
        jobs: plan and data of the run.
        conf: gives the workers and the seed.
        first: version 0 of the model.
        performer: performs every worker's jobs: ``update`` discards all it remembers of the previous worker.
    """

    def __init__(
        self,
        strategy: WorkRouter,
        jobs: DataSetJobIterator,
        conf: Conf,
        first: Result,
        performer: MultiLayerNetworkPerformer,
    ) -> None:
        self._strategy, self._jobs, self._plan, self._performer = strategy, jobs, jobs.plan, performer
        self._aggregator = strategy.fold(load_kernels(None))
        self._random, self._now, self._idle = random.Random(conf.seed), 0.0, conf.workers
        self.head, self.frame = Head(run="simulated", version=0, round=0, model=Manifest("", 0, 0)), first.encode()
        self._busy: list[tuple[float, int]] = []  # (when it will be done, the job's number), a heap
        self._begun: dict[int, tuple[int, Buffer]] = {}
        self._done: dict[int, tuple[int, Buffer]] = {}

    def run(self, on_version: Callable[[Head, Buffer, list[int]], None]) -> None:
        """Train to the end of the plan; call ``on_version`` with each head, its model and the staleness of its updates.

        Raises:
            NotFiniteError: the numbers became infinite.
        """
        while self.head.round < self._plan.total_rounds:
            opened, ready = self._strategy.open_slots(self._plan, self.head), []
            while not ready:
                self._begin_jobs(opened)
                self._finish_one()
                ready = self._strategy.send_work(opened, self._done.keys())
            staleness = self._fold(ready)
            on_version(self.head, self.frame, staleness)

    def _begin_jobs(self, opened: list[int]) -> None:
        """Give the next jobs to idle workers; they begin with the newest version."""
        free = [number for number in opened if number not in self._begun and number not in self._done]
        for number in free[: self._idle]:
            takes = 1 + self._random.uniform(-SPREAD, SPREAD)
            heapq.heappush(self._busy, (self._now + takes, number))
            self._begun[number] = (self.head.version, self.frame)
            self._idle -= 1

    def _finish_one(self) -> None:
        """Let the worker that finishes first perform its job, from the version that it began with."""
        self._now, number = heapq.heappop(self._busy)
        version, frame = self._begun.pop(number)
        self._idle += 1
        slot = self._plan.slot(*self._plan.at(number))
        self._performer.update(Result.decode(frame))
        job = Job(slot, self._plan.work_of(slot.round), self._jobs.work(slot), version=version)
        result = self._performer.perform(job)
        assert result is not None
        self._done[number] = (version, result.encode())

    def _fold(self, ready: list[int]) -> list[int]:
        """Make the next version from some updates; return the staleness of each."""
        head, folded = self.head, [self._done.pop(number) for number in ready]
        following = advance(head, self._plan, ready)
        self.frame, _ = aggregate(
            self._aggregator,
            self.frame,
            [update for _, update in folded],
            version=head.version,
            ends_phase=self._plan.ends_phase(head.round, following.round),
        )
        self.head = following
        return [head.version - version for version, _ in folded]


def train(task: Task, case: Case) -> Trained:
    """Return the result of a run with simulated workers."""
    conf, kernels, trained = task.conf, load_kernels(None), Trained()
    data = ListDataSetIterator(task.source.train, conf.batch_size, seed=conf.seed)
    strategy = create_router(case.router, case.args, jobs_per_round=conf.jobs_per_round)
    jobs = DataSetJobIterator(data, jobs_per_round=conf.jobs_per_round, phases=conf.phases())
    network = build_network(conf.network_conf, kernels)
    performer = MultiLayerNetworkPerformer(network, seed=conf.seed, update_kind=strategy.update_kind)
    network.init()
    watched = build_network(conf.network_conf, kernels)
    every = jobs.plan.total_examples / max(1, task.watches)

    def on_version(head: Head, frame: Buffer, staleness: list[int]) -> None:
        trained.staleness += staleness
        trained.examples, trained.versions, trained.model = head.examples, head.version, Result.decode(frame)
        if head.examples >= every * (len(trained.curve) + 1) - 1e-6:
            trained.curve.append((head.examples, accuracy(watched, trained.model, task, WATCHED)))

    try:
        with threadpool_limits(limits=1, user_api="blas"):
            Simulation(strategy, jobs, conf, first_model(network), performer).run(on_version)
    except NotFiniteError as exc:
        trained.diverged = str(exc)
    return trained


def accuracy(network: Any, model: Result, task: Task, most: int) -> float:
    """Return the accuracy on the first test examples."""
    network.set_params(model.arrays[PARAMS])
    test = task.source.test.rows(0, min(most, task.test))
    return float(evaluate_network(network, test, task.source.label_names).fields()["accuracy"])


def row_of(task: Task, case: Case, trained: Trained) -> dict[str, Any]:
    """Return the table's row of a run; without an accuracy if the run diverged."""
    network = build_network(task.conf.network_conf, load_kernels(None))
    right = None if trained.diverged or trained.model is None else accuracy(network, trained.model, task, task.test)
    taus = trained.staleness or [0]
    return {
        "strategy": case.name,
        "rate": case.rate,
        "accuracy": right,
        "mean_staleness": sum(taus) / len(taus),
        "max_staleness": max(taus),
        "updates": len(trained.staleness),
        "versions": trained.versions,
        "examples": trained.examples,
        "diverged": trained.diverged,
        "curve": trained.curve,
    }


def written(row: dict[str, Any]) -> str:
    right = f"diverged after {row['examples']:,}" if row["diverged"] else f"{row['accuracy']:.4f}"
    return (
        f"{row['strategy']:<18} {row['rate']:<9} {right:>22} {row['mean_staleness']:>9.2f} {row['max_staleness']:>6} "
        f"{row['versions']:>9,}"
    )


def chart(title: str, rows: list[dict[str, Any]]) -> str:
    """Return the drawing of the curves: a colour for each strategy, dashed with a constant rate."""
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    lines = []
    for row in rows:
        points = [(float(examples), right) for examples, right in row["curve"]]
        if row["diverged"] and not points:
            points = [(float(row["examples"]), 0.1)]
        colour = line_chart.COLOURS[names.index(row["strategy"]) % len(line_chart.COLOURS)]
        name = row["strategy"] + ("" if row["rate"] == "-" else f", {row['rate']}")
        dashed, cross = row["rate"] == "constant", bool(row["diverged"])
        lines.append(line_chart.Line(name, tuple(points), colour, dashed, cross))
    return line_chart.line_chart(title, "examples", "accuracy on test examples (x: diverged)", lines)


def cases_of(workers: int, counts: list[int]) -> list[Case]:
    """Return the runs to compare; the first one is synchronous, without any staleness."""
    cases = [Case("iterative-reduce", {})]
    for rate in ("staleness", "constant"):
        cases += [Case("softsync", {"n": n, "rate": rate}) for n in counts if n <= workers]
        cases.append(Case("hogwild", {"rate": rate}))
    return cases


def task_of(arguments: Any) -> Task:
    source = load(arguments.dataset)
    examples = min(arguments.examples, source.train.num_examples)
    source = dataclasses.replace(source, train=source.train.rows(0, examples))
    network = MODELS[arguments.model](source.train.features[0].size, len(source.label_names))
    updater = Sgd(learning_rate=arguments.rate_of_learning)
    conf = Conf(
        multi_layer_conf=msgspec.structs.replace(network, conf=msgspec.structs.replace(network.conf, updater=updater)),
        workers=arguments.workers,
        jobs_per_round=arguments.workers,
        batch_size=arguments.batch,
        epochs=arguments.epochs,
        seed=arguments.seed,
    )
    return Task(source, arguments.model, conf, min(arguments.test, source.test.num_examples), arguments.watches)


def parse(arguments: list[str] | None = None) -> Any:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--model", choices=MODELS, default="lenet", help="of the zoo, with plain SGD (lenet)")
    parser.add_argument("--dataset", default="mnist", help="mnist, digits, or what else dl4j takes (mnist)")
    parser.add_argument("--workers", type=int, default=30, help="simulated ones (30)")
    parser.add_argument("--n", type=int, action="append", help="of softsync, may be repeated (1, 15 and 30)")
    parser.add_argument("--examples", type=int, default=48_000, help="to train on (48,000)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over them (1)")
    parser.add_argument("--batch", type=int, default=8, help="examples of an update (8)")
    parser.add_argument("--rate-of-learning", type=float, default=0.1, help="of plain SGD (0.1)")
    parser.add_argument("--test", type=int, default=10_000, help="test examples for the last score (10,000)")
    parser.add_argument("--watches", type=int, default=10, help=f"scores on the way, on at most {WATCHED:,} (10)")
    parser.add_argument("--seed", type=int, default=123, help="of network, data and order (123)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the scores on the way as SVG")
    return parser.parse_args(arguments)


def main(given: list[str] | None = None) -> int:
    arguments = parse(given)
    task = task_of(arguments)
    title = f"{arguments.model} on {arguments.dataset}, {arguments.workers} simulated workers"
    report = measured.Report(title, arguments.format)
    conf, train_examples = task.conf, task.source.train.num_examples
    report.say(
        f"{conf.epochs} x {train_examples:,} examples, batches of {conf.batch_size}, "
        f"SGD {arguments.rate_of_learning:g}, seed {conf.seed}; accuracy on {task.test:,} test examples"
    )
    report.say(f"{'strategy':<18} {'rate':<9} {'accuracy':>22} {'mean tau':>9} {'max':>6} {'versions':>9}")
    rows = []
    for case in cases_of(arguments.workers, arguments.n or [1, 15, 30]):
        rows.append(row_of(task, case, train(task, case)))
        report.say(written(rows[-1]))
    report.details = {"rows": rows, "test_examples": task.test}
    if arguments.plot is not None:
        arguments.plot.write_text(chart(title, rows), encoding="utf-8")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
