"""Every strategy with 1, 2, 4 and 8 workers: ``python benchmarks/strategies.py [--turns 3] [--format json]``.

Whole runs on MNIST in this process, through ``ActorNetworkRunner``, of whatever strategies there are, each with its
defaults (``--args NAME JSON`` for others). For each: the accuracy after as many examples as all others had; examples a
second, as the median of the turns' ratios to one worker that averages; the bytes that went into the run's tracker and
out of it for each example, in models, updates and what slots keep, without the data; and the mean staleness. In this
process a byte costs nothing but memory: on a cluster these travel. Accuracy and staleness of those that do not wait for
each other vary as the order does; they are medians of the turns. There is no goal.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import command_line
import measured

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, ListDataSetIterator, load
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.models.model import evaluate_network
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.records import HEAD, Head, JobRecord, Keys, decode_record
from dl4jlegacy.scaleout.state.store import Buffer, MemoryStore
from dl4jlegacy.scaleout.strategies import STRATEGIES
from dl4jlegacy.scaleout.tracker import StateTracker

MODELS = {"mlp": zoo.mlp, "lenet": zoo.lenet}
BASE = "iterative-reduce"  # with one worker the baseline of all speeds


class CountingStore(MemoryStore):
    """A run's store that counts the bytes written to it and read from it, by the first word of the keys.

    It also records the version that each job began with, and the heads, for the staleness. Thread-safe.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[str, int] = defaultdict(int)
        self.read: dict[str, int] = defaultdict(int)
        self.began: dict[str, int] = {}
        self.heads: list[Head] = []

    def put(self, key: str, value: Buffer) -> None:
        """See ``Store``; frames are put, and records are compared and set."""
        super().put(key, value)
        with self._lock:
            self.written[key.partition("/")[0]] += len(value)

    def get(self, key: str) -> Buffer | None:
        """See ``Store``."""
        value = super().get(key)
        with self._lock:
            self.read[key.partition("/")[0]] += 0 if value is None else len(value)
        return value

    def replace_if_same(self, key: str, expected: Buffer, value: Buffer) -> bool:
        """See ``Store``."""
        replaced = super().replace_if_same(key, expected, value)
        if replaced and key == HEAD:
            self.heads.append(decode_record(value, Head))  # only on the master's thread
        elif replaced and key.startswith("job/"):
            job = decode_record(value, JobRecord)
            if job.state == "done":
                self.began[key] = job.version
        return replaced

    def staleness(self, plan: Plan) -> list[int]:
        """Return, for each folded job, how many versions lie between its own version and the one it is folded into."""
        found: list[int] = []
        was: set[int] = set()
        for head in self.heads:
            now = slots_of(head)
            found += [head.version - 1 - self.began[Keys.job(*plan.at(number))] for number in sorted(now - was)]
            was = now
        return found


def slots_of(head: Head) -> set[int]:
    """Return the numbers of the slots folded into a head's model."""
    return {number for first, last in head.folded for number in range(first, last)}


@dataclass(frozen=True)
class Task:
    """The common training of all runs: ``examples`` of ``train``, ``epochs`` times."""

    train: DataSet
    test: DataSet
    label_names: tuple[str, ...]
    batch: int
    epochs: int
    frequency: int


@dataclass
class Runs:
    """The results of the turns for one strategy, model and number of workers; a diverged run has no accuracy."""

    accuracies: list[float | None] = field(default_factory=list)
    staleness: list[float] = field(default_factory=list)
    written: list[dict[str, float]] = field(default_factory=list)
    read: list[dict[str, float]] = field(default_factory=list)


def conf_of(task: Task, model: str, strategy: str, workers: int, args: dict[str, Any]) -> Conf:
    n_in, n_out = task.train.features[0].size, len(task.label_names)
    return Conf(
        multi_layer_conf=MODELS[model](n_in, n_out),
        router=strategy,
        router_args=args,
        workers=workers,
        batch_size=task.batch,
        epochs=task.epochs,
        averaging_frequency=task.frequency,
    )


def run(task: Task, conf: Conf, runs: Runs) -> float:
    """Train once; add the results to ``runs``; return examples a second, NaN if the run diverged."""
    store = CountingStore()
    data = ListDataSetIterator(task.train, task.batch, label_names=task.label_names)
    with ActorNetworkRunner("master", data, tracker=StateTracker(store)) as runner:
        runner.setup(conf)
        try:
            result = runner.train(deadline=900, progress=False)
        except NotFiniteError:
            runs.accuracies.append(None)
            return float("nan")
        assert result is not None
        examples = result.head.examples
        found = evaluate_network(runner.network(result), task.test, task.label_names).fields()["accuracy"]
        runs.accuracies.append(float(found))
        stale = store.staleness(result.plan)
    runs.staleness.append(statistics.mean(stale) if stale else 0.0)
    runs.written.append({kind: count / examples for kind, count in frames(store.written).items()})
    runs.read.append({kind: count / examples for kind, count in frames(store.read).items()})
    return result.examples_per_second


