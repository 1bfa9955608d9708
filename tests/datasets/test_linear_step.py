"""The step ``linear``: a ridge regression's predictions as columns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dl4jlegacy.datasets import Reading, TransformProcess, guess_schema, load
from dl4jlegacy.datasets.columns.linear import Linear
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.columns.transforms import CategoricalToOneHot, Filter, Impute, QuantileBins, Standardize
from dl4jlegacy.datasets.tables.column_summary import ColumnSummary
from dl4jlegacy.datasets.tables.inspection import Inspection
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.run_data import load_new

NAMES = ("a", "b", "c", "y", "z")


def written(folder: Path, values: Any) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join([",".join(NAMES), *(",".join(map(repr, row)) for row in values.tolist())]) + "\n")
    return path


def drawn(rows: int = 5000) -> np.ndarray:
    """Columns of very different sizes, two of them nearly the same, and two labels that are nearly linear in them."""
    rng = np.random.default_rng(3)
    a, b, noise = rng.normal(50, 9, rows), rng.normal(size=rows), rng.normal(0, 0.1, (rows, 2))
    c = 1e4 * (b + 0.01 * rng.normal(size=rows))
    y, z = np.exp(0.1 * a + noise[:, 0]), 7 - 3 * b + c / 1e4 + noise[:, 1]
    return np.stack([a, b, c, y, z], axis=1)


def schema(*steps: Any, **fields: Any) -> TransformProcess:
    fields = {"labels": ("y", "z"), "label_log": ("y",), **fields}
    return TransformProcess(columns=tuple(map(Column, NAMES)), regression=True, steps=steps, **fields)


@pytest.mark.parametrize("penalty", [1.0, 300.0])
def test_it_is_ridge_regression_on_standardized_columns(tmp_path: Path, penalty: float) -> None:
    table = schema().read(written(tmp_path, drawn()))
    fitted = schema(Linear(penalty=penalty)).fit(table)
    [step] = fitted.steps
    x, scale = np.stack(list(table.columns.values()), axis=1), fitted.label_scale
    assert isinstance(step, Linear) and scale is not None and step.labels == ("y", "z")
    y, x = scale.standardized(table.labels), (x - x.mean(axis=0)) / x.std(axis=0)
    found = np.linalg.solve(x.T @ x + penalty * np.eye(3), x.T @ y)
    made = step.apply(table).columns
    assert list(made) == ["a", "b", "c", "y[linear]", "z[linear]"]
    predicted = np.stack([made["y[linear]"], made["z[linear]"]], axis=1)
    np.testing.assert_allclose(predicted, x @ found, atol=1e-9)
    np.testing.assert_allclose(step.spreads, (y - predicted).std(axis=0))
    np.testing.assert_allclose(step.scale, np.sqrt((np.array(step.spreads) ** 2).mean()))


def test_it_comes_last_and_stays_with_the_schema(tmp_path: Path) -> None:
    steps = (Linear(), QuantileBins(columns=("a", "b", "c")), Standardize(columns=("a", "b", "c")))
    source = load(written(tmp_path, drawn(400)), reading=Reading(transform=schema(*steps)))
    process = source.reading.transform
    assert process is not None and source.columns[-2:] == ("y[linear]", "z[linear]") == process.feature_names[-2:]
    x, y = source.test.features[:, -2:], source.test.labels
    assert 0.0 < np.abs(x - y).mean() < 0.15
    again = TransformProcess.from_json(process.to_json())
    assert again == process and again.is_fitted


def test_what_it_cannot_learn_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, drawn(60))
    columns = tuple(map(Column, NAMES))
    classes = TransformProcess(columns=columns, label="y", steps=(Linear(),), classes=("p",))
    with pytest.raises(DataError, match=r"'linear' is for numbers to predict"):
        classes.fit(classes.read(path))
    with pytest.raises(ConfError, match="penalty -1"):
        Linear(penalty=-1.0)
    with pytest.raises(ConfError, match="different numbers of weights, offsets, spreads and labels"):
        Linear(columns=("a",), weights=((1.0,),), offsets=(0.0, 1.0), spreads=(1.0,), labels=("y",))
    path.write_text(path.read_text() + ",1,2,3,4\n")
    with pytest.raises(DataError, match=r"column 'a' has gaps, and the step 'linear' takes none: impute"):
        (gaps := schema(Linear())).fit(gaps.read(path))


def test_it_learns_from_a_large_table_as_from_one_in_memory(tmp_path: Path, monkeypatch: Any) -> None:
    path = written(tmp_path, drawn(9000))
    steps = (Filter(columns=("b",), condition=">", value=2), Standardize(), Linear(), QuantileBins(columns=("a",)))
    held = load(path, reading=Reading(transform=schema(*steps)))
    monkeypatch.setattr("dl4jlegacy.datasets.tables.stored_tables.LARGE", 0)
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    stored = load(path, reading=Reading(transform=schema(*steps)))
    assert stored.reading.transform == held.reading.transform
    np.testing.assert_array_equal(stored.test.features, held.test.features)
    classes = TransformProcess(columns=schema().columns[:4], label="y", steps=(Linear(),))
    path.write_text("a,b,c,y\n" + "".join(f"{row},{row % 3},{row % 5},{'pq'[row % 2]}\n" for row in range(90)))
    with pytest.raises(DataError, match=r"'linear' is for numbers to predict"):
        load(path, reading=Reading(transform=classes))


def test_a_guess_has_it_for_numbers_to_predict(tmp_path: Path) -> None:
    path = written(tmp_path, drawn(400))
    for label, options, count in (
        ("z", {"regression": True}, 1),
        ("y,z", {}, 2),
        ("z", {"regression": True, "encode": False}, 0),
    ):
        conf, data = load_new(Conf(dataset=str(path)), **{"label": label, "encode": True, **options})
        made = [name for name in data.columns if name.endswith("[linear]")]
        assert len(made) == count and list(data.columns[len(data.columns) - count :]) == made
        assert conf.transform is not None and conf.transform.is_fitted
    (tmp_path / "t.csv").write_text("w,x,y\n" + "".join(f"{'pq'[row % 2]},{row},{row * row}\n" for row in range(90)))
    conf, data = load_new(Conf(dataset=str(path)), label="y", regression=True, encode=True)
    assert conf.transform is not None
    [linear] = [step for step in conf.transform.steps if isinstance(step, Linear)]
    assert linear.columns == ("w[p]", "w[q]", "x")
    kinds = [type(step) for step in conf.transform.steps]
    assert kinds == [Impute, Impute, CategoricalToOneHot, Linear, QuantileBins, Standardize]


def test_a_guess_has_none_that_takes_long() -> None:
    """200 columns of 50,000 rows are 2,000 million products."""
    for words, has_it in ((197, True), (198, False)):  # with the word for gaps, and a column of numbers and its gaps
        rows, counts = 50_000, Counter(f"w{number}" for number in range(words))
        columns = ColumnSummary("w", 1, words=rows, counts=counts), ColumnSummary("x", 2, numbers=rows)
        label = ColumnSummary("y", 3, numbers=rows, low=0.0, high=1.0)
        schema = guess_schema(Inspection("t.csv", rows, True, (*columns, label), ()), regression=True, encode=True)
        assert any(isinstance(step, Linear) for step in schema.steps) is has_it


def test_another_label_has_it_anew_and_classes_have_none(tmp_path: Path) -> None:
    values = drawn(400)
    values[:, 4] = values[:, 1] > 0
    path = written(tmp_path, values)
    steps = (Standardize(columns=("a", "c")), Linear(columns=("a", "c")))
    conf, _ = load_new(Conf(dataset=str(path), transform=schema(*steps, labels=(), label="z", label_log=())))
    conf, data = load_new(conf, label="y", regression=True)
    assert data.columns == ("a", "b", "c", "z", "y[linear]")
    conf, data = load_new(
        Conf(dataset=str(path), transform=msgspec.structs.replace(conf.transform, regression=False)), label="z"
    )
    assert data.columns == ("a", "b", "c", "y") and data.reading.label_scale is None
