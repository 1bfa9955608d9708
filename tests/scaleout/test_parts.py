"""Own parts by name: registered once, found by whoever has them, and their results checked."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import (
    ActorNetworkRunner,
    CollectingAggregator,
    CollectionJobIterator,
    Conf,
    HogWildWorkRouter,
    IrisDataSetIterator,
    IterativeReduceWorkRouter,
    Job,
    Result,
)
from dl4jlegacy.errors import ConfError, JobError, MissingPartError, NotFiniteError, UsageError
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.workers import plugins as parts
from dl4jlegacy.scaleout.workers.plugins import (
    find_performer,
    find_router,
    import_parts,
    register_performer,
    register_router,
)


class Squares:
    """Squares a number, times its argument."""

    progress = 0

    def __init__(self, conf: Conf, kernels: object) -> None:
        self._times = conf.performer_args.get("times", 1)

    def update(self, model: Result) -> None:
        """What was added up so far is of no use."""

    def perform(self, job: Job) -> Any:
        return Result({"value": self._times * job.work**2})


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    there: dict[str, Any] = {}
    monkeypatch.setattr(parts.PERFORMERS, "parts", there)
    monkeypatch.setattr(parts.ROUTERS, "parts", {})
    return there


def total(**conf: Any) -> Any:
    """Run three jobs over two workers; return their sum."""
    aggregator, first = CollectingAggregator(lambda total, value: total + value), Result({"value": 0})
    jobs = CollectionJobIterator([1, 2, 3], jobs_per_round=2)
    with ActorNetworkRunner("master", jobs, aggregator=aggregator, first_model=first) as runner:
        runner.setup(Conf(workers=2, **conf))
        result = runner.train(deadline=60)
        assert result is not None
        return result.model.values["value"]


def test_a_conf_names_the_performer_and_its_arguments() -> None:
    assert register_performer("squares")(Squares) is Squares
    assert total(performer="squares", performer_args={"times": 10}) == 140


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}], ids=["object", "NaN", "set"])
def test_arguments_that_cannot_travel_are_refused(value: Any) -> None:
    with pytest.raises(ConfError, match=r"Conf\.performer_args cannot travel as JSON"):
        Conf(performer="squares", performer_args={"times": value})


def test_a_performer_that_is_not_here_is_named_with_what_is() -> None:
    register_performer("squares")(Squares)
    with pytest.raises(MissingPartError, match=r"'sqares'.*registered here: squares.*--use.*did you mean 'squares'"):
        total(performer="sqares")
    with pytest.raises(ConfError, match=r"a performer, or its name in Conf\.performer"):
        total()


def test_two_parts_under_one_name_are_refused_and_the_same_one_again_is_not() -> None:
    register_performer("squares")(Squares)
    again = type("Squares", (Squares,), {"__module__": Squares.__module__, "__qualname__": Squares.__qualname__})
    register_performer("squares")(again)  # as when a notebook's cell is run a second time
    assert find_performer("squares", "a run") is again
    with pytest.raises(ConfError, match=r"two performers are called 'squares': .*Squares and .*lambda"):
        register_performer("squares")(lambda conf, kernels: Squares(conf, kernels))
    with pytest.raises(ConfError, match="performer 'three' is int; register a class or function"):
        register_performer("three")(3)  # type: ignore[type-var]
    for name in ("", "a\nb"):
        with pytest.raises(ConfError, match="printable"):
            register_performer(name)


def test_an_installed_package_offers_performers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "squaring_package.py").write_text("def make(conf, kernels): ...\nnothing = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    offered = {"squares": ["squaring_package:make"], "no": ["squaring_package:nothing"], "gone": ["no_such_package:x"]}
    offered["both"] = ["squaring_package:make", "other_package:make"]
    entries = [EntryPoint(name, value, parts.PERFORMERS.group) for name, values in offered.items() for value in values]
    monkeypatch.setattr(parts, "entry_points", lambda group: entries if group == parts.PERFORMERS.group else [])
    assert find_performer("squares", "a run").__module__ == "squaring_package"
    with pytest.raises(MissingPartError, match="squaring_package:nothing is none"):
        find_performer("no", "a run")
    with pytest.raises(MissingPartError, match="no_such_package:x cannot be imported: ModuleNotFoundError"):
        find_performer("gone", "a run")
    with pytest.raises(ConfError, match="other_package:make and squaring_package:make: remove one"):
        find_performer("both", "a run")


def test_modules_of_the_command_line_are_imported_from_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_squares.py").write_text(
        "from dl4jlegacy import register_performer\n@register_performer('own')\ndef make(conf, kernels): ...\n"
    )
    (tmp_path / "own_nothing.py").write_text("")
    (tmp_path / "own_broken.py").write_text("1 / 0")
    import_parts(["own_squares"])
    import_parts(["own_squares"])
    assert find_performer("own", "a run").__name__ == "make"
    for module, words in (
        ("own_nothing", "registers no part"),
        ("own_broken", "ZeroDivisionError"),
        ("no_such_module", "ModuleNotFoundError"),
        ("own_squares.py", "without .py"),
    ):
        with pytest.raises(UsageError, match=rf"--use {module}: .*{words}"):
            import_parts([module])


def iris(listeners: tuple[Any, ...] = (), **conf: Any) -> Any:
    """Train on the irises with two workers; return the result."""
    given = Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2, epochs=2, **conf)
    with ActorNetworkRunner("master", IrisDataSetIterator(16), worker_listeners=listeners) as runner:
        runner.setup(given)
        return runner.train(deadline=60)


def test_a_conf_names_a_router_and_its_arguments() -> None:
    class Narrow(HogWildWorkRouter):
        def __init__(self, conf: Conf) -> None:
            super().__init__(window=conf.router_args["window"])

    register_router("narrow")(Narrow)
    result = iris(router="narrow", router_args={"window": 1})
    assert (result.batches_lost, result.batches_duplicated) == (0, 0)
    assert result.head.version == result.plan.total_slots  # one job at a time
    register_router("in-order")(lambda conf: IterativeReduceWorkRouter())
    in_order, usual = iris(router="in-order"), iris()
    assert in_order.model.arrays["params"].tobytes() == usual.model.arrays["params"].tobytes()


def test_a_router_that_is_not_here_is_named_and_its_conf_can_be_read_all_the_same() -> None:
    for name, words in (("hogwilt", "did you mean 'hogwild'"), ("mine", "hogwild, iterative-reduce.*--use")):
        conf = Conf(multi_layer_conf=zoo.mlp(4, 3), router=name)
        assert Conf.from_json(conf.to_json()) == conf  # as who only looks does
        with pytest.raises(ConfError, match=rf"Conf\.router is '{name}'.*{words}"):
            iris(router=name)
        with pytest.raises(MissingPartError, match=words):
            find_router(conf)
    with pytest.raises(ConfError, match="a router called 'hogwild' is there already, the package's own"):
        register_router("hogwild")(HogWildWorkRouter)
    with pytest.raises(ConfError, match=r"Conf\.router_args cannot travel as JSON"):
        Conf(router_args={"window": object()})


def test_workers_tell_their_listeners_of_every_batch(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    class Seen:
        def iteration_done(self, network: Any, iteration: int, score: float, *, examples: int = 0) -> None:
            seen.append((iteration, network.n_out, np.isfinite(score), examples))

    class Broken:
        def iteration_done(self, network: Any, iteration: int, score: float, *, examples: int = 0) -> None:
            raise RuntimeError("the screen is dark")

    result = iris((Broken(), Seen()))
    assert len(seen) == result.plan.total_batches
    assert sum(examples for *_, examples in seen) == result.head.examples
    assert {(n_out, finite) for _, n_out, finite, _ in seen} == {(3, True)}
    assert 1 <= caplog.text.count("Broken failed, and the worker goes on without what it does") <= 2  # once a worker


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ("garbage", JobError, r"round 0, slot \d: Squares.perform returned str, and not a Result"),
        (None, JobError, "returned NoneType"),
        (Result({"value": float("nan")}), NotFiniteError, "NaN or infinity in value 'value'"),
        (Result({"value": {"deep": [1.0, float("inf")]}}), NotFiniteError, "NaN or infinity in value 'value'"),
        (Result({"value": 1}, {"array": np.array([1.0, np.nan])}), NotFiniteError, "in array 'array'"),
        (Result({"value": object()}), JobError, "value"),
    ],
    ids=["garbage", "nothing", "NaN", "infinity inside", "array", "no JSON"],
)
def test_a_performer_that_returns_what_nobody_can_use_is_named(
    result: Any, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_performer("squares")(Squares)
    monkeypatch.setattr(Squares, "perform", lambda self, job: result)
    with pytest.raises(error, match=words):
        total(performer="squares")
