"""Verdict: the sentences of a report about a model, from counts and scores alone. Pure functions.

A model is compared with its *baseline*, the best answer that ignores the features, fitted on the training part and
scored on the held-out one: always the commonest class, always the mean, or the last value of a series.

==================  ================================================================================================
learned             the answers depend on the held-out labels beyond chance: more hits than their marginals explain by
                    three standard errors (of a permutation), or a correlation of as much; unknown for ten rows or
                    fewer. Not if the score is as at the start, and the held-out loss that of the baseline: a network
                    that was just drawn may have some answers right (one that begins at a regression is not)
no better           not one standard error (McNemar 1947) more hits than the baseline, or less than a point and two of
                    these; errors less than 1 % smaller, or numbers that were not learned
constant            one answer for all held-out examples, which have several labels
collapsed           constant, although a simple probe (``probe.py``) finds a pattern, at the end of a training that was
                    long enough and no longer improves
diverged            the score at the end is more than twice that at the start, and the model has not learned
==================  ================================================================================================

The permutation variance is that of a linear permutation statistic (Hoeffding 1951).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import counted

__all__ = [
    "Baseline",
    "ClassFacts",
    "Course",
    "Facts",
    "NumberFacts",
    "Verdict",
    "class_recall",
    "course_of",
    "judge",
    "macro_f1",
]

_CHANCE = 3.0  # standard errors beyond which an association is no chance
_BETTER, _MUCH_BETTER, _POINT = 1.0, 2.0, 0.01  # standard errors, and the gain in accuracy from which one will do
_AS_AT_START = 0.97
_FASTER = 0.05  # relative fall of the score over the last fifth of a training that should go on
_PARTS = 5
_FEWEST = 6  # scores from which the standard error of their slope says something
_NAMED = 3  # classes named in a sentence


# -- facts -------------------------------------------------------------------------------------------------------------


class Course(msgspec.Struct, frozen=True):
    """The training score at the start and at the end, and whether it still falls; ``versions``: number of scores."""

    start: float
    end: float
    is_improving: bool
    versions: int


def course_of(scores: Sequence[float]) -> Course | None:
    """Return the course of the training scores of a run's last phase; None without scores.

    The start is the mean of the first twentieth, the end that of the last fifth. The score still falls if the last
    fifth is 5 % smaller than the one before, and the slope of the last three fifths is no chance.
    """
    found = np.asarray(scores, np.float64)
    if not len(found):
        return None
    size = max(1, len(found) // _PARTS)
    before, end = found[-2 * size : -size], float(found[-size:].mean())
    falls = len(before) > 0 and float(before.mean()) - end > _FASTER * abs(float(before.mean()))
    return Course(
        float(found[: max(1, len(found) // 20)].mean()), end, falls and _slopes_down(found[-3 * size :]), len(found)
    )


def _slopes_down(scores: Array) -> bool:
    """Return whether a line through the scores falls by more than two of its standard errors; True for a few."""
    n = len(scores)
    if n < _FEWEST:
        return True
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ scores) / float(x @ x)
    rest = scores - scores.mean() - slope * x
    return -slope > _MUCH_BETTER * math.sqrt(float(rest @ rest) / (n - 2) / float(x @ x))


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """Counts of ``(actual, predicted)`` held-out classes, the classes' names, and how many each has in training."""

    confusion: Array
    names: tuple[str, ...]
    trained: Array

    @property
    def commonest(self) -> int:
        """The class that is the commonest in training."""
        return int(self.trained.argmax())

    @property
    def always(self) -> int | None:
        """The only class that is ever predicted; None if there are several, or the examples have only one class."""
        predicted, actual = self.confusion.sum(axis=0), self.confusion.sum(axis=1)
        return int(predicted.argmax()) if (predicted > 0).sum() == 1 and (actual > 0).sum() > 1 else None


class NumberFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of a predicted column and of its baseline, in the label's units.

    ``correlation`` is that of outputs and labels, ``spread`` the deviation of the outputs in deviations of the labels.
    """

    name: str
    count: int
    mse: float
    mae: float
    baseline_mse: float
    baseline_mae: float
    correlation: float
    spread: float
    output_mean: float


class Baseline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer that ignores the features, in words, and its figures on the held-out examples."""

    answer: str
    accuracy: float | None = None
    macro_f1: float | None = None
    mse: float | None = None
    rmse: float | None = None
    mae: float | None = None
    r2: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a verdict is made from.

    Attributes:
        classes: of a classifier.
        labels: of each label of a multi-label model, as two classes; ``names`` has the label's name alone.
        numbers: of each predicted column.
        baseline: None: there is none, because nothing is compared with labels.
        course: of the training score; None: unknown.
        steps: labels of a training example, on average: more than one in a sequence.
        loss: mean loss of a held-out example.
        has_had_enough: whether the training was long enough for a model to learn something.
        can_weigh: whether class weights could be given, and were not.
        has_pattern: whether a probe finds more in the features than the baseline; asked only of a constant model.
        begins_fitted: whether the network began at a regression, and not as it was drawn.
    """

    classes: ClassFacts | None = None
    labels: tuple[ClassFacts, ...] = ()
    numbers: tuple[NumberFacts, ...] = ()
    baseline: Baseline | None = None
    course: Course | None = None
    steps: float = 1.0
    loss: float = math.nan
    has_had_enough: bool = False
    can_weigh: bool = False
    has_pattern: bool = False
    begins_fitted: bool = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says of a model.

    Attributes:
        learned: whether the answers depend on the labels beyond chance; None: this cannot be told.
        baseline: the answer that ignores the features.
        findings: sentences, the worst first.
        is_constant: whether all answers are the same.
        failure: why the run counts as collapsed or diverged; "": it does not.
    """

    learned: bool | None = None
    baseline: Baseline | None = None
    findings: tuple[str, ...] = ()
    is_constant: bool = False
    failure: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {"learned": found["learned"], "baseline": found["baseline"], "findings": list(self.findings)}


# -- figures -----------------------------------------------------------------------------------------------------------


def class_recall(confusion: Array) -> list[float | None]:
    """Return the recall of each class; None for one without examples."""
    total = confusion.sum(axis=1).tolist()
    return [hits / count if count else None for hits, count in zip(confusion.diagonal().tolist(), total, strict=True)]


def macro_f1(confusion: Array) -> float:
    """Return the mean F1 of all classes; a class that is never found, or never predicted, counts as 0.

    Only a class that is neither among the examples nor among the answers is left out, as scikit-learn does.
    """
    hits = confusion.diagonal().astype(np.float64)
    total = confusion.sum(axis=0) + confusion.sum(axis=1)
    there = total > 0
    return float((2 * hits[there] / total[there]).mean()) if there.any() else 0.0


def association(confusion: Array) -> float | None:
    """Return by how many standard errors there are more hits than answers in a random order would have.

    None if this cannot reach ``_CHANCE`` because there are too few examples, or none of a second class.
    """
    row, col = (confusion.sum(axis=axis).astype(np.float64) for axis in (1, 0))
    n = row.sum()
    if n - 1 <= _CHANCE**2 or (row > 0).sum() < 2:
        return None
    chance = float(row @ col)
    variance = (chance - (row @ col**2 + col @ row**2) / n + (chance / n) ** 2) / (n - 1)
    return (float(confusion.trace()) - chance / n) / math.sqrt(variance) if variance > 1e-9 * n else 0.0


def gain_over(confusion: Array, commonest: int) -> float:
    """Return by how many standard errors the hits exceed those of always answering ``commonest``."""
    won = int(confusion.trace() - confusion[commonest, commonest])
    lost = int(confusion[commonest].sum() - confusion[commonest, commonest])
    return (won - lost) / math.sqrt(won + lost) if won + lost else 0.0


# -- the verdict -------------------------------------------------------------------------------------------------------


