"""Images in folders, from the command line: trained on, evaluated, predicted; beside the same images as arrays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from dl4jlegacy import load_model
from dl4jlegacy.datasets import DataSet, DataSource, ImageRecordReader, Reading, load
from dl4jlegacy.datasets.images.image_inspection import inspect_images
from dl4jlegacy.datasets.sources import SPLIT_SEED
from dl4jlegacy.errors import DataError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import params_sha256, prepare, train
from tests.support.image_contents import png

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--epochs", "1", "--jobs-per-round", "4", "--batch-size", "8")


def write_digits(folder: Path, count: int) -> DataSet:
    """Write scikit-learn's digits as PNG files in ten folders; return the same examples, in the order of the paths."""
    digits = load_digits()
    pixels, classes = (digits.images[:count] * 15).astype(np.uint8), digits.target[:count]
    for number, (image, digit) in enumerate(zip(pixels, classes, strict=True)):
        (folder / str(digit)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / str(digit) / f"{number:04}.png")
    order = np.argsort(classes, kind="stable")
    return DataSet.of_classes(pixels[order].reshape(count, 64).astype(np.float32) / 255, classes[order], 10)


def as_arrays(examples: DataSet) -> DataSource:
    parts = examples.split_test_and_train(0.8, SPLIT_SEED)
    return DataSource("arrays", parts.train, parts.test, Reading(label_names=tuple("0123456789")))


@pytest.fixture
def photos(here: Path) -> DataSet:
    """The first 120 digits in ten folders, and the same as arrays."""
    return write_digits(here / "photos", 120)


def test_what_is_trained_is_reported_evaluated_and_predicted(dl4j: Any, photos: DataSet) -> None:
    report = dl4j.json("train", "--model", "mlp", "--dataset", "photos", *SHORT, "--out", "m.zip")
    assert report["images"] == {"height": 8, "width": 8, "channels": 1} and not report["scaled_features"]
    model = load_model("m.zip")
    assert model.reading.images == ImageRecordReader(height=8, width=8, channels=1)
    assert model.label_names == tuple("0123456789")
    found = dl4j.json("evaluate", "m.zip", "--dataset", "photos")
    assert (found["accuracy"], found["f1"], found["examples"]) == (report["accuracy"], report["f1"], 24)
    whole = dl4j.json("evaluate", "m.zip", "--dataset", "photos", "--split", "all")
    predicted = dl4j.json("predict", "m.zip", "photos")
    right = [
        Path(file).parent.name == str(n) for file, n in zip(predicted["files"], predicted["predictions"], strict=1)
    ]
    assert sum(right) / len(right) == pytest.approx(whole["accuracy"]) and len(right) == 120
    assert predicted["predictions"] == model.predict(photos.features).tolist()
    lines = dl4j("predict", "m.zip", "photos").splitlines()
    assert lines == [f"{file}\t{n}" for file, n in zip(predicted["files"], predicted["predictions"], strict=True)]
    assert dl4j("predict", "m.zip", "photos", "--workers", "2").splitlines() == lines
    one = json.loads(dl4j("predict", "m.zip", predicted["files"][7], "--format", "jsonl"))
    assert one == {
        "row": 0,
        "file": predicted["files"][7],
        "class": predicted["predictions"][7],
        "label_name": str(predicted["predictions"][7]),
        "probabilities": pytest.approx(predicted["probabilities"][7], abs=1e-5),
    }


def test_the_examples_are_those_of_the_same_arrays(photos: DataSet) -> None:
    data, arrays = load("photos", reading=Reading(images=ImageRecordReader())), as_arrays(photos)
    assert data.train == arrays.train and data.test == arrays.test


def test_a_run_goes_on_only_with_the_images_that_it_began_with(dl4j: Any, photos: DataSet) -> None:
    dl4j("train", "photos", *SHORT, "--checkpoint-dir", "run")
    for path in Path("photos", "3").iterdir():
        Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path)
    assert "so something in it has changed" in dl4j("resume", "run", fails=8)


