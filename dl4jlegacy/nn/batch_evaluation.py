"""How well a network does on examples, batch by batch: sums that merge to the same bits whoever worked them out.

The batches may be shared out to any number of workers: the losses are added in the order of the batches, and counts are
integers, so ``merge_evaluations`` gives what one process would have got from all of them.

A network that learned to reconstruct its input has no accuracy; for it the loss is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.datasets import DataSet, MultiDataSet
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.evaluate import evaluate_batch, label_mask
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network, NetworkConfiguration
from dl4jlegacy.seeding import Stream

__all__ = [
    "ROWS",
    "BatchEvaluation",
    "NetworkEvaluation",
    "evaluate_batches",
    "example_scores",
    "is_classified",
    "merge_evaluations",
]

ROWS = 1024
"""Examples that are computed at a time, by whoever does it, since the bits of a result may depend on their number."""


@dataclass(frozen=True, slots=True)
class NetworkEvaluation:
    """How well a network does on examples.

    Attributes:
        loss: the mean loss of an example, without regularization: of the output layer, or of the last pretrained layer
            if nothing else was trained. The loss of a sequence is the sum over its time steps.
        classification: accuracy and the like; None if the network does not classify.
    """

    loss: float
    classification: Evaluation | None

    def fields(self, *, full: bool = False) -> dict[str, Any]:
        """Return ``accuracy``, ``f1`` (``full``: also ``precision``, ``recall``) and ``loss``, as reports have them."""
        names = ("accuracy", "precision", "recall", "f1") if full else ("accuracy", "f1")
        found = self.classification
        return {name: None if found is None else getattr(found, name)() for name in names} | {"loss": self.loss}

    def text(self) -> str:
        """Return the evaluation as text for people."""
        if self.classification is not None:
            return self.classification.stats()
        return f"mean loss of an example that was held out: {self.loss:.4f}\n"


@dataclass(frozen=True, slots=True)
class BatchEvaluation:
    """What is added up of some batches, in their order.

    Attributes:
        losses: the sum of the losses of each batch.
        examples: how many examples all of them have.
        confusion: counts ``(actual class, predicted class)``, int64, of all of them; None if nothing is classified.
    """

    losses: tuple[float, ...]
    examples: int
    confusion: Array | None


def is_classified(conf: NetworkConfiguration, examples: DataSet | MultiDataSet) -> bool:
    """Return whether a network tells classes apart in these examples: labels that equal features are no classes."""
    if isinstance(conf, MultiLayerConfiguration) and not conf.backprop:
        return False
    if isinstance(examples, MultiDataSet):
        return True
    features, labels = examples.features, examples.labels
    return labels is not features and not (labels.shape == features.shape and bool((labels == features).all()))


def evaluate_batches(
    network: Network,
    batches: Iterable[DataSet | MultiDataSet],
    *,
    classifies: bool,
    first: int = 0,
    batch_size: int = 0,
) -> Iterator[BatchEvaluation]:
    """Yield how well ``network`` does on each batch. Depends on the network and the batch alone.

    Args:
        network: of either kind; it is not changed.
        batches: some consecutive ones.
        classifies: whether to count classes; see ``is_classified``.
        first: the number of the first of them among all.
        batch_size: the examples of a full batch, for messages that name a row.

    Raises:
        NotFiniteError: a loss or an output is not finite; names the row. ShapeError: a batch does not fit the network.
    """
    for index, batch in enumerate(batches, first):
        if isinstance(network, MultiLayerNetwork) and not network.conf.backprop and isinstance(batch, DataSet):
            loss = _finite_sum(_pretrained_losses(network, batch, index), index * batch_size)
            yield BatchEvaluation((loss,), batch.num_examples, None)
            continue
        losses, y, own = network.scored_output(batch)
        loss, evaluation = _finite_sum(losses, index * batch_size), Evaluation()
        if classifies:
            first_output = MultiDataSet.of(batch)
            labels, mask = first_output.labels[0], first_output.labels_masks[0]
            evaluate_batch(evaluation, labels, y, label_mask(labels, mask, own))
        yield BatchEvaluation((loss,), batch.num_examples, evaluation.confusion if classifies else None)


def example_scores(network: Network, batch: DataSet, *, first: int = 0) -> Array:
    """Return the loss of every example, ``(examples,)``, without regularization.

    That of the output layer; if nothing else was trained, the reconstruction error of the last pretrained layer for its
    uncorrupted input, without sampling.

    Args:
        network: of either kind.
        batch: with the labels that it learns.
        first: the number of its first example, for messages.

    Raises:
        NotFiniteError: a loss or an output is not finite; names the row. ShapeError: a batch does not fit the network.
    """
    if isinstance(network, MultiLayerNetwork) and not network.conf.backprop:
        scores = network.reconstruction_error(batch.features, network.pretrain_layers[-1])
    else:
        scores = network.score_examples(batch)
    _finite_sum(scores, first)
    return scores


def merge_evaluations(parts: Sequence[BatchEvaluation], label_names: Sequence[str] = ()) -> NetworkEvaluation:
    """Return the evaluation of all batches.

    Args:
        parts: in the order of the batches; at least one.
        label_names: of the classes; left out if they are not one for each.
    """
    total = 0.0
    for part in parts:
        for loss in part.losses:  # one by one: floating-point sums depend on how they are grouped
            total += loss
    counts = [part.confusion for part in parts if part.confusion is not None]
    classification = None
    if counts:
        confusion = np.asarray(np.sum(counts, axis=0, dtype=np.int64))
        names = list(label_names) if len(label_names) == len(confusion) else None
        classification = Evaluation.from_dict({"confusion": confusion, "label_names": names})
    return NetworkEvaluation(total / sum(part.examples for part in parts), classification)


def _pretrained_losses(network: MultiLayerNetwork, batch: DataSet, index: int) -> Array:
    """Return the losses of a batch's examples in the last layer that is pretrained.

    A variational autoencoder is trained by a bound that needs samples: its sum over the batch is the only element.
    """
    layer = network.pretrain_layers[-1]
    if not isinstance(network.layers[layer], VariationalAutoencoder):
        return network.reconstruction_error(batch.features, layer)
    penalty = float(network.updater.penalty(network.params, layer))
    stream = Stream.of(0).at(index, purpose="held out")
    _, score = network.pretrain_gradient_and_score(layer, batch.features, stream)
    return np.array([(float(score) - penalty) * len(batch)])


def _finite_sum(losses: Array, first: int) -> float:
    """Return the sum of the losses of the rows from ``first`` on; raises ``NotFiniteError``, which names the row."""
    finite = np.isfinite(losses)
    if not finite.all():
        row = int(finite.argmin())
        raise NotFiniteError(
            f"row {first + row} (the first is 0): its loss is {float(losses[row])}; look for extreme values in this row"
        )
    return float(losses.sum())
