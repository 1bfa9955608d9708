"""Images changed at random while they are learned from, from the command line: the same answer however a run goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy import ActorNetworkRunner, ListDataSetIterator
from dl4jlegacy.cluster.reached_data import jobs_by_reference
from dl4jlegacy.datasets import ImageTransform, load
from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import batches, prepare

pytestmark = pytest.mark.usefixtures("photos")
SHORT = ("--epochs", "2", "--jobs-per-round", "4", "--batch-size", "8", "--format", "json")
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


def test_the_answer_is_the_same_for_any_number_of_workers_and_after_a_stop(dl4j: Any, here: Path) -> None:
    train = ("train", "photos", "--model", "mlp", *SHORT)
    plain = json.loads(dl4j(*train))
    found = [json.loads(dl4j(*train, *AUGMENT, "--workers", workers)) for workers in ("1", "2", "3", "4")]
    assert len({report["params_sha256"] for report in found}) == 1
    assert found[0]["params_sha256"] != plain["params_sha256"]
    assert found[0]["augment"] == FIELDS and "augment" not in plain
    dl4j(*train, *AUGMENT, "--epochs", "1", "--checkpoint-dir", "run", "--checkpoint-every", "1")
    conf = json.loads(Path("run", "conf.json").read_text())
    Path("run", "conf.json").write_text(json.dumps({**conf, "epochs": 2}), encoding="utf-8")
    resumed = json.loads(dl4j("resume", "run", "--format", "json"))
    assert resumed["params_sha256"] == found[0]["params_sha256"]


def test_only_what_is_learned_from_is_changed(dl4j: Any) -> None:
    validated = ("--validation", "0.25", "--out", "m.zip")
    report = json.loads(dl4j("train", "photos", "--model", "mlp", *SHORT, *AUGMENT, *validated))
    found = json.loads(dl4j("evaluate", "m.zip", "--dataset", "photos", "--format", "json"))
    assert (found["loss"], found["accuracy"]) == (report["loss"], report["accuracy"])
    assert report["best"]["score"] == report["best"]["figures"]["loss"]


def test_a_worker_of_another_process_changes_them_alike() -> None:
    fields = {"dataset": str(Path("photos").absolute()), "data_by_reference": True, "augment": ImageTransform(**FIELDS)}
    run, data = prepare(Conf(**fields, epochs=2, jobs_per_round=4), frozenset(fields), on_cluster=True)
    jobs = jobs_by_reference(Conf.from_json(run.conf.to_json()), run.plan)
    assert jobs is not None
    slot = run.plan.slot(run.plan.total_rounds - 1, 1)  # of the second epoch
    own = batches(run.conf, data)
    assert jobs.work(slot) == [own.batch(slot.epoch, index) for index in range(slot.first, slot.last)]
    plain = batches(run.conf.replace(augment=None), data)
    assert jobs.work(slot) != [plain.batch(slot.epoch, index) for index in range(slot.first, slot.last)]


def test_images_by_name_and_of_a_network_are_known(dl4j: Any) -> None:
    report = json.loads(dl4j("train", "--dataset", "digits", *SHORT, "--epochs", "1", "--augment", "rotate=10"))
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
