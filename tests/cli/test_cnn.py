"""``cnn`` from the command line: images of any shape, scaled by channel, from training to a saved model's answers."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy import load_model
from dl4jlegacy.datasets import DataSet, ImageRecordReader, NormalizerStandardize, Reading, load
from dl4jlegacy.nn import InputType
from dl4jlegacy.nn.interchange.dl4j.normalizer_file import read_normalizer, write_normalizer
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import prepare

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--model", "cnn", "--epochs", "2", "--jobs-per-round", "2", "--batch-size", "8")


@pytest.fixture
def photos(here: Path) -> None:
    """60 coloured images of 6 x 10 in two folders, with a bright left or right half; a table lists them, too."""
    rng, rows = np.random.default_rng(1), []
    for number in range(60):
        pixels = rng.integers(100, 140, (6, 10, 3)).astype(np.uint8)
        pixels[:, 5 * (number % 2) :][:, :5, 1] += 90
        name = f"{('left', 'right')[number % 2]}/{number:02}.png"
        (here / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(here / "photos" / name)
        rows.append((name, number % 2 + 0.5, number % 2, number % 3 % 2))
    with (here / "photos" / "list.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("file", "amount", "a", "b"), *rows])


def write_idx(path: Path, values: np.ndarray) -> None:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(head + values.astype(np.uint8).tobytes())


@pytest.mark.usefixtures("photos")
def test_coloured_images_that_are_not_square_are_learned_evaluated_and_predicted(dl4j: Any) -> None:
    Path("photos/list.csv").unlink()
    report = dl4j.json("train", "photos", *SHORT, "--epochs", "6", "--out", "m.zip")
    assert report["scaled_features"] and report["accuracy"] == 1.0
    model, data = load_model("m.zip"), load("photos", reading=Reading(images=ImageRecordReader()))
    assert data.image == (3, 6, 10)
    assert model.network.conf.input_type == InputType.convolutional_flat(6, 10, 3)
    wanted = NormalizerStandardize().fit_channels(data.train, 3)
    assert model.reading.normalizer is not None and model.reading.normalizer.to_json() == wanted.to_json()
    found = dl4j.json("evaluate", "m.zip", "--dataset", "photos")
    assert (found["loss"], found["accuracy"]) == (report["loss"], report["accuracy"])
    predicted = dl4j.json("predict", "m.zip", "photos")
    assert [Path(file).parent.name for file in predicted["files"]] == [
        predicted["label_names"][number] for number in predicted["predictions"]
    ]
    assert model.predict(data.test.features).tolist() == data.test.labels.argmax(axis=1).tolist()


@pytest.mark.usefixtures("photos")
def test_a_run_comes_out_the_same_with_any_workers_and_goes_on_with_the_same_images(dl4j: Any) -> None:
    """Turned images, too: these are scaled back for it, and brought to the same scale again."""
    Path("photos/list.csv").unlink()
    train = ("train", "photos", *SHORT, "--augment", "rotate=10,crop=1,brightness=0.2")
    found = [dl4j.json(*train, "--workers", workers)["params_sha256"] for workers in ("1", "2")]
    plain = dl4j.json("train", "photos", *SHORT, "--checkpoint-dir", "run")
    assert found[0] == found[1] != plain["params_sha256"]
    again = dl4j.json("resume", "run")
    for name in ("params_sha256", "loss", "accuracy", "scaled_features"):
        assert again[name] == plain[name]
    assert isinstance(load_model("run").reading.normalizer, NormalizerStandardize)


@pytest.mark.usefixtures("photos")
def test_numbers_and_several_labels_are_predicted_from_images_that_a_table_lists(dl4j: Any) -> None:
    listed = ("train", "photos/list.csv", "--images", "file", *SHORT)
    numbers = dl4j.json(*listed, "--label", "amount", "--regression", "--epochs", "8", "--out", "m.zip")
    assert numbers["scaled_features"] and numbers["r2"] > 0.3
    assert abs(dl4j.json("predict", "m.zip", "photos/right/01.png")["predictions"][0] - 1.5) < 0.5
    labels = dl4j.json(*listed, "--label", "a,b", "--multi-label")
    assert labels["label"] == ["a", "b"] and labels["scaled_features"]


def test_idx_files_and_named_data_sets_bring_their_shape(here: Path) -> None:
    rng, classes = np.random.default_rng(2), np.arange(40) % 4
    for part, count in (("train", 40), ("t10k", 8)):
        write_idx(here / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (count, 5, 20)))
        write_idx(here / f"{part}-labels-idx1-ubyte", classes[:count])
    for dataset, height, width in ((str(here), 5, 20), ("digits", 8, 8)):
        run, data = prepare(Conf(dataset=dataset, model="cnn"), frozenset({"model"}))
        network = run.conf.multi_layer_conf
        assert network is not None and network.input_type == InputType.convolutional_flat(height, width, 1)
        assert data.image == (1, height, width)
        np.testing.assert_allclose([data.train.features.mean(), data.train.features.std()], [0, 1], atol=1e-5)


def test_images_are_scaled_only_for_a_cnn_and_only_if_asked() -> None:
    for conf in (Conf(dataset="digits", model="mlp"), Conf(dataset="digits", model="cnn", scale_features=False)):
        _, data = prepare(conf, frozenset({"model", "scale_features"}))
        assert data.reading.normalizer is None and data.train.features.max() == 1


def test_the_scale_is_one_of_deeplearning4js() -> None:
    """Its NormalizerStandardize has a mean and a deviation for each column of flat images."""
    data = DataSet(np.random.default_rng(1).random((9, 24), np.float32), np.zeros((9, 1)))
    scale = NormalizerStandardize().fit_channels(data, 3)
    theirs = read_normalizer(write_normalizer(scale))
    np.testing.assert_allclose(theirs.transform(data).features, scale.transform(data).features, atol=1e-5)
    assert len(json.loads(theirs.to_json())["mean"]) == 24
