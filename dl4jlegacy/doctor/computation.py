"""The kernels: which there are, where they are kept, whether that is whole, and whether they compute right."""

from __future__ import annotations

import math
import os
import pickletools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dl4jlegacy.doctor.check import Check, Finding, Mend, Settings, failed, ok, skipped, warning
from dl4jlegacy.doctor.folders import folder_finding
from dl4jlegacy.errors import counted
from dl4jlegacy.kernels import load, load_for_host
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.system.clock import RUNNING

__all__ = ["checks", "largest_difference"]

_TOLERANCE = 1e-5
_ROWS, _COLUMNS = 37, 29  # no multiple of a vector's length
_COMPILE_SECONDS = 180.0


def implementation(settings: Settings) -> Finding:
    """Look at which kernels a run would take: compiled ones, unless Numba is missing or others are asked for."""
    kernels, asked = load_for_host(), settings.environ.get("DL4J_KERNELS", "")
    if kernels.name != "numpy":
        return ok(f"{kernels.name}'s, compiled for this processor")
    if asked == "numpy":
        found = "NumPy's, which DL4J_KERNELS asks for: several times slower than Numba's"
        return warning(found, "unset DL4J_KERNELS")
    found = "NumPy's, since Numba cannot be imported: several times slower"
    return warning(found, "install Numba again: ./install in the clone of dl4jlegacy")


def cache_folder(settings: Settings) -> Finding:
    """Look at the folder of compiled kernels: without one, each process compiles all of its kernels anew."""
    if load_for_host().name == "numpy":
        return skipped("NumPy's kernels are not compiled")
    from dl4jlegacy.kernels.numba.compile import cache_folder as numba_cache_folder

    folder = numba_cache_folder()
    if folder is None:
        found = "there is none that can be written to: every command would compile its kernels anew, for many seconds"
        return warning(found, "set NUMBA_CACHE_DIR to a folder of yours, or make ~/.cache writable")
    named = settings.environ.get("NUMBA_CACHE_DIR", "")
    if named and not folder.is_relative_to(Path(named).absolute()):
        return warning(f"NUMBA_CACHE_DIR is {named}, which cannot be used, and {folder} is taken", "set it to another")
    finding = folder_finding(folder, "set NUMBA_CACHE_DIR to another folder")
    return warning(finding.found, finding.remedy, finding.mend) if finding.status == "failed" else finding


def cached_kernels(settings: Settings) -> Finding:
    """Look at the files of the cache: a kernel whose file is damaged, by a full disk for instance, is compiled anew."""
    if load_for_host().name == "numpy":
        return skipped("NumPy's kernels are not compiled")
    from dl4jlegacy.kernels.numba.compile import cache_folder as numba_cache_folder

    folder = numba_cache_folder()
    if folder is None or not folder.is_dir():
        return ok("nothing is kept yet")
    names = [file for file in sorted(folder.iterdir()) if file.suffix in (".nbi", ".nbc")]
    damaged = tuple(file for file in names if not _is_whole(file))
    if damaged:
        found = f"{counted(len(damaged), 'file')} of {len(names)} in {folder} damaged, such as {damaged[0].name}"
        remedy = "dl4j doctor --fix removes them; with them every process compiles these kernels anew"
        return warning(found, remedy, Mend(files=damaged))
    return ok(f"{counted(len(names), 'file')} in {folder}, all whole")


def _is_whole(file: Path) -> bool:
    """Return whether a file of Numba's cache can be read to its end; its pickles are parsed, and nothing is made of it.

    What was removed meanwhile is no damage: another process may be at work.
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
    except Exception:  # noqa: BLE001  # whatever the parser says of what is no pickle
        return False


def compiled_kernels(settings: Settings) -> Finding:
    """Compile kernels, or load them from the cache, and compare what they compute with NumPy's formulas."""
    kernels = load_for_host()
    if kernels.name == "numpy":
        return skipped("NumPy's kernels are the formulas themselves")
    began = RUNNING.now()
    name, difference = largest_difference(kernels, load("numpy"))
    seconds = RUNNING.now() - began
    if not difference <= _TOLERANCE:
        found = f"{name} computes something else than its formula: it differs by {difference:.2g} of 1"
        return failed(found, "set DL4J_KERNELS=numpy, install Numba and llvmlite again, and report it with this line")
    found = f"ready after {seconds:.1f} s; they differ from the formulas by {difference:.1g} at most ({name})"
    return ok(found)


def largest_difference(kernels: Kernels, oracle: Kernels) -> tuple[str, float]:
    """Return which kernel differs most from the oracle's, and by how much of the larger of 1 and the value."""
    worst = ("", -1.0)
    pairs = zip(_computed(kernels), _computed(oracle), strict=True)
    for (name, found), (_, expected) in pairs:
        scale = np.maximum(1.0, np.abs(expected))
        difference = float(np.max(np.abs(found - expected) / scale))
        if math.isnan(difference):
            return name, difference  # nothing is worse
        worst = max(worst, (name, difference), key=lambda each: each[1])
    return worst


def _computed(kernels: Kernels) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names of kernels, and what they make of numbers that are the same everywhere; on the host."""
    from dl4jlegacy.arrays.backend import to_host

    xp = kernels.xp
    mixed = np.arange(1, _ROWS * _COLUMNS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers = ((mixed >> np.uint64(11)).astype(np.float64) / 2.0**51 - 2.0).astype(np.float32)
    x, b = xp.asarray(numbers.reshape(_ROWS, _COLUMNS)), xp.asarray(numbers[:_COLUMNS])
    for activation in ("tanh", "sigmoid"):
        z = x.copy()
        kernels.bias_activation(z, b, activation)
        yield f"{activation}", to_host(z)
    p = x.copy()
    kernels.softmax(p)
    yield "softmax", to_host(p)
    sums = xp.zeros(_COLUMNS, np.float32)
    kernels.column_sums(x, sums)
    yield "column sums", to_host(sums)
    product = xp.zeros((_ROWS, _ROWS), np.float32)
    kernels.matmul(x, x.T, product)
    yield "matrix product", to_host(product)


def _always(settings: Settings) -> bool:
    return True


def checks() -> tuple[Check, ...]:
    """Return the checks of the kernels; the last is the only one that computes for longer."""
    area = "Kernels"
    return (
        Check(name="kernels", area=area, look=implementation, is_needed=_always, seconds=60.0),
        Check(name="kernel cache folder", area=area, look=cache_folder, needs=("kernels",)),
        Check(name="kernel cache", area=area, look=cached_kernels, seconds=30.0, needs=("kernels",)),
        Check(
            name="compiled kernels",
            area=area,
            look=compiled_kernels,
            is_needed=_always,
            seconds=_COMPILE_SECONDS,
            needs=("kernel cache",),
        ),
    )
