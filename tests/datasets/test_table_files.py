"""Tables that are no CSV files: Parquet, Arrow, Feather, JSON lines, tables in parts; each is read as the CSV is."""

from __future__ import annotations

import datetime
import decimal
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from dl4jlegacy.datasets import Reading, guess_schema, inspect_csv, load, read_csv
from dl4jlegacy.datasets.columns import table as tables
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.reading import place_of
from dl4jlegacy.datasets.tables.inspection import Inspection
from dl4jlegacy.datasets.tables.table_blocks import table_blocks
from dl4jlegacy.errors import DataError
from tests.support.table_files import Table, write_table

CARS: Table = {
    "fuel": ["gas", "oil", None, "gas", " oil", "gas"] * 4,
    "age": [1, 2, None, 4, 5, 6] * 4,
    "power": [0.1 + 0.2, 1e-7, 2.5, 3.0, float("nan"), -4.0] * 4,
    "sold": [True, False, True, True, False, False] * 4,
}
COLUMNS = (Column("fuel", "category"), Column("age"), Column("power"), Column("sold", "category"))


def as_parquet(path: Path, table: Table, **options: Any) -> None:
    pa.parquet.write_table(pa.table(table), path, **options)


KINDS = ("t.csv", "t.parquet", "t.feather", "t.arrow", "t.jsonl", "t.ndjson.gz")


def written(folder: Path, name: str, table: Table = CARS) -> Path:
    path = write_table(folder / name, table)
    if name == "t.parquet":
        as_parquet(path, table, row_group_size=7, use_dictionary=["fuel"])
    return path


def blocks(path: Path, columns: Any = COLUMNS, **options: Any) -> list[tables.Table]:
    with path.open("rb") as file:
        return list(table_blocks(file, str(path), columns, **options))


def listed(values: Any) -> list[Any]:
    return [None if isinstance(value, float) and np.isnan(value) else value for value in values.tolist()]


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_has_the_cells_of_the_csv_file_in_blocks_of_any_size(tmp_path: Path, name: str) -> None:
    found = blocks(written(tmp_path, name), rows=10)
    assert [len(table) for table in found] == [10, 10, 4]
    whole = tables.Table.merge(found)
    assert listed(whole.columns["fuel"]) == ["gas", "oil", "", "gas", "oil", "gas"] * 4
    assert listed(whole.columns["age"]) == [1, 2, None, 4, 5, 6] * 4
    assert listed(whole.columns["power"]) == [0.1 + 0.2, 1e-7, 2.5, 3.0, None, -4.0] * 4
    assert listed(whole.columns["sold"]) == ["true", "false", "true", "true", "false", "false"] * 4
    first = 2 if name == "t.csv" else 1
    assert whole.lines.tolist() == list(range(first, first + 24))


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_inspected_guessed_and_learned_as_the_csv_file(tmp_path: Path, name: str) -> None:
    csv, other = inspect_csv(written(tmp_path, "t.csv")), inspect_csv(written(tmp_path, name))

    def fields(found: Inspection) -> list[Any]:
        return [(column.fields()["type"], column.missing, column.low, column.high) for column in found.columns]

    assert fields(other) == fields(csv) and other.rows == csv.rows == 24
    schema = guess_schema(csv, label="sold")
    assert guess_schema(other, label="sold") == schema
    mine, theirs = (
        load(tmp_path / name, reading=Reading(transform=schema)),
        load(tmp_path / "t.csv", reading=Reading(transform=schema)),
    )
    assert mine.train == theirs.train and mine.test == theirs.test and mine.label_names == ("false", "true")
    assert mine.reading.transform == theirs.reading.transform


@pytest.mark.parametrize("name", KINDS)
def test_numbers_and_a_class_need_no_schema_in_any_kind(tmp_path: Path, name: str) -> None:
    table = {"1": [0.5, 1 / 3, 2.0], "b": [1, 2, 3], "label": ["x", "y", "x"]}
    dataset, names = read_csv(written(tmp_path, name, table))
    assert names == ("x", "y") and dataset.classes.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(dataset.features, np.float32([[0.5, 1], [1 / 3, 2], [2, 3]]))


