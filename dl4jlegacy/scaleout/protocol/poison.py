"""Which jobs kill their workers: what crashes say, as a pure function of counts.

A *crash* is an attempt of a job whose process died while it computed that job. Somebody may have killed the process for
reasons of its own (preemption, an operator, a machine that was short of memory for something else), so a job is accused
only if that would be too much of a coincidence. If crashes come from outside, or happen to any job alike, each attempt
is as likely to end so as any other one of the same length: of all attempts in the run, those of one job are a random
sample. ``chance`` is the probability that the sample has as many crashes as this job has had (hypergeometric, so that
no rate of crashes need be known), and ``is_poison`` compares it, for as many jobs as the run has, with ``CHANCE``. The
crashes of a second poison job would hide those of the first: it is left out, at the price of as many pairs of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dl4jlegacy.scaleout.state.records import Crash

__all__ = ["CHANCE", "LEAST_CRASHES", "SUSPECTED", "Counts", "chance", "is_poison"]

LEAST_CRASHES = 3
"""So many processes must have died of a job before it is accused."""
SUSPECTED = 2
"""After so many a job is suspected: it is shown, and given out only while no other suspected one is."""
CHANCE = 1e-5
"""The probability that a run in which processes are killed at random accuses any job, at most."""


class Counts(NamedTuple):
    """What is known of the jobs of a run: how many were finished, how many crashes they had, how long one takes.

    The crashes are those of all jobs, ``suspects`` those of one other job that is suspected. ``typical`` is in seconds;
    0: not known.
    """

    finished: int
    deaths: int
    typical: float = 0.0
    suspects: int = 0


def chance(crashes: Sequence[Crash], counts: Counts) -> float:
    """Return how likely it is that an innocent job, which nobody has finished, has had these crashes, or more.

    If it was computed for longer than so many attempts take, it counts for as many attempts as that would be.
    """
    count, typical = len(crashes), counts.typical
    longer = math.ceil(math.fsum(crash.seconds for crash in crashes) / typical) if typical > 0 else 0
    sample, total = max(count, longer), max(counts.deaths, count)
    attempts = counts.finished + (total - count) + sample
    most = min(total, sample)
    ways = [_log_comb(total, n) + _log_comb(attempts - total, sample - n) for n in range(count, most + 1)]
    every = _log_comb(attempts, sample)
    return min(1.0, math.fsum(math.exp(way - every) for way in ways))


def _log_comb(n: int, k: int) -> float:
    """Return the logarithm of how many ways there are to choose ``k`` of ``n``."""
    if not 0 <= k <= n:
        return -math.inf
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def is_poison(crashes: Sequence[Crash], counts: Counts, *, jobs: int, hosts: Collection[str] = ()) -> bool:
    """Return whether a job that nobody has finished kills its workers, beyond reasonable doubt.

    Args:
        crashes: of the job.
        counts: of the run.
        jobs: how many jobs the run has: each of them might have been the one that was killed so often by chance. That
            one other job is to blame for its own crashes, so that they say nothing of this one, may be true of as many.
        hosts: of the workers that are there; if all crashes were on one host, and there are others, it may be the host.
    """
    if len({crash.process for crash in crashes}) < LEAST_CRASHES:
        return False
    seen = {crash.host for crash in crashes}
    if len(seen) == 1 and not set(hosts) <= seen:
        return False
    if jobs * chance(crashes, counts) <= CHANCE:
        return True
    without = counts._replace(deaths=counts.deaths - counts.suspects)
    return counts.suspects > 0 and jobs**2 * chance(crashes, without) <= CHANCE
