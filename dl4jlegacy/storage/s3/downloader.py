"""Lists and downloads objects in S3, and checks their content; an interrupted download continues where it stopped.

A download is written to a temporary file, which is renamed when it is complete and has the SHA-256 that the uploader
recorded. Every request names the version of the first one (``If-Match``), so a file never mixes two versions.

Legacy: ``S3Downloader``, ``BucketIterator``, ``BucketKeyListener``.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from dl4jlegacy.errors import CloudError, DataError
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import ABSENT, Aws, error_code, translate_errors
from dl4jlegacy.storage.s3.uploader import SHA256
from dl4jlegacy.system import files, ownership
from dl4jlegacy.system.strict_json import to_json

__all__ = ["BucketIterator", "S3Downloader"]

logger = logging.getLogger(__name__)

_CHUNK = 1 << 20
_TRIES = 5


class BucketIterator:
    """The keys of a bucket, page by page; may be iterated repeatedly. Only one page is in memory.

    Args:
        aws: the region.
        bucket, prefix: select the keys.
        page_size: keys per request, at most 1000.
    """

    def __init__(self, aws: Aws, bucket: str, prefix: str = "", *, page_size: int = 1000) -> None:
        self._aws, self.bucket, self.prefix, self._page_size = aws, bucket, prefix, page_size

    def __iter__(self) -> Iterator[str]:
        for found in self.objects():
            yield found["Key"]

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yield S3's description of every object: Key, Size, ETag, LastModified. ``DataError``: there is no bucket."""
        from botocore.exceptions import ClientError

        paginator = self._aws.client("s3").get_paginator("list_objects_v2")
        with translate_errors(f"listing s3://{self.bucket}/{self.prefix}"):
            try:
                for page in paginator.paginate(
                    Bucket=self.bucket, Prefix=self.prefix, PaginationConfig={"PageSize": self._page_size}
                ):
                    yield from page.get("Contents", [])
            except ClientError as exc:
                if error_code(exc) not in ABSENT:
                    raise
                raise DataError(f"there is no bucket {self.bucket}; is it spelt right, and in this account?") from exc


