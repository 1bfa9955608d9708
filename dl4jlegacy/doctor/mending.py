"""What ``dl4j doctor --fix`` does: it creates folders that are missing, and removes damaged files of a cache."""

from __future__ import annotations

import os

from dl4jlegacy.doctor.check import Mend
from dl4jlegacy.errors import counted

__all__ = ["mend"]


def mend(what: Mend) -> str:
    """Do what a finding offers; return what was done, in words. Raises ``OSError`` at the first that cannot be done."""
    for folder in what.folders:
        folder.mkdir(parents=True, exist_ok=True)
    for file in what.files:
        file.unlink(missing_ok=True)  # a link itself, and never what it leads to
    made = [f"created {os.fspath(folder)}" for folder in what.folders]
    places = sorted({os.fspath(file.parent) for file in what.files})
    removed = [f"removed {counted(len(what.files), 'damaged file')} from {', '.join(places)}"] if places else []
    return "; ".join([*made, *removed])
