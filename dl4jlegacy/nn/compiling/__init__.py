"""Kernels compiled ahead of training, and checked against NumPy."""
