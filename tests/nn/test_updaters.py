"""Updaters against their formulas written out in plain floats, and schedules against theirs."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.optimization.schedules import (
    CosineSchedule,
    ExponentialSchedule,
    InverseSchedule,
    LinearSchedule,
    MapSchedule,
    PolySchedule,
    Schedule,
    SigmoidSchedule,
    StepSchedule,
    TorchStepSchedule,
)
from dl4jlegacy.nn.optimization.updaters import (
    UPDATERS,
    AdaDelta,
    Adam,
    AdamW,
    AMSGrad,
    Nesterovs,
    NoOp,
    Sgd,
    Updater,
    create_updater,
    with_learning_rate,
)

N, STEPS, LR = 5, 10, 0.05
KERNELS = load("numpy")

# step(g, s, t) -> up, with s a dict of float state that begins at the updater's begins_at
Step = Callable[[float, dict[str, float], int], float]


def _moments(g: float, s: dict[str, float]) -> None:
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["v"] = 0.999 * s["v"] + 0.001 * g * g


def _alpha(t: int) -> float:
    return LR * math.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.9 ** (t + 1))


def sgd(g: float, s: dict[str, float], t: int) -> float:
    return LR * g


def none(g: float, s: dict[str, float], t: int) -> float:
    return g


def nesterovs(g: float, s: dict[str, float], t: int) -> float:
    before = s["v"]
    s["v"] = 0.9 * before - LR * g
    return 0.9 * before - 1.9 * s["v"]


def adagrad(g: float, s: dict[str, float], t: int) -> float:
    s["h"] += g * g
    return LR * g / (math.sqrt(s["h"]) + 1e-6)


def rmsprop(g: float, s: dict[str, float], t: int) -> float:
    s["c"] = 0.95 * s["c"] + 0.05 * g * g
    return LR * g / (math.sqrt(s["c"]) + 1e-8)


def adam(g: float, s: dict[str, float], t: int) -> float:
    _moments(g, s)
    return _alpha(t) * s["m"] / (math.sqrt(s["v"]) + 1e-8)


def adamax(g: float, s: dict[str, float], t: int) -> float:
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["u"] = max(0.999 * s["u"], abs(g)) + 1e-32
    return LR / (1 - 0.9 ** (t + 1)) * s["m"] / s["u"]


def adadelta(g: float, s: dict[str, float], t: int) -> float:
    s["msg"] = 0.95 * s["msg"] + 0.05 * g * g
    up = g * math.sqrt(s["msdx"] + 1e-6) / math.sqrt(s["msg"] + 1e-6)
    s["msdx"] = 0.95 * s["msdx"] + 0.05 * up * up
    return up


def nadam(g: float, s: dict[str, float], t: int) -> float:
    _moments(g, s)
    return LR * ((0.9 * s["m"] + 0.1 * g) / (1 - 0.9 ** (t + 1))) / (math.sqrt(s["v"]) + 1e-8)


def amsgrad(g: float, s: dict[str, float], t: int) -> float:
    _moments(g, s)
    s["v_hat"] = max(s["v_hat"], s["v"])
    return _alpha(t) * s["m"] / (math.sqrt(s["v_hat"]) + 1e-8)


def adabelief(g: float, s: dict[str, float], t: int) -> float:
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["s"] = 0.999 * s["s"] + 0.001 * (g - s["m"]) ** 2 + 1e-14
    return _alpha(t) * s["m"] / (math.sqrt(s["s"]) + 1e-14)


FORMULAS: dict[str, tuple[Step, tuple[str, ...]]] = {
    "sgd": (sgd, ()),
    "none": (none, ()),
    "nesterovs": (nesterovs, ("v",)),
    "adagrad": (adagrad, ("h",)),
    "rmsprop": (rmsprop, ("c",)),
    "adam": (adam, ("m", "v")),
    "adamw": (adam, ("m", "v")),  # its decay, which depends on the kind of parameter: test_multilayer_updater.py
    "adamax": (adamax, ("m", "u")),
    "adadelta": (adadelta, ("msg", "msdx")),
    "nadam": (nadam, ("m", "v")),
    "amsgrad": (amsgrad, ("m", "v", "v_hat")),
    "adabelief": (adabelief, ("m", "s")),
}


@pytest.mark.parametrize("name", sorted(UPDATERS))
def test_ten_steps_follow_the_formula_and_keep_the_state_in_its_order(name):
    step, state_names = FORMULAS[name]
    updater = create_updater(name, LR)
    gradients = np.random.default_rng(4).normal(size=(STEPS, N))
    params, state = np.linspace(-1, 1, N), np.full(updater.state_size(N), updater.begins_at)
    wanted = [float(p) for p in params]
    own = [dict.fromkeys(state_names, updater.begins_at) for _ in range(N)]
    for t in range(STEPS):
        updater.apply(params, gradients[t].copy(), state, t, KERNELS)
        wanted = [p - step(float(g), s, t) for p, g, s in zip(wanted, gradients[t], own, strict=True)]
        np.testing.assert_allclose(params, wanted, rtol=1e-10, atol=1e-12)
    flat = [own[i][key] for key in state_names for i in range(N)]
    np.testing.assert_allclose(state, flat, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("name", sorted(UPDATERS))
def test_float32_blocks_stay_float32_and_close_to_float64(name):
    updater = create_updater(name)
    gradient = np.random.default_rng(4).normal(size=N)
    results = []
    for dtype in (np.float32, np.float64):
        params, state = np.linspace(-1, 1, N).astype(dtype), np.zeros(updater.state_size(N), dtype)
        for t in range(3):
            updater.apply(params, gradient.astype(dtype), state, t, KERNELS)
        assert params.dtype == dtype
        results.append(params)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", sorted(UPDATERS))
def test_updaters_survive_json_under_their_legacy_names(name):
    updater = create_updater(name)
    text = msgspec.json.encode(updater)
    assert f'"type":"{type(updater).__name__}"'.encode() in text
    assert msgspec.json.decode(text, type=Updater) == updater


def test_the_defaults_are_those_of_dl4j():
    rates = {n: getattr(create_updater(n), "learning_rate", None) for n in UPDATERS}
    assert rates == {
        "sgd": 1e-3, "nesterovs": 0.1, "adagrad": 0.1, "rmsprop": 0.1, "adam": 1e-3, "adamax": 1e-3, "adadelta": None,
        "adamw": 1e-3, "nadam": 1e-3, "amsgrad": 1e-3, "adabelief": 1e-3, "none": None,
    }  # fmt: skip
    assert AMSGrad().state_size(7) == 21
    assert Sgd().state_size(7) == 0


def test_state_of_the_wrong_size_is_refused_naming_the_sizes():
    with pytest.raises(ShapeError, match=r"Adam: 5 parameters need 5 gradients and 10 elements of state, got 5 and 5"):
        Adam().apply(np.zeros(5), np.zeros(5), np.zeros(5), 0, KERNELS)


def test_the_schedule_sets_the_rate_of_a_step():
    updater = Sgd(learning_rate=1.0, schedule=StepSchedule(decay_rate=0.5, steps=2))
    params = np.zeros(1)
    for t in range(4):
        updater.apply(params, np.ones(1), np.zeros(0), t, KERNELS)
    assert params[0] == -(1 + 1 + 0.5 + 0.5)


def test_momentum_changes_at_the_iteration_that_momentum_after_names():
    updater = Nesterovs(learning_rate=1.0, momentum=0.5, momentum_after={1: 0.0})
    params, v = np.zeros(1), np.zeros(1)
    updater.apply(params, np.ones(1), v, 0, KERNELS)
    assert params[0] == -1.5
    updater.apply(params, np.ones(1), v, 1, KERNELS)
    assert params[0] == -2.5


SCHEDULES: list[tuple[Schedule, list[float]]] = [  # rate from base 0.8 at iterations 0, 1, 2, 3, 6
    (ExponentialSchedule(gamma=0.5), [0.8, 0.4, 0.2, 0.1, 0.0125]),
    (InverseSchedule(gamma=1.0, power=2.0), [0.8, 0.2, 0.8 / 9, 0.05, 0.8 / 49]),
    (StepSchedule(decay_rate=0.5, steps=3), [0.8, 0.8, 0.8, 0.4, 0.2]),
    (TorchStepSchedule(decay_rate=0.5, steps=3), [0.8, 0.8, 0.8, 0.4, 0.2]),
    (TorchStepSchedule(decay_rate=0.5, steps=1), [0.8, 0.8, 0.4, 0.2, 0.025]),
    (PolySchedule(max_iterations=4, power=2.0), [0.8, 0.45, 0.2, 0.05, 0.0]),
    (SigmoidSchedule(gamma=-1.0, steps=3), [0.8 / (1 + math.exp(t - 3)) for t in (0, 1, 2, 3, 6)]),
    (MapSchedule(values={3: 0.1, 2: 0.3}), [0.8, 0.8, 0.3, 0.1, 0.1]),
    (LinearSchedule(iterations=8), [0.8, 0.7, 0.6, 0.5, 0.2]),
    (LinearSchedule(iterations=8, warm_up=0.25), [0.8 / 3, 1.6 / 3, 0.8, 0.8 * 5 / 6, 0.8 / 3]),
    (LinearSchedule(iterations=4, first_iteration=2), [0.8, 0.8, 0.8, 0.6, 0.8]),
    (LinearSchedule(), [0.8] * 5),
    (CosineSchedule(iterations=8), [0.4 * (1 + math.cos(math.pi * t / 8)) for t in (0, 1, 2, 3, 6)]),
    (
        CosineSchedule(iterations=8, warm_up=0.26),
        [0.8 / 3, 1.6 / 3, *(0.4 * (1 + math.cos(math.pi * t / 6)) for t in (0, 1, 4))],
    ),
]


@pytest.mark.parametrize(("schedule", "rates"), SCHEDULES)
def test_schedules_give_the_rate_from_the_base_and_the_iteration_alone(schedule, rates):
    np.testing.assert_allclose([schedule.value(0.8, t) for t in (0, 1, 2, 3, 6)], rates, rtol=1e-12)
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule) == schedule


def test_the_sigmoid_schedule_does_not_overflow_far_from_its_middle():
    assert SigmoidSchedule(gamma=-1.0, steps=10).value(1.0, 100_000) < 1e-300


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sgd(learning_rate=-0.1),
        lambda: Sgd(learning_rate=math.nan),
        lambda: Adam(beta1=1.0),
        lambda: AdaDelta(rho=2.0),
        lambda: StepSchedule(decay_rate=0.5, steps=0),
        lambda: PolySchedule(max_iterations=0),
        lambda: MapSchedule(values={-1: 0.5}),
        lambda: LinearSchedule(warm_up=1.0),
        lambda: CosineSchedule(iterations=-1),
        lambda: AdamW(weight_decay=-0.1),
        lambda: Nesterovs(momentum_after={0: math.nan}),
    ],
)
def test_impossible_hyperparameters_are_refused_by_name(make):
    with pytest.raises(ConfError, match=r"(Sgd|AdamW?|AdaDelta|Schedule|values|momentum_after): \S+ "):
        make()


def test_updaters_are_found_by_name_whatever_the_case_and_take_a_rate_if_they_have_one():
    assert create_updater("Adam", 0.5) == Adam(learning_rate=0.5)
    assert create_updater("none", 0.5) == NoOp()
    with pytest.raises(ConfError, match=r"the learning rate is .*, and AdaDelta has none; leave it out"):
        with_learning_rate(AdaDelta(), 0.5)
    assert with_learning_rate(Sgd(learning_rate=0.2), None) == Sgd(learning_rate=0.2)
    with pytest.raises(ConfError, match="unknown updater 'adgrad'; did you mean 'adagrad'"):
        create_updater("adgrad")
