"""Letting evaluations look at a network's output, batch by batch, masks considered.

Legacy: ``MultiLayerNetwork.doEvaluation`` and ``ComputationGraph.doEvaluation``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from dl4jlegacy.backend import Array, to_host
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.multi_dataset import MultiDataSet
from dl4jlegacy.nn.evaluation.rows import IEvaluation

__all__ = ["Data", "batches_of", "counted", "do_evaluation", "looked_at"]

Data = Iterable[DataSet] | Iterable[MultiDataSet] | DataSet | MultiDataSet
"""A data set (one batch), or an iterator of batches."""


class _Answers(Protocol):
    def output(self, x: Any, features_mask: Any = None) -> Array: ...


def batches_of(data: Data, epochs: int = 1) -> Iterable[MultiDataSet]:
    """Yield the batches of so many epochs; a data set is one batch."""
    for _ in range(epochs):
        whole: Any = [data] if isinstance(data, DataSet | MultiDataSet) else data
        for batch in whole:
            yield MultiDataSet.of(batch)


def counted(labels: Array, labels_mask: Array | None, features_mask: Array | None) -> Array | None:
    """Return the mask that says which labels count: of sequences without one of their own, that of the features."""
    return features_mask if labels_mask is None and labels.ndim == 3 else labels_mask


def do_evaluation(network: _Answers, data: Data, *evaluations: IEvaluation) -> None:
    """Let evaluations of any kind look at the (first) output of a network of either kind, over one epoch of ``data``.

    Raises like ``network.output`` and the evaluations' ``eval``.
    """
    for batch in batches_of(data):
        several = len(batch.features) > 1
        x: Any = batch.features if several else batch.features[0]
        masks: Any = batch.features_masks if several else batch.features_masks[0]
        y = network.output(x, masks)
        mask = counted(batch.labels[0], batch.labels_masks[0], batch.features_masks[0])
        for evaluation in evaluations:
            looked_at(evaluation, batch.labels[0], y, mask)


def looked_at(evaluation: IEvaluation, labels: Array, y: Array, mask: Array | None) -> None:
    """Let an evaluation, which counts on the host, look at outputs wherever they are."""
    evaluation.eval(to_host(labels), to_host(y), None if mask is None else to_host(mask))
