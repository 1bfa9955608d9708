"""Every option of every strategy and updater changes something, or is refused: none is lost in silence."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from dl4jlegacy import ActorNetworkRunner, CollectingAggregator, CollectionJobIterator, Conf, Result
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.optimization.schedules import ExponentialSchedule
from dl4jlegacy.nn.optimization.updaters import UPDATERS, AdaMax
from dl4jlegacy.scaleout.state.records import advance
from dl4jlegacy.scaleout.strategies import STRATEGIES, WorkRouter, check_own_aggregator, create_router, router_of
from dl4jlegacy.scaleout.workers.plugins import find_router
from dl4jlegacy.training.network_options import NetworkOptions
from dl4jlegacy.training.prepare import with_network
from dl4jlegacy.training.run_data import load_data
from tests.support.strategy_runs import BEGINNING, PLAN, SLOTS

RUN = {"window": 3, "weighted_average": False}
"""Options that are fields of the Conf."""
VALUES: dict[str, Any] = {
    "parameter_servers": 3,
    "aggregation_depth": 2,
    "block_momentum": 0.2,
    "block_rate": 0.5,
    "nesterov": False,
    "beta": 0.3,
    "asynchronous": True,
    "bound": 0,
    "threshold": "target-sparsity",
    "tau": 0.01,
    "least_sparsity": 0.008,
    "most_sparsity": 0.001,
    "sparsity": 0.05,
    "decay": 0.6,
    "clip": 1.0,
    "clip_every": 1,
    "average": True,
    "state_every": 7,
    "n": 2,
    "rate": "constant",
}
OF_THRESHOLDS = ("least_sparsity", "most_sparsity", "sparsity", "decay")
BESIDE: dict[str, list[tuple[dict[str, Any], tuple[str, ...]]]] = {
    "gradient-sharing": [
        *(({"threshold": name}, OF_THRESHOLDS) for name in ("adaptive", "fixed", "target-sparsity")),
        ({"clip": 0}, ("clip_every",)),
        ({"asynchronous": True}, ("bound", "state_every", "average")),
    ],
    "easgd": [({"asynchronous": True}, ("bound", "beta"))],
    "bmuf": [({"block_momentum": 0}, ("nesterov", "block_rate"))],
}
"""What makes others of a strategy's options count, or not, and which."""


def decides(name: str, args: dict[str, Any], run: dict[str, Any]) -> list[Any]:
    """Return what a strategy decides: the slots that it opens and folds, messages, states, models, who folds."""
    router: Any = create_router(name, args, jobs_per_round=SLOTS, **run)
    said = [getattr(router, attribute, None) for attribute in ("slices", "log_every", "binds_model")]
    weight = router.weight(5) if hasattr(router, "weight") else None
    return [*said, weight, _schedule(router), _models(router)]


def _schedule(router: WorkRouter) -> list[Any]:
    """Let the jobs of a plan be done in some order, of which one slot's are slow."""
    head, order, done, seen = BEGINNING, random.Random(1), set[int](), list[Any]()
    while head.round < PLAN.total_rounds:
        chosen_by = router_of(router, PLAN, head.round)
        opened = chosen_by.open_slots(PLAN, head)
        left = sorted(set(opened) - done, key=lambda number: (PLAN.at(number)[1] == 2, order.random()))
        while not (folded := list(chosen_by.send_work(opened, done))):
            done.add(left.pop(0))
        seen.append((tuple(opened), tuple(folded)))
        head, done = advance(head, PLAN, folded), done - set(folded)
    return seen


def _models(router: Any) -> list[bytes]:
    """Fold eight rounds of updates, which began four versions before, and return all frames on the way."""
    kernels, rng = load("numpy"), np.random.default_rng(3)
    arrays = {"params": np.linspace(-1, 1, 2000, dtype=np.float32), "updater_state": np.zeros(2000, np.float32)}
    frame, states, frames = Result({"score": None}, arrays).encode(), [None] * SLOTS, list[bytes]()
    for round_ in range(8):
        model, updates, examples = Result.decode(frame), list[bytes](), [4, 4, 4, 1]
        for slot in range(SLOTS):
            change = (rng.normal(size=2000) ** 5 * (5e-7 if round_ < 4 else 5e-5)).astype(np.float32)
            share = {"delta": change} if router.update_kind == "delta" else {"params": model.arrays["params"] + change}
            values = {"examples": examples[slot], "score": 0.5, "version": round_}
            result = Result(values, {**share, "updater_state": change})
            if router.memory is not None:
                result, states[slot] = router.memory.settle(model, states[slot], result, kernels)
                states[slot] = Result.decode(states[slot].encode())
            updates.append(bytes(result.encode()))
        aggregation = router.fold(kernels).begin(frame, version=round_ + 4, examples=examples)
        aggregation.add(updates)
        frame = bytes(aggregation.finish(ends_phase=False)[0])
        frames += [*updates, frame]
    return frames


