"""The options with which other tools follow a run, and what they come to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from dl4jlegacy.cli.declarations import text_option
from dl4jlegacy.cli.options import ResumeOptions, TrainOptions

if TYPE_CHECKING:
    from dl4jlegacy.scaleout.observers import RunObserver

__all__ = ["ObservedResumeOptions", "ObservedTrainOptions", "ObservingOptions", "observing"]


@dataclass(frozen=True, kw_only=True)
class ObservingOptions:
    """What a master's process has besides; None: not given."""

    tensorboard: Annotated[
        str | None, text_option("--tensorboard", "DIR", "Write curves and histograms for TensorBoard to this folder.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class ObservedTrainOptions(ObservingOptions, TrainOptions):
    """The options of ``dl4j train`` and ``dl4j master``."""


@dataclass(frozen=True, kw_only=True)
class ObservedResumeOptions(ObservingOptions, ResumeOptions):
    """The options of ``dl4j resume``."""


@contextlib.contextmanager
def observing(options: ObservingOptions) -> Iterator[list[RunObserver]]:
    """Yield who follows the run that a command is about to begin; nobody does any more at the end.

    Raises:
        ConfError: a library is not installed, or a folder cannot be used.
    """
    observers: list[RunObserver] = []
    if options.tensorboard is not None:
        from dl4jlegacy.observing.tensorboard import TensorBoardObserver

        observers.append(TensorBoardObserver(options.tensorboard))
    yield observers
