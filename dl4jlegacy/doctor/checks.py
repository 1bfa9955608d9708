"""All checks, in display order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module

from dl4jlegacy.doctor.check import Check, Finding, Settings, always, failed, one_line

__all__ = ["all_checks"]

_MODULES = {
    "Installation": "installation",
    "Machine": "machine",
    "Kernels": "kernels",
    "Files": "folders",
    "Network": "network",
    "Cluster": "servers",
    "GPU": "gpus",
    "AWS": "cloud",
}


def all_checks() -> tuple[Check, ...]:
    """Return the checks; a module of checks that cannot be imported counts as one failed check."""
    return tuple(check for area, name in _MODULES.items() for check in _checks_of(area, name))


def _checks_of(area: str, name: str) -> Iterator[Check]:
    try:
        yield from import_module(f"dl4jlegacy.doctor.{name}").CHECKS
    except Exception as exc:  # noqa: BLE001  # a missing or broken library may raise anything
        look = partial(_not_imported, one_line(f"{type(exc).__name__}: {exc}"))
        yield Check(area.lower(), area, look, is_needed=always)


def _not_imported(why: str, settings: Settings) -> Finding:
    return failed(f"nothing of this can be checked: {why}", "first mend the libraries that are reported above")
