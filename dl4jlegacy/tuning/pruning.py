"""``PruningCallback``: ends a run early if Optuna's pruner prunes its trial; ``BatchPruner`` makes that decision."""

from __future__ import annotations

from typing import Any, cast

import optuna
from optuna.trial import FrozenTrial

__all__ = ["NUMBER", "BatchPruner", "PruningCallback"]

NUMBER = "number"
"""The user attribute with a trial's number in the search."""


class PruningCallback:
    """Reports every validation of a run to its Optuna trial, and ends the run if the trial should be pruned.

    ::

        def objective(trial):
            pruning = PruningCallback(trial)
            with ActorNetworkRunner("master", iterator, stop_if=pruning) as runner:
                runner.setup(conf_of(trial))
                result = runner.train()
            pruning.raise_if_pruned(result.stopped_by)
            return result.best.score

    The steps are the run's validations, counted from 1, for any number of rounds between them. The decision depends
    only on the scores, so it is the same for any number of workers. Called on the thread of the run's master.

    Args:
        trial: of the study, whose direction must be that of the run's metric.
    """

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial
        self._reasons: dict[int, str] = {}

    def __call__(self, round: int, score: float) -> str:
        """Return why the run ends after this validation; "": it continues."""
        if round not in self._reasons:  # the master may have to close a round twice
            step = len(self._reasons) + 1
            self._trial.report(score, step)
            pruned = self._trial.should_prune()
            said = f"Pruned: score {score:.6g} of validation {step} is worse than those of other trials"
            self._reasons[round] = said if pruned else ""
        return self._reasons[round]

    def has_pruned(self, stopped_by: str) -> bool:
        """Return whether this callback ended the run, given ``TrainingResult.stopped_by``."""
        return bool(stopped_by) and stopped_by in self._reasons.values()

    def raise_if_pruned(self, stopped_by: str) -> None:
        """Raise ``optuna.TrialPruned`` if this callback ended the run."""
        if self.has_pruned(stopped_by):
            raise optuna.TrialPruned(stopped_by)


class BatchPruner(optuna.pruners.BasePruner):
    """Prunes a trial based only on earlier batches, whose trials are all finished, so that speed has no influence.

    Args:
        pruner: makes the decision from the visible trials.
        at_once: trials of a batch.
    """

    def __init__(self, pruner: optuna.pruners.BasePruner, at_once: int) -> None:
        self._pruner, self._at_once = pruner, at_once

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Return whether to prune the trial; called on the thread of its run."""
        number = trial.user_attrs.get(NUMBER, trial.number)
        before = number // self._at_once * self._at_once
        return self._pruner.prune(cast(optuna.Study, _Earlier(study, before)), trial)


class _Earlier:
    """The pruner's view of a study: only trials with a number below ``before``."""

    def __init__(self, study: optuna.Study, before: int) -> None:
        self._study, self._before = study, before
        self.direction = study.direction

    def get_trials(self, *args: Any, **options: Any) -> list[FrozenTrial]:
        """Return the visible trials, as ``optuna.Study`` does."""
        found = self._study.get_trials(*args, **options)
        return [trial for trial in found if trial.user_attrs.get(NUMBER, trial.number) < self._before]
