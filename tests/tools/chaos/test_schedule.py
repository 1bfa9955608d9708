"""The faults of a chaos run follow from its seed; what is made of its measurements follows from these."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from dl4jlegacy.errors import Dl4jError, TrackerError, UsageError
from dl4jlegacy.scaleout.strategies import STRATEGIES
from tools.chaos import driver as chaos_driver
from tools.chaos import testbed
from tools.chaos.__main__ import parse
from tools.chaos.driver import Driver, compared_fields
from tools.chaos.expiry import session_password
from tools.chaos.faults import _newest_key
from tools.chaos.network import child_environment
from tools.chaos.report import ChaosReport, FaultResult, RunResult
from tools.chaos.run import Run, RunEnded
from tools.chaos.schedule import AT_THE_END, KINDS, Fault, draw_faults, parse_kinds
from tools.chaos.watcher import Sample, last_slow_moment, rounds_per_second

EARLIER = KINDS[:13]
"""The kinds whose schedules people have written down."""


def test_a_seed_gives_the_same_faults_always_and_everywhere() -> None:
    first, second = draw_faults(1, 200, EARLIER, 4)[:2]
    assert first == Fault(number=1, kind="worker-kill", target="worker-3", after_rounds=6, seconds=0.0)
    assert second == Fault(number=2, kind="master-freeze", target="master", after_rounds=2, seconds=5.09)
    assert draw_faults(1, 10, KINDS, 4) == draw_faults(1, 200, KINDS, 4)[:10]
    assert draw_faults(1, 10, KINDS, 4) != draw_faults(2, 10, KINDS, 4)


def test_every_kind_comes_before_any_has_come_too_often() -> None:
    faults = draw_faults(5, 330, KINDS, 4)
    assert [fault.number for fault in faults] == list(range(1, 331))
    assert {fault.kind for fault in faults[:30]} == set(KINDS)
    counts = {kind: sum(fault.kind == kind for fault in faults) for kind in KINDS}
    assert min(counts.values()) >= 11
    assert {fault.kind for fault in draw_faults(5, 50, ("worker-kill", "full-disk"), 4)} == {"worker-kill", "full-disk"}


def test_overlapping_faults_are_one_of_a_process_and_one_of_a_server() -> None:
    faults = draw_faults(2, 100, ("overlapping", "worker-kill"), 2)
    both = [fault.parts for fault in faults if fault.kind == "overlapping"]
    assert len(both) == 25
    assert {first.kind for first, _ in both} == {"worker-kill", "worker-freeze", "workers-kill", "master-kill"}
    assert {(last.kind, last.target) for _, last in both} == {
        ("member-kill", "hazelcast-1"),
        ("member-kill", "hazelcast-2"),
        ("zookeeper-kill", "zookeeper"),
    }
    assert all(fault.seconds == fault.parts[1].seconds > 0 for fault in faults if fault.parts)
    assert next(fault.target for fault in faults if fault.parts) == (
        f"{both[0][0].kind} {both[0][0].target} and {both[0][1].kind} {both[0][1].target}"
    )


def test_faults_hit_processes_that_there_are() -> None:
    faults = draw_faults(3, 300, KINDS, 2)
    assert {f.target for f in faults if f.kind == "worker-kill"} == {"worker-0", "worker-1"}
    assert {f.target for f in faults if f.kind == "partition"} == {"worker-1"}
    assert {f.target for f in faults if f.kind == "member-kill"} == {"hazelcast-1", "hazelcast-2"}
    records = {"model", "update", "data", "job", "worker", "head", "global", "log"}
    assert {f.target for f in faults if f.kind == "corrupt-frame"} == records
    assert all(3.0 <= f.seconds <= 8.0 for f in faults if f.kind == "worker-freeze")
    assert {f.target for f in faults if f.kind == "member-long-freeze"} == {f"hazelcast-{n}" for n in (1, 2, 3)}
    assert all(25.0 <= f.seconds <= 60.0 for f in faults if f.kind.endswith("-long-freeze"))


def test_an_unknown_kind_is_named_with_the_nearest_known_one() -> None:
    assert parse_kinds(None) == KINDS
    assert parse_kinds("worker-kill, full-disk,worker-kill") == ("worker-kill", "full-disk")
    with pytest.raises(UsageError, match="'worker-kil'; did you mean 'worker-kill'"):
        parse_kinds("worker-kil")


def test_speed_is_that_of_the_stretch_asked_for() -> None:
    samples = [Sample(float(second), 10 * second, second) for second in range(5)]
    samples += [Sample(float(second), 40, 4) for second in range(5, 8)]  # nothing for three seconds
    samples += [Sample(float(second), 40 + 10 * (second - 7), second) for second in range(8, 12)]
    assert rounds_per_second(samples, 0.0, 4.0) == 10.0
    assert rounds_per_second(samples, 5.0, 7.0) == 0.0
    assert rounds_per_second(samples, -1.0, 4.0) == 0.0
    assert last_slow_moment(samples, since=4.0, until=11.0, window=1.0, least_rate=6.0) == pytest.approx(8.0, abs=0.11)
    assert last_slow_moment(samples, since=9.0, until=11.0, window=1.0, least_rate=6.0) == 9.0
    assert last_slow_moment(samples[:7], since=4.0, until=6.5, window=1.0, least_rate=6.0) == 6.5


def test_a_sessions_password_is_java_util_randoms() -> None:
    assert len(session_password(0x1000_0000_0000_0001)) == 16
    assert session_password(0xB3415C00).hex() == "60b420bb3851d9d47acb933dbe70399b"  # of a Random with seed 0


def run_end(expected: str) -> RunResult:
    return RunResult(
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
        "faults": (
            FaultResult(fault=fault, run="r", round=5, at_seconds=9.0, detection_seconds=0.7, full_seconds=2.0),
        ),
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
    assert "python -m tools.chaos --faults 1 --seed 7 --workers 4 --kinds worker-kill" in text
    assert "problem   run r: it stood still" in text
    beside = report(hostile_neighbour=True, neighbour={"entries deleted": 3, "keys": 400}).text()
    assert "neighbour entries deleted 3, keys 400" in beside
    assert "--kinds worker-kill --hostile-neighbour" in beside
    interrupted = report(hostile_neighbour=True)  # before that had done anything
    assert interrupted.replay.endswith("--hostile-neighbour")


def test_of_hogwild_the_accounting_is_compared_and_not_the_parameters() -> None:
    free = report(router="hogwild", side_by_side=True, runs=(run_end(""), run_end("")))
    assert free.hash_equal
    assert "hogwild's depend on timing" in free.text()
    assert free.replay.endswith("--kinds worker-kill --router hogwild --side-by-side")
    assert report(rounds_asked_for=500).replay.endswith("--seed 7 --workers 4 --rounds 500 --kinds worker-kill")
    args = '{"parameter_servers": 2}'
    assert report(router_args=args).replay.endswith(f"--kinds worker-kill --router-args '{args}'")
    assert parse(["--router-args", args])[0].router_args == args
    for wrong, words in (
        ("[2]", "give a JSON object"),
        ('{"servers": 2}', "has 'servers'; did you mean 'parameter_servers'"),
    ):
        with pytest.raises(Dl4jError, match=words):
            parse(["--router-args", wrong])


class StubTestBed:
    """Gives what a driver asks of the test bed; nothing is started."""

    tracker = None
    neighbour = beside = None

    def __init__(self, rounds: int) -> None:
        self.options = testbed.TestBedOptions(workers=2, rounds=rounds, seed=1, lossy_link=False, small_disk=False)
        self.run_name = ""

    def train_embedded(self) -> dict[str, Any]:
        return self.reports()[0]

    def start_run(self, run: str) -> None:
        self.run_name = run

    def reports(self) -> list[dict[str, Any]]:
        rounds = self.options.rounds
        counts = {"batches": rounds, "examples": rounds, "batches_lost": 0, "batches_duplicated": 0}
        return [{"rounds": rounds, "updates_dropped": 0, "params_sha256": f"of {rounds}", **counts}]

    def clear(self) -> None:
        pass

    def lengthen(self) -> None:
        self.options = dataclasses.replace(self.options, rounds=2 * self.options.rounds)


class QuietRun:
    """A run that nothing is the matter with, until it is ``over``."""

    over = False

    def __init__(self, *_: object) -> None:
        self.watcher = SimpleNamespace(new_entries=list)
        self.test_bed, self.round = None, 3

    def wait_until_recovered(self, since: float | None, seconds: float) -> float:
        return 0.0

    def wait_rounds(self, count: int) -> None:
        pass

    def raise_if_ended(self) -> None:
        if self.over:
            raise RunEnded

    def finish(self) -> None:
        pass


class Overtaken(Driver):
    """Its runs recover from faults after so many seconds, or end before (None), as ``script`` says."""

    def __init__(self, script: list[float | None]) -> None:
        super().__init__(draw_faults(1, 2, KINDS, 2), lambda line: None)
        self._script, self._usual_rates, self._ended = script, [1.0], ""

    def _inject(self, run: Any, fault: Fault) -> FaultResult:
        name = run.test_bed.run_name
        if self._ended == name:
            raise RunEnded
        full = self._script.pop(0)
        self._ended = name if full is None else ""
        return FaultResult(fault=fault, run=name, round=5, at_seconds=9.0, full_seconds=full)


def test_faults_that_the_end_of_their_run_overtakes_are_done_again_in_longer_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnTestBed(QuietRun):
        def __init__(self, test_bed: Any, *more: object) -> None:
            super().__init__()
            self.test_bed = test_bed

    monkeypatch.setattr(chaos_driver, "RunWatcher", lambda connect: contextlib.nullcontext(SimpleNamespace(head=None)))
    monkeypatch.setattr(chaos_driver, "Run", OnTestBed)
    driver = Overtaken([None, None, 2.0, None, 3.0])
    driver.run_all(cast(testbed.TestBed, StubTestBed(100)))
    assert [end.expected_sha256 for end in driver.runs] == ["of 100", "of 200", "of 400", "of 400"]
    assert [end.faults for end in driver.runs] == [0, 0, 1, 1]
    done = [(one.fault.number, one.run, one.full_seconds) for one in driver.results]
    assert done == [(1, "chaos-3", 2.0), (2, "chaos-4", 3.0)]
    assert driver.problems == []


def test_a_master_that_is_killed_when_all_is_done_comes_at_the_end_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ending(QuietRun):
        def __init__(self, test_bed: Any, *more: object) -> None:
            super().__init__()
            self.test_bed = test_bed

        def kill_master_when_done(self) -> str:
            return "master-1"

    monkeypatch.setattr(chaos_driver, "RunWatcher", lambda connect: contextlib.nullcontext(SimpleNamespace(head=None)))
    monkeypatch.setattr(chaos_driver, "Run", Ending)
    driver = Overtaken([2.0, 3.0])
    kinds = ("worker-kill", AT_THE_END, "worker-kill", AT_THE_END)
    driver._left = [
        Fault(number=number, kind=kind, target="", after_rounds=1, seconds=0.0) for number, kind in enumerate(kinds)
    ]
    driver.run_all(cast(testbed.TestBed, StubTestBed(100)))
    assert [(one.fault.kind, one.run) for one in driver.results] == list(
        zip(kinds, ("chaos-1", "chaos-1", "chaos-2", "chaos-2"), strict=True)
    )
    assert driver.results[1].note == "master-1"
    assert driver.problems == []


def test_a_record_that_is_to_be_damaged_is_the_runs() -> None:
    foreign = ["job/\u00b2/0", f"job/{'9' * 5000}/0", "job/x", "job", "log/9"]
    assert _newest_key([*foreign, "job/3/1"], "job", random.Random(1)) == "job/3/1"
    assert _newest_key(foreign, "job", random.Random(1)) == ""


CLOCKS = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.time_ns(), time.monotonic(), flush=True)
"""


