"""Parts of somebody's own that break their contract: each is found at the first breach, and named with its method."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import (
    ActorNetworkRunner,
    CollectingAggregator,
    CollectionJobIterator,
    Conf,
    Fold,
    HogWildWorkRouter,
    InMemoryStateTracker,
    IrisDataSetIterator,
    IterativeReduceWorkRouter,
    Job,
    Result,
    SlotMemory,
    WorkRouter,
)
from dl4jlegacy.errors import ConfError, ContractError, DataError, Dl4jError, JobError, NotFiniteError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.contract import check_opened, slots_to_fold_ahead
from dl4jlegacy.scaleout.plan import Phase, Plan, Validation
from dl4jlegacy.scaleout.state.records import Head, Manifest
from dl4jlegacy.scaleout.workers import plugins as parts
from dl4jlegacy.scaleout.workers.plugins import register_router


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.ROUTERS, "parts", {})


def iris(data: Any = None, *, own: Any = None, deadline: float = 20.0, **given: Any) -> Any:
    """Train on the irises with two workers, with a router or an aggregator of one's own; return the result."""
    conf = {name: given.pop(name) for name in ("epochs",) if name in given}
    if own is not None:
        register_router("own")(lambda conf: own())
        conf["router"] = "own"
    with ActorNetworkRunner("master", data or IrisDataSetIterator(16), **given) as runner:
        runner.setup(Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2, jobs_per_round=2, **{"epochs": 2, **conf}))
        return runner.train(deadline=deadline)


# --- routers ----------------------------------------------------------------------------------------------------------


class OpensFoldedSlots(HogWildWorkRouter):
    """Opens the first two rounds, whatever is folded."""

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return list(range(4))


class LeavesOneOut(HogWildWorkRouter):
    """Never opens the third slot."""

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return [number for number in super().open_slots(plan, head) if number != 2]


class OpensTwice(HogWildWorkRouter):
    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return sorted(super().open_slots(plan, head) * 2)


class OpensNothing(HogWildWorkRouter):
    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return []


class OpensWords(HogWildWorkRouter):
    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return "first"  # type: ignore[return-value]


class OpensWhatIsNotThere(HogWildWorkRouter):
    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        return [*super().open_slots(plan, head), plan.total_slots]


class FoldsTwice(IterativeReduceWorkRouter):
    """Folds the first slot of a round twice."""

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        ready = super().send_work(opened, done)
        return ready[:1] + ready


class FoldsWhatIsNotDone(IterativeReduceWorkRouter):
    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        return list(opened)


class FoldsWhatIsNotOpen(IterativeReduceWorkRouter):
    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        return [max(opened) + 1] if len(done) == len(opened) else []


