"""Initial weights: the table of ``weight_init`` names, and the distributions of configurations.

Values are drawn in float64 from a positional ``Stream`` and then cast, so that float32 and float64 networks start at
the same place and no worker depends on another. Formulas are DL4J's (``org.deeplearning4j.nn.weights.WeightInitUtil``),
with fi = ``fan_in`` and fo = ``fan_out``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.kernels import draws, load
from dl4jlegacy.kernels.elementary import exp
from dl4jlegacy.nn.arguments import Tagged

__all__ = [
    "WEIGHT_INITS",
    "BinomialDistribution",
    "ConstantDistribution",
    "Distribution",
    "LogNormalDistribution",
    "NormalDistribution",
    "OrthogonalDistribution",
    "TruncatedNormalDistribution",
    "UniformDistribution",
    "fill_weights",
    "init_weights",
]

Shape = tuple[int, ...]
_BLOCK = 32  # rows orthonormalised at a time


class _Distribution(Tagged):
    def sample(self, generator: np.random.Generator, shape: Shape) -> Array:
        """Return float64 values of ``shape``."""
        raise NotImplementedError


class NormalDistribution(_Distribution, tag="normal"):
    """Gaussian; ``std`` is a standard deviation."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _positive("normal", "std", self.std)

    def sample(self, generator: np.random.Generator, shape: Shape) -> Array:
        """Return float64 values of ``shape``."""
        return draws.normal(generator, shape, self.mean, self.std)


class UniformDistribution(_Distribution, tag="uniform"):
    """Uniform on ``[lower, upper)``."""

    lower: float = -1.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        if not self.lower < self.upper:
            raise ConfError(f"distribution 'uniform': lower {self.lower} is not below upper {self.upper}")

    def sample(self, generator: np.random.Generator, shape: Shape) -> Array:
        """Return float64 values of ``shape``."""
        return draws.uniform(generator, shape, self.lower, self.upper)


class BinomialDistribution(_Distribution, tag="binomial"):
    """Number of successes in ``number_of_trials`` trials."""

    number_of_trials: int = 1
    probability_of_success: float = 0.5

    def __post_init__(self) -> None:
        if self.number_of_trials < 0 or not 0 <= self.probability_of_success <= 1:
            raise ConfError(
                f"distribution 'binomial': number_of_trials {self.number_of_trials} must not be negative and "
                f"probability_of_success {self.probability_of_success} must lie in 0..1"
            )

    def sample(self, generator: np.random.Generator, shape: Shape) -> Array:
        """Return float64 values of ``shape``."""
        return draws.binomial(generator, shape, self.number_of_trials, self.probability_of_success)


class ConstantDistribution(_Distribution, tag="constant"):
    """The same ``value`` everywhere."""

    value: float = 0.0

    def sample(self, generator: np.random.Generator, shape: Shape) -> Array:
        """Return float64 values of ``shape``."""
        return np.full(shape, self.value)


class LogNormalDistribution(_Distribution, tag="lognormal"):
    """Exponential of a Gaussian with ``mean`` and ``std``."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _positive("lognormal", "std", self.std)

    def sample(self, generator: np.random.Generator, shape: Shape) -> Array:
        """Return float64 values of ``shape``."""
        values: Array = exp(draws.normal(generator, shape, self.mean, self.std))
        return values


class TruncatedNormalDistribution(_Distribution, tag="truncated_normal"):
    """Gaussian whose values beyond two standard deviations are drawn again."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _positive("truncated_normal", "std", self.std)

    def sample(self, generator: np.random.Generator, shape: Shape) -> Array:
        """Return float64 values of ``shape``."""
        return self.mean + self.std * _truncated(generator, shape)


class OrthogonalDistribution(_Distribution, tag="orthogonal"):
    """Orthonormal rows (or columns, if these are fewer), times ``gain`` (Saxe et al. 2013)."""

    gain: float = 1.0

    def sample(self, generator: np.random.Generator, shape: Shape) -> Array:
        """Return float64 values of ``shape``; dimensions after the first count as columns."""
        rows, columns = shape[0], math.prod(shape[1:])
        q = _orthonormal(draws.normal(generator, (max(rows, columns), min(rows, columns))).T.copy())
        return self.gain * (q.T if rows >= columns else q).reshape(shape)


