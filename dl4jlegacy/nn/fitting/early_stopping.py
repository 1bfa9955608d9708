"""Early stopping: train until the held-out score no longer improves, and keep the best model.

Follows ``org.deeplearning4j.earlystopping``, with differences: ``score_vs_epoch`` has the epoch's own number, all
epochs are counted, evaluated or not, and the last epoch is always evaluated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from dl4jlegacy.datasets.batches import Data
from dl4jlegacy.errors import ConfError, Dl4jError, NotFiniteError
from dl4jlegacy.nn.fitting.model_savers import InMemoryModelSaver, ModelSaver
from dl4jlegacy.nn.fitting.score_calculators import ScoreCalculator
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network

__all__ = [
    "BestScoreEpochTerminationCondition",
    "EarlyStoppingConfiguration",
    "EarlyStoppingListener",
    "EarlyStoppingResult",
    "EarlyStoppingTrainer",
    "EpochTerminationCondition",
    "InvalidScoreIterationTerminationCondition",
    "IterationTerminationCondition",
    "MaxEpochsTerminationCondition",
    "MaxScoreIterationTerminationCondition",
    "MaxTimeIterationTerminationCondition",
    "ScoreImprovementEpochTerminationCondition",
    "TerminationReason",
]


# -- conditions ------------------------------------------------------------------------------------------------------


class EpochTerminationCondition(Protocol):
    """A condition on the held-out score of every evaluated epoch."""

    def initialize(self) -> None:
        """Reset the condition at the start of training."""

    def terminate(self, epoch: int, score: float, *, minimize: bool) -> bool:
        """Return whether to stop after ``epoch`` (from 0) with score ``score``."""


class IterationTerminationCondition(Protocol):
    """A condition on the training score of every update."""

    def initialize(self) -> None:
        """Reset the condition at the start of training."""

    def terminate(self, score: float) -> bool:
        """Return whether to stop now."""


@dataclass(frozen=True, slots=True)
class MaxEpochsTerminationCondition:
    """Stop after a number of epochs."""

    max_epochs: int

    def __post_init__(self) -> None:
        if self.max_epochs < 1:
            raise ConfError(f"MaxEpochsTerminationCondition: max_epochs is {self.max_epochs}; it must be at least 1")

    def initialize(self) -> None:
        """Do nothing."""

    def terminate(self, epoch: int, score: float, *, minimize: bool) -> bool:
        """See ``EpochTerminationCondition``."""
        return epoch + 1 >= self.max_epochs


@dataclass(frozen=True, slots=True)
class BestScoreEpochTerminationCondition:
    """Stop when the score is better than ``best_expected``: lower, or higher if the score is maximized."""

    best_expected: float

    def initialize(self) -> None:
        """Do nothing."""

    def terminate(self, epoch: int, score: float, *, minimize: bool) -> bool:
        """See ``EpochTerminationCondition``."""
        return score < self.best_expected if minimize else score > self.best_expected


@dataclass(slots=True)
class ScoreImprovementEpochTerminationCondition:
    """Stop when the score did not improve by more than ``min_improvement`` in several evaluated epochs in a row."""

    max_epochs_without_improvement: int
    min_improvement: float = 0.0
    _best: float = field(default=math.nan, init=False)
    _since: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.max_epochs_without_improvement < 1:
            raise ConfError(
                f"ScoreImprovementEpochTerminationCondition: max_epochs_without_improvement is "
                f"{self.max_epochs_without_improvement}; it must be at least 1"
            )

    def initialize(self) -> None:
        """Forget the best score."""
        self._best, self._since = math.nan, 0

    def terminate(self, epoch: int, score: float, *, minimize: bool) -> bool:
        """See ``EpochTerminationCondition``."""
        gain = self._best - score if minimize else score - self._best
        if math.isnan(self._best) or gain > self.min_improvement:
            self._best, self._since = score, 0
            return False
        self._since += 1
        return self._since >= self.max_epochs_without_improvement


@dataclass(frozen=True, slots=True)
class InvalidScoreIterationTerminationCondition:
    """Stop when the score is NaN or infinite; without this condition such a score is an error."""

    def initialize(self) -> None:
        """Do nothing."""

    def terminate(self, score: float) -> bool:
        """See ``IterationTerminationCondition``."""
        return not math.isfinite(score)


@dataclass(frozen=True, slots=True)
class MaxScoreIterationTerminationCondition:
    """Stop when a batch's score is above ``max_score`` (or NaN), which means that training diverges."""

    max_score: float

    def initialize(self) -> None:
        """Do nothing."""

    def terminate(self, score: float) -> bool:
        """See ``IterationTerminationCondition``."""
        return not score <= self.max_score


