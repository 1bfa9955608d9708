"""Checks before training that the data fit a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.datasets.batches import BatchIterator
from dl4jlegacy.datasets.dataset import DataSet
from dl4jlegacy.datasets.iterator import DataSetIterator
from dl4jlegacy.datasets.multi_dataset import MultiDataSet
from dl4jlegacy.errors import ConfError, DataError
from dl4jlegacy.kernels import load
from dl4jlegacy.nn.arrays import as_data_set
from dl4jlegacy.nn.conf.graph_stages import Node
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.graph.stack import GraphStack
from dl4jlegacy.nn.input_type import InputTypeRecurrent
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.network.input_rows import check_sparse_input
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.network.stack import Stack
from dl4jlegacy.nn.networks import Network, input_type_of
from dl4jlegacy.nn.optimization.losses import LOSSES
from dl4jlegacy.nn.vertices.shape import StackVertex, UnstackVertex

__all__ = ["check_data", "check_labels", "check_output"]

_SHARES = ("mcxent", "negativeloglikelihood", "sparse_mcxent", "xent", "kl_divergence", "reconstruction_crossentropy")
_PROBABILITIES = ("mcxent", "negativeloglikelihood", "sparse_mcxent", "xent")
_BOUNDED = ("softmax", "sigmoid", "hardsigmoid")

_WANTED: dict[str, tuple[str, Callable[[Array], Array]]] = {
    **{name: ("from 0 to 1", lambda y: (y >= 0) & (y <= 1)) for name in _SHARES},
    **{name: ("-1 or 1", lambda y: np.abs(y) == 1) for name in ("hinge", "squared_hinge")},
    "poisson": ("not negative", lambda y: y >= 0),
    "mean_squared_logarithmic_error": ("above -1", lambda y: y > -1),
}


def check_data(network: Network, iterator: BatchIterator) -> None:
    """Raise ``ConfError``, ``ShapeError`` or ``DataError`` unless the data are suitable to train the network.

    Checks the numbers of inputs and outputs, and the first batch: its shapes, and its labels if there is a loss. For a
    graph it checks all inputs and outputs.
    """
    if isinstance(network, ComputationGraph):
        _check_graph(network, iterator)
        return
    first = as_data_set(iterator.batch(0, 0), "batch 0")
    if isinstance(iterator, DataSetIterator):
        _check_columns(network, iterator)
    _check_batch(network, first)


def _check_columns(network: Network, iterator: DataSetIterator) -> None:
    """Raise unless the numbers of columns fit the input and output of a network with one of each."""
    trained = network.conf.backprop
    columns, outcomes = iterator.input_columns, iterator.total_outcomes
    last = network.layers[-1]
    takes_indices = isinstance(last, BaseOutputLayer) and last.takes_indices() and outcomes == 1
    for what, ours, theirs, fit in (
        ("inputs", network.n_in, columns, input_type_of(network).fits_columns(columns)),
        ("outputs", network.n_out, outcomes, network.n_out == outcomes or takes_indices or not trained),
    ):
        if not fit:
            raise ConfError(f"the network has {ours} {what}, the data set {theirs}; make n_in and n_out fit the data")


def _check_batch(network: MultiLayerNetwork, batch: DataSet) -> None:
    """Raise unless a batch has shapes that fit the network, and labels that are valid for its loss."""
    nothing: list[dict[str, Array]] = [{} for _ in network.stages]
    labels = batch.labels if network.conf.backprop else None
    stack = Stack(network.stages, nothing, nothing)
    if batch.is_sparse:
        check_sparse_input(network.layers)
        stack.labels(network.params.dtype, batch)
    else:
        stack.prepare(network.params.dtype, batch.features, labels, batch.features_mask, batch.labels_mask)
    last = network.layers[-1]
    if labels is not None and isinstance(last, BaseOutputLayer):
        title = f"layer {len(network.layers) - 1} ({last.title()})"
        check_output(last, title)
        check_labels(last, labels, title)


def _check_graph(network: ComputationGraph, iterator: BatchIterator) -> None:
    """Raise unless the first batch fits every input and output of a graph, and every loss."""
    conf = network.conf
    conf.validate()  # every output has a loss
    if isinstance(iterator, DataSetIterator) and len(conf.network_inputs) == len(conf.network_outputs) == 1:
        _check_columns(network, iterator)
    batch = MultiDataSet.of(iterator.batch(0, 0))
    nothing: list[dict[str, Array]] = [{} for _ in network.layers]
    GraphStack(network.nodes, conf.network_outputs, nothing, nothing).prepare(
        network.params.dtype, batch.features, batch.labels, batch.features_masks, batch.labels_masks
    )
    by_name = {node.name: node for node in network.nodes}
    ends = [by_name[name] for name in conf.network_outputs]
    for node, labels, shape in zip(ends, batch.labels, _output_shapes(network, ends, batch), strict=True):
        assert node.stage is not None
        layer, title = node.stage.layer, f"network output {node.title()}"
        assert isinstance(layer, BaseOutputLayer)
        layer.check_label_shape(labels, shape, title)
        check_output(layer, title)
        check_labels(layer, labels, title)


def _output_shapes(network: ComputationGraph, ends: Sequence[Node], batch: MultiDataSet) -> list[tuple[int, ...]]:
    """Return the shape of every output, ``ends``, for a batch, in the layout outside the network.

    The length of output sequences, and the number of examples behind vertices that regroup examples, are known only
    after a forward pass. A copy of the network runs one on the host, uncompiled, with few examples if possible.
    """
    count = batch.num_examples
    regroups = any(isinstance(node.vertex, StackVertex | UnstackVertex) for node in network.nodes)
    if not regroups and not any(isinstance(node.kind, InputTypeRecurrent) for node in ends):
        return [(count, node.kind.n_in) for node in ends]
    some = batch if regroups else batch.rows(0, min(2, count))
    with np.errstate(all="ignore"):  # only the shapes are wanted
        found = ComputationGraph(network.conf, kernels=load("numpy")).outputs(*some.features)
    return [(len(y) if regroups else count, *y.shape[1:]) for y in found]


def check_output(layer: BaseOutputLayer, title: str) -> None:
    """Raise ``ConfError`` if the outputs of a layer's activation are invalid for its loss, as DL4J 1.0.0 does."""
    activation = layer.forward_activation()
    if layer.loss in _PROBABILITIES and activation not in _BOUNDED:
        raise ConfError(
            f"{title}: loss {layer.loss!r} takes probabilities, which activation {activation!r} does not give; "
            "take 'softmax', or 'sigmoid', or another loss"
        )


def check_labels(layer: BaseOutputLayer, labels: Array, title: str) -> None:
    """Raise ``DataError`` naming the first label that is invalid for the loss of ``layer``."""
    name = LOSSES[layer.loss].name
    if layer.takes_indices() and labels.shape[1] == 1:
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
