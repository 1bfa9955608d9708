"""Using a trained network: evaluate it on examples that it has not seen, or predict the rows of a file.

A network that learned to reconstruct its input has no accuracy; for it the loss is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dl4jlegacy import storage
from dl4jlegacy.backend import Array, to_host
from dl4jlegacy.datasets import DataSet, DataSource, load, read_csv
from dl4jlegacy.datasets.normalizers import Normalizer
from dl4jlegacy.errors import ModelError, NotFiniteError, ShapeError, counted
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.dl4j.serializer import restore_label_names, restore_model, restore_normalizer
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.evaluation.evaluate import do_evaluation
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network, input_type_of
from dl4jlegacy.seeding import Stream

__all__ = [
    "SPLITS",
    "NetworkEvaluation",
    "Prediction",
    "evaluate_model",
    "evaluate_network",
    "predict",
    "predict_file",
    "source_for_model",
    "with_features_as_labels",
]

SPLITS = ("test", "train", "all")
"""The parts of a data set that a model can be evaluated on."""
_ROWS = 1024  # examples at a time


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


def with_features_as_labels(examples: DataSet) -> DataSet:
    """Return the examples for a network that learns to reconstruct its input."""
    return DataSet(examples.features, examples.features, examples.features_mask, examples.features_mask)


def source_for_model(source: DataSource, model: str) -> DataSource:
    """Return the data set with the labels that a zoo model learns: the features, if the model ``reconstructs``."""
    if model not in zoo.ZOO or not zoo.ZOO[model].reconstructs:
        return source
    train, test = with_features_as_labels(source.train), with_features_as_labels(source.test)
    return DataSource(source.name, train, test, source.label_names)


def evaluate_network(network: Network, examples: DataSet, label_names: tuple[str, ...]) -> NetworkEvaluation:
    """Return how well ``network`` does on ``examples``; it is no classification if labels equal features."""
    if isinstance(network, MultiLayerNetwork) and not network.conf.backprop:
        return NetworkEvaluation(_pretraining_loss(network, examples), None)
    total = 0.0
    evaluation = Evaluation(network.n_out, list(label_names) if len(label_names) == network.n_out else None)
    classifies = examples.labels is not examples.features and not _labels_equal_features(examples)
    for index, batch in enumerate(examples.batch_by(_ROWS)):
        total += _finite_sum(network.score_examples(batch), index * _ROWS)
        if classifies:
            do_evaluation(network, batch, evaluation)
    return NetworkEvaluation(total / len(examples), evaluation if classifies else None)


def _finite_sum(losses: Array, first: int) -> float:
    """Return the sum of the losses of the rows from ``first`` on; raises ``NotFiniteError``, which names the row."""
    finite = np.isfinite(losses)
    if not finite.all():
        row = int(finite.argmin())
        raise NotFiniteError(
            f"row {first + row} (the first is 0): its loss is {float(losses[row])}; look for extreme values in this row"
        )
    return float(losses.sum())


def _labels_equal_features(examples: DataSet) -> bool:
    return examples.labels.shape == examples.features.shape and bool((examples.labels == examples.features).all())


def _pretraining_loss(network: MultiLayerNetwork, examples: DataSet) -> float:
    """Return the mean loss of an example in the last layer that is pretrained."""
    layer, total = network.pretrain_layers[-1], 0.0
    penalty = float(network.updater.penalty(network.params, layer))
    for index, batch in enumerate(examples.batch_by(_ROWS)):
        stream = Stream.of(0).at(index, purpose="held out")
        _, score = network.pretrain_gradient_and_score(layer, batch.features, stream)
        total += _finite_sum(np.array([(float(score) - penalty) * len(batch)]), index * _ROWS)
    return total / len(examples)


def evaluate_model(
    model: str, dataset: str, data_dir: str = "", *, split: str = "test", kernels: Kernels | None = None
) -> tuple[NetworkEvaluation, dict[str, Any]]:
    """Evaluate a saved model on a part of a data set.

    Args:
        model: the file, here or in S3.
        dataset, data_dir: as ``datasets.load`` takes them, or in S3.
        split: which part, one of ``SPLITS``.
        kernels: that compute it, as ``scaleout.compute.use_device`` yields them; None: those of the CPU.

    Returns:
        the evaluation, and the report's JSON object.

    Raises:
        ModelError, DataError: the model or the data set cannot be read.
        ShapeError: they do not fit each other.
    """
    saved = _restore(model, kernels)
    network = saved.network
    source = load(
        storage.local(dataset),
        data_dir=storage.local(data_dir) or None,
        n_classes=network.n_out,
        label_names=saved.label_names or None,
    )
    parts = {"test": (source.test,), "train": (source.train,), "all": (source.train, source.test)}[split]
    examples = DataSet.merge(parts) if len(parts) > 1 else parts[0]
    _check_width(network, examples.n_in, model, dataset)
    if not network.conf.backprop or (network.n_out == examples.n_in != examples.n_out):
        examples = with_features_as_labels(examples)
    elif examples.n_out != network.n_out:
        raise ShapeError(
            f"model {model} has {counted(network.n_out, 'output')}, "
            f"data set {dataset} {counted(examples.n_out, 'class', 'classes')}; "
            "is it the right data set?"
        )
    evaluation = evaluate_network(network, saved.normalize(examples), source.label_names)
    fields = {
        "model": model,
        "dataset": dataset,
        "split": split,
        "examples": examples.num_examples,
        **evaluation.fields(full=True),
    }
    return evaluation, fields


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predictions of a saved model for the rows of a file: the report's JSON object, and one line for each row."""

    fields: dict[str, Any]
    lines: tuple[str, ...]


