"""Copies of slot states in a host's memory, for processes that take over from a process killed on that host.

With a log, the state of a slot is in the memory of one worker only, for many jobs. If its process is killed, another
worker would have to replay these jobs. So a worker copies the state after each job, before it commits the job, into a
file system in memory, where other processes of its host find it. A copy is trusted only if the key of its update
matches; no key is written twice. It is a cache: without a copy the jobs are replayed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from dl4jlegacy.arrays import wire
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.system.resources import free_memory

__all__ = ["Copied", "HostCopies", "StateCopies"]

logger = logging.getLogger(__name__)

MEMORY = Path("/dev/shm")  # only a folder that no other user may enter is used
"""The file system in memory of Linux."""
SHARE = 4
"""A copy is made only if this many times its size is free, so that training has enough memory."""
_MAGIC = b"DL4J state copy 1"
_HEADER_NBYTES = 4096  # a page, so that what follows is copied page by page
_LOCK = "lock"


class Copied(NamedTuple):
    """A copy: the number of the given updates that its state includes, and the state."""

    done: int
    frame: Buffer


class StateCopies(Protocol):
    """Copies, as the protocol uses them. Called on the threads of workers; never fails."""

    def keep(self, slot: int, update: str, frame: Buffer) -> None:
        """Copy a slot's state after the update with this key; replaces the copy before the last."""
        ...

    def remove_others(self, slot: int) -> None:
        """Remove other workers' copies of a slot, after this worker committed the job of its last copy."""
        ...

    def is_near(self, worker: str) -> bool:
        """Return whether the copies of a worker are on this host."""
        ...

    def find(self, slot: int, updates: Sequence[str]) -> Copied | None:
        """Return the copied state of the latest of a slot's updates that has one; None if there is no copy."""
        ...


