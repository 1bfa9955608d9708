"""A run whose score stays that of guessing says so early, once."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dl4jlegacy.training.guess_watch import GuessWatch, guess_of


def status(round_: int, score: float | None) -> Any:
    """Return a snapshot of a run of 100 rounds, as far as the watch reads it."""
    return SimpleNamespace(head=SimpleNamespace(round=round_, score=score), plan=SimpleNamespace(total_rounds=100))


def warnings_of(caplog: pytest.LogCaptureFixture, *snapshots: Any) -> list[str]:
    """Return what a watch logs for these snapshots, for a guess of 2.3."""
    seen: list[Any] = []
    watch = GuessWatch(2.3, seen.append)
    with caplog.at_level(logging.WARNING):
        for snapshot in snapshots:
            watch.tick(snapshot)
    assert seen == list(snapshots)
    return [record.getMessage() for record in caplog.records]


def test_the_guess_knows_the_shares_of_the_classes() -> None:
    labels = np.eye(3)[[0, 0, 1, 1]]
    assert guess_of(labels) == pytest.approx(math.log(2))
    assert guess_of(np.array([[2.0], [5.0]])) == math.inf, "numbers of classes in one column"


def test_a_score_of_guessing_is_said_once_after_a_tenth_of_the_rounds(caplog: pytest.LogCaptureFixture) -> None:
    found = warnings_of(caplog, status(0, None), status(9, 2.4), status(12, 2.29), status(40, 2.29))
    assert found == [
        "after round 12 of 100 the score is 2.29, that of guessing is 2.3: if it stays there, try another "
        "--learning-rate, --updater, --model or --seed"
    ]


@pytest.mark.parametrize("score", [1.0, None, math.nan])
def test_a_run_that_learns_or_has_no_score_is_not_warned_of(score: float | None, caplog: Any) -> None:
    assert not warnings_of(caplog, status(12, score), status(40, 2.4))


def test_a_run_that_is_nearly_over_when_it_is_first_seen_is_left_to_its_report(caplog: Any) -> None:
    assert not warnings_of(caplog, status(1, 2.4), status(60, 2.4))
