"""char-lstm, deep-autoencoder and vae as a user runs them: the real command, its answer, its loss, its messages."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dl4jlegacy.datasets import DataSource, load
from dl4jlegacy.errors import ShapeError
from dl4jlegacy.models.model import evaluate_network, source_for_model
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.scaleout import Conf
from dl4jlegacy.training import prepare as training
from dl4jlegacy.training.run import resolve

COMMAND = [sys.executable, "-m", "dl4jlegacy"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=300, check=False)


def dl4j(*arguments: str) -> dict:
    done = run(*arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_char_lstm_gives_the_same_answer_for_any_number_of_workers() -> None:
    source, hashes = load("sonnets"), set()
    data = DataSource("some", source.train.rows(0, 120), source.test.rows(0, 8), source.reading)
    for workers in (1, 2, 3, 4):
        conf = Conf(multi_layer_conf=zoo.char_lstm(source.train.n_in, source.train.n_out), workers=workers, epochs=1,
                    jobs_per_round=4, batch_size=10, run=f"char{workers}")  # fmt: skip
        report = training.train(resolve(conf, training.batches(conf, data)), data).fields
        assert (report["batches_lost"], report["batches_duplicated"], report["examples"]) == (0, 0, 120)
        hashes.add(report["params_sha256"])
    assert len(hashes) == 1


@pytest.mark.long
def test_char_lstm_learns_the_sonnets_and_predicts_those_it_has_not_seen(tmp_path: Path) -> None:
    out = tmp_path / "char.zip"
    same = ["--model", "char-lstm", "--dataset", "sonnets", "--workers", "2", "--jobs-per-round", "2"]
    report = dl4j("train", *same, "--batch-size", "16", "--epochs", "8", "--out", str(out))
    assert report["loss"] / 64 < 2.5  # log 59 = 4.08 without any learning, 2.9 from the letters' frequencies
    assert report["accuracy"] > 0.27
    evaluated_again = dl4j("evaluate", str(out), "--dataset", "sonnets")
    assert evaluated_again["loss"] == pytest.approx(report["loss"], rel=1e-6)
    assert evaluated_again["accuracy"] == report["accuracy"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "loss"), [("deep-autoencoder", 29.0), pytest.param("vae", 28.0, marks=pytest.mark.release)]
)
def test_a_model_that_rebuilds_its_input_reports_its_loss_and_no_accuracy(
    model: str, loss: float, tmp_path: Path
) -> None:
    out = tmp_path / "model.zip"
    same = ["--model", model, "--dataset", "digits", "--jobs-per-round", "2", "--seed", "3"]
    few = ["--epochs", "12", "--pretrain-epochs", "6" if model == "deep-autoencoder" else "12"]
    with ThreadPoolExecutor() as side_by_side:
        runs = [(*same, *few, "--workers", "2", "--out", str(out)), (*same, *few, "--workers", "1")]
        reports = list(side_by_side.map(lambda arguments: dl4j("train", *arguments), runs))
    assert reports[0]["params_sha256"] == reports[1]["params_sha256"]
    assert (reports[0]["accuracy"], reports[0]["f1"]) == (None, None)
    assert reports[0]["loss"] < loss
    assert dl4j("evaluate", str(out), "--dataset", "digits")["loss"] == pytest.approx(reports[0]["loss"], rel=1e-6)
    text = run("evaluate", str(out), "--dataset", "digits")
    assert f"mean loss of an example that was held out: {reports[0]['loss']:.4f}" in text.stdout


def test_a_vae_is_a_generative_model_of_its_data() -> None:
    source = source_for_model(load("digits"), "vae")
    assert source.train.labels is source.train.features or (source.train.labels == source.train.features).all()
    network = MultiLayerNetwork(zoo.select("vae").build(64, 64))
    evaluation = evaluate_network(network, source.test, source.label_names)
    assert evaluation.classification is None
    assert evaluation.loss == pytest.approx(evaluate_network(network, source.test, ()).loss)


def test_labels_of_classes_stay_what_they_are() -> None:
    source = load("iris")
    assert source_for_model(source, "mlp") is source
    assert source_for_model(source, "") is source


def test_data_that_do_not_suit_a_model_are_said_before_training() -> None:
    done = run("train", "--model", "char-lstm", "--dataset", "digits")
    assert done.returncode == 3
    assert "the data set is not a text (64 features, 10 classes); use --dataset sonnets" in done.stderr
    with pytest.raises(ShapeError, match="n_in is 8 and n_out is 3; make them equal"):
        zoo.select("deep-autoencoder").build(8, 3)
