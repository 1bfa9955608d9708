"""Evaluation of a network batch by batch, with sums that merge to the same bits for any division of the work.

The batches may be divided among any number of workers: the losses are added in the order of the batches, and counts are
integers, so ``merge_evaluations`` returns the same result as one process that evaluates all batches.

A network that reconstructs its input has no accuracy; its loss is reported.
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
from dl4jlegacy.datasets.label_scale import LabelScale
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.evaluation.binary import EvaluationBinary
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.evaluate import Compared
from dl4jlegacy.nn.evaluation.packed import AnyEvaluation, described, empty, joined
from dl4jlegacy.nn.evaluation.regression import RegressionEvaluation
from dl4jlegacy.nn.evaluation.verdict import class_recall, macro_f1
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
    "regression_in_units",
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
"""Examples per forward pass, equal in all processes, since the bits of a result may depend on their number."""


@dataclass(frozen=True, slots=True)
class NetworkEvaluation:
    """The metrics of a network on examples.

    Attributes:
        loss: the mean loss of an example, without regularization: of the output layer, or of the last pretrained layer
            if nothing else was trained. The loss of a sequence is the sum over its time steps.
        classification: accuracy and related metrics; None if the network does not classify.
        regression: errors of predicted numbers; None if the network predicts none.
        binary: metrics of independent yes-or-no labels (multi-label); None if there are none.
    """

    loss: float
    classification: Evaluation | None
    regression: RegressionEvaluation | None = None
    binary: EvaluationBinary | None = None

    def fields(self, *, full: bool = False) -> dict[str, Any]:
        """Return ``accuracy``, ``f1`` (``full``: also ``precision``, ``recall``) and ``loss``, as in reports.

        For classes there are also ``macro_f1``, the mean F1 of all classes, and ``class_recall``. For regression there
        are also ``mse``, ``rmse``, ``mae`` and ``r2``, as means over the columns. For multi-label classification the
        metrics are means over the labels, and ``labels`` has the metrics of each label.
        """
        names = ("accuracy", "precision", "recall", "f1") if full else ("accuracy", "f1")
        if self.binary is not None:
            means = {name: value for name, value in self.metrics().items() if name in names}
            return means | {"macro_f1": means["f1"], "loss": self.loss, "labels": _of_each(self.binary)}
        found, real = self.classification, self.regression
        fields = {name: None if found is None else getattr(found, name)() for name in names} | {"loss": self.loss}
        if found is not None:
            names_of = found.label_names or tuple(map(str, range(found.n_classes)))
            fields |= {"macro_f1": macro_f1(found.confusion)}
            fields |= {"class_recall": dict(zip(names_of, class_recall(found.confusion), strict=True))}
        return fields if real is None else fields | {name: real.average(name) for name in _REGRESSION}

    def metrics(self) -> dict[str, float]:
        """Return all metrics that a run can be scored by, except the loss, by name."""
        if self.classification is not None:
            return {name: getattr(self.classification, name)() for name in CLASS_METRICS}
        if self.binary is not None:
            return {name: self.binary.average(getattr(self.binary, name)) for name in CLASS_METRICS}
        return {} if self.regression is None else {name: self.regression.average(name) for name in NUMBER_METRICS}

    def in_units(self, scale: LabelScale | None, names: Sequence[str]) -> NetworkEvaluation:
        """Return the evaluation of predictions in the labels' units, in columns ``names``; None: it is in them.

        ``scale`` is that with which ``evaluate_batches`` was called. The loss remains that of the network's own
        outputs.
        """
        if self.regression is None or scale is None:
            return self
        return dataclasses.replace(self, regression=regression_in_units(self.regression, scale, names))

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
    """The sums over some consecutive batches.

    Attributes:
        losses: the sum of the losses of each batch.
        examples: the number of examples in all batches.
        evaluations: evaluations of these batches by name; if a kind has sums that are rounded, there is one for each
            batch. The network's task decides between ``classification``, ``regression`` and ``binary``; ``0``, ``1``
            and so on are the additional evaluations in the order of the request.
    """

    losses: tuple[float, ...]
    examples: int
    evaluations: Mapping[str, tuple[AnyEvaluation, ...]] = field(default_factory=dict)


def regression_in_units(
    evaluation: RegressionEvaluation, scale: LabelScale, names: Sequence[str]
) -> RegressionEvaluation:
    """Return an evaluation by ``evaluate_batches`` in the labels' units, in columns ``names``."""
    if scale.is_linear:
        return evaluation.scaled(scale.stds, scale.means, names)
    return evaluation.scaled(1.0, 0.0, names)  # where a logarithm is learned, each output was converted before it


