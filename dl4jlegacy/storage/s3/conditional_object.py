"""An object in S3 that changes only by compare-and-set, such as a cluster's ``owner.json`` and the lock of a folder.

Every write is conditional: there must be no object (``If-None-Match``), or it must be the version read last
(``If-Match``). So of two simultaneous writers exactly one succeeds. The age of the object is the difference of two
times of S3's clock; clocks of other machines do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import ABSENT, Aws, error_code, translate_errors

__all__ = ["ConditionalObject", "Version"]

_REFUSED = {"PreconditionFailed", "ConditionalRequestConflict", "412"}


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the object in S3: its content, its ETag, and the seconds since it was written."""

    body: bytes
    etag: str
    age: float


class ConditionalObject:
    """One such object. Used by one thread at a time.

    Args:
        aws: the region.
        location: of the object.
        what: its name in messages.
    """

    def __init__(self, aws: Aws, location: Location, what: str) -> None:
        self._aws, self._location, self._what = aws, location, what

    def read(self) -> Version | None:
        """Return the object, None if there is none."""
        from botocore.exceptions import ClientError

        with translate_errors(self._what):
            try:
                answer = self._aws.client("s3").get_object(Bucket=self._location.bucket, Key=self._location.key)
                body = answer["Body"].read()
            except ClientError as exc:
                if error_code(exc) not in ABSENT:
                    raise
                return None
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        return Version(body, answer["ETag"], (now - answer["LastModified"]).total_seconds())

    def write(self, body: bytes, etag: str | None) -> str | None:
        """Write the object if its version is still ``etag`` (None: if there is no object).

        Args:
            body: content that was never written there before.
            etag: of the version that was read, or written, last.

        Returns:
            the new ETag; None if the version was another one.
        """
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        with translate_errors(self._what):
            try:
                answer = self._aws.client("s3").put_object(
                    Bucket=self._location.bucket, Key=self._location.key, Body=body, **condition
                )
                return str(answer["ETag"])
            except ClientError as exc:
                if error_code(exc) not in _REFUSED | ABSENT:
                    raise
        found = self.read()  # a repeated write, whose first answer was lost, conflicts with itself
        return None if found is None or found.body != body else found.etag