class S3Downloader:
    """Downloads; used by one thread at a time."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws

    def buckets(self) -> list[str]:
        """Return the names of the account's buckets."""
        with translate_errors("listing the buckets"):
            return [str(bucket["Name"]) for bucket in self._aws.client("s3").list_buckets()["Buckets"]]

    def keys_for_bucket(self, bucket: str) -> list[str]:
        """Return all keys of a bucket; ``iterate_bucket`` needs less memory."""
        return list(self.iterate_bucket(bucket))

    def iterate_bucket(self, bucket: str, prefix: str = "") -> BucketIterator:
        """Return an iterator over the keys."""
        return BucketIterator(self._aws, bucket, prefix)

    def paginate(self, bucket: str, on_key: Callable[[Any, str, str], None], prefix: str = "") -> None:
        """Call ``on_key`` for every key, with ``(s3 client, bucket, key)``."""
        for key in self.iterate_bucket(bucket, prefix):
            on_key(self._aws.client("s3"), bucket, key)

    def head(self, location: Location) -> dict[str, Any] | None:
        """Return S3's description of an object (ETag, ContentLength, Metadata), or None if there is none."""
        from botocore.exceptions import ClientError

        with translate_errors(str(location)):
            try:
                found = self._aws.client("s3").head_object(Bucket=location.bucket, Key=location.key)
                return dict(found)
            except ClientError as exc:
                if error_code(exc) in ABSENT:
                    return None
                raise

    def object_for_key(self, bucket: str, key: str) -> bytes:
        """Return an object's content after checking its digest; raises ``DataError`` if there is none."""
        location = Location(bucket, key)
        found = self._get(location)
        if found is None:
            raise DataError(f"there is no {location}; is it spelt right?")
        content, metadata = found
        _check(hashlib.sha256(content).hexdigest(), metadata, location)
        return content

    def unchecked(self, location: Location) -> bytes | None:
        """Return an object's content without a check, for callers that check it themselves; None if there is none."""
        found = self._get(location)
        return None if found is None else found[0]

    def _get(self, location: Location) -> tuple[bytes, dict[str, str]] | None:
        """Return content and metadata of one version; repeats the request if a connection breaks."""
        import botocore.exceptions as boto

        with translate_errors(str(location)):
            for left in reversed(range(_TRIES)):
                try:
                    found = self._aws.client("s3").get_object(Bucket=location.bucket, Key=location.key)
                except boto.ClientError as exc:
                    if error_code(exc) in ABSENT:
                        return None
                    raise
                try:
                    return bytes(found["Body"].read()), found.get("Metadata", {})
                except (boto.HTTPClientError, boto.IncompleteReadError):
                    if not left:
                        raise
        raise AssertionError

    def download(self, bucket: str, key: str, target: Path | str | IO[bytes]) -> None:
        """Write an object to a file (whole or not at all) or to a stream.

        Raises:
            DataError: there is no such object. CloudError: the connection broke repeatedly, or the content is not what
                was uploaded; the next call continues an incomplete file.
        """
        location = Location(bucket, key)
        head = self.head(location)
        if head is None:
            raise DataError(f"there is no {location}; is it spelt right?")
        if not isinstance(target, (str, Path)):
            digest = hashlib.sha256()

            def write(chunk: bytes) -> None:
                digest.update(chunk)
                target.write(chunk)

            self._fetch(location, head, 0, write)
            _check(digest.hexdigest(), head.get("Metadata", {}), location)
            return
        try:
            self._to_file(location, head, Path(target))
        except OSError as exc:
            if exc.filename is None:
                raise
            raise DataError(f"{location} cannot be written to {exc.filename}: {exc.strerror or exc}") from exc

    def _to_file(self, location: Location, head: dict[str, Any], path: Path) -> None:
        """Download into a temporary file; a note beside it records the version of its content."""
        ownership.check_links(path)
        path = Path(os.path.realpath(path))  # a link may lead to another file system
        aside, note = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.part.json")
        version = to_json({"etag": head["ETag"], "size": head["ContentLength"]})
        if not (aside.is_file() and note.is_file() and note.read_text(encoding="utf-8") == version):
            aside.unlink(missing_ok=True)
            files.write(note, version.encode())
        with files.opened_folder(path.parent) as folder:
            descriptor = files.open_in(folder, aside.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as file:
            self._fetch(location, head, file.tell(), file.write)
            file.flush()
            os.fsync(file.fileno())
        with aside.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        note.unlink()
        try:
            _check(digest, head.get("Metadata", {}), location)
        except CloudError:
            aside.unlink()
            raise
        files.put_in_place(aside, path)

    def _fetch(self, location: Location, head: dict[str, Any], start: int, write: Callable[[bytes], object]) -> None:
        """Write the content from ``start``; if a connection breaks, request the rest again."""
        import botocore.exceptions as boto

        size, at, tries = int(head["ContentLength"]), start, _TRIES
        with translate_errors(str(location)):
            while at < size:
                before = at
                try:
                    body = self._aws.client("s3").get_object(
                        Bucket=location.bucket, Key=location.key, Range=f"bytes={at}-", IfMatch=head["ETag"]
                    )["Body"]
                    with body:
                        while chunk := body.read(_CHUNK):
                            write(chunk)
                            at += len(chunk)
                except (boto.HTTPClientError, boto.IncompleteReadError, boto.ConnectionError) as exc:
                    tries = _TRIES if at > before else tries - 1
                    if not tries:
                        raise
                    logger.warning(
                        "the download of %s broke off at byte %s (%s); again", location, at, type(exc).__name__
                    )
                    self._aws.clock.wait(0.5)


def _check(digest: str, metadata: dict[str, str], location: Location) -> None:
    noted = metadata.get(SHA256)
    if noted is not None and noted != digest:
        raise CloudError(f"{location} has the SHA-256 {digest}, it was uploaded with {noted}; upload it again")
