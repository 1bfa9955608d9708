"""The plan of a run: which batches belong to slot s of round r, a pure function of the ``Conf`` and the data's size.

Nothing in it is decided at run time: masters, workers, a resumed run and the tests all compute the same plan. A *round*
has up to ``jobs_per_round`` slots, and a slot has up to ``averaging_frequency`` consecutive batches of one epoch. The
last round of an epoch may be shorter. Every slot has a *number*, counted over all rounds; the head records the numbers
of the slots that were folded into the model.

A *validation round* evaluates the model on the validation data, which its slots share out. It is a round like any
other, with a number and slots of its own, but nothing is trained in it: the batches and examples of a run are those of
its training.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import msgspec

from dl4jlegacy.errors import ConfError

__all__ = ["PRETRAIN", "VALIDATE", "Phase", "Plan", "SlotPlan", "Validation"]

PRETRAIN, VALIDATE = "pretrain", "validate"


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive epochs of one kind of work: ``"pretrain"`` of one layer, ``"finetune"``, or a caller's own kind."""

    kind: str = "finetune"
    layer: int = -1
    epochs: int = 1


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The validation data of a run, and when the model is evaluated on them.

    Attributes:
        batches, examples, batch_size: of the data.
        every: after so many rounds of training, pretraining apart; 0: after every epoch. The last one is always
            followed by a validation.
        classifies: whether the network tells classes apart there, so that they are counted.
        label_scales: what the numbers that the network predicts are multiplied by to be in the units of the labels, for
            each column; (): they are.
    """

    batches: int
    examples: int
    batch_size: int
    every: int = 0
    classifies: bool = True
    label_scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("batches", "examples", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfError(f"the validation data have {name} {getattr(self, name)}; a validation needs at least 1")
        if self.every < 0:
            raise ConfError(f"a validation every {self.every} rounds is none; give at least 1, or 0 for every epoch")


class SlotPlan(NamedTuple):
    """What one slot does: batches ``first`` to ``last`` (exclusive) of ``epoch``, in ``phase`` (an index).

    ``training_round`` is the number of the round among those of training, of runs before this one too; what is random
    is seeded by it, so that a validation changes nothing. A slot that ``validates`` has batches of the validation data.
    """

    round: int
    slot: int
    phase: int
    epoch: int
    first: int
    last: int
    iteration: int
    training_round: int
    validates: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The fixed plan of a run.

    ``batches`` and ``examples`` are those of one epoch; ``batch_size`` is the size of a full batch (the last batch of
    an epoch may be smaller). Epochs are numbered over the whole run, so that every phase shuffles differently.

    A run of a network that was trained before goes on with ``first_epoch`` passes over the data and ``first_iteration``
    updates behind it: its slots have the epochs and the iterations after these, and what is random goes on likewise.
    Pretraining counts its updates from 0.
    """

    phases: tuple[Phase, ...]
    batches: int
    examples: int
    batch_size: int
    jobs_per_round: int
    averaging_frequency: int = 1
    validation: Validation | None = None
    first_epoch: int = 0
    first_iteration: int = 0

    def __post_init__(self) -> None:
        for name in ("batches", "examples", "batch_size", "jobs_per_round", "averaging_frequency"):
            if getattr(self, name) < 1:
                raise ConfError(f"{name} is {getattr(self, name)}; a run needs at least 1")
        for name in ("first_epoch", "first_iteration"):
            if getattr(self, name) < 0:
                raise ConfError(f"{name} is {getattr(self, name)}; it must not be negative")
        if not any(phase.epochs > 0 for phase in self.phases):
            raise ConfError("the run has no epoch in any phase; set epochs (or pretrain_epochs) to at least 1")
        if self.validation is not None and not self._validated:
            raise ConfError("the run only pretrains, and what is pretrained cannot be validated; leave validation out")

    @cached_property
    def rounds_per_epoch(self) -> int:
        """Rounds of training that one epoch takes."""
        return -(-self.batches // (self.jobs_per_round * self.averaging_frequency))

    @cached_property
    def slots_per_epoch(self) -> int:
        """Slots of training that one epoch takes."""
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

    @cached_property
    def _validated(self) -> tuple[int, ...]:
        """After how many rounds of training each validation round comes, in order."""
        if self.validation is None:
            return ()
        after: list[int] = []
        for phase, epoch in zip(self.phases, self._first_epochs, strict=False):
            if phase.kind != PRETRAIN and phase.epochs > 0:
                start, rounds = epoch * self.rounds_per_epoch, phase.epochs * self.rounds_per_epoch
                every = self.validation.every or self.rounds_per_epoch
                after += [*range(start + every, start + rounds, every), start + rounds]
        return tuple(after)

    @cached_property
    def _validation_slots(self) -> int:
        """Slots of a validation round."""
        return 0 if self.validation is None else min(self.jobs_per_round, self.validation.batches)

    @cached_property
    def _validation_rounds(self) -> tuple[int, ...]:
        return tuple(trained + index for index, trained in enumerate(self._validated))

    @cached_property
    def _validation_numbers(self) -> tuple[int, ...]:
        """The number of the first slot of each validation round."""
        firsts = enumerate(map(self._training_number, self._validated))
        return tuple(first + index * self._validation_slots for index, first in firsts)

    @property
    def total_epochs(self) -> int:
        """Epochs of all phases."""
        return self._first_epochs[-1]

    @property
    def total_rounds(self) -> int:
        """Rounds of the whole run, those of validation among them."""
        return self.total_epochs * self.rounds_per_epoch + len(self._validated)

    @property
    def total_slots(self) -> int:
        """Slots (jobs) of the whole run."""
        return self.total_epochs * self.slots_per_epoch + len(self._validated) * self._validation_slots

    @property
    def total_batches(self) -> int:
        """Batches that the whole run trains on."""
        return self.total_epochs * self.batches

    @property
    def total_examples(self) -> int:
        """Examples that the whole run trains on, every epoch counted."""
        return self.total_epochs * self.examples

    def is_validation(self, round_: int) -> bool:
        """Return whether a round evaluates the model, and trains nothing."""
        index = bisect_left(self._validation_rounds, round_)
        return index < len(self._validated) and self._validation_rounds[index] == round_

    def training_round(self, round_: int) -> int:
        """Return how many rounds of training come before a round."""
        return round_ - bisect_left(self._validation_rounds, round_)

    def slots(self, round_: int) -> int:
        """Return the number of slots of a round."""
        if self.is_validation(round_):
            return self._validation_slots
        last = self.training_round(round_) % self.rounds_per_epoch == self.rounds_per_epoch - 1
        return len(self._last_round) if last else self.jobs_per_round

    def slot(self, round_: int, slot: int) -> SlotPlan:
        """Return what a slot does; raises ``ConfError`` if the plan has no such slot."""
        if not (0 <= round_ < self.total_rounds and 0 <= slot < self.slots(round_)):
            raise ConfError(f"the plan has no slot {slot} in round {round_} (rounds: {self.total_rounds})")
        trained, phase, validates = self.training_round(round_), self.phase_of(round_), self.is_validation(round_)
        epoch, inside = divmod(trained - validates, self.rounds_per_epoch)
        if validates and self.validation is not None:
            first, last = (self.validation.batches * end // self._validation_slots for end in (slot, slot + 1))
        elif inside == self.rounds_per_epoch - 1:
            first, last = self._last_round[slot]
        else:
            first = (inside * self.jobs_per_round + slot) * self.averaging_frequency
            last = first + self.averaging_frequency
        done = trained - self._first_epochs[phase] * self.rounds_per_epoch
        before = 0 if self.phases[phase].kind == PRETRAIN else self.first_iteration
        return SlotPlan(
            round=round_,
            slot=slot,
            phase=phase,
            epoch=self.first_epoch + epoch,
            first=first,
            last=last,
            iteration=before + done * self.averaging_frequency,
            training_round=self.first_iteration // self.averaging_frequency + trained,
            validates=validates,
        )

    def phase_of(self, round_: int) -> int:
        """Return the index of the phase that a round belongs to; a validation round to that of the round before it."""
        epoch = (self.training_round(round_) - self.is_validation(round_)) // self.rounds_per_epoch
        return next(i for i, first in enumerate(self._first_epochs[1:]) if epoch < first)

    def work_of(self, round_: int) -> Phase:
        """Return what is done in a round: that of its phase, or a validation."""
        return Phase(kind=VALIDATE) if self.is_validation(round_) else self.phases[self.phase_of(round_)]

    def ends_phase(self, round_: int, following: int) -> bool:
        """Return whether the training after a round, which goes on in ``following``, belongs to another phase."""
        following += self.is_validation(following)
        return following < self.total_rounds and self.phase_of(following) != self.phase_of(round_)

    def goes_on_in(self, round_: int) -> int | None:
        """Return the round of training that follows a round in its phase; None if it is the last one of it."""
        following = round_ + 1 + self.is_validation(round_ + 1)
        is_last = following >= self.total_rounds or self.phase_of(following) != self.phase_of(round_)
        return None if is_last else following

    def unbroken(self, round_: int, most: int) -> int:
        """Return the last of at most ``most`` rounds of training from one on, up to a validation or a phase's end."""
        last = round_
        while last - round_ < most - 1 and self.goes_on_in(last) == last + 1:
            last += 1
        return last

    def left_in_epoch(self, round_: int) -> int:
        """Return how many rounds of training its epoch has from a round on, that one among them."""
        return self.rounds_per_epoch - self.training_round(round_) % self.rounds_per_epoch

    def is_last_until(self, number: int, until: int) -> bool:
        """Return whether a job is the last one of its slot up to the round ``until``; short rounds leave slots out."""
        round_, slot = self.at(number)
        return not any(slot < self.slots(later) for later in range(round_ + 1, until + 1))

    def epochs_before(self, round_: int) -> int:
        """Return how many epochs, pretraining apart, are trained on when a round begins."""
        done = self.training_round(round_) // self.rounds_per_epoch
        firsts = zip(self.phases, self._first_epochs, strict=False)
        return sum(min(max(0, done - first), phase.epochs) for phase, first in firsts if phase.kind != PRETRAIN)

    def number(self, round_: int, slot: int) -> int:
        """Return the number of a slot, counted over the run."""
        before = bisect_left(self._validation_rounds, round_)
        return self._training_number(round_ - before) + before * self._validation_slots + slot

    def _training_number(self, training_round: int) -> int:
        """Return how many slots the rounds of training before one have."""
        epoch, inside = divmod(training_round, self.rounds_per_epoch)
        return epoch * self.slots_per_epoch + inside * self.jobs_per_round

    def at(self, number: int) -> tuple[int, int]:
        """Return (round, slot) of a slot's number; the inverse of ``number``."""
        before = bisect_right(self._validation_numbers, number)
        if before and (slot := number - self._validation_numbers[before - 1]) < self._validation_slots:
            return self._validation_rounds[before - 1], slot
        epoch, inside = divmod(number - before * self._validation_slots, self.slots_per_epoch)
        round_in_epoch = min(inside // self.jobs_per_round, self.rounds_per_epoch - 1)
        round_ = epoch * self.rounds_per_epoch + round_in_epoch + before
        return round_, inside - round_in_epoch * self.jobs_per_round

    def batches_of(self, number: int) -> int:
        """Return the number of batches that a slot trains on."""
        plan = self.slot(*self.at(number))
        return 0 if plan.validates else plan.last - plan.first

    def examples_of(self, number: int) -> int:
        """Return the number of examples that a slot trains on."""
        plan = self.slot(*self.at(number))
        if plan.validates:
            return 0
        full = (plan.last - plan.first) * self.batch_size
        return full if plan.last < self.batches else self.examples - plan.first * self.batch_size
