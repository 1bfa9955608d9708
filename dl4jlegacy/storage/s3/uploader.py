"""Uploads to S3, in parts, each with its checksum; an interrupted upload continues where it stopped.

S3 checks the SHA-256 of every part. The SHA-256 of the whole content is stored with the object, for the downloader.
Parts of an unfinished upload of the same file are not sent again, even by another process.

Legacy: ``S3Uploader``, which swallowed the errors of its multi-part upload.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

from dl4jlegacy.errors import CloudError, Dl4jError, ModelError
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws, error_code, translate_errors

__all__ = ["PART_NBYTES", "SHA256", "S3Uploader"]

logger = logging.getLogger(__name__)

PART_NBYTES = 8 << 20
"""Bytes of a part; larger if there would be over 10,000 parts."""
SHA256 = "dl4j-sha256"
"""The metadata key for the SHA-256 of the object's content."""
_MOST_PARTS = 10_000
_THREADS = 4
_TRIES = 5
_MISSING_BUCKET = {"404", "NoSuchBucket", "NotFound"}
T = TypeVar("T")


class S3Uploader:
    """Uploads; used by one thread at a time.

    Args:
        aws: the region.
        part_nbytes: bytes of a part, at least 5 MiB.
    """

    def __init__(self, aws: Aws, *, part_nbytes: int = PART_NBYTES) -> None:
        self._aws, self._part_nbytes = aws, part_nbytes

    def ensure_bucket(self, bucket: str) -> None:
        """Create the bucket if it is missing; raises ``NotAuthorisedError`` if it belongs to another account."""
        from botocore.exceptions import ClientError

        s3 = self._aws.client("s3")
        where = {} if self._aws.region == "us-east-1" else {"LocationConstraint": self._aws.region}
        with translate_errors(f"bucket {bucket}"):
            try:
                s3.head_bucket(Bucket=bucket)
            except ClientError as exc:
                if error_code(exc) not in _MISSING_BUCKET:
                    raise
                options = {"CreateBucketConfiguration": where} if where else {}
                try:
                    s3.create_bucket(Bucket=bucket, **options)
                except ClientError as again:
                    if error_code(again) != "BucketAlreadyOwnedByYou":
                        raise

    def upload(self, source: Path | str | IO[bytes], name: str, bucket: str) -> Location:
        """Upload a file or a stream under ``name``, and create the bucket if it is missing; return the location.

        Raises:
            ModelError: the source cannot be read. NotAuthorisedError, CloudError: S3 rejects it.
        """
        self.ensure_bucket(bucket)
        target = Location(bucket, name)
        if isinstance(source, (str, Path)):
            return self.multi_part_upload(Path(source), bucket, name)
        return self.put(source.read(), target)

    def put(self, content: bytes, target: Location) -> Location:
        """Upload bytes in one request."""
        with translate_errors(str(target)):
            self._aws.client("s3").put_object(
                Bucket=target.bucket,
                Key=target.key,
                Body=content,
                ChecksumSHA256=base64.b64encode(hashlib.sha256(content).digest()).decode(),
                Metadata={SHA256: hashlib.sha256(content).hexdigest()},
            )
        return target

    def multi_part_upload(self, file: Path, bucket: str, key: str = "") -> Location:
        """Upload a file, in several parallel parts if it is larger than a part. ``key`` is the file's name by default.

        The parts of a failed upload stay, so that the next call continues; ``abort`` removes them.
        """
        target = Location(bucket, key or file.name)
        try:
            size = file.stat().st_size
            if size <= self._part_nbytes:
                return self.put(file.read_bytes(), target)
            digest = _sha256(file)
            self._upload_parts(file, size, digest, target)
        except OSError as exc:
            if isinstance(exc, Dl4jError) or exc.filename is None:
                raise
            raise ModelError(f"{file} cannot be read to be uploaded: {exc.strerror or exc}") from exc
        return target

    def _upload_parts(self, file: Path, size: int, digest: str, target: Location) -> None:
        nbytes = max(self._part_nbytes, -(-size // _MOST_PARTS))
        s3 = self._aws.client("s3")
        with translate_errors(str(target)):
            upload, sent = self._unfinished(target, digest)
            if not upload:
                upload = s3.create_multipart_upload(
                    Bucket=target.bucket,
                    Key=target.key,
                    ChecksumAlgorithm="SHA256",
                    Metadata={SHA256: digest},
                )["UploadId"]
            where = {"Bucket": target.bucket, "Key": target.key, "UploadId": upload}

            def send(part: tuple[int, int, int]) -> dict[str, Any]:
                number, start, length = part
                with file.open("rb") as stream:
                    stream.seek(start)
                    body = stream.read(length)
                checksum = base64.b64encode(hashlib.sha256(body).digest()).decode()
                etag = sent.get((number, length, hashlib.md5(body, usedforsecurity=False).hexdigest()))
                if etag is None:
                    etag = self._retry(
                        lambda: s3.upload_part(**where, PartNumber=number, Body=body, ChecksumSHA256=checksum)["ETag"],
                        f"part {number} of {target}",
                    )
                return {"PartNumber": number, "ETag": etag, "ChecksumSHA256": checksum}

            with ThreadPoolExecutor(_THREADS) as pool:
                parts = list(pool.map(send, _parts(size, nbytes)))
            s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})

    def _unfinished(self, target: Location, digest: str) -> tuple[str, dict[tuple[int, int, str], str]]:
        """Return the newest unfinished upload of this key, and its parts: (number, bytes, MD5) to ETag."""
        s3, found = self._aws.client("s3"), []
        for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=target.bucket, Prefix=target.key):
            found += [upload for upload in page.get("Uploads", []) if upload["Key"] == target.key]
        if not found:
            return "", {}
        upload = max(found, key=lambda each: each["Initiated"])["UploadId"]
        pages = s3.get_paginator("list_parts").paginate(Bucket=target.bucket, Key=target.key, UploadId=upload)
        parts = [part for page in pages for part in page.get("Parts", [])]
        logger.info("going on with the upload of %s (%s): %s parts are there", target, digest[:8], len(parts))
        return upload, {(p["PartNumber"], p["Size"], p["ETag"].strip('"')): p["ETag"] for p in parts}

    def _retry(self, call: Callable[[], T], what: str) -> T:
        """Return the result of ``call``; repeat it if the connection breaks, in addition to the attempts of boto3."""
        import botocore.exceptions as boto

        pause = 0.5
        for left in reversed(range(_TRIES)):
            try:
                return call()
            except (boto.HTTPClientError, boto.ConnectionError) as exc:
                if not left:
                    raise
                logger.warning("%s broke off (%s); again", what, type(exc).__name__)
            self._aws.clock.wait(pause)
            pause *= 2
        raise CloudError(f"{what} could not be sent")

    def abort(self, bucket: str, prefix: str = "") -> int:
        """Remove the parts of unfinished uploads, which cost money; return the number of these uploads."""
        s3, count = self._aws.client("s3"), 0
        with translate_errors(f"unfinished uploads to s3://{bucket}/{prefix}"):
            for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
                for upload in page.get("Uploads", []):
                    s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                    count += 1
        return count


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _parts(size: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number from 1, offset, length)."""
    for number, start in enumerate(range(0, size, nbytes), start=1):
        yield number, start, min(nbytes, size - start)
