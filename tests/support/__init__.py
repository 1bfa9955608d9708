"""What tests share: servers, commands on them, stand-ins, references, fixtures; and where things lie."""

from pathlib import Path

__all__ = ["DATA", "REPOSITORY", "SUPPORT"]

SUPPORT = Path(__file__).parent
REPOSITORY = SUPPORT.parent.parent
DATA = SUPPORT.parent / "data"
