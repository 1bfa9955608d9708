"""The place of the trials' runs: this process, or a cluster, whose workers are divided among them."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dl4jlegacy.cluster.runner import ActorNetworkRunner
from dl4jlegacy.errors import Dl4jError, UsageError
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.outcome import TrainingResult
from dl4jlegacy.scaleout.workers.device_choice import Compute
from dl4jlegacy.training.run import TrainingData, resolve
from dl4jlegacy.tuning.pruning import PruningCallback
from dl4jlegacy.tuning.side_by_side import Tick

if TYPE_CHECKING:
    from dl4jlegacy.cluster.program import ClusterProgram
    from dl4jlegacy.cluster.search_trials import SearchRegistration

__all__ = ["SearchCluster", "TrialRuns", "opened_runs"]

logger = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9_.-]{1,90}")  # shorter than a run's id, which has the trial's number appended


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCluster:
    """The cluster on which a search trains. Its secret is read from the environment (``DL4J_SECRET_FILE``).

    Attributes:
        tracker: ``hazelcast://host:port[,host:port]``.
        zookeeper: ``host:port``, where the search and its trials are registered.
        id: the search's id there, which its workers get; trial 7 of ``digits`` is the run ``digits-7``.
        cluster_name: of the Hazelcast members; "": that of ``dl4j services`` on this machine, else ``dev``.
        bind: the host on which the masters listen for their workers' signs of life.

    Raises:
        UsageError: ``tracker`` or ``zookeeper`` is missing, or ``id`` is not a valid id.
    """

    tracker: str
    zookeeper: str
    id: str = "master"
    cluster_name: str = ""
    bind: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if not (self.tracker and self.zookeeper):
            raise UsageError(
                "a search on a cluster needs tracker='hazelcast://host:port' and zookeeper='host:port' (--tracker, "
                "--zookeeper)"
            )
        if not _ID.fullmatch(self.id):
            raise UsageError(
                f"id (--id) is {self.id!r}; a search's is made of letters, digits, '_', '.' and '-', at most 90 of them"
            )


class TrialRuns(Protocol):
    """Runs of trials, each on the calling thread; any number may run at once."""

    def train(
        self, conf: Conf, data: TrainingData, number: int, pruning: PruningCallback | None, tick: Tick | None
    ) -> tuple[TrainingResult, Network]:
        """Train a trial's Conf; return the result, and the network with the best score. Raises the run's errors."""


@contextlib.contextmanager
def opened_runs(
    cluster: SearchCluster | None, study: str, compute: Compute, workers_of_each: int
) -> Iterator[TrialRuns]:
    """Open the resources shared by the runs of a search.

    Args:
        cluster: None: the runs are in this process.
        study: the search's name.
        compute: the compute options of this process's workers.
        workers_of_each: the number of these workers for each run.

    Raises:
        UsageError: an address is malformed.
        TrackerError: the cluster cannot be reached, or a run or another search has the id.
        NotAuthorisedError: the cluster is beyond loopback, and there is no secret.
    """
    if cluster is None:
        yield _Here(study, compute)
        return
    from dl4jlegacy.cluster.address import warned_once
    from dl4jlegacy.cluster.program import ClusterProgram
    from dl4jlegacy.cluster.search_trials import SearchRegistration
    from dl4jlegacy.services.grid import grid_of

    grid = grid_of(cluster.tracker, cluster.cluster_name or None, label="tracker ")
    program = ClusterProgram.at(cluster.zookeeper, cluster.id, "", "", bind=cluster.bind, workers=workers_of_each)
    with warned_once(), SearchRegistration(program.address, study) as search:
        yield _OnCluster(compute, grid, program, search)


@dataclass(frozen=True, slots=True)
class _Here:
    study: str
    compute: Compute

    def train(
        self, conf: Conf, data: TrainingData, number: int, pruning: PruningCallback | None, tick: Tick | None
    ) -> tuple[TrainingResult, Network]:
        run = resolve(conf.replace(run=f"{self.study}-{number}"), data, compute=self.compute)
        with ActorNetworkRunner("master", data, stop_if=pruning) as runner:
            runner.setup(run)
            return _trained(runner, tick)


@dataclass(frozen=True, slots=True)
class _OnCluster:
    compute: Compute
    grid: tuple[str, str]
    program: ClusterProgram
    search: SearchRegistration

    def train(
        self, conf: Conf, data: TrainingData, number: int, pruning: PruningCallback | None, tick: Tick | None
    ) -> tuple[TrainingResult, Network]:
        here, where = self.program.workers or 0, self.search.address_of(number)
        members, cluster_name = self.grid
        conf = conf.replace(
            run=where.id,
            state_tracker_connection_string=members,
            cluster_name=cluster_name,
        )
        run = resolve(conf, data, compute=self.compute, local_workers=here, on_cluster=True)
        self.search.clear(number)  # of a search that was killed
        bind = self.program.bind
        try:
            with ActorNetworkRunner(
                "master", data, zookeeper=where.zookeeper, id=where.id, bind=bind, workers=here, stop_if=pruning
            ) as runner:
                runner.setup(run)
                with self.search.under_way(number):
                    return _trained(runner, tick)
        except BaseException:
            self._clear_failed(number)
            raise

    def _clear_failed(self, number: int) -> None:
        """Remove the run of a trial that is not continued: it failed, or is repeated from its beginning."""
        try:
            self.search.clear(number)
        except Dl4jError as exc:
            logger.warning("what trial %d has left on the cluster stays there: %s; see `dl4j runs`", number, exc)


def _trained(runner: ActorNetworkRunner, tick: Tick | None) -> tuple[TrainingResult, Network]:
    result = runner.train(tick, progress=False)
    assert result is not None, "a master has a result"
    return result, runner.network(result, best=result.best is not None)
