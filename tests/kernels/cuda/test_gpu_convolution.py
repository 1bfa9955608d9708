"""Convolution on a real GPU: both ways against NumPy, and the same bits from one call to the next."""

from __future__ import annotations

import numpy as np
import pytest

from dl4jlegacy.kernels import load
from tests.kernels.cuda.test_convolution import SHAPES, TOLERANCE, Arrays
from tests.kernels.cuda.test_cudnn_convolution import images

pytestmark = pytest.mark.gpu


def both_times(arrays: Arrays, way: str) -> None:
    kernels = load("cupy")
    if way == "cudnn" and kernels.convolution_path == "own":  # type: ignore[attr-defined]
        pytest.skip(f"not through cuDNN: {kernels.convolution_reason}")  # type: ignore[attr-defined]
    with kernels.use():  # type: ignore[attr-defined]
        first, second = (arrays.run(kernels, kernels.xp.asarray, lambda array: array.get()) for _ in range(2))
    if way == "cudnn":
        assert not kernels._cudnn.refused  # type: ignore[attr-defined]
    arrays.agree(first)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("char", "fd")
@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_the_own_way_is_numpys(index: int, char: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DL4J_CUDNN", "0")
    both_times(Arrays(index, char), "own")


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_through_cudnn_it_is_numpys(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Winograd's algorithm is allowed, and rounds more than a plain sum."""
    monkeypatch.delenv("DL4J_CUDNN", raising=False)
    monkeypatch.setitem(TOLERANCE, "f", 1e-4)
    both_times(images(index), "cudnn")
