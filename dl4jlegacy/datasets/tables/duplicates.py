"""Finds duplicate rows of a table of any size by a 64-bit hash of each row, in memory or in temporary files.

Memory is bounded: some millions of rows, or one of the parts into which the rows are divided on disk.
"""

from __future__ import annotations

import contextlib
import tempfile
from array import array
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

__all__ = ["Duplicates"]

_HELD = 1 << 21  # rows, of 16 bytes each
_PARTS = 64
_ROW = np.dtype([("key", np.uint64), ("line", np.uint64)])


class Duplicates(contextlib.ExitStack):
    """Rows as a hash and a line number; a context manager, used by one thread.

    Args:
        held: maximum rows in memory; more are stored in temporary files.

    Raises:
        OSError: a temporary file cannot be written, in ``add`` and ``found``.
    """

    def __init__(self, held: int = _HELD) -> None:
        super().__init__()
        self._held, self._rows = held, array("Q")
        self._files = list[BinaryIO]()

    def add(self, key: int, line: int) -> None:
        """Add a row: a hash of its cells (the lower 64 bits are used) and its line."""
        self._rows.append(key & 0xFFFFFFFFFFFFFFFF)
        self._rows.append(line)
        if len(self._rows) >= 2 * self._held:
            self._write()

    def found(self, examples: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of duplicate rows, and the lines of the first ``examples`` of them."""
        count, first = 0, list[int]()
        for rows in self._parts():
            order = np.lexsort((rows["line"], rows["key"]))
            keys = rows["key"][order]
            again = rows["line"][order][1:][keys[1:] == keys[:-1]]
            count += len(again)
            first = sorted([*first, *np.sort(again)[:examples].tolist()])[:examples]
        return count, tuple(first)

    def _in_memory(self) -> npt.NDArray[np.void]:
        return np.frombuffer(self._rows, _ROW) if self._rows else np.empty(0, _ROW)

    def _write(self) -> None:
        """Write the rows in memory to the files; the key of a row selects its file."""
        if not self._files:
            for _ in range(_PARTS):
                self._files.append(self.enter_context(tempfile.TemporaryFile(prefix="dl4j-rows-")))  # noqa: SIM115
        rows = self._in_memory()
        parts = (rows["key"] % np.uint64(_PARTS)).astype(np.intp)
        for part, file in enumerate(self._files):
            file.write(rows[parts == part].tobytes())
        del rows  # an exported array cannot be resized
        self._rows = array("Q")

    def _parts(self) -> Iterator[npt.NDArray[np.void]]:
        """Yield all rows, in parts that each have all rows with the same key; one part at a time is in memory."""
        if not self._files:
            yield self._in_memory()
            return
        self._write()
        for file in self._files:
            file.seek(0)
            yield np.frombuffer(file.read(), _ROW)
