"""The history of a run: one entry per model version, in the checkpoint folder, for later reading.

Legacy: ``IterationListener``s printed scores, each process into its own log.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Protocol, TypeVar

import msgspec

from dl4jlegacy.errors import CheckpointError, Dl4jError
from dl4jlegacy.nn.evaluation.verdict import Course, course_of
from dl4jlegacy.nn.networks import NetworkConfiguration, learning_rate_at
from dl4jlegacy.scaleout.persistence.jsonl import JsonlFile, JsonlWriter
from dl4jlegacy.scaleout.plan import PRETRAIN, Plan
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.state.records import Figures
from dl4jlegacy.storage.folders import LinesFolder
from dl4jlegacy.system.clock import Clock

__all__ = ["FollowedHistory", "History", "HistoryEntry", "HistoryFile", "Share", "add_shares", "versions_that_count"]


class Share(msgspec.Struct, frozen=True, array_like=True):
    """A worker's share of the work: number of jobs, number of training examples, and seconds."""

    jobs: int
    examples: int
    seconds: float


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a run's model.

    Attributes:
        began: start of the process that led the run, in seconds since 1970 by its machine's clock.
        time: when this version was made, by the same clock.
        version, round, batches, examples: those of the run's head, counted from the run's beginning.
        score: the mean training score of the version's jobs, weighted by examples; None: they have no score.
        seconds: since the previous version, or since the start of the process, without times in which the process was
            stopped.
        staleness: the mean number of versions made between the one that a job started from and this version's
            predecessor; 0.0 if the run is synchronous.
        workers: for each worker with jobs in this version, the examples per second of these jobs.
        validation: the metrics of the validation that this version ends; None: a version of training.
        learning_rate: rate at the start of the version's last job, as for ``learning_rate_at``; None: there is none, or
            the version is of a validation, or older than this field.
        shares: the share of each worker with jobs in this version; empty if the version is older than this field.
        changed_code: parts of the user's own code that are different from this version on (``--changed-code``).
        phase: of the version's last job: its kind, and the layer if one is pretrained; "": older than this field.
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

        A run that continued from a checkpoint repeated the versions after it: the new ones count. The earlier ones are
        left out, even those that have not been repeated yet.

        Raises:
            CheckpointError: there is no history, or it cannot be read. CloudError and its like: errors reported by AWS.
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
    """A history that is read repeatedly; each time only the appended part is read. For one thread."""

    def __init__(self, folder: LinesFolder) -> None:
        super().__init__(folder)
        self._lines: list[HistoryEntry] = []
        self._entries: list[HistoryEntry] = []

    def read(self) -> list[HistoryEntry]:
        """Return the entries as ``HistoryFile.read`` does, in a list of their own; raises the same errors."""
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
    """The fields that identify a version and the process that made it."""

    @property
    def began(self) -> float: ...

    @property
    def version(self) -> int: ...


E = TypeVar("E", bound=_OfVersion)


def versions_that_count(lines: Iterable[E]) -> list[E]:
    """Return the entries of versions in order, without those that the run has repeated since, or gone back from.

    The order of processes is determined from the versions and not from clocks, since several machines have several
    clocks: a process that begins with version 11 came after the process that made version 10. Where that is not
    conclusive, the order in the file counts.

    Args:
        lines: in the order of the file; ``began`` identifies the process of the run that made each one.
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
    """Return whether a process continued from a version of another process that is still waiting."""
    before = min(session) - 1
    return before not in come and any(before in each for each in waiting if each is not session)


class History:
    """Records the history of a run as its versions are made. Used on the master's thread; a separate thread writes.

    If a master is killed, entries that were not written yet, at most of its last moments, are missing in the file.

    Attributes:
        shares: the share of each worker in the versions so far.
        first_version: the first version that was added; None: none was.

    Args:
        folder: of the run's checkpoints; None: there is none, and versions are only counted.
        plan: of the run.
        clock: of running time.
        network: the trained network; None: the jobs train no network.
        changed_code: changed parts of the user's own code; stored with the first version.
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
        self._folder, self._keeper = folder, None if folder is None else JsonlWriter(HistoryFile(folder))
        self._phase, self._scores = "", array("d")  # the training scores of the last phase
        self.shares: dict[str, Share] = {}
        self.first_version: int | None = None

    def add(self, event: NewModel) -> HistoryEntry | None:
        """Add a version and return its entry; None if it was added before, since the last version arrives twice."""
        if not event.jobs or event.head.version <= self._version:
            return None
        now, before = self._clock.now(), self._last
        self._last, self._version = now, event.head.version
        rate = None if self._network is None else _learning_rate(event, self._plan, self._network)
        entry = _entry(event, self._plan, began=self._began, seconds=now - before, learning_rate=rate)
        entry, self._changed_code = msgspec.structs.replace(entry, changed_code=self._changed_code), ()
        self.first_version = entry.version if self.first_version is None else self.first_version
        add_shares(self.shares, entry.shares)
        self._score(entry)
        if self._keeper is not None:
            self._keeper.add([entry])
        return entry

    def _score(self, entry: HistoryEntry) -> None:
        if entry.validation is None and entry.score is not None:
            if entry.phase != self._phase:
                self._phase, self._scores = entry.phase, array("d")
            self._scores.append(entry.score)

    def course(self) -> Course | None:
        """Return the course of the training score in the run's last phase; None: it has none, or its start is unknown.

        Versions that another process made are read from the folder.
        """
        before: list[HistoryEntry] = []
        if self.first_version != 1:
            try:
                found = [] if self._folder is None else HistoryFile(self._folder).read()
            except Dl4jError:
                return None
            before = [entry for entry in found if self.first_version is None or entry.version < self.first_version]
            if not before or before[0].version != 1:
                return None
        phase = self._phase or next((entry.phase for entry in reversed(before) if entry.validation is None), "")
        known = [e.score for e in before if e.validation is None and e.score is not None and e.phase == phase]
        return course_of([*known, *self._scores])

    def close(self) -> None:
        """Write the remaining entries."""
        if self._keeper is not None:
            self._keeper.close()


def add_shares(shares: dict[str, Share], more: Mapping[str, Share]) -> None:
    """Add the shares ``more`` to the workers' earlier shares."""
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
