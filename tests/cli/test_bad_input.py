"""Bad input: the contract's exit status, one message that says what, where, which values and what to do; nothing left.

Most cases run in this process; ``test_stopping`` and ``test_cli`` run the real command.
"""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.nn import LSTM, DenseLayer, InputType, NeuralNetConfiguration, OutputLayer, RnnOutputLayer, zoo
from dl4jlegacy.nn.conf.network import GraphBuilder
from dl4jlegacy.nn.optimization.updaters import Adam
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore
from tests.support.progress_lines import without_progress


class Outcome:
    """What a command left: exit status, stdout, stderr."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, without_progress(err)

    def is_error(self, status: int, *words: str) -> None:
        """Assert one message with these words, and the same one on stdout as JSON if that was asked for."""
        assert self.status == status, self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith("error [DL4J-")
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err, f"{word!r} is not in {self.err!r}"
        body = json.loads(self.out)["error"]
        assert self.err == f"error [{body['code']}]: {body['message']}\n"
        assert body["exit"] == status


@pytest.fixture
def dl4j(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder with ``--format json``; whatever it leaves there is a failure of the test."""
    monkeypatch.chdir(tmp_path)
    for name in ("DL4J_DATA_DIR", "DL4J_DATASET", "DL4J_WORKERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def run(*arguments: str) -> Outcome:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as leave:
            main.main([*arguments, "--format", "json"])
        out, err = capsys.readouterr()
        if leave.value.code:
            assert sorted(tmp_path.rglob("*")) == before, "something half-written is left"
        return Outcome(leave.value.code or 0, out, err)

    return run


@pytest.fixture
def model(tmp_path, dl4j) -> str:
    assert dl4j("train", "--dataset", "iris", "--epochs", "1", "--out", "model.zip").status == 0
    return "model.zip"


# -- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--workers", "0"), ("--workers is '0'", "at least 1")),
        (("--workers", "four"), ("--workers is 'four'", "whole number")),
        (("--batch-size", "-3"), ("--batch-size is '-3'", "at least 1")),
        (("--epochs", "1.5"), ("--epochs is '1.5'",)),
        (("--jobs-per-round", "0"), ("--jobs-per-round is '0'",)),
        (("--checkpoint-every", "0"), ("--checkpoint-every is '0'",)),
        (("--averaging-frequency", "0"), ("--averaging-frequency is '0'",)),
        (("--seed", "99999999999999999999"), ("--seed is", "64 bits")),
        (("--learning-rate", "-1"), ("--learning-rate is '-1'", "not negative")),
        (("--learning-rate", "nan"), ("--learning-rate is 'nan'",)),
        (("--drop-out", "1.5"), ("--drop-out is '1.5'", "a number from 0 to 1, the share that is kept")),
        (("--hidden", "256,0"), ("--hidden is '256,0'", "such as 256,128")),
        (("--hidden", ","), ("--hidden is ','", "the size of each layer")),
        (("--weight-decay", "-1"), ("--weight-decay is '-1'", "not negative")),
        (("--log-format", "xml"), ("--log-format is 'xml'", "json", "text")),
        (("--out", ""), ("--out is empty",)),
        (("--dataset", ""), ("--dataset is empty",)),
        (("--tracker", "redis://localhost:5701"), ("--tracker redis://localhost:5701", "hazelcast://host:port")),
        (("--tracker", "hazelcast://localhost:5701"), ("--zookeeper is missing", "host:port")),
        (("--zookeeper", "localhost:2181"), ("--tracker is missing", "localhost:2181", "hazelcast://host:port")),
        (("--standby",), ("--standby belongs to dl4j master",)),
        (("--bogus",), ("--bogus",)),
    ],
)
def test_a_bad_flag_is_a_usage_error_that_names_flag_and_value(dl4j, flags, words):
    dl4j("train", *flags).is_error(2, "[DL4J-USAGE]", *words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model", "dbm"), ("unknown model 'dbm'", "did you mean 'dbn'?")),
        (("--updater", "adagrat"), ("unknown updater 'adagrat'", "did you mean 'adagrad'?")),
        (("--schedule", "lineal"), ("unknown schedule 'lineal'", "did you mean 'linear'?")),
        (("--router", "hogwilt"), ("'hogwilt'", "did you mean 'hogwild'?")),
        (("--dataset", "digit"), ("unknown data set 'digit'", "did you mean 'digits'?")),
        (("--dataset", "nothing.csv"), ("no such file or folder", "nothing.csv", "give digits, iris, mnist")),
        (("missing.json",), ("missing.json cannot be read", "No such file")),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(dl4j, flags, words):
    dl4j("train", *flags).is_error(3, *words)


def test_an_unknown_command_and_a_missing_one_are_usage_errors(dl4j):
    dl4j("trian").is_error(2, "trian", "--help")
    dl4j("evaluate", "x.zip").is_error(2, "--dataset")
    dl4j("predict").is_error(2, "MODEL")


def test_a_bad_environment_variable_is_named_instead_of_the_flag(dl4j, monkeypatch):
    monkeypatch.setenv("DL4J_WORKERS", "0")
    dl4j("train").is_error(2, "DL4J_WORKERS is '0'")


# -- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b,label\n1,2,0\n3,x,1\n", ("bad.csv, line 3, column 'b' (2)", "'x' is not a number")),
        ("a,b,label\n1,2,0\n3,,1\nx,1,1\n", ("bad.csv, line 4, column 'a' (1)", "'x' is not a number")),
        ("1,,0\n3,inf,1\n4,5,0\n", ("bad.csv, line 2, column 2: ", "'inf' is not a number")),
        ("1,inf,0\n3,4,1\n", ("bad.csv, line 1, column 2: ", "inf")),
        ("1,1e400,0\n3,4,1\n", ("bad.csv, line 1, column 2", "'1e400' is not a number")),
        ("1,2,0\n3,4,-1\n5,6,0\n", ("bad.csv, line 2, column 3", "label '-1' occurs once")),
        ("1,2,0\n3,4\n", ("bad.csv, line 2", "2 columns", "3")),
        ("", ("bad.csv holds no examples",)),
    ],
)
def test_a_bad_cell_of_a_csv_file_is_named_by_file_line_and_column(dl4j, tmp_path, content, words):
    (tmp_path / "bad.csv").write_text(content)
    dl4j("train", "--dataset", "bad.csv", "--out", "m.zip", "--checkpoint-dir", "run").is_error(3, *words)


