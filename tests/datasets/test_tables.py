"""Tables of words, numbers and gaps: how they are read, what a schema makes of them, and what is said of bad ones."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import Reading, TransformProcess, guess_schema, inspect_csv, load
from dl4jlegacy.datasets.columns.table import Column, find_column
from dl4jlegacy.datasets.columns.transforms import (
    CategoricalToInteger,
    CategoricalToOneHot,
    Clip,
    Derive,
    Filter,
    Impute,
    MinMax,
    RemoveColumns,
    Standardize,
    Step,
)
from dl4jlegacy.errors import ConfError, DataError

TEXT = 'colour,size,"a, quoted name",price\nred,1,5,10\n"blue, dark",NA,6,20\n,3,7,30\nred,2,8,40\n'
COLUMNS = (Column("colour", "category"), Column("size"), Column("a, quoted name"), Column("price"))


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    content = text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def process(*steps: Step, label: str = "price", regression: bool = True, columns: Any = COLUMNS) -> TransformProcess:
    return TransformProcess(columns=columns, label=label, regression=regression, steps=steps)


def applied(folder: Path, *steps: Step, text: str = TEXT) -> dict[str, list[Any]]:
    """The columns of the table after these steps, fitted to it."""
    made = process(*steps)
    table = made.read(written(folder, text))
    for step in made.fit(table).steps:
        table = step.apply(table)
    return {name: values.tolist() for name, values in table.columns.items()}


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_quoted_cells_gaps_and_gzip_are_read(tmp_path: Path, name: str) -> None:
    table = process().read(written(tmp_path, TEXT, name))
    assert table.columns["colour"].tolist() == ["red", "blue, dark", "", "red"]
    np.testing.assert_array_equal(table.columns["size"], [1, np.nan, 3, 2])
    assert table.labels is not None and table.labels.tolist() == [10, 20, 30, 40]
    assert table.lines.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("gap", ["", " ", "NA", "n/a", "?", "NaN", "None", "null"])
def test_every_spelling_of_a_gap_is_one_and_is_imputed(tmp_path: Path, gap: str) -> None:
    found = applied(
        tmp_path,
        Impute(columns=("size",)),
        text=f"colour,size,b,price\nx,1,1,1\ny,{gap},1,2\nx,2,1,1\n".replace(",b,", ',"a, quoted name",'),
    )
    assert found["size"] == [1, 1.5, 2]


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT * 50, "t.csv.gz")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"cannot read .*t\.csv\.gz: it is a damaged gzip file"):
        process().read(path)


@pytest.mark.parametrize(
    ("steps", "column", "values"),
    [
        ((Impute(columns=("size",), strategy="median"),), "size", [1, 2, 3, 2]),
        ((Impute(columns=("size",), strategy="constant", constant=9),), "size", [1, 9, 3, 2]),
        ((Impute(columns=("colour",), strategy="most-frequent"),), "colour", ["red", "blue, dark", "red", "red"]),
        ((Impute(columns=("size",)), MinMax(columns=("size",))), "size", [0, 0.5, 1, 0.5]),
        ((Clip(columns=("a, quoted name",), low=6, high=7),), "a, quoted name", [6, 6, 7, 7]),
        ((CategoricalToOneHot(columns=("colour",)),), "colour[red]", [1, 0, 0, 1]),
        ((CategoricalToOneHot(columns=("colour",)),), "colour[blue, dark]", [0, 1, 0, 0]),
        ((CategoricalToInteger(columns=("colour",)),), "colour", [1, 0, 2, 1]),
        ((Filter(columns=("a, quoted name",), condition=">", value=7),), "a, quoted name", [5, 6, 7]),
        ((Filter(columns=("size",), condition="missing"),), "a, quoted name", [5, 7, 8]),
        ((Filter(columns=("colour",), condition="==", value="red"),), "size", [pytest.approx(np.nan, nan_ok=True), 3]),
        ((Derive(columns=("a, quoted name", "a, quoted name"), operation="add", name="b"),), "b", [10, 12, 14, 16]),
        ((Derive(columns=("a, quoted name",), operation="log", name="b"),), "b", np.log([5, 6, 7, 8]).tolist()),
    ],
)
def test_each_step_does_what_it_says(tmp_path: Path, steps: tuple[Step, ...], column: str, values: list[Any]) -> None:
    assert applied(tmp_path, *steps)[column] == values


def test_numbers_are_standardized_by_the_rows_that_they_were_fitted_to(tmp_path: Path) -> None:
    steps = process(RemoveColumns(columns=("colour", "size")), Standardize())
    table = steps.read(written(tmp_path, TEXT))
    fitted = steps.fit(table.take(np.array([0, 1])))
    assert fitted.steps[1] == Standardize(columns=("a, quoted name",), mean=(5.5,), std=(0.5,))
    assert fitted.features(table).ravel().tolist() == [-1, 1, 3, 5]
    assert (fitted.label_mean, fitted.label_std) == (15, 5)
    assert fitted.data_set(table).labels.ravel().tolist() == [-1, 1, 3, 5]
    assert fitted.in_units(np.array([[-1.0], [5.0]])).ravel().tolist() == [10, 40]


def test_what_is_held_out_has_no_part_in_what_is_learned(tmp_path: Path) -> None:
    rows = "".join(f"{i},{'ab'[i % 2]},{i}\n" for i in range(50))
    path = written(tmp_path, "x,w,y\n" + rows)
    guessed = guess_schema(inspect_csv(path, "y"), label="y", regression=True)
    source = load(path, reading=Reading(transform=guessed))
    assert source.reading.transform is not None and source.reading.transform.is_fitted
    standardize = next(step for step in source.reading.transform.steps if isinstance(step, Standardize))
    there = source.reading.transform.in_units(source.train.labels)  # y is x
    assert standardize.mean == (pytest.approx(there.mean(), rel=1e-6),) and len(there) == 40
    assert abs(standardize.mean[0] - 24.5) > 1e-3, "the whole file has this mean"


def test_a_schema_is_json_and_back(tmp_path: Path) -> None:
    guessed = guess_schema(inspect_csv(written(tmp_path, TEXT), "price"), label="price", regression=True)
    for whole in (guessed, guessed.fit(guessed.read(tmp_path / "t.csv"))):
        assert TransformProcess.from_json(whole.to_json()) == whole
    assert not guessed.is_fitted and whole.is_fitted


def test_columns_are_found_by_name_whatever_their_order_and_others_are_left_out(tmp_path: Path) -> None:
    steps = process(RemoveColumns(columns=("colour",)), Impute(columns=("size",)))
    fitted = steps.fit(steps.read(written(tmp_path, TEXT)))
    other = b'more,"a, quoted name",size\nx,1,2\ny,3,\n'  # without the label, and without what is removed
    (table,) = fitted.blocks(io.BytesIO(other), "other", rows=10)
    assert fitted.features(table, new_rows=True).tolist() == [[2, 1], [2, 3]]


@pytest.mark.parametrize("row", ["red,1,2,9", "red,1,2", "1,2"])
def test_a_file_without_a_header_has_the_columns_in_their_order(tmp_path: Path, row: str) -> None:
    steps = process(RemoveColumns(columns=("colour",)))
    fitted = steps.fit(steps.read(written(tmp_path, TEXT.replace("NA", "2"))))
    (table,) = fitted.blocks(io.BytesIO(row.encode()), "rows", rows=10)
    assert fitted.features(table, new_rows=True).tolist() == [[1, 2]]


def test_a_column_that_is_missing_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    steps = process(RemoveColumns(columns=("colour",)))
    with pytest.raises(DataError, match=r"rows has no column 'size'; did you mean 'sise'"):
        list(steps.blocks(io.BytesIO(b'"a, quoted name",sise\n1,2\n'), "rows", rows=10))


def test_a_word_that_was_not_there_is_zeros_or_an_error_that_names_the_cell(tmp_path: Path) -> None:
    for unknown in ("ignore", "error"):
        one_hot = CategoricalToOneHot(columns=("colour",), unknown=unknown)  # type: ignore[arg-type]
        steps = process(RemoveColumns(columns=("size", "a, quoted name")), one_hot)
        fitted = steps.fit(steps.read(written(tmp_path, TEXT.replace("\n,", "\nred,"))))
        (table,) = fitted.blocks(io.BytesIO(b"colour\nred\ngreen\n"), "rows", rows=10)
        if unknown == "ignore":
            assert fitted.features(table, new_rows=True).tolist() == [[0, 1], [0, 0]]
            continue
        with pytest.raises(
            DataError, match=r"rows, line 3, column 'colour' \(1\): unknown category 'green'; known: blu"
        ):
            fitted.features(table, new_rows=True)


def test_rows_to_predict_are_not_filtered(tmp_path: Path) -> None:
    steps = process(
        RemoveColumns(columns=("colour", "size")), Filter(columns=("a, quoted name",), condition=">", value=6)
    )
    table = steps.read(written(tmp_path, TEXT))
    fitted = steps.fit(table)
    assert len(fitted.data_set(table)) == 2
    assert len(fitted.features(table, new_rows=True)) == 4


def test_steps_that_are_given_their_numbers_keep_them(tmp_path: Path) -> None:
    given = Standardize(columns=("size",), mean=(1.0,), std=(2.0,))
    steps = process(RemoveColumns(columns=("colour",)), Impute(columns=("size",)), given)
    assert steps.fit(steps.read(written(tmp_path, TEXT))).steps[-1] == given


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no examples"),
        ("colour,size,b,price\n", "holds no examples"),
        ("colour,size,b,price\nred,1,1,1\nred,1,1\n", r"line 3: 3 columns, and the file has 4 \(colour, size, b"),
        ("colour,size,b,price\nred,one,1,1\n", r"line 2, column 'size' \(2\): 'one' is not a number"),
        ("colour,size,b,price\nred,1_0,1,1\n", r"line 2, column 'size' \(2\): '1_0' is not a number"),
        ("colour,size,b,price\nred,1,inf,1\n", r"line 2, column 'b' \(3\): 'inf' is not a number"),
        ("colour,size,price\nred,1,1\n", "has no column 'b'; known: colour, price, size"),
        ("colour,size,size,b,price\nred,1,1,1,1\n", "column 'size' is there 2 times"),
        ("red,1,1\n", "3 columns, and no header with any of the names; expected 4: 'colour', 'size', 'b', 'price'"),
    ],
)
def test_a_bad_file_is_named_with_line_column_and_value(tmp_path: Path, text: str, message: str) -> None:
    columns = (Column("colour", "category"), Column("size"), Column("b"), Column("price"))
    with pytest.raises(DataError, match=r"t\.csv.*" + message):
        process(columns=columns).read(written(tmp_path, text))


def test_a_gap_that_nothing_imputes_is_named(tmp_path: Path) -> None:
    steps = process(RemoveColumns(columns=("colour",)))
    table = steps.read(written(tmp_path, TEXT))
    with pytest.raises(DataError, match=r"t\.csv, line 3, column 'size' \(2\): the cell has no value, and no step"):
        steps.fit(table).features(table)


def test_words_that_nothing_makes_numbers_of_are_named(tmp_path: Path) -> None:
    steps = process(Impute(columns=("size",)))
    table = steps.read(written(tmp_path, TEXT))
    with pytest.raises(
        DataError, match=r"t\.csv: column 'colour' holds words, and no step of the schema makes numbers"
    ):
        steps.fit(table).features(table)


def test_a_class_that_occurs_once_is_named_by_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "a,y\n" + "1,x\n2,z\n" * 5 + "3,typo\n")
    with pytest.raises(DataError, match=r"t\.csv, line 12, column 'y' \(2\): label 'typo' occurs once"):
        load(path, reading=Reading(transform=guess_schema(inspect_csv(path))))


def test_a_label_that_is_unknown_to_the_model_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a,y\n" + "1,x\n2,z\n" * 5)
    fitted = load(path, reading=Reading(transform=guess_schema(inspect_csv(path)))).reading.transform
    written(tmp_path, "a,y\n1,x\n2,w\n")
    with pytest.raises(DataError, match=r"t\.csv, line 3, column 'y' \(2\): label 'w' is unknown; known: x, z"):
        load(path, reading=Reading(transform=fitted))


def test_rows_without_a_label_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = process().read(written(tmp_path, TEXT + "red,1,1,NA\nred,1,1,?\n"))
    assert len(table) == 4
    assert "2 rows without a value in the label 'price' left out; the first is line 6" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": "prise"}, "label 'prise' is not a column of the schema; did you mean 'price'"),
        ({"columns": (Column("price"), Column("price"))}, "a column twice: price"),
        ({"columns": ()}, "no columns"),
        ({"steps": (Impute(columns=("sise",)),)}, "names column 'sise', which is not there; did you mean 'size'"),
        ({"steps": (Impute(columns=("price",)),)}, "names the label 'price'"),
    ],
)
def test_a_schema_that_does_not_fit_itself_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfError, match=message):
        TransformProcess(**{"columns": COLUMNS, "label": "price", **arguments})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Standardize(columns=("a",), mean=(1.0, 2.0), std=(1.0,)),
        lambda: Standardize(columns=("a",), mean=(1.0,), std=(0.0,)),
        lambda: MinMax(low=1, high=0),
        lambda: Clip(columns=("a",)),
        lambda: Impute(strategy="constant"),
        lambda: CategoricalToOneHot(columns=("a",), categories=(("x", "x"),)),
        lambda: Filter(columns=("a",), condition="<"),
        lambda: Derive(columns=("a",), operation="add", name="b"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(ConfError, match="the step '"):
        make()


def test_a_column_is_found_by_name_or_number() -> None:
    names = ["a", "B", "c"]
    assert [find_column(text, names, "t") for text in ("a", "b", "3", "-1", "1")] == ["a", "B", "c", "c", "a"]
    with pytest.raises(DataError, match=r"t has no column 'd'; known: B, a, c"):
        find_column("d", names, "t")
    with pytest.raises(DataError, match="t has no column '4'"):
        find_column("4", names, "t")


def test_an_inspection_counts_what_is_there(tmp_path: Path) -> None:
    text = "n,w,y\n1,a,0\n2.5,b,1\n,b,0\nx,,1\n2.5,b,1\n1,2,3,4\n"
    found = inspect_csv(written(tmp_path, text))
    n, w, _ = found.columns
    assert (found.rows, found.has_header, found.label_columns("")) == (5, True, ("y",))
    assert (n.type, n.missing, n.invalid, n.low, n.high, n.mean) == ("number", 1, 1, 1, 2.5, 2)
    assert (w.type, w.missing, dict(w.counts)) == ("category", 1, {"a": 1, "b": 3})
    assert [(p.what, p.count, p.examples) for p in found.problems] == [
        ("ragged rows", 1, ("line 7 has 4 columns, not 3",)),
        ("duplicated rows", 1, ("line 6",)),
        ("missing values in 'n'", 1, ("line 4",)),
        ("invalid numbers in 'n'", 1, ("line 5 has 'x'",)),
        ("missing values in 'w'", 1, ("line 5",)),
    ]


def test_a_guessed_schema_leaves_out_names_and_empty_columns(tmp_path: Path) -> None:
    text = "id,empty,x,y\n" + "".join(f"name {i},,{i},{'pq'[i % 2]}\n" for i in range(30))
    guessed = guess_schema(inspect_csv(written(tmp_path, text)))
    assert guessed.steps == (
        RemoveColumns(columns=("id", "empty")),
        Impute(columns=("x",)),
        Standardize(columns=("x",)),
    )
    assert guessed.label == "y" and not guessed.regression
