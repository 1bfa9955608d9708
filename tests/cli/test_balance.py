"""Classes of different sizes, from the command line: parts with their share of each, and weights in the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("here")
SHORT = ("--epochs", "2", "--jobs-per-round", "4", "--batch-size", "8")
BALANCED = ("--stratify", "--class-weights", "balanced")


@pytest.fixture
def rare(here: Path) -> list[str]:
    """A table of 200 rows, of which 13 are of the class that is looked for, in numbers and words."""
    rng = np.random.default_rng(3)
    for name, words in (("numbers.csv", ("1", "2")), ("words.csv", ("red", "blue"))):
        rows = ["x,y,label"]
        for number in range(200):
            kind = "rare" if number % 16 == 7 else "usual"
            rows.append(f"{rng.normal() + 2 * (kind == 'rare'):.4f},{rng.choice(words)},{kind}")
        (here / name).write_text("\n".join(rows) + "\n")
    return ["numbers.csv", "words.csv"]


@pytest.mark.parametrize("file", [0, 1])
def test_both_parts_have_the_rare_class_and_evaluate_finds_the_same_part_again(
    dl4j: Any, rare: list[str], file: int
) -> None:
    report = dl4j.json("train", "--dataset", rare[file], *BALANCED, *SHORT, "--out", "m.zip")
    assert report["stratified"] is True
    assert report["class_weights"] == {"rare": 8.0, "usual": 160 / 300}  # of 10 and 150 to learn from
    found = dl4j.json("evaluate", "m.zip", "--dataset", rare[file])
    assert [found[name] for name in ("accuracy", "f1", "loss", "examples")] == [
        *(report[name] for name in ("accuracy", "f1", "loss")),
        40,
    ]


def test_weights_by_name(dl4j: Any, rare: list[str]) -> None:
    command = ("train", "--dataset", rare[1], *SHORT)
    report = dl4j.json(*command, "--class-weights", "rare=5, usual=0.5")
    assert report["class_weights"] == {"rare": 5.0, "usual": 0.5} and "stratified" not in report
    for given, said in (
        ("rare", "give balanced, or weights such as yes=5,no=1"),
        ("rare=x", "--class-weights rare is 'x'; it must be a number, not negative"),
        ("rare=1,rare=2", "it names 'rare' twice"),
    ):
        assert said in dl4j(*command, "--class-weights", given, fails=2)
    assert "names 'Rare', which is no class of the data; did you mean 'rare'" in dl4j(
        *command, "--class-weights", "Rare=2", fails=3
    )


def test_what_cannot_be_stratified_or_weighed_is_said(dl4j: Any, here: Path, rare: list[str]) -> None:
    (here / "lone.csv").write_text("x,label\n" + "1,a\n2,b\n" * 5 + "3,c\n")
    said = dl4j("train", "--dataset", "lone.csv", "--stratify", *SHORT, fails=3)
    assert "lone.csv, line 12, column 'label' (2): label 'c' occurs once" in said
    (here / "priced.csv").write_text("x,price\n" + "".join(f"{n},{n / 2}\n" for n in range(20)))
    priced = ("train", "--dataset", "priced.csv", "--label", "price", "--regression", *SHORT)
    assert "the label 'price' is a number to predict" in dl4j(*priced, "--stratify", fails=3)
    assert "has loss 'mse', in which its weights are those of outputs" in dl4j(
        *priced, "--class-weights", "balanced", fails=3
    )
