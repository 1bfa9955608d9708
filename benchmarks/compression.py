"""What gradient sharing costs and spares: ``python benchmarks/compression.py [--part messages] [--format json]``.

Three parts, each with both sides in one run:

- ``encoding``: finding the elements to send in a vector as long as Strom's network (2015), taking their quanta off it,
  and packing the message, on one thread and on four; and unpacking and adding it to a model. Against one addition to a
  vector of that length in place; ratios are medians of turns.
- ``messages``: jobs of a network of that size: the bytes of each update's frame against those of its parameters
  as float32, and of its payload against the fewest bits that its elements can do with (``entropy_bits``).
- ``accuracy``: what a smaller network knows after as many examples with messages (``"average": true``) and without
  (``iterative-reduce``). Jobs have plain SGD, which has no state, and equal numbers of examples; so the mean of the
  slots' parameters is the model with the mean of their whole updates added, and messages are all that differs.

The jobs are done one after the other in this process, by workers' performer and the strategy's own ``settle`` and
aggregation, so all but the first part's figures are the same at each call on one machine. ``gradient-sharing`` has its
defaults, and options for sparse messages ("sparse"); ``--args NAME JSON`` gives others.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import command_line
import measured
import msgspec
import numpy as np
from threadpoolctl import threadpool_limits

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import DataSource, ListDataSetIterator, load
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.models.model import evaluate_network
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.nn.optimization.updaters import Sgd
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.first_model import first_model
from dl4jlegacy.scaleout.state.aggregate import PARAMS, aggregate
from dl4jlegacy.scaleout.state.codec import entropy_bits, pack, unpack
from dl4jlegacy.scaleout.state.job import DataSetJobIterator, Job, Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.strategies import create_router, router_of
from dl4jlegacy.scaleout.strategies.gradient_sharing import CODES
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer, perform_in_slot

PARTS = ("encoding", "messages", "accuracy")
SHARING, WHOLE = "gradient-sharing", "iterative-reduce"
SETTINGS: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "sparse": {"threshold": "target-sparsity", "tau": 1e-3, "sparsity": 3e-3, "clip": 0.0},
}
THREADS = 4
ONE_THREAD_GOAL, THREADS_GOAL = 1.3, 0.45  # times the addition
SMALLER_GOAL, ENTROPY_GOAL, ACCURACY_GOAL = 600.0, 1.05, 0.2  # times, times, percentage points


# -- encoding ----------------------------------------------------------------------------------------------------------


def timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def encoders(values: Array, sparsities: Sequence[float], pool: ThreadPoolExecutor) -> dict[str, Callable[[], float]]:
    """Return the contenders by name; each returns the seconds that it took, after it has got a vector to encode."""
    kernels, sizes = load_kernels(None), np.sort(np.abs(values))
    residual, codes = values.copy(), np.zeros(values.size, np.int32)

    def encode(tau: float, pool: ThreadPoolExecutor | None) -> float:
        residual[:] = values
        began = time.perf_counter()
        count = kernels.threshold_encode(residual, tau, codes, pool)
        pack(codes[:count], residual.size, tau)
        return time.perf_counter() - began

    def decode(tau: float) -> Callable[[], float]:
        residual[:] = values
        count = kernels.threshold_encode(residual, tau, codes)
        format_, payload = pack(codes[:count], values.size, tau)

        def unpack_and_add() -> None:
            found = unpack(format_, payload, count=count, size=values.size, tau=tau)
            kernels.threshold_decode(found, tau, residual)

        return lambda: timed(unpack_and_add)

    total = values.copy()
    made: dict[str, Callable[[], float]] = {"addition": lambda: timed(lambda: np.add(total, values, out=total))}
    for sparsity in sparsities:
        count = max(1, round(sparsity * values.size))
        tau = float(sizes[-count])
        made[f"{sparsity:.2%} sent, one thread"] = lambda tau=tau: encode(tau, None)
        made[f"{sparsity:.2%} sent, {THREADS} threads"] = lambda tau=tau: encode(tau, pool)
        made[f"{sparsity:.2%} decoded and added"] = decode(tau)
        if command_line.is_installed("torch"):
            made[f"{sparsity:.2%} sent, PyTorch's topk"] = torch_topk(values, count)
    return made


def torch_topk(values: Array, count: int) -> Callable[[], float]:
    """Return a timer of PyTorch's selection of the largest elements on one thread, without packing them."""
    import torch  # optional: the extra "bench"

    torch.set_num_threads(1)
    vector = torch.from_numpy(values)
    return lambda: timed(lambda: vector.abs().topk(count, sorted=False))