def test_images_of_another_size_are_made_this_large(dl4j: Any, photos: DataSet) -> None:
    assert "differ in size" not in dl4j("train", "photos", *SHORT, "--image-size", "6x4", "--out", "m.zip")
    assert load_model("m.zip").reading.images == ImageRecordReader(height=6, width=4, channels=1)
    crop = ("--image-size", "6", "--image-fit", "crop", "--image-channels", "3")
    report = dl4j.json("train", "photos", *SHORT, *crop, "--out", "m.zip")
    assert report["images"] == {"height": 6, "width": 6, "channels": 3, "fit": "crop"}
    large = Path("large.png")
    Image.fromarray(np.zeros((50, 70, 3), np.uint8)).save(large)
    assert dl4j("predict", "m.zip", "large.png").startswith("large.png\t")


def test_a_set_of_images_to_validate_on_is_read_as_those_that_are_trained_on(
    dl4j: Any, here: Path, photos: DataSet
) -> None:
    write_digits(here / "others", 40)
    report = dl4j.json("train", "photos", *SHORT, "--validation", "others", "--metric", "accuracy")
    assert report["validation"]["examples"] == 40


def test_what_does_not_fit_is_said(dl4j: Any, here: Path, photos: DataSet) -> None:
    lenet = ("train", "photos", "--model", "lenet")
    assert "images of 8x8" in (said := dl4j(*lenet, fails=3)) and "--image-size makes others" in said
    assert "takes square images, and these are 24x32" in dl4j(
        *lenet, "--image-size", "24x32", "--image-channels", "3", fails=3
    )
    assert "the images are 24x32" in dl4j(*lenet, "--image-size", "24x32", fails=3)
    assert "--image-size is '8by8'" in dl4j("train", "photos", "--image-size", "8by8", fails=2)
    assert "--image-channels is '2'" in dl4j("train", "photos", "--image-channels", "2", fails=2)
    assert "--image-fit crop needs --image-size" in dl4j("train", "photos", "--image-fit", "crop", fails=2)
    assert "'iris' has no folders of images" in dl4j("train", "--dataset", "iris", "--image-size", "8", fails=3)
    assert "two data sets" in dl4j("train", "photos", "--dataset", "iris", fails=2)
    dl4j("train", "photos", *SHORT, "--out", "m.zip")
    Path("bad.png").write_bytes(b"no image")
    assert "bad.png is no image that can be read" in dl4j("predict", "m.zip", "bad.png", fails=3)
    (here / "empty").mkdir()
    assert "empty has no images" in dl4j("predict", "m.zip", "empty", fails=3)
    dl4j("train", "--dataset", "iris", "--epochs", "1", "--out", "iris.zip")
    assert "photos" in dl4j("predict", "iris.zip", "photos", fails=3)


def test_images_of_a_cameras_ten_bits_in_sixteen_are_refused_wherever_they_come_from(
    dl4j: Any, here: Path, photos: DataSet
) -> None:
    dl4j("train", "photos", *SHORT, "--image-background", "#00ff00", "--out", "m.zip")
    assert load_model("m.zip").reading.images == ImageRecordReader(height=8, width=8, channels=1, background="#00ff00")
    assert "background of images is 'pink'" in dl4j("train", "photos", "--image-background", "pink", fails=3)
    contents = png(np.full((8, 8, 3), 240, np.uint16), 2)
    (here / "photos" / "3" / "session").mkdir()
    Path("photos/3/session/deep.png").write_bytes(contents)
    Path("named otherwise").write_bytes(contents)
    for command in (
        ("train", "photos", *SHORT),
        ("evaluate", "m.zip", "--dataset", "photos"),
        ("predict", "m.zip", "photos"),
        ("predict", "m.zip", "named otherwise"),
    ):
        assert "has mode RGB with 16 bits a channel" in dl4j(*command, fails=3), command
    assert "images that cannot be read, 1" in dl4j("data", "validate", "photos", fails=3)


@pytest.mark.long
def test_digits_in_folders_are_learned_as_well_as_arrays(dl4j: Any, here: Path) -> None:
    examples = write_digits(here / "photos", 1797)
    report = dl4j.json("train", "--model", "mlp", "--dataset", "photos", "--out", "m.zip")
    assert report["accuracy"] >= 0.965
    run, _ = prepare(Conf(dataset="photos", model="mlp"), frozenset({"model"}))
    same = train(run, as_arrays(examples), progress=False)
    assert same.fields["params_sha256"] == report["params_sha256"] == params_sha256(load_model("m.zip").network.params)
    assert same.fields["accuracy"] == report["accuracy"]


