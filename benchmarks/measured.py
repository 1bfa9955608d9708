"""Common parts of the cluster benchmarks: own servers, contenders in processes of their own, figures and goals.

Figures are medians, and ratios are computed turn by turn, so that a slow moment of the machine affects both sides.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dl4jlegacy
from dl4jlegacy.errors import TrackerError
from dl4jlegacy.services import Services, ServicesState

ROOT = Path(dl4jlegacy.__file__).parent.parent
SECRET = "only for benchmarks"  # signs values in a grid that exists for a minute
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    "DL4J_SECRET": SECRET,
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Figure:
    """One measured number; ``goal`` is its maximum (or with ``at_least`` its minimum), None: no goal."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def reached(self) -> bool:
        """Whether the goal, if there is one, is met."""
        return self.goal is None or (self.value >= self.goal if self.at_least else self.value <= self.goal)

    def __str__(self) -> str:
        bound = "" if self.goal is None else f"goal {'>=' if self.at_least else '<='} {self.goal:g}"
        word = "" if self.goal is None else ("reached" if self.reached else "MISSED")
        return f"  {self.name:<46} {self.value:>12,.3f} {self.unit:<12} {bound:<14} {word:<8} {self.note}".rstrip()


@dataclass
class Report:
    """The figures of one benchmark, printed as they arrive, or at the end as one JSON object."""

    title: str
    format: str = "text"
    figures: list[Figure] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def as_json(self) -> bool:
        """Whether the report is printed as one JSON object."""
        return self.format == "json"

    def __post_init__(self) -> None:
        if not self.as_json:
            print(f"{self.title}; {cores()} cores", flush=True)

    def add(self, *arguments: Any, **named: Any) -> Figure:
        """Add and print ``Figure(*arguments, **named)``."""
        figure = Figure(*arguments, **named)
        self.figures.append(figure)
        if not self.as_json:
            print(figure, flush=True)
        return figure

    def say(self, text: str) -> None:
        """Print a line between the figures; nothing with JSON."""
        if not self.as_json:
            print(f"  {text}", flush=True)

    def end(self) -> int:
        """Print the JSON object if asked for; return the exit status, 1 if a goal was missed."""
        if self.as_json:
            figures = [{**vars(figure), "reached": figure.reached} for figure in self.figures]
            print(json.dumps({"benchmark": self.title, "cores": cores(), "figures": figures, **self.details}, indent=2))
        return 0 if all(figure.reached for figure in self.figures) else 1


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def services(*, heap: str = "1g", zookeeper: bool = True, host: str = "127.0.0.1") -> Iterator[ServicesState]:
    """Start a Hazelcast member and, with ``zookeeper``, a Zookeeper server, in a folder that is removed with them.

    SIGTERM ends the benchmark as Ctrl-C does, so that no server outlives it.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="dl4j-bench-") as folder:
        try:
            state = Services.up(folder=Path(folder), heap=heap, zookeeper=zookeeper, host=host)
        except TrackerError as exc:  # no Java, no jars
            print(f"there are no servers: {exc}", file=sys.stderr)
            raise SystemExit(exc.exit_status) from exc
        try:
            yield state
        finally:
            Services.down(Path(folder))


class Contender:
    """A child process that answers each line on its stdin with a line of JSON on its stdout."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def ask(self, line: str) -> Any:
        """Send a line; return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait(10)}")
        return json.loads(answer)

    def stop(self) -> None:
        """End the process by closing its stdin; kill it if it does not end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve(answers: Mapping[str, Callable[[], Any]]) -> None:
    """Serve as a ``Contender``'s process: answer lines until stdin ends."""
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)


def take_turns(contenders: Mapping[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """Return the results of each contender in each turn; every second turn is in reverse order."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name in list(contenders) if turn % 2 == 0 else list(reversed(contenders)):
            taken[name].append(contenders[name]())
    return taken


def median_ratio(own: Sequence[float], base: Sequence[float]) -> float:
    """Return the median of the ratios turn by turn."""
    return statistics.median(a / b for a, b in zip(own, base, strict=True))
