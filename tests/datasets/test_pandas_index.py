"""The index that pandas writes beside the columns: nobody learns from it without meaning to, and it is no label."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dl4jlegacy.cli import main
from dl4jlegacy.datasets import Reading, guess_schema, inspect_csv, load
from dl4jlegacy.datasets.tables.pandas_index import listed_columns
from dl4jlegacy.datasets.tables.table_files import counting_columns
from dl4jlegacy.errors import DataError

ROWS = 60
DRAWN = np.random.default_rng(1)
FRAME = pd.DataFrame(
    {"a": DRAWN.normal(size=ROWS), "b": DRAWN.normal(size=ROWS), "kind": ["ham", "spam"] * (ROWS // 2)}
).sample(frac=1, random_state=2)
NAMED = FRAME.rename_axis("serial")
BARE = FRAME.reset_index(drop=True)


def again(path: Path) -> None:
    """A file that ``read_csv`` has read, with the index as a column, and that is written without another one."""
    FRAME.to_csv(path)
    pd.read_csv(path).to_csv(path, index=False)


WRITTEN: dict[str, Callable[[Path], Any]] = {
    "nameless.csv": FRAME.to_csv,
    "again.csv": again,
    "from one.csv": lambda path: FRAME.set_axis(FRAME.index + 1).to_csv(path),
    "some left out.csv": lambda path: FRAME.drop(FRAME.index[:9]).to_csv(path),
    "gzipped.csv.gz": FRAME.to_csv,
    "level.parquet": FRAME.to_parquet,
    "named.parquet": NAMED.to_parquet,
    "records.jsonl": lambda path: FRAME.reset_index().to_json(path, orient="records", lines=True),
    "nameless.jsonl": lambda path: FRAME.reset_index(names="Unnamed: 0").to_json(path, orient="records", lines=True),
    "reset.parquet": lambda path: FRAME.reset_index().to_parquet(path, index=False),
    "reset.csv": lambda path: FRAME.reset_index(names="level_0").to_csv(path, index=False),
    "reset.npz": lambda path: np.savez(
        path, **{n: c.to_numpy(c.dtype if n != "kind" else str) for n, c in FRAME.reset_index().items()}
    ),
    "level.feather": lambda path: BARE.assign(__index_level_0__=FRAME.index.to_numpy()).to_feather(path),
}


def other_than(path: Path) -> str:
    """How the index of that file is called."""
    names = {"named.parquet": "serial", "level.parquet": "__index_level_0__", "level.feather": "__index_level_0__"}
    names |= {"reset.csv": "level_0", **dict.fromkeys(("records.jsonl", "reset.parquet", "reset.npz"), "index")}
    return names.get(path.name, "Unnamed: 0")


@pytest.fixture
def dl4j(capsys: Any) -> Callable[..., str]:
    def run(*words: object, errors: bool = False) -> str:
        with pytest.raises(SystemExit) as leave:
            main.main([*map(str, words)])
        said = capsys.readouterr()
        assert not leave.value.code, said.err
        return str(said.err if errors else said.out)

    return run


@pytest.mark.parametrize("name", WRITTEN)
def test_the_index_is_left_out_and_said_so(name: str, tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / name
    WRITTEN[name](path)
    index = other_than(path)
    found = load(path)
    assert found.columns == ("a", "b") and found.label_names == ("ham", "spam")
    assert caplog.messages == [f"{path}: column {index!r} left out, pandas' index (--keep-index keeps it)"]
    if ".csv" in name:
        assert load(path, keep_index=True).columns == (index, "a", "b")
    inspected = inspect_csv(path)
    assert [column.name for column in inspected.columns] == ["a", "b", "kind"] and inspected.index == (index,)
    schema = guess_schema(inspected)
    assert schema.label == "kind" and [column.name for column in schema.columns] == ["a", "b", "kind"]
    assert load(path, reading=Reading(transform=schema)).train.n_in == 2
    assert guess_schema(inspect_csv(path, index=())).columns != schema.columns
    with pytest.raises(DataError, match="is pandas' index, and left out; --keep-index keeps it"):
        inspect_csv(path, index)


@pytest.mark.parametrize("name", ["nameless.csv", "level.parquet", "records.jsonl"])
def test_all_commands_leave_it_out_and_keep_it_alike(
    name: str, tmp_path: Path, dl4j: Callable[..., str], caplog: Any
) -> None:
    path, plain, ending = tmp_path / name, tmp_path / f"plain-{name}", Path(name).suffix
    WRITTEN[name](path)
    if ending == ".jsonl":
        FRAME.to_json(plain, orient="records", lines=True)
    else:
        FRAME.to_csv(plain, index=False) if ending == ".csv" else FRAME.to_parquet(plain, index=False)
    short = ("--model", "mlp", "--epochs", 2, "--workers", 1, "--jobs-per-round", 1, "--format", "json")

    def trained(*words: object) -> Any:
        return json.loads(dl4j("train", *words, *short, "--out", tmp_path / "m.zip"))

    for label in ((), ("--label", "kind")):
        wanted = trained(plain, *label)
        caplog.clear()
        assert trained(path, *label)["params_sha256"] == wanted["params_sha256"]
        assert sum("pandas' index" in message for message in caplog.messages) == 1
        answers = {dl4j("predict", "--probabilities", tmp_path / "m.zip", file) for file in (path, plain)}
        assert len(answers) == 1
        reports = [
            json.loads(dl4j("evaluate", tmp_path / "m.zip", "--dataset", p, "--format", "json")) for p in (path, plain)
        ]
        assert reports[0]["loss"] == reports[1]["loss"]
    kept = trained(path, "--label", "kind", "--keep-index")
    assert kept["params_sha256"] != wanted["params_sha256"] and kept["label"] == "kind"
    dl4j("predict", tmp_path / "m.zip", path)
    said = dl4j("data", "validate", path)
    assert f"columns that are pandas' index, and left out (--keep-index keeps them): {other_than(path)!r}" in said
    assert "pandas' index" not in dl4j("data", "validate", path, "--label", "kind", "--keep-index")
    assert f"left out     {other_than(path)}" in dl4j("data", "inspect", path)
    report = json.loads(dl4j("data", "inspect", path, "--label", "kind", "--keep-index", "--format", "json"))
    assert len(report["columns"]) == 4


def test_the_parts_of_a_table_count_together(tmp_path: Path) -> None:
    for name, rows in (("train", FRAME[:40]), ("test", FRAME[40:])):
        rows.to_csv(tmp_path / f"{name}.csv")
    found = load(tmp_path)
    assert found.columns == ("a", "b") and (len(found.train), len(found.test)) == (40, 20)


def test_a_column_called_index_is_one_only_if_it_counts_every_row(tmp_path: Path) -> None:
    def counted(*parts: list[object], name: str = "index") -> tuple[str, ...]:
        paths = [tmp_path / f"{number}.jsonl" for number in range(len(parts))]
        for path, cells in zip(paths, parts, strict=True):
            path.write_text("".join(json.dumps({"a": 1.5, name: cell, "kind": "x"}) + "\n" for cell in cells))
        return counting_columns(paths)

    assert counted([2, 0, 1]) == counted([3, 1, 2]) == counted([0, 3], [2, 1]) == counted([0, 1], [1, 0]) == ("index",)
    assert counted([1, 0], name="level_0") == ("level_0",) and counted([0, 2], name="Unnamed: 0") == ("Unnamed: 0",)
    for cells in ([0, 2, 3], [0, 1, 1], [2, 3, 4], [0.5, 1, 2], [-1, 0, 1], [None, 0, 1], [0, 1, "x"], [0]):
        assert counted(cells) == ()  # an index of another kind, of shares perhaps
    assert counted([0, 1], [5, 6]) == () == counted([0, 1, 2], name="id") == counted([0, 1, 2], name="Index")


def test_what_does_not_count_is_a_column(tmp_path: Path) -> None:
    def counted(*cells: object, name: str = "") -> tuple[str, ...]:
        rows = [f"{cell},{number},x" for number, cell in enumerate(cells)]
        (tmp_path / "t.csv").write_text("\n".join([f"{name},a,kind", *rows]) + "\n")
        return counting_columns([tmp_path / "t.csv"])

    assert counted(2, 0, 1) == counted(3, 1, 2) == counted(0, 1, 2, name="Unnamed: 0") == ("Unnamed: 0",)
    for cells in ((0, 1, 1), (170, 182, 165), ("0.5", 1, 2), (-1, 0, 1), ("", 1, 2), (0, 1, "x"), ("9" * 30, 1, 2)):
        assert counted(*cells) == ()
    assert counted(0, 1, 2, name="id") == ()
    counted(170, 182, 165)
    assert load(tmp_path / "t.csv", n_classes=1).columns == ("Unnamed: 0", "a")
    (tmp_path / "t.csv").write_text("0,1,x\n1,2,y\n")
    assert counting_columns([tmp_path / "t.csv"]) == ()


@pytest.mark.parametrize(
    "metadata", [None, {}, {b"pandas": b"{"}, {b"pandas": b"[]"}, {b"pandas": b'{"index_columns": 3}'}, {b"other": b""}]
)
def test_metadata_of_another_kind_list_nothing(metadata: dict[bytes, bytes] | None) -> None:
    assert listed_columns(["a", "b"], metadata) == ()
    assert listed_columns(["a", "__index_level_1__"], metadata) == ("__index_level_1__",)
