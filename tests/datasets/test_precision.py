"""What float32 keeps of numbers: on every way into a network columns far from 0 are scaled in float64, or told."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas
import pytest

from dl4jlegacy import ListDataSetIterator, MultiLayerNetwork
from dl4jlegacy.datasets import (
    CsvDataSetIterator,
    CsvSequenceDataSetIterator,
    DataSet,
    DataSource,
    ExportedDataSetIterator,
    MapDataSetIterator,
    MultiDataSet,
    NormalizerMinMaxScaler,
    NormalizerStandardize,
    Reading,
    TransformProcess,
    export,
    load,
    read_csv,
)
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.datasets.tables import stored_tables
from dl4jlegacy.models.model import TrainedModel, evaluate_model
from dl4jlegacy.models.prediction import predict_alone, rows_in, texts_of
from dl4jlegacy.nn import DenseLayer, NeuralNetConfiguration, OutputLayer, write_onnx
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.serving.answers import CSV, JSON, NPY, Limits, read_body
from dl4jlegacy.sklearn import DL4JAutoEncoder, DL4JClassifier, DL4JRegressor
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.training.prediction_run import PredictionRun, Spool
from dl4jlegacy.training.run import resolve
from dl4jlegacy.training.run_data import load_data
from tests.support.table_files import write_table

ROWS = 320
STAMPS = 1_764_400_000_000 + np.random.default_rng(1).permutation(ROWS) * 37
"""Times in milliseconds, of twelve seconds: float32 knows the minute, and makes one of them."""
PLACES = 5_932_000.0 + np.random.default_rng(2).uniform(0, 1, ROWS).round(3)
"""Coordinates in metres, to the millimetre."""
NEAR = np.random.default_rng(3).normal(5, 2, ROWS).round(4)
CLASSES = np.arange(ROWS) % 2
TABLE = np.column_stack([STAMPS, PLACES, NEAR])
NAMES = ("stamp", "place", "near")


def scaled(column: Any) -> Any:
    """Return what ``NormalizerMinMaxScaler`` makes of all rows, in float64."""
    return (column - column.min()) / (column.max() - column.min())


def network(n_in: int = 3, n_out: int = 2, **output: Any) -> MultiLayerNetwork:
    last = OutputLayer(n_out=n_out, **{"activation": "softmax", "loss": "mcxent", **output})
    layers = (DenseLayer(n_in=n_in, n_out=4, activation="tanh"), last)
    return MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=1), layers=layers))


KINDS = ("csv", "jsonl", "parquet", "npz", "arrow")


def write_rows(folder: Path, kind: str = "csv") -> Path:
    columns = zip((*NAMES, "label"), (STAMPS, PLACES, NEAR, CLASSES), strict=True)
    return write_table(folder / f"rows.{kind}", {name: column.tolist() for name, column in columns})


def held_together(data: DataSource) -> tuple[Any, Any]:
    """Return the features of both parts, below each other, in the order of the rows; and those rows' numbers."""
    source = load_data(data.name, scale=False)
    x = np.concatenate([data.train.features, data.test.features])
    near = np.concatenate([source.train.features, source.test.features])[:, 2]
    return x, [int(np.argmin(np.abs(NEAR - value))) for value in near]


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i8", ">i8", "u8", "f8", ">f8", "g"])
@pytest.mark.parametrize("kind", [NormalizerStandardize, NormalizerMinMaxScaler])
@pytest.mark.parametrize("form", ["whole", "batches", "sequences"])
def test_arrays_are_scaled_as_in_float64(kind: Any, form: str, dtype: str) -> None:
    x, normalizer = STAMPS.astype(dtype)[:, None], kind()
    exact = STAMPS.astype(np.longdouble)
    wanted = (exact - exact.mean()) / exact.std() if kind is NormalizerStandardize else scaled(exact)
    given = DataSet(x.reshape(8, 1, -1) if form == "sequences" else x)
    normalizer.fit(list(given.batch_by(7)) if form == "batches" else given)
    found = np.concatenate([normalizer.transform(part).features.reshape(-1) for part in given.batch_by(1)])
    np.testing.assert_allclose(found, wanted.astype(float), rtol=0, atol=1e-7)
    restored = normalizer.revert(normalizer.transform(given)).features
    np.testing.assert_allclose(restored.reshape(-1), STAMPS, rtol=0, atol=0.01)


