"""Start of the commands: SIGINT, SIGTERM and SIGHUP end the process quietly even while the command line is imported.

From ``run_guarded`` on, a signal stops the running work in order; before that there is nothing to stop.

The garbage collector runs less often than by default, since imported objects stay: it took a tenth of a worker's start.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

__all__ = ["actor_network_runner", "dl4j", "heed_signals"]

_COLLECTED_AFTER = 10_000  # more objects than before; arrays and acyclic objects are freed at once anyway


def dl4j() -> None:
    """Entry point of ``dl4j``."""
    _begin()
    from dl4jlegacy.cli.main import main

    main()


def actor_network_runner() -> None:
    """Entry point of ``actor-network-runner``."""
    _begin()
    from dl4jlegacy.cli.commands.legacy import main

    main()


def _begin() -> None:
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    heed_signals()


def heed_signals() -> None:
    """Let the first signal end this process quietly from now on."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)


def _leave(number: int, frame: Any) -> None:
    try:
        os.write(2, f"stopped by {signal.Signals(number).name} before it began\n".encode())
    finally:
        os._exit(128 + number)
