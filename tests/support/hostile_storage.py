"""The folder of a simulated run (``simulator``): away, read-only, deleted or another run's, now and then.

Masters keep their checkpoints in it with the project's own code, and no lock helps them. Whatever happens there:
nothing is written in another run's folder, nothing of its is deleted, and no run begins anew that has a checkpoint.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.persistence.checkpoint import CheckpointStore, RunIdentity
from dl4jlegacy.scaleout.persistence.own_folder import CONF
from dl4jlegacy.scaleout.persistence.run_folder import RunFolder
from dl4jlegacy.scaleout.protocol import RunStart
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Head, Manifest
from dl4jlegacy.storage.folders import Lines, Mark
from dl4jlegacy.system.clock import Clock

__all__ = ["HostileStorage"]

WAIT = 300.0
OURS = Conf(run="run", incarnation="1" * 16, worker_wait_seconds=WAIT)
THEIRS = Conf(run="theirs", incarnation="2" * 16)
FAULTS = ("away", "away", "away", "read-only", "full", "deleted", "theirs")
BEGINS, TORN = 0.002, 0.01
"""How often in a second a fault begins, and how often in the middle of a write."""
SHORTEST, LONGEST = 20, int(WAIT) - 60
"""Of a fault, in seconds: no run that is not lost gives up waiting."""


class HostileStorage:
    """What is in the folder, and what happens to it.

    Attributes:
        taken_over: how often a master began in a fault.
        waited: how often a run that its store had lost could not be told from what to go on.
        lost: how often one was really lost, and given up.
        refused: how often something could not be written.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"storage of {seed}")
        self.seed = seed
        self.files: dict[str, bytes] = {}
        self.theirs: dict[str, bytes] = {}
        self.fault, self.until = "", 0.0
        self.taken_over = self.waited = self.lost = self.refused = 0
        self._other = CheckpointStore(_Folder(self, is_theirs=True), keep=9, owner=RunIdentity.of(THEIRS))

    def tick(self, now: float, masters: Sequence[str]) -> Iterator[str]:
        """Let faults begin and end; yield the masters that are killed at the same time."""
        if self.fault and now > self.until:
            self._end()
        if not self.fault and self.rng.random() < BEGINS:
            self._begin(now, self.rng.choice(FAULTS))
            yield from (role for role in masters if self.rng.random() < 0.4)

    def _begin(self, now: float, fault: str) -> None:
        self.fault, self.until = fault, now + self.rng.randrange(SHORTEST, LONGEST)
        if fault == "deleted":
            self.files.clear()
            self.theirs.clear()
            self.fault = ""
        elif fault == "theirs":
            self.files.clear()
            self._other.keep_conf(THEIRS)
            for version in (1, 2, self.rng.randrange(3, 40)):
                head = Head(run="theirs", version=version, round=version, model=Manifest("k", 1, 1))
                self._other.save(head, Result({}, {"params": np.zeros(3, np.float32)}).encode())
            self.theirs = dict(self.files)

    def _end(self) -> None:
        if self.fault == "theirs":
            if self.rng.random() < 0.5:  # with or without what it has kept, which is not ours to delete
                self.files.clear()
                self.theirs.clear()
            self.files.pop(CONF, None)
            self.theirs.pop(CONF, None)
        self.fault = ""

    def has_ours(self) -> bool:
        """Return whether a checkpoint of the run is there, be it that nobody can read it now."""
        return any(
            OURS.incarnation.encode() in self.files[name] for name in self.files if name.startswith("checkpoint")
        )

    def first_model(self, first: Callable[[], Any]) -> Any:
        """Return version 0; fails if there is anything better."""
        assert not self.has_ours(), f"seed {self.seed}: the run begins anew, and has checkpoints"
        return first()

    def beginning(self, first: Callable[[], Any], folder: RunFolder) -> RunStart:
        """Return from what a master with this folder goes on if the store has lost the run."""
        begins = functools.partial(self.first_model, first)
        return RunStart("run", begins, folder.restore, folder.best_model, folder.states)

    def of_master(self, clock: Clock) -> RunFolder:
        """Return the folder as a new master has it."""
        self.taken_over += bool(self.fault)
        store = CheckpointStore(_Folder(self, is_theirs=False), keep=2, owner=RunIdentity.of(OURS))
        folder = RunFolder(store, OURS, resumes=True, clock=clock)
        folder.on_wait = self._waits
        folder.take(dict, takes_over=True)
        return folder

    def _waits(self) -> None:
        self.waited += 1

    def give_up(self) -> None:
        """Take note that a run ended for want of its checkpoints; fails if they are there."""
        assert not self.has_ours(), f"seed {self.seed}: the run was given up, and has checkpoints"
        self.lost += 1


class _Folder:
    """The folder as one process has it. ``Folder``, without locks."""

    place = "the folder"

    def __init__(self, storage: HostileStorage, *, is_theirs: bool) -> None:
        self._in, self._is_theirs = storage, is_theirs

    def _use(self, *faults: str) -> None:
        if not self._is_theirs and self._in.fault in faults:
            self._in.refused += 1
            raise OSError(5, f"it is {self._in.fault}")

    def names(self) -> list[str]:
        self._use("away")
        return sorted(self._in.files)

    def read(self, name: str) -> bytes:
        self._use("away")
        if name not in self._in.files:
            raise FileNotFoundError(2, f"there is no {name}")
        return self._in.files[name]

    def write(self, name: str, content: bytes) -> None:
        storage = self._in
        self._use("away", "read-only", "full")
        if not self._is_theirs:
            assert storage.fault != "theirs", f"seed {storage.seed}: {name} is written in another run's folder"
            if storage.rng.random() < TORN:  # the rest of a checkpoint does not come to be
                storage.fault = "away"
                self._use("away")
            storage.theirs.pop(name, None)  # one that the other run has left, of the same version
        storage.files[name] = bytes(content)

    def delete(self, name: str) -> None:
        self._use("away", "read-only")
        assert self._is_theirs or name not in self._in.theirs, f"seed {self._in.seed}: {name} of another run is deleted"
        self._in.files.pop(name, None)

    def lock(self, owner: str, *, takes_over: bool = False) -> bool:
        self._use("away", "read-only")
        return True

    def unfinished(self) -> list[str]:
        return []

    def holder(self) -> str:
        return ""

    def release(self) -> None:
        pass

    def append(self, name: str, lines: bytes) -> None:
        raise NotImplementedError

    def read_lines(self, name: str) -> list[bytes]:
        raise NotImplementedError

    def read_new_lines(self, name: str, mark: Mark | None) -> Lines:
        raise NotImplementedError
