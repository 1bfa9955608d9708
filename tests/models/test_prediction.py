"""Predicting the rows of a file or a pipe of any length: the order, what is in memory, what goes wrong in between."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy import DataSet, NormalizerMinMaxScaler, load_model
from dl4jlegacy.cli import main
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.models.prediction import predict_blocks
from dl4jlegacy.nn import DenseLayer, MultiLayerNetwork, NeuralNetConfiguration, OutputLayer, write_model
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration

COUNT = 2 * ROWS + 500
NAMES = ("red", "green", "blue")


def text_of(values: np.ndarray) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in values.tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``m.zip`` and ``rows.csv``, some blocks and a part of one."""
    made = tmp_path_factory.mktemp("prediction")
    values = np.random.default_rng(3).normal(0, 3, (COUNT, 4)).round(2)
    layers = (DenseLayer(n_in=4, n_out=16, activation="tanh"), OutputLayer(n_out=3, activation="softmax"))
    network = MultiLayerNetwork(MultiLayerConfiguration(conf=NeuralNetConfiguration(seed=5), layers=layers))
    network.set_params(np.random.default_rng(4).normal(0, 3, network.num_params).astype(np.float32))
    write_model(network, made / "m.zip", normalizer=NormalizerMinMaxScaler().fit(DataSet(values)), label_names=NAMES)
    (made / "rows.csv").write_text(text_of(values))
    return made


@pytest.fixture
def predict(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run ``dl4j predict m.zip`` with more words, a text as standard input; return (exit status, stdout, stderr)."""
    monkeypatch.chdir(folder)

    def run(*words: str, given: str = "") -> tuple[int, str, str]:
        Path("given").write_text(given)
        kept = os.dup(0)
        with open("given", "rb") as file:
            os.dup2(file.fileno(), 0)
        try:
            with pytest.raises(SystemExit) as leave:
                main.main(["predict", "m.zip", *words])
        finally:
            os.dup2(kept, 0)
            os.close(kept)
        return (leave.value.code or 0, *capsys.readouterr())

    return run


def expected(folder: Path) -> list[str]:
    """The lines for ``rows.csv``, from Python."""
    model = load_model(folder / "m.zip")
    classes = model.predict(np.loadtxt(folder / "rows.csv", delimiter=",", dtype=np.float32))
    assert len(set(classes)) > 1
    return [f"{number} {model.label_names[number]}" for number in classes]


@pytest.mark.parametrize("workers", ["1", "3"])
def test_a_file_and_standard_input_are_answered_in_their_order_by_any_number_of_workers(predict, folder, workers):
    lines = expected(folder)
    status, out, err = predict("rows.csv", "--workers", workers)
    assert (status, out.splitlines(), err) == (0, lines, "")
    assert predict("-", "--workers", workers, given=(folder / "rows.csv").read_text())[1].splitlines() == lines
    status, out, _ = predict("rows.csv", "--out", "found.txt", "--workers", workers)
    assert (status, out) == (0, "the predictions are in found.txt\n")
    assert (folder / "found.txt").read_text().splitlines() == lines


def test_probabilities_are_the_same_in_text_and_in_both_kinds_of_json(predict, folder):
    whole = json.loads(predict("rows.csv", "--format", "json")[1])
    assert (whole["model"], whole["examples"], whole["label_names"]) == ("m.zip", COUNT, list(NAMES))
    rows = [json.loads(line) for line in predict("rows.csv", "--format", "jsonl", "--workers", "2")[1].splitlines()]
    assert [row["row"] for row in rows] == list(range(COUNT))
    assert [row["class"] for row in rows] == whole["predictions"]
    assert [row["label_name"] for row in rows] == [NAMES[number] for number in whole["predictions"]]
    assert [row["probabilities"] for row in rows] == whole["probabilities"]
    for line, row in zip(predict("rows.csv", "--probabilities")[1].splitlines(), rows, strict=True):
        name, *values = line.split("\t")
        assert name == f"{row['class']} {row['label_name']}"
        assert [float(value) for value in values] == row["probabilities"]


BAD = {
    "a word": ("1,2,x,4", "line 2049, column 3: 'x' is not a number"),
    "a gap": ("1,,3,4", "line 2049, column 2: the cell is empty"),
    "a column less": ("1,2,3", "line 2049: 3 columns, the first line has 4"),
    "infinity": ("1,2,3,1e99", "line 2049, column 4: 1e+99 is not a finite number in float32"),
    "no text": ("1,2,\udcff,4", "bad.csv is not a CSV file in UTF-8"),
}


@pytest.mark.parametrize("workers", ["1", "3"])
@pytest.mark.parametrize("kind", BAD)
def test_a_malformed_row_is_named_after_the_blocks_before_it_and_leaves_no_file(predict, folder, kind, workers):
    row, words = BAD[kind]
    lines = (folder / "rows.csv").read_text().splitlines()
    lines[2 * ROWS] = row
    (folder / "bad.csv").write_text("\n".join(lines), errors="surrogateescape")
    status, out, err = predict("bad.csv", "--workers", workers)
    assert status == 3 and words in err and err.count("\n") == 1
    assert out.splitlines() == expected(folder)[: len(out.splitlines())]
    assert len(out.splitlines()) >= ROWS  # a text that cannot be decoded is met where its piece of the file is read
    before = {path.name for path in folder.iterdir()}
    assert predict("bad.csv", "--workers", workers, "--out", "none.txt")[0] == 3
    assert {path.name for path in folder.iterdir()} == before


def test_a_row_without_a_finite_answer_is_named_in_a_later_block_too(folder):
    model = load_model(folder / "m.zip")
    model.network.set_params(np.full_like(model.network.params, 3e38))
    blocks = [np.zeros((ROWS, 4), np.float32), np.ones((ROWS, 4), np.float32)]

    def predict(rows: np.ndarray) -> np.ndarray:
        return model.output(rows) if rows.any() else np.zeros((len(rows), 3))

    found = predict_blocks([predict], blocks)
    assert next(found).first == 0
    with pytest.raises(NotFiniteError) as raised:
        next(found)
    assert f"in the rows from {ROWS} on (the first is 0), counted from there: " in str(raised.value)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("none.csv",), 3, "cannot read none.csv"),
        (("-",), 3, "standard input holds no examples"),
        ((".",), 3, "it is a folder"),
        (("m.zip",), 3, "m.zip is not a CSV file in UTF-8"),
        (("narrow.csv",), 3, "model m.zip takes 4 features, narrow.csv has 3"),
        (("rows.csv", "--workers", "0"), 2, "--workers is '0'"),
        (("rows.csv", "--workers", "100000000"), 3, "100000000 workers are more than this machine can start"),
        (("rows.csv", "--workers", "many"), 2, "--workers is 'many'"),
        (("rows.csv", "--format", "xml"), 2, "--format is 'xml'"),
        (("rows.csv", "--out", "no/such.txt"), 8, "there is no folder"),
        (("rows.csv", "--out", "."), 8, "is a folder"),
    ],
)
def test_what_cannot_be_read_or_written_is_named(predict, folder, words, status, said):
    (folder / "narrow.csv").write_text("1,2,3\n")
    found, out, err = predict(*words)
    assert (found, out, err.count("\n")) == (status, "", 1) and said in err


@pytest.mark.parametrize("workers", [1, 3])
def test_few_blocks_are_read_before_those_in_front_of_them_are_taken(workers):
    read = 0

    def blocks() -> Iterator[np.ndarray]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield np.full((2, 1), number, np.float32)

    found = predict_blocks([lambda rows: rows] * workers, blocks())
    for number in range(50):
        rows = next(found)
        assert (rows.first, rows.outputs[0, 0]) == (2 * number, number)
        assert read <= number + 1 + 3 * workers + 1  # waiting, in work, and one in the reader's hands
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dl4j-predict")]


def test_a_reader_who_leaves_ends_an_endless_input_quietly(folder):
    command = [sys.executable, "-m", "dl4jlegacy", "predict", str(folder / "m.zip"), "-", "--workers", "2"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None

        def feed() -> None:
            text = (folder / "rows.csv").read_bytes()
            with contextlib.suppress(BrokenPipeError):
                while True:
                    process.stdin.write(text)

        feeder = threading.Thread(target=feed)
        feeder.start()
        assert process.stdout.readline().decode().strip() == expected(folder)[0]
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")
        feeder.join(60)


MEASURED = """
import resource, sys
from dl4jlegacy.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as leave:
    assert not leave.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.release), "2"])
