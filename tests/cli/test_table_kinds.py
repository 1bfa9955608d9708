"""Tables that are no CSV files, from the command line: learned, resumed, evaluated, predicted as the CSV file is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from dl4jlegacy.datasets.tables import stored_tables
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import prepare

pytestmark = pytest.mark.usefixtures("cars")
SHORT = ("--epochs", "2", "--jobs-per-round", "4", "--batch-size", "8", "--schedule", "constant")
PRICE = ("--label", "price", "--regression")


@pytest.fixture
def cars(here: Path) -> Path:
    """The same table in each kind, and in parts."""
    fuel = ["gas", "oil", None, "gas", "oil", "gas", "gas", "oil"] * 8
    age = [None if number % 11 == 0 else number % 7 for number in range(64)]
    price = [100.25 * ((number % 7) or 1) + number % 8 for number in range(64)]
    table = pa.table({"fuel": fuel, "age": age, "price": price})
    pa.csv.write_csv(table, "cars.csv")
    pa.parquet.write_table(table, "cars.parquet", row_group_size=10)
    pa.feather.write_feather(table, "cars.feather")
    Path("cars.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")
    Path("parts").mkdir()
    for number in range(4):
        pa.parquet.write_table(table.slice(number * 16, 16), f"parts/part-{number}.parquet")
    return here


def test_a_model_of_one_kind_takes_the_others_and_says_what_does_not_fit(dl4j: Any, cars: Path) -> None:
    dl4j("train", "cars.parquet", "--label", "1", *SHORT, "--out", "m.zip")
    others = ("cars.csv", "cars.jsonl", "cars.parquet", "parts/*")
    reports = [dl4j.json("evaluate", "m.zip", "--dataset", name) for name in others]
    assert len({report["loss"] for report in reports}) == 1
    answers = {dl4j("predict", "m.zip", name) for name in ("cars.csv", "cars.jsonl", "cars.feather", "cars.parquet")}
    assert len(answers) == 1 and len(answers.pop().splitlines()) == 64
    pa.parquet.write_table(pa.table({"age": [1, 2], "price": [[1.0], [2.0]]}), "bad.parquet")
    said = dl4j("predict", "m.zip", "bad.parquet", fails=3)
    assert "bad.parquet, row 1, column 'price': [1.0] (list<" in said
    Path("bad.jsonl").write_text('{"age": 1, "price": 2}\n{"age": "old", "price": 2}\n', encoding="utf-8")
    assert "bad.jsonl, line 2, column 'age' (1): 'old' is not a number" in dl4j(
        "predict", "m.zip", "bad.jsonl", fails=3
    )


def test_a_run_on_parts_named_by_a_pattern_goes_on_from_any_folder(
    dl4j: Any, cars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", "--dataset", "parts/*.parquet", *PRICE, *SHORT)
    dl4j(*train, "--checkpoint-dir", "run", "--checkpoint-every", "1")
    kept = Path("run", "conf.json")
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "epochs": 3}), encoding="utf-8")
    longer = dl4j.json(*train, "--epochs", "3")["params_sha256"]
    monkeypatch.chdir("/")
    assert dl4j.json("resume", str(cars / "run"))["params_sha256"] == longer


def test_the_data_commands_take_every_kind(dl4j: Any, cars: Path) -> None:
    shown = {
        dl4j("data", "inspect", name, "--label", "price").partition("\n")[2] for name in ("cars.csv", "cars.parquet")
    }
    assert len(shown) == 1 and "2 words: gas 32" in shown.pop()
    said = dl4j("data", "validate", "cars.parquet", *PRICE)
    assert "6  missing values in 'age': row 1, row 12, row 23" in said
    assert "line 1" in dl4j("data", "validate", "cars.jsonl", *PRICE)
    assert dl4j("data", "validate", "parts/*.parquet", *PRICE).count("16 rows") == 4


def test_a_large_table_of_numbers_gets_a_schema(cars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("numbers.csv").write_text("a,label\n" + "1,0\n7,1\n" * 10, encoding="utf-8")
    fields = {"dataset": str(cars / "numbers.csv"), "model": "dbn", "epochs": 1}
    assert prepare(Conf(**fields), frozenset(fields))[0].conf.transform is None
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(cars / "cache"))
    monkeypatch.setattr(stored_tables, "LARGE", 0)
    transform = prepare(Conf(**fields), frozenset(fields))[0].conf.transform
    assert transform is not None and transform.label == "label" and transform.classes == ("0", "1")
