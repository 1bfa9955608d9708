"""Checkpoints: whole or not at all, damaged ones passed over, old ones pruned."""

import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dl4jlegacy.errors import CheckpointError, CloudError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Head, Manifest
from dl4jlegacy.storage.folders import LocalFolder


def head(version):
    return Head(
        run="r", version=version, round=version, model=Manifest("k", 1, 1), folded=((0, version),), batches=version
    )


def frame(version):
    arrays = {"params": np.full(33, version, np.float32), "updater_state": np.arange(5, dtype=np.float32)}
    return Result({"score": 0.5}, arrays).encode()


@pytest.fixture
def saver(tmp_path):
    saver = CheckpointStore(tmp_path / "run", keep=3, owner=RunIdentity(seed=7))
    for version in (1, 2, 3):
        saver.save(head(version), frame(version))
    return saver


def test_the_newest_checkpoint_comes_back_as_it_was_saved(saver):
    loaded, content = saver.newest()
    assert (loaded.version, loaded.folded, loaded.batches) == (3, ((0, 3),), 3)
    assert bytes(content) == bytes(frame(3))


def test_only_the_newest_are_kept_and_nothing_half_written_stays(saver):
    saver.keep_conf(Conf(run="r", seed=7, incarnation="1" * 16))
    (saver.folder.path / f".model-00000009.safetensors.{'1' * 16}-{'a' * 8}.{'b' * 8}.tmp").write_bytes(b"half")
    saver.save(head(4), frame(4))
    assert saver.versions() == [4, 3, 2]
    assert len(os.listdir(saver.folder.path)) == 6 + len(["conf.json", ".lock"])


def test_a_manifest_tells_position_and_seed(saver):
    body = json.loads((saver.folder.path / "checkpoint-00000003.json").read_text())
    assert body["seed"] == 7
    assert body["position"] == {"round": 3, "batches": 3, "examples": 0}


@pytest.mark.parametrize("name", ["checkpoint-00000003.json", "model-00000003.safetensors"])
@pytest.mark.everyday(1)
def test_a_checkpoint_cut_short_at_any_byte_falls_back_to_the_one_before(saver, name, caplog):
    path = saver.folder.path / name
    whole = path.read_bytes()
    for length in range(len(whole)):
        if name.endswith(".json") and length == len(whole) - 1:
            continue  # only the final newline is missing: nothing is lost
        path.write_bytes(whole[:length])
        assert saver.newest()[0].version == 2, length
    path.write_bytes(whole)
    assert saver.newest()[0].version == 3


@pytest.mark.parametrize("name", ["checkpoint-00000003.json", "model-00000003.safetensors"])
@pytest.mark.everyday(1)
def test_a_checkpoint_with_any_byte_changed_falls_back_or_reads_the_same(saver, name):
    path = saver.folder.path / name
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
        loaded, content = saver.newest()
        if loaded.version == 3:  # white space between the manifest's words may change; what it says may not
            assert name.endswith(".json")
            assert bytes(content) == bytes(frame(3))
        else:
            assert loaded.version == 2


def test_a_missing_model_file_falls_back(saver):
    (saver.folder.path / "model-00000003.safetensors").unlink()
    assert saver.newest()[0].version == 2


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert CheckpointStore(tmp_path / "nothing").newest() is None


def test_a_folder_of_damaged_checkpoints_is_an_error_that_says_why(saver):
    for path in saver.folder.path.glob("*.json"):
        path.write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="none of the 3 checkpoints"):
        saver.newest()


