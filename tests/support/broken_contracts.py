"""Schedules of the simulator with a router or an aggregator that breaks its contract at a random moment.

Whatever is killed, frozen or lost meanwhile: the run ends as failed, by the name of the method, whoever leads it then;
and until then each slot is folded once at most, in a head that everybody can read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from dl4jlegacy.errors import ContractError
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.records import HEAD, Head, decode_record
from dl4jlegacy.scaleout.strategies import HogWildWorkRouter
from tests.support import simulator

__all__ = ["BREAKS", "run_broken"]


class _Breaks(HogWildWorkRouter):
    """Keeps its contract until so many slots are folded; then each of its answers is wrong in one way."""

    def __init__(self, how: str, after: int) -> None:
        super().__init__()
        object.__setattr__(self, "how", how)
        object.__setattr__(self, "after", after)

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        opened = super().open_slots(plan, head)
        folded = sum(last - first for first, last in head.folded)
        if folded < self.after:  # type: ignore[attr-defined]
            return opened
        return {"again": [0, *opened], "left out": opened[1:], "twice": [*opened, *opened]}.get(self.how, opened)  # type: ignore[attr-defined]

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        ready = super().send_work(opened, done)
        is_late = bool(opened) and opened[0] >= self.after  # type: ignore[attr-defined]
        return ready * 2 if self.how == "folds twice" and is_late else ready  # type: ignore[attr-defined]


class _Scores:
    """An aggregation whose score is a word, or NaN, from some version on."""

    def __init__(self, usual: Any, score: Any, after: int) -> None:
        self._usual, self._score, self._after = usual, score, after

    def begin(self, model: Any, *, version: int, examples: Sequence[int]) -> Any:
        begun, outer = self._usual.begin(model, version=version, examples=examples), self

        class Sum:
            def add(self, updates: Sequence[Any]) -> None:
                begun.add(updates)

            def finish(self, *, ends_phase: bool) -> Any:
                frame, score = begun.finish(ends_phase=ends_phase)
                return frame, score if version < outer._after else outer._score

        return Sum()


BREAKS = ("again", "left out", "twice", "folds twice", "good", float("nan"))
"""What a part does wrong, or the score that it gives."""


def run_broken(work: simulator.Work, seed: int, how: str | float) -> simulator.World:
    """Run a schedule with a plugin that breaks its contract; return the world once a head has the run's failure."""
    after = 1 + seed % 7
    if how in ("again", "left out", "twice", "folds twice"):
        world = simulator.World(work, "hogwild", seed, losses=seed % 2 == 1)
        world.router = _Breaks(str(how), after)
    else:
        usual = work.aggregator
        broken = dataclasses.replace(work, aggregator=lambda name: _Scores(usual(name), how, after))
        world = simulator.World(broken, "hogwild", seed, losses=seed % 2 == 1)
    world.scenario = dataclasses.replace(world.scenario, is_resumed=False)
    with world.machines.shown():
        _until_it_fails(world)
    return world


def _until_it_fails(world: simulator.World) -> None:
    rng, roles, seed = world.rng, simulator.MASTERS + simulator.WORKERS, world.seed
    alive = {role: world.start(role) for role in roles}
    for _ in range(simulator.STEP_LIMIT):
        world.time += 1.0
        role = rng.choice(roles)
        world.machines.tick(world.time, role)
        if rng.random() < simulator.KILLS:
            alive[role] = world.start(role)
            continue
        if world.losses and rng.random() < simulator.LOSSES:
            world.store.lose(rng)
        try:
            next(alive[role])
        except (StopIteration, ContractError):  # a worker that finds the breach leaves; somebody starts it anew
            if role in simulator.WORKERS:
                alive[role] = world.start(role)
        if (raw := world.store.now.get(HEAD)) is None:
            continue
        head = decode_record(raw, Head)  # everybody can read it
        plan = world.work.plan
        folded = [number for first, last in head.folded for number in range(first, last)]
        assert head.batches == sum(map(plan.batches_of, folded)), f"seed {seed}: a slot was folded twice: {head}"
        assert head.status != "done", f"seed {seed}: the run has ended as if nothing were wrong"
        if head.status == "failed":
            return
    raise AssertionError(f"seed {seed}: the run neither ended nor failed")
