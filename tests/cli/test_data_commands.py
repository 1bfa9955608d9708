"""``dl4j data``: what it says of CSV files, and the schema that it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.datasets import TransformProcess

CARS = "fuel,age,price\n" + "".join(f"{'gas' if i % 3 else 'oil'},{i % 7 or ''},{100 * i + 0.5}\n" for i in range(30))
BAD = "a,b,y\n1,x,p\n1,x,p\nz,,q\n2,x,r\n3,x,r\n4,r\n5,x,\n6,x,\n"


@pytest.fixture(autouse=True)
def tables(here: Path) -> None:
    (here / "cars.csv").write_text(CARS)
    (here / "bad.csv").write_text(BAD)


def test_an_inspection_shows_columns_and_classes(dl4j: Any) -> None:
    out = dl4j("data", "inspect", "cars.csv", "--label", "fuel")
    assert out.splitlines() == [
        "cars.csv: 30 rows of 3 columns, with a header",
        "   1  fuel   category  2 words: gas 20 (66.7%), oil 10 (33.3%)",
        "   2  age    number    1 .. 6, mean 3.4; 5 missing",
        "   3  price  number    0.5 .. 2900.5, mean 1450",
        "label        fuel, 2 classes: gas 20 (66.7%), oil 10 (33.3%)",
        "mark-gaps    age",
        "impute       age, price",
        "quantiles    age, price",
        "standardize  age, price",
    ]


def test_a_dry_run_names_the_steps_of_a_guessed_schema_and_of_no_other(dl4j: Any) -> None:
    train = ("train", "cars.csv", "--label", "fuel", "--dry-run")
    choices = dl4j.json(*train)["choices"]
    steps = "mark-gaps, impute, quantiles, standardize"
    assert choices["schema"] == f"{steps}: what the columns need, as dl4j data inspect shows them"
    assert f"schema                {choices['schema']}" in dl4j(*train).splitlines()
    assert "schema" not in dl4j.json("train", "--dataset", "iris", "--dry-run")["choices"]
    dl4j("data", "inspect", "cars.csv", "--label", "fuel", "--out", "s.json")
    assert "schema" not in dl4j.json("train", "cars.csv", "--schema", "s.json", "--dry-run")["choices"]


def test_the_schema_that_is_written_is_the_one_that_would_be_guessed(dl4j: Any) -> None:
    body = dl4j.json("data", "inspect", "cars.csv", "--out", "s.json")
    schema = TransformProcess.from_json(Path("s.json").read_text(encoding="utf-8"))
    assert TransformProcess.from_json(json.dumps(body["schema"])) == schema
    assert (schema.label, schema.regression, body["regression"], body["classes"]) == ("price", True, True, None)
    assert [column["missing"] for column in body["columns"]] == [0, 5, 0]
    assert "cannot be written" in dl4j("data", "inspect", "cars.csv", "--out", "no/such/s.json", fails=1)


def test_a_validation_counts_problems_with_examples_and_fails_where_training_would(dl4j: Any) -> None:
    err = dl4j("data", "validate", "bad.csv", fails=3)
    assert dl4j.out.splitlines() == [
        "bad.csv: 7 rows, 6 kinds of problems",
        "        1  ragged rows: line 7 has 2 columns, not 3",
        "        1  duplicated rows: line 3",
        "        1  invalid numbers in 'a': line 4 has 'z'",
        "        1  missing values in 'b': line 4",
        "        2  missing values in 'y': line 8, line 9",
        "        1  classes of 'y' that occur once: 'q'",
        "verdict: dl4j train refuses this; the error says what to correct",
    ]
    assert "ragged rows, 1; bad.csv: invalid numbers in 'a', 1; bad.csv: classes of 'y' that occur once, 1" in err
    dl4j("data", "validate", "bad.csv", "--format", "json", fails=3)
    body = json.loads(dl4j.out)
    assert body["files"][0]["problems"][0]["count"] == 1 and body["error"]["exit"] == 3
    assert body["is_accepted"] is False and dl4j.json("data", "validate", "cars.csv", "--regression")["is_accepted"]


def test_gaps_alone_are_no_failure(dl4j: Any) -> None:
    assert "real numbers, which are no classes; to predict them, give --reg" in dl4j(
        "data", "validate", "cars.csv", fails=3
    )
    out = dl4j("data", "validate", "cars.csv", "--regression")
    assert "5  missing values in 'age': line 2, line 9, line 16, line 23, line 30" in out and not dl4j.err
    assert out.endswith("verdict: dl4j train takes this, with the problems above\n")


def test_what_has_no_columns_is_refused(dl4j: Any) -> None:
    assert "digits is neither a table nor a folder" in dl4j("data", "inspect", "digits", fails=3)
    assert "has no column 'x'" in dl4j("data", "inspect", "cars.csv", "--label", "x", fails=3)
    assert "no such file" in dl4j("data", "validate", "absent.csv", fails=3)
