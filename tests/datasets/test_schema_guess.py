"""The schema that is guessed to encode a table: quantiles, marked gaps, dates, rare words, skewed labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import guess_schema, inspect_csv
from dl4jlegacy.datasets.columns.dates import Dates
from dl4jlegacy.datasets.columns.transforms import (
    CategoricalToOneHot,
    DateParts,
    Impute,
    MarkGaps,
    QuantileBins,
    RemoveColumns,
    Standardize,
)
from dl4jlegacy.datasets.label_scale import suits_log
from dl4jlegacy.datasets.tables.column_summary import ColumnSummary
from dl4jlegacy.datasets.tables.inspection import Inspection
from dl4jlegacy.datasets.tables.transform_process import TransformProcess
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.run_data import load_new

Cell = Callable[[int], Any]


def table(folder: Path, rows: int = 400, name: str = "t.csv", **columns: Cell) -> Path:
    """Write a table whose columns are functions of the row's number."""
    lines = [",".join(columns), *(",".join(str(of(row)) for of in columns.values()) for row in range(rows))]
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def number(row: int) -> str:
    """A number with a gap in each seventh row."""
    return "" if row % 7 == 3 else f"{row * 37 % 401 / 8:g}"


def day(row: int) -> str:
    return "" if row == 5 else f"2024-{row % 12 + 1:02}-17"


def kind(row: int) -> str:
    return "xyz"[row % 3]


def bins_of(schema: TransformProcess) -> QuantileBins | None:
    return next((step for step in schema.steps if isinstance(step, QuantileBins)), None)


def said(caplog: Any, words: str) -> list[str]:
    return [message for message in caplog.messages if words in message]


def test_every_kind_of_column_is_encoded_in_this_order(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        a=number,
        on=lambda row: row % 2,
        day=day,
        word=lambda row: "pq"[row % 5 > 3],
        id=lambda row: f"name {row}",
        place=lambda row: f"town {row % 150}",
        kind=kind,
    )
    numbers = ("a", "on", "day[month]", "day[weekday]", "day[age]")
    schema = guess_schema(inspect_csv(path), encode=True)
    assert schema.steps == (
        RemoveColumns(columns=("id",)),
        DateParts(columns=("day",), parts=(("month", "weekday", "age"),)),
        MarkGaps(columns=("a", "day[month]")),
        Impute(columns=numbers, strategy="median"),
        Impute(columns=("word", "place"), strategy="constant", constant="missing"),
        CategoricalToOneHot(columns=("word", "place")),
        QuantileBins(columns=("a", "day[month]", "day[weekday]", "day[age]")),
        Standardize(columns=numbers),
    )
    assert guess_schema(inspect_csv(path)).steps[1:3] == (Impute(columns=("a", "on")), Standardize(columns=("a", "on")))


def test_the_encoded_table_is_standardized_and_has_no_gaps(tmp_path: Path) -> None:
    path = table(tmp_path, a=number, day=day, on=lambda row: row % 2, kind=kind)
    conf, data = load_new(Conf(dataset=str(path)), encode=True)
    x = dict(zip(data.columns, data.train.features.T, strict=True))
    for name in ("a", "on", "day[month]", "day[age]"):
        assert abs(x[name].mean()) < 1e-5 and abs(x[name].std() - 1) < 1e-5
    assert {0.0, 1.0} == set(x["a[missing]"]) == set(x["day[month][missing]"])
    bins = [name for name in x if name.startswith("a[bin")]
    assert len(bins) == 8 and all(0 <= x[name].min() < x[name].max() == 0.25 for name in bins)
    assert not any(name.startswith("on[") for name in x)
    assert conf.transform is not None and conf.transform.is_fitted and data.reading.normalizer is None


