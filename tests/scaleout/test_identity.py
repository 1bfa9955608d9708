"""What a run's answer depends on besides its Conf and its data: another first model, other jobs or code are refused."""

from __future__ import annotations

import functools
import importlib.util
import json
import linecache
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dl4jlegacy import (
    ActorNetworkRunner,
    CollectingAggregator,
    CollectionJobIterator,
    Conf,
    HogWildWorkRouter,
    InMemoryStateTracker,
    IrisDataSetIterator,
    IterativeReduceWorkRouter,
    Job,
    MultiLayerNetwork,
    Result,
)
from dl4jlegacy.errors import CheckpointError, VersionError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout import saved_run
from dl4jlegacy.scaleout.identity import PERFORMER, MadeOf, agree_on_parts, agree_on_performer
from dl4jlegacy.scaleout.persistence.checkpoint import _signed, _verified
from dl4jlegacy.scaleout.state.code_digest import code_digest, module_digest
from dl4jlegacy.scaleout.workers import plugins as parts
from dl4jlegacy.scaleout.workers.plugins import register_router


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.ROUTERS, "parts", {})
    monkeypatch.setattr(parts, "_USED", {})


def network(seed: int) -> MultiLayerNetwork:
    net = MultiLayerNetwork(zoo.mlp(4, 3, seed=seed), kernels=load("numpy"))
    net.init()
    return net


def train(folder: Path, epochs: int, *, resume: bool = False, changed_code: bool = False, **given: Any) -> Any:
    """Train on the irises with a folder for checkpoints; return the result."""
    router = {"router": given.pop("router")} if "router" in given else {}
    conf = Conf(
        multi_layer_conf=zoo.mlp(4, 3),
        workers=2,
        epochs=epochs,
        checkpoint_dir=str(folder),
        checkpoint_every=1,
        **router,
    )
    with ActorNetworkRunner("master", IrisDataSetIterator(16), **given) as runner:
        runner.setup(conf, resume=resume, changed_code=changed_code)
        return runner.train(deadline=60)


# --- the first model --------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_no_other_first_model_than_it_began_with(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 2, first_model=network(7))
    train(tmp_path / "run", 1, first_model=network(7))
    with pytest.raises(CheckpointError, match=r"began with another first model: \w{16} there, and \w{16} here"):
        train(tmp_path / "run", 2, resume=True, first_model=network(8))
    resumed = train(tmp_path / "run", 2, resume=True)  # it has a checkpoint, and needs none
    assert resumed.model.arrays["params"].tobytes() == whole.model.arrays["params"].tobytes()
    train(tmp_path / "run", 3, resume=True, first_model=network(7))


def test_a_run_that_began_with_its_configuration_takes_no_first_model_later(tmp_path: Path) -> None:
    train(tmp_path, 1)
    with pytest.raises(CheckpointError, match="began with another first model: none there"):
        train(tmp_path, 2, resume=True, first_model=network(7))


def test_a_run_of_which_nothing_is_left_needs_its_first_model(tmp_path: Path) -> None:
    tracker = InMemoryStateTracker()
    conf = Conf(multi_layer_conf=zoo.mlp(4, 3), workers=1)
    try:
        with ActorNetworkRunner("master", IrisDataSetIterator(16), tracker=tracker, first_model=network(7)) as runner:
            runner.setup(conf)
        with ActorNetworkRunner("master", IrisDataSetIterator(16), tracker=tracker) as runner:
            runner.setup(conf)
            with pytest.raises(CheckpointError, match="nothing is left, and this process was given none"):
                runner.train(deadline=60)
    finally:
        tracker.shutdown()


def test_a_checkpoint_of_an_older_version_goes_on_with_what_it_is_given(tmp_path: Path) -> None:
    train(tmp_path, 1, first_model=network(7))
    for manifest in tmp_path.glob("checkpoint-*.json"):
        body = _verified(manifest.read_bytes())
        assert json.loads(manifest.read_bytes())["made_of"]["stop_if"] == "none"
        del body["made_of"]
        manifest.write_bytes(_signed(body))
    train(tmp_path, 2, resume=True, first_model=network(7))
    with pytest.raises(CheckpointError, match="another first model"):
        train(tmp_path, 3, resume=True, first_model=network(8))


# --- code -------------------------------------------------------------------------------------------------------------


class Mean:
    """The usual mean, as an aggregator of one's own."""

    def __init__(self, factor: float = 1.0) -> None:
        self._factor, self._usual = factor, IterativeReduceWorkRouter().fold(load("numpy"))

    def begin(self, model: Any, *, version: int, examples: Sequence[int]) -> Any:
        return self._usual.begin(model, version=version, examples=examples)


class OtherMean(Mean):
    """The same in other words."""


