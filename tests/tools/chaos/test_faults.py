"""What was injected is undone, also where the run has ended meanwhile."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from dl4jlegacy.errors import Dl4jError
from tools.chaos import faults, testbed
from tools.chaos.schedule import Fault


@pytest.mark.parametrize("kind", ["master-freeze", "master-long-freeze"])
def test_a_master_is_woken_up_although_nobody_leads_a_run_that_ended_meanwhile(kind: str, monkeypatch) -> None:
    def nobody(test_bed: object, leader: object) -> None:
        raise Dl4jError("no master leads")

    signals: list[int] = []
    leader = SimpleNamespace(name="master-0", pid=1, signal=signals.append)
    monkeypatch.setattr(faults, "_wait_for_another", nobody)
    fault = Fault(number=1, kind=kind, target="master", after_rounds=1, seconds=0.0)
    active = faults.inject(SimpleNamespace(leader=lambda: leader), fault)
    assert signals == [signal.SIGSTOP]
    with pytest.raises(Dl4jError, match="no master leads"):
        active.recover()
    assert signals == [signal.SIGSTOP, signal.SIGCONT]


WORDS = "run chaos-1 is not registered any more: it has ended while this master stood still"


@pytest.mark.parametrize(
    ("name", "number", "status", "words", "rightly"),
    [
        ("master-0", signal.SIGSTOP, 4, WORDS, True),
        ("master-0", signal.SIGCONT, 4, WORDS, False),  # it never slept
        ("master-0", signal.SIGSTOP, 4, "Zookeeper does not answer", False),
        ("master-0", signal.SIGSTOP, 1, WORDS, False),
        ("worker-0", signal.SIGSTOP, 4, WORDS, False),
    ],
)
def test_only_a_master_that_slept_through_the_end_may_say_so(
    name: str, number: signal.Signals, status: int, words: str, rightly: bool, tmp_path: Path
) -> None:
    options = testbed.TestBedOptions(workers=1, rounds=1, seed=1, lossy_link=False, small_disk=False)
    bed = testbed.TestBed(tmp_path, options)
    process = bed.processes[name] = testbed.Process(name, tmp_path, starts=1)
    command = ["sh", "-c", f"read line; echo '{words}' >&2; exit {status}"]
    with process.log.open("wb") as log:
        process.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)
    process.signal(number)
    process.signal(signal.SIGCONT)
    assert not bed.slept_through_end(process)
    process.popen.communicate(b"\n", timeout=60)
    assert bed.slept_through_end(process) is rightly
    process.starts += 1
    assert not bed.slept_through_end(process)
