"""Tables larger than memory: the same examples as in memory, from files that are whole, bounded, and never old."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ListDataSetIterator
from dl4jlegacy.datasets import Reading, TransformProcess, guess_schema, inspect_csv, load
from dl4jlegacy.datasets.columns.table import Column
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
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.fingerprint import fingerprint
from dl4jlegacy.datasets.sources import DataSource
from dl4jlegacy.datasets.tables import stored_array, stored_tables
from dl4jlegacy.datasets.tables.stored_array import StoredArray
from dl4jlegacy.datasets.validation import split_off
from dl4jlegacy.errors import DataError

COLUMNS = (Column("fuel", "category"), Column("age"), Column("power"), Column("price"), Column("sold", "category"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, with blocks of few rows."""
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored_tables, "_BLOCK", 0)
    monkeypatch.setattr(stored_array, "_HELD", 500)
    monkeypatch.setattr(stored_array, "_BUCKET", 1000)
    monkeypatch.setattr(stored_array, "_MOST_BUCKETS", 20)
    return tmp_path / "cache"


def cars(path: Path, rows: int = 700) -> Path:
    random = np.random.default_rng(5)
    lines = ["fuel,age,power,price,sold"]
    for number in range(rows):
        age = "" if number % 9 == 0 else str(number % 23)
        fuel = "" if number % 31 == 0 else random.choice(["gas", "oil", "steam"])
        price = "NA" if number % 101 == 7 else repr(float(random.normal(1e4, 3e3)))
        lines.append(f"{fuel},{age},{float(random.normal(90, 40))!r},{price},{'yes' if number % 3 else 'no'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def both(
    monkeypatch: pytest.MonkeyPatch, path: Path, process: TransformProcess, *, stratified: bool = False, **options: Any
) -> tuple[DataSource, DataSource]:
    """The data set in memory, and in files."""
    reading = Reading(transform=process, stratified=stratified)
    monkeypatch.setattr(stored_tables, "LARGE", 1 << 40)
    held = load(path, **options, reading=reading)
    monkeypatch.setattr(stored_tables, "LARGE", 0)
    return held, load(path, **options, reading=reading)


SCHEMAS: dict[str, tuple[Step, ...]] = {
    "guessed": (
        Impute(columns=("age", "power")),
        Standardize(columns=("age", "power")),
        Impute(columns=("fuel", "sold"), strategy="constant", constant="missing"),
        CategoricalToOneHot(columns=("fuel", "sold")),
    ),
    "all columns of a type": (Impute(strategy="median"), CategoricalToOneHot(), Standardize()),
    "rows left out": (
        Filter(columns=("age",), condition="missing"),
        Filter(columns=("power",), condition=">", value=120),
        MinMax(),
        RemoveColumns(columns=("sold",)),
        CategoricalToInteger(),
    ),
    "derived": (
        Derive(name="ratio", operation="divide", columns=("power", "age")),
        Impute(columns=("ratio", "age"), strategy="most-frequent"),
        Standardize(columns=("ratio",)),
        Derive(name="more", operation="add", columns=("ratio", "age")),
        Clip(columns=("more",), low=0.0),
        MinMax(columns=("more", "age")),
        Impute(columns=("fuel",), strategy="most-frequent"),
        CategoricalToOneHot(columns=("fuel",)),
        Standardize(columns=("fuel[gas]", "fuel[oil]")),
        RemoveColumns(columns=("sold", "power")),
    ),
    "known already": (
        RemoveColumns(columns=("fuel", "sold")),
        Impute(columns=("age", "power"), values=(3.0, 4.0)),
        Standardize(columns=("age",), mean=(1.0,), std=(2.0,)),
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("regression", [True, False])
def test_the_examples_and_what_is_learned_are_those_of_the_table_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, regression: bool
) -> None:
    path, steps = cars(tmp_path / "cars.csv"), SCHEMAS[name]
    label = "price"
    if not regression:
        label, columns = "fuel", ("age", "power", "price")
        steps = (RemoveColumns(columns=("sold",)), Impute(columns=columns), Standardize(columns=columns))
    process = TransformProcess(columns=COLUMNS, label=label, regression=regression, steps=steps)
    held, stored = both(monkeypatch, path, process)
    assert stored.reading.transform == held.reading.transform and stored.label_names == held.label_names
    assert stored.train == held.train and stored.test == held.test
    assert isinstance(stored.train.features, StoredArray) and not isinstance(held.train.features, StoredArray)
    assert fingerprint(stored.train) == fingerprint(held.train)
    again = both(monkeypatch, path, held.reading.transform or process)[1]
    assert again.train == held.train and again.reading.transform == held.reading.transform
    if not regression:
        held, stored = both(monkeypatch, path, process, stratified=True, test_fraction=0.3)
        assert stored.train == held.train and stored.test == held.test and stored.reading.stratified


@pytest.mark.parametrize("multi_label", [True, False])
def test_several_labels_are_those_of_the_table_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multi_label: bool
) -> None:
    path = tmp_path / "several.csv"
    rows = [f"{n % 13},{n % 2},{n % 3 // 2},{'' if n == 5 else n % 2}\n" for n in range(90)]
    path.write_text("a,x,y,z\n" + "".join(rows), encoding="utf-8")
    schema = guess_schema(inspect_csv(path), label="x,y,z", multi_label=multi_label)
    held, stored = both(monkeypatch, path, schema)
    assert (
        stored.reading.transform == held.reading.transform and stored.train == held.train and stored.test == held.test
    )
    assert stored.train.labels.shape == (71, 3) and stored.label_names == ("x", "y", "z")


