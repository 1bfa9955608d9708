"""``WorkRouter``: the base class of strategies, and the usual ways to open slots.

A strategy says which jobs are open, when finished jobs are folded into the model, how they are folded, and what a slot
remembers from one job to the next. It is a frozen value, and its methods are pure functions: masters and workers build
it from the same ``Conf``, and each computes from plan and head which jobs there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from itertools import takewhile
from typing import ClassVar

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.scaleout.plan import Plan
from dl4jlegacy.scaleout.state.aggregate import PARAMS, STATE, DeltaAggregator, Fold, ParameterAveragingAggregator
from dl4jlegacy.scaleout.state.job import Result
from dl4jlegacy.scaleout.state.records import Head, covered
from dl4jlegacy.scaleout.updater_beginning import new_state

__all__ = ["SlotMemory", "WorkRouter", "check_bound", "open_chains", "open_in_phase", "open_round"]


class SlotMemory:
    """What the slots of a strategy remember from one job to the next, within a phase.

    A job is a pure function of the model, the state that the last job of its slot left, and its batches. Its update and
    the new state are committed together, so it does not matter which worker does a job. A slot has one open job at a
    time, the first that is not folded.

    Workers hold states in memory. The state of a slot is saved whenever the model is written whole (see
    ``WorkRouter.log_every``). If a worker is lost, another one repeats the jobs of its slots since then, with the same
    results.
    """

    def replica(self, model: Result, state: Result | None) -> Result:
        """Return the ``params`` and ``updater_state`` that a job starts from, as arrays in host memory.

        By default these are the model's parameters and the slot's own updater state.

        Args:
            model: the current version.
            state: of the slot; None at its first job of a phase.
        """
        steps = new_state(model.values, model.arrays[STATE]) if state is None else state.arrays[STATE]
        return Result(model.values, {PARAMS: model.arrays[PARAMS], STATE: steps})

    def settle(self, model: Result, state: Result | None, result: Result, kernels: Kernels) -> tuple[Result, Result]:
        """Return the update of a job, and the new state of its slot.

        Args:
            model, state: those that the job started from; their arrays are not changed.
            result: of the worker's performer: an array of the strategy's ``update_kind``, and the updater state.
            kernels: for host memory; all of them give the same bits.
        """
        raise NotImplementedError


class WorkRouter:
    """A strategy. The defaults are synchronous: all jobs of a round are folded together, in slot order.

    A subclass overrides what differs. ``binds_model = False`` and ``update_kind = "delta"`` make it asynchronous.

    Legacy: ``WorkRouter``, whose ``sendWork`` swallowed every error.
    """

    name: ClassVar[str] = "a router of your own"
    """The name in ``Conf.router``, for messages."""

    @property
    def update_kind(self) -> str:
        """What a performer returns: the trained ``"params"``, or their ``"delta"`` from the model of the job."""
        return "params"

    @property
    def binds_model(self) -> bool:
        """Whether every job must start from the newest model. If so, the answer does not depend on timing."""
        return True

    @property
    def memory(self) -> SlotMemory | None:
        """What slots remember from one job to the next; None: nothing."""
        return None

    @property
    def log_every(self) -> int:
        """Rounds after which a model is written whole, at the latest; in between only a log of updates is written.

        0: there is no log, and each version is written whole. A log needs ``binds_model``.
        """
        return 0

    @property
    def idle_options(self) -> Mapping[str, str]:
        """Options that have no effect because of other ones, each with the reason."""
        return {}

    def open_slots(self, plan: Plan, head: Head) -> list[int]:
        """Return the numbers of the slots that may be worked on, in order.

        The first slot that is not folded is one of them. All belong to one phase; of a validation round all slots are
        open, or none (``plan.phase_of``, ``plan.is_validation``). By default they are those of the head's round; if
        ``binds_model`` is false, those of two rounds.
        """
        return open_round(plan, head) if self.binds_model else open_in_phase(plan, head, 2 * plan.jobs_per_round)

    def send_work(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the done slots to fold now, in slot order; empty if it is too early.

        If all of ``opened`` are done, there is at least one. By default these are all of ``opened``, once they are
        done; if ``binds_model`` is false, all that are done.
        """
        ready = [number for number in opened if number in done]
        return ready if len(ready) == len(opened) or not self.binds_model else []

    def fold_ahead(self, opened: Sequence[int], done: Collection[int]) -> list[int]:
        """Return the done slots that may be folded before the others are done, in slot order.

        Only if ``send_work`` will return all of ``opened`` in the end, beginning with these.
        """
        return list(takewhile(lambda number: number in done, opened)) if self.binds_model else []

    def fold(self, kernels: Kernels, pool: Executor | None = None) -> Fold:
        """Return how updates are folded into the model.

        By default the mean of the parameters, weighted by examples; of deltas, their sum by staleness.

        Args:
            kernels: for host memory.
            pool: threads for large vectors.
        """
        if self.update_kind == "delta":
            return DeltaAggregator(kernels)
        return ParameterAveragingAggregator(kernels, pool=pool)


def open_round(plan: Plan, head: Head) -> list[int]:
    """Return all slots of the head's round."""
    if head.round >= plan.total_rounds:
        return []
    first = plan.number(head.round, 0)
    return list(range(first, first + plan.slots(head.round)))


def open_in_phase(plan: Plan, head: Head, most: int) -> list[int]:
    """Return the first ``most`` slots that are not folded, before the next validation and the end of the phase.

    In a validation round these are all of its slots, and in a warm start those of two rounds at most.
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
    """Return the next job of each slot: the first that is not folded, within ``bound`` rounds of the head's round.

    So the next job of a slot opens when its last one is folded. All are before the next validation and the end of the
    phase. In a validation round these are all of its slots.
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
    """Raise ``ConfError`` if a bound is negative."""
    if bound < 0:
        raise ConfError(f"bound is {bound}; it must not be negative")
