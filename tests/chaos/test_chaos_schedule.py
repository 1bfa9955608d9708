"""The faults of a chaos run follow from its seed; what is made of its measurements follows from these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from dl4jlegacy.chaos.driver import _Driver
from dl4jlegacy.chaos.expiry import session_password
from dl4jlegacy.chaos.report import ChaosReport, Overcome, RunEnd
from dl4jlegacy.chaos.schedule import KINDS, Fault, checked_kinds, draw
from dl4jlegacy.chaos.stage import Setting, Stage
from dl4jlegacy.chaos.watch import Sample, last_slow_moment, rounds_per_second
from dl4jlegacy.errors import UsageError


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
    """Gives what a driver asks for between two runs."""

    def __init__(self, rounds: int) -> None:
        self.setting = Setting(2, rounds, 1, wires=False, small_disk=False)
        self.run = ""

    def expected(self) -> Callable[[], dict[str, Any]]:
        return lambda: {"rounds": self.setting.rounds, "params_sha256": f"of {self.setting.rounds}"}

    def clear(self) -> None:
        pass


class ShortRuns(_Driver):
    """Runs of fewer than 300 rounds are over before a fault is overcome."""

    def _run(self, stage: Stage, run: str) -> None:
        self.runs.append(run_end(self.expected["params_sha256"]))
        if stage.setting.rounds >= 300:
            fault = self._left.pop(0)
            self.overcome.append(Overcome(fault=fault, run=run, round=5, at_seconds=9.0, full_seconds=2.0))


def test_faults_that_the_end_of_their_run_overtakes_are_done_again_in_longer_runs() -> None:
    driver = ShortRuns(draw(1, 2, KINDS, 2), lambda line: None)
    driver.play(cast(Stage, ShortStage(100)))
    assert [end.expected_sha256 for end in driver.runs] == ["of 100", "of 200", "of 400", "of 400"]
    assert [(done.fault.number, done.run) for done in driver.overcome] == [(1, "chaos-3"), (2, "chaos-4")]
    assert driver.problems == []


def test_another_hash_or_none_is_not_equal() -> None:
    assert not report(runs=(run_end("abc"), run_end("def"))).hash_equal
    assert not report(runs=()).hash_equal
    assert "NOT the embedded tracker's" in report(runs=()).text()
