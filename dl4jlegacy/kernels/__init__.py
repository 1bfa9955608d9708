"""Kernels: the fused loops in which training spends most of its time.

``load()`` returns an implementation of ``Kernels`` (see ``protocol``) for CPUs: the module ``numba.kernels`` (compiled
loops, the fast one) or ``numpy.kernels`` (plain NumPy: the reference for tests, and the fallback without Numba). The
module itself is the object: it has no state, and every function works in place on its arrays. ``load("cupy")`` returns
an object of ``cuda.kernels`` for one GPU, whose arrays are CuPy's; these kernels are only used on request.
"""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from typing import cast

from dl4jlegacy.errors import ConfError, VersionError, how_to_install, nearest
from dl4jlegacy.kernels.protocol import Kernels

__all__ = ["load", "load_for_host"]

_CPU = ("numba", "numpy")


@functools.cache
def _load(name: str) -> Kernels:
    if name == "numpy":
        from dl4jlegacy.kernels.numpy import kernels as numpy_kernels

        return cast(Kernels, numpy_kernels)
    if name != "numba":
        raise ConfError(f"unknown kernels {name!r}{nearest(name, (*_CPU, 'cupy'))}")
    try:
        from numba import config

        if getattr(config, "DISABLE_JIT", 0):
            raise VersionError("kernels 'numba' cannot be used: NUMBA_DISABLE_JIT forbids to compile them; unset it")
        from dl4jlegacy.kernels.numba import kernels as numba_kernels
    except ImportError as exc:  # missing, or a Numba that does not fit this NumPy or Python
        raise VersionError(
            f"kernels 'numba' cannot be used here: {exc}; install numba. A run keeps to the kernels it began with, "
            "since others round differently: to use 'numpy' instead, begin a new one"
        ) from exc
    return cast(Kernels, numba_kernels)


def _load_cupy(device: int, precision: str) -> Kernels:
    from dl4jlegacy.kernels.cuda.kernels import CupyKernels

    try:
        return cast(Kernels, CupyKernels(device, precision))
    except ImportError as exc:
        raise VersionError(f"kernels 'cupy' cannot be used here: {exc}; {how_to_install('gpu', 'gpu13')}") from exc


def load(name: str | None = None, device: int = 0, precision: str = "float32") -> Kernels:
    """Return the kernels called ``name``: ``"numba"``, ``"numpy"`` or ``"cupy"``.

    ``None`` means the environment variable ``DL4J_KERNELS``, else numba if it can be imported, else numpy. The import
    of Numba takes about half a second; a kernel is compiled (or read from Numba's cache) at its first call.

    Args:
        name: name of the kernels; ``"cupy"`` gives a new object at every call, for one thread and one GPU.
        device: number of the GPU, for cupy only.
        precision: of matrix products on a GPU, ``"float32"``, ``"tf32"`` or ``"bf16"``; for cupy only.

    Raises:
        ConfError: there are no kernels of that name, or no such precision.
        VersionError: numba or cupy was requested by name and cannot be imported.
    """
    if name == "cupy":
        return _load_cupy(device, precision)
    chosen = name or os.environ.get("DL4J_KERNELS")
    if chosen == "cupy":  # whoever asks for no kernels in particular has arrays in the host's memory
        raise ConfError(f"DL4J_KERNELS=cupy: the variable names kernels for CPUs, {_CPU}; ask for a GPU with --device")
    if chosen:
        return _load(chosen)
    return _best()


def load_for_host() -> Kernels:
    """Return kernels for arrays in the host's memory, in a process that may compute on a GPU.

    ``DL4J_KERNELS`` selects one of the CPU kernels; it is ignored if it names a GPU's kernels.

    Raises:
        ConfError, VersionError: as for ``load``.
    """
    chosen = os.environ.get("DL4J_KERNELS", "")
    return _load(chosen) if chosen and chosen != "cupy" else _best()


def _best() -> Kernels:
    """Return the compiled kernels if Numba can be imported and compiles, else NumPy's."""
    if find_spec("numba") is None:
        return _load("numpy")
    try:
        return _load("numba")
    except VersionError:
        return _load("numpy")
