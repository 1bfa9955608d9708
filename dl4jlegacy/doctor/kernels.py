"""Checks of the kernels: which ones are used, whether their cache is undamaged, and whether results are correct."""

from __future__ import annotations

import math
import os
import pickletools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dl4jlegacy.doctor.check import Check, Finding, Settings, always, failed, ok, skipped, warning
from dl4jlegacy.errors import counted
from dl4jlegacy.kernels import load, load_for_host
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.system.clock import RUNNING

__all__ = ["CHECKS", "largest_difference"]

_TOLERANCE = 1e-5
_ROWS, _COLUMNS = 37, 29  # not multiples of a vector's length


def kernels(settings: Settings) -> Finding:
    """Check which kernels a run would use."""
    found = load_for_host()
    if found.name != "numpy":
        return ok(f"{found.name}'s, compiled for this processor")
    if settings.environ.get("DL4J_KERNELS"):
        return warning("NumPy's, since DL4J_KERNELS asks for them: several times slower", "unset DL4J_KERNELS")
    remedy = "install Numba again: ./install in the clone of dl4jlegacy"
    return warning("NumPy's, since Numba cannot be imported: several times slower", remedy)


def kernel_cache(settings: Settings) -> Finding:
    """Check the cache of compiled kernels: its folder, and whether its files are complete."""
    if load_for_host().name == "numpy":
        return skipped("NumPy's kernels are not compiled")
    from dl4jlegacy.kernels.numba.compile import cache_folder

    folder = cache_folder()
    if folder is None:
        found = "no folder for it can be written to: every command would compile its kernels anew, for many seconds"
        return warning(found, "set NUMBA_CACHE_DIR to a folder of yours, or make ~/.cache writable")
    names = [file for file in sorted(folder.glob("*")) if file.suffix in (".nbi", ".nbc")]
    damaged = tuple(file for file in names if not _is_whole(file))
    if damaged:
        found = f"{counted(len(damaged), 'file')} of {len(names)} in {folder} damaged, such as {damaged[0].name}"
        remedy = "dl4j doctor --fix removes them; with them every process compiles these kernels anew"
        return warning(found, remedy, removes=damaged)
    return ok(f"{counted(len(names), 'file')} in {folder}, all whole")


def _is_whole(file: Path) -> bool:
    """Return whether a file of Numba's cache is complete: its pickles are parsed, not loaded.

    A file that another process has just removed is not damaged.
    """
    try:
        with file.open("rb") as stream, open(os.devnull, "w", encoding="utf-8") as nowhere:
            size = os.fstat(stream.fileno()).st_size
            while True:
                pickletools.dis(stream, out=nowhere)
                if stream.tell() >= size:
                    return True
    except FileNotFoundError:
        return True
    except Exception:  # noqa: BLE001  # any error of the parser for data that are no pickle
        return False


def compiled_kernels(settings: Settings) -> Finding:
    """Compile kernels, or load them from the cache, and compare their results with NumPy's formulas."""
    found = load_for_host()
    if found.name == "numpy":
        return skipped("NumPy's kernels are the formulas themselves")
    began = RUNNING.now()
    name, difference = largest_difference(found, load("numpy"))
    seconds = RUNNING.now() - began
    if not difference <= _TOLERANCE:
        wrong = f"{name} computes something else than its formula: it differs by {difference:.2g} of 1"
        return failed(wrong, "set DL4J_KERNELS=numpy, install Numba and llvmlite again, and report it with this line")
    return ok(f"ready after {seconds:.1f} s; they differ from the formulas by {difference:.1g} at most ({name})")


def largest_difference(kernels: Kernels, oracle: Kernels) -> tuple[str, float]:
    """Return the kernel that differs most from the oracle, and its difference.

    Differences are divided by the larger of 1 and the oracle's value.
    """
    differences = {
        name: float(np.max(np.abs(found - expected) / np.maximum(1.0, np.abs(expected))))
        for (name, found), (_, expected) in zip(_computed(kernels), _computed(oracle), strict=True)
    }
    return max(differences.items(), key=lambda each: math.inf if math.isnan(each[1]) else each[1])


def _computed(kernels: Kernels) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names of kernels and their results, on the host, for inputs that are the same on every machine."""
    from dl4jlegacy.arrays.backend import to_host

    xp = kernels.xp
    mixed = np.arange(1, _ROWS * _COLUMNS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers = ((mixed >> np.uint64(11)).astype(np.float64) / 2.0**51 - 2.0).astype(np.float32)
    x, b = xp.asarray(numbers.reshape(_ROWS, _COLUMNS)), xp.asarray(numbers[:_COLUMNS])
    for activation in ("tanh", "sigmoid"):
        z = x.copy()
        kernels.bias_activation(z, b, activation)
        yield activation, to_host(z)
    p = x.copy()
    kernels.softmax(p)
    yield "softmax", to_host(p)
    sums = xp.zeros(_COLUMNS, np.float32)
    kernels.column_sums(x, sums)
    yield "column sums", to_host(sums)
    product = xp.zeros((_ROWS, _ROWS), np.float32)
    kernels.matmul(x, x.T, product)
    yield "matrix product", to_host(product)


CHECKS = (
    Check("kernels", "Kernels", kernels, is_needed=always, seconds=60.0),
    Check("kernel cache", "Kernels", kernel_cache, need="kernels"),
    Check("compiled kernels", "Kernels", compiled_kernels, is_needed=always, seconds=180.0, need="kernel cache"),
)
