"""Texts that other programs write for tables: they are read, or the error says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dl4jlegacy.datasets import Reading, guess_schema, inspect_csv, load
from dl4jlegacy.datasets.sources import DataSource
from dl4jlegacy.errors import DataError

ROWS = [(i % 5 / 4, i % 7 / 6, "xy"[i % 2]) for i in range(40)]


def lines(between: str, behind: str = "") -> str:
    return "".join(f"{a}{between}{b}{between}{kind}{behind}\n" for a, b, kind in ROWS)


def objects(first: str) -> list[str]:
    numbers = [first, *(str(a) for a, _, _ in ROWS[1:])]
    return [f'{{"w": {a}, "h": {b}, "kind": "{kind}"}}' for a, (_, b, kind) in zip(numbers, ROWS, strict=True)]


def read(path: Path, label: str) -> DataSource:
    """Return a table as ``dl4j train`` reads it with ``--label``, or without."""
    return load(
        path, reading=Reading(transform=guess_schema(inspect_csv(path, label=label), label=label) if label else None)
    )


PLAIN = "w,h,kind\n" + lines(",")


@pytest.mark.parametrize("label", ["", "kind"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "w|h|kind\n" + lines("|")),
        *[(f"{n}.csv", f"{n}\nw;h;kind\n" + lines(";")) for n in ("sep=;", '"sep=;"')],
    ],
)
def test_other_delimiters_are_read(name: str, text: str, label: str, tmp_path: Path) -> None:
    sources = []
    for file, content in (("plain.csv", PLAIN), (name, text)):
        (tmp_path / file).write_text(content)
        sources.append(read(tmp_path / file, label))
    plain, other = sources
    assert other.label_names == plain.label_names == ("x", "y")
    np.testing.assert_array_equal(other.train.features, plain.train.features)


def test_a_nan_in_json_lines_is_a_gap_as_null_is(tmp_path: Path) -> None:
    found = []
    for number, word in enumerate(("NaN", "null")):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join(objects(word)))
        found.append(read(path, "kind").train.features)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("label", ["", "kind"])
@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("t.json", "[" + ",\n".join(objects("1")) + "]", r"line 1: .* is JSON, and no row .*one object a line.*jq -c"),
        ("t.csv", "[\n" + ",\n".join(objects("1")) + "]", "is JSON, and no row"),
        ("t.json", "\n".join(objects("1")), r"is JSON, and no row .*\.jsonl"),
        ("t.jsonl", "[" + ",\n".join(objects("1")) + "]", r"line 1: .* is not JSON.*jq -c"),
        ("half.jsonl", "\n".join(objects("1")).replace('"x"', '"\\ud800"', 1), "line 1: .* is not JSON"),
        ("nan.jsonl", "\n".join(objects("NaN")).replace('"x"', '"\\ud800"', 1), "line 1: .* is not JSON"),
        ("inf.jsonl", "\n".join(objects("Infinity")), "line 1, column ('w'|1).*inf"),
        ("hash.csv", "# by me\n" + PLAIN, "line 1: only 1 column; .*comments are not passed over: delete the line"),
        ("middle.csv", PLAIN + "# the end\n", "line 42: 1 column.*comments are not passed over"),
        ("spaces.csv", PLAIN.replace(",", " "), r"only 1 column; .*cells stand between commas, semicolons, tabs or \|"),
        ("ragged.csv", "w,h,kind\n" + lines(",", ","), "line 2.* 4 columns.*delete"),
    ],
)
def test_what_is_not_read_is_refused_with_what_to_do(
    name: str, text: str, remedy: str, label: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=rf"(?s){remedy}"):
        read(tmp_path / name, label)


def test_a_header_that_ends_in_a_delimiter_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("w,h,kind,\n" + lines(",", ","))
    with pytest.raises(DataError, match=r"column 4: .*delete the delimiter if all lines end in it"):
        read(tmp_path / "t.csv", "kind")