Distribution = (
    NormalDistribution
    | UniformDistribution
    | BinomialDistribution
    | ConstantDistribution
    | LogNormalDistribution
    | TruncatedNormalDistribution
    | OrthogonalDistribution
)


def _positive(kind: str, field: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ConfError(f"distribution {kind!r}: {field} is {value}; it must be a positive finite number")


def _orthonormal(rows: Array) -> Array:
    """Return orthonormal rows, of which the first k span the same space as the first k of ``rows``, for every k.

    ``rows`` is overwritten. Gram-Schmidt, applied twice to each row, block by block: the bits of LAPACK depend on the
    processor and the number of threads, those of the kernels' products do not.
    """
    matmul = load().matmul
    for start in range(0, len(rows), _BLOCK):
        before, block = rows[:start], rows[start : start + _BLOCK]
        for _ in range(2):
            if start:
                shares, along = np.empty((len(block), start)), np.empty_like(block)
                matmul(block, before.T, shares)
                matmul(shares, before, along)
                block -= along
            for index, row in enumerate(block):
                for other in block[:index]:
                    row -= (other * row).sum() * other
                row /= np.sqrt((row * row).sum())
    return rows


def _truncated(generator: np.random.Generator, shape: Shape) -> Array:
    values = draws.normal(generator, shape)
    far = np.abs(values) > 2
    while far.any():
        values[far] = draws.normal(generator, (int(far.sum()),))
        far = np.abs(values) > 2
    return values


Draw = Callable[[np.random.Generator, Shape, int, int], Array]
Size = Callable[[int, int], float]


def _normal(std: Size) -> Draw:
    return lambda generator, shape, fi, fo: draws.normal(generator, shape, 0.0, std(fi, fo))


def _uniform(limit: Size) -> Draw:
    return lambda generator, shape, fi, fo: draws.uniform(generator, shape, -limit(fi, fo), limit(fi, fo))


def _truncated_normal(std: Size) -> Draw:
    return lambda generator, shape, fi, fo: std(fi, fo) * _truncated(generator, shape)


def _identity(generator: np.random.Generator, shape: Shape, fi: int, fo: int) -> Array:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ConfError(f"weight init 'identity' needs a square weight matrix, got shape {shape}")
    return np.eye(shape[0])


WEIGHT_INITS: dict[str, Draw | None] = {
    "zero": lambda generator, shape, fi, fo: np.zeros(shape),
    "ones": lambda generator, shape, fi, fo: np.ones(shape),
    "identity": _identity,
    "distribution": None,  # drawn from the configuration's ``dist``
    "uniform": _uniform(lambda fi, fo: 1 / math.sqrt(fi)),
    "normal": _normal(lambda fi, fo: 1 / math.sqrt(fi)),
    "sigmoid_uniform": _uniform(lambda fi, fo: 4 * math.sqrt(6 / (fi + fo))),
    "xavier": _normal(lambda fi, fo: math.sqrt(2 / (fi + fo))),
    "xavier_uniform": _uniform(lambda fi, fo: math.sqrt(6 / (fi + fo))),
    "xavier_fan_in": _normal(lambda fi, fo: 1 / math.sqrt(fi)),
    "xavier_legacy": lambda generator, shape, fi, fo: draws.normal(
        generator, shape, 0.0, 1 / math.sqrt(shape[0] + shape[1])
    ),
    "relu": _normal(lambda fi, fo: math.sqrt(2 / fi)),
    "relu_uniform": _uniform(lambda fi, fo: math.sqrt(6 / fi)),
    "lecun_normal": _normal(lambda fi, fo: 1 / math.sqrt(fi)),
    "lecun_uniform": _uniform(lambda fi, fo: 3 / math.sqrt(fi)),
    "var_scaling_normal_fan_in": _truncated_normal(lambda fi, fo: 1 / math.sqrt(fi)),
    "var_scaling_normal_fan_out": _truncated_normal(lambda fi, fo: 1 / math.sqrt(fo)),
    "var_scaling_normal_fan_avg": _truncated_normal(lambda fi, fo: math.sqrt(2 / (fi + fo))),
    "var_scaling_uniform_fan_in": _uniform(lambda fi, fo: 3 / math.sqrt(fi)),
    "var_scaling_uniform_fan_out": _uniform(lambda fi, fo: 3 / math.sqrt(fo)),
    "var_scaling_uniform_fan_avg": _uniform(lambda fi, fo: 3 / math.sqrt((fi + fo) / 2)),
    # The two defaults of the releases of 2014: "variance normalized", and the bound of "sigmoid_uniform".
    "vi": _uniform(lambda fi, fo: math.sqrt(6) / math.sqrt(fi + fo + 1)),
    "si": _uniform(lambda fi, fo: 4 * math.sqrt(6 / (fi + fo))),
}
"""Name to ``draw(generator, shape, fan_in, fan_out)``."""
_IN_ROWS = frozenset(WEIGHT_INITS) - {
    "distribution",
    "identity",
    "xavier_legacy",  # depends on the shape
    *(name for name in WEIGHT_INITS if name.startswith("var_scaling_normal")),  # draws some values several times
}
"""Weight inits with the same result if rows are drawn one after the other."""
_VALUES = 1 << 20
"""Approximate number of values that are then drawn at a time."""


def init_weights(
    kind: str,
    shape: Shape,
    fan_in: int,
    fan_out: int,
    stream: Stream,
    *,
    dtype: npt.DTypeLike = np.float32,
    distribution: Distribution | None = None,
) -> Array:
    """Return new random weights of ``shape``.

    Args:
        kind: a name of ``WEIGHT_INITS``; "distribution" draws from ``distribution``.
        shape: ``(n_in, n_out)`` for dense layers.
        fan_in: number of inputs of one output.
        fan_out: number of outputs that depend on one input.
        stream: the source of random numbers; the same stream gives the same weights.
        dtype: of the result.
        distribution: only for "distribution".

    Raises:
        ConfError: unknown name, a distribution is missing, or the shape does not suit the kind.
    """
    weights = np.empty(shape, dtype)
    fill_weights(weights, kind, fan_in, fan_out, stream, distribution=distribution)
    return weights


def fill_weights(
    weights: Array,
    kind: str,
    fan_in: int,
    fan_out: int,
    stream: Stream,
    *,
    distribution: Distribution | None = None,
) -> None:
    """Draw weights into an array, in parts of rows if the result is the same; args and errors as ``init_weights``.

    A matrix of millions of rows then needs no memory besides its own.
    """
    if kind not in WEIGHT_INITS:
        raise ConfError(f"unknown weight init {kind!r}{nearest(kind, tuple(WEIGHT_INITS))}")
    draw, generator, shape = WEIGHT_INITS[kind], stream.generator(), weights.shape
    if draw is None and distribution is None:
        raise ConfError("weight init 'distribution' needs a distribution: set dist, e.g. NormalDistribution(std=0.01)")
    rows = shape[0]
    if kind in _IN_ROWS or (draw is None and isinstance(distribution, NormalDistribution | UniformDistribution)):
        rows = min(rows, _rows_of_a_part(math.prod(shape[1:])))
    for start in range(0, shape[0], max(rows, 1)):
        part = weights[start : start + rows]
        if draw is not None:
            part[...] = draw(generator, part.shape, fan_in, fan_out)
        elif distribution is not None:
            part[...] = distribution.sample(generator, part.shape)


def _rows_of_a_part(values: int) -> int:
    """Return the number of rows, each of ``values`` values, to draw at a time: whole parts of ``draws.normal``."""
    least = draws.PART // math.gcd(draws.PART, max(values, 1))
    return least * -(-_VALUES // (least * max(values, 1)))
