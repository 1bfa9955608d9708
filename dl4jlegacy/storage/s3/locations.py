"""Locations in S3, ``s3://bucket/key``, and the legacy rule for bucket names. No code here accesses AWS."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dl4jlegacy.errors import ConfError

__all__ = ["Location", "legacy_bucket_name"]

_SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MOST_KEY_NBYTES = 1024


@dataclass(frozen=True, slots=True)
class Location:
    """A bucket and a key (or a prefix of keys, or nothing)."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, url: str) -> Location:
        """Return the location of an ``s3://`` address; raises ``ConfError``."""
        bucket, _, key = url.removeprefix(_SCHEME).partition("/")
        if not url.startswith(_SCHEME) or not _BUCKET.fullmatch(bucket):
            raise ConfError(
                f"{url!r} is no place in S3; give s3://bucket/key, the bucket of 3 to 63 of a-z, 0-9, . and -"
            )
        if len(key.encode()) > _MOST_KEY_NBYTES:
            raise ConfError(f"{url[:60]}...: the key has {len(key.encode())} bytes, S3 takes {_MOST_KEY_NBYTES}")
        return cls(bucket, key)

    def child(self, name: str) -> Location:
        """Return the location of ``name`` below this one."""
        return Location(self.bucket, f"{self.key.rstrip('/')}/{name}".lstrip("/"))

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.key}"


def legacy_bucket_name(bucket: str) -> str:
    """Return a bucket name by the rule of the legacy uploader: no blanks, dots or capitals, at most 62 characters."""
    name = re.sub(r"\s", "_", bucket)[:62].replace(".", "d").lower()
    return re.sub(r"[^a-z0-9-]", "-", name).rstrip("-")