def rows(labels: str) -> str:
    """Return a CSV file with a row for every one of the labels."""
    return "".join(f"{i},{i % 3},{label}\n" for i, label in enumerate(labels.split()))


@pytest.mark.parametrize("labels", ["1 0.5 2 1", "0.1 0.2 0.3", "12.5 1e3 7", "-1.5 0 1"])
@pytest.mark.parametrize("model", ["mlp", "dbn"])
def test_a_column_of_real_numbers_is_answered_as_regression(dl4j, tmp_path, labels, model):
    (tmp_path / "prices.csv").write_text("a,b,price\n" + rows(labels))
    words = {
        "mlp": ("prices.csv: the label 'price' holds real numbers", "give --regression"),
        "dbn": ("prices.csv, line ", "column 3", "is a real number", "regression", "'identity'", "'mse'"),
    }
    dl4j("train", "--model", model, "--dataset", "prices.csv", "--out", "m.zip", "--checkpoint-dir", "run").is_error(
        3, "[DL4J-DATA]", *words[model]
    )


@pytest.mark.parametrize("labels", ["0 " * 20, "1 " * 20, "spam " * 20])
@pytest.mark.parametrize("model", ["mlp", "dbn"])
def test_data_of_one_class_are_refused_before_anything_is_trained(dl4j, tmp_path, labels, model):
    (tmp_path / "ones.csv").write_text(rows(labels))
    dl4j("train", "--model", model, "--dataset", "ones.csv", "--out", "m.zip", "--checkpoint-dir", "run").is_error(
        3, "[DL4J-DATA]", "ones.csv has only one class", repr(labels.split()[0]), "at least two", "label"
    )
    assert dl4j("train", "--model", "vae", "--dataset", "ones.csv", "--pretrain-epochs", "1").status == 0  # needs none


