"""Columns in another order, with their names above them: a model finds them by these, in every kind of table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.cli import main
from dl4jlegacy.datasets import Reading, load
from dl4jlegacy.errors import DataError
from dl4jlegacy.models.model import TrainedModel, evaluate_model
from dl4jlegacy.models.prediction import rows_in
from dl4jlegacy.nn import DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, write_model
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.serving.answers import CSV, JSON, JSON_LINES, Limits, accepted, read_body
from dl4jlegacy.system.clock import Deadline
from tests.support.table_files import Table, csv_of, lines_of, write_table

ROWS = 40
DRAWN = np.random.default_rng(3)
TABLE: dict[str, list[Any]] = {
    "height": DRAWN.normal(0, 1, ROWS).round(3).tolist(),
    "width": DRAWN.normal(5, 1, ROWS).round(3).tolist(),
    "class": DRAWN.integers(0, 2, ROWS).tolist(),
    "depth": DRAWN.normal(-9, 1, ROWS).round(3).tolist(),
}
FEATURES = ("height", "width", "depth")
ORDERS = (("depth", "class", "height", "width"), ("class", "width", "depth", "height"))

KINDS = ("t.csv", "t.tsv", "t.csv.gz", "t.jsonl", "t.parquet", "t.feather", "t.npz", "t.npy")


def arranged(names: tuple[str, ...]) -> Table:
    return {name: TABLE.get(name, list(range(ROWS))) for name in names}


def model_of(path: Path) -> TrainedModel:
    """A model of that table, written and read again; what it answers depends on the order of its columns."""
    source = load(path)
    layers = (DenseLayer(n_in=3, n_out=5, activation="tanh"), OutputLayer(n_out=2, activation="softmax"))
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=5), layers=layers))
    place = path.parent / "m.zip"
    write_model(network, place, label_names=source.label_names, reading=Reading(header=source.reading.header))
    return load_model(place)


def answers(model: TrainedModel, path: Path) -> list[Any]:
    return np.concatenate([model.answer(rows) for rows in rows_in(model, str(path))[0]]).tolist()


def scores(model: TrainedModel, path: Path) -> Any:
    found = evaluate_model(model, str(path), split="all")[1]
    return {name: found[name] for name in found if name != "dataset"}


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_and_predict_find_columns_by_their_names(kind: str, tmp_path: Path, caplog: Any) -> None:
    write_table(tmp_path / kind, TABLE)
    model, place = model_of(tmp_path / kind), tmp_path / f"other-{kind}"
    assert model.reading.header is not None and model.reading.header.features == FEATURES
    wanted, counted = answers(model, tmp_path / kind), scores(model, tmp_path / kind)
    for order in ORDERS:
        write_table(place, arranged(order))
        assert answers(model, place) == wanted and scores(model, place) == counted
    write_table(place, arranged(("depth", "height", "width")))
    assert answers(model, place) == wanted and not caplog.messages
    write_table(place, arranged(("colour", "depth", "height", "class", "width")))
    assert answers(model, place) == wanted and scores(model, place) == counted
    said = f"{place}: columns that the model does not know are left out: 'colour'"
    assert set(caplog.messages) == {said}
    write_table(place, arranged(("depth", "class", "height")))
    with pytest.raises(DataError, match=rf"other-{kind} has no column 'width'"):
        answers(model, place)
    with pytest.raises(DataError, match=rf"other-{kind} has no column 'width'"):
        scores(model, place)
    write_table(place, arranged(("depth", "width", "height")))
    with pytest.raises(DataError, match=rf"other-{kind} has no column 'class'"):
        scores(model, place)


@pytest.mark.parametrize("names", [("1", "2", "3"), ("", "b", "c"), ("a", "", "c"), ("2020", "b", " c")], ids=repr)
@pytest.mark.parametrize("kind", ["t.csv", "t.jsonl", "t.parquet", "t.feather"])
def test_numbers_and_one_empty_name_are_names_too(kind: str, names: tuple[str, ...], tmp_path: Path) -> None:
    stored = dict(zip((*names, "class"), [TABLE[name] for name in (*FEATURES, "class")], strict=True))
    write_table(tmp_path / kind, stored)
    model, place = model_of(tmp_path / kind), tmp_path / f"other-{kind}"
    wanted, counted = answers(model, tmp_path / kind), scores(model, tmp_path / kind)
    for order in ((2, 3, 1, 0), (3, 1, 0, 2)):
        write_table(place, {list(stored)[column]: list(stored.values())[column] for column in order})
        assert answers(model, place) == wanted and scores(model, place) == counted


def test_two_columns_without_a_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,,,class\n" + "1,2,3,x\n4,5,6,y\n" * 9)
    with pytest.raises(DataError, match="column '' is there twice in the header; name each differently"):
        load(tmp_path / "t.csv")


def test_a_table_without_names_goes_by_position(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", TABLE)
    model, bare = model_of(tmp_path / "t.csv"), tmp_path / "bare.csv"
    wanted = answers(model, tmp_path / "t.csv")
    for names in (tuple(TABLE), FEATURES):  # as in the file of the training, and without its label
        bare.write_text(csv_of(arranged(names), names=False))
        assert answers(model, bare) == wanted
    bare.write_text(csv_of(TABLE, names=False))
    assert scores(model, bare) == scores(model, tmp_path / "t.csv")
    np.save(tmp_path / "bare.npy", np.stack([TABLE[name] for name in FEATURES], axis=1))
    assert answers(model, tmp_path / "bare.npy") == wanted
    bare.write_text(csv_of(arranged((*FEATURES, "class")), names=False))
    assert load(bare).reading.header is None


@pytest.mark.parametrize("kind", ["t.csv", "t.jsonl", "t.parquet", "t.npz"])
def test_the_files_of_a_data_set_may_differ_in_their_order(kind: str, tmp_path: Path) -> None:
    ending = kind[1:]
    for folder, orders in (("same", (tuple(TABLE),) * 2), ("mixed", (tuple(TABLE), ORDERS[0]))):
        for names in (("part-1", "part-2"), ("train", "test")):
            place = tmp_path / f"{folder}-{names[0]}"
            place.mkdir()
            for name, order in zip(names, orders, strict=True):
                write_table(place / f"{name}{ending}", arranged(order))
    for first in ("part-1", "train"):
        same, mixed = load(tmp_path / f"same-{first}"), load(tmp_path / f"mixed-{first}")
        assert same.train == mixed.train and same.test == mixed.test


def test_a_server_finds_columns_by_their_names(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", TABLE)
    model, wanted = model_of(tmp_path / "t.csv"), np.stack([TABLE[name] for name in FEATURES], axis=1)

    def body(kind: str, text: str) -> list[Any]:
        blocks = list(read_body(model, kind, text.encode(), Limits(), Deadline(60)))
        return np.concatenate(blocks).tolist()

    assert JSON_LINES in accepted(model)
    other = arranged(("depth", "extra", "class", "height", "width"))
    objects = [dict(zip(other, row, strict=True)) for row in zip(*other.values(), strict=True)]
    rows = wanted.astype(np.float32).tolist()
    assert body(JSON, json.dumps({"rows": objects})) == rows
    assert body(JSON, json.dumps({"rows": wanted.tolist()})) == rows
    assert body(JSON_LINES, lines_of(other)) == rows and body(CSV, csv_of(other)) == rows


def sequences(folder: Path, *, mixed: bool, extra: bool = False) -> Path:
    folder.mkdir()
    for number in range(6):
        clouds = [[step, round(0.3 * number - step, 2), "wet" if (number + step) % 3 else "dry"] for step in range(4)]
        order = (1, 2, 0) if mixed and number % 2 else (0, 1, 2)
        rows = [["hour", "clouds", "rain"], *clouds]
        more = [["wind"], *([7] for _ in clouds)] if extra else [[] for _ in rows]
        text = "\n".join(
            ",".join(map(str, [*end, *(row[i] for i in order)])) for row, end in zip(rows, more, strict=True)
        )
        (folder / f"{number}.csv").write_text(text + "\n")
    return folder


def test_sequences_find_columns_by_their_names(tmp_path: Path, capsys: Any) -> None:
    same, mixed = sequences(tmp_path / "same", mixed=False), sequences(tmp_path / "mixed", mixed=True)
    more = sequences(tmp_path / "more", mixed=True, extra=True)

    def dl4j(*words: object, fails: int = 0) -> str:
        with pytest.raises(SystemExit) as leave:
            main.main([*map(str, words)])
        said = capsys.readouterr()
        assert (leave.value.code or 0) == fails
        return str(said.err if fails else said.out)

    options = ("--sequences", "--label", "rain", "--epochs", 1, "--workers", 1, "--format", "json")
    trained = [
        json.loads(dl4j("train", folder, *options, "--out", tmp_path / f"{folder.name}.zip"))["params_sha256"]
        for folder in (same, mixed)
    ]
    assert trained[0] == trained[1]
    model = tmp_path / "same.zip"
    found = [
        json.loads(dl4j("evaluate", model, "--dataset", folder, "--split", "all", "--format", "json"))
        for folder in (same, mixed, more)
    ]
    assert [fields.pop("dataset") for fields in found] and found[0] == found[1] == found[2]
    probabilities = [
        json.loads(dl4j("predict", model, folder, "--format", "json"))["probabilities"]
        for folder in (same, mixed, more)
    ]
    assert probabilities[0] == probabilities[1] == probabilities[2]
    (mixed / "3.csv").write_text((mixed / "3.csv").read_text().replace("clouds", "cloud"))
    for words in (("evaluate", model, "--dataset", mixed), ("predict", model, mixed), ("train", mixed, *options)):
        assert "3.csv has no column 'clouds'" in dl4j(*words, fails=3)
    assert "has a column 'wind'" in dl4j("train", more_in(tmp_path, same), *options, fails=3)


def more_in(place: Path, same: Path) -> Path:
    """The folder with one file that has a column more than its first one."""
    (same / "4.csv").write_text((place / "more" / "4.csv").read_text())
    return same
