"""Tools for developers of ``dl4jlegacy``; run from a checkout, not part of the installed package."""

from __future__ import annotations

__all__ = ()
