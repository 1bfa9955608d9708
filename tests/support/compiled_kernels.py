"""Kernels that this checkout has compiled, for a copy of the package in another place."""

from __future__ import annotations

import shutil
from pathlib import Path

from numba.core.caching import UserProvidedCacheLocator

from dl4jlegacy.kernels.numba.compile import cache_folder

__all__ = ["give_kernels"]


def give_kernels(cache: Path, package: Path) -> None:
    """Fill the folder of ``NUMBA_CACHE_DIR`` for a package that has the same sources; ``package`` is its future path.

    Where versions or processors differ, Numba does not find them, and the package compiles its own.
    """
    here = cache_folder()
    if here is not None:
        there = UserProvidedCacheLocator.get_suitable_cache_subpath(str(package / "kernels" / "numba" / "kernels.py"))
        shutil.copytree(here, cache / there, ignore=shutil.ignore_patterns("*.lock", "*.pyc"))
