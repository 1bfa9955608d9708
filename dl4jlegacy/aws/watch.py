"""Saves the journal of an instance's services, and ends the instance with its run: one process on each instance.

Every five minutes, and once more when it is stopped, the process puts the newest part of the services' journal into the
cluster's bucket. Every minute it checks there whether the master has recorded that its run is done. Then it exits with
0, and systemd powers the instance off, which terminates it.

The master records this with ``say_done``, once the model is in its place.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
from collections.abc import Callable

from dl4jlegacy.aws.cluster_bucket import (
    DONE,
    JOURNAL,
    own_key,
    own_user_id,
    read_done,
    read_servers,
    write_object,
)
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.storage.s3.session import Aws

__all__ = ["JOURNAL_NBYTES", "read_journal", "say_done", "watch"]

logger = logging.getLogger(__name__)

JOURNAL_NBYTES = 4 << 20
"""Bytes of the end of a journal that are saved."""
_LOOK_SECONDS = 60.0
_LOOKS_PER_JOURNAL = 5
_SAID = "cat /var/log/dl4j-install.log; journalctl --no-pager --output=short-iso --lines=20000 --unit='dl4j-*'"


def read_journal() -> bytes:
    """Return the errors of the installation and the newest lines of the services' journal."""
    command = f"({_SAID}) 2>&1 | tail --bytes={JOURNAL_NBYTES}"
    return subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, timeout=60).stdout


def watch(aws: Aws, bucket: str, *, ends: bool, read: Callable[[], bytes] = read_journal) -> None:
    """Save the journal; with ``ends`` return once a present master has recorded the end of its run."""
    me, kept = own_user_id(aws), b""

    def keep() -> None:
        nonlocal kept
        try:
            said = read()
            if said != kept:
                write_object(aws, bucket, own_key(me, JOURNAL), said)
                kept = said
        except (Dl4jError, OSError, subprocess.SubprocessError) as exc:
            logger.warning("the journal could not be kept: %s", str(exc))

    looks = 0
    try:
        while not (ends and _is_done(aws, bucket)):
            if looks % _LOOKS_PER_JOURNAL == 0:
                keep()
            looks += 1
            aws.clock.wait(_LOOK_SECONDS)
    finally:
        keep()


def _is_done(aws: Aws, bucket: str) -> bool:
    try:
        servers = read_servers(aws, bucket)
    except Dl4jError:
        return False  # S3 denies access to missing objects; ask again later
    for leader in servers.leaders if servers else ():
        with contextlib.suppress(Dl4jError):
            if read_done(aws, bucket, leader) is not None:
                return True
    return False


def say_done(aws: Aws, bucket: str, model: str) -> None:
    """Record the end of this instance's run and the address of its model; raises as ``translate_errors`` does."""
    write_object(aws, bucket, own_key(own_user_id(aws), DONE), model.encode())