def test_memory_does_not_grow_with_the_rows(folder, tmp_path, workers):
    block = text_of(np.random.default_rng(1).normal(0, 3, (10_000, 4)).round(2))
    used = {}
    for count in (100_000, 1_000_000):
        with (tmp_path / "many.csv").open("w") as file:
            file.writelines(block for _ in range(count // 10_000))
        words = ["predict", str(folder / "m.zip"), str(tmp_path / "many.csv"), "--out", str(tmp_path / "found.txt")]
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *words, "--workers", workers],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        used[count] = int(done.stderr.split()[-1]) * 1024
        with (tmp_path / "found.txt").open() as file:
            assert sum(1 for _ in file) == count
    assert used[1_000_000] - used[100_000] < 8e6  # the file is 23 MB, its features 16 MB, the answers 6 MB


def test_the_model_of_python_does_all_that_the_commands_do(folder, tmp_path):
    """Its normalizer is used, its names are there; by itself the network would say something else."""
    model = load_model(str(folder / "m.zip"))
    assert (type(model.reading.normalizer), model.label_names) == (NormalizerMinMaxScaler, NAMES)
    rows = np.loadtxt(folder / "rows.csv", delimiter=",", dtype=np.float32)[:200]
    classes = model.predict(rows)
    assert (classes != model.network.predict(rows)).any()
    assert (model.output(rows).argmax(axis=1) == classes).all()
    assert model.predict(rows[:1].tolist()) == classes[:1]
    evaluation = model.evaluate(DataSet.of_classes(rows, classes, 3))
    assert (evaluation.accuracy(), evaluation.label_names) == (1.0, NAMES)
    write_model(model.network, tmp_path / "bare.zip")
    bare = load_model(tmp_path / "bare.zip")
    assert (bare.reading.normalizer, bare.label_names) == (None, ())
    assert (bare.predict(model.reading.normalizer.transform(DataSet(rows)).features) == classes).all()
