"""``OwnFolder``: appends history, journal and statistics to a run's folder as long as the run owns the folder.

The checkpoint store takes the folder, and creates it again if it is gone. Nothing is appended while it is missing, or
to a folder that another run owns.
"""

from __future__ import annotations

import msgspec

from dl4jlegacy.errors import StorageError
from dl4jlegacy.storage.folders import Folder, Lines, Mark
from dl4jlegacy.system.decoding import decodable

__all__ = ["CONF", "NotYetThereError", "OwnFolder", "Whose", "whose"]

CONF = "conf.json"
"""The name of the ``Conf`` in a run's folder, which identifies the owner."""


class Whose(msgspec.Struct, frozen=True):
    """The owner of a folder according to its Conf; "" is unknown, as in older ones."""

    run: str = ""
    incarnation: str = ""


def whose(folder: Folder) -> Whose | None:
    """Return the owner of a folder; None if it has no Conf, or the Conf cannot be decoded.

    Raises:
        OSError: the owner is unknown at the moment. CloudError and its like: errors reported by a service.
    """
    try:
        return msgspec.json.decode(folder.read(CONF), type=decodable(Whose))
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class NotYetThereError(StorageError):
    """A run's folder does not exist, or not yet."""


class OwnFolder:
    """Appends lines to files in the folder of one run. Used by one thread at a time.

    Args:
        folder: the folder.
        incarnation: of the run.
    """

    def __init__(self, folder: Folder, incarnation: str) -> None:
        self._folder, self._incarnation = folder, incarnation

    @property
    def place(self) -> str:
        """See ``Folder``."""
        return self._folder.place

    def append(self, name: str, lines: bytes) -> None:
        """See ``Folder``.

        Raises:
            NotYetThereError: there is no such folder. StorageError: it belongs to another run.
        """
        found = whose(self._folder)
        if found is None:
            raise NotYetThereError(f"{self.place} is not there")
        if found.incarnation != self._incarnation:
            raise StorageError(f"{self.place} is the folder of another run by now, {found.run} ({found.incarnation})")
        self._folder.append(name, lines)

    def read_lines(self, name: str) -> list[bytes]:
        """See ``Folder``."""
        return self._folder.read_lines(name)

    def read_new_lines(self, name: str, mark: Mark | None) -> Lines:
        """See ``Folder``."""
        return self._folder.read_new_lines(name, mark)
