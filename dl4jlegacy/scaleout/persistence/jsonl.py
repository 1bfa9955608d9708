"""Files of records in a run's folder, with one line of JSON per record, and the thread that writes them.

Nothing in a run depends on them: a failed write causes a warning, and is repeated later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout.persistence.own_folder import NotYetThereError
from dl4jlegacy.storage.folders import LinesFolder, Mark
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.exits import exits_as_errors
from dl4jlegacy.system.service_threads import ServiceThread

__all__ = ["MOST_WAITING", "JsonlFile", "JsonlWriter"]

logger = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Maximum number of records that wait for a folder that hangs or is full; then the oldest are dropped."""
_LEAST_REST_SECONDS, _MOST_REST_SECONDS = 1.0, 5.0
_CLOSE_SECONDS = 30.0
R = TypeVar("R", bound=msgspec.Struct)


class JsonlFile(Generic[R]):
    """Records of one kind in a file of a run's folder, which only grows.

    For one thread of one process at a time. If the file cannot be written, for example on a full disk, this logs a
    warning and writes the missing records as soon as possible.

    Args:
        folder: of the run.
        name: of the file.
        kind: of the records.
        what: the content of the file, for messages.

    Attributes:
        waits: whether records wait until the folder exists.
    """

    def __init__(self, folder: LinesFolder, name: str, kind: type[R], what: str) -> None:
        self.place = f"{folder.place.rstrip('/')}/{name}"
        self.what = what
        self._folder, self._name, self._kind = folder, name, kind
        self._missing: deque[R] = deque(maxlen=MOST_WAITING)
        self._failed = self.waits = False
        self._mark: Mark | None = None

    def lines(self) -> list[R]:
        """Return the records in the order of the file. A line that was truncated by a crash is left out.

        Raises:
            OSError: there is no such file, or it cannot be read. CloudError and its like: errors reported by AWS.
        """
        return self._decoded(self._folder.read_lines(self._name))

    def new_lines(self) -> tuple[list[R], bool]:
        """Return the records since the last call, and whether they are all records of the file.

        They are at the first call, or if the file is new; otherwise only the appended part is read. A line that is
        still being written is returned once it is complete. Raises as ``lines``.
        """
        found = self._folder.read_new_lines(self._name, self._mark)
        self._mark = found.mark
        return self._decoded(found.lines), found.is_all

    def _decoded(self, lines: Iterable[bytes]) -> list[R]:
        records = []
        for line in lines:
            try:
                records.append(msgspec.json.decode(line, type=decodable(self._kind)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                logger.debug("a line of %s is no %s", self.place, self._kind.__name__)
        return records

    def append(self, records: Iterable[R]) -> bool:
        """Append records, after those that could not be written before; return whether all are now in the file."""
        self._missing.extend(records)
        if not self._missing:
            return True
        try:
            new = self.unwritten(tuple(self._missing))
            if new:
                self._folder.append(self._name, b"".join(msgspec.json.encode(record) + b"\n" for record in new))
                self.wrote(new)
            self._missing.clear()
            self._failed = self.waits = False
        except NotYetThereError:  # written once the run has taken its folder, or created it again
            self.waits = True
            return False
        except (OSError, Dl4jError) as exc:
            if not self._failed:
                logger.warning("%s %s cannot be written: %s", self.what, self.place, str(exc))
            self._failed = True
        return not self._failed

    def unwritten(self, records: Sequence[R]) -> Sequence[R]:
        """Return those of ``records`` that must be written; overridden by subclasses."""
        return records

    def wrote(self, records: Sequence[R]) -> None:
        """Note that these records were written; overridden by subclasses."""


class JsonlWriter(Generic[R]):
    """Writes a file of records on its own thread, so that a folder that hangs delays no other thread.

    After each write the thread rests as long as the write took, and at least one second. Otherwise a run whose rounds
    take a few milliseconds would open its file in every round, and delay the training threads.

    Args:
        file: used by that thread only.
    """

    def __init__(self, file: JsonlFile[R]) -> None:
        self._file = file
        self._records: deque[R] = deque(maxlen=MOST_WAITING)
        self._lock = threading.Lock()
        self.added = self.written = 0
        """Numbers of records that were added, and of those that were written to the file or dropped."""
        self._news, self._closed = threading.Event(), threading.Event()
        self._thread = ServiceThread(target=self._run, name="dl4j-lines")
        self._thread.start()

    def add(self, records: Sequence[R]) -> int:
        """Queue records to be written soon, after earlier ones that could not be written; does not wait.

        Returns the value that ``written`` reaches when these records are in the file.
        """
        with self._lock:
            self._records.extend(records)
            self.added += len(records)
            added = self.added
        self._news.set()
        return added

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Write the remaining records, and end; logs a warning if the folder hangs for more than ``seconds``."""
        self._closed.set()
        self._news.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning("%s was not written within %.0f s; its last lines are lost", self._file.what, seconds)
        elif self._file.waits:
            logger.warning(
                "%s is not in %s: its folder is gone; its last lines are lost", self._file.what, self._file.place
            )

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._news.wait()
            self._news.clear()
            is_last = self._closed.is_set()
            began = time.monotonic()
            self._write()
            took = time.monotonic() - began
            self._closed.wait(min(_MOST_REST_SECONDS, max(_LEAST_REST_SECONDS, took)))

    def _write(self) -> None:
        with self._lock:
            records, added = tuple(self._records), self.added
            self._records.clear()
        try:
            with exits_as_errors():
                if self._file.append(records):
                    self.written = added
        except Exception:  # the run continues without the file
            logger.exception("%s failed", self._file.what)