def is_classified(conf: NetworkConfiguration, examples: DataSet | MultiDataSet) -> bool:
    """Return whether a network classifies these examples; labels that equal the features are not classes.

    For a network with several outputs, the first one decides.
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
    """Return whether the labels of the network's first output may be class indices in a single column."""
    last = _last_layer(conf)
    return isinstance(last, BaseOutputLayer) and last.takes_indices()


def answers_each(conf: NetworkConfiguration) -> bool:
    """Return whether the first output is multi-label: sigmoid outputs with binary cross-entropy."""
    last = _last_layer(conf)
    return (getattr(last, "loss", ""), getattr(last, "activation", "")) == ("xent", "sigmoid")


def _last_layer(conf: NetworkConfiguration) -> Any:
    """Return the layer of a network's first output; None if the network was only pretrained."""
    if isinstance(conf, MultiLayerConfiguration):
        return conf.layers[-1] if conf.backprop else None
    return next(node.vertex for node in conf.vertices if node.name == conf.network_outputs[0])


def _are_answers(labels: Array) -> bool:
    """Return whether labels are multi-label: 0 and 1, and not exactly one class for each example."""
    if labels.ndim != 2 or not bool(((labels == 0) | (labels == 1)).all()):
        return False
    return labels.shape[1] == 1 or not bool((labels.sum(axis=1) == 1).all())


def _of_each(binary: EvaluationBinary) -> dict[str, dict[str, float]]:
    """Return the metrics of each label by name."""
    names = binary.label_names or tuple(map(str, range(binary.num_labels)))
    metrics = ("accuracy", "precision", "recall", "f1", "matthews_correlation", "true_positives", "true_negatives")
    every = (*metrics, "false_positives", "false_negatives")
    return {name: {metric: getattr(binary, metric)(i) for metric in every} for i, name in enumerate(names)}


def _are_features(examples: DataSet | MultiDataSet) -> bool:
    """Return whether the labels equal the features, so that the network learns to reconstruct."""
    if isinstance(examples, MultiDataSet) or examples.is_sparse:
        return False
    features, labels = examples.features, examples.labels
    return labels is features or (labels.shape == features.shape and bool((labels == features).all()))


def _predicts_numbers(conf: NetworkConfiguration) -> bool:
    """Return whether the network's loss is a regression loss."""
    last = _last_layer(conf)
    return getattr(last, "loss", "") in _REAL_LOSSES


def _are_numbers(conf: NetworkConfiguration, labels: Array) -> bool:
    """Return whether labels are regression targets: real numbers, or 0 and 1 for one unbounded output."""
    if labels.ndim not in (2, 3) or not _predicts_numbers(conf):
        return False
    if not bool(((labels == 0) | (labels == 1)).all()):
        return True
    last = _last_layer(conf)
    return labels.shape[1] == 1 and getattr(last, "activation", "") == "identity"


def predicts_numbers(conf: NetworkConfiguration, examples: DataSet | MultiDataSet) -> bool:
    """Return whether a network does regression on these examples."""
    return _predicts_numbers(conf) and not _are_features(examples)


