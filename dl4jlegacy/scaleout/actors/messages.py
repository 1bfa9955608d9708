"""The messages between actors: frozen, and any array in them is read-only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pykka

from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.state.records import JobRecord

__all__ = ["Beat", "Joining", "Leaving", "Poll", "SaveModel", "Saved", "Working"]


@dataclass(frozen=True, slots=True)
class Poll:
    """Check again, because something may have changed. Sent by hints of the store and by the ticker."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat now."""


@dataclass(frozen=True, slots=True)
class SaveModel:
    """Save this model version and reply ``Saved``; after the last one the run is over."""

    event: protocol.NewModel
    reply_to: pykka.ActorRef[Any]


@dataclass(frozen=True, slots=True)
class Saved:
    """The saving actor is free again."""


@dataclass(frozen=True, slots=True)
class Working:
    """The current activity of a worker: a job, or none (``record`` is None).

    ``progress`` returns the number of finished batches of the job.
    """

    worker: protocol.Worker
    slot: SlotPlan | None
    record: JobRecord | None
    progress: Callable[[], int]
    jobs_done: int


@dataclass(frozen=True, slots=True)
class Joining:
    """A worker has started. ``working`` returns its current activity; callable on any thread."""

    worker: str
    working: Callable[[], Working]


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker was set aside: it no longer needs heartbeats."""

    worker: str
