"""What every way into the package does with what is odd in a table, in every kind of file: docs/odd-files.md shows it.

The same is done without ``--label``, by which plain numbers are read, and with it, by which a schema is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from dl4jlegacy import load_model
from dl4jlegacy.cli import main
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.serving.answers import CSV, JSON_LINES, Limits, RefusedError, read_body
from dl4jlegacy.system.clock import Deadline
from dl4jlegacy.training.prepare import prepare
from tests.support.odd_page import OTHER, WAYS, cells_under, of_kind, warnings_of, without_names

Columns = list[tuple[str, list[Any]]]
"""The names and the cells of a table's columns."""

COUNT = 60
HEADINGS = {"": "Without a schema", "label": "With a schema"}
"""Above the tables of the page, by --label."""


def plain() -> Columns:
    """Return a table without anything odd."""
    source = np.random.default_rng(6)
    w, h = (source.normal(size=COUNT).round(3) for _ in range(2))
    return [("w", w.tolist()), ("h", h.tolist()), ("label", np.where(w + h > 0, "ham", "spam").tolist())]


def labelled(first: Any, second: Any) -> Columns:
    (w, h, (_, kinds)) = plain()
    return [w, h, ("label", [first if kind == "ham" else second for kind in kinds])]


def with_gaps() -> Columns:
    (w, h, (_, kinds)) = plain()
    return [w, h, ("label", [None if row % 20 == 7 else kind for row, kind in enumerate(kinds)])]


ODD: dict[str, Callable[[], Columns]] = {
    "columns in another order": lambda: [plain()[place] for place in (2, 1, 0)],
    "a column that the model does not know": lambda: [("more", [0.5] * COUNT), *plain()],
    "a column is missing": lambda: plain()[1:],
    "pandas' index": lambda: [("__index_level_0__", list(range(COUNT))), *plain()],
    "classes -1 and 1": lambda: labelled(-1, 1),
    "classes 1 and 2": lambda: labelled(1, 2),
    "classes None and NA": lambda: labelled("None", "NA"),
    "rows without a label": with_gaps,
    "a single class": lambda: labelled("ham", "ham"),
    "a column that is the label once more": lambda: [("code", [len(k) for k in plain()[2][1]]), *plain()],
    "numbers with a decimal comma": lambda: [
        ("w", [str(number).replace(".", ",") for number in plain()[0][1]]),
        *plain()[1:],
    ],
    "two columns of one name": lambda: [plain()[0], ("w", plain()[1][1]), plain()[2]],
}
OF_A_MODEL = tuple(ODD)[:4]
"""What may be odd in a file for a model that has learned the table without it."""


def csv_of(table: Columns) -> str:
    cells = [["" if cell is None else str(cell) for cell in column] for _, column in table]
    header = ";".join("" if name.startswith("__") else name for name, _ in table)
    return "\n".join([header, *map(";".join, zip(*cells, strict=True))]) + "\n"


def records_name(name: str) -> str:
    """How pandas' index is called once it is a column."""
    return "index" if name.startswith("__") else name


def lines_of(table: Columns) -> str:
    names = [records_name(name) for name, _ in table]
    rows = zip(*(cells for _, cells in table), strict=True)
    return "".join(f"{json.dumps(dict(zip(names, row, strict=True)))}\n" for row in rows)


def arrow_of(table: Columns) -> Any:
    return pa.Table.from_arrays([pa.array(cells) for _, cells in table], names=[name for name, _ in table])


def arrays(path: Path, table: Columns) -> None:
    np.savez(
        path,
        **{records_name(name): np.array(["" if cell is None else cell for cell in cells]) for name, cells in table},
    )


KINDS: dict[str, tuple[str, Callable[[Path, Columns], Any]]] = {
    "CSV": ("csv", lambda path, table: path.write_text(csv_of(table))),
    "JSON lines": ("jsonl", lambda path, table: path.write_text(lines_of(table))),
    "Parquet": ("parquet", lambda path, table: pa.parquet.write_table(arrow_of(table), path)),
    "Arrow": ("arrow", lambda path, table: pa.feather.write_feather(arrow_of(table), path)),
    "NumPy": ("npz", arrays),
}
IMPOSSIBLE = {("two columns of one name", "JSON lines"), ("two columns of one name", "NumPy")}
MEDIA = {"CSV": (CSV, csv_of), "JSON lines": (JSON_LINES, lines_of)}


