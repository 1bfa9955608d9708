"""Generated tables with something odd in them, of every kind of file: data validate refuses what train refuses, and a
model that learned from one answers it alike in any order of its columns."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from PIL import Image

from dl4jlegacy import load_model
from dl4jlegacy.cli import main
from dl4jlegacy.datasets import DataSource
from dl4jlegacy.datasets.images.image_files import ImageRecordReader
from dl4jlegacy.datasets.tables import inspection, stored_tables
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.models.model import TrainedModel
from dl4jlegacy.models.prediction import rows_in
from dl4jlegacy.nn import MultiLayerNetwork
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.training.prepare import model_writer, prepare, refusal
from dl4jlegacy.training.run import Run

Cells = list[list[str]]
"""The rows of a table as texts."""

LABELS: tuple[tuple[str, ...], ...] = (
    ("a", "b"),
    ("0", "1"),
    ("0", "1", "2"),
    ("-1", "1"),
    ("1", "2"),
    ("None", "NA"),
    ("0", "x"),
    ("1.0", "2.0"),
    ("", "a", "b"),
    ("caf\u00e9", "cafe\u0301", "th\u00e9"),
    ("true", "false"),
    ("only",),
    ("1.5", "2.5", "0"),
    ("nan", "a"),
    ("inf", "a"),
    ("",),
)
ODD_CELLS = ("", "NA", "?", "x", "1,5", "1e400", "inf", "nan", " 7 ", "1_0", "٣", "0x1", "-", "1e-3", "'", '"', "None")
ODD_NAMES = ("a", "", "label", "1", "column 2", "NA", "2020", "kind ", "Kind", "target", "é", "x" * 300)


def table(source: random.Random) -> tuple[list[str], Cells]:
    """Return the names of the columns and the rows of a table, which has up to three things that are odd."""
    width, count, labels = source.randint(1, 4), source.choice((1, 3, 24, 24, 40)), source.choice(LABELS)
    names = [*"abcd"[:width], "kind"]
    rows = [[f"{source.gauss(0, 3):.3f}" for _ in range(width)] + [source.choice(labels)] for _ in range(count)]
    for _ in range(source.choice((0, 0, 1, 1, 2, 3))):
        what, row, column = source.randrange(7), source.choice(list(filter(None, rows))), source.randrange(width)
        if what == 0:
            row[min(column, len(row) - 1)] = source.choice(ODD_CELLS)
        elif what == 1:
            names[source.randrange(width + 1)] = source.choice(ODD_NAMES)
        elif what == 2:
            row[-1] = source.choice((*ODD_CELLS, "lone"))
        elif what == 3:
            rows.append(source.choice(([], row[:-1], [*row, "9"], list(row), [""] * (width + 1))))
        elif what == 4:
            words = source.choice((("red", "blue"), ("1,5", "2,25"), ("",), ("7",), tuple(map(str, range(400)))))
            for each in rows:
                each[column : column + 1] = [source.choice(words)] if len(each) > column else []
        elif what == 5:
            rows = [[str(number), *each] for number, each in enumerate(rows)]
            names, width = [source.choice(("", "id")), *names], width + 1
        else:
            rows = [[*each[:-1], f"{source.gauss(0, 1):.2f}"] for each in rows]
    return names, rows


def csv(path: Path, names: list[str], rows: Cells, source: random.Random) -> None:
    between, end = source.choice(",;\t"), source.choice(("\n", "\r\n"))
    lines = [names, *rows] if source.random() < 0.8 else rows
    text = end.join(between.join(row) for row in lines) + end
    path.write_bytes((source.choice(("", "\ufeff")) + text).encode())


def typed(rows: Cells, width: int) -> list[list[Any]]:
    """Return columns of numbers where all cells are, and else of texts; an empty cell is None."""
    columns: list[list[Any]] = []
    for column in range(width):
        cells = [row[column] if column < len(row) else "" for row in rows]
        try:
            columns.append([float(cell) if cell else None for cell in cells])
        except ValueError:
            columns.append([cell or None for cell in cells])
    return columns


def arrow(write: Callable[[Any, str], None]) -> Callable[..., None]:
    def written(path: Path, names: list[str], rows: Cells, source: random.Random) -> None:
        write(pa.Table.from_arrays(list(map(pa.array, typed(rows, len(names)))), names), str(path))

    return written


def json_lines(path: Path, names: list[str], rows: Cells, source: random.Random) -> None:
    columns = typed(rows, len(names))
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    path.write_text("\n".join(lines), encoding="utf-8")


def npz(path: Path, names: list[str], rows: Cells, source: random.Random) -> None:
    columns = typed(rows, len(names))
    gaps = [np.nan if any(isinstance(cell, float) for cell in column) else "" for column in columns]
    whole = [[gap if cell is None else cell for cell in column] for gap, column in zip(gaps, columns, strict=True)]
    arrays = {name or "none": np.array(column) for name, column in zip(names, whole, strict=True)}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def svmlight(path: Path, names: list[str], rows: Cells, source: random.Random) -> None:
    lines = []
    for row in rows:
        pairs = [f"{index}:{cell}" for index, cell in enumerate(row[:-1], 1) if cell]
        lines.append(" ".join([row[-1] if row else "", *pairs]))
    path.write_text("\n".join(lines), encoding="utf-8")


FORMATS: dict[str, Callable[[Path, list[str], Cells, random.Random], None]] = {
    "csv": csv,
    "parquet": arrow(pa.parquet.write_table),
    "arrow": arrow(pa.feather.write_feather),
    "jsonl": json_lines,
    "npz": npz,
    "svm": svmlight,
}


def learned(path: str, label: str) -> tuple[Run, DataSource] | str:
    """Return the run and the data with which training begins; what it says against a file if it refuses that."""
    fields: dict[str, Any] = {"dataset": path, "model": "mlp", "epochs": 1}
    try:
        return prepare(Conf(**fields), frozenset(fields), label=label)
    except Dl4jError as error:
        return str(error)


def refused_by_training(path: str, label: str) -> str:
    """Return what training says against a file; "" if it would learn from it."""
    found = learned(path, label)
    return found if isinstance(found, str) else ""


@dataclass(slots=True)
class Found:
    """What became of generated files: of which only one of the two ways says that they are refused, which are answered
    otherwise in another order of their columns; how many were accepted, and how many of these were tried in another."""

    apart: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)
    accepted: int = 0
    tried: int = 0


def answered(model: TrainedModel, path: Path) -> list[Any] | str:
    """Return the outputs for a file, or the error with which it is refused."""
    try:
        return np.concatenate([model.answer(rows) for rows in rows_in(model, str(path))[0]]).tolist()
    except Dl4jError as error:
        return str(error)


def trained(run: Run, data: DataSource, place: Path) -> TrainedModel:
    """Return the model after an epoch of one batch, written and read again."""
    assert run.conf.multi_layer_conf is not None
    network = MultiLayerNetwork(run.conf.multi_layer_conf)
    network.fit(data.train)
    model_writer(network, data)(place)
    return load_model(place)


def tables(folder: Path, seeds: range) -> Found:
    """Write tables; ask training and data validate whether they are refused, and a model that learned from them."""
    found = Found()
    for seed in seeds:
        source = random.Random(seed)
        names, rows = table(source)
        kind = list(FORMATS)[seed % len(FORMATS)]
        path, drawn = folder / f"{seed}.{kind}", source.getstate()
        FORMATS[kind](path, names, rows, source)
        label = source.choice(("", "kind", str(len(names))))
        said = learned(str(path), label)
        with pytest.raises(SystemExit) as leave:
            main.main(["data", "validate", str(path), *(["--label", label] if label else [])])
        if bool(leave.value.code) != isinstance(said, str):
            found.apart.append(f"{path.name} --label {label!r}: validate {leave.value.code}, train: {said}")
        if isinstance(said, str):
            continue
        found.accepted += 1
        order = random.Random(seed).sample(range(len(names)), len(names))
        other = folder / f"other-{path.name}"
        source.setstate(drawn)
        padded = [row + [""] * (len(names) - len(row)) if row or kind != "csv" else row for row in rows]
        again = [[row[place] for place in order] if row else row for row in padded]
        FORMATS[kind](other, [names[place] for place in order], again, source)
        if (
            kind == "svm"
            or len(set(names)) < len(names)
            or (kind == "csv" and not path.read_text("utf-8-sig").startswith(names[0]))
        ):
            continue
        found.tried += 1
        model = trained(*said, folder / "m.zip")
        wanted, got = (answered(model, each) for each in (path, other))
        if isinstance(wanted, str) or wanted != got:
            shown = [each if isinstance(each, str) else "" for each in (wanted, got)]
            found.otherwise.append(f"{other.name} --label {label!r} {names} {order}: {shown}")
    return found


def test_train_and_data_validate_agree_and_models_find_columns_by_name(tmp_path: Path) -> None:
    found = tables(tmp_path, range(60))
    assert not found.apart and not found.otherwise and found.tried


NAMED = {
    "labels -1 and 1": ("w,h,kind\n" + "1.5,2,-1\n2.5,3,1\n" * 9, ""),
    "a class called None": ("w,h,kind\n" + "1.5,2,None\n2.5,3,some\n" * 9, ""),
    "numbers with a comma": ("w;h;kind\n" + "1,5;2;x\n2,5;3;y\n" * 9, "'w' holds numbers with a comma, such as '1,5'"),
    "a name twice": ("w,w,kind\n" + "1.5,2,x\n2.5,3,y\n" * 9, "column 'w' is there twice in the header"),
    "names that differ in case": ("w,W,kind\n" + "1.5,2,x\n2.5,3,y\n" * 9, ""),
    "a single class": ("w,h,kind\n" + "1.5,2,x\n2.5,3,x\n" * 9, "has only one class, 'x'"),
}


@pytest.mark.parametrize("case", NAMED)
def test_both_say_the_same_of_what_was_once_read_in_two_ways(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, words = NAMED[case]
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    for label in ("", "kind"):
        said = refused_by_training(str(path), label)
        assert (words in said) if words else not said
        with pytest.raises(SystemExit) as leave:
            main.main(["data", "validate", str(path), *(["--label", label] if label else [])])
        assert bool(leave.value.code) == bool(said), capsys.readouterr()


def test_folders_of_classes_are_one_class_however_their_accents_are_written(tmp_path: Path) -> None:
    for part, form in (("train", "NFD"), ("test", "NFC")):
        for name in ("caf\u00e9", "th\u00e9"):
            for number in range(4):
                path = tmp_path / "photos" / part / unicodedata.normalize(form, name) / f"{number}.png"  # type: ignore[arg-type]
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.uint8(np.random.default_rng(number).integers(0, 255, (6, 6)))).save(path)
    assert not refused_by_training(str(tmp_path / "photos"), "")
    with pytest.raises(SystemExit) as leave:
        main.main(["data", "validate", str(tmp_path / "photos")])
    assert not leave.value.code


LEARNED: Cells = [["1.5", "2", "0"], ["2.5", "3", "1"]] * 9 + [["1.5", "3", "2"]]
"""A part to learn from, in which a class has a single row."""


def validated(path: Path, *options: str) -> bool:
    """Return whether data validate accepts a data set."""
    with pytest.raises(SystemExit) as leave:
        main.main(["data", "validate", str(path), *options])
    return not leave.value.code


@pytest.mark.parametrize("large", [False, True], ids=["in memory", "in files"])
@pytest.mark.parametrize("label", ["", "3"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_class_that_only_the_test_part_has_is_refused(
    kind: str, label: str, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stored_tables, "LARGE", 0 if large else stored_tables.LARGE)
    label = "label" if label and kind == "svm" else label
    for name, held, words in (("known", "2", ""), ("unknown", "7", rf"test\.{kind}, .*label '7(\.0)?' is unknown")):
        place = tmp_path / name
        place.mkdir()
        for part, rows in (("train", LEARNED), ("test", [["2.5", "2", held]] * 3)):
            FORMATS[kind](place / f"{part}.{kind}", ["w", "h", "kind"], rows, random.Random(1))
        said = refused_by_training(str(place), label)
        assert re.search(words, said) and bool(words) == bool(said), said
        assert validated(place, *(["--label", label] if label else [])) == (not words)


@pytest.mark.parametrize("label", ["", "3"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "npz"])
def test_data_validate_looks_at_a_file_once_and_keeps_nothing_of_it(
    kind: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, opened = tmp_path / f"t.{kind}", list[str]()
    words = [["1.5", "red", "a"], ["2.5", "blue", "b"], ["", "red", "b"]] * 9
    FORMATS[kind](place, ["w", "colour", "kind"], words, random.Random(1))
    look = inspection.opened_rows
    monkeypatch.setattr(inspection, "opened_rows", lambda file, name: opened.append(name) or look(file, name))
    monkeypatch.setenv("DL4J_TABLES_CACHE", str(tmp_path / "cache"))
    for large in (False, True):
        monkeypatch.setattr(stored_tables, "LARGE", 0 if large else stored_tables.LARGE)
        opened.clear()
        assert validated(place, *(["--label", label] if label else []))
        assert opened == [str(place)]
    assert not list((tmp_path / "cache").iterdir())
    assert not refused_by_training(str(place), label) and list((tmp_path / "cache").iterdir())


def test_images_of_a_class_that_only_the_test_list_has_are_refused(tmp_path: Path) -> None:
    for number in range(8):
        Image.fromarray(np.full((6, 6), number * 9, np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "train.csv").write_text("file,kind\n" + "".join(f"{n}.png,{n % 2}\n" for n in range(6)))
    reader = ImageRecordReader(column="file")
    for held, words in (("1", ""), ("7", "test.csv, line 2, column 'kind' (2): label '7' is unknown; known: 0, 1")):
        (tmp_path / "test.csv").write_text(f"file,kind\n6.png,{held}\n7.png,{held}\n")
        said = str(refusal(str(tmp_path), images=reader) or "")
        assert words in said and bool(words) == bool(said)
        assert validated(tmp_path, "--images", "file") == (not words)


@pytest.mark.parametrize("options", [(), ("--images", "file")], ids=["folders", "list"])
def test_images_of_several_sizes_are_refused_unless_they_are_made_alike(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "list.csv").write_text("file,kind\n" + "".join(f"{n % 2}/{n}.png,{n % 2}\n" for n in range(8)))
    for number in range(8):
        path = tmp_path / str(number % 2) / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((6, 7 if number == 3 else 6), number * 9, np.uint8)).save(path)
    if not options:
        (tmp_path / "list.csv").unlink()
    named = tmp_path / "list.csv" if options else tmp_path
    for size in (0, 6):
        reader = ImageRecordReader(height=size, width=size, column=options[1] if options else "")
        said = str(refusal(str(named), images=reader if size or options else None) or "")
        assert ("images differ in size" in said) == (not size) == bool(said)
        assert validated(named, *options, *(("--image-size", "6") if size else ())) == bool(size)


@pytest.mark.release
def test_train_and_data_validate_agree_and_models_find_columns_by_name_in_thousands(tmp_path: Path) -> None:
    found = tables(tmp_path, range(2000))
    print(f"{found.accepted} accepted, {found.tried} tried in another order")
    assert not found.apart and not found.otherwise and found.tried