class HostCopies:
    """The copies of one run on this host. ``StateCopies``; thread-safe.

    A process has two files for each of its slots, which it writes in turn. If it is killed while it writes one, the
    other is whole, with the state before the last job. The last process of the run on this host removes all files; if
    all are killed, the next process of any run of this user does.

    Args:
        run: the run's keyspace.
        process: the unique name of this process.
        memory: a folder of a file system in memory.
    """

    def __init__(self, run: str, process: str, memory: Path = MEMORY) -> None:
        self._memory, self._base = memory, memory / f"dl4jlegacy-{os.geteuid()}"
        self._run = self._base / wire.digest(run.encode())[:32]
        self._own = self._run / process
        self._lock = threading.Lock()
        self._owner: int | None = None
        """The file that is locked while this process lives; None before its first copy."""
        self._newest: dict[int, int] = {}
        """By slot: the index of the file that was written last."""
        self._is_closed = self._complained = False

    def keep(self, slot: int, update: str, frame: Buffer) -> None:
        """See ``StateCopies``. If memory is scarce, no copy is made, which is logged once."""
        view = memoryview(frame).cast("B")
        with self._lock:
            if self._is_closed:
                return  # called by a worker that did not stop in time
            try:
                _, file = self._files(self._own, slot)
                if not self._has_room(file, len(view)):
                    file.unlink(missing_ok=True)
                    self._complain(f"less than {SHARE} times {len(view):,} bytes are free there")
                    return
                self._take_place()
                _write(file, update, view)
                self._newest[slot] = 1 - self._newest.get(slot, 1)
            except OSError as exc:
                self._complain(str(exc))

    def remove_others(self, slot: int) -> None:
        """See ``StateCopies``; not before this process has two copies: the first is needed if the second is lost."""
        with self._lock, contextlib.suppress(OSError):
            if all(file.exists() for file in self._files(self._own, slot)):
                for other in [process for process in self._run.iterdir() if process != self._own]:
                    for file in self._files(other, slot):
                        file.unlink(missing_ok=True)

    def is_near(self, worker: str) -> bool:
        """See ``StateCopies``; the name of a worker starts with that of its process."""
        process = worker.rpartition("-")[0]
        return bool(process) and (self._run / process).is_dir() and _is_ours(self._base)

    def find(self, slot: int, updates: Sequence[str]) -> Copied | None:
        """See ``StateCopies``."""
        if not _is_ours(self._base):
            return None
        best: Copied | None = None
        with contextlib.suppress(OSError):
            for file in [file for process in self._run.iterdir() for file in self._files(process, slot)]:
                later = updates[0 if best is None else best.done :]
                if (found := _read(file, later)) is not None:
                    best = Copied(updates.index(found[0]) + 1, found[1])
        return best

    def close(self) -> None:
        """Stop copying. The copies stay as long as another process of the run is on this host."""
        with self._lock:
            self._is_closed = True
            if self._owner is None:
                return
            os.close(self._owner)
            self._owner = None
            _remove_if_dead(self._run)
            with contextlib.suppress(OSError):
                self._base.rmdir()  # fails if the folder is not empty

    def _files(self, process: Path, slot: int) -> tuple[Path, Path]:
        """Return the two files of a slot of a process; of this process, the last written one first."""
        newest = self._newest.get(slot, 1)
        return process / f"{slot}.{newest}", process / f"{slot}.{1 - newest}"

    def _has_room(self, file: Path, nbytes: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if file.stat().st_size >= _HEADER_NBYTES + nbytes:
                return True  # the file is overwritten
        there, free = os.statvfs(self._memory), free_memory()
        return SHARE * nbytes <= there.f_bavail * there.f_frsize and (free is None or SHARE * nbytes <= free)

    def _take_place(self) -> None:
        """Create the folder of this process, and remove files of other runs whose processes are gone."""
        if self._owner is not None:
            return
        self._base.mkdir(mode=0o700, exist_ok=True)
        if not _is_ours(self._base):
            raise PermissionError(f"{self._base} is not a folder of this user alone")
        for run in self._base.iterdir():
            if run != self._run:
                _remove_if_dead(run)
        self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._owner = os.open(self._own / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _complain(self, why: str) -> None:
        logger.log(
            logging.DEBUG if self._complained else logging.INFO,
            "no copy of a slot's state is kept in %s: %s; if this process is killed, its jobs since the state was "
            "saved are done again",
            self._memory,
            why,
        )
        self._complained = True


def _is_ours(folder: Path) -> bool:
    """Return whether a folder belongs to this user, and no other user may enter it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _remove_if_dead(run: Path) -> None:
    """Remove the folder of a run if none of its processes lives on this host."""
    with contextlib.suppress(OSError):
        if not any(_lives(process) for process in list(run.iterdir())):
            shutil.rmtree(run, ignore_errors=True)


def _lives(process: Path) -> bool:
    """Return whether the process of a folder lives: it holds the lock of its file."""
    try:
        with (process / _LOCK).open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _write(file: Path, update: str, frame: memoryview) -> None:
    """Overwrite a copy in place, without new memory. The header is written last, so an incomplete copy is not valid."""
    header = b"\n".join((_MAGIC, update.encode(), b"%d" % len(frame), b""))
    assert len(header) <= _HEADER_NBYTES
    to = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(to, bytes(_HEADER_NBYTES), 0)
        written = 0
        while written < len(frame):
            written += os.pwrite(to, frame[written:], _HEADER_NBYTES + written)
        os.pwrite(to, header, 0)
    finally:
        os.close(to)


def _read(file: Path, updates: Sequence[str]) -> tuple[str, Buffer] | None:
    """Return the update's key and the state of a copy; None if it has none of these updates, or is being written."""
    try:
        with file.open("rb", buffering=0) as source:
            header = source.read(_HEADER_NBYTES)
            magic, update, nbytes, _ = header.split(b"\n", 3)
            if magic != _MAGIC or update.decode() not in updates:
                return None
            frame = wire.empty_bytes(int(nbytes))
            read = 0
            while more := source.readinto(frame[read:]):  # readinto returns None only for non-blocking files
                read += more
            source.seek(0)
            is_whole = read == len(frame) and source.read(_HEADER_NBYTES) == header
    except (OSError, ValueError):
        return None
    return (update.decode(), frame) if is_whole else None
