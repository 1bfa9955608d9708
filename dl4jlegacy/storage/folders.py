"""The only interface to a run's stored files (checkpoints, ``conf.json``, journal), in a local folder or in S3.

``LocalFolder`` is here, ``S3Folder`` in ``dl4jlegacy.storage.s3.folder``; ``storage.open_folder`` chooses by the path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol, runtime_checkable

from dl4jlegacy.errors import ConfError
from dl4jlegacy.system import files, ownership

__all__ = ["LOCK", "Folder", "Lines", "LinesFolder", "LocalFolder", "Mark", "check_name"]

LOCK = ".lock"
"""The name of the lock file, or object, which says who uses a folder."""


Mark = Mapping[str, int]
"""The position of a reader of lines: the number of bytes read from each file or object that contains them."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that were read, and the position after them.

    ``is_all`` says that these are all existing lines: no mark was given, or the marked file was replaced meanwhile.
    """

    lines: list[bytes]
    mark: Mark
    is_all: bool


class LinesFolder(Protocol):
    """Named, append-only lists of lines. Raises as ``Folder``."""

    @property
    def place(self) -> str:
        """The location, in the form that ``dl4j resume`` accepts."""
        ...

    def append(self, name: str, lines: bytes) -> None:
        """Append whole lines. No line is lost if several processes append, with or without the lock."""
        ...

    def read_lines(self, name: str) -> list[bytes]:
        """Return all appended lines; the last may be truncated. Raises ``FileNotFoundError``."""
        ...

    def read_new_lines(self, name: str, mark: Mark | None) -> Lines:
        """Return the whole lines appended after a mark (None: all lines), reading little else.

        Raises ``FileNotFoundError`` if there is nothing of that name.
        """
        ...


@runtime_checkable
class Folder(LinesFolder, Protocol):
    """Named contents, each of which exists completely or not at all. Used by one thread at a time.

    All methods raise ``OSError`` with the reason in words. Remote folders also raise the errors of their service:
    ``CloudError``, ``NotAuthorisedError``, ``ConfError``.
    """

    def names(self) -> list[str]:
        """Return the names of the contents, sorted; [] if there is no such folder."""
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a name; raises ``FileNotFoundError`` if there is nothing of that name."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write or replace durably. After losing the lock, a process can no longer write and gets an ``OSError``."""
        ...

    def delete(self, name: str) -> None:
        """Delete a name; a missing name is no error."""
        ...

    def lock(self, owner: str, *, takes_over: bool = False) -> bool:
        """Lock the folder until ``release``, or until this process ends; return whether that succeeded.

        Args:
            owner: the incarnation of the run that locks it.
            takes_over: where possible, take the lock even from a process that holds it for the same owner.
        """
        ...

    def holder(self) -> str:
        """Return the holder of the lock in words; "" if unknown."""
        ...

    def unfinished(self) -> list[str]:
        """Return the names of temporary files of processes with the same owner that were killed while writing."""
        ...

    def release(self) -> None:
        """Release the lock."""
        ...


def check_name(name: str) -> str:
    """Return a name if it is valid in a folder; raises ``OSError`` for a name that leads elsewhere."""
    if not name or name in (".", "..") or "/" in name:
        raise OSError(errno.EINVAL, f"{name!r} is no name of a file in this folder", name)
    return name


