"""The LSTM kernels: compiled against NumPy, and NumPy against the formulas written out one number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, settings
from hypothesis import given as given_
from hypothesis import strategies as st

from dl4jlegacy.errors import ShapeError
from dl4jlegacy.kernels import load

Arrays = dict[str, np.ndarray]


FORWARD = ("x", "W", "z", "recurrent", "b", "peepholes", "h", "c", "a", "mask")
BACKWARD = ("dh", "x", "z", "recurrent", "peepholes", "h", "c", "a", "mask")
GRADIENTS = ("gW", "gR", "gb")


def arrays(
    steps: int, rows: int, n: int, dtype: type, *, masked: bool, seed: int = 1, m: int = 5, one_hot: bool = False
) -> Arrays:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    mask = np.ones((steps, rows)) if not masked else np.arange(steps)[:, None] < rng.integers(1, steps + 1, rows)
    x = np.eye(m, dtype=dtype)[rng.integers(0, m, (steps, rows))] if one_hot else normal(steps, rows, m)
    return {
        "x": x, "W": normal(4 * n, m), "z": normal(steps, rows, 4 * n),
        "recurrent": normal(4 * n, n) * 0.3, "b": normal(4 * n), "peepholes": normal(3 * n),
        "h": normal(steps + 1, rows, n), "c": normal(steps + 1, rows, n), "a": np.zeros((steps, rows, n), dtype),
        "mask": mask.astype(dtype), "dh": normal(steps, rows, n),
        "gW": normal(4 * n, m), "gR": normal(4 * n, n), "gb": normal(4 * n),
    }  # fmt: skip


def run(name: str, given: Arrays, first: int = 0) -> Arrays:
    kernels, own = load(name), {key: value.copy() for key, value in given.items()}
    kernels.lstm_forward(*(own[key] for key in FORWARD))
    own["gates"] = own["z"].copy()
    kernels.lstm_backward(*(own[key] for key in BACKWARD), first, *(own[key] for key in GRADIENTS))
    return own


@settings(max_examples=60, deadline=None)
@given_(
    steps=st.integers(1, 7),
    rows=st.one_of(st.integers(1, 19), st.just(170)),  # so many that gradients are summed in several parts
    n=st.one_of(st.integers(1, 40), st.sampled_from([16, 32, 48])),
    first=st.integers(0, 3),
    masked=st.booleans(),
    m=st.integers(1, 40),
    one_hot=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 99),
)
@example(  # NumPy's negative in place was wrong
    steps=1, rows=2, n=1, first=0, masked=False, m=1, one_hot=False, dtype=np.float32, seed=0
)
@example(steps=7, rows=19, n=32, first=1, masked=True, m=40, one_hot=True, dtype=np.float32, seed=0)  # few are not zero
@example(steps=7, rows=19, n=16, first=0, masked=True, m=40, one_hot=True, dtype=np.float64, seed=0)
def test_compiled_cells_equal_those_in_numpy(
    steps: int, rows: int, n: int, first: int, masked: bool, m: int, one_hot: bool, dtype: type, seed: int
) -> None:
    first = min(first, steps - 1)
    given = arrays(steps, rows, n, dtype, masked=masked, seed=seed, m=m, one_hot=one_hot)
    numpy, numba = run("numpy", given, first), run("numba", given, first)
    close = {"rtol": 2e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-12}
    for key in ("gates", "h", "c", "a", "z"):
        np.testing.assert_allclose(numba[key], numpy[key], err_msg=key, **close)
    close["atol"] *= 1000**0.5
    for key in GRADIENTS:
        np.testing.assert_allclose(numba[key], numpy[key], err_msg=key, **close)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_cell_follows_the_published_formulas() -> None:
    steps, rows, n = 4, 2, 3
    given = arrays(steps, rows, n, np.float64, masked=True)
    found = run("numpy", given)
    p = given["peepholes"].reshape(3, n)
    for row in range(rows):
        h, c = list(given["h"][0, row]), list(given["c"][0, row])
        for t in range(steps):
            s = [
                float(given["W"][k] @ given["x"][t, row])
                + given["b"][k]
                + sum(h[j] * given["recurrent"][k, j] for j in range(n))
                for k in range(4 * n)
            ]
            on = given["mask"][t, row]
            for k in range(n):
                i, f = math.tanh(s[k]), sigmoid(s[n + k] + p[0, k] * c[k])
                g = sigmoid(s[3 * n + k] + p[2, k] * c[k])
                new = f * c[k] + g * i
                o = sigmoid(s[2 * n + k] + p[1, k] * new)
                h[k], c[k] = on * o * math.tanh(new), on * new
            assert found["h"][t + 1, row] == pytest.approx(h, rel=1e-12)
            assert found["c"][t + 1, row] == pytest.approx(c, rel=1e-12)


@pytest.mark.parametrize("name", ["numpy", "numba"])
def test_an_example_has_the_same_bits_in_any_batch(name: str) -> None:
    given = arrays(5, 4, 21, np.float32, masked=False)
    given["recurrent"][...], given["W"][...] = 0, 0  # what BLAS does with other sizes is its own affair
    whole = run(name, given)
    batched = ("x", "z", "h", "c", "a", "mask", "dh")
    alone = run(name, {k: np.ascontiguousarray(v[:, 2:3]) if k in batched else v for k, v in given.items()})
    for key in ("gates", "h", "c", "z"):
        assert alone[key].tobytes() == np.ascontiguousarray(whole[key][:, 2:3]).tobytes()


@pytest.mark.parametrize("name", ["numpy", "numba"])
@pytest.mark.parametrize("wrong", ["W", "recurrent", "b", "peepholes", "h", "c", "a", "mask"])
def test_arrays_that_do_not_fit_are_refused_by_name(name: str, wrong: str) -> None:
    given = arrays(3, 2, 4, np.float32, masked=False)
    given[wrong] = given[wrong][:-1]
    with pytest.raises(ShapeError, match="recurrent weights" if wrong == "recurrent" else wrong):
        run(name, given)
