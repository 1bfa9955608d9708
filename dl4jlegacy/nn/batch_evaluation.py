"""How well a network does on examples, batch by batch: sums that merge to the same bits whoever worked them out.

The batches may be shared out to any number of workers: the losses are added in the order of the batches, and counts are
integers, so ``merge_evaluations`` gives what one process would have got from all of them.

A network that learned to reconstruct its input has no accuracy; for it the loss is reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.datasets import DataSet, MultiDataSet
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.evaluation.binary import EvaluationBinary
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.packed import AnyEvaluation, described, empty, joined
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network, NetworkConfiguration

__all__ = [
    "CLASS_METRICS",
    "NUMBER_METRICS",
    "ROWS",
    "BatchEvaluation",
    "NetworkEvaluation",
    "answers_each",
    "evaluate_batches",
    "example_scores",
    "is_classified",
    "join_evaluations",
    "merge_evaluations",
    "predicts_numbers",
    "takes_indices",
]

CLASS_METRICS = ("accuracy", "precision", "recall", "f1", "matthews_correlation")
NUMBER_METRICS = ("mse", "rmse", "mae", "r2", "pc")
_REGRESSION = NUMBER_METRICS[:4]
_REAL_LOSSES = frozenset(
    {"mse", "squared_loss", "l1", "l2", "mae", "mean_absolute_error", "mape", "mean_absolute_percentage_error"}
    | {"msle", "mean_squared_logarithmic_error", "poisson"}
)
ROWS = 1024
"""Examples that are computed at a time, by whoever does it, since the bits of a result may depend on their number."""


@dataclass(frozen=True, slots=True)
class NetworkEvaluation:
    """How well a network does on examples.

    Attributes:
        loss: the mean loss of an example, without regularization: of the output layer, or of the last pretrained layer
            if nothing else was trained. The loss of a sequence is the sum over its time steps.
        classification: accuracy and the like; None if the network does not classify.
        regression: how far it is from the numbers that it predicts; None if it predicts none.
        binary: how well it tells whether each of several labels is there that do not exclude each other; None if there
            are none.
    """

    loss: float
    classification: Evaluation | None
    regression: RegressionEvaluation | None = None
    binary: EvaluationBinary | None = None

    def fields(self, *, full: bool = False) -> dict[str, Any]:
        """Return ``accuracy``, ``f1`` (``full``: also ``precision``, ``recall``) and ``loss``, as reports have them.

        Of numbers that are predicted there are ``mse``, ``rmse``, ``mae`` and ``r2`` besides, means over the columns.
        Of labels that do not exclude each other there are means over them, and ``labels`` has the figures of each.
        """
        names = ("accuracy", "precision", "recall", "f1") if full else ("accuracy", "f1")
        if self.binary is not None:
            means = {name: value for name, value in self.metrics().items() if name in names}
            return means | {"loss": self.loss, "labels": _of_each(self.binary)}
        found, real = self.classification, self.regression
        fields = {name: None if found is None else getattr(found, name)() for name in names} | {"loss": self.loss}
        return fields if real is None else fields | {name: real.average(name) for name in _REGRESSION}

    def metrics(self) -> dict[str, float]:
        """Return by name all that a run can be scored by, besides the loss."""
        if self.classification is not None:
            return {name: getattr(self.classification, name)() for name in CLASS_METRICS}
        if self.binary is not None:
            return {name: self.binary.average(getattr(self.binary, name)) for name in CLASS_METRICS}
        return {} if self.regression is None else {name: self.regression.average(name) for name in NUMBER_METRICS}

    def in_units(
        self, scale: float | Sequence[float], shift: float | Sequence[float], names: Sequence[str]
    ) -> NetworkEvaluation:
        """Return the evaluation of predicted numbers that are ``output * scale + shift``, in columns of these names.

        ``scale`` and ``shift`` are those of all columns, or one for each. The loss stays that of the network's own
        outputs.
        """
        if self.regression is None:
            return self
        return dataclasses.replace(self, regression=self.regression.scaled(scale, shift, names))

    def text(self) -> str:
        """Return the evaluation as text for people."""
        if self.classification is not None:
            return self.classification.stats()
        if self.binary is not None:
            return self.binary.stats()
        if self.regression is not None:
            return self.regression.stats()
        return f"mean loss of an example that was held out: {self.loss:.4f}\n"


@dataclass(frozen=True, slots=True)
class BatchEvaluation:
    """What is added up of some batches, in their order.

    Attributes:
        losses: the sum of the losses of each batch.
        examples: how many examples all of them have.
        evaluations: of these batches, by name; of a kind whose sums are rounded each batch has its own. What the
            network does decides on ``classification``, ``regression`` or ``binary``; ``0``, ``1`` and so on are those
            that were asked for besides.
    """

    losses: tuple[float, ...]
    examples: int
    evaluations: Mapping[str, tuple[AnyEvaluation, ...]] = field(default_factory=dict)


def is_classified(conf: NetworkConfiguration, examples: DataSet | MultiDataSet) -> bool:
    """Return whether a network tells classes apart in these examples: labels that equal features are no classes.

    Of several outputs the first one counts.
    """
    if isinstance(conf, MultiLayerConfiguration) and not conf.backprop:
        return False
    if takes_indices(conf):
        return True
    labels = _first_labels(examples)
    if _are_features(examples) or _are_numbers(conf, labels):
        return False
    return not (answers_each(conf) and _are_answers(labels))


def _first_labels(examples: DataSet | MultiDataSet) -> Array:
    """Return the labels of the first output."""
    labels: Array = examples.labels[0] if isinstance(examples, MultiDataSet) else examples.labels
    return labels


def takes_indices(conf: NetworkConfiguration) -> bool:
    """Return whether the labels of a network's first output may be class indices, one column for all its values."""
    last = _last_layer(conf)
    return isinstance(last, BaseOutputLayer) and last.takes_indices()


