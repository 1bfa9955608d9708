"""Kernels in plain NumPy: the reference for tests, and the fallback without Numba."""
