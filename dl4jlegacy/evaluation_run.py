"""An evaluation as a run: its jobs are ranges of examples, version 0 of its model is the network, version 1 the result.

Workers are threads of this process (``evaluate_with_workers``) or processes of a cluster (``cluster.evaluation``). The
sums and counts are those of ``evaluate_network``, bit for bit, whatever their number and whichever of them dies.

Legacy: DL4J's ``IEvaluateFlatMapFunction`` and ``IEvaluationReduceFunction`` for Spark.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dl4jlegacy.backend import to_host
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.execution import RunExecution
from dl4jlegacy.inference import ROWS
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.batch_evaluation import (
    BatchEvaluation,
    NetworkEvaluation,
    evaluate_batches,
    is_classified,
    merge_evaluations,
)
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.networks import Network, build_network
from dl4jlegacy.run import Run, resolve
from dl4jlegacy.scaleout.aggregate import PARAMS, Aggregation, evaluation_in, result_of
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.job import Job, Result
from dl4jlegacy.scaleout.monitor import ClusterMonitor
from dl4jlegacy.scaleout.outcome import RunStatus
from dl4jlegacy.scaleout.parts import register_performer
from dl4jlegacy.scaleout.plan import Phase, Plan, SlotPlan
from dl4jlegacy.scaleout.store import Buffer
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.strict_json import to_json

__all__ = ["EVALUATE", "EvaluationPerformer", "EvaluationRun", "evaluate_with_workers", "network_of"]

EVALUATE = "dl4jlegacy.evaluate"
"""The name of the performer, which every worker has."""
_MOST_JOBS = 256


@register_performer(EVALUATE)
class EvaluationPerformer:
    """Evaluates the network, whose parameters are the model, on the batches of a job. A ``WorkerPerformer``."""

    def __init__(self, conf: Conf, kernels: Kernels) -> None:
        self.progress = 0
        self._network = network_of(conf, kernels)
        self._classifies = bool(conf.performer_args["classifies"])

    def update(self, model: Result) -> None:
        """See ``WorkerPerformer``."""
        self._network.set_params(model.arrays[PARAMS])

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``; returns the loss of each batch, and the counts of all."""
        parts: list[BatchEvaluation] = []
        found = evaluate_batches(
            self._network, job.work, classifies=self._classifies, first=job.slot.first, batch_size=ROWS
        )
        for part in found:
            parts.append(part)
            self.progress += 1
            if not job.is_wanted():
                return None
        return result_of(parts)


def network_of(conf: Conf, kernels: Kernels) -> Network:
    """Return the network in the arguments of a run's performer; it has no parameters yet."""
    tree = conf.performer_args["network"]
    kind = ComputationGraphConfiguration if "vertices" in tree else MultiLayerConfiguration
    return build_network(kind.from_json(to_json(tree)), kernels)


class _Aggregator:
    """Puts the parts together, in the order of the examples. A ``JobAggregator``."""

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> Aggregation:
        """See ``JobAggregator``."""
        return _Parts()


@dataclass(slots=True)
class _Parts:
    """The parts so far. An ``Aggregation``."""

    parts: list[BatchEvaluation] = field(default_factory=list)

    def add(self, updates: Sequence[Buffer]) -> None:
        """See ``Aggregation``."""
        self.parts += [evaluation_in(Result.decode(frame)) for frame in updates]

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``; the score is the mean loss of an example."""
        return result_of(self.parts).encode(), merge_evaluations(self.parts).loss


class _Jobs:
    """A job for each range of consecutive batches, all in one round. A ``JobIterator``."""

    def __init__(self, examples: DataSet) -> None:
        self._examples = examples
        batches = -(-len(examples) // ROWS)
        in_job = -(-batches // _MOST_JOBS)
        self.plan = Plan(
            phases=(Phase(kind="evaluate"),),
            batches=batches,
            examples=len(examples),
            batch_size=ROWS,
            jobs_per_round=-(-batches // in_job),
            averaging_frequency=in_job,
        )

    def work(self, slot: SlotPlan) -> list[DataSet]:
        """Return the batches of a slot, as views."""
        stop = min(slot.last * ROWS, len(self._examples))
        return list(self._examples.rows(slot.first * ROWS, stop).batch_by(ROWS))


class EvaluationRun:
    """The evaluation of a network on examples, as a run.

    Args:
        network: a trained one of either kind.
        examples: scaled as those that it was trained on; at least one.
        label_names: of the classes.
    """

    def __init__(self, network: Network, examples: DataSet, label_names: tuple[str, ...]) -> None:
        self._label_names = label_names
        self._first = Result({}, {PARAMS: to_host(network.params)})
        self._args = {
            "network": json.loads(network.conf.to_json()),
            "classifies": is_classified(network.conf, examples),
        }
        self.jobs = _Jobs(examples)

    def resolve(self, conf: Conf, *, workers: int | None, on_cluster: bool = False) -> Run:
        """Return the run, which takes devices, tracker and the like from ``conf``; errors as for ``run.resolve``."""
        name = conf.run or f"evaluate-{uuid.uuid4().hex[:8]}"
        conf = conf.replace(run=name, performer=EVALUATE, performer_args=self._args)
        return resolve(conf, self.jobs, local_workers=workers, on_cluster=on_cluster)

    def perform(
        self,
        run: Run,
        *,
        tracker: StateTracker | None = None,
        monitor: ClusterMonitor | None = None,
        tick: Callable[[RunStatus], None] | None = None,
    ) -> NetworkEvaluation:
        """Lead the run to its end; args and errors as for ``RunExecution`` and its ``train``."""
        parts: dict[str, Any] = {"aggregator": _Aggregator(), "first_model": self._first}
        with RunExecution(self.jobs, tracker=tracker, monitor=monitor, **parts) as execution:
            execution.setup(run)
            result = execution.train(tick)
        return merge_evaluations([evaluation_in(result.model)], self._label_names)


def evaluate_with_workers(
    network: Network, examples: DataSet, label_names: tuple[str, ...], *, workers: int, device: str = ""
) -> NetworkEvaluation:
    """Return what ``evaluate_network`` does, from so many threads, each with a network of its own on the ``device``."""
    run = EvaluationRun(network, examples, label_names)
    return run.perform(run.resolve(Conf(device=device, workers=workers), workers=workers))
