"""The curves of a run, from its history: training score, validation, learning rate, over examples, rounds or time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

import msgspec

from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.plan import PRETRAIN

__all__ = ["LINEAR", "MEASURES", "OVER", "Column", "Curve", "Over", "RunCurves", "columns_of", "curves_of"]

Over = Literal["examples", "rounds", "seconds"]
OVER: tuple[Over, ...] = ("examples", "rounds", "seconds")
"""The possible x-axes of a curve: examples trained on, rounds, or seconds in which a process led the run."""

_MOST = 1e300
"""Upper bound on magnitudes: larger values are not plausible, and are not drawn."""
_Measure = Callable[[HistoryEntry], float | None]


def _figure(name: str) -> _Measure:
    def measure(entry: HistoryEntry) -> float | None:
        found: float | None = None if entry.validation is None else getattr(entry.validation, name)
        return found

    return measure


def _score(entry: HistoryEntry, *, pretrains: bool) -> float | None:
    return entry.score if entry.validation is None and is_pretraining(entry.phase) is pretrains else None


def is_pretraining(phase: str) -> bool:
    """Return whether a version's phase pretrains a layer, so that its score is a different measure."""
    return phase.partition(" ")[0] == PRETRAIN


MEASURES: dict[str, _Measure] = {
    "pretraining score": lambda entry: _score(entry, pretrains=True),
    "training score": lambda entry: _score(entry, pretrains=False),
    "validation loss": _figure("loss"),
    "validation accuracy": _figure("accuracy"),
    "validation r2": _figure("r2"),
    "learning rate": lambda entry: entry.learning_rate,
}
"""The possible curves; a run has those for which its history has values."""
LINEAR = ("validation accuracy", "validation r2")
"""Measures that are fractions, and never drawn on a logarithmic scale."""


class Curve(msgspec.Struct, frozen=True):
    """Points of one measure in the order of versions: ``xs`` never decrease, and ``ys`` has the same length."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def fields(self) -> dict[str, Any]:
        """Return the first, last, minimum and maximum value, and the number of points, for display and JSON."""
        return {
            "points": len(self.ys),
            "first": self.ys[0],
            "last": self.ys[-1],
            "least": min(self.ys),
            "most": max(self.ys),
        }


class RunCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of one run, by their names in ``MEASURES``; its ``versions`` had ``examples``, in ``seconds``.

    ``phases`` has the start and name of each phase after the first one.
    """

    name: str
    versions: int
    examples: int
    seconds: float
    curves: dict[str, Curve]
    phases: tuple[tuple[float, str], ...] = ()


def curves_of(name: str, history: Sequence[HistoryEntry], over: Over = "examples") -> RunCurves:
    """Return the curves of a run with a non-empty history; ``name`` is the run's name in comparisons."""
    seconds = list(accumulate(entry.seconds for entry in history))
    places = {
        "examples": [float(entry.examples) for entry in history],
        "rounds": [float(entry.round) for entry in history],
        "seconds": seconds,
    }[over]
    curves = {}
    for measure, of in MEASURES.items():
        points = [(x, y) for x, entry in zip(places, history, strict=True) if (y := of(entry)) is not None]
        points = [(x, y) for x, y in points if abs(x) <= _MOST and abs(y) <= _MOST]
        if points:
            curves[measure] = Curve(tuple(x for x, _ in points), tuple(y for _, y in points))
    last = history[-1]
    return RunCurves(
        name=name,
        versions=len(history),
        examples=last.examples,
        seconds=seconds[-1],
        curves=curves,
        phases=_phases(history, places),
    )


def _phases(history: Sequence[HistoryEntry], places: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """Return the start of each phase after the first one, which is the end of the last version before it."""
    pairs = zip(pairwise(history), places, strict=False)
    return tuple((place, new.phase) for (old, new), place in pairs if new.phase and old.phase not in ("", new.phase))


class Column(NamedTuple):
    """Neighbouring points of a curve: their mean position and value, and their minimum and maximum value."""

    x: float
    y: float
    least: float
    most: float


def columns_of(points: Iterable[tuple[float, float]], low: float, high: float, most: int) -> list[Column]:
    """Return any number of points as at most ``most`` columns of equal width between ``low`` and ``high``."""
    gathered: dict[int, list[tuple[float, float]]] = {}
    width = (high - low) / most or 1.0
    for x, y in points:
        gathered.setdefault(min(most - 1, int((x - low) / width)), []).append((x, y))
    return [_column(group) for _, group in sorted(gathered.items())]


def _column(points: Sequence[tuple[float, float]]) -> Column:
    ys = [y for _, y in points]
    return Column(math.fsum(x for x, _ in points) / len(points), math.fsum(ys) / len(ys), min(ys), max(ys))
