"""Tables written as files of every kind, by the ending of the path."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

Table = dict[str, list[Any]]
"""The cells of each column by its name; None is a gap."""


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return list(zip(*table.values(), strict=True))


def csv_of(table: Table, *, names: bool = True, mark: str = ",") -> str:
    def cell(value: Any) -> str:
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    lines = [mark.join(map(cell, row)) for row in rows_of(table)]
    return "\n".join([*([mark.join(table)] if names else []), *lines]) + "\n"


def lines_of(table: Table) -> str:
    return "".join(
        json.dumps(dict(zip(table, row, strict=True))).replace("NaN", "null") + "\n" for row in rows_of(table)
    )


def write_table(path: Path, table: Table) -> Path:
    """Write a table; return the path."""
    ending = path.name.partition(".")[2]
    if ending in ("parquet", "feather"):
        write = pa.parquet.write_table if ending == "parquet" else pa.feather.write_feather
        write(pa.table(table), str(path))
    elif ending == "arrow":
        whole = pa.table(table)
        with pa.ipc.new_stream(str(path), whole.schema) as stream:
            for batch in whole.to_batches(max_chunksize=5):
                stream.write_batch(batch)
    elif ending == "npz":
        np.savez(path, **{name: array_of(cells) for name, cells in table.items()})
    elif ending == "npy":
        kinds = [(name, "i8" if isinstance(cells[0], int) else "f8") for name, cells in table.items()]
        np.save(path, np.array(rows_of(table), kinds))
    else:
        text = lines_of(table) if "json" in ending else csv_of(table, mark="\t" if "tsv" in ending else ",")
        path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    return path


def array_of(cells: list[Any]) -> Any:
    gap = "" if any(isinstance(cell, str) for cell in cells) else np.nan
    return np.array([gap if cell is None else cell for cell in cells])