class FoldsNothing(IterativeReduceWorkRouter):
    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        return []


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (OpensFoldedSlots, r"OpensFoldedSlots\.open_slots has opened slot [0-3], slot [01] of round [01], again"),
        (LeavesOneOut, r"LeavesOneOut\.open_slots has left out slot 2, slot 0 of round 1"),
        (OpensTwice, r"OpensTwice\.open_slots has slot 0 twice in \[0, 0, 1, 1"),
        (OpensNothing, r"OpensNothing\.open_slots has left out slot 0"),
        (OpensWords, r"OpensWords\.open_slots returned 'first'; it must be a list of the numbers"),
        (OpensWhatIsNotThere, r"OpensWhatIsNotThere\.open_slots has opened .*the run has the slots 0 to 19"),
        (FoldsTwice, r"FoldsTwice\.send_work has slot 0 twice in \[0, 0, 1\]"),
        (FoldsWhatIsNotDone, r"FoldsWhatIsNotDone\.send_work folds slot 0, which is not done"),
        (FoldsWhatIsNotOpen, r"FoldsWhatIsNotOpen\.send_work folds slot 2, which is not open; open are \[0, 1\]"),
        (FoldsNothing, r"FoldsNothing\.send_work folds nothing, and all open slots are done"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_router_is_named_at_the_first_answer_that_no_run_can_use(own: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words) as caught:
        iris(own=own)
    assert caught.value.exit_status == 1


PLAN = Plan(
    phases=(Phase(kind="pretrain", layer=0), Phase(epochs=2)),
    batches=4,
    examples=8,
    batch_size=2,
    jobs_per_round=2,
    validation=Validation(batches=3, examples=6, batch_size=2),
)


def at(number: int, *others: int) -> Head:
    """The head before a slot, with ``others`` folded beyond it."""
    folded = ((0, number), *((other, other + 1) for other in others)) if number else ()
    return Head(run="r", version=number, round=PLAN.at(number)[0], model=Manifest("", 0, 0), folded=folded)


def test_slots_beyond_a_phase_or_a_validation_are_refused() -> None:
    router = HogWildWorkRouter()
    check_opened(router, PLAN, at(2), [2, 3])
    with pytest.raises(ContractError, match="beyond the end of a phase or a validation: round 1"):
        check_opened(router, PLAN, at(2), [2, 3, 4])  # the second phase begins
    check_opened(router, PLAN, at(6, 7), [6])
    with pytest.raises(ContractError, match="beyond the end of a phase or a validation: round 3"):
        check_opened(router, PLAN, at(6), [6, 7, 8, 9])  # a validation
    with pytest.raises(ContractError, match="beyond the end of a phase or a validation: round 3"):
        check_opened(router, PLAN, at(6), [6, 7, 10])  # after it
    assert PLAN.is_validation(PLAN.at(8)[0])
    check_opened(router, PLAN, at(8), [8, 9])
    with pytest.raises(ContractError, match="in a validation round; it must open all of it"):
        check_opened(router, PLAN, at(8), [8])


def test_slots_that_are_folded_ahead_are_the_first_that_are_open() -> None:
    class Ahead(IterativeReduceWorkRouter):
        def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
            return sorted(done)

    assert slots_to_fold_ahead(Ahead(), [4, 5, 6], {4, 5}) == [4, 5]
    for done in ({5}, {4, 6}, {9}):
        with pytest.raises(ContractError, match=r"Ahead\.fold_ahead returned"):
            slots_to_fold_ahead(Ahead(), [4, 5, 6], done)


def test_a_router_that_describes_itself_as_none_can_be_is_refused_before_the_run() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"update_kind": "weights"}, r"Wrong\.update_kind is 'weights'"),
        ({"log_every": 2}, r"Wrong\.log_every is 2 and binds_model False"),
        ({"memory": {}}, r"Wrong\.memory is {}; it must be a SlotMemory or None"),
        ({"memory": SlotMemory()}, "SlotMemory has no settle of its own; a SlotMemory needs one"),
        ({"fold": lambda self, kernels, pool=None: 7}, r"Wrong\.fold returned int; it must be a dl4jlegacy\.Fold"),
        (
            {"fold": lambda self, kernels, pool=None: Fold()},
            "Wrong\\.fold returned Fold, which has no begin of its own",
        ),
        ({"fold": lambda self, kernels, pool=None: {}["x"]}, r"Wrong\.fold(.*) raised KeyError: 'x'"),
        (
            {"fold": lambda self, kernels, pool=None: type("F", (Fold,), {"begin": lambda self, model: None})()},
            r"F\.begin",
        ),
        ({"binds_model": None}, r"Wrong\.binds_model is None"),
        ({"send_work": None}, "Wrong has no method send_work"),
    ]
    for members, words in wrong:
        with pytest.raises(ContractError, match=words):
            iris(own=type("Wrong", (HogWildWorkRouter,), members))


def test_a_router_for_an_earlier_version_is_told_what_to_change() -> None:
    members: dict[str, Any] = {name: getattr(WorkRouter, name) for name in ("open_slots", "send_work", "fold_ahead")}
    with pytest.raises(ContractError, match=r"Old must be a subclass of dl4jlegacy\.WorkRouter"):
        iris(own=type("Old", (), members))
    members |= {"shares": "params", "settle": None}
    for base in (object, IterativeReduceWorkRouter):
        with pytest.raises(ContractError, match=r"shares is now update_kind; settle is now in memory, a SlotMemory"):
            iris(own=type("Old", (base,), members))


def test_plain_means_are_refused_where_the_routers_fold_has_none() -> None:
    register_router("own")(lambda conf: WorkRouter())
    with pytest.raises(ConfError, match="WorkRouter has the usual fold, which has no use for it"):
        parts.find_router(Conf(router="own", weighted_average=False))


# --- aggregators ------------------------------------------------------------------------------------------------------


