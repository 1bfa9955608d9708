"""The trials of a search in its Optuna study: which are finished, which come next, and which are repeated.

A trial's number is its place in the search, not that of its row in the study: an interrupted trial has several rows
there. Its drawn values depend on the search's seed, its number and the trials before it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError
from dl4jlegacy.tuning.plots import study_page
from dl4jlegacy.tuning.pruning import NUMBER
from dl4jlegacy.tuning.space import SearchSpace

__all__ = ["AT_ONCE", "FinishedTrial", "Trials", "digest"]

_IS_START, _ERROR = "is_start", "error"
AT_ONCE = "number of trials at once"
"""A part of a search's identity; a search that started before this option existed has 1."""
_SECONDS, _PARAMS_SHA256 = "seconds", "params_sha256"
_SCORED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of the trials that a sampler learns from."""
_ENDED = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def digest(text: str) -> str:
    """Return the SHA-256 of a text, as hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    """The result of a trial.

    Attributes:
        number: from 0.
        state: ``"complete"``, ``"pruned"``, or ``"failed"``, with the reason in ``error``.
        score: the best of its validations (of a pruned trial: so far); None: there was none.
        params: the values by path.
        scores: of all its validations.
        seconds: duration of its run.
        params_sha256: of the model with the best score; "": none.
        is_start: whether it is the original Conf.
    """

    number: int
    state: str
    score: float | None
    params: dict[str, Any]
    scores: tuple[float, ...]
    seconds: float
    params_sha256: str
    error: str = ""
    is_start: bool = False


