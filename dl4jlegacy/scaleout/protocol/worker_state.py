"""The state of a worker, and the parameters it works with."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from dl4jlegacy.scaleout.links.mesh.messages import Messages
from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.events import UPDATE_TOPIC, Limits
from dl4jlegacy.scaleout.protocol.frames import parse_record
from dl4jlegacy.scaleout.protocol.inputs import Claim, WorkerMemory
from dl4jlegacy.scaleout.protocol.log import SharedModels
from dl4jlegacy.scaleout.state.aggregate import Fold
from dl4jlegacy.scaleout.state.records import HEAD, Head, JobRecord, Keys
from dl4jlegacy.scaleout.state.state_cache import StateCopies
from dl4jlegacy.scaleout.state.store import Buffer, Store
from dl4jlegacy.scaleout.strategies import WorkRouter, router_of
from dl4jlegacy.system.clock import Clock

__all__ = ["Free", "Worker"]

BLOCK = 16
"""Number of job records read at once when searching for a free job."""
SEVERAL = 8
"""Maximum number of jobs that are leased together."""
QUICK = 0.02
"""Fraction of a poll interval: a job that takes longer is not a quick job."""

Free = tuple[int, JobRecord, Buffer]
"""A job that is ready: its number, its record, and the record's bytes."""


@dataclass(slots=True)
class Worker:
    """The state of a worker; ``name`` is unique to this process and run. ``aggregator`` is that of its masters."""

    name: str
    store: Store
    clock: Clock
    plan: Plan
    router: WorkRouter
    _: KW_ONLY
    aggregator: Fold
    limits: Limits = field(default_factory=Limits)
    phases: Phases = NO_PHASES
    models: SharedModels = field(default_factory=SharedModels)
    """Models shared by the workers of this process and its master, if any."""
    messages: Messages | None = None
    copies: StateCopies | None = None
    block: int = BLOCK
    several: int = SEVERAL
    quick: float = QUICK
    written: int = 0
    raw: Buffer | None = None
    head: Head | None = None
    """The head as last read; ``raw`` has its bytes."""
    cursor: int | None = None
    """The job at which the search begins: a different slot for each worker, then the one after the last leased job."""
    home: tuple[int, int] | None = None
    """The first job leased in a round, as round and slot.

    The same slot is tried first in the next round, so that a worker keeps reading the same part of the data.
    """
    closed: set[int] = field(default_factory=set)
    """Slots of this head that are known to be done."""
    spare: list[Free] = field(default_factory=list)
    """Jobs of this head that were never leased when they were last read."""
    second_hand: list[Free] = field(default_factory=list)
    """Ready jobs of this head that were leased before."""
    fetched: dict[int, Buffer] = field(default_factory=dict)
    """Data of spare jobs, fetched in advance if it is small."""
    many: bool = False
    """Whether, at the last search, more jobs were free than are searched completely."""
    took: float = float("inf")
    """Duration of the last job in seconds, including the reading of its inputs."""
    overtaken: bool = False
    """Whether another worker took a spare job; then the following jobs are probably taken too."""
    looked: float = float("-inf")
    """When the head was last read."""
    hinted: float = float("-inf")
    """When a commit was last announced."""
    owes_hint: bool = False
    """Whether there was a commit since the last announcement."""
    waited: bool = False
    """Whether the last search found nothing, and the current one follows a wait."""
    foreseen: dict[int, Buffer | None] = field(default_factory=dict)
    """Job records that were read together with this head when it was new."""
    searched: float = float("-inf")
    """When all records of a head were last searched without success."""
    seen: dict[int, float] = field(default_factory=dict)
    """By job of this head that is reserved for another worker: when it was first seen."""
    memory: WorkerMemory = field(init=False)

    def __post_init__(self) -> None:
        self.memory = WorkerMemory(
            self.name,
            self.store,
            self.plan,
            self.router,
            self.aggregator,
            phases=self.phases,
            models=self.models,
            messages=self.messages,
            copies=self.copies,
        )

    def hint(self) -> None:
        """Announce the commits."""
        self.hinted, self.owes_hint = self.clock.now(), False
        self.store.publish(UPDATE_TOPIC)

    def writer(self) -> str:
        """Return a key part that this worker has not used before."""
        self.written += 1
        return f"{self.name}.{self.written}"

    def update_head(self, raw: Buffer | None) -> None:
        """Set the head from its bytes, which were just read."""
        self.looked = self.clock.now()
        if raw != self.raw:
            self.raw, self.head = raw, parse_record(self.store, HEAD, raw, Head)
            self.closed.clear()
            self.seen.clear()
            self.spare.clear()
            self.fetched.clear()
            self.foreseen.clear()

    def key(self, claim: Claim) -> str:
        """Return the key of a leased job's record."""
        return Keys.job(*self.plan.at(claim.number))

    def binds_model(self) -> bool:
        """Return whether the jobs of the head must start from its model version."""
        return self.head is not None and router_of(self.router, self.plan, self.head.round).binds_model

    def quick_seconds(self) -> float:
        """Return the longest duration of a quick job in seconds."""
        return self.quick * self.limits.poll
