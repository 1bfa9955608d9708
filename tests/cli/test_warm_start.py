"""``--warm-start`` and ``--warm-start-jobs`` are fields of the Conf, checked like all others."""

from __future__ import annotations

from typing import Any

import pytest

TRAIN = ("train", "--model", "mlp", "--dataset", "digits", "--jobs-per-round", "2", "--no-validation")


def test_a_run_takes_them(dl4j: Any) -> None:
    """An epoch has 45 batches: the first 23 one by one, and then 11 rounds of two."""
    report = dl4j.json(*TRAIN, "--epochs", "1", "--batch-size", "32", "--warm-start", "0.5")
    assert report["batches"] == 45 and report["rounds"] == 23 + 11


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (("--warm-start", "1.5"), 3, "Conf.warm_start is 1.5; it must be a fraction of an epoch, from 0 to 1"),
        (("--warm-start", "nan"), 2, "--warm-start is 'nan'; it must be a number, not negative"),
        (("--warm-start", "0.5", "--warm-start-jobs", "3"), 3, "warm_start_jobs is 3; it must be from 1 to"),
        (("--warm-start-jobs", "0"), 2, "--warm-start-jobs is '0'"),
        (("--router", "ssp", "--router-args", '{"bound": -1}'), 3, "Conf.router_args of ssp: bound is -1"),
    ],
)
def test_what_means_nothing_is_refused(dl4j: Any, flags: tuple[str, ...], status: int, words: str) -> None:
    assert words in dl4j(*TRAIN, *flags, fails=status)
