"""What a run does when nobody says how: pure choices from counts of the data, with reasons."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from dl4jlegacy.nn.zoo import ZOO
from dl4jlegacy.scaleout.conf import USUAL_JOBS
from dl4jlegacy.scaleout.scoring import ValidationConf
from dl4jlegacy.training.choices import Facts, choose

MODELS = sorted(ZOO)
ROWS = [int(50 * 1.05**power) for power in range(160)]


def chosen(rows: int, model: str = "", **given: Any) -> dict[str, Any]:
    """Return the chosen values for a table with so many rows."""
    choices = choose(Facts(kind=ZOO[model or "mlp"].of, rows=rows), given | ({"model": model} if model else {}))
    return {name: choice.value for name, choice in choices.items()}


def updates(values: dict[str, Any], rows: int) -> float:
    """Return the updates of a run, without rounding batches."""
    return float(values["epochs"] * rows / values["batch_size"])


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_its_way_of_training(model: str) -> None:
    values = chosen(5000, model)
    assert {"batch_size", "epochs", "averaging_frequency", "jobs_per_round", "validation"} <= values.keys()
    assert "model" not in values


def test_a_recipe_has_one_job_a_round_and_averages_once_an_epoch() -> None:
    values = chosen(10_000)
    assert values["model"] == "mlp"
    assert values["validation"] == ValidationConf(fraction=0.104), "a tenth, and what would be a short last batch"
    assert (values["batch_size"], values["epochs"]) == (128, 29)
    assert (values["jobs_per_round"], values["averaging_frequency"]) == (1, 8960 // 128)


def test_what_is_given_is_not_chosen_and_the_rest_follows_from_it() -> None:
    values = chosen(10_000, batch_size=32, epochs=3, jobs_per_round=2, validation=None)
    assert not {"batch_size", "epochs", "jobs_per_round", "validation"} & values.keys()
    assert values["averaging_frequency"] == 1
    assert values["learning_rate"] == pytest.approx(0.002)
    assert "learning_rate" not in chosen(10_000, updater="sgd")


def test_an_updater_without_a_rate_gets_no_schedule_for_it() -> None:
    assert chosen(10_000, updater="sgd")["schedule"] == "linear"
    assert "schedule" not in chosen(10_000, updater="adadelta")


@pytest.mark.parametrize("model", ["mlp", "lstm", "dbn", "lenet", "deep-autoencoder"])
def test_no_number_of_rows_is_a_cliff(model: str) -> None:
    before = chosen(ROWS[0], model)
    for fewer, rows in itertools.pairwise(ROWS):
        now = chosen(rows, model)
        assert 0.45 < updates(now, rows) / updates(before, fewer) < 2.2
        held = [0.0 if each["validation"] is None else each["validation"].fraction for each in (before, now)]
        assert abs(held[1] - held[0]) < 0.04 + 0.05, "the fewest rows that validate, and a short last round"
        before = now


def test_a_network_beside_lags_grows_with_the_rows_without_a_cliff() -> None:
    assert "hidden" not in choose(Facts(kind="", rows=20_000), {})
    found = [choose(Facts(kind="", rows=rows, has_lags=True), {})["hidden"] for rows in range(10, 20_000, 10)]
    sizes = [choice.value for choice in found]
    assert (sizes[0], sizes[44], sizes[-1]) == ((2, 1), (14, 7), (256, 128))
    assert all(0 <= now - before <= 1 for (before, _), (now, _) in itertools.pairwise(sizes))
    assert found[44].words() == "14,7: lags of a series, and 450 rows to learn what they leave"
    lags = Facts(kind="", rows=450, has_lags=True)
    assert "hidden" not in choose(lags, {"hidden": (9,)}) | choose(lags, {"model": "dbn"})


def test_few_rows_all_train_and_a_tenth_of_many_validates() -> None:
    assert chosen(1000)["validation"] is None
    assert 0 < chosen(1500)["validation"].fraction < 0.1
    assert chosen(2500)["validation"].fraction == pytest.approx(0.1, abs=0.01)
    assert chosen(2500, batch_size=2000)["validation"].fraction == 0.1, "a last round that is not short"


def test_a_part_with_classes_is_drawn_by_class_and_says_so() -> None:
    choice = choose(Facts(kind="", rows=3000, has_classes=True), {})["validation"]
    assert choice.value == ValidationConf(fraction=0.104, stratify=True)
    assert choice.words() == "0.104: 10% of 3,000 rows, and of each class, choose the best epoch"


def test_batches_that_compute_for_long_are_shared_and_the_rate_grows_with_the_jobs() -> None:
    facts = Facts(kind="", rows=60_000, image=(3, 64, 64), multiply_adds=12_000_000)
    values = {name: choice.value for name, choice in choose(facts, {"model": "cnn"}).items()}
    assert values["jobs_per_round"] == 4
    assert values["averaging_frequency"] == 1
    assert values["learning_rate"] == pytest.approx(0.004)
    assert values["epochs"] * 54_000 / 32 / 4 >= 2400, "updates are still enough"
    few = choose(msgspec.structs.replace(facts, rows=3000), {"model": "cnn"})
    assert few["jobs_per_round"] == (1, "2,436 batches are too few to share")


def test_a_strategy_that_needs_several_jobs_gets_them() -> None:
    choices = choose(Facts(kind="", rows=6000, shares=True), {"router": "hogwild"})
    assert choices["jobs_per_round"].value == USUAL_JOBS
    assert choices["learning_rate"].value == pytest.approx(0.001 * (64 / 32) ** 0.5, rel=1e-3)


def test_every_choice_has_a_reason() -> None:
    choices = choose(Facts(kind="", rows=3000), {})
    assert choices["model"].words() == "mlp: the data are rows of numbers"
    assert choices["validation"].words() == "0.104: 10% of 3,000 rows choose the best epoch"
    assert all(choice.reason for choice in choices.values())
