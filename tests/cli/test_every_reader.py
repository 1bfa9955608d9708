"""Every reader gives the same parameters by value, by reference, with any number of workers, and after a stop."""

from __future__ import annotations

import functools
import gzip
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dl4jlegacy import (
    DenseLayer,
    MultiLayerConfiguration,
    NeuralNetConfiguration,
    OutputLayer,
    ValidationConf,
    load_model,
)
from dl4jlegacy.cluster.reached_data import jobs_by_reference
from dl4jlegacy.datasets import DataSource, ImageRecordReader, ImageTransform
from dl4jlegacy.datasets.sequences.sequence_reader import SequenceRecordReader
from dl4jlegacy.datasets.tables import stored_tables
from dl4jlegacy.datasets.text.texts import TextReader
from dl4jlegacy.errors import DataError
from dl4jlegacy.nn.zoo.models import char_lstm, lstm, word_lstm
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.storage.paths import local
from dl4jlegacy.training.prepare import prepare, train, training_data
from dl4jlegacy.training.run import Run, job_iterator

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(90, 5)).astype(np.float32).astype(np.float64)
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)
LINES = [",".join([*map(repr, map(float, x)), str(y)]) for x, y in zip(X, Y, strict=True)]
HEADER = "a,b,c,d,e,label"


def network(activation: str, loss: str) -> MultiLayerConfiguration:
    conf = NeuralNetConfiguration(seed=7, activation="tanh", drop_out=0.1)
    return MultiLayerConfiguration(
        conf=conf, layers=(DenseLayer(n_out=6), OutputLayer(activation=activation, loss=loss))
    )


NETWORK = network("softmax", "mcxent")
SHORT: dict[str, Any] = {"epochs": 2, "batch_size": 8, "jobs_per_round": 4, "seed": 5, "checkpoint_every": 1}
Fields = dict[str, Any]


def text(name: str, lines: list[str], folder: Path) -> Fields:
    (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return {"dataset": str(folder / name)}


def csv(folder: Path) -> Fields:
    return text("t.csv", [HEADER, *LINES], folder)


def gzipped(folder: Path) -> Fields:
    (folder / "t.csv.gz").write_bytes(gzip.compress("\n".join([HEADER, *LINES]).encode()))
    return {"dataset": str(folder / "t.csv.gz")}


def parts(folder: Path) -> Fields:
    for number in range(3):
        text(f"part-{number}.csv", [HEADER, *LINES[30 * number : 30 * number + 30]], folder)
    return {"dataset": str(folder / "part-*.csv")}


def json_lines(folder: Path) -> Fields:
    rows = [dict(zip(HEADER.split(","), [*map(float, x), int(y)], strict=True)) for x, y in zip(X, Y, strict=True)]
    return text("t.jsonl", list(map(json.dumps, rows)), folder)


def svmlight(folder: Path) -> Fields:
    rows = [f"{y} " + " ".join(f"{i}:{v!r}" for i, v in enumerate(map(float, x), 1)) for x, y in zip(X, Y, strict=True)]
    return text("t.svm", rows, folder)


def columns() -> Any:
    import pyarrow

    return pyarrow.table({**{name: X[:, i] for i, name in enumerate("abcde")}, "label": Y})


def parquet(folder: Path) -> Fields:
    import pyarrow.parquet

    pyarrow.parquet.write_table(columns(), folder / "t.parquet")
    return {"dataset": str(folder / "t.parquet")}


def arrow(folder: Path) -> Fields:
    import pyarrow.feather

    pyarrow.feather.write_feather(columns(), folder / "t.arrow")
    return {"dataset": str(folder / "t.arrow")}


def npz(folder: Path) -> Fields:
    np.savez(folder / "t.npz", x=X.astype(np.float32), y=Y)
    return {"dataset": str(folder / "t.npz")}


def npy(folder: Path) -> Fields:
    np.save(folder / "t.npy", np.column_stack([X, Y]))
    return {"dataset": str(folder / "t.npy")}


def words_and_gaps(folder: Path) -> Fields:
    rows = [f"{line.rpartition(',')[0]},{'red' if i % 3 else ''},{'yes' if y else 'no'}" for i, (line, y) in ROWS]
    return text("w.csv", ["a,b,c,d,e,colour,label", *rows], folder)


ROWS = list(enumerate(zip(LINES, Y, strict=True)))


def stratified(folder: Path) -> Fields:
    validation = ValidationConf(fraction=0.25, metric="f1")
    return {**words_and_gaps(folder), "stratify": True, "class_weights": "balanced", "validation": validation}


def images_by_class(folder: Path) -> Fields:
    return {**images(folder), "validation": ValidationConf(fraction=0.25, stratify=True)}


def numbers(folder: Path) -> Fields:
    rows = [f"{line},{100 * x[0] - 30 * y:.2f}" for line, x, y in zip(LINES, X, Y, strict=True)]
    fields = text("n.csv", ["a,b,c,d,e,code,price", *rows], folder)
    chosen = {"label": "price", "regression": True, "multi_layer_conf": network("identity", "mse")}
    return {**fields, **chosen, "validation": ValidationConf(fraction=0.2, metric="rmse")}


def several_labels(folder: Path) -> Fields:
    rows = [f"{line.rpartition(',')[0]},{y % 2},{int(y > 1)}" for line, y in zip(LINES, Y, strict=True)]
    fields = text("s.csv", ["a,b,c,d,e,odd,large", *rows], folder)
    chosen = {"label": "odd,large", "multi_label": True, "multi_layer_conf": network("sigmoid", "xent")}
    return {**fields, **chosen, "validation": ValidationConf(fraction=0.2, metric="f1")}


def images(folder: Path) -> Fields:
    for number, y in enumerate(Y):
        path = folder / "photos" / "abc"[y] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.uint8(RANDOM.integers(0, 255, (6, 5)))).save(path)
    return {"dataset": str(folder / "photos"), "images": ImageRecordReader(height=4, width=4)}


