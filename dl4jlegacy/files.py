"""The one way into this machine's file system: what a path leads to, reading a file, replacing one.

Whatever a path holds (no such user, bytes that are no text, a name that is too long, a folder that may not be
searched), the functions here raise ``OSError`` with the reason in words as its ``strerror``; ``errors_as`` turns it
into an error of this package. Only regular files are read and replaced: a pipe would wait for ever, a device is not
ours to rename.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, overload

from dl4jlegacy.errors import Dl4jError

__all__ = [
    "PathLike",
    "check_replaceable",
    "damage_as",
    "errors_as",
    "expand",
    "is_file",
    "is_folder",
    "kind_of",
    "names_in",
    "open_to_read",
    "put_in_place",
    "read",
    "replacing",
    "write",
]

PathLike = str | os.PathLike[str]
Kind = Literal["file", "folder", "device, pipe or socket"]
_ELSEWHERE = re.compile(r"(s3|https?):(/|$)", re.IGNORECASE)
_REASON = 300  # characters of what a parser says that a message shows
_LONGEST_NAME = 40  # characters of a file's name in that of its temporary file; the system allows 255 bytes


@contextlib.contextmanager
def errors_as(kind: type[Dl4jError], what: str, remedy: str = "") -> Iterator[None]:
    """Raise ``kind("WHAT: REASON REMEDY")`` for what the file system says inside."""
    try:
        yield
    except OSError as exc:
        raise kind(f"{what}: {exc.strerror or exc}{remedy and '; '}{remedy}") from exc


@contextlib.contextmanager
def damage_as(kind: type[Dl4jError], what: str, remedy: str = "is it whole, and what its name says?") -> Iterator[None]:
    """Raise ``kind("WHAT: REASON; REMEDY")`` for whatever a parser that is not ours says of the content it is given.

    The parsers of NumPy, pyarrow, h5py, PyYAML and the standard library raise any ``Exception`` for damaged content:
    their documented errors, a MemoryError for a size that nobody checked, a KeyError, SystemError, TokenError or
    RecursionError from where nobody looked. So no code of this package belongs inside, except what raises its own
    errors, which pass.
    """
    try:
        yield
    except Dl4jError:
        raise
    except Exception as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc).strip() or type(exc).__name__
        if isinstance(exc, MemoryError):
            reason = f"what it says that it holds needs more memory than there is ({reason})"
        raise kind(f"{what}: {reason.partition(chr(10))[0][:_REASON]}{remedy and '; '}{remedy}") from exc


@contextlib.contextmanager
def _in_words(path: PathLike) -> Iterator[None]:
    """Make an ``OSError`` of what Python says of a path that it does not even give to the system."""
    try:
        yield
    except UnicodeError as exc:
        raise OSError(errno.EINVAL, "its name is no text that a file system can hold", os.fspath(path)) from exc
    except ValueError as exc:
        raise OSError(errno.EINVAL, "its name has a zero byte", os.fspath(path)) from exc
    except RuntimeError as exc:
        user = os.fspath(path).partition("/")[0]
        raise OSError(errno.EINVAL, f"there is no home folder for {user}", os.fspath(path)) from exc


def expand(path: PathLike) -> Path:
    """Return the path with ``~`` and ``~user`` replaced.

    Raises:
        OSError: there is no such user, or the path looks like one in S3 or of the Web, which is none of this machine's.
    """
    with _in_words(path):
        return Path(_refuse_elsewhere(path)).expanduser()


def _refuse_elsewhere(path: PathLike) -> PathLike:
    """Return the path; raises ``OSError`` for ``s3:/x``, ``https://x`` and the like, which nobody means as folders."""
    text = os.fsdecode(path) if isinstance(path, (str, os.PathLike)) else ""
    if _ELSEWHERE.match(text):
        reason = "it is no path of this machine; places in S3 are written s3://bucket/key, where they are taken"
        if text[0] in "hH":
            reason = (
                "it is no path of this machine; files of the Web, https://host/name, are only read, as data or models"
            )
        raise OSError(errno.EINVAL, reason, text)
    return path


def kind_of(path: PathLike) -> Kind | None:
    """Return what a path leads to, symbolic links followed; None: nothing. Raises ``OSError`` if that is unknown."""
    try:
        with _in_words(path):
            mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _kind(mode)


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "device, pipe or socket"


def is_file(path: PathLike) -> bool:
    """Return whether a path leads to a regular file; raises ``OSError`` if that is unknown."""
    return kind_of(path) == "file"


