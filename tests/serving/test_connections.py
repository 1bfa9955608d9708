"""Ten thousand connections that are kept alive, with a request under way on each at once."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tests.support import REPOSITORY


@pytest.mark.long
def test_ten_thousand_requests_are_under_way_at_once_and_all_are_answered() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = 10_000 if hard == resource.RLIM_INFINITY else min(10_000, hard - 200)  # as many as this machine allows
    words = [sys.executable, str(REPOSITORY / "benchmarks" / "connections.py"), str(count), "--rounds", "2"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"round 2: {count:,} requests under way at once, all answered" in done.stdout
