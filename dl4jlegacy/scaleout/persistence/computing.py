"""A file in a run's folder that records which jobs the workers compute, so that a resumed run can blame a fatal job.

With the embedded tracker nothing else survives the process. The contents of a file do, unless the machine goes down,
which its boot id reveals. The process that holds the folder's lock knows that the earlier process is dead. Jobs are
judged by the rule of ``protocol.poison``. Once a job is suspected, only one worker is used, so that other jobs are not
computed at the same time and do not die with it again.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dl4jlegacy.errors import PoisonJobError
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.protocol.crashes import describe
from dl4jlegacy.scaleout.protocol.poison import SUSPECTED, Counts, is_poison
from dl4jlegacy.scaleout.state.job import Job, Result
from dl4jlegacy.scaleout.state.records import Crash, Head, covered, fold_number
from dl4jlegacy.scaleout.workers.perform import WorkerPerformer
from dl4jlegacy.scaleout.workers.plugins import PerformerFactory
from dl4jlegacy.system.decoding import decodable

__all__ = ["Computing", "noted"]

logger = logging.getLogger(__name__)

_NAME, _NBYTES = "computing.json", 1 << 13
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Noted(msgspec.Struct, kw_only=True):
    """The content of the file: the run, the machine's boot, the jobs being computed, and each job's number of crashes.

    Also the number of finished jobs, since a checkpoint may include none of them.
    """

    incarnation: str = ""
    boot: str = ""
    computing: dict[str, str] = {}
    crashes: dict[str, int] = {}
    finished: int = 0


class Computing:
    """The file of a run that has one process, this one. Thread-safe.

    Args:
        folder: of the run; this process holds its lock.
        incarnation: of the run.
    """

    def __init__(self, folder: Path, incarnation: str) -> None:
        self._folder, self._lock, self._fd = folder, threading.Lock(), _open(folder / _NAME)
        self._aside: set[str] = set()
        boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        found = _read(self._fd)
        self._noted = _Noted(incarnation=incarnation, boot=boot)
        if self._fd is not None:
            weakref.finalize(self, os.close, self._fd)
        if found.incarnation == incarnation:
            self._noted.crashes, self._noted.finished = found.crashes, found.finished
        if found.incarnation == incarnation and found.boot == boot:  # else the whole machine went down
            for place in set(found.computing.values()):
                self._noted.crashes[place] = self._noted.crashes.get(place, 0) + 1
        self._write()

    def is_suspected(self) -> bool:
        """Return whether some job had so many crashes that no other job may be computed at the same time."""
        return any(count >= SUSPECTED for place, count in self._noted.crashes.items() if place not in self._aside)

    def check(
        self, run: str, plan: Plan, head: Head | None, *, sets_aside: bool = False
    ) -> tuple[tuple[int, int], ...]:
        """Return the jobs that are known to kill the process and are set aside, as ``Head.jobs_set_aside``.

        Raises:
            PoisonJobError: such a job may not or cannot be set aside; if the run is resumed again, the job is tried
                again.
        """
        deaths, aside = sum(self._noted.crashes.values()), () if head is None else head.jobs_set_aside
        finished = 0 if head is None else sum(last - first for first, last in head.folded)
        for place, count in list(self._noted.crashes.items()):
            crashes = [Crash(f"process {index + 1}", "", "it left the job in its folder") for index in range(count)]
            round_, slot = map(int, place.split("/"))
            counts = Counts(max(finished, self._noted.finished), deaths)
            number = plan.number(round_, slot)
            if covered(aside, number) or not is_poison(crashes, counts, jobs=plan.total_slots):
                continue
            text = f"run {run}: {describe(plan, number, crashes, counts, where=str(self._folder))}"
            if not sets_aside or plan.is_validation(round_):
                del self._noted.crashes[place]
                self._write()
                raise PoisonJobError(f"{text}, or resume it with --poison-jobs set-aside to go on without them")
            logger.warning("round %s, slot %s is set aside: %s", round_, slot, text)
            aside = fold_number(aside, number)
        self._aside = {"{}/{}".format(*plan.at(n)) for first, last in aside for n in range(first, last)}
        return aside

    def noting(self, make: PerformerFactory) -> PerformerFactory:
        """Return a factory of performers that record the jobs they compute."""
        return lambda conf, kernels: _NotingPerformer(make(conf, kernels), self.change)

    def change(self, slot: tuple[int, int], *, begins: bool, is_done: bool = False) -> None:
        """Record on a worker's thread that it begins or ends a job, and whether the job is then done."""
        place = f"{slot[0]}/{slot[1]}"
        with self._lock:
            if begins:
                self._noted.computing[str(threading.get_ident())] = place
            else:
                self._noted.computing.pop(str(threading.get_ident()), None)
            if is_done:
                self._noted.crashes.pop(place, None)
                self._noted.finished += 1
            self._write()

    def _write(self) -> None:
        """Write the file in one operation, so that a killed process leaves either the old or the new content."""
        if self._fd is not None:
            try:
                os.pwrite(self._fd, msgspec.json.encode(self._noted).ljust(_NBYTES), 0)
            except OSError as exc:  # a full disk: the run continues without the record
                logger.debug("what is computed cannot be noted: %s", exc)


class _NotingPerformer:
    """A ``WorkerPerformer`` that records the jobs it computes."""

    def __init__(self, performer: WorkerPerformer, change: Callable[..., None]) -> None:
        self._performer, self._change = performer, change

    @property
    def progress(self) -> int:
        """See ``WorkerPerformer``."""
        return self._performer.progress

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``."""
        self._performer.update(model)

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``."""
        self._change(job.slot[:2], begins=True)
        done = None
        try:
            done = self._performer.perform(job)
        finally:
            self._change(job.slot[:2], begins=False, is_done=done is not None)
        return done


def _open(path: Path) -> int | None:
    """Open the file, which must belong to this user and not be a link; None if that is not possible."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        logger.debug("%s cannot be opened: %s", path, exc)
        return None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return fd
    os.close(fd)
    return None


def _read(fd: int | None) -> _Noted:
    try:
        return msgspec.json.decode(b"" if fd is None else os.pread(fd, _NBYTES, 0), type=decodable(_Noted))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Noted()


def noted(
    run: Any, performer: PerformerFactory, head: Head | None
) -> tuple[Any, PerformerFactory, tuple[tuple[int, int], ...]]:
    """Return a run in one process, a performer factory that records the jobs, and the jobs to set aside.

    The jobs are as in ``Head.jobs_set_aside``.

    Raises:
        PoisonJobError: a job is known to kill the process, and may not be set aside.
    """
    folder = run.conf.checkpoint_dir
    if not folder or not Path(folder).is_dir():  # there is no folder, or it is in S3
        return run, performer, ()
    computing = Computing(Path(folder), run.conf.incarnation)
    aside = computing.check(run.conf.run, run.plan, head, sets_aside=run.conf.poison_jobs == "set-aside")
    if computing.is_suspected() and run.local_workers > 1:
        logger.warning("run %s goes on with one worker: one of its jobs may have killed the process", run.conf.run)
        run = replace(run, local_workers=1)
    return run, computing.noting(performer), aside
