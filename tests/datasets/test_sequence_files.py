"""CsvSequenceDataSetIterator: sequences in files of any length, their labels, masks, and what is wrong with them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, Conf
from dl4jlegacy.datasets import CsvSequenceDataSetIterator, NormalizerStandardize
from dl4jlegacy.datasets.exported import ExportedDataSetIterator, export
from dl4jlegacy.errors import DataError
from dl4jlegacy.nn import LSTM, NeuralNetConfiguration, RnnOutputLayer
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.training.prepare import params_sha256

STEPS = (5, 2, 7)


def written(folder: Path, **contents: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / f"{name}.csv").write_text(content)
    return folder


def table(*rows: Any) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Three sequences with two columns and a word: whether their first number has grown."""
    rng = np.random.default_rng(1)
    for number, steps in zip((1, 9, 10), STEPS, strict=True):
        values = rng.normal(size=(steps, 2)).round(3)
        rows = [(*values[t], "up" if t and values[t, 0] > values[t - 1, 0] else "down") for t in range(steps)]
        written(tmp_path / "d", **{f"s{number}": "a,b,move\n" + table(*rows)})
    return tmp_path / "d"


def test_sequences_are_padded_to_the_longest_and_masked(labelled: Path) -> None:
    """In the order of the numbers in the files' names."""
    data = CsvSequenceDataSetIterator(labelled, 3, label="move", skip_lines=1, shuffle=False)
    assert (data.total_examples, data.total_batches, data.input_columns, data.total_outcomes) == (3, 1, 2, 2)
    assert data.label_names == ("down", "up")
    batch = data.batch(0, 0)
    assert batch.features.shape == (3, 2, 7) and batch.labels.shape == (3, 2, 7)
    assert batch.features.dtype == np.float32
    wanted_mask = [[1.0] * steps + [0.0] * (7 - steps) for steps in STEPS]
    assert batch.features_mask is not None and batch.labels_mask is not None
    assert batch.features_mask.tolist() == batch.labels_mask.tolist() == wanted_mask
    for number, name in enumerate(("s1", "s9", "s10")):
        rows = [line.split(",") for line in (labelled / f"{name}.csv").read_text().splitlines()[1:]]
        found = batch.features[number, :, : len(rows)].T
        assert found.tolist() == np.array([row[:2] for row in rows], dtype=np.float32).tolist()
        words = [data.label_names[place] for place in batch.labels[number, :, : len(rows)].argmax(axis=0)]
        assert words == [row[2] for row in rows]
        assert not batch.features[number, :, len(rows) :].any() and not batch.labels[number, :, len(rows) :].any()


def test_a_batch_of_one_length_needs_no_mask_and_every_epoch_has_its_order(labelled: Path) -> None:
    data = CsvSequenceDataSetIterator(labelled, 1, label=-1, skip_lines=1, seed=4)
    lengths = [[data.batch(epoch, index).features.shape[2] for index in range(3)] for epoch in range(6)]
    assert all(sorted(found) == sorted(STEPS) for found in lengths) and len(set(map(tuple, lengths))) > 1
    assert data.batch(0, 0).features_mask is None and data.batch(0, 0).labels_mask is None
    again = CsvSequenceDataSetIterator(labelled, 1, label=-1, skip_lines=1, seed=4)
    assert again.batch(3, 1).features.tobytes() == data.batch(3, 1).features.tobytes()


@pytest.mark.parametrize(("align", "places"), [("start", [[0], [0, 1]]), ("end", [[2], [0, 1]])], ids=["start", "end"])
def test_shorter_labels_begin_or_end_with_their_sequence(tmp_path: Path, align: Any, places: list[list[int]]) -> None:
    features = written(tmp_path / "f", a=table((1, 2), (3, 4), (5, 6)), b=table((7, 8), (9, 10)))
    labels = written(tmp_path / "l", a=table([1]), b=table([0], [2]))
    data = CsvSequenceDataSetIterator(features, 2, labels=labels, align=align, shuffle=False)
    assert data.label_names == ("0", "1", "2")
    batch = data.batch(0, 0)
    assert batch.labels_mask is not None and batch.features_mask is not None
    assert [np.flatnonzero(row).tolist() for row in batch.labels_mask] == places
    assert [batch.labels[0, :, places[0][0]].tolist()] == [[0.0, 1.0, 0.0]]
    assert batch.features_mask.tolist() == [[1, 1, 1], [1, 1, 0]]


