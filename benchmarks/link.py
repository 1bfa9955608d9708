"""Gradient sharing against averaging over a slow link: ``python benchmarks/link.py [--mbits 100] [--hidden 500,250]``.

Four worker processes on one side of the link, on the other the master, a Hazelcast member and Zookeeper: all that
workers read and write goes through it, as through the server's own network card. Each side is a network namespace,
which needs root, or a user who may make namespaces; the link is a veth pair with a token bucket (``tc``'s tbf) at both
ends, so it has that speed in each direction, and what it carries is measured first. Workers read their data themselves.

A turn runs each once. A run with averaging is measured over ``--averaging-rounds``, which are all alike; those with
gradient sharing over ``--rounds``, among which there is one at least that saves model and states. The first rounds do
not count. The goal is for 100 Mbit/s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import command_line
import measured
from cluster_run import ClusterRun, Task
from compression import widths

from dl4jlegacy.datasets import DataSource, load

SERVERS, WORKERS = "198.18.0.1", "198.18.0.2"  # RFC 2544: for such tests, and seen inside the namespaces only
TOOLS = ("unshare", "nsenter", "ip", "tc")
WARM, DEADLINE, GOAL = 5, 3600.0, 20.0
PROBE_NBYTES = 4 << 20
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {"average": True},
    "sparse": {"average": True, "threshold": "target-sparsity", "tau": 1e-3, "sparsity": 3e-3, "clip": 0.0},
}


# -- the link ----------------------------------------------------------------------------------------------------------


def why_not() -> str:
    """Return why such a link is not possible on this machine; "" if it is possible."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"no {' and no '.join(missing)} on the PATH (util-linux, iproute2)"
    script = "ip link set lo up && tc qdisc add dev lo root tbf rate 1mbit burst 64kb latency 50ms"
    done = subprocess.run([*own_network(), "sh", "-c", script], capture_output=True, text=True, timeout=30)
    return "" if done.returncode == 0 else f"no shaped link in a namespace of its own: {done.stderr.strip()}"


def own_network() -> list[str]:
    """Return the command prefix that starts a command in a network namespace of its own."""
    return ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--"]


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=20, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def shaped_link(mbits: float) -> Iterator[list[str]]:
    """Make a link from this namespace to another one; yield the command prefix that starts a command there."""
    holder = subprocess.Popen(["unshare", "--net", "--", "sleep", str(DEADLINE)])
    try:
        ours, theirs = Path("/proc/self/ns/net"), Path(f"/proc/{holder.pid}/ns/net")
        deadline = time.monotonic() + 20
        while ours.readlink() == theirs.readlink():
            if time.monotonic() > deadline or holder.poll() is not None:
                raise RuntimeError("there is no second network namespace")
            time.sleep(0.01)
        there = ["nsenter", f"--net={theirs}", "--"]
        run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(holder.pid))
        for prefix, device, address in ([], "near", SERVERS), (there, "far", WORKERS):
            run(*prefix, "ip", "link", "set", "lo", "up")
            run(*prefix, "ip", "addr", "add", f"{address}/30", "dev", device)
            run(*prefix, "ip", "link", "set", device, "up")
            rate = ("rate", f"{mbits}mbit", "burst", "64kb", "latency", "50ms")
            run(*prefix, "tc", "qdisc", "add", "dev", device, "root", "tbf", *rate)
        yield there
    finally:
        holder.kill()
        holder.wait()


PROBE = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as there:
    began, left = time.perf_counter(), int(sys.argv[3])
    if sys.argv[4] == "to":
        while left > 0:
            left -= len(there.recv(1 << 16))
    else:
        there.sendall(bytes(left))
        there.shutdown(socket.SHUT_WR)
        there.recv(1)
    print(time.perf_counter() - began)
"""


def carried(there: list[str], way: str) -> float:
    """Return the Mbit/s of one connection ``"to"`` the workers' side or ``"from"`` it."""
    with socket.create_server((SERVERS, 0)) as server:
        server.settimeout(60)

        def answer() -> None:
            with server.accept()[0] as connection:
                if way == "to":
                    connection.sendall(bytes(PROBE_NBYTES))
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        port = str(server.getsockname()[1])
        command = [*there, sys.executable, "-c", PROBE, SERVERS, port, str(PROBE_NBYTES), way]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        thread.join()
    return 8e-6 * PROBE_NBYTES / float(done.stdout)


