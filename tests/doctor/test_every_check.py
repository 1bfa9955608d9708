"""Every check notices when what it looks at is broken: each condition is broken here on purpose, at least once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dl4jlegacy.doctor import Settings, all_checks
from dl4jlegacy.doctor.computation import compiled_kernels
from dl4jlegacy.doctor.examination import _look
from tests.doctor import cases_installation, cases_machine, cases_servers
from tests.doctor.broken_things import CASES, Case, Thing

assert cases_installation and cases_machine and cases_servers  # they declare the cases
ONE_FOR_ALL = ("Libraries", "Extras")
"""Areas with one check for each library, and each extra; one function looks at all of them."""


@pytest.fixture
def thing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Thing]:
    for name in list(os.environ):
        if name.startswith(("DL4J_", "AWS_", "CUDA_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("XDG_CACHE_HOME", "SUDO_USER", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        yield Thing(monkeypatch, tmp_path, stack)


@pytest.fixture(scope="module", autouse=True)
def kernels_are_ready() -> None:
    """Compile what the checks compute, so that no test is the one that waits for it."""
    assert compiled_kernels(Settings()).status == "ok"


@pytest.mark.parametrize("case", CASES, ids=[each.id for each in CASES])
def test_it_is_noticed(case: Case, thing: Thing) -> None:
    settings = case.make(thing)
    [check] = [each for each in all_checks() if each.name == case.check]
    finding = _look(check, settings)
    said = f"{finding.found} -> {finding.remedy}"
    assert finding.status == case.status, said
    assert all(word in said for word in case.words), said
    assert finding.remedy or finding.status in ("ok", "skipped"), said
    assert "the check itself failed" not in said


def test_every_check_is_broken_at_least_once() -> None:
    broken = {case.check for case in CASES if case.status in ("failed", "warning")}
    every = {check.name for check in all_checks() if check.area not in ONE_FOR_ALL}
    assert every | {"imports", "shadows", "numpy", "extra aws"} <= broken
    assert len(every) >= 50


def test_the_checks_are_named_once_and_need_earlier_ones() -> None:
    before: set[str] = set()
    for check in all_checks():
        assert check.name not in before and set(check.needs) <= before, check.name
        before.add(check.name)
