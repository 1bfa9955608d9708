"""EASGD is its formulas."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.errors import WireError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout.state.aggregate import aggregate
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.strategies import create_router

KERNELS = load_kernels("numpy")
SLOTS = 4


def test_replicas_and_centre_are_those_of_the_formulas() -> None:
    """x <- x' - a (x' - c) and c <- c + a sum (x' - c) in float64, where each x' is what training made of x."""
    strategy, rng = create_router("easgd", {"beta": 0.8}, jobs_per_round=SLOTS), np.random.default_rng(2)
    centre = rng.normal(size=30)
    replicas, steps = [centre] * SLOTS, np.zeros(30, np.float32)
    model, states = Result({}, {"params": np.float32(centre), "updater_state": steps}), [None] * SLOTS
    for round_ in range(5):
        frames = []
        for slot in range(SLOTS):
            begins, gradient = strategy.memory.replica(model, states[slot]), rng.normal(size=30)
            np.testing.assert_allclose(begins.arrays["params"], replicas[slot], rtol=0, atol=1e-5)
            assert begins.arrays["updater_state"].tolist() == [float(round_ * (slot + 1))] * 30
            trained = {
                "params": begins.arrays["params"] - np.float32(gradient),
                "updater_state": begins.arrays["updater_state"] + np.float32(slot + 1),
            }
            update, states[slot] = strategy.memory.settle(
                model, states[slot], Result({"examples": 1}, trained), KERNELS
            )
            replicas[slot] = replicas[slot] - gradient
            frames.append(bytes(update.encode()))
        frame, _ = aggregate(strategy.fold(KERNELS), model.encode(), frames, version=round_, ends_phase=False)
        model = Result.decode(bytes(frame))
        differences = [0.8 / SLOTS * (replica - centre) for replica in replicas]
        replicas = [replica - difference for replica, difference in zip(replicas, differences, strict=True)]
        centre = centre + np.sum(differences, axis=0)
        np.testing.assert_allclose(model.arrays["params"], centre, rtol=0, atol=1e-5)


def test_updates_of_another_shape_do_not_reach_the_model() -> None:
    fold = create_router("easgd", jobs_per_round=SLOTS).fold(KERNELS)
    model = Result({}, {"params": np.zeros(3, np.float32), "updater_state": np.zeros(3, np.float32)}).encode()
    fold.check(Result({}, {"difference": np.ones(3, np.float32)}).encode(), model)
    for name, array in (("difference", np.ones(4, np.float32)), ("difference", np.ones(3)), ("params", np.ones(3))):
        with pytest.raises(WireError, match=r"it must have a difference of float32 \[3\]"):
            fold.check(Result({}, {name: array}).encode(), model)
