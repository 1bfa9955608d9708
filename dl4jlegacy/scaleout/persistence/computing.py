"""What the workers of a run in one process compute, noted in its folder: who resumes it knows what the process died of.

With the embedded tracker nothing else outlives the process. What it writes into a file does, unless the machine goes
down, and then its identity is another one; and whoever has the folder's lock knows that the process is dead. The rule
is that of ``protocol.poison``. Once a job is suspected there is only one worker, so that others are not computed beside
it, and do not die with it again.
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
    """The file: which run's it is, on which boot of the machine, what is computed, how often a job's process died.

    And how many jobs were finished: a checkpoint may know of none of them.
    """

    incarnation: str = ""
    boot: str = ""
    computing: dict[str, str] = {}
    crashes: dict[str, int] = {}
    finished: int = 0


class Computing:
    """The file of a run that this process leads and works for alone. Thread-safe.

    Args:
        folder: the run's, whose lock this process has.
        incarnation: the run's.
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
        if found.incarnation == incarnation and found.boot == boot:  # else the machine went down, and all with it
            for place in set(found.computing.values()):
                self._noted.crashes[place] = self._noted.crashes.get(place, 0) + 1
        self._write()

    def is_suspected(self) -> bool:
        """Return whether some job has cost so many processes that it may not be computed beside others."""
        return any(count >= SUSPECTED for place, count in self._noted.crashes.items() if place not in self._aside)

    def check(
        self, run: str, plan: Plan, head: Head | None, *, sets_aside: bool = False
    ) -> tuple[tuple[int, int], ...]:
        """Return the jobs that are known to kill the process and are to be set aside, as ``Head.jobs_set_aside``.

        Raises:
            PoisonJobError: they are not, or cannot be; whoever resumes the run again may try them.
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
        """Return what makes performers that note what they compute."""
        return lambda conf, kernels: _NotingPerformer(make(conf, kernels), self.change)

    def change(self, slot: tuple[int, int], *, begins: bool, is_done: bool = False) -> None:
        """Note on a worker's thread that it begins a job, or ends it, and whether it is done then."""
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
        """Write the file at once, so that whoever kills the process in between leaves one or the other."""
        if self._fd is not None:
            try:
                os.pwrite(self._fd, msgspec.json.encode(self._noted).ljust(_NBYTES), 0)
            except OSError as exc:  # a full disk: the run goes on without
                logger.debug("what is computed cannot be noted: %s", exc)


class _NotingPerformer:
    """A ``WorkerPerformer`` that notes what it computes."""

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
    """Open the file, which must be this user's and no link; None if that is not possible."""
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
    """Return a run in one process, and what makes its performers, so that it is noted what they compute.

    And the jobs that it is to go on without, as ``Head.jobs_set_aside``.

    Raises:
        PoisonJobError: a job is known to kill the process, and is not to be set aside.
    """
    folder = run.conf.checkpoint_dir
    if not folder or not Path(folder).is_dir():  # there is none, or it is in S3
        return run, performer, ()
    computing = Computing(Path(folder), run.conf.incarnation)
    aside = computing.check(run.conf.run, run.plan, head, sets_aside=run.conf.poison_jobs == "set-aside")
    if computing.is_suspected() and run.local_workers > 1:
        logger.warning("run %s goes on with one worker: one of its jobs may have killed the process", run.conf.run)
        run = replace(run, local_workers=1)
    return run, computing.noting(performer), aside
