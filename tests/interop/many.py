"""Runs many random networks of the real Deeplearning4j: ``python -m tests.interop.many [--count 2000]``.

Each network is drawn from its number alone (``random_theirs.draw``, seed ``[30, number]``), built, trained and saved by
the library, and read here; a new Java is started every so often. It ends with 1 if one answers otherwise in silence.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
from pathlib import Path

from tests.interop import matrix, random_theirs
from tests.interop.matrix import Result
from tests.interop.real_dl4j import VERSIONS, running

_PER_JAVA = 250


def run(version: str, count: int) -> list[Result]:
    """Return what came of the networks of one version from number 0 on, until ``count`` files were written."""
    results: list[Result] = []
    written = start = 0
    while written < count:
        more = min(_PER_JAVA, count - written)
        with tempfile.TemporaryDirectory() as scratch, running(version, Path(scratch)) as real:
            cases = (random_theirs.draw(number, version) for number in range(start, start + more))
            results += matrix.from_theirs(real, cases, Path(scratch), drawn=True)
        start += more
        written = sum(not result.found.startswith("theirs") for result in results)
        print(f"{version}: {written} files", file=sys.stderr, flush=True)
    return results


def main() -> int:
    """Print what was found; return 1 if a network answers otherwise in silence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--version", choices=VERSIONS, action="append")
    options = parser.parse_args()
    wrong = 0
    for version in options.version or VERSIONS:
        results = run(version, options.count)
        signs = collections.Counter(result.sign for result in results)
        print(f"{version}: {len(results)} networks: {', '.join(f'{n} {sign}' for sign, n in signs.most_common())}")
        for result in results:
            if result.is_wrong:
                wrong += 1
                print(f"  {result.name}: {result.found}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
