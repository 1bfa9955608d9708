"""Steps of the updaters that other libraries were seen to take: ND4J's 0.9.1 and 1.0.0-M2.1, and PyTorch's.

How they were recorded stands in tests/data/dl4j/README.md and tests/data/torch_updaters.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dl4jlegacy.kernels import load
from dl4jlegacy.nn.optimization.schedules import (
    ExponentialSchedule,
    InverseSchedule,
    MapSchedule,
    Schedule,
    SigmoidSchedule,
    StepSchedule,
)
from dl4jlegacy.nn.optimization.updaters import (
    AdaDelta,
    AdaGrad,
    Adam,
    AdaMax,
    AMSGrad,
    Nadam,
    Nesterovs,
    NoOp,
    RmsProp,
    Sgd,
    Updater,
)

DATA = Path(__file__).parent.parent / "data"
KERNELS = [load("numpy"), load("numba")]
UPDATERS: dict[str, Updater] = {
    "Sgd": Sgd(learning_rate=0.1),
    "Nesterovs": Nesterovs(learning_rate=0.1, momentum=0.8),
    "AdaGrad": AdaGrad(learning_rate=0.1),
    "AdaGrad epsilon": AdaGrad(learning_rate=0.1, epsilon=0.01),
    "RmsProp": RmsProp(learning_rate=0.1),
    "RmsProp epsilon": RmsProp(learning_rate=0.1, decay=0.9, epsilon=0.01),
    "Adam": Adam(learning_rate=0.1),
    "AdaMax": AdaMax(learning_rate=0.1),
    "Nadam": Nadam(learning_rate=0.1),
    "AdaDelta": AdaDelta(),
    "NoOp": NoOp(),
    "AMSGrad": AMSGrad(learning_rate=0.1),
}
SCHEDULES: dict[str, Schedule] = {
    "ExponentialSchedule": ExponentialSchedule(gamma=0.9),
    "InverseSchedule": InverseSchedule(gamma=0.5, power=2.0),
    "StepSchedule": StepSchedule(decay_rate=0.5, steps=3),
    "SigmoidSchedule": SigmoidSchedule(gamma=-0.5, steps=4),
    "MapSchedule": MapSchedule(values={3: 0.05, 6: 0.2}),
}


def recorded(file: str, version: str) -> Iterator[Any]:
    for name, steps in json.loads((DATA / file).read_text()).items():
        updater = updater_of(name)
        if version == "m21" and isinstance(updater, Adam | AdaMax | Nadam | AMSGrad):
            # It has the betas in float32: 1 - beta2 is 1.3e-5 less than 0.001 then. With those the steps are the same.
            betas = {field: float(np.float32(getattr(updater, field))) for field in ("beta1", "beta2")}
            updater = msgspec.structs.replace(updater, **betas)
        yield pytest.param(updater, name.endswith(".zip"), steps, id=f"{version}-{name}")


def updater_of(name: str) -> Updater:
    """Return the updater of a recorded name: with a schedule, or of the model file whose state it goes on with."""
    if name.endswith(".zip"):
        kind = "adagrad" if name.startswith("dbn") else name.split("_")[1]
        return next(each for known, each in UPDATERS.items() if known.lower() == kind)
    *known, schedule = name.split(" ")
    if schedule not in SCHEDULES:
        return UPDATERS[name]
    return msgspec.structs.replace(UPDATERS[" ".join(known)], schedule=SCHEDULES[schedule])


def gradient(t: int, n: int) -> np.ndarray:
    return np.array([10.0 ** -(i % 6) * math.cos(1.7 * t + i) for i in range(n)], np.float32)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
@pytest.mark.parametrize(
    ("updater", "goes_on", "found"),
    [*recorded("dl4j/updater_steps_091.json", "091"), *recorded("dl4j/updater_steps_m21.json", "m21")],
)
def test_ten_steps_are_those_of_nd4j_from_a_new_state_and_from_a_file(updater, goes_on, found, kernels):
    n = len(found["steps"][0])
    state = np.full(updater.state_size(n), updater.begins_at, np.float32)
    if goes_on:
        state[:] = found["begin"]
    np.testing.assert_array_equal(state, np.array(found["begin"], np.float32))
    for t, wanted in enumerate(found["steps"]):
        params = np.zeros(n, np.float32)
        updater.apply(params, gradient(t, n), state, t, kernels)
        np.testing.assert_allclose(-params, np.array(wanted), rtol=5e-7, atol=5e-7, err_msg=f"step {t}")
    np.testing.assert_allclose(state, np.array(found["end"]), rtol=3e-6, atol=5e-7)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
@pytest.mark.parametrize(("name", "found"), json.loads((DATA / "torch_updater_steps.json").read_text()).items())
def test_ten_steps_are_those_of_torch_where_it_has_the_same_formula(name, found, kernels):
    updater, n = UPDATERS[name], len(found["steps"][0])
    state = np.full(updater.state_size(n), updater.begins_at, np.float32)
    for t, wanted in enumerate(found["steps"]):
        params = np.zeros(n, np.float32)
        updater.apply(params, gradient(t, n), state, t, kernels)
        np.testing.assert_allclose(-params, np.array(wanted), rtol=1e-6, atol=1e-6, err_msg=f"step {t}")
