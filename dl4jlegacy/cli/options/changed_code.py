"""The option to continue a run whose own code has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

__all__ = ["ChangedCodeOptions"]


@dataclass(frozen=True, kw_only=True)
class ChangedCodeOptions:
    """The additional option of ``dl4j resume``."""

    changed_code: Annotated[
        bool,
        typer.Option("--changed-code", help="Go on though the run's own code (--use, performer, router) has changed."),
    ] = False
