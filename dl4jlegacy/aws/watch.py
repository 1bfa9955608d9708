"""Keeps what an instance's services say, and ends the instance with its run: ``python -m dl4jlegacy.aws.watch``.

One process on each instance. Every five minutes, and once more when it is told to end, it puts the newest part of the
services' journal into the cluster's bucket. It looks there every minute whether the master has said that its run is
done. Then it ends with 0, and systemd powers the instance off, which terminates it.

With ``--done MODEL`` it is the master who says so, once the model is where it was wanted.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from collections.abc import Callable

from dl4jlegacy.aws.cluster_bucket import (
    DONE,
    JOURNAL,
    PresentMaster,
    own_key,
    own_user_id,
    read_done,
    read_servers,
    write_object,
)
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.system.console import run_guarded

__all__ = ["JOURNAL_NBYTES", "main", "read_journal", "say_done", "watch"]

logger = logging.getLogger(__name__)

JOURNAL_NBYTES = 4 << 20
"""So much of the end of a journal is kept."""
_LOOK_SECONDS = 60.0
_LOOKS_PER_JOURNAL = 5
_SAID = "cat /var/log/dl4j-install.log; journalctl --no-pager --output=short-iso --lines=20000 --unit='dl4j-*'"


def read_journal() -> bytes:
    """Return the newest lines of the services' journal, after what the installation complained of."""
    command = f"({_SAID}) 2>&1 | tail --bytes={JOURNAL_NBYTES}"
    return subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, timeout=60).stdout


def watch(aws: Aws, bucket: str, *, ends: bool, read: Callable[[], bytes] = read_journal) -> None:
    """Keep the journal; return once a present master has said that its run is done, but never unless ``ends``."""
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
        return False  # S3 denies what is not there, and is asked again
    return servers is not None and any(_has_said(aws, bucket, leader) for leader in servers.leaders)


def _has_said(aws: Aws, bucket: str, leader: PresentMaster) -> bool:
    try:
        return read_done(aws, bucket, leader) is not None
    except Dl4jError:
        return False


def say_done(aws: Aws, bucket: str, model: str) -> None:
    """Say that this instance's run is done, and where its model is; raises what ``translate_errors`` raises."""
    write_object(aws, bucket, own_key(own_user_id(aws), DONE), model.encode())


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dl4jlegacy.aws.watch")
    for flag in ("--region", "--bucket"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--done", metavar="MODEL")
    args = parser.parse_args(arguments)

    def command() -> None:
        with Aws(args.region) as aws:
            if args.done:
                say_done(aws, args.bucket, args.done)
            else:
                watch(aws, args.bucket, ends=not args.keep)

    sys.exit(run_guarded(command))


if __name__ == "__main__":
    main()
