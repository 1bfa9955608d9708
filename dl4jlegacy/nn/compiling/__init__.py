"""Compilation of kernels before training, and their comparison between machines."""
