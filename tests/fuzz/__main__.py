"""Cases of a subject in a process of their own, which a case may end: python -m tests.fuzz SUBJECT SEED FIRST COUNT.

Each case is drawn anew by subject, seed and number, so that one can be looked at alone. Its number is printed before it
is tried, what is wrong with its answer behind, and the numbers of answers by status at the end.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sys
import tempfile
import warnings
from collections import Counter

import psutil

from tests.fuzz.commands import Late
from tests.fuzz.subjects import SUBJECTS

MOST_GROWTH_NBYTES = 2 << 30


def main(name: str, seed: int, first: int, count: int) -> None:
    """Try the cases from ``first`` on, in a new folder."""
    statuses: Counter[int] = Counter()
    folder = tempfile.mkdtemp(prefix="dl4j-fuzz-")
    os.chdir(folder)
    os.environ["HOME"] = folder
    warnings.simplefilter("ignore")
    try:
        with SUBJECTS[name].begun() as attempt:
            memory = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + MOST_GROWTH_NBYTES, memory[1]))
            for number in range(first, first + count):
                print(json.dumps({"subject": name, "case": number}), flush=True)
                try:
                    status, fault = attempt(random.Random(f"{name}/{seed}/{number}"))
                except Late as late:
                    status, fault = 70, str(late)
                statuses[status] += 1
                if fault:
                    print(json.dumps({"fault": fault, "subject": name, "case": number}), flush=True)
            resource.setrlimit(resource.RLIMIT_AS, memory)
        print(json.dumps({"statuses": statuses}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for subject in sys.argv[1].split(","):
        main(subject, int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
