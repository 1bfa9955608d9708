"""What the last lines of a report say of a model, each sentence provoked with data of a few hundred rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import f1_score, mean_absolute_error, recall_score

from dl4jlegacy import load_model
from dl4jlegacy.datasets import Reading, load
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.scaleout.conf import Conf

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--model", "mlp", "--averaging-frequency", "1", "--batch-size", "32", "--schedule", "constant")


def write(name: str, header: str, rows: Iterable[Iterable[Any]]) -> None:
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(rows)


def shapes(seed: int = 1, rows: int = 400) -> tuple[np.ndarray, list[str]]:
    """Five columns, and the classes that follow from two of them."""
    x = np.random.default_rng(seed).normal(size=(rows, 5))
    return x, ["oval" if each else "round" for each in x[:, 0] + x[:, 1] > 0]


def write_shapes(labels: list[str] | None = None, seed: int = 1) -> None:
    x, classes = shapes(seed)
    write("shapes.csv", "a,b,c,d,e,shape", ([*row, label] for row, label in zip(x, labels or classes, strict=True)))


def ending(text: str) -> list[str]:
    """The lines of a report from the figures on, without what they are of."""
    return [line for line in text.splitlines() if line.startswith(("accuracy", "r2", "baseline", "finding"))]


def test_a_model_that_has_learned_stands_beside_the_commonest_class(dl4j: Any) -> None:
    write_shapes()
    report = dl4j.json("train", "shapes.csv", *SHORT, "--epochs", "40", "--out", "m.zip")
    assert report["learned"] is True
    source = load("shapes.csv")
    labels, names = source.test.labels.argmax(axis=1), source.label_names
    usual = source.train.labels.sum(axis=0).argmax()
    assert report["baseline"] == {
        "answer": f"always '{names[usual]}'",
        "accuracy": (labels == usual).mean(),
        "macro_f1": pytest.approx(f1_score(labels, np.full(len(labels), usual), average="macro")),
    }
    model = load_model("m.zip")
    answers = model.predict(source.test.features)
    assert report["macro_f1"] == pytest.approx(f1_score(labels, answers, average="macro"))
    assert list(report["class_recall"]) == list(names)
    assert list(report["class_recall"].values()) == pytest.approx(recall_score(labels, answers, average=None).tolist())
    found = dl4j.json("evaluate", "m.zip", "--dataset", "shapes.csv")
    both = ("learned", "baseline", "macro_f1", "class_recall")
    assert {name: found[name] for name in both} == {name: report[name] for name in both}
    said = ending(dl4j("evaluate", "m.zip", "--dataset", "shapes.csv"))
    assert found["findings"] == [] and said == [
        f"accuracy  {report['accuracy']:.4f}, f1 {report['f1']:.4f}, macro f1 {report['macro_f1']:.4f}",
        f"baseline  {report['baseline']['accuracy']:.4f} by always '{names[usual]}'",
    ]


def test_a_run_that_collapses_says_so_saves_its_model_and_ends_with_an_exit_code_of_its_own(dl4j: Any) -> None:
    write_shapes()
    Path("conf.json").write_text(Conf(multi_layer_conf=zoo.mlp(5, 2), dataset="shapes.csv", batch_size=32).to_json())
    sgd = ("--updater", "sgd", "--learning-rate", "30")
    train = ("train", "conf.json", "--jobs-per-round", "1", "--epochs", "30", *sgd)
    said = dl4j(*train, "--out", "m.zip", fails=13)
    assert "error [DL4J-COLLAPSED]: the run collapsed: it gives one answer for everything, although" in said
    report = dl4j.out
    assert "finding   always answers 'oval'" in report or "finding   always answers 'round'" in report
    assert report.splitlines()[-1] == "finding   try another --learning-rate, --updater or --seed"
    found = ending(dl4j("evaluate", "m.zip", "--dataset", "shapes.csv"))
    assert found[-1] == "finding   has not learned"
    dl4j(*train, "--format", "json", fails=13)
    body = dl4j.out
    assert '"learned": false' in body and '"error": {"code": "DL4J-COLLAPSED"' in body and '"exit": 13' in body


def test_a_run_whose_score_becomes_infinite_ends_with_the_same_exit_code(dl4j: Any) -> None:
    x = np.random.default_rng(3).normal(size=(300, 3))
    write("amounts.csv", "a,b,c,y", ([*row, row[0] * 2] for row in x))
    train = ("train", "amounts.csv", "--label", "y", "--regression", *SHORT, "--updater", "sgd")
    assert "DL4J-NOTFINITE" in dl4j(*train, "--learning-rate", "1e20", fails=13)


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_data_without_a_pattern_are_not_learned_and_no_failure(dl4j: Any, seed: int) -> None:
    labels = np.random.default_rng(seed).choice(["oval", "round"], 400).tolist()
    write_shapes(labels, seed)
    report = dl4j.json("train", "shapes.csv", *SHORT, "--epochs", "30")
    assert report["learned"] is False
    assert any(each.startswith("no better than always '") for each in report["findings"])
    assert any(each.startswith("has not learned") for each in report["findings"])


def test_a_training_that_is_too_short_asks_for_more_epochs(dl4j: Any) -> None:
    write_shapes()
    assert dl4j.json("train", "shapes.csv", *SHORT, "--epochs", "2")["findings"][-1] == "still improving: more epochs"


def test_a_rare_class_that_is_never_found_is_named_and_weights_are_suggested(dl4j: Any) -> None:
    x, labels = shapes(rows=600)
    rng = np.random.default_rng(4)
    rare = ["invalid" if each else label for each, label in zip(rng.random(600) < 0.06, labels, strict=True)]
    write("shapes.csv", "a,b,c,d,e,shape", ([*row, label] for row, label in zip(x, rare, strict=True)))
    train = ("train", "shapes.csv", *SHORT, "--epochs", "30", "--stratify")
    report = dl4j.json(*train)
    held_out = round(rare.count("invalid") / 5)
    assert report["learned"] is True and report["class_recall"]["invalid"] == 0
    assert report["findings"][0] == f"never finds 'invalid' (0 of {held_out})"
    assert report["findings"][-1] == "--class-weights balanced makes rare classes count for more"
    assert report["macro_f1"] < report["f1"], "which leaves the class out that is never predicted"
    weighted = dl4j.json(*train, "--class-weights", "balanced")
    assert not any("--class-weights" in each for each in weighted["findings"])


def test_numbers_are_held_against_the_mean_of_the_training_part(dl4j: Any) -> None:
    x = np.random.default_rng(5).normal(size=(400, 3))
    write("amounts.csv", "a,b,c,y", ([*row, 100 + 5 * each] for row, each in zip(x, x[::-1, 0], strict=True)))
    train = ("train", "amounts.csv", "--label", "y", "--regression", *SHORT, "--epochs", "20", "--out", "m.zip")
    report = dl4j.json(*train)
    transform = load_model("m.zip").reading.transform
    assert transform is not None
    source = load("amounts.csv", reading=Reading(transform=transform))
    mean = transform.in_units(source.train.labels).mean()
    labels = transform.in_units(source.test.labels)
    assert report["baseline"]["mae"] == pytest.approx(mean_absolute_error(labels, np.full(len(labels), mean)))
    assert report["baseline"]["answer"] == f"always the mean, {mean:.6g}" and report["learned"] is False
    assert report["findings"][0].startswith(f"no better than always the mean, {mean:.6g} (mae ")


def test_a_table_of_lags_is_held_against_the_last_value(dl4j: Any) -> None:
    series = 20 + np.cumsum(np.random.default_rng(6).normal(size=500))
    rows = [(*series[i - 3 : i], series[i]) for i in range(3, 500)]
    write("lags.csv", "lag_3,lag_2,lag_1,y", rows)
    train = ("train", "lags.csv", "--label", "y", "--regression", *SHORT, "--epochs", "3", "--out", "m.zip")
    report = dl4j.json(*train)
    transform = load_model("m.zip").reading.transform
    assert transform is not None
    labels = transform.in_units(load("lags.csv", reading=Reading(transform=transform)).test.labels)[:, 0]
    places = [int(np.abs(series - y).argmin()) for y in labels]
    mae = np.mean([abs(series[at] - series[at - 1]) for at in places])
    assert report["baseline"]["answer"] == "the last value, in column 'lag_1'"
    assert report["baseline"]["mae"] == pytest.approx(mae, rel=1e-4) and report["baseline"]["mae"] < report["mae"]
    assert report["findings"][0].startswith("no better than the last value, in column 'lag_1' (mae ")
    assert report["learned"] is True, "better than the mean by far"
    assert dl4j.json("evaluate", "m.zip", "--dataset", "lags.csv")["baseline"] == pytest.approx(report["baseline"])


def test_a_finished_run_says_the_same_when_it_is_resumed(dl4j: Any) -> None:
    write_shapes()
    train = ("train", "shapes.csv", *SHORT, "--epochs", "2", "--checkpoint-dir", "run")
    report = dl4j.json(*train)
    again = dl4j.json("resume", "run")
    judged = ("learned", "baseline", "findings", "params_sha256")
    assert {name: again[name] for name in judged} == {name: report[name] for name in judged}
    assert report["findings"][-1] == "still improving: more epochs"


def test_a_rate_that_is_far_too_small_is_no_learning(dl4j: Any) -> None:
    write_shapes()
    report = dl4j.json("train", "shapes.csv", *SHORT, "--epochs", "2", "--learning-rate", "1e-12")
    assert report["learned"] is False
    assert any(each.startswith("has not learned (score as at the start: ") for each in report["findings"])


def test_a_network_that_always_predicts_the_same_number_is_a_collapse(dl4j: Any) -> None:
    x = np.random.default_rng(8).normal(size=(300, 3))
    write("amounts.csv", "a,b,c,y", ([*row, 7 + row[0]] for row in x))
    Path("conf.json").write_text(
        Conf(multi_layer_conf=dead(zoo.for_regression(zoo.ZOO["mlp"], zoo.mlp(3, 1)))).to_json()
    )
    flags = ("--dataset", "amounts.csv", "--label", "y", "--regression", "--jobs-per-round", "1", "--epochs", "20")
    dl4j("train", "conf.json", *flags, fails=13)
    assert "finding   always answers about " in dl4j.out and "finding   no better than always the mean, " in dl4j.out


def dead(network: MultiLayerConfiguration) -> MultiLayerConfiguration:
    """A network, no first unit of which ever answers."""
    first = msgspec.structs.replace(network.layers[0], activation="relu", bias_init=-1e3)
    return network.replace(layers=(first, *network.layers[1:]))


def test_images_of_which_a_network_sees_nothing_are_a_collapse(dl4j: Any) -> None:
    rng = np.random.default_rng(7)
    for kind, level in (("dark", 60), ("light", 180)):
        Path("photos", kind).mkdir(parents=True)
        for i in range(60):
            pixels = rng.integers(0, 60, (8, 8)) + level
            Image.fromarray(pixels.astype(np.uint8)).save(Path("photos", kind, f"{i}.png"))
    conf = Conf(multi_layer_conf=dead(zoo.mlp(64, 2, drop_out=0)), dataset="photos", epochs=40)
    Path("conf.json").write_text(conf.to_json())
    dl4j("train", "conf.json", "--jobs-per-round", "1", "--format", "json", fails=13)
    assert '"learned": false' in dl4j.out and "DL4J-COLLAPSED" in dl4j.out