def options(name: str) -> list[str]:
    kind: Any = STRATEGIES[name]
    return [field.name for field in dataclasses.fields(kind) if field.name != "jobs_per_round"]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_option_of_a_strategy_changes_a_run_or_is_refused(name: str) -> None:
    effects: dict[str, set[str]] = {}
    for beside, others in [({}, (*VALUES, *RUN)), *BESIDE.get(name, [])]:
        usual = decides(name, beside, {})
        for option in others:
            args, run = ({}, {option: RUN[option]}) if option in RUN else ({option: VALUES[option]}, {})
            try:
                effect = "changed" if decides(name, {**beside, **args}, run) != usual else f"lost beside {beside}"
            except ConfError as exc:
                assert option in str(exc)
                effect = "refused"
            effects.setdefault(option, set()).add(effect)
    assert {option for option, found in effects.items() if "changed" in found} == set(options(name))
    assert [(option, found) for option, found in effects.items() if found - {"changed", "refused"}] == []


# -- an aggregator of one's own, which takes the place of the strategy's -----------------------------------------------
VOID = {
    "bmuf": ({"router": "bmuf"}, "Conf.router is 'bmuf', which is a way to fold them"),
    "bmuf's options": ({"router": "bmuf", "router_args": {"block_momentum": 0.5}}, "Conf.router is 'bmuf'"),
    "easgd": ({"router": "easgd"}, "Conf.router is 'easgd'"),
    "gradient-sharing": ({"router": "gradient-sharing"}, "Conf.router is 'gradient-sharing'"),
    **{
        f"{name}'s rate": ({"router": name, "router_args": {"rate": "constant"}}, "Conf.router_args has 'rate'")
        for name in ("hogwild", "softsync", "ssp")
    },
    "plain means": ({"weighted_average": False}, "Conf.weighted_average is false"),
    "servers": ({"router_args": {"parameter_servers": 2}}, "parameter_servers or aggregation_depth"),
}


def wordy(conf: Conf) -> Any:
    """Set a run up whose jobs are words, and whose aggregator is its own."""
    parts = {"aggregator": CollectingAggregator(lambda total, value: total), "first_model": Result({"value": {}})}
    jobs = CollectionJobIterator(["a b", "b"], jobs_per_round=2)
    with ActorNetworkRunner("master", jobs, performer=lambda conf, kernels: None, **parts) as runner:
        return runner.setup(conf)


@pytest.mark.parametrize("case", VOID)
def test_what_an_aggregator_of_ones_own_would_make_void_is_refused(case: str) -> None:
    fields, words = VOID[case]
    with pytest.raises(ConfError, match=f"{words}.* aggregator of its own"):
        wordy(Conf(**fields))


@pytest.mark.parametrize("router", ["iterative-reduce", "hogwild", "softsync", "ssp"])
def test_an_aggregator_of_ones_own_goes_with_the_order_of_others(router: str) -> None:
    assert wordy(Conf(router=router)).router == router


def test_an_aggregator_of_ones_own_is_refused_where_workers_fold_a_log() -> None:
    with pytest.raises(ConfError, match="whose workers fold a log of updates themselves"):
        check_own_aggregator(create_router("row-averaging"), "row-averaging", {})


@pytest.mark.parametrize("router", ["easgd", "gradient-sharing"])
def test_states_that_stay_in_their_slots_are_not_averaged(router: str) -> None:
    with pytest.raises(ConfError, match=f"with router {router} updater states stay in their slots"):
        find_router(Conf(router=router, average_updater_state=False))


# -- updaters ----------------------------------------------------------------------------------------------------------
ANY: dict[str, Any] = {
    "learning_rate": 0.02,
    "schedule": ExponentialSchedule(gamma=0.5),
    "momentum_after": {1: 0.2},
    **dict.fromkeys(("momentum", "decay", "beta1", "beta2", "rho"), 0.3),
    "epsilon": 0.01,
}


@pytest.mark.parametrize("name", UPDATERS)
def test_every_option_of_an_updater_changes_its_steps(name: str) -> None:
    def steps(updater: Any) -> bytes:
        params, rng = np.linspace(-1, 1, 8), np.random.default_rng(2)
        state = np.zeros(updater.state_size(8))
        for iteration in range(5):
            updater.apply(params, rng.normal(size=8), state, iteration, load("numpy"))
        return params.tobytes()

    kind = UPDATERS[name]
    options = [field for field in kind.__struct_fields__ if field != "weight_decay"]  # not a part of the step
    same = [field for field in options if steps(kind(**{field: ANY[field]})) == steps(kind())]
    assert same == (["epsilon"] if name == "adamax" else [])  # as in DL4J, whose files have it


def test_an_option_that_changes_no_step_is_refused() -> None:
    chosen = zoo.mlp(4, 3)
    network = chosen.replace(conf=chosen.conf.replace(updater=AdaMax(epsilon=0.1)))
    with pytest.raises(ConfError, match=r"AdaMax: epsilon is 0\.1, and has no part in its steps; leave it out"):
        with_network(Conf(multi_layer_conf=network), load_data("iris"), frozenset())


@pytest.mark.parametrize("name", UPDATERS)
def test_a_rate_that_dl4j_train_is_given_counts_or_is_refused(name: str) -> None:
    data, usual = load_data("iris"), Conf(model="mlp", dataset="iris")

    def trains(**given: Any) -> Any:
        return with_network(usual, data, frozenset(), NetworkOptions(updater=name, **given)).network_conf

    if name in ("adadelta", "none"):
        with pytest.raises(ConfError, match=r"the learning rate is 0\.5, and (AdaDelta|NoOp) has none"):
            trains(learning_rate=0.5)
    else:
        assert trains(learning_rate=0.5) != trains()
