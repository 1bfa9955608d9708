"""All commands of ``dl4j`` under the name by which Typer, which documents them, finds them in a module."""

from __future__ import annotations

from dl4jlegacy.cli.main import declared

__all__ = ["app"]

app = declared()
