"""The common interface of both kinds of networks, and the creation of a network from its configuration.

Legacy: ``org.deeplearning4j.nn.api.NeuralNetwork``, which ``MultiLayerNetwork`` and ``ComputationGraph`` implement.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

from dl4jlegacy.arrays.backend import Array, Scalar
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.multilayer_updater import MultiLayerUpdater
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.schedules import RunSchedule
from dl4jlegacy.nn.optimization.updaters import AdaDelta, NoOp, in_step

__all__ = [
    "Network",
    "NetworkConfiguration",
    "TrainableNetwork",
    "build_network",
    "input_type_of",
    "learning_rate_at",
]

Network = MultiLayerNetwork | ComputationGraph
NetworkConfiguration = MultiLayerConfiguration | ComputationGraphConfiguration


class TrainableNetwork(Protocol):
    """The interface of networks for workers; a graph takes tuples of arrays where a stack of layers takes one array."""

    @property
    def params(self) -> Array:
        """The flat parameter vector itself, not a copy."""

    @property
    def updater_state(self) -> Array:
        """The flat updater state itself, not a copy."""

    @property
    def updater(self) -> MultiLayerUpdater:
        """The updater that turns gradients into steps."""

    def reset_updater(self) -> None:
        """Reset the updater's state to its initial values."""

    def set_params(self, params: Array) -> None:
        """Copy ``params`` from the host or a GPU into the network."""

    def set_updater_state(self, state: Array) -> None:
        """Copy ``state`` from the host or a GPU into the network."""

    def check_finite(self) -> None:
        """Raise ``NotFiniteError`` if a parameter, or on a GPU a score, is NaN or infinite."""

    def init(self) -> Self:
        """Draw the initial parameters."""

    def fit_batch(
        self,
        x: Any,
        labels: Any,
        *,
        iteration: int,
        stream: Stream,
        features_mask: Any = None,
        labels_mask: Any = None,
    ) -> Scalar:
        """Do one update from a batch; return the score before it."""

    def pretrain_batch(self, layer: int, x: Array, *, iteration: int, stream: Stream) -> Scalar:
        """Do one pretraining update of one layer."""


def build_network(conf: NetworkConfiguration, kernels: Kernels | None = None, *, init: bool = True) -> Network:
    """Return a new network of the kind described by ``conf``; without ``init`` its parameters are zeros."""
    if isinstance(conf, ComputationGraphConfiguration):
        return ComputationGraph(conf, kernels=kernels, init=init)
    return MultiLayerNetwork(conf, kernels=kernels, init=init)


def input_type_of(network: Network) -> AnyInputType:
    """Return the type of the (first) input of a network."""
    return network.input_types[0] if isinstance(network, ComputationGraph) else network.stages[0].input_type


def learning_rate_at(network: NetworkConfiguration, iteration: int, pretrained: int = -1) -> float | None:
    """Return the learning rate of an update, for layers without an updater of their own.

    Args:
        network: the configuration.
        iteration: the number of updates before, as for ``fit_batch`` and ``pretrain_batch``.
        pretrained: the layer of a pretraining update, whose rate is returned; -1: not a pretraining update.

    Returns:
        None if the updater has no rate, or if each segment of a sequence counts as an update of a schedule: the number
            of segments in a batch is then unknown.
    """
    updater, rate = network.conf.updater, None
    if pretrained >= 0 and isinstance(network, MultiLayerConfiguration):
        layer = network.layers[pretrained]
        updater, rate = layer.updater or updater, getattr(layer, "pretrain_learning_rate", None)
    if isinstance(updater, AdaDelta | NoOp):
        return None
    by_segments = network.backprop_type == "truncated_bptt" and pretrained < 0
    if by_segments and not isinstance(updater.schedule, RunSchedule | None):
        return None
    taken: Any = in_step(updater, segments=1, pretrains=pretrained >= 0, learning_rate=rate)
    found: float = taken.rate(iteration)
    return found
