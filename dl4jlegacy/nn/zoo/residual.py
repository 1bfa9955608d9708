"""A multilayer perceptron beside a linear regression."""

from __future__ import annotations

from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, GraphBuilder, NeuralNetConfiguration
from dl4jlegacy.nn.input_type import InputTypeFeedForward
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.layers.loss_layers import LossLayer
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.nn.optimization.updaters import Adam
from dl4jlegacy.nn.vertices.combine import ElementWiseVertex, ScaleVertex, SubsetVertex

__all__ = ["is_residual", "residual_mlp"]


def is_residual(network: NetworkConfiguration) -> bool:
    """Return whether a network begins at linear predictions, as ``residual_mlp`` does."""
    nodes = network.vertices if isinstance(network, ComputationGraphConfiguration) else ()
    return any(node.name == "linear" and isinstance(node.vertex, SubsetVertex) for node in nodes)


def residual_mlp(
    n_in: int,
    n_out: int,
    *,
    scale: float = 1.0,
    apart: int = 0,
    hidden: tuple[int, ...] | None = None,
    drop_out: float = 0.0,
    seed: int = 123,
) -> ComputationGraphConfiguration:
    """Return the multilayer perceptron of ``mlp`` for numbers to predict, added to their linear predictions.

    It begins at these, since its last layer begins at zero.

    Args:
        n_in: the number of features; the last ``n_out`` of them are the linear predictions (the step ``linear``).
        n_out: the number of numbers to predict.
        scale: by which the network's part is multiplied, the size of what is left to learn (``Linear.scale``).
        apart: the number of first features that the layers do not get, nor the linear predictions; 0: they get all.
        hidden, drop_out, seed: as for ``mlp``.
    """
    graph = GraphBuilder(NeuralNetConfiguration(seed=seed, updater=Adam(learning_rate=1e-3))).add_inputs("x")
    before = "x"
    if 0 < apart < n_in - n_out:
        graph = graph.add_vertex("others", SubsetVertex(from_index=apart, to_index=n_in - n_out - 1), "x")
        before = "others"
    for index, size in enumerate(hidden or (256, 128)):
        layer = DenseLayer(n_out=size, activation="relu", drop_out=drop_out if index else 0.0)
        graph, before = graph.add_layer(f"dense{index}", layer, before), f"dense{index}"
    last = DenseLayer(n_out=n_out, activation="identity", weight_init="zero", drop_out=drop_out)
    return (
        graph.add_layer("rest", last, before)
        .add_vertex("scaled", ScaleVertex(scale_factor=scale), "rest")
        .add_vertex("linear", SubsetVertex(from_index=n_in - n_out, to_index=n_in - 1), "x")
        .add_vertex("sum", ElementWiseVertex(op="add"), "linear", "scaled")
        .add_layer("out", LossLayer(activation="identity", loss="mse"), "sum")
        .set_input_types(InputTypeFeedForward(size=n_in))
        .set_outputs("out")
        .build()
    )