@pytest.mark.long
def test_a_lenet_learns_digits_in_folders(dl4j: Any, here: Path) -> None:
    write_digits(here / "photos", 1797)
    lenet = ("--model", "lenet", "--image-size", "20", "--epochs", "8", "--batch-size", "16", "--jobs-per-round", "1")
    adam = ("--updater", "adam", "--learning-rate", "0.001")
    report = dl4j.json("train", "photos", *lenet, *adam)
    assert report["accuracy"] >= 0.93
    assert load("photos", reading=Reading(images=ImageRecordReader(height=20, width=20))).train.n_in == 400


@pytest.mark.long
def test_a_lenet_sees_colours_where_they_are(dl4j: Any) -> None:
    """Its images lie flat, channel by channel: in another order a red square would be stripes of all colours."""
    rng = np.random.default_rng(1)
    for number in range(120):
        for channel, name in enumerate(("red", "green", "blue")):
            Path("colours", name).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 120, (20, 20, 3)).astype(np.uint8)
            y, x = rng.integers(0, 10, 2)
            pixels[y : y + 8, x : x + 8, channel] = 250
            Image.fromarray(pixels).save(Path("colours", name, f"{number}.png"))
    adam = ("--updater", "adam", "--learning-rate", "0.001", "--epochs", "6")
    report = dl4j.json("train", "colours", "--model", "lenet", *adam)
    assert report["images"]["channels"] == 3 and report["accuracy"] >= 0.98


def test_what_is_wrong_with_a_folder_of_images_is_counted_and_shown(dl4j: Any, here: Path, photos: DataSet) -> None:
    assert dl4j("data", "validate", "photos") == (
        "photos: 120 images, 0 kinds of problems\nverdict: dl4j train takes this\n"
    )
    zeros = sorted(Path("photos", "0").iterdir())
    whole = zeros[2].read_bytes()
    Path("photos", "0", "cut.png").write_bytes(whole[: len(whole) // 2])
    (here / "photos" / "lone").mkdir()
    Image.new("L", (8, 8), 7).save("photos/lone/1.png")
    said = dl4j("data", "validate", "photos", fails=3)
    assert "images that cannot be read, 1; photos: classes with a single image, 1; correct these" in said


def test_each_kind_of_problem_of_images_has_its_examples(here: Path, photos: DataSet) -> None:
    zeros = sorted((here / "photos" / "0").iterdir())
    (here / "photos" / "1" / "copy.png").write_bytes(zeros[0].read_bytes())
    (here / "photos" / "0" / "copy.png").write_bytes(zeros[1].read_bytes())
    (here / "photos" / "0" / "cut.png").write_bytes(zeros[2].read_bytes()[:60])
    Image.new("RGB", (9, 8), (250, 0, 0)).save(here / "photos" / "2" / "red.png")
    found = inspect_images(here / "photos")
    assert found.rows == 124
    counts = {problem.what: (problem.count, problem.is_refused) for problem in found.problems}
    assert counts == {
        "images that cannot be read": (1, True),
        "images that are there twice": (1, False),
        "images that are in two classes": (1, False),
        "images of another size than 8x8 (--image-size makes them alike)": (1, True),
        "images with colours among gray ones": (1, False),
    }
    examples = {problem.what: problem.examples[0] for problem in found.problems}
    assert examples["images that are in two classes"] == f"{here / 'photos/1/copy.png'} is {zeros[0]}"
    assert "cut.png is truncated or damaged" in examples["images that cannot be read"]
    assert examples["images of another size than 8x8 (--image-size makes them alike)"].endswith("red.png (8x9)")
    for part in ("train", "test"):
        for digit in "34":
            shutil.copytree(here / "photos" / digit, here / "parts" / part / digit)
    assert {problem.what for problem in inspect_images(here / "parts").problems} == {"images that are in both parts"}
    with pytest.raises(DataError, match="has no folders with images"):
        inspect_images(here / "photos" / "3")
