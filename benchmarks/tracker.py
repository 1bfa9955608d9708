"""Publishing and fetching a model through the tracker: ``python benchmarks/tracker.py [--turns 15] [--format json]``.

14.6 M float32 (58.4 MB) through ``HazelcastStore`` (``write_frame`` and ``read_frame`` as in a run, signed), against a
bare transfer of the same bytes with the plain client: 1 MB chunks, eight on their way, socket buffers of 1 MB, chunks
made beforehand and not put together afterwards. Each contender is a process of its own, so that its threads wait for
nobody else's; they take turns. Goal: each at most 1.25x the bare transfer.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from typing import Any

import command_line
import measured

PARAMETERS, CHUNK, WINDOW, BUFFER, GOAL = 14_600_000, 1_000_000, 8, 1 << 20, 1.25


def be_plain(address: str, cluster_name: str) -> None:
    """Serve as the contender with the plain client, in chunks."""
    import socket

    from hazelcast import HazelcastClient

    payload = bytearray(memoryview(_values()).cast("B"))
    chunks = [payload[start : start + CHUNK] for start in range(0, len(payload), CHUNK)]
    options = [(socket.SOL_SOCKET, option, BUFFER) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
    client = HazelcastClient(cluster_name=cluster_name, cluster_members=[address], socket_options=options)
    grid = client.get_map("plain")

    def windowed(calls: Any) -> list[Any]:
        waiting: deque[Any] = deque()
        results = []
        for call in calls:
            if len(waiting) == WINDOW:
                results.append(waiting.popleft().result())
            waiting.append(call())
        return results + [future.result() for future in waiting]

    def publish() -> float:
        start = time.perf_counter()
        windowed((lambda i=i: grid.set(f"model/{i}", chunks[i])) for i in range(len(chunks)))
        return time.perf_counter() - start

    def fetch() -> float:
        start = time.perf_counter()
        fetched = windowed((lambda i=i: grid.get(f"model/{i}")) for i in range(len(chunks)))
        seconds = time.perf_counter() - start
        assert b"".join(fetched) == payload
        return seconds

    measured.serve({"publish": publish, "fetch": fetch})
    client.shutdown()


def be_ours(address: str, cluster_name: str, secret: bytes | None) -> None:
    """Serve as the contender with a run's store."""
    from dl4jlegacy.scaleout import protocol
    from dl4jlegacy.scaleout.hazelcast.store import HazelcastStore
    from dl4jlegacy.scaleout.state.job import Result
    from dl4jlegacy.scaleout.tracker import drive

    run = "plain-values" if secret is None else "signed"
    store = HazelcastStore(address, cluster_name=cluster_name, run=run, secret=secret)
    frame = Result({"score": None}, {"params": _values()}).encode()
    written: list[Any] = []

    def publish() -> float:
        start = time.perf_counter()
        written[:] = [drive(protocol.write_frame(store, "model/1/m", frame))]
        return time.perf_counter() - start

    def fetch() -> float:
        start = time.perf_counter()
        fetched = drive(protocol.read_frame(store, written[0]))
        seconds = time.perf_counter() - start
        assert fetched == frame
        return seconds

    measured.serve({"publish": publish, "fetch": fetch})
    store.close()


def _values() -> Any:
    import numpy as np

    return np.random.default_rng(1).standard_normal(PARAMETERS, dtype=np.float32)


def main() -> int:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--turns", type=int, default=15, help="of each contender (15)")
    arguments = parser.parse_args()
    turns = arguments.turns
    report = measured.Report(
        f"a model of {PARAMETERS:,} float32 ({PARAMETERS * 4 / 1e6:.1f} MB), {turns} turns", arguments.format
    )
    with measured.services(heap="1g", zookeeper=False) as servers:
        where = (servers.hazelcast, servers.cluster_name)
        children = {
            name: measured.Contender(__file__, "--be", name, *where) for name in ("plain", "unsigned", "signed")
        }
        try:
            for what in ("publish", "fetch"):
                contenders = {
                    name: (lambda child=child, what=what: child.ask(what)) for name, child in children.items()
                }
                measured.take_turns(contenders, 4)  # the member's compiler warms up
                taken = measured.take_turns(contenders, turns)
                base = statistics.median(taken["plain"])
                report.add(f"{what}: plain client, in chunks", base * 1e3, "ms")
                for name in ("unsigned", "signed"):
                    report.add(f"{what}: {name}", statistics.median(taken[name]) * 1e3, "ms")
                    ratio = measured.median_ratio(taken[name], taken["plain"])
                    report.add(f"{what}: {name}, by the plain client", ratio, "x", GOAL if name == "signed" else None)
        finally:
            for child in children.values():
                child.stop()
    return report.end()


if __name__ == "__main__":
    if "--be" in sys.argv:
        kind, *rest = sys.argv[sys.argv.index("--be") + 1 :]
        if kind == "plain":
            be_plain(*rest)
        else:
            be_ours(*rest, measured.SECRET.encode() if kind == "signed" else None)
        sys.exit(0)
    sys.exit(main())