def test_batches_and_a_part_to_validate_on_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cars(tmp_path / "cars.csv")
    held, stored = both(monkeypatch, path, guess_schema(inspect_csv(path)))
    monkeypatch.setattr(stored_array, "_TOUCHED", 1000)
    monkeypatch.setattr(stored_array, "_ROWS", 50)
    mine, theirs = (ListDataSetIterator(source.train, 7, seed=3) for source in (stored, held))
    for epoch, index in ((0, 0), (0, mine.total_batches - 1), (2, 5), (0, 0)):
        assert mine.batch(epoch, index) == theirs.batch(epoch, index)
        assert type(mine.batch(epoch, index).features) is np.ndarray
    apart, expected = split_off(mine, 0.25, 1), split_off(theirs, 0.25, 1)
    assert apart.training.dataset == expected.training.dataset and apart.validation == expected.validation  # type: ignore[union-attr]
    assert isinstance(apart.training.dataset.features, StoredArray)  # type: ignore[union-attr]
    assert [part.num_examples for part in stored.test.batch_by(50)] == [50, 50, 40]
    assert DataSet.merge([stored.train, stored.test]) == DataSet.merge([held.train, held.test])
    assert type(stored.train.features * 2) is np.ndarray and stored.train.features.max() == held.train.features.max()


def test_rows_are_taken_as_out_of_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_array, "_HELD", 1 << 20)
    held = np.arange(60, dtype=np.float32).reshape(20, 3)
    held.tofile(tmp_path / "rows")
    stored = StoredArray.open(tmp_path / "rows", (20, 3))
    for array, same in ((stored, held), (stored[5:15].view(), held[5:15]), (stored[2:18][4:], held[2:18][4:])):
        for rows in ([], [3, 4, 5, 1, 0, 9, 9], [-1, 2, -len(same)], range(len(same))):
            wanted = np.array(rows, int)
            taken = array.take(wanted, axis=0)
            assert type(taken) is np.ndarray and taken.flags.writeable
            np.testing.assert_array_equal(taken, same.take(wanted, axis=0))
        for row in (len(same), -len(same) - 1):
            with pytest.raises(IndexError):
                array.take([row], axis=0)
    assert stored.take([4, 2]).tolist() == [4, 2] and stored.take([1, 0], axis=1).shape == (20, 2)
    (tmp_path / "rows").write_bytes(bytes(100))
    with pytest.raises(OSError, match="ends before row 12 of 20"):
        stored.take([12], axis=0)


def test_parts_named_train_and_test_and_several_files_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cars"
    folder.mkdir()
    path = cars(folder / "train.csv", 400)
    cars(folder / "test.csv", 90)
    schema = guess_schema(inspect_csv(path))
    held, stored = both(monkeypatch, folder, schema)
    assert stored.train == held.train and stored.test == held.test and len(stored.test) == 90
    (folder / "test.csv").rename(folder / "part.csv")
    held, stored = both(monkeypatch, folder, schema)
    assert stored.train == held.train and stored.test == held.test and len(stored.test) == 98


