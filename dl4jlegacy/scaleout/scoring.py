"""Scores the models of a run, finds the best one, and decides whether the run stops early: pure functions.

All decisions are stored in the head, so they survive the master that made them; a master that takes over makes the same
decisions.

Legacy: ``EarlyStoppingConfiguration`` and its conditions, which lived in one process and died with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from dl4jlegacy.errors import ConfError, ContractError, NotFiniteError, nearest
from dl4jlegacy.nn.batch_evaluation import CLASS_METRICS, NUMBER_METRICS
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.own_parts import name_of, told
from dl4jlegacy.scaleout.state.records import Best, Failure, Figures, Head, Scores

__all__ = ["METRICS", "EarlyStopping", "Scoring", "ValidationConf"]

METRICS = {"loss": False, **dict.fromkeys(CLASS_METRICS, True), **dict.fromkeys(NUMBER_METRICS[:3], False)}
METRICS |= dict.fromkeys(NUMBER_METRICS[3:], True)
"""The metrics by which a model can be scored, and whether larger is better."""


class ValidationConf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The validation data of a run, the metric, and the interval.

    Attributes:
        fraction: this part of the training data, more than 0 and less than 1, is split off by the run's seed; 0: the
            validation data are given to the runner, or named by ``dataset``.
        stratify: whether both parts have the same share of every class, if the labels are classes. A class whose share
            is less than a row may stay in the training part, unless ``Conf.stratify`` is set.
        dataset: a data set's name or file; all its examples count, and it is read like the training data.
        metric: the score: ``"loss"`` (smaller is better); for classes ``"accuracy"``, ``"precision"``, ``"recall"``,
            ``"f1"`` or ``"matthews_correlation"`` (larger is better), as in ``Evaluation``; for regression ``"mse"``,
            ``"rmse"``, ``"mae"`` (smaller is better), ``"r2"`` or Pearson's ``"pc"`` (larger is better), means of
            ``RegressionEvaluation``'s columns, in the units of the labels.
        every_rounds: number of training rounds between validations; 0: after every epoch. The last training round is
            always followed by a validation.
    """

    fraction: float = 0.0
    stratify: bool = False
    dataset: str = ""
    metric: str = "loss"
    every_rounds: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise ConfError(
                f"validation.fraction is {self.fraction}; it must be more than 0 and less than 1, such as 0.1"
            )
        if self.fraction and self.dataset:
            raise ConfError(f"validation has fraction {self.fraction} and dataset {self.dataset!r}; give one of them")
        if self.metric not in METRICS:
            raise ConfError(f"validation.metric is {self.metric!r}{nearest(self.metric, list(METRICS))}")
        if self.every_rounds < 0:
            raise ConfError(f"validation.every_rounds is {self.every_rounds}; it must not be negative")


