"""Exit status 0 if this container's process is connected to Zookeeper, 1 if not: what Docker asks every few seconds.

Reads the kernel's table of connections, so that asking costs nothing. A process that hangs loses its session, and with
that its connection. A container that was given no DL4J_ZOOKEEPER is healthy as long as it runs.
"""

import os
import sys
from pathlib import Path

_ESTABLISHED = "01"


def connected(table: str, port: int) -> bool:
    """Whether ``table`` (/proc/net/tcp) has an established connection to ``port``."""
    rows = (line.split() for line in table.splitlines()[1:])
    return any(row[3] == _ESTABLISHED and int(row[2].rpartition(":")[2], 16) == port for row in rows)


def main() -> int:
    """Return the exit status."""
    zookeeper = os.environ.get("DL4J_ZOOKEEPER", "")
    if not zookeeper:
        return 0
    port = int(zookeeper.split(",")[0].rpartition(":")[2])
    tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
    if any(connected(table.read_text(), port) for table in tables if table.exists()):
        return 0
    sys.stdout.write(f"no connection to Zookeeper at {zookeeper}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
