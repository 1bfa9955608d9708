"""Reading tables and images: ``python benchmarks/reading.py [--megabytes 2000] [--part memory] [--format json]``.

Three parts, each with both sides in one run, on tables of random numbers and a label, and images, made for it:

- ``speed``: a CSV and a Parquet file as blocks of columns, against pyarrow's own readers of the same file, in turns.
- ``memory``: the most memory that a process has (``VmHWM``) which guesses the schema of a CSV, and of a Parquet, file
  of so many megabytes, makes it ready, and trains on some of its batches; above that of the same process with the same
  network on a table of a few rows.
- ``images``: PNG files of 28 x 28 pixels in ten folders as features, against a loop over them with Pillow, in turns and
  on one core, by the processor's time.
"""

from __future__ import annotations

import json
import os
import shutil
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

from dl4jlegacy.datasets.columns.table import Column
from dl4jlegacy.datasets.tables.table_blocks import table_blocks

PARTS = ("speed", "images", "memory")
KINDS = ("csv", "parquet")
COLUMNS = 40
ROWS = 20_000  # generated rows, which are then repeated
BLOCK = 65_536
GROUP = 1 << 20  # rows, pyarrow's default
SPEED_GOAL, IMAGE_GOAL, MEMORY_GOAL = 0.8, 0.9, 500.0
MEGABYTE = 1e6


def made_rows() -> list[str]:
    """Return lines of numbers, the label last."""
    values = np.random.default_rng(1).normal(size=(ROWS, COLUMNS))
    return [",".join([*map("{:.6f}".format, row), str(int(row[0] > 0))]) + "\n" for row in values.tolist()]


def write_csv(path: Path, nbytes: float) -> None:
    """Write a CSV file of about ``nbytes`` bytes."""
    lines = made_rows()
    whole = "".join(lines).encode()
    with path.open("wb") as file:
        file.write((",".join([*(f"c{number}" for number in range(COLUMNS)), "label"]) + "\n").encode())
        while file.tell() + len(whole) <= nbytes:
            file.write(whole)
        if file.tell() < len(whole):
            file.writelines(line.encode() for line in lines[: max(100, int(nbytes * ROWS / len(whole)))])


def measure_speed(report: measured.Report, folder: Path, arguments: Any) -> None:
    """Read a CSV and a Parquet file with both readers, in turns."""
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
    """Return the seconds that ``work`` takes, and its result."""
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def write_images(folder: Path, count: int) -> None:
    """Write PNG files that compress about as well as handwritten digits, in a folder for each of ten classes."""
    from PIL import Image

    random = np.random.default_rng(1)
    for number in range(count):
        pixels = np.zeros((28, 28), np.uint8)
        pixels[4:24, 8:20] = random.integers(0, 256, (20, 12)) * random.integers(0, 2, (20, 12))
        path = folder / str(number % 10) / f"{number:06}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)


def measure_images(report: measured.Report, folder: Path, arguments: Any) -> None:
    """Read a folder of images as features, with our reader and with a loop, in turns."""
    from PIL import Image

    from dl4jlegacy.datasets.images.image_files import Images

    write_images(folder / "images", arguments.images)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def ours() -> np.ndarray:
        return Images.of_folder(folder / "images").dataset().features

    def theirs() -> np.ndarray:
        arrays = []
        for each in sorted((folder / "images").iterdir()):
            for path in sorted(each.iterdir()):
                with Image.open(path) as image:
                    arrays.append(np.asarray(image))
        x = np.stack(arrays).reshape(len(arrays), -1).astype(np.float32)
        x /= 255
        return x

    if not np.array_equal(ours(), theirs()):
        raise SystemExit("the two sides read other pixels")
    times = []
    for _ in range(arguments.turns):
        begun = time.process_time()
        ours()
        between = time.process_time()
        theirs()
        times.append((between - begun, time.process_time() - between))
    report.add("png: ours", arguments.images / statistics.median(mine for mine, _ in times), "images/s")
    report.add("png: Pillow's in a loop", arguments.images / statistics.median(other for _, other in times), "images/s")
    ratio = statistics.median(other / mine for mine, other in times)
    report.add("png: ours against the loop", ratio, "times", IMAGE_GOAL, at_least=True)


