"""A check, its settings and its finding: frozen structs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from dl4jlegacy.errors import Dl4jError

__all__ = [
    "Check",
    "Finding",
    "Result",
    "Settings",
    "Status",
    "always",
    "compared",
    "failed",
    "of_error",
    "ok",
    "one_line",
    "skipped",
    "warning",
]

Status = Literal["ok", "warning", "failed", "skipped"]
_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The subject of the checks, besides this machine.

    Attributes:
        data_dir: the data directory; None: ``DL4J_DATA_DIR``, else the usual one.
        tracker: ``hazelcast://host:port[,host:port]``; "": none was named.
        cluster_name: of the Hazelcast cluster; None: that of the local services, else Hazelcast's default.
        zookeeper: ``host:port[,host:port]``; "": none was named.
        device: the device to compute on, as for ``devices.choose``; "": any.
        clock_url: an HTTP server whose clock is compared with this machine's; "": none.
        environ: the environment; not in the ``repr``, since it has secrets.
        variables: the names of the variables that this package reads; empty: not known.
    """

    data_dir: str | None = None
    tracker: str = ""
    cluster_name: str | None = None
    zookeeper: str = ""
    device: str = ""
    clock_url: str = ""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    variables: frozenset[str] = frozenset()


class Finding(msgspec.Struct, frozen=True):
    """The result of a check's function.

    Attributes:
        status: ``failed``: it does not work; ``warning``: it works, with a disadvantage or not in every case;
            ``skipped``: there was nothing to check.
        found: what is there, in words, with its values.
        remedy: what to do; "" where nothing has to be done.
        creates, removes: folders that ``--fix`` creates, and files that it removes; it changes nothing else.
    """

    status: Status
    found: str
    remedy: str = ""
    creates: tuple[Path, ...] = ()
    removes: tuple[Path, ...] = ()


ok, warning, failed, skipped = (partial(Finding, each) for each in ("ok", "warning", "failed", "skipped"))


def always(settings: Settings) -> bool:
    """Return True: every run needs the check."""
    return True


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: in the report; unique.
        area: the heading under which it is shown.
        look: performs the check; if it raises a ``Dl4jError``, the message is the finding.
        is_needed: whether a run with these settings needs the check: then its failure fails the preflight.
        seconds: its deadline.
        is_waiting: whether it waits for a network or another process: such checks run concurrently.
        need: an earlier check; this check is skipped unless that one succeeds; "": none.
    """

    name: str
    area: str
    look: Callable[[Settings], Finding]
    is_needed: Callable[[Settings], object] = lambda settings: False
    seconds: float = 30.0
    is_waiting: bool = False
    need: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A check's finding, with the check's name.

    Attributes:
        name, area: of the check.
        status, found, remedy: of the finding.
        needed: whether the run that was asked for needs the check.
        mended: what ``--fix`` did before; "": nothing.
        seconds: that the check took; the time for which the process was stopped does not count.
    """

    name: str
    area: str
    status: Status
    found: str
    remedy: str = ""
    needed: bool = False
    mended: str = ""
    seconds: float = 0.0

    @property
    def is_fatal(self) -> bool:
        """Whether the run that was asked for would not work."""
        return self.needed and self.status == "failed"


def compared(found: str, amount: float, least: float, scarce: float, remedy: str) -> Finding:
    """Return whether an amount is sufficient: below ``least`` no run works, below ``scarce`` large runs do not."""
    if amount < least:
        return failed(f"{found}: too little for any run", remedy)
    if amount < scarce:
        return warning(f"{found}: too little for large models or many workers", remedy)
    return ok(found)


def of_error(exc: Dl4jError, status: Status = "failed") -> Finding:
    """Return an error of this package as a finding; the part of its message after the last "; " is the remedy."""
    found, _, remedy = str(exc).rpartition("; ")
    return Finding(status, found or remedy, remedy if found else f"dl4j explain {exc.code}")


def one_line(text: object) -> str:
    """Return another program's text on one line, cut to 300 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