def evaluate_batches(
    network: Network,
    batches: Iterable[DataSet | MultiDataSet],
    *,
    classifies: bool,
    first: int = 0,
    batch_size: int = 0,
    besides: Sequence[Mapping[str, Any]] = (),
    label_scale: LabelScale | None = None,
) -> Iterator[BatchEvaluation]:
    """Yield the evaluation of each batch. The result depends only on the network and the batch.

    Args:
        network: of either kind; it is not changed.
        batches: consecutive batches.
        classifies: whether to count classes; see ``is_classified``.
        first: the number of the first of these batches among all.
        batch_size: the examples of a full batch, for messages that name a row.
        besides: additional evaluations of the same outputs, as ``described``.
        label_scale: of the predicted numbers. If the network learns a logarithm, errors are those in the labels' units.

    Raises:
        NotFiniteError: a loss or an output is not finite; names the row. ShapeError: a batch does not fit the network.
    """
    for index, batch in enumerate(batches, first):
        if isinstance(network, MultiLayerNetwork) and not network.conf.backprop and isinstance(batch, DataSet):
            loss = _finite_sum(_pretrained_losses(network, batch, index), index * batch_size)
            yield BatchEvaluation((loss,), batch.num_examples)
            continue
        losses, found = network.scored_output(batch)
        numbers = found if label_scale is None or label_scale.is_linear else _in_units(found, label_scale)
        loss = _finite_sum(losses, index * batch_size)
        evaluations = _evaluations_of(network.conf, batch, classifies=classifies)
        evaluations |= {str(number): empty(description) for number, description in enumerate(besides)}
        for evaluation in evaluations.values():
            evaluation.eval(*(numbers if isinstance(evaluation, RegressionEvaluation) else found))
        each = {name: (evaluation,) for name, evaluation in evaluations.items()}
        yield BatchEvaluation((loss,), batch.num_examples, each)


def _in_units(found: Compared, scale: LabelScale) -> Compared:
    """Return labels and outputs in the labels' units."""
    labels = scale.in_units(found.labels, limited=False)
    return found._replace(labels=labels, output=scale.in_units(found.output))


def _evaluations_of(
    conf: NetworkConfiguration, batch: DataSet | MultiDataSet, *, classifies: bool
) -> dict[str, AnyEvaluation]:
    """Return the evaluation that fits the network's task on a batch, by its name in ``NetworkEvaluation``."""
    if classifies:
        return {"classification": Evaluation()}
    if predicts_numbers(conf, batch):
        return {"regression": RegressionEvaluation()}
    if _first_labels(batch).ndim == 2 and answers_each(conf) and not _are_features(batch):
        return {"binary": EvaluationBinary()}
    return {}


def example_scores(network: Network, batch: DataSet | MultiDataSet, *, first: int = 0) -> Array:
    """Return the loss of every example, ``(examples,)``, without regularization.

    It is the loss of the output layer. If nothing else was trained, it is the reconstruction error of the last
    pretrained layer for its uncorrupted input, without sampling.

    Args:
        network: of either kind.
        batch: the examples with their labels.
        first: the number of the batch's first example, for messages.

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
    """Return the evaluations of consecutive batches as one; merging it gives the same bits."""
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
        label_names: names of the classes; ignored if their number differs from the number of classes.
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
    """Return the reconstruction losses of a batch's examples in the last pretrained layer.

    A variational autoencoder is trained on a bound that needs samples; its result has one element, the sum over the
    batch.
    """
    layer = network.pretrain_layers[-1]
    if not isinstance(network.layers[layer], VariationalAutoencoder):
        return network.reconstruction_error(batch.features, layer)
    penalty = float(network.updater.penalty(network.params, layer))
    stream = Stream.of(0).at(index, purpose="held out")
    _, score = network.pretrain_gradient_and_score(layer, batch.features, stream)
    return np.array([(float(score) - penalty) * len(batch)])


def _finite_sum(losses: Array, first: int) -> float:
    """Return the sum of ``losses``, whose first row is ``first``; raises ``NotFiniteError``, which names the row."""
    finite = np.isfinite(losses)
    if not finite.all():
        row = int(finite.argmin())
        raise NotFiniteError(
            f"row {first + row} (the first is 0): its loss is {float(losses[row])}; look for extreme values in this row"
        )
    return float(losses.sum())
