"""What a whole run sends through its tracker: ``python benchmarks/traffic.py [--rounds 234] [--format json]``.

The same network is trained on the same batches with averaging and with gradient sharing, by as many workers of this
process. Every byte is counted that anybody reads from the store or writes to it: updates, models, saved states,
snapshots, the log, records and heartbeats; over Hazelcast the same bytes travel, and their signatures. Data are by
reference, as on the command line. Gradient sharing has ``--args``, which say how sparse messages are
and how often states are saved. It is measured without a mesh and with one: the workers of a process have each other's
messages at hand then, as those of several processes have that push them to each other.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import command_line
import measured
from compression import conf_of, cut, widths

from dl4jlegacy import ActorNetworkRunner
from dl4jlegacy.datasets import DataSource, ListDataSetIterator, load
from dl4jlegacy.scaleout.links.mesh.configuration import VoidConfiguration
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.state.store import Buffer, MemoryStore
from dl4jlegacy.scaleout.tracker import StateTracker

SHARING, WHOLE, MESH = "gradient-sharing", "iterative-reduce", "gradient-sharing with a mesh"
SPARSE = {"threshold": "target-sparsity", "tau": 1e-3, "sparsity": 3e-3, "clip": 0.0}
LESS_GOAL = 100.0  # times


class CountingStore(MemoryStore):
    """Counts the bytes written and read, by the first part of their keys. Used by many threads."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes: Counter[str] = Counter()
        self._counting = threading.Lock()

    def _count(self, key: str, value: Buffer | None, way: str) -> None:
        with self._counting:
            self.nbytes[f"{key.partition('/')[0]} {way}"] += 0 if value is None else len(value)

    def get(self, key: str) -> Buffer | None:
        """See ``Store``."""
        value = super().get(key)
        self._count(key, value, "read")
        return value

    def put(self, key: str, value: Buffer) -> None:
        """See ``Store``."""
        self._count(key, value, "written")
        super().put(key, value)

    def put_if_absent(self, key: str, value: Buffer) -> bool:
        """See ``Store``."""
        self._count(key, value, "written")
        return super().put_if_absent(key, value)

    def replace_if_same(self, key: str, expected: Buffer, value: Buffer) -> bool:
        """See ``Store``."""
        self._count(key, value, "written")
        return super().replace_if_same(key, expected, value)


def train(
    source: DataSource, arguments: Any, rounds: int, void: VoidConfiguration | None = None, **strategy: Any
) -> tuple[Counter[str], Head]:
    """Train for at least ``rounds`` rounds; return the bytes by kind, and the last head."""
    batch, slots = arguments.batch, arguments.slots
    source = cut(source, rounds * batch * slots, batch, slots)
    epochs = -(-rounds * batch * slots // source.train.num_examples)
    conf = conf_of(source, arguments.hidden, arguments, **strategy).replace(
        batch_size=batch, epochs=epochs, workers=arguments.workers, void_configuration=void
    )
    store = CountingStore()
    with ActorNetworkRunner(
        "master", ListDataSetIterator(source.train, batch, seed=conf.seed), tracker=StateTracker(store)
    ) as runner:
        runner.setup(conf)
        result = runner.train()
    return store.nbytes, result.head


def report_run(report: measured.Report, name: str, nbytes: Counter[str], head: Head) -> float:
    """Report a run; return its megabytes per round."""
    total, rounds = sum(nbytes.values()), head.round
    parts = ", ".join(f"{kind} {size / total:.0%}" for kind, size in nbytes.most_common(5))
    report.add(f"{name}: MB a round", total / rounds / 1e6, "MB", note=f"of {rounds}: {parts}")
    report.add(f"{name}: score of the last round", head.score or 0.0, "")
    return total / rounds / 1e6


def parse(given: Iterable[str] | None = None) -> Any:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--dataset", default="mnist", help="mnist, digits, or what else dl4j takes (mnist)")
    parser.add_argument("--args", type=json.loads, default=SPARSE, help=f"of gradient sharing, JSON ({SPARSE})")
    parser.add_argument("--hidden", type=widths, default=[2700, 2700, 1910], help="widths (2700,2700,1910)")
    parser.add_argument("--batch", type=int, default=128, help="examples of a job (128)")
    parser.add_argument("--slots", type=int, default=4, help="of a round (4)")
    parser.add_argument("--workers", type=int, default=2, help="of this process (2)")
    parser.add_argument("--rounds", type=int, default=1170, help="of gradient sharing (1170: ten epochs)")
    parser.add_argument("--averaging-rounds", type=int, default=20, help="they are all alike (20)")
    parser.add_argument("--rate-of-learning", type=float, default=0.1, help="of plain SGD (0.1)")
    return parser.parse_args(None if given is None else list(given))


def main(given: Iterable[str] | None = None) -> int:
    arguments = parse(given)
    report = measured.Report("what a run sends through its tracker", arguments.format)
    source = load(arguments.dataset)
    report.say(f"{arguments.rounds} rounds of {arguments.slots} jobs, {arguments.workers} workers; {arguments.args}")
    sharing = {"router": SHARING, "router_args": arguments.args}
    runs: tuple[tuple[str, int, VoidConfiguration | None, dict[str, Any]], ...] = (
        (WHOLE, arguments.averaging_rounds, None, {"router": WHOLE}),
        (SHARING, arguments.rounds, None, sharing),
        (MESH, arguments.rounds, VoidConfiguration(), sharing),
    )
    each, read = {}, {}
    for name, rounds, void, strategy in runs:
        nbytes, head = train(source, arguments, rounds, void, **strategy)
        each[name] = report_run(report, name, nbytes, head)
        read[name] = nbytes["entry read"] / head.round / 1e6
        report.details[name] = dict(nbytes)
    report.add("averaging / gradient sharing", each[WHOLE] / each[SHARING], "x", LESS_GOAL, at_least=True)
    report.add("the log as workers read it: MB a round", read[SHARING], "MB")
    report.add("the log as workers read it with a mesh: MB a round", read[MESH], "MB")
    report.add("without a mesh / with one", each[SHARING] / each[MESH], "x")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
