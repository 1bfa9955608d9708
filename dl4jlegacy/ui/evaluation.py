"""Evaluation of a run's newest checkpoint on held-out data, computed on request."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets import DataSet
from dl4jlegacy.errors import ConfError, ShapeError, counted
from dl4jlegacy.models.model import TrainedModel, evaluate_network, source_for_model
from dl4jlegacy.models.reconstruction import draw_samples, image_shape, reconstruct, reconstruction_grid, sample_grid
from dl4jlegacy.models.verdicts import verdict_on
from dl4jlegacy.nn.batch_evaluation import NetworkEvaluation
from dl4jlegacy.nn.evaluation.verdict import Baseline
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.pretrain_stack import pretrain_stack
from dl4jlegacy.training.prepare import read_checkpoint
from dl4jlegacy.training.saved_model import checkpoint_model
from dl4jlegacy.ui.model_view import ImageView, image_view

__all__ = ["EvaluationView", "evaluate_newest"]

_MOST_CLASSES = 50
_RECONSTRUCTED, _DRAWN, _COLUMNS = 1000, 40, 20


class EvaluationView(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of a checkpoint.

    Attributes:
        run, version, round: which model that was.
        examples: how many were held out.
        loss: their mean loss.
        figures: accuracy, f1 and the like, or those of predicted numbers, by name.
        learned, baseline, findings: what a report says beside these, as in ``Verdict``.
        labels: the names of the classes; () if nothing is classified, or if there are more than 50.
        confusion: how many examples of each class (rows) were taken for each (columns); as ``labels``.
        images: reconstructions and samples, of a network that gives back or draws images.
    """

    run: str
    version: int
    round: int
    examples: int
    loss: float
    figures: dict[str, float]
    learned: bool | None
    baseline: Baseline | None
    findings: tuple[str, ...]
    labels: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    images: tuple[ImageView, ...]


def evaluate_newest(folder: str) -> EvaluationView:
    """Return the evaluation of the newest checkpoint in a folder on the held-out part of the run's own data.

    Raises:
        CheckpointError: there is no usable checkpoint.
        DataError: the run's data are not on this machine.
        NotFiniteError: a loss or an output is not finite.
    """
    kept = read_checkpoint(folder)
    source, head = kept.data, kept.head
    learned = source_for_model(source, kept.conf.model)
    test = learned.test
    found = evaluate_network(kept.network, test, source.label_names, label_scale=source.reading.label_scale)
    verdict = verdict_on(found, kept.network.conf, learned.train, test, source.reading)
    labels, confusion = _confusion_of(found, source.label_names)
    return EvaluationView(
        run=head.run,
        version=head.version,
        round=head.round,
        examples=test.num_examples,
        loss=found.loss,
        figures=found.metrics(),
        learned=verdict.learned,
        baseline=verdict.baseline,
        findings=verdict.findings,
        labels=labels,
        confusion=confusion,
        images=_images_of(checkpoint_model(kept, f"of run {head.run}"), test),
    )


def _confusion_of(
    found: NetworkEvaluation, names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    if found.classification is None or found.classification.n_classes > _MOST_CLASSES:
        return (), ()
    counts = found.classification.confusion
    labels = names if len(names) == len(counts) else tuple(map(str, range(len(counts))))
    return labels, tuple(tuple(row) for row in counts.tolist())


def _images_of(model: TrainedModel, test: DataSet) -> tuple[ImageView, ...]:
    """Return a model's reconstructions of held-out images and its samples; () if it produces neither."""
    try:
        shape = image_shape(model)
        return tuple(_reconstructions(model, test, shape)) + tuple(_samples(model, shape))
    except (ConfError, ShapeError):  # it reconstructs nothing, or nothing that is an image
        return ()


def _reconstructions(model: TrainedModel, test: DataSet, shape: tuple[int, int, int]) -> list[ImageView]:
    first = _in_units(model, test.features[:_RECONSTRUCTED])
    found = reconstruct(model, [first], count=_COLUMNS)
    grid = reconstruction_grid(found, shape, columns=_COLUMNS)
    text = (
        f"held-out examples, and below them what the model gives back of them; mean squared error "
        f"{found.mean_squared_error:.4g} over {counted(found.examples, 'example')}"
    )
    return [image_view(grid, text)]


def _samples(model: TrainedModel, shape: tuple[int, int, int]) -> list[ImageView]:
    """Return samples of a variational autoencoder, or of an RBM that backpropagation has not changed."""
    stack = pretrain_stack(model.network)
    top = stack[-1] if stack else None
    if not isinstance(top, VariationalAutoencoder | RBM) or (isinstance(top, RBM) and model.network.conf.backprop):
        return []
    drawn = draw_samples(model, _DRAWN)
    return [image_view(sample_grid(drawn, shape, columns=_COLUMNS), f"{_DRAWN} examples that the model finds probable")]


def _in_units(model: TrainedModel, rows: Array) -> Array:
    """Return features before scaling, ``(examples, n_in)``."""
    flat = np.asarray(rows).reshape(len(rows), math.prod(rows.shape[1:]))
    return flat if model.reading.normalizer is None else model.reading.normalizer.revert(DataSet(flat)).features
