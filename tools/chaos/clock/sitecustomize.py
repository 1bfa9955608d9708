"""Lets a chaos run change the wall clock of one process; Python imports this module at the start of the process.

The file named by ``CHAOS_CLOCK`` holds the clock's error in seconds, which may change at any moment. Only calls of
Python's ``time`` see the wrong time; monotonic clocks are not affected, as when an administrator sets the time.
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
