"""Runs in which a trained network works on jobs: the common part of evaluations and predictions by many workers.

Version 0 of the model holds the network's parameters; the network's configuration is in the performer's arguments.
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
"""The data to evaluate a network on: examples, which are cut into batches of ``ROWS``, or batches with numbers."""


class Batches(Protocol):
    """The source of a run's jobs, batch by batch; any batch may be read again, on any thread."""

    @property
    def batches(self) -> int:
        """The number of batches."""

    @property
    def examples(self) -> int:
        """The number of examples in all batches."""

    @property
    def batch_size(self) -> int:
        """The number of examples of each batch but the last."""

    @property
    def nbytes(self) -> int:
        """Approximate bytes of a batch."""

    def batch(self, index: int) -> Batch:
        """Return a batch."""


class ExampleBatches:
    """The batches of examples, or of an iterator's first epoch. ``Batches``. Raises ``DataError`` if there are none."""

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
        """Approximate bytes of a batch."""
        return self.batch(0).nbytes

    def batch(self, index: int) -> Batch:
        """Return a batch; raises ``DataError`` if an iterator has no batch of this size there."""
        if isinstance(self._given, Batch):
            return self._given.rows(index * ROWS, min((index + 1) * ROWS, self.examples))
        return batch_of(self._given, 0, index)


class InferencePerformer:
    """Base of performers with a trained network, whose parameters are the model. A ``WorkerPerformer``.

    Subclasses define the work on a job.

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
    """A run whose jobs are performed by a trained network.

    Args:
        network: a ``MultiLayerNetwork`` or ``ComputationGraph``.
        performer: the name of the ``InferencePerformer``, which every worker has.
        jobs: with a plan of one phase, whose kind names a run without a name.
        aggregator: for the results of the jobs.
        args: for the performer, besides the network.
    """

    def __init__(
        self, network: Network, *, performer: str, jobs: JobIterator, aggregator: JobAggregator, **args: Any
    ) -> None:
        self._performer, self._jobs, self._aggregator = performer, jobs, aggregator
        self._args = {"network": json.loads(network.conf.to_json()), **args}
        self._first_model = Result({}, {PARAMS: to_host(network.params)})

    def resolve(self, conf: Conf, *, workers: int | None, on_cluster: bool = False) -> Run:
        """Return the run, with devices, tracker and similar settings from ``conf``; errors as for ``run.resolve``."""
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
