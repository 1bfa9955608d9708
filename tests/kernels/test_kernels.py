"""Every compiled kernel against its NumPy version: odd sizes, both dtypes, read-only inputs, empty arrays."""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest

from dl4jlegacy import kernels as package
from dl4jlegacy.errors import ConfError, ShapeError, VersionError
from dl4jlegacy.kernels import load, philox
from dl4jlegacy.kernels.protocol import FUSED_ACTIVATIONS

NUMPY, NUMBA = load("numpy"), load("numba")
KEY = 0xFEDCBA9876543210
SHAPES = [(1, 1), (3, 5), (7, 16), (5, 17), (2, 63), (9, 100), (0, 4)]
SIZES = [0, 1, 15, 16, 63, 64, 65, 1000, 2049]
DTYPES = [np.float32, np.float64]


def close(dtype):
    return {"rtol": 2e-5, "atol": 2e-6} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-13}


def normal(shape, dtype, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def frozen(x):
    x = x.copy()
    x.flags.writeable = False
    return x


both_dtypes = pytest.mark.parametrize("dtype", DTYPES)
all_shapes = pytest.mark.parametrize("shape", SHAPES)


def test_philox_gives_the_published_known_answers():
    assert [hex(w) for w in philox.words(64, 0)[::16]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_philox_follows_the_published_rounds():
    counter, key = 0x123456789ABCDEF, KEY
    x, k = [counter & 0xFFFFFFFF, counter >> 32, 0, 0], [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):  # Salmon et al. 2011, section 3.3, on Python's integers
        p, q = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(q >> 32) ^ x[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ x[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    assert philox.philox(np.array([counter], np.uint64), key).tolist() == [x]


def test_an_element_of_a_stream_does_not_depend_on_the_length_drawn():
    long, short = np.empty(1000, np.float32), np.empty(77, np.float32)
    NUMBA.uniform(long, KEY)
    NUMBA.uniform(short, KEY)
    assert np.array_equal(long[:77], short)


def test_uniforms_are_flat_and_uncorrelated():
    u = np.empty(1 << 18, np.float32)
    NUMBA.uniform(u, 7)
    counts = np.histogram(u, bins=64, range=(0, 1))[0]
    assert np.sum((counts - 4096) ** 2 / 4096) < 120  # chi-squared of 63 degrees: p < 1e-5 above
    for lag in (1, 16, 64):
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 0.01


@pytest.mark.parametrize("kernels", [NUMPY, NUMBA], ids=["numpy", "numba"])
@pytest.mark.parametrize("activation", sorted(FUSED_ACTIVATIONS))
def test_activation_gradients_are_the_derivatives(kernels, activation):
    z, eps, zero = normal((4, 6), np.float64), 1e-6, np.zeros(6)
    above, below, y, dy, gb = z + eps, z - eps, z.copy(), np.ones_like(z), np.empty(6)
    for x in (above, below, y):
        kernels.bias_activation(x, zero, activation)
    kernels.activation_backward_bias(dy, y, gb, activation)
    np.testing.assert_allclose(dy, (above - below) / (2 * eps), rtol=1e-6)
    np.testing.assert_allclose(gb, dy.sum(0))


def test_the_ends_of_contrastive_divergence_are_refused_where_they_do_not_fit():
    x, sums = normal((4, 3), np.float32), np.zeros(3, np.float32)
    with pytest.raises(ShapeError, match="difference_sums"):
        NUMBA.difference_sums(x, x[:3], x.copy(), sums, 1.0)
    with pytest.raises(ShapeError, match="difference_sums"):
        NUMBA.difference_sums(x, x, x.copy(), sums[:2], 1.0)
    with pytest.raises(ShapeError, match="4 rows cannot meet at row 5"):
        NUMBA.signed_sums(x, 5, sums, 1.0)


@both_dtypes
@all_shapes
def test_binary_cross_entropy_agrees(dtype, shape):
    p = np.random.default_rng(3).random(shape).astype(dtype)
    p.reshape(-1)[:4] = [0, 1, 1e-7, 0.5][: p.size]
    labels = np.random.default_rng(4).random(shape).astype(dtype)
    labels[: len(labels) // 2] = labels[: len(labels) // 2] > 0.5  # one logarithm is enough of those
    q = np.clip(p, p.dtype.type(1e-5), 1 - p.dtype.type(1e-5)).astype(float)
    wanted = -(labels * np.log(q) + (1.0 - labels) * np.log(1.0 - q)).sum()
    for kernels in (NUMPY, NUMBA):
        assert kernels.binary_cross_entropy(frozen(p), frozen(labels)) == pytest.approx(wanted, rel=1e-4)
    p[:1, :1] = np.nan
    assert np.isnan(NUMBA.binary_cross_entropy(p, labels)) == bool(p.size)


UPDATERS = {
    "noop": (0, ()),
    "sgd": (0, (0.1,)),
    "nesterovs": (1, (0.1, 0.9)),
    "adagrad": (1, (0.1, 1e-6)),
    "rmsprop": (1, (0.1, 0.95, 1e-8)),
    "adam": (2, (1e-3, 0.9, 0.999, 1e-8)),
    "adamax": (2, (1e-3, 0.9, 0.999, 1e-8)),
    "adadelta": (2, (0.95, 1e-6)),
    "nadam": (2, (1e-3, 0.9, 0.999, 1e-8)),
    "amsgrad": (3, (1e-3, 0.9, 0.999, 1e-8)),
    "adabelief": (2, (1e-3, 0.9, 0.999, 1e-14)),
}
COUNTED = {"adam", "adamax", "nadam", "amsgrad", "adabelief"}


@both_dtypes
@pytest.mark.parametrize("kernels", [NUMPY, NUMBA], ids=["numpy", "numba"])
@pytest.mark.parametrize("updater", sorted(UPDATERS))
def test_updaters_say_whether_all_parameters_are_finite(kernels, updater, dtype):
    slots, settings = UPDATERS[updater]
    counter = (0,) if updater in COUNTED else ()

    def update(n, place=0, value=1.0):
        gradient = normal(n, dtype)
        gradient[place : place + 1] = value
        with np.errstate(all="ignore"):
            return getattr(kernels, updater)(
                normal(n, dtype), gradient, *(np.zeros(n, dtype) for _ in range(slots)), *settings, *counter
            )

    assert update(0) is True
    assert update(1100) is True
    for place in (0, 17, 1023, 1099):
        for value in (np.nan, np.inf, -np.inf):
            assert update(1100, place, value) is False


@pytest.mark.parametrize("kernels", [NUMPY, NUMBA], ids=["numpy", "numba"])
def test_first_adam_and_adagrad_steps_are_the_formulas(kernels):
    params, m, v = np.zeros(1), np.zeros(1), np.zeros(1)
    kernels.adam(params, np.array([2.0]), m, v, 1e-3, 0.9, 0.999, 1e-8, 0)
    assert params[0] == pytest.approx(-1e-3 * math.sqrt(0.001) / 0.1 * 0.2 / (math.sqrt(0.004) + 1e-8))
    params, h = np.zeros(1), np.ones(1)
    kernels.adagrad(params, np.array([2.0]), h, 0.1, 0.5)  # epsilon outside the root
    assert (params[0], h[0]) == (pytest.approx(-0.2 / (math.sqrt(5) + 0.5)), 5)


@pytest.mark.parametrize("kernels", [NUMPY, NUMBA], ids=["numpy", "numba"])
def test_backward_dropout_repeats_the_mask(kernels):
    dy, out = np.ones((9, 37), np.float32), np.empty((9, 37), np.float32)
    kernels.dropout(dy.copy(), out, 0.5, KEY)
    kernels.dropout_backward(dy, 0.5, KEY)
    assert np.array_equal(dy, out) and set(np.unique(dy)) == {0, 2}


@both_dtypes
@pytest.mark.parametrize("n", [*SIZES, 1_200_001])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_weighted_sums_are_the_same_bits_for_any_pool_and_implementation(dtype, n, k):
    vectors = [frozen(normal(n, dtype, seed)) for seed in range(k)]
    weights = [1 / (i + 3) for i in range(k)]
    expected = vectors[0] * dtype(weights[0])
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        expected += vector * dtype(weight)
    with ThreadPoolExecutor(3) as pool:
        for kernels in (NUMPY, NUMBA):
            for workers in (None, pool):
                out = np.full(n, np.nan, dtype)
                kernels.weighted_sum(vectors, weights, out, workers)
                assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("offset", [0, 1, 15])
def test_large_sums_written_past_the_caches_are_the_same_bits(offset):
    n = (1 << 22) + 37
    a, b = frozen(np.arange(n, dtype=np.float32)), frozen(np.linspace(-1, 1, n, dtype=np.float32))
    out = np.full(n + 16, np.nan, np.float32)
    with ThreadPoolExecutor(3) as pool:
        NUMBA.weighted_sum([a, b], [0.3, 0.7], out[offset : offset + n], pool)
    assert np.array_equal(out[offset : offset + n], a * np.float32(0.3) + b * np.float32(0.7))
    assert np.isnan(out[:offset]).all() and np.isnan(out[offset + n :]).all()


def test_wrong_sizes_are_refused_before_a_compiled_loop_runs():
    z = np.zeros((3, 4), np.float32)
    with pytest.raises(ShapeError, match=r"\[3, 4\] activations need a bias of \[4\], got \[5\]"):
        NUMBA.bias_activation(z, np.zeros(5, np.float32), "relu")
    with pytest.raises(ShapeError, match="sgd"):
        NUMBA.sgd(np.zeros(3), np.zeros(4), 0.1)
    with pytest.raises(ShapeError, match="2 vectors and 1 weights"):
        NUMBA.weighted_sum([z[0], z[1]], [1.0], z[2])
    with pytest.raises(ShapeError, match="vector 1 is float64"):
        NUMBA.weighted_sum([z[0], np.zeros(4)], [1.0, 1.0], z[2])


def test_wrong_layouts_and_dtypes_are_refused_by_name():
    z = np.zeros((4, 4), np.float32)
    with pytest.raises(ConfError, match="not contiguous"):
        NUMBA.bias_activation(z[:, ::2], np.zeros(2, np.float32), "relu")
    with pytest.raises(ConfError, match="read-only"):
        NUMBA.bias_activation(frozen(z), np.zeros(4, np.float32), "relu")
    with pytest.raises(ConfError, match="float32 and float64"):
        NUMBA.sgd(np.zeros(3, np.int32), np.zeros(3, np.int32), 0.1)
    with pytest.raises(ShapeError, match="contiguous"):
        NUMBA.dropout(z[:, ::2], z[:, ::2], 0.5, 1)


@pytest.mark.parametrize("kernels", [NUMPY, NUMBA], ids=["numpy", "numba"])
def test_an_unknown_activation_names_the_nearest(kernels):
    with pytest.raises(ConfError, match="'sigmoid'"):
        kernels.bias_activation(np.zeros((1, 1)), np.zeros(1), "sigmiod")


def test_kernels_are_chosen_by_argument_then_environment(monkeypatch):
    assert load("numpy") is NUMPY and load("numba") is NUMBA
    monkeypatch.setenv("DL4J_KERNELS", "numpy")
    assert load().name == "numpy"
    assert load("numba").name == "numba"
    monkeypatch.setenv("DL4J_KERNELS", "nunba")
    with pytest.raises(ConfError, match="'numba'"):
        load()


def test_importing_the_package_does_not_import_numba():
    code = "import sys, json, dl4jlegacy.kernels as k; k.load('numpy'); print(json.dumps('numba' in sys.modules))"
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) is False


@pytest.mark.long
def test_a_kernel_is_compiled_once_and_cached_and_the_log_says_so(tmp_path):
    code = """
import logging, sys, numpy as np, dl4jlegacy.kernels as k
logging.basicConfig(level=logging.INFO)
k.load("numba").bias_activation(np.zeros((2, 3), np.float32), np.zeros(3, np.float32), "tanh")
print("numba.np.linalg" in sys.modules)  # one of the compiler's modules
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    files, said, compiler = [], [], []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        compiler.append(done.stdout.strip())
        files.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nbc")})
        said.append(done.stderr)
    assert files[0] and files[1] == files[0]
    assert "tanh_lanes: compiling it for this processor" in said[0] and "tanh_lanes: ready after" in said[0]
    assert compiler == ["True", "False"]  # which takes half a second to import


def test_compiled_code_is_kept_under_a_name_that_every_source_file_changes(tmp_path):
    from dl4jlegacy.kernels.numba import compile as compiling

    folder = Path(compiling.__file__).parent
    for path in folder.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    digest = compiling.sources_digest(folder)
    assert compiling.sources_digest(tmp_path) == digest
    for path in folder.glob("*.py"):  # what a kernel calls may stand in another file than the kernel
        (tmp_path / path.name).write_bytes(path.read_bytes() + b"\n")
        assert compiling.sources_digest(tmp_path) != digest, path.name
        (tmp_path / path.name).write_bytes(path.read_bytes())

    def doubled(x):
        return x * 2.0

    compiled = compiling.compile_cached((numba.float64,), doubled)
    assert compiled(1.5) == 3.0
    assert digest in compiled._cache._impl.filename_base


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04\x8c\x99cut short", b"\x80\x04."])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_a_damaged_file_in_the_cache_stops_nobody(kind, content):
    from dl4jlegacy.kernels.numba import compile as compiling

    def tripled(x):
        return x * 3.0

    folder = Path(compiling.compile_cached((numba.float64,), tripled)._cache.cache_path)
    try:
        damaged = list(folder.glob(f"*tripled*.{kind}"))
        for file in damaged:
            file.write_bytes(content)
        assert damaged and compiling.compile_cached((numba.float64,), tripled)(1.5) == 4.5
    finally:
        for file in folder.glob("*tripled*.nb?"):
            file.unlink()


def test_two_threads_may_compile_and_run_the_same_kernel():
    def work(seed):
        z = normal((50, 30), np.float32, seed)
        expected = np.maximum(z + 1, 0)
        NUMBA.bias_activation(z, np.ones(30, np.float32), "relu")
        return np.array_equal(z, expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))


def test_numba_that_cannot_be_imported_is_fallen_back_from_only_if_nobody_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DL4J_KERNELS", raising=False)
    monkeypatch.setitem(sys.modules, "dl4jlegacy.kernels.numba.kernels", None)
    monkeypatch.delattr("dl4jlegacy.kernels.numba.kernels", raising=False)
    package._load.cache_clear()
    try:
        assert package.load().name == "numpy"
        with pytest.raises(VersionError, match="install numba"):
            package.load("numba")
    finally:
        package._load.cache_clear()


@both_dtypes
@pytest.mark.parametrize("kernels", [NUMPY, NUMBA], ids=["numpy", "numba"])
def test_tanh_reaches_one_keeps_its_order_and_is_close_everywhere(kernels, dtype):
    z = np.concatenate([np.linspace(-12, 12, 4001), [9.011, 20, 88, 1e4, np.inf, -9.011, -1e30, -np.inf]])
    z = np.resize(z, (251, 16)).astype(dtype)  # 16: whole lanes
    y = z.copy()
    kernels.bias_activation(y, np.zeros(16, dtype), "tanh")
    np.testing.assert_allclose(y, np.tanh(z.astype(float)), rtol=5e-7 if dtype == np.float32 else 1e-15)
    np.testing.assert_array_equal(y[np.abs(z) >= 20], np.sign(z[np.abs(z) >= 20]))
    order = np.argsort(z, axis=None)
    assert (np.diff(y.reshape(-1)[order]) >= -5e-7).all() and np.abs(y).max() == 1
    nan = np.full((1, 16), np.nan, dtype)
    kernels.bias_activation(nan, np.zeros(16, dtype), "tanh")
    assert np.isnan(nan).all()


@pytest.mark.parametrize("kernels", [NUMPY, NUMBA], ids=["numpy", "numba"])
def test_gates_and_cells_of_an_lstm_reach_one(kernels):
    n = 17  # sixteen lanes, and one
    x, W, z = np.ones((1, 2, 1), np.float32), np.full((4 * n, 1), 30, np.float32), np.empty((1, 2, 4 * n), np.float32)
    h, c = (np.zeros((2, 2, n), np.float32) for _ in "hc")
    c[0] = 40
    a = np.empty((1, 2, n), np.float32)
    zeros = np.zeros((4 * n, n), np.float32), np.zeros(4 * n, np.float32), np.zeros(3 * n, np.float32)
    kernels.lstm_forward(x, W, z, *zeros, h, c, a, np.ones((1, 2), np.float32))
    assert (z[..., :n] == 1).all() and (a == 1).all()
