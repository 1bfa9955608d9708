"""Kernels compiled by Numba for CPUs: what training runs on by default."""
