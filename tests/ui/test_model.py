"""The network on the dashboard: its drawing, its parameters and updates, its filters, and how well it does."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf, DigitsDataSetIterator, IrisDataSetIterator
from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.cli.main import main
from dl4jlegacy.errors import CheckpointError, ConfError
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.nn.summary import summarize
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from dl4jlegacy.scaleout.state.aggregate import PARAMS
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.tracker import InMemoryStateTracker
from dl4jlegacy.ui.evaluation import evaluate_newest
from dl4jlegacy.ui.model_api import thinned
from dl4jlegacy.ui.model_view import ImageView, filters_of, network_view, parameter_views, shape_of_images
from dl4jlegacy.ui.model_watcher import ModelWatcher
from dl4jlegacy.ui.run_models import FolderModels, Model, network_of, newest_of
from dl4jlegacy.ui.run_sources import FolderSource
from dl4jlegacy.ui.watcher import Watcher
from tests.nn.test_summary import every_vertex
from tests.support.dashboards import TrackedRun, bearer, served


class Now:
    """A clock that somebody sets."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Modelled(TrackedRun):
    """A run with models that a test gives it, which says how often it was asked, and takes so long to answer."""

    def __init__(self, clock: Now | None = None, seconds: float = 0.0) -> None:
        super().__init__()
        self.given, self.asked = list[Model](), list[int]()
        self.clock, self.seconds = clock, seconds

    def models(self, after: int) -> Sequence[Model]:
        self.asked.append(after)
        if self.clock is not None:
            self.clock.seconds += self.seconds
        return self.given


def trained(folder: Path, *, network: NetworkConfiguration | None = None, **conf: Any) -> None:
    """Train a network on digits, with a checkpoint of every round of its last ones."""
    data = DigitsDataSetIterator(100)
    given = Conf(
        multi_layer_conf=network or zoo.mlp(64, 10), dataset="digits", checkpoint_dir=str(folder), checkpoint_every=2,
        workers=2, **{"epochs": 3, **conf},
    )  # fmt: skip
    with ActorNetworkRunner("master", data) as runner:
        runner.setup(given)
        runner.train()


def params_of(folder: Path) -> dict[int, Array]:
    """The parameters in every checkpoint, read as a run reads them that goes on."""
    store = CheckpointStore(folder)
    return {version: Result.decode(store.load(version)[1]).arrays[PARAMS] for version in store.versions()}


def pixels(image: ImageView) -> Array:
    """The bytes of an image, ``(height, width, channels)``."""
    flat = np.frombuffer(base64.b64decode(image.pixels), np.uint8)
    return flat.reshape(image.height, image.width, image.channels)


# --- parameters and updates -------------------------------------------------------------------------------------------


def test_parameters_and_updates_are_those_of_the_newest_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder)
    kept = params_of(folder)
    last, before = sorted(kept)[-1], sorted(kept)[-2]
    assert len(kept) >= 2  # a saver that is busy leaves some out
    with served(FolderSource(str(folder))) as (client, _):
        found = client.get("/api/v1/model").json()["model"]
        thin = client.get("/api/v1/model?points=1").json()["model"]
    assert (found["version"], found["before"]) == (last, before)
    assert [each["name"] for each in found["parameters"]] == ["0_W", "0_b", "1_W", "1_b", "2_W", "2_b"]
    weights = found["parameters"][0]
    size = int(np.prod(weights["shape"]))
    now, then = kept[last][:size], kept[before][:size]
    assert weights["shape"][0] == 64 and weights["size"] == sum(weights["values"]["counts"]) == size
    assert (weights["values"]["low"], weights["values"]["high"]) == (now.min(), now.max())
    assert weights["values"]["counts"] == np.histogram(now.astype(np.float64), 30)[0].tolist()
    assert weights["update"]["counts"] == np.histogram((now - then).astype(np.float64), 30)[0].tolist()
    ratio = np.abs(now - then).mean() / (last - before) / np.abs(now).mean()
    assert weights["ratio"] == pytest.approx(ratio, rel=1e-6) and 0 < ratio < 1
    assert [point["version"] for point in found["ratios"]] == sorted(kept)[1:]
    assert found["ratios"][-1]["ratios"]["0_W"] == weights["ratio"]
    assert thin["ratios"] == found["ratios"][-1:]


def test_of_a_model_that_is_not_finite_the_rest_is_shown() -> None:
    conf = zoo.mlp(4, 3)
    size = summarize(conf).parameters
    params = np.linspace(-1, 1, size, dtype=np.float32)
    params[0] = np.nan
    found = parameter_views(conf, Model(2, params), Model(1, np.zeros(size, np.float32)))
    assert (found[0].values, found[0].update, found[0].ratio) == (None, None, None)
    assert found[1].values is not None and found[1].ratio == 1.0
    (first, *_) = parameter_views(conf, Model(2, np.zeros(size, np.float32)), None)
    assert first.values is not None and first.values.mean_magnitude == 0 and first.ratio is None


