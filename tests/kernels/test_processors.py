"""The answer does not depend on the processor: every network becomes the same, bit for bit, whatever it computes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.kernels.test_arithmetic import ANOTHER_PROCESSOR, NO_VECTORS, ON_X86
from tests.support import REPOSITORY

PROCESSORS = {"none": ANOTHER_PROCESSOR}
if ON_X86:
    PROCESSORS["AVX2"] = {
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": NO_VECTORS.replace("X86_V3 ", ""),
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+sse4.2,+avx,+avx2,+fma",
    }


def networks(count: int, **env: str) -> dict[str, str]:
    """Return what networks become on a processor: the digests of ``tests.support.processor_bits``."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.processor_bits", str(count)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        cwd=REPOSITORY,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_every_network_becomes_the_same_on_every_processor() -> None:
    here = networks(12)
    assert len(here) == 23
    for kind, env in PROCESSORS.items():
        there = networks(12, **env)
        assert {name: digest for name, digest in there.items() if here[name] != digest} == {}, kind
