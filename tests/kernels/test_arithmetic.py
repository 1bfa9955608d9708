"""The arithmetic of a CPU: every part that decides the last bits is named, and another part is another arithmetic."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from dl4jlegacy.kernels.arithmetic import cpu_arithmetic
from tests.support import REPOSITORY

ON_X86 = platform.machine() in ("x86_64", "AMD64")
OTHER_CORE = "Nehalem" if ON_X86 else "ARMV8"
NO_VECTORS = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR" if ON_X86 else "ASIMDHP ASIMDFHM SVE"
PROGRAM = "import json; from dl4jlegacy.kernels.arithmetic import cpu_arithmetic as c; print(json.dumps(c('numba')))"


def elsewhere(**env: str) -> dict[str, str]:
    """Return the arithmetic of a process with these environment variables."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=REPOSITORY,
        env={**os.environ, **env},
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_part_is_named_and_the_same_in_every_process() -> None:
    ours = cpu_arithmetic("numba")
    assert list(ours) == [
        *("dl4jlegacy", "NumPy", "NumPy's vector code", "BLAS"),
        *("Numba", "llvmlite", "compiled vector code", "products", "functions"),
    ]
    assert all(ours.values())
    assert elsewhere(OPENBLAS_NUM_THREADS="1") == ours
    compiled = ("Numba", "llvmlite", "compiled vector code")
    assert cpu_arithmetic("numpy") == {part: value for part, value in ours.items() if part not in compiled}


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ({"OPENBLAS_CORETYPE": OTHER_CORE}, {"BLAS", "products"}),
        ({"NPY_DISABLE_CPU_FEATURES": NO_VECTORS}, {"NumPy's vector code", "functions"}),
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2"}, {"compiled vector code"}),
    ],
    ids=["BLAS", "NumPy", "kernels"],
)
def test_a_process_that_sums_in_another_order_differs_in_the_parts_that_do(
    env: dict[str, str], parts: set[str]
) -> None:
    ours, theirs = cpu_arithmetic("numba"), elsewhere(**env)
    assert {part for part in ours if ours[part] != theirs[part]} == parts