@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i4", "i8", "u8", "f2", ">f4"])
def test_numbers_that_float32_holds_are_kept_as_that(dtype: str) -> None:
    assert DataSet(np.arange(6).reshape(3, 2).astype(dtype)).features.dtype == np.float32


def test_labels_that_float32_would_change_make_the_data_set_float64() -> None:
    data = DataSet(NEAR[:, None].astype("f4"), STAMPS[:, None])
    assert data.features.dtype == data.labels.dtype == np.float64
    np.testing.assert_array_equal(data.labels[:, 0], STAMPS)
    assert MultiDataSet([NEAR[:, None].astype("f4")], [STAMPS[:, None]]).labels[0].dtype == np.float64


def test_whole_numbers_that_float64_makes_equal_are_told(caplog: pytest.LogCaptureFixture) -> None:
    DataSet((2**60 + np.arange(300))[:, None])
    assert "column 0 (from 0)" in caplog.text and "of 300 different values 2 remain" in caplog.text


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_scaled_before_they_are_rounded(kind: str, tmp_path: Path) -> None:
    path = write_rows(tmp_path, kind)
    data = load_data(str(path))
    x, rows = held_together(data)
    assert x.dtype == np.float32
    low, high = data.reading.normalizer.min, data.reading.normalizer.max  # type: ignore[union-attr]
    for column in (0, 1):
        np.testing.assert_allclose(x[:, column], (TABLE[rows, column] - low[column]) / (high - low)[column], atol=1e-7)
    rounded = NEAR.astype("f4").astype(float)[rows]  # as ever: nothing is lost there
    scale = 1.0 / (high[2] - low[2])
    np.testing.assert_array_equal(x[:, 2], (rounded * scale + (0.0 - low[2] * scale)).astype("f4"))


def test_two_files_are_rounded_by_the_columns_of_the_training_file(tmp_path: Path) -> None:
    line = "\n".join(f"{stamp},{c}" for stamp, c in zip(STAMPS, CLASSES, strict=True))
    (tmp_path / "train.csv").write_text(line)
    (tmp_path / "test.csv").write_text(f"{STAMPS[7]},1\n{STAMPS[7]},0\n")  # which alone spreads over nothing
    data = load_data(str(tmp_path))
    assert data.test.features[0, 0] == data.train.features[7, 0]


def test_what_reads_a_file_keeps_such_columns(tmp_path: Path) -> None:
    path = write_rows(tmp_path)
    for found in (read_csv(path)[0], CsvDataSetIterator(ROWS, path, shuffle=False).batch(0, 0), load(path).train):
        assert found.features.dtype == np.float64
        assert set(found.features[:, 0]) <= set(STAMPS) and set(found.features[:, 1]) <= set(PLACES)
        assert set(found.features[:, 2]) <= set(NEAR.astype("f4").astype(float))
    near = tmp_path / "near.csv"
    near.write_text("".join(f"{n},{c}\n" for n, c in zip(NEAR, CLASSES, strict=True)))
    assert read_csv(near)[0].features.dtype == load(near).train.features.dtype == np.float32


def write_sequences(folder: Path) -> Path:
    for number in range(8):
        rows = slice(number * 40, number * 40 + 40 - number)
        lines = [f"{s},{n},{c}" for s, n, c in zip(STAMPS[rows], NEAR[rows], CLASSES[rows], strict=True)]
        (folder / f"{number}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_sequences_are_scaled_before_they_are_rounded(tmp_path: Path) -> None:
    folder = write_sequences(tmp_path)
    data = load_data(str(folder), reading=Reading(sequences=SequenceRecordReader()))
    found = {float(x) for x in data.train.features[:, 0][data.train.features_mask > 0]}  # type: ignore[operator]
    assert len(found) == int(data.train.features_mask.sum())  # type: ignore[union-attr]
    batches = CsvSequenceDataSetIterator(folder, 1, label=-1, shuffle=False)
    assert {batch.features.dtype for batch in batches} == {np.dtype(np.float64)}
    reader, normalizer = data.reading.sequences, data.reading.normalizer
    assert reader is not None and normalizer is not None
    model = TrainedModel(network(), Reading(normalizer=normalizer, sequences=reader))
    alone = model.normalize(DataSet(model.rows_as_read(reader.features(folder / "0.csv")))).features
    learned = [x[:, :40] for x in np.concatenate([data.train.features, data.test.features])]
    assert any(np.array_equal(alone[0].astype("f4"), x) for x in learned)


class Rows:
    """A data set of rows of columns, as Hugging Face's, of Python's numbers."""

    features: Any = None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"stamp": int(STAMPS[number]), "place": float(PLACES[number]), "label": [0.0, 1.0]}


