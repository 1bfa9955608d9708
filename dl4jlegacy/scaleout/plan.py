"""The plan of a run: which batches belong to slot s of round r, a pure function of the ``Conf`` and the data's size.

Masters, workers, a resumed run and the tests all compute the same plan; nothing in it is decided at run time. A *round*
has up to ``jobs_per_round`` slots, and a slot has up to ``averaging_frequency`` consecutive batches of one epoch. The
last round of an epoch may be shorter, and then counts as fewer updates. Every slot has a *number*, counted over all
rounds; the head records the numbers of the slots that were folded into the model.

With a *warm start* the first rounds of a phase have fewer slots: sparse updates and means of many updates are most
harmful while a network has learned nothing (Strom 2015). Later rounds have all slots.

A *validation round* evaluates the model on the validation data, which are divided among its slots. It has a number and
slots like any other round, but trains nothing: it adds nothing to the batches and examples of the run.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

import msgspec

from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.errors import ConfError

__all__ = ["PRETRAIN", "VALIDATE", "Phase", "Plan", "SlotPlan", "Validation"]

PRETRAIN, VALIDATE = "pretrain", "validate"
_KEPT = 1 << 13
_MOST_VALIDATIONS = 1_000_000
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Recent(dict[_Key, _Value]):
    """The latest results of a pure function, by its argument. For any thread."""

    def __init__(self, function: Callable[[_Key], _Value]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: _Key) -> _Value:
        if len(self) >= _KEPT:
            self.clear()
        value = self[key] = self._function(key)
        return value


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive epochs of one kind of work: ``"pretrain"`` of one layer, ``"finetune"``, or a caller's own kind."""

    kind: str = "finetune"
    layer: int = -1
    epochs: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str):
            raise ConfError(f"Phase.kind is {self.kind!r}; it must be a text")
        for name in ("layer", "epochs"):
            _whole(self, name)


def _whole(owner: msgspec.Struct, name: str) -> int:
    """Return a field; raises ``ConfError`` if it is not a whole number."""
    value = getattr(owner, name)
    if type(value) is not int:
        raise ConfError(f"{type(owner).__name__}.{name} is {value!r}; it must be a whole number")
    return value


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The validation data of a run, and when the model is evaluated on them.

    Attributes:
        batches, examples, batch_size: of the data.
        every: rounds of training between two validations, without pretraining; 0: an epoch. The last round of training
            is always followed by a validation.
        classifies: whether the network predicts classes.
        label_scale: from the network's outputs to the units of the predicted numbers; None: they are the same.
    """

    batches: int
    examples: int
    batch_size: int
    every: int = 0
    classifies: bool = True
    label_scale: LabelScale | None = None

    def __post_init__(self) -> None:
        for name in ("batches", "examples", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfError(f"the validation data have {name} {getattr(self, name)}; a validation needs at least 1")
        if self.every < 0:
            raise ConfError(f"a validation every {self.every} rounds is none; give at least 1, or 0 for every epoch")


class SlotPlan(NamedTuple):
    """What one slot does: batches ``first`` to ``last`` (exclusive) of ``epoch``, in ``phase`` (an index).

    ``training_round`` counts rounds of training, those of earlier runs of the network too. It seeds all random numbers,
    so that validations change nothing. A slot that ``validates`` has batches of the validation data.
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


