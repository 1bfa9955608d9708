"""Prints the present master's private address, for a worker's instance: ``python -m dl4jlegacy.aws.master_address``.

``up`` writes it to the cluster's bucket, where no instance can write it: a master whose instance was lost is replaced
by one with another address, which the user data of workers that were started before do not have.
"""

from __future__ import annotations

import argparse
import ipaddress
import logging
import sys

from dl4jlegacy.aws.cluster_spec import MASTER_ADDRESS
from dl4jlegacy.aws.session import Aws, translate_errors
from dl4jlegacy.console import emit, run_guarded
from dl4jlegacy.errors import Dl4jError

__all__ = ["main", "master_address"]

logger = logging.getLogger(__name__)


def master_address(region: str, bucket: str, otherwise: str) -> str:
    """Return what the bucket says, and ``otherwise``, with a warning, if it cannot be read."""
    where = f"s3://{bucket}/{MASTER_ADDRESS}"
    try:
        with Aws(region) as aws, translate_errors(where):
            said = aws.client("s3").get_object(Bucket=bucket, Key=MASTER_ADDRESS)["Body"].read(100)
        return str(ipaddress.IPv4Address(said.decode()))
    except (Dl4jError, ValueError) as exc:
        logger.warning("the master may be another one than %s: %s holds no address: %s", otherwise, where, str(exc))
        return otherwise


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dl4jlegacy.aws.master_address")
    for flag in ("--region", "--bucket", "--otherwise"):
        parser.add_argument(flag, required=True)
    args = parser.parse_args(arguments)
    sys.exit(run_guarded(lambda: emit(master_address(args.region, args.bucket, args.otherwise))))


if __name__ == "__main__":
    main()
