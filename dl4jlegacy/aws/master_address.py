"""Prints the present master's private address, for other instances: ``python -m dl4jlegacy.aws.master_address``.

``up`` writes it to the cluster's bucket, where no instance can write it: a master whose instance was lost is replaced
by one with another address, which the user data of workers that were started before do not have. In a cluster with a
standby it prints those of all three instances with servers, with commas between them, the witness's last.
"""

from __future__ import annotations

import argparse
import logging
import sys

from dl4jlegacy.aws.cluster_bucket import read_servers
from dl4jlegacy.errors import CloudError, Dl4jError
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.system.console import emit, run_guarded

__all__ = ["main", "master_address"]

logger = logging.getLogger(__name__)


def master_address(region: str, bucket: str, otherwise: str) -> str:
    """Return what the bucket says, and ``otherwise``, with a warning, if it cannot be read.

    Raises:
        CloudError: it cannot be read, and ``otherwise`` is "".
    """
    try:
        with Aws(region) as aws:
            servers = read_servers(aws, bucket)
        reason = f"s3://{bucket} does not say"
    except Dl4jError as exc:
        servers, reason = None, str(exc)
    if servers is not None:
        return servers.addresses
    if not otherwise:
        raise CloudError(f"where the cluster's servers are is not known: {reason}; it is asked again")
    logger.warning("the master may be another one than %s: %s", otherwise, reason)
    return otherwise


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dl4jlegacy.aws.master_address")
    for flag in ("--region", "--bucket"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--otherwise", default="")
    args = parser.parse_args(arguments)
    sys.exit(run_guarded(lambda: emit(master_address(args.region, args.bucket, args.otherwise))))


if __name__ == "__main__":
    main()
