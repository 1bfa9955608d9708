"""Tables of the last values of a series: how they are found, and what a guessed schema does with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import Reading, TransformProcess, guess_schema, inspect_csv, load
from dl4jlegacy.datasets.columns.differences import Differences
from dl4jlegacy.datasets.columns.linear import Linear
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.columns.transforms import (
    Filter,
    Impute,
    MarkGaps,
    QuantileBins,
    RemoveColumns,
    Standardize,
    Step,
)
from dl4jlegacy.datasets.tables.lags import find_lags
from dl4jlegacy.errors import ConfError, DataError


def lagged(series: Any, lags: int, name: str = "lag") -> dict[str, Any]:
    """Return the columns of a table of a series: its last values, and the value ``y`` itself."""
    rows = len(series) - lags
    columns = {f"{name}{lag}": series[lags - lag : lags - lag + rows].copy() for lag in range(1, lags + 1)}
    return {**columns, "y": series[lags:]}


def found_in(columns: dict[str, Any]) -> tuple[str, ...]:
    columns = {name: np.asarray(values, np.float64) for name, values in columns.items()}
    return find_lags(columns.pop("y"), columns)


def walk(rows: int = 400) -> Any:
    """Return a series that follows the slope of its last values."""
    noise, values = np.random.default_rng(5).normal(size=rows), [100.0, 101.0]
    for each in noise[2:]:
        values.append(values[-1] + 0.8 * (values[-1] - values[-2]) + each)
    return np.array(values)


def written(folder: Path, columns: dict[str, Any], name: str = "t.csv") -> Path:
    path = folder / name
    rows = np.stack(list(columns.values()), axis=1).tolist()
    lines = (",".join("" if value != value else repr(value) for value in row) for row in rows)
    path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    return path


def test_lags_are_found_from_the_nearest_on_whatever_stands_beside_them() -> None:
    rng = np.random.default_rng(7)
    series = rng.normal(size=200)
    table = lagged(series, 4)
    assert found_in(table) == ("lag1", "lag2", "lag3", "lag4")
    backwards = {name: table[name] for name in sorted(table)[::-1]}
    label_first = {"y": table["y"], "same": np.ones(196), "copy": table["y"], **backwards}
    assert found_in(label_first) == ("lag1", "lag2", "lag3", "lag4")
    other = lagged(rng.normal(size=200), 4, "other")
    assert found_in({**other, **table}) == ("lag1", "lag2", "lag3", "lag4")
    assert found_in({"lag1": table["lag1"], "lag3": table["lag3"], "y": table["y"]}) == (), "one alone is no series"


def test_a_tenth_of_the_rows_may_break_the_series() -> None:
    """Gaps count neither way, and several series may follow each other in a table."""
    rng = np.random.default_rng(7)
    table = lagged(rng.normal(size=403), 3)
    parts = [lagged(rng.normal(size=43), 3) for _ in range(10)]
    several = {name: np.concatenate([part[name] for part in parts]) for name in table}
    assert found_in(several) == ("lag1", "lag2", "lag3")
    gaps = {name: np.where(rng.random(400) < 0.2, np.nan, values) for name, values in table.items()}
    assert found_in(gaps) == ("lag1", "lag2", "lag3")
    wrong = {name: values.copy() for name, values in table.items()}
    wrong["lag1"][::8] = 0.0
    assert found_in(wrong) == ()


@pytest.mark.parametrize(
    ("series", "lags"),
    [
        (np.ones(100), 3),  # it never changes
        (np.repeat([1.0, 2.0, 3.0], 40), 3),  # it changes twice
        (np.arange(11.0), 2),  # 9 rows
        (np.full(100, np.nan), 3),
        (np.zeros(0), 0),
    ],
)
def test_what_hardly_changes_has_no_lags(series: Any, lags: int) -> None:
    assert found_in(lagged(series, lags)) == ()


def test_a_shuffled_table_and_rare_spikes_have_no_lags() -> None:
    rng = np.random.default_rng(7)
    table = lagged(rng.normal(size=200), 3)
    order = rng.permutation(197)
    assert found_in({name: values[order] for name, values in table.items()}) == ()
    spikes = np.where(np.arange(400) % 20 == 3, 1.0, 0.0)
    assert found_in({"y": spikes, "a": np.zeros(400), "b": np.roll(spikes, 7)}) == ()


def test_an_inspection_finds_them_in_the_order_of_the_file(tmp_path: Path) -> None:
    table = lagged(walk(), 3)
    path = written(tmp_path, {"y": table.pop("y"), "hour": np.arange(397) % 24, **table})
    assert inspect_csv(path, "y").labels.lags == ("lag1", "lag2", "lag3")
    assert inspect_csv(path, "y", rows=8).labels.lags == ()
    assert inspect_csv(path, "hour").labels.lags == () == inspect_csv(path, "y,hour").labels.lags
    wide = {"y": walk(), **{f"x{i}": np.ones(400) for i in range(297)}, "lag1": np.roll(walk(), 1)}
    assert inspect_csv(written(tmp_path, {**wide, "lag2": np.roll(walk(), 2)}), "y").labels.lags == ("lag1", "lag2")
    assert inspect_csv(written(tmp_path, {**wide, "lag2": np.roll(walk(), 2), "z": walk()}), "y").labels.lags == ()


def test_a_guess_has_differences_and_a_regression_from_the_last_value(tmp_path: Path) -> None:
    table = lagged(np.exp(walk() / 50), 3)  # the label alone would suit a logarithm
    table["lag2"][5] = np.nan
    path = written(tmp_path, {"id": np.ones(397), **table, "hour": np.arange(397) % 24})
    found = inspect_csv(path, "y")
    assert found.labels.skewed == ("y",)
    schema = guess_schema(found, label="y", regression=True, encode=True)
    expected: tuple[Step, ...] = (
        MarkGaps(columns=("lag2",)),
        Differences(columns=("lag2", "lag3"), base="lag1"),
        Impute(columns=("id", "lag1", "lag2", "lag3", "hour"), strategy="median"),
        Linear(base="lag1", penalty=0.0),
        QuantileBins(columns=("hour",)),
        Standardize(columns=("id", "lag1", "lag2", "lag3", "hour")),
    )
    assert schema.steps == expected and not schema.label_log
    data = load(path, reading=Reading(transform=schema))
    assert {"lag2", "lag3", "lag2[missing]", "y[linear]"} < set(data.columns) and data.columns[0] == "lag1"
    fitted = data.reading.transform
    assert fitted is not None and TransformProcess.from_json(fitted.to_json()) == fitted and fitted.is_fitted
    plain = guess_schema(found, label="y", regression=True).steps
    assert not any(isinstance(step, Differences | Linear) for step in plain)


def schema(*steps: Step, **fields: Any) -> TransformProcess:
    columns = tuple(map(Column, ("lag1", "lag2", "lag3", "y")))
    return TransformProcess(columns=columns, label="y", regression=True, steps=steps, **fields)


def test_the_regression_is_one_of_the_label_less_its_base(tmp_path: Path) -> None:
    process = schema(Differences(columns=("lag2", "lag3"), base="lag1"), Linear(base="lag1"))
    table = process.read(written(tmp_path, lagged(walk(9000), 3)))
    fitted = process.fit(table)
    made, scale = fitted.apply(table).columns, fitted.label_scale
    assert list(made) == ["lag1", "lag2", "lag3", "y[linear]"] and scale is not None and table.labels is not None
    last = table.columns["lag1"]
    x = np.stack([made["lag2"], made["lag3"]], axis=1)
    x, rise = (x - x.mean(axis=0)) / x.std(axis=0), (table.labels - last) / scale.stds[0]
    weights = np.linalg.solve(x.T @ x + np.eye(2), x.T @ (rise - rise.mean()))
    found = (last - scale.means[0]) / scale.stds[0] + rise.mean() + x @ weights
    np.testing.assert_allclose(made["y[linear]"], found, atol=1e-9)
    left = (rise - x @ weights).std()
    np.testing.assert_allclose(fitted.steps[1].scale, left * np.sqrt(1 - (left / rise.std()) ** 2))


@pytest.mark.parametrize(("slope", "penalty"), [(0.8, 1.0), (0.0, 100_000.0)])
def test_a_penalty_that_is_not_given_suits_what_there_is_to_learn(tmp_path: Path, slope: float, penalty: float) -> None:
    """It is the largest for a random walk, whose best prediction is the last value."""
    series = walk(2000) if slope else np.random.default_rng(4).normal(size=2000).cumsum()
    steps = Differences(columns=("lag2", "lag3"), base="lag1"), Linear(base="lag1", penalty=0.0)
    table = schema().read(written(tmp_path, lagged(series, 3)))
    given = schema(steps[0], Linear(base="lag1", penalty=penalty))
    assert schema(*steps).fit(table).steps[1].weights == given.fit(table).steps[1].weights


@pytest.mark.parametrize("name", ["noise", "map"])
def test_a_series_that_keeps_to_a_level_gives_the_last_value_up(tmp_path: Path, name: str) -> None:
    """Then the regression is one on all columns, and begins nowhere; with a penalty of its own it keeps the base."""
    series = np.random.default_rng(4).normal(5, 1, size=500)
    if name == "map":
        series[0] = 0.3
        for step in range(1, 500):
            series[step] = 3.9 * series[step - 1] * (1 - series[step - 1])
    steps = Differences(columns=("lag2", "lag3"), base="lag1"), Linear(base="lag1", penalty=0.0)
    table = schema().read(written(tmp_path, lagged(series, 3)))
    process = schema(*steps).fit(table)
    made, linear = process.apply(table).columns, process.steps[1]
    assert isinstance(linear, Linear) and linear.base == "" and list(made)[-1] == "y[linear]"
    rest = process.targets(table)[:, 0] - made["y[linear]"]
    x = np.stack([np.ones(len(table)), *(made[f"lag{lag}"] for lag in (1, 2, 3))], axis=1)
    best = process.targets(table)[:, 0] - x @ np.linalg.lstsq(x, process.targets(table)[:, 0], rcond=None)[0]
    assert np.square(rest).mean() < 1.01 * np.square(best).mean()
    assert linear.scale == pytest.approx(rest.std())
    kept = schema(steps[0], Linear(base="lag1")).fit(table).steps[1]
    assert isinstance(kept, Linear) and kept.base == "lag1"


def test_a_large_table_is_fitted_as_one_in_memory(tmp_path: Path, monkeypatch: Any) -> None:
    path = written(tmp_path, lagged(walk(6000), 3))
    steps = (
        Filter(columns=("lag3",), condition=">", value=2000),
        Differences(columns=("lag2", "lag3"), base="lag1"),
        Linear(base="lag1", penalty=0.0),
        Standardize(columns=("lag2", "lag3")),
    )
    held = load(path, reading=Reading(transform=schema(*steps)))
    monkeypatch.setattr("dl4jlegacy.datasets.tables.stored_tables.LARGE", 0)
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    stored = load(path, reading=Reading(transform=schema(*steps)))
    assert stored.reading.transform == held.reading.transform
    np.testing.assert_array_equal(stored.test.features, held.test.features)


def test_another_label_does_not_begin_at_the_base() -> None:
    fitted = Linear(
        columns=("lag1", "lag2"), base="lag1", weights=((1.0,), (0.5,)), offsets=(0.0,), spreads=(1.0,), labels=("y",)
    )
    assert fitted.for_other_labels() == Linear(columns=("lag1", "lag2"))


def test_the_base_is_read_although_it_is_removed_later(tmp_path: Path) -> None:
    process = schema(Differences(columns=("lag2",), base="lag1"), RemoveColumns(columns=("lag1", "lag3")))
    table = process.read(written(tmp_path, lagged(walk(), 3)))
    assert set(table.columns) == {"lag1", "lag2"}
    assert list(process.fit(table).apply(table).columns) == ["lag2"]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    for fields in ({"columns": ("a", "b"), "base": "a"}, {"columns": (), "base": "a"}, {"columns": ("a",), "base": ""}):
        with pytest.raises(ConfError, match="'differences' needs columns, and another column as base"):
            Differences(**fields)
    for step in (Differences(columns=("lag2",), base="lag9"), Linear(base="lag9")):
        with pytest.raises(ConfError, match="names column 'lag9', which is not there"):
            schema(step)
    with pytest.raises(ConfError, match="names the label 'y'"):
        schema(Differences(columns=("lag2",), base="y"))
    with pytest.raises(ConfError, match="has base 'lag1', which is none of its columns"):
        Linear(columns=("lag2",), base="lag1")
    with pytest.raises(ConfError, match=r"'linear' of the schema begins at column 'lag1', and label_log"):
        schema(Linear(base="lag1"), label_log=("y",))
    path = written(tmp_path, lagged(walk(), 3))
    words = TransformProcess(
        columns=(Column("lag1", "category"), Column("lag2"), Column("y")),
        label="y",
        regression=True,
        steps=(Differences(columns=("lag2",), base="lag1"),),
    )
    with pytest.raises(DataError, match="'differences' takes numbers, and its base 'lag1' holds words"):
        words.fit(words.read(path))
