"""Who takes over from a worker that was killed: with a copy of its slots' states, and without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dl4jlegacy.scaleout.tracker import StateTracker
from tests.cluster.test_mesh import SHARING, same
from tests.support.cluster_commands import Cluster, Command, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

AGAIN = """
import functools, pathlib
import dl4jlegacy.scaleout.protocol.inputs as inputs, dl4jlegacy.scaleout.actors.worker_pool as worker_pool
done_again = inputs._done_again
def say_again(*given):
    print("DONE AGAIN", flush=True)
    return done_again(*given)
inputs._done_again = say_again
worker_pool.HostCopies = functools.partial(worker_pool.HostCopies, memory=pathlib.Path({memory!r}))
"""


def has_begun(tracker: StateTracker, worker: Command, round_: int) -> bool:
    """Whether a worker has begun its job of a round, and is done with those before it."""
    return any(known.pid == worker.pid and known.job.startswith(f"{round_}/") for known in tracker.workers())


@pytest.mark.parametrize("host", ["the same host", pytest.param("another host", marks=pytest.mark.release)])
def test_the_jobs_of_a_killed_worker_are_done_again_where_its_states_are_not(
    host: str, cluster: Cluster, tmp_path: Path
) -> None:
    places = [tmp_path / "memory", tmp_path / ("memory" if host == "the same host" else "memory of another")]
    for place in places:
        place.mkdir(exist_ok=True)
    cluster.hold(8)
    master = cluster.master(run=SHARING)
    doomed, heir = (cluster.worker(patch=AGAIN.format(memory=str(memory))) for memory in places)
    with cluster.tracker(cluster.run) as tracker:
        until(lambda: has_begun(tracker, doomed, 8), what="the job with which it is killed")
    doomed.process.kill()
    cluster.let_go()
    same(master)
    assert heir.wait() == 0, heir.err()
    assert ("DONE AGAIN" in heir.out()) == (host == "another host")
    assert cluster.left_over() == []
    left = [path.name for place in places for path in place.rglob("*") if path.is_file()]
    assert bool(left) == (host == "another host"), "what a host keeps on which all processes were killed"
