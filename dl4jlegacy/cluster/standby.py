"""Standby masters: they wait behind the master of a run, and take the run over when the master dies (layer 5).

Legacy: none; a dead master ended the run.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from dl4jlegacy.cluster.address import ClusterAddress, closing, open_tracker
from dl4jlegacy.cluster.continuation import has_checkpoint, where_it_continues
from dl4jlegacy.cluster.leadership import (
    Candidate,
    MasterOptions,
    MasterRun,
    check_may_take_over,
    check_takes_over,
    leading,
    resolve_registered,
    standing,
)
from dl4jlegacy.cluster.register import ZookeeperRegister, place_of
from dl4jlegacy.cluster.registration import MasterRegistration
from dl4jlegacy.errors import Dl4jError, TrackerError, TrainingError
from dl4jlegacy.scaleout import protocol
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.hazelcast.store import HazelcastStateTracker
from dl4jlegacy.scaleout.monitoring.outcome import failure_of
from dl4jlegacy.scaleout.state.records import Head
from dl4jlegacy.system.exits import Stopped
from dl4jlegacy.training.run import TrainingData

__all__ = ["end_without", "take_over"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_YIELDED_SESSIONS = 3.0
"""If the servers have lost everything, a standby waits for the previous leader for this many session lifetimes."""


@contextlib.contextmanager
def take_over(
    conf: Conf,
    data: TrainingData,
    address: ClusterAddress,
    options: MasterOptions,
    *,
    workers: int = 0,
    on_stand_by: Callable[[], None] = lambda: None,
) -> Iterator[MasterRun | None]:
    """Wait behind the present master, and lead its run when it dies; yields None if the run ended without that.

    Args:
        conf: the run's, as it is registered.
        data: the run's training data.
        address: where the run is registered.
        options: of the new master.
        workers: worker threads in this process, once it leads.
        on_stand_by: called on this thread, once, when this process waits behind a master.

    Raises:
        CheckpointError: the data here differ from those that the run began with. Also what ``elect_new`` raises.
        TrainingError: somebody stopped the run. JobError and similar errors: the run failed, with its master's reason.
        TrackerError: the servers have lost the model of the run, and nobody has restored it; or, during that wait, this
            process was asked to stop, or somebody stopped the run.
        VersionError: this process has other versions than the master.
    """
    check_may_take_over(conf, address)
    run = resolve_registered(conf, data, local_workers=workers)  # takes seconds: not after the master is gone
    with (
        standing(address, conf, standby=True) as candidate,
        closing(open_tracker(conf, address, registered=True, takes_part=True)) as tracker,
    ):
        check_takes_over(conf, tracker)
        found, seen = _outlives_master(conf, candidate, tracker, on_stand_by)
        if found.what == "clear up":
            registration = MasterRegistration(conf, address, candidate.session, candidate.election, tracker)
            registration.clear_up(end=found.end)
        if (error := end_without(conf.run, found, seen)) is not None:
            raise error
        if found.what != "lead":
            yield None
            return
        where = where_it_continues(conf, tracker, found.version).text
        logger.warning("the master of run %s is gone; this standby takes over %s", conf.run, where)
        with leading(run, candidate, tracker, options, takes_over="as a standby") as led:
            yield led


def end_without(run: str, found: protocol.TakeOver, seen: Head | None) -> Dl4jError | None:
    """Return the error of a run that ended without this standby leading it; None: it is done, or goes on."""
    if found.error:
        return TrackerError(found.error)
    if found.what == "failed" and seen is not None:
        return failure_of(seen)
    if found.what in ("clear up", "ended") and found.end == "stopped":
        return TrainingError(f"run {run} was stopped")
    return None


def _outlives_master(
    conf: Conf, candidate: Candidate, tracker: HazelcastStateTracker, on_stand_by: Callable[[], None]
) -> tuple[protocol.TakeOver, Head | None]:
    """Wait for this candidate's turn or the run's end (``protocol.outlive_master``); return which, and the head."""
    register = ZookeeperRegister(conf, candidate.address, candidate.session, candidate.election)
    waiting = protocol.StandBy(
        place_of(conf, candidate.address, tracker, register),
        tracker.clock,
        patience=conf.worker_wait_seconds,
        yields=_YIELDED_SESSIONS * candidate.session.session_seconds,
        has_checkpoint=lambda: has_checkpoint(conf),
        folder=conf.checkpoint_dir,
        tell=logger.warning,
    )
    steps, stands_by = protocol.outlive_master(waiting), False
    try:
        while True:
            event = next(steps)
            if event is not None and not candidate.election.wait(_LOOK_SECONDS) and not stands_by:
                stands_by = True
                on_stand_by()
    except StopIteration as stop:
        found: protocol.TakeOver = stop.value
        return found, waiting.seen
    except (Stopped, KeyboardInterrupt) as stop:
        error = protocol.asked_to_stop(waiting)
        if error is not None and isinstance(stop, Stopped):
            raise error from None
        if error is not None:  # a program's own Ctrl-C stays one
            stop.add_note(str(error))
        raise
