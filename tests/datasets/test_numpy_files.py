"""NumPy's files as tables: the same examples as of the same numbers in a CSV file, and what is said of wrong ones."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from dl4jlegacy.datasets import Reading, TransformProcess, load
from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.columns.transforms import Standardize
from dl4jlegacy.datasets.tables.inspection import inspect_csv
from dl4jlegacy.datasets.tables.numpy_files import opened_numpy
from dl4jlegacy.datasets.tables.schema_guess import guess_schema
from dl4jlegacy.errors import CellError, DataError

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(60, 6)).astype(np.float32)
Y = RANDOM.integers(0, 3, size=60)


def write_csv(path: Path) -> Path:
    rows = [",".join([*map(repr, map(float, row)), str(label)]) for row, label in zip(X, Y, strict=True)]
    path.write_text("\n".join(["1,2,3,4,5,6,label", *rows]))
    return path


WRITE: dict[str, Any] = {
    "x-and-y.npz": lambda path: np.savez(path, y=Y, x=X),
    "packed.npz": lambda path: np.savez_compressed(path, features=X, labels=Y.astype(np.uint8)),
    "images.npz": lambda path: np.savez(path, images=X.reshape(60, 1, 2, 3), target=Y[:, None]),
    "whole.npy": lambda path: np.save(path, np.column_stack([X.astype(np.float64), Y])),
    "columns.npy": lambda path: np.save(path, np.asfortranarray(np.column_stack([X, Y]).astype(">f8"))),
    "fields.npy": lambda path: np.save(
        path,
        np.array(
            [(*map(float, x), y) for x, y in zip(X, Y, strict=True)],
            [*((str(n), "f4") for n in range(1, 7)), ("label", "i2")],
        ),
    ),
}


@pytest.mark.parametrize("name", WRITE)
def test_examples_are_those_of_the_same_numbers_in_a_csv_file(name: str, tmp_path: Path) -> None:
    WRITE[name](tmp_path / name)
    found, expected = load(tmp_path / name), load(write_csv(tmp_path / "same.csv"))
    assert (found.train, found.test, found.label_names) == (expected.train, expected.test, expected.label_names)
    last = "7" if name in ("whole.npy", "columns.npy") else "label"
    columns = (*(Column(str(n)) for n in range(1, 7)), Column(last))
    one, other = (
        load(
            tmp_path / file,
            reading=Reading(transform=TransformProcess(columns=kept, label=label, steps=(Standardize(),))),
        )
        for file, kept, label in ((name, columns, last), ("same.csv", (*columns[:6], Column("label")), "label"))
    )
    assert (one.train, one.test, one.label_names) == (other.train, other.test, other.label_names)
    assert guess_schema(inspect_csv(tmp_path / name)).columns == columns


def test_columns_of_words_gaps_and_several_arrays(tmp_path: Path) -> None:
    size = X[:, :2].astype(np.float64)
    size[3, 1] = np.nan
    colour = np.array(["red", "green", ""] * 20)
    np.savez(tmp_path / "t.npz", y=np.array(["cat", "dog"] * 30), size=size, code=np.arange(60) % 2 == 0, colour=colour)
    found = inspect_csv(tmp_path / "t.npz")
    assert [(c.name, c.type, c.missing) for c in found.columns] == [
        *(("1", "number", 0), ("2", "number", 1), ("code", "number", 0), ("colour", "category", 20)),
        ("label", "category", 0),
    ]
    source = load(tmp_path / "t.npz", reading=Reading(transform=guess_schema(found)))
    assert source.label_names == ("cat", "dog") and source.train.n_in == 6
    np.savez(tmp_path / "two.npz", left=X, right=X)
    with pytest.raises(DataError, match=r"row 1, column 12.*real number"):
        load(tmp_path / "two.npz")
    assert [c.name for c in inspect_csv(tmp_path / "two.npz").columns][5:7] == ["left 6", "right 1"]


def test_a_file_is_read_some_rows_at_a_time(tmp_path: Path) -> None:
    for name in ("x-and-y.npz", "packed.npz", "columns.npy"):
        WRITE[name](tmp_path / name)
        with opened_numpy((tmp_path / name).open("rb"), name) as source:
            blocks = list(source.blocks(25))
        assert [len(block["1"]) for block in blocks] == [25, 25, 10]
        assert np.array_equal(np.concatenate([block["6"] for block in blocks]), X[:, 5])


def objects(path: Path) -> None:
    np.savez(path, x=X, y=np.array([{"a": 1}] * 60, object))


def cut(path: Path) -> None:
    np.save(path, X)
    path.write_bytes(path.read_bytes()[:700])


def damaged(path: Path) -> None:
    np.savez_compressed(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[400:420] = bytes(20)
    path.write_bytes(content)


def text_inside(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "no array")


def header(damage: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return what writes a file whose header is damaged, at the same length."""

    def write(path: Path) -> None:
        np.save(path, X)
        content = path.read_bytes()
        path.write_bytes(content[:10] + damage(content[10:128]).ljust(118)[:118] + content[128:])

    return write


def impossible_texts(path: Path) -> None:
    np.save(path, np.array([(7, "abc"), (8, "def")], [("a", "i4"), ("label", "U3")]))
    path.write_bytes(path.read_bytes().replace("e".encode("utf-32-le"), b"\xff" * 4))


