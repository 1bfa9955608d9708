"""Prepares an instance at its first boot, after the wheel was installed: ``python -m dl4jlegacy.aws.boot``, as root.

It reads the run's secret from the parameter store into a file that only the service's user can read, writes down its
own private address, and puts its SSH host keys into the cluster's bucket, under a key that no other instance can
write: whoever logs in later compares them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
from pathlib import Path

from dl4jlegacy.aws.cluster_bucket import HOST_KEYS, own_key, own_user_id, write_object
from dl4jlegacy.aws.cluster_spec import Names
from dl4jlegacy.storage.s3.session import Aws, translate_errors
from dl4jlegacy.system.console import run_guarded

__all__ = ["main", "own_address", "prepare"]

_USER = "dl4j"


def own_address() -> str:
    """Return the address from which this machine reaches others, 127.0.0.1 if it reaches none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def prepare(aws: Aws, cluster: str, bucket: str, root: Path = Path("/")) -> None:
    """Prepare the instance whose file system is at ``root``; raises what ``translate_errors`` raises."""
    folder, address = root / "etc/dl4j", own_address()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "address").write_text(f"DL4J_ADDRESS={address}\n", encoding="utf-8")
    name = Names(cluster, aws.region, "").secret
    with translate_errors(f"getting the run's secret {name}"):
        value = aws.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    _write_secret(folder / "secret", value.encode())
    keys = [path.read_text(encoding="ascii").strip() for path in sorted((root / "etc/ssh").glob("ssh_host_*_key.pub"))]
    write_object(aws, bucket, own_key(own_user_id(aws), HOST_KEYS), "\n".join(keys).encode())


def _write_secret(path: Path, secret: bytes) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
    if os.geteuid() == 0:
        shutil.chown(path, _USER, _USER)


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="dl4jlegacy.aws.boot")
    for flag in ("--cluster", "--region", "--bucket"):
        parser.add_argument(flag, required=True)
    args = parser.parse_args(arguments)

    def command() -> None:
        with Aws(args.region) as aws:
            prepare(aws, args.cluster, args.bucket)

    sys.exit(run_guarded(command))


if __name__ == "__main__":
    main()