class Trials:
    """The trials of one study; used by one thread, apart from the threads of the pruner.

    Args:
        study: a study that no other process uses meanwhile.
        space: fitted to the Conf.
        seed: of the search.
    """

    def __init__(self, study: optuna.Study, space: SearchSpace, seed: int) -> None:
        self._study, self._space, self._seed = study, space, seed
        self._maximizes = study.direction is optuna.study.StudyDirection.MAXIMIZE

    def check_same(self, identity: dict[str, Any]) -> None:
        """Store the search's identity in its study; raises ``ConfError`` if the study has another one."""
        kept = self._study.user_attrs.get("search")
        if kept is None and self._study.get_trials(deepcopy=False):
            raise ConfError(f"study {self._study.study_name!r} is of another program; give the search another --study")
        if kept is None:
            self._study.set_user_attr("search", identity)
            return
        other = [name for name, value in identity.items() if {AT_ONCE: 1, **kept}.get(name) != value]
        if other:
            raise ConfError(
                f"study {self._study.study_name!r} was begun with another {' and another '.join(other)}; go on with "
                "the same, or give the new search another --study or --storage"
            )

    def begin(self, start: dict[str, Any] | None) -> None:
        """Make ``start`` the first trial of a new study; repeat the trials whose process died."""
        trials = self._study.get_trials(deepcopy=False)
        if not trials and start is not None:
            self._study.enqueue_trial(start, user_attrs={NUMBER: 0, _IS_START: True})
        for trial in trials:
            if trial.state is TrialState.RUNNING:
                self.try_again(trial.number)

    def try_again(self, row: int) -> None:
        """Repeat the interrupted trial of a row with the same drawn values."""
        trials = self._study.get_trials(deepcopy=False)
        trial = trials[row]
        number = trial.user_attrs.get(NUMBER)
        others = [t for t in trials if t.number != row and t.user_attrs.get(NUMBER) == number and not _was_cut(t)]
        if number is not None and not others:
            kept = {name: trial.user_attrs[name] for name in (NUMBER, _IS_START) if name in trial.user_attrs}
            self._study.enqueue_trial(trial.params, user_attrs=kept)
        self._study.tell(row, state=TrialState.FAIL)

    def ask(self, at_once: int, stop: int) -> dict[int, optuna.Trial]:
        """Return the next trials by number, with all values drawn: the unfinished trials of the current batch.

        Their values depend only on earlier batches, in the order of their numbers, whichever trials of the batch are
        done.

        Args:
            at_once: trials of a batch.
            stop: trials from this number on are left for another call.
        """
        done = {trial.number for trial in self.finished()}
        first = next(number for number in range(len(done) + 1) if number not in done)
        batch = first // at_once
        wanted = set(range(first, min(stop, (batch + 1) * at_once))) - done
        rows = self._study.get_trials(deepcopy=False)
        waiting = {row.user_attrs[NUMBER] for row in rows if row.state is TrialState.WAITING}
        for number in sorted(wanted - waiting):
            self._study.enqueue_trial(self._drawn(number, batch * at_once), user_attrs={NUMBER: number})
        asked: dict[int, optuna.Trial] = {}
        while wanted - asked.keys():
            trial = self._study.ask(self._space.distributions())
            asked[trial.user_attrs[NUMBER]] = trial
        return dict(sorted(asked.items()))

    def _drawn(self, number: int, before: int) -> dict[str, Any]:
        """Return the values that the sampler draws for a trial, based on the trials with a number below ``before``.

        The sampler gets a separate study. The rows of the search's study are in the order in which trials started or
        were repeated, on which the drawn values would otherwise depend.
        """
        rows = [row for row in self._study.get_trials(deepcopy=False) if row.state in _SCORED]
        known = sorted((row for row in rows if row.user_attrs[NUMBER] < before), key=lambda row: row.user_attrs[NUMBER])
        seed = Stream.of(self._seed).at(number, purpose="search").key % 2**32
        sampler = optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(sampler=sampler, direction=self._study.direction)
        study.add_trials(known)
        return study.ask(self._space.distributions()).params

    def tell(self, trial: optuna.Trial, score: float, *, is_pruned: bool, seconds: float, params_sha256: str) -> None:
        """Record a trial's end."""
        trial.set_user_attr(_SECONDS, round(seconds, 3))
        trial.set_user_attr(_PARAMS_SHA256, params_sha256)
        self._study.tell(trial, None if is_pruned else score, state=TrialState.PRUNED if is_pruned else None)

    def tell_failed(self, trial: optuna.Trial, error: str) -> None:
        """Record that a trial failed because of its drawn values."""
        trial.set_user_attr(_ERROR, error)
        self._study.tell(trial, state=TrialState.FAIL)

    def finished(self) -> list[FinishedTrial]:
        """Return the finished trials, by number."""
        return [self._finished(row) for row in self._ended()]

    def page(self, name: str, metric: str) -> str:
        """Return the plots of the trials as HTML."""
        return study_page(name, metric, self._ended(), self._study.direction)

    def _ended(self) -> list[FrozenTrial]:
        rows = self._study.get_trials(deepcopy=False)
        ended = (row for row in rows if row.state in _ENDED and not _was_cut(row))
        return sorted(ended, key=lambda row: row.user_attrs[NUMBER])

    def best(self) -> FinishedTrial | None:
        """Return the complete trial with the best score, the first of equal ones; None if there is none."""
        complete = [trial for trial in self.finished() if trial.state == "complete" and trial.score is not None]
        sign = -1 if self._maximizes else 1
        return min(complete, key=lambda trial: (sign * (trial.score or 0.0), trial.number), default=None)

    def drawn(self, number: int) -> dict[str, Any]:
        """Return Optuna's values of a finished trial."""
        rows = self._study.get_trials(deepcopy=False)
        return next(row.params for row in rows if row.user_attrs.get(NUMBER) == number and not _was_cut(row))

    def _finished(self, row: FrozenTrial) -> FinishedTrial:
        scores = tuple(value for _, value in sorted(row.intermediate_values.items()))
        said = row.user_attrs
        best = (max if self._maximizes else min)(scores) if scores else None
        return FinishedTrial(
            number=said[NUMBER],
            state=_ENDED[row.state],
            score=row.value if row.state is TrialState.COMPLETE else best,
            params=self._space.values(row.params),
            scores=scores,
            seconds=said.get(_SECONDS, 0.0),
            params_sha256=said.get(_PARAMS_SHA256, ""),
            error=said.get(_ERROR, ""),
            is_start=bool(said.get(_IS_START, False)),
        )


def _was_cut(row: FrozenTrial) -> bool:
    """Return whether a row belongs to an interrupted trial, which has a newer row."""
    return row.state is TrialState.FAIL and _ERROR not in row.user_attrs
