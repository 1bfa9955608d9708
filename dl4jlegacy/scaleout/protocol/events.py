"""What a role of the protocol yields to whoever drives it, and the deadlines it keeps."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import msgspec

from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.records import Head, JobRecord
from dl4jlegacy.scaleout.store import Buffer

__all__ = [
    "ABANDONED",
    "DROPPED",
    "HEAD_TOPIC",
    "JOB_TOPIC",
    "STEP",
    "UPDATE_TOPIC",
    "Abandoned",
    "Event",
    "Limits",
    "MoreWork",
    "NewModel",
    "Perform",
    "Steps",
    "Wait",
]

STEP = None
HEAD_TOPIC, JOB_TOPIC, UPDATE_TOPIC = "head", "job", "update"
DROPPED = "counter/updates_dropped"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until ``until`` (clock seconds), unless a hint comes first."""

    until: float


@dataclass(frozen=True, slots=True)
class MoreWork:
    """The jobs with these numbers belong to ``head`` and want to be issued; those of ``ahead`` will be next."""

    head: Head
    numbers: tuple[int, ...]
    ahead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NewModel:
    """``head`` is current and its model is ``frame``; the moment to save a checkpoint. ``last`` ends the run."""

    head: Head
    frame: Buffer
    last: bool = False


@dataclass(frozen=True, slots=True)
class Perform:
    """A job to perform; send back the update's frame, a ``Failure``, ``ABANDONED``, or None to give the lease back."""

    plan: SlotPlan
    record: JobRecord
    version: int
    model: Buffer
    data: Buffer | None


class Abandoned(Enum):
    """The answer to a job that nobody needs any more: the model it belongs to is not the current one."""

    ABANDONED = "abandoned"


ABANDONED = Abandoned.ABANDONED

Event = Wait | MoreWork | NewModel | Perform | None
Steps = Generator[Event, Any, T]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The deadlines of a run, in seconds, and how often things are tried.

    A lease ends when its holder has not extended it for ``lease`` seconds by the master's own clock. A job that takes
    longer than ``straggler_factor`` times the recent median (and six times their median deviation above it, and
    ``straggler_least``) is handed to an idle worker as well; the first to commit wins.
    """

    lease: float = 30.0
    poll: float = 0.5
    attempts: int = 3
    straggler_factor: float = 2.0
    straggler_least: float = 0.25

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ConfError(f"limits.{name} is {getattr(self, name)}; it must be positive")