def bytes_that_are_no_text(path: Path) -> None:
    np.save(path, np.array([(7, b"a"), (8, b"\xff")], [("a", "i4"), ("label", "S1")]))


def later_version(path: Path) -> None:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.zeros(3, [("大きさ", "f4"), ("label", "f4")]), version=(3, 0))
    path.write_bytes(content.getvalue())


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("a.npz", objects, r"a\.npz, array 'y' has dtype object"),
        ("a.npz", lambda path: np.savez(path, x=X, y=Y[:50]), r"a\.npz: arrays have different numbers.*'x' 60, 'y' 50"),
        ("a.npz", lambda path: np.savez(path, x=X, y=7), r"array 'y' is a single value"),
        ("a.npz", lambda path: np.savez(path, x=X, y=X[:, 0] * 1j), "array 'y' has dtype complex"),
        ("a.npz", lambda path: np.savez(path, x=X[:0], y=Y[:0]), "holds no examples"),
        ("a.npz", lambda path: np.savez(path, y=Y, labels=Y, x=X), "column 'label' is there 2 times"),
        ("a.npy", cut, r"a\.npy ends early"),
        ("a.npy", Path.touch, r"a\.npy is empty"),
        ("a.npy", lambda path: path.write_text("1,2,0"), r"cannot read .*a\.npy"),
        ("a.npy", lambda path: np.save(path, Y), "only 1 column"),
        ("a.npz", damaged, r"cannot read .*a\.npz"),
        ("a.npz", text_inside, r"cannot read .*a\.npz"),
        *[
            ("a.npy", header(damage), r"cannot read .*a\.npy: .*is it whole")
            for damage in (
                lambda text: text.replace(b"'shape'", b"'sh\0pe'"),
                lambda text: text.replace(b"}", b"'"),
                lambda text: text.replace(b"}", b"}\n  (\n"),
                lambda text: text.replace(b"<f8", b"\xff\xfe<").replace(b"'descr'", b"(" * 80),
                lambda text: text.replace(b"<f4", b"<f9"),
                lambda text: text.replace(b"(60, 6)", b"(60, 9" + b"9" * 30 + b")"),
                lambda text: text.replace(b"(60", b"(-6"),
            )
        ],
        ("a.npy", impossible_texts, r"cannot read .*a\.npy: .*is it whole"),
        ("a.npy", bytes_that_are_no_text, r"cannot read .*a\.npy: .*is it whole"),
        ("a.npy", later_version, r"version \(3, 0\)"),
    ],
)
def test_a_file_that_is_no_table_is_an_error_that_names_it(name: str, write: Any, said: str, tmp_path: Path) -> None:
    write(tmp_path / name)
    with pytest.raises(DataError, match=said):
        load(tmp_path / name)


def test_a_wrong_cell_is_named_by_row_and_column(tmp_path: Path) -> None:
    x = X.copy()
    x[40, 2] = np.inf
    np.savez(tmp_path / "a.npz", x=x, y=Y)
    with pytest.raises(CellError, match=r"a\.npz, row 41, column 3: inf"):
        load(tmp_path / "a.npz")
    schema = TransformProcess(columns=(Column("3"), Column("label")), label="label")
    with pytest.raises(CellError, match=r"a\.npz, row 41, column '3' \(3\): 'inf' is not a number"):
        load(tmp_path / "a.npz", reading=Reading(transform=schema))
    np.savez(tmp_path / "b.npz", x=X, z=np.array(["1.5"] * 30 + ["big"] * 30), y=Y)
    with pytest.raises(CellError, match=r"b\.npz, row 31, column 7: 'big' is not a number"):
        load(tmp_path / "b.npz")


@pytest.mark.parametrize("name", ["y", "label", "labels", "target", "Targets"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_hot_labels_are_one_label(name: str, order: Literal["C", "F"], tmp_path: Path) -> None:
    x, y = RANDOM.normal(size=(30, 3)), np.arange(30) % 4
    np.savez(tmp_path / "number.npz", x=x, y=y)
    for kind in (bool, np.uint8, np.float32):
        np.savez_compressed(tmp_path / "one hot.npz", **{"x": x, name: np.asarray(np.eye(4)[y], kind, order=order)})
        number, one_hot = load(tmp_path / "number.npz"), load(tmp_path / "one hot.npz")
        assert one_hot.train == number.train and one_hot.test == number.test
        assert one_hot.label_names == number.label_names == ("0", "1", "2", "3")
        found = inspect_csv(tmp_path / "one hot.npz")
        assert [column.name for column in found.columns] == ["1", "2", "3", "label"]


@pytest.mark.parametrize("y", [np.eye(3)[np.arange(30) % 3] * 2, np.ones((30, 3)), np.arange(90).reshape(30, 3) / 7])
def test_other_labels_of_several_columns_are_no_features(y: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "several.npz"
    np.savez(path, x=RANDOM.normal(size=(30, 2)), y=y)
    with pytest.raises(DataError, match=r"the labels have 3 columns, 'y 1' to 'y 3', and are not one-hot"):
        load(path)
    assert inspect_csv(path).label_columns("") == ("y 1", "y 2", "y 3")
    assert guess_schema(inspect_csv(path), label="y 1,y 2,y 3").labels == ("y 1", "y 2", "y 3")
