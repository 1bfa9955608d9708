"""ActorNetworkRunner: the answer does not depend on the workers, failures are data, nothing stays behind."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, IrisDataSetIterator, ListDataSetIterator
from dl4jlegacy.errors import (
    CheckpointError,
    ConfError,
    DeadlineError,
    JobError,
    NotFiniteError,
    TrainingError,
    UsageError,
)
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.network.dbn import DBN, StackedDenoisingAutoEncoder
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Sgd
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.observers import Observers
from dl4jlegacy.scaleout.monitoring.outcome import TrainingResult
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.plan import Phase, Plan
from dl4jlegacy.scaleout.protocol import Limits
from dl4jlegacy.scaleout.state.aggregate import CollectingAggregator, ParameterAveragingAggregator, aggregate
from dl4jlegacy.scaleout.state.job import CollectionJobIterator, Result
from dl4jlegacy.scaleout.state.records import Head, Manifest, account, advance
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker, StateTracker
from dl4jlegacy.scaleout.workers.perform import MultiLayerNetworkPerformer
from dl4jlegacy.training.execution import RunExecution
from dl4jlegacy.training.run import resolve

QUICK = Limits(lease=1.0, poll=0.05)


def data(examples=64, n_in=6, n_out=3):
    random = np.random.default_rng(1)
    labels = np.eye(n_out, dtype=np.float32)[random.integers(0, n_out, examples)]
    return DataSet(random.random((examples, n_in), dtype=np.float32), labels)


def conf(model="mlp", **changes):
    build = {"mlp": zoo.mlp, "dbn": zoo.dbn, "sda": zoo.sda}[model]
    network = build(6, 3, hidden=(5, 4), drop_out=0.8, seed=7)
    fields = {"seed": 7, "epochs": 3, "pretrain_epochs": 2, "workers": 4, "jobs_per_round": 4, "limits": QUICK}
    return Conf(**{"multi_layer_conf": network, **fields, **changes})


def iterator(dataset=None, batch_size=5):
    return ListDataSetIterator(dataset or data(), batch_size, seed=7)


def train(conf, dataset=None, **runner):
    """Run to the end; return the result. The runner is shut down, whatever happens."""
    with ActorNetworkRunner("master", iterator(dataset), **runner) as run:
        run.setup(conf)
        return run.train(deadline=120)


def params(result):
    return np.array(result.model.arrays["params"]).tobytes()


class Wrapped:
    """A performer that lets a test interfere with the jobs of the real one."""

    def __init__(self, conf, kernels, before):
        network = MultiLayerNetwork(conf.multi_layer_conf, kernels=kernels)
        self._inner = MultiLayerNetworkPerformer(network, seed=conf.seed)
        self._before = before

    @property
    def progress(self):
        return self._inner.progress

    def update(self, model):
        self._inner.update(model)

    def perform(self, job):
        self._before(job)
        return self._inner.perform(job)


def interfering(before):
    return lambda conf, kernels: Wrapped(conf, kernels, before)


# --- the same answer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "dbn", "sda"])
@pytest.mark.everyday(1)
def test_parameters_are_bit_identical_for_any_number_of_workers(model):
    results = [train(conf(model, workers=workers)) for workers in (1, 2, 3, 4, 7)]
    assert len({params(result) for result in results}) == 1
    assert {result.head.examples for result in results} == {results[0].plan.total_examples}


@pytest.mark.parametrize("changes", [{"averaging_frequency": 3}, {"average_updater_state": False}])
def test_data_by_value_and_by_reference_give_the_same_parameters(changes):
    by_value = train(conf("dbn", data_by_reference=False, **changes))
    assert params(by_value) == params(train(conf("dbn", data_by_reference=True, workers=2, **changes)))


def test_a_worker_that_fails_in_the_middle_changes_nothing():
    failed = []

    def once(job):
        if (job.slot.round, job.slot.slot) in ((2, 1), (5, 0)) and (job.slot[:2]) not in failed:
            failed.append(job.slot[:2])
            raise RuntimeError("made to fail")

    result = train(conf("dbn"), performer=interfering(once))
    assert len(failed) == 2
    assert params(result) == params(train(conf("dbn", workers=1)))
    assert (result.batches_lost, result.batches_duplicated) == (0, 0)


def test_a_worker_that_hangs_loses_its_lease_and_changes_nothing():
    release, hung = threading.Event(), []

    def hang_once(job):
        if job.slot.round == 3 and not hung:
            hung.append(job.worker_id)
            release.wait(60)

    limits = Limits(lease=0.3, poll=0.05, straggler_least=600.0)  # no backup job comes before the lease ends
    quick = conf("dbn", workers=2, stuck_seconds=0.2, heartbeat_seconds=0.05, limits=limits)
    with ActorNetworkRunner("master", iterator(), performer=interfering(hang_once)) as run:
        run.setup(quick)
        result = run.train(deadline=60)
        release.set()
    assert hung
    assert params(result) == params(train(conf("dbn")))


def test_a_run_that_is_interrupted_before_it_was_looked_at_is_looked_at_once_more():
    seen = []

    def interrupt(status):
        seen.append(status)
        if len(seen) == 1:
            raise KeyboardInterrupt

    with ActorNetworkRunner("master", iterator()) as run:
        run.setup(conf("dbn", epochs=2000))
        with pytest.raises(KeyboardInterrupt):
            run.train(interrupt)
    assert len(seen) == 2


@pytest.mark.parametrize("router", ["iterative-reduce", "bmuf", "easgd", "gradient-sharing", "hogwild"])
@pytest.mark.parametrize("keeps", [True, False], ids=["checkpoints", "none"])
@pytest.mark.everyday(3)
def test_a_run_that_is_done_goes_on_in_its_tracker_when_it_is_given_more_epochs(
    router: str, keeps: bool, tmp_path: Path
) -> None:
    def trained(tracker: StateTracker, epochs: int, folder: str, *, resume: bool = False) -> TrainingResult:
        with ActorNetworkRunner("master", IrisDataSetIterator(16), tracker=tracker) as runner:
            conf = Conf(multi_layer_conf=zoo.mlp(4, 3), epochs=epochs, workers=2, run="r", router=router)
            runner.setup(conf.replace(checkpoint_dir=str(tmp_path / folder) if keeps else ""), resume=resume)
            result = runner.train(deadline=60)
            assert result is not None and result.batches_lost == 0 == result.batches_duplicated
            return result

    tracker = InMemoryStateTracker()
    first = trained(tracker, 1, "cut")
    longer, whole = trained(tracker, 3, "cut", resume=keeps), trained(InMemoryStateTracker(), 3, "whole")
    assert (longer.head.round, longer.head.batches) == (3 * first.head.round, 3 * first.head.batches)
    if router != "hogwild":  # whose bits depend on who is faster
        assert np.array_equal(longer.model.arrays["params"], whole.model.arrays["params"])
    again = trained(tracker, 3, "cut", resume=keeps)
    assert again.head.identity == longer.head.identity


def test_an_interrupted_run_resumes_to_the_same_parameters(tmp_path):
    kept = conf("dbn", checkpoint_dir=str(tmp_path / "run"), checkpoint_every=3)

    def interrupt(status):
        if status.head is not None and status.head.round >= 8:
            raise KeyboardInterrupt

    slow = threading.Event()
    first = ActorNetworkRunner("master", iterator(), performer=interfering(lambda job: slow.wait(0.03)))
    first.setup(kept)
    with pytest.raises(KeyboardInterrupt):
        first.train(interrupt)
    first.shutdown()
    with ActorNetworkRunner("master", iterator()) as second:
        second.setup(kept.replace(workers=2), resume=True, changed_code=True)  # without what slowed it down
        result = second.train(deadline=60)
    assert 0 < result.examples_here < result.head.examples == result.plan.total_examples
    assert params(result) == params(train(conf("dbn")))


# --- averaging is right -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
@pytest.mark.parametrize("shards", [(8,), (8, 8), (8, 8, 8, 8), (4,) * 8, (1, 5, 2), (7, 3)])
def test_the_average_of_one_sgd_step_each_is_one_step_on_the_joined_batch(shards, dtype, tolerance):
    network = MultiLayerConfiguration(
        conf=NeuralNetConfiguration(seed=3, updater=Sgd(learning_rate=0.5), dtype=dtype, l2=1e-3),
        layers=(DenseLayer(n_in=6, n_out=5, activation="tanh"), OutputLayer(n_out=3)),
    )
    joined = data(sum(shards))
    x, labels = joined.features.astype(dtype), joined.labels.astype(dtype)
    together = MultiLayerNetwork(network)
    start = together.params.copy()
    together.fit_batch(x, labels, iteration=0, stream=Stream(1))
    updates, row = [], 0
    for size in shards:
        alone = MultiLayerNetwork(network)
        alone.fit_batch(x[row : row + size], labels[row : row + size], iteration=0, stream=Stream(1))
        updates.append(Result({"examples": size, "score": 0.0}, {"params": alone.params}).encode())
        row += size
    model = Result({"score": None}, {"params": start}).encode()
    frame, _ = aggregate(ParameterAveragingAggregator(load()), model, updates, version=0, ends_phase=False)
    averaged = Result.decode(frame).arrays["params"]
    assert not np.array_equal(averaged, start)
    np.testing.assert_allclose(averaged, together.params, rtol=0, atol=tolerance)


def test_the_plain_mean_of_the_original_is_an_option():
    updates = [Result({"examples": n, "score": 1.0}, {"params": np.full(3, n, np.float32)}).encode() for n in (1, 3)]
    model = Result({"score": None}, {"params": np.zeros(3, np.float32)}).encode()
    means = {}
    for weighted in (True, False):
        aggregator = ParameterAveragingAggregator(load(), weighted=weighted)
        frame, _ = aggregate(aggregator, model, updates, version=0, ends_phase=False)
        means[weighted] = Result.decode(frame).arrays["params"][0]
    assert means == {True: 2.5, False: 2.0}


def test_one_worker_without_averaging_equals_plain_fit():
    network_conf = zoo.mlp(6, 3, hidden=(5,), drop_out=0.0, seed=7)  # plain fit draws its masks from another stream
    alone = conf(workers=1, jobs_per_round=1, multi_layer_conf=network_conf)
    network = MultiLayerNetwork(alone.multi_layer_conf)
    batches = iterator()
    for epoch in range(3):
        for index in range(batches.total_batches):
            batch = batches.batch(epoch, index)
            iteration = epoch * batches.total_batches + index
            network.fit_batch(batch.features, batch.labels, iteration=iteration, stream=Stream(0))
    assert params(train(alone)) == network.params.tobytes()


# --- asynchronous -----------------------------------------------------------------------------------------------------


def test_hogwild_counts_every_batch_once_and_learns():
    dataset = data(200)
    labels = np.eye(3, dtype=np.float32)[(dataset.features[:, 0] * 2.99).astype(int)]
    dataset = DataSet(dataset.features, labels)
    network = zoo.mlp(6, 3, hidden=(8,), seed=7)
    # Eight updates from the same parameters are added up 1 + 1/2 + ... + 1/8 = 2.7 times. At a rate of 1.0 this network
    # learns nothing; serially at 0.1 / 8, when all are stale, its loss still falls to 0.56. 0.1 is between the two.
    network = network.replace(conf=network.conf.replace(updater=Sgd(learning_rate=0.1)))
    result = train(conf(router="hogwild", epochs=60, multi_layer_conf=network), dataset)
    assert (result.batches_lost, result.batches_duplicated) == (0, 0)
    assert result.head.examples == result.plan.total_examples
    trained = MultiLayerNetwork(network)
    before = trained.score(dataset)
    trained.set_params(result.model.arrays["params"])
    assert trained.score(dataset) < 0.7 * before


def test_hogwild_with_one_worker_is_nearly_the_serial_run():
    network = zoo.mlp(6, 3, hidden=(5,), seed=7)
    serial = train(conf(workers=1, jobs_per_round=1, multi_layer_conf=network))
    wild = train(conf(workers=1, jobs_per_round=1, multi_layer_conf=network, router="hogwild", window=1))
    difference = np.abs(serial.model.arrays["params"] - wild.model.arrays["params"]).max()
    assert difference < 1e-4


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_job_that_always_fails_ends_the_run_with_the_workers_traceback():
    def fail(job):
        if job.slot.round == 1 and job.slot.slot == 2:
            raise RuntimeError("the disk of this example is broken")

    with pytest.raises(JobError, match=r"failed on every attempt.*the disk of this example is broken") as caught:
        train(conf(), performer=interfering(fail))
    assert "in fail" in caught.value.worker_traceback


def test_a_worker_that_fails_where_others_do_not_is_set_aside():
    sick: set[str] = set()
    failed, enough, first = Counter(), threading.Event(), threading.Lock()

    def fail(job):
        with first:
            sick.add(job.worker_id) if not sick else None
        if job.worker_id in sick:
            failed[job.slot] += 1
            if failed[job.slot] == 3:
                enough.set()
            raise MemoryError("no room")
        enough.wait(60)  # one job fails as often as it may, and not with the others

    result = train(conf(workers=3, epochs=6), performer=interfering(fail))
    (warning,) = result.warnings
    said = re.match(f"worker {sick.pop()} was set aside: ([0-9]+) jobs failed there that other workers did", warning)
    assert said is not None, warning
    assert int(said[1]) >= 3  # the others may have done more by the time that the master looks
    assert "MemoryError: no room" in warning
    assert params(result) == params(train(conf(epochs=6)))


def test_a_score_that_is_not_finite_names_round_slot_and_layer_and_keeps_the_last_checkpoint(tmp_path):
    hot = zoo.mlp(6, 3, hidden=(5,), drop_out=0.0, seed=7)
    hot = hot.replace(conf=hot.conf.replace(updater=Sgd(learning_rate=1e25)))
    folder = tmp_path / "run"
    with pytest.raises(NotFiniteError, match=r"round \d+, slot \d+.*layer"):
        train(conf(multi_layer_conf=hot, checkpoint_dir=str(folder), checkpoint_every=1))
    saved = CheckpointStore(folder).newest()
    assert saved is None or np.isfinite(Result.decode(saved[1]).arrays["params"]).all()


def test_a_bug_in_an_actor_ends_the_run_with_its_own_error(monkeypatch):
    def broken(master, event):
        raise ZeroDivisionError("a bug in the master")

    monkeypatch.setattr(Observers, "on_version", broken)
    with pytest.raises(ZeroDivisionError, match="a bug in the master"):
        train(conf())


def test_a_run_that_takes_too_long_says_where_it_is():
    slow = threading.Event()
    with ActorNetworkRunner("master", iterator(), performer=interfering(lambda job: slow.wait(0.2))) as run:
        run.setup(conf(epochs=100))
        with pytest.raises(DeadlineError, match=r"not done after 1 s; it is in round \d+ of \d+"):
            run.train(deadline=1.0)


def test_a_run_that_stands_still_ends_and_says_where_it_is():
    release = threading.Event()
    still = conf(workers=2, stuck_seconds=0.2, heartbeat_seconds=0.05, limits=Limits(lease=0.2, poll=0.05, attempts=2))
    with ActorNetworkRunner("master", iterator(), performer=interfering(lambda job: release.wait(60))) as run:
        run.setup(still)
        with pytest.raises(DeadlineError, match=r"has stood still for \d+ s; it is in round 0 of \d+"):
            run.train(deadline=30)
        release.set()


class SetClock:
    """A clock that a test sets."""

    seconds = 0.0

    def now(self):
        return self.seconds


class LongJob(Wrapped):
    """A performer whose every batch takes ``seconds`` of a clock, and waits until the run has noticed the last one."""

    def __init__(self, conf, kernels, clock, seconds, idle):
        super().__init__(conf, kernels, lambda job: None)
        self._clock, self._seconds, self._idle = clock, seconds, idle
        self._batches = 0

    @property
    def progress(self):
        return self._batches

    def perform(self, job):
        for _ in range(12):
            self._clock.seconds += self._seconds
            self._batches += 1
            noticed, end = threading.Event(), time.monotonic() + 5.0
            while self._idle() and time.monotonic() < end:
                noticed.wait(0.01)
        return super().perform(job)


def test_a_job_that_takes_longer_than_a_run_may_stand_still_ends_well():
    clock = SetClock()
    limits = Limits(lease=1e9, poll=0.05, attempts=2)
    long = conf(workers=1, epochs=1, stuck_seconds=100.0, heartbeat_seconds=0.02, limits=limits)
    long = long.replace(jobs_per_round=2, averaging_frequency=7)
    idle = lambda: run._parts.outcome.idle_seconds  # noqa: E731
    performer = lambda conf, kernels: LongJob(conf, kernels, clock, 50.0, idle)  # noqa: E731
    tracker = InMemoryStateTracker(clock)
    with RunExecution(data := iterator(), performer=performer, tracker=tracker) as run:
        run.setup(resolve(long, data))
        result = run.train()
    assert result.head.status == "done"
    assert clock.seconds >= 2 * 600.0  # and 300 s without a batch would have been too long


class Impatient(RunExecution):
    """One that waits for its workers for a moment only."""

    def shutdown(self, timeout=0.2):
        super().shutdown(timeout)


@pytest.mark.parametrize("how", ["given up", "interrupted", "failed", "stopped"])
def test_whatever_ends_a_run_its_cause_is_told_and_its_last_version_is_kept(how, tmp_path, caplog):
    """Even if a worker hangs and does not stop."""
    release, hung = threading.Event(), threading.Event()

    def hang(job):
        if job.slot.round == 2 and how == "failed" and job.slot.slot == 1:
            raise RuntimeError("no luck")
        if job.slot.round == 2 and (how != "failed" or job.slot.slot == 0):
            hung.set()
            release.wait(60)

    def end(status):
        if how == "interrupted" and hung.is_set():
            raise KeyboardInterrupt
        if how == "stopped" and hung.is_set():
            tracker.finish("stopped")
        clock.seconds += 20.0 * (how == "given up" and hung.is_set())

    ends = {
        "given up": (
            DeadlineError,
            r"has stood still for \d+ s; it is in round 2 of \d+; worker",
        ),
        "interrupted": (KeyboardInterrupt, "its checkpoint of round 2 of"),
        "failed": (JobError, "failed on every attempt.*no luck"),
        "stopped": (TrainingError, "was stopped in round 2"),
    }
    clock, limits = SetClock(), Limits(lease=1e9, poll=0.05, attempts=2)
    folder, tracker = tmp_path / "run", InMemoryStateTracker(clock)
    still = conf(workers=3, stuck_seconds=100.0, heartbeat_seconds=0.05, limits=limits, checkpoint_dir=str(folder))
    kind, words = ends[how]
    try:
        with (
            pytest.raises(kind, match=words) as caught,
            Impatient(iterator(), performer=interfering(hang), tracker=tracker) as run,
        ):
            run.setup(resolve(still.replace(checkpoint_every=1000), iterator()))
            run.train(end)
        head, _ = CheckpointStore(folder).newest()
        assert (head.round, head.status, head.failure) == (2, "running", None)
        assert "did not stop within" in caplog.text
        if how == "given up":
            assert re.search(r"worker \S+-[0-2] is stuck on job 2/\d", str(caught.value))
    finally:
        release.set()


def test_a_run_that_lost_or_duplicated_batches_fails_and_says_how_many(monkeypatch):
    def counts_one_more(head, plan, numbers, **changes):
        new = advance(head, plan, numbers, **changes)
        return msgspec.structs.replace(new, batches=new.batches + 1)

    monkeypatch.setattr("dl4jlegacy.scaleout.protocol.closing.advance", counts_one_more)
    with pytest.raises(TrainingError, match="0 batches lost, 12 duplicated"):
        train(conf(epochs=3))
    plan = Plan(phases=(Phase(),), batches=6, examples=12, batch_size=2, jobs_per_round=3)
    head = Head(run="r", version=0, round=0, model=Manifest("", 0, 0))
    assert account(advance(head, plan, [0, 1, 2, 4, 5]), plan) == (1, 0)


def test_a_network_that_does_not_fit_the_data_is_refused_before_anything_starts():
    with pytest.raises(ConfError, match="the network has 6 inputs, the data set 9"):
        ActorNetworkRunner("master", iterator(data(n_in=9))).setup(conf())


def test_calls_in_the_wrong_order_say_what_to_do():
    runner = ActorNetworkRunner("master", iterator())
    with pytest.raises(UsageError, match="call setup"):
        runner.train()
    runner.setup(conf())
    with pytest.raises(UsageError, match="setup was called twice"):
        runner.setup(conf())
    runner.shutdown()
    runner.shutdown()
    for arguments, words in (
        (("worker", iterator()), "takes no iterator"),
        (("worker",), "needs zookeeper"),
        (("standby", iterator()), "needs zookeeper"),
        (("master",), "needs an iterator"),
        (("masterr", iterator()), "did you mean 'master'"),
    ):
        with pytest.raises(UsageError, match=words):
            ActorNetworkRunner(*arguments)
    with pytest.raises(UsageError, match="needs zookeeper"):
        ActorNetworkRunner("master", iterator(), tracker="hazelcast://127.0.0.1:5701")
    with pytest.raises(UsageError, match="takes no tracker, saver: they are the master's"):
        ActorNetworkRunner("worker", zookeeper="127.0.0.1:2181", tracker="hazelcast://127.0.0.1:5701", saver=Seen())
    with pytest.raises(UsageError, match="opened here"):
        ActorNetworkRunner("master", iterator(), tracker=InMemoryStateTracker(), zookeeper="127.0.0.1:2181")


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_run_goes_on(tmp_path, monkeypatch):
    def full(self, head, frame, best=None, states=None):
        raise CheckpointError("No space left on device")

    monkeypatch.setattr(CheckpointStore, "save", full)
    result = train(conf(checkpoint_dir=str(tmp_path / "run"), checkpoint_every=5))
    assert result.head.status == "done"
    assert "No space left on device" in result.warnings[0]


def test_checkpoints_that_cannot_be_written_are_told_once_with_their_number(tmp_path, monkeypatch, caplog):
    def full(self, head, frame, best=None, states=None):
        raise CheckpointError(f"checkpoint {head.version}: no space left")

    monkeypatch.setattr(CheckpointStore, "save", full)
    result = train(conf(checkpoint_dir=str(tmp_path / "run"), checkpoint_every=1, epochs=6))
    assert len([record for record in caplog.records if "no space left" in record.getMessage()]) == 1
    assert len(result.warnings) == 2
    assert "no space left" in result.warnings[0]
    assert "checkpoints in a row, up to the last, could not be written" in result.warnings[1]


# --- other jobs, and what stays behind --------------------------------------------------------------------------------


class CountWords:
    progress = 0

    def update(self, model):
        """Counting needs no model."""

    def perform(self, job):
        words = job.work.lower().split()
        return Result({"value": {word: words.count(word) for word in words}, "examples": 1})


def test_a_job_need_not_be_a_network():
    lines = ["To be or not to be", "that is the question", "to be sure"] * 5
    jobs = CollectionJobIterator(lines, jobs_per_round=4)

    def add(total, counts):
        return {word: total.get(word, 0) + counts.get(word, 0) for word in total | counts}

    runner = ActorNetworkRunner(
        "master",
        jobs,
        performer=lambda conf, kernels: CountWords(),
        aggregator=CollectingAggregator(add),
        first_model=Result({"value": {}}),
    )
    with runner as run:
        run.setup(Conf(workers=3, data_by_reference=False))
        counts = run.train(deadline=60).model.values["value"]
    assert (counts["to"], counts["be"], counts["question"]) == (15, 15, 5)


@pytest.mark.long
def test_a_thousand_rounds_do_not_grow_the_process():
    rounds = conf(workers=2, jobs_per_round=2, epochs=250, data_by_reference=False)
    train(rounds.replace(epochs=40), data(40))
    process, sizes = psutil.Process(), []

    def watch(status):
        sizes.append((status.head.round if status.head else 0, process.memory_info().rss))

    with ActorNetworkRunner("master", iterator(data(40))) as run:
        run.setup(rounds)
        result = run.train(watch, deadline=120)
    assert result.head.round == 1000
    assert process.memory_info().rss - sizes[0][1] < 5 << 20


class OwnIterator:
    """A ``DataSetIterator`` that is none of ours: it makes its batches as they are asked for."""

    batch_size, total_examples, total_batches, input_columns, total_outcomes = 5, 64, 13, 6, 3

    def __init__(self):
        self._batches = iterator()

    def batch(self, epoch, index):
        return self._batches.batch(epoch, index)

    def __iter__(self):
        return iter(self._batches)

    def has_next(self):
        return self._batches.has_next()

    def next(self):
        return self._batches.next()

    def reset(self):
        self._batches.reset()

    def seek(self, epoch, index):
        self._batches.seek(epoch, index)


def test_an_iterator_of_ones_own_is_as_good_as_ours():
    with ActorNetworkRunner("master", OwnIterator()) as run:
        run.setup(conf())
        assert params(run.train(deadline=120)) == params(train(conf()))


class Seen:
    """A listener and a saver that remember what they were given."""

    def __init__(self):
        self.told, self.saved = [], []

    def iteration_done(self, network, iteration, score, *, examples=0):
        self.told.append((iteration, score, examples, np.array(network.params).tobytes()))

    def save(self, head, model):
        self.saved.append((head.version, np.array(model.arrays["params"]).tobytes()))


def test_listeners_are_told_of_every_version_and_a_saver_gets_those_to_be_saved():
    seen = Seen()
    result = train(conf(epochs=6, checkpoint_every=4), listeners=[seen], saver=seen)
    assert [iteration for iteration, *_ in seen.told] == list(range(result.head.version))
    assert sum(examples for _, _, examples, _ in seen.told) == result.head.examples
    assert seen.told[-1][1] == result.head.score
    assert seen.told[-1][3] == params(result) == seen.saved[-1][1]
    versions = [version for version, _ in seen.saved]
    assert versions == sorted(set(versions)) and versions[-1] == result.head.version
    assert versions[0] >= 4
    for version, saved in seen.saved:
        assert saved == seen.told[version - 1][3]
    assert params(result) == params(train(conf(epochs=6)))


def test_nobody_waits_for_a_listener_before_the_next_jobs_are_issued():
    """It waits here for a worker that trains on with the version that it is told of."""
    trained, total = threading.Semaphore(0), 64 * 3
    rounds = []

    class Working:
        def iteration_done(self, network, iteration, score, *, examples=0):
            trained.release(examples)

    class Patient:
        told = 0

        def iteration_done(self, network, iteration, score, *, examples=0):
            self.told += examples
            arrived = all(rounds) and all(trained.acquire(timeout=60) for _ in range(examples))
            if arrived and self.told < total:
                arrived = trained.acquire(timeout=60)
                trained.release()
            rounds.append(arrived)

    result = train(conf(), listeners=[Patient()], worker_listeners=[Working()])
    assert len(rounds) == result.head.version > 3 and all(rounds)
    assert params(result) == params(train(conf()))


def test_the_last_version_is_told_before_the_run_is_over():
    saved, early = threading.Event(), []

    class Saver:
        def save(self, head, model):
            saved.set()  # the next that happens is the run's end

    class Slow:
        told = 0

        def iteration_done(self, network, iteration, score, *, examples=0):
            self.told += examples
            if self.told == 64 * 3:
                early.append(saved.wait(0.5))

    train(conf(checkpoint_every=1000), listeners=[Slow()], saver=Saver())
    assert early == [False] and saved.is_set()


def test_a_listener_or_saver_that_raises_is_told_once_and_the_run_goes_on(caplog):
    class Broken:
        def iteration_done(self, network, iteration, score, *, examples=0):
            raise ValueError("no paper")

        def save(self, head, model):
            raise OSError("no room")

    class Full(Broken):
        pass

    seen = Seen()
    result = train(conf(epochs=6, checkpoint_every=1), listeners=[Broken(), seen], saver=Full())
    assert sorted(result.warnings) == [
        "Broken failed, and the run went on: ValueError: no paper",
        "Full failed, and the run went on: OSError: no room",
    ]
    assert len(seen.told) == result.head.version
    assert "in iteration_done" in caplog.text  # the traceback
    assert params(result) == params(train(conf(epochs=6)))


def test_the_class_of_a_network_decides_whether_it_pretrains():
    network = zoo.dbn(6, 3, hidden=(5,), seed=7)
    plain = network.replace(pretrain=False)
    both = params(train(conf(multi_layer_conf=network, multi_layer_clazz="DBN")))
    assert params(train(conf(multi_layer_conf=plain, multi_layer_clazz=DBN))) == both
    assert params(train(conf(multi_layer_conf=plain.replace(backprop=False), multi_layer_clazz="DBN"))) == both
    assert params(train(conf(multi_layer_conf=plain))) != both
    assert conf(multi_layer_clazz=DBN) == conf(multi_layer_clazz="DBN")
    with pytest.raises(ConfError, match="a StackedDenoisingAutoEncoder needs at least one AutoEncoder layer"):
        train(conf(multi_layer_conf=network, multi_layer_clazz=StackedDenoisingAutoEncoder))
    with pytest.raises(ConfError, match="multi_layer_clazz is 'dict'"):
        conf(multi_layer_clazz=dict)


def test_without_backprop_a_run_only_pretrains():
    network = zoo.dbn(6, 3, hidden=(5, 4), seed=7).replace(backprop=False)
    only = conf(multi_layer_conf=network)
    assert [(phase.kind, phase.layer) for phase in only.phases()] == [("pretrain", 0), ("pretrain", 1)]
    result = train(only)
    assert result.head.examples == 64 * 2 * 2