def is_folder(path: PathLike) -> bool:
    """Return whether a path leads to a folder; raises ``OSError`` if that is unknown."""
    return kind_of(path) == "folder"


def names_in(folder: PathLike) -> list[str]:
    """Return the names in a folder, sorted; raises ``OSError``."""
    with _in_words(folder):
        return sorted(os.listdir(folder))


# -- reading -----------------------------------------------------------------------------------------------------------


def open_to_read(path: PathLike) -> BinaryIO:
    """Open a regular file; raises ``OSError``, also for a pipe, on which opening would wait for a writer."""
    descriptor, _ = _open(path)
    try:
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@overload
def read(path: PathLike) -> bytes: ...
@overload
def read(path: PathLike, *, most: int) -> bytes | None: ...
def read(path: PathLike, *, most: int | None = None) -> bytes | None:
    """Return the contents of a regular file, None if it has more than ``most`` bytes; raises ``OSError``."""
    descriptor, size = _open(path)
    try:
        if most is not None and size > most:
            return None
        content = os.read(descriptor, size + 1)
        while len(content) != size:  # it has grown or shrunk meanwhile, or is too large for one call
            more = os.read(descriptor, max(size - len(content), 1 << 20))
            if not more:
                break
            content += more
        return content
    finally:
        os.close(descriptor)


def _open(path: PathLike) -> tuple[int, int]:
    """Open a regular file; return its descriptor and its size in bytes."""
    with _in_words(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        _check_regular(found.st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found.st_size


def _check_regular(mode: int, path: PathLike) -> None:
    if (kind := _kind(mode)) != "file":
        raise OSError(errno.EINVAL, f"it is a {kind}, not a regular file", os.fspath(path))


# -- replacing ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: PathLike, *, private: bool = False, writer: str = "") -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of ``path`` at the end, in one step and durably; not if anything is raised.

    A reader sees the old file or the new one. A symbolic link stays, what it leads to is replaced. The new file gets
    the old one's mode and, if the system lets us, its owner.

    Args:
        path: of the file; its folder must exist.
        private: the new file is for its owner only, whatever the old one was.
        writer: whose it is, in the name of what a process leaves that is killed meanwhile; "": this process's number.

    Raises:
        OSError: it cannot be written, or there is something that is no regular file.
    """
    target = _target(path)
    aside = _aside(target, writer)
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        put_in_place(aside, target, private=private)
    finally:
        aside.unlink(missing_ok=True)


def write(path: PathLike, content: bytes, *, private: bool = False, writer: str = "") -> None:
    """Write a file as ``replacing`` does; raises ``OSError``."""
    with replacing(path, private=private, writer=writer) as file:
        file.write(content)


def put_in_place(aside: Path, path: PathLike, *, private: bool = False) -> None:
    """Rename a finished file of the same file system to ``path``, durably; modes and errors as for ``replacing``."""
    target = _target(path)
    if not private:
        _take_owner_and_mode(aside, target)
    os.replace(aside, target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # without it a power cut may bring the old file back
    finally:
        os.close(folder)


def check_replaceable(path: PathLike) -> None:
    """Raise the ``OSError`` that ``replacing`` would raise at its beginning. Permission bits alone do not tell."""
    aside = _aside(_target(path))
    try:
        aside.touch(exist_ok=False)
    finally:
        aside.unlink(missing_ok=True)


def _target(path: PathLike) -> Path:
    """Return what is to be replaced: ``path`` with symbolic links followed, if it is a regular file or nothing yet."""
    with _in_words(path):
        target = Path(os.path.realpath(_refuse_elsewhere(path)))
        with contextlib.suppress(FileNotFoundError):
            _check_regular(os.stat(target).st_mode, path)
    if not target.name:
        raise OSError(errno.EISDIR, "it is no name of a file", os.fspath(path))
    if len(os.fsencode(target.name)) > os.pathconf(target.parent, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fspath(path))
    return target


def _aside(target: Path, writer: str = "") -> Path:
    """Return a new name beside ``target`` that says who writes there."""
    return target.with_name(f".{target.name[:_LONGEST_NAME]}.{writer or os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")


def _take_owner_and_mode(aside: Path, target: Path) -> None:
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return
    with contextlib.suppress(PermissionError):  # not ours to give away
        os.chown(aside, old.st_uid, old.st_gid)
    with contextlib.suppress(PermissionError):  # a file system without modes
        os.chmod(aside, stat.S_IMODE(old.st_mode))
