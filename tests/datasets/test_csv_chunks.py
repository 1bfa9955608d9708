"""CSV files read in pieces by pyarrow: the same cells, lines and errors as row by row, whatever stands in them."""

from __future__ import annotations

import concurrent.futures
import gzip
import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from dl4jlegacy.datasets.columns.table import Column, Table
from dl4jlegacy.datasets.tables import csv_chunks
from dl4jlegacy.datasets.tables.table_blocks import table_blocks
from dl4jlegacy.datasets.tables.text_rows import csv_rows
from dl4jlegacy.errors import DataError

COLUMNS = (Column("a"), Column("w", "category"), Column("b"))
TEXTS = {
    "plain": "a,w,b\n" + "".join(f"{number / 7!r},w{number % 5},{number}\n" for number in range(99)),
    "no header, no line break at the end": "1,x,2\n3,y,4\n5,z,6",
    "carriage returns": "a,w,b\r\n1,x,2\r\n3,y,4\r\n",
    "old carriage returns": "a,w,b\n1,x,2\r3,y,4\n",
    "semicolons": "a;w;b\n1;x,y;2\n3;y;4\n",
    "gaps": "a,w,b\n,x,NA\nnan,?,3\nNaN,None,nULL\n7,N/A,?\n",
    "spaces": "a,w,b\n 1 , x ,2\n3,y , 4\n",
    "another order": "b,extra,w,a\n1,2,x,3\n4,5,y,6\n",
    "rows without a cell": "a,w,b\n1,x,2\n,,\n\n  \n3,y,4\n",
    "quotes": 'a,w,b\n1,"x, y",2\n3,"two\nlines",4\n5,"a ""b""",6\n7,z,8\n',
    "a quote in a word": 'a,w,b\n1,5" disk,2\n3,y,4\n',
    "a word of everything": "a,w,b\n1,ä€😀,2\n3,nan,4\n",
    "other spellings of numbers": "a,w,b\n+1,x,1e-3\n-0.0,y,.5\n1.,z,1E5\n123456789012345678,u,5e-324\n",
    "infinite": "a,w,b\n1,x,2\ninf,y,4\n",
    "too large": "a,w,b\n1,x,2\n1e999,y,4\n",
    "with an underline": "a,w,b\n1,x,2\n1_0,y,4\n",
    "a word for a number": "a,w,b\n1,x,2\n3,y,much\n",
    "a column less": "a,w,b\n1,x,2\n3,y\n",
    "a column more": "a,w,b\n1,x,2\n3,y,4,5\n",
    "no text": "a,w,b\n1,\udcff,2\n",
    "a header alone": "a,w,b\n",
    "nothing": "",
    "a column that is not there": "a,w,c\n1,x,2\n",
    "a quote that never ends": 'a,w,b\n1,"x,2\n3,y,4\n',
}


def outcome(file: Any, rows: int, missing: Any = None) -> Any:
    named = {} if missing is None else {"missing": missing}
    try:
        tables = list(table_blocks(file, "t.csv", COLUMNS, rows=rows, **named))
    except DataError as error:
        return str(error).partition(" UTF-8")[0]  # behind it is a position, counted from the piece
    assert all(len(table) == rows for table in tables[:-1])
    whole = Table.merge(tables)
    return {name: [str(value) for value in values] for name, values in whole.columns.items()}, whole.lines.tolist()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("size", [16, 1 << 20])
def test_pieces_have_the_cells_lines_and_errors_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    monkeypatch.setattr(csv_chunks, "_CHUNK", size)
    content = TEXTS[name].encode("utf-8", "surrogateescape")
    expected = outcome(io.BytesIO(content), 3)  # which is no file, and so is read row by row
    for ending, stored in (("", content), (".gz", gzip.compress(content)), ("", b"\xef\xbb\xbf" + content)):
        path = tmp_path / f"t.csv{ending}"
        path.write_bytes(stored)
        with path.open("rb") as file:
            assert outcome(file, 3) == expected
    for missing in (("", "2", "x"), ("x",)):
        with path.open("rb") as file:
            assert outcome(file, 3, missing) == outcome(io.BytesIO(content), 3, missing)


