"""Placeholder until the compiled kernels land: the NumPy ones under the name ``numba``."""

from dl4jlegacy.kernels.numpy_kernels import *  # noqa: F403

name = "numba"
