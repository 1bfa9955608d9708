"""The ratios of update to parameter that a run keeps for its dashboard."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, IrisDataSetIterator
from dl4jlegacy.cli.main import main
from dl4jlegacy.nn import zoo
from dl4jlegacy.observing.ratios import FollowedRatios, RatiosEntry, RatiosFile, RatiosObserver
from dl4jlegacy.scaleout.monitoring.observers import RunObserver
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.state.aggregate import PARAMS
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.storage.folders import LocalFolder
from dl4jlegacy.ui.run_sources import FolderSource
from tests.support.dashboards import served


class Seen(RunObserver):
    """Keeps the parameters of every version."""

    def __init__(self) -> None:
        self.params: dict[int, Any] = {}

    def new_version(self, version: HistoryEntry, event: NewModel) -> None:
        self.params[version.version] = np.array(Result.decode(event.frame).arrays[PARAMS])


def trained(folder: str, *observers: RunObserver) -> None:
    conf = Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2, epochs=3, checkpoint_dir=folder, checkpoint_every=100)
    with ActorNetworkRunner("master", IrisDataSetIterator(16), observers=observers) as runner:
        runner.setup(conf)
        runner.train()


def test_the_ratios_of_a_version_are_those_to_the_version_before(tmp_path: Path) -> None:
    seen = Seen()
    trained(str(tmp_path), RatiosObserver(), seen)
    first = FollowedRatios(LocalFolder(tmp_path)).read()[0]
    size = zoo.mlp(4, 3).resolved()[0].n_out * 4  # type: ignore[attr-defined]
    now, before = (seen.params[version][:size] for version in (first.version, first.version - 1))
    assert first.ratios["0_W"] == pytest.approx(np.abs(now - before).mean() / np.abs(now).mean())
    assert list(first.ratios) == ["0_W", "0_b", "1_W", "1_b", "2_W", "2_b"]
    with served(FolderSource(str(tmp_path))) as (client, _):
        found = client.get("/api/v1/model").json()["model"]["ratios"]
    assert found[0] == {"version": first.version, "versions": 1, "ratios": first.ratios}
    assert not [thread for thread in threading.enumerate() if thread.name in ("dl4j-ratios", "dl4j-lines")]


def test_a_run_without_a_folder_keeps_none(tmp_path: Path) -> None:
    trained("", RatiosObserver())
    assert FollowedRatios(LocalFolder(tmp_path)).read() == []


def test_versions_that_are_made_anew_take_the_place_of_the_old_ones(tmp_path: Path) -> None:
    file, followed = RatiosFile(LocalFolder(tmp_path)), FollowedRatios(LocalFolder(tmp_path))
    first = [RatiosEntry(began=1.0, version=version, ratios={"0_W": 0.5}) for version in (2, 4, 6)]
    again = RatiosEntry(began=2.0, version=3, ratios={"0_W": 0.25})
    file.append(first)
    assert followed.read() == first and followed.read() == first
    file.append([again])
    assert followed.read() == [first[0], again]


def test_a_training_keeps_them_only_if_it_shows_itself(tmp_path: Path) -> None:
    for name, flags in (("quiet", []), ("shown", ["--ui"])):
        words = ["--model", "mlp", "--dataset", "iris", "--workers", "2", "--epochs", "3"]
        with pytest.raises(SystemExit) as ended:
            main(["train", *words, "--checkpoint-dir", str(tmp_path / name), *flags])
        assert not ended.value.code
        assert (tmp_path / name / RatiosFile.NAME).exists() == bool(flags)
