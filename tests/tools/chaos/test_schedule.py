"""The faults of a chaos run follow from its seed; what is made of its measurements follows from these."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dl4jlegacy.errors import Dl4jError, UsageError
from dl4jlegacy.scaleout.strategies import STRATEGIES
from tools.chaos import testbed
from tools.chaos.__main__ import parse
from tools.chaos.driver import compared_fields
from tools.chaos.expiry import session_password
from tools.chaos.faults import _newest_key
from tools.chaos.network import child_environment
from tools.chaos.report import ChaosReport, FaultResult, RunResult
from tools.chaos.schedule import KINDS, Fault, draw_faults, parse_kinds
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


def test_another_hash_or_none_is_not_equal() -> None:
    other = report(runs=(run_end("abc"), run_end("def")))
    assert not other.hash_equal and "NOT the embedded tracker's" in other.text()
    assert not report(runs=()).hash_equal and "no run has ended" in report(runs=()).text()


def test_every_strategy_is_compared_and_synchronous_ones_to_the_last_bit() -> None:
    exact = {name for name in STRATEGIES if "params_sha256" in compared_fields(name)}
    assert exact == {"iterative-reduce", "bmuf", "easgd", "gradient-sharing"}
    assert all({"batches_lost", "batches_duplicated"} <= set(compared_fields(name)) for name in STRATEGIES)
