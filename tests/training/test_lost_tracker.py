"""A master whose tracker is lost saves what it holds in memory before it gives up, and says where."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.errors import TrackerError, TrackerLostError
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_multi_layer_network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.state.store import MemoryStore
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.training import prepare as training

LOST = "the state tracker at here:1 did not read 'head' within 300 s"


class LostStore(MemoryStore):
    """A store that is lost for good at some moment."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = threading.Event()

    def _open(self) -> None:
        super()._open()
        if self.is_lost.is_set():
            raise TrackerLostError(LOST)


def lose(conf: Conf, round_: int, **given: Any) -> str:
    """Train; lose the tracker in a round; return the message of the error that ended the run."""
    store = LostStore()

    def tick(status: Any) -> None:
        if status.head is not None and status.head.round >= round_:
            store.is_lost.set()

    run, data = training.prepare(conf, frozenset({"epochs", "batch_size"}))
    with pytest.raises(TrackerError) as caught:
        training.train(run, data, tracker=StateTracker(store), tick=tick, progress=False, **given)
    assert isinstance(caught.value, TrackerLostError) and caught.value.exit_status == 4
    return str(caught.value)


def conf(**changes: Any) -> Conf:
    return Conf(**{"dataset": "iris", "epochs": 10**6, "workers": 2, "batch_size": 8, **changes})


def test_a_master_that_gives_up_saves_a_checkpoint_and_the_model_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    said = lose(conf(checkpoint_dir=str(folder), checkpoint_every=10**6), 3)
    match = re.fullmatch(
        rf"{LOST}\. It was in round (\d+) of \d+, and a checkpoint of that is in {folder}; "
        rf"the model of then is in ({tmp_path}/dl4j-model-\w+\.zip)",
        said,
    )
    assert match, said
    head, _ = CheckpointStore(folder).newest() or pytest.fail("no checkpoint")
    assert head.round == int(match[1]) >= 3
    model = restore_multi_layer_network(Path(match[2]))
    assert training.params_sha256(model.params)


def test_without_a_folder_for_checkpoints_the_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = lose(conf(), 3)
    assert re.search(r"It was in round \d+ of \d+, and has no folder for checkpoints; the model of then is in ", said)
    assert [path.suffix for path in tmp_path.iterdir()] == [".zip"]


def test_a_checkpoint_that_cannot_be_written_either_does_not_hide_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    write = LocalFolder.write

    def full(self: LocalFolder, name: str, content: bytes) -> None:
        if not name.endswith("conf.json"):
            raise OSError(28, "No space left on device")
        write(self, name, content)

    monkeypatch.setattr(LocalFolder, "write", full)
    said = lose(conf(checkpoint_dir=str(tmp_path / "run"), checkpoint_every=10**6), 3)
    assert said.startswith(LOST) and "No checkpoint of that was saved: " in said and "No space left" in said


def test_a_run_that_had_not_begun_has_nothing_to_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LostStore, "get", lambda self, key: (_ for _ in ()).throw(TrackerLostError(LOST)))
    run, data = training.prepare(conf(), frozenset({"epochs"}))
    store = LostStore()
    with pytest.raises(TrackerLostError, match=r"It had not begun$"):
        training.train(run, data, tracker=StateTracker(store), progress=False, tick=lambda status: None)
