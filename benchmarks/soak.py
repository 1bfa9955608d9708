"""Does anything grow? ``python benchmarks/soak.py [--rounds 2000] [--format json]``.

A master, four workers and a Hazelcast member, a small network with AdaGrad, rounds of eight jobs. Sampled every 20
rounds: the memory of each process, what the member's Java heap holds after a garbage collection (every 100 rounds), and
how many entries the run has in the grid. Slopes are least squares over the second half of the samples (in the first,
caches fill and allocators settle), each with its standard error.

Fails if a process grows by more than 1 KB a round, or the member's heap or the number of entries by more than 1 KB or
0.01 a round, each by more than two standard errors; or if there are ever more entries than the bound that follows from
the protocol: those of three rounds and three models, the journal's, and a few.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import command_line
import measured
from cluster_run import ClusterRun, Task

SLOTS, EVERY, EVERY_HEAP = 8, 20, 100
BYTES_A_ROUND, ENTRIES_A_ROUND = 1024.0, 0.01
ENTRIES = 3 * SLOTS * 3 + 3 + 1000 + 50  # jobs, data, updates of three rounds; models; journal; records of workers ...


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the least-squares slope and its standard error."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    line = statistics.linear_regression(xs, ys)
    middle = statistics.fmean(xs)
    residual = sum((y - line.slope * x - line.intercept) ** 2 for x, y in points)
    spread = sum((x - middle) ** 2 for x in xs)
    return line.slope, math.sqrt(residual / max(1, len(points) - 2) / spread)


def heap_after_collection(pid: int, deadline: float = 10.0) -> int:
    """Let a Java process collect its garbage; return the bytes that its heap then holds. Needs no JDK.

    Source: the attach protocol of HotSpot (a file requests the socket, always in the same folder; the socket takes
    commands).
    """
    path, request = Path(os.sep, "tmp", f".java_pid{pid}"), Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    if not path.exists():
        request.touch()
        os.kill(pid, signal.SIGQUIT)
        end = time.monotonic() + deadline
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"Java process {pid} opened no socket in {deadline:.0f} s")
            time.sleep(0.05)
        request.unlink(missing_ok=True)
    command(path, "GC.run")
    text = command(path, "GC.heap_info")
    words = next(line for line in text.splitlines() if "used" in line).replace(",", " ").split()
    return int(words[words.index("used") + 1].rstrip("K")) * 1024


def command(path: Path, name: str) -> str:
    """Send a ``jcmd`` command; return the answer."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(30)
        link.connect(str(path))
        link.sendall(b"".join(part.encode() + b"\0" for part in ("1", "jcmd", name, "", "")))
        parts = []
        while part := link.recv(1 << 16):
            parts.append(part)
    return b"".join(parts).decode(errors="replace")


def main() -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="of 8 jobs (2000)")
    arguments = parser.parse_args()
    command_line.require("psutil")
    import psutil  # optional: the extra "bench"

    rounds = arguments.rounds
    report = measured.Report(f"soak: {rounds:,} rounds of {SLOTS} jobs, 4 workers, over Hazelcast", arguments.format)
    samples: dict[str, list[tuple[float, float]]] = {}

    def note(name: str, round_: float, value: float) -> None:
        samples.setdefault(name, []).append((round_, value))

    with measured.services(heap="512m") as servers:
        from dl4jlegacy.cluster.address import find_incarnation
        from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore

        task = Task(
            rounds=rounds,
            slots=SLOTS,
            hidden=(32, 32),
            n_in=16,
            batch=32,
            deadline=3600.0,
            updater="adagrad",
            notes=False,
        )
        member = servers.pids["hazelcast-1"]
        with ClusterRun(servers, task) as run:
            run.wait_for_round(1)
            names = HazelcastStore(
                servers.hazelcast,
                cluster_name=servers.cluster_name,
                run=run.run,
                secret=measured.SECRET.encode(),
            )
            store = names.sibling(run.run, find_incarnation(names, run.run))
            assert run.master is not None
            pids = {"master": run.master.pid, "member": member} | {
                f"worker {index}": process.pid for index, process in enumerate(run.processes)
            }
            heap_at = 0
            for wanted in range(EVERY, rounds - 1, EVERY):
                run.wait_for_round(wanted, timeout=300)
                now = run.heads[-1].round
                for name, pid in pids.items():
                    note(name, now, psutil.Process(pid).memory_info().rss)
                note("entries", now, len(store.keys("")))
                if now >= heap_at:
                    note("member's heap", now, heap_after_collection(member))
                    heap_at = now + EVERY_HEAP
            store.close()
            answer = run.finish()
    failed = judge(report, samples)
    report.add("batches lost or counted twice", answer["batches_lost"] + answer["batches_duplicated"], "", 0)
    report.details["samples"] = samples
    return report.end() or failed


def judge(report: measured.Report, samples: dict[str, list[tuple[float, float]]]) -> int:
    """Report the slopes; return 1 if one is above its bound by more than two standard errors."""
    failed = 0
    for name, points in samples.items():
        later = points[len(points) // 2 :]
        found, error = slope(later)
        bound, unit = (ENTRIES_A_ROUND, "1/round") if name == "entries" else (BYTES_A_ROUND, "B/round")
        judged = name != "member"  # its heap is judged instead; the JVM's share of its 512 MB means nothing
        grows = judged and found - 2 * error > bound
        failed = failed or int(grows)
        size = later[-1][1] if name == "entries" else later[-1][1] / 1e6
        text = f"+- {2 * error:.3g}; {'at most ' + format(bound, 'g') if judged else 'not judged'}; now {size:,.1f}"
        report.add(f"{name}: slope", found, unit, note=text + (" GROWS" if grows else ""))
    report.add("entries in the grid, at most", max(value for _, value in samples["entries"]), "", ENTRIES)
    return failed


if __name__ == "__main__":
    sys.exit(main())
