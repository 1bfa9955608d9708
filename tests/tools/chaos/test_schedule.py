"""The faults of a chaos run follow from its seed; what is made of its measurements follows from these."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from dl4jlegacy.chaos import driver as chaos_driver
from dl4jlegacy.chaos.act import Act, Over
from dl4jlegacy.chaos.driver import _Driver
from dl4jlegacy.chaos.expiry import session_password
from dl4jlegacy.chaos.report import ChaosReport, Overcome, RunEnd
from dl4jlegacy.chaos.schedule import KINDS, Fault, checked_kinds, draw
from dl4jlegacy.chaos.stage import Setting, Stage
from dl4jlegacy.chaos.watch import Sample, last_slow_moment, rounds_per_second
from dl4jlegacy.errors import TrackerError, UsageError


def test_a_seed_gives_the_same_faults_always_and_everywhere() -> None:
    first, second = draw(1, 200, KINDS, 4)[:2]
    assert first == Fault(number=1, kind="worker-kill", target="worker-3", after_rounds=6, seconds=0.0)
    assert second == Fault(number=2, kind="master-freeze", target="master", after_rounds=2, seconds=5.09)
    assert draw(1, 10, KINDS, 4) == draw(1, 200, KINDS, 4)[:10]
    assert draw(1, 10, KINDS, 4) != draw(2, 10, KINDS, 4)


def test_every_kind_comes_before_any_has_come_too_often() -> None:
    faults = draw(5, 200, KINDS, 4)
    assert [fault.number for fault in faults] == list(range(1, 201))
    assert {fault.kind for fault in faults[:18]} == set(KINDS)
    counts = {kind: sum(fault.kind == kind for fault in faults) for kind in KINDS}
    assert min(counts.values()) >= 11
    assert {fault.kind for fault in draw(5, 50, ("worker-kill", "full-disk"), 4)} == {"worker-kill", "full-disk"}


def test_faults_hit_seats_that_there_are() -> None:
    faults = draw(3, 300, KINDS, 2)
    assert {f.target for f in faults if f.kind == "worker-kill"} == {"worker-0", "worker-1"}
    assert {f.target for f in faults if f.kind == "partition"} == {"worker-1"}
    assert {f.target for f in faults if f.kind == "member-kill"} == {"hazelcast-1", "hazelcast-2"}
    records = {"model", "update", "data", "job", "worker", "head", "global", "log"}
    assert {f.target for f in faults if f.kind == "corrupt-frame"} == records
    assert all(3.0 <= f.seconds <= 8.0 for f in faults if f.kind == "worker-freeze")


def test_an_unknown_kind_is_named_with_the_nearest_known_one() -> None:
    assert checked_kinds(None) == KINDS
    assert checked_kinds("worker-kill, full-disk,worker-kill") == ("worker-kill", "full-disk")
    with pytest.raises(UsageError, match="'worker-kil'; did you mean 'worker-kill'"):
        checked_kinds("worker-kil")


def test_speed_is_that_of_the_stretch_asked_for() -> None:
    samples = [Sample(float(second), 10 * second, second) for second in range(5)]
    samples += [Sample(float(second), 40, 4) for second in range(5, 8)]  # nothing for three seconds
    samples += [Sample(float(second), 40 + 10 * (second - 7), second) for second in range(8, 12)]
    assert rounds_per_second(samples, 0.0, 4.0) == 10.0
    assert rounds_per_second(samples, 5.0, 7.0) == 0.0
    assert rounds_per_second(samples, -1.0, 4.0) == 0.0
    assert last_slow_moment(samples, 4.0, 11.0, 1.0, 6.0) == pytest.approx(8.0, abs=0.11)
    assert last_slow_moment(samples, 9.0, 11.0, 1.0, 6.0) == 9.0
    assert last_slow_moment(samples[:7], 4.0, 6.5, 1.0, 6.0) == 6.5


def test_a_sessions_password_is_java_util_randoms() -> None:
    assert len(session_password(0x1000_0000_0000_0001)) == 16
    assert session_password(0xB3415C00).hex() == "60b420bb3851d9d47acb933dbe70399b"  # of a Random with seed 0


def run_end(expected: str) -> RunEnd:
    return RunEnd(
        run="r",
        rounds=460,
        faults=1,
        seconds=20.0,
        batches_lost=0,
        batches_duplicated=0,
        updates_dropped=0,
        params_sha256="abc",
        expected_sha256=expected,
    )


def report(**changes: object) -> ChaosReport:
    fault = Fault(number=1, kind="worker-kill", target="worker-0", after_rounds=3, seconds=0.0)
    settings: dict[str, object] = {
        "seed": 7,
        "workers": 4,
        "kinds": ("worker-kill",),
        "not_run": {"partition": "network namespaces need root"},
        "schedule": (fault,),
        "faults": (Overcome(fault=fault, run="r", round=5, at_seconds=9.0, detection_seconds=0.7, full_seconds=2.0),),
        "runs": (run_end("abc"),),
        "hangs": 0,
        "problems": (),
        "seconds": 30.0,
    }
    return ChaosReport(**{**settings, **changes})  # type: ignore[arg-type]


def test_a_report_names_what_was_late_what_was_not_run_and_how_to_do_it_again() -> None:
    fields = report().fields()
    assert fields["by_kind"]["worker-kill"] == {
        "faults": 1,
        "detection_seconds": [0.7, 0.7, 0.7],
        "detection_goal": 0.5,
        "later_than_goal": 1,
        "not_noticed": 0,
        "full_seconds": [2.0, 2.0, 2.0],
    }
    assert (fields["hash_equal"], fields["batches_lost"], fields["batches_duplicated"]) == (True, 0, 0)
    text = report(problems=("run r: it stood still",)).text()
    assert "partition        not run: network namespaces need root" in text
    assert "dl4j bench chaos --faults 1 --seed 7 --workers 4 --kinds worker-kill" in text
    assert "problem   run r: it stood still" in text


class ShortStage:
    """Gives what a driver asks of the stage; nothing is started."""

    tracker = None

    def __init__(self, rounds: int) -> None:
        self.setting = Setting(2, rounds, 1, wires=False, small_disk=False)
        self.run = ""

    def expected(self) -> Callable[[], dict[str, Any]]:
        return lambda: self.reports()[0]

    def begin(self, run: str) -> None:
        self.run = run

    def reports(self) -> list[dict[str, Any]]:
        rounds = self.setting.rounds
        counts = {"batches": rounds, "examples": rounds, "batches_lost": 0, "batches_duplicated": 0}
        return [{"rounds": rounds, "updates_dropped": 0, "params_sha256": f"of {rounds}", **counts}]

    def clear(self) -> None:
        pass


class QuietAct:
    """A run that nothing is the matter with, until it is ``over``."""

    over = False

    def __init__(self, *_: object) -> None:
        self.watch = SimpleNamespace(news=list)
        self.stage, self.round = None, 3

    def settle(self, since: float | None, seconds: float) -> float:
        return 0.0

    def wait_rounds(self, count: int) -> None:
        pass

    def raise_if_over(self) -> None:
        if self.over:
            raise Over

    def finish(self) -> None:
        pass


class Overtaken(_Driver):
    """Its faults are overcome, or overtaken by the run's end, as ``script`` says."""

    def __init__(self, script: list[float | None]) -> None:
        super().__init__(draw(1, 2, KINDS, 2), lambda line: None)
        self._script, self._usual, self._ended = script, [1.0], ""

    def _one(self, act: Any, fault: Fault) -> Overcome:
        run = act.stage.run
        if self._ended == run:
            raise Over
        full = self._script.pop(0)
        self._ended = run if full is None else ""
        return Overcome(fault=fault, run=run, round=5, at_seconds=9.0, full_seconds=full)


