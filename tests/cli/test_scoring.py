"""The options by which a training is scored and stopped, and what its report and its folder have of the best model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy import EarlyStopping, ValidationConf, load_model
from dl4jlegacy.cli.options import completion
from dl4jlegacy.cli.options.conf_options import read_conf
from dl4jlegacy.cli.options.read import TrainOptions
from dl4jlegacy.errors import CheckpointError, Dl4jError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.scoring import METRICS
from dl4jlegacy.scaleout.state.records import Figures
from dl4jlegacy.training.checkpoints import export_model
from dl4jlegacy.training.prepare import batches, params_sha256
from dl4jlegacy.training.run_data import load_data

IRIS = ["--model", "mlp", "--dataset", "iris", "--workers", "2", "--jobs-per-round", "4", "--batch-size", "8"]


@pytest.mark.parametrize(
    ("given", "validation", "stopping"),
    [
        ({"validation": "0.1"}, ValidationConf(fraction=0.1, stratify=True), None),
        ({"validation": "iris", "metric": "f1"}, ValidationConf(dataset="iris", metric="f1"), None),
        ({"validation": "0.2", "validate_every": 5}, ValidationConf(fraction=0.2, stratify=True, every_rounds=5), None),
        ({"patience": 3}, None, EarlyStopping(epochs_without_improvement=3)),
        (
            {"patience": 3, "min_improvement": 0.1, "stop_at_score": 0.5, "max_seconds": 9.0},
            None,
            EarlyStopping(epochs_without_improvement=3, min_improvement=0.1, best_score=0.5, max_seconds=9.0),
        ),
        ({"stop_if_invalid": True}, None, EarlyStopping(invalid_score=True)),
        ({}, None, None),
    ],
)
def test_options_say_what_a_run_is_scored_by(given, validation, stopping):
    conf, _ = read_conf(TrainOptions(**given))
    assert (conf.validation, conf.early_stopping) == (validation, stopping)


def test_options_change_what_the_conf_file_says(tmp_path):
    path = tmp_path / "conf.json"
    kept = Conf(
        validation=ValidationConf(fraction=0.3, metric="f1"), early_stopping=EarlyStopping(epochs_without_improvement=3)
    )
    path.write_text(kept.to_json())
    conf, _ = read_conf(TrainOptions(conf=path, validation="0.1", min_improvement=0.2))
    assert conf.validation == ValidationConf(fraction=0.1, metric="f1")
    assert conf.early_stopping == EarlyStopping(epochs_without_improvement=3, min_improvement=0.2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metric": "loss"}, "--metric needs --validation"),
        ({"validate_every": 3}, "--validate-every needs --validation"),
        ({"validation": "1.5"}, "--validation is '1.5'"),
        ({"validation": "nan"}, "--validation is 'nan'"),
        ({"validation": "0.1", "metric": "acuracy"}, "validation.metric is 'acuracy'"),
        ({"min_improvement": 0.1}, "--min-improvement needs --patience"),
        ({"validation": "0.1", "metric": "f1", "stop_at_score": 1.0}, "no f1 is above 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(given, said):
    with pytest.raises(Dl4jError, match=said):
        read_conf(TrainOptions(**given))


def test_each_metric_is_offered_and_has_a_figure():
    assert tuple(METRICS) == completion.METRICS
    assert set(METRICS) < set(Figures.__struct_fields__)


@pytest.mark.parametrize("metric", ["precision", "recall", "matthews_correlation"])
def test_classes_are_scored_by_any_metric_that_evaluation_has(dl4j: Any, metric: str) -> None:
    scored = ["--validation", "0.5", "--metric", metric, "--epochs", "2"]
    best = dl4j.json("train", *IRIS, *scored)["best"]
    assert best["metric"] == metric and best["score"] == best["figures"][metric] != best["figures"]["loss"]


def test_a_metric_that_is_none_is_named_with_the_nearest_that_is(dl4j: Any) -> None:
    said = dl4j("train", *IRIS, "--validation", "0.1", "--metric", "acuracy", fails=2)
    assert "--metric is 'acuracy'; did you mean 'accuracy'" in said


def test_a_training_that_stops_early_saves_its_best_model(dl4j: Any, tmp_path: Path) -> None:
    out, folder = str(tmp_path / "best.zip"), str(tmp_path / "run")
    kept = ["--out", out, "--checkpoint-dir", folder, "--checkpoint-every", "1"]
    scored = ["--validation", "0.3", "--patience", "2", "--epochs", "60", "--learning-rate", "0.5"]
    report = dl4j.json("train", *IRIS, *scored, *kept)
    best = report["best"]
    assert report["stopped_by"].startswith("ScoreImprovementEpochs: loss")
    assert best["round"] < report["rounds"] and best["metric"] == "loss"
    assert best["score"] == best["figures"]["loss"] <= report["validation"]["loss"]
    saved = load_model(out)
    assert params_sha256(saved.network.params) == best["params_sha256"] == report["params_sha256"]
    exported = export_model(folder, str(tmp_path / "exported.zip"), best=True)
    newest = export_model(folder, str(tmp_path / "newest.zip"))
    assert exported["params_sha256"] == best["params_sha256"] != newest["params_sha256"]
    assert exported["score"] == best["score"]


def test_a_run_that_is_not_scored_has_no_best_model_to_export(dl4j: Any, tmp_path: Path) -> None:
    report = dl4j.json("train", *IRIS, "--epochs", "1", "--checkpoint-dir", tmp_path)
    assert not {"best", "validation", "stopped_by"} & set(report)
    with pytest.raises(CheckpointError, match="has kept no best model"):
        export_model(str(tmp_path), str(tmp_path / "best.zip"), best=True)


def test_a_data_set_of_its_own_is_read_like_the_training_data(dl4j: Any) -> None:
    data = load_data("iris")
    assert batches(Conf(dataset="iris"), data).total_examples == 120
    report = dl4j.json("train", *IRIS, "--epochs", "1", "--validation", "iris", "--metric", "accuracy")
    assert report["validation"]["examples"] == 150 and report["best"]["score"] == report["validation"]["accuracy"]
