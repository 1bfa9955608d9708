"""Many threads ask one network: who is computed together with whom, and that each gets the answer to its own rows."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import MultiLayerNetwork, ParallelInference, TrainedModel
from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import DataError, DeadlineError, ShapeError, UsageError
from dl4jlegacy.models.queue import (
    Batching,
    ClosedError,
    InferenceQueue,
    InferenceRequest,
    QueueFullError,
    ReplicatedModel,
)
from dl4jlegacy.nn.zoo import char_lstm, mlp
from dl4jlegacy.system.clock import Deadline
from tests.support.cluster_commands import until

PATIENCE = 60.0
MODES = ("sequential", "batched", "inplace")


def network(seed: int = 1, n_in: int = 4) -> MultiLayerNetwork:
    made = MultiLayerNetwork(mlp(n_in, 3))
    made.set_params(np.random.default_rng(seed).normal(0, 1, made.num_params).astype(np.float32))
    return made


def rows(count: int, seed: int = 5, n_in: int = 4) -> Array:
    return np.random.default_rng(seed).normal(0, 1, (count, n_in)).astype(np.float32)


class Gate:
    """A model that notes the rows of each pass, and computes none until it may."""

    def __init__(self) -> None:
        self.model, self.passes = TrainedModel(network()), list[int]()
        self.answer = TrainedModel(network()).answer  # a network is for one thread at a time
        self.begun, self.may_go = threading.Event(), threading.Event()
        self.replicated = ReplicatedModel(self.model, [self.predict])

    def predict(self, features: Array) -> Array:
        self.begun.set()
        assert self.may_go.wait(PATIENCE)
        self.passes.append(len(features))
        return self.model.answer(features)


class Asked:
    """A request with what came of it."""

    def __init__(self, model: ReplicatedModel, *blocks: Array) -> None:
        self.came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.request = InferenceRequest(
            model, iter(blocks), lambda outputs, n_in: self.came.put(outputs), self.came.put
        )

    def outputs(self) -> Array:
        found = self.came.get(timeout=PATIENCE)
        assert isinstance(found, list), found
        return np.concatenate(found)

    def error(self) -> Exception:
        found = self.came.get(timeout=PATIENCE)
        assert isinstance(found, Exception)
        return found


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.may_go.set()


@pytest.fixture
def begin(gate: Gate) -> Iterator[Callable[..., InferenceQueue]]:
    """Begins a queue, which is at work on a first request of one row, so that all that come now wait."""
    begun: list[InferenceQueue] = []

    def start(**options: Any) -> InferenceQueue:
        begun.append(InferenceQueue("gated", Batching(**options)))
        begun[-1].put(Asked(gate.replicated, rows(1)).request)
        if options.get("batch_delay"):  # which that one waits, too
            begun[-1].put(Asked(gate.replicated, rows(options["batch_limit"])).request)
        assert gate.begun.wait(PATIENCE)
        return begun[-1]

    yield start
    gate.may_go.set()
    assert all(each.close(PATIENCE) for each in begun)


def put(waiting: InferenceQueue, model: ReplicatedModel, sizes: list[int]) -> list[tuple[Asked, Array]]:
    made = [(Asked(model, x), x) for x in (rows(size, seed) for seed, size in enumerate(sizes))]
    for asked, _ in made:
        waiting.put(asked.request)
    return made


@pytest.mark.parametrize(
    ("mode", "sizes", "passes"),
    [
        ("batched", [1, 2, 3, 2], [8]),
        ("batched", [5, 3, 1], [8, 1]),
        ("batched", [5, 4, 3], [5, 7]),
        ("batched", [20, 1, 1], [20, 2]),
        ("batched", [1, 20, 1], [1, 20, 1]),
        ("sequential", [1, 2, 3], [1, 2, 3]),
    ],
)
def test_requests_that_wait_together_are_one_batch_within_the_limit(
    gate: Gate, begin: Callable[..., InferenceQueue], mode: Any, sizes: list[int], passes: list[int]
) -> None:
    made = put(begin(mode=mode, batch_limit=8), gate.replicated, sizes)
    gate.may_go.set()
    for asked, x in made:
        assert asked.outputs().tobytes() == gate.answer(x).tobytes()
    assert gate.passes == [1, *passes]


def test_the_oldest_waits_for_others_until_half_a_batch_is_there(
    gate: Gate, begin: Callable[..., InferenceQueue]
) -> None:
    waiting = begin(batch_limit=8, batch_delay=50.0)
    gate.may_go.set()
    until(lambda: gate.passes == [1, 8])
    for asked, _ in put(waiting, gate.replicated, [1, 1, 2]):
        assert len(asked.outputs()) in (1, 2)
    assert gate.passes[-1] == 4, "it did not wait for the end of the delay, nor did one go without the others"


def test_more_than_half_a_batch_takes_along_whoever_is_there(gate: Gate, begin: Callable[..., InferenceQueue]) -> None:
    waiting = begin(batch_limit=8, batch_delay=50.0)
    made = put(waiting, gate.replicated, [5, 1, 1, 4])
    gate.may_go.set()
    assert [len(asked.outputs()) for asked, _ in made] == [5, 1, 1, 4]
    assert gate.passes == [1, 8, 7, 4]


def test_a_request_of_several_blocks_is_computed_block_by_block_and_alone(
    gate: Gate, begin: Callable[..., InferenceQueue]
) -> None:
    waiting = begin(batch_limit=8)
    before, blocks = Asked(gate.replicated, rows(1)), [rows(3, seed) for seed in range(4)]
    long, empty, after = Asked(gate.replicated, *blocks), Asked(gate.replicated), Asked(gate.replicated, rows(2))
    for asked in (before, long, empty, after):
        waiting.put(asked.request)
    gate.may_go.set()
    assert long.outputs().tobytes() == np.concatenate([gate.answer(x) for x in blocks]).tobytes()
    assert len(after.outputs()) == 2 and gate.passes == [1, 1, 3, 3, 3, 3, 2]
    assert empty.came.get(timeout=PATIENCE) == []


def test_rows_of_another_width_or_model_are_not_joined(gate: Gate, begin: Callable[..., InferenceQueue]) -> None:
    other, passes = TrainedModel(network(2, n_in=5)), list[int]()

    def predict(x: Array) -> Array:
        passes.append(len(x))
        return other.answer(x)

    waiting, replicated = begin(batch_limit=8), ReplicatedModel(other, [predict])
    [first], [second] = put(waiting, gate.replicated, [2]), [Asked(replicated, rows(3, n_in=5))]
    waiting.put(second.request)
    [third] = put(waiting, gate.replicated, [1])
    gate.may_go.set()
    assert [len(first[0].outputs()), len(second.outputs()), len(third[0].outputs())] == [2, 3, 1]
    assert (gate.passes, passes) == ([1, 2, 1], [3])


def test_sequences_of_one_length_are_joined_and_each_gets_its_steps() -> None:
    text, same = (TrainedModel(MultiLayerNetwork(char_lstm(8 * 6, 6, hidden=(5,)))) for _ in range(2))
    made, blocks = list[Asked](), [np.random.default_rng(i).random((1, 6, 3 + i // 2), np.float32) for i in range(4)]
    waiting = InferenceQueue("text", Batching(batch_limit=2, batch_delay=50.0))
    model = ReplicatedModel.of(text, 1)
    for block in blocks:
        made.append(Asked(model, block))
        waiting.put(made[-1].request)
    for asked, block in zip(made, blocks, strict=True):
        assert asked.outputs().tobytes() == same.answer(block).tobytes()
    assert waiting.close(PATIENCE)


def test_rows_that_fail_fail_nobody_else(gate: Gate, begin: Callable[..., InferenceQueue]) -> None:
    waiting = begin(batch_limit=8)
    wrong = rows(2)
    wrong[1, 2] = np.nan
    broken = Asked(gate.replicated, wrong)

    def unreadable() -> Iterator[Array]:
        raise ZeroDivisionError("no rows")
        yield

    unread = Asked(gate.replicated)
    unread.request.blocks = unreadable()
    [before] = put(waiting, gate.replicated, [2])
    for asked in (broken, unread):
        waiting.put(asked.request)
    [after] = put(waiting, gate.replicated, [1])
    gate.may_go.set()
    for asked, x in (before, after):
        assert asked.outputs().tobytes() == gate.answer(x).tobytes()
    assert isinstance(broken.error(), DataError) and isinstance(unread.error(), ZeroDivisionError)
    assert gate.passes[0] == 1 and 5 in gate.passes


def test_answers_are_not_in_the_memory_of_the_next_batch(gate: Gate) -> None:
    """Of a network that passes on what it is given, as no layer of this package does."""
    passes = ReplicatedModel(gate.model, [lambda features: features[:, :3]])
    waiting, made = InferenceQueue("passes", Batching(batch_limit=4, batch_delay=50.0)), list[tuple[Asked, Array]]()
    for seed in range(0, 6, 2):
        for x in (rows(1, seed), rows(3, seed + 1)):
            made.append((Asked(passes, x), x))
            waiting.put(made[-1][0].request)
    found = [asked.outputs() for asked, _ in made]  # when all batches are computed
    for outputs, (_, x) in zip(found, made, strict=True):
        assert outputs.tobytes() == np.ascontiguousarray(x[:, :3]).tobytes()
    assert waiting.close(PATIENCE)


def test_what_takes_an_answer_may_fail_too(gate: Gate, begin: Callable[..., InferenceQueue]) -> None:
    waiting, failed = begin(), queue.SimpleQueue[Exception]()

    def broken(outputs: list[Array], n_in: int) -> None:
        raise ZeroDivisionError

    waiting.put(InferenceRequest(gate.replicated, iter([rows(1)]), broken, failed.put))
    [other] = put(waiting, gate.replicated, [1])
    gate.may_go.set()
    assert isinstance(failed.get(timeout=PATIENCE), ZeroDivisionError) and len(other[0].outputs()) == 1


def test_no_more_wait_than_may_and_who_can_waits_for_room(gate: Gate, begin: Callable[..., InferenceQueue]) -> None:
    waiting = begin(queue_limit=2)
    made = put(waiting, gate.replicated, [1, 1])
    assert waiting.waiting == 2
    late = Asked(gate.replicated, rows(1))
    with pytest.raises(QueueFullError, match="2 requests wait for model gated"):
        waiting.put(late.request)
    with pytest.raises(QueueFullError):
        waiting.put_in_time(late.request, Deadline(0))
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(waiting.put_in_time, late.request, Deadline(PATIENCE))
        assert not coming.done()
        gate.may_go.set()
        coming.result(PATIENCE)
    assert [len(asked.outputs()) for asked in (made[0][0], made[1][0], late)] == [1, 1, 1]


def test_closing_gives_up_who_waits_and_leaves_what_does_not_end_to_itself(
    gate: Gate, begin: Callable[..., InferenceQueue], caplog: pytest.LogCaptureFixture
) -> None:
    waiting = begin()
    [(asked, _)] = put(waiting, gate.replicated, [1])
    assert not waiting.close(0.0), "the worker computes for as long as it likes"
    assert "model gated still computes after 0 s" in caplog.text
    assert isinstance(asked.error(), ClosedError)
    with pytest.raises(ClosedError):
        waiting.put(asked.request)
    gate.may_go.set()
    assert waiting.close(PATIENCE)


# -- ParallelInference -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [1, 3])
def test_each_thread_gets_the_answer_to_its_rows(mode: Any, workers: int) -> None:
    asked = [rows(1 + seed % 5, seed) for seed in range(60)]
    expected = [TrainedModel(network()).answer(x) for x in asked]
    with ParallelInference(network(), inference_mode=mode, workers=workers, batch_limit=8, queue_limit=3) as inference:
        assert inference.output(asked[0]).tobytes() == expected[0].tobytes()
        with ThreadPoolExecutor(8) as pool:
            for found, own in zip(pool.map(inference.output, asked), expected, strict=True):
                assert found.tobytes() == own.tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_another_model_answers_from_then_on(mode: Any) -> None:
    x, other = rows(3), TrainedModel(network(2), name="other")
    with ParallelInference(network(), inference_mode=mode, workers=2) as inference:
        before = inference.output(x)
        inference.update_model(other)
        assert inference.model is other
        assert [inference.output(x).tobytes() for _ in range(4)] == [other.answer(x).tobytes()] * 4
    assert before.tobytes() == network().output(x).tobytes() != other.answer(x).tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_wrong_rows_are_refused_and_others_answered(mode: Any) -> None:
    with ParallelInference(network(), inference_mode=mode) as inference:
        with pytest.raises(ShapeError, match="takes 4 features, the given data has 5"):
            inference.output(rows(2, n_in=5))
        with pytest.raises(DataError, match="example 1, column 0"):
            inference.output(np.array([[0, 0, 0, 0], [np.inf, 0, 0, 0]], np.float32))
        assert inference.output([[1, 2, 3, 4]]).shape == (1, 3)
    for _ in range(2):
        inference.close()
    with pytest.raises(UsageError, match="was closed; make a new one"):
        inference.output(rows(1))


@pytest.mark.parametrize("mode", MODES)
def test_who_waits_too_long_is_told(mode: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicatedModel, "of", lambda model, count: gate.replicated)
    with (
        ParallelInference(network(), inference_mode=mode, queue_limit=1) as inference,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(inference.output, rows(1))
        assert gate.begun.wait(PATIENCE)
        for _ in range(2):  # the queue is full then
            with pytest.raises(DeadlineError, match=r"has not answered within 0.05 s"):
                inference.output(rows(1), seconds=0.05)
        gate.may_go.set()
        assert first.result(PATIENCE).shape == (1, 3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"inference_mode": "parallel"},
            "mode 'parallel' is unknown; there are sequential, batched, inplace",
        ),
        ({"batch_limit": 0}, "batch_limit is 0; it must be a whole number of at least 1"),
        ({"queue_limit": 1.5}, "queue_limit is 1.5"),
        ({"workers": True}, "workers is True"),
        ({"batch_delay": -1.0}, "batch_delay is -1.0; it must be from 0 to 60 seconds"),
        ({"batch_delay": float("nan")}, "batch_delay is nan"),
    ],
)
def test_what_cannot_be_is_refused(options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        ParallelInference(network(), **options)
