"""Gradient sharing: nothing of an update is lost, messages are small, and what is no message is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.errors import ConfError, WireError
from dl4jlegacy.kernels import load as load_kernels
from dl4jlegacy.scaleout.state.aggregate import aggregate
from dl4jlegacy.scaleout.state.codec import unpack
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.strategies import create_router

SIZE = 400


def model_of(params) -> Result:
    return Result({}, {"params": np.float32(params), "updater_state": np.zeros(2, np.float32)})


def done(delta) -> Result:
    """What a performer makes of a job."""
    arrays = {"delta": np.float32(delta), "updater_state": np.float32([1, 2])}
    return Result({"version": 3, "examples": 5, "score": 0.5}, arrays)


def sent(update: Result, size: int = SIZE) -> np.ndarray:
    """What a message says, in float64."""
    values = update.values
    codes = unpack(values["format"], update.arrays["codes"], count=values["count"], size=size, tau=values["tau"])
    said = np.zeros(size)
    said[np.abs(codes) - 1] = np.sign(codes) * values["tau"]
    return said


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
@pytest.mark.parametrize("args", [{"threshold": "fixed", "tau": 0.3}, {"tau": 0.05}, {"threshold": "target-sparsity"}])
def test_message_and_residual_are_residual_and_update_exactly(kernels: str, args: dict) -> None:
    """In every job of a chain, as float32 and so as exact numbers: nothing is rounded away, nothing counts twice."""
    strategy, rng = create_router("gradient-sharing", {"clip": 0.0, **args}), np.random.default_rng(7)
    before, state, messages = np.zeros(SIZE, np.float32), None, 0
    for _ in range(30):
        delta = np.float32(rng.normal(size=SIZE) * rng.choice([1e-3, 0.1, 1.0], SIZE))
        update, state = strategy.memory.settle(model_of(np.zeros(SIZE)), state, done(delta), load_kernels(kernels))
        after = state.arrays["residual"]
        assert (sent(update) + after.astype(np.float64)).tolist() == (before + delta).astype(np.float64).tolist()
        assert state.arrays["updater_state"].tolist() == [1, 2]
        before, messages = after, messages + update.values["count"]
    assert messages > 30


def test_a_state_is_made_in_its_frame_with_the_bytes_of_any_other() -> None:
    strategy, state = create_router("gradient-sharing", {"tau": 0.05}), None
    for _ in range(3):
        _, state = strategy.memory.settle(model_of(np.zeros(SIZE)), state, done(np.ones(SIZE)), load_kernels("numpy"))
        frame = state.encode()
        assert np.shares_memory(np.frombuffer(frame, np.uint8), state.arrays["residual"])
        assert frame == Result(state.values, state.arrays).encode()
        state = Result.decode(frame)


def test_what_clipping_takes_is_told() -> None:
    strategy = create_router("gradient-sharing", {"threshold": "fixed", "tau": 0.5, "clip": 2.0, "clip_every": 2})
    state, taken = None, []
    for delta in ([4.0, -9.0, 0.25], [0, 0, 0], [0, 0, 0], [0, 0, 0]):
        update, state = strategy.memory.settle(model_of([0] * 3), state, done(delta), load_kernels("numpy"))
        taken.append((update.values["clipped"], state.arrays["residual"].tolist()))
    assert taken[:2] == [(0.0, [3.5, -8.5, 0.25]), (0.0, [3.0, -8.0, 0.25])]
    assert taken[2] == (1.5 + 6.5, [1.0, -1.0, 0.25])  # 2.5 and -7.5 were left, of which 1 may stay
    assert taken[3] == (0.0, [0.5, -0.5, 0.25])


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_the_model_gets_the_sum_or_the_mean_of_the_messages(kernels: str) -> None:
    summed, averaged = (
        create_router("gradient-sharing", {"threshold": "fixed", "tau": 0.5, "average": average})
        for average in (False, True)
    )
    model = model_of([10, 20, 30])
    updates = [
        bytes(summed.memory.settle(model, None, done(delta), load_kernels(kernels))[0].encode())
        for delta in ([0.5, 0.4, -7.0], [0.75, -0.5, -0.5])
    ]
    for strategy, end in ((summed, [11.0, 19.5, 29.0]), (averaged, [10.5, 19.75, 29.5])):
        frame, score = aggregate(
            strategy.fold(load_kernels(kernels)), model.encode(), updates, version=0, ends_phase=False
        )
        arrays = Result.decode(frame).arrays
        assert arrays["params"].tolist() == end and score == 0.5
        assert arrays["updater_state"].tolist() == [0, 0]
        short, _ = aggregate(
            strategy.fold(load_kernels(kernels)), model.encode(), updates[:1], version=0, ends_phase=False
        )
        assert Result.decode(short).arrays["params"].tolist() == [10.5, 20, 29.5]  # the mean of one is that one


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_rounds_that_are_followed_at_once_give_the_bits_of_one_after_another(kernels: str, average: bool) -> None:
    """Also where a round has fewer messages than the others, of which each then counts for more."""
    strategy = create_router("gradient-sharing", {"threshold": "fixed", "tau": 0.3, "average": average})
    rng, loaded, model = np.random.default_rng(1), load_kernels(kernels), model_of([10, 20, 30])
    rounds = [
        [bytes(strategy.memory.settle(model, None, done(rng.normal(size=3)), loaded)[0].encode()) for _ in range(count)]
        for count in (3, 1, 3, 2)
    ]
    aggregator, frame = strategy.fold(loaded), model.encode()
    for version, updates in enumerate(rounds):
        frame = aggregate(aggregator, frame, updates, version=version, ends_phase=False)[0]
    followed = aggregator.follow(model.encode(), [([32] * len(updates), updates) for updates in rounds], version=0)
    assert bytes(followed) == bytes(frame) != bytes(model.encode())


def test_the_threshold_follows_what_was_sent() -> None:
    """Of 400 elements all are sent, so it grows, then none, so it shrinks; a fixed one stays."""
    rng = np.random.default_rng(1)
    for name, moves in (("adaptive", True), ("target-sparsity", True), ("fixed", False)):
        strategy, state, taus = create_router("gradient-sharing", {"threshold": name, "tau": 0.25}), None, []
        for size in (1.0, 1.0, 1.0, 0.0, 0.0):
            delta = rng.choice([-size, size], SIZE)
            update, state = strategy.memory.settle(model_of(np.zeros(SIZE)), state, done(delta), load_kernels("numpy"))
            taus.append(update.values["tau"])
        assert taus[0] == 0.25
        assert (taus[0] < taus[1] < taus[2]) == moves and len(set(taus)) == (5 if moves else 1)


def test_a_sparse_message_is_hundreds_of_times_smaller_than_the_parameters() -> None:
    rng = np.random.default_rng(0)
    delta = np.zeros(1_000_000, np.float32)
    delta[rng.choice(delta.size, 1000, replace=False)] = rng.choice([-1.0, 1.0], 1000)
    strategy = create_router("gradient-sharing", {"threshold": "fixed", "tau": 0.5})
    update, _ = strategy.memory.settle(model_of(np.zeros(delta.size)), None, done(delta), load_kernels("numpy"))
    assert update.values["count"] == 1000 and len(update.encode()) * 600 < delta.nbytes


@pytest.mark.parametrize(
    ("changes", "codes", "words"),
    [
        ({"tau": float("nan")}, None, "quantum of a gradient message is nan"),
        ({"tau": -1.0}, None, "quantum of a gradient message is -1.0"),
        ({"tau": "0.5"}, None, "it is no gradient message"),
        ({"count": SIZE + 1}, None, str(SIZE + 1)),
        ({"count": True}, None, "it is no gradient message"),
        ({"format": "zip"}, None, "zip"),
        ({}, np.zeros(3, np.float32), "float32"),
        ({}, np.zeros(3, np.uint8), "."),
    ],
)
def test_what_is_no_message_for_this_model_is_refused(changes: dict, codes: np.ndarray | None, words: str) -> None:
    strategy, model = create_router("gradient-sharing"), model_of(np.zeros(SIZE))
    kernels = load_kernels("numpy")
    update, _ = strategy.memory.settle(model, None, done(np.ones(SIZE)), kernels)
    fold = strategy.fold(kernels)
    fold.check(update.encode(), model.encode())
    bad = Result({**update.values, **changes}, update.arrays if codes is None else {"codes": codes})
    with pytest.raises(WireError, match=words):
        fold.check(bad.encode(), model.encode())
    with pytest.raises(WireError, match="it is no gradient message"):
        fold.check(done(np.ones(SIZE)).encode(), model.encode())
    with pytest.raises(WireError):
        fold.check(update.encode(), model_of(np.zeros(SIZE // 2)).encode())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"threshold": "adaptiv"}, "did you mean 'adaptive'"),
        ({"tau": 0}, "tau is 0"),
        ({"tau": -1e-3}, "tau is -0.001"),
        ({"tau": 1e300}, "tau is 1e\\+300"),
        ({"least_sparsity": 0.02}, "least_sparsity is 0.02"),
        ({"most_sparsity": 0.5}, "most_sparsity is 0.5"),
        ({"sparsity": 0.0}, "sparsity is 0.0"),
        ({"decay": 1.0}, "decay is 1.0"),
        ({"clip": 0.5}, "clip is 0.5"),
        ({"clip_every": 0}, "clip_every is 0"),
        ({"treshold": 1}, "treshold"),
    ],
)
def test_options_that_mean_nothing_are_refused(args: dict, words: str) -> None:
    with pytest.raises(ConfError, match=f"Conf.router_args of gradient-sharing.*{words}"):
        create_router("gradient-sharing", args)
