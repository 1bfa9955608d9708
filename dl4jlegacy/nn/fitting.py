"""Whether data fit a network, found out before anything is trained (L2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dl4jlegacy.backend import Array
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import DataSetIterator
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.nn.losses import LOSSES
from dl4jlegacy.nn.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network, input_type_of
from dl4jlegacy.nn.output import BaseOutputLayer
from dl4jlegacy.nn.stack import Stack

__all__ = ["check_fits", "check_labels", "check_output"]

_SHARES = ("mcxent", "negativeloglikelihood", "xent", "kl_divergence", "reconstruction_crossentropy")
_PROBABILITIES = ("mcxent", "negativeloglikelihood", "sparse_mcxent", "xent")
_BOUNDED = ("softmax", "sigmoid", "hardsigmoid")

_WANTED: dict[str, tuple[str, Callable[[Array], Array]]] = {
    **{name: ("from 0 to 1", lambda y: (y >= 0) & (y <= 1)) for name in _SHARES},
    **{name: ("-1 or 1", lambda y: np.abs(y) == 1) for name in ("hinge", "squared_hinge")},
    "poisson": ("not negative", lambda y: y >= 0),
    "mean_squared_logarithmic_error": ("above -1", lambda y: y > -1),
}


def check_fits(network: Network, iterator: DataSetIterator) -> None:
    """Raise ``ConfError`` or ``DataError`` unless a network can be trained with what ``iterator`` gives.

    Looked at are the numbers of inputs and outputs, and the first batch: its shapes, and its labels where there is a
    loss.
    """
    trained = network.conf.backprop if isinstance(network, MultiLayerNetwork) else True
    columns, outcomes = iterator.input_columns, iterator.total_outcomes
    last = network.layers[-1]
    takes_indices = isinstance(last, BaseOutputLayer) and last.takes_indices()
    for what, ours, theirs, fit in (
        ("inputs", network.n_in, columns, input_type_of(network).fits_columns(columns)),
        ("outputs", network.n_out, outcomes, network.n_out == outcomes or takes_indices or not trained),
    ):
        if not fit:
            raise ConfError(f"the network has {ours} {what}, the data set {theirs}; make n_in and n_out fit the data")
    if isinstance(network, MultiLayerNetwork):
        _check_batch(network, iterator.batch(0, 0))


def _check_batch(network: MultiLayerNetwork, batch: DataSet) -> None:
    """Raise unless a batch has the shapes that the network takes, and labels that its loss can be computed for."""
    nothing: list[dict[str, Array]] = [{} for _ in network.stages]
    labels = batch.labels if network.conf.backprop else None
    Stack(network.stages, nothing, nothing).checked(
        network.params.dtype, batch.features, labels, batch.features_mask, batch.labels_mask
    )
    last = network.layers[-1]
    if labels is not None and isinstance(last, BaseOutputLayer):
        title = f"layer {len(network.layers) - 1} ({last.title()})"
        check_output(last, title)
        check_labels(last, labels, title)


def check_output(layer: BaseOutputLayer, title: str) -> None:
    """Raise ``ConfError`` if an output layer's activation gives what its loss cannot take, as DL4J 1.0.0 does."""
    activation = layer.forward_activation()
    if layer.loss in _PROBABILITIES and activation not in _BOUNDED:
        raise ConfError(
            f"{title}: loss {layer.loss!r} takes probabilities, which activation {activation!r} does not give; "
            "take 'softmax', or 'sigmoid', or another loss"
        )


def check_labels(layer: BaseOutputLayer, labels: Array, title: str) -> None:
    """Raise ``DataError`` naming the first label that the loss of ``layer`` has no meaning for."""
    name = LOSSES[layer.loss].name
    if layer.takes_indices():
        wanted, inside = f"a whole number from 0 to {layer.n_out - 1}", _is_index(labels, layer.n_out)
    elif name in _WANTED:
        wanted, holds = _WANTED[name]
        inside = holds(labels)
    else:
        return
    if not bool(inside.all()):
        place = np.unravel_index(int(np.argmin(inside)), labels.shape)
        raise DataError(
            f"{title}: loss {layer.loss!r} wants labels that are {wanted}, example {int(place[0])} has "
            f"{float(labels[place])}; take another loss, or labels of that kind"
        )


def _is_index(labels: Array, n: int) -> Array:
    inside: Array = (labels >= 0) & (labels < n) & (labels == np.floor(labels))
    return inside
