"""A process of its own for ``test_liveness.py``: ``serve SECRET`` or ``link ADDRESS PROCESS SECRET``; JSON lines."""

from __future__ import annotations

import json
import sys

from dl4jlegacy.scaleout.links.liveness.client import LivenessClient
from dl4jlegacy.scaleout.links.liveness.server import LivenessServer


def tell(event: str, **more: object) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def main(role: str, *arguments: str) -> None:
    if role == "serve":
        (secret,) = arguments
        with LivenessServer(
            "127.0.0.1",
            run="run",
            secret=secret.encode(),
            on_change=lambda process, state: tell(state, process=process),
        ) as server:
            tell("ready", address=server.address)
            sys.stdin.read()
    else:
        address, process, secret = arguments
        with LivenessClient(
            lambda: address,
            process,
            run="run",
            secret=secret.encode(),
            on_change=lambda where, state: tell(state, address=where),
        ):
            sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
