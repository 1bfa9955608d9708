"""Kernels compiled by Numba for CPUs: the default for training."""
