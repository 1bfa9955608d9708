"""The events that the protocol's roles yield to their driver, and the deadlines of a run."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.plan import SlotPlan
from dl4jlegacy.scaleout.state.records import Figures, Head, JobRecord
from dl4jlegacy.scaleout.state.store import Buffer

__all__ = [
    "ABANDONED",
    "DROPPED",
    "HEAD_TOPIC",
    "JOB_TOPIC",
    "MOST_SECONDS",
    "STEP",
    "UPDATE_TOPIC",
    "Abandoned",
    "Event",
    "Limits",
    "MoreWork",
    "NewModel",
    "Perform",
    "Performed",
    "SavedState",
    "Steps",
    "Wait",
]

STEP = None
HEAD_TOPIC, JOB_TOPIC, UPDATE_TOPIC = "head", "job", "update"
DROPPED = "counter/updates_dropped"
MOST_SECONDS = 1e9
"""Upper bound on any duration in seconds: a longer one is a mistake, and more than a thread can wait."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until`` (clock seconds), unless a hint arrives first."""

    until: float


@dataclass(frozen=True, slots=True)
class MoreWork:
    """Issue the jobs with these numbers, which belong to ``head``; the jobs of ``ahead`` will be next.

    ``homes`` maps jobs to the worker they are reserved for, and the seconds of the reservation. The jobs in ``again``
    are folded and may have to be replayed; their data is written again if jobs carry their data.
    """

    head: Head
    numbers: tuple[int, ...]
    ahead: tuple[int, ...] = ()
    homes: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    again: tuple[int, ...] = ()


class SavedState(NamedTuple):
    """The state of a slot, to be kept with a model version: the number of the job that left it, and its frame."""

    number: int
    frame: Buffer


@dataclass(frozen=True, slots=True)
class NewModel:
    """``head`` has become current, with the model ``frame``: the time to save a checkpoint. ``last`` ends the run.

    ``jobs`` are the records of the jobs that were folded into this version, by their slots' numbers. ``best`` is the
    frame of the head's best model, if it has one. ``figures`` are the results of a validation, which are the only
    change in its version; None: a version of training. ``states`` are the slot states that belong to the version, if it
    will be saved (``Master.is_to_be_saved``) and there are any.
    """

    head: Head
    frame: Buffer
    last: bool = False
    jobs: Mapping[int, JobRecord] = field(default_factory=dict)
    best: Buffer | None = None
    figures: Figures | None = None
    states: Mapping[int, SavedState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Perform:
    """Perform a job, and send back the update's frame, a ``Failure``, ``ABANDONED``, or None to return the lease.

    ``state`` is the state that the slot's last job has left; None if this is the first job, or if jobs leave no state.
    For a strategy with slot memory, ``Performed`` is sent back instead of the update's frame. If this is an earlier job
    that is replayed, ``leased`` is the job that the lease of ``record`` is for.
    """

    plan: SlotPlan
    record: JobRecord
    version: int
    model: Buffer
    data: Buffer | None
    state: Buffer | None = None
    leased: SlotPlan | None = None

    @property
    def job(self) -> SlotPlan:
        """The job that the lease is for."""
        return self.plan if self.leased is None else self.leased


class Performed(NamedTuple):
    """The frames of a job's update and of the state that it leaves in its slot."""

    update: Buffer
    state: Buffer


class Abandoned(Enum):
    """The answer for a job whose update would no longer count, because its model is not the current one."""

    ABANDONED = "abandoned"


ABANDONED = Abandoned.ABANDONED

Event = Wait | MoreWork | NewModel | Perform | None
Steps = Generator[Event, Any, T]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The deadlines of a run, in seconds, and the number of attempts for a job.

    A lease expires when its worker has not extended it for ``lease`` seconds by the master's clock. A job is also given
    to an idle worker when it takes longer than ``straggler_factor`` times the median of recent jobs, than that median
    plus six times their median deviation, and than ``straggler_least``. The first worker to commit wins.
    """

    lease: float = 30.0
    poll: float = 0.5
    attempts: int = 3
    straggler_factor: float = 2.0
    straggler_least: float = 0.25

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) <= MOST_SECONDS:
                raise ConfError(f"limits.{name} is {getattr(self, name)}; it must be positive, and at most 1e9")