def never(round_: int, score: float) -> str:
    return ""


def wide(conf: Conf) -> HogWildWorkRouter:
    return HogWildWorkRouter(window=4)


def narrow(conf: Conf) -> HogWildWorkRouter:
    return HogWildWorkRouter(window=2)


def usual_performer(conf: Conf, kernels: Any) -> Any:
    from dl4jlegacy.scaleout.actors.worker_pool import network_performer

    return network_performer(conf, kernels)


def slow_performer(conf: Conf, kernels: Any) -> Any:
    return usual_performer(conf, kernels)


def routed(factory: Any) -> dict[str, Any]:
    parts.ROUTERS.parts.clear()
    register_router("own")(factory)
    return {"router": "own"}


CODE: list[tuple[str, Callable[[], dict[str, Any]], Callable[[], dict[str, Any]]]] = [
    ("aggregator", lambda: {"aggregator": Mean()}, lambda: {"aggregator": OtherMean()}),
    ("aggregator", lambda: {"aggregator": Mean(1.0)}, lambda: {"aggregator": Mean(2.0)}),
    ("aggregator", lambda: {"aggregator": Mean()}, dict),
    ("stop_if", dict, lambda: {"stop_if": never}),
    ("router own", lambda: routed(wide), lambda: routed(narrow)),
    ("performer", lambda: {"performer": usual_performer}, lambda: {"performer": slow_performer}),
    ("performer", lambda: {"performer": usual_performer}, dict),
]


