"""Whatever files, requests and variables hold is answered by name: no traceback, no status 500, no hang, no memory.

The release suite tries 20,000 inputs. A single one is looked at by ``python -m tests.fuzz SUBJECT SEED NUMBER 1``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.fuzz.subjects import SUBJECTS
from tests.support import REPOSITORY

ALL, LONG = 20_000, 1_000
SEED = int(os.environ.get("DL4J_FUZZ_SEED", "1"))
PATIENCE = 1_800.0
WEIGHTS = {name: subject.weight for name, subject in SUBJECTS.items()}
TOTAL = sum(WEIGHTS.values())


@dataclass
class Found:
    """What came of some cases: how many had each status, and what was wrong."""

    statuses: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def fuzzed(subjects: str, count: int) -> Found:
    """Try so many cases of each of these subjects; a case that ends the process is a fault, and the rest follow."""
    found, first = Found(), 0
    while first < count:
        command = [sys.executable, "-m", "tests.fuzz", subjects, str(SEED), str(first), str(count - first)]
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", timeout=PATIENCE
        )
        last = None
        for line in done.stdout.splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if not isinstance(said, dict):
                continue
            if "fault" in said:
                found.faults.append(f"{said['subject']}, case {said['case']}: {said['fault']}")
            last = said if "case" in said else last
            found.statuses.update(said.get("statuses", {}))
        if not done.returncode:
            break
        ended = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}"
        found.faults.append(f"{last}: the process ended by {ended}: {done.stderr[-2000:]}")
        if "," in subjects or last is None:
            break
        first = last["case"] + 1
    return found


def check(name: str, count: int) -> None:
    """Assert that every case of a subject is answered, and that some are taken and some are refused."""
    found = fuzzed(name, count)
    print(f"{name}: {count} inputs, by status: {dict(sorted(found.statuses.items()))}, {len(found.faults)} faults")
    assert not found.faults, "\n".join(found.faults[:20])


def test_a_few_inputs_of_every_kind_are_answered() -> None:
    found = fuzzed(",".join(name for name in SUBJECTS if name not in ("sequences", "text")), 3)
    assert not found.faults, "\n".join(found.faults)
    assert found.statuses["0"] and found.statuses["3"] and found.statuses["8"] and found.statuses["400"]


@pytest.mark.long
@pytest.mark.parametrize("name", SUBJECTS)
def test_a_thousand_inputs_are_answered(name: str) -> None:
    check(name, max(5, LONG * WEIGHTS[name] // TOTAL))


@pytest.mark.release
@pytest.mark.parametrize("name", SUBJECTS)
def test_twenty_thousand_inputs_are_answered(name: str) -> None:
    check(name, -(-ALL * WEIGHTS[name] // TOTAL))


@pytest.mark.long
def test_a_hundred_thousand_frames_are_answered() -> None:
    check("frame", 100_000)


IMPORTED = {
    "NUMBA_DISABLE_JIT": "1",
    "NUMBA_NUM_THREADS": "x",
    "NUMBA_OPT": "z",
    "NUMBA_CPU_NAME": "z",
    "NUMBA_DEBUG": "x",
    "OMP_NUM_THREADS": "z",
    "OPENBLAS_NUM_THREADS": "-1",
    "NUMBA_CACHE_DIR": "/dev/null",
    "PYTHONIOENCODING": "ascii",
    "LC_ALL": "z",
    "NUMBA_THREADING_LAYER": "z",
    "NUMBA_ENABLE_CUDASIM": "1",
    "TZ": "z/z",
    "TERM": "z",
}
"""Variables that count while a process begins, and what makes trouble in each."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "NUMBA_DISABLE_JIT" else pytest.mark.long) for n in IMPORTED]
)
def test_a_variable_that_counts_while_a_process_begins_is_answered(name: str, tmp_path: object) -> None:
    command = [sys.executable, "-m", "dl4jlegacy", "train", "iris", "--epochs", "1", "--workers", "1"]
    environment = os.environ | {name: IMPORTED[name]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=str(tmp_path), timeout=PATIENCE)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 3, 9), done.stderr