def test_types_of_arrow_are_the_cells_of_a_csv_file(tmp_path: Path) -> None:
    table = {
        "day": pa.array([datetime.date(2020, 1, 2), None]),
        "price": pa.array([decimal.Decimal("1.10"), decimal.Decimal("2.25")]),
        "count": pa.array([2**63, 7], pa.uint64()),
        "half": pa.array(np.float16([0.5, 2])),
        "code": pa.array([7, 8], pa.int8()),
        "word": pa.array(["a", None]).dictionary_encode(),
        "unsigned": pa.array(["a", None]).cast(pa.dictionary(pa.uint32(), pa.string())),
        "nothing": pa.nulls(2),
        "rank": pa.array(["1", None]),
    }
    pa.feather.write_feather(pa.table(table), str(tmp_path / "t.feather"))
    kinds = dict.fromkeys(("day", "code", "word", "unsigned"), "category")
    [found] = blocks(tmp_path / "t.feather", [Column(name, kinds.get(name, "number")) for name in table])  # type: ignore[arg-type]
    assert {name: listed(values) for name, values in found.columns.items()} == {
        "day": ["2020-01-02", ""],
        "price": [1.1, 2.25],
        "count": [2.0**63, 7],
        "half": [0.5, 2],
        "code": ["7", "8"],
        "word": ["a", ""],
        "unsigned": ["a", ""],
        "nothing": [None, None],
        "rank": [1, None],
    }
    [found] = blocks(tmp_path / "t.feather", [Column("price"), Column("half")], missing=("2.25", "2"))
    assert listed(found.columns["price"]) == [1.1, None] and listed(found.columns["half"]) == [0.5, None]


def test_the_parts_of_a_table_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    whole = {"a": list(range(30)), "label": ["x", "y", "z"] * 10}
    write_table(tmp_path / "whole.csv", whole)
    (tmp_path / "parts").mkdir()
    for number, start in ((10, 20), (9, 10), (8, 0)):
        part = {name: values[start : start + 10] for name, values in whole.items()}
        as_parquet(tmp_path / "parts" / f"part-{number:02}.parquet", part)
    expected = load(tmp_path / "whole.csv")
    for name in ("parts", "parts/part-*.parquet", "parts/*"):
        found = load(tmp_path / name)
        assert found.train == expected.train and found.test == expected.test
    schema = guess_schema(inspect_csv(tmp_path / "whole.csv"))
    assert (
        load(tmp_path / "parts/part-*", reading=Reading(transform=schema)).train
        == load(tmp_path / "whole.csv", reading=Reading(transform=schema)).train
    )
    assert [path.name for path in place_of(f"{tmp_path}/parts/*9.parquet").tables] == ["part-09.parquet"]


