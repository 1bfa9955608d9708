"""Copies of slots' states in the memory of a host: who finds which, what is left, and what may not be believed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dl4jlegacy.arrays import wire
from dl4jlegacy.scaleout.state import state_cache as copies_module
from dl4jlegacy.scaleout.state.state_cache import SHARE, Copied, HostCopies
from tests.support import REPOSITORY

FIRST, SECOND, THIRD, FOURTH = (f"update/{round_}/3/w-1.{round_}" for round_ in (7, 8, 9, 10))
DIES = """
import os, sys
from pathlib import Path
from dl4jlegacy.scaleout.state.state_cache import HostCopies
HostCopies(sys.argv[1], "dead-1-00000000", Path(sys.argv[2])).keep(3, sys.argv[3], sys.argv[4].encode())
os._exit(9)
"""

Make = Callable[..., HostCopies]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes the copies of a process."""
    made: list[HostCopies] = []

    def start(process: str, run: str = "run.1", memory: Path = tmp_path) -> HostCopies:
        made.append(HostCopies(run, process, memory))
        return made[-1]

    yield start
    for each in made:
        each.close()


def killed(memory: Path, update: str, frame: str, run: str = "run.1") -> None:
    """Leave what a process leaves that has made a copy and is killed."""
    command = [sys.executable, "-c", DIES, run, str(memory), update, frame]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 9, done.stderr


def files(memory: Path) -> list[str]:
    return sorted(f"{path.parent.name}/{path.name}" for path in memory.rglob("*") if path.is_file())


def content(found: Copied | None) -> tuple[int, bytes] | None:
    return None if found is None else (found.done, bytes(found.frame))


def test_another_process_of_the_run_finds_the_state_after_the_last_update_possible(make: Make) -> None:
    one, two, stranger = make("one"), make("two"), make("three", "run.2")
    one.keep(3, FIRST, b"after the first")
    one.keep(4, THIRD, b"of another slot")
    assert content(two.find(3, [FIRST, SECOND])) == (1, b"after the first")
    two.keep(3, SECOND, b"after the second")
    for process in (one, two):
        assert content(process.find(3, [FIRST, SECOND, THIRD])) == (2, b"after the second")
        assert content(process.find(3, [FIRST])) == (1, b"after the first")
        assert process.find(3, [THIRD]) is None
        assert process.find(3, []) is None
    assert stranger.find(3, [FIRST, SECOND]) is None


def test_a_copy_is_written_over_and_its_arrays_can_be_read_where_they_are(make: Make) -> None:
    one, two = make("one"), make("two")
    for update, length in ((FIRST, 300_000), (SECOND, 100), (THIRD, 200_001), (FOURTH, 0)):
        one.keep(3, update, bytes([length % 251]) * length)
        found = two.find(3, [FIRST, SECOND, THIRD, FOURTH])
        assert len(list(one._own.iterdir())) <= 3
        assert found is not None and bytes(found.frame) == bytes([length % 251]) * length
        assert wire.is_aligned(found.frame)