def test_faults_that_the_end_of_their_run_overtakes_are_done_again_in_longer_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnStage(QuietAct):
        def __init__(self, stage: Any, *more: object) -> None:
            super().__init__()
            self.stage = stage

    monkeypatch.setattr(chaos_driver, "Watch", lambda connect: contextlib.nullcontext(SimpleNamespace(head=None)))
    monkeypatch.setattr(chaos_driver, "Act", OnStage)
    play = Overtaken([None, None, 2.0, None, 3.0])
    play.play(cast(Stage, ShortStage(100)))
    assert [end.expected_sha256 for end in play.runs] == ["of 100", "of 200", "of 400", "of 400"]
    assert [end.faults for end in play.runs] == [0, 0, 1, 1]
    done = [(one.fault.number, one.run, one.full_seconds) for one in play.overcome]
    assert done == [(1, "chaos-3", 2.0), (2, "chaos-4", 3.0)]
    assert play.problems == []


@pytest.mark.parametrize("over", [True, False])
def test_what_cannot_be_done_to_a_run_is_a_finding_unless_it_has_ended(
    over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(stage: object, fault: Fault) -> NoReturn:
        raise TrackerError("no master leads")

    monkeypatch.setattr(chaos_driver, "strike", strike)
    monkeypatch.setattr(QuietAct, "over", over)
    (fault,) = draw(1, 1, KINDS, 2)
    with pytest.raises(Over if over else TrackerError):
        _Driver([fault], lambda line: None)._one(cast(Act, QuietAct()), fault)


def test_another_hash_or_none_is_not_equal() -> None:
    assert not report(runs=(run_end("abc"), run_end("def"))).hash_equal
    assert not report(runs=()).hash_equal
    assert "NOT the embedded tracker's" in report(runs=()).text()
