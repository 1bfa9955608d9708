"""A user's own program on a cluster: as master of its run, as standby, or as worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from dl4jlegacy.cluster import address as cluster_address
from dl4jlegacy.cluster.address import ClusterAddress
from dl4jlegacy.cluster.leadership import (
    MasterOptions,
    MasterRun,
    elect_new,
    resume_registered,
    resume_saved,
)
from dl4jlegacy.cluster.standby import take_over
from dl4jlegacy.cluster.worker import run_worker
from dl4jlegacy.errors import CheckpointError, ConfError, UsageError
from dl4jlegacy.nn.listeners import TrainingListener
from dl4jlegacy.scaleout import saved_run
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.observers import RunObserver
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.workers.plugins import PerformerFactory
from dl4jlegacy.services.grid import grid_of
from dl4jlegacy.storage import paths as storage
from dl4jlegacy.system.secret import allows_unsigned, read_secret
from dl4jlegacy.training.run import Run, TrainingData, resolve

__all__ = ["ClusterProgram"]

Tick = Callable[[RunStatus], None]


@dataclass(frozen=True, slots=True)
class ClusterProgram:
    """The address and options with which a program joins the other processes of its run.

    Attributes:
        address: where the run is registered.
        tracker: ``hazelcast://host:port[,host:port]``; "": the tracker that the Conf names.
        cluster_name: name of the Hazelcast cluster; "": what the Conf says, else that of the local services.
        bind: the host on which a master listens for its workers' heartbeats.
        workers: worker threads in this process; None: none for a master and a standby, one for a worker (or one for
            each GPU).
    """

    address: ClusterAddress
    tracker: str = ""
    cluster_name: str = ""
    bind: str = "127.0.0.1"
    workers: int | None = None

    @classmethod
    def at(cls, zookeeper: str, id: str, tracker: str, cluster_name: str, *, bind: str, workers: int | None) -> Self:
        """Return an instance with the secret in the environment; raises ``UsageError`` and ``NotAuthorisedError``."""
        address = ClusterAddress(zookeeper, read_secret(os.environ), id, allows_unsigned(os.environ))
        return cls(address, tracker, cluster_name, bind, workers)

    def find_conf(self, wait_seconds: float) -> Conf:
        """Return the registered Conf; raises ``TrackerError`` if there is none in time."""
        return cluster_address.find_conf(self.address, wait_seconds=wait_seconds)

    def leading(
        self, conf: Conf | Run, data: TrainingData, tick: Tick, *, resume: bool, changed_code: bool = False
    ) -> AbstractContextManager[MasterRun]:
        """Return a context manager in which this process is the master of a new or continued run.

        Raises:
            ConfError: the Conf does not fit the data, or is not that of the registered run. UsageError: it names no
                tracker. CheckpointError: there is nothing to continue from.
        """
        options, here = MasterOptions(bind=self.bind, tick=tick, changed_code=changed_code), self.workers or 0
        if isinstance(conf, Run):
            return elect_new(conf, self.address, options)
        if not resume:
            if conf.data_by_reference and not conf.export_directory:  # a data set's name does not identify them
                raise ConfError(
                    "Conf.data_by_reference needs Conf.export_directory for a program's own data: a folder that all "
                    "processes share, or a prefix in S3; without it they go with the jobs"
                )
            run = resolve(self._on_grid(conf), data, local_workers=here, on_cluster=True)
            return elect_new(run, self.address, options)
        there = cluster_address.find_registered(self.address)
        if there is None:
            return resume_saved(self._kept(conf), data, self.address, options, workers=here)
        if (there.network_conf, there.performer) != (conf.network_conf, conf.performer):
            raise ConfError(f"run {there.run}, which is registered, has other jobs than this Conf; give it another id")
        return resume_registered(there, data, self.address, options, workers=here)

    def take_over(self, conf: Conf, data: TrainingData, tick: Tick) -> AbstractContextManager[MasterRun | None]:
        """Return a context manager: this process waits behind a master, and leads the run when the master is gone."""
        options = MasterOptions(bind=self.bind, tick=tick)
        return take_over(conf, data, self.address, options, workers=self.workers or 0)

    def work(
        self,
        performer: PerformerFactory | None,
        listeners: Sequence[TrainingListener],
        observers: Sequence[RunObserver] = (),
        *,
        stay: bool = False,
    ) -> None:
        """Work for the registered run until it ends; args and errors as for ``run_worker``."""
        run_worker(
            self.address,
            workers=self.workers,
            performer=performer,
            listeners=listeners,
            observers=observers,
            stay=stay,
        )

    def _on_grid(self, conf: Conf) -> Conf:
        """Return the Conf with the grid named here; raises ``UsageError`` if no grid is named at all."""
        if self.tracker:
            members, name = grid_of(self.tracker, self.cluster_name or conf.cluster_name, label="tracker ")
            return conf.replace(state_tracker_connection_string=members, cluster_name=name)
        if not conf.state_tracker_connection_string:
            raise UsageError("a run on a cluster needs tracker='hazelcast://host:port'")
        return conf

    def _kept(self, conf: Conf) -> Conf:
        """Return the Conf stored in a run's checkpoint folder, with the grid to use."""
        content = saved_run.find_conf(conf.checkpoint_dir) if conf.checkpoint_dir else None
        if content is None:
            where = f"{conf.checkpoint_dir} holds no run" if conf.checkpoint_dir else "Conf.checkpoint_dir is empty"
            raise CheckpointError(f"there is nothing to go on from: no run is registered, and {where}")
        folder = storage.absolute(conf.checkpoint_dir)
        try:
            kept = Conf.from_json(content)
        except ConfError as exc:
            raise ConfError(f"{folder}/conf.json: {exc}") from exc
        members = conf.state_tracker_connection_string or kept.state_tracker_connection_string
        return self._on_grid(kept.replace(checkpoint_dir=folder, state_tracker_connection_string=members))
