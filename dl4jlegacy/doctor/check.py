"""What a check is, what it is told, and what it finds: frozen structs, and the words for findings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from dl4jlegacy.errors import Dl4jError

__all__ = [
    "Check",
    "Finding",
    "Mend",
    "Result",
    "Settings",
    "Status",
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
    """What the checks are about, beside this machine.

    Attributes:
        data_dir: the data directory; None: ``DL4J_DATA_DIR``, else the usual one.
        tracker: ``hazelcast://host:port[,host:port]``; "": none was named.
        cluster_name: of the Hazelcast cluster; None: that of the local services, else Hazelcast's default.
        zookeeper: ``host:port[,host:port]``; "": none was named.
        device: what is to be computed on, as for ``devices.choose``; "": nothing in particular.
        clock_url: an HTTP server whose clock is compared with this machine's; "": none, and then none is asked.
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


class Mend(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--fix`` may do about a finding, and nothing else: folders to create, files of a cache to remove."""

    folders: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has found.

    Attributes:
        status: ``failed``: what the check is about does not work; ``warning``: it works, with a disadvantage, or not in
            every case; ``skipped``: there was nothing to look at.
        found: what is there, in words, with its values.
        remedy: what to do; "" where nothing has to be done.
        mend: what ``--fix`` can do about it.
    """

    status: Status
    found: str
    remedy: str = ""
    mend: Mend | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at.

    Attributes:
        name: in the report, and of which others may say that they need it; unique.
        area: the heading under which it is shown.
        look: looks; may raise a ``Dl4jError``, whose message then is the finding.
        is_needed: whether a run with these settings cannot do without: a failure then is one of the whole preflight.
        seconds: its deadline.
        is_waiting: whether it waits for a network or another process, and so is done beside the others.
        needs: names of checks without whose success it has nothing to look at.
    """

    name: str
    area: str
    look: Callable[[Settings], Finding]
    is_needed: Callable[[Settings], bool] = lambda settings: False
    seconds: float = 10.0
    is_waiting: bool = False
    needs: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A check's finding, with the check's name.

    Attributes:
        name, area: as the check has them.
        status, found, remedy: as the finding has them.
        needed: whether the run that was asked for cannot do without.
        mended: what ``--fix`` has done before this was found; "": nothing.
        seconds: that the check took; a process that was stopped meanwhile does not count them.
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


def ok(found: str) -> Finding:
    """Return that all is well."""
    return Finding(status="ok", found=found)


def warning(found: str, remedy: str, mend: Mend | None = None) -> Finding:
    """Return that something works, and could do better."""
    return Finding(status="warning", found=found, remedy=remedy, mend=mend)


def failed(found: str, remedy: str, mend: Mend | None = None) -> Finding:
    """Return that something does not work."""
    return Finding(status="failed", found=found, remedy=remedy, mend=mend)


def skipped(found: str, remedy: str = "") -> Finding:
    """Return that there is nothing to look at; ``remedy``: what would bring it, for those who want it."""
    return Finding(status="skipped", found=found, remedy=remedy)


def of_error(exc: Dl4jError, status: Literal["warning", "failed"] = "failed") -> Finding:
    """Return an error of this package as a finding: its messages say what happened, and, after that, what to do."""
    found, _, remedy = str(exc).rpartition("; ")
    return Finding(status=status, found=found or remedy, remedy=remedy if found else f"dl4j explain {exc.code}")


def one_line(text: object) -> str:
    """Return a text that somebody else wrote on one line, cut to what a report can hold."""
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
