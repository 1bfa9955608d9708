"""Hands a run over when a master returns and a standby leads it: state that only this master has is not lost."""

from __future__ import annotations

import logging

from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.tracker import drive

__all__ = ["hand_over"]

logger = logging.getLogger(__name__)


def hand_over(master: protocol.Master | None) -> None:
    """Write the newest version of a leaving master for the standby that now leads the run, if it is newer."""
    if master is None or master.known is None:
        return
    run, version = master.start.run, master.known[0].version
    try:
        if drive(protocol.hand_over(master)):
            logger.warning(
                "run %s is led by a standby, which had gone on from less: this master has handed it version %d",
                run,
                version,
            )
    except Dl4jError as exc:
        logger.debug("run %s: version %d is not handed over: %s", run, version, exc)