def judge(facts: Facts) -> Verdict:
    """Return the verdict on a model."""
    if facts.classes is not None:
        learned, is_constant, findings = _of_classes(facts.classes, facts.baseline)
    elif facts.labels:
        learned, is_constant, findings = _of_labels(facts.labels)
    elif facts.numbers:
        learned, is_constant, findings = _of_numbers(facts.numbers, facts.baseline)
    else:
        learned, is_constant, findings = _of_course(facts.course), False, []
    learned = learned and not _is_as_drawn(facts)
    failure = _failure(facts, learned, is_constant)
    findings += [*_about_learning(facts, learned), *_advice(facts, learned, is_constant, failure)]
    return Verdict(
        learned=learned, baseline=facts.baseline, findings=tuple(findings), is_constant=is_constant, failure=failure
    )


def _any(found: Sequence[bool | None]) -> bool | None:
    return True if any(found) else None if None in found else False


def _of_classes(facts: ClassFacts, baseline: Baseline | None) -> tuple[bool | None, bool, list[str]]:
    confusion, always = facts.confusion, facts.always
    beyond = association(confusion)
    findings = [] if always is None else [f"always answers {facts.names[always]!r}"]
    if always != facts.commonest and baseline is not None:
        findings += _no_better(facts, baseline)
    if always is None or (always == facts.commonest and len(confusion) <= _NAMED + 1):
        findings += _never_found(facts)
    return None if beyond is None else bool(beyond > _CHANCE), always is not None, findings


def _no_better(facts: ClassFacts, baseline: Baseline) -> Iterator[str]:
    """Yield a sentence if the accuracy is not better than the baseline's; one on macro F1 if that is."""
    assert baseline.accuracy is not None and baseline.macro_f1 is not None
    accuracy = float(facts.confusion.trace()) / max(1, int(facts.confusion.sum()))
    beyond, f1 = gain_over(facts.confusion, facts.commonest), macro_f1(facts.confusion)
    if beyond < _BETTER or (beyond < _MUCH_BETTER and accuracy < baseline.accuracy + _POINT):
        but = f"; better by macro f1 ({f1:.4f}, against {baseline.macro_f1:.4f})"
        yield (
            f"no better than {baseline.answer} by accuracy ({accuracy:.4f}, against {baseline.accuracy:.4f})"
            f"{but if f1 > baseline.macro_f1 + _POINT else ''}"
        )


def _never_found(facts: ClassFacts) -> Iterator[str]:
    """Yield a sentence on the classes of several held-out examples, none of which was found."""
    total = facts.confusion.sum(axis=1)
    missed = np.flatnonzero((total > 1) & (facts.confusion.diagonal() == 0))
    missed = missed[np.argsort(-total[missed], kind="stable")].tolist()
    if missed:
        named = ", ".join(f"{facts.names[i]!r} (0 of {total[i]:,})" for i in missed[:_NAMED])
        more = len(missed) - _NAMED
        yield f"never finds {named}" + (f" and {counted(more, 'more class', 'more classes')}" if more > 0 else "")


def _of_labels(labels: Sequence[ClassFacts]) -> tuple[bool | None, bool, list[str]]:
    beyond = [association(label.confusion) for label in labels]
    missed = [
        f"{label.names[0]!r} (0 of {count:,})"
        for label in labels
        if (count := int(label.confusion[1].sum())) > 1 and not label.confusion[1, 1]
    ]
    more = f" and {counted(len(missed) - _NAMED, 'more label')}" if len(missed) > _NAMED else ""
    findings = [f"never finds {', '.join(missed[:_NAMED])}{more}"] if missed else []
    learned = _any([None if each is None else bool(each > _CHANCE) for each in beyond])
    return learned, all(label.always is not None for label in labels), findings


