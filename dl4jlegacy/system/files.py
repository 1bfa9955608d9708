"""The only access to this machine's file system: kinds of paths, reading a file, replacing a file.

For every bad path (no such user, invalid bytes, a name that is too long, a folder without permission), the functions
here raise ``OSError`` with the reason in words as its ``strerror``; ``errors_as`` turns that into an error of this
package. Only regular files are read and replaced: reading a pipe could block forever, and a device must not be renamed.
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
from dl4jlegacy.system import ownership

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
    "open_in",
    "open_lock",
    "open_to_read",
    "opened_folder",
    "put_in_place",
    "read",
    "read_descriptor",
    "replacing",
    "replacing_in",
    "write",
]

PathLike = str | os.PathLike[str]
Kind = Literal["file", "folder", "device, pipe or socket"]
_ELSEWHERE = re.compile(r"(s3|https?):(/|$)", re.IGNORECASE)
_REASON = 300  # characters of a parser's message that are shown
_LONGEST_NAME = 40  # characters of a file's name in the name of its temporary file; the system allows 255 bytes


@contextlib.contextmanager
def errors_as(kind: type[Dl4jError], what: str, remedy: str = "") -> Iterator[None]:
    """Raise ``kind("WHAT: REASON REMEDY")`` for an ``OSError`` in the body."""
    try:
        yield
    except OSError as exc:
        raise kind(f"{what}: {exc.strerror or exc}{remedy and '; '}{remedy}") from exc


@contextlib.contextmanager
def damage_as(kind: type[Dl4jError], what: str, remedy: str = "is it whole, and what its name says?") -> Iterator[None]:
    """Raise ``kind("WHAT: REASON; REMEDY")`` for any error of a foreign parser about its input.

    The parsers of NumPy, pyarrow, h5py, PyYAML and the standard library raise any ``Exception`` for damaged content:
    their documented errors, a MemoryError for an unchecked size, or an unexpected KeyError, SystemError, TokenError or
    RecursionError. So no code of this package belongs in the body, except code that raises this package's own errors,
    which are passed on.
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
    """Turn Python's own errors about an invalid path into ``OSError``."""
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
        OSError: there is no such user, or the path looks like one in S3 or on the Web, which is not local.
    """
    with _in_words(path):
        return Path(_refuse_elsewhere(path)).expanduser()


def _refuse_elsewhere(path: PathLike) -> PathLike:
    """Return the path; raises ``OSError`` for ``s3:/x``, ``https://x`` and similar, which are no local folders."""
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
    """Return the kind of a path, following symbolic links; None if nothing is there. Raises ``OSError`` if unknown."""
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
    """Open a regular file; raises ``OSError``, also for a pipe, because opening a pipe would block."""
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
        return None if most is not None and size > most else read_descriptor(descriptor, size)
    finally:
        os.close(descriptor)


def read_descriptor(descriptor: int, size: int) -> bytes:
    """Return the contents of an open file from its start, about ``size`` bytes; raises ``OSError``."""
    content = os.read(descriptor, size + 1)
    while len(content) != size:  # the size has changed, or is too large for one call
        more = os.read(descriptor, max(size - len(content), 1 << 20))
        if not more:
            break
        content += more
    return content


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


# -- opening safely against other users --------------------------------------------------------------------------------


