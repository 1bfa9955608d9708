"""An evaluation as a run: its jobs are ranges of examples, version 0 of its model is the network, version 1 the result.

Workers are threads of this process (``evaluate_with_workers``) or processes of a cluster (``cluster.evaluation``). The
sums and counts are those of ``evaluate_network``, bit for bit, whatever their number and whichever of them dies.

Legacy: DL4J's ``IEvaluateFlatMapFunction`` and ``IEvaluationReduceFunction`` for Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dl4jlegacy.datasets import DataSet
from dl4jlegacy.inference_run import InferencePerformer, InferenceRun
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.batch_evaluation import (
    ROWS,
    BatchEvaluation,
    NetworkEvaluation,
    evaluate_batches,
    is_classified,
    merge_evaluations,
)
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.run import Run
from dl4jlegacy.scaleout.aggregate import CollectedEvaluations, evaluation_in, result_of
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.job import Job, Result
from dl4jlegacy.scaleout.monitor import ClusterMonitor
from dl4jlegacy.scaleout.outcome import RunStatus
from dl4jlegacy.scaleout.parts import register_performer
from dl4jlegacy.scaleout.plan import Phase, Plan, SlotPlan
from dl4jlegacy.scaleout.store import Buffer
from dl4jlegacy.scaleout.tracker import StateTracker

__all__ = ["EVALUATE", "EvaluationPerformer", "EvaluationRun", "evaluate_with_workers"]

EVALUATE = "dl4jlegacy.evaluate"
"""The name of the performer, which every worker has."""
_MOST_JOBS = 256


@register_performer(EVALUATE)
class EvaluationPerformer(InferencePerformer):
    """Evaluates the network on the batches of a job."""

    def __init__(self, conf: Conf, kernels: Kernels) -> None:
        super().__init__(conf, kernels)
        self._classifies = bool(conf.performer_args["classifies"])

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``; returns the loss of each batch, and the counts of all."""
        parts: list[BatchEvaluation] = []
        found = evaluate_batches(
            self.network, job.work, classifies=self._classifies, first=job.slot.first, batch_size=ROWS
        )
        for part in found:
            parts.append(part)
            self.progress += 1
            if not job.is_wanted():
                return None
        return result_of(parts)


class _Aggregator:
    """Puts the evaluations together, in the order of the examples. A ``JobAggregator``."""

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> _Whole:
        """See ``JobAggregator``."""
        return _Whole()


class _Whole(CollectedEvaluations):
    """The evaluation of all examples as the next model. An ``Aggregation``."""

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


class EvaluationRun(InferenceRun):
    """The evaluation of a network on examples, as a run.

    Args:
        network: a trained one of either kind.
        examples: scaled as those that it was trained on; at least one.
        label_names: of the classes.
    """

    def __init__(self, network: Network, examples: DataSet, label_names: tuple[str, ...]) -> None:
        self._label_names = label_names
        super().__init__(
            network,
            performer=EVALUATE,
            jobs=_Jobs(examples),
            aggregator=_Aggregator(),
            classifies=is_classified(network.conf, examples),
        )

    def perform(
        self,
        run: Run,
        *,
        tracker: StateTracker | None = None,
        monitor: ClusterMonitor | None = None,
        tick: Callable[[RunStatus], None] | None = None,
    ) -> NetworkEvaluation:
        """Lead the run to its end and return what it has found; args and errors as for ``lead``."""
        result = self.lead(run, tracker=tracker, monitor=monitor, tick=tick)
        return merge_evaluations([evaluation_in(result.model)], self._label_names)


def evaluate_with_workers(
    network: Network, examples: DataSet, label_names: tuple[str, ...], *, workers: int, device: str = ""
) -> NetworkEvaluation:
    """Return what ``evaluate_network`` does, from so many threads, each with a network of its own on the ``device``."""
    run = EvaluationRun(network, examples, label_names)
    return run.perform(run.resolve(Conf(device=device, workers=workers), workers=workers))