def idx(folder: Path, *, cut: int = 0, magic: int = 2051, label: int = 1) -> None:
    """Write a small data set under MNIST's names, with something wrong in it."""
    for part, count in (("train", 4), ("t10k", 2)):
        pixels = struct.pack(">IIII", magic, count, 3, 3) + bytes(range(9)) * count
        labels = struct.pack(">II", 2049, count) + bytes([0, label] * (count // 2))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(pixels[: len(pixels) - cut])
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


@pytest.mark.parametrize(
    ("fault", "words"),
    [({"cut": 1}, ("bytes", "52", "51")), ({"cut": 40}, ("12",)), ({"magic": 1234}, ("00 00 04 d2", "expected 00 00"))],
)
def test_a_truncated_or_foreign_idx_file_is_named_with_its_bytes(dl4j, tmp_path, fault, words):
    idx(tmp_path, **fault)
    dl4j("train", "--dataset", str(tmp_path)).is_error(3, "[DL4J-DATA]", "train-images-idx3-ubyte", *words)


def test_a_corrupt_gzip_is_named(dl4j, tmp_path):
    idx(tmp_path)
    whole = gzip.compress((tmp_path / "train-images-idx3-ubyte").read_bytes())
    (tmp_path / "train-images-idx3-ubyte").unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(whole[:-10])
    dl4j("train", "--dataset", str(tmp_path)).is_error(3, "[DL4J-DATA]", "train-images-idx3-ubyte.gz")


def test_missing_mnist_says_which_files_and_where(dl4j, tmp_path, no_network):
    dl4j("train", "--dataset", "mnist", "--data-dir", str(tmp_path)).is_error(
        4, "[DL4J-DOWNLOAD]", "train-images-idx3-ubyte", str(tmp_path)
    )


def test_a_folder_without_data_says_what_was_looked_for_and_found(dl4j, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    dl4j("train", "--dataset", str(tmp_path)).is_error(3, "holds no data set", "IDX", "CSV", "notes.txt")


# -- Conf files --------------------------------------------------------------------------------------------------------


def conf_file(path: Path, **fields: object) -> str:
    body = json.loads(Conf(multi_layer_conf=zoo.mlp(4, 3, hidden=(5,)), dataset="iris").to_json())
    path.write_text(json.dumps({**body, **fields}))
    return str(path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"workes": 3}, ("unknown field 'workes'", "did you mean 'workers'?")),
        ({"workers": 0}, ("Conf.workers is 0", "at least 1")),
        ({"workers": "four"}, ("workers", "int")),
        ({"epochs": -1}, ("Conf.epochs is -1",)),
        ({"multi_layer_conf": {"layers": [{"type": "dens", "n_out": 3}]}}, ("'dens'", "did you mean 'dense'?")),
        ({"multi_layer_conf": {"layers": [{"type": "output", "n_aut": 3}]}}, ("'n_aut'", "did you mean 'n_out'?")),
        ({"multi_layer_conf": {"layers": [{"type": "dense", "n_out": 3}]}}, ("layer 0 (dense)", "OutputLayer")),
        (
            {
                "multi_layer_conf": {
                    "layers": [{"type": "dense", "n_in": 4, "n_out": 5}, {"type": "output", "n_in": 6, "n_out": 3}]
                }
            },
            ("layer 0 (dense) has n_out=5", "layer 1 (output) has n_in=6"),
        ),
        (
            {"multi_layer_conf": {"layers": [{"type": "output", "n_in": 7, "n_out": 3}]}},
            ("layer 0 (output) has n_in=7", "the data has 4"),
        ),
        (
            {"multi_layer_conf": {"layers": [{"type": "output", "n_out": 9}]}},
            ("layer 0 (output) has n_out=9", "the data has 3"),
        ),
    ],
)
def test_a_bad_field_of_a_conf_file_is_named_with_file_and_field(dl4j, tmp_path, fields, words):
    dl4j("train", conf_file(tmp_path / "conf.json", **fields), "--checkpoint-dir", "run").is_error(3, *words)


@pytest.mark.parametrize("name", ["conf.json", "conf.yaml"])
def test_a_conf_file_that_is_no_json_or_yaml_is_named(dl4j, tmp_path, name):
    (tmp_path / name).write_text('{"workers": [1, 2')
    dl4j("train", name).is_error(3, name, "this is no " + ("JSON" if name.endswith("json") else "YAML"))


@pytest.mark.parametrize("text", ["[1, 2]", "null", '"text"', "7"])
def test_a_conf_file_that_holds_no_object_is_refused(dl4j, tmp_path, text):
    (tmp_path / "conf.json").write_text(text)
    dl4j("train", "conf.json").is_error(3, "conf.json")


# -- models, checkpoints, outputs ------------------------------------------------------------------------------------


