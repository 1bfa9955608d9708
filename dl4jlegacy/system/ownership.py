"""Checks of file ownership, against files and links that other users of this machine may have placed.

In a folder that others may write to, such as the system's temporary one, other users can create links to this user's
files, and files under the names that this package uses. So their links are not followed for writing, and beneath a
run's folder no links at all. World-writable files and folders of other users are refused, and code is executed only
from places where nobody else can write. Files of root are trusted: root could do anything anyway.

All functions raise ``PermissionError`` with the reason and a remedy as its ``strerror``.
"""

from __future__ import annotations

import errno
import functools
import os
import pwd
import stat
from pathlib import Path

__all__ = ["check_beneath", "check_code", "check_folder", "check_links", "check_own", "user"]


def user(uid: int) -> str:
    """Return the name of a user for messages."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0, _root())


@functools.cache
def _root() -> int:
    """Return the user id of root's files: in a user namespace without root they belong to nobody."""
    return os.stat("/").st_uid


def _is_open_to_all(found: os.stat_result) -> bool:
    """Return whether a file or folder is world-writable."""
    return bool(found.st_mode & stat.S_IWOTH)


def _refused(path: str | os.PathLike[str], reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason, os.fspath(path))


def check_links(path: str | os.PathLike[str], *, most: int = 40) -> None:
    """Refuse a path with a symbolic link of another user; links of this user and of root may lead anywhere.

    After ``most`` links in a chain the system would not open the path either.
    """
    whole = Path(os.path.abspath(path))
    for place in (*reversed(whole.parents), whole):
        try:
            found = os.lstat(place)
        except (OSError, ValueError):
            return  # a missing or unreadable path is left to the code that opens it
        if stat.S_ISLNK(found.st_mode):
            if not _is_trusted(found.st_uid):
                who = user(found.st_uid)
                raise _refused(path, f"{place} is a symbolic link of {who}, and not followed; name what it leads to")
            if most:
                check_links(place.parent / os.readlink(place), most=most - 1)


def check_folder(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Refuse another user's world-writable folder; ``found`` is its stat result."""
    if _is_open_to_all(found) and not _is_trusted(found.st_uid):
        raise _refused(
            path,
            f"it is a folder of {user(found.st_uid)}, and everybody may write to it; take one of your own, or let its "
            "owner 'chmod o-w' it",
        )


def check_beneath(found: os.stat_result, folder: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Refuse a file that may come from a user other than this one, root, or the owner of its folder."""
    is_ours = found.st_uid == folder.st_uid or _is_trusted(found.st_uid)
    if not is_ours and (_is_open_to_all(found) or _is_open_to_all(folder)):
        where = "it" if _is_open_to_all(found) else "its folder"
        raise _refused(
            path, f"it is a file of {user(found.st_uid)}, and everybody may write to {where}; remove it, or 'chmod o-w'"
        )


def check_own(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Refuse a file or folder with executed content, unless it belongs to this user and nobody else can write to it."""
    if found.st_uid != os.geteuid():
        raise _refused(
            path, f"it is of {user(found.st_uid)}, and this is {user(os.geteuid())}; nothing is executed from there"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _refused(path, "others may write to it, and what it says is executed; 'chmod go-w' it")


def check_code(folder: str | os.PathLike[str], beside: str | os.PathLike[str]) -> None:
    """Refuse a folder of compiled code that can be written by users who cannot change the source ``beside`` it."""
    try:
        found, code = os.stat(folder), os.stat(beside)
    except OSError:
        return  # it will be created when needed
    if _is_open_to_all(found) and not _is_open_to_all(code):
        raise _refused(folder, "everybody may write to it, and what is there is executed; 'chmod o-w' it")
    if not _is_trusted(found.st_uid) and found.st_uid != code.st_uid:
        raise _refused(folder, f"it is of {user(found.st_uid)}, and what is there is executed")
