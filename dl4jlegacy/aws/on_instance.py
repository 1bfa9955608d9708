"""Commands for an instance besides ``dl4j``: ``python -m dl4jlegacy.aws.on_instance COMMAND ...``.

``boot REGION BUCKET CLUSTER``, as root, prepares the instance at its first boot, after the wheel was installed. It
writes the run's secret into a file that only the service's user can read, and the instance's own private address. It
puts the SSH host keys into the cluster's bucket, under a key that no other instance can write; later logins compare the
keys.

``servers REGION BUCKET`` prints the address of the cluster's servers: the present master's private address. In a
cluster with a standby it prints the addresses of all three instances with servers, separated by commas, the witness's
last. ``up`` writes these addresses to the cluster's bucket, where no instance can write.

``is-kept URL`` prints ``yes`` if a run is stored below a prefix in S3. A master's instance asks this before it begins a
run: the run may have begun on an instance that was lost.

``workers ZOOKEEPER`` lists the registered workers. ``watch REGION BUCKET [keep]`` saves the journal, and ends with the
run; ``done REGION BUCKET MODEL`` records that the run is done (``watch.py``).
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

from dl4jlegacy.aws.cluster_bucket import HOST_KEYS, own_key, own_user_id, read_servers, write_object
from dl4jlegacy.aws.cluster_spec import Names
from dl4jlegacy.aws.resources import ClusterResources
from dl4jlegacy.aws.watch import say_done, watch
from dl4jlegacy.errors import CloudError
from dl4jlegacy.storage.s3.folder import S3Folder
from dl4jlegacy.storage.s3.locations import Location
from dl4jlegacy.storage.s3.session import Aws
from dl4jlegacy.system.console import emit, run_guarded

__all__ = ["is_kept", "list_workers", "main", "own_address", "prepare", "server_addresses"]

_USER = "dl4j"


def own_address() -> str:
    """Return the address from which this machine reaches others; 127.0.0.1 if it reaches none. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def prepare(aws: Aws, bucket: str, cluster: str, root: Path = Path("/")) -> None:
    """Prepare the instance whose file system is at ``root``; raises what ``translate_errors`` raises."""
    folder = root / "etc/dl4j"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "address").write_text(f"DL4J_ADDRESS={own_address()}\n", encoding="utf-8")
    _write_secret(folder / "secret", ClusterResources(aws, Names(cluster, aws.region, "")).read_secret())
    keys = [path.read_text(encoding="ascii").strip() for path in sorted((root / "etc/ssh").glob("ssh_host_*_key.pub"))]
    write_object(aws, bucket, own_key(own_user_id(aws), HOST_KEYS), "\n".join(keys).encode())


def _write_secret(path: Path, secret: bytes) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
    if os.geteuid() == 0:
        shutil.chown(path, _USER, _USER)


def server_addresses(aws: Aws, bucket: str) -> str:
    """Return the private addresses of the cluster's servers; raises ``CloudError`` while they are unknown."""
    servers = read_servers(aws, bucket)
    if servers is None:
        raise CloudError(f"s3://{bucket} does not say yet where the cluster's servers are; ask again")
    return servers.addresses


def is_kept(url: str) -> bool:
    """Return whether a run's ``conf.json`` exists there; raises ``ConfError`` and the errors of AWS."""
    try:
        S3Folder(Location.parse(url)).read("conf.json")
    except FileNotFoundError:
        return False
    return True


def list_workers(zookeeper: str) -> list[str]:
    """Return the ids of the workers that are registered in a Zookeeper."""
    from dl4jlegacy.scaleout.zookeeper import ZooKeeperSession, registered_workers
    from dl4jlegacy.system.secret import read_secret

    with ZooKeeperSession(zookeeper, secret=read_secret(os.environ)) as session:
        return sorted(registered_workers(session))


def _run(command: str, *words: str) -> None:
    if command == "is-kept":
        emit("yes" if is_kept(*words) else "")
    elif command == "workers":
        emit("\n".join(list_workers(*words)))
    else:
        region, bucket, *rest = words
        with Aws(region) as aws:
            if command == "boot":
                prepare(aws, bucket, rest[0])
            elif command == "servers":
                emit(server_addresses(aws, bucket))
            elif command == "watch":
                watch(aws, bucket, ends="keep" not in rest)
            else:
                say_done(aws, bucket, *rest)


def main(words: list[str] | None = None) -> None:
    """Entry point: a command and its arguments, given only by the scripts of ``user_data.py`` and ``setup.py``."""
    sys.exit(run_guarded(lambda: _run(*(sys.argv[1:] if words is None else words))))


if __name__ == "__main__":
    main()