@pytest.mark.parametrize(
    ("different", "rows", "bins"),
    [
        ([400] * 3, 400, 0),
        ([None] * 60, 6000, 0),
        ([None] * 100, 6000, 20),  # 32 would make 3,200 columns
        ([None] * 250, 1500, 8),
        ([None] * 251, 1500, None),
        ([2] * 784, 1500, None),
        ([9] * 249, 6000, 0),  # 8 each, whatever the number of bins
        ([1, 2, 2], 400, None),
    ],
)
def test_bins_never_make_more_than_2000_columns(different: list[int | None], rows: int, bins: int | None) -> None:
    """``different``: the number of different values in each column; None: more than an inspection counts."""
    columns = [
        ColumnSummary(f"c{i}", i, numbers=rows, counts=Counter(map(str, range(count or 2000))), is_full=count is None)
        for i, count in enumerate(different)
    ]
    label = ColumnSummary("y", len(columns), words=rows, counts=Counter(p=rows - 9, q=9))
    guessed = guess_schema(Inspection("t.csv", rows, True, (*columns, label), ()), encode=True)
    found = bins_of(guessed)
    assert (None if found is None else found.bins) == bins


def test_few_different_numbers_have_few_bins(tmp_path: Path) -> None:
    path = table(tmp_path, a=lambda row: row % 2, b=lambda row: row % 3, c=lambda row: row % 4, d=number, kind=kind)
    guessed = guess_schema(inspect_csv(path), encode=True)
    fitted = guessed.with_classes_learned(read := guessed.read(path)).fit(read)
    made = [name.partition("[bin")[0] for name in fitted.feature_names if "[bin" in name]
    assert Counter(made) == {"b": 2, "c": 3, "d": 8}


def test_words_beyond_200_are_one_and_names_are_left_out(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        2000,
        town=lambda row: f"town {row % 3 if row % 4 else row}",
        ticket=lambda row: f"t{row % 500}",
        few=lambda row: f"w{row % 20}",
        x=lambda row: row,
        kind=kind,
    )
    guessed = guess_schema(inspect_csv(path), encode=True)
    assert guessed.steps[0] == RemoveColumns(columns=("ticket",))  # its 200 commonest words are in 800 rows of 2,000
    assert [step.columns for step in guessed.steps if isinstance(step, CategoricalToOneHot)] == [("few",), ("town",)]
    fitted = guessed.with_classes_learned(read := guessed.read(path)).fit(read)
    town = [name for name in fitted.feature_names if name.startswith("town[")]
    assert len(town) == 201 and "town[(other)]" in town and "town[town 2]" in town
    assert guess_schema(inspect_csv(path)).steps[0] == RemoveColumns(columns=("town", "ticket"))


@pytest.mark.parametrize(
    ("cells", "parts"),
    [
        (["2024-01-31", "2024-02-29", "2024-01-31"], ("month", "day", "weekday", "age")),
        (["2024-01-31T10:00:00+01:00", "2024-01-31 09:30"], ("minute", "age")),
        (["2024-01-31"], ()),
        (["2024-01-31", "soon"], ()),
        (["soon", "2024-01-31", "2024-02-29"], ()),
        (["2024-01-31", "2023-02-29"], ()),
        ([], ()),
    ],
)
def test_dates_have_the_parts_in_which_they_differ(cells: list[str], parts: tuple[str, ...]) -> None:
    dates = Dates()
    for cell in cells:
        dates.add(cell)
    assert dates.parts == parts


def test_words_with_one_number_or_one_other_word_are_no_dates(tmp_path: Path) -> None:
    for other in ("7", "then"):
        path = table(tmp_path, when=lambda row, o=other: o if row == 9 else f"2024-01-{row % 15 + 1:02}", kind=kind)
        steps = guess_schema(inspect_csv(path), encode=True).steps
        assert [type(step) for step in steps] == [Impute, CategoricalToOneHot]