def test_labels_that_are_longer_move_the_features_to_the_end(tmp_path: Path) -> None:
    features = written(tmp_path / "f", a=table((1, 2)))
    labels = written(tmp_path / "l", a=table([0], [1], [1]))
    batch = CsvSequenceDataSetIterator(features, 1, labels=labels, align="end").batch(0, 0)
    assert batch.features[0].tolist() == [[0, 0, 1], [0, 0, 2]]
    assert batch.features_mask is not None and batch.features_mask.tolist() == [[0, 0, 1]]
    assert batch.labels_mask is None


def test_amounts_of_several_columns_and_files_in_their_order_and_gzipped(tmp_path: Path) -> None:
    written(tmp_path, y1=table((0.5, -1)), y2=table((2, 3)))
    for name, value in (("x1", "1;2"), ("x2", "3;4")):
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(value.encode()))
    paths = [tmp_path / "x2.csv.gz", tmp_path / "x1.csv.gz"]
    of_labels = [tmp_path / "y2.csv", tmp_path / "y1.csv"]
    data = CsvSequenceDataSetIterator(paths, 2, labels=of_labels, regression=True, shuffle=False)
    assert data.batch(0, 0).features.tolist() == [[[3], [4]], [[1], [2]]]
    assert data.batch(0, 0).labels.tolist() == [[[2], [3]], [[0.5], [-1]]]
    assert data.label_names == ()


def test_the_classes_of_the_training_data_are_those_of_the_test_data(labelled: Path, tmp_path: Path) -> None:
    few = written(tmp_path / "t", s=table((1, 2, "up")))
    test = CsvSequenceDataSetIterator(few, 1, label=2, label_names=("down", "up"))
    assert test.batch(0, 0).labels.tolist() == [[[0], [1]]]
    scaled = NormalizerStandardize().fit(CsvSequenceDataSetIterator(labelled, 2, label=2, skip_lines=1))
    given = {"label_names": ("down", "up"), "pre_processor": scaled.transform}
    assert np.allclose(
        CsvSequenceDataSetIterator(few, 1, label=2, **given).batch(0, 0).features[0, :, 0],
        (np.array([1, 2]) - scaled.mean) / scaled.std,
    )


def test_without_labels_there_are_none(labelled: Path, tmp_path: Path) -> None:
    data = CsvSequenceDataSetIterator(written(tmp_path / "x", a=table((1, 2), (3, 4))), 1)
    assert (data.total_outcomes, data.batch(0, 0).labels.size) == (0, 0)


def test_the_same_bits_for_any_number_of_workers_and_from_exported_batches(tmp_path: Path) -> None:
    """A sequence whose numbers have an odd sum so far is another class; it is learned."""
    rng = np.random.default_rng(2)
    for number in range(40):
        bits = rng.integers(0, 2, rng.integers(3, 9))
        rows = [(bit, 1 - bit, ones % 2) for bit, ones in zip(bits, bits.cumsum(), strict=True)]
        written(tmp_path / "d", **{str(number): table(*rows)})
    data = CsvSequenceDataSetIterator(tmp_path / "d", 8, label=2, shuffle=False)  # as exported ones
    layers = (LSTM(n_in=2, n_out=12), RnnOutputLayer(n_out=2, activation="softmax", loss="mcxent"))
    network = MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=3, activation="tanh"), layers=layers)

    def trained(workers: int, source: Any) -> tuple[str, float]:
        with ActorNetworkRunner("master", source) as runner:
            runner.setup(Conf(multi_layer_conf=network, epochs=4, workers=workers, jobs_per_round=2))
            result = runner.train(deadline=120)
            assert result is not None and result.batches_lost == result.batches_duplicated == 0
            found = runner.network(result)
            return params_sha256(found.params), float(found.score(data.batch(0, 0)))

    found = [trained(workers, data) for workers in (1, 2, 3)]
    export(data, tmp_path / "exported")
    found.append(trained(2, ExportedDataSetIterator.open(tmp_path / "exported")))
    assert len({bits for bits, _ in found}) == 1
    untrained = MultiLayerNetwork(network)
    untrained.init()
    assert found[0][1] < float(untrained.score(data.batch(0, 0)))


