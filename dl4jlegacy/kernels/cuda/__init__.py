"""Kernels for GPUs: CuPy, cuBLAS, cuDNN and our own CUDA sources."""
