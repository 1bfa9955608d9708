"""Kernels in plain NumPy: the oracle of the tests, and the fallback where Numba is missing."""