def test_a_worker_is_near_if_its_process_keeps_its_copies_here(make: Make, tmp_path: Path) -> None:
    one, elsewhere = make("host-1-0000aaaa"), make("host-2-0000bbbb", memory=tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    assert not one.is_near("host-1-0000aaaa-0"), "it has made no copy yet"
    for each in (one, elsewhere):
        each.keep(3, FIRST, b"x")
    assert make("three").is_near("host-1-0000aaaa-0") and make("three").is_near("host-1-0000aaaa-11")
    assert not make("three").is_near("host-2-0000bbbb-0") and not make("three").is_near("")
    assert not make("three", "run.2").is_near("host-1-0000aaaa-0")


@pytest.mark.parametrize("nbytes", [0, 17, 4096, 5000])
def test_half_a_copy_is_none(nbytes: int, make: Make, tmp_path: Path) -> None:
    """As it is left by a process that is killed while it writes: then the header is not there yet."""
    one, two = make("one"), make("two")
    one.keep(3, FIRST, b"y" * 5000)
    one.keep(3, SECOND, b"x" * 5000)
    (file,) = tmp_path.rglob("3.1")
    assert content(two.find(3, [FIRST, SECOND])) == (2, b"x" * 5000)
    os.truncate(file, nbytes)
    assert content(two.find(3, [FIRST, SECOND])) == (1, b"y" * 5000)
    with file.open("rb+") as torn:
        torn.write(bytes(4096))
        torn.truncate(4096 + 5000)
    assert content(two.find(3, [FIRST, SECOND])) == (1, b"y" * 5000)


def test_who_takes_over_from_a_killed_process_finds_its_copy_and_removes_it_when_it_is_old(
    make: Make, tmp_path: Path
) -> None:
    killed(tmp_path, FIRST, "of the dead")
    heir = make("heir")
    assert content(heir.find(3, [FIRST])) == (1, b"of the dead")
    heir.keep(3, SECOND, b"its own")
    heir.remove_others(3)
    assert content(heir.find(3, [FIRST])) == (1, b"of the dead"), "if its own update is lost, this is asked for again"
    heir.keep(3, THIRD, b"the next")
    assert content(heir.find(3, [FIRST])) == (1, b"of the dead"), "until it is committed"
    heir.remove_others(3)
    assert files(tmp_path) == ["dead-1-00000000/lock", "heir/3.0", "heir/3.1", "heir/lock"]
    heir.close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_leaves_leaves_its_copies_to_the_others_and_the_last_one_none(
    make: Make, tmp_path: Path
) -> None:
    one, two = make("one"), make("two")
    one.keep(3, FIRST, b"the first")
    two.keep(4, FIRST, b"another")
    one.close()
    assert content(two.find(3, [FIRST])) == (1, b"the first")
    two.close()
    assert list(tmp_path.iterdir()) == []


def test_who_has_left_makes_no_copies_any_more(make: Make, tmp_path: Path) -> None:
    one = make("one")
    one.keep(3, FIRST, b"the first")
    one.close()
    one.keep(3, SECOND, b"of a thread that did not stop in time")
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_of_other_runs_is_removed_and_what_others_use_is_not(
    make: Make, tmp_path: Path
) -> None:
    killed(tmp_path, FIRST, "of a run before", "before.1")
    lives = make("lives", "beside.1")
    lives.keep(0, FIRST, b"of a run beside")
    assert files(tmp_path) == ["lives/0.0", "lives/lock"]
    make("one").keep(3, FIRST, b"of this one")
    assert files(tmp_path) == ["lives/0.0", "lives/lock", "one/3.0", "one/lock"]


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]


def test_where_memory_is_scarce_there_is_no_copy_and_that_is_said_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dl4jlegacy")
    one = make("one")
    monkeypatch.setattr(copies_module, "free_memory", lambda: SHARE * 1000)
    one.keep(3, FIRST, b"x" * 1000)
    assert one.find(3, [FIRST]) is not None and complaints(caplog) == []
    for update in (SECOND, THIRD):
        one.keep(3, update, b"x" * 5001)
    assert content(one.find(3, [FIRST, SECOND, THIRD])) == (1, b"x" * 1000)
    (said,) = complaints(caplog)
    assert str(tmp_path) in said and f"less than {SHARE} times 5,001 bytes are free there" in said
    assert "done again" in said


def test_without_files_in_memory_there_is_no_copy_and_that_is_said_once(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dl4jlegacy")
    one = make("one", memory=tmp_path / "nowhere")
    one.keep(3, FIRST, b"x")
    one.keep(3, SECOND, b"x")
    assert one.find(3, [FIRST, SECOND]) is None
    (said,) = complaints(caplog)
    assert "No such file or directory" in said


@pytest.mark.parametrize("mode", [0o755, 0o770, "a link"])
@pytest.mark.everyday(1)
def test_a_folder_that_others_could_enter_is_neither_read_nor_written(
    mode: int | str, make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dl4jlegacy")
    killed(tmp_path, FIRST, "of somebody")
    (base,) = tmp_path.iterdir()
    if isinstance(mode, int):
        base.chmod(mode)
    else:
        base.rename(tmp_path / "elsewhere")
        base.symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path)
    one = make("one")
    assert one.find(3, [FIRST]) is None
    one.keep(3, SECOND, b"x")
    assert files(tmp_path) == before
    (said,) = complaints(caplog)
    assert f"{base} is not a folder of this user alone" in said
