"""The flags by which the commands find a run on a cluster, and how they are read (layer 5)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

from dl4jlegacy.errors import UsageError, nearest

if TYPE_CHECKING:
    from dl4jlegacy.cluster.address import ClusterAddress

__all__ = ["Format", "Id", "LogFormat", "Zookeeper", "access", "is_json", "seconds", "whole"]

Zookeeper = Annotated[
    str | None,
    typer.Option("--zookeeper", metavar="HOST:PORT", help="Where the master has registered.", envvar="DL4J_ZOOKEEPER"),
]
Id = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="The run's id in Zookeeper (master).", envvar="DL4J_ID"),
]
Format = Annotated[str, typer.Option("--format", metavar="text|json", help="As text, or as one JSON object.")]
LogFormat = Annotated[str, typer.Option("--log-format", metavar="text|json", help="Events as text or as JSON lines.")]

_ID = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def access(zookeeper: str | None, id: str | None) -> ClusterAddress:
    """Return where a run is, with its secret; raises ``UsageError``."""
    from dl4jlegacy.cluster.address import MASTER, ClusterAddress
    from dl4jlegacy.scaleout.secret import read_secret

    if not zookeeper:
        raise UsageError("--zookeeper is missing; give the host:port at which the run is, or is to be, registered")
    if id is not None and (not _ID.fullmatch(id) or id in (".", "..")):
        raise UsageError(f"--id {id!r}: an id is made of letters, digits, '_', '.' and '-', at most 100 of them")
    address = ClusterAddress(zookeeper, read_secret(os.environ), id or MASTER)
    address.split()
    return address


def whole(flag: str, text: str, *, least: int) -> int:
    """Return the whole number in ``text``; raises ``UsageError``."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise UsageError(f"{flag} {text}: give a whole number of at least {least}")
    return value


def seconds(flag: str, text: str) -> float:
    """Return the positive number of seconds in ``text``; raises ``UsageError``."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise UsageError(f"{flag} {text}: give a number of seconds, more than 0")
    return value


def is_json(flag: str, text: str) -> bool:
    """Whether ``text`` or ``json`` was asked for; raises ``UsageError``."""
    if text not in ("text", "json"):
        raise UsageError(f"{flag} {text}: unknown format{nearest(text, ('text', 'json'))}")
    return text == "json"