@contextlib.contextmanager
def opened_folder(path: PathLike) -> Iterator[int]:
    """Open a folder, so that later operations use this folder even if it is renamed. Raises ``OSError``."""
    with _in_words(path):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def open_in(folder: int, name: str, flags: int, mode: int = 0o666) -> int:
    """Open a regular file in an open folder without following a link; return its descriptor.

    Raises:
        OSError: the name is no regular file's, or another user may have put it there (``ownership.check_beneath``).
    """
    with _in_words(name):
        try:
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode, dir_fd=folder)
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise _is_link(name) from exc
            raise
    try:
        found = os.fstat(descriptor)
        _check_regular(found.st_mode, name)
        ownership.check_beneath(found, os.fstat(folder), name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_lock(path: PathLike, mode: int = 0o666) -> int:
    """Open a lock file, created if necessary, without following a link; raises as ``open_in``."""
    with opened_folder(os.path.dirname(path) or os.curdir) as folder:
        return open_in(folder, os.path.basename(path), os.O_RDWR | os.O_CREAT, mode)


def _is_link(path: PathLike) -> OSError:
    return OSError(errno.ELOOP, "it is a symbolic link, and none is followed there; remove it", os.fspath(path))


# -- replacing ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: PathLike, *, private: bool = False, writer: str = "") -> Iterator[BinaryIO]:
    """Yield a new file that replaces ``path`` at the end, atomically and durably, unless an error is raised.

    A reader sees the old file or the new one. If ``path`` is a symbolic link of this user, its target is replaced. The
    new file gets the old one's mode and, if permitted, its owner.

    Args:
        path: of the file; its folder must exist.
        private: the new file is readable for its owner only, whatever the mode of the old one.
        writer: part of the temporary file's name, which identifies the leftovers of a killed process; "": the process
            id.

    Raises:
        OSError: the file cannot be written, or the path is no regular file, or a link of another user.
    """
    target = _target(path)
    with (
        opened_folder(target.parent) as folder,
        replacing_in(folder, target.name, private=private, writer=writer) as file,
    ):
        yield file


@contextlib.contextmanager
def replacing_in(folder: int, name: str, *, private: bool = False, writer: str = "") -> Iterator[BinaryIO]:
    """Yield a new file like ``replacing``, in an open folder in which ``name`` must be no link; raises ``OSError``."""
    with _in_words(name), contextlib.suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            raise _is_link(name)
        _check_regular(found.st_mode, name)
        ownership.check_beneath(found, os.fstat(folder), name)
    aside = _aside(name, writer)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(aside, flags, 0o600 if private else 0o666, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _put_in_place(folder, aside, name, private=private)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=folder)


def write(path: PathLike, content: bytes, *, private: bool = False, writer: str = "") -> None:
    """Write a file atomically as ``replacing`` does; raises ``OSError``."""
    with replacing(path, private=private, writer=writer) as file:
        file.write(content)


def put_in_place(aside: Path, path: PathLike, *, private: bool = False) -> None:
    """Rename a finished file on the same file system to ``path``, durably; modes and errors as for ``replacing``."""
    target = _target(path)
    with opened_folder(target.parent) as folder:
        _put_in_place(folder, str(aside.absolute()), target.name, private=private)


def _put_in_place(folder: int, aside: str, name: str, *, private: bool) -> None:
    if not private:
        _take_owner_and_mode(folder, aside, name)
    os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)  # otherwise a power failure may bring back the old file


def check_replaceable(path: PathLike) -> None:
    """Raise the ``OSError`` that ``replacing`` would raise at its start. Permission bits alone do not show it."""
    target = _target(path)
    aside = target.with_name(_aside(target.name))
    try:
        aside.touch(exist_ok=False)
    finally:
        aside.unlink(missing_ok=True)


def _target(path: PathLike) -> Path:
    """Return the path to replace, after this user's links, if it is a regular file or does not exist."""
    with _in_words(path):
        ownership.check_links(_refuse_elsewhere(path))
        target = Path(os.path.realpath(_refuse_elsewhere(path)))
        with contextlib.suppress(FileNotFoundError):
            _check_regular(os.stat(target).st_mode, path)
    if not target.name:
        raise OSError(errno.EISDIR, "it is no name of a file", os.fspath(path))
    if len(os.fsencode(target.name)) > os.pathconf(target.parent, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fspath(path))
    return target


def _aside(name: str, writer: str = "") -> str:
    """Return a new temporary name for ``name`` that identifies the writer."""
    return f".{name[:_LONGEST_NAME]}.{writer or os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"


def _take_owner_and_mode(folder: int, aside: str, name: str) -> None:
    try:
        old = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(old.st_mode):
        return  # a link that was created meanwhile is replaced
    with contextlib.suppress(PermissionError):  # the owner cannot be changed
        os.chown(aside, old.st_uid, old.st_gid, dir_fd=folder)
    with contextlib.suppress(PermissionError):  # a file system without modes
        os.chmod(aside, stat.S_IMODE(old.st_mode), dir_fd=folder)
