"""A run's folder in S3: checkpoints, ``conf.json`` and journal as objects below one prefix.

An object exists completely or not at all, and is visible at once, so it is enough to write objects in order.

S3 has no locks that end with a process. ``.lock`` is an object that changes only by compare-and-set and names the run's
incarnation and the process that holds the folder. That process rewrites it every ``RENEW_SECONDS``. A process that has
not done so for ``SILENT_SECONDS`` was killed, or is frozen, and loses the folder to the next process that wants it.
Before each write a process confirms the lock, so a process that wakes up writes at most the one object in transit.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from dl4jlegacy.errors import DataError, Dl4jError
from dl4jlegacy.storage.folders import LOCK, Lines, Mark, check_name
from dl4jlegacy.storage.s3.conditional_object import ConditionalObject, Version
from dl4jlegacy.storage.s3.downloader import S3Downloader
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws, translate_errors
from dl4jlegacy.storage.s3.uploader import PART_NBYTES, S3Uploader
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.system.service_threads import ServiceThread
from dl4jlegacy.system.strict_json import to_json

__all__ = ["RENEW_SECONDS", "SILENT_SECONDS", "Claim", "S3Folder"]

logger = logging.getLogger(__name__)

RENEW_SECONDS = 15.0
SILENT_SECONDS = 90.0
"""A process that has not renewed its lock for this time, by S3's clock, loses it."""
_POLL_SECONDS = 2.0
_ATTEMPTS, _SILENT_CONNECTION_SECONDS = 3, 20.0
_LOCK_ATTEMPTS, _LOCK_CONNECTION_SECONDS = 2, 10.0
_PART_OF_LINES_NBYTES = 64 << 10
_TURN = re.compile(r"-p([0-9]{6,9})-[0-9a-f]{8}-[0-9]{6,}\.")


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of the lock.

    Attributes:
        owner: the incarnation of the run that holds the folder.
        holder: the process, in words; "": the lock is free.
        process: the random id of that process's hold.
        writes: the number of writes, which makes every version different.
    """

    owner: str
    holder: str
    process: str
    writes: int = 0


class S3Folder:
    """A ``Folder`` below one prefix; the bucket is created at the first write.

    Args:
        location: the bucket and the prefix.
        aws: the region; by default from the environment, with deadlines short enough for a running training.
    """

    def __init__(self, location: Location, *, aws: Aws | None = None) -> None:
        self._location = Location(location.bucket, location.key.strip("/"))
        self._given, self._aws = aws, aws
        self._is_ready = False
        self._lock: _Lock | None = None
        self._id = secrets.token_hex(4)
        self._writers: dict[str, str] = {}
        self._parts: dict[str, tuple[int, bytes]] = {}

    @property
    def place(self) -> str:
        """See ``Folder``."""
        return str(self._location)

    def names(self) -> list[str]:
        """See ``Folder``."""
        prefix = f"{self._location.key}/" if self._location.key else ""
        try:
            with self._session() as aws:
                keys = list(S3Downloader(aws).iterate_bucket(self._location.bucket, prefix))
        except DataError:
            return []  # no bucket yet
        return sorted(key.removeprefix(prefix) for key in keys)

    def read(self, name: str) -> bytes:
        """See ``Folder``."""
        target = self._location.child(check_name(name))
        with self._session() as aws:
            content = S3Downloader(aws).unchecked(target)
        if content is None:
            raise FileNotFoundError(f"there is no {target}")
        return content

    def write(self, name: str, content: bytes) -> None:
        """See ``Folder``."""
        if self._lock is not None:
            self._lock.confirm()
        self._put(self._location.child(check_name(name)), content)

    def _put(self, target: Location, content: bytes) -> None:
        with self._session() as aws:
            uploader = S3Uploader(aws)
            if not self._is_ready:
                uploader.ensure_bucket(target.bucket)
                self._is_ready = True
            if len(content) <= PART_NBYTES:
                uploader.put(content, target)
                return
            with tempfile.NamedTemporaryFile(prefix="dl4j-checkpoint-") as file:
                file.write(content)
                file.flush()
                uploader.multi_part_upload(Path(file.name), target.bucket, target.key)

    def delete(self, name: str) -> None:
        """See ``Folder``."""
        target = self._location.child(check_name(name))
        with self._session() as aws, translate_errors(str(target)):
            aws.client("s3").delete_object(Bucket=target.bucket, Key=target.key)

    def append(self, name: str, lines: bytes) -> None:
        """See ``Folder``. S3 cannot append: each process writes its own parts, and rewrites the newest one."""
        number, before = self._parts.get(name, (1, b""))
        if len(before) >= _PART_OF_LINES_NBYTES:
            number, before = number + 1, b""
        stem, suffix = os.path.splitext(name)
        writer = self._writers[name] = self._writers.get(name) or f"{_turn(self._written(name))}-{self._id}"
        self._put(self._location.child(f"{stem}-{writer}-{number:06}{suffix}"), before + lines)
        self._parts[name] = (number, before + lines)

    def read_lines(self, name: str) -> list[bytes]:
        """See ``Folder``."""
        return [line for part in self._parts_of(name) for line in self.read(part).splitlines()]

    def read_new_lines(self, name: str, mark: Mark | None) -> Lines:
        """See ``Folder``. Of the parts of a process, only the newest can have grown."""
        parts = self._parts_of(name)
        before = dict(mark or {}) if set(mark or {}) <= set(parts) else {}
        newest = {*_newest(parts), *_newest(sorted(before))}  # the newest parts of then may have grown, too
        read, lines = dict(before), list[bytes]()
        for part in parts:
            if part in before and part not in newest:
                continue
            content, start = self.read(part), before.get(part, 0)
            read[part] = content.rfind(b"\n") + 1
            lines += content[start : read[part]].splitlines()
        return Lines(lines, read, not before)

    def _parts_of(self, name: str) -> list[str]:
        """Return the names of the parts with these lines, sorted; raises ``FileNotFoundError``."""
        parts = self._written(name)
        if not parts:
            stem, suffix = os.path.splitext(name)
            raise FileNotFoundError(f"there is no {self._location.child(f'{stem}-*{suffix}')}")
        return parts

    def _written(self, name: str) -> list[str]:
        stem, suffix = os.path.splitext(name)
        return [part for part in self.names() if part.startswith(f"{stem}-") and part.endswith(suffix)]

    def lock(self, owner: str, *, takes_over: bool = False) -> bool:
        """See ``Folder``. Waits a little more than ``SILENT_SECONDS`` for a holder that may have been killed.

        Raises ``OSError``, too, if another process took the lock from this one.
        """
        if self._lock is not None:
            if not self._lock.is_held:
                self._lock.confirm()
            return True
        with self._session() as aws:
            S3Uploader(aws).ensure_bucket(self._location.bucket)
        self._is_ready = True
        lock = _Lock(self._location.child(LOCK), self._given)
        if not lock.take(owner, takes_over=takes_over):
            lock.close()
            return False
        self._lock = lock
        return True

    def holder(self) -> str:
        """See ``Folder``."""
        with self._session() as aws:
            found = ConditionalObject(aws, self._location.child(LOCK), self.place).read()
        return "" if found is None else _claim(found).holder

    def unfinished(self) -> list[str]:
        """See ``Folder``. Always empty: an object exists completely or not at all."""
        return []

    def release(self) -> None:
        """See ``Folder``."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
            with self._session():
                pass  # closes its connections

    @contextmanager
    def _session(self) -> Iterator[Aws]:
        """Yield a session; its connections stay open for the next session only while this process holds the folder."""
        if self._aws is None:
            self._aws = Aws(attempts=_ATTEMPTS, silent_seconds=_SILENT_CONNECTION_SECONDS)
        try:
            yield self._aws
        finally:
            if self._lock is None:
                self._aws.close()


