"""Whose files these are: what other users of this machine could have put in the way of a file that is opened here.

A folder that others may write to, as the system's temporary one, holds whatever they like: links that lead to files of
this user, files of theirs under the names of ours. So links of theirs are not followed where something is written, and
none at all beneath a run's folder; files and folders of theirs to which everybody may write are refused, and what would
be executed is taken only from a place where nobody else writes. Root's are everybody's own: root needs no trick.

All functions raise ``PermissionError`` with the reason and what to do as its ``strerror``.
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
    """Return what a user is called in messages."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0, _root())


@functools.cache
def _root() -> int:
    """Return how root's files look here: in a user's namespace without root they are those of nobody."""
    return os.stat("/").st_uid


def _is_open_to_all(found: os.stat_result) -> bool:
    """Return whether everybody on this machine may write to a file, or add to a folder."""
    return bool(found.st_mode & stat.S_IWOTH)


def _refused(path: str | os.PathLike[str], reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason, os.fspath(path))


def check_links(path: str | os.PathLike[str], *, most: int = 40) -> None:
    """Refuse a path on which a symbolic link is another user's; those of this user and of root may lead anywhere.

    After ``most`` links in a chain the system does not open it either.
    """
    whole = Path(os.path.abspath(path))
    for place in (*reversed(whole.parents), whole):
        try:
            found = os.lstat(place)
        except (OSError, ValueError):
            return  # what is not there, or may not be looked at, is the business of whoever opens it
        if stat.S_ISLNK(found.st_mode):
            if not _is_trusted(found.st_uid):
                who = user(found.st_uid)
                raise _refused(path, f"{place} is a symbolic link of {who}, and not followed; name what it leads to")
            if most:
                check_links(place.parent / os.readlink(place), most=most - 1)


def check_folder(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Refuse another user's folder to which everybody may write; ``found`` is what the system says of it."""
    if _is_open_to_all(found) and not _is_trusted(found.st_uid):
        raise _refused(
            path,
            f"it is a folder of {user(found.st_uid)}, and everybody may write to it; take one of your own, or let its "
            "owner 'chmod o-w' it",
        )


def check_beneath(found: os.stat_result, folder: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Refuse a file in a folder which somebody may have put there who is neither this user, root, nor its owner."""
    is_ours = found.st_uid == folder.st_uid or _is_trusted(found.st_uid)
    if not is_ours and (_is_open_to_all(found) or _is_open_to_all(folder)):
        where = "it" if _is_open_to_all(found) else "its folder"
        raise _refused(
            path, f"it is a file of {user(found.st_uid)}, and everybody may write to {where}; remove it, or 'chmod o-w'"
        )


def check_own(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Refuse a file or folder that says what is executed, unless it is this user's, and only this user writes it."""
    if found.st_uid != os.geteuid():
        raise _refused(
            path, f"it is of {user(found.st_uid)}, and this is {user(os.geteuid())}; nothing is executed from there"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _refused(path, "others may write to it, and what it says is executed; 'chmod go-w' it")


def check_code(folder: str | os.PathLike[str], beside: str | os.PathLike[str]) -> None:
    """Refuse a folder of compiled code in which others could put theirs who may not change the code ``beside`` it."""
    try:
        found, code = os.stat(folder), os.stat(beside)
    except OSError:
        return  # it is made by whoever needs it
    if _is_open_to_all(found) and not _is_open_to_all(code):
        raise _refused(folder, "everybody may write to it, and what is there is executed; 'chmod o-w' it")
    if not _is_trusted(found.st_uid) and found.st_uid != code.st_uid:
        raise _refused(folder, f"it is of {user(found.st_uid)}, and what is there is executed")
