"""The records that a run keeps in its store: their fields, keys and bytes.

The *head* is the one record that holds everything that must be consistent. All other records are immutable or can be
derived again from the plan. Keys are relative to the run's prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec

from dl4jlegacy.errors import WireError
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.system.decoding import decodable

__all__ = [
    "HEAD",
    "MODEL_LOST",
    "POISON",
    "WENT_BACK",
    "Best",
    "Crash",
    "Failure",
    "Figures",
    "FoldRecord",
    "Folded",
    "Head",
    "JobRecord",
    "Keys",
    "LogEntry",
    "Manifest",
    "Scores",
    "SlotState",
    "Snapshot",
    "Status",
    "WorkerRecord",
    "account",
    "advance",
    "batches_set_aside",
    "covered",
    "decode_record",
    "encode_record",
    "fold_number",
    "keyspace",
]

HEAD = "head"
MODEL_LOST = "DL4J-MODEL-LOST"
"""Code of a ``Failure`` that is not the job's own: the worker could not read the model."""
POISON = "DL4J-POISON"
"""Code of the ``Failure`` of a job that kills its workers."""

WENT_BACK = (
    "the head of run %s went back from version %d to %d: members of the grid that were cut off from the others hold an "
    "older state of the run, or it was restored from a checkpoint; %s"
)
"""Log message about a head older than the last one read: run, both versions, and what the process does."""

Status = Literal["running", "done", "failed", "stopped"]
R = TypeVar("R", bound=msgspec.Struct)

_NUMBER = "(?:0|[1-9][0-9]{0,17})"
_KEY = re.compile(
    rf"head|job/(?P<job>{_NUMBER})/{_NUMBER}|fold/(?P<fold>{_NUMBER})/{_NUMBER}|(?:data/(?P<data>{_NUMBER})/{_NUMBER}|"
    rf"update/(?P<update>{_NUMBER})/{_NUMBER}/.+|model/(?P<model>{_NUMBER})/.+|"
    rf"state/(?P<state>{_NUMBER})/{_NUMBER}/.+|snapshot/(?P<snapshot>{_NUMBER})/.+|"
    rf"entry/(?P<entry>{_NUMBER})/.+)/{_NUMBER}|"
    r"(?:worker|counter|global|stats)/.+|log/[0-9]{20}/.+"
)


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a frame is stored: ``chunks`` values under ``key/0 ...``, ``nbytes`` in total; ``digest`` if required.

    A frame stored in slices (``state.slices``) has ``parts`` instead of chunks, of ``nbytes`` together. A small frame
    is in the manifest itself, as ``frame``. In both cases ``key`` is only a name.
    """

    key: str
    chunks: int
    nbytes: int
    digest: str = ""
    parts: tuple[Manifest, ...] = ()
    frame: bytes = b""


class Failure(msgspec.Struct, frozen=True):
    """Why a job failed: the error's code and message, the worker and its traceback. If ``fatal``, it is not retried.

    Characters that a record cannot hold, such as those of a file name that is not UTF-8, are escaped.
    """

    code: str
    message: str
    worker: str
    traceback: str = ""
    fatal: bool = False

    def __post_init__(self) -> None:
        for name in ("message", "traceback"):
            text = getattr(self, name)
            if isinstance(text, str) and not text.isascii():
                msgspec.structs.force_setattr(self, name, text.encode(errors="backslashreplace").decode())


class Crash(msgspec.Struct, frozen=True):
    """The death of a process while it computed a job: the process, its host, and the evidence of its death.

    ``seconds`` is the time since the master saw the job begin, by the master's clock; 0: the master did not see that.
    """

    process: str
    host: str
    how: str
    seconds: float = 0.0


class Figures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The metrics of a validation on ``examples`` examples: see ``NetworkEvaluation.metrics``.

    Metrics of classes are None for a network without classes, regression metrics for a network that predicts no
    numbers.
    """

    loss: float
    examples: int
    accuracy: float | None = None
    f1: float | None = None
    precision: float | None = None
    recall: float | None = None
    matthews_correlation: float | None = None
    mse: float | None = None
    rmse: float | None = None
    mae: float | None = None
    r2: float | None = None
    pc: float | None = None

    def fields(self) -> dict[str, Any]:
        """Return the metrics that are not None, for display and JSON; ``accuracy`` and ``f1`` are always included."""
        fields: dict[str, Any] = {"accuracy": None, "f1": None} | msgspec.to_builtins(self)
        return fields


