"""A warm start: few workers have something to do at first, and the bits are the same for any number of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from dl4jlegacy import Conf
from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.persistence.history import HistoryFile
from dl4jlegacy.scaleout.state.records import account
from dl4jlegacy.storage.folders import LocalFolder
from tests.support.strategy_runs import Copies, bits, conf_of, train

ARGS = {"gradient-sharing": {"tau": 2e-3, "state_every": 3}, "easgd": {"beta": 0.7}}
SYNCHRONOUS = ["iterative-reduce", "bmuf", "easgd", "gradient-sharing"]
WARM = {"warm_start": 0.5, "warm_start_jobs": 2}


def conf(router: str, **fields) -> Conf:
    return conf_of(router, ARGS.get(router), epochs=3, **{**WARM, **fields})


@pytest.mark.parametrize("router", SYNCHRONOUS)
@pytest.mark.everyday(1)
def test_the_bits_do_not_depend_on_the_number_of_workers_and_differ_from_those_without(router: str) -> None:
    ends = {bits(train(conf(router, workers=workers))) for workers in (1, 3, 8)}
    assert len(ends) == 1
    assert ends != {bits(train(conf(router, warm_start=0.0)))}


@pytest.mark.parametrize("router", ["iterative-reduce", "gradient-sharing"])
def test_a_run_that_is_resumed_behind_its_warm_start_comes_to_the_same_end(
    router: str, tmp_path: Path, unhurried: None
) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    wanted = conf(router, workers=2, checkpoint_dir=str(run), checkpoint_every=2)
    whole = train(wanted, saver=Copies(run, kept))
    assert bits(train(wanted.replace(checkpoint_dir=str(kept), workers=3), resume=True)) == bits(whole)


@pytest.mark.parametrize("router", ["iterative-reduce", "hogwild", "ssp"])
def test_so_many_jobs_are_done_at_a_time(router: str, tmp_path: Path) -> None:
    """One at first, whatever workers there are: then no update is stale, unless two rounds are open at a time.

    Then while one of two open jobs is done, the other may be folded, and the next three that open one after the other:
    none is further than four jobs from the first that is not folded. The last job of the epoch is left out, since jobs
    of the next one, with wider rounds, may be folded before it.
    """
    wanted = conf_of(router, epochs=2, workers=4, warm_start=1.0, warm_start_jobs=1, checkpoint_dir=str(tmp_path))
    result = train(wanted)
    assert account(result.head, result.plan) == (0, 0)
    first = [entry for entry in HistoryFile(LocalFolder(tmp_path)).read() if entry.batches < result.plan.batches]
    steps = [after - before for before, after in pairwise([0, *(entry.batches for entry in first)])]
    assert max(steps) <= (2 if router == "hogwild" else 1)
    assert sum(steps) >= result.plan.batches - (2 if router == "hogwild" else 1)
    assert max(entry.staleness for entry in first) <= (0 if router != "hogwild" else 4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"warm_start": -0.1}, "Conf.warm_start is -0.1; it must be a fraction of an epoch, from 0 to 1"),
        ({"warm_start": 1.5}, "Conf.warm_start is 1.5; it must be a fraction of an epoch, from 0 to 1"),
        ({"warm_start": float("nan")}, "Conf.warm_start is nan; it must be a fraction of an epoch, from 0 to 1"),
        ({"warm_start": 0.5, "warm_start_jobs": 0}, "Conf.warm_start_jobs is 0; it must be at least 1"),
    ],
)
def test_values_that_mean_nothing_are_refused(fields: dict, words: str) -> None:
    with pytest.raises(ConfError, match=words):
        Conf(**fields)


def test_more_jobs_than_a_round_has_are_refused() -> None:
    with pytest.raises(ConfError, match="warm_start_jobs is 5; it must be from 1 to jobs_per_round, 4"):
        train(conf("iterative-reduce", warm_start_jobs=5))


def test_a_run_without_one_is_the_run_that_it_was() -> None:
    """Or no run that an older version began could go on."""
    plain = conf_of("iterative-reduce")
    assert plain.digest() == plain.replace(warm_start_jobs=3).digest()
    assert (
        len({plain.digest(), conf("iterative-reduce").digest(), conf("iterative-reduce", warm_start=0.4).digest()}) == 3
    )