def augmented(folder: Path) -> Fields:
    change = ImageTransform(flip="horizontal", rotate=10.0, crop=1, brightness=0.2)
    return {**images(folder), "augment": change}


def listed_images(folder: Path) -> Fields:
    images(folder)
    files = sorted((folder / "photos").rglob("*.png"))
    text(
        "list.csv",
        ["file,kind", *(f"photos/{path.parent.name}/{path.name},{path.parent.name}" for path in files)],
        folder,
    )
    return {"dataset": str(folder / "list.csv"), "images": ImageRecordReader(height=4, width=4, column="file")}


def sequences(folder: Path) -> Fields:
    (folder / "steps").mkdir()
    for number in range(45):
        rows = [f"{v!r},{['up', 'down'][v > 0]}" for v in map(float, RANDOM.normal(size=3 + number % 4))]
        text(f"{number}.csv", ["value,move", *rows], folder / "steps")
    reader = SequenceRecordReader(label="move")
    return {"dataset": str(folder / "steps"), "sequences": reader, "multi_layer_conf": lstm(1, 2, hidden=(3,))}


def numbers_of_steps(folder: Path) -> Fields:
    (folder / "steps").mkdir()
    for number in range(45):
        rows = [f"{v!r},{7 * v + 50:.3f}" for v in map(float, RANDOM.normal(size=3 + number % 4))]
        text(f"{number}.csv", ["value,level", *rows], folder / "steps")
    fields = {"dataset": str(folder / "steps"), "sequences": SequenceRecordReader(label="level", regression=True)}
    return {**fields, "model": "lstm", "multi_layer_conf": None, "validation": ValidationConf(fraction=0.2)}


def characters(folder: Path) -> Fields:
    fields = text("t.txt", ["the fox saw the grapes. " * 150], folder)
    return {**fields, "multi_layer_conf": char_lstm(14, 14, hidden=(3,))}


def words(folder: Path) -> Fields:
    fields = text("t.txt", ["the fox saw the grapes, and the grapes hung high. " * 60], folder)
    reader = TextReader(tokens="words", vocabulary_size=8)
    return {**fields, "text": reader, "multi_layer_conf": word_lstm(32, 9, hidden=(3,))}


