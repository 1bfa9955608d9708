"""Weight initialisation: the moments and bounds of every kind, and that streams alone decide the numbers."""

from __future__ import annotations

import math
import tracemalloc

import msgspec
import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.networks import build_network
from dl4jlegacy.nn.optimization import weights
from dl4jlegacy.nn.optimization.weights import (
    WEIGHT_INITS,
    BinomialDistribution,
    ConstantDistribution,
    Distribution,
    LogNormalDistribution,
    NormalDistribution,
    OrthogonalDistribution,
    TruncatedNormalDistribution,
    UniformDistribution,
    fill_weights,
    init_weights,
)

FI, FO = 200, 100
STREAM = Stream.of(11).at(0, purpose="weights")

UNIFORM = {  # half width
    "uniform": 1 / math.sqrt(FI),
    "sigmoid_uniform": 4 * math.sqrt(6 / (FI + FO)),
    "xavier_uniform": math.sqrt(6 / (FI + FO)),
    "relu_uniform": math.sqrt(6 / FI),
    "lecun_uniform": 3 / math.sqrt(FI),
    "var_scaling_uniform_fan_in": 3 / math.sqrt(FI),
    "var_scaling_uniform_fan_out": 3 / math.sqrt(FO),
    "var_scaling_uniform_fan_avg": 3 / math.sqrt((FI + FO) / 2),
    "vi": math.sqrt(6) / math.sqrt(FI + FO + 1),
    "si": 4 * math.sqrt(6 / (FI + FO)),
}
NORMAL = {  # variance
    "normal": 1 / FI,
    "xavier": 2 / (FI + FO),
    "xavier_fan_in": 1 / FI,
    "xavier_legacy": 1 / (FI + FO),
    "relu": 2 / FI,
    "lecun_normal": 1 / FI,
}
TRUNCATED = {  # variance before truncation
    "var_scaling_normal_fan_in": 1 / FI,
    "var_scaling_normal_fan_out": 1 / FO,
    "var_scaling_normal_fan_avg": 2 / (FI + FO),
}
CONSTANT = {"zero", "ones", "identity", "distribution"}


def draw(kind: str, **more: object) -> np.ndarray:
    return init_weights(kind, (FI, FO), FI, FO, STREAM, dtype=np.float64, **more)


