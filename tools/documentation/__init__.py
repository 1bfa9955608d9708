"""What builds the documentation's site from ``docs/``, the source and the command line, beside MkDocs itself.

``mkdocs.yml`` names the hooks. Nothing of what is generated is kept: each build makes it anew, so it cannot go stale.
"""

from __future__ import annotations

__all__ = ()
