"""What of a run's folder is borne, and what ends the run: a new one, one in office, and one that is resumed alone.

That a take-over bears the same is in ``tests/cluster/test_take_over_folder.py``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy import ValidationConf
from dl4jlegacy.errors import CheckpointError, Dl4jError, StorageError
from dl4jlegacy.scaleout import saved_run
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity
from dl4jlegacy.scaleout.persistence.run_folder import RunFolder
from dl4jlegacy.system.clock import RunningClock
from dl4jlegacy.training import prepare as training
from dl4jlegacy.training.run import resolve
from tests.scaleout.test_checkpoint import frame, head
from tests.support.storage_faults import FAULTS, StorageFault

GIVEN = frozenset({"epochs", "workers", "jobs_per_round", "averaging_frequency", "validation"})


def conf(folder: Path | str, **changes: Any) -> Conf:
    fields = {"checkpoint_every": 1, "validation": ValidationConf(fraction=0.2, every_rounds=2), **changes}
    return Conf(dataset="iris", epochs=2, workers=2, jobs_per_round=2, checkpoint_dir=str(folder), **fields)


def train(wanted: Conf) -> training.Report:
    run, data = training.prepare(wanted, GIVEN)
    return training.train(run, data, progress=False)


def resume(wanted: Conf) -> training.Report:
    data = training.reload(wanted)
    return training.train(resolve(wanted, training.training_data(wanted, data), resume=True), data, progress=False)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(train(conf(tmp_path_factory.mktemp("whole") / "run")).fields["params_sha256"])


@pytest.mark.parametrize("kind", FAULTS)
def test_a_run_bears_whatever_becomes_of_its_folder_says_so_once_and_writes_there_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unhurried: None, expected: str, caplog
) -> None:
    folder = tmp_path / "run"
    fault, save, calls = StorageFault(kind, folder, monkeypatch), CheckpointStore.save, []

    def counted(self: CheckpointStore, *args: Any, **more: Any) -> None:
        calls.append(args[0].version)
        if len(calls) in (4, 8):
            fault.end() if len(calls) == 8 else fault.begin()
        save(self, *args, **more)

    monkeypatch.setattr(CheckpointStore, "save", counted)
    with caplog.at_level(logging.WARNING):
        report = train(conf(folder))
    assert len(calls) > 8 and report.fields["params_sha256"] == expected
    said = [record.getMessage() for record in caplog.records if "could not be written to" in record.getMessage()]
    assert len(said) == (0 if kind == "deleted" else 1), said
    assert ("are written to" in caplog.text) == (kind != "deleted")
    assert ("was gone from" in caplog.text) == (kind in ("deleted", "another run's"))
    assert CheckpointStore(folder).newest()[0].version == calls[-1]
    assert CheckpointStore(folder).kept("run") == report.fields["run"]
    assert len(saved_run.read_history(folder)) > 1


@pytest.mark.parametrize("kind", FAULTS)
def test_a_new_run_is_refused_a_folder_that_it_cannot_write(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    fault = StorageFault(kind, folder, monkeypatch)
    fault.begin()
    if kind == "deleted":
        train(conf(folder))
        assert CheckpointStore(folder).newest() is not None
        return
    with pytest.raises(
        CheckpointError, match=rf"{folder} (cannot be (written|read): |already holds checkpoints)"
    ) as said:
        train(conf(folder))
    assert said.value.exit_status == 8
    fault.end()


@pytest.mark.parametrize("kind", FAULTS)
def test_a_run_that_is_resumed_needs_to_read_its_folder_and_bears_that_it_cannot_be_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str, caplog
) -> None:
    folder = tmp_path / "run"
    train(conf(folder, checkpoints_kept=100))
    versions = CheckpointStore(folder).versions()
    for version in versions[: len(versions) // 2]:
        (folder / f"checkpoint-{version:08}.json").unlink()
    wanted = training.read_run(str(folder), (folder / "conf.json").read_bytes())
    fault = StorageFault(kind, folder, monkeypatch)
    fault.begin()
    if kind == "read-only":
        assert resume(wanted).fields["params_sha256"] == expected
        assert caplog.text.count("goes on, and tries it again with each checkpoint") == 1
        assert "could not be written to" not in caplog.text
        return
    with pytest.raises(Dl4jError) as said:
        resume(wanted)
    assert said.value.exit_status == 8 and str(folder) in str(said.value)


def folder_of(path: Path, clock: RunningClock | None = None) -> RunFolder:
    ours = Conf(run="ours", incarnation="1" * 16, worker_wait_seconds=5.0)
    return RunFolder(
        CheckpointStore(path, owner=RunIdentity.of(ours)), ours, resumes=True, clock=clock or RunningClock()
    )


class Now(RunningClock):
    """A clock that is set."""

    time = 100.0

    def now(self) -> float:
        return self.time


@pytest.mark.parametrize("kind", ["away", "a file", "deleted", "another run's"])
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_run_that_needs_its_checkpoints_waits_for_them_and_never_begins_anew(
    kind: str, comes_back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    clock, told = Now(), list[str]()
    folder = folder_of(tmp_path / "run", clock)
    folder.on_trouble = told.append
    folder.take(dict, takes_over=True)
    assert folder.restore() is None
    folder.keep(head(1), frame(1), None, {})
    fault = StorageFault(kind, tmp_path / "run", monkeypatch)
    fault.begin()
    for clock.time in (110.0, 114.0):
        with pytest.raises(StorageError):
            folder.restore()
    assert len(told) == 1 and "run ours needs its checkpoints, and waits for them, up to 5 s" in told[0]
    clock.time = 115.5
    if not comes_back or kind in ("deleted", "another run's"):  # what it had is lost
        with pytest.raises(CheckpointError, match="run ours cannot go on: the tracker has lost it") as said:
            folder.restore()
        assert not isinstance(said.value, StorageError) and said.value.exit_status == 8
        return
    fault.end()
    assert folder.restore()[0].version == 1


def test_checkpoints_that_are_damaged_are_not_waited_for(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run")
    folder.take(dict, takes_over=True)
    folder.keep(head(1), frame(1), None, {})
    (tmp_path / "run" / "checkpoint-00000001.json").write_text("{}")
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints") as said:
        folder.restore()
    assert not isinstance(said.value, StorageError)
