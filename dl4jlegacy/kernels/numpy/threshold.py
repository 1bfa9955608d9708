"""The threshold codec in plain NumPy: selects the elements of a vector to send, as one quantum each.

A message is ``+(i + 1)`` or ``-(i + 1)`` for element i, which means one quantum ``+tau`` or ``-tau``; the rest of the
element remains for the next message. Source: Strom 2015, "Scalable distributed DNN training using commodity GPU cloud
computing", in the form of DL4J's encoder (its format FLEXIBLE, without the header).
"""

from __future__ import annotations

import math
from concurrent.futures import Executor

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError

__all__ = ["check_codes", "check_encode", "check_tau", "threshold_decode", "threshold_encode", "wrong_codes"]


def check_tau(tau: float) -> None:
    """Raise ``ConfError`` unless ``tau`` is a positive number."""
    if not 0 < tau < math.inf:
        raise ConfError(f"the threshold must be a positive number, got {tau!r}")


def check_encode(residual: Array, tau: float, codes: Array) -> None:
    """Raise unless all indices of the flat ``residual`` fit into ``codes``, a flat vector of int32."""
    check_tau(tau)
    if residual.ndim != 1 or codes.ndim != 1 or residual.size >= 2**31 or codes.dtype != np.int32:
        raise ShapeError(
            f"threshold_encode: {list(residual.shape)} elements and {list(codes.shape)} codes of {codes.dtype}; "
            "it needs flat vectors of fewer than 2^31 elements and codes of int32"
        )


def wrong_codes(size: int) -> ShapeError:
    """Return the error for codes that ``threshold_encode`` cannot have written for ``size`` elements."""
    return ShapeError(
        f"threshold_decode: the codes do not fit a vector of {size} elements; they must ascend in absolute value, "
        f"every one between 1 and {size}"
    )


def check_codes(codes: Array, size: int) -> Array:
    """Return the indices of ``codes``, which must ascend strictly and be less than ``size``."""
    indices = np.abs(codes.astype(np.int64)) - 1
    if codes.dtype != np.int32 or (codes.size and (indices[0] < 0 or indices[-1] >= size)):
        raise wrong_codes(size)
    if not np.all(indices[1:] > indices[:-1]):
        raise wrong_codes(size)
    return indices


def threshold_encode(residual: Array, tau: float, codes: Array, pool: Executor | None = None) -> int:
    """See ``Kernels``."""
    check_encode(residual, tau, codes)
    found = np.flatnonzero(np.abs(residual) >= tau)[: codes.size]
    values = residual[found]
    codes[: found.size] = np.where(values > 0, found + 1, -(found + 1))
    residual[found] = values - np.copysign(residual.dtype.type(tau), values)
    return int(found.size)


def threshold_decode(codes: Array, tau: float, target: Array) -> None:
    """See ``Kernels``."""
    check_tau(tau)
    indices = check_codes(codes, target.size)
    target[indices] += np.copysign(target.dtype.type(tau), codes.astype(target.dtype))