# -- the runs ----------------------------------------------------------------------------------------------------------


def tasks_of(arguments: Any, source: DataSource) -> dict[str, tuple[Task, int]]:
    """Return the tasks by name, with the number of measured rounds."""
    slots, train = arguments.workers, source.train
    task = Task(
        rounds=0,  # epochs: more than are measured
        slots=slots,
        n_in=train.features[0].size,
        hidden=tuple(arguments.hidden),
        n_out=train.labels.shape[1],
        batch=arguments.batch,
        min_workers=arguments.workers,
        dataset=arguments.dataset,
        deadline=DEADLINE,
        notes=False,
    )
    rounds = {"averaging": arguments.averaging_rounds, **dict.fromkeys(SETTINGS, arguments.rounds)}
    found = {}
    for name, count in rounds.items():
        more = {} if name == "averaging" else {"router": "gradient-sharing", "router_args": SETTINGS[name]}
        epochs = 1 + (WARM + count) * slots * arguments.batch // train.num_examples
        found[name] = dataclasses.replace(task, rounds=epochs, **more), count
    return found


def speed(servers: Any, there: list[str], arguments: Any, task: Task, rounds: int) -> float:
    """Return the examples a second of a run after its first rounds; the run is ended after the measurement."""
    with ClusterRun(servers, task, arguments.workers, host=SERVERS, worker_prefix=there) as running:
        running.wait_for_round(WARM + rounds, DEADLINE)
        reached = next(head.round for head in running.heads if head.round >= WARM + rounds)
        return (reached - WARM) * task.slots * task.batch / running.seconds(WARM, reached)


def compare(report: measured.Report, arguments: Any, source: DataSource) -> None:
    with shaped_link(arguments.mbits) as there, measured.services(host=SERVERS) as servers:
        for way in "to", "from":
            report.add(f"the link, {way} the workers", carried(there, way), "Mbit/s")
        contenders: dict[str, Callable[[], float]] = {
            name: lambda task=task, rounds=rounds: speed(servers, there, arguments, task, rounds)
            for name, (task, rounds) in tasks_of(arguments, source).items()
        }
        taken = measured.take_turns(contenders, arguments.turns)
    for name, rates in taken.items():
        report.add(name, statistics.median(rates), "examples/s", note=f"{arguments.turns} turns")
    for name in SETTINGS:
        ratio = measured.median_ratio(taken[name], taken["averaging"])
        report.add(f"gradient sharing, {name}, by averaging", ratio, "x", arguments.goal, at_least=True)
    report.details["rates"] = taken


def parse(given: list[str] | None = None) -> Any:
    parser = command_line.cluster_parser(__doc__)
    parser.add_argument("--mbits", type=float, default=100.0, help="of the link, each way (100)")
    parser.add_argument("--dataset", default="mnist", help="mnist, digits, or a folder (mnist)")
    parser.add_argument("--hidden", type=widths, default=[500, 250], help="widths (500,250)")
    parser.add_argument("--batch", type=int, default=128, help="examples of a job (128)")
    parser.add_argument("--workers", type=int, default=4, help="processes, and jobs of a round (4)")
    parser.add_argument("--rounds", type=int, default=300, help="of gradient sharing (300)")
    parser.add_argument("--averaging-rounds", type=int, default=20, help="they are all alike (20)")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (3)")
    parser.add_argument("--goal", type=float, default=GOAL, help="times averaging's speed (20)")
    parser.add_argument("--inside", action="store_true", help="be in a network namespace of its own already")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    arguments = parse(given)
    command_line.require("jgo")
    source = load(arguments.dataset)  # downloaded where there is a network, if it has to be
    if not arguments.inside:
        if why := why_not():
            print(why, file=sys.stderr)
            return 2
        words = sys.argv[1:] if given is None else given
        return subprocess.run([*own_network(), sys.executable, __file__, *words, "--inside"]).returncode
    network = "-".join(map(str, (source.train.features[0].size, *arguments.hidden, source.train.labels.shape[1])))
    report = measured.Report(f"{network} over a link of {arguments.mbits:g} Mbit/s", arguments.format)
    compare(report, arguments, source)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
