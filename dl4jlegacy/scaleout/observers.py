"""What a program of one's own gets to see of its run, in the master's process: new versions, and those to be saved.

Legacy: ``IterationListener`` and ``ModelSaver``; an error in either ended the actor that called it, and with it the
run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.scaleout.job import Result
from dl4jlegacy.scaleout.outcome import Outcome
from dl4jlegacy.scaleout.protocol import NewModel
from dl4jlegacy.scaleout.records import Head
from dl4jlegacy.scaleout.store import Buffer

__all__ = ["ModelSaver", "Observers"]

logger = logging.getLogger(__name__)


class ModelSaver(Protocol):
    """Saves models in a way of one's own, beside the checkpoints."""

    def save(self, head: Head, model: Result) -> None:
        """Save version ``head.version`` of the run's model, whose arrays are read-only views.

        Called on a thread of its own, in the order of the versions: with every ``Conf.checkpoint_every``-th, or the
        next one if it was still busy, and with the last. A run that another process takes over may save a version
        again. An error is a warning, and the run goes on.
        """
        ...


class Observers:
    """Calls listeners and saver of a run; what one of them raises is told once, and the run goes on.

    Args:
        outcome: where to tell.
        listeners: told of every new version, on the master's thread, which waits for them. How many examples the first
            version of a run that goes on has had is unknown, and told as 0.
        saver: gets the versions to be saved; None: nobody does.
        network_of: makes the trained network of a model, for the listeners; jobs that are no network's have the model.
    """

    def __init__(
        self,
        outcome: Outcome,
        listeners: Sequence[TrainingListener],
        saver: ModelSaver | None,
        network_of: Callable[[Result], Any],
    ) -> None:
        self._outcome, self._listeners, self._saver, self._network_of = outcome, listeners, saver, network_of
        self._last: Head | None = None
        self._kept = 0
        self._failed: set[str] = set()

    def on_version(self, event: NewModel) -> None:
        """Tell the listeners of a new version, once: the last one comes a second time, when the run is done.

        A validation is none of training. A round may leave the model as it is and be told of all the same.
        """
        head = event.head
        last, self._last = self._last, head
        is_known = last is not None and head.version <= last.version
        if not self._listeners or is_known or event.figures is not None:
            return
        began = 0 if last is None and head.version == 1 else head.examples if last is None else last.examples
        network, examples = self._network_of(Result.decode(event.frame)), head.examples - began
        score = float("nan") if head.score is None else head.score
        for listener in self._listeners:
            self._guarded(
                listener, lambda told: told.iteration_done(network, head.version - 1, score, examples=examples)
            )

    def keep(self, head: Head, frame: Buffer) -> None:
        """Give the saver a version, once."""
        if self._saver is not None and head.version > self._kept:
            self._kept = head.version
            self._guarded(self._saver, lambda saver: saver.save(head, Result.decode(frame)))

    def _guarded(self, part: Any, call: Callable[[Any], None]) -> None:
        try:
            call(part)
        except Exception as exc:
            name = str(getattr(part, "name", "")) or type(part).__name__  # who passes on to others has their name
            if name not in self._failed:
                self._failed.add(name)
                logger.warning("%s failed, and the run goes on without what it does", name, exc_info=True)
                self._outcome.warn(f"{name} failed, and the run went on: {type(exc).__name__}: {exc}")
