"""Structs of the output with ``--format json`` of the commands that inspect a run; see ``outputs``."""

from __future__ import annotations

from typing import Any

import msgspec

from dl4jlegacy.cli.outputs.write import ErrorFields, Output
from dl4jlegacy.scaleout.persistence.history import HistoryEntry
from dl4jlegacy.scaleout.state.records import Head, WorkerRecord

__all__ = ["Away", "Histories", "JournalLine", "Journaled", "Status", "Watched"]

_Object = dict[str, Any]


class JournalLine(msgspec.Struct):
    """An entry of a run's journal, which has fields of its event besides; a line each with ``--follow``."""

    time: float
    source: str
    host: str
    pid: int
    event: str


class Status(Output):
    """Where a registered run is; what is not known yet is null, and ``head`` is its state in the tracker.

    ``state`` is one of running, degraded, waiting, stalled and ended, ``status`` the head's: running, done, stopped,
    failed.
    """

    run: str
    id: str
    state: str
    reason: str
    status: str | None
    round: int | None
    rounds: int | None
    examples: int | None
    total_examples: int | None
    score: float | None
    metric: str | None
    waiting: str | None
    master: _Object | None
    standbys: list[_Object]
    workers: list[WorkerRecord]
    failures: list[JournalLine]
    head: Head | None


class Away(ErrorFields):
    """Why a look was not answered, and for how long none was."""

    seconds: float


class Watched(Status):
    """A look of ``--watch``: a line each."""

    time: float
    over: bool
    away: Away | None
    examples_per_second: float
    silent: dict[str, float]


class Journaled(Output):
    """The run's journal."""

    entries: list[JournalLine]


class Histories(Output):
    """The versions of a run's model, and how its state changed between them, with ``--history``."""

    history: list[HistoryEntry]
    states: list[JournalLine]
