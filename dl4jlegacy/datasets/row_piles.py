"""Rows that come in one order and are written in another, by files that are written and read from their beginning."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dl4jlegacy.backend import Array

__all__ = ["Piles"]

_PILE = 8 << 20  # bytes of a pile, which is in memory at the end
_MOST = 256  # piles, each an open file


class Piles:
    """Rows in temporary files, one for each range of places.

    Args:
        opened: closes the files.
        folder: for them.
        rows: how many there will be, with the places 0 to ``rows - 1``.
        width: float32 numbers of a row.

    Raises:
        OSError: the disk refuses.
    """

    def __init__(self, opened: contextlib.ExitStack, folder: Path, rows: int, width: int) -> None:
        self._rows, self._width = rows, width
        self._each = max(1, _PILE // (4 * width), -(-rows // _MOST))
        count = -(-rows // self._each)
        self._files = [opened.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(count)]  # noqa: SIM115  # opened closes them
        self._type = np.dtype([("place", np.int64), ("row", np.float32, (width,))])

    def add(self, places: npt.NDArray[np.intp], rows: Array) -> None:
        """Add rows, ``(rows, width)`` float32, that belong to these places; raises ``OSError``."""
        order = np.argsort(places, kind="stable")
        records = np.empty(len(places), self._type)
        records["place"], records["row"] = places[order], rows[order]
        bounds = np.searchsorted(records["place"], np.arange(len(self._files) + 1) * self._each)
        for file, start, stop in zip(self._files, bounds[:-1], bounds[1:], strict=True):
            if stop > start:
                file.write(records[start:stop].tobytes())

    def in_order(self) -> Iterator[Array]:
        """Yield all rows in the order of their places, a pile at a time; raises ``OSError``."""
        for index, file in enumerate(self._files):
            file.flush()
            file.seek(0)
            records = np.frombuffer(file.read(), self._type)
            found = np.empty((min(self._each, self._rows - index * self._each), self._width), np.float32)
            found[records["place"] - index * self._each] = records["row"]
            file.close()  # which gives its room back
            yield found