@dataclass(slots=True)
class MaxTimeIterationTerminationCondition:
    """Stop after a number of seconds."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _end: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfError(f"MaxTimeIterationTerminationCondition: seconds is {self.seconds}; it must be positive")

    def initialize(self) -> None:
        """Start the clock."""
        self._end = self.clock() + self.seconds

    def terminate(self, score: float) -> bool:
        """See ``IterationTerminationCondition``."""
        return self.clock() >= self._end


# -- configuration and result ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EarlyStoppingConfiguration:
    """When to evaluate, when to stop, and where to keep the best model.

    Attributes:
        epoch_termination_conditions, iteration_termination_conditions: at least one of either kind.
        score_calculator: computes the score after an epoch; None: the score of the last training batch.
        evaluate_every_n_epochs: the interval; the last epoch is evaluated too.
        model_saver: keeps the best model.
        save_last_model: also keep the newest model, after every evaluation.
    """

    epoch_termination_conditions: Sequence[EpochTerminationCondition] = ()
    iteration_termination_conditions: Sequence[IterationTerminationCondition] = ()
    score_calculator: ScoreCalculator | None = None
    evaluate_every_n_epochs: int = 1
    model_saver: ModelSaver = field(default_factory=InMemoryModelSaver)
    save_last_model: bool = False

    def __post_init__(self) -> None:
        if not self.epoch_termination_conditions and not self.iteration_termination_conditions:
            raise ConfError(
                "EarlyStoppingConfiguration has no termination condition, so training would never end; give one, for "
                "instance epoch_termination_conditions=(MaxEpochsTerminationCondition(10),)"
            )
        if self.evaluate_every_n_epochs < 1:
            raise ConfError(
                f"EarlyStoppingConfiguration.evaluate_every_n_epochs is {self.evaluate_every_n_epochs}; "
                "it must be at least 1"
            )


class TerminationReason(Enum):
    """Why training ended."""

    ITERATION_TERMINATION_CONDITION = "iteration_termination_condition"
    EPOCH_TERMINATION_CONDITION = "epoch_termination_condition"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class EarlyStoppingResult:
    """How training ended.

    Attributes:
        reason, details: the reason, and the condition (or error) as text.
        score_vs_epoch: the score of every evaluated epoch, epochs from 0.
        best_epoch, best_score: of the best model; -1 and NaN if none was evaluated.
        total_epochs: the number of finished epochs.
        best_model: the best network; None if none was evaluated.
        error: the ``Dl4jError`` that ended training; None unless ``reason`` is ERROR (other exceptions are not caught).
    """

    reason: TerminationReason
    details: str
    score_vs_epoch: dict[int, float]
    best_epoch: int
    best_score: float
    total_epochs: int
    best_model: Network | None
    error: Exception | None = None


class EarlyStoppingListener(Protocol):
    """Interface of observers of early stopping."""

    def on_start(self, configuration: EarlyStoppingConfiguration, network: Network) -> None:
        """Training begins."""

    def on_epoch(self, epoch: int, score: float, configuration: EarlyStoppingConfiguration, network: Network) -> None:
        """An epoch was evaluated."""

    def on_completion(self, result: EarlyStoppingResult) -> None:
        """Training ended."""


class _StopTraining(Exception):  # noqa: N818  # no error: how a listener ends ``fit``
    def __init__(self, details: str) -> None:
        super().__init__(details)


class _Watch:
    """A training listener that evaluates the iteration conditions and keeps the last score."""

    def __init__(self, conditions: Sequence[IterationTerminationCondition]) -> None:
        self._conditions = conditions
        self.score = math.nan

    def iteration_done(self, network: object, iteration: int, score: float, *, examples: int = 0) -> None:
        self.score = score
        self.ask(score)

    def ask(self, score: float) -> None:
        for condition in self._conditions:
            if condition.terminate(score):
                raise _StopTraining(f"{condition} at score {score:g}")


class EarlyStoppingTrainer:
    """Trains a network of either kind until a termination condition holds.

    Legacy: ``EarlyStoppingTrainer`` and ``EarlyStoppingGraphTrainer``.

    Args:
        configuration: when to stop.
        network: trained in place; the best model is in the result.
        data: batches, read once per epoch, as for ``network.fit``; not a generator, which has only one epoch.
        listener: called at the start, after every evaluated epoch, and at the end.
    """

    def __init__(
        self,
        configuration: EarlyStoppingConfiguration,
        network: Network,
        data: Data,
        listener: EarlyStoppingListener | None = None,
    ) -> None:
        self._configuration = configuration
        self._network = network
        self._data = data
        self._listener = listener

    def fit(self) -> EarlyStoppingResult:
        """Train; return how training ended. An error in training gives an ERROR result with the best model so far."""
        configuration, network = self._configuration, self._network
        for condition in configuration.epoch_termination_conditions:
            condition.initialize()
        for each in configuration.iteration_termination_conditions:
            each.initialize()
        if self._listener is not None:
            self._listener.on_start(configuration, network)
        watch = _Watch(configuration.iteration_termination_conditions)
        network.listeners.append(watch)
        scores: dict[int, float] = {}
        try:
            result = self._epochs(watch, scores)
        finally:
            network.listeners.remove(watch)
        if self._listener is not None:
            self._listener.on_completion(result)
        return result

    def _epochs(self, watch: _Watch, scores: dict[int, float]) -> EarlyStoppingResult:
        epoch = 0
        while True:
            try:
                self._one_epoch(epoch, watch)
            except _StopTraining as stop:
                return self._result(TerminationReason.ITERATION_TERMINATION_CONDITION, str(stop), scores, epoch)
            except Dl4jError as error:  # keep the best model so far
                details = f"{type(error).__name__}: {error}"
                return self._result(TerminationReason.ERROR, details, scores, epoch, error)
            if epoch % self._configuration.evaluate_every_n_epochs == 0 or self._is_last(epoch):
                stopped = self._evaluate(epoch, watch, scores)
                if stopped is not None:
                    reason = TerminationReason.EPOCH_TERMINATION_CONDITION
                    return self._result(reason, f"{stopped} behind epoch {epoch}", scores, epoch + 1)
            epoch += 1

    def _one_epoch(self, epoch: int, watch: _Watch) -> None:
        data: Any = self._data
        network = self._network
        try:
            if epoch and isinstance(network, MultiLayerNetwork) and network.conf.backprop:
                network.finetune(data)  # pretraining, if any, belongs to the first epoch
            else:
                network.fit(data)
        except NotFiniteError:
            watch.ask(math.nan)  # a condition may treat a score that is not finite as a normal end
            raise

    def _is_last(self, epoch: int) -> bool:
        conditions = self._configuration.epoch_termination_conditions
        limits = [c.max_epochs for c in conditions if isinstance(c, MaxEpochsTerminationCondition)]
        return epoch + 1 >= min(limits, default=epoch + 2)

    def _evaluate(self, epoch: int, watch: _Watch, scores: dict[int, float]) -> EpochTerminationCondition | None:
        """Score an epoch and keep the model if it is the best; return the condition that ends training, or None."""
        configuration, network = self._configuration, self._network
        calculator = configuration.score_calculator
        score = watch.score if calculator is None else calculator.calculate_score(network)
        minimize = calculator is None or calculator.minimize_score
        best = _best(scores, minimize=minimize)
        scores[epoch] = score
        if best is None or (score < scores[best] if minimize else score > scores[best]):
            configuration.model_saver.save_best_model(network, score)
        if configuration.save_last_model:
            configuration.model_saver.save_latest_model(network, score)
        if self._listener is not None:
            self._listener.on_epoch(epoch, score, configuration, network)
        conditions = configuration.epoch_termination_conditions
        return next((c for c in conditions if c.terminate(epoch, score, minimize=minimize)), None)

    def _result(
        self,
        reason: TerminationReason,
        details: str,
        scores: dict[int, float],
        epochs: int,
        error: Exception | None = None,
    ) -> EarlyStoppingResult:
        calculator = self._configuration.score_calculator
        best = _best(scores, minimize=calculator is None or calculator.minimize_score)
        return EarlyStoppingResult(
            reason=reason,
            details=details,
            score_vs_epoch=dict(scores),
            best_epoch=-1 if best is None else best,
            best_score=math.nan if best is None else scores[best],
            total_epochs=epochs,
            best_model=None if best is None else self._configuration.model_saver.best_model(),
            error=error,
        )


def _best(scores: dict[int, float], *, minimize: bool) -> int | None:
    """Return the epoch with the best score, the first of equal ones; None if there is none."""
    known = {epoch: score for epoch, score in scores.items() if not math.isnan(score)}
    if not known:
        return None
    return min(known, key=lambda epoch: (known[epoch] if minimize else -known[epoch], epoch))
