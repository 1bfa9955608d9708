"""Kernels for GPUs: CuPy, cuBLAS, cuDNN and CUDA sources of our own."""
