"""Whose folder it is: a run makes its own again if it is gone, and touches nothing of another run's, lock or not."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from pathlib import Path

import pytest

from dl4jlegacy.errors import CheckpointError, StorageError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity
from dl4jlegacy.scaleout.persistence.journal import JournalEntry, JournalFile
from dl4jlegacy.scaleout.persistence.own_folder import OwnFolder
from dl4jlegacy.storage.folders import LocalFolder
from tests.scaleout.test_checkpoint import frame, head

OURS, THEIRS = Conf(run="ours", incarnation="1" * 16), Conf(run="theirs", incarnation="2" * 16)


@pytest.fixture(params=["with locks", "without locks"], autouse=True)
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    def none(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if request.param == "without locks":
        monkeypatch.setattr(fcntl, "flock", none)
    return request.param == "with locks"


def store(path: Path, conf: Conf, keep: int = 2) -> CheckpointStore:
    return CheckpointStore(path, keep=keep, owner=RunIdentity.of(conf))


def begun(path: Path, conf: Conf, *versions: int, keep: int = 2) -> CheckpointStore:
    run = store(path, conf, keep)
    run.keep_conf(conf)
    for version in versions:
        run.save(head(version), frame(version))
    return run


def kept(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name != ".lock"}


def test_a_folder_that_was_deleted_is_made_again_whole(tmp_path: Path, locks: bool, caplog) -> None:
    run = begun(tmp_path / "run", OURS, 1, 2, 3)
    shutil.rmtree(tmp_path / "run")
    with caplog.at_level(logging.WARNING):
        run.save(head(4), frame(4))
        run.save(head(5), frame(5))
    assert caplog.text.count("conf.json of run ours was gone from") == 1
    assert kept(tmp_path / "run").keys() == {
        "conf.json", "checkpoint-00000004.json", "checkpoint-00000005.json",
        "model-00000004.safetensors", "model-00000005.safetensors",
    }  # fmt: skip
    assert store(tmp_path / "run", OURS).newest()[0].version == 5
    if locks:
        with pytest.raises(CheckpointError, match="is in use by another run or process"):
            store(tmp_path / "run", THEIRS).keep_conf(THEIRS)


def test_a_run_writes_nothing_in_a_folder_that_another_one_has_got_until_it_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ours = begun(folder, OURS, 1, 2, 3)
    journal = JournalFile(OwnFolder(LocalFolder(folder), OURS.incarnation))
    shutil.rmtree(folder)
    theirs = begun(folder, THEIRS, 1, 2, keep=9)
    before = kept(folder)
    for version in (3, 10):
        with pytest.raises(StorageError, match=r"it is the folder of another run by now, theirs \(2222"):
            ours.save(head(version), frame(version))
    assert not journal.append([entry("a")])
    assert kept(folder) == before
    theirs.save(head(3), frame(3))
    assert theirs.versions() == [3, 2, 1]
    theirs.release()
    shutil.rmtree(folder)
    assert not journal.append([entry("b")]) and not folder.exists()
    ours.save(head(11), frame(11))
    assert journal.append([entry("c")])
    assert store(folder, OURS).newest()[0].version == 11 and OURS.incarnation.encode() in kept(folder)["conf.json"]
    assert [each.key for each in journal.read()] == ["a", "b", "c"]


def entry(key: str) -> JournalEntry:
    return JournalEntry(key=key, time=1.0, source="s", host="h", pid=1, event="paused")


def test_only_what_a_run_has_written_is_deleted(tmp_path: Path) -> None:
    """Whatever lies there: another run's lower versions, files that no manifest names, and half written ones."""
    folder = tmp_path / "run"
    theirs = store(tmp_path / "theirs", THEIRS, keep=9)
    for version in (1, 2, 3):
        theirs.save(head(version), frame(version))
    (tmp_path / "theirs" / "checkpoint-00000002.json").unlink()
    (tmp_path / "theirs" / "checkpoint-00000003.json").write_text("{}")
    (tmp_path / "theirs" / "model-00000004.safetensors").write_bytes(b"no arrays")
    number = os.getpid() + 1
    for writer in (f"{number}", f"{THEIRS.incarnation}-{'a' * 8}"):
        (tmp_path / "theirs" / f".model-00000005.safetensors.{writer}.{'b' * 8}.tmp").write_bytes(b"half")
    shutil.copytree(tmp_path / "theirs", folder)
    before = kept(folder)
    begun(folder, OURS, 5, 6, 7, keep=1)
    after = kept(folder)
    assert {name: after.get(name) for name in before} == before
    assert after.keys() - before.keys() == {"conf.json", "checkpoint-00000007.json", "model-00000007.safetensors"}


def test_what_a_killed_process_of_the_run_has_left_is_deleted_by_the_next(tmp_path: Path, monkeypatch) -> None:
    """Whichever number it had: it may be that of this process, in another container."""
    killed = begun(tmp_path, OURS, 1)
    write = LocalFolder.write

    def until(name: str, content: bytes) -> None:
        if name.startswith("checkpoint"):
            raise KeyboardInterrupt
        write(killed.folder, name, content)

    monkeypatch.setattr(killed.folder, "write", until)
    with pytest.raises(KeyboardInterrupt):
        killed.save(head(2), frame(2))
    half = tmp_path / f".model-00000003.safetensors.{OURS.incarnation}-{'a' * 8}.{'b' * 8}.tmp"
    half.write_bytes(b"half")
    killed.release()
    following = begun(tmp_path, OURS, 3)
    assert following.versions() == [3, 1]
    assert {"model-00000002.safetensors", half.name}.isdisjoint(kept(tmp_path))