@pytest.mark.parametrize(
    ("labels", "suits"),
    [
        (np.exp(np.random.default_rng(0).normal(5, 1, 3000)), True),  # prices
        (np.random.default_rng(0).pareto(3, 3000), True),
        (np.random.default_rng(0).normal(100, 10, 3000), False),  # not skewed
        (np.random.default_rng(0).uniform(0, 1, 3000), False),
        (np.exp(np.random.default_rng(0).normal(0, 1, 3000)) - 0.1, False),  # some are negative
        (np.exp(np.random.default_rng(0).normal(0, 1, 3000)) / 1e6, False),  # log(1 + y) is y
        (1e6 * (np.random.default_rng(0).random(3000) < 0.02), False),  # seldom something: stays as skewed
        (np.full(30, 7.0), False),
        (np.zeros(30), False),
        (np.array([]), False),
        (np.array([0.0] * 30 + [1e300]), False),
    ],
)
def test_a_logarithm_suits_skewed_labels_that_it_makes_less_skewed(labels: np.ndarray, suits: bool) -> None:
    assert suits_log(labels) is suits


def test_skewed_labels_are_learned_by_their_logarithm(tmp_path: Path) -> None:
    drawn = np.random.default_rng(1)
    prices, scores = np.exp(drawn.normal(8, 1, 400)), drawn.normal(size=400)
    path = table(
        tmp_path,
        x=lambda row: row,
        price=lambda row: f"{prices[row]:.2f}",
        score=lambda row: f"{scores[row]:.3f}",
    )
    found = inspect_csv(path, "price,score")
    assert guess_schema(found, label="price,score", encode=True).label_log == ("price",)
    assert guess_schema(found, label="price,score").label_log == ()
    _, data = load_new(Conf(dataset=str(path)), label="price", regression=True, encode=True)
    scale = data.reading.label_scale
    assert scale is not None and not scale.is_linear and 7 < scale.means[0] < 9
    assert guess_schema(inspect_csv(path, "score"), label="score", regression=True, encode=True).label_log == ()


def test_numbers_alone_get_a_schema_only_to_be_encoded(tmp_path: Path) -> None:
    path = table(tmp_path, a=lambda row: row * 37 % 401, b=lambda row: row % 11, label=lambda row: row % 3)
    conf, plain = load_new(Conf(dataset=str(path)))
    assert conf.transform is None and plain.reading.normalizer is not None
    conf, encoded = load_new(Conf(dataset=str(path)), encode=True)
    assert conf.transform is not None and encoded.reading.normalizer is None
    assert plain.label_names == encoded.label_names
    np.testing.assert_array_equal(plain.train.labels, encoded.train.labels)  # the same rows in the same order
    np.testing.assert_array_equal(plain.test.labels, encoded.test.labels)
    again, reloaded = load_new(conf, encode=True)
    assert again == conf
    np.testing.assert_array_equal(encoded.train.features, reloaded.train.features)


def test_what_is_not_scaled_large_or_no_table_is_not_encoded(tmp_path: Path, monkeypatch: Any) -> None:
    path = table(tmp_path, a=number, b=lambda row: row % 11, label=kind)
    (tmp_path / "t.svm").write_text("".join(f"{row % 2} 1:{row % 7} 3:{row * 3 % 8}\n" for row in range(60)))
    for conf in (
        Conf(dataset=str(path), scale_features=False),
        Conf(dataset=str(tmp_path / "t.svm")),
        Conf(dataset="iris"),
    ):
        assert load_new(conf, encode=True)[0] == load_new(conf)[0]
    monkeypatch.setattr("dl4jlegacy.datasets.tables.stored_tables.LARGE", 0)
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    large = load_new(Conf(dataset=str(path)), encode=True)[0]
    assert large.transform is not None and bins_of(large.transform) is None
    assert large == load_new(Conf(dataset=str(path)))[0]


def test_a_telling_column_is_named_without_its_bins(tmp_path: Path, caplog: Any) -> None:
    path = table(tmp_path, a=number, b=lambda row: row % 50 + 60 * (row % 2), kind=lambda row: "pq"[row % 2])
    load_new(Conf(dataset=str(path)), encode=True)
    [warning] = said(caplog, "told by one column alone")
    assert "nearly always right: 'b';" in warning
