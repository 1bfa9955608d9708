"""Using a trained network, alone or with its normalizer and labels: evaluate it on examples that it has not seen.

A network that learned to reconstruct its input has no accuracy; for it the loss is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dl4jlegacy import storage
from dl4jlegacy.backend import Array, to_host
from dl4jlegacy.datasets import DataSet, DataSource, load
from dl4jlegacy.datasets.normalizers import Normalizer
from dl4jlegacy.errors import ModelError, ShapeError, counted
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.batch_evaluation import (
    ROWS,
    NetworkEvaluation,
    evaluate_batches,
    example_scores,
    is_classified,
    merge_evaluations,
)
from dl4jlegacy.nn.dl4j.serializer import restore_label_names, restore_model, restore_normalizer
from dl4jlegacy.nn.evaluation.classification import Evaluation
from dl4jlegacy.nn.networks import Network, input_type_of

__all__ = [
    "SPLITS",
    "NetworkEvaluation",
    "TrainedModel",
    "evaluate_model",
    "evaluate_network",
    "read_model",
    "score_examples",
    "source_for_model",
    "with_features_as_labels",
]

SPLITS = ("test", "train", "all")
"""The parts of a data set that a model can be evaluated on."""


def with_features_as_labels(examples: DataSet) -> DataSet:
    """Return the examples for a network that learns to reconstruct its input."""
    return DataSet(examples.features, examples.features, examples.features_mask, examples.features_mask)


def source_for_model(source: DataSource, model: str) -> DataSource:
    """Return the data set with the labels that a zoo model learns: the features, if the model ``reconstructs``."""
    if model not in zoo.ZOO or not zoo.ZOO[model].reconstructs:
        return source
    train, test = with_features_as_labels(source.train), with_features_as_labels(source.test)
    return DataSource(source.name, train, test, source.label_names)


def evaluate_network(
    network: Network, examples: DataSet, label_names: tuple[str, ...], *, batch_size: int = ROWS
) -> NetworkEvaluation:
    """Return how well ``network`` does on ``examples``; it is no classification if labels equal features.

    Args:
        network: of either kind.
        examples: at least one.
        label_names: of the classes.
        batch_size: examples at a time.

    Raises:
        NotFiniteError: a loss or an output is not finite; names the row.
    """
    batches, classifies = examples.batch_by(batch_size), is_classified(network.conf, examples)
    with threadpool_limits(limits=1, user_api="blas"):  # as in workers: with more threads sums may be rounded otherwise
        parts = list(evaluate_batches(network, batches, classifies=classifies, batch_size=batch_size))
    return merge_evaluations(parts, label_names)


def score_examples(network: Network, examples: DataSet) -> Iterator[Array]:
    """Yield the loss of each example, ``ROWS`` at a time; see ``example_scores``. Raises as that does."""
    for index, batch in enumerate(examples.batch_by(ROWS)):
        with threadpool_limits(limits=1, user_api="blas"):
            scores = example_scores(network, batch, first=index * ROWS)
        yield scores


Evaluate = Callable[[Network, DataSet, tuple[str, ...]], NetworkEvaluation]
"""``evaluate_network``, or what does the same with more hands."""


def evaluate_model(
    model: TrainedModel,
    dataset: str,
    data_dir: str = "",
    *,
    split: str = "test",
    evaluate: Evaluate = evaluate_network,
    then: Callable[[Network, DataSet], None] = lambda network, examples: None,
) -> tuple[NetworkEvaluation, dict[str, Any]]:
    """Evaluate a model on a part of a data set.

    Args:
        model: as ``load_model`` returns it.
        dataset, data_dir: as ``datasets.load`` takes them, or in S3.
        split: which part, one of ``SPLITS``.
        evaluate: computes it.
        then: is given the network and the examples afterwards, with the labels that it learns, scaled for it.

    Returns:
        the evaluation, and the report's JSON object.

    Raises:
        DataError: the data set cannot be read.
        ShapeError: it does not fit the model.
    """
    network = model.network
    source = load(
        storage.local(dataset),
        data_dir=storage.local(data_dir) or None,
        n_classes=network.n_out,
        label_names=model.label_names or None,
    )
    parts = {"test": (source.test,), "train": (source.train,), "all": (source.train, source.test)}[split]
    examples = DataSet.merge(parts) if len(parts) > 1 else parts[0]
    model.check_width(examples.n_in, dataset)
    if not network.conf.backprop or (network.n_out == examples.n_in != examples.n_out):
        examples = with_features_as_labels(examples)
    elif examples.n_out != network.n_out:
        raise ShapeError(
            f"model {model.name} has {counted(network.n_out, 'output')}, "
            f"data set {dataset} {counted(examples.n_out, 'class', 'classes')}; "
            "is it the right data set?"
        )
    examples = model.normalize(examples)
    evaluation = evaluate(network, examples, source.label_names)
    then(network, examples)
    fields = {
        "model": model.name,
        "dataset": dataset,
        "split": split,
        "examples": examples.num_examples,
        **evaluation.fields(full=True),
    }
    return evaluation, fields


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained network with what belongs to it: ``load_model`` returns one.

    Attributes:
        network: a ``MultiLayerNetwork`` or ``ComputationGraph``. By itself it takes features that are scaled as in
            training.
        normalizer: what its training data were scaled with; None: they were not.
        label_names: what its outputs stand for; () if nobody has said.
        name: what messages call it, such as the path of its file.
    """

    network: Network
    normalizer: Normalizer | None = None
    label_names: tuple[str, ...] = ()
    name: str = "the model"

    def output(self, features: Any) -> Array:
        """Return the outputs, ``(examples, n_out)`` on the host, for features as the data came, before any scaling.

        A classifier's are the probabilities of its classes.

        Raises:
            ShapeError: the model takes other features. NotFiniteError: an output is NaN or infinite; names its row.
        """
        examples = DataSet(features)
        self.check_width(examples.n_in, "the given data")
        return np.asarray(to_host(self.network.output(self.normalize(examples).features)))

    def predict(self, features: Any) -> Array:
        """Return the number of the most probable class of each example, ``(examples,)``; errors as for ``output``.

        ``label_names`` has the names of these numbers.
        """
        classes: Array = self.output(features).argmax(axis=1)
        return classes

    def evaluate(self, examples: DataSet) -> Evaluation:
        """Return the classification metrics on examples as they came, before any scaling; errors as for ``output``."""
        self.check_width(examples.n_in, "the given data")
        names = self.label_names if len(self.label_names) == self.network.n_out else None
        return self.network.evaluate(self.normalize(examples), label_names=names)

    def normalize(self, examples: DataSet) -> DataSet:
        """Return examples scaled as those that the network was trained on."""
        return examples if self.normalizer is None else self.normalizer.transform(examples)

    def class_names(self, n_in: int) -> tuple[str, ...]:
        """Return a name for each output: their numbers if they have none.

        The names in the file of a network that rebuilds its ``n_in`` inputs are those of the data's classes, which its
        outputs are not.

        Raises:
            ModelError: the names are not one for each output, and the network classifies.
        """
        names, n_out, last = self.label_names, self.network.n_out, self.network.layers[-1]
        if names and len(set(names)) == len(names) == n_out:
            return names
        rebuilds = n_out == n_in and getattr(last, "activation", "") != "softmax"
        if not names or not self.network.conf.backprop or rebuilds:
            return tuple(map(str, range(n_out)))
        raise ModelError(
            f"model file {self.name} is unusable: {counted(len(names), 'label name')}, {len(set(names))} different, "
            f"for {counted(n_out, 'output')}; save it again with one name for each"
        )

    def check_width(self, n_in: int, what: str) -> None:
        """Raise ``ShapeError`` unless examples of so many features fit."""
        if not input_type_of(self.network).fits_columns(n_in):
            raise ShapeError(
                f"model {self.name} takes {counted(self.network.n_in, 'feature')}, {what} has {n_in}; is it the right "
                "data set?"
            )


def read_model(path: str, kernels: Kernels | None = None) -> TrainedModel:
    """Return the model in a file, here or in S3; errors as for ``restore_model``."""
    file = storage.local(path)
    network = restore_model(file, load_updater=False, kernels=kernels)
    return TrainedModel(network, restore_normalizer(file), restore_label_names(file), name=path)
