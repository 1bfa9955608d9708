"""Reading large tables: ``python benchmarks/reading.py [--megabytes 2000] [--part memory] [--format json]``.

Two parts, each with both sides in one run, on tables of random numbers and a label that are made for it:

- ``speed``: a CSV and a Parquet file as blocks of columns, against pyarrow's own readers of the same file, in turns.
- ``memory``: the most memory that a process has (``VmHWM``) which guesses the schema of a CSV file of so many
  megabytes, makes it ready, and trains on some of its batches; above that of the same process with the same network on
  a table of a few rows.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_line
import measured
import numpy as np

from dl4jlegacy.datasets.table import Column
from dl4jlegacy.datasets.table_blocks import table_blocks

PARTS = ("speed", "memory")
COLUMNS = 40
ROWS = 20_000  # that are made, and then repeated
BLOCK = 65_536
SPEED_GOAL, MEMORY_GOAL = 0.8, 500.0
MEGABYTE = 1e6


def made_rows() -> list[str]:
    """Return lines of numbers, the label last."""
    values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS))
    return [",".join([*map("{:.6f}".format, row), str(int(row[0] > 0))]) + "\n" for row in values.tolist()]


def write_csv(path: Path, nbytes: float) -> None:
    """Write a CSV file of about so many bytes."""
    lines = made_rows()
    whole = "".join(lines).encode()
    with path.open("wb") as file:
        file.write((",".join([*(f"c{number}" for number in range(COLUMNS)), "label"]) + "\n").encode())
        while file.tell() + len(whole) <= nbytes:
            file.write(whole)
        if file.tell() < len(whole):
            file.writelines(line.encode() for line in lines[: max(100, int(nbytes * ROWS / len(whole)))])


def measure_speed(report: measured.Report, folder: Path, arguments: Any) -> None:
    """Read a CSV and a Parquet file by both readers, in turns."""
    import pyarrow.csv
    import pyarrow.parquet

    csv, parquet = folder / "speed.csv", folder / "speed.parquet"
    write_csv(csv, arguments.speed_megabytes * MEGABYTE)
    table = pyarrow.csv.read_csv(csv)
    rows = len(table)
    pyarrow.parquet.write_table(table, parquet)
    del table
    theirs: dict[Path, Callable[[], int]] = {
        csv: lambda: sum(len(batch) for batch in pyarrow.csv.open_csv(csv)),
        parquet: lambda: sum(len(batch) for batch in pyarrow.parquet.ParquetFile(parquet).iter_batches(BLOCK)),
    }
    columns = [*(Column(f"c{number}") for number in range(COLUMNS)), Column("label")]

    def ours(path: Path) -> int:
        with path.open("rb") as file:
            return sum(len(block) for block in table_blocks(file, str(path), columns, rows=BLOCK))

    for path, read in theirs.items():
        times: list[tuple[float, float]] = []
        for _ in range(arguments.turns):
            mine, found = timed(lambda path=path: ours(path))  # type: ignore[misc]
            other, expected = timed(read)
            if not found == expected == rows:
                raise SystemExit(f"{path.name}: {found} and {expected} rows were read of {rows}")
            times.append((mine, other))
        kind, unit = path.suffix[1:], "rows/s"
        report.add(f"{kind}: ours", rows / statistics.median(mine for mine, _ in times), unit)
        report.add(f"{kind}: pyarrow's", rows / statistics.median(other for _, other in times), unit)
        ratio = statistics.median(other / mine for mine, other in times)
        report.add(f"{kind}: ours against pyarrow's", ratio, "times", SPEED_GOAL, at_least=True)


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """Return the seconds that some work takes, and what it returns."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def measure_memory(report: measured.Report, folder: Path, arguments: Any) -> None:
    """Train on a large and on a small table, each in a process of its own."""
    found = {}
    for name, nbytes in (("small", 1000), ("large", arguments.megabytes * MEGABYTE)):
        path = folder / f"{name}.csv"
        write_csv(path, nbytes)
        environment = {**measured.ENVIRONMENT, "DL4J_TABLES_CACHE": str(folder / "cache")}
        command = [sys.executable, __file__, "--child", str(path), "--batches", str(arguments.batches)]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if said.returncode:
            raise SystemExit(f"the process that trains on {path.name} failed: {said.stderr}")
        found[name] = json.loads(said.stdout)
    size = (folder / "large.csv").stat().st_size / MEGABYTE
    report.add("size of the CSV file", size, "MB", note=f"{found['large']['examples']:,} examples to learn from")
    report.add("until the first batch", found["large"]["seconds"], "s")
    above = found["large"]["peak"] - found["small"]["peak"]
    report.add("peak memory above that of the network", above, "MB", MEMORY_GOAL)
    report.add("peak memory of the network alone", found["small"]["peak"], "MB")


def child(path: str, batches: int) -> int:
    """Train on a table, and print the most memory that this took, in MB."""
    from dl4jlegacy import MultiLayerNetwork
    from dl4jlegacy.datasets import stored_tables
    from dl4jlegacy.scaleout.conf import Conf
    from dl4jlegacy.training import prepare, training_data

    stored_tables.LARGE = 0
    start = time.perf_counter()
    fields = {"dataset": path, "batch_size": 256, "epochs": 1}
    run, data = prepare(Conf(**fields), frozenset(fields))
    iterator = training_data(run.conf, data)
    seconds = time.perf_counter() - start
    network = MultiLayerNetwork(run.conf.multi_layer_conf)
    for number in range(batches):
        batch = iterator.batch(0, number % iterator.total_batches)
        network.fit(batch.features, batch.labels)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"peak": peak / MEGABYTE, "seconds": seconds, "examples": iterator.total_examples}))
    return 0


def main(given: list[str] | None = None) -> int:
    """Measure; return the exit status, 1 if a goal was missed."""
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="what to measure (both)")
    parser.add_argument("--megabytes", type=float, default=2000, help="of the CSV file for the memory (2000)")
    parser.add_argument("--speed-megabytes", type=float, default=200, help="of the CSV file for the speed (200)")
    parser.add_argument("--turns", type=int, default=5, help="of reading each file (5)")
    parser.add_argument("--batches", type=int, default=500, help="that are trained on (500)")
    parser.add_argument("--child", help="a table to train on; the script starts itself with this")
    arguments = parser.parse_args(given)
    if arguments.child:
        return child(arguments.child, arguments.batches)
    command_line.require("pyarrow")
    report = measured.Report("reading large tables", arguments.format)
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-", dir=os.environ.get("TMPDIR")) as name:
        for part, measure in (("speed", measure_speed), ("memory", measure_memory)):
            if part in (arguments.part or PARTS):
                measure(report, Path(name), arguments)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
