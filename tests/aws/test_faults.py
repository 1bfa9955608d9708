"""Seeded failures in the calls of ``up`` and ``down``: whatever happens, nothing that costs is left."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dl4jlegacy.aws.setup import ClusterSetup
from dl4jlegacy.storage.s3.session import Aws
from tests.aws.test_cluster import PAYLOAD, SPEC, registered
from tests.support import REPOSITORY, aws_failures
from tests.support.aws_failures import left_with_our_tag
from tests.support.aws_fixtures import Fault, FaultProxy

SEEDS = int(os.environ.get("DL4J_AWS_SEEDS", "40"))


@pytest.mark.long
def test_nothing_is_left_after_failures_in_up_and_down() -> None:
    """In as many processes as there are cores, each with a moto of its own; none may say a word of complaint."""
    script, cores = Path(aws_failures.__file__), os.cpu_count() or 1
    firsts = [SEEDS * core // cores for core in range(cores + 1)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(script), str(end - first), str(first)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            text=True,
        )
        for first, end in itertools.pairwise(firsts)
        if end > first
    ]
    said = [process.communicate(timeout=3600) for process in processes]
    print(*(endings for endings, _ in said))
    complaints = "".join(complaint for _, complaint in said)
    assert [process.returncode for process in processes] == [0] * len(processes) and not complaints, complaints


@pytest.mark.long
def test_with_the_retries_of_everyday_a_single_failure_is_not_even_noticed(
    aws: Aws, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0.0)
    with Aws("us-east-1", clock=aws.clock) as patient:
        number = len(fault_proxy.requests) + 12
        throttled = Fault("error", "RequestLimitExceeded", 503)
        fault_proxy.judge = lambda request: throttled if request.number in (number, number + 7) else None
        setup = ClusterSetup(patient, "digits", list_workers=registered)
        assert len(setup.up(SPEC, PAYLOAD).workers or ()) == 2
        setup.down()
        assert left_with_our_tag(patient) == []
