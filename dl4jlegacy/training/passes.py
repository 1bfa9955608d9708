"""A trained network at work on a run's jobs: what evaluations and predictions by many workers have in common.

Version 0 of the model is the network's parameters; the network itself is in the arguments of the run's performer.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from dl4jlegacy.arrays.backend import to_host
from dl4jlegacy.datasets.batches import Batch, BatchIterator
from dl4jlegacy.errors import DataError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.batch_evaluation import ROWS
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus, TrainingResult
from dl4jlegacy.scaleout.state.aggregate import PARAMS, JobAggregator
from dl4jlegacy.scaleout.state.job import JobIterator, Result, batch_of
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.system.strict_json import to_json
from dl4jlegacy.training.execution import RunExecution
from dl4jlegacy.training.run import Run, resolve

__all__ = ["Batches", "ExampleBatches", "Examples", "InferencePerformer", "InferenceRun"]

Examples = Batch | BatchIterator
"""What a network is evaluated on: examples, which are cut into batches of ``ROWS``, or batches that have a number."""


class Batches(Protocol):
    """What the jobs of a run are made of, batch by batch; any of them may be asked for again, on any thread."""

    @property
    def batches(self) -> int:
        """How many there are."""

    @property
    def examples(self) -> int:
        """How many examples all of them have."""

    @property
    def batch_size(self) -> int:
        """How many examples each has, but for the last one."""

    @property
    def nbytes(self) -> int:
        """Bytes that a batch takes, about."""

    def batch(self, index: int) -> Batch:
        """Return a batch."""


class ExampleBatches:
    """The batches of examples, or of the first epoch of an iterator. ``Batches``. Raises ``DataError`` for none."""

    def __init__(self, examples: Examples) -> None:
        self._given = examples
        if isinstance(examples, Batch):
            self.examples, self.batch_size = len(examples), ROWS
        else:
            self.examples, self.batch_size = examples.total_examples, examples.batch_size
        if not self.examples:
            raise DataError("there are no examples")
        self.batches = -(-self.examples // self.batch_size)

    @property
    def nbytes(self) -> int:
        """Bytes that a batch takes, about."""
        return self.batch(0).nbytes

    def batch(self, index: int) -> Batch:
        """Return a batch; raises ``DataError`` if an iterator has none of this size there."""
        if isinstance(self._given, Batch):
            return self._given.rows(index * ROWS, min((index + 1) * ROWS, self.examples))
        return batch_of(self._given, 0, index)


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
