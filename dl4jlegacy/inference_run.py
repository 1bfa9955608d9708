"""A trained network at work on a run's jobs: what evaluations and predictions by many workers have in common.

Version 0 of the model is the network's parameters; the network itself is in the arguments of the run's performer.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from dl4jlegacy.backend import to_host
from dl4jlegacy.execution import RunExecution
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.run import Run, resolve
from dl4jlegacy.scaleout.aggregate import PARAMS, JobAggregator
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.job import JobIterator, Result
from dl4jlegacy.scaleout.monitor import ClusterMonitor
from dl4jlegacy.scaleout.outcome import RunStatus, TrainingResult
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.strict_json import to_json

__all__ = ["InferencePerformer", "InferenceRun"]


class InferencePerformer:
    """Has the network whose parameters are the model; what it does with a job is a subclass's. A ``WorkerPerformer``.

    Args:
        conf: of an ``InferenceRun``.
        kernels: of the worker's device.
    """

    def __init__(self, conf: Conf, kernels: Kernels) -> None:
        self.progress = 0
        tree = conf.performer_args["network"]
        kind = ComputationGraphConfiguration if "vertices" in tree else MultiLayerConfiguration
        self.network: Network = build_network(kind.from_json(to_json(tree)), kernels)

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``."""
        self.network.set_params(model.arrays[PARAMS])


class InferenceRun:
    """A run over jobs that a trained network works on.

    Args:
        network: of either kind.
        performer: the name of the ``InferencePerformer``, which every worker has.
        jobs: with a plan of one phase, whose kind names the run where nobody has.
        aggregator: of the jobs' results.
        args: for the performer, besides the network.
    """

    def __init__(
        self, network: Network, *, performer: str, jobs: JobIterator, aggregator: JobAggregator, **args: Any
    ) -> None:
        self._performer, self._jobs, self._aggregator = performer, jobs, aggregator
        self._args = {"network": json.loads(network.conf.to_json()), **args}
        self._first_model = Result({}, {PARAMS: to_host(network.params)})

    def resolve(self, conf: Conf, *, workers: int | None, on_cluster: bool = False) -> Run:
        """Return the run, which takes devices, tracker and the like from ``conf``; errors as for ``run.resolve``."""
        name = conf.run or f"{self._jobs.plan.phases[0].kind}-{uuid.uuid4().hex[:8]}"
        conf = conf.replace(run=name, performer=self._performer, performer_args=self._args)
        return resolve(conf, self._jobs, local_workers=workers, on_cluster=on_cluster)

    def lead(
        self,
        run: Run,
        *,
        tracker: StateTracker | None = None,
        monitor: ClusterMonitor | None = None,
        tick: Callable[[RunStatus], None] | None = None,
        **parts: Any,
    ) -> TrainingResult:
        """Lead the run to its end; args, ``parts`` and errors as for ``RunExecution`` and its ``train``."""
        parts |= {"aggregator": self._aggregator, "first_model": self._first_model}
        with RunExecution(self._jobs, tracker=tracker, monitor=monitor, **parts) as execution:
            execution.setup(run)
            return execution.train(tick)
