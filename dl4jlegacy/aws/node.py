"""What an instance does for itself once the wheel is installed: ``python -m dl4jlegacy.aws.node``, as root, at boot.

It gets the run's secret from the parameter store and keeps it in a file that only the service's user can read, notes
its own private address, and tells its SSH host keys in the cluster's bucket, where only its role can write: whoever
logs in later compares them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
from pathlib import Path

from dl4jlegacy.aws.cluster_spec import Names
from dl4jlegacy.aws.session import Aws, translated
from dl4jlegacy.console import run_guarded

__all__ = ["HOSTS", "main", "own_address"]

HOSTS = "hosts/"
"""Where host keys are in the cluster's bucket, each under the instance's private address."""
_USER = "dl4j"


def own_address() -> str:
    """Return the address from which this machine reaches others; 127.0.0.1 if it reaches none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def prepare(aws: Aws, cluster: str, bucket: str, root: Path = Path("/")) -> None:
    """Do all of it below ``root``; raises what ``translated`` raises."""
    folder, address = root / "etc/dl4j", own_address()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "address").write_text(f"DL4J_ADDRESS={address}\n", encoding="utf-8")
    name = Names(cluster, aws.region, "").secret
    with translated(f"getting the run's secret {name}"):
        value = aws.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    _write_secret(folder / "secret", value.encode())
    keys = [path.read_text(encoding="ascii").strip() for path in sorted((root / "etc/ssh").glob("ssh_host_*_key.pub"))]
    with translated(f"writing the host keys to bucket {bucket}"):
        aws.client("s3").put_object(Bucket=bucket, Key=HOSTS + address, Body="\n".join(keys).encode())


def _write_secret(path: Path, secret: bytes) -> None:
    path.unlink(missing_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(number, "wb") as file:
        file.write(secret)
    if os.geteuid() == 0:
        shutil.chown(path, _USER, _USER)


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dl4jlegacy.aws.node")
    for flag in ("--cluster", "--region", "--bucket"):
        parser.add_argument(flag, required=True)
    args = parser.parse_args(arguments)

    def command() -> None:
        with Aws(args.region) as aws:
            prepare(aws, args.cluster, args.bucket)

    sys.exit(run_guarded(command))


if __name__ == "__main__":
    main()
