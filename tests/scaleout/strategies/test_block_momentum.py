"""BMUF is its formulas, ends in the same bits for any number of workers, and survives whoever leads the run."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout.state.aggregate import aggregate
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.strategies import BlockMomentumWorkRouter, create_router
from dl4jlegacy.scaleout.strategies.block_momentum import BLOCK_STEP
from tests.support.strategy_runs import Copies, bits, conf_of, train

KERNELS = load_kernels("numpy")


def frame(params, **more) -> bytes:
    return bytes(Result({"examples": 3, "score": 0.5}, {"params": np.float32(params), **more}).encode())


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_models_are_those_of_the_formulas(nesterov: bool) -> None:
    """In float64, written with the global model and the one that workers begin with apart, as in the paper."""
    strategy = BlockMomentumWorkRouter(block_momentum=0.6, block_rate=0.9, nesterov=nesterov)
    rng = np.random.default_rng(2)
    whole, step = rng.normal(size=40), np.zeros(40)
    begins, model = whole, frame(whole)
    for round_ in range(6):
        ends = round_ in (3, 5)
        updates = [begins + rng.normal(size=40) for _ in range(3)]
        step = 0.6 * step + 0.9 * (np.mean(updates, axis=0) - begins)
        whole = whole + step
        begins = whole + 0.6 * step if nesterov and not ends else whole
        step = step * (not ends)
        made, score = aggregate(
            strategy.fold(KERNELS), model, [frame(each) for each in updates], version=round_, ends_phase=ends
        )
        model, arrays = bytes(made), Result.decode(made).arrays
        np.testing.assert_allclose(arrays["params"], begins, rtol=0, atol=2e-5)
        np.testing.assert_allclose(arrays[BLOCK_STEP], step, rtol=0, atol=2e-5)
        assert score == 0.5


def test_without_momentum_it_is_averaging() -> None:
    strategy = create_router("bmuf", {"block_momentum": 0.0})
    updates = [frame([1, 2]), frame([3, 6])]
    made, _ = aggregate(strategy.fold(KERNELS), frame([5, 5]), updates, version=0, ends_phase=False)
    assert Result.decode(made).arrays["params"].tolist() == [2, 4]


def test_the_usual_momentum_follows_from_the_jobs_of_a_round() -> None:
    assert create_router("bmuf", jobs_per_round=4).momentum == 0.75
    assert create_router("bmuf", {"block_momentum": 0.1}, jobs_per_round=4).momentum == 0.1


def conf(**fields):
    return conf_of("bmuf", {"block_momentum": 0.5}, **fields)


def test_the_answer_does_not_depend_on_the_number_of_workers() -> None:
    ends = {bits(train(conf(workers=workers))) for workers in (1, 2, 3, 8)}
    assert len(ends) == 1
    assert ends != {bits(train(conf_of("iterative-reduce")))}


def test_a_run_that_is_resumed_has_the_step_with_which_it_stopped(tmp_path, unhurried) -> None:
    run, kept = tmp_path / "run", tmp_path / "kept"
    wanted = conf(workers=2, checkpoint_dir=str(run), checkpoint_every=4)
    whole = train(wanted, saver=Copies(run, kept))
    resumed = train(wanted.replace(checkpoint_dir=str(kept), workers=3), resume=True)
    assert resumed.head.version == whole.head.version and bits(resumed) == bits(whole)
