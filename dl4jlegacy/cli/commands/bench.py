"""``dl4j bench``: runs the scripts in ``benchmarks/``, which exist in a checkout but not in an installed package."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dl4jlegacy.errors import UsageError, how_to_install, nearest
from dl4jlegacy.system.console import open_console

__all__ = ["SUITES", "Benchmark", "add_commands", "run_suite"]

_FOLDER = Path(__file__).parents[3] / "benchmarks"
_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A script in the ``benchmarks`` folder.

    Attributes:
        name: the file's name, without ``.py``.
        measures: the subject of the measurement, for ``--help``.
        needs: modules that the script requires; './install bench' brings them.
    """

    name: str
    measures: str
    needs: tuple[str, ...] = ()


_SERVERS, _PAGES = ("jgo",), ("starlette", "uvicorn")
_OBSERVERS = (*_PAGES, "prometheus_client", "tensorboardX", "opentelemetry")

SUITES: Mapping[str, tuple[Benchmark, ...]] = {
    "cpu": (
        Benchmark("kernels_cpu", "each CPU kernel against NumPy"),
        Benchmark("products", "matrix products with one order of sums against NumPy's BLAS"),
        Benchmark("mlp_cpu", "steps of a multilayer perceptron against scikit-learn", ("sklearn",)),
        Benchmark("rbm_cpu", "steps of contrastive divergence against scikit-learn", ("sklearn",)),
        Benchmark("nn_cpu", "steps of whole networks against those peers that are installed"),
        Benchmark("runner_cpu", "4 workers against 1"),
        Benchmark("evaluation_cpu", "4 workers that evaluate against 1"),
        Benchmark("observing", "runs that are followed against runs that are not", _OBSERVERS),
    ),
    "gpu": (Benchmark("nn_gpu", "steps of whole networks, averaging and encoding against PyTorch", ("torch",)),),
    "cluster": (
        Benchmark("tracker", "models through Hazelcast against a bare transfer", _SERVERS),
        Benchmark("round", "the time and memory that a round costs beside training", (*_SERVERS, "psutil")),
        Benchmark("straggler", "one slow worker of four against an undisturbed run", _SERVERS),
        Benchmark("ddp", "four workers against PyTorch's DistributedDataParallel", (*_SERVERS, "torch")),
        Benchmark("iteration_length", "more workers against one, by how long an iteration takes", _SERVERS),
        Benchmark("goodput", "workers killed one after the other against an undisturbed run", _SERVERS),
    ),
    "serving": (
        Benchmark("serving", "LeNet behind dl4j serve against a bare loop, and PyTorch's", (*_PAGES, "torch")),
        Benchmark("connections", "10,000 connections with a request under way on each at once", _PAGES),
    ),
}
"""The benchmarks of each command, in the order in which they run."""

_app = typer.Typer(
    name="bench",
    help="Measure training on this machine with the scripts of a checkout.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=False,
)


def add_commands(app: typer.Typer) -> None:
    """Add ``dl4j bench`` to ``app``."""
    app.add_typer(_app)


@_app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError(f"give a command: {', '.join(f'bench {suite}' for suite in SUITES)} (see --help)")


def _help(summary: str, suite: str) -> str:
    """Return a command's help with the list of its benchmarks."""
    width = max(len(benchmark.name) for benchmark in SUITES[suite])
    lines = [f"  {benchmark.name:{width}}  {benchmark.measures}" for benchmark in SUITES[suite]]
    end = "Exits with the highest exit status of its benchmarks; they exit with 1 if a goal is missed"
    end += ", and with 3 if there is no GPU." if suite == "gpu" else "."
    return "\n".join([f"{summary} Runs, in this order:", "", "\b", *lines, "", end])


Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Only these benchmarks (all).")]


def _add(suite: str, summary: str) -> None:
    @_app.command(suite, help=_help(summary, suite))
    def run(names: Names = None) -> int:
        return run_suite(suite, names or ())


_add("cpu", "Measure training on the CPU.")
_add("gpu", "Measure training on a GPU.")
_add("cluster", "Measure a cluster on this machine.")
_add("serving", "Measure trained models that answer over HTTP.")


def run_suite(suite: str, names: Sequence[str], *, folder: Path | None = None) -> int:
    """Run the named benchmarks of a suite, by default all, one after the other; return the highest exit status.

    Raises:
        UsageError: there is no ``benchmarks`` folder, no such benchmark, or a requirement is not installed.
    """
    chosen, folder = _chosen(suite, names), folder or _FOLDER
    absent = [benchmark.name for benchmark in chosen if not (folder / f"{benchmark.name}.py").is_file()]
    if absent:
        raise UsageError(
            f"there is no {absent[0]}.py in {folder}: benchmarks come with a checkout of the project, not with the "
            f"installed package; in one, run './install bench' and '.venv/bin/dl4j bench {suite}'"
        )
    for benchmark in chosen:
        absent = [module for module in benchmark.needs if importlib.util.find_spec(module) is None]
        if absent:
            raise UsageError(
                f"the benchmark {benchmark.name} needs {absent[0]}, which is not installed; {how_to_install('bench')}"
            )
    console = open_console()
    statuses = []
    for benchmark in chosen:
        console.print(f"-- {benchmark.name}: {benchmark.measures}", markup=False, soft_wrap=True)
        statuses.append(_run(folder / f"{benchmark.name}.py"))
    return max(statuses)


def _chosen(suite: str, names: Sequence[str]) -> list[Benchmark]:
    """Return the named benchmarks in the suite's order, all if none is named; raises ``UsageError``."""
    known = [benchmark.name for benchmark in SUITES[suite]]
    for name in names:
        if name not in known:
            raise UsageError(f"bench {suite} has no benchmark {name!r}{nearest(name, tuple(known))}")
    return [benchmark for benchmark in SUITES[suite] if not names or benchmark.name in names]


def _run(script: Path) -> int:
    """Run a script with our output streams; return its exit status, or 128 + n if signal n ended it.

    The script has its own process group, so that Ctrl-C reaches it once, through this process: the script then ends the
    servers and processes that it has started before this process exits.
    """
    process = subprocess.Popen([sys.executable, str(script)], stdin=subprocess.DEVNULL, process_group=0)
    try:
        status = process.wait()
    except BaseException:
        _interrupt(process)
        raise
    return status if status >= 0 else 128 - status


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Send SIGINT and wait; kill the whole process group if it has not ended by the deadline."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
