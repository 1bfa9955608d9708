"""What calls a function whose last bits differ by machine: NumPy's and the C library's elementary ones, BLAS, LAPACK.

Parameters have the same bits on every processor, so that nothing of it may reach one. Whoever needs such a function
calls ``kernels.elementary``, ``kernels.draws`` or the kernels' ``matmul``.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels import draws
from dl4jlegacy.nn.optimization.weights import WEIGHT_INITS, init_weights
from tests.test_layering import MODULES

FUNCTIONS = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "pow", "power", "float_power", "cbrt"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "arctan2", "hypot", "erf", "gamma"),
    *("asin", "acos", "atan", "atan2", "lgamma", "linalg", "fft", "matmul", "dot", "vdot", "inner", "tensordot"),
    *("einsum", "convolve", "correlate"),
}
LIBRARIES = {"np", "xp", "math", "numpy", "cupy", "cmath", "scipy"}
DRAWS = {
    *("normal", "standard_normal", "exponential", "standard_exponential", "lognormal", "binomial", "poisson"),
    *("gamma", "beta", "laplace", "logistic", "multivariate_normal", "standard_t", "gumbel", "geometric"),
}
OWN = {"draws", "elementary"}  # modules here whose functions have such names
ALLOWED: dict[str, tuple[str, str]] = {  # by module: what it calls, and why no bit of it reaches a parameter
    "datasets.leaks": ("@ linalg", "a warning about columns"),
    "arrays.devices": ("** matmul", "whole powers; a settings' name, and a product that tries a GPU out"),
    "models.generation": ("exp log", "texts that a trained network goes on with"),
    "kernels.arithmetic": (
        "** @ cos dot erf exp expm1 log log1p sin tanh",
        "compares the bits of machines, so that a run of NumPy's kernels refuses one that has others",
    ),
    "kernels.cuda.updaters": ("**", "whole powers of a run on GPUs, which repeats on GPUs"),
    "kernels.draws": ("standard_normal", "the normals of the tails, which have a logarithm in them, are made again"),
    "kernels.elementary": ("** exp expm1 log log1p tanh", "of arrays on a GPU; a power of -1 in a table"),
    "kernels.numpy.kernels": ("@ exp log matmul tanh", "NumPy's kernels: cpu_arithmetic refuses other machines"),
    "kernels.numpy.recurrent": ("exp matmul tanh", "likewise"),
    "kernels.numpy.tiles": ("matmul", "likewise"),
    "nn.evaluation.classification": ("log10", "the width of a printed table"),
    "nn.evaluation.probe": ("@ linalg", "whether data have a pattern, which a report tells"),
    "nn.evaluation.verdict": ("@ log", "what a report says of a model"),
    "nn.layers.rbm": ("@", "the free energy, which is told and not trained with"),
    "scaleout.state.aggregate": ("**", "whole powers: the width of a tree"),
    "scaleout.state.codec": ("log log1p log2", "the size of a message, which is estimated"),
    "scaleout.monitoring.curves_svg": ("** log log10", "a picture"),
    "scaleout.protocol.poison": ("exp lgamma", "how often workers die of a job"),
    "scaleout.monitoring.stats_page": ("exp log", "a picture"),
    "scaleout.zookeeper.election": ("**", "how long a process waits"),
    "sklearn.estimators": ("log", "the logarithms of probabilities, which are answers"),
    "testing.aggregators": ("standard_normal", "data of a check of somebody's aggregator"),
    "training.guess_watch": ("log", "a warning"),
    "ui.endpoints": ("**", "a picture"),
}


def test_nothing_whose_bits_differ_by_machine_reaches_a_parameter() -> None:
    found = {name: " ".join(sorted(set(uses))) for name in MODULES if (uses := list(_uses(name)))}
    assert found == {f"dl4jlegacy.{name}": names for name, (names, _) in ALLOWED.items()}


def _uses(name: str) -> Iterator[str]:
    """Yield the inexact functions that a module names."""
    if not name.startswith("dl4jlegacy"):
        return
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            yield "@"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _is_exact(node):
            yield "**"
        elif isinstance(node, ast.ImportFrom) and node.module in LIBRARIES:
            yield from (alias.name for alias in node.names if alias.name in FUNCTIONS)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in LIBRARIES and node.attr in FUNCTIONS:
                yield node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in DRAWS
            and not (isinstance(node.func.value, ast.Name) and node.func.value.id in OWN)
        ):
            yield node.func.attr


def _is_exact(node: ast.BinOp) -> bool:
    """Return whether a power is one of integers, of 2, or a square."""
    base, exponent = node.left, node.right
    if isinstance(base, ast.Constant) and base.value in (2, -1):
        return True
    return isinstance(exponent, ast.Constant) and exponent.value == 2


SCRIPT = """
import hashlib
import numpy as np
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.columns.table import Table
from dl4jlegacy.datasets.columns.transforms import Derive
from dl4jlegacy.nn import *
from dl4jlegacy.nn.optimization.weights import *
from dl4jlegacy.arrays.seeding import Stream