class _Lock:
    """The lock of a folder, as seen by one process. ``confirm`` and the lock's own thread may write it concurrently."""

    def __init__(self, location: Location, aws: Aws | None) -> None:
        self._aws = Aws(attempts=_LOCK_ATTEMPTS, silent_seconds=_LOCK_CONNECTION_SECONDS) if aws is None else aws
        self._place = str(location)
        self._object = ConditionalObject(self._aws, location, f"the lock {location}")
        self._one = threading.Lock()
        self._held: tuple[Claim, str] | None = None
        self._mine = Claim("", f"{socket.gethostname()}, pid {os.getpid()}", secrets.token_hex(8))
        self._ended = threading.Event()
        self._thread = ServiceThread(target=self._renew, name="dl4j-s3-lock")

    @property
    def is_held(self) -> bool:
        """Whether this process held the lock at the last write."""
        return self._held is not None

    def take(self, owner: str, *, takes_over: bool) -> bool:
        """See ``Folder.lock``."""
        mine = self._mine = replace(self._mine, owner=owner)
        seen: Version | None = None
        while not self.is_held:
            found = self._object.read()
            if found is None:
                self._write(mine, None)
            elif self._may_take(found, owner, takes_over=takes_over):
                self._write(replace(mine, writes=_claim(found).writes), found.etag)
            elif seen is None:
                seen = found
                logger.warning("%s; waiting for a sign of life of it", self._says(found))
            elif found.etag != seen.etag:
                return False
            else:
                self._aws.clock.wait(_POLL_SECONDS)
        self._thread.start()
        return True

    def _may_take(self, found: Version, owner: str, *, takes_over: bool) -> bool:
        claim = _claim(found)
        return not claim.holder or (takes_over and claim.owner == owner) or found.age > SILENT_SECONDS

    def _says(self, found: Version) -> str:
        return (
            f"{self._place} is held by a process on {_claim(found).holder}, which wrote it {found.age:.0f} s ago and "
            f"counts as killed after {SILENT_SECONDS:.0f} s"
        )

    def confirm(self) -> None:
        """Rewrite the lock, also if it was deleted, or if another run took and released it meanwhile.

        Raises ``OSError`` if another process has it.
        """
        with self._one:
            held = self._held
            if held is not None and self._write(*held):
                return
            found, claim = self._object.read(), None
            if found is not None:
                claim = _claim(found)
                was_others = claim.owner not in ("", self._mine.owner) and not claim.holder
                if was_others and self._write(replace(self._mine, writes=claim.writes), found.etag):
                    return
            elif held is not None and self._write(held[0], None):
                return
        holder = "" if claim is None else claim.holder
        raise OSError(f"another process has taken it meanwhile{holder and f', on {holder}'}")

    def _write(self, claim: Claim, etag: str | None) -> bool:
        claim = replace(claim, writes=claim.writes + 1)
        written = self._object.write(to_json(asdict(claim)).encode(), etag)
        self._held = None if written is None else (claim, written)
        return written is not None

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            if not self.is_held:
                continue  # it may be released later
            try:
                self.confirm()
            except Dl4jError as exc:
                logger.info("%s could not be renewed: %s", self._place, str(exc))
            except OSError as exc:
                logger.warning("%s: %s; nothing is written there meanwhile", self._place, str(exc))

    def release(self) -> None:
        """Mark the lock as free, if this process holds it, and end."""
        self._ended.set()
        self._thread.join()
        try:
            with self._one:
                if self._held is not None:
                    claim, etag = self._held
                    self._write(replace(claim, holder=""), etag)
        except Dl4jError as exc:
            logger.warning(
                "%s could not be released, so the next process waits %.0f s for it: %s",
                self._place,
                SILENT_SECONDS,
                str(exc),
            )
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._aws.close()


def _newest(parts: Sequence[str]) -> set[str]:
    """Return the last part of each process, from sorted parts."""
    return set({part.rpartition("-")[0]: part for part in parts}.values())


def _turn(parts: Sequence[str]) -> str:
    """Return the beginning of this process's part names: its turn, after those found in ``parts``.

    A turn and not the time, because clocks of machines differ. Older versions wrote the time, which sorts before any
    turn.
    """
    turns = [int(match[1]) for part in parts if (match := _TURN.search(part))]
    return f"p{max(turns, default=0) + 1:06}"


def _claim(found: Version) -> Claim:
    """Return the content of a lock; an unreadable lock counts as held by an unknown process."""
    try:
        return msgspec.json.decode(found.body, type=decodable(Claim))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Claim("", "an unknown machine", "")