def predict_file(model: str, path: Path, *, kernels: Kernels | None = None) -> Prediction:
    """Return a saved model's predictions for a CSV file of features; a label column with a header is left out.

    ``kernels`` and errors as in ``evaluate_model``.
    """
    saved = _restore(model, kernels)
    features = read_csv(path, labelled=False)[0].features
    names = saved.class_names(model, features.shape[1]) or tuple(str(n) for n in range(saved.network.n_out))
    classes, probabilities = _predict(saved, features, model, str(path))
    numbers = [int(number) for number in classes]
    fields = {
        "model": model,
        "examples": len(features),
        "label_names": list(names),
        "predictions": numbers,
        "probabilities": [[round(float(p), 6) for p in row] for row in probabilities],
    }
    numbered = all(name == str(number) for number, name in enumerate(names))
    return Prediction(fields, tuple(str(n) if numbered else f"{n} {names[n]}" for n in numbers))


def predict(model: str, features: Array, what: str) -> tuple[Array, Array]:
    """Return (classes, probabilities) of a saved model for ``features`` ``(examples, n_in)``; errors say ``what``."""
    return _predict(_restore(model), features, model, what)


def _predict(saved: _SavedModel, features: Array, model: str, what: str) -> tuple[Array, Array]:
    _check_width(saved.network, features.shape[1], model, what)
    output = np.asarray(to_host(saved.network.output(saved.normalize(DataSet(features)).features)))
    return output.argmax(axis=1), output


@dataclass(frozen=True, slots=True)
class _SavedModel:
    """The contents of a model file."""

    network: Network
    normalizer: Normalizer | None
    label_names: tuple[str, ...]

    def normalize(self, examples: DataSet) -> DataSet:
        return examples if self.normalizer is None else self.normalizer.transform(examples)

    def class_names(self, model: str, n_in: int) -> tuple[str, ...]:
        """Return a name for each output, () if they have none.

        The names in the file of a network that rebuilds its ``n_in`` inputs are those of the data's classes, which its
        outputs are not.

        Raises:
            ModelError: the names are not one for each output, and the network classifies.
        """
        names, n_out, last = self.label_names, self.network.n_out, self.network.layers[-1]
        if not names or len(set(names)) == len(names) == n_out:
            return names
        if not self.network.conf.backprop or (n_out == n_in and getattr(last, "activation", "") != "softmax"):
            return ()
        raise ModelError(
            f"model file {model} is unusable: {counted(len(names), 'label name')}, {len(set(names))} different, for "
            f"{counted(n_out, 'output')}; save it again with one name for each"
        )


def _restore(model: str, kernels: Kernels | None = None) -> _SavedModel:
    model = storage.local(model)
    network = restore_model(model, load_updater=False, kernels=kernels)
    return _SavedModel(network, restore_normalizer(model), restore_label_names(model))


def _check_width(network: Network, n_in: int, model: str, what: str) -> None:
    if not input_type_of(network).fits_columns(n_in):
        raise ShapeError(
            f"model {model} takes {counted(network.n_in, 'feature')}, {what} has {n_in}; is it the right data set?"
        )
