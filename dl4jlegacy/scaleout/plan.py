"""The plan of a run: which batches belong to slot s of round r, a pure function of the ``Conf`` and the data's size.

Nothing in it is decided at run time: masters, workers, a resumed run and the tests all compute the same plan. A *round*
has up to ``jobs_per_round`` slots, and a slot has up to ``averaging_frequency`` consecutive batches of one epoch. The
last round of an epoch may be shorter. Every slot has a *number*, counted over all rounds; the head records the numbers
of the slots that were folded into the model.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import msgspec

from dl4jlegacy.errors import ConfError

__all__ = ["Phase", "Plan", "SlotPlan"]


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive epochs of one kind of work: ``"pretrain"`` of one layer, ``"finetune"``, or a caller's own kind."""

    kind: str = "finetune"
    layer: int = -1
    epochs: int = 1


class SlotPlan(NamedTuple):
    """What one slot does: batches ``first`` to ``last`` (exclusive) of ``epoch``, in ``phase`` (an index)."""

    round: int
    slot: int
    phase: int
    epoch: int
    first: int
    last: int
    iteration: int


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The fixed plan of a run.

    ``batches`` and ``examples`` are those of one epoch; ``batch_size`` is the size of a full batch (the last batch of
    an epoch may be smaller). Epochs are numbered over the whole run, so that every phase shuffles differently.
    """

    phases: tuple[Phase, ...]
    batches: int
    examples: int
    batch_size: int
    jobs_per_round: int
    averaging_frequency: int = 1

    def __post_init__(self) -> None:
        for name in ("batches", "examples", "batch_size", "jobs_per_round", "averaging_frequency"):
            if getattr(self, name) < 1:
                raise ConfError(f"{name} is {getattr(self, name)}; a run needs at least 1")
        if not any(phase.epochs > 0 for phase in self.phases):
            raise ConfError("the run has no epoch in any phase; set epochs (or pretrain_epochs) to at least 1")

    @cached_property
    def rounds_per_epoch(self) -> int:
        """Rounds that one epoch takes."""
        return -(-self.batches // (self.jobs_per_round * self.averaging_frequency))

    @cached_property
    def slots_per_epoch(self) -> int:
        """Slots that one epoch takes."""
        return (self.rounds_per_epoch - 1) * self.jobs_per_round + len(self._last_round)

    @cached_property
    def _last_round(self) -> tuple[tuple[int, int], ...]:
        """The batch ranges of an epoch's last round: the remaining batches, spread evenly over the slots."""
        start = (self.rounds_per_epoch - 1) * self.jobs_per_round * self.averaging_frequency
        left = self.batches - start
        slots = min(left, self.jobs_per_round)
        bounds = [start + left * i // slots for i in range(slots + 1)]
        return tuple(pairwise(bounds))

    @cached_property
    def _first_epochs(self) -> tuple[int, ...]:
        """The first epoch of every phase, followed by the total number of epochs."""
        firsts = [0]
        for phase in self.phases:
            firsts.append(firsts[-1] + phase.epochs)
        return tuple(firsts)

    @property
    def total_epochs(self) -> int:
        """Epochs of all phases."""
        return self._first_epochs[-1]

    @property
    def total_rounds(self) -> int:
        """Rounds of the whole run."""
        return self.total_epochs * self.rounds_per_epoch

    @property
    def total_slots(self) -> int:
        """Slots (jobs) of the whole run."""
        return self.total_epochs * self.slots_per_epoch

    @property
    def total_batches(self) -> int:
        """Batches of the whole run."""
        return self.total_epochs * self.batches

    @property
    def total_examples(self) -> int:
        """Examples of the whole run, every epoch counted."""
        return self.total_epochs * self.examples

    def slots(self, round_: int) -> int:
        """Return the number of slots of a round."""
        last = round_ % self.rounds_per_epoch == self.rounds_per_epoch - 1
        return len(self._last_round) if last else self.jobs_per_round

    def slot(self, round_: int, slot: int) -> SlotPlan:
        """Return what a slot does; raises ``ConfError`` if the plan has no such slot."""
        if not (0 <= round_ < self.total_rounds and 0 <= slot < self.slots(round_)):
            raise ConfError(f"the plan has no slot {slot} in round {round_} (rounds: {self.total_rounds})")
        epoch, inside = divmod(round_, self.rounds_per_epoch)
        if inside == self.rounds_per_epoch - 1:
            first, last = self._last_round[slot]
        else:
            first = (inside * self.jobs_per_round + slot) * self.averaging_frequency
            last = first + self.averaging_frequency
        phase = self.phase_of(round_)
        done = round_ - self._first_epochs[phase] * self.rounds_per_epoch
        return SlotPlan(
            round=round_,
            slot=slot,
            phase=phase,
            epoch=epoch,
            first=first,
            last=last,
            iteration=done * self.averaging_frequency,
        )

    def phase_of(self, round_: int) -> int:
        """Return the index of the phase that a round belongs to."""
        epoch = round_ // self.rounds_per_epoch
        return next(i for i, first in enumerate(self._first_epochs[1:]) if epoch < first)

    def number(self, round_: int, slot: int) -> int:
        """Return the number of a slot, counted over the run."""
        epoch, inside = divmod(round_, self.rounds_per_epoch)
        return epoch * self.slots_per_epoch + inside * self.jobs_per_round + slot

    def at(self, number: int) -> tuple[int, int]:
        """Return (round, slot) of a slot's number; the inverse of ``number``."""
        epoch, inside = divmod(number, self.slots_per_epoch)
        round_in_epoch = min(inside // self.jobs_per_round, self.rounds_per_epoch - 1)
        return epoch * self.rounds_per_epoch + round_in_epoch, inside - round_in_epoch * self.jobs_per_round

    def batches_of(self, number: int) -> int:
        """Return the number of batches of a slot."""
        plan = self.slot(*self.at(number))
        return plan.last - plan.first

    def examples_of(self, number: int) -> int:
        """Return the number of examples of a slot."""
        plan = self.slot(*self.at(number))
        full = (plan.last - plan.first) * self.batch_size
        return full if plan.last < self.batches else self.examples - plan.first * self.batch_size
