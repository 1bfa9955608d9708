"""Images that a table lists, from the command line: learned as those in folders, and what is said of a wrong list."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from dl4jlegacy import load_model
from dl4jlegacy.datasets import ImageRecordReader, Reading, TransformProcess, load
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.dataset import split_order
from dl4jlegacy.datasets.images.image_inspection import problems_of_listed
from dl4jlegacy.datasets.images.image_tables import image_schema
from dl4jlegacy.datasets.sources import SPLIT_SEED
from dl4jlegacy.datasets.tables.inspection import Problem
from dl4jlegacy.errors import ConfError, DataError

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--epochs", "1", "--jobs-per-round", "4", "--batch-size", "8")
LIST = ("--images", "file", "--label", "kind")


def write_list(name: str, rows: Iterable[Iterable[object]], header: str = "file,kind") -> None:
    with Path(name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header.split(","), *rows])


@pytest.fixture
def rows(here: Path) -> list[tuple[str, str]]:
    """120 digits in folders of their kinds, which a table beside them lists in the order in which folders are read."""
    digits = load_digits()
    found = []
    for number, (image, digit) in enumerate(zip(digits.images[:120], digits.target[:120], strict=True)):
        path = here / "photos" / str(digit) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype(np.uint8)).save(path)
        found.append((f"{digit}/{number:04}.png", str(digit)))
    write_list("photos/list.csv", sorted(found))
    return sorted(found)


def sha(dl4j: Any, *words: str) -> str:
    return str(dl4j.json("train", *words)["params_sha256"])


def test_the_parameters_are_those_of_the_same_images_in_folders_for_any_number_of_workers(
    dl4j: Any, rows: list[tuple[str, str]]
) -> None:
    augment = ("--image-size", "6x4", "--image-fit", "crop", "--augment", "flip,rotate=10", "--stratify")
    for options in ((), augment):
        in_folders = sha(dl4j, "--dataset", "photos", "--image-size", "8", *SHORT, *options)
        found = {sha(dl4j, "photos/list.csv", *LIST, *SHORT, *options, "--workers", str(n)) for n in (1, 2, 3)}
        if not options:  # in the folder that has a table, too, images in folders are those that are asked for
            found.add(sha(dl4j, "photos", *LIST, *SHORT))
        assert found == {in_folders}
    one, other = (
        load("photos", reading=Reading(images=ImageRecordReader(height=8, width=8))),
        load("photos", reading=Reading(images=reader())),
    )
    assert (one.train, one.test, one.label_names) == (other.train, other.test, other.label_names)


def reader(**fields: Any) -> ImageRecordReader:
    return ImageRecordReader(column="file", **fields)


def test_what_is_trained_is_reported_evaluated_and_predicted(dl4j: Any, rows: list[tuple[str, str]]) -> None:
    report = dl4j.json("train", "photos/list.csv", *LIST, *SHORT, "--out", "m.zip")
    assert report["images"] == {"height": 8, "width": 8, "channels": 1, "column": "file"} and report["label"] == "kind"
    model = load_model("m.zip")
    assert model.reading.images == reader(height=8, width=8, channels=1) and model.label_names == tuple("0123456789")
    found = dl4j.json("evaluate", "m.zip", "--dataset", "photos/list.csv")
    assert (found["accuracy"], found["loss"], found["examples"]) == (report["accuracy"], report["loss"], 24)
    write_list("photos/unlabelled.csv", [(name,) for name, _ in rows], "file")
    listed = dl4j("predict", "m.zip", "photos/list.csv")
    assert listed == dl4j("predict", "m.zip", "photos/unlabelled.csv") == dl4j("predict", "m.zip", "photos")
    assert listed.splitlines()[0].startswith("photos/0/") and len(listed.splitlines()) == 120
    assert dl4j("predict", "m.zip", f"photos/{rows[5][0]}") == f"{listed.splitlines()[5]}\n"
    Path("photos/list.csv").unlink()
    Path("photos/unlabelled.csv").unlink()
    by_folder = dl4j.json("evaluate", "m.zip", "--dataset", "photos")
    assert by_folder["loss"] == found["loss"]
    assert "standard input has no folder" in dl4j("predict", "m.zip", "-", fails=3)


def test_numbers_and_several_labels_are_learned_of_images(dl4j: Any, rows: list[tuple[str, str]]) -> None:
    write_list("photos/ages.csv", [(name, int(kind) * 2.5) for name, kind in rows], "file,age")
    command = ("train", "photos/ages.csv", "--images", "file", "--label", "age", "--regression")
    report = dl4j.json(*command, *SHORT, "--out", "m.zip")
    assert "r2" in report and report["label"] == "age"
    first = json.loads(dl4j("predict", "m.zip", "photos/ages.csv", "--format", "jsonl").splitlines()[0])
    assert first["file"] == f"photos/{rows[0][0]}" and first["column"] == "age" and -30 < first["value"] < 60
    assert dl4j("predict", "m.zip", f"photos/{rows[0][0]}").split("\t")[0] == f"photos/{rows[0][0]}"
    several = [(name, int(kind) % 2, int(int(kind) > 4)) for name, kind in rows]
    write_list("photos/both.csv", several, "file,odd,large")
    both = ("--images", "file", "--label", "odd,large", "--multi-label")
    report = dl4j.json("train", "photos/both.csv", *both, *SHORT, "--out", "m.zip")
    assert list(report["labels"]) == ["odd", "large"]
    lines = dl4j("predict", "m.zip", "photos").splitlines()
    assert all(line.split("\t")[1] in ("odd", "large", "odd,large", "-") for line in lines) and len(lines) == 120


def test_parts_and_validation_are_tables_of_their_own(dl4j: Any, rows: list[tuple[str, str]]) -> None:
    Path("photos/list.csv").unlink()
    write_list("photos/train.csv", rows[::2])
    write_list("photos/test.csv", rows[1::2])
    source = load("photos", reading=Reading(images=reader()))
    assert (len(source.train), len(source.test), source.label_names) == (60, 60, tuple("0123456789"))
    write_list("photos/others.csv", rows[:40])
    options = ("--validation", "photos/others.csv", "--metric", "accuracy")
    report = dl4j.json("train", "photos/train.csv", *LIST, *SHORT, *options)
    assert report["validation"]["examples"] == 40
    Path("photos/others.csv").unlink()
    write_list("photos/test.csv", rows[:3])
    with pytest.raises(DataError, match=r"test\.csv, line 2, .* is listed already in .*train\.csv, line 2, column"):
        load("photos", reading=Reading(images=reader()))


def test_the_label_is_the_last_other_column_and_what_is_not_learned_is_said(
    rows: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    write_list("photos/wide.csv", [("x", kind, name) for name, kind in rows], "owner,kind,file")
    with caplog.at_level(logging.WARNING):
        found = image_schema(Path("photos/wide.csv"), "file")
    assert found.label == "kind" and [column.name for column in found.columns] == ["file", "kind"]
    assert "ignored columns, since images are learned: owner" in caplog.text
    assert image_schema(Path("photos/wide.csv"), "-1", label="1").label_columns == ("owner",)


HEAD = "photos/list.csv, line 2, column 'file' (1): "


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("0/missing.png", "there is no image '0/missing.png' (photos/0/missing.png)"),
        ("0/0000", "there is no image '0/0000' (photos/0/0000); did you mean '0000.png'?"),
        ("nowhere/1.png", "there is no image 'nowhere/1.png' (photos/nowhere/1.png); there is no folder"),
        ("0", "there is no image '0' (photos/0)"),
        ("/etc/a.png", "image '/etc/a.png' is not in the table's folder, photos, or below it"),
        ("../a.png", "image '../a.png' is not in the table's folder"),
        ("0/../../a.png", "image '0/../../a.png' is not in the table's folder"),
        ("", "the cell has no value; name the row's image there, or leave the row out"),
        ("?", "the cell has no value"),
        ("0/cut.png", "image photos/0/cut.png is truncated or damaged"),
        ("list.csv", "photos/list.csv is no image that can be read"),
        ("1/../1/0001.png", "image 'photos/1/0001.png' is listed already in photos/list.csv, line"),
    ],
)
def test_a_cell_that_names_no_image_is_named(dl4j: Any, rows: list[tuple[str, str]], cell: str, said: str) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (64, 64)).astype(np.uint8)
    Image.fromarray(noise).save("photos/0/cut.png")
    Path("photos/0/cut.png").write_bytes(Path("photos/0/cut.png").read_bytes()[:2000])
    write_list("photos/list.csv", [(cell, "0"), *rows[1:]])
    message = dl4j("train", "photos/list.csv", *LIST, *SHORT, fails=3).replace(str(Path.cwd()) + "/", "")
    if "listed already" in said:
        assert said in message and ": image" in message
    else:
        assert HEAD + said in message


def test_what_is_wrong_with_a_list_is_said(dl4j: Any, rows: list[tuple[str, str]]) -> None:
    train = ("train", "photos/list.csv")
    assert "has no column 'image'; known: file, kind" in dl4j(*train, "--images", "image", *SHORT, fails=3)
    assert "has no column 'sort'" in dl4j(*train, "--images", "file", "--label", "sort", fails=3)
    assert "column 'file' names the images, and cannot be their label" in dl4j(
        *train, "--images", "file", "--label", "file", fails=3
    )
    turned = dl4j(*train, "--images", "kind", "--label", "file", fails=3)
    assert "line 2, column 'kind' (2): there is no image '0'" in turned
    assert "regression" in dl4j(*train, *LIST, "--regression", "--multi-label", fails=3)
    assert "data set 'iris' is no table" in dl4j("train", "--dataset", "iris", *LIST, fails=3)
    assert "https://host/list.csv is not on this machine" in dl4j("train", "https://host/list.csv", *LIST, fails=3)
    write_list("photos/list.csv", [*rows, ("0/copy.png", "dog")])
    Path("photos/0/copy.png").write_bytes(Path("photos", rows[0][0]).read_bytes())
    assert "line 122, column 'kind' (2): label 'dog' occurs once" in dl4j(*train, *LIST, fails=3)
    Path("photos/bare.csv").write_text("\n".join(f"{name},{kind}" for name, kind in rows), encoding="utf-8")
    Path("photos/words.csv").write_text("\n".join(f"{name},k{kind}" for name, kind in rows), encoding="utf-8")
    assert "words.csv has no header: its first row has '0/0000.png'" in dl4j(
        "train", "photos/words.csv", "--images", "1", fails=3
    )
    assert dl4j("train", "photos/bare.csv", "--images", "1", *SHORT)  # a row with a number is none of names
    Path("photos/points.svm").write_text("1 1:2\n", encoding="utf-8")
    assert "points.svm is an SVMLight file" in dl4j("train", "photos/points.svm", *LIST, fails=3)


def test_a_list_is_inspected_and_its_schema_is_that_of_training(dl4j: Any, rows: list[tuple[str, str]]) -> None:
    shown = dl4j("data", "inspect", "photos/list.csv", "--images", "file", "--out", "schema.json")
    assert "label        kind, 10 classes: " in shown and "standardize" not in shown
    found = dl4j.json("data", "inspect", "photos/list.csv", *LIST)
    assert found["label"] == "kind" and found["schema"] == json.loads(Path("schema.json").read_text(encoding="utf-8"))
    given = sha(dl4j, "photos/list.csv", "--images", "file", "--schema", "schema.json", *SHORT)
    assert given == sha(dl4j, "photos/list.csv", *LIST, *SHORT)


def test_what_is_wrong_with_a_list_is_counted_and_shown(dl4j: Any, rows: list[tuple[str, str]]) -> None:
    assert "120 rows, 0 kinds of problems" in dl4j("data", "validate", "photos/list.csv", *LIST)
    Path("photos/0/copy.png").write_bytes(Path("photos", rows[0][0]).read_bytes())
    Path("photos/0/cut.png").write_bytes(Path("photos", rows[0][0]).read_bytes()[:60])
    Image.new("RGB", (9, 8), (250, 0, 0)).save("photos/red.png")
    wrong = ["0/none.png", "../a.png", "", rows[0][0], "0/copy.png", "0/cut.png", "red.png"]
    write_list("photos/list.csv", [*rows, *((name, "1") for name in wrong), ("0/other.png", "lone")])
    message = dl4j("data", "validate", "photos/list.csv", *LIST, fails=3)
    for what in (
        "cells that name no image, 4",
        "images that are listed twice, 1",
        "images that cannot be read, 1",
    ):
        assert what in message
    found = inspect_listed("photos/list.csv")
    counts = {problem.what: (problem.count, problem.is_refused) for problem in found}
    assert counts == {
        "cells that name no image": (4, True),
        "images that are listed twice": (1, True),
        "images that cannot be read": (1, True),
        "images that are there twice": (1, False),
        "images of another size than 8x8 (--image-size makes them alike)": (1, True),
        "images with colours among gray ones": (1, False),
    }
    assert "line 122, column 'file' (1): there is no image '0/none.png'" in found[0].examples[0]
    Path("photos/list.csv").write_text("file,kind\n0/0000.png,0,1\n", encoding="utf-8")
    assert {problem.what for problem in inspect_listed("photos/list.csv")} == {"rows that cannot be read"}


def inspect_listed(path: str) -> tuple[Problem, ...]:
    words = TransformProcess(columns=(Column("file", "category"), Column("kind", "category")), label="kind")
    return problems_of_listed(Path(path), "file", words, {})


def test_a_schema_with_steps_is_refused(rows: list[tuple[str, str]]) -> None:
    named = TransformProcess.from_json('{"columns": [{"name": "file"}, {"name": "kind"}], "label": "kind"}')
    with pytest.raises(ConfError, match="its column 'file' names them, and is to be of type category"):
        load("photos/list.csv", reading=Reading(transform=named, images=reader()))
    words = (Column("file", "category"), Column("kind", "category"))
    given = msgspec.structs.replace(named, columns=words)
    assert load("photos/list.csv", reading=Reading(transform=given, images=reader())) is not None


def test_every_image_of_a_class_may_not_be_held_out(rows: list[tuple[str, str]]) -> None:
    kinds = ["rest"] * len(rows)
    for row in split_order(len(rows), 0.8, SPLIT_SEED)[1][:2]:
        kinds[row] = "rare"
    write_list("photos/list.csv", [(name, kind) for (name, _), kind in zip(rows, kinds, strict=True)])
    with pytest.raises(DataError, match=r"all 2 images of class 'rare' in .*list\.csv are held out"):
        load("photos/list.csv", reading=Reading(images=reader()))
