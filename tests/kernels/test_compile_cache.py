"""A cache of compiled kernels that cannot be written costs time, not the run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile

from dl4jlegacy.kernels.numba import compile as compiling
from dl4jlegacy.kernels.numba.compile import kernel


def double(x):
    """Double every element."""
    for i in range(x.size):
        x[i] *= 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "denied"), EOFError()])
@pytest.mark.parametrize("when", ["save", "load"])
def test_a_kernel_is_compiled_whatever_becomes_of_the_cache(error, when, monkeypatch):
    def fail(self, *args):
        raise error

    monkeypatch.setattr(IndexDataCacheFile, when, fail)
    x = np.ones(3, np.float32)
    kernel("m")(double)(x)
    assert x.tolist() == [2, 2, 2]


def test_threads_that_need_a_kernel_at_once_compile_it_once(monkeypatch):
    compiled, together = [], Barrier(2, timeout=60)

    def compile_cached(signature, function):
        compiled.append(function)
        return function

    monkeypatch.setattr(compiling, "compile_cached", compile_cached)
    shared, x = kernel("m")(double), np.ones((2, 3), np.float32)

    def call(row):
        together.wait()
        shared(row)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, x))
    assert (x == 2).all()
    assert len(compiled) == 1
