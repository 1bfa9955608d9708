"""Builds the documentation's site from ``docs/``, the source and the command line, in addition to MkDocs itself.

``mkdocs.yml`` names the hooks. Generated parts are not stored: each build makes them anew, so they cannot become
outdated.
"""

from __future__ import annotations

__all__ = ()
