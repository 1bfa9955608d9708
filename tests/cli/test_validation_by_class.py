"""The training rows that validate have their share of every class, unless a Conf says otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy import Conf, ValidationConf
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.cli.options.conf_options import read_conf
from dl4jlegacy.cli.options.read import TrainOptions
from dl4jlegacy.datasets import DataSet, DataSource
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.nn.zoo import mlp
from dl4jlegacy.training.prepare import prepare, training_data
from dl4jlegacy.training.run import Run, job_iterator

SHARES = {"often": 1000, "seldom": 480, "rare": 117, **{f"kind {number}": 8 for number in range(60)}}
RANDOM = np.random.default_rng(2)
CLASSES = RANDOM.permutation(np.repeat(list(SHARES), list(SHARES.values())))


def table(folder: Path) -> dict[str, Any]:
    rows = [f"{x!r},{name}" for x, name in zip(map(float, RANDOM.normal(size=len(CLASSES))), CLASSES, strict=True)]
    (folder / "t.csv").write_text("\n".join(["x,kind", *rows]), encoding="utf-8")
    return {"dataset": str(folder / "t.csv")}


def images(folder: Path) -> dict[str, Any]:
    for number, name in enumerate(CLASSES):
        path = folder / "photos" / str(name) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.uint8(RANDOM.integers(0, 255, (6, 5)))).save(path)
    return {"dataset": str(folder / "photos")}


def digits(_: Path) -> dict[str, Any]:
    return {"dataset": "digits"}


def numbers(folder: Path) -> dict[str, Any]:
    rows = [f"{x!r},{int(10 * abs(x))}" for x in map(float, RANDOM.normal(size=1600))]
    (folder / "n.csv").write_text("\n".join(["x,count", *rows]), encoding="utf-8")
    return {"dataset": str(folder / "n.csv"), "label": "count", "regression": True}


def several_labels(folder: Path) -> dict[str, Any]:
    rows = [f"{x!r},{int(x > 0)},{int(x > 1)}" for x in map(float, RANDOM.normal(size=1600))]
    (folder / "s.csv").write_text("\n".join(["x,some,many", *rows]), encoding="utf-8")
    return {"dataset": str(folder / "s.csv"), "label": "some,many", "multi_label": True}


def texts(folder: Path) -> dict[str, Any]:
    (folder / "t.txt").write_text("the fox saw the grapes. " * 4000, encoding="utf-8")
    return {"dataset": str(folder / "t.txt")}


def sequences(folder: Path) -> dict[str, Any]:
    (folder / "steps").mkdir()
    for number in range(1600):
        name = ("up", "down")[number % 3 == 0]
        (folder / "steps" / f"{number}.csv").write_text(f"value,label\n{number},{name}\n1,{name}\n", encoding="utf-8")
    return {"dataset": str(folder / "steps"), "sequences": SequenceRecordReader(label="label")}


def prepared(fields: dict[str, Any], **more: Any) -> tuple[Run, DataSource]:
    chosen = {**fields, **more}
    about = {name: chosen.pop(name) for name in ("label", "regression", "multi_label") if name in chosen}
    return prepare(Conf(**chosen), frozenset(chosen), **about)


def parts(run: Run, data: DataSource) -> tuple[DataSet, DataSet]:
    """Return what is learned and what validates."""
    jobs: Any = job_iterator(run.conf, training_data(run.conf, data))
    return jobs.iterator.dataset, jobs.validation.dataset


def same(first: DataSet, second: DataSet) -> bool:
    return first.features.tobytes() == second.features.tobytes()


@pytest.mark.parametrize("make", [table, images, digits])
def test_the_chosen_part_has_its_share_of_each_class_to_the_row(make: Any, tmp_path: Path) -> None:
    fields = make(tmp_path)
    run, data = prepared(fields, seed=5)
    learned, held = parts(run, data)
    whole = data.train.labels.sum(axis=0)
    assert (learned.labels.sum(axis=0) + held.labels.sum(axis=0)).tolist() == whole.tolist()
    assert len(held) == round(run.conf.validation.fraction * len(data.train)) == run.plan.validation.examples
    assert np.abs(held.labels.sum(axis=0) - whole * len(held) / len(data.train)).max() < 1
    assert (learned.labels.sum(axis=0) > 0).all()
    assert ", and of each class, choose the best epoch" in run.conf.choices["validation"]
    again, other = parts(*prepared(fields, seed=5)), parts(*prepared(fields, seed=6))
    assert same(again[1], held) and same(again[0], learned) and not same(other[1], held)


def test_of_each_class_those_rows_validate_that_the_seed_puts_last() -> None:
    run, data = prepared({"dataset": "digits"}, seed=5)
    _, held = parts(run, data)
    order = Stream.of(5).at(purpose="validation").generator().permutation(len(data.train))
    order = np.roll(order, -len(held))
    classes = data.train.labels.argmax(axis=1)
    last = [order[classes[order] == number][-int(held.labels[:, number].sum()) :] for number in range(10)]
    rows = [row for row in order if row in set(np.concatenate(last))]
    assert same(held, data.train.take(np.array(rows)))


@pytest.mark.parametrize("make", [numbers, several_labels, texts, sequences])
def test_what_has_no_classes_is_drawn_regardless_of_labels(make: Any, tmp_path: Path) -> None:
    fields = make(tmp_path)
    run, _ = prepared(fields)
    assert run.conf.validation is not None and not run.conf.validation.stratify
    assert run.conf.choices["validation"].endswith(" rows choose the best epoch")
    (_, plain), (_, by_class) = (
        parts(*prepared(fields, validation=ValidationConf(fraction=0.2, stratify=stratify)))
        for stratify in (False, True)
    )
    assert same(plain, by_class), "as with --validation 0.2"


@pytest.mark.parametrize("model", ["deep-autoencoder", "vae"])
def test_a_model_that_learns_no_classes_validates_as_before(model: str) -> None:
    run, _ = prepared({"dataset": "digits", "model": model})
    assert run.conf.validation is None or not run.conf.validation.stratify


def test_the_flag_says_how_large_the_part_is_and_a_conf_is_split_as_it_says(tmp_path: Path) -> None:
    fields, path = table(tmp_path), tmp_path / "conf.json"
    by_class, plain = ValidationConf(fraction=0.2, stratify=True), ValidationConf(fraction=0.2)
    assert read_conf(TrainOptions(validation="0.2"))[0].validation == by_class
    path.write_text(json.dumps({"model": "mlp", "validation": {"fraction": 0.1}}), encoding="utf-8")
    assert read_conf(TrainOptions(conf=path))[0].validation == ValidationConf(fraction=0.1)
    assert read_conf(TrainOptions(conf=path, validation="0.2"))[0].validation == plain
    path.write_text(Conf(multi_layer_conf=mlp(1, 4)).to_json(), encoding="utf-8")
    assert read_conf(TrainOptions(conf=path, validation="0.2"))[0].validation == plain
    assert read_conf(TrainOptions(conf=path, validation="0.2", model="mlp"))[0].validation == by_class
    run, data = prepared(fields, validation=plain, seed=5)
    order = Stream.of(5).at(purpose="validation").generator().permutation(len(data.train))
    assert same(parts(run, data)[1], data.train.take(order[: round(0.2 * len(data.train))]))


def test_runs_from_before_keep_the_digest_of_their_conf() -> None:
    digest = Conf(model="mlp", validation=ValidationConf(fraction=0.2)).digest()
    assert digest == "5c1800fb7ab59247ba92b47ccb619e8a3830608046cb50777b036ffa2a596dd3"
    assert Conf(model="mlp", validation=ValidationConf(fraction=0.2, stratify=True)).digest() != digest


@pytest.mark.parametrize("make", [table, digits])
def test_any_number_of_workers_and_a_resumed_run_end_alike(make: Any, tmp_path: Path, dl4j: Any) -> None:
    train = ("train", "--dataset", make(tmp_path)["dataset"], "--model", "mlp", "--schedule", "constant")
    kept = (*train, "--epochs", "1", "--checkpoint-dir", str(tmp_path / "run"))
    found = [dl4j.json(*train, "--epochs", "2", "--workers", workers)["params_sha256"] for workers in ("1", "4")]
    dl4j.json(*kept)
    conf = tmp_path / "run" / "conf.json"
    conf.write_text(json.dumps({**json.loads(conf.read_text(encoding="utf-8")), "epochs": 2}), encoding="utf-8")
    assert json.loads(conf.read_text(encoding="utf-8"))["validation"]["stratify"] is True
    found.append(dl4j.json("resume", str(tmp_path / "run"))["params_sha256"])
    assert len(set(found)) == 1, found
