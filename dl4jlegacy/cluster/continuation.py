"""Where a run that is taken over continues: from the grid, its newest checkpoint, or its beginning (layer 5)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dl4jlegacy.errors import CheckpointError, Dl4jError
from dl4jlegacy.scaleout import protocol, saved_run
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.scaleout.tracker import drive
from dl4jlegacy.training.run import folder_of

__all__ = [
    "Continuation",
    "check_something_is_left",
    "has_checkpoint",
    "say_where_it_continues",
    "where_it_continues",
]

logger = logging.getLogger(__name__)

_SHARE = "give all masters of a run the same folder, on a file system that they share"


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where a run continues, in words, and whether the grid has its model."""

    text: str
    is_in_grid: bool = False


def where_it_continues(conf: Conf, tracker: HazelcastStateTracker, version: int = 0) -> Continuation:
    """Return where a process that takes a run over continues it; waits for checkpoints that are needed.

    Args:
        conf: the run's.
        tracker: the run's; it may have lost the run.
        version: the newest model version that this process has seen.

    Raises:
        CheckpointError: the grid has no model of the run, and the run's checkpoints are not here; the run must not
            silently start again.
    """
    (head, has_model), folder = _head_in_grid(tracker), conf.checkpoint_dir
    version = version if head is None else max(version, head.version)
    kept = folder_of(conf, resumes=True)
    has_kept = kept.keeps and version >= conf.checkpoint_every
    if head is not None and has_model:
        if has_kept and kept.is_empty():
            logger.warning("none of the checkpoints of run %s is in %s here; %s", conf.run, folder, _SHARE)
        return Continuation(f"in round {head.round}", is_in_grid=True)
    newest = kept.wait_for_newest()
    if newest is not None:
        return Continuation(f"in round {newest[0].round}, from a checkpoint, since the grid does not have it")
    if has_kept:
        raise CheckpointError(
            f"run {conf.run} cannot go on here: it had come to version {version}, the tracker at "
            f"{conf.state_tracker_connection_string} has no model of it any more, and none of its checkpoints is in "
            f"{folder} on this machine; {_SHARE}, or continue it where its checkpoints are (dl4j resume)"
        )
    if version:
        return Continuation("from its beginning, since the grid has lost it and it has kept no checkpoint yet")
    return Continuation("before its first round")


def _head_in_grid(tracker: HazelcastStateTracker) -> tuple[Head | None, bool]:
    """Return the head and whether its model is in the grid; retries while a cut-off master still changes the head."""
    head = tracker.head()
    while head is not None and not drive(protocol.is_model_there(tracker.store, head)):
        before, head = head, tracker.head()
        if head == before:
            return head, False
    return head, head is not None


def say_where_it_continues(conf: Conf, tracker: HazelcastStateTracker) -> None:
    """Warn if a run does not continue from the state in the grid; raises as ``where_it_continues``."""
    continuation = where_it_continues(conf, tracker)
    if not continuation.is_in_grid:
        logger.warning("run %s goes on %s", conf.run, continuation.text)


def check_something_is_left(conf: Conf, tracker: HazelcastStateTracker) -> None:
    """Raise ``CheckpointError`` if neither the grid nor the checkpoint folder has anything to continue from."""
    folder = conf.checkpoint_dir
    if tracker.head() is None and not (folder and saved_run.open_checkpoints(folder).versions()):
        kept = f"and none of its checkpoints in {folder}" if folder else "and it kept none"
        raise CheckpointError(
            f"run {conf.run} cannot go on: the tracker at {conf.state_tracker_connection_string} has nothing of it "
            f"any more, {kept}; start its master again (dl4j master)"
        )


def has_checkpoint(conf: Conf) -> bool:
    """Return whether a checkpoint of the run is here; an unreadable one counts as none."""
    try:
        return folder_of(conf, resumes=True).newest() is not None
    except Dl4jError as exc:
        logger.warning("there is no checkpoint of run %s to go on from in %s: %s", conf.run, conf.checkpoint_dir, exc)
        return False
