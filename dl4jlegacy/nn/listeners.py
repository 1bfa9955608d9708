"""Training listeners, called by ``MultiLayerNetwork.fit`` and ``pretrain`` after every update.

Legacy: ``org.deeplearning4j.optimize.listeners``. They run on the training thread, so a slow listener slows training.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["CollectScoresListener", "PerformanceListener", "ScoreIterationListener", "TrainingListener"]

logger = logging.getLogger(__name__)


class TrainingListener(Protocol):
    """Receives the score of every iteration."""

    def iteration_done(self, network: object, iteration: int, score: float, *, examples: int = 0) -> None:
        """Called after update number ``iteration`` (from 0); ``examples`` is the size of its batch."""


class ScoreIterationListener:
    """Logs the score of every ``frequency``-th iteration."""

    def __init__(self, frequency: int = 10, log: Callable[[str], None] = logger.info) -> None:
        self._frequency = max(1, frequency)
        self._log = log

    def iteration_done(self, network: object, iteration: int, score: float, *, examples: int = 0) -> None:
        """Log one line in DL4J's wording."""
        if iteration % self._frequency == 0:
            self._log(f"Score at iteration {iteration} is {score:.6g}")


class CollectScoresListener:
    """Keeps ``(iteration, score)`` of every ``frequency``-th iteration in ``scores``."""

    def __init__(self, frequency: int = 1) -> None:
        self._frequency = max(1, frequency)
        self.scores: list[tuple[int, float]] = []

    def iteration_done(self, network: object, iteration: int, score: float, *, examples: int = 0) -> None:
        """Keep the score."""
        if iteration % self._frequency == 0:
            self.scores.append((iteration, score))


class PerformanceListener:
    """Measures throughput over every ``frequency`` iterations; ``examples_per_second`` holds the latest value."""

    def __init__(
        self,
        frequency: int = 10,
        log: Callable[[str], None] = logger.info,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._frequency = max(1, frequency)
        self._log = log
        self._clock = clock
        self._since: float | None = None
        self._examples = 0
        self._iterations = 0
        self.examples_per_second = 0.0

    def iteration_done(self, network: object, iteration: int, score: float, *, examples: int = 0) -> None:
        """Count; after every ``frequency`` iterations log one line. The first call only starts the clock."""
        now = self._clock()
        if self._since is None:
            self._since = now
            return
        self._examples += examples
        self._iterations += 1
        if self._iterations < self._frequency:
            return
        seconds = max(now - self._since, 1e-9)
        self.examples_per_second = self._examples / seconds
        self._log(
            f"iteration {iteration}; score {score:.6g}; {self.examples_per_second:.0f} examples/s; "
            f"{self._iterations / seconds:.1f} batches/s"
        )
        self._since, self._examples, self._iterations = now, 0, 0
