"""A trial of a GPU before it is used: a driver can be there without the libraries, or the wrong ones."""

from __future__ import annotations

import functools
import re
import time
from typing import Any

import numpy as np

from dl4jlegacy.errors import DeviceError

__all__ = ["INSTALL", "try_out", "words"]

INSTALL = "pip install 'dl4jlegacy[gpu]', or 'dl4jlegacy[gpu13]' for CUDA 13"

_TRIAL_SECONDS = 60.0
_TRIAL = 'extern "C" __global__ void dl4j_trial(float* x) { x[threadIdx.x] = threadIdx.x + 1; }'


@functools.cache
def try_out(cupy: Any, index: int) -> None:
    """Compile and run a kernel, an element-wise operation and a matrix product on a GPU; raises ``DeviceError``."""
    try:
        with cupy.cuda.Device(index):
            x = cupy.zeros(4, np.float32)
            cupy.RawModule(code=_TRIAL).get_function("dl4j_trial")((1,), (4,), (x,))
            x = (x + x).reshape(2, 2)
            product = cupy.matmul(x, x)
            _wait(cupy, index)
            found = product.get().tolist()
    except DeviceError:
        raise
    except Exception as exc:  # CuPy's errors have no base class of their own
        raise DeviceError(_why_it_failed(exc, index)) from exc
    if found != [[28.0, 40.0], [60.0, 88.0]]:
        raise DeviceError(f"gpu:{index} computes wrongly: a product of two matrices came out as {found}; do not use it")


def _wait(cupy: Any, index: int) -> None:
    """Wait for what has been launched on a GPU, but not for ever: one that hangs does not say so."""
    event, end = cupy.cuda.Event(disable_timing=True), time.monotonic() + _TRIAL_SECONDS
    event.record()
    while not event.done:
        if time.monotonic() > end:
            raise DeviceError(
                f"gpu:{index} has not answered for {_TRIAL_SECONDS:g} s; does nvidia-smi work here, is the GPU "
                "somebody else's? Choose another one, or --device cpu"
            )
        time.sleep(0.001)


def _why_it_failed(exc: Exception, index: int) -> str:
    text, said = str(exc), words(exc)
    library = re.search(r"lib(nvrtc|cublas|cudart|curand|cusolver|cusparse|nvJitLink)", text)
    if library is not None:
        names = {"nvrtc": "NVRTC", "cublas": "cuBLAS"}
        return (
            f"the NVIDIA driver is here, but CUDA's library {names.get(library[1], library[1])} is not: {said}; "
            f"{INSTALL}, which bring CUDA's libraries along"
        )
    if "cuda_fp16.h" in text or "CUDA headers" in text or "CUDA_PATH" in text:
        return f"the NVIDIA driver is here, but CUDA's headers are not: {said}; {INSTALL}, which bring them along"
    if (
        "PTX" in text
        or "NoKernelImage" in text
        or "NO_BINARY" in text
        or "invalid value for --gpu-architecture" in text
    ):
        return (
            f"wrong CUDA version: this CuPy's libraries do not fit gpu:{index} or its driver: {said}; install a newer "
            f"driver, or another CuPy: {INSTALL}"
        )
    if isinstance(exc, MemoryError) or "cudaErrorMemoryAllocation" in text:
        return f"gpu:{index} has no free memory: {said}; nvidia-smi shows who uses it"
    return f"gpu:{index} is here, but a trial failed on it: {said}; does nvidia-smi report errors?"


def words(exc: BaseException) -> str:
    """Return the first words of an error's text, on one line: CuPy's own can be a page."""
    lines = [line.strip(" =\t") for line in str(exc).splitlines()]
    text = " ".join(line for line in lines if line) or type(exc).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
