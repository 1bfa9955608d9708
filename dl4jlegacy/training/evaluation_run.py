"""An evaluation as a run: its jobs are ranges of examples; model version 0 is the network, version 1 the result.

Workers are threads of this process (``evaluate_with_workers``) or processes of a cluster (``cluster.evaluation``). Sums
and counts equal those of ``evaluate_network`` bit for bit, for any number of workers, even if some of them die.

Legacy: DL4J's ``IEvaluateFlatMapFunction`` and ``IEvaluationReduceFunction`` for Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dl4jlegacy.datasets import DataSet
from dl4jlegacy.datasets.batches import Batch
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.batch_evaluation import (
    BatchEvaluation,
    NetworkEvaluation,
    evaluate_batches,
    is_classified,
    merge_evaluations,
    regression_in_units,
)
from dl4jlegacy.nn.evaluation.packed import AnyEvaluation, check_evaluations, described
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.monitoring.monitor import ClusterMonitor
from dl4jlegacy.scaleout.monitoring.outcome import RunStatus
from dl4jlegacy.scaleout.plan import Phase, Plan, SlotPlan
from dl4jlegacy.scaleout.state.aggregate import CollectedEvaluations, evaluation_in, result_of
from dl4jlegacy.scaleout.state.job import Job, Result
from dl4jlegacy.scaleout.state.store import Buffer
from dl4jlegacy.scaleout.tracker import StateTracker
from dl4jlegacy.scaleout.workers.plugins import register_performer
from dl4jlegacy.system.decoding import decodable
from dl4jlegacy.training.passes import Batches, ExampleBatches, Examples, InferencePerformer, InferenceRun
from dl4jlegacy.training.run import Run, whole_of

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
        self._batch_size = int(conf.performer_args["batch_size"])
        self._besides = conf.performer_args["evaluations"]
        scale = conf.performer_args.get("label_scale")
        self._label_scale = None if scale is None else msgspec.convert(scale, decodable(LabelScale))

    def perform(self, job: Job) -> Result | None:
        """See ``WorkerPerformer``; returns the loss of each batch, and the counts of all batches."""
        parts: list[BatchEvaluation] = []
        found = evaluate_batches(
            self.network,
            job.work,
            classifies=self._classifies,
            first=job.slot.first,
            batch_size=self._batch_size,
            besides=self._besides,
            label_scale=self._label_scale,
        )
        for part in found:
            parts.append(part)
            self.progress += 1
            if not job.is_wanted():
                return None
        return result_of(parts)


class _Aggregator:
    """Merges the evaluations in the order of the examples. A ``JobAggregator``."""

    def begin(self, model: Buffer, *, version: int, examples: Sequence[int]) -> _Whole:
        """See ``JobAggregator``."""
        return _Whole()


class _Whole(CollectedEvaluations):
    """The evaluation of all examples, which becomes the next model. An ``Aggregation``."""

    def finish(self, *, ends_phase: bool) -> tuple[Buffer, float | None]:
        """See ``Aggregation``; the score is the mean loss of an example."""
        return result_of(self.parts).encode(), merge_evaluations(self.parts).loss


class _Jobs:
    """A job for each range of consecutive batches, all in one round. A ``JobIterator``."""

    def __init__(self, batches: Batches, normalize: Callable[[DataSet], DataSet]) -> None:
        self._batches, self._normalize = batches, normalize
        in_job = -(-batches.batches // _MOST_JOBS)
        self.plan = Plan(
            phases=(Phase(kind="evaluate"),),
            batches=batches.batches,
            examples=batches.examples,
            batch_size=batches.batch_size,
            jobs_per_round=-(-batches.batches // in_job),
            averaging_frequency=in_job,
        )

    def work(self, slot: SlotPlan) -> list[Batch]:
        """Return the batches of a slot, scaled for the network."""
        batches = (self._batches.batch(index) for index in range(slot.first, slot.last))
        return [self._normalize(batch) if isinstance(batch, DataSet) else batch for batch in batches]


class EvaluationRun(InferenceRun):
    """The evaluation of a network on examples, as a run.

    Args:
        network: a trained ``MultiLayerNetwork`` or ``ComputationGraph``.
        examples: at least one, scaled as the training data. For an iterator, its first epoch counts.
        label_names: the names of the outputs.
        evaluations: further evaluations, to which the outputs are added at the end of the run.
        normalize: scales a batch, if the examples are not scaled yet.
        label_scale: of the predicted numbers, in whose units their errors are.

    Raises:
        ConfError, ShapeError: an evaluation cannot be split over workers, or does not fit the network, see
            ``check_evaluations``; or the network takes another kind of batch. DataError: an item is no batch.
    """

    def __init__(
        self,
        network: Network,
        examples: Examples,
        label_names: tuple[str, ...],
        *,
        evaluations: Sequence[AnyEvaluation] = (),
        normalize: Callable[[DataSet], DataSet] = lambda batch: batch,
        label_scale: LabelScale | None = None,
    ) -> None:
        self._label_names, self._evaluations, self._label_scale = label_names, evaluations, label_scale
        jobs = _Jobs(ExampleBatches(examples), normalize)
        [first] = jobs.work(SlotPlan(0, 0, 0, 0, 0, 1, 0, 0))
        next(network.batches(first))
        whole = examples if isinstance(examples, Batch) else whole_of(examples)
        whole = normalize(whole) if isinstance(whole, DataSet) else whole
        if evaluations:
            _check(network, first.rows(0, 1), evaluations)
        super().__init__(
            network,
            performer=EVALUATE,
            jobs=jobs,
            aggregator=_Aggregator(),
            classifies=is_classified(network.conf, whole),
            batch_size=jobs.plan.batch_size,
            evaluations=[described(evaluation) for evaluation in evaluations],
            **({} if label_scale is None else {"label_scale": msgspec.to_builtins(label_scale)}),
        )

    def perform(
        self,
        run: Run,
        *,
        tracker: StateTracker | None = None,
        monitor: ClusterMonitor | None = None,
        tick: Callable[[RunStatus], None] | None = None,
    ) -> NetworkEvaluation:
        """Lead the run to its end and return the evaluation; args and errors as for ``lead``."""
        found = evaluation_in(self.lead(run, tracker=tracker, monitor=monitor, tick=tick).model)
        for number, evaluation in enumerate(self._evaluations):
            whole: Any = evaluation
            for part in found.evaluations[str(number)]:
                if isinstance(part, RegressionEvaluation) and self._label_scale is not None:
                    part = regression_in_units(part, self._label_scale, self._label_names)
                whole.merge(part)
        return merge_evaluations([found], self._label_names).in_units(self._label_scale, self._label_names)


def _check(network: Network, example: Batch, evaluations: Sequence[Any]) -> None:
    """Raise an error unless the evaluations fit the network's outputs for an example."""
    if isinstance(network, MultiLayerNetwork) and not network.conf.backprop:
        raise ConfError("the network was only pretrained: it has no outputs to evaluate, and only a loss")
    check_evaluations(evaluations, network.scored_output(example)[1])


def evaluate_with_workers(
    network: Network,
    examples: Examples,
    label_names: tuple[str, ...],
    *,
    workers: int,
    device: str = "",
    evaluations: Sequence[AnyEvaluation] = (),
    label_scale: LabelScale | None = None,
) -> NetworkEvaluation:
    """Return the result of ``evaluate_network`` from ``workers`` threads, each with its own network on the ``device``.

    ``evaluations``, ``label_scale`` and errors as for ``EvaluationRun``.
    """
    run = EvaluationRun(network, examples, label_names, evaluations=evaluations, label_scale=label_scale)
    return run.perform(run.resolve(Conf(device=device, workers=workers), workers=workers))