class LocalFolder:
    """A ``Folder`` of this machine, created at the first write. Its lock ends with the process that holds it.

    Its path may contain links of this user. Inside the folder no link is followed, and no file is opened that another
    user may have put there.

    Raises:
        ConfError: the path cannot be a folder.
    """

    def __init__(self, path: Path | str) -> None:
        with files.errors_as(ConfError, f"folder {path}"):
            self.path = files.expand(path)
        self._lock_file: int | None = None
        self._owner, self._nonce = "", uuid.uuid4().hex[:8]  # in containers, two processes may have the same number

    @property
    def place(self) -> str:
        """See ``Folder``."""
        return str(self.path)

    @contextlib.contextmanager
    def _opened(self, *, makes: bool = False) -> Iterator[int]:
        if makes:
            self.path.mkdir(parents=True, exist_ok=True)
        ownership.check_links(self.path)
        with files.opened_folder(self.path) as folder:
            ownership.check_folder(os.fstat(folder), self.path)
            yield folder

    def _open(self, name: str, flags: int) -> int:
        with self._opened(makes=bool(flags & os.O_CREAT)) as folder:
            return files.open_in(folder, check_name(name), flags)

    def names(self) -> list[str]:
        """See ``Folder``."""
        if not files.is_folder(self.path):
            return []
        with self._opened() as folder:
            return sorted(os.listdir(folder))

    def read(self, name: str) -> bytes:
        """See ``Folder``."""
        file = self._open(name, os.O_RDONLY)
        try:
            return files.read_descriptor(file, os.fstat(file).st_size)
        finally:
            os.close(file)

    def write(self, name: str, content: bytes) -> None:
        """See ``Folder``."""
        writer = self._owner and f"{self._owner}-{self._nonce}"
        with self._opened(makes=True) as folder, files.replacing_in(folder, check_name(name), writer=writer) as file:
            file.write(content)

    def delete(self, name: str) -> None:
        """See ``Folder``."""
        with contextlib.suppress(FileNotFoundError), self._opened() as folder:
            os.unlink(check_name(name), dir_fd=folder)

    def append(self, name: str, lines: bytes) -> None:
        """See ``Folder``. If the disk is full, nothing is appended."""
        with FileIO(self._open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), "ab+") as file:
            length = file.seek(0, os.SEEK_END)
            if length:
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read(1) == b"\n" else b"\n" + lines  # a crash may have truncated the last line
            written = 0
            try:
                while written < len(lines):
                    written += file.write(lines[written:])
            except OSError:
                file.truncate(length)  # do not leave half a line
                raise

    def read_lines(self, name: str) -> list[bytes]:
        """See ``Folder``."""
        return self.read(name).splitlines()

    def read_new_lines(self, name: str, mark: Mark | None) -> Lines:
        """See ``Folder``."""
        with FileIO(self._open(name, os.O_RDONLY), "rb") as file:
            found = os.fstat(file.fileno())
            file_name = str(found.st_ino)
            start = (mark or {}).get(file_name, 0)
            if start > found.st_size:
                start = 0  # another file has the inode number of a deleted one
            file.seek(start)
            content = file.read()
        end = content.rfind(b"\n") + 1
        return Lines(content[:end].splitlines(), {file_name: start + end}, start == 0)

    def lock(self, owner: str, *, takes_over: bool = False) -> bool:
        """See ``Folder``. A live process cannot lose the lock; on a file system without locks, nothing is locked.

        A lock in a deleted folder does not count for a new folder at the same path.
        """
        self._owner = owner
        if self._lock_file is not None:
            if self._is_there(self._lock_file):
                return True
            self.release()
        file = self._open(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(file)
            return exc.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        os.ftruncate(file, 0)
        os.write(file, f"{socket.gethostname()}, pid {os.getpid()}\n".encode())
        self._lock_file = file
        return True

    def _is_there(self, lock_file: int) -> bool:
        """Return whether the lock is still the one in the folder; raises ``OSError`` if that is unknown."""
        try:
            return os.path.samestat(os.fstat(lock_file), os.lstat(self.path / LOCK))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def unfinished(self) -> list[str]:
        """See ``Folder``."""
        of_owner = re.compile(rf"\..*\.{re.escape(self._owner)}-(?!{self._nonce})[0-9a-f]{{8}}\.[0-9a-f]{{8}}\.tmp")
        return [name for name in self.names() if self._owner and of_owner.fullmatch(name)]

    def holder(self) -> str:
        """See ``Folder``."""
        try:
            return self.read(LOCK).decode(errors="replace").strip()[:300]
        except OSError:
            return ""

    def release(self) -> None:
        """See ``Folder``."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None
