"""Many keep-alive connections at a time: ``python benchmarks/connections.py [CONNECTIONS]`` (10,000).

Opens so many connections to ``dl4j serve``, has a request under way on all of them at once, waits for all answers, and
does so again on the same connections. Prints how many were answered, how long each round took, and how much memory a
connection takes. Both processes need a file for each connection: the limit of open files (``ulimit -n``) is raised as
far as it may be. Goal: every request is answered with status 200.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import command_line

import side_by_side  # isort: skip (before NumPy: it sets the number of BLAS threads)

from http_load import Connection, Load, request_of
from measured import ENVIRONMENT

from dl4jlegacy import MultiLayerNetwork, write_model
from dl4jlegacy.nn import zoo
from dl4jlegacy.system.resources import allow_open_files

TOGETHER, OTHER_FILES, SECONDS = 200, 200, 300
"""Connections opened at a time; open files beside them; deadline of a request in seconds."""


def serve(model: Path, count: int) -> subprocess.Popen[str]:
    """Start the command for ``count`` connections, and as many concurrent requests."""
    words = ["serve", str(model), "--port", "0", "--format", "json", "--batch-limit", "1024"]
    words += ["--max-connections", str(count), "--max-queue", str(count), "--timeout", str(SECONDS)]
    words += ["--body-timeout", str(SECONDS)]
    return subprocess.Popen(
        [sys.executable, "-m", "dl4jlegacy", *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def resident(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def opened(url: str, request: bytes, count: int) -> Load:
    """Return ``count`` connections, each of which has been answered once."""
    load = Load(url, request, 0)
    for start in range(0, count, TOGETHER):
        load.add([Connection(url, request) for _ in range(min(TOGETHER, count - start))])
        load.all_at_once(load.connections[start:], SECONDS)
    return load


def main() -> int:
    parser = command_line.parser(__doc__)
    parser.add_argument("connections", nargs="?", type=int, default=10_000, help="at a time (10000)")
    parser.add_argument("--rounds", type=int, default=3, help="requests on each (3)")
    arguments = parser.parse_args()
    command_line.require("uvicorn", "starlette")
    files = allow_open_files(arguments.connections + OTHER_FILES)
    count = min(arguments.connections, files - OTHER_FILES)
    print(f"{count:,} connections ({files:,} open files are allowed); {side_by_side.cores()} cores")
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-") as folder:
        model = Path(folder) / "mlp.zip"
        write_model(MultiLayerNetwork(zoo.mlp(4, 3)), model)
        process = serve(model, count)
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            request = request_of(
                f"{url}/predict", b'{"rows": [[5.1, 3.5, 1.4, 0.2]]}', [("content-type", "application/json")]
            )
            before = resident(process.pid)
            with opened(url, request, count) as load:
                each = (resident(process.pid) - before) / count
                print(
                    f"  all are open and answered once; the server has {each / 1024:,.1f} KiB more for each", flush=True
                )
                for turn in range(arguments.rounds):
                    began = time.perf_counter()
                    load.all_at_once(load.connections, SECONDS)
                    seconds = time.perf_counter() - began
                    print(f"  round {turn + 1}: {count:,} requests under way at once, all answered in {seconds:.2f} s")
        finally:
            process.terminate()
            process.wait(60)
    is_whole = count == arguments.connections
    print(f"goal: {'reached' if is_whole else 'MISSED'} ({count:,} of {arguments.connections:,} connections, no error)")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
