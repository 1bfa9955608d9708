"""``dl4j``: results on stdout, precedence of flags, and the round trip from training to prediction."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import typer
import yaml

from dl4jlegacy.cli import main
from dl4jlegacy.cli.commands import train as train_command
from dl4jlegacy.cli.commands.observing import ObservedTrainOptions
from dl4jlegacy.errors import UsageError
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.interchange.dl4j.serializer import restore_multi_layer_network
from dl4jlegacy.nn.optimization.updaters import UPDATERS
from dl4jlegacy.scaleout.conf import Conf
from tests.support import REPOSITORY
from tests.support.progress_lines import without_progress

FIELDS = {
    *("run", "model", "dataset", "router", "workers", "jobs_per_round", "epochs", "rounds", "examples", "batches"),
    *("batches_lost", "batches_duplicated", "updates_dropped", "seconds", "examples_per_second", "score"),
    *("accuracy", "f1", "params_sha256", "model_path"),
}
IRIS = ("train", "--dataset", "iris", "--epochs", "2")


@pytest.fixture
def dl4j(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder; return (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str):
        with pytest.raises(SystemExit) as leave:
            main.main(list(arguments))
        return (leave.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def train(dl4j):
    """Train with ``--format json``; return the object printed."""

    def run(*arguments: str):
        status, out, err = dl4j(*arguments, "--format", "json")
        assert (status, without_progress(err)) == (0, "")
        assert out.count("\n") == 1
        return json.loads(out)

    return run


def test_train_prints_one_json_object_with_the_contracts_fields(train):
    fields = train(*IRIS, "--workers", "2", "--jobs-per-round", "3", "--seed", "9", "--run", "mine", "--out", "m.zip")
    assert set(fields) >= FIELDS
    assert (fields["run"], fields["model"], fields["dataset"], fields["workers"]) == ("mine", "mlp", "iris", 2)
    assert (fields["jobs_per_round"], fields["epochs"], fields["seed"]) == (3, 2, 9)
    assert (fields["examples"], fields["batches_lost"], fields["batches_duplicated"]) == (240, 0, 0)
    network = restore_multi_layer_network(fields["model_path"])
    assert fields["params_sha256"] == hashlib.sha256(network.params.astype("<f4").tobytes()).hexdigest()


def test_text_output_shows_the_evaluation_and_the_run(dl4j):
    status, out, err = dl4j(*IRIS, "--workers", "1", "--batch-size", "120", "--epochs", "1", "--out", "m.zip")
    assert (status, without_progress(err).splitlines()) == (
        0,
        [
            "model mlp: the data are rows of numbers",
            "The evaluation is of the held-out fifth of the data: 30 examples, which training never saw",
            "Evaluate the saved model again: dl4j evaluate m.zip --dataset iris",
            "Predict the classes of rows without labels: dl4j predict m.zip FILE.csv",
        ],
    )
    for words in (
        "Evaluation Metrics",
        "setosa",
        "mlp on iris, 1 worker, 1 round\n",
        "lost 0, duplicated 0",
        "model     m.zip",
    ):
        assert words in out


def test_a_run_that_saves_no_model_says_how_to_keep_it(dl4j):
    _, _, err = dl4j(*IRIS)
    assert "The model was not saved; --out FILE keeps it: add --out model.zip to the command" in err.splitlines()
    *_, last = dl4j(*IRIS, "--checkpoint-dir", "my runs")[2].splitlines()
    before, _, paste = last.partition(": dl4j ")
    assert before == "The model was not saved to a file; without training again"
    assert dl4j(*shlex.split(paste))[0] == 0
    assert json.loads(dl4j("evaluate", "model.zip", "--dataset", "iris", "--format", "json")[1])["examples"] == 30


def test_a_model_file_is_written_as_one_of_another_kind(dl4j, train, tmp_path):
    flags = ("train", "--dataset", "iris", "--epochs", "2", "--checkpoint-dir", "run", "--run", "mine")
    trained = train(*flags, "--out", "saved.safetensors")
    (tmp_path / "rows.csv").write_text("5.1,3.5,1.4,0.2\n6.3,3.3,6.0,2.5\n")
    converted = train("export", "saved.safetensors", "--out", "again.zip")
    assert converted == {
        "model": "saved.safetensors",
        "params_sha256": trained["params_sha256"],
        "model_path": "again.zip",
    }
    text = dl4j("export", "again.zip", "--out", "third.safetensors")[1]
    assert text == "the model in again.zip is in third.safetensors, too\n"
    said = {dl4j("predict", model, "rows.csv")[1] for model in ("saved.safetensors", "again.zip", "third.safetensors")}
    assert len(said) == 1 and said != {""}
    for model, out in (("again.zip", "a.onnx"), ("run", "b.onnx")):
        assert dl4j("export", model, "--out", out)[0] == 0
    assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    answered = json.loads(dl4j("predict", "again.zip", "rows.csv", "--format", "json")[1])
    session = onnxruntime.InferenceSession(Path("a.onnx").read_bytes())
    [found] = session.run(None, {"input": np.loadtxt("rows.csv", np.float32, delimiter=",")})
    assert found.argmax(axis=1).tolist() == answered["predictions"]
    for arguments, status, words in (
        (("export", "again.zip", "--out", "m.zip", "--best"), 2, "again.zip is one model; leave it out"),
        (("export", "again.zip", "--out", "m.onnx", "--dl4j-version", "1.0.0"), 8, "reads no ONNX files"),
        (("export", "run", "--out", "m.onnx", "--dl4j-version", "1.0.0"), 8, "reads no ONNX files"),
        (("export", "again.zip", "--out", "m.safetensors", "--dl4j-version", "1.0.0"), 8, "reads no safetensors"),
        (("export", "rows.csv", "--out", "m.zip"), 8, "rows.csv is truncated, corrupt or no model at all"),
        (("train", "--dataset", "iris", "--out", "m.onnx"), 8, "would be an ONNX file, with which no training goes on"),
        (("train", "--dataset", "iris", "--out", "m.keras"), 8, "would be a file of Keras by its ending"),
        (("export", "run", "--out", "m.PT"), 8, "m.PT would be a file of PyTorch by its ending, and no such file is"),
        (("export", "again.zip", "--out", "m.h5"), 8, "give --out the ending .zip, .safetensors or .onnx"),
        (("predict", "a.onnx", "rows.csv"), 8, "a.onnx is an ONNX file by its name; these are written"),
    ):
        ended, out, err = dl4j(*arguments)
        assert (ended, out) == (status, "") and words in err


def test_a_checkpoint_is_exported_as_the_model_that_the_run_would_have_saved(dl4j, train, tmp_path):
    flags = ("train", "--dataset", "iris", "--epochs", "4", "--checkpoint-dir", "run", "--run", "mine")
    trained = train(*flags, "--updater", "adam", "--out", "saved.zip")
    exported = train("export", "run", "--out", "exported.zip")
    assert (exported["params_sha256"], exported["round"]) == (trained["params_sha256"], trained["rounds"])
    assert exported["model_path"] == "exported.zip"
    (tmp_path / "rows.csv").write_text("5.1,3.5,1.4,0.2\n6.3,3.3,6.0,2.5\n")
    kept = f"run/checkpoint-{trained['rounds']:08d}.json"
    said = {dl4j("predict", model, "rows.csv")[1] for model in ("saved.zip", "exported.zip", "run", kept)}
    assert len(said) == 1 and said != {""}  # with the same scaling and the same names
    found = [train("evaluate", model, "--dataset", "iris") for model in ("saved.zip", "run", kept)]
    assert len({body["loss"] for body in found}) == 1
    text = dl4j("export", "run", "--out", "again.zip")[1]
    assert text == f"the model of run mine in round {trained['rounds']}, after 480 examples, is in again.zip\n"
    for version, word in (("0.9.1", b'"dense"'), ("1.0.0", b"org.deeplearning4j.nn.conf.layers.DenseLayer")):
        ended, _, err = dl4j("export", "run", "--out", "addressed.zip", "--dl4j-version", version)
        assert ended == 0 and ("behind the updater" in err) == (version == "0.9.1")
        assert word in zipfile.ZipFile("addressed.zip").read("configuration.json")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "conf.json").write_bytes((tmp_path / "run" / "conf.json").read_bytes())
    for arguments, status, words in (
        (("run",), 2, "--out is missing"),
        (("run", "--out", "no/folder.zip"), 8, "there is no folder"),
        (("nowhere", "--out", "m.zip"), 8, "nowhere holds no run: it has no conf.json"),
        (("begun", "--out", "m.zip"), 8, "the run in begun has kept no checkpoint yet"),
        (("run", "--out", "m.zip", "--dl4j-version", "2"), 2, "--dl4j-version is '2'; it must be 0.9.1 or 1.0.0"),
    ):
        ended, out, err = dl4j("export", *arguments)
        assert (ended, out) == (status, "") and words in err
    assert not (tmp_path / "m.zip").exists()
    (tmp_path / "folder").mkdir()
    for model, words in (
        ("folder", "folder holds no run"),
        ("begun", "the run in begun has kept no checkpoint yet"),
        ("run/checkpoint-00000099.json", "checkpoint-00000099.json cannot be read"),
        ("folder/model-00000001.safetensors", "folder holds no run"),
    ):
        ended, out, err = dl4j("predict", model, "rows.csv")
        assert (ended, out) == (8, "") and words in err


def test_a_saved_model_evaluates_as_it_did_after_training(dl4j, train):
    for dataset in ("iris", "digits"):
        trained = train("train", "--dataset", dataset, "--epochs", "4", "--out", "m.zip")
        evaluated = json.loads(dl4j("evaluate", "m.zip", "--dataset", dataset, "--format", "json")[1])
        assert {k: evaluated[k] for k in ("accuracy", "f1")} == {k: trained[k] for k in ("accuracy", "f1")}
    everything = json.loads(dl4j("evaluate", "m.zip", "--dataset", "digits", "--split", "all", "--format", "json")[1])
    assert (evaluated["split"], evaluated["examples"], everything["examples"]) == ("test", 359, 1797)
    assert "Accuracy" in dl4j("evaluate", "m.zip", "--dataset", "digits")[1]


def test_predict_scales_as_in_training_and_names_the_classes(dl4j, train, tmp_path):
    train("train", "--dataset", "iris", "--epochs", "60", "--learning-rate", "0.01", "--out", "m.zip")
    (tmp_path / "rows.csv").write_text("a,b,c,d\n5.1,3.5,1.4,0.2\n6.3,3.3,6.0,2.5\n5.7,2.8,4.1,1.3\n")
    assert dl4j("predict", "m.zip", "rows.csv")[1].splitlines() == ["0 setosa", "2 virginica", "1 versicolor"]
    body = json.loads(dl4j("predict", "m.zip", "rows.csv", "--format", "json")[1])
    assert body["predictions"] == [0, 2, 1]
    assert body["label_names"] == ["setosa", "versicolor", "virginica"]
    assert all(abs(sum(row) - 1) < 1e-4 for row in body["probabilities"])


def test_a_file_with_some_of_the_classes_is_evaluated_with_the_models_numbering(dl4j, train, tmp_path):
    rows = [(10 * k + i, i, "abc"[k]) for k in range(3) for i in range(10)]
    lines = [f"{x},{y},{name}" for x, y, name in rows]
    (tmp_path / "all.csv").write_text("\n".join(lines))
    (tmp_path / "some.csv").write_text("\n".join(line for line in lines if not line.endswith("a")))
    train("train", "--dataset", "all.csv", "--epochs", "200", "--learning-rate", "0.01", "--out", "m.zip")
    body = json.loads(dl4j("evaluate", "m.zip", "--dataset", "some.csv", "--split", "all", "--format", "json")[1])
    assert body["examples"] == 20
    assert body["accuracy"] > 0.9


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_flags_win_over_the_environment_that_over_the_file_that_over_defaults(train, monkeypatch, tmp_path, suffix):
    network = zoo.mlp(4, 3, hidden=(5,))
    fields = {"dataset": "iris", "epochs": 2, "batch_size": 7, "workers": 3, "seed": 11, "jobs_per_round": 2}
    body = {**fields, "multi_layer_conf": json.loads(network.to_json())}
    file = tmp_path / f"conf.{suffix}"
    file.write_text(json.dumps(body) if suffix == "json" else yaml.safe_dump(body))
    monkeypatch.setenv("DL4J_WORKERS", "2")
    monkeypatch.setenv("DL4J_BATCH_SIZE", "9")
    fields = train("train", str(file), "--batch-size", "10")
    got = {name: fields[name] for name in ("batch_size", "workers", "epochs", "seed", "jobs_per_round", "router")}
    assert got == {
        "batch_size": 10,
        "workers": 2,
        "epochs": 2,
        "seed": 11,
        "jobs_per_round": 2,
        "router": "iterative-reduce",
    }


def test_a_conf_file_may_leave_the_sizes_to_the_data_and_flags_may_change_its_updater(train, dl4j, tmp_path):
    layers = [{"type": "dense", "n_out": 6, "activation": "tanh"}, {"type": "output"}]
    (tmp_path / "conf.json").write_text(json.dumps({"dataset": "iris", "multi_layer_conf": {"layers": layers}}))
    train("train", "conf.json", "--updater", "nesterovs", "--learning-rate", "0.02", "--out", "m.zip")
    conf = restore_multi_layer_network("m.zip").conf
    assert [(layer.n_in, layer.n_out) for layer in conf.resolved()] == [(4, 6), (6, 3)]
    assert (type(conf.conf.updater).__name__, conf.conf.updater.learning_rate) == ("Nesterovs", 0.02)


def test_a_model_named_by_a_flag_replaces_the_files_network(train, tmp_path):
    (tmp_path / "conf.json").write_text(Conf(multi_layer_conf=zoo.mlp(9, 9), dataset="iris").to_json())
    assert train("train", "conf.json", "--model", "sda", "--pretrain-epochs", "1")["model"] == "sda"


def test_the_answer_depends_on_the_seed_and_not_on_the_workers(train):
    run = ("train", "--model", "dbn", "--dataset", "iris", "--epochs", "2", "--pretrain-epochs", "1")
    shas = {
        (seed, workers): train(*run, "--jobs-per-round", "3", "--workers", workers, "--seed", seed)["params_sha256"]
        for seed in ("7", "8")
        for workers in ("1", "3")
    }
    assert shas["7", "1"] == shas["7", "3"] != shas["8", "1"] == shas["8", "3"]


def test_a_finished_run_resumes_from_any_folder_to_the_same_report(train, monkeypatch, tmp_path):
    (tmp_path / "data.csv").write_text("\n".join(f"{i},{i * i % 7},{i % 3}" for i in range(40)))
    first = train("train", "--dataset", "data.csv", "--epochs", "3", "--checkpoint-dir", "run")
    monkeypatch.chdir("/")
    again = train("resume", str(tmp_path / "run"))
    same = ("run", "dataset", "rounds", "examples", "batches", "params_sha256", "accuracy", "score")
    assert {name: again[name] for name in same} == {name: first[name] for name in same}


@pytest.mark.parametrize("columns", ["80", "60"])
@pytest.mark.parametrize("command", [(), ("train",), ("resume",), ("evaluate",), ("predict",)])
def test_help_is_readable_at_any_width(dl4j, monkeypatch, columns, command):
    monkeypatch.setenv("COLUMNS", columns)
    status, out, err = dl4j(*command, "--help")
    assert (status, without_progress(err)) == (0, "")
    assert "Usage: dl4j" in out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert not re.search(r"\brange\b|<int", out)


def test_the_help_lists_all_commands_in_the_order_of_use(dl4j):
    lines = dl4j("--help")[1].split("Commands:")[1].splitlines()
    names = [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]
    assert names[:4] == ["train", "resume", "evaluate", "predict"]
    assert names.index("services") < names.index("master") < names.index("worker") < names.index("status")
    assert len(names) == len(set(names)) == len(main.FAMILIES)
    assert dl4j()[2].startswith("error [DL4J-USAGE]: give a command: train, resume, evaluate, predict")


@pytest.mark.parametrize("command", ["train", "master", "summary"])
def test_the_help_lists_every_model_and_every_updater(dl4j, command):
    shown = re.sub(r"-\s+", "-", dl4j(command, "--help")[1])  # a line may end within a name
    words = set(re.findall(r"[a-z]+(?:-[a-z]+)*", shown))
    assert set(zoo.ZOO) <= words
    assert command == "summary" or set(UPDATERS) <= words


def test_the_version_is_printed(dl4j):
    assert re.fullmatch(r"\d+\.\d+\S*\n", dl4j("--version")[1])


def test_the_real_command_prints_its_object_and_nothing_else(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "dl4jlegacy", *IRIS, "--format", "json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    assert set(json.loads(done.stdout)) >= FIELDS


@pytest.mark.parametrize("family", sorted(set(main.FAMILIES.values())))
def test_a_commands_process_declares_its_family_and_no_other(family: str) -> None:
    names = {name for name, of in main.FAMILIES.items() if of == family}
    for name in names:
        assert typer.main.get_group(main.declared([name])).commands.keys() == names


def test_what_begins_with_no_command_is_answered_with_all_of_them(dl4j) -> None:
    assert "did you mean 'train'" in dl4j("trian", "--epochs", "2")[2].lower()
    assert dl4j("--help", "train") == dl4j("--help")


def test_zookeeper_in_the_environment_keeps_no_run_from_training_here(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(train_command, "_train_here", lambda options, observers: begun.append(options))
    monkeypatch.setenv("DL4J_ZOOKEEPER", "127.0.0.1:2181")
    train_command.train(ObservedTrainOptions(model="mlp", zookeeper="127.0.0.1:2181"))
    assert len(begun) == 1
    with pytest.raises(UsageError, match="--tracker is missing"):
        train_command.train(ObservedTrainOptions(model="mlp", zookeeper="127.0.0.2:2181"))
