"""Times contenders in turns, so that a slow moment of the machine affects all of them; ratios are computed per round.

One BLAS thread unless ``OPENBLAS_NUM_THREADS`` says otherwise; import this before NumPy.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable, Mapping


def rate(step: Callable[[], int], seconds: float) -> float:
    """Return examples per second of ``step``, which returns its number of examples."""
    done, start = 0, time.perf_counter()
    while True:
        done += step()
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return done / elapsed


def race(contenders: Mapping[str, Callable[[], int]], base: str, *, rounds: int, seconds: float) -> dict[str, float]:
    """Print and return, per contender, the median of its per-round ratios to ``base``."""
    for step in contenders.values():
        step()  # compile, allocate
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        names = list(contenders) if turn % 2 == 0 else list(reversed(contenders))
        for name in names:
            rates[name].append(rate(contenders[name], seconds))
    ratios = {}
    for name, own in rates.items():
        ratios[name] = statistics.median(r / b for r, b in zip(own, rates[base], strict=True))
        print(f"  {name:<28} {statistics.median(own):>10,.0f} examples/s   {ratios[name]:5.2f}x {base}")
    return ratios


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
