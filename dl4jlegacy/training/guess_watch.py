"""Warns early of a run that learns nothing: a tenth of its rounds are over, and its score is still that of guessing."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus

__all__ = ["GuessWatch", "guess_of"]

logger = logging.getLogger(__name__)
_PART, _ENOUGH, _FEWEST = 10, 0.98, 20


def guess_of(labels: Array) -> float:
    """Return the cross-entropy of somebody who knows only the shares of the classes.

    ``labels`` are one-hot, ``(n, classes)``; class numbers in one column have no known shares: infinite.
    """
    if labels.shape[1] < 2:
        return math.inf
    shares = labels.mean(axis=0, dtype=np.float64)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


class GuessWatch:
    """Looks at the snapshots of a run, and logs one warning if the run seems to learn nothing.

    Args:
        guess: the score of guessing.
        tick: gets every snapshot afterwards; None: nobody does.
    """

    def __init__(self, guess: float, tick: Callable[[RunStatus], None] | None = None) -> None:
        self._guess, self._tick = guess, tick
        self._has_looked = False

    def tick(self, status: RunStatus) -> None:
        """Look at a snapshot."""
        head = status.head
        total = status.plan.total_rounds
        if not self._has_looked and head is not None and head.round * _PART >= total:
            self._has_looked = True
            is_early = total >= _FEWEST and head.round * 2 < total  # later the report says it better
            score = math.nan if head.score is None else head.score
            if is_early and _ENOUGH * self._guess <= score < math.inf:
                logger.warning(
                    "after round %d of %d the score is %.4g, that of guessing is %.4g: if it stays there, try another "
                    "--learning-rate, --updater, --model or --seed",
                    head.round,
                    status.plan.total_rounds,
                    score,
                    self._guess,
                )
        if self._tick is not None:
            self._tick(status)
