"""Local copies of objects in S3: downloaded once, and again when they have changed there.

They are stored below ``$DL4J_S3_CACHE``, or ``~/.deeplearning4j/s3``, by bucket and key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dl4jlegacy.errors import CheckpointError, DataError
from dl4jlegacy.storage.s3.downloader import S3Downloader
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.storage.s3.uploader import S3Uploader
from dl4jlegacy.system import files

__all__ = ["S3Versions", "cache_folder", "fetch", "open_upload"]

_ATTEMPTS, _SILENT_SECONDS = 2, 10.0
"""Limits for a caller that polls, and prefers a later attempt to a long wait."""


def cache_folder() -> Path:
    """Return the folder of the copies."""
    given = os.environ.get("DL4J_S3_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".deeplearning4j" / "s3"


def fetch(url: str, aws: Aws | None = None) -> Path:
    """Return a copy of the object at ``url``, or a folder with copies of all objects directly below it.

    Raises:
        DataError: there is neither, or the copy cannot be written. CloudError, NotAuthorisedError: errors of AWS.
    """
    location = Location.parse(url)
    with aws if aws is not None else Aws() as session:
        downloader = S3Downloader(session)
        head = downloader.head(location) if location.key and not location.key.endswith("/") else None
        if head is not None:
            return _fetch_object(downloader, location, head)
        return _fetch_folder(downloader, location)


def _fetch_folder(downloader: S3Downloader, location: Location) -> Path:
    prefix = f"{location.key.rstrip('/')}/" if location.key else ""
    found = [
        o
        for o in downloader.iterate_bucket(location.bucket, prefix).objects()
        if (name := o["Key"].removeprefix(prefix)) and "/" not in name
    ]
    if not found:
        raise DataError(f"there is nothing at {location}, neither an object nor any below it; is it spelt right?")
    names = {Path(o["Key"]).name for o in found}
    paths = [_fetch_object(downloader, Location(location.bucket, o["Key"]), o) for o in found]
    folder = paths[0].parent
    for stale in folder.iterdir():  # remove copies of objects that no longer exist
        if stale.is_file() and not stale.name.startswith(".") and stale.name not in names:
            stale.unlink()
    return folder


def _fetch_object(downloader: S3Downloader, location: Location, found: dict[str, Any]) -> Path:
    """Return the copy of one object; ``found`` has its ETag."""
    parts = [part for part in location.key.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts):
        raise DataError(f"{location} cannot be copied: its key is no path; give it another name")
    path = cache_folder().joinpath(location.bucket, *parts)
    note = path.with_name(f".{path.name}.etag")
    if path.is_file() and note.is_file() and note.read_text(encoding="utf-8") == found["ETag"]:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        note.unlink(missing_ok=True)
    except OSError as exc:
        raise DataError(
            f"{path} cannot be written: {exc.strerror or exc}; name another folder in DL4J_S3_CACHE"
        ) from exc
    downloader.download(location.bucket, location.key, path)
    files.write(note, found["ETag"].encode())
    return path


class S3Versions:
    """Detects changes at ``url``: of an object, or of the objects directly below it. For one thread.

    The session is opened at the first query and kept open, because opening takes long.
    """

    def __init__(self, url: str) -> None:
        self._location = Location.parse(url)
        self._aws: Aws | None = None

    def found(self) -> tuple[tuple[str, str], ...]:
        """Return the names of the existing objects, each with an identifier of its content; () if there is none.

        Raises:
            CloudError, NotAuthorisedError: errors of AWS. ConfError: boto3 is missing.
        """
        if self._aws is None:
            self._aws = Aws(attempts=_ATTEMPTS, silent_seconds=_SILENT_SECONDS)
        downloader, location = S3Downloader(self._aws), self._location
        head = downloader.head(location) if location.key and not location.key.endswith("/") else None
        if head is not None:
            return (("", head["ETag"]),)
        prefix = f"{location.key.rstrip('/')}/" if location.key else ""
        try:
            listed = list(downloader.iterate_bucket(location.bucket, prefix).objects())
        except DataError:  # no bucket
            return ()
        names = ((each["Key"].removeprefix(prefix), each["ETag"]) for each in listed)
        return tuple(sorted((name, tag) for name, tag in names if name and "/" not in name))

    def close(self) -> None:
        """Close the session."""
        if self._aws is not None:
            self._aws.close()
            self._aws = None


def open_upload(url: str) -> Callable[[Path], None]:
    """Return a function that uploads a file to ``url``; raises an error at once if its bucket cannot be used."""
    location = Location.parse(url)
    if not location.key or location.key.endswith("/"):
        raise CheckpointError(f"{url} names no object; give s3://{location.bucket}/model.zip, for instance")
    with Aws() as aws:
        S3Uploader(aws).ensure_bucket(location.bucket)

    def upload(file: Path) -> None:
        with Aws() as aws:
            S3Uploader(aws).multi_part_upload(file, location.bucket, location.key)

    return upload