TABLES: dict[str, Callable[[Path], Fields]] = {
    each.__name__: each for each in (csv, gzipped, parts, json_lines, svmlight, parquet, arrow, npz, npy)
}
OTHERS: dict[str, Callable[[Path], Fields]] = {
    each.__name__: each
    for each in (
        *(words_and_gaps, stratified, numbers, several_labels, images, images_by_class, augmented, listed_images),
        *(sequences, numbers_of_steps, characters, words),
    )
}
READERS = {**TABLES, **OTHERS}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that has what is in the temporary folder."""
    monkeypatch.setenv("DL4J_WEB_CACHE", str(tmp_path / "web"))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *given: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def trained(fields: Fields, **more: Any) -> str:
    """Train as ``dl4j train`` does; return the digest of the parameters."""
    return str(train(*prepared(fields, **more), progress=False).fields["params_sha256"])


def prepared(fields: Fields, **more: Any) -> tuple[Run, DataSource]:
    chosen = {"multi_layer_conf": NETWORK, **SHORT, **fields, **more}
    labels = {name: chosen.pop(name) for name in ("label", "regression", "multi_label") if name in chosen}
    return prepare(Conf(**chosen), frozenset(chosen), **labels)


def spoil(folder: Path) -> None:
    """Change what is in the files of a data set."""
    images = list(folder.rglob("*.png"))
    for path in images:
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    for path in [] if images else [*folder.rglob("*.csv"), *folder.rglob("*.txt")]:
        path.write_text(path.read_text().replace("0.", "1.").replace("fox", "grapes"))


def check(fields: Fields, folder: Path, dl4j: Any) -> str:
    """Train in every way; return the digest that all have."""
    ways = {"carried": trained(fields, workers=1, data_by_reference=False)}
    for workers in (1, 2, 3, 4):
        ways[f"{workers} workers"] = trained(fields, workers=workers, data_by_reference=True)
    ways["nothing ahead"] = trained(fields, workers=2, prefetch_buffer=0)
    ways["carried to 3"] = trained(fields, workers=3, data_by_reference=False)
    trained(fields, workers=2, epochs=1, checkpoint_dir=str(folder / "run"))
    kept = folder / "run" / "conf.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text(encoding="utf-8")), "epochs": 2}), encoding="utf-8")
    resume = ("resume", str(folder / "run"), "--workers", "3", "--format", "json", "--out", str(folder / "m.zip"))
    ways["resumed"] = dl4j.json(*resume)["params_sha256"]
    assert len(set(ways.values())) == 1, ways
    readings = [load_model(folder / name).reading.replace(normalizer=None) for name in ("run", "m.zip")]
    assert readings[0] == readings[1]
    return ways["carried"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.everyday(1)
def test_the_parameters_are_the_same_however_the_data_come_to_the_workers(
    reader: str, tmp_path: Path, dl4j: Any
) -> None:
    fields = READERS[reader](tmp_path)
    check(fields, tmp_path, dl4j)
    run, data = prepared(fields, data_by_reference=True)
    conf = Conf.from_json(run.conf.to_json())
    jobs, slot = jobs_by_reference(conf, run.plan), run.plan.slot(run.plan.total_rounds - 1, 0)
    assert jobs is not None, "as another process reads them"
    assert jobs.work(slot) == job_iterator(run.conf, training_data(run.conf, data)).work(slot)
    if reader in OTHERS:
        spoil(tmp_path)
        with pytest.raises(DataError, match="has data of fingerprint"):
            jobs_by_reference(conf, run.plan)


def test_a_table_has_the_same_parameters_in_every_kind_of_file_in_memory_or_not_and_from_the_web(
    tmp_path: Path, dl4j: Any, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {name: trained(write(tmp_path), workers=2) for name, write in TABLES.items()}
    found["web"] = check({"dataset": f"{site}/t.csv"}, tmp_path, dl4j)
    assert Path(local(f"{site}/t.csv")).is_relative_to(tmp_path / "web")
    assert len(set(found.values())) == 1, found


def test_tables_in_files_have_the_same_parameters_in_every_way(
    tmp_path: Path, dl4j: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = words_and_gaps(tmp_path)
    held = trained(fields, workers=2)
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored_tables, "LARGE", 0)
    assert check(fields, tmp_path, dl4j) == held
