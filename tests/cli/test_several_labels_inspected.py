"""``dl4j data`` on tables with several labels: what it says of them, the schema, and where training would refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.datasets import TransformProcess
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.run_data import load_new

pytestmark = pytest.mark.usefixtures("here")
ORDERS = "sum,hour,gift,urgent\n" + "".join(f"{7 * i},{i % 5},{int(i > 5)},{i % 2}\n" for i in range(8))
BAD = "x,a,b,c\n1,1,0,1\n2,0,0,1\n3,2,0,1\n4,yes,0,\n5,,0,\n6,,,\n7,-1,0,1\n8,0.0,0,1\n"
ANSWERS = ("--label", "gift,urgent", "--multi-label")


@pytest.fixture(autouse=True)
def tables(here: Path) -> None:
    (here / "orders.csv").write_text(ORDERS)
    (here / "bad.csv").write_text(BAD)


def test_an_inspection_shows_the_share_of_each_label(dl4j: Any) -> None:
    assert dl4j("data", "inspect", "orders.csv", *ANSWERS).splitlines()[5:] == [
        "label        gift, 0 or 1 (--multi-label): 1 in 2 of 8 rows (25.0%)",
        "label        urgent, 0 or 1 (--multi-label): 1 in 4 of 8 rows (50.0%)",
        "impute       sum, hour",
        "quantiles    sum, hour",
        "standardize  sum, hour",
    ]


def test_an_inspection_shows_the_range_of_each_number(dl4j: Any) -> None:
    assert dl4j("data", "inspect", "orders.csv", "--label", "sum, -3").splitlines()[5:] == [
        "label        sum, a number to predict (--regression): 0 .. 49, mean 24.5",
        "label        hour, a number to predict (--regression): 0 .. 4, mean 1.625",
        "impute       gift, urgent",
        "linear       all columns of numbers",
        "standardize  gift, urgent",
    ]


@pytest.mark.parametrize(
    ("words", "multi_label", "ones"),
    [(ANSWERS, True, {"gift": 2, "urgent": 4}), (("--label", "sum,hour", "--regression"), False, None)],
)
def test_the_schema_that_is_written_is_that_of_a_training(
    dl4j: Any, words: tuple[str, ...], multi_label: bool, ones: dict[str, int] | None
) -> None:
    body = dl4j.json("data", "inspect", "orders.csv", *words, "--out", "s.json")
    assert body["label"] == words[1].split(",") and body["ones"] == ones and body["classes"] is None
    assert (body["multi_label"], body["regression"]) == (multi_label, not multi_label)
    schema = TransformProcess.from_json(Path("s.json").read_text(encoding="utf-8"))
    conf, _ = load_new(Conf(dataset="orders.csv"), label=words[1], multi_label=multi_label, encode=True)
    assert load_new(Conf(dataset="orders.csv", transform=schema))[0] == conf


def test_one_label_of_0_and_1_is_learned_by_itself(dl4j: Any) -> None:
    body = dl4j.json("data", "inspect", "orders.csv", "--multi-label")
    assert body["schema"]["labels"] == body["label"] == ["urgent"] and body["schema"]["multi_label"]


@pytest.fixture
def validated(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs ``dl4j data validate`` on a file; returns its problems as JSON has them, and what training refuses."""

    def run(*arguments: str) -> tuple[list[tuple[str, int, list[str]]], str]:
        with pytest.raises(SystemExit) as leave:
            main.main(["data", "validate", *arguments, "--format", "json"])
        body = json.loads(capsys.readouterr().out)
        assert (leave.value.code or 0) == (3 if "error" in body else 0)
        problems = [(part["what"], part["count"], part["examples"]) for part in body["files"][0]["problems"]]
        return problems, body.get("error", {}).get("message", "")

    return run


def test_a_validation_counts_what_is_wrong_with_the_labels(validated: Any) -> None:
    assert validated("bad.csv", "--label", "a,b,c", "--multi-label") == (
        [
            ("missing values in 'a'", 2, ["line 6", "line 7"]),
            ("missing values in 'b'", 1, ["line 7"]),
            ("missing values in 'c'", 3, ["line 5", "line 6", "line 7"]),
            ("rows without a value in a label, which are left out", 3, ["line 5", "line 6", "line 7"]),
            ("rows without any label", 1, ["line 7"]),
            ("labels in 'a' that are neither 0 nor 1", 3, ["line 4 has '2'", "line 5 has 'yes'", "line 8 has '-1'"]),
            ("labels with one value only", 2, ["'b' is 0", "'c' is 1"]),
        ],
        "bad.csv: labels in 'a' that are neither 0 nor 1, 3; correct these, or leave them out",
    )


