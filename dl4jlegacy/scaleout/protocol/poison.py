"""Detects jobs that kill their workers: what crashes mean, as a pure function of counts.

A *crash* is an attempt of a job whose process died while it computed that job. The process may have been killed for
other reasons (preemption, an operator, memory used by something else on the machine), so a job is accused only if its
crashes are very unlikely to be a coincidence. If crashes come from outside, or happen to all jobs alike, then every
attempt of the same length is equally likely to crash: the attempts of one job are a random sample of all attempts in
the run. ``chance`` is the probability that the sample contains as many crashes as this job has had (hypergeometric, so
that the crash rate need not be known). ``is_poison`` compares it with ``CHANCE``, corrected for the number of jobs in
the run. The crashes of a second poison job would hide those of the first. They may be left out, and the correction then
is for the number of pairs of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dl4jlegacy.scaleout.state.records import Crash

__all__ = ["CHANCE", "LEAST_CRASHES", "SUSPECTED", "Counts", "chance", "is_poison"]

LEAST_CRASHES = 3
"""Minimum number of processes that must have died during a job before it is accused."""
SUSPECTED = 2
"""Number of crashes after which a job is suspected: it is shown, and issued only while no other suspected job is."""
CHANCE = 1e-5
"""Upper bound on the probability that a run whose processes are killed at random accuses any job."""


class Counts(NamedTuple):
    """Counts of a run: finished jobs, crashes of all jobs, typical duration of a job, crashes of another suspect.

    ``typical`` is in seconds; 0: unknown. ``suspects`` are the crashes of one other suspected job.
    """

    finished: int
    deaths: int
    typical: float = 0.0
    suspects: int = 0


def chance(crashes: Sequence[Crash], counts: Counts) -> float:
    """Return the probability that an innocent, unfinished job has had these crashes, or more.

    A job that was computed for longer than its attempts typically take counts as correspondingly more attempts.
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
    """Return the logarithm of the number of ways to choose ``k`` of ``n``."""
    if not 0 <= k <= n:
        return -math.inf
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def is_poison(crashes: Sequence[Crash], counts: Counts, *, jobs: int, hosts: Collection[str] = ()) -> bool:
    """Return whether an unfinished job kills its workers, beyond reasonable doubt.

    Args:
        crashes: of the job.
        counts: of the run.
        jobs: number of jobs of the run. Any of them might have been killed this often by chance, so the probability is
            multiplied by this number; by its square if the crashes of one other suspected job are left out.
        hosts: of the present workers; if all crashes were on one host, and there are others, the host may be to blame.
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