ROW = table((1, 2, 0))
WRONG: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "no files": ({}, {}, "has no files of sequences"),
    "ragged": ({"a": ROW, "b": table((1, 2, 0), (1, 0))}, {}, "b.csv, line 2 has 2 columns, and the first file 3"),
    "word": ({"a": table((1, "x", 0))}, {}, "a.csv, line 1, value 2 is 'x', not a finite number"),
    "header": ({"a": table("pqr") + ROW}, {}, "a.csv, line 1, value 1 is 'p'"),
    "nan": ({"a": table((1, "nan", 0))}, {}, "value 2 is 'nan'"),
    "too large": ({"a": table((1, "1e99", 0))}, {}, "value 2 is '1e99'"),
    "python's number": ({"a": table((1, "1_0", 0))}, {}, "value 2 is '1_0'"),
    "gap": ({"a": table((1, "", 0))}, {}, "value 2 is ''"),
    "no label": ({"a": table((1, 2, ""))}, {}, "a.csv, line 1 has no label"),
    "empty": ({"a": "", "b": ROW}, {}, "a.csv has no time steps"),
    "all skipped": ({"a": ROW}, {"skip_lines": 1}, "a.csv has no time steps: 1 row, of which 1 are skipped"),
    "no such column": ({"a": ROW}, {"label": 3}, "has 3 columns, and the label was to be column 3"),
    "no such name": ({"a": "x,y,move\n" + ROW}, {"label": "moves", "skip_lines": 1}, "no column 'moves'; did you mean"),
    "name without a line": ({"a": ROW}, {"label": "move"}, "give skip_lines=1"),
    "label alone": ({"a": table([1])}, {"label": 0}, "one column only, the label"),
    "unknown class": ({"a": ROW}, {"label_names": ("up", "down")}, "a.csv, line 1: class '0' is none of up, down"),
    "amounts as classes": ({"a": table(*((1, 2, 7 * i) for i in range(201)))}, {}, "201 different numbers"),
    "amounts with a point": ({"a": table((1, 2, 0.5))}, {}, "class '0.5' is no whole number"),
    "no classes": ({"a": ROW}, {"label_names": ()}, "label_names are (); expected the names of all classes"),
    "a class twice": ({"a": ROW}, {"label_names": ("0", "0")}, "each once"),
    "classes of amounts": ({"a": ROW}, {"label_names": ("0",), "regression": True}, "says that labels are amounts"),
    "step of gaps": ({"a": ROW + ",,\n" + ROW}, {}, "a.csv, line 2 is empty, and rows follow"),
    "empty line": ({"a": ROW + "\n" + ROW}, {}, "a.csv, line 2 is empty, and rows follow"),
    "both kinds of labels": ({"a": ROW}, {"labels": "l"}, "give one of the two"),
    "alignment": ({"a": ROW}, {"align": "ends"}, "did you mean 'end'?"),
    "skip": ({"a": ROW}, {"skip_lines": -1}, "skip_lines is -1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    contents, given, words = WRONG[case]
    with pytest.raises(DataError) as caught:
        CsvSequenceDataSetIterator(written(tmp_path / "d", **contents), 1, **{"label": 2, **given})
    assert words in str(caught.value)


LABELS: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "none for a file": (lambda path: written(path, b="0\n"), {}, "has no labels for"),
    "other length": (lambda path: written(path, a="0\n1\n"), {}, "has 2 rows of labels, and"),
    "several columns": (lambda path: written(path, a="0,1\n"), {}, "a.csv, line 1 has 2 columns of labels"),
    "ragged": (lambda path: written(path, a="0,1\n0\n"), {"regression": True}, "line 2 has 1 column, and the first"),
    "not as many": (lambda path: [written(path, a="0\n") / "a.csv"] * 2, {}, "1 file of features and 2 of labels"),
    "not there": (lambda path: [path / "c.csv"], {}, "cannot read"),
    "no folder": (lambda path: path, {}, "cannot read the folder"),
}


@pytest.mark.parametrize("case", LABELS)
def test_what_is_wrong_with_files_of_labels_is_named(case: str, tmp_path: Path) -> None:
    labels, given, words = LABELS[case]
    features = written(tmp_path / "f", a=table((1, 2)))
    with pytest.raises(DataError) as caught:
        CsvSequenceDataSetIterator(features, 1, labels=labels(tmp_path / "l"), **given)
    assert words in str(caught.value)


def test_a_file_that_changes_is_noticed(labelled: Path) -> None:
    data = CsvSequenceDataSetIterator(labelled, 3, label=2, skip_lines=1)
    with (labelled / "s9.csv").open("a") as file:
        file.write("1,2,up\n")
    with pytest.raises(DataError, match=r"s9\.csv has changed since it was looked at first"):
        data.batch(0, 0)
    (labelled / "s9.csv").unlink()
    with pytest.raises(DataError, match=r"cannot read .*s9\.csv"):
        data.batch(0, 0)