def test_tables_whose_labels_can_be_learned_are_no_failure(validated: Any) -> None:
    assert validated("orders.csv", *ANSWERS) == validated("orders.csv", "--label", "sum,hour") == ([], "")


def test_a_file_among_others_may_have_one_value_only(dl4j: Any, here: Path) -> None:
    (here / "parts").mkdir()
    for name in ("1", "2"):
        (here / "parts" / f"{name}.csv").write_text(f"x,y\n1,{name}\n2,{name}\n3,{name}\n")
    out = dl4j("data", "validate", "parts")
    assert out.count("1  labels with one value only: 'y' is ") == 2
    dl4j("train", "parts", "--epochs", "1")


@pytest.mark.parametrize(
    ("rows", "words", "problem"),
    [
        ("1,5\n2,5\n3,5.0\n", ("--regression",), ("labels with one value only", 1, ["'y' is 5"])),
        ("1,1\n2,1\n3,1.0\n4,1.0\n", (), ("labels with one value only", 1, ["'y' is '1'"])),
        (
            "1,\n,2\n,3\n1,\n",
            ("--label", "x,y"),
            ("rows without a value in a label, which are left out", 4, ["line 2", "line 3", "line 4", "line 5"]),
        ),
    ],
)
def test_a_validation_fails_where_nothing_could_be_learned(
    validated: Any, dl4j: Any, rows: str, words: tuple[str, ...], problem: tuple[str, int, list[str]]
) -> None:
    header, body = "z,x,y\n", "".join(f"{number},{row}\n" for number, row in enumerate(rows.split()))
    Path("y.csv").write_text(header + body)
    found, error = validated("y.csv", *words)
    assert problem in found and f"y.csv: {problem[0]}, {problem[1]}" in error
    dl4j("train", "y.csv", *words, "--epochs", "1", fails=3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--label", "urgent,urgent"), "orders.csv: the labels 'urgent,urgent' name column 'urgent' twice"),
        (("--label", "gift,urgnet"), "orders.csv has no column 'urgnet'; did you mean 'urgent'"),
        (
            (*ANSWERS, "--regression"),
            "--regression predicts numbers, and --multi-label 0 or 1 for each label; give one",
        ),
        (("--label", "kind", "--multi-label"), "holds words such as 'a', and --multi-label learns 0 or 1 for each"),
        (("--label", "kind,sum"), "orders.csv: the label 'kind' holds words such as 'a', and --regression predicts"),
        (("--label", "gap", "--regression"), "orders.csv: the label 'gap' has no value in any row"),
    ],
)
def test_wrong_labels_are_the_errors_of_train(dl4j: Any, here: Path, words: tuple[str, ...], message: str) -> None:
    first, *rows = ORDERS.splitlines()
    lines = [f"{first},kind,gap", *(f"{row},{'ab'[number % 2]}," for number, row in enumerate(rows))]
    (here / "orders.csv").write_text("\n".join(lines))
    (here / "conf.json").write_text('{"dataset": "orders.csv", "search": {"epochs": [1, 2]}}')
    said = dl4j("train", "orders.csv", *words, fails=3)
    assert message in said
    assert dl4j("tune", "conf.json", *words, fails=3) == said
    table = str(here / "orders.csv")  # as messages of a run name it
    assert dl4j("data", "inspect", table, *words, "--out", "s.json", fails=3) == said
    assert dl4j("data", "validate", table, *words, fails=3) == said
    assert not (here / "s.json").exists()


def test_an_inspection_refuses_what_is_neither_0_nor_1_as_a_training_does(dl4j: Any, here: Path) -> None:
    (here / "orders.csv").write_text(ORDERS.replace("14,2,0,0", "14,2,3.0,0"))
    said = dl4j("data", "inspect", str(here / "orders.csv"), *ANSWERS, fails=3)
    assert "orders.csv, line 4, column 'gift' (3): the label is 3, and one of several that do not exclude" in said
    assert dl4j("train", "orders.csv", *ANSWERS, fails=3) == said
