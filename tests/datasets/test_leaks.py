"""A column that tells the label by itself is named before anybody believes the accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.datasets import load
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.datasets.leaks import scaled_labels, telling_columns
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import refusal
from dl4jlegacy.training.run_data import load_new


@pytest.fixture
def drawn() -> np.random.Generator:
    return np.random.default_rng(4)


@pytest.mark.parametrize("rows", [60, 400, 9000])
@pytest.mark.parametrize("outcomes", [2, 3])
def test_a_column_that_tells_the_class_is_found(drawn: np.random.Generator, rows: int, outcomes: int) -> None:
    classes, x = drawn.integers(0, outcomes, rows), drawn.normal(size=(rows, 5))
    assert telling_columns(x, classes) == []
    x[:, 1], x[:, 3] = np.arange(rows), (classes * 7) % 5
    assert telling_columns(x, classes) == [3]
    x[:, 4] = np.where(drawn.random(rows) < 0.9, classes, 0)  # right for nine rows in ten
    assert telling_columns(x, classes) == [3]


def test_a_split_tells_it_and_a_rare_class_does_not(drawn: np.random.Generator) -> None:
    classes, x = drawn.integers(0, 2, 500), drawn.normal(size=(500, 3))
    x[:, 2] += 20 * classes
    assert telling_columns(x, classes) == [2]
    rare = np.zeros(2000, np.intp)
    rare[::400] = 1
    assert telling_columns(drawn.normal(size=(2000, 3)), rare) == []
    assert telling_columns(x, np.zeros(500, np.intp)) == [] == telling_columns(x[:20], classes[:20])


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_no_column_of_the_data_sets_that_come_along_is_one(name: str) -> None:
    train = load(name).train
    assert telling_columns(train.features, train.labels.argmax(axis=1)) == []


def test_a_number_on_another_scale_is_found(drawn: np.random.Generator) -> None:
    x = drawn.normal(size=(300, 4))
    scale = LabelScale((1.0,), (2.0,))
    assert scaled_labels(x, x[:, [2]] * -1.8 + 32, scale) == [2]
    assert scaled_labels(x, x[:, [2]] + 1e-3 * drawn.normal(size=(300, 1)), scale) == []
    assert scaled_labels(np.ones((300, 2)), x[:, :1], scale) == []


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("outcomes", [2, 3, 5])
def test_a_column_of_words_that_tells_the_class_is_named_by_its_own_name(
    drawn: np.random.Generator, outcomes: int, is_large: bool, tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    """Of three classes no word by itself tells it: the columns of its words are one column."""
    if is_large:
        monkeypatch.setattr("dl4jlegacy.datasets.tables.stored_tables.LARGE", 0)
        monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    kind, a, other = drawn.integers(0, outcomes, 300), drawn.normal(size=300).round(4), drawn.integers(0, 4, 300)
    rows = [f"{x},w{o},group {9 - k},k{k}" for x, o, k in zip(a, other, kind, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,other,code,kind", *rows]))
    conf = Conf(dataset=str(tmp_path / "t.csv"))
    _, data = load_new(conf, label="kind")
    said = [message for message in caplog.messages if "told by one column alone" in message]
    assert len(said) == 1 and "nearly always right: 'code';" in said[0]
    assert len(data.columns) == data.train.n_in


@pytest.mark.parametrize("label", ["kind", "price"])
def test_training_and_validation_name_it(drawn: np.random.Generator, label: str, tmp_path: Path, caplog: Any) -> None:
    kind, a = drawn.integers(0, 2, 200), drawn.normal(size=200).round(4)
    rows = [f"{x},{y},{10 * x + 3:.3f},{'ham' if k else 'spam'},{k}" for x, y, k in zip(a, a[::-1], kind, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["price,b,cents,kind,code", *rows]))
    load_new(Conf(dataset=str(tmp_path / "t.csv")), label=label, regression=label == "price")
    assert refusal(str(tmp_path / "t.csv"), label=label, regression=label == "price") is None  # as data validate asks
    said = [message for message in caplog.messages if "told by one column alone" in message]
    wanted = "'code'" if label == "kind" else "'cents'"
    assert len(said) == 2 and all(f"nearly always right: {wanted};" in message for message in said)