class Changed:
    """The usual mean, whose end is something else; ``last`` in the last round only."""

    def __init__(self, change: Any, *, last: bool = False) -> None:
        self._usual, self._change = IterativeReduceWorkRouter().fold(load("numpy")), change
        self._from = 9 if last else 0

    def begin(self, model: Any, *, version: int, examples: Sequence[int]) -> Any:
        begun, change, is_changed = self._usual.begin(model, version=version, examples=examples), self._change, False
        is_changed = version >= self._from

        class Sum:
            def add(self, updates: Sequence[Any]) -> None:
                begun.add(updates)

            def finish(self, *, ends_phase: bool) -> Any:
                frame, score = begun.finish(ends_phase=ends_phase)
                return change(frame, score) if is_changed else (frame, score)

        return Sum()


def with_nan(frame: Any, score: Any) -> Any:
    result = Result.decode(frame)
    params = result.arrays["params"].copy()
    params[1] = np.nan
    return Result(result.values, {**result.arrays, "params": params}).encode(), score


def longer(frame: Any, score: Any) -> Any:
    result = Result.decode(frame)
    return Result(result.values, {name: np.tile(array, 2) for name, array in result.arrays.items()}).encode(), score


def without_state(frame: Any, score: Any) -> Any:
    return Result({}, {"params": Result.decode(frame).arrays["params"]}).encode(), score


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda frame, score: (frame, "good"), ContractError, r"Sum\.finish returned the score 'good'"),
        (lambda frame, score: (frame, True), ContractError, r"Sum\.finish returned the score True"),
        (lambda frame, score: (frame, np.nan), NotFiniteError, r"Sum\.finish returned the score nan"),
        (lambda frame, score: frame, ContractError, r"Sum\.finish returned memoryview; it must be the model's frame"),
        (lambda frame, score: (None, score), ContractError, r"Sum\.finish returned no model, but NoneType"),
        (lambda frame, score: (b"garbage", score), ContractError, r"Sum\.finish returned no model, but bytes"),
        (longer, ContractError, r"Sum\.finish returned params of the form float32 \[\d+\]; it must be float32"),
        (without_state, ContractError, r"Sum\.finish returned a model with the arrays \['params'\], and no updater_st"),
        (with_nan, NotFiniteError, r"Sum\.finish returned NaN or infinity in array 'params'"),
    ],
    ids=["word", "boolean", "NaN score", "no tuple", "no frame", "garbage", "longer", "no state", "NaN"],
)
@pytest.mark.parametrize("last", [False, True], ids=["at once", "in the last round"])
def test_an_aggregator_is_named_whose_model_or_score_is_none(
    change: Any, error: type[Dl4jError], words: str, last: bool
) -> None:
    with pytest.raises(error, match=words) as caught:
        iris(aggregator=Changed(change, last=last))
    assert caught.value.exit_status == (13 if issubclass(error, NotFiniteError) else 1)


def test_an_aggregator_that_begins_nothing_is_named() -> None:
    class BeginsNothing:
        def begin(self, model: Any, *, version: int, examples: Sequence[int]) -> None:
            """Return nothing."""

    with pytest.raises(ContractError, match=r"BeginsNothing\.begin returned NoneType; it must be an Aggregation"):
        iris(aggregator=BeginsNothing())


def test_a_numpy_score_is_a_number() -> None:
    result = iris(aggregator=Changed(lambda frame, score: (frame, np.float32(0.5))))
    assert result.head.score == 0.5


@pytest.mark.parametrize(
    ("fold", "error"),
    [(lambda total, value: float("nan"), NotFiniteError), (lambda total, value: {1, 2}, ContractError)],
    ids=["NaN", "no JSON"],
)
def test_a_total_that_no_model_can_hold_ends_the_run(fold: Any, error: type[Dl4jError]) -> None:
    jobs, first = CollectionJobIterator([1], jobs_per_round=1), Result({"value": 0})
    make = lambda conf, kernels: Squares()  # noqa: E731
    with ActorNetworkRunner(
        "master", jobs, performer=make, aggregator=CollectingAggregator(fold), first_model=first
    ) as runner:
        runner.setup(Conf(workers=1))
        with pytest.raises(error, match=r"<lambda>, CollectingAggregator's fold, returned"):
            runner.train(deadline=20)


# --- whatever else becomes part of a run's state ----------------------------------------------------------------------


class Squares:
    progress: Any = 0

    def update(self, model: Result) -> None:
        """Nothing is remembered."""

    def perform(self, job: Job) -> Any:
        return Result({"value": job.work**2})