def test_a_step_of_the_clock_is_seen_by_the_wall_clock_only(tmp_path: Path) -> None:
    process = testbed.Process("worker-0", tmp_path)
    process.set_clock(0.0)
    folder = str(Path(testbed.__file__).with_name("clock"))
    with subprocess.Popen(
        [sys.executable, "-c", CLOCKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(CHAOS_CLOCK=str(process.clock), PYTHONPATH=folder),
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for seconds in (0.0, 1e6, -1e6, 0.0):
            process.set_clock(seconds)
            before = time.time(), time.monotonic()
            child.stdin.write("\n")
            child.stdin.flush()
            wall, wall_ns, steady = map(float, child.stdout.readline().split())
            after = time.time(), time.monotonic()
            assert before[0] <= wall - seconds <= after[0]
            assert before[0] - 1e-3 <= wall_ns / 1e9 - seconds <= after[0] + 1e-3
            assert before[1] <= steady <= after[1]
        child.stdin.close()


@pytest.mark.parametrize("over", [True, False])
def test_what_cannot_be_done_to_a_run_is_a_finding_unless_it_has_ended(
    over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inject(test_bed: object, fault: Fault) -> NoReturn:
        raise TrackerError("no master leads")

    monkeypatch.setattr(chaos_driver, "inject", inject)
    monkeypatch.setattr(QuietRun, "over", over)
    (fault,) = draw_faults(1, 1, KINDS, 2)
    with pytest.raises(RunEnded if over else TrackerError):
        Driver([fault], lambda line: None)._inject(cast(Run, QuietRun()), fault)


def test_another_hash_or_none_is_not_equal() -> None:
    other = report(runs=(run_end("abc"), run_end("def")))
    assert not other.hash_equal and "NOT the embedded tracker's" in other.text()
    assert not report(runs=()).hash_equal and "no run has ended" in report(runs=()).text()


def test_every_strategy_is_compared_and_synchronous_ones_to_the_last_bit() -> None:
    exact = {name for name in STRATEGIES if "params_sha256" in compared_fields(name)}
    assert exact == {"iterative-reduce", "bmuf", "easgd", "gradient-sharing"}
    assert all({"batches_lost", "batches_duplicated"} <= set(compared_fields(name)) for name in STRATEGIES)