def test_a_look_that_takes_long_is_followed_by_a_long_rest() -> None:
    clock = Now()
    source = Modelled(clock, seconds=2.0)
    size = summarize(zoo.mlp(4, 3)).parameters
    watcher = Watcher(source)
    watcher.look()
    models = ModelWatcher(watcher, clock)
    assert models.model() is None
    source.given = [Model(3, np.ones(size, np.float32))]
    clock.seconds += 99
    assert models.model() is None and source.asked == [-1]
    clock.seconds += 2
    found = models.model()
    assert found is not None and (found.version, found.before) == (3, None) and source.asked == [-1, -1]
    clock.seconds += 101
    source.given = [Model(4, np.full(size, 1.5, np.float32)), Model(6, np.full(size, 2.0, np.float32))]
    found = models.model()
    assert found is not None and (found.version, found.before, source.asked[-1]) == (6, 4, 3)
    assert [(each.version, each.versions, each.ratios["0_W"]) for each in found.ratios] == [
        (4, 1, pytest.approx(0.5 / 1.5)),
        (6, 2, 0.125),
    ]
    clock.seconds += 101
    source.given = [Model(2, np.ones(size, np.float32))]  # it went on from a checkpoint
    found = models.model()
    assert found is not None and (found.version, found.before, found.ratios) == (2, None, ())


def test_another_run_that_takes_the_place_is_looked_at_anew() -> None:
    source, clock = Modelled(), Now()
    source.given = [Model(3, np.ones(summarize(zoo.mlp(4, 3)).parameters, np.float32))]
    watcher = Watcher(source)
    watcher.look()
    models = ModelWatcher(watcher, clock)
    assert models.model() is not None
    assert watcher.reading is not None
    other = msgspec.json.decode(Conf(run="r2", multi_layer_conf=zoo.mlp(6, 2)).to_json())
    watcher.reading = dataclasses.replace(watcher.reading, conf=other)
    source.given = []
    assert models.model() is None and source.asked == [-1, -1]
    drawn = models.network()
    assert drawn is not None and drawn.layers[0]["output"] == [6]
    watcher.reading = dataclasses.replace(watcher.reading, conf={"run": "r3", "performer": "x"})
    assert models.network() is None and models.model() is None and models.filters() is None
    watcher.reading = dataclasses.replace(watcher.reading, conf={"multi_layer_conf": {"layers": 3}})
    for _ in range(2):  # it does not pass for a run without a network the second time
        with pytest.raises(ConfError):
            models.network()


def test_what_a_tracker_has_is_its_newest_model() -> None:
    conf, tracker = Conf(multi_layer_conf=zoo.mlp(4, 3), workers=2, epochs=2), InMemoryStateTracker()
    assert newest_of(tracker, -1) == []
    with ActorNetworkRunner("master", IrisDataSetIterator(50), tracker=tracker) as runner:
        runner.setup(conf)
        result = runner.train()
    (model,) = newest_of(tracker, -1)
    assert model.version == result.head.version and np.array_equal(model.params, result.model.arrays[PARAMS])
    assert newest_of(tracker, model.version) == []
    assert [each.version for each in newest_of(tracker, model.version + 1)] == [model.version]  # it went back
    tracker.shutdown()


def test_a_checkpoint_that_is_damaged_or_another_runs_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder)
    versions = sorted(params_of(folder))
    damaged = folder / f"model-{versions[-1]:08d}.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"\0\0\0\1")
    models = FolderModels(str(folder))
    assert [model.version for model in models.after(-1)] == versions[:-1]
    assert models.after(versions[-1]) == []
    assert [model.version for model in models.after(versions[-1] + 10)] == versions[:-1]  # the run went back
    assert FolderModels(str(folder), "0" * 16).after(-1) == []
    assert FolderModels(str(tmp_path / "nothing")).after(-1) == []


# --- drawing and filters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conf", [zoo.ZOO["lenet"].build(784, 10), every_vertex()])
def test_the_drawing_has_every_layer_and_arrow(conf: NetworkConfiguration) -> None:
    found, summary = network_view(conf, 16), summarize(conf)
    assert [each["name"] for each in found.layers] == [row.name for row in summary.rows]
    assert {box.name for box in found.boxes} == {row.name for row in summary.rows}
    assert sum(arrow.ends for arrow in found.arrows) == sum(len(row.inputs) for row in summary.rows)
    assert (found.parameters, found.multiply_adds) == (summary.parameters, summary.multiply_adds)
    width, height = found.box
    assert all(0 <= b.x <= found.width - width and 0 <= b.y <= found.height - height for b in found.boxes)
    last = next(box for box in found.boxes if box.name == summary.outputs[0])
    assert (last.kind == "output" and f"output {summary.rows[-1].shape()}" in last.text) or len(summary.outputs) > 1