def measure_encoding(report: measured.Report, arguments: Any) -> None:
    values = np.random.default_rng(1).standard_normal(arguments.elements, np.float32)
    with ThreadPoolExecutor(THREADS) as pool:
        contenders = encoders(values, arguments.sparsity or [1e-4, 1e-3, 1e-2], pool)
        for contender in contenders.values():
            contender()  # compile, touch memory
        taken = measured.take_turns(contenders, arguments.turns)
    goals = {"one thread": ONE_THREAD_GOAL}
    if measured.cores() >= THREADS:
        goals[f"{THREADS} threads"] = THREADS_GOAL
    else:
        report.say(f"{THREADS} threads have {measured.cores()} cores, too few for their goal, {THREADS_GOAL} additions")
    milliseconds = 1000 * statistics.median(taken["addition"])
    report.say(f"an addition takes {milliseconds:.2f} ms, the median of {arguments.turns}")
    for name in list(contenders)[1:]:
        goal = goals.get(name.partition(", ")[2])
        report.add(name, measured.median_ratio(taken[name], taken["addition"]), "additions", goal)


# -- jobs one after the other ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """The counts for an update: the bytes of its frame and of its payload, and its elements."""

    frame: int
    payload: int
    count: int
    tau: float


@dataclass
class Trained:
    """The result of a run: its messages (none for whole updates), the last model, the bytes of the parameters."""

    model: Result
    frames: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    @property
    def elements(self) -> int:
        """The number of parameters of the network."""
        return int(self.model.arrays[PARAMS].size)

    @property
    def smaller(self) -> float:
        """The mean ratio of the parameters' size as float32 to a frame's size."""
        return 4 * self.elements * len(self.frames) / sum(self.frames)

    def over_entropy(self, messages: Sequence[Message]) -> float:
        """Return the ratio of messages' bits to the least bits that their elements need; NaN without elements."""
        needed = sum(entropy_bits(message.count, self.elements) for message in messages)
        return 8 * sum(message.payload for message in messages) / needed if needed else float("nan")


def run(source: DataSource, conf: Conf, rounds: int | None = None) -> Trained:
    """Perform a run's jobs on this thread, at most ``rounds`` of them; the model is that of ``train``."""
    kernels = load_kernels(None)
    data = ListDataSetIterator(source.train, conf.batch_size, seed=conf.seed)
    jobs = DataSetJobIterator(data, jobs_per_round=conf.jobs_per_round, phases=conf.phases())
    router, plan = create_router(conf.router, conf.router_args, jobs_per_round=conf.jobs_per_round), jobs.plan
    network = build_network(conf.network_conf, kernels)
    performer = MultiLayerNetworkPerformer(network, seed=conf.seed, update_kind=router.update_kind)
    network.init()
    frame, states = first_model(network).encode(), dict[int, Buffer]()
    trained, total = Trained(Result.decode(frame)), plan.total_rounds
    for number in range(total if rounds is None else min(rounds, total)):
        updates = []
        for slot in (plan.slot(number, index) for index in range(plan.slots(number))):
            job = Job(slot, plan.work_of(number), jobs.work(slot), version=number)
            state = states.get(slot.slot)
            before = None if state is None else Result.decode(state)
            done = perform_in_slot(
                performer, router_of(router, plan, number), job, Result.decode(frame), before, kernels
            )
            assert done is not None
            updates.append(done[0].encode())
            note(trained, done[0], len(updates[-1]))
            if len(done) > 1:
                states[slot.slot] = done[1].encode()
        frame, _ = aggregate(router.fold(kernels), frame, updates, version=number, ends_phase=False)
    trained.model = Result.decode(frame)
    return trained


