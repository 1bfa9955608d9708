"""The state of a master, and the parameters it leads a run with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field

from dl4jlegacy.scaleout.phases import NO_PHASES, Phases
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.crashes import Attempts
from dl4jlegacy.scaleout.protocol.events import Limits, SavedState, Steps
from dl4jlegacy.scaleout.protocol.failures import Suspects
from dl4jlegacy.scaleout.protocol.log import KnownLog, SharedModels, Spare
from dl4jlegacy.scaleout.protocol.slot_watch import ReissueReason
from dl4jlegacy.scaleout.scoring import Scoring
from dl4jlegacy.scaleout.state.aggregate import JobAggregator
from dl4jlegacy.scaleout.state.records import Best, Crash, Failure, Head, Keys, Snapshot
from dl4jlegacy.scaleout.state.store import Buffer, Store
from dl4jlegacy.scaleout.strategies import WorkRouter
from dl4jlegacy.system.clock import Clock

__all__ = ["Master", "RunStart"]

SWEEP_VERSIONS = 16
"""The master searches the whole store for keys left by other processes once per this many versions."""


def _always() -> Steps[bool]:
    """Return True: no other process can lead the run."""
    yield from ()
    return True


def _never() -> Steps[bool]:
    """Return False: there is no master to hand the run over to."""
    yield from ()
    return False


@dataclass(slots=True)
class RunStart:
    """How a run starts, or restarts after the store has lost its head or model.

    ``first_model()`` returns version 0, a pure function of the Conf. ``restore()`` returns the newest good checkpoint,
    or None. ``best_model(best)`` returns the frame of a best model if the checkpoints have it, and ``states(head)``
    returns the slot states that belong to a restored head. These three raise ``StorageError`` if the answer is unknown
    at the moment; the master then asks again. ``may_begin()`` returns whether this process may write a head, or False
    if that is unknown at the moment; it raises if the process may not (``leading.may_begin``). ``may_hand_over()``
    returns whether the process may write a head when it leaves the run to another master (``leading.may_hand_over``).
    ``aside`` are jobs that the run continues without, as in ``Head.jobs_set_aside``.
    """

    run: str
    first_model: Callable[[], Buffer]
    restore: Callable[[], tuple[Head, Buffer] | None]
    best_model: Callable[[Best], Buffer | None] = lambda best: None
    states: Callable[[Head], Mapping[int, SavedState] | None] = lambda head: None
    aside: tuple[tuple[int, int], ...] = ()
    may_begin: Callable[[], Steps[bool]] = _always
    may_hand_over: Callable[[], Steps[bool]] = _never


@dataclass(slots=True)
class Master:
    """The state of a master; ``name`` is unique to this process and run.

    ``is_gone(worker)`` returns whether a worker's process is known to be dead or frozen; its jobs are then given to
    other workers immediately. A wrong answer only means that a job is done twice. ``death_of(worker)`` returns the
    evidence that the process has died, or "" if it is not known to be dead (for example, if it is only silent). Only
    such deaths count as crashes of jobs; ``on_crashed(slot, crash, count)`` is called for each crash. A job that kills
    its workers ends the run. With ``sets_poison_aside``, if its round can be completed without the job,
    ``on_job_set_aside(slot, why)`` is called instead.

    ``on_reissued(slot, worker, reason)`` is called for each job that is also given to another worker, ``on_progress()``
    whenever batches were done, even if their job is not finished, and ``on_set_aside(worker, failures)`` for a worker
    that gets no more jobs. These callbacks must only enqueue.

    ``present()`` returns the names of the workers that are known to be present. ``is_to_be_saved(head)`` returns
    whether a checkpoint of a new version will be written, which requires its slot states. ``models`` are shared with
    the workers of this process. If ``shares_models`` is False, there are no such workers, and no observer of the run
    reads models either. An aggregator that works in place then builds the next model in the buffer of the previous one,
    unless that one was stored or saved as a whole. ``pushes_messages`` says whether workers push their messages to each
    other; log entries then contain only digests of the messages.
    """

    name: str
    store: Store
    clock: Clock
    plan: Plan
    router: WorkRouter
    _: KW_ONLY
    aggregator: JobAggregator
    start: RunStart
    limits: Limits = field(default_factory=Limits)
    phases: Phases = NO_PHASES
    models: SharedModels = field(default_factory=SharedModels)
    shares_models: bool = True
    pushes_messages: bool = False
    is_gone: Callable[[str], bool] = lambda worker: False
    death_of: Callable[[str], str] = lambda worker: ""
    on_crashed: Callable[[tuple[int, int], Crash, int], None] = lambda slot, crash, count: None
    on_job_set_aside: Callable[[tuple[int, int], Failure], None] = lambda slot, failure: None
    on_progress: Callable[[], None] = lambda: None
    on_reissued: Callable[[tuple[int, int], str, ReissueReason], None] = lambda slot, worker, reason: None
    on_set_aside: Callable[[str, tuple[Failure, ...]], None] = lambda worker, failures: None
    present: Callable[[], Collection[str]] = lambda: ()
    is_to_be_saved: Callable[[Head], bool] = lambda head: True
    sets_poison_aside: bool = False
    scoring: Scoring = field(default_factory=Scoring)
    written: int = 0
    durations: dict[bool, list[float]] = field(default_factory=dict)
    """Durations of recent jobs in seconds: of training jobs (False) and of validation jobs (True)."""
    fold_seconds: list[float] = field(default_factory=list)
    """Durations of recent fold jobs of parameter servers, in seconds."""
    known: tuple[Head, Buffer] | None = None
    """The newest head that this master has read or written, and its model; used if the store loses them."""
    spare: Spare | None = None
    """A second frame of the newest model, if one is available without a copy."""
    best: tuple[Best, Buffer] | None = None
    """The best model of the run as this master knows it; written again if the store loses it."""
    counted: tuple[int, float] = (-1, 0.0)
    """The version of the head up to which the run's seconds are counted, and the time of that count."""
    snapshot: tuple[str, Snapshot] | None = None
    """The key and content of the snapshot that this master has read or written last."""
    log: KnownLog = field(default_factory=KnownLog)
    """The log that this master has read or written last."""
    homes: dict[int, str] = field(default_factory=dict)
    """By slot, the worker that did its last job and has its state in memory."""
    must_reread_model: bool = False
    """Whether a worker could not read a value that the head refers to."""
    must_check_states: bool = False
    """Whether the unreadable value may have been a slot state."""
    closed_keys: list[str] = field(default_factory=list)
    """Keys of closed rounds; each is deleted once the head has moved far enough."""
    swept: int = -SWEEP_VERSIONS
    attempts: Attempts = field(default_factory=Attempts)
    suspects: Suspects = field(init=False)

    def __post_init__(self) -> None:
        self.suspects = Suspects(self.limits.attempts)

    def best_of(self, head: Head) -> Buffer | None:
        """Return the frame of a head's best model; None if it has none, or this master does not know it."""
        known = self.best is not None and head.best is not None and head.best.is_same(self.best[0])
        return self.best[1] if self.best is not None and known else None

    def writer(self) -> str:
        """Return a key part that this master has not used before."""
        self.written += 1
        return f"{self.name}.{self.written}"

    def model_key(self, version: int) -> str:
        """Return a model key that this master has not used before."""
        return Keys.model(version, self.writer())
