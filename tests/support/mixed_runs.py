"""Schedules of the simulator in which many of the processes that join a run, or take it over, are made for another one.

A master may have another first model, other jobs or another aggregator, a worker another performer. Each agrees with
the tracker before it does anything, with the package's own code, and is refused; whoever is not would change the bits
in which the run ends.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from dl4jlegacy.errors import CheckpointError, VersionError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.identity import DATA, FIRST_MODEL, PERFORMER, agree_on_parts, agree_on_performer
from dl4jlegacy.scaleout.state.code_digest import code_digest
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.tracker import StateTracker
from tests.support.scenarios import HOSTILE, Scenario
from tests.support.simulator import Work, World

__all__ = ["MixedWorld"]

CONF = Conf(run="run")
KINDS = (FIRST_MODEL, DATA, PERFORMER)
OTHERS = 0.15
"""How often a process is made for another run, by each kind."""
OTHER_JOBS = b"other jobs"
WAIT = 30.0
"""Seconds until somebody starts another process in place of one that was refused."""


def _usual(conf: Any, kernels: Any) -> str:
    """The performer that the run began with; only its code counts here."""
    return "usual"


def _other(conf: Any, kernels: Any) -> str:
    """The performer of another run."""
    return "other"


def spoiled(frame: Any) -> bytes:
    """Return a frame with other numbers."""
    result = Result.decode(frame)
    return bytes(Result(result.values, {name: array + 1 for name, array in result.arrays.items()}).encode())


class MixedWorld(World):
    """A world in which processes are made for other runs now and then.

    Attributes:
        refused: how often one was, by the kind of what was other.
    """

    def __init__(self, work: Work, router: str, seed: int, losses: bool, scenario: Scenario = HOSTILE) -> None:
        self._right, self._others = _looking_at_its_data(work), dict[str, frozenset[str]]()
        self.refused: Counter[str] = Counter()
        super().__init__(work, router, seed, losses, scenario)
        began = {FIRST_MODEL: "one", DATA: "one", "aggregator": "none", PERFORMER: code_digest(_usual)}
        agree_on_parts(StateTracker(self.store), CONF, began, {})

    @property
    def work(self) -> Work:
        """What is trained, as the process that is at work now has it."""
        at_work = self.names.get(self.machines.at, "") if hasattr(self, "names") else ""
        others = self._others.get(at_work)
        return _made_for_another(self._right, others) if others else self._right

    @work.setter
    def work(self, work: Work) -> None:
        """Keep what is right: the world is made with it."""

    def master(self, name: str) -> Iterator[float]:
        """Be a master, once one that the run takes is started."""
        yield from self._until_taken(name, KINDS, self._agree_as_master)
        yield from super().master(name)

    def worker(self, name: str) -> Iterator[float]:
        """Be a worker, once one that the run takes is started."""
        yield from self._until_taken(name, (PERFORMER,), self._agree_as_worker)
        yield from super().worker(name)

    def _until_taken(
        self, name: str, kinds: tuple[str, ...], agree: Callable[[StateTracker, frozenset[str]], None]
    ) -> Iterator[float]:
        while True:
            others = frozenset(kind for kind in kinds if self.rng.random() < OTHERS)
            operations = self.store.operations
            try:
                agree(StateTracker(self.store), others)
                self._others[name] = others
                return
            except (VersionError, CheckpointError):
                self.refused.update(others)
            finally:
                self.store.operations = operations  # all of it is one step
            yield self.time + WAIT

    def _agree_as_master(self, tracker: StateTracker, others: frozenset[str]) -> None:
        ours = {kind: "other" if kind in others else "one" for kind in (FIRST_MODEL, DATA)}
        performer = _other if PERFORMER in others else _usual
        agree_on_parts(tracker, CONF, {**ours, "aggregator": "none", PERFORMER: code_digest(performer)}, {})

    def _agree_as_worker(self, tracker: StateTracker, others: frozenset[str]) -> None:
        agree_on_performer(tracker, CONF, _other if others else _usual)


def _made_for_another(work: Work, others: frozenset[str]) -> Work:
    """Return a run's work as a process has it of which these kinds are other."""

    def first_model() -> Any:
        return spoiled(work.first_model())

    def perform(*given: Any) -> Any:
        return _spoiled_work(work.perform(*given))

    changed: dict[str, Any] = {FIRST_MODEL: ("first_model", first_model), DATA: ("load", lambda slot: OTHER_JOBS)}
    changed[PERFORMER] = ("perform", perform)
    return dataclasses.replace(work, **dict(changed[kind] for kind in others))


def _looking_at_its_data(work: Work) -> Work:
    """Return a run's work that comes to something else with other jobs' data, though it remembers what it came to."""

    def perform(slot: Any, version: int, model: Any, data: Any, *more: Any) -> Any:
        if bytes(data) != OTHER_JOBS:
            return work.perform(slot, version, model, data, *more)
        return _spoiled_work(work.perform(slot, version, model, work.load(slot), *more))

    return dataclasses.replace(work, perform=perform, max_keys=work.max_keys + 2)  # with what the run is made of


def _spoiled_work(done: Any) -> Any:
    return done._replace(update=spoiled(done.update)) if isinstance(done, protocol.Performed) else spoiled(done)
