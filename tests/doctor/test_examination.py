"""How checks are done: side by side where they wait, each with a deadline, and no failure ends the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dl4jlegacy.doctor import Check, Finding, Result, Settings, examine
from dl4jlegacy.doctor.check import failed, ok, one_line, skipped, warning
from dl4jlegacy.errors import DataError, TrackerError

SECONDS = 30.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that checks without an end of their own wait for; set at the end of the test."""
    opened = threading.Event()
    yield opened
    opened.set()


def check(name: str, finding: Finding | BaseException | Callable[[], Finding], **fields: object) -> Check:
    def look(settings: Settings) -> Finding:
        if isinstance(finding, BaseException):
            raise finding
        return finding if isinstance(finding, Finding) else finding()

    return Check(name, "Area", look, **fields)  # type: ignore[arg-type]


def results(*checks: Check, fix: bool = False) -> dict[str, Result]:
    return {result.name: result for result in examine(checks, Settings(), fix=fix)}


def test_a_check_that_raises_is_a_failed_check_and_the_others_go_on() -> None:
    raised = (ZeroDivisionError("by nought"), SystemExit(3), KeyboardInterrupt(), MemoryError())
    errors = (TrackerError("it is gone; start it"), DataError("bad"))
    found = list(results(*(check(f"{exc!r}", exc) for exc in (*raised, *errors)), check("b", ok("well"))).values())
    for exc, result in zip(raised, found, strict=False):
        assert result.found.startswith(f"the check itself failed: {type(exc).__name__}") and result.remedy
    assert {each.status for each in found[:-1]} == {"failed"} and not any(each.is_fatal for each in found)
    assert [(each.found, each.remedy) for each in found[4:]] == [
        ("it is gone", "start it"),
        ("bad", "dl4j explain DL4J-DATA"),
        ("well", ""),
    ]


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_check_that_hangs_fails_at_its_deadline_and_the_others_go_on(gate: threading.Event, is_waiting: bool) -> None:
    def hang() -> Finding:
        gate.wait(SECONDS)
        return ok("much too late")

    found = results(
        check("a", hang, seconds=0.4, is_waiting=is_waiting, is_needed=lambda settings: True),
        check("b", ok("well")),
        check("c", ok("never"), need="a"),
    )
    assert found["a"].is_fatal and "not come to its end" in found["a"].found and found["a"].seconds == 0.4
    assert found["b"].status == "ok"
    assert (found["c"].status, found["c"].found) == ("skipped", "a has failed")


def test_a_machine_that_starts_no_threads_fails_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found = results(check("a", ok("well")), check("b", ok("well"), is_waiting=True))
    assert all(each.status == "failed" and "can't start new thread" in each.found for each in found.values())


def test_checks_that_wait_are_done_side_by_side_and_the_others_one_by_one() -> None:
    together, computing = threading.Barrier(4), threading.Lock()

    def meet() -> Finding:
        together.wait(SECONDS)
        return ok("met the others")

    def compute() -> Finding:
        if not computing.acquire(blocking=False):
            return failed("another one computes", "wait")
        threading.Event().wait(0.02)
        computing.release()
        return ok("alone")

    waiting = [check(f"w{n}", meet, is_waiting=True) for n in range(4)]
    found = results(*waiting, *(check(f"c{n}", compute) for n in range(4)))
    assert {each.found for each in found.values()} == {"met the others", "alone"}


def test_results_come_in_order_each_as_soon_as_possible(gate: threading.Event) -> None:
    looked = examine(
        [check("a", ok("1")), check("b", lambda: ok("2" if gate.wait(SECONDS) else ""), is_waiting=True)], Settings()
    )
    assert next(looked).name == "a"  # b waits for the gate
    gate.set()
    assert [(each.name, each.found) for each in looked] == [("b", "2")]


def test_a_check_is_skipped_without_the_one_that_it_needs_and_names_the_first_cause() -> None:
    found = results(
        check("a", failed("gone", "start it")),
        check("b", ok(""), need="a"),
        check("c", ok(""), need="b"),
        check("d", skipped("nothing is named")),
        check("e", ok(""), need="d", is_waiting=True),
        check("f", warning("old", "renew it")),
        check("g", ok("done"), need="f"),
    )
    assert [(each.status, each.found) for each in found.values()] == [
        ("failed", "gone"),
        ("skipped", "a has failed"),
        ("skipped", "a has failed"),
        ("skipped", "nothing is named"),
        ("skipped", "nothing is named"),
        ("warning", "old"),
        ("ok", "done"),
    ]


def test_fix_creates_and_removes_what_a_finding_names_and_checks_again(tmp_path: Path) -> None:
    folder, kept, link = tmp_path / "a/b", tmp_path / "kept", tmp_path / "cache/link.nbi"
    link.parent.mkdir()
    kept.write_text("precious")
    link.symlink_to(kept)

    def look() -> Finding:
        if folder.is_dir():
            return ok("there")
        return failed("missing", "create it", creates=(folder,), removes=(link,))

    assert results(check("a", look))["a"].status == "failed" and link.is_symlink()
    found = results(check("a", look), fix=True)["a"]
    assert found.status == "ok"
    assert found.mended == f"created {folder}; removed 1 damaged file from {link.parent}"
    assert kept.read_text() == "precious" and not link.is_symlink()
    assert results(check("a", look), fix=True)["a"].mended == ""
    found = results(check("a", warning("missing", "create it", creates=(kept / "folder",))), fix=True)["a"]
    assert found.status == "failed" and found.remedy == "create it"
    assert found.found.startswith("missing; it cannot be mended: ") and "Not a directory" in found.found


def test_settings_do_not_show_the_environment_and_others_texts_are_short() -> None:
    assert "hunter2" not in repr(Settings(environ={"DL4J_SECRET": "hunter2hunter2"}))
    assert one_line("a\n  b\tc") == "a b c" and len(one_line("x" * 10_000)) == 300
