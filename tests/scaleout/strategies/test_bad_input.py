"""What no strategy takes: options that mean nothing, and updates that fit no model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dl4jlegacy import Conf
from dl4jlegacy.errors import ConfError, WireError
from dl4jlegacy.scaleout.state.aggregate import check_update
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.strategies import STRATEGIES, create_router
from tests.support.strategy_runs import conf_of, train

NAN, INF = float("nan"), float("inf")
MODEL = Result({}, {"params": np.zeros(3, np.float32), "updater_state": np.zeros(2, np.float32)}).encode()


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_an_option_that_there_is_not_is_named_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfError, match=f"Conf.router_args of {name} has 'no_such'(; it|; known|; there|; did|; use)?"):
        create_router(name, {"no_such": 1})


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("gradient-sharing", {"tau": NAN}, "tau is nan; it must be a number between 2\\^-100 and 2\\^100"),
        ("gradient-sharing", {"tau": -INF}, "tau is -inf; it must be a number between"),
        ("gradient-sharing", {"sparsity": NAN}, "sparsity is nan; it must be more than 0 and less than 1/16"),
        ("gradient-sharing", {"decay": NAN}, "decay is nan; it must be at least 0.5 and less than 1"),
        ("gradient-sharing", {"clip": NAN}, "clip is nan; it must be 0, or 1 or more and finite"),
        ("gradient-sharing", {"clip": -1}, "clip is -1.0; it must be 0, or 1 or more and finite"),
        ("gradient-sharing", {"state_every": 0}, "state_every is 0; it must be at least 1"),
        ("gradient-sharing", {"state_every": -3}, "state_every is -3; it must be at least 1"),
        ("easgd", {"beta": 0}, "beta is 0.0; it must be more than 0 and at most 1"),
        ("easgd", {"beta": 1.5}, "beta is 1.5; it must be more than 0 and at most 1"),
        ("easgd", {"beta": NAN}, "beta is nan; it must be more than 0 and at most 1"),
        ("bmuf", {"block_momentum": NAN}, "block_momentum is nan; it must be 0 or more and less than 1"),
        ("bmuf", {"block_rate": INF}, "block_rate is inf; it must be more than 0, and finite"),
        ("ssp", {"bound": -1}, "bound is -1; it must not be negative"),
        ("ssp", {"bound": "two"}, "Expected `int`, got `str` - at `\\$.bound`"),
    ],
)
def test_values_that_mean_nothing_are_named_with_what_is_allowed(name: str, args: dict, words: str) -> None:
    with pytest.raises(ConfError, match=f"Conf.router_args of {name}: {words}"):
        create_router(name, args)


@pytest.mark.parametrize(("name", "args"), [("ssp", {"bound": -1}), ("gradient-sharing", {"tau": 0})])
def test_a_run_is_refused_before_it_begins(name: str, args: dict) -> None:
    with pytest.raises(ConfError, match=f"Conf.router_args of {name}: {next(iter(args))} is"):
        train(conf_of(name, args))


def test_numbers_that_no_json_has_reach_no_strategy() -> None:
    with pytest.raises(ConfError, match=r"Conf\.router_args cannot travel as JSON"):
        Conf(router="gradient-sharing", router_args={"tau": NAN})
    with pytest.raises(ConfError):
        Conf.from_json('{"router_args": ' + json.dumps({"tau": NAN}) + "}")


def update(values: dict, dtype: type = np.float32, **arrays) -> bytes:
    whole = {"examples": 4, "score": 0.5, "version": 1, **values}
    return bytes(Result(whole, {name: np.zeros(size, dtype) for name, size in arrays.items()}).encode())


@pytest.mark.parametrize(
    ("frame", "kind", "words"),
    [
        (b"no frame", "params", "."),
        (update({}, params=6), "params", r"its params has the form float32 \[6\], and that of the model float32 \[3\]"),
        (update({}, delta=6), "delta", r"its delta has the form float32 \[6\], and that of the model float32 \[3\]"),
        (update({}, params=3, updater_state=3), "params", r"its updater_state has the form float32 \[3\]"),
        (update({}, dtype=np.float64, params=3), "params", r"float64 \[3\], and that of the model float32 \[3\]"),
        (update({}, updater_state=2), "params", r"it has the arrays \['updater_state'\], and no params"),
        (update({}, params=3), "delta", r"it has the arrays \['params'\], and no delta"),
        (update({"version": "7"}, delta=3), "delta", "it says that it began with version '7'"),
        (update({"examples": None}, params=3), "params", "it has the score 0.5 of None examples"),
        (update({"score": "good"}, params=3), "params", "it has the score 'good' of 4 examples"),
    ],
)
def test_what_cannot_be_folded_is_refused(frame: bytes, kind: str, words: str) -> None:
    with pytest.raises(WireError, match=words):
        check_update(frame, MODEL, kind)


def test_what_can_be_folded_is_not() -> None:
    check_update(update({}, params=3, updater_state=2), MODEL, "params")
    check_update(update({"score": None, "examples": None}, delta=3), MODEL, "delta")
    check_update(update({}), Result({"value": 1}).encode(), "params")  # jobs that train no network
    check_update(update({}, regressions=9), MODEL)  # of a run that evaluates a model