@pytest.mark.parametrize("batch_size", [1, 32])
def test_data_sets_that_give_examples_keep_them_to_be_scaled(batch_size: int) -> None:
    batches = MapDataSetIterator(Rows(), batch_size, shuffle=False)
    normalizer = NormalizerMinMaxScaler().fit(batches)
    x = np.concatenate([normalizer.transform(batch).features for batch in batches])
    np.testing.assert_allclose(x, np.column_stack([scaled(STAMPS), scaled(PLACES)]), atol=1e-7)


# -- the same scaling afterwards ---------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path: Path) -> tuple[TrainedModel, Path]:
    path = write_rows(tmp_path)
    data = load_data(str(path))
    used = network()
    used.set_params(np.random.default_rng(4).normal(0, 3, used.num_params).astype(np.float32))
    return TrainedModel(used, Reading(normalizer=data.reading.normalizer, label_names=("0", "1")), name="m"), path


def wanted(model: TrainedModel) -> Any:
    normalizer: Any = model.reading.normalizer
    x = (TABLE - normalizer.min) / (normalizer.max - normalizer.min)
    return model.network.output(x.astype("f4"))


def test_rows_are_predicted_alone_as_together_and_as_in_training(
    trained: tuple[TrainedModel, Path], tmp_path: Path
) -> None:
    model, path = trained
    together = np.concatenate([model.answer(rows) for rows in rows_in(model, str(_without_label(path)))[0]])
    np.testing.assert_allclose(together, wanted(model), atol=1e-5)
    assert len(np.unique(together[:, 0])) > 250
    alone = tmp_path / "one.csv"
    alone.write_text("stamp,place,near\n" + ",".join(map(repr, TABLE[5].tolist())) + "\n")
    [block] = rows_in(model, str(alone))[0]
    np.testing.assert_allclose(model.answer(block)[0], wanted(model)[5], atol=1e-5)
    evaluation, _ = evaluate_model(model, str(path), split="all")
    right = wanted(model).argmax(axis=1) == CLASSES
    assert evaluation.classification is not None
    assert evaluation.classification.accuracy() == pytest.approx(right.mean(), abs=0.01)


def _without_label(path: Path) -> Path:
    copy = path.with_name("unlabelled.csv")
    copy.write_text("".join(line.rpartition(",")[0] + "\n" for line in path.read_text().splitlines()))
    return copy


@pytest.mark.parametrize("media", [CSV, JSON, NPY])
def test_what_is_asked_of_a_served_model_is_scaled_so(trained: tuple[TrainedModel, Path], media: str) -> None:
    model, _ = trained
    content = io.BytesIO()
    np.save(content, TABLE[5:6])
    body = {
        CSV: ",".join(map(repr, TABLE[5].tolist())).encode(),
        JSON: json.dumps({"rows": [TABLE[5].tolist()]}).encode(),
        NPY: content.getvalue(),
    }[media]
    [block] = read_body(model, media, body, Limits(), Deadline(60))
    np.testing.assert_allclose(model.answer(block)[0], wanted(model)[5], atol=1e-5)


def test_a_cluster_is_given_what_is_scaled_so(trained: tuple[TrainedModel, Path], tmp_path: Path) -> None:
    model, path = trained
    spool = Spool(rows_in(model, str(_without_label(path)))[0])
    try:
        run = PredictionRun(model, spool)
        found = list(run.predicted(lambda: run.perform(run.resolve(Conf(), workers=2))))
    finally:
        spool.close()
    np.testing.assert_allclose(np.concatenate([rows.outputs for rows in found]), wanted(model), atol=1e-5)
    export(list(DataSet(TABLE, np.eye(2)[CLASSES]).batch_by(50)), tmp_path / "exported")
    kept = ExportedDataSetIterator.open(tmp_path / "exported")
    np.testing.assert_array_equal(np.concatenate([batch.features for batch in kept]), TABLE)