@pytest.mark.parametrize("bad", ["x,y,z", "1,y", '1,"y'])
def test_the_blocks_before_what_is_wrong_come_first(tmp_path: Path, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_chunks, "_CHUNK", 50)
    path = tmp_path / "t.csv"
    path.write_text("a,w,b\n" + "1,y,2\n" * 25 + bad + "\n" + "1,y,2\n" * 9, encoding="utf-8")
    found = []
    with pytest.raises(DataError), path.open("rb") as file:
        for table in table_blocks(file, "t.csv", COLUMNS, rows=4):
            found.append(len(table))
    assert found == [4] * 6


def test_pieces_are_read_by_pyarrow_as_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TEXTS["plain"], encoding="utf-8")
    by_rows = list(map(str, range(0)))
    monkeypatch.setattr(csv_chunks.CsvChunk, "rows", lambda self: by_rows.append("used") or iter(()))
    with path.open("rb") as file:
        [table] = table_blocks(file, "t.csv", COLUMNS)
    assert not by_rows and len(table) == 99
    np.testing.assert_array_equal(table.columns["a"], [number / 7 for number in range(99)])
    monkeypatch.undo()
    monkeypatch.setattr(csv_chunks.CsvChunk, "columns", lambda *given: None)
    with path.open("rb") as file:
        [again] = table_blocks(file, "t.csv", COLUMNS)
    assert again.columns["a"].tolist() == table.columns["a"].tolist() and again.lines.tolist() == table.lines.tolist()


@pytest.mark.parametrize("rows", [2, 5000])
def test_a_byte_that_is_no_text_is_named_by_its_line(rows: int, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"x,y\n" + b"12.5,a\n" * rows + b"3,caf\xe9\n" + b"12.5,a\n" * rows)
    with pytest.raises(DataError, match=rf"t\.csv is not a CSV file in UTF-8: line {rows + 2} has b.\\xe9"):
        list(csv_rows(path.open("rb"), str(path)))


def test_no_thread_of_arrows_holds_an_object_of_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives such an object back while Python ends is stopped there, which ends the process with status 134."""
    seen: list[int] = []

    class Watched(bytes):
        def __del__(self) -> None:
            seen.append(threading.get_ident())

    class WatchedFile(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            seen.append(threading.get_ident())
            return super().read(size)

        def __del__(self) -> None:
            seen.append(threading.get_ident())

    given, read_csv = list[Any](), pyarrow.csv.read_csv
    monkeypatch.setattr(pyarrow.csv, "read_csv", lambda file, *how: (given.append(file), read_csv(file, *how))[1])
    for count in range(1, 20):
        chunk = csv_chunks.CsvChunk("t.csv", Watched(b"1,x\n2,y\n" * 30), 1, ",")
        assert chunk.columns(2, {0: True, 1: False}, frozenset()) is not None
        del chunk
        assert len(given) == len(seen) == count, "what Arrow was given holds the text, which is Python's"
    table = pa.table({"a": list(range(90)), "w": ["x", "y", "z"] * 30, "b": [0.5] * 90})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=20)
    pyarrow.feather.write_feather(table, str(tmp_path / "t.arrow"))
    for name in ("t.parquet", "t.arrow") * 9:
        [found] = table_blocks(WatchedFile((tmp_path / name).read_bytes()), name, COLUMNS)
        assert len(found) == 90
    assert set(seen) == {threading.get_ident()}


@pytest.mark.release
def test_a_hundred_errors_on_a_busy_machine_end_with_their_own_status(tmp_path: Path) -> None:
    rows = "".join(f"{row},{row % 7},{'spam' if row % 2 else 'ham'}\n" for row in range(60))
    (tmp_path / "t.csv").write_text(f"width,height,kind\n{rows}180,60,TOTAL\n", encoding="utf-8")
    command = [sys.executable, "-m", "dl4jlegacy", "train", "t.csv", "--epochs", "1", "--label", "kind"]

    def status(_: int) -> tuple[int, str]:
        ended = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, timeout=300
        )
        return ended.returncode, ended.stderr.splitlines()[-1]

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        ends = set(pool.map(status, range(100)))
    assert {code for code, _ in ends} == {3} and all("'TOTAL' occurs once" in said for _, said in ends), ends
