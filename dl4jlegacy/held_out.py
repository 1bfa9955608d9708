"""What a trained network makes of examples that it has not seen: classes where it tells classes, and its loss.

A network that learned to rebuild its input has no accuracy; its loss is what there is to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dl4jlegacy.datasets import DataSet, DataSource
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.evaluate import evaluate_batch
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.seeding import Stream

__all__ = ["HeldOut", "evaluated", "rebuilding", "targets"]

_ROWS = 1024  # examples at a time


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The mean loss of an example, without regularization; and the classification, where the network classifies.

    The loss is the output layer's, or the last pretrained layer's where nothing else was trained; for sequences it is
    the sum over their time steps.
    """

    loss: float
    evaluation: Evaluation | None

    def fields(self, *, full: bool = False) -> dict[str, Any]:
        """Return what reports say: ``accuracy``, ``f1`` (``full``: also ``precision``, ``recall``) and ``loss``."""
        names = ("accuracy", "precision", "recall", "f1") if full else ("accuracy", "f1")
        found = self.evaluation
        return {name: None if found is None else getattr(found, name)() for name in names} | {"loss": self.loss}

    def text(self) -> str:
        """Return the evaluation for people."""
        if self.evaluation is not None:
            return self.evaluation.stats()
        return f"mean loss of an example that was held out: {self.loss:.4f}\n"


def rebuilding(data: DataSet) -> DataSet:
    """Return the examples with their features as labels."""
    return DataSet(data.features, data.features, data.features_mask, data.features_mask)


def targets(source: DataSource, model: str) -> DataSource:
    """Return the data set as a zoo model learns it: one that ``reconstructs`` takes the features for labels."""
    if model not in zoo.ZOO or not zoo.ZOO[model].reconstructs:
        return source
    return DataSource(source.name, rebuilding(source.train), rebuilding(source.test), source.label_names)


def evaluated(network: Network, test: DataSet, names: tuple[str, ...]) -> HeldOut:
    """Return what ``network`` makes of ``test``; labels that are the features themselves are no classes."""
    if isinstance(network, MultiLayerNetwork) and not network.conf.backprop:
        return HeldOut(_bound(network, test), None)
    total, evaluation = 0.0, Evaluation(network.n_out, list(names) if len(names) == network.n_out else None)
    classifies = test.labels is not test.features and not _same(test)
    for batch in test.batch_by(_ROWS):
        total += float(network.score_examples(batch).sum())
        if classifies:
            mask = batch.features_mask if batch.labels_mask is None and batch.labels.ndim == 3 else batch.labels_mask
            evaluate_batch(evaluation, batch.labels, network.output(batch.features, batch.features_mask), mask)
    return HeldOut(total / len(test), evaluation if classifies else None)


def _same(data: DataSet) -> bool:
    return data.labels.shape == data.features.shape and bool((data.labels == data.features).all())


def _bound(network: MultiLayerNetwork, data: DataSet) -> float:
    """Return the mean loss of the last layer that pretrains."""
    layer, total = network.pretrain_layers[-1], 0.0
    penalty = float(network.updater.penalty(network.params, layer))
    for index, batch in enumerate(data.batch_by(_ROWS)):
        score = network.pretrain_gradient_and_score(layer, batch.features, Stream.of(0).at(index, purpose="held out"))[
            1
        ]
        total += (float(score) - penalty) * len(batch)
    return total / len(data)
