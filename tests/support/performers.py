"""Performers of networks that do something before some jobs: fail, or wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dl4jlegacy.scaleout.actors.worker_pool import network_performer
from dl4jlegacy.scaleout.conf import Conf

__all__ = ["before_each_job", "before_one_job"]


Make = Callable[[Conf, Any], Any]
"""Makes the performer of a worker, of a ``Conf`` and the kernels."""


def before_each_job(first: Callable[[], object]) -> Make:
    """Return a maker of performers that call ``first`` before each job."""
    return _made(lambda job: first())


def before_one_job(round_: int, first: Callable[[], object]) -> tuple[Make, list[tuple[int, int]]]:
    """Return a maker of performers that call ``first`` before one job of a round, and a list that has its slot then."""
    slots: list[tuple[int, int]] = []

    def once(job: Any) -> None:
        if job.slot.round == round_ and not slots:
            slots.append(job.slot[:2])
            first()

    return _made(once), slots


def _made(first: Callable[[Any], object]) -> Make:
    def make(conf: Conf, kernels: Any) -> Any:
        performer = network_performer(conf, kernels)
        perform = performer.perform

        def perform_after(job: Any) -> Any:
            first(job)
            return perform(job)

        performer.perform = perform_after  # type: ignore[method-assign]
        return performer

    return make
