"""All checks, in the order in which they are shown: first what everything else needs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module

from dl4jlegacy.doctor.check import Check, Finding, Settings, failed, one_line

__all__ = ["all_checks"]

_ROOMS = (
    ("Installation", "installation"),
    ("Machine", "capacity"),
    ("Kernels", "computation"),
    ("Files", "folders"),
    ("Network", "network"),
    ("Cluster", "servers"),
    ("GPU", "gpus"),
    ("AWS", "cloud"),
    ("Surroundings", "surroundings"),
)


def all_checks() -> tuple[Check, ...]:
    """Return the checks; those of libraries and extras are what this installation's metadata names.

    Each module of checks is imported by itself: one that needs a library that is missing becomes one failed check.
    """
    return tuple(check for area, name in _ROOMS for check in _checks_of(area, name))


def _checks_of(area: str, name: str) -> Iterator[Check]:
    try:
        yield from import_module(f"dl4jlegacy.doctor.{name}").checks()
    except Exception as exc:  # noqa: BLE001  # a library that is missing, or whatever one says that is broken
        look = partial(_without, one_line(f"{type(exc).__name__}: {exc}"))
        yield Check(name=area.lower(), area=area, look=look, is_needed=lambda settings: True)


def _without(why: str, settings: Settings) -> Finding:
    return failed(f"nothing of this can be looked at: {why}", "mend first what the libraries' checks name")
