"""How checks are done: side by side where they wait, each under a deadline, and none can take the others along."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dl4jlegacy.doctor import Check, Finding, Result, Settings, examine
from dl4jlegacy.doctor.check import Mend, failed, of_error, ok, one_line, skipped, warning
from dl4jlegacy.doctor.mending import mend
from dl4jlegacy.errors import DataError, TrackerError

SECONDS = 30.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What checks wait for that never come to an end by themselves; opened at the end of the test."""
    opened = threading.Event()
    yield opened
    opened.set()


def check(name: str, look: Callable[[Settings], Finding], **fields: object) -> Check:
    return Check(name=name, area="Area", look=look, **fields)  # type: ignore[arg-type]


def results(*checks: Check, fix: bool = False) -> dict[str, Result]:
    return {result.name: result for result in examine(checks, Settings(), fix=fix)}


def raising(exc: BaseException) -> Callable[[Settings], Finding]:
    def look(settings: Settings) -> Finding:
        raise exc

    return look


@pytest.mark.parametrize("exc", [ZeroDivisionError("by nought"), SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_a_check_that_fails_itself_is_a_failed_check_and_the_others_go_on(exc: BaseException) -> None:
    found = results(check("a", raising(exc)), check("b", lambda settings: ok("well")))
    assert found["a"].status == "failed" and not found["a"].is_fatal
    assert found["a"].found.startswith(f"the check itself failed: {type(exc).__name__}") and found["a"].remedy
    assert (found["b"].status, found["b"].found) == ("ok", "well")


def test_an_error_of_this_package_is_a_finding_with_its_remedy() -> None:
    found = results(check("a", raising(TrackerError("it is gone; start it"))), check("b", raising(DataError("bad"))))
    assert (found["a"].found, found["a"].remedy) == ("it is gone", "start it")
    assert (found["b"].found, found["b"].remedy) == ("bad", "dl4j explain DL4J-DATA")
    assert of_error(DataError("a; b"), "warning").status == "warning"


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_check_that_hangs_fails_at_its_deadline_and_the_others_go_on(gate: threading.Event, is_waiting: bool) -> None:
    def hang(settings: Settings) -> Finding:
        gate.wait(SECONDS)
        return ok("much too late")

    found = results(
        check("a", hang, seconds=0.4, is_waiting=is_waiting, is_needed=lambda settings: True),
        check("b", lambda settings: ok("well")),
        check("c", lambda settings: ok("never"), needs=("a",)),
    )
    assert found["a"].status == "failed" and found["a"].is_fatal
    assert "not come to its end" in found["a"].found
    assert found["b"].status == "ok"
    assert (found["c"].status, found["c"].found) == ("skipped", "a has failed")


def test_a_machine_that_starts_no_threads_fails_every_check_and_none_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    found = results(check("a", lambda settings: ok("well")), check("b", lambda settings: ok("well"), is_waiting=True))
    assert all(each.status == "failed" and "can't start new thread" in each.found for each in found.values())


def test_those_that_wait_are_done_side_by_side_and_those_that_compute_one_by_one() -> None:
    together = threading.Barrier(4)
    computing, most = [0], [0]

    def meet(settings: Settings) -> Finding:
        together.wait(SECONDS)
        return ok("met the others")

    def compute(settings: Settings) -> Finding:
        computing[0] += 1
        most[0] = max(most[0], computing[0])
        threading.Event().wait(0.02)
        computing[0] -= 1
        return ok("alone")

    waiting = [check(f"w{n}", meet, is_waiting=True) for n in range(4)]
    found = results(*waiting, *(check(f"c{n}", compute) for n in range(4)))
    assert {each.found for each in found.values()} == {"met the others", "alone"}
    assert most == [1]


def test_results_come_in_the_order_of_the_checks_each_as_soon_as_it_is_there(gate: threading.Event) -> None:
    def last(settings: Settings) -> Finding:
        gate.wait(SECONDS)
        return ok("at last")

    looked = examine([check("a", lambda s: ok("1")), check("b", last, is_waiting=True)], Settings())
    assert next(looked).name == "a"  # though b is not there, which nobody lets go on before
    gate.set()
    assert [each.name for each in looked] == ["b"]


def test_what_needs_something_that_has_failed_names_the_first_cause() -> None:
    found = results(
        check("a", lambda settings: failed("gone", "start it")),
        check("b", lambda settings: ok(""), needs=("a",)),
        check("c", lambda settings: ok(""), needs=("b",)),
        check("d", lambda settings: skipped("nothing is named")),
        check("e", lambda settings: ok(""), needs=("d",), is_waiting=True),
        check("f", lambda settings: warning("old", "renew it")),
        check("g", lambda settings: ok("done"), needs=("f",)),
    )
    assert {name: (each.status, each.found) for name, each in found.items()} == {
        "a": ("failed", "gone"),
        "b": ("skipped", "a has failed"),
        "c": ("skipped", "a has failed"),
        "d": ("skipped", "nothing is named"),
        "e": ("skipped", "d: nothing is named"),
        "f": ("warning", "old"),
        "g": ("ok", "done"),
    }


def test_fix_does_what_a_finding_offers_and_looks_again(tmp_path: Path) -> None:
    folder = tmp_path / "a/b"

    def look(settings: Settings) -> Finding:
        if folder.is_dir():
            return ok("there")
        return failed("missing", "create it", Mend(folders=(folder,)))

    assert results(check("a", look))["a"].status == "failed" and not folder.exists()
    found = results(check("a", look), fix=True)["a"]
    assert (found.status, found.mended) == ("ok", f"created {folder}")
    assert results(check("a", look), fix=True)["a"].mended == ""


def test_what_cannot_be_mended_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    offer = Mend(folders=(tmp_path / "file/folder",))
    found = results(check("a", lambda settings: warning("missing", "create it", offer)), fix=True)["a"]
    assert found.status == "failed" and found.remedy == "create it"
    assert found.found.startswith("missing; it cannot be mended: ") and "Not a directory" in found.found


def test_mending_removes_the_named_files_and_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    kept, link, damaged = tmp_path / "kept", tmp_path / "cache/link.nbi", tmp_path / "cache/damaged.nbi"
    kept.write_text("precious")
    damaged.parent.mkdir()
    damaged.write_text("")
    link.symlink_to(kept)
    assert mend(Mend(files=(damaged, link))) == f"removed 2 damaged files from {tmp_path / 'cache'}"
    assert kept.read_text() == "precious" and list(damaged.parent.iterdir()) == []


def test_a_finding_s_time_is_what_its_check_took() -> None:
    began = time.monotonic()
    found = results(check("a", lambda settings: ok("" if threading.Event().wait(0.3) else "waited")))["a"]
    assert 0.25 <= found.seconds <= time.monotonic() - began + 0.1


def test_settings_do_not_show_the_environment() -> None:
    assert "hunter2" not in repr(Settings(environ={"DL4J_SECRET": "hunter2hunter2"}))


def test_others_texts_are_one_line_of_bounded_length() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert len(one_line("x" * 10_000)) == 300
