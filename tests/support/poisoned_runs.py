"""Runs of ``simulator`` in which jobs kill their workers, or workers are killed at random and no job is to blame.

    python -m tests.support.poisoned_runs [schedules] [first seed] [--router=NAME] [--scenario=NAME]

It is known of most processes that they died, some time later; others are lost with their machines. When a job is
accused, somebody mends it and resumes the run, which must end as if nothing had been.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import re
import sys
import time
from collections.abc import Iterator

from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.state.records import POISON, Failure, Head, covered
from tests.support import simulator
from tests.support.scenarios import HOSTILE, Scenario
from tests.support.simulator import LEASE, WORKERS, DiedError, Work, World

__all__ = ["SCENARIOS", "PoisonedWorld", "simulate"]

NOTICED = int(LEASE / 4)
"""Within so much time it is known that a process has died, if ever."""
LOST_MACHINES = 0.2
"""Of so many processes that died nobody knows more than that they are silent."""

_CALM = dataclasses.replace(HOSTILE, is_resumed=True, hostility=0.25)
SCENARIOS = {
    "one-poison-job": (1, False, _CALM),
    "two-poison-jobs": (2, False, _CALM),
    "poison-and-kills": (1, False, dataclasses.replace(_CALM, hostility=1.0)),
    "one-set-aside": (1, True, _CALM),
    "two-set-aside": (2, True, _CALM),
    "some-kills": (0, False, dataclasses.replace(_CALM, hostility=1.0)),
    "many-kills": (0, False, dataclasses.replace(_CALM, hostility=4.0, losses=0.25, replay=200.0)),
    "long-jobs": (0, True, dataclasses.replace(_CALM, hostility=1.0, batches=40, replay=200.0)),
}
"""How many jobs are poison, whether they are set aside, and what happens besides: how often somebody kills a process,
and how long jobs are. Many kills are not many losses: at four times the losses the grid's only member is started anew
every 1,250 steps. With them, and with long jobs, logs are as long as in ``SHORT_LOGS``, or nobody comes to the end of a
log of three rounds before it is lost."""


def poisoned(count: int, sets_aside: bool) -> type[World]:
    """Return a world with so many poison jobs, which are set aside or end the run."""
    return type("Poisoned", (PoisonedWorld,), {"poison_jobs": count, "sets_poison_aside": sets_aside})


class PoisonedWorld(World):
    """A world in which it is known of processes that they died, and some jobs kill theirs."""

    poison_jobs = 0

    def __init__(self, work: Work, router: str, seed: int, losses: bool, scenario: Scenario = HOSTILE) -> None:
        super().__init__(work, router, seed, losses, scenario)
        draw = random.Random(f"poison of {seed}")
        second_half = range(work.plan.total_slots // 2, work.plan.total_slots)
        self.poison = {work.plan.at(number) for number in draw.sample(second_half, self.poison_jobs)}
        self.planned = set(self.poison)
        self.accused: list[tuple[int, int]] = []
        self.died_of_poison = 0
        self._draw = draw
        self._known_at: dict[str, float] = {}
        """When it is known that a process has died."""

    def start(self, role: str) -> Iterator[float]:
        if role in WORKERS and role in self.names:
            is_lost = self._draw.random() < LOST_MACHINES
            self._known_at[self.names[role]] = float("inf") if is_lost else self.time + self._draw.randrange(NOTICED)
        return super().start(role)

    def is_gone(self, worker: str) -> bool:
        return super().is_gone(worker) or worker in self._known_at

    def death_of(self, worker: str) -> str:
        return "killed" if self._known_at.get(worker, float("inf")) <= self.time else ""

    def answer(self, name: str, event: protocol.Perform) -> object:
        if event.leased is None and event.plan[:2] in self.poison:
            self.died_of_poison += 1
            raise DiedError
        return super().answer(name, event)

    def look_at_failure(self, head: Head) -> None:
        """Mend the job that is accused; nothing else may have ended the run."""
        assert head.failure is not None and head.failure.code == POISON, f"seed {self.seed}: {head.failure}"
        self._accuse(head.failure)

    def note_set_aside(self, slot: tuple[int, int], failure: Failure) -> None:
        self._accuse(failure)

    def _accuse(self, failure: Failure) -> None:
        found = re.search(r"round (\d+), slot (\d+) ", failure.message)
        assert found is not None, f"seed {self.seed}: {failure.message}"
        job = int(found[1]), int(found[2])
        assert job in self.planned, f"seed {self.seed}: {job} is accused, which is innocent: {failure.message}"
        self.accused += [job] if job in self.poison else []
        self.poison.discard(job)


def simulate(
    work: Work, count: int, first: int, scenario: str, router: str = "iterative-reduce"
) -> list[PoisonedWorld]:
    """Run schedules; every poison job must be accused, and no other, and each run end like the serial one."""
    jobs, sets_aside, hostile = SCENARIOS[scenario]
    worlds: list[PoisonedWorld] = []
    for world in simulator.simulate(work, count, first, router, hostile, poisoned(jobs, sets_aside)):
        assert isinstance(world, PoisonedWorld)
        assert not world.poison, f"seed {world.seed}: {world.poison} was never accused"
        assert sorted(world.accused) == sorted(world.planned), f"seed {world.seed}: accused {world.accused}"
        assert not (sets_aside and world.resumed), f"seed {world.seed}: the run has ended, to be resumed"
        if sets_aside and not world.losses and world.result is not None:
            aside = world.result[0].jobs_set_aside
            assert all(covered(aside, work.plan.number(*job)) for job in world.planned), f"seed {world.seed}: {aside}"
        worlds.append(world)
    return worlds


if __name__ == "__main__":
    from tests.scaleout.protocol.test_protocol import network_work

    logging.disable(logging.WARNING)
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    schedules, first_seed = (int(a) for a in (arguments + ["100", "1"][len(arguments) :])[:2])
    flags = dict(a.removeprefix("--").split("=") for a in sys.argv[1:] if a.startswith("--"))
    name, happens = flags.get("router", "iterative-reduce"), flags.get("scenario", "one-poison-job")
    began = time.monotonic()
    seen = simulate(network_work(), schedules, first_seed, happens, name)
    died = [world.died_of_poison / max(1, len(world.planned)) for world in seen]
    kills = sum(world.born for world in seen)
    accused = sum(len(world.accused) for world in seen)
    print(
        f"{schedules} schedules of {happens} from seed {first_seed}, router {name}: {accused} jobs accused, all "
        f"of them rightly, after {sum(died) / len(died):.1f} workers each ({max(died):.0f} at most); "
        f"{kills} processes in all; {time.monotonic() - began:.0f} s"
    )