def test_an_output_that_cannot_be_written_is_said_before_training(dl4j, tmp_path):
    long = ("--dataset", "digits", "--epochs", "100000")
    dl4j("train", *long, "--out", "no/such/model.zip").is_error(8, "no/such/model.zip", "there is no folder")
    dl4j("train", *long, "--out", str(tmp_path)).is_error(8, "is a folder")
    dl4j("train", *long, "--out", "/proc/model.zip").is_error(8, "/proc/model.zip cannot be written")
    (tmp_path / "file").write_text("")
    dl4j("train", *long, "--checkpoint-dir", "file").is_error(8, "file cannot be written")


@pytest.mark.parametrize("command", ["evaluate", "predict"])
@pytest.mark.parametrize("kind", ["missing", "empty", "text", "cut", "flipped", "zip"])
def test_a_model_file_that_is_none_is_named(dl4j, tmp_path, model, command, kind):
    whole = (tmp_path / model).read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"coefficients.bin") + 200] ^= 255
    contents = {
        "empty": b"",
        "text": b"not a model",
        "cut": whole[: len(whole) // 2],
        "flipped": bytes(flipped),
        "zip": b"PK\x05\x06" + bytes(18),
    }
    if kind in contents:
        (tmp_path / "bad.zip").write_bytes(contents[kind])
    (tmp_path / "rows.csv").write_text("1,2,3,4\n")
    rest = ("--dataset", "iris") if command == "evaluate" else ("rows.csv",)
    dl4j(command, "bad.zip", *rest).is_error(8, "[DL4J-MODEL]", "bad.zip")


def test_a_model_for_other_data_names_both_sizes(dl4j, tmp_path, model):
    dl4j("evaluate", model, "--dataset", "digits").is_error(3, "model.zip takes 4 features", "digits has 64")
    (tmp_path / "rows.csv").write_text("1,2,3\n4,5,6\n")
    dl4j("predict", model, "rows.csv").is_error(3, "takes 4 features", "rows.csv has 3")
    dl4j("predict", model, "none.csv").is_error(3, "none.csv")
    (tmp_path / "two.csv").write_text("1,2,3,4,setosa\n1,2,3,4,tulip\n")
    dl4j("evaluate", model, "--dataset", "two.csv").is_error(3, "line 2, column 5", "'tulip'", "setosa")


def test_a_folder_of_another_runs_checkpoints_is_refused(dl4j):
    run = ("train", "--dataset", "iris", "--epochs", "1", "--checkpoint-dir", "run")
    assert dl4j(*run).status == 0
    dl4j(*run).is_error(8, "already holds checkpoints", "dl4j resume", "--checkpoint-dir")


def test_a_folder_without_a_run_cannot_be_resumed(dl4j, tmp_path):
    dl4j("resume", "nowhere").is_error(8, "nowhere holds no run", "conf.json")
    (tmp_path / "run").mkdir()
    dl4j("resume", "run").is_error(8, "run holds no run")
    (tmp_path / "run" / "conf.json").write_text("{")
    dl4j("resume", "run").is_error(8, "the run in run cannot go on", "conf.json")


def test_a_run_whose_every_checkpoint_is_damaged_cannot_be_resumed(dl4j, tmp_path):
    assert dl4j("train", "--dataset", "iris", "--epochs", "1", "--checkpoint-dir", "run").status == 0
    for file in (tmp_path / "run").glob("model-*"):
        file.write_bytes(file.read_bytes()[:-1])
    done = dl4j("resume", "run")
    assert done.status == 8
    assert "none of the" in done.err
    assert "Traceback" not in done.err


def test_a_run_cannot_go_on_with_other_data(dl4j, tmp_path):
    rows = [f"{i},{i % 7},{i % 3}" for i in range(60)]
    (tmp_path / "data.csv").write_text("\n".join(rows))
    assert dl4j("train", "--dataset", "data.csv", "--epochs", "2", "--checkpoint-dir", "run").status == 0
    (tmp_path / "data.csv").write_text("\n".join(rows[:-13]))
    dl4j("resume", "run").is_error(8, "has trained on 96 examples", "data that it began with")
    kept = json.loads((tmp_path / "run" / "conf.json").read_text())
    (tmp_path / "run" / "conf.json").write_text(json.dumps(kept | {"data_fingerprint": ""}))  # as it once was
    dl4j("resume", "run").is_error(8, "has trained on 96 examples", "data that it began with")
    assert json.loads((tmp_path / "run" / "conf.json").read_text())["data_fingerprint"] == ""


def test_a_loss_that_becomes_nan_names_round_slot_and_layer_and_keeps_the_checkpoints(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    flags = (
        "--dataset",
        "iris",
        "--updater",
        "sgd",
        "--learning-rate",
        "1e30",
        "--checkpoint-dir",
        "run",
        "--averaging-frequency",
        "1",
    )
    with pytest.raises(SystemExit) as leave:
        main.main(["train", *flags, "--checkpoint-every", "1", "--out", "model.zip"])
    out, err = capsys.readouterr()
    assert (leave.value.code, out) == (13, "")
    opening, workers, err = err.splitlines()
    assert opening.startswith("model mlp: ") and "workers stand by" in workers
    for word in ("[DL4J-NOTFINITE]", "round ", "slot ", "layer ", "smaller learning rate", "run are from before"):
        assert word in err
    assert not (tmp_path / "model.zip").exists()
    head, _ = CheckpointStore(tmp_path / "run").newest()
    assert head.round >= 1


# -- graphs in a Conf file -------------------------------------------------------------------------------------------


def graph_file(tmp_path: Path, *inputs: str, end: Any = None, input_type: Any = None) -> str:
    """Write a Conf with a graph in which every input has a layer, and all lead to one output; return its name."""
    b = GraphBuilder(NeuralNetConfiguration(activation="tanh", updater=Adam(learning_rate=0.01))).add_inputs(*inputs)
    if input_type is not None:
        b.set_input_types(*[input_type] * len(inputs))
    for name in inputs:
        layer = DenseLayer(n_out=8) if input_type is None else LSTM(n_out=8)
        b.add_layer(f"from {name}", layer, name)
    b.add_layer("end", end or OutputLayer(activation="softmax"), *(f"from {name}" for name in inputs))
    graph = b.set_outputs("end").build()
    (tmp_path / "graph.json").write_text(Conf(computation_graph_conf=graph, dataset="iris", epochs=40).to_json())
    return "graph.json"


def test_a_graph_is_trained_evaluated_and_predicts(tmp_path, dl4j) -> None:
    trained = dl4j("train", graph_file(tmp_path, "flower"), "--out", "graph.zip", "--checkpoint-dir", "kept")
    assert trained.status == 0, trained.err
    fields = json.loads(trained.out)
    assert fields["accuracy"] > 0.8 and fields["batches_lost"] == 0
    again = dl4j("resume", "kept")
    assert json.loads(again.out)["params_sha256"] == fields["params_sha256"]
    assert json.loads(dl4j("evaluate", "graph.zip", "--dataset", "iris").out)["accuracy"] == fields["accuracy"]
    (tmp_path / "rows.csv").write_text("5.1,3.5,1.4,0.2\n")
    assert json.loads(dl4j("predict", "graph.zip", "rows.csv").out)["predictions"] == [0]
    named = dl4j("train", "graph.json", "--model", "mlp", "--epochs", "1")  # a model's name wins
    assert json.loads(named.out)["model"] == "mlp"


def test_data_that_do_not_fit_a_graph_are_refused_by_name(tmp_path, dl4j) -> None:
    two = graph_file(tmp_path, "a", "b")
    dl4j("train", two).is_error(3, "inputs ['a', 'b']", "MultiDataSets")
    steps = graph_file(tmp_path, "flower", end=RnnOutputLayer(activation="softmax"), input_type=InputType.recurrent(4))
    dl4j("train", steps, "--checkpoint-dir", "kept").is_error(
        3, "network input 'flower' takes recurrent 4xany", "(examples, 4"
    )
    relu = graph_file(tmp_path, "flower", end=OutputLayer(activation="relu", loss="xent"))
    dl4j("train", relu).is_error(3, "network output 'end' (output): loss 'xent' takes probabilities", "'relu'")
    hinge = graph_file(tmp_path, "flower", end=OutputLayer(activation="identity", loss="hinge"))
    dl4j("train", hinge).is_error(3, "network output 'end' (output): loss 'hinge' wants labels that are -1 or 1")


# --- checkpoints in S3 ------------------------------------------------------------------------------------------------

AWS = ("aws", "up", "digits", "--out", "s3://bucket/m.zip", "--dry-run", "--format", "json", "--")


@pytest.mark.parametrize("path", ["s3:/runs/one", "s3://A_B/runs", "S3://bucket/runs"])
def test_on_aws_checkpoints_go_to_no_place_that_only_looks_like_one_in_s3(dl4j, no_network, path):
    dl4j(*AWS, f"--checkpoint-dir={path}").is_error(3, path, "s3://bucket/key")