class Best(msgspec.Struct, frozen=True):
    """The best model of a run so far: where it is stored, which version it is, and its score.

    ``round`` is the round that scored it: a validation round, or a training round if the run has no validation.
    ``epoch`` is the epoch in which it was trained last, counted over all phases from 0.
    """

    model: Manifest
    version: int
    round: int
    epoch: int
    score: float
    figures: Figures | None = None

    def is_same(self, other: Best | None) -> bool:
        """Return whether this is the same model, wherever it is stored."""
        return other is not None and msgspec.structs.replace(other, model=self.model) == self


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The last score of a run, its round, and the number of scores in a row without improvement on ``reference``."""

    score: float
    round: int
    reference: float
    without_improvement: int = 0
    figures: Figures | None = None


class SlotState(msgspec.Struct, frozen=True):
    """The state of a slot after a job: the number of the job, its round, and the manifest of the state's frame."""

    number: int
    round: int
    state: Manifest


class Snapshot(msgspec.Struct, frozen=True):
    """The states of the slots that belong to a model version, by slot; a missing slot starts without a state."""

    states: dict[int, SlotState] = {}


class Folded(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a ``LogEntry``: its number, its worker, the key and frame of its update, and its data if any.

    ``saved`` is the state of the slot after the job, if it was saved. ``digest`` is the update's digest if the entry
    does not contain the update itself.
    """

    number: int
    worker: str
    key: str
    update: bytes
    data: Manifest | None = None
    saved: Manifest | None = None
    digest: str = ""


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The step from one model version to the next: the updates that are folded, in their order.

    It leads from the version whose ``Head.identity`` is ``before`` to ``version``. ``previous`` are the entries before
    this one, newest first, back to the model that is stored whole, ``PREVIOUS`` at most. ``messages`` is where the
    updates are stored; None: they are in the entry.
    """

    version: int
    before: str
    folded: tuple[Folded, ...]
    previous: tuple[Manifest, ...] = ()
    messages: Manifest | None = None


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run. It changes only by compare-and-set, each head computed from the one before.

    ``round`` is the first round with a slot that is not folded. ``folded`` has the numbers of the folded slots as
    sorted, merged, half-open ranges. ``batches`` and ``examples`` are counted slot by slot, independently of
    ``folded``, so that both can be compared with the plan at the end. ``score`` is the training score.
    """

    run: str
    version: int
    round: int
    model: Manifest
    folded: tuple[tuple[int, int], ...] = ()
    batches: int = 0
    examples: int = 0
    updates_dropped: int = 0
    score: float | None = None
    status: Status = "running"
    failure: Failure | None = None
    set_aside: tuple[str, ...] = ()
    """Workers that get no more jobs, because they failed at jobs that other workers completed."""
    jobs_set_aside: tuple[tuple[int, int], ...] = ()
    """Slots that count as folded without an update, because their jobs kill their workers; ranges as in ``folded``."""
    best: Best | None = None
    scores: Scores | None = None
    seconds: float = 0.0
    """Seconds for which masters have led the run, each measured by its own clock."""
    stopped_by: str = ""
    """The condition that ended the run before the end of its plan, as text; "": none."""
    snapshot: Manifest | None = None
    """The ``Snapshot`` of the version of ``model``; None if no slot has a state."""
    replay_round: int = 0
    """The first round whose jobs left a state in the snapshot, or may have to be repeated."""
    entry: Manifest | None = None
    """The ``LogEntry`` that leads to this version; None if there is only its model."""
    keeps: int = 0
    """The next round whose model is stored whole, with the states of all slots, if they have any."""
    logged: int = 0
    """The number of entries that lead from ``model``, which is stored whole, to this version."""
    recent: int = 1
    """The number of earlier versions that are kept, since a worker may be about to read them."""

    @property
    def identity(self) -> str:
        """The key of this version. No key is written twice, so equal identities mean equal bits."""
        return self.model.key if self.entry is None else self.entry.key


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a slot. Each lease has a higher fencing ``token``; ``model`` is the key of the job's model.

    ``progress`` is the number of batches that the worker had done when it last extended its lease. ``failures`` are
    those of all attempts so far; only the last one has a traceback.

    The record has no time of day, since clocks of two machines are never compared. ``extended`` counts the extensions
    of the lease, so that the record changes as long as a worker does the job. If the job is done, ``seconds`` is its
    duration by the clock of its worker, and ``version`` is the version of the model it started from. ``saved`` is the
    state of the slot after the job, which counts only together with the update. ``begins`` is the key of the state that
    the job started from, if that state was saved; "": none.

    ``home`` is the worker that has the state of the slot in memory; others do not take the job for ``reserved``
    seconds. ``behind`` is the number of earlier jobs of the slot that the holder of the lease must replay first.

    ``begun`` are the workers that began to compute the job and did not report its end, whether or not they still hold
    the lease; it is not written for the first attempt at a quick job. ``crashes`` are deaths of their processes during
    the job. If the job is done, both are empty.
    """

    state: Literal["ready", "leased", "done", "failed"]
    model: str
    token: int = 0
    worker: str = ""
    extended: int = 0
    progress: int = 0
    seconds: float = 0.0
    version: int = 0
    failures: tuple[Failure, ...] = ()
    data: Manifest | None = None
    update: Manifest | None = None
    failure: Failure | None = None
    saved: Manifest | None = None
    home: str = ""
    reserved: float = 0.0
    behind: int = 0
    begins: str = ""
    begun: tuple[str, ...] = ()
    crashes: tuple[Crash, ...] = ()


class FoldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a fold job, which folds some updates of a round, or slices of them, into one frame.

    The result is a pure function of ``model`` (the ``Head.identity`` that the round started from), of ``updates`` in
    slot order, and of their weights (``examples``). A record that differs in these belongs to another history.
    ``place`` is the index of the slice. The last job of a slice ``makes_model``; the others make the mean of a group,
    which is an update like any other.

    If the job is done, ``made`` is its result, ``score`` the mean score of the updates, and ``seconds`` its duration by
    the clock of its worker. For a failed job, ``bad`` are the indices of those ``updates`` that its worker could not
    read or fold. The other fields are as in ``JobRecord``.
    """

    state: Literal["ready", "leased", "done", "failed"] = "ready"
    model: str
    updates: tuple[Manifest, ...]
    examples: tuple[int, ...]
    place: int
    makes_model: bool
    token: int = 0
    worker: str = ""
    extended: int = 0
    seconds: float = 0.0
    made: Manifest | None = None
    score: float | None = None
    failures: tuple[Failure, ...] = ()
    failure: Failure | None = None
    bad: tuple[int, ...] = ()

    def is_same_job(self, other: FoldRecord) -> bool:
        """Return whether both have the same inputs, and so the same result."""
        mine = (self.model, self.updates, self.examples, self.place, self.makes_model)
        return mine == (other.model, other.updates, other.examples, other.place, other.makes_model)


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a worker with every heartbeat; ``device`` is its GPU, if any, and the memory in use there.

    ``beat`` is the time of day, in seconds since 1970 by the clock of its machine, for display. Other processes only
    check whether it changes, and measure the time without a change by their own clock.
    """

    id: str
    host: str
    pid: int
    state: str = "idle"
    job: str = ""
    jobs_done: int = 0
    beat: float = 0.0
    kernels: str = ""
    device: str = ""
    versions: dict[str, str] = {}


class Keys:
    """The keys of a run's records, and which of them are no longer needed."""

    @staticmethod
    def job(round_: int, slot: int) -> str:
        """Key of a slot's ``JobRecord``."""
        return f"job/{round_}/{slot}"

    @staticmethod
    def fold(version: int, index: int) -> str:
        """Key of the ``FoldRecord`` of a job for the next model version."""
        return f"fold/{version}/{index}"

    @staticmethod
    def data(round_: int, slot: int) -> str:
        """Key of a slot's data, if jobs carry their data; depends on the plan alone."""
        return f"data/{round_}/{slot}"

    @staticmethod
    def update(round_: int, slot: int, writer: str) -> str:
        """Key of a worker's update; ``writer`` contains a count, so that no key is written twice."""
        return f"update/{round_}/{slot}/{writer}"

    @staticmethod
    def state(round_: int, slot: int, writer: str) -> str:
        """Key of the state of a slot after a job; ``writer`` as for ``update``."""
        return f"state/{round_}/{slot}/{writer}"

    @staticmethod
    def snapshot(version: int, writer: str) -> str:
        """Key of the ``Snapshot`` of a model version; ``writer`` as for ``model``."""
        return f"snapshot/{version}/{writer}"

    @staticmethod
    def entry(version: int, writer: str) -> str:
        """Key of the ``LogEntry`` that leads to a version; ``writer`` as for ``model``."""
        return f"entry/{version}/{writer}"

    @staticmethod
    def model(version: int, writer: str) -> str:
        """Key of a model version; ``writer`` differs between two masters."""
        return f"model/{version}/{writer}"

    @staticmethod
    def worker(worker: str) -> str:
        """Key of a ``WorkerRecord``."""
        return f"worker/{worker}"

    @staticmethod
    def is_of_run(key: str) -> bool:
        """Return whether a key has the form of a run's keys, and at most 1,000 characters; other keys are foreign."""
        return len(key) <= 1000 and key.isprintable() and _KEY.fullmatch(key) is not None

    @staticmethod
    def is_useless(key: str, head: Head) -> bool:
        """Return whether a key is no longer needed: jobs of rounds before the last, models before ``Head.recent``.

        States are needed as long as a snapshot may name them, data as long as their job may be repeated, entries as
        long as their versions are ahead of the stored model, and the best model to the end. False for foreign keys.
        """
        match = _KEY.fullmatch(key) if len(key) <= 1000 else None
        if match is None or match.lastgroup is None:
            return False
        number = int(match[match.lastgroup])
        if match.lastgroup in ("model", "snapshot"):
            frames = (head.model, head.snapshot, None if head.best is None else head.best.model)
            needed = [part for frame in frames if frame is not None for part in (frame, *frame.parts)]
            return number < head.version - head.recent and not any(key.startswith(f"{frame.key}/") for frame in needed)
        if match.lastgroup == "fold":
            return number <= head.version
        if match.lastgroup == "entry":
            return number < head.version - max(1, head.logged)
        replays = (match.lastgroup == "state" and head.snapshot is not None) or (
            match.lastgroup == "data" and head.logged > 0
        )
        if replays:
            return number < min(head.round - 1, head.replay_round)
        return number < head.round - 1


def keyspace(run: str, incarnation: str) -> str:
    """Return the prefix of the records of one incarnation of a run; part of every signature."""
    return f"{run}.{incarnation}" if incarnation else run


def encode_record(record: msgspec.Struct) -> bytes:
    """Return a record's bytes; equal records have equal bytes, so compare-and-set works on them."""
    return msgspec.msgpack.encode(record)


def decode_record(raw: Buffer, kind: type[R]) -> R:
    """Return the record in ``raw``; raises ``WireError`` if it is not a ``kind``."""
    try:
        return msgspec.msgpack.decode(raw, type=decodable(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireError(f"a {kind.__name__} record of {len(raw)} bytes cannot be read: {exc}") from exc


def fold_number(folded: tuple[tuple[int, int], ...], number: int) -> tuple[tuple[int, int], ...]:
    """Return ``folded`` with ``number`` added, sorted and merged; unchanged if it already contains it."""
    if covered(folded, number):
        return folded
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*folded, (number, number + 1)]):
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def covered(folded: tuple[tuple[int, int], ...], number: int) -> bool:
    """Return whether a slot's number has been folded."""
    return any(first <= number < last for first, last in folded)


def advance(head: Head, plan: Plan, numbers: Iterable[int], **changes: Any) -> Head:
    """Return the head after ``numbers`` were folded, with counts increased as in the plan.

    Jobs that are set aside do not change the counts, and no round waits for them. They count as folded from their round
    on and not earlier, so that a round that consists only of such jobs ends its phase like any other.
    """
    folded, batches, examples, numbers = head.folded, head.batches, head.examples, list(numbers)
    latest = max([head.round, *(plan.at(number)[0] for number in numbers)])
    for aside in (n for first, last in head.jobs_set_aside for n in range(first, last)):
        folded = fold_number(folded, aside) if plan.at(aside)[0] <= latest else folded
    for number in numbers:
        folded = fold_number(folded, number)
        batches += plan.batches_of(number)
        examples += plan.examples_of(number)
    first = folded[0][1] if folded and folded[0][0] == 0 else 0
    round_ = plan.at(first)[0] if first < plan.total_slots else plan.total_rounds
    return msgspec.structs.replace(
        head, version=head.version + 1, round=round_, folded=folded, batches=batches, examples=examples, **changes
    )


def account(head: Head, plan: Plan) -> tuple[int, int]:
    """Return (batches lost, batches duplicated) of a finished run by comparing the head with the plan.

    If a run was stopped early, only the rounds before its last one must be complete. Batches of jobs that were set
    aside (``batches_set_aside``) are not lost.
    """
    counted = head.batches + batches_set_aside(head, plan)
    distinct = sum(plan.batches_of(n) for first, last in head.folded for n in range(first, last))
    if not head.stopped_by:
        return plan.total_batches - distinct, counted - distinct
    end = plan.number(head.round, 0)
    lost = sum(plan.batches_of(n) for n in range(end) if not covered(head.folded, n))
    return lost, counted - distinct


def batches_set_aside(head: Head, plan: Plan) -> int:
    """Return the number of batches that are missing from the model because their jobs kill workers."""
    return sum(plan.batches_of(n) for first, last in head.jobs_set_aside for n in range(first, last))