def _of_numbers(columns: Sequence[NumberFacts], baseline: Baseline | None) -> tuple[bool | None, bool, list[str]]:
    learned: list[bool | None] = [
        column.correlation * math.sqrt(column.count - 1) > _CHANCE if column.count - 1 > _CHANCE**2 else None
        for column in columns
    ]
    is_constant = all(column.spread < 0.01 and column.baseline_mse > 0 for column in columns)
    findings = [f"always answers about {columns[0].output_mean:.6g}"] if is_constant and len(columns) == 1 else []
    enough = 1 - _POINT
    if baseline is not None and all(
        has_learned is False
        or (column.mse >= enough * column.baseline_mse and column.mae >= enough * column.baseline_mae)
        for column, has_learned in zip(columns, learned, strict=True)
    ):
        mae = sum(column.mae for column in columns) / len(columns)
        findings.append(f"no better than {baseline.answer} (mae {mae:.6g}, against {baseline.mae:.6g})")
    return _any(learned), is_constant, findings


def _of_course(course: Course | None) -> bool | None:
    """Return whether a model without labels has learned: whether its score fell."""
    return None if course is None or course.versions < 2 else not _is_as_at_start(course)


def _is_as_at_start(course: Course) -> bool:
    return course.start - course.end <= (1 - _AS_AT_START) * abs(course.start)


def _is_as_drawn(facts: Facts) -> bool:
    """Return whether neither the training score nor the held-out error says that anything was learned."""
    if facts.begins_fitted or facts.course is None or not _is_as_at_start(facts.course):
        return False
    if facts.classes is not None:
        return facts.loss >= _AS_AT_START * _guess(facts)
    return bool(facts.numbers) and all(each.mse >= _AS_AT_START * each.baseline_mse for each in facts.numbers)


def _guess(facts: Facts) -> float:
    """Return the score of a classifier that knows only the shares of the classes; infinite if there are no classes."""
    if facts.classes is None:
        return math.inf
    shares = facts.classes.trained[facts.classes.trained > 0] / max(1, facts.classes.trained.sum())
    return float(-(shares * np.log(shares)).sum()) * facts.steps


def _about_learning(facts: Facts, learned: bool | None) -> Iterator[str]:
    course = facts.course
    if course is not None and _has_risen(course):
        yield f"the score has risen, from {course.start:.4g} at the start to {course.end:.4g}"
    elif learned is False and course is None:
        yield "has not learned"
    elif learned is False and course is not None:
        guess = _guess(facts)
        if 2 * guess < course.end:
            yield f"has not learned (score {course.end:.4g}, that of guessing is {guess:.4g})"
        elif _is_as_at_start(course) or course.end >= _AS_AT_START * guess:
            yield f"has not learned (score as at the start: {course.end:.4g})"
        else:
            yield (
                f"has not learned what holds for held-out examples (training score {course.start:.4g} at the start, "
                f"{course.end:.4g} at the end)"
            )


def _has_risen(course: Course) -> bool:
    return course.versions >= 2 * _PARTS and course.end > 2 * course.start > 0


def _failure(facts: Facts, learned: bool | None, is_constant: bool) -> str:
    course = facts.course
    if learned or not facts.has_had_enough or course is None:
        return ""
    if _has_risen(course):
        return f"the run diverged: its score was {course.start:.4g} at the start and is {course.end:.4g} at the end"
    if is_constant and facts.has_pattern and not course.is_improving:
        return "the run collapsed: it gives one answer for everything, although the data have a pattern"
    return ""


def _advice(facts: Facts, learned: bool | None, is_constant: bool, failure: str) -> Iterator[str]:
    course = facts.course
    overfits = course is not None and math.isfinite(facts.loss) and facts.loss > 1.1 * course.end
    if course is not None and course.is_improving and not overfits:
        yield "still improving: more epochs"
    if failure:
        yield "try another --learning-rate, --updater or --seed"
    elif facts.can_weigh and facts.classes is not None and (learned or is_constant) and _has_rare_missed(facts.classes):
        yield "--class-weights balanced makes rare classes count for more"


def _has_rare_missed(facts: ClassFacts) -> bool:
    """Return whether a class is hardly ever found that has less than half of an equal share of the training rows."""
    recall, present = class_recall(facts.confusion), int((facts.trained > 0).sum())
    rare = facts.trained * present * 2 < facts.trained.sum()
    return any(bool(is_rare) and each is not None and each < 0.1 for is_rare, each in zip(rare, recall, strict=True))
