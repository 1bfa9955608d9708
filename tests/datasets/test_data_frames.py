"""Data frames given to a trained model: their columns are found by name, as those of a table's file are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dl4jlegacy import Conf, DataSet, load_model
from dl4jlegacy.cluster.inference_program import ClusterInference
from dl4jlegacy.datasets.dataset import frame_names
from dl4jlegacy.datasets.sparse_features import SparseFeatures
from dl4jlegacy.datasets.tables.data_frames import FrameColumns
from dl4jlegacy.errors import DataError, ShapeError
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.parallel_inference import ParallelInference
from dl4jlegacy.models.prediction import rows_in
from dl4jlegacy.nn import DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, write_model
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.serving.answers import JSON, NPY, Limits, RefusedError, read_body
from dl4jlegacy.sklearn import DL4JClassifier
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.training.run_data import load_new

ROWS = 48
DRAWN = np.random.default_rng(4)
FRAME = pd.DataFrame(
    {
        "height": DRAWN.normal(size=ROWS).round(3),
        "width": DRAWN.normal(3, 5, ROWS).round(3),
        "colour": DRAWN.choice(["red", "blue"], ROWS),
        "label": np.arange(ROWS) % 2,
    }
)
UNKNOWN = "the data frame: columns that the model does not know are left out: 'more'"


class Columns:
    """A data frame as Polars has it: a list of names, and columns that are sequences."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._columns = {name: frame[name].tolist() for name in frame.columns}
        self.columns, self.shape = list(frame.columns), frame.shape

    def __getitem__(self, name: str) -> Any:
        return np.array(self._columns[name])

    def __len__(self) -> int:
        return self.shape[0]


KINDS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas' own types": lambda frame: frame.convert_dtypes(),
    "Arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "Polars": Columns,
}
MODELS = ("plain", "schema")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainedModel]:
    """Models that learned from that table, of numbers alone and with words; what they answer depends on the order."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: model_of(folder, kind) for kind in MODELS}


def model_of(folder: Path, kind: str, *, encode: bool = False) -> TrainedModel:
    table = folder / f"{kind}.csv"
    table_of(kind).to_csv(table, index=False)
    source = load_new(Conf(dataset=str(table)), encode=encode)[1]
    layers = (
        DenseLayer(n_in=source.train.n_in, n_out=5, activation="tanh"),
        OutputLayer(n_out=2, activation="softmax"),
    )
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=5), layers=layers))
    place = folder / f"{kind}.zip"
    write_model(network, place, reading=source.reading.replace(normalizer=None))
    assert (source.reading.transform is None) == (kind == "plain" and not encode)
    return load_model(place)


def table_of(kind: str) -> pd.DataFrame:
    return FRAME.drop(columns="colour") if kind == "plain" else FRAME


def mixed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with its columns in another order, and one more."""
    return table[table.columns[::-1]].assign(more=np.arange(len(table)))


@pytest.mark.parametrize("frames", KINDS)
@pytest.mark.parametrize("kind", MODELS)
def test_columns_of_a_data_frame_are_found_by_their_names(
    kind: str, frames: str, models: dict[str, TrainedModel], tmp_path: Path, caplog: Any
) -> None:
    model, table = models[kind], table_of(kind)
    table.to_csv(tmp_path / "t.csv", index=False)
    wanted = model.output(np.concatenate(list(rows_in(model, str(tmp_path / "t.csv"))[0])))
    given = KINDS[frames](mixed(table))
    with caplog.at_level(logging.WARNING, "dl4jlegacy"):
        assert np.array_equal(model.output(given), wanted)
    assert caplog.messages == [UNKNOWN]
    assert np.array_equal(model.answer(given), wanted)
    assert np.array_equal(model.predict(given), wanted.argmax(axis=1))
    assert model.evaluate(given).accuracy() == (wanted.argmax(axis=1) == table["label"]).mean()
    with ParallelInference(model, batch_limit=8) as inference:
        assert np.array_equal(inference.output(given), wanted)
    cluster = ClusterInference(model, tracker="hazelcast://127.0.0.1:1", zookeeper="127.0.0.1:2", progress=False)
    assert np.array_equal(model.output(np.concatenate(list(cluster._blocks(given)))), wanted)


@pytest.mark.parametrize("kind", MODELS)
def test_a_column_that_a_data_frame_lacks_is_named(kind: str, models: dict[str, TrainedModel]) -> None:
    table = table_of(kind).drop(columns=["width", "label"])
    for call in (models[kind].output, models[kind].predict, models[kind].answer):
        with pytest.raises(DataError, match="the data frame has no column 'width'"):
            call(table.assign(breadth=1.0))
    with pytest.raises(DataError, match="the data frame has no column 'label'"):
        models[kind].evaluate(table_of(kind).drop(columns="label"))


def test_columns_of_one_name_are_refused_and_blanks_around_names_are_not_seen(models: dict[str, TrainedModel]) -> None:
    table = table_of("plain")
    twice = pd.concat([table, table["width"]], axis=1)
    with pytest.raises(DataError, match="column 'width' is there 2 times"):
        models["plain"].output(twice)
    assert np.array_equal(models["plain"].output(table.rename(columns=" {} ".format)), models["plain"].output(table))


