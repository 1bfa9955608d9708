"""Runs a command line of ``dl4j`` in this process."""

from __future__ import annotations

import pytest

from dl4jlegacy.cli.main import main

__all__ = ["exit_status"]


def exit_status(*arguments: str) -> int:
    """Return the exit status of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)