class Bench:
    """Puts files of one kind through the ways, and says what came of it: read, named, refused, or other answers."""

    def __init__(self, folder: Path, kind: str, label: str, capsys: Any) -> None:
        self._folder, self._kind, self._capsys = folder, kind, capsys
        self._options = ["--label", label] if label else []
        self._label = label
        folder.mkdir()

    def outcomes(self, odd: str, ways: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield what comes of a file with something odd, for each of the ways that it can go."""
        place = self._file("odd", ODD[odd]())
        is_of_model = odd in OF_A_MODEL
        for way in WAYS[:4]:
            if way in ways and odd not in OF_A_MODEL[1:3]:
                yield way, self._learned(way, place)
        if (is_of_model or self._learned("train", place) != "refused") and set(ways) & set(WAYS[4:]):
            model = self._folder / "m.zip"
            learned = self._file("plain", plain()) if is_of_model else place
            self._run("train", learned, *self._options, *SHORT, "--out", model)
            for way in ways:
                if way in WAYS[4:] and (way != "serve" or self._kind in MEDIA):
                    yield way, self._answered(way, model, learned, place, odd)

    def _file(self, name: str, table: Columns) -> Path:
        ending, write = KINDS[self._kind]
        path = self._folder / f"{name}.{ending}"
        write(path, table)
        return path

    def _run(self, *words: object) -> tuple[int, str, str]:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as leave:
            main.main([*map(str, words)])
        said = self._capsys.readouterr()
        return int(leave.value.code or 0), said.out, said.err

    def _learned(self, way: str, place: Path) -> str:
        if way == "Python":
            fields: dict[str, Any] = {"dataset": str(place), "model": "mlp", "epochs": 1}
            with warnings_of() as told:
                try:
                    prepare(Conf(**fields), frozenset(fields), label=self._label)
                except Dl4jError:
                    return "refused"
            return "named" if told else "read"
        if way == "data validate":
            status, _, err = self._run("data", "validate", place, *self._options)
        elif way == "train":
            status, _, err = self._run("train", place, *self._options, *SHORT)
        else:
            search = self._folder / "search.json"
            conf = {"dataset": str(place), "model": "mlp", "epochs": 1, "search": {"batch_size": [8]}}
            search.write_text(json.dumps(conf))
            status, _, err = self._run("tune", search, *self._options, "--trials", 1, "--workers", 1)
        return "refused" if status else "named" if "warning:" in err else "read"

    def _answered(self, way: str, model: Path, learned: Path, place: Path, odd: str) -> str:
        if way == "serve":
            return self._served(model, plain() if odd in OF_A_MODEL else ODD[odd](), ODD[odd]())
        words = ("evaluate", model, "--split", "all", "--dataset") if way == "evaluate" else ("predict", model)
        _, wanted, _ = self._run(*words, learned, "--format", "json")
        status, found, err = self._run(*words, place, "--format", "json")
        if status:
            return "refused"
        if without_names(found) != without_names(wanted):
            return OTHER
        return "named" if "warning:" in err else "read"

    def _served(self, model: Path, *tables: Columns) -> str:
        media, text = MEDIA[self._kind]
        served, answers, unknown = load_model(model), [], list[str]()
        try:
            for table in tables:
                body = text([column for column in table if column[0] != "label"])
                found = read_body(served, media, body.encode(), Limits(), Deadline(60), unknown)
                answers.append(np.concatenate(list(found)))
        except (Dl4jError, RefusedError):
            return "refused"
        if not np.array_equal(*answers):
            return OTHER
        return "named" if unknown else "read"


SHORT = ("--model", "mlp", "--epochs", "1", "--workers", "1", "--format", "json")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.everyday(3)
def test_the_page_says_what_becomes_of_an_odd_csv_file(odd: str, tmp_path: Path, capsys: Any) -> None:
    told, ways = cells_under(HEADINGS[""])[odd], tuple(way for way in WAYS if way != "tune")
    for way, found in Bench(tmp_path / "f", "CSV", "", capsys).outcomes(odd, ways):
        assert found == of_kind(told[way], "CSV"), way


@pytest.mark.long
@pytest.mark.parametrize("label", ["", "label"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_says_what_becomes_of_odd_files_of_every_kind(
    kind: str, label: str, tmp_path: Path, capsys: Any
) -> None:
    told = cells_under(HEADINGS[label])
    wrong = [
        f"{odd}, {way}: {found}; the page says {told[odd][way]!r}"
        for number, odd in enumerate(ODD)
        if (odd, kind) not in IMPOSSIBLE
        for way, found in Bench(tmp_path / str(number), kind, label, capsys).outcomes(odd, WAYS)
        if found != of_kind(told[odd][way], kind) or found == OTHER
    ]
    assert not wrong