@pytest.mark.parametrize(("what", "before", "after"), CODE, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.everyday(2)
def test_a_run_goes_on_with_other_code_only_if_that_is_meant(
    what: str, before: Callable[[], dict[str, Any]], after: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    train(tmp_path, 1, **before())
    with pytest.raises(VersionError, match=rf"began with other code.*\({what}: .* there, .* here\).*--changed-code"):
        train(tmp_path, 2, resume=True, **after())
    unchanged = train(tmp_path, 2, resume=True, **before())
    changed = train(tmp_path, 3, resume=True, changed_code=True, **after())
    history = saved_run.read_history(str(tmp_path))
    noted = [entry.version for entry in history if entry.changed_code]
    assert [entry.changed_code for entry in history if entry.changed_code] == [(what,)]
    assert unchanged.head.version < noted[0] <= changed.head.version
    train(tmp_path, 4, resume=True, **after())  # what it was changed to is what it is made of now
    with pytest.raises(VersionError):
        train(tmp_path, 5, resume=True, **before())


def test_other_jobs_are_refused(tmp_path: Path) -> None:
    class Squares:
        progress = 0

        def update(self, model: Result) -> None: ...

        def perform(self, job: Job) -> Result:
            return Result({"value": job.work**2})

    def total(items: list[int], *, resume: bool = False) -> int:
        add, first = CollectingAggregator(lambda a, b: a + b), Result({"value": 0})
        jobs = CollectionJobIterator(items, jobs_per_round=2)
        given: dict[str, Any] = {"performer": lambda conf, kernels: Squares(), "aggregator": add}
        given |= {} if resume else {"first_model": first}
        with ActorNetworkRunner("master", jobs, **given) as runner:
            runner.setup(Conf(workers=1, checkpoint_dir=str(tmp_path), checkpoint_every=1), resume=resume)
            return int(runner.train(deadline=60).model.values["value"])

    assert total([1, 2, 3]) == 14
    with pytest.raises(CheckpointError, match="began with other jobs"):
        total([1, 2, 4], resume=True)
    assert total([1, 2, 3], resume=True) == 14


@pytest.fixture
def tracker() -> Iterator[InMemoryStateTracker]:
    tracker = InMemoryStateTracker()
    yield tracker
    tracker.shutdown()


def test_the_first_worker_decides_on_the_performer_and_others_are_refused(tracker: InMemoryStateTracker) -> None:
    conf = Conf(run="r")
    agree_on_performer(tracker, conf, usual_performer)
    agree_on_performer(tracker, conf, functools.partial(usual_performer))
    with pytest.raises(VersionError, match=r"run r began with other code .*performer"):
        agree_on_performer(tracker, conf, slow_performer)
    agree_on_parts(tracker, conf, {"first model": "none"}, {}, changed_code=True)
    agree_on_performer(tracker, conf, slow_performer)
    assert tracker.get(PERFORMER) == code_digest(slow_performer)


def test_whatever_is_lost_all_who_work_for_a_run_have_the_same_code_and_first_model() -> None:
    """Random orders of joining, taking over, resuming and servers that are emptied; what a master knows it keeps."""
    conf, codes = Conf(run="r"), {"A": usual_performer, "B": slow_performer}
    refused = 0
    for seed in range(60):
        rng, tracker = random.Random(seed), InMemoryStateTracker()
        began = {"first model": "M", "aggregator": "A"}
        agree_on_parts(tracker, conf, began, {})
        working: list[str] = []
        for _ in range(40):
            dice, code = rng.random(), rng.choice("AB")
            known = MadeOf(tracker)()
            try:
                if dice < 0.5:
                    agree_on_performer(tracker, conf, codes[code])
                    working.append(code)
                elif dice < 0.6:
                    tracker.shutdown()
                    tracker = InMemoryStateTracker()
                    agree_on_parts(tracker, conf, began, known)
                else:
                    model, changed_code = rng.choice(("M", "N", "none")), rng.random() < 0.2
                    ours = {"first model": model, "aggregator": code}
                    changed = agree_on_parts(tracker, conf, ours, known, changed_code=changed_code)
                    assert model != "N" and changed == (("aggregator",) if code != began["aggregator"] else ())
                    began["aggregator"] = code
                    working = [] if changed_code else working  # whoever had the old code was stopped
            except (VersionError, CheckpointError):
                refused += 1
            assert len(set(working)) <= 1, f"seed {seed}: {working} work for one run"
            assert MadeOf(tracker)()["first model"] == "M", f"seed {seed}"
        tracker.shutdown()
    assert refused > 400


# --- digests ----------------------------------------------------------------------------------------------------------

PROGRAM = '''
"""A program."""
import json
from collections import Counter

RATE = 0.5


def scaled(value):
    return value * RATE


class Own:
    def perform(self, job):
        return scaled(job)


class Unrelated:
    pass


if __name__ == "__main__":
    print(Own())
'''


def module_of(text: str, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a program from a file, anew."""
    path = folder / f"{name}.py"
    path.write_text(text)
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_a_part_is_known_by_its_definition_and_what_that_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(text: str, name: str = "program") -> str:
        return code_digest(module_of(text, tmp_path, name, monkeypatch).Own)

    first = digest(PROGRAM)
    assert len(first) == 64
    assert digest(PROGRAM, "other_name") == first  # as `python program.py`, and with --use program
    for same in (
        PROGRAM.replace("print(Own())", "print('resumed')"),
        PROGRAM.replace("class Unrelated:", "class Other:\n    x = 3\n\n\nclass Unrelated:"),
        PROGRAM.replace("    return scaled", "    # a comment\n        return scaled"),
    ):
        assert same != PROGRAM
        assert digest(same) == first
    for other in (
        PROGRAM.replace("RATE = 0.5", "RATE = 0.25"),
        PROGRAM.replace("value * RATE", "value + RATE"),
        PROGRAM.replace("scaled(job)", "scaled(job) + 1"),
    ):
        assert digest(other) != first


def test_what_is_defined_inside_a_function_is_known_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
RATE = 2


def main(resume):
    class Own:
        def perform(self, job):
            return job * RATE

    def add(total, value):
        return total + value

    return Own, add, lambda value: value * RATE, resume
"""

    def digests(text: str) -> list[str]:
        return [code_digest(part) for part in module_of(text, tmp_path, "program", monkeypatch).main(True)[:3]]

    first = digests(text)
    assert len(set(first)) == 3 and all(len(each) == 64 for each in first)
    assert digests(text.replace("resume\n", "not resume\n")) == first
    changed = digests(text.replace("RATE = 2", "RATE = 3").replace("total + value", "total - value"))
    assert [a == b for a, b in zip(first, changed, strict=True)] == [False, False, False]


def test_a_module_beside_a_part_counts_and_an_installed_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside_it.py").write_text("RATE = 1")
    text = "import numpy\nfrom beside_it import RATE\n\n\ndef own(job):\n    return numpy.sum(job) * RATE\n"
    before = code_digest(module_of(text, tmp_path, "program", monkeypatch).own)
    (tmp_path / "beside_it.py").write_text("RATE = 2")
    assert code_digest(module_of(text, tmp_path, "program", monkeypatch).own) != before
    monkeypatch.delitem(sys.modules, "beside_it")


def test_a_part_with_a_version_is_known_by_that() -> None:
    class Own:
        version = "3"

    assert code_digest(Own) == "version 3"
    assert code_digest(Own()) == "version 3"
    assert code_digest(HogWildWorkRouter) == code_digest(len) == ""


def test_modules_that_are_used_are_known_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = "from dl4jlegacy import register_router\n@register_router('used')\ndef make(conf): ...\n"
    (tmp_path / "used_router.py").write_text(text)
    parts.import_parts(["used_router"])
    assert parts.used_modules() == {"used_router": module_digest(sys.modules["used_router"])}
    (tmp_path / "used_router.py").write_text(text + "# more\n")
    assert module_digest(sys.modules["used_router"]) != parts.used_modules()["used_router"]