def answers_each(conf: NetworkConfiguration) -> bool:
    """Return whether a network's first output is a probability for each label: sigmoids, binary cross-entropy."""
    last = _last_layer(conf)
    return (getattr(last, "loss", ""), getattr(last, "activation", "")) == ("xent", "sigmoid")


def _last_layer(conf: NetworkConfiguration) -> Any:
    """Return the layer of a network's first output; None if it was only pretrained."""
    if isinstance(conf, MultiLayerConfiguration):
        return conf.layers[-1] if conf.backprop else None
    return next(node.vertex for node in conf.vertices if node.name == conf.network_outputs[0])


def _are_answers(labels: Array) -> bool:
    """Return whether labels are 0 and 1 that do not exclude each other: not one class for each example."""
    if labels.ndim != 2 or not bool(((labels == 0) | (labels == 1)).all()):
        return False
    return labels.shape[1] == 1 or not bool((labels.sum(axis=1) == 1).all())


def _of_each(binary: EvaluationBinary) -> dict[str, dict[str, float]]:
    """Return what there is to say of each label."""
    names = binary.label_names or tuple(map(str, range(binary.num_labels)))
    metrics = ("accuracy", "precision", "recall", "f1", "matthews_correlation", "true_positives", "true_negatives")
    every = (*metrics, "false_positives", "false_negatives")
    return {name: {metric: getattr(binary, metric)(i) for metric in every} for i, name in enumerate(names)}


def _are_features(examples: DataSet | MultiDataSet) -> bool:
    """Return whether the labels are the features, which the network learns to reconstruct."""
    if isinstance(examples, MultiDataSet) or examples.is_sparse:
        return False
    features, labels = examples.features, examples.labels
    return labels is features or (labels.shape == features.shape and bool((labels == features).all()))


def _predicts_numbers(conf: NetworkConfiguration) -> bool:
    """Return whether a network has the loss of one that predicts numbers."""
    last = _last_layer(conf)
    return getattr(last, "loss", "") in _REAL_LOSSES


def _are_numbers(conf: NetworkConfiguration, labels: Array) -> bool:
    """Return whether labels are numbers that a network predicts: real ones, or 0 and 1 for an output without bounds."""
    if labels.ndim not in (2, 3) or not _predicts_numbers(conf):
        return False
    if not bool(((labels == 0) | (labels == 1)).all()):
        return True
    last = _last_layer(conf)
    return labels.shape[1] == 1 and getattr(last, "activation", "") == "identity"