def test_a_data_set_of_a_data_frame_keeps_its_names_through_batches(models: dict[str, TrainedModel]) -> None:
    model, table = models["plain"], table_of("plain")
    labels = np.eye(2, dtype=np.float32)[table["label"]]
    wanted = model.evaluate(DataSet(table[["height", "width"]].to_numpy(), labels)).stats()
    examples = DataSet(mixed(table).drop(columns="label"), labels)
    batches = list(examples.batch_by(7))
    assert model.evaluate(examples).stats() == model.evaluate(batches).stats() == wanted
    assert model.evaluate([DataSet.merge(batches)]).stats() == wanted
    assert np.array_equal(model.normalize(examples).features, table[["height", "width"]].to_numpy())
    of_classes = DataSet.of_classes(mixed(table), table["label"])
    assert model.evaluate(of_classes.take(np.arange(ROWS))).stats() == wanted


def test_what_has_no_names_goes_by_position(models: dict[str, TrainedModel]) -> None:
    model, rows = models["plain"], FRAME[["height", "width"]].to_numpy()
    wanted = model.output(rows)
    assert np.array_equal(model.output(pd.DataFrame(rows)), wanted)  # columns 0 and 1
    assert np.array_equal(model.output(pd.DataFrame(rows, columns=["0", "1"])), wanted)
    nameless = TrainedModel(model.network)
    assert np.array_equal(nameless.output(FRAME[["height", "width"]]), wanted)
    assert frame_names(rows) == frame_names(FRAME["height"]) == frame_names([[1.0]]) == ()
    assert frame_names(SparseFeatures(np.array([0, 1]), np.array([1]), np.array([1.0], np.float32), 3)) == ()
    with pytest.raises(DataError, match="does not know the names of its columns"):
        nameless.evaluate(FRAME)


def test_arrays_of_a_table_of_numbers_are_encoded_as_its_columns(tmp_path: Path) -> None:
    model, rows = model_of(tmp_path, "plain", encode=True), FRAME[["height", "width"]].to_numpy()
    wanted = model.output(FRAME)
    assert model.network.n_in > 2 and model.reading.transform is not None
    assert np.array_equal(model.output(rows), wanted) and np.array_equal(model.output(rows.tolist()), wanted)
    examples = DataSet(rows, np.eye(2, dtype=np.float32)[FRAME["label"]])
    assert model.evaluate(examples).stats() == model.evaluate(list(examples.batch_by(7))).stats()
    assert model.evaluate(examples).accuracy() == (wanted.argmax(axis=1) == FRAME["label"]).mean()
    made = model.examples_of(rows).features
    assert np.array_equal(model.output(made), wanted), "as the schema makes them"
    with pytest.raises(ShapeError, match="the given data has 3"):
        model.output(np.ones((2, 3)))
    np.save(tmp_path / "rows.npy", rows)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", fmt="%.17g")
    for name in ("rows.npy", "rows.csv"):
        assert np.array_equal(np.concatenate(list(rows_in(model, str(tmp_path / name))[0])), made)
    for media_type, body in (
        (JSON, json.dumps({"rows": rows.tolist()}).encode()),
        (JSON, json.dumps({"rows": FRAME[["width", "height"]].to_dict("records")}).encode()),
        (NPY, (tmp_path / "rows.npy").read_bytes()),
    ):
        found = read_body(model, media_type, body, Limits(), Deadline(10))
        assert np.array_equal(np.concatenate(list(found)), made)
    with pytest.raises(RefusedError, match="the body, line 1: 4 columns, and no header with any of the names"):
        list(read_body(model, JSON, b'{"rows": [[1, 2, 3, 4]]}', Limits(), Deadline(10)))
    words = model_of(tmp_path, "schema", encode=True)
    with pytest.raises(ShapeError, match="the given data has 3"):
        words.output(np.ones((2, 3)))


def test_a_cell_of_a_data_frame_that_is_no_number_is_named(models: dict[str, TrainedModel]) -> None:
    wrong = FRAME.assign(width=[*map(str, FRAME["width"][:-1]), "far"])
    for model in models.values():
        with pytest.raises(DataError, match=r"the data frame, row 48, column 'width' \(2\): 'far' is not a number"):
            model.output(wrong)
    with pytest.raises(DataError, match=r"the data frame, row 3, column 'height' \(1\): the cell has no value"):
        models["plain"].output(FRAME.assign(height=FRAME["height"].where(FRAME.index != 2)))


def test_cells_of_columns_of_words_are_what_they_are_in_a_csv_file() -> None:
    values: dict[str, Any] = {"whole": [1.0, np.nan, 3.0], "gap": ["a", None, pd.NA], "truth": [True, False, True]}
    values["day"] = pd.to_datetime(["2024-01-01", None, "2024-01-03"])
    frame = pd.DataFrame(values)
    read = FrameColumns.of("f", frame_names(frame), frame, set(values), set(values))
    assert {name: list(cells) for name, cells in read.columns.items()} == {
        "whole": ["1", "", "3"],
        "gap": ["a", "", ""],
        "truth": ["True", "False", "True"],
        "day": ["2024-01-01 00:00:00", "", "2024-01-03 00:00:00"],
    }
    assert [len(block["gap"]) for block in read.blocks(2)] == [2, 1]


def test_estimators_refuse_a_data_frame_with_its_columns_in_another_order() -> None:
    """As scikit-learn's own rule for estimators demands."""
    features = FRAME[["height", "width"]]
    fitted = DL4JClassifier(hidden_layer_sizes=(2,), epochs=1, random_state=0).fit(features, FRAME["label"])
    for wrong, named in ((features[["width", "height"]], "same order"), (features[["width"]], "height")):
        with pytest.raises(ValueError, match=named):
            fitted.predict_proba(wrong)
    with pytest.raises(ValueError, match="more"):
        fitted.predict(features.assign(more=1.0))
