"""Images changed at random while they are learned from, from the command line: the same answer however a run goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy import ActorNetworkRunner, ListDataSetIterator
from dl4jlegacy.datasets import ImageTransform, load
from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import prepare

pytestmark = pytest.mark.usefixtures("photos")
SHORT = ("--epochs", "2", "--jobs-per-round", "4", "--batch-size", "8")
AUGMENT = ("--augment", "flip,rotate=15,crop=1,brightness=0.2,color=0.1")
FIELDS = {"flip": "horizontal", "rotate": 15.0, "crop": 1, "brightness": 0.2, "color": 0.1}


@pytest.fixture
def photos(here: Path) -> None:
    """80 images of 8 x 8 in two folders: stripes that lie or stand."""
    rng = np.random.default_rng(1)
    for number in range(80):
        stripes = np.tile(np.uint8([0, 0, 250, 250]), (8, 2)) // 2 + rng.integers(0, 60, (8, 8), np.uint8)
        name = ("flat", "upright")[number % 2]
        (here / "photos" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(stripes if number % 2 else stripes.T.copy()).save(here / "photos" / name / f"{number:02}.png")


def test_only_what_is_learned_from_is_changed(dl4j: Any) -> None:
    train = ("train", "photos", "--model", "mlp", *SHORT, "--validation", "0.25", "--out", "m.zip")
    plain, report = dl4j.json(*train), dl4j.json(*train, *AUGMENT)
    assert report["params_sha256"] != plain["params_sha256"]
    assert report["augment"] == FIELDS and "augment" not in plain
    found = dl4j.json("evaluate", "m.zip", "--dataset", "photos")
    assert (found["loss"], found["accuracy"]) == (report["loss"], report["accuracy"])
    assert report["best"]["score"] == report["best"]["figures"]["loss"]


def test_images_by_name_and_of_a_network_are_known(dl4j: Any) -> None:
    report = dl4j.json("train", "--dataset", "digits", *SHORT, "--epochs", "1", "--augment", "rotate=10")
    assert report["augment"] == {"rotate": 10.0}
    said = dl4j("train", "--dataset", "iris", *SHORT, *AUGMENT, fails=3)
    assert "Conf.augment is for images, and data set 'iris' has none that are known" in said
    assert "learns the images themselves" in dl4j("train", "photos", "--model", "vae", *SHORT, *AUGMENT, fails=3)
    assert "nothing would be left; give less than 4" in dl4j("train", "photos", *SHORT, "--augment", "crop=4", fails=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("flp", "--augment has 'flp'; did you mean 'flip'"),
        ("flip=sideways", "--augment flip is 'sideways'"),
        ("crop=1.5", "--augment crop is '1.5'; it must be a whole number"),
        ("rotate", "--augment rotate is ''; it must be a number"),
        ("crop=1,crop=2", "it has 'crop' twice"),
    ],
)
def test_changes_that_are_none_are_refused(dl4j: Any, given: str, message: str) -> None:
    assert message in dl4j("train", "photos", *SHORT, "--augment", given, fails=2)


def test_a_program_is_told_what_to_give_the_runner() -> None:
    source = load("photos")
    run, _ = prepare(Conf(dataset="photos"), frozenset())
    conf = Conf(multi_layer_conf=run.conf.multi_layer_conf, augment=ImageTransform(crop=1))
    with (
        ActorNetworkRunner("master", ListDataSetIterator(source.train, 8)) as runner,
        pytest.raises(ConfError, match="give the runner an AugmentedDataSetIterator"),
    ):
        runner.setup(conf)
