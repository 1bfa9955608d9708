"""``OwnFolder``: a run's folder for history, journal and statistics, which are appended there as long as it is its own.

Who keeps the checkpoints takes the folder, and makes it again if it is gone; nothing is appended in between, and
nothing at all in a folder that another run has got.
"""

from __future__ import annotations

import msgspec

from dl4jlegacy.errors import StorageError
from dl4jlegacy.storage.folders import Folder, Lines, Mark
from dl4jlegacy.system.decoding import decodable

__all__ = ["CONF", "NotYetThereError", "OwnFolder", "Whose", "whose"]

CONF = "conf.json"
"""The name of the ``Conf`` in a run's folder, which says whose it is."""


class Whose(msgspec.Struct, frozen=True):
    """What the Conf in a folder says of whose it is; "" is unknown, as in older ones."""

    run: str = ""
    incarnation: str = ""


def whose(folder: Folder) -> Whose | None:
    """Return whose a folder is; None if it has no Conf, or one that says nothing.

    Raises:
        OSError: that is unknown now. CloudError and its like: what a service says.
    """
    try:
        return msgspec.json.decode(folder.read(CONF), type=decodable(Whose))
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class NotYetThereError(StorageError):
    """A run's folder is not there, or not there yet."""


class OwnFolder:
    """Lines in the folder of one run. Used by one thread at a time.

    Args:
        folder: where.
        incarnation: the run's.
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
            NotYetThereError: there is no such folder. StorageError: it is another run's.
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
