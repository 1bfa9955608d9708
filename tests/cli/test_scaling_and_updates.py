"""The command says what it does to the features, and what many workers do to the number of updates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dl4jlegacy import Conf
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.summary import summarize
from dl4jlegacy.training.notices import few_updates, opening
from dl4jlegacy.training.prepare import prepare

pytestmark = pytest.mark.usefixtures("here")
FEW = ("train", "--dataset", "iris", "--epochs", "1")


def test_a_text_says_that_features_were_scaled_and_how_to_leave_them(dl4j: Any) -> None:
    assert "scaled by their training values" in (said := dl4j(*FEW)) and "--no-scaling" in said
    assert "scaled" not in dl4j(*FEW, "--no-scaling")


def test_features_are_left_alone_where_that_is_asked_for_also_when_the_run_goes_on(
    dl4j: Any,
) -> None:
    found: dict[str, dict[str, Any]] = {}
    for flags in ((), ("--no-scaling",)):
        folder, model = f"run{len(found)}", f"model{len(found)}.zip"
        report = dl4j.json(*FEW, *flags, "--checkpoint-dir", folder, "--out", model)
        again = dl4j.json("resume", folder)
        assert again["params_sha256"] == report["params_sha256"]
        assert again["scaled_features"] is report["scaled_features"] is (not flags)
        scored = dl4j.json("evaluate", model, "--dataset", "iris")
        assert scored["accuracy"] == report["accuracy"]
        found[folder] = report
    assert found["run0"]["params_sha256"] != found["run1"]["params_sha256"]


def prepared(examples_per_update: int | None = None, **fields: Any) -> Any:
    conf = Conf(dataset="digits", model="mlp", **fields)
    return prepare(conf, frozenset(fields), examples_per_update=examples_per_update)[0]


def test_more_jobs_than_the_usual_ones_are_warned_of_with_the_numbers() -> None:
    usual = prepared(jobs_per_round=4, epochs=10, batch_size=32)
    assert few_updates(usual) == "" == few_updates(prepared(jobs_per_round=1, epochs=10, batch_size=32))
    many = prepared(jobs_per_round=12, epochs=10, batch_size=32)
    said = few_updates(many)
    for words in (
        "12 jobs a round average 384 examples to one update",
        f"{many.plan.total_rounds:,} updates in 10 epochs",
        "--epochs 30",
        "--examples-per-update 128",
    ):
        assert words in said
    assert prepared(jobs_per_round=12, epochs=30, batch_size=32).plan.total_rounds >= usual.plan.total_rounds
    assert few_updates(prepared(jobs_per_round=12, epochs=10, batch_size=32, router="hogwild")) == ""


@pytest.mark.parametrize(
    ("fields", "batch"),
    [
        ({"jobs_per_round": 12}, 10),
        ({"jobs_per_round": 3, "averaging_frequency": 2}, 21),
        ({"workers": 12}, 128),  # the mlp has one job a round
    ],
)
def test_examples_per_update_keep_the_number_of_updates_whatever_the_jobs(fields: Any, batch: int) -> None:
    run = prepared(128, epochs=10, **fields)
    assert run.conf.batch_size == batch
    usual = prepared(jobs_per_round=4, epochs=10, batch_size=32)
    assert run.plan.total_rounds == pytest.approx(usual.plan.total_rounds, rel=0.1)


def test_the_rest_is_chosen_for_the_batches_that_examples_per_update_give() -> None:
    found, expected = prepared(128, epochs=10).conf, prepared(epochs=10, batch_size=128, averaging_frequency=1).conf
    assert found.multi_layer_conf == expected.multi_layer_conf and found.validation == expected.validation
    assert found.choices.keys() - expected.choices.keys() == {"averaging_frequency"}
    assert "root of 128 / 32" in found.choices["learning_rate"]


def test_examples_that_cannot_be_shared_out_are_refused(dl4j: Any) -> None:
    with pytest.raises(ConfError, match="11 examples cannot be shared out to the 12 batches"):
        prepared(11, jobs_per_round=12)
    said = dl4j(*FEW, "--examples-per-update", "64", "--batch-size", "16", fails=2)
    assert "leave --batch-size out" in said


def test_the_warning_comes_before_the_training_and_as_json_where_that_is_asked_for(
    dl4j: Any,
) -> None:
    dl4j(*FEW, "--jobs-per-round", "5", "--log-format", "json")
    events = [json.loads(line) for line in dl4j.err.splitlines() if line.startswith("{")]
    assert [event["event"] for event in events[:2]] == ["opening", "warning"]
    assert "5 jobs a round" in events[1]["text"]
    dl4j(*FEW, "--jobs-per-round", "4", "--workers", "5")
    assert "updates in 1 epoch" not in dl4j.err


@pytest.mark.parametrize("dataset", ["iris", "digits"])
def test_a_run_without_options_ends_in_the_same_bits_for_any_number_of_workers(dataset: str, dl4j: Any) -> None:
    reports = [dl4j.json("train", "--dataset", dataset, "--epochs", "2", "--workers", workers) for workers in (1, 8)]
    assert len({report["params_sha256"] for report in reports}) == 1
    assert {report["jobs_per_round"] for report in reports} == {1}


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (0, ["1 worker at a time, others stand by; --jobs-per-round uses more"]),
        (1, []),
        (2, ["1 of 2 workers stand by; --jobs-per-round 2 uses it"]),
        (4, ["3 of 4 workers stand by; --jobs-per-round 4 uses them"]),
    ],
)
def test_workers_without_work_are_said_in_one_line(workers: int, words: list[str]) -> None:
    run, data = prepare(Conf(dataset="iris"), frozenset({"dataset"}), local_workers=workers)
    first = "1 job a round suits 120 rows: "
    assert opening(run, data) == ("model mlp: the data are rows of numbers", *(first + each for each in words))
    given, _ = prepare(Conf(dataset="iris", jobs_per_round=1), frozenset({"jobs_per_round"}), local_workers=workers)
    assert len(opening(given, data)) == 1


def test_a_run_says_how_long_a_core_works_for_all_time_steps() -> None:
    run, data = prepare(Conf(dataset="sonnets", epochs=400), frozenset({"dataset", "epochs"}))
    steps, rows = data.train.features.shape[2], data.train.num_examples
    assert run.conf.network_conf is not None and steps > 10
    multiply_adds = summarize(run.conf.network_conf).multiply_adds * steps * rows * 400
    minutes = round(3 * multiply_adds / 2e10 / 60)
    assert minutes > 1 and f"about {minutes} minutes of work for one core, by its multiply-adds" in opening(run, data)