@pytest.mark.parametrize("kind", sorted(name for name in WEIGHT_INITS if name not in ("identity", "distribution")))
def test_a_matrix_of_many_rows_is_what_one_draw_of_all_would_be(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with rows of which no small number fills a part of the normals."""
    monkeypatch.setattr(weights, "_VALUES", 1 << 12)
    for shape in ((40_000, 4), (70_000, 3)):
        found = np.zeros(shape[::-1], np.float32).T  # as a network's parameters lie
        fill_weights(found, kind, 7, 9, STREAM)
        draw = WEIGHT_INITS[kind]
        assert draw is not None
        assert np.array_equal(found, draw(STREAM.generator(), shape, 7, 9).astype(np.float32))


def test_a_network_is_drawn_in_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_VALUES", 1 << 16)
    conf = MultiLayerConfiguration((OutputLayer(n_in=200_000, n_out=16, activation="softmax"),))
    build_network(conf)
    tracemalloc.start()
    try:
        network = build_network(conf)  # its vectors have pages of their own, which are not counted
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 0.4 * network.params.nbytes


def test_every_kind_is_tested():
    assert set(UNIFORM) | set(NORMAL) | set(TRUNCATED) | CONSTANT == set(WEIGHT_INITS)


@pytest.mark.parametrize("kind", sorted(UNIFORM))
def test_uniform_kinds_fill_their_range(kind):
    W, limit = draw(kind), UNIFORM[kind]
    assert -limit <= W.min() < -0.99 * limit
    assert 0.99 * limit < W.max() <= limit
    assert abs(W.mean()) < 0.02 * limit


@pytest.mark.parametrize("kind", sorted(NORMAL))
def test_normal_kinds_have_their_variance(kind):
    W = draw(kind)
    assert W.var() == pytest.approx(NORMAL[kind], rel=0.05)
    assert abs(W).max() > 3 * W.std()


@pytest.mark.parametrize("kind", sorted(TRUNCATED))
def test_truncated_kinds_stay_within_two_standard_deviations(kind):
    W, std = draw(kind), math.sqrt(TRUNCATED[kind])
    assert 1.9 * std < abs(W).max() <= 2 * std
    assert W.std() == pytest.approx(0.8796 * std, rel=0.05)


def test_constant_kinds_are_constant():
    assert (draw("zero") == 0).all()
    assert (draw("ones") == 1).all()
    assert (init_weights("identity", (5, 5), 5, 5, STREAM) == np.eye(5)).all()


def test_identity_of_a_matrix_that_is_not_square_is_refused():
    with pytest.raises(ConfError, match=r"square weight matrix, got shape \(200, 100\)"):
        draw("identity")


@pytest.mark.parametrize("kind", sorted(set(WEIGHT_INITS) - {"identity", "distribution"}))
def test_the_stream_decides_and_float32_is_the_rounded_float64(kind):
    W = draw(kind)
    W32 = init_weights(kind, (FI, FO), FI, FO, STREAM, dtype=np.float32)
    assert (draw(kind) == W).all()
    assert W32.dtype == np.float32
    assert (W.astype(np.float32) == W32).all()
    if kind not in CONSTANT:
        other = init_weights(kind, (FI, FO), FI, FO, Stream.of(11).at(1, purpose="weights"), dtype=np.float64)
        assert (other != W).mean() > 0.99


@pytest.mark.parametrize(
    ("distribution", "mean", "std"),
    [
        (NormalDistribution(mean=2.0, std=0.5), 2.0, 0.5),
        (UniformDistribution(lower=1.0, upper=3.0), 2.0, 2 / math.sqrt(12)),
        (BinomialDistribution(number_of_trials=10, probability_of_success=0.3), 3.0, math.sqrt(2.1)),
        (ConstantDistribution(value=0.25), 0.25, 0.0),
        (LogNormalDistribution(mean=0.0, std=0.5), math.exp(0.125), math.exp(0.125) * math.sqrt(math.exp(0.25) - 1)),
        (TruncatedNormalDistribution(mean=1.0, std=2.0), 1.0, 0.8796 * 2),
        (OrthogonalDistribution(), 0.0, 1 / math.sqrt(FI)),
    ],
)
def test_distributions_have_their_moments_and_survive_json(distribution, mean, std):
    W = draw("distribution", distribution=distribution)
    assert W.mean() == pytest.approx(mean, abs=0.03)
    assert W.std() == pytest.approx(std, rel=0.05, abs=1e-9)
    assert msgspec.json.decode(msgspec.json.encode(distribution), type=Distribution) == distribution


@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_orthogonal_weights_are_orthonormal_times_the_gain(shape):
    W = OrthogonalDistribution(gain=2.0).sample(STREAM.generator(), shape)
    gram = W.T @ W if shape[0] > shape[1] else W @ W.T
    np.testing.assert_allclose(gram, 4 * np.eye(4), atol=1e-12)


def test_distribution_without_a_distribution_is_refused():
    with pytest.raises(ConfError, match="needs a distribution: set dist"):
        draw("distribution")


@pytest.mark.parametrize(
    "make",
    [
        lambda: NormalDistribution(std=0.0),
        lambda: UniformDistribution(lower=1.0, upper=1.0),
        lambda: BinomialDistribution(probability_of_success=1.5),
        lambda: LogNormalDistribution(std=-1.0),
        lambda: TruncatedNormalDistribution(std=math.nan),
    ],
)
def test_distributions_refuse_impossible_values(make):
    with pytest.raises(ConfError, match="distribution '"):
        make()


def test_an_unknown_kind_is_refused_with_the_nearest_name():
    with pytest.raises(ConfError, match="unknown weight init 'xavjer'; did you mean 'xavier'"):
        draw("xavjer")