def test_a_table_is_read_once_and_again_when_it_changed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cars(tmp_path / "cars.csv")
    schema = guess_schema(inspect_csv(path))
    _, first = both(monkeypatch, path, schema)
    kept = [place for place in cache.iterdir() if not place.is_symlink()]
    assert len(kept) == 1 and sorted(os.listdir(kept[0])) == ["features", "labels", "table.json"]
    with monkeypatch.context() as only_here:
        only_here.setattr(stored_tables, "_build", None)  # which would fail
        assert load(path, reading=Reading(transform=schema)).train == first.train
        assert load(path, reading=Reading(transform=first.reading.transform)).train == first.train, (
            "found by the fitted schema, too"
        )
    stat = path.stat()
    path.write_text(path.read_text(encoding="utf-8").replace("steam", "stone"), encoding="utf-8")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    changed = load(path, reading=Reading(transform=schema))
    assert changed.reading.transform != first.reading.transform and "fuel[stone]" not in str(first.reading.transform)
    features = next(place for place in cache.iterdir() if not place.is_symlink()) / "features"
    features.unlink()  # what is mapped stays
    features.write_bytes(b"short")
    assert load(path, reading=Reading(transform=schema)).train == changed.train, "a damaged one is made anew"


def test_what_was_used_longest_ago_makes_room(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_tables, "LARGE", 0)
    made = []
    for rows in (300, 400, 500):
        path = cars(tmp_path / "cars.csv", rows)
        before = set(cache.iterdir()) if cache.exists() else set()
        load(path, reading=Reading(transform=guess_schema(inspect_csv(path))))
        [new] = [place for place in set(cache.iterdir()) - before if not place.is_symlink()]
        os.utime(new / "table.json", (rows, rows))
        made.append(new)
    monkeypatch.setattr(stored_tables, "MOST", 20_000)
    (cache / ".999999999-begun").mkdir()
    path = cars(tmp_path / "cars.csv", 350)
    load(path, reading=Reading(transform=guess_schema(inspect_csv(path))))
    assert [place.exists() for place in made] == [False, False, False]
    load(path, reading=Reading(transform=guess_schema(inspect_csv(path))))
    assert len([place for place in cache.iterdir() if not place.is_symlink()]) == 1


@pytest.mark.parametrize(("module", "call"), [(tempfile, "TemporaryFile"), (os, "fsync"), (os, "rename")])
def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, module: Any, call: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = cars(tmp_path / "cars.csv")
    schema = guess_schema(inspect_csv(path))
    monkeypatch.setattr(stored_tables, "LARGE", 0)
    with monkeypatch.context() as disk:
        disk.setattr(module, call, full)
        with pytest.raises(DataError, match=r"cannot be kept in .*cache: No space left on device; .*DL4J_TABLES_CACHE"):
            load(path, reading=Reading(transform=schema))
    assert list(cache.iterdir()) == []
    source = load(path, reading=Reading(transform=schema))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"rows of a large table cannot be kept in .*: No space left"):
        source.train.take(np.arange(500))
    shutil.rmtree(cache)
    assert np.isfinite(source.train.features[:5]).all(), "who reads it goes on"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,y\n1,p\n2,q\nx,p\n", r"t\.csv, line 4, column 'a' \(1\): 'x' is not a number"),
        ("a,y\n1,p\n2,q\n3,p\n", r"t\.csv, line 3, column 'y' \(2\): label 'q' occurs once"),
        ("a,y\n1,p\n,p\n3,q\n,q\n", r"column 'a' \(1\): the cell has no value"),
        ("a,y\n", "holds no examples"),
    ],
)
def test_what_is_wrong_with_a_large_table_is_named(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(stored_tables, "LARGE", 0)
    process = TransformProcess(columns=(Column("a"), Column("y", "category")), label="y")
    with pytest.raises(DataError, match=message):
        load(path, reading=Reading(transform=process))
    assert list(cache.iterdir()) == []


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, process = cars(tmp_path / "cars.csv"), TransformProcess.blocks
    schema = guess_schema(inspect_csv(path))

    def appended(*arguments: Any, **named: Any) -> Any:
        yield from process(*arguments, **named)
        with path.open("a") as file:
            file.write("gas,1,2,3,yes\n")

    monkeypatch.setattr(stored_tables, "LARGE", 0)
    monkeypatch.setattr(TransformProcess, "blocks", appended)
    with pytest.raises(DataError, match=r"cars\.csv was changed while it was read"):
        load(path, reading=Reading(transform=schema))
