"""The checks of GPUs on a stand-in for one, which runs the kernels in CUDA C on the CPU."""

from __future__ import annotations

from typing import Any

from dl4jlegacy.doctor import Settings
from dl4jlegacy.doctor.gpus import cudnn, gpus
from tests.support.standin import cupy


def test_the_kernels_of_a_gpu_are_compared_with_the_formulas(device_arrays: Any) -> None:
    settings = Settings(device="gpu:0")
    found = gpus(settings)
    assert found.status == "ok" and found.found.startswith("gpu:0 "), found.found
    found = cudnn(settings)
    assert (found.status == "ok") == found.found.startswith("cudnn 9."), found.found


def test_a_gpu_whose_products_are_wrong_is_found(device_arrays: Any, monkeypatch: Any) -> None:
    from dl4jlegacy.kernels.cuda.kernels import CupyKernels

    right = CupyKernels.softmax
    monkeypatch.setattr(CupyKernels, "softmax", lambda kernels, z: (right(kernels, z), z.__imul__(cupy.float32(1.01))))
    found = gpus(Settings(device="gpu:0"))
    assert found.status == "failed" and "softmax" in found.found, found.found