def test_an_onnx_file_scales_so(trained: tuple[TrainedModel, Path], tmp_path: Path) -> None:
    model, _ = trained
    standardize = NormalizerStandardize().fit(DataSet(TABLE))
    for normalizer in (model.reading.normalizer, standardize):
        write_onnx(model.network, tmp_path / "m.onnx", normalizer=normalizer)
        session = onnxruntime.InferenceSession((tmp_path / "m.onnx").read_bytes())
        [found] = session.run(None, {"input": TABLE})
        own = dataclasses.replace(model, reading=model.reading.replace(normalizer=normalizer))
        np.testing.assert_allclose(found, own.output(TABLE), atol=1e-5)


def test_numbers_to_predict_are_told_in_float64(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("near,stamp\n" + "".join(f"{n},{s}\n" for n, s in zip(NEAR, STAMPS, strict=True)))
    columns = (Column("near"), Column("stamp"))
    source = load(path, reading=Reading(transform=TransformProcess(columns=columns, label="stamp", regression=True)))
    model = TrainedModel(network(1, 1, activation="identity", loss="mse"), Reading(transform=source.reading.transform))
    [rows] = predict_alone(model.answer, [np.linspace(0, 9, 50)[:, None]])
    assert rows.outputs.dtype == np.float64 and len(np.unique(rows.outputs)) == 50
    [text] = texts_of(model, [rows], dataclasses.replace(_form(), name="text"))
    assert len(set(text.splitlines())) == 50


def _form() -> Any:
    from dl4jlegacy.models.prediction import Form

    return Form()


# -- where nothing scales ----------------------------------------------------------------------------------------------

_SAID = "has 320 different values, of which 1 remain"


def test_columns_of_files_that_nothing_scales_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path)
    data = load_data(str(path), scale=False)
    assert "column 'stamp' has 256 different values, of which 1 remain" in caplog.text
    assert "column 'place'" in caplog.text and "'near'" not in caplog.text
    assert data.train.features.dtype == np.float32
    caplog.clear()
    schema = TransformProcess(columns=tuple(map(Column, (*NAMES, "label"))), label="label")
    load_data(str(path), reading=Reading(transform=schema))
    assert "column 'stamp' has 256 different values, of which 1 remain" in caplog.text
    caplog.clear()
    monkeypatch.setattr(stored_tables, "LARGE", 1)
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    load_data(str(path), reading=Reading(transform=schema))
    assert "column 'stamp' has 256 different values, of which 1 remain" in caplog.text


@pytest.mark.parametrize("way", ["arrays", "data set", "iterator", "generator", "runner"])
def test_features_that_nothing_scales_are_told_by_what_trains(way: str, caplog: pytest.LogCaptureFixture) -> None:
    x, y = STAMPS[:, None], np.eye(2)[CLASSES]
    used, data = network(1), DataSet(x, y)
    iterator = ListDataSetIterator(data, 64)
    if way == "runner":
        resolve(Conf(multi_layer_conf=used.conf, batch_size=64), iterator)
    elif way == "arrays":
        used.fit(x, y)
    else:
        used.fit({"data set": data, "iterator": iterator, "generator": (b for b in [data])}[way])
    assert f"column 0 (from 0) {_SAID}" in caplog.text
    caplog.clear()
    scaler = NormalizerStandardize().fit(data)
    network(1).fit(ListDataSetIterator(data, 64, pre_processor=scaler.transform))
    assert not caplog.records


@pytest.mark.parametrize("kind", [DL4JClassifier, DL4JRegressor, DL4JAutoEncoder])
def test_estimators_tell_of_features_that_nothing_has_scaled(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    kind(hidden_layer_sizes=(2,), epochs=1).fit(pandas.DataFrame({"stamp": STAMPS, "near": NEAR}), CLASSES)
    assert f"column 'stamp' {_SAID}" in caplog.text and "'near'" not in caplog.text


def test_numbers_as_they_usually_are_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rng = np.random.default_rng(5)
    usual = [
        rng.uniform(0, 1, (100_000, 1)),
        rng.normal(0, 1e12, (20_000, 1)),
        rng.normal(37, 0.5, (5_000, 1)),
        rng.integers(0, 2**24, (5_000, 1)),
        np.full((9, 1), 1e9 + 0.1),
        10.0 ** rng.uniform(16, 30, (20_000, 1)),
    ]
    for x in usual:
        network(1).fit(DataSet(x / np.abs(x).max(), np.eye(2)[np.zeros(len(x), int)]))
        network(1).fit(DataSet(x, np.eye(2)[np.zeros(len(x), int)]))
    assert not [record for record in caplog.records if "different values" in record.message]
