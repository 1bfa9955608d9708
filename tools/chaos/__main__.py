"""``python -m tools.chaos``: reads the command line and prints the report."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dl4jlegacy.cli.options.values import json_object
from dl4jlegacy.errors import UsageError, nearest
from dl4jlegacy.scaleout.strategies import STRATEGIES, create_router
from dl4jlegacy.system.console import emit, open_console, run_guarded
from tools.chaos.driver import ChaosOptions, run_chaos
from tools.chaos.schedule import KINDS, parse_kinds

__all__ = ["main", "parse"]

_DESCRIPTION = """\
Train over servers and processes of its own while they are broken on purpose; the result must be the one that
undisturbed training gives. Exits with 1 if it is not, and prints the command that repeats the same faults."""


class _Parser(argparse.ArgumentParser):
    """A parser with this project's errors: one message, exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def parse(arguments: Sequence[str]) -> tuple[ChaosOptions, bool]:
    """Return the options in the command line, and whether the report is printed as JSON.

    Raises:
        UsageError: an unknown flag, or an invalid value.
    """
    parser = _Parser(prog="python -m tools.chaos", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--faults", metavar="N", default="20", help="how many faults (20)")
    parser.add_argument("--seed", metavar="N", default="1", help="of the faults and of the training (1)")
    parser.add_argument("--workers", metavar="N", default="4", help="worker processes (4)")
    parser.add_argument("--rounds", metavar="N", help="about how many rounds a run has at first (by the faults)")
    parser.add_argument("--kinds", metavar="A,B", help=f"only faults of these kinds (all): {', '.join(KINDS)}")
    parser.add_argument(
        "--router",
        metavar="NAME",
        default="iterative-reduce",
        help=f"{', '.join(STRATEGIES)} (the first); of asynchronous ones the accounting is compared",
    )
    parser.add_argument("--router-args", metavar="JSON", default="{}", help="options of that, as dl4j train takes them")
    parser.add_argument("--side-by-side", action="store_true", help="let a second run be under way on the same servers")
    parser.add_argument(
        "--hostile-neighbour",
        action="store_true",
        help="let somebody without the secret write to the grid and to Zookeeper during all faults",
    )
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="write all logs here, and keep them")
    parser.add_argument("--format", metavar="text|json", default="text", help="the report as text, or one JSON object")
    flags = parser.parse_args(arguments)
    if flags.format not in ("text", "json"):
        raise UsageError(f"--format {flags.format}: unknown format{nearest(flags.format, ('text', 'json'))}")
    if flags.router not in STRATEGIES:
        raise UsageError(f"--router {flags.router}: unknown router{nearest(flags.router, tuple(STRATEGIES))}")
    workers = _whole("--workers", flags.workers, 1)
    create_router(flags.router, json_object("--router-args", flags.router_args), jobs_per_round=workers)
    options = ChaosOptions(
        faults=_whole("--faults", flags.faults, 1),
        seed=_whole("--seed", flags.seed, -(2**63)),
        workers=workers,
        kinds=parse_kinds(flags.kinds),
        rounds=0 if flags.rounds is None else _whole("--rounds", flags.rounds, 1),
        router=flags.router,
        router_args=flags.router_args,
        side_by_side=flags.side_by_side,
        hostile_neighbour=flags.hostile_neighbour,
        keep=flags.keep,
    )
    return options, flags.format == "json"


def _whole(flag: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value < 2**63:
        allowed = "a whole number of 64 bits" if least < 0 else f"a whole number, at least {least}"
        raise UsageError(f"{flag} is {text!r}; it must be {allowed}")
    return value


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""

    def command() -> int:
        options, as_json = parse(arguments)
        console = open_console()
        report = run_chaos(options, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True))
        emit(json.dumps(report.fields()) if as_json else report.text())
        return 1 if report.problems else 0

    # checked before parsing, since parsing may fail
    wants_json = "--format=json" in arguments or ("--format", "json") in itertools.pairwise(arguments)
    return run_guarded(command, as_json=wants_json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
