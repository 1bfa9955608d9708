"""The history of a run: what each version of its model was like, in the folder of its checkpoints, for later reading.

Legacy: ``IterationListener``s printed scores, each process into a log of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol, TypeVar

import msgspec

from dl4jlegacy.errors import CheckpointError
from dl4jlegacy.nn.networks import NetworkConfiguration, learning_rate_at
from dl4jlegacy.scaleout.persistence.jsonl import JsonlFile, JsonlWriter
from dl4jlegacy.scaleout.plan import PRETRAIN, Plan
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.state.records import Figures
from dl4jlegacy.storage.folders import LinesFolder
from dl4jlegacy.system.clock import Clock

__all__ = ["FollowedHistory", "History", "HistoryEntry", "HistoryFile", "Share", "add_shares", "versions_that_count"]


class Share(msgspec.Struct, frozen=True, array_like=True):
    """What a worker did: so many jobs, in which it trained on so many examples, and which took it so many seconds."""

    jobs: int
    examples: int
    seconds: float


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a run's model.

    Attributes:
        began: when the process that led the run began to, in seconds since 1970 by its machine's clock.
        time: when this version was made, likewise.
        version, round, batches, examples: those of the run's head, which counts them from the run's beginning.
        score: the mean training score of the jobs in it, weighted by examples; None: they have none.
        seconds: since the version before, or since the process began, without the time for which that was stopped.
        staleness: the mean number of versions that were made between that which a job in it began with, and this one's
            predecessor; 0.0 if the run is synchronous.
        workers: of each worker with jobs in it, the examples per second of these jobs.
        validation: what the validation found that this version is the end of; None: it is of training.
        learning_rate: with which the last of its jobs began, as for ``learning_rate_at``; None: there is none, or the
            version is of a validation, or older than this field.
        shares: what each worker with jobs in it did of it; empty if the version is older than this field.
        changed_code: what of the run's own code is other than before from this version on (``--changed-code``).
        phase: of the last of its jobs: what kind, and which layer if one is pretrained; "": older than this field.
    """

    began: float
    time: float
    version: int
    round: int
    batches: int
    examples: int
    score: float | None
    seconds: float
    staleness: float
    workers: dict[str, float]
    validation: Figures | None = None
    learning_rate: float | None = None
    shares: dict[str, Share] = {}
    changed_code: tuple[str, ...] = ()
    phase: str = ""


class HistoryFile(JsonlFile[HistoryEntry]):
    """The history in a run's folder."""

    NAME = "history.jsonl"

    def __init__(self, folder: LinesFolder) -> None:
        super().__init__(folder, self.NAME, HistoryEntry, "the run's history")

    def read(self) -> list[HistoryEntry]:
        """Return the entries in the order of the versions, each once.

        A run that went on from a checkpoint made the versions after it anew: the new ones count, and the others are
        left out, also those that it has not come to again.

        Raises:
            CheckpointError: there is none, or it cannot be read. CloudError and its like: what AWS says.
        """
        with self._explained():
            return versions_that_count(self.lines())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise CheckpointError(
                f"{self.place} cannot be read: {exc.strerror or exc}; the history of a run is kept in its "
                "--checkpoint-dir"
            ) from exc


class FollowedHistory(HistoryFile):
    """A history that is read again and again, of which only what was appended is read. For one thread."""

    def __init__(self, folder: LinesFolder) -> None:
        super().__init__(folder)
        self._lines: list[HistoryEntry] = []
        self._entries: list[HistoryEntry] = []

    def read(self) -> list[HistoryEntry]:
        """Return the entries as ``HistoryFile.read`` does, in a list of their own; raises as that does."""
        with self._explained():
            new, is_all = self.new_lines()
        if is_all:
            self._lines = []
        self._lines += new
        both = [*self._entries[-1:], *new]
        if not is_all and all(a.began == b.began and a.version < b.version for a, b in pairwise(both)):
            self._entries = [*self._entries, *new]
        else:
            self._entries = versions_that_count(self._lines)
        return self._entries


class _OfVersion(Protocol):
    """What is known of a version, from the process that made it."""

    @property
    def began(self) -> float: ...

    @property
    def version(self) -> int: ...


E = TypeVar("E", bound=_OfVersion)


def versions_that_count(lines: Iterable[E]) -> list[E]:
    """Return the entries of versions in their order, without those that a run has made anew since, or gone back from.

    What led to what is told by the versions, and by no clock, since processes on several machines have several: who
    begins with version 11 came after whoever has made version 10. Where that says nothing, the file's order does.

    Args:
        lines: in the order of the file; ``began`` says by which process of the run each was made.
    """
    made: dict[float, dict[int, E]] = {}
    for line in lines:
        made.setdefault(line.began, {})[line.version] = line
    waiting, kept, come = [*made.values()], list[E](), set[int]()
    while waiting:
        session = next((each for each in waiting if not _comes_later(each, come, waiting)), waiting[0])
        waiting = [each for each in waiting if each is not session]
        come |= session.keys()
        first = min(session)
        kept = [entry for entry in kept if entry.version < first] + [session[version] for version in sorted(session)]
    return kept