def test_units_that_look_at_images_are_shown_as_images(tmp_path: Path) -> None:
    conf = zoo.mlp(64, 10)
    params = np.zeros(summarize(conf).parameters, np.float32)
    n_out = conf.resolved()[0].n_out  # type: ignore[attr-defined]
    weights = params[: 64 * n_out].reshape(n_out, 64)  # column by column
    weights[0, 0], weights[0, 63], weights[1, 8] = 0.5, -0.25, -3.0
    found = filters_of({"dataset": "digits"}, conf, Model(1, params))
    assert found is not None and "weights of layer 0 (W)" in found.text
    shown, zoom, step = pixels(found)[:, :, 0], 6, 8 * 6 + 2
    first, second = (shown[2 : 2 + 48 : zoom, left : left + 48 : zoom] for left in (2, 2 + step))
    assert (first[0, 0], first[7, 7], first[3, 3], second[1, 0]) == (255, 96 - 32, 128, 0)
    assert filters_of({"dataset": "a-table.csv"}, conf, Model(1, params)) is None


def test_filters_of_a_convolution_are_shown_and_others_are_not() -> None:
    lenet = zoo.ZOO["lenet"].build(784, 10)
    random = np.random.default_rng(1).normal(size=summarize(lenet).parameters).astype(np.float32)
    found = filters_of({}, lenet, Model(1, random))
    assert found is not None and found.channels == 1 and "20 filters" in found.text
    assert shape_of_images({}, lenet) == (1, 28, 28)
    random[:] = np.nan
    assert filters_of({}, lenet, Model(1, random)) is None
    assert shape_of_images({"images": {"height": 4, "width": 6, "channels": 3}}, zoo.mlp(72, 2)) == (3, 4, 6)


def test_what_is_no_network_has_no_model() -> None:
    assert network_of({"multi_layer_conf": None, "computation_graph_conf": None}) is None
    with pytest.raises(ConfError):
        network_of({"computation_graph_conf": {"vertices": 1}})
    with served(TrackedRun()) as (client, _):
        assert client.get("/api/v1/model").json() == {"model": None}
        assert client.get("/api/v1/filters").json() == {"filters": None}
        assert client.get("/api/v1/network").json()["network"]["kind"] == "MultiLayerNetwork"


def test_points_are_thinned_from_the_end() -> None:
    assert thinned(range(10), 4) == (0, 3, 6, 9) and thinned(range(10), 3) == (1, 5, 9)
    assert thinned([], 3) == () and thinned([1, 2], 2) == (1, 2)


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_an_evaluation_is_what_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "run", tmp_path / "model.zip"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("train", "--model", "mlp", "--dataset", "digits", "--epochs", "2", "--workers", "2"),
                *("--checkpoint-dir", str(folder), "--out", str(out), "--format", "json"),
            ]
        )
    assert not ended.value.code
    report = msgspec.json.decode(capsys.readouterr().out)
    with served(FolderSource(str(folder))) as (client, panel):
        own = bearer(panel)
        assert client.get("/api/v1/evaluation").json() == {"evaluation": None}
        found = client.post("/api/v1/evaluate", headers=own).json()["evaluation"]
        assert client.get("/api/v1/evaluation").json()["evaluation"] == found
    assert (found["run"], found["round"], found["loss"]) == (report["run"], report["rounds"], report["loss"])
    assert (found["figures"]["accuracy"], found["figures"]["f1"]) == (report["accuracy"], report["f1"])
    assert (found["learned"], found["baseline"]) == (True, report["baseline"])
    assert set(found["findings"]) <= set(report["findings"])
    counts = np.array(found["confusion"])
    assert counts.shape == (10, 10) and counts.sum() == found["examples"] and len(found["labels"]) == 10
    assert counts.trace() / counts.sum() == report["accuracy"] and found["images"] == []


@pytest.mark.parametrize(("model", "images"), [("dbn", 1), ("vae", 2)])
def test_what_a_model_gives_back_and_draws_is_shown(tmp_path: Path, model: str, images: int) -> None:
    folder = tmp_path / "run"
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("train", "--model", model, "--dataset", "digits", "--epochs", "1", "--pretrain-epochs", "1"),
                *("--workers", "1", "--checkpoint-dir", str(folder), "--format", "json"),
            ]
        )
    assert not ended.value.code
    found = evaluate_newest(str(folder))
    assert len(found.images) == images and "held-out examples, and below them" in found.images[0].text
    shown = pixels(found.images[0])
    assert shown.shape == (2 * 50 + 2, 20 * 50 + 2, 1) and len(np.unique(shown[2:50])) > 10
    assert (found.confusion == ()) == (model == "vae")


def test_without_its_data_a_run_is_not_evaluated(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(CheckpointError, match="holds no run"):
        evaluate_newest(str(folder))
    trained(folder)
    conf = msgspec.json.decode((folder / "conf.json").read_bytes())
    (folder / "conf.json").write_bytes(msgspec.json.encode({**conf, "dataset": str(tmp_path / "gone.csv")}))
    with served(FolderSource(str(folder))) as (client, panel):
        own = bearer(panel)
        refused = client.post("/api/v1/evaluate", headers=own)
    assert refused.status_code == 409 and "gone.csv" in refused.json()["error"]["message"]