def note(trained: Trained, update: Result, frame: int) -> None:
    """Count an update."""
    trained.frames.append(frame)
    if CODES in update.arrays:
        values = update.values
        trained.messages.append(Message(frame, update.arrays[CODES].nbytes, values["count"], values["tau"]))


def conf_of(source: DataSource, hidden: Sequence[int], arguments: Any, **more: Any) -> Conf:
    """Return the Conf of a multilayer perceptron without drop-out, trained by plain SGD."""
    conf = zoo.mlp(source.train.features[0].size, len(source.label_names), hidden=tuple(hidden), drop_out=0.0)
    updater, seed = Sgd(learning_rate=arguments.rate_of_learning), more.get("seed", Conf().seed)
    return Conf(
        multi_layer_conf=msgspec.structs.replace(
            conf, conf=msgspec.structs.replace(conf.conf, updater=updater, seed=seed)
        ),
        workers=1,
        jobs_per_round=arguments.slots,
        **more,
    )


def cut(source: DataSource, examples: int, batch: int, slots: int) -> DataSource:
    """Return a source whose training data fill whole rounds."""
    whole = min(examples, source.train.num_examples) // (batch * slots) * batch * slots
    return dataclasses.replace(source, train=source.train.rows(0, whole))


# -- messages ----------------------------------------------------------------------------------------------------------