def squares(performer: Any, first: Result | None = None) -> Any:
    jobs, add = CollectionJobIterator([1, 2, 3], jobs_per_round=2), CollectingAggregator(lambda a, b: a + b)
    made = {
        "performer": lambda conf, kernels: performer,
        "aggregator": add,
        "first_model": first or Result({"value": 0}),
    }
    with ActorNetworkRunner("master", jobs, **made) as runner:
        runner.setup(Conf(workers=1))
        return runner.train(deadline=20)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"value": 1, "score": "good", "examples": 1}, r"Squares\.perform returned the score 'good'"),
        ({"value": 1, "score": 1.0}, r"Squares\.perform returned a score, and the value 'examples' is None"),
        ({"value": 1, "score": 1.0, "examples": 0}, r"Squares\.perform .* the value 'examples' is 0"),
    ],
)
def test_a_performer_is_named_whose_score_is_none(values: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Squares, "perform", lambda self, job: Result(values))
    with pytest.raises(JobError, match=words):
        squares(Squares())


def test_a_performer_without_its_methods_is_named_before_it_gets_a_job() -> None:
    for performer, words in ((object(), "object has no method update"), (None, "NoneType has no method update")):
        with pytest.raises(ContractError, match=words):
            squares(performer)
    counts_in_words = Squares()
    counts_in_words.progress = "half"
    with pytest.raises(ContractError, match=r"Squares\.progress is 'half'; it must be a number"):
        squares(counts_in_words)


def test_a_first_model_that_is_not_finite_is_refused_before_the_run() -> None:
    with pytest.raises(NotFiniteError, match="first_model returned NaN or infinity in value 'value'"):
        squares(Squares(), Result({"value": float("inf")}))


def test_a_reason_to_stop_that_is_no_text_is_named() -> None:
    def enough(round_: int, score: float) -> Any:
        return True

    half = IrisDataSetIterator(16).batch(0, 0)
    with pytest.raises(ContractError, match="enough, which is stop_if, returned True in round 5"):
        iris(stop_if=enough, validation=half)
    assert iris(stop_if=lambda round_, score: None, validation=half).stopped_by == ""


class Shrinks(IrisDataSetIterator):
    """Its batches have a row less in the second epoch."""

    def batch(self, epoch: int, index: int) -> Any:
        batch = super().batch(epoch, index)
        return batch.rows(0, batch.num_examples - epoch)


def test_an_iterator_that_gives_other_row_counts_on_its_second_pass_is_named() -> None:
    with pytest.raises(Dl4jError, match=r"Shrinks\.batch\(1, \d\) returned \d+ examples?, and not \d+") as caught:
        iris(Shrinks(16))
    assert isinstance(caught.value, DataError | JobError)


def test_an_iterator_that_gives_no_batch_is_named() -> None:
    class Words(IrisDataSetIterator):
        def batch(self, epoch: int, index: int) -> Any:
            return super().batch(0, index) if epoch == 0 else "batch"

    with pytest.raises(Dl4jError, match=r"Words\.batch\(1, \d\) returned str; it must be a DataSet"):
        iris(Words(16))


def test_jobs_without_a_plan_are_refused_before_the_run() -> None:
    class Jobs:
        plan = None

        def work(self, slot: Any) -> Any: ...

    jobs: Any = Jobs()
    with (
        ActorNetworkRunner("master", jobs, aggregator=CollectingAggregator(max)) as runner,
        pytest.raises(ConfError, match="Jobs is no JobIterator: that has a Plan"),
    ):
        runner.setup(Conf(workers=1))


@pytest.fixture
def tracker() -> Iterator[InMemoryStateTracker]:
    tracker = InMemoryStateTracker()
    yield tracker
    tracker.shutdown()


@pytest.mark.parametrize("value", [float("nan"), {"a": [1.0, float("-inf")]}])
def test_a_global_with_nan_is_refused_and_not_stored_as_null(tracker: InMemoryStateTracker, value: Any) -> None:
    for define in (tracker.define, tracker.define_once):
        with pytest.raises(NotFiniteError, match="global 'k' cannot be defined"):
            define("k", value)
    assert tracker.store.keys("") == []


def test_a_global_that_is_null_is_defined(tracker: InMemoryStateTracker) -> None:
    tracker.define("k", None)
    assert tracker.define_once("k", 3) is None
    assert bytes(tracker.store.get("global/k") or b"") == b"null"
