"""``--warm-start`` and ``--warm-start-jobs`` are fields of the Conf, checked like all others."""

from __future__ import annotations

import json

import pytest

from dl4jlegacy.cli.main import main
from dl4jlegacy.cli.options.read import TrainOptions

TRAIN = ("train", "--model", "mlp", "--dataset", "digits", "--workers", "2", "--format", "json")


def status_of(*arguments: str) -> int:
    """Return the exit status of ``dl4j`` with these arguments."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(left.value.code or 0)


def test_the_flags_set_their_fields() -> None:
    conf, _ = TrainOptions(warm_start=0.25, warm_start_jobs=3).read_conf()
    assert (conf.warm_start, conf.warm_start_jobs) == (0.25, 3)


def test_a_run_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    """An epoch has 45 batches: the first 23 one by one, and then 11 rounds of two."""
    assert status_of(*TRAIN, "--epochs", "1", "--batch-size", "32", "--warm-start", "0.5") == 0
    report = json.loads(capsys.readouterr().out)
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
def test_what_means_nothing_is_refused(
    flags: tuple[str, ...], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*TRAIN, *flags) == status
    assert words in capsys.readouterr().err