def measure_messages(report: measured.Report, source: DataSource, arguments: Any) -> None:
    rows = []
    for setting, args in arguments.args.items():
        rounds, batch, slots = arguments.rounds, arguments.batch, arguments.slots
        epochs = -(-rounds * slots * batch // source.train.num_examples)
        conf = conf_of(source, arguments.hidden, arguments, router=SHARING, router_args=args).replace(
            batch_size=batch, epochs=epochs
        )
        trained = run(source, conf, rounds)
        report_messages(report, setting, trained)
        messages = [vars(message) for message in trained.messages]
        rows.append({"setting": setting, "elements": trained.elements, "messages": messages})
    report.details["messages"] = rows


def report_messages(report: measured.Report, setting: str, trained: Trained) -> None:
    shares, tau = [message.count / trained.elements for message in trained.messages], trained.messages[-1].tau
    report.say(
        f"{setting}: {len(shares)} messages of {trained.elements:,} parameters, {min(shares):.3%} to {max(shares):.3%} "
        f"of these in each, {statistics.mean(shares):.3%} in the mean; the quantum ends at {tau:.3g}"
    )
    largest = 4 * trained.elements / max(trained.frames)
    report.add(f"{setting}: model / update, in the mean", trained.smaller, "x", SMALLER_GOAL, at_least=True)
    report.add(f"{setting}: model / largest update", largest, "x")
    report.add(f"{setting}: payload / bound", trained.over_entropy(trained.messages), "x", ENTROPY_GOAL)
    each = [trained.over_entropy([message]) for message in trained.messages if message.count]
    report.add(f"{setting}: payload / bound, at worst", max(each, default=float("nan")), "x", ENTROPY_GOAL)


# -- accuracy ----------------------------------------------------------------------------------------------------------


def measure_accuracy(report: measured.Report, source: DataSource, arguments: Any) -> None:
    source = cut(source, arguments.examples, arguments.small_batch, arguments.slots)
    report.say(
        f"{arguments.epochs} x {source.train.num_examples:,} examples, {arguments.slots} slots, batches of "
        f"{arguments.small_batch}; accuracy on {source.test.num_examples:,} test examples"
    )
    rows = []
    for seed in range(1, arguments.seeds + 1):
        whole, _ = accuracy(source, arguments, seed, router=WHOLE)
        for setting, args in arguments.args.items():
            right, smaller = accuracy(source, arguments, seed, router=SHARING, router_args={**args, "average": True})
            rows.append({"setting": setting, "seed": seed, "messages": right, "whole": whole, "smaller": smaller})
            said = f"{right:.4f}, whole {whole:.4f}; {smaller:,.0f}x smaller"
            report.add(f"{setting}: accuracy, seed {seed}", 100 * (right - whole), "points", note=said)
    for setting in arguments.args:
        differences = [100 * (row["messages"] - row["whole"]) for row in rows if row["setting"] == setting]
        report.add(f"{setting}: accuracy, mean difference", abs(statistics.mean(differences)), "points", ACCURACY_GOAL)
    report.details["accuracy"] = rows


def accuracy(source: DataSource, arguments: Any, seed: int, **strategy: Any) -> tuple[float, float]:
    """Train; return the accuracy on the test examples, and the ratio by which updates were smaller."""
    conf = conf_of(source, arguments.small_hidden, arguments, seed=seed, **strategy)
    conf = conf.replace(batch_size=arguments.small_batch, epochs=arguments.epochs)
    trained = run(source, conf)
    network = build_network(conf.network_conf, load_kernels(None))
    network.set_params(trained.model.arrays[PARAMS])
    found = evaluate_network(network, source.test, source.label_names).fields()["accuracy"]
    return float(found), trained.smaller


# -- command line ------------------------------------------------------------------------------------------------------


def widths(text: str) -> list[int]:
    return [int(width) for width in text.split(",")]


def parse(given: list[str] | None = None) -> Any:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="may be repeated (all)")
    parser.add_argument("--dataset", default="mnist", help="mnist, digits, or what else dl4j takes (mnist)")
    parser.add_argument("--args", nargs=2, metavar=("NAME", "JSON"), action="append", help="options, may be repeated")
    parser.add_argument("--slots", type=int, default=4, help="of a round (4)")
    parser.add_argument("--rate-of-learning", type=float, default=0.1, help="of plain SGD (0.1)")
    encoding = parser.add_argument_group("encoding")
    encoding.add_argument("--elements", type=int, default=14_600_000, help="of the vector (14,600,000)")
    encoding.add_argument("--sparsity", type=float, action="append", help="may be repeated (1e-4, 1e-3 and 1e-2)")
    encoding.add_argument("--turns", type=int, default=15, help="of each (15)")
    messages = parser.add_argument_group("messages")
    messages.add_argument("--hidden", type=widths, default=[2700, 2700, 1910], help="widths (2700,2700,1910)")
    messages.add_argument("--batch", type=int, default=128, help="examples of a job (128)")
    messages.add_argument("--rounds", type=int, default=10, help="of jobs (10)")
    small = parser.add_argument_group("accuracy")
    small.add_argument("--small-hidden", type=widths, default=[300, 100], help="widths (300,100)")
    small.add_argument("--small-batch", type=int, default=32, help="examples of a job (32)")
    small.add_argument("--examples", type=int, default=60_000, help="of a pass, cut to whole rounds (60,000)")
    small.add_argument("--epochs", type=int, default=5, help="passes over them (5)")
    small.add_argument("--seeds", type=int, default=3, help="runs of both sides (3)")
    arguments = parser.parse_args(given)
    arguments.args = {name: json.loads(text) for name, text in arguments.args or []} or SETTINGS
    return arguments


def main(given: list[str] | None = None) -> int:
    arguments = parse(given)
    parts = arguments.part or PARTS
    report = measured.Report(f"gradient messages on {arguments.dataset}", arguments.format)
    with threadpool_limits(limits=1, user_api="blas"):
        if "encoding" in parts:
            measure_encoding(report, arguments)
        if "messages" in parts or "accuracy" in parts:
            source = load(arguments.dataset)
        if "messages" in parts:
            measure_messages(report, source, arguments)
        if "accuracy" in parts:
            measure_accuracy(report, source, arguments)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
