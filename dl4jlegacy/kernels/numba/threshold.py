"""The threshold codec, compiled: one pass each over what ``numpy.threshold`` reads several times."""

from __future__ import annotations

from dl4jlegacy.backend import Array
from dl4jlegacy.kernels.numba.compile import kernel

__all__ = ["threshold_decode", "threshold_encode"]

_STRETCH = 64


@kernel("mCf")
def threshold_encode(residual: Array, codes: Array, tau: float) -> int:
    """Write the codes and take their quanta off the residual; most stretches hold none, and are only counted."""
    quantum = residual.dtype.type(tau)
    capacity, found = codes.size, 0
    for low in range(0, residual.size, _STRETCH):
        part = residual[low : low + _STRETCH]
        some = 0
        for i in range(part.size):
            some += abs(part[i]) >= quantum
        if not some:
            continue
        for i in range(part.size):
            if abs(part[i]) >= quantum and found < capacity:
                code = low + i + 1
                codes[found] = code if part[i] > 0 else -code
                part[i] -= quantum if part[i] > 0 else -quantum
                found += 1
        if found == capacity:
            break
    return found


@kernel("mcf")
def threshold_decode(target: Array, codes: Array, tau: float) -> bool:
    """Add the quanta, or return False before anything is added if the codes do not ascend or lie outside."""
    quantum, last = target.dtype.type(tau), 0
    for code in codes:
        index = abs(int(code))
        if index <= last or index > target.size:
            return False
        last = index
    for code in codes:
        target[abs(int(code)) - 1] += quantum if code > 0 else -quantum
    return True