class _Epoch(msgspec.Struct, frozen=True, dict=True):
    """How the batches of an epoch are divided: ``narrow`` rounds of ``few`` slots, and then rounds of ``most`` slots.

    A slot has ``frequency`` batches. If the last round is short, its batches are divided evenly among its slots.
    """

    batches: int
    frequency: int
    most: int
    few: int = 1
    narrow: int = 0

    @cached_property
    def rounds(self) -> int:
        """Rounds of the epoch."""
        return self.narrow - (self.narrow * self.few * self.frequency - self.batches) // (self.most * self.frequency)

    @cached_property
    def slots(self) -> int:
        """Slots of the epoch."""
        return self.slots_before(self.rounds - 1) + self.slots_of(self.rounds - 1)

    @cached_property
    def updates(self) -> int:
        """Number of updates of an epoch: each round counts the batches of its longest slot."""
        last = (self.range_of(self.rounds - 1, slot) for slot in range(self.slots_of(self.rounds - 1)))
        return (self.rounds - 1) * self.frequency + max(end - first for first, end in last)

    @cached_property
    def _last_round(self) -> tuple[tuple[int, int], ...]:
        """The batch ranges of the last round; () if it is a narrow one."""
        start = self.slots_before(self.rounds - 1) * self.frequency
        slots = min(self.batches - start, self.most)
        bounds = [start + (self.batches - start) * i // slots for i in range(slots + 1)]
        return tuple(pairwise(bounds)) if self.rounds > self.narrow else ()

    def width(self, inside: int) -> int:
        """Return the number of slots of a round that is not short."""
        return self.few if inside < self.narrow else self.most

    def slots_before(self, inside: int) -> int:
        """Return the number of slots of the rounds before the ``inside``-th, counted from 0."""
        return min(inside, self.narrow) * self.few + max(0, inside - self.narrow) * self.most

    def slots_of(self, inside: int) -> int:
        """Return the number of slots of a round."""
        if inside < self.narrow:
            return self.few
        return len(self._last_round) if inside == self.rounds - 1 else self.most

    def range_of(self, inside: int, slot: int) -> tuple[int, int]:
        """Return the batches of a slot, as a half-open range."""
        if inside >= self.narrow and inside == self.rounds - 1:
            return self._last_round[slot]
        first = (self.slots_before(inside) + slot) * self.frequency
        return first, first + self.frequency

    def at(self, index: int) -> tuple[int, int]:
        """Return (round, slot) of the slot with this index in the epoch."""
        if index < self.narrow * self.few:
            return divmod(index, self.few)
        inside = min(self.narrow + (index - self.narrow * self.few) // self.most, self.rounds - 1)
        return inside, index - self.slots_before(inside)


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The fixed plan of a run.

    ``batches`` and ``examples`` are those of one epoch; ``batch_size`` is the size of a full batch (the last batch of
    an epoch may be smaller). Epochs are numbered over the whole run, so that every phase shuffles differently.

    ``first_epoch`` and ``first_iteration`` are the epochs and updates of earlier runs of the network. Epochs,
    iterations and random numbers of this run continue after these. Pretraining counts its updates from 0.

    The rounds of the first ``warm_start`` (0 to 1) of the first epoch of each phase have ``warm_start_jobs`` slots, and
    all others ``jobs_per_round``.
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
    warm_start: float = 0.0
    warm_start_jobs: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.phases, tuple) or not all(isinstance(phase, Phase) for phase in self.phases):
            raise ConfError(f"Plan.phases is {self.phases!r}; it must be a tuple of Phases, as (Phase(epochs=2),)")
        for name in ("batches", "examples", "batch_size", "jobs_per_round", "averaging_frequency"):
            if _whole(self, name) < 1:
                raise ConfError(f"{name} is {getattr(self, name)}; a run needs at least 1")
        for name in ("first_epoch", "first_iteration"):
            if _whole(self, name) < 0:
                raise ConfError(f"{name} is {getattr(self, name)}; it must not be negative")
        if not 0 <= self.warm_start <= 1:
            raise ConfError(f"warm_start is {self.warm_start}; it must be a fraction of an epoch, from 0 to 1")
        if self.warm_start_jobs < 1 or (self.warm_start and self.warm_start_jobs > self.jobs_per_round):
            raise ConfError(
                f"warm_start_jobs is {self.warm_start_jobs}; it must be from 1 to jobs_per_round, {self.jobs_per_round}"
            )
        if not any(phase.epochs > 0 for phase in self.phases):
            raise ConfError("the run has no epoch in any phase; set epochs (or pretrain_epochs) to at least 1")
        if self.validation is not None and not self._validated:
            raise ConfError("the run only pretrains, and what is pretrained cannot be validated; leave validation out")

    @cached_property
    def _epoch(self) -> _Epoch:
        """An epoch that is not the first one of its phase."""
        return _Epoch(self.batches, self.averaging_frequency, self.jobs_per_round)

    @cached_property
    def _first_epoch(self) -> _Epoch:
        """The first epoch of a phase."""
        few, frequency = self.warm_start_jobs, self.averaging_frequency
        if self.warm_start == 1:
            return _Epoch(self.batches, frequency, few)
        narrow = math.ceil(self.warm_start * self.batches / (few * frequency))
        return _Epoch(self.batches, frequency, self.jobs_per_round, few, min(narrow, self.batches // (few * frequency)))

    @property
    def rounds_per_epoch(self) -> int:
        """Rounds of training of an epoch, except for the first one of a phase with a warm start."""
        return self._epoch.rounds

    @property
    def has_short_rounds(self) -> bool:
        """Whether the last round of an epoch counts as fewer updates than the others."""
        return self._epoch.updates < self._epoch.rounds * self.averaging_frequency

    @cached_property
    def _first_epochs(self) -> tuple[int, ...]:
        """The first epoch of every phase, followed by the total number of epochs."""
        firsts = [0]
        for phase in self.phases:
            firsts.append(firsts[-1] + phase.epochs)
        return tuple(firsts)

    @cached_property
    def _first_rounds(self) -> tuple[int, ...]:
        """The first round of training of every phase, followed by their total number."""
        return self._firsts(self._first_epoch.rounds, self._epoch.rounds)

    @cached_property
    def _first_slots(self) -> tuple[int, ...]:
        """The first slot of training of every phase, followed by their total number."""
        return self._firsts(self._first_epoch.slots, self._epoch.slots)

    def _firsts(self, first: int, other: int) -> tuple[int, ...]:
        """Return the sum before each phase, and the total; a phase's first epoch counts ``first``, others ``other``."""
        each = [first + (phase.epochs - 1) * other if phase.epochs > 0 else 0 for phase in self.phases]
        return tuple(accumulate(each, initial=0))

    def _place(self, training_round: int) -> tuple[int, int, int]:
        """Return the phase of a round of training, the epoch in the phase, and the round in the epoch."""
        phase = bisect_right(self._first_rounds, training_round, hi=len(self.phases)) - 1
        inside, first = training_round - self._first_rounds[phase], self._first_epoch.rounds
        if inside < first:
            return phase, 0, inside
        epoch, inside = divmod(inside - first, self._epoch.rounds)
        return phase, epoch + 1, inside

    def _epoch_of(self, number: int) -> _Epoch:
        """Return the epoch with this number in its phase."""
        return self._epoch if number else self._first_epoch

    @cached_property
    def _validated(self) -> tuple[int, ...]:
        """The number of rounds of training before each validation round, in order."""
        if self.validation is None:
            return ()
        after: list[int] = []
        for phase, (start, end) in zip(self.phases, pairwise(self._first_rounds), strict=True):
            if phase.kind != PRETRAIN and phase.epochs > 0:
                begins = start + (self.validation.every or self._first_epoch.rounds)
                every = self.validation.every or self._epoch.rounds
                if (end - begins) // every > _MOST_VALIDATIONS:
                    raise ConfError(
                        f"{phase.epochs:,} epochs have {(end - begins) // every + 1:,} validations, and a run at most "
                        f"{_MOST_VALIDATIONS:,}; give fewer epochs, or a validation after more rounds"
                    )
                after += [*range(begins, end, every), end]
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
        """Rounds of the whole run, with those of validation."""
        return self._first_rounds[-1] + len(self._validated)

    @property
    def total_slots(self) -> int:
        """Slots (jobs) of the whole run."""
        return self._first_slots[-1] + len(self._validated) * self._validation_slots

    @property
    def total_batches(self) -> int:
        """Batches that the whole run trains on."""
        return self.total_epochs * self.batches

    @property
    def total_examples(self) -> int:
        """Examples that the whole run trains on, over all epochs."""
        return self.total_epochs * self.examples

    def is_validation(self, round_: int) -> bool:
        """Return whether a round evaluates the model and trains nothing."""
        index = bisect_left(self._validation_rounds, round_)
        return index < len(self._validated) and self._validation_rounds[index] == round_

    def training_round(self, round_: int) -> int:
        """Return the number of rounds of training before a round."""
        return round_ - bisect_left(self._validation_rounds, round_)

    def slots(self, round_: int) -> int:
        """Return the number of slots of a round."""
        return self._slots[round_]

    @cached_property
    def _slots(self) -> _Recent[int, int]:
        return _Recent(self._slots_of)

    def _slots_of(self, round_: int) -> int:
        if self.is_validation(round_):
            return self._validation_slots
        _, epoch, inside = self._place(self.training_round(round_))
        return self._epoch_of(epoch).slots_of(inside)

    def width(self, round_: int) -> int:
        """Return the number of slots of a round as if it were not short; for a validation, of the round before it."""
        _, epoch, inside = self._place(self.training_round(round_) - self.is_validation(round_))
        return self._epoch_of(epoch).width(inside)

    def slot(self, round_: int, slot: int) -> SlotPlan:
        """Return what a slot does; raises ``ConfError`` if the plan has no such slot."""
        return self._slot_plans[round_, slot]

    @cached_property
    def _slot_plans(self) -> _Recent[tuple[int, int], SlotPlan]:
        return _Recent(self._slot_plan)

    def _slot_plan(self, place: tuple[int, int]) -> SlotPlan:
        round_, slot = place
        if not (0 <= round_ < self.total_rounds and 0 <= slot < self.slots(round_)):
            raise ConfError(f"the plan has no slot {slot} in round {round_} (rounds: {self.total_rounds})")
        trained, validates = self.training_round(round_), self.is_validation(round_)
        phase, epoch, inside = self._place(trained - validates)
        if validates and self.validation is not None:
            first, last = (self.validation.batches * end // self._validation_slots for end in (slot, slot + 1))
        else:
            first, last = self._epoch_of(epoch).range_of(inside, slot)
        return SlotPlan(
            round=round_,
            slot=slot,
            phase=phase,
            epoch=self.first_epoch + self._first_epochs[phase] + epoch,
            first=first,
            last=last,
            iteration=self._iteration(phase, trained - self._first_rounds[phase]),
            training_round=self._rounds_before + trained,
            validates=validates,
        )

    def iteration_at(self, round_: int) -> int:
        """Return the number of updates of the network before a round, or at the end of the run.

        A round counts the batches of its longest slot, so a short one at the end of an epoch counts fewer than
        ``averaging_frequency``. Pretraining counts those of its layer.
        """
        trained = self.training_round(round_)
        phase = self._place(trained)[0]
        return self._iteration(phase, trained - self._first_rounds[phase])

    def _iteration(self, phase: int, done: int) -> int:
        """Return the number of updates of the network after so many rounds of training of a phase."""
        before = 0 if self.phases[phase].kind == PRETRAIN else self.first_iteration
        if done < self._first_epoch.rounds:
            return before + done * self.averaging_frequency
        epochs, inside = divmod(done - self._first_epoch.rounds, self._epoch.rounds)
        whole = self._first_epoch.updates + epochs * self._epoch.updates
        return before + whole + inside * self.averaging_frequency

    @cached_property
    def _rounds_before(self) -> int:
        """Rounds of training of earlier runs, if their epochs were like those of this run."""
        epochs, updates = divmod(self.first_iteration, self._epoch.updates)
        return epochs * self._epoch.rounds + -(-updates // self.averaging_frequency)

    def phase_of(self, round_: int) -> int:
        """Return the index of the phase of a round; of a validation round that of the round before it."""
        return self._place(self.training_round(round_) - self.is_validation(round_))[0]

    def work_of(self, round_: int) -> Phase:
        """Return the kind of work of a round: its phase, or a validation."""
        return Phase(kind=VALIDATE) if self.is_validation(round_) else self.phases[self.phase_of(round_)]

    def ends_phase(self, round_: int, following: int) -> bool:
        """Return whether the training after a round, which continues in ``following``, belongs to another phase."""
        following += self.is_validation(following)
        return following < self.total_rounds and self.phase_of(following) != self.phase_of(round_)

    def goes_on_in(self, round_: int) -> int | None:
        """Return the next round of training in the phase of a round; None if it is the last one."""
        following = round_ + 1 + self.is_validation(round_ + 1)
        is_last = following >= self.total_rounds or self.phase_of(following) != self.phase_of(round_)
        return None if is_last else following

    def unbroken(self, round_: int, most: int) -> int:
        """Return the last of at most ``most`` rounds of training from a round on.

        A validation, or the end of the phase, ends them earlier.
        """
        last = round_
        while last - round_ < most - 1 and self.goes_on_in(last) == last + 1:
            last += 1
        return last

    def left_in_epoch(self, round_: int) -> int:
        """Return the number of rounds of training from a round, which is counted, to the end of its epoch."""
        _, epoch, inside = self._place(self.training_round(round_))
        return self._epoch_of(epoch).rounds - inside

    def is_last_until(self, number: int, until: int, aside: Sequence[tuple[int, int]] = ()) -> bool:
        """Return whether a job is the last one of its slot up to the round ``until``.

        Short rounds have no job of some slots, and jobs that are set ``aside`` do not count (ranges of their numbers,
        as ``Head.jobs_set_aside``).
        """
        round_, slot = self.at(number)
        later = (self.number(each, slot) for each in range(round_ + 1, until + 1) if slot < self.slots(each))
        return all(any(first <= n < last for first, last in aside) for n in later)

    def epochs_before(self, round_: int) -> int:
        """Return the number of epochs before a round, without pretraining."""
        phase, epoch, _ = self._place(self.training_round(round_))
        done = self._first_epochs[phase] + epoch
        firsts = zip(self.phases, self._first_epochs, strict=False)
        return sum(min(max(0, done - first), phase.epochs) for phase, first in firsts if phase.kind != PRETRAIN)

    def number(self, round_: int, slot: int) -> int:
        """Return the number of a slot, counted over the run."""
        return self._first_numbers[round_] + slot

    @cached_property
    def _first_numbers(self) -> _Recent[int, int]:
        return _Recent(self._first_number)

    def _first_number(self, round_: int) -> int:
        before = bisect_left(self._validation_rounds, round_)
        return self._training_number(round_ - before) + before * self._validation_slots

    def _training_number(self, training_round: int) -> int:
        """Return the number of slots of the rounds of training before one."""
        phase, epoch, inside = self._place(training_round)
        before = self._first_epoch.slots + (epoch - 1) * self._epoch.slots if epoch else 0
        return self._first_slots[phase] + before + self._epoch_of(epoch).slots_before(inside)

    def at(self, number: int) -> tuple[int, int]:
        """Return (round, slot) of a slot's number; the inverse of ``number``."""
        return self._places[number]

    @cached_property
    def _places(self) -> _Recent[int, tuple[int, int]]:
        return _Recent(self._found)

    def _found(self, number: int) -> tuple[int, int]:
        before = bisect_right(self._validation_numbers, number)
        if before and (slot := number - self._validation_numbers[before - 1]) < self._validation_slots:
            return self._validation_rounds[before - 1], slot
        number -= before * self._validation_slots
        phase = bisect_right(self._first_slots, number, hi=len(self.phases)) - 1
        index, epoch, first = number - self._first_slots[phase], 0, self._first_rounds[phase] + before
        if index >= self._first_epoch.slots:
            epoch, index = divmod(index - self._first_epoch.slots, self._epoch.slots)
            first += self._first_epoch.rounds + epoch * self._epoch.rounds
            epoch += 1
        inside, slot = self._epoch_of(epoch).at(index)
        return first + inside, slot

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
