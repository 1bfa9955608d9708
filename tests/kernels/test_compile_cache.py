"""A cache of compiled kernels that cannot be written costs time, not the run."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile

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