def frames(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts of large values that are not training data."""
    records = {"worker", "counter", "global", "job", "head", "data", "log"}
    return {kind: count for kind, count in counts.items() if kind not in records}


def rows_of(task: Task, model: str, counts: list[int], turns: int, args: dict[str, Any]) -> list[dict[str, Any]]:
    """Run everything with one model, in turns; return a row for each strategy and number of workers."""
    gave: dict[str, Runs] = {}
    contenders = {}
    cases = [(strategy, workers) for strategy in STRATEGIES for workers in counts]
    for strategy, workers in [(BASE, 1), *(case for case in cases if case != (BASE, 1))]:
        name = f"{strategy} {workers}"
        conf, gave[name] = conf_of(task, model, strategy, workers, args.get(strategy, {})), Runs()
        contenders[name] = lambda conf=conf, runs=gave[name]: run(task, conf, runs)
    run(task, conf_of(task, model, BASE, 1, {}), Runs())  # compile
    speeds = measured.take_turns(contenders, turns)
    return [
        row(model, strategy, workers, gave[f"{strategy} {workers}"])
        | {"speed": measured.median_ratio(speeds[f"{strategy} {workers}"], speeds[f"{BASE} 1"])}
        for strategy, workers in cases
    ]


def row(model: str, strategy: str, workers: int, runs: Runs) -> dict[str, Any]:
    """Return the table's row without the speed; without an accuracy if a run diverged."""
    right = [found for found in runs.accuracies if found is not None]
    return {
        "model": model,
        "strategy": strategy,
        "workers": workers,
        "accuracy": statistics.median(right) if len(right) == len(runs.accuracies) else None,
        "accuracies": runs.accuracies,
        "staleness": statistics.median(runs.staleness) if runs.staleness else None,
        "written": medians(runs.written),
        "read": medians(runs.read),
    }


def medians(counts: list[dict[str, float]]) -> dict[str, float]:
    """Return, for each kind of frame, the median over the runs of its bytes per example."""
    kinds = sorted({kind for count in counts for kind in count})
    return {kind: statistics.median(count.get(kind, 0.0) for count in counts) for kind in kinds}


def said(row: dict[str, Any]) -> str:
    right = "diverged" if row["accuracy"] is None else f"{row['accuracy']:.4f}"
    stale = "-" if row["staleness"] is None else f"{row['staleness']:.2f}"
    return (
        f"{row['model']:<6} {row['strategy']:<18} {row['workers']:>7} {right:>9} {row['speed']:>6.2f}x "
        f"{sum(row['written'].values()):>14,.0f} {sum(row['read'].values()):>13,.0f} {stale:>9}"
    )


def parse(given: list[str] | None = None) -> Any:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--model", choices=MODELS, action="append", help="may be repeated (mlp and lenet)")
    parser.add_argument("--dataset", default="mnist", help="mnist, digits, or what else dl4j takes (mnist)")
    parser.add_argument("--workers", type=int, action="append", help="may be repeated (1, 2, 4 and 8)")
    parser.add_argument("--examples", type=int, default=4_096, help="of a pass (4,096)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over them (1)")
    parser.add_argument("--batch", type=int, default=32, help="examples of a batch (32)")
    parser.add_argument("--averaging-frequency", type=int, default=1, help="batches of a job (1)")
    parser.add_argument("--test", type=int, default=10_000, help="test examples for the accuracy (10,000)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--args", nargs=2, metavar=("NAME", "JSON"), action="append", help="options of a strategy")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    arguments = parse(given)
    source = load(arguments.dataset)
    task = Task(
        source.train.rows(0, min(arguments.examples, source.train.num_examples)),
        source.test.rows(0, min(arguments.test, source.test.num_examples)),
        source.label_names,
        arguments.batch,
        arguments.epochs,
        arguments.averaging_frequency,
    )
    args = {name: json.loads(text) for name, text in arguments.args or []}
    report = measured.Report(f"strategies on {arguments.dataset}", arguments.format)
    report.say(
        f"{task.epochs} x {task.train.num_examples:,} examples, batches of {task.batch}, {task.frequency} a job; "
        f"accuracy on {task.test.num_examples:,} test examples; {arguments.turns} turns"
    )
    report.say(
        f"{'model':<6} {'strategy':<18} {'workers':>7} {'accuracy':>9} {'speed':>7} {'B/ex. written':>14} "
        f"{'B/ex. read':>13} {'mean tau':>9}"
    )
    rows = []
    for model in arguments.model or list(MODELS):
        for found in rows_of(task, model, arguments.workers or [1, 2, 4, 8], arguments.turns, args):
            rows.append(found)
            report.say(said(found))
    report.details = {"rows": rows, "examples": task.epochs * task.train.num_examples}
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
