"""A run goes on only with the data that it began with: through the runner, and through ``dl4j resume``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.datasets import DataSet, ListDataSetIterator
from dl4jlegacy.errors import CheckpointError
from dl4jlegacy.nn import zoo
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity, with_fingerprint
from dl4jlegacy.scaleout.state.job import CollectionJobIterator

X = np.random.default_rng(1).random((40, 6), dtype=np.float32)
Y = np.eye(3, dtype=np.float32)[np.arange(40) % 3]
OTHER_LABELS = np.roll(Y, 1, axis=0)


def conf(folder: Path, **changes: Any) -> Conf:
    network = zoo.mlp(6, 3, hidden=(5,), seed=7)
    fields = {"seed": 7, "epochs": 2, "workers": 1, "jobs_per_round": 2, "run": "r1", "checkpoint_dir": str(folder)}
    return Conf(**{"multi_layer_conf": network, **fields, **changes})


def train(conf: Conf, labels: np.ndarray = Y, *, resume: bool = False) -> Any:
    with ActorNetworkRunner("master", ListDataSetIterator(DataSet(X, labels), 5, seed=7)) as runner:
        runner.setup(conf, resume=resume)
        return runner.train(deadline=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train(conf(tmp_path / "run"))
    return tmp_path / "run"


def test_the_fingerprint_is_kept_with_the_run(folder: Path) -> None:
    kept = Conf.read(folder / "conf.json")
    assert kept.data_fingerprint == with_fingerprint(Conf(), DataSet(X, Y)).data_fingerprint != ""
    assert CheckpointStore(folder).kept("data_fingerprint") == kept.data_fingerprint
    assert train(kept, resume=True).head.status == "done"


def test_a_run_is_not_resumed_with_fewer_epochs_than_it_has_trained(folder: Path) -> None:
    said = "run r1 has finished 8 rounds, and 1 epoch, as the Conf has now, are 4: .* fewer epochs than it has trained"
    with pytest.raises(CheckpointError, match=said):
        train(conf(folder, epochs=1), resume=True)
    assert train(conf(folder, epochs=3), resume=True).head.round == 12


@pytest.mark.parametrize("source", ["the kept Conf", "a Conf of one's own"])
def test_a_run_refuses_other_data_of_the_same_size(folder: Path, source: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    given = Conf.read(folder / "conf.json") if source == "the kept Conf" else conf(folder)
    given = given.replace(dataset="flowers.csv", epochs=3)
    began, found = (with_fingerprint(Conf(), DataSet(X, y)).data_fingerprint for y in (Y, OTHER_LABELS))
    wanted = (
        f"run r1 began with data set flowers.csv of fingerprint {began[:16]}; what is there now has {found[:16]}, .*"
        "give it the data that it began with"
    )
    with pytest.raises(CheckpointError, match=wanted):
        train(given, OTHER_LABELS, resume=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_without_a_fingerprint_goes_on_with_a_note_and_has_one_from_then_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = json.loads((folder / "conf.json").read_text())
    del tree["data_fingerprint"]
    (folder / "conf.json").write_text(json.dumps(tree))
    train(Conf.read(folder / "conf.json"), OTHER_LABELS, resume=True)
    assert "run r1 has kept no fingerprint of its data" in caplog.text
    caplog.clear()
    kept = Conf.read(folder / "conf.json")
    with pytest.raises(CheckpointError, match="of fingerprint"):
        train(kept, resume=True)
    train(kept, OTHER_LABELS, resume=True)
    assert not caplog.text


def test_a_conf_that_names_data_is_held_against_them_in_a_new_run_too(tmp_path: Path) -> None:
    given = conf(tmp_path / "run", data_fingerprint="0" * 64)
    with pytest.raises(CheckpointError, match=r"fingerprint 0000000000000000; .*Conf without data_fingerprint"):
        train(given)
    assert not (tmp_path / "run").exists()


def test_jobs_that_are_no_data_sets_have_none() -> None:
    assert with_fingerprint(Conf(run="r"), CollectionJobIterator([1, 2])) == Conf(run="r")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"run": "x"}'])
def test_a_kept_conf_that_cannot_be_read_has_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "conf.json").write_bytes(content)
    assert CheckpointStore(tmp_path).kept("data_fingerprint") == ""


def test_two_runs_cannot_begin_in_one_folder(tmp_path: Path) -> None:
    data = ListDataSetIterator(DataSet(X, Y), 5, seed=7)
    with ActorNetworkRunner("master", data) as first, ActorNetworkRunner("master", data) as second:
        kept = first.setup(conf(tmp_path / "run"))
        with pytest.raises(CheckpointError, match=r"in use by another run or process on .*--checkpoint-dir"):
            second.setup(conf(tmp_path / "run", run="r2", seed=8))
        with pytest.raises(CheckpointError, match="in use"):
            second.setup(kept, resume=True)
        expected = first.train(deadline=60)
    assert Conf.read(tmp_path / "run" / "conf.json") == kept
    assert train(kept, resume=True).model.arrays["params"].tobytes() == expected.model.arrays["params"].tobytes()


def test_checkpoints_of_another_run_that_got_into_the_folder_are_passed_over(folder: Path, tmp_path: Path) -> None:
    kept, other = Conf.read(folder / "conf.json"), tmp_path / "other"
    expected = train(kept, resume=True).model.arrays["params"]
    train(conf(other, run="r2", epochs=4))
    for path in other.glob("*-0*"):
        path.rename(folder / path.name)
    result = train(kept, resume=True)
    assert result.model.arrays["params"].tobytes() == expected.tobytes()
    with pytest.raises(CheckpointError, match="another run"):
        train(Conf.read(other / "conf.json").replace(checkpoint_dir=str(folder)), resume=True)


def test_a_run_that_an_older_version_began_goes_on_and_is_told_apart_from_then_on(folder: Path) -> None:
    tree = json.loads((folder / "conf.json").read_text())
    del tree["incarnation"]
    (folder / "conf.json").write_text(json.dumps(tree))
    saved = CheckpointStore(folder).newest()
    for path in folder.glob("*-0*"):
        path.unlink()
    CheckpointStore(folder, owner=RunIdentity(seed=7)).save(*saved)
    train(Conf.read(folder / "conf.json"), resume=True)
    assert Conf.read(folder / "conf.json").incarnation


def test_the_incarnation_is_new_in_every_run_and_has_no_part_in_the_result(tmp_path: Path) -> None:
    first, second = (train(conf(tmp_path / name)) for name in ("a", "b"))
    assert first.conf.incarnation != second.conf.incarnation
    assert first.conf.digest() == second.conf.digest() != first.conf.replace(batch_size=4).digest()
    assert first.model.arrays["params"].tobytes() == second.model.arrays["params"].tobytes()


# -- the command line --------------------------------------------------------------------------------------------------

ROWS = [f"{i},{i % 7},{i % 3}" for i in range(60)]


@pytest.fixture
def dl4j(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Run a command in an empty folder; return exit status, what it says as JSON, and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        with pytest.raises(SystemExit) as leave:
            main.main([*arguments, "--format", "json"])
        out, err = capsys.readouterr()
        return int(leave.value.code or 0), json.loads(out), err

    return run


def test_resume_refuses_a_file_of_the_same_size_in_which_a_label_has_changed(dl4j: Any, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("\n".join(ROWS))
    status, first, _ = dl4j("train", "--dataset", "data.csv", "--epochs", "2", "--checkpoint-dir", "run")
    assert status == 0
    file.write_text("\n".join([*ROWS[:7], "7,0,2", *ROWS[8:]]))  # it was 7,0,1
    status, said, err = dl4j("resume", "run")
    assert (status, said["error"]["code"]) == (8, "DL4J-CHECKPOINT")
    for words in ("data.csv of fingerprint", "what is there now has", "give it the data that it began with"):
        assert words in said["error"]["message"]
    assert "Traceback" not in err
    file.write_text("\n".join(ROWS))
    status, again, err = dl4j("resume", "run")
    assert (status, again["params_sha256"]) == (0, first["params_sha256"])
    assert "fingerprint" not in err


def test_a_new_run_may_take_the_conf_of_an_old_one_with_other_data(dl4j: Any, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("\n".join(ROWS))
    assert dl4j("train", "--dataset", "data.csv", "--epochs", "1", "--checkpoint-dir", "run")[0] == 0
    (tmp_path / "data.csv").write_text("\n".join(reversed(ROWS)))
    status, _, _ = dl4j("train", "run/conf.json", "--checkpoint-dir", "another")
    assert status == 0
    kept = [Conf.read(tmp_path / name / "conf.json").data_fingerprint for name in ("run", "another")]
    assert kept[0] != kept[1] != ""
