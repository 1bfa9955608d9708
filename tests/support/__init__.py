"""What tests share: servers, commands on them, stand-ins, references, fixtures; and where things lie."""

import contextlib
import os
from pathlib import Path

__all__ = ["DATA", "REPOSITORY", "SUPPORT", "open_sockets"]

SUPPORT = Path(__file__).parent
REPOSITORY = SUPPORT.parent.parent
DATA = SUPPORT.parent / "data"


def open_sockets() -> set[int]:
    """The descriptors of this process that are sockets, found without reading the machine's tables of connections."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself is closed by now
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found
