"""Mistakes in a ``JobIterator``, a ``JobAggregator`` and a ``Plan`` of one's own: each is told once, by its name."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, HogWildWorkRouter, IrisDataSetIterator
from dl4jlegacy.errors import ContractError, DataError, Dl4jError
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.workers import plugins as parts
from dl4jlegacy.scaleout.workers.plugins import checked
from dl4jlegacy.testing import check_aggregator, check_jobs
from tests.support.mistaken_parts import MISTAKES, Lines, Mistake, Squares, Total, run


def test_good_parts_are_taken() -> None:
    assert run(Mistake("")) == 4
    assert run(Mistake("", lambda: Lines(lambda slot: (slot.first, "a")))) == 4  # a tuple, which is a list on the way
    check_jobs(Lines())
    check_aggregator(Total(), Mistake("").first, [Mistake("").first])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_by_its_name(name: str, caplog: pytest.LogCaptureFixture) -> None:
    mistake = MISTAKES[name]
    with pytest.raises(Dl4jError) as told:
        run(mistake)
    assert re.search(mistake.words, str(told.value)), str(told.value)
    assert (told.value.code, "\n" in str(told.value)) == (mistake.code, False)
    assert "Traceback" not in caplog.text


JOBS = [name for name, mistake in MISTAKES.items() if mistake.jobs is not Lines]


@pytest.mark.parametrize("name", JOBS)
def test_the_check_of_jobs_finds_what_a_run_finds(name: str) -> None:
    mistake = MISTAKES[name]
    with pytest.raises(Dl4jError, match=mistake.words) as told:
        check_jobs(mistake.jobs())
    assert told.value.code == mistake.code


def test_a_tuple_is_a_list_in_one_process_as_on_a_cluster() -> None:
    seen: list[Any] = []

    class Sees(Squares):
        def perform(self, job: Any) -> Any:
            seen.append(job.work)
            return super().perform(job)

    with ActorNetworkRunner(
        "master", Lines(lambda slot: (1, 2)), aggregator=Total(), first_model=Mistake("").first, performer=Sees
    ) as runner:
        runner.setup(Conf(workers=1))
        runner.train(deadline=20)
    assert seen == [[1, 2]] * 4


class TakesNothing(Squares):
    def __init__(self) -> None: ...


class HasNoLicence(Squares):
    def __init__(self, conf: Conf, kernels: object) -> None:
        raise OSError("no licence")


class PerformsNothing(Squares):
    def perform(self) -> Any:  # type: ignore[override]
        return None


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (TakesNothing, r"performer TakesNothing takes \(\), and a run calls it as performer\(conf, kernels\)"),
        (HasNoLicence, r"performer HasNoLicence raised OSError: no licence \(test_mistaken_parts\.py, line \d+\)"),
        (PerformsNothing, r"PerformsNothing\.perform takes \(\), and a run calls it as perform\(job\)"),
        (Squares(Conf(), None), "it must be a function, called as performer"),
    ],
)
def test_so_is_one_in_a_performer(factory: Any, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        checked(factory)(Conf(), None)  # type: ignore[arg-type]


class OpensNothing(HogWildWorkRouter):
    def open_slots(self, plan: Any, head: Any) -> list[int]:
        return {}["slots"]  # type: ignore[no-any-return, unused-ignore]


class FoldsOne(HogWildWorkRouter):
    def send_work(self, opened: Any) -> list[int]:  # type: ignore[override]
        return list(opened)


def _of_none() -> Any:
    return HogWildWorkRouter()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda conf: OpensNothing(),
            r"OpensNothing\.open_slots raised KeyError: 'slots' \(test_mistaken_parts\.py, li",
        ),
        (lambda conf: FoldsOne(), r"FoldsOne\.send_work takes \(opened\), .* as send_work\(opened, done\): too many"),
        (lambda conf: FoldsOne, r"FoldsOne is a class, and a router is an object: give FoldsOne\("),
        (_of_none, r"router _of_none takes \(\), and a run calls it as router\(conf\)"),
        (lambda conf: 1 / 0, r"router .*<lambda> raised ZeroDivisionError: .* \(test_mistaken_parts\.py, line \d+\)"),
    ],
)
def test_so_is_one_in_a_router(make: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.ROUTERS, "parts", {"own": make})
    with ActorNetworkRunner("master", IrisDataSetIterator(75)) as runner, pytest.raises(ContractError, match=words):
        runner.setup(_network().replace(router="own"))
        runner.train(deadline=20)


class FailsLater(IrisDataSetIterator):
    def batch(self, epoch: int, index: int) -> Any:
        return {}[epoch] if epoch else super().batch(epoch, index)


@functools.cache
def _network() -> Conf:
    return Conf(multi_layer_conf=zoo.mlp(4, 3), workers=1, jobs_per_round=1, epochs=2)


def test_so_is_one_in_an_iterator_and_in_stop_if() -> None:
    with ActorNetworkRunner("master", FailsLater(75)) as runner:
        runner.setup(_network())
        with pytest.raises(Dl4jError, match=r"FailsLater\.batch\(1, 0\) raised KeyError: 1 \(test_mistaken_parts\.py"):
            runner.train(deadline=20)
    with ActorNetworkRunner(
        "master", IrisDataSetIterator(75), stop_if=lambda round_, score: str(1 / 0), validation=IrisDataSetIterator(75)
    ) as runner:
        runner.setup(_network())
        with pytest.raises(ContractError, match=r"stop_if, raised ZeroDivisionError: .* \(test_mistaken_parts\.py"):
            runner.train(deadline=20)
    with pytest.raises(DataError, match="CollectionJobIterator got"):
        MISTAKES["items are a text"].jobs()