def test_a_part_whose_columns_are_others_is_named(tmp_path: Path) -> None:
    as_parquet(tmp_path / "part-1.parquet", {"a": [1, 2], "b": [1, 2], "label": ["x", "y"]})
    as_parquet(tmp_path / "part-2.parquet", {"a": [1, 2], "c": [1, 2], "label": ["x", "y"]})
    schema = guess_schema(inspect_csv(tmp_path / "part-1.parquet"))
    with pytest.raises(DataError, match=r"part-2\.parquet has no column 'b'; known: a, c, label"):
        load(tmp_path, reading=Reading(transform=schema))
    with pytest.raises(DataError, match=r"part-2\.parquet has no column 'b', which .*part-1\.parquet has"):
        load(tmp_path)
    as_parquet(tmp_path / "part-2.parquet", {"b": [3, 4], "a": [1, 2], "label": ["x", "y"]})
    found = load(tmp_path)
    rows = [*found.train.features.tolist(), *found.test.features.tolist()]
    assert sorted(rows) == [[1, 1], [1, 3], [2, 2], [2, 4]]
    assert len(load(tmp_path, reading=Reading(transform=schema)).train) == 3
    write_table(tmp_path / "copy.csv", {"a": [1], "label": ["x"]})
    with pytest.raises(DataError, match=r"tables of several kinds, copy\.csv and part-1\.parquet"):
        load(tmp_path)
    with pytest.raises(DataError, match="no file of such a name"):
        load(tmp_path / "*.feather")
    (tmp_path / "notes.md").write_text("notes")
    with pytest.raises(DataError, match=r"notes\.md is no table"):
        load(tmp_path / "*.md")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "y": 2}\n[1, 2]\n', r"t\.jsonl, line 2: \[1, 2\] is no JSON object"),
        ('{"a": 1, "y": 2}\n\n{"a": 1\n', r"t\.jsonl, line 3: \{\"a\": 1 is not JSON"),
        ('{"a": 1, "y": 2}\n{"a": 1}\n', r"line 2: column 'y' is not there, which the first object has"),
        ('{"a": 1, "y": 2}\n{"a": 1, "y": 2, "b": 3}\n', r"line 2: column 'b' \(3\) is not in the first object"),
        ('{"a": 1, "y": 2}\n{"a": [1, 2], "y": 2}\n', r"line 2, column 'a': \[1, 2\] is a list"),
        ('{"a": 1, "y": 2}\n{"a": {"b": 2}, "y": 2}\n', r"line 2, column 'a': \{'b': 2\} is an object"),
        ('{"a": 1, "y": 2}\n{"a": "much", "y": 2}\n', r"line 2, column 'a' \(1\): 'much' is not a number"),
        ('{"a": 1, "y": 2}\n{"a": true, "y": 2}\n', r"line 2, column 'a' \(1\): 'true' is not a number"),
        ('{"a": 1, "y": 2}\n{"a": "1_0", "y": 2}\n', r"'1_0' is not a number"),
        ("", "holds no examples"),
        ('{"y": 2}\n', "has no column 'a'"),
        ('{"a": 1, "y": "\udcff"}\n', r"not a file of JSON lines in UTF-8: line 1 has b.\\xff"),
    ],
)
def test_bad_json_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=message):
        blocks(path, [Column("a"), Column("y")])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"a": [1.0, float("inf")], "y": [1, 2]}, r"t\.parquet, row 2, column 'a' \(1\): 'inf' is not a number"),
        ({"a": ["1", "much"], "y": [1, 2]}, r"row 2, column 'a' \(1\): 'much' is not a number"),
        ({"a": [True, False], "y": [1, 2]}, r"row 1, column 'a' \(1\): 'true' is not a number"),
        ({"a": [None, [1, 2]], "y": [1, 2]}, r"row 2, column 'a': \[1, 2\] \(list<.*a cell is one"),
        ({"a": [{"b": 1}, None], "y": [1, 2]}, r"row 1, column 'a': \{'b': 1\} \(struct<"),
        ({"a": [b"x", None], "y": [1, 2]}, r"row 1, column 'a': b'x' \(binary\)"),
        ({"b": [1, 2], "y": [1, 2]}, r"t\.parquet has no column 'a'"),
        ({"a": pa.array([], pa.int8()), "y": pa.array([], pa.int8())}, "holds no examples"),
    ],
)
def test_bad_columns_of_parquet_are_named(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    as_parquet(tmp_path / "t.parquet", table)
    with pytest.raises(DataError, match=message):
        blocks(tmp_path / "t.parquet", [Column("a"), Column("y")])
    if "row" in message and "list" in message:
        with pytest.raises(DataError, match=message):
            inspect_csv(tmp_path / "t.parquet")
        assert len(blocks(tmp_path / "t.parquet", [Column("y")])) == 1, "what is not named is not read"


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("infinite", [float("inf"), float("-inf")])
def test_what_is_infinite_is_found_in_whatever_group_of_rows_it_is(
    tmp_path: Path, infinite: float, statistics: bool
) -> None:
    path = tmp_path / "t.parquet"
    columns = {"sound": [1.5, None, 2.5, 3.5], "narrow": pa.array([1, 2, 3, 4], pa.float32()), "whole": [1, 2, 3, 4]}
    table = pa.table({**columns, "wrong": [1.0, float("nan"), infinite, 2.0], "gap": pa.nulls(4, pa.float64())})
    pyarrow.parquet.write_table(table, path, row_group_size=2, write_statistics=statistics)
    assert len(blocks(path, [Column(name) for name in columns])) == 1
    with pytest.raises(DataError, match=rf"row 3, column 'wrong' \(4\): '{infinite}' is not a number"):
        blocks(path, [Column(name) for name in (*columns, "wrong")])


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.arrow"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name)
    content = path.read_bytes()
    for damaged in (content[:-9], content[: len(content) // 2], b"a,b\n1,2\n", content[:4]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"cannot read .*{name}: .*is it whole"):
            blocks(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=rf"{name} is empty"):
        blocks(path)
    path.write_bytes(b"FEA1" + bytes(20))
    with pytest.raises(DataError, match="Feather file of version 1"):
        blocks(path)


PLACES: dict[str, tuple[Any, bytes, bytes]] = {
    "offsets": (pa.array(["abc", "defgh"]), struct.pack("<3i", 0, 3, 8), struct.pack("<3i", 0, 3, 408)),
    "falling offsets": (pa.array(["abc", "defgh"]), struct.pack("<3i", 0, 3, 8), struct.pack("<3i", 0, -9, 8)),
    "large offsets": (
        pa.array(["abc", "defgh"], pa.large_string()),
        struct.pack("<3q", 0, 3, 8),
        struct.pack("<3q", 0, 3, 408),
    ),
    "views": (
        pa.array(["a", "longer than twelve"], pa.string_view()),
        struct.pack("<i4sii", 18, b"long", 0, 0),
        struct.pack("<i4sii", 18, b"long", 0, 400),
    ),
    "indices of a dictionary": (
        pa.array(["abc", "defgh", "abc"]).dictionary_encode(),
        struct.pack("<3i", 0, 1, 0),
        struct.pack("<3i", 0, 1, 99),
    ),
    "words of a dictionary": (
        pa.array(["abc", "defgh"]).dictionary_encode(),
        struct.pack("<3i", 0, 3, 8),
        struct.pack("<3i", 0, 3, 408),
    ),
    "no UTF-8": (pa.array(["abc", "defgh"]), b"abcdefgh", b"abcde\xffgh"),
    "a column's name that is no UTF-8": (pa.array([1, 2]), b"column", b"colum\xff"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [pa.ipc.new_file, pa.ipc.new_stream])
def test_nothing_beyond_the_memory_of_a_damaged_file_is_read(tmp_path: Path, kind: Any, place: str) -> None:
    """The places and lengths in a file say where in memory to read."""
    column, sound, damaged = PLACES[place]
    table = pa.table({"column": column, "other": [7.5] * len(column)})
    with kind(str(tmp_path / "t.arrow"), table.schema) as file:
        file.write_table(table)
    content = (tmp_path / "t.arrow").read_bytes()
    assert len(inspect_csv(tmp_path / "t.arrow").columns) == 2 and sound in content
    (tmp_path / "t.arrow").write_bytes(content.replace(sound, damaged))
    for read in (inspect_csv, lambda path: blocks(path, [Column("column", "category")])):
        with pytest.raises(DataError, match=r"cannot read .*t\.arrow: .*is it whole"):
            read(tmp_path / "t.arrow")


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="column 'a' is there 2 times"):
        blocks(tmp_path / "t.parquet", [Column("a")])
