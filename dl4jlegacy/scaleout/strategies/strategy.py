"""What a strategy is: which slots are open, which finished ones are folded when, and how they are folded.

A strategy is a frozen value; all of its methods are pure functions. Masters and workers make it from the same ``Conf``,
and each finds out for itself from plan and head which jobs there are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from itertools import takewhile
from typing import Protocol, runtime_checkable

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.aggregate import JobAggregator
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Head, covered
from dl4jlegacy.scaleout.state.store import Buffer

__all__ = [
    "LoggedStrategy",
    "SlotStrategy",
    "Strategy",
    "WholeRounds",
    "WorkRouter",
    "all_once_done",
    "check_bound",
    "done_in_front",
    "open_chains",
    "open_in_phase",
    "open_round",
]


@runtime_checkable
class WorkRouter(Protocol):
    """Which jobs there are, and when they are folded. Its methods are called by masters and workers.

    Legacy: ``WorkRouter``, whose ``sendWork`` swallowed every error.
    """

    @property
    def name(self) -> str:
        """What a ``Conf`` calls it."""
        ...

    @property
    def binds_model(self) -> bool:
        """Whether a job must start from exactly the head's model version."""
        ...

    @property
    def shares(self) -> str:
        """What an update contains: the worker's ``"params"``, or the ``"delta"`` from the version it started with."""
        ...

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return the numbers of the slots that may be worked on, in order.

        At least the first that is not folded, of one phase only, and of a validation round all or none
        (``plan.phase_of``, ``plan.is_validation``).
        """
        ...

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the done slots to fold now, in slot order; empty if none can be folded yet.

        If all of ``opened`` are done, there is one at least.
        """
        ...

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the done slots that may be folded while others are not done yet, in slot order.

        Requires that ``send_work`` will finally return all of ``opened``, beginning with these.
        """
        ...


@runtime_checkable
class Strategy(WorkRouter, Protocol):
    """A ``WorkRouter`` that also knows how updates are folded."""

    def aggregator(self, kernels: Kernels, pool: Executor | None = None) -> JobAggregator:
        """Return what folds the updates of a run: with ``kernels``, on the master's thread and those of ``pool``."""
        ...


@runtime_checkable
class LoggedStrategy(Strategy, Protocol):
    """A ``Strategy`` whose versions can follow from the updates of their rounds, so that few are written as a whole."""

    @property
    def state_every(self) -> int:
        """After how many rounds at most a version is written as a whole, with the states of all slots."""
        ...

    @property
    def is_logged(self) -> bool:
        """Whether versions in between are not written. Jobs must be bound to a model then."""
        ...

    def check(self, update: Buffer, model: Buffer) -> None:
        """Raise ``WireError`` if an update does not fit the model that it would be folded into."""
        ...


@runtime_checkable
class SlotStrategy(LoggedStrategy, Protocol):
    """A ``Strategy`` whose slots remember something from one job to the next, within a phase.

    A job is a pure function of the model, the state that its slot's last job has left, and its batches. The update and
    the state after it are committed together, so who does a slot's jobs makes no difference. ``open_slots`` has at most
    one job of each slot, the first that is not folded.

    Between versions that are written as a whole workers have the states in memory. Of a slot whose state is lost, the
    jobs since then are done again: they come to the same. If it is not logged, states are saved with every job,
    whatever ``state_every`` says.
    """

    def replica(self, model: Result, state: Result | None) -> Result:
        """Return what the worker begins to train from: ``params`` and ``updater_state``, arrays in host memory.

        Args:
            model: the present version.
            state: of the slot; None at its first job of a phase.
        """
        ...

    def settle(self, model: Result, state: Result | None, result: Result, kernels: Kernels) -> tuple[Result, Result]:
        """Return the update of a job, and the state that it leaves.

        Args:
            model, state: those that the job began with; their arrays are not changed.
            result: what the worker's performer made of them: ``shares`` and the updater state.
            kernels: for host memory; all of them give the same bits.
        """
        ...


def open_round(plan: Plan, head: Head) -> list[int]:
    """Return all slots of the head's round."""
    if head.round >= plan.total_rounds:
        return []
    first = plan.number(head.round, 0)
    return list(range(first, first + plan.slots(head.round)))


def all_once_done(opened: Sequence[int], done: Collection[int]) -> list[int]:
    """Return all open slots once all of them are done; until then none."""
    return list(opened) if all(number in done for number in opened) else []


def done_in_front(opened: Sequence[int], done: Collection[int]) -> list[int]:
    """Return the slots before the first one that is not done."""
    return list(takewhile(lambda number: number in done, opened))


class WholeRounds:
    """What strategies have in common that fold all slots of a round together."""

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return all slots of the head's round."""
        return open_round(plan, head)

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return all open slots once all of them are done."""
        return all_once_done(opened, done)

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the slots before the first one that is not done."""
        return done_in_front(opened, done)


def open_in_phase(plan: Plan, head: Head, most: int) -> list[int]:
    """Return the first slots that are not folded, ``most`` of them, up to the end of the phase or the next validation.

    In a validation round these are all of its slots, and in a warm start two rounds' worth at most.
    """
    if head.round >= plan.total_rounds:
        return []
    if plan.is_validation(head.round):
        return open_round(plan, head)
    if plan.width(head.round) < plan.jobs_per_round:
        most = min(most, 2 * plan.width(head.round))
    first = head.folded[0][1] if covered(head.folded, 0) else 0  # its round may have more slots than ``most``
    candidates = range(first, min(plan.total_slots, first + 2 * most))
    phase = plan.phase_of(head.round)
    before = takewhile(lambda n: not plan.is_validation(plan.at(n)[0]), candidates)
    inside = (n for n in before if plan.phase_of(plan.at(n)[0]) == phase)
    return [n for n in inside if not covered(head.folded, n)][:most]


def open_chains(plan: Plan, head: Head, bound: int) -> list[int]:
    """Return the first job of each slot that is not folded, if it is within ``bound`` rounds of the head's.

    So a slot's next job opens when its last one is folded. None is beyond the phase or the next validation; in a
    validation round these are all of its slots.
    """
    if head.round >= plan.total_rounds:
        return []
    if plan.is_validation(head.round):
        return open_round(plan, head)
    opened: dict[int, int] = {}
    for round_ in range(head.round, min(plan.total_rounds, head.round + bound + 1)):
        if plan.is_validation(round_) or plan.phase_of(round_) != plan.phase_of(head.round):
            break
        first = plan.number(round_, 0)
        for slot in range(plan.slots(round_)):
            if not covered(head.folded, first + slot):
                opened.setdefault(slot, first + slot)
    return sorted(opened.values())


def check_bound(bound: int) -> None:
    """Raise ``ConfError`` unless a slot can be so many rounds ahead."""
    if bound < 0:
        raise ConfError(f"bound is {bound}; it must not be negative")
