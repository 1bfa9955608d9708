"""The arithmetic of a CPU: every part that decides the last bits is named, and another part is another arithmetic."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.kernels.arithmetic import cpu_arithmetic
from tests.support import REPOSITORY

ON_X86 = platform.machine() in ("x86_64", "AMD64")
OTHER_CORE = "Nehalem" if ON_X86 else "ARMV8"
NO_VECTORS = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR" if ON_X86 else "ASIMDHP ASIMDFHM SVE"
ANOTHER_PROCESSOR = {
    "OPENBLAS_CORETYPE": OTHER_CORE,
    "NPY_DISABLE_CPU_FEATURES": NO_VECTORS,
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "+sse2",
}
"""What makes every library of a process take this processor for one without vector instructions."""
PROGRAM = "import json; from dl4jlegacy.kernels.arithmetic import cpu_arithmetic as c; print(json.dumps(c({!r})))"


def elsewhere(kernels: str, **env: str) -> dict[str, str]:
    """Return the arithmetic of a process with these environment variables."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(kernels)],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        cwd=REPOSITORY,
        env={**os.environ, **env},
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_part_is_named_and_the_same_in_every_process() -> None:
    named = {
        "numpy": ["dl4jlegacy", "NumPy", "NumPy's vector code", "BLAS", "products", "functions"],
        "numba": ["dl4jlegacy", "products", "functions", "sums"],
    }
    for kernels, parts in named.items():
        ours = cpu_arithmetic(kernels)
        assert list(ours) == parts
        assert all(ours.values())
        assert elsewhere(kernels, OPENBLAS_NUM_THREADS="1") == ours


def test_compiled_kernels_compute_the_same_bits_on_another_processor() -> None:
    assert elsewhere("numba", **ANOTHER_PROCESSOR) == cpu_arithmetic("numba")


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ({"OPENBLAS_CORETYPE": OTHER_CORE}, {"BLAS", "products"}),
        ({"NPY_DISABLE_CPU_FEATURES": NO_VECTORS}, {"NumPy's vector code", "functions"}),
    ],
    ids=["BLAS", "NumPy"],
)
def test_a_process_that_sums_in_another_order_differs_in_the_parts_that_do(
    env: dict[str, str], parts: set[str]
) -> None:
    ours, theirs = cpu_arithmetic("numpy"), elsewhere("numpy", **env)
    assert {part for part in ours if ours[part] != theirs[part]} == parts


def test_a_kernel_that_computes_anything_else_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from dl4jlegacy.kernels.numba import kernels

    ours, real = cpu_arithmetic("numba"), kernels.matmul

    def nearly(a: Any, b: Any, out: Any, accumulate: bool = False) -> None:
        real(a, b, out, accumulate)
        out[-1, -1] = np.nextafter(out[-1, -1], np.float32(9))

    monkeypatch.setattr(kernels, "matmul", nearly)
    theirs = cpu_arithmetic("numba")
    assert {part for part in ours if ours[part] != theirs[part]} == {"products"}
