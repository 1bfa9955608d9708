"""Be ``dl4j`` and count the bytes of all sockets of this process: ``python counted.py FILE worker ...``.

FILE gets what was sent and received, as JSON, when the process ends; ``sparse_input.py`` starts workers so.
"""

from __future__ import annotations

import argparse
import atexit
import json
import socket
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import command_line

NBYTES: Counter[str] = Counter()
COUNTING = threading.Lock()


def count(way: str, nbytes: int) -> int:
    """Count bytes, and return the number."""
    with COUNTING:
        NBYTES[way] += nbytes
    return nbytes


class CountingSocket(socket.socket):
    """A socket that counts its bytes."""

    def recv(self, *arguments: Any) -> bytes:
        """See ``socket``."""
        data = super().recv(*arguments)
        count("received", len(data))
        return data

    def recv_into(self, *arguments: Any) -> int:
        """See ``socket``."""
        return count("received", super().recv_into(*arguments))

    def send(self, *arguments: Any) -> int:
        """See ``socket``."""
        return count("sent", super().send(*arguments))

    def sendmsg(self, *arguments: Any) -> int:
        """See ``socket``."""
        return count("sent", super().sendmsg(*arguments))

    def sendall(self, data: Any, *arguments: Any) -> None:
        """See ``socket``."""
        super().sendall(data, *arguments)
        count("sent", len(data))


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("file", type=Path, help="gets the bytes by their way")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of dl4j, with its options")
    given = parser.parse_args()
    sys.argv[1:] = given.command
    socket.socket = CountingSocket  # type: ignore[misc]
    atexit.register(lambda: given.file.write_text(json.dumps(NBYTES)))
    from dl4jlegacy.cli.start import dl4j

    dl4j()


if __name__ == "__main__":
    main()
