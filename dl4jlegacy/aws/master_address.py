"""Prints the present master's private address, for a worker's instance: ``python -m dl4jlegacy.aws.master_address``.

``up`` writes it to the cluster's bucket, where no instance can write it: a master whose instance was lost is replaced
by one with another address, which the user data of workers that were started before do not have.
"""

from __future__ import annotations

import argparse
import logging
import sys

from dl4jlegacy.aws.cluster_bucket import read_present_master
from dl4jlegacy.aws.session import Aws
from dl4jlegacy.console import emit, run_guarded
from dl4jlegacy.errors import Dl4jError

__all__ = ["main", "master_address"]

logger = logging.getLogger(__name__)


def master_address(region: str, bucket: str, otherwise: str) -> str:
    """Return what the bucket says, and ``otherwise``, with a warning, if it cannot be read."""
    try:
        with Aws(region) as aws:
            master = read_present_master(aws, bucket)
        reason = f"s3://{bucket} does not say"
    except Dl4jError as exc:
        master, reason = None, str(exc)
    if master is None:
        logger.warning("the master may be another one than %s: %s", otherwise, reason)
        return otherwise
    return master.address


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dl4jlegacy.aws.master_address")
    for flag in ("--region", "--bucket", "--otherwise"):
        parser.add_argument(flag, required=True)
    args = parser.parse_args(arguments)
    sys.exit(run_guarded(lambda: emit(master_address(args.region, args.bucket, args.otherwise))))


if __name__ == "__main__":
    main()
