"""Steps that make columns: places among quantiles, marked gaps, rare words, parts of dates; logarithms of labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import Reading, TransformProcess, load
from dl4jlegacy.datasets.columns.dates import read_date
from dl4jlegacy.datasets.columns.table import Column, Table
from dl4jlegacy.datasets.columns.transforms import (
    CategoricalToInteger,
    CategoricalToOneHot,
    DateParts,
    Impute,
    MarkGaps,
    QuantileBins,
    RemoveColumns,
    Standardize,
    Step,
)
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.datasets.tables import stored_tables
from dl4jlegacy.errors import ConfError, DataError


def table(**columns: Any) -> Table:
    """A table of these columns: numbers, or words."""
    made = {name: np.array(x, object if isinstance(x[0], str) else np.float64) for name, x in columns.items()}
    return Table("t", made, np.arange(len(next(iter(made.values())))), {})


def values(step: Step, rows: Table) -> dict[str, list[float]]:
    return {name: x.tolist() for name, x in step.apply(rows).columns.items()}


def test_a_number_fills_the_bins_below_it_by_half_and_its_own_by_its_share() -> None:
    step = QuantileBins(bins=4).fit(table(x=[0, 1, 2, 10, 100]))
    assert step.edges == ((0, 1, 2, 10, 100),) and list(step.made()) == [f"x[bin {i}]" for i in (1, 2, 3, 4)]
    assert values(step, table(x=[-5, 0, 1.5, 6, 1000])) == {
        "x": [-5, 0, 1.5, 6, 1000],
        "x[bin 1]": [0, 0, 0.25, 0.25, 0.25],
        "x[bin 2]": [0, 0, 0.125, 0.25, 0.25],
        "x[bin 3]": [0, 0, 0, 0.125, 0.25],
        "x[bin 4]": [0, 0, 0, 0, 0.25],
    }


@pytest.mark.parametrize(("rows", "bins"), [(9, 8), (1000, 8), (2000, 16), (4096, 32), (50_000, 32)])
def test_bins_follow_from_the_rows_and_have_equally_many_of_them(rows: int, bins: int) -> None:
    drawn = np.random.default_rng(2).lognormal(size=rows)
    step = QuantileBins().fit(table(x=drawn))
    [edges] = step.edges
    assert len(edges) == bins + 1 and (edges[0], edges[-1]) == (drawn.min(), drawn.max())
    inside = np.histogram(drawn, edges)[0]
    assert inside.max() - inside.min() <= 2
    assert QuantileBins().fit(table(x=np.sort(drawn))).edges == step.edges, "in any order of the rows"


@pytest.mark.parametrize(
    ("column", "edges"),
    [
        ([3.0] * 50, ()),
        ([0.3, 0.1 + 0.2] * 50, ()),
        ([0.0] * 90 + [5.0] * 10, ()),
        ([0.0] * 60 + list(range(1, 41)), (0, 10, 20, 30, 40)),
        ([1.7e12 + n for n in range(9)], tuple(1.7e12 + n for n in range(9))),
    ],
)
def test_equal_quantiles_are_one_edge_and_one_bin_is_none(column: list[float], edges: tuple[float, ...]) -> None:
    step = QuantileBins(bins=10 if len(column) > 9 else 8).fit(table(x=column))
    assert step.edges == (edges,) and step.is_fitted
    assert len(values(step, table(x=column))) == 1 + max(0, len(edges) - 1)


def test_gaps_are_marked_in_columns_that_have_some_in_training() -> None:
    step = MarkGaps().fit(table(x=[1, np.nan], y=[1, 2], w=["", "a"]))
    assert step == MarkGaps(columns=("x", "y"), gaps=(True, False))
    found = values(step, table(x=[np.nan, 7], y=[np.nan, 7], w=["a", ""]))
    assert found.pop("x[missing]") == [1, 0] and list(found) == ["x", "y", "w"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["a", "b", "c", "d"]),
        ({"min_count": 2}, ["a", "b", "d", "(other)"]),
        ({"most": 2}, ["b", "d", "(other)"]),
        ({"most": 1, "min_count": 2}, ["b", "(other)"]),
        ({"most": 4}, ["a", "b", "c", "d"]),
    ],
)
def test_rare_words_and_unseen_ones_share_a_column(given: dict[str, int], words: list[str]) -> None:
    rows = table(w=["b", "b", "b", "a", "a", "c", "d", "d", "d"])
    step = CategoricalToOneHot(**given).fit(rows)
    assert step.categories == (tuple(words),)
    found = values(step, table(w=["b", "c", "new"]))
    assert list(found) == [f"w[{word}]" for word in words] and found["w[b]"] == [1, 0, 0]
    if "(other)" in words:
        assert found["w[(other)]"] == [0, 1, 1]
        index = CategoricalToInteger(**given).fit(rows)
        assert values(index, table(w=["b", "c", "new"]))["w"] == [words.index("b"), len(words) - 1, len(words) - 1]
    else:
        assert [sum(row) for row in zip(*found.values(), strict=True)] == [1, 1, 0]


def test_only_rare_words_are_none_to_learn_from() -> None:
    with pytest.raises(DataError, match="0 different words that 2 rows or more have in the training rows"):
        CategoricalToOneHot(min_count=2).fit(table(w=["a", "b"]))


def test_rare_words_are_not_told_as_unseen(caplog: pytest.LogCaptureFixture) -> None:
    columns = (Column("w", "category"), Column("y"))
    rows = Table("t", dict(table(w=list("aabbc")).columns), np.arange(5), {}, np.arange(5.0))
    for min_count, warnings in ((2, 0), (1, 0)):
        schema = TransformProcess(
            columns=columns, label="y", regression=True, steps=(CategoricalToOneHot(min_count=min_count),)
        )
        schema.fit(rows).data_set(rows)
        assert len(caplog.records) == warnings


def test_a_date_becomes_the_parts_that_vary_and_the_days_since_the_first() -> None:
    dates = ["2024-02-28", "2024-03-01", "", "2024-02-26"]
    step = DateParts(columns=("d",)).fit(table(d=dates))
    assert step.parts == (("month", "day", "weekday", "age"),) and step.first == ("2024-02-26T00:00:00",)
    found = values(step, table(d=dates))
    np.testing.assert_equal(
        found,
        {
            "d[month]": [2, 3, np.nan, 2],
            "d[day]": [28, 1, np.nan, 26],
            "d[weekday]": [2, 4, np.nan, 0],
            "d[age]": [2, 4, np.nan, 0],  # 2024 has a 29th of February
        },
    )
    later = values(step, table(d=["2025-02-26 12:00", "2024-02-27T01:00:00+01:00"]))
    assert later["d[age]"] == [366.5, 1], "an offset is taken off"
    assert values(DateParts(columns=("d",)).fit(table(d=["2024-02-28"] * 2)), table(d=["2020-01-01"])) == {}


def test_a_date_has_the_form_and_parts_that_are_given() -> None:
    step = DateParts(columns=("d",), format="%d.%m.%y", parts=(("year", "age"),), first=("2000-01-01",))
    assert step.is_fitted
    assert values(step, table(d=["02.01.00", "01.01.01"])) == {"d[year]": [2000, 2001], "d[age]": [1, 366]}
    assert read_date("31.12.2024") is None is read_date("0001-01-01T00:00:00+02:00")
    assert read_date("31.12.2024", "%d.%m.%Y") == read_date("2024-12-31")


@pytest.mark.parametrize("large", [0, 1 << 40])
def test_what_is_no_date_is_named_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored_tables, "LARGE", large)
    path = tmp_path / "t.csv"
    path.write_text("d,y\n" + "".join(f"2024-01-{n % 28 + 1:02},{n}\n" for n in range(40)) + "1/2/2024,1\n" * 20)
    columns = (Column("d", "category"), Column("y"))
    steps = (DateParts(columns=("d",)), Standardize())
    schema = TransformProcess(columns=columns, label="y", regression=True, steps=steps)
    with pytest.raises(DataError, match=r"t\.csv, line (4[2-9]|5\d|6[01]), column 'd' \(1\): '1/2/2024' is no date"):
        load(path, reading=Reading(transform=schema))
    path.write_text("d,y\n" + "".join(f"{n % 28 + 1}.1.2024,{n}\n" for n in range(40)))
    with pytest.raises(
        DataError, match=r"column 'd' has no date in the training rows, but '\d+.1.2024', which is none"
    ):
        load(path, reading=Reading(transform=schema))


@pytest.mark.parametrize(
    "make",
    [
        lambda: QuantileBins(bins=1),
        lambda: QuantileBins(bins=1001),
        lambda: QuantileBins(columns=("a",), edges=((1.0, 1.0),)),
        lambda: QuantileBins(columns=("a",), edges=((1.0, np.inf),)),
        lambda: CategoricalToOneHot(min_count=0),
        lambda: CategoricalToOneHot(most=1001),
        lambda: CategoricalToOneHot(min_count=2, unknown="error"),
        lambda: DateParts(),
        lambda: DateParts(columns=("a",), parts=(("year",),), first=("1.1.2024",)),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(ConfError, match="the step '"):
        make()


COLUMNS = (Column("d", "category"), Column("w", "category"), Column("x"), Column("z"), Column("y"))
STEPS: tuple[Step, ...] = (
    DateParts(columns=("d",)),
    MarkGaps(columns=("x", "z")),
    Impute(columns=("x", "z", "d[year]", "d[age]"), strategy="median"),
    QuantileBins(columns=("x", "z", "d[age]")),
    Standardize(columns=("x", "z", "d[age]", "x[bin 2]")),
    RemoveColumns(columns=("d[day]", "d[weekday]", "d[month]")),
    CategoricalToOneHot(columns=("w",), min_count=5),
)


def rows_of(count: int = 900) -> list[str]:
    drawn = np.random.default_rng(8)
    rows = []
    for number in range(count):
        date = "" if number % 17 == 0 else f"{2020 + number % 3}-{number % 12 + 1:02}-{number % 28 + 1:02}"
        word = "abcdef"[min(5, int(drawn.exponential(1.5)))] if number % 50 else f"rare {number}"
        x = "" if number % 11 == 0 else repr(float(drawn.lognormal()))
        rows.append(f"{date},{word},{x},{number % 7},{float(drawn.lognormal(3, 1))!r}\n")
    return rows


def test_what_is_learned_depends_on_the_training_rows_alone_however_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    rows, files = rows_of(), {"whole": (900,), "parts": (1, 500, 399)}
    for name, counts in files.items():
        (tmp_path / name).mkdir()
        for number, start in enumerate(np.cumsum([0, *counts[:-1]])):
            part = rows[start : start + counts[number]]
            (tmp_path / name / f"{number}.csv").write_text("d,w,x,z,y\n" + "".join(part))
    schema = TransformProcess(columns=COLUMNS, label="y", regression=True, steps=STEPS, label_log=("y",))
    found = []
    for name, large, block in (("whole", 1 << 40, 0), ("whole", 0, 0), ("whole", 0, 1 << 24), ("parts", 0, 0)):
        monkeypatch.setattr(stored_tables, "LARGE", large)
        monkeypatch.setattr(stored_tables, "_BLOCK", block)
        place = tmp_path / name if name == "parts" else tmp_path / name / "0.csv"
        found.append(load(place, reading=Reading(transform=schema)))
    first = found[0]
    fitted = first.reading.transform
    assert fitted is not None and fitted.is_fitted and TransformProcess.from_json(fitted.to_json()) == fitted
    assert first.columns[:3] == ("d[year]", "d[age]", "d[age][bin 1]") and first.columns == fitted.feature_names
    for other in found[1:]:
        assert other.reading.transform == fitted
        assert other.train == first.train and other.test == first.test
    train = np.array([float(row.rsplit(",", 1)[1]) for row in rows])
    y = fitted.in_units(first.train.labels)
    assert fitted.label_mean == pytest.approx(np.log1p(y.astype(np.float64)).mean(), rel=1e-6)
    assert fitted.label_limits == ((pytest.approx(y.min(), rel=1e-5), pytest.approx(y.max(), rel=1e-5)),)
    assert fitted.label_mean != pytest.approx(np.log1p(train).mean(), rel=1e-6), "that of the held-out rows, too"


def test_many_bins_make_a_table_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"0" * 1000)
    schema = TransformProcess(columns=COLUMNS, label="y", regression=True, steps=(QuantileBins(columns=("x", "z")),))
    assert schema.bins == 64 and TransformProcess(columns=COLUMNS, steps=(QuantileBins(bins=9),)).bins == 27
    monkeypatch.setattr(stored_tables, "LARGE", 2000)
    assert not stored_tables.is_large([path], 5) and not stored_tables.is_large([path], 5, 64)
    monkeypatch.setattr(stored_tables, "LARGE", 1700)
    assert stored_tables.is_large([path], 5, 64) and not stored_tables.is_large([path], 5)


def labelled(y: list[Any]) -> Table:
    return Table("t", {"x": np.arange(float(len(y)))}, np.arange(len(y)), {}, np.array(y))


def test_the_logarithm_of_a_label_is_learned_and_answers_are_in_its_units() -> None:
    schema = TransformProcess(columns=(Column("x"), Column("y")), label="y", regression=True, label_log=("y",))
    rows = labelled([0.0, 9.0, 99.0, 999.0])
    fitted = schema.fit(rows)
    assert not schema.is_fitted and fitted.is_fitted and fitted.label_limits == ((0, 999),)
    assert (
        fitted.label_mean == pytest.approx(1.5 * np.log(10)) and TransformProcess.from_json(fitted.to_json()) == fitted
    )
    learned = fitted.targets(rows)
    assert learned.ravel() == pytest.approx(np.array([-3, -1, 1, 3]) / 5**0.5)
    assert fitted.in_units(learned).ravel() == pytest.approx([0, 9, 99, 999], rel=1e-5, abs=1e-5)
    beyond = np.array([[-50.0], [50.0], [1e30]], np.float32)
    assert fitted.in_units(beyond).ravel().tolist() == pytest.approx([0, 999, 999]), "as far as the training rows go"
    assert fitted.label_scale is not None
    others = fitted.targets(labelled([-9.0, 1e6]))
    assert fitted.label_scale.in_units(others, limited=False).ravel() == pytest.approx([-9, 1e6], rel=1e-4)


def test_one_of_several_labels_is_learned_by_its_logarithm() -> None:
    columns = (Column("x"), Column("a"), Column("b"))
    schema = TransformProcess(columns=columns, labels=("a", "b"), regression=True, label_log=("b",))
    rows = labelled([[1.0, 0.0], [3.0, np.expm1(2.0)]])
    fitted = schema.fit(rows)
    assert (fitted.label_means, fitted.label_stds) == ((2, pytest.approx(1)), (1, pytest.approx(1)))
    assert fitted.label_limits == ((0, np.expm1(2.0)),)
    outputs = np.array([[0.0, 0.0], [50.0, 50.0]])
    assert fitted.in_units(outputs) == pytest.approx(np.array([[2, np.expm1(1)], [52, np.expm1(2)]]))
    steps = np.repeat(outputs[:, :, None], 3, axis=2)
    scale = fitted.label_scale
    assert scale is not None and scale.in_units(steps)[:, :, 1] == pytest.approx(fitted.in_units(outputs))


def test_a_linear_scale_is_as_before() -> None:
    scale, y = LabelScale((2.0,), (3.0,)), np.array([[5.0], [-1.0]])
    assert scale.is_linear and scale.standardized(y).ravel().tolist() == [1, -1]
    assert scale.in_units(np.array([[1.0], [-1.0]])).ravel().tolist() == [5, -1]


@pytest.mark.parametrize(
    "given",
    [
        {"label_log": ("x",)},
        {"label_log": ("y",), "regression": False},
        {"label_log": ("y",), "label_limits": ((2.0, 1.0),)},
        {"label_log": ("y",), "label_limits": ((0.0, np.inf),)},
        {"label_limits": ((0.0, 1.0),)},
    ],
)
def test_a_label_that_has_no_logarithm_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfError, match="the schema's label_l"):
        TransformProcess(**{"columns": (Column("x"), Column("y")), "label": "y", "regression": True, **given})