def test_a_checkpoint_that_cannot_be_written_leaves_the_older_ones(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(CheckpointError, match="checkpoint 1 could not be written"):
        CheckpointStore(blocked / "run").save(head(1), frame(1))


def test_who_takes_over_on_a_full_disk_needs_no_room_for_the_conf_that_is_there(tmp_path, monkeypatch):
    def full(folder, name, content):
        raise OSError(28, "No space left on device")

    saver = CheckpointStore(tmp_path / "run")
    conf = Conf(run="r")
    saver.keep_conf(conf)
    monkeypatch.setattr("dl4jlegacy.storage.folders.LocalFolder.write", full)
    saver.keep_conf(conf)
    with pytest.raises(CheckpointError, match="No space left on device; choose another folder"):
        saver.keep_conf(conf.replace(seed=1))
    assert (tmp_path / "run" / "conf.json").read_text() == conf.to_json() + "\n"


@pytest.mark.parametrize("error", [OSError(1, "Operation not permitted"), CloudError("AccessDenied")], ids=type)
def test_old_checkpoints_that_cannot_be_deleted_end_no_run_and_keep_no_others(tmp_path, monkeypatch, caplog, error):
    delete = LocalFolder.delete

    def refuse(self, name):
        if "00000001" in name:
            raise error
        delete(self, name)

    saver = CheckpointStore(tmp_path / "run", keep=1)
    monkeypatch.setattr(LocalFolder, "delete", refuse)
    for version in range(1, 6):
        saver.save(head(version), frame(version))
    assert saver.newest()[0].version == 5
    assert saver.versions() == [5, 1] and len(list((tmp_path / "run").glob("model-*"))) == 2
    assert [record.getMessage() for record in caplog.records if "cannot be deleted" in record.getMessage()] == [
        f"old checkpoints in {tmp_path / 'run'} cannot be deleted: {error}"
    ]


# --- whose they are ---------------------------------------------------------------------------------------------------

OURS = RunIdentity(seed=7, incarnation="1" * 16, conf_digest="a" * 64)


def saved_by(folder, owner, *versions):
    store = CheckpointStore(folder, keep=9, owner=owner)
    for version in versions:
        store.save(head(version), frame(version))
    return store


@pytest.mark.parametrize("changes", [{"seed": 8}, {"incarnation": "2" * 16}, {"conf_digest": "b" * 64}])
def test_another_runs_checkpoint_is_passed_over_and_never_taken_for_ours(tmp_path, changes):
    theirs = msgspec.structs.replace(OURS, **changes)
    saved_by(tmp_path, OURS, 1)
    saved_by(tmp_path, theirs, 2)
    assert CheckpointStore(tmp_path, owner=OURS).newest()[0].version == 1
    assert CheckpointStore(tmp_path, owner=theirs).newest()[0].version == 2
    (name,) = changes
    saved_by(tmp_path, theirs, 1)
    if name == "incarnation":  # what others have left in the folder is none of ours
        assert CheckpointStore(tmp_path, owner=OURS).newest() is None
        CheckpointStore(tmp_path).folder.write("conf.json", b'{"run": "t", "incarnation": "2222222222222222"}')
        with pytest.raises(CheckpointError, match="is the folder of another run by now, t "):
            CheckpointStore(tmp_path, owner=OURS).newest()
        return
    with pytest.raises(CheckpointError, match=f"another run's: its {name} is"):
        CheckpointStore(tmp_path, owner=OURS).newest()


def test_a_stray_newer_version_of_another_process_takes_no_place_of_ours(tmp_path):
    theirs = msgspec.structs.replace(OURS, incarnation="2" * 16)
    saved_by(tmp_path, theirs, 1000)
    store = CheckpointStore(tmp_path, keep=1, owner=OURS)
    for version in (1, 2):
        store.save(head(version), frame(version))
        assert store.newest()[0].version == version
    assert store.versions() == [1000, 2]


def test_an_older_versions_checkpoint_which_names_only_its_seed_is_read(tmp_path):
    saved_by(tmp_path, RunIdentity(seed=7), 1)
    assert CheckpointStore(tmp_path, owner=OURS).newest()[0].version == 1


def begun(folder, incarnation):
    store = CheckpointStore(folder)
    return store, Conf(run=f"run-{incarnation}", incarnation=incarnation)


@pytest.mark.parametrize("takes_over", [False, True])
def test_two_runs_cannot_use_one_folder_at_the_same_time(tmp_path, takes_over):
    (first, ours), (second, theirs) = begun(tmp_path, "1"), begun(tmp_path, "2")
    first.keep_conf(ours)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=rf"in use by another run or process on .*, pid {os.getpid()}; "):
            second.keep_conf(theirs, takes_over=takes_over)
        first.keep_conf(ours)
    assert first.kept("run") == "run-1"
    first.release()
    second.keep_conf(theirs)  # nothing was saved, and nobody is there any more
    assert first.kept("run") == "run-2"


def test_a_folder_with_another_runs_checkpoints_is_never_taken(tmp_path):
    (first, ours), (second, theirs) = begun(tmp_path, "1"), begun(tmp_path, "2")
    first.keep_conf(ours)
    first.save(head(1), frame(1))
    first.release()
    with pytest.raises(CheckpointError, match="holds checkpoints of another run, run-1 "):
        second.keep_conf(theirs)
    assert first.kept("run") == "run-1"


def test_who_takes_over_from_a_frozen_process_does_not_wait_for_it_and_locks_the_folder_when_it_can(tmp_path):
    (frozen, ours), (second, _) = begun(tmp_path, "1"), begun(tmp_path, "1")
    frozen.keep_conf(ours)
    with pytest.raises(CheckpointError, match="in use"):
        second.keep_conf(ours)
    second.keep_conf(ours, takes_over=True)
    second.save(head(1), frame(1))
    frozen.release()
    second.save(head(2), frame(2))
    third, theirs = begun(tmp_path, "3")
    with pytest.raises(CheckpointError, match="in use"):
        third.keep_conf(theirs)


def test_a_kept_conf_that_is_no_text_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "conf.json").write_bytes(b'{"incarnation": "\xe4"}')
    assert CheckpointStore(tmp_path).kept("incarnation") == ""
