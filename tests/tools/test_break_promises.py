"""tools/promises.yaml: the tests and texts that it names are there. Breaking the promises is a tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import break_promises
from tools.promises import PROMISES, Promise

ALL = [promise for group in PROMISES.values() for promise in group]
by_name = pytest.mark.parametrize("promise", ALL, ids=lambda promise: promise.name)


@by_name
def test_a_promise_can_be_broken_and_names_tests_that_there_are(promise: Promise, repository: Path) -> None:
    assert (repository / promise.file).read_text(encoding="utf-8").count(promise.before) == 1, promise.before
    assert promise.before != promise.after
    assert promise.tests
    for test in promise.tests:
        break_promises.is_long(test)


def test_names_are_unique() -> None:
    assert len({promise.name for promise in ALL}) == len(ALL)


def test_a_test_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match=r"no test tests/tools/nowhere.py::test_x"):
        break_promises.is_long("tests/tools/nowhere.py::test_x")


def test_a_break_is_undone_and_leaves_the_file_as_old_as_it_was(tmp_path: Path) -> None:
    promise = Promise(name="n", text="t", tests=(), how="h", file="a.py", before="x = 1", after="x = 2")
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    age = file.stat().st_mtime_ns
    with break_promises.broken(tmp_path, promise):
        assert file.read_text() == "x = 2\n"
        assert file.stat().st_mtime_ns != age
    assert (file.read_text(), file.stat().st_mtime_ns) == ("x = 1\n", age)


@pytest.mark.parametrize("text", ["y = 1\n", "x = 1\nx = 1\n"])
def test_text_that_is_not_exactly_once_in_its_file_is_refused(tmp_path: Path, text: str) -> None:
    promise = Promise(name="n", text="t", tests=(), how="h", file="a.py", before="x = 1", after="x = 2")
    (tmp_path / "a.py").write_text(text)
    with (
        pytest.raises(ValueError, match=r"bring tools/promises.yaml up to date"),
        break_promises.broken(tmp_path, promise),
    ):
        pytest.fail("it was broken")
    assert (tmp_path / "a.py").read_text() == text


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "outcome"),
    [("assert True", "passed"), ("assert False", "failed"), ("import pytest; pytest.skip('no')", "no test")],
)
def test_what_becomes_of_a_test_is_seen(tmp_path: Path, body: str, outcome: str) -> None:
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\n")
    (tmp_path / "test_a.py").write_text(f"def test_a():\n    {body}\n")
    assert break_promises.run_test(tmp_path, "test_a.py::test_a", 60.0)[0] == outcome