def write_parquet(path: Path, nbytes: float) -> None:
    """Write a Parquet file of about ``nbytes`` bytes, in row groups as large as pyarrow's."""
    import pyarrow
    import pyarrow.parquet

    rows = max(100, min(GROUP, int(nbytes / (8 * COLUMNS))))
    random = np.random.default_rng(1)
    values = {f"c{number}": random.normal(size=rows) for number in range(COLUMNS)}
    table = pyarrow.table({**values, "label": (values["c0"] > 0).astype(np.int64)})
    with pyarrow.parquet.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table, row_group_size=rows)
        size = path.stat().st_size
        while path.stat().st_size + size / 2 < nbytes:
            writer.write_table(table, row_group_size=rows)


def measure_memory(report: measured.Report, folder: Path, arguments: Any) -> None:
    """Train on a large and on a small table, each in a process of its own."""
    for kind, write in (("csv", write_csv), ("parquet", write_parquet)):
        if kind not in (arguments.kind or KINDS):
            continue
        found = {}
        for name, nbytes in (("small", 1000), ("large", arguments.megabytes * MEGABYTE)):
            path = folder / f"{name}.{kind}"
            write(path, nbytes)
            environment = {**measured.ENVIRONMENT, "DL4J_TABLES_CACHE": str(folder / "cache")}
            command = [sys.executable, __file__, "--child", str(path), "--batches", str(arguments.batches)]
            said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if said.returncode:
                raise SystemExit(f"the process that trains on {path.name} failed: {said.stderr}")
            found[name] = json.loads(said.stdout)
        size = path.stat().st_size / MEGABYTE
        path.unlink()
        shutil.rmtree(folder / "cache")
        examples = f"{found['large']['examples']:,} examples to learn from"
        report.add(f"{kind}: size of the file", size, "MB", note=examples)
        report.add(f"{kind}: until the first batch", found["large"]["seconds"], "s")
        above = found["large"]["peak"] - found["small"]["peak"]
        report.add(f"{kind}: peak memory above that of the network", above, "MB", MEMORY_GOAL)
        report.add(f"{kind}: peak memory of the network alone", found["small"]["peak"], "MB")


def child(path: str, batches: int) -> int:
    """Train on a table, and print the peak memory in MB."""
    from dl4jlegacy import MultiLayerNetwork
    from dl4jlegacy.datasets.tables import stored_tables
    from dl4jlegacy.scaleout.conf import Conf
    from dl4jlegacy.training.prepare import prepare, training_data

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
    parser.add_argument("--part", action="append", choices=PARTS, help="what to measure (all)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of the file for the memory (both)")
    parser.add_argument("--megabytes", type=float, default=2000, help="of each file for the memory (2000)")
    parser.add_argument("--speed-megabytes", type=float, default=200, help="of the CSV file for the speed (200)")
    parser.add_argument("--images", type=int, default=10_000, help="that are read (10000)")
    parser.add_argument("--turns", type=int, default=5, help="of reading each file, or all images (5)")
    parser.add_argument("--batches", type=int, default=500, help="that are trained on (500)")
    parser.add_argument("--child", help="a table to train on; the script starts itself with this")
    arguments = parser.parse_args(given)
    if arguments.child:
        return child(arguments.child, arguments.batches)
    command_line.require("pyarrow")
    report = measured.Report("reading tables and images", arguments.format)
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-", dir=os.environ.get("TMPDIR")) as name:
        for part, measure in (("speed", measure_speed), ("memory", measure_memory), ("images", measure_images)):
            if part in (arguments.part or PARTS):
                measure(report, Path(name), arguments)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