class EarlyStopping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions under which a run stops before its plan is done; DL4J's conditions. Each is off by default.

    Attributes:
        max_epochs: stop after this many epochs, not counting pretraining (``MaxEpochs``).
        max_seconds: stop after this many seconds in which a master led the run (``MaxTime``).
        epochs_without_improvement: stop when this many evaluations in a row were not better, by more than
            ``min_improvement``, than the last improvement (``ScoreImprovementEpochs``).
        best_score: stop when the score is better than this (``BestScore``).
        invalid_score: stop when a score or the model is no longer finite (``InvalidScore``); otherwise the run fails.
    """

    max_epochs: int = 0
    max_seconds: float = 0.0
    epochs_without_improvement: int = 0
    min_improvement: float = 0.0
    best_score: float | None = None
    invalid_score: bool = False

    def __post_init__(self) -> None:
        for name in ("max_epochs", "max_seconds", "epochs_without_improvement", "min_improvement"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfError(f"early_stopping.{name} is {getattr(self, name)}; it must be a number, not negative")
        if self.best_score is not None and not math.isfinite(self.best_score):
            raise ConfError(f"early_stopping.best_score is {self.best_score}; it must be a finite number")
        if self.min_improvement and not self.epochs_without_improvement:
            raise ConfError(
                f"early_stopping.min_improvement is {self.min_improvement}, and nothing counts improvements; give "
                "epochs_without_improvement too"
            )
        if all(getattr(self, name) == default for name, default in _DEFAULTS.items()):
            raise ConfError(
                "early_stopping has no condition, so it would never stop the run; give one, such as "
                "epochs_without_improvement=5, or leave it out"
            )


_DEFAULTS = dict(zip(EarlyStopping.__struct_fields__, EarlyStopping.__struct_defaults__, strict=True))


class Scoring(msgspec.Struct, frozen=True, kw_only=True):
    """Decides the consequences of a closed round for the best model and the end of the run.

    Attributes:
        metric: the score of a validation, one of ``METRICS``.
        stopping: the conditions; None: the run continues to the end of its plan. Without a validation in the plan they
            are applied to the training score of the last round of every epoch.
        stop_if: called after every score with (round, score); returns the reason why the run ends, or "" to continue.
            Called on the thread that closes the round, possibly several times for the same round.
    """

    metric: str = "loss"
    stopping: EarlyStopping | None = None
    stop_if: Callable[[int, float], str] | None = None

    def closed(self, plan: Plan, before: Head, after: Head, figures: Figures | None) -> Head:
        """Return ``after``, the head after a round is closed, with the decisions that follow from that round.

        Args:
            plan: of the run.
            before: the head of the round.
            after: the next head, with the model that was evaluated or trained.
            figures: of the validation, if the round was one.
        """
        score = self._score(plan, before, after, figures)
        if score is not None:
            after = self._scored(plan, before, after, score, figures)
        reason = self._reason(plan, after, score)
        if not reason and score is not None and self.stop_if is not None:
            reason = self._asked(self.stop_if, before.round, score)
        if not reason or after.round >= plan.total_rounds:
            return after
        return msgspec.structs.replace(after, status="done", stopped_by=reason)

    @staticmethod
    def _asked(stop_if: Callable[[int, float], str], round_: int, score: float) -> str:
        """Return the answer of a user's own ``stop_if``; raises ``ContractError`` if it is not text."""
        what = f"{name_of(stop_if)}, which is stop_if,"
        with told(what):
            said: Any = stop_if(round_, score)
        if said is not None and not isinstance(said, str):
            raise ContractError(
                f'{what} returned {said!r} in round {round_}; it must be the reason why the run ends, as text, or ""'
            )
        return said or ""

    def failed(self, head: Head, failure: Failure) -> Head | None:
        """Return the head of a run that stops because of a job's failure; None if the run fails instead."""
        if self.stopping is None or not self.stopping.invalid_score or failure.code != NotFiniteError.code:
            return None
        return msgspec.structs.replace(head, status="done", stopped_by=f"InvalidScore: {failure.message}")

    def _score(self, plan: Plan, before: Head, after: Head, figures: Figures | None) -> float | None:
        """Return the score of the closed round; None if it has none."""
        if figures is not None:
            score: float | None = getattr(figures, self.metric)
            return score
        ends_epoch = plan.epochs_before(after.round) > plan.epochs_before(before.round)
        return after.score if self.stopping is not None and plan.validation is None and ends_epoch else None

    def _scored(self, plan: Plan, before: Head, after: Head, score: float, figures: Figures | None) -> Head:
        """Return the head with a new score, and with the model of ``after`` as the best model if it is better."""
        best, scores = after.best, after.scores
        if best is None or self._gain(score, best.score) > 0:
            version = before.version if figures is not None else after.version
            epoch = plan.slot(before.round, 0).epoch
            best = Best(after.model, version=version, round=before.round, epoch=epoch, score=score, figures=figures)
        needed = 0.0 if self.stopping is None else self.stopping.min_improvement
        if scores is None or self._gain(score, scores.reference) > needed:
            scores = Scores(score=score, round=before.round, reference=score, figures=figures)
        else:
            count = scores.without_improvement + 1
            scores = msgspec.structs.replace(
                scores, score=score, round=before.round, without_improvement=count, figures=figures
            )
        return msgspec.structs.replace(after, best=best, scores=scores)

    def _gain(self, score: float, reference: float) -> float:
        """Return by how much ``score`` is better than ``reference``."""
        return score - reference if METRICS[self.metric] else reference - score

    def _reason(self, plan: Plan, head: Head, score: float | None) -> str:
        """Return the condition that ends the run, with its values, as text; "" if there is none."""
        stopping = self.stopping
        if stopping is None:
            return ""
        if score is not None and stopping.best_score is not None and self._gain(score, stopping.best_score) > 0:
            return f"BestScore: {self.metric} {score:.6g} is better than {stopping.best_score:g}"
        patience = stopping.epochs_without_improvement
        if score is not None and patience and head.scores and head.scores.without_improvement >= patience:
            return (
                f"ScoreImprovementEpochs: {self.metric} {score:.6g} is the last of {patience} that were no better, by "
                f"more than {stopping.min_improvement:g}, than {head.scores.reference:.6g}"
            )
        epochs = plan.epochs_before(head.round)
        if stopping.max_epochs and epochs >= stopping.max_epochs and not plan.is_validation(head.round):
            return f"MaxEpochs: {epochs} of at most {stopping.max_epochs} are done"
        if stopping.max_seconds and head.seconds >= stopping.max_seconds:
            return f"MaxTime: {head.seconds:.1f} of at most {stopping.max_seconds:g} seconds have passed"
        return ""