def _comes_later(session: dict[int, E], come: set[int], waiting: list[dict[int, E]]) -> bool:
    """Return whether a process went on from a version that another one has made, which has not had its turn yet."""
    before = min(session) - 1
    return before not in come and any(before in each for each in waiting if each is not session)


class History:
    """Keeps the history of a run as its versions are made. For the master's thread; a thread of its own writes.

    What a master that is killed had not written yet, little more than its last moments, is missing in the file.

    Attributes:
        shares: what each worker did of the versions so far.
        first_version: of the model that was added; None: none was.

    Args:
        folder: of the run's checkpoints; None: it has none, and versions are only added up.
        plan: the run's.
        clock: of running time.
        network: that is trained; None: the jobs are no network's.
        changed_code: of the run's own code, what is other than before; told with the first version.
    """

    def __init__(
        self,
        folder: LinesFolder | None,
        plan: Plan,
        clock: Clock,
        network: NetworkConfiguration | None = None,
        changed_code: tuple[str, ...] = (),
    ) -> None:
        self._changed_code = changed_code
        self._plan, self._clock, self._network = plan, clock, network
        self._began, self._last, self._version = time.time(), clock.now(), -1
        self._keeper = None if folder is None else JsonlWriter(HistoryFile(folder))
        self.shares: dict[str, Share] = {}
        self.first_version: int | None = None

    def add(self, event: NewModel) -> HistoryEntry | None:
        """Add a version and return its entry; None if it was added before: the last one comes twice."""
        if not event.jobs or event.head.version <= self._version:
            return None
        now, before = self._clock.now(), self._last
        self._last, self._version = now, event.head.version
        rate = None if self._network is None else _learning_rate(event, self._plan, self._network)
        entry = _entry(event, self._plan, began=self._began, seconds=now - before, learning_rate=rate)
        entry, self._changed_code = msgspec.structs.replace(entry, changed_code=self._changed_code), ()
        self.first_version = entry.version if self.first_version is None else self.first_version
        add_shares(self.shares, entry.shares)
        if self._keeper is not None:
            self._keeper.add([entry])
        return entry

    def close(self) -> None:
        """Write what is left."""
        if self._keeper is not None:
            self._keeper.close()


def add_shares(shares: dict[str, Share], more: Mapping[str, Share]) -> None:
    """Add what workers did to what they did before."""
    for worker, share in more.items():
        old = shares.get(worker, Share(0, 0, 0.0))
        shares[worker] = Share(old.jobs + share.jobs, old.examples + share.examples, old.seconds + share.seconds)


def _entry(event: NewModel, plan: Plan, *, began: float, seconds: float, learning_rate: float | None) -> HistoryEntry:
    """Return the entry of a new version."""
    head, shares = event.head, dict[str, Share]()
    for number, job in event.jobs.items():
        add_shares(shares, {job.worker: Share(1, plan.examples_of(number), job.seconds)})
    return HistoryEntry(
        began=began,
        time=time.time(),
        version=head.version,
        round=head.round,
        batches=head.batches,
        examples=head.examples,
        score=head.score,
        seconds=seconds,
        staleness=sum(head.version - 1 - job.version for job in event.jobs.values()) / len(event.jobs),
        workers={
            worker: round(share.examples / share.seconds, 1)
            for worker, share in shares.items()
            if share.examples and share.seconds
        },
        validation=event.figures,
        learning_rate=learning_rate,
        phase=_phase(event, plan),
        shares={worker: Share(each.jobs, each.examples, round(each.seconds, 6)) for worker, each in shares.items()},
    )


def _phase(event: NewModel, plan: Plan) -> str:
    """Return the phase of a new version: that of its last job, and the layer if one is pretrained."""
    slot = plan.slot(*plan.at(max(event.jobs)))
    phase = plan.phases[slot.phase]
    return f"{phase.kind} {phase.layer}" if phase.kind == PRETRAIN else phase.kind


def _learning_rate(event: NewModel, plan: Plan, network: NetworkConfiguration) -> float | None:
    """Return the learning rate of a new version."""
    slot = plan.slot(*plan.at(max(event.jobs)))
    phase = plan.phases[slot.phase]
    if slot.validates:
        return None
    return learning_rate_at(network, slot.iteration, phase.layer if phase.kind == PRETRAIN else -1)