def predicts_numbers(conf: NetworkConfiguration, examples: DataSet | MultiDataSet) -> bool:
    """Return whether a network predicts the numbers that are the labels of these examples."""
    return _predicts_numbers(conf) and not _are_features(examples)


def evaluate_batches(
    network: Network,
    batches: Iterable[DataSet | MultiDataSet],
    *,
    classifies: bool,
    first: int = 0,
    batch_size: int = 0,
    besides: Sequence[Mapping[str, Any]] = (),
) -> Iterator[BatchEvaluation]:
    """Yield how well ``network`` does on each batch. Depends on the network and the batch alone.

    Args:
        network: of either kind; it is not changed.
        batches: some consecutive ones.
        classifies: whether to count classes; see ``is_classified``.
        first: the number of the first of them among all.
        batch_size: the examples of a full batch, for messages that name a row.
        besides: further evaluations of the same outputs, as ``described``.

    Raises:
        NotFiniteError: a loss or an output is not finite; names the row. ShapeError: a batch does not fit the network.
    """
    for index, batch in enumerate(batches, first):
        if isinstance(network, MultiLayerNetwork) and not network.conf.backprop and isinstance(batch, DataSet):
            loss = _finite_sum(_pretrained_losses(network, batch, index), index * batch_size)
            yield BatchEvaluation((loss,), batch.num_examples)
            continue
        losses, found = network.scored_output(batch)
        loss = _finite_sum(losses, index * batch_size)
        evaluations = _evaluations_of(network.conf, batch, classifies=classifies)
        evaluations |= {str(number): empty(description) for number, description in enumerate(besides)}
        for evaluation in evaluations.values():
            evaluation.eval(*found)
        each = {name: (evaluation,) for name, evaluation in evaluations.items()}
        yield BatchEvaluation((loss,), batch.num_examples, each)


def _evaluations_of(
    conf: NetworkConfiguration, batch: DataSet | MultiDataSet, *, classifies: bool
) -> dict[str, AnyEvaluation]:
    """Return the evaluation that what a network does with a batch asks for, by its name in ``NetworkEvaluation``."""
    if classifies:
        return {"classification": Evaluation()}
    if predicts_numbers(conf, batch):
        return {"regression": RegressionEvaluation()}
    if _first_labels(batch).ndim == 2 and answers_each(conf) and not _are_features(batch):
        return {"binary": EvaluationBinary()}
    return {}


def example_scores(network: Network, batch: DataSet | MultiDataSet, *, first: int = 0) -> Array:
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
    if isinstance(network, MultiLayerNetwork) and isinstance(batch, DataSet) and not network.conf.backprop:
        scores = network.reconstruction_error(batch.features, network.pretrain_layers[-1])
    else:
        scores = network.score_examples(batch)
    _finite_sum(scores, first)
    return scores


def join_evaluations(parts: Sequence[BatchEvaluation]) -> BatchEvaluation:
    """Return the evaluation of consecutive batches as that of one part of the data; it merges to the same bits."""
    names = dict.fromkeys(name for part in parts for name in part.evaluations)
    return BatchEvaluation(
        tuple(loss for part in parts for loss in part.losses),
        sum(part.examples for part in parts),
        {name: joined(each for part in parts for each in part.evaluations.get(name, ())) for name in names},
    )


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
    found = join_evaluations(parts).evaluations
    whole: dict[str, Any] = {}
    for name in ("classification", "regression", "binary"):
        if name in found:
            whole[name] = empty(described(found[name][0]))
            for each in found[name]:
                whole[name].merge(each)
    classification, binary = whole.get("classification"), whole.get("binary")
    if classification is not None and len(label_names) == classification.n_classes:
        classification.label_names = tuple(label_names) or None
    if binary is not None and len(label_names) == binary.num_labels:
        binary.label_names = tuple(label_names) or None
    examples = sum(part.examples for part in parts)
    return NetworkEvaluation(total / examples, classification, whole.get("regression"), binary)


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