digest = hashlib.sha256()
for kind in (OrthogonalDistribution(), LogNormalDistribution(), BinomialDistribution(number_of_trials=40)):
    for dtype in ("float64", "float32"):
        stream = Stream.of(3).at(purpose="W")
        digest.update(init_weights("distribution", (311, 257), 1, 1, stream, dtype=dtype, distribution=kind).tobytes())
x = np.random.default_rng(0).integers(1, 256, (64, 16)) / 256.0
rates = ExponentialReconstructionDistribution()
layers = (
    VariationalAutoencoder(5, encoder_layer_sizes=(13,), decoder_layer_sizes=(13,), reconstruction_distribution=rates),
    OutputLayer(n_out=4, activation="softmax"),
)
conf = NeuralNetConfiguration(seed=3, updater=Adam(0.01), activation="tanh")
network = MultiLayerNetwork(
    MultiLayerConfiguration(conf=conf, layers=layers, pretrain=True, input_type=InputType.feed_forward(16))
)
network.pretrain(DataSet(x.astype(np.float32), np.zeros((64, 0), np.float32)), 3)
digest.update(np.asarray(network.params).tobytes())
digest.update(rates.sample(x.astype(np.float32), Stream.of(1)).tobytes())
table = Table("rows", {"a": x[:, 0]}, np.arange(64), {})
for operation in ("log", "log1p"):
    digest.update(Derive(columns=("a",), name="b", operation=operation).apply(table).columns["b"].tobytes())
print(digest.hexdigest())
"""
OTHERS = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX2 AVX512F AVX512_SKX", "OPENBLAS_CORETYPE": "Nehalem"}
OTHERS |= {"OPENBLAS_NUM_THREADS": "1"}


def test_another_processor_draws_and_trains_the_same_bits() -> None:
    """NumPy without its wide instructions, and the BLAS of an older processor."""
    said = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT], env={**os.environ, **more}, check=True, capture_output=True
        )
        for more in ({}, OTHERS)
    ]
    assert said[0].stdout == said[1].stdout and len(said[0].stdout) > 60


class _OtherLibrary:
    """A generator whose logarithm rounds another way: the normals of the tails are an ulp or two off."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator, self.bit_generator = generator, generator.bit_generator

    def standard_normal(self, out: np.ndarray) -> None:
        self._generator.standard_normal(out=out)
        tails = np.abs(out) > 3.6541528853610088
        out[tails] += np.spacing(out[tails]) * np.resize([-2, -1, 1, 2], int(tails.sum()))


def test_normals_are_numpys_and_their_tails_the_same_whatever_its_logarithm_rounds() -> None:
    for seed in range(3):
        generators = [Stream.of(seed).generator() for _ in range(3)]
        usual = generators[0].normal(0.5, 2.0, 150_000)
        ours = draws.normal(generators[1], (150_000,), 0.5, 2.0)
        other = draws.normal(_OtherLibrary(generators[2]), (150_000,), 0.5, 2.0)  # type: ignore[arg-type]
        np.testing.assert_array_equal(other, ours)
        np.testing.assert_allclose(ours, usual, rtol=1e-14)
        assert (ours != usual).sum() <= 3 and generators[0].random() == generators[1].random()


def test_the_other_draws_have_the_moments_of_their_distributions() -> None:
    for trials, probability in ((1, 0.5), (20, 0.3), (1000, 0.999), (5, 1.0), (0, 0.5)):
        found = draws.binomial(Stream.of(5).generator(), (40_000,), trials, probability)
        assert found.min() >= 0 and found.max() <= trials and (found == np.floor(found)).all()
        assert found.mean() == pytest.approx(trials * probability, rel=0.02)
        assert found.var() == pytest.approx(trials * probability * (1 - probability), rel=0.05)
    found = draws.exponential(Stream.of(5).generator(), (40_000,))
    assert found.min() >= 0 and found.mean() == pytest.approx(1, rel=0.02) and found.var() == pytest.approx(1, rel=0.05)
    uniform = draws.uniform(Stream.of(5).generator(), (1000,), -3.0, 5.0)
    np.testing.assert_array_equal(uniform, Stream.of(5).generator().uniform(-3.0, 5.0, 1000))


def test_initial_weights_of_every_kind_are_those_of_before() -> None:
    """The bits that runs have begun with; of ``identity`` there is one shape only."""
    digest = hashlib.sha256()
    for kind in sorted(set(WEIGHT_INITS) - {"distribution", "identity"}):
        digest.update(init_weights(kind, (37, 41), 37, 41, Stream.of(9).at(purpose=kind)).tobytes())
    assert digest.hexdigest()[:16] == "35f5eba1ac539421"
