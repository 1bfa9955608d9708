"""Checkpoints in S3: the files of ``CheckpointStore`` as objects below a prefix.

An object exists completely or not at all, and S3 shows it at once, so it is enough to write them in order.

Legacy: ``S3ModelSaver``, which gave every model a random name and could not load.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Self

from dl4jlegacy.aws.downloader import S3Downloader
from dl4jlegacy.aws.locations import Location
from dl4jlegacy.aws.session import Aws, translate_errors
from dl4jlegacy.aws.uploader import PART_NBYTES, S3Uploader
from dl4jlegacy.errors import CloudError, DataError, NotAuthorisedError
from dl4jlegacy.scaleout.checkpoint import CheckpointStore, RunIdentity

__all__ = ["S3ModelSaver"]


class S3ModelSaver(CheckpointStore):
    """Checkpoints of one run below one prefix; the newest ``keep`` are kept. Used by one thread at a time.

    Args:
        bucket, prefix: where; the bucket is made when first written to.
        aws: the region; by default that of the environment, asked anew for every call.
        keep, owner: those of ``CheckpointStore``.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        aws: Aws | None = None,
        keep: int = 3,
        owner: RunIdentity | None = None,
    ) -> None:
        super().__init__(Path("."), keep=keep, owner=owner)
        self._location, self._aws, self._is_ready = Location(bucket, prefix.strip("/")), aws, False

    @classmethod
    def at(cls, url: str, *, keep: int = 3, owner: RunIdentity | None = None) -> Self:
        """Return the saver of the checkpoints at ``s3://bucket/prefix``."""
        location = Location.parse(url)
        return cls(location.bucket, location.key, keep=keep, owner=owner)

    @property
    def place(self) -> str:
        """See ``CheckpointStore``."""
        return str(self._location)

    def _lock(self) -> bool:
        return True  # S3 has no locks; what another run writes there is told apart when it is read

    def _write(self, name: str, content: bytes) -> None:
        target = self._location.child(name)
        try:
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
        except (CloudError, NotAuthorisedError) as exc:
            raise OSError(0, str(exc)) from exc

    def _read(self, name: str) -> bytes:
        try:
            with self._session() as aws:
                target = self._location.child(name)
                return S3Downloader(aws).object_for_key(target.bucket, target.key)
        except (DataError, CloudError) as exc:
            raise OSError(0, str(exc)) from exc

    def _names(self) -> list[str]:
        prefix = f"{self._location.key}/" if self._location.key else ""
        try:
            with self._session() as aws:
                keys = list(S3Downloader(aws).iterate_bucket(self._location.bucket, prefix))
        except DataError:
            return []  # no bucket yet
        return [key.removeprefix(prefix) for key in keys]

    def _delete(self, name: str) -> None:
        target = self._location.child(name)
        with self._session() as aws, translate_errors(str(target)):
            aws.client("s3").delete_object(Bucket=target.bucket, Key=target.key)

    def _session(self) -> Aws:
        """Return a session; leaving it closes its connections, which it opens again when used."""
        if self._aws is None:
            self._aws = Aws()
        return self._aws
