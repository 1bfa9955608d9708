"""Lets a chaos run step the wall clock of one process, which Python imports this into at its start.

The file that ``CHAOS_CLOCK`` names holds by how many seconds the clock is wrong, and may change at any moment. Only
what asks Python's ``time`` is deceived; monotonic clocks go on as they do when an administrator sets the time.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

__all__ = ()

_SECONDS = struct.Struct("<d")


def _deceive(path: str) -> None:
    with open(path, "rb") as file:
        view = mmap.mmap(file.fileno(), _SECONDS.size, access=mmap.ACCESS_READ)
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + _SECONDS.unpack(view)[0]
    time.time_ns = lambda: real_ns() + int(_SECONDS.unpack(view)[0] * 1e9)


if "CHAOS_CLOCK" in os.environ:
    _deceive(os.environ["CHAOS_CLOCK"])
