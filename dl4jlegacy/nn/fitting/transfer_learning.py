"""Transfer learning: a new network that keeps the parameters of another one where they still fit.

::

    net = (TransferLearning.builder(pretrained)
        .fine_tune_configuration(FineTuneConfiguration(updater=Adam(learning_rate=1e-4)))
        .set_feature_extractor(2)                # layers 0 to 2 stay as they are
        .n_out_replace(3, 64)                    # layer 3 gets 64 units; it and layer 4 begin anew
        .remove_output_layer()
        .add_layer(OutputLayer(n_out=5))
        .build())

Graphs: ``TransferLearning.graph_builder``. Legacy: ``org.deeplearning4j.nn.transferlearning.TransferLearning``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.nn.conf.builder import Fluent
from dl4jlegacy.nn.conf.graph_stages import GraphNode
from dl4jlegacy.nn.conf.network import NeuralNetConfiguration
from dl4jlegacy.nn.conf.text import ConfText
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import FrozenLayer, Layer
from dl4jlegacy.nn.layers.loss_layers import LossLayer
from dl4jlegacy.nn.layers.normalization import BatchNormalization
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.layers.subsampling import ParameterlessLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.updaters import Updater, resolve_updater
from dl4jlegacy.nn.optimization.weights import Distribution
from dl4jlegacy.nn.preprocessors import InputPreProcessor
from dl4jlegacy.nn.vertices.shape import Vertex

__all__ = ["FineTuneConfiguration", "GraphTransferBuilder", "TransferBuilder", "TransferLearning"]

_FRESH, _NEW = -1, -2  # an old layer with new initial parameters; a layer that was added
_GLOBAL = ("seed", "mini_batch", "minimize")


class FineTuneConfiguration(ConfText):
    """Settings for the new network and all of its layers; None keeps a layer's own setting.

    The activation of output layers is never changed: it belongs to the loss.
    """

    seed: int | None = None
    activation: str | None = None
    weight_init: str | None = None
    dist: Distribution | None = None
    bias_init: float | None = None
    updater: Updater | None = None
    l1: float | None = None
    l2: float | None = None
    l1_bias: float | None = None
    l2_bias: float | None = None
    drop_out: float | None = None
    gradient_normalization: str | None = None
    gradient_normalization_threshold: float | None = None
    mini_batch: bool | None = None
    minimize: bool | None = None

    def __post_init__(self) -> None:
        resolve_updater(self, "FineTuneConfiguration")

    def given(self) -> dict[str, Any]:
        """Return the settings that are not None."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def applied_to(self, conf: NeuralNetConfiguration) -> NeuralNetConfiguration:
        """Return the network-wide configuration with these settings."""
        return conf.replace(**self.given())

    def applied_to_layer(self, layer: Any) -> Any:
        """Return a resolved layer with those of the settings that it supports."""
        own = {name: value for name, value in self.given().items() if name not in (*_GLOBAL, *layer.unused)}
        if isinstance(layer, BaseOutputLayer):
            own.pop("activation", None)
        return msgspec.structs.replace(layer, **own)


class TransferLearning:
    """Entry point of the builders."""

    @staticmethod
    def builder(network: MultiLayerNetwork) -> TransferBuilder:
        """Return a builder that starts from a stack of layers, which is not changed."""
        return TransferBuilder(network)

    @staticmethod
    def graph_builder(network: ComputationGraph) -> GraphTransferBuilder:
        """Return a builder that starts from a graph, which is not changed."""
        return GraphTransferBuilder(network)


# -- changing layers -------------------------------------------------------------------------------------------------


def _with_n_out(title: str, layer: Any, n_out: int, weight_init: str | None, dist: Distribution | None) -> Any:
    if n_out < 1:
        raise ShapeError(f"{title}: n_out is {n_out}; it must be positive")
    if _follows(layer):
        raise ConfError(f"{title} has as many outputs as inputs; replace n_out of a layer before it")
    if dist is not None and (weight_init or "distribution") != "distribution":
        raise ConfError(f"{title}: weight_init is {weight_init!r}, which draws from no dist; leave one of them out")
    changes: dict[str, Any] = {"n_out": n_out}
    if weight_init is not None or dist is not None:
        changes |= {"weight_init": weight_init or "distribution", "dist": dist}
    if "layer" in layer.__struct_fields__:  # a wrapper of another layer
        changes["layer"] = msgspec.structs.replace(layer.layer, n_out=n_out)
    return msgspec.structs.replace(layer, **changes, frozen=False)


def _check_next(title: str, next_weight_init: str | None) -> None:
    if next_weight_init is not None:
        raise ConfError(f"{title} is the last one, so next_weight_init {next_weight_init!r} reaches none; leave it out")


def _follows(layer: Any) -> bool:
    """Return whether a layer's output always has the size of its input."""
    return isinstance(layer, ParameterlessLayer | BatchNormalization | LossLayer)


def _reopened(layer: Any, weight_init: str | None) -> Any:
    """Return a layer with an open input size, and an open output size if that equals the input size."""
    changes: dict[str, Any] = {"n_in": 0}
    if _follows(layer):
        changes["n_out"] = 0
    if "layer" in layer.__struct_fields__:
        changes["layer"] = msgspec.structs.replace(layer.layer, n_in=0)
    if weight_init is not None and "weight_init" not in layer.unused:
        changes["weight_init"] = weight_init
    return msgspec.structs.replace(layer, **changes)


def _copy(old: Mapping[str, Array], new: Mapping[str, Array]) -> None:
    """Copy a layer's parameters; a parameter with a new shape keeps its initial value."""
    for name, value in new.items():
        if name in old and old[name].shape == value.shape:
            value[...] = old[name].astype(value.dtype, copy=False)


# -- stacks ----------------------------------------------------------------------------------------------------------


class TransferBuilder(Fluent):
    """Changes a copy of a stack of layers; see the module's docstring."""

    def __init__(self, network: MultiLayerNetwork) -> None:
        self._network = network
        self._tuning = FineTuneConfiguration()
        self._layers: list[Any] = list(network.layers)
        self._origin = list(range(len(network.layers)))  # layer that it copies parameters from, _FRESH, or _NEW
        self._pres = dict(network.conf.input_pre_processors)
        self._frozen = 0

    def fine_tune_configuration(self, tuning: FineTuneConfiguration) -> Self:
        """Change settings of all layers."""
        self._tuning = tuning
        return self

    def set_feature_extractor(self, layer: int) -> Self:
        """Freeze layers 0 to ``layer``."""
        self._check(layer, "set_feature_extractor")
        self._frozen = layer + 1
        return self

    def n_out_replace(
        self,
        layer: int,
        n_out: int,
        weight_init: str | None = None,
        next_weight_init: str | None = None,
        *,
        dist: Distribution | None = None,
    ) -> Self:
        """Change a layer's number of units; it and the next layer with parameters get new initial parameters."""
        self._check(layer, "n_out_replace")
        title = f"layer {layer} ({self._layers[layer].title()})"
        self._layers[layer] = _with_n_out(title, self._layers[layer], n_out, weight_init, dist)
        self._origin[layer] = _FRESH
        for above in range(layer + 1, len(self._layers)):
            follows = _follows(self._layers[above])
            self._layers[above] = _reopened(self._layers[above], next_weight_init)
            self._origin[above] = _FRESH
            self._pres.pop(above, None)
            if not follows:
                break
        if layer == len(self._layers) - 1:
            _check_next(title, next_weight_init)
        return self

    def remove_output_layer(self) -> Self:
        """Remove the last layer."""
        return self.remove_layers_from_output(1)

    def remove_layers_from_output(self, count: int) -> Self:
        """Remove the last ``count`` layers."""
        if not 0 < count <= len(self._layers):
            raise ConfError(f"remove_layers_from_output({count}): there are {len(self._layers)} layers")
        del self._layers[-count:], self._origin[-count:]
        self._pres = {index: pre for index, pre in self._pres.items() if index < len(self._layers)}
        return self

    def add_layer(self, layer: Layer) -> Self:
        """Append a new layer; its ``n_in`` may be left out."""
        self._layers.append(layer)
        self._origin.append(_NEW)
        return self

    def set_input_pre_processor(self, layer: int, pre_processor: InputPreProcessor) -> Self:
        """Put a preprocessor before a layer."""
        self._pres[layer] = pre_processor
        return self

    def build(self) -> MultiLayerNetwork:
        """Return the new network.

        Raises:
            ConfError: a layer of the feature extractor was removed, or as ``MultiLayerConfiguration``.
            ShapeError: sizes that do not fit; the message names the layer.
        """
        if self._frozen > len(self._layers):
            raise ConfError(f"set_feature_extractor({self._frozen - 1}): only {len(self._layers)} layers are left")
        pairs = zip(self._layers, self._origin, strict=True)
        layers = [layer if origin == _NEW else self._tuning.applied_to_layer(layer) for layer, origin in pairs]
        layers[: self._frozen] = [FrozenLayer(layer) for layer in layers[: self._frozen]]
        conf = self._network.conf
        network = MultiLayerNetwork(
            conf.replace(
                layers=tuple(layers), conf=self._tuning.applied_to(conf.conf), input_pre_processors=self._pres
            ),
            kernels=self._network.kernels,
        )
        old = _by_layer(self._network.param_table, len(self._network.layers))
        new = _by_layer(network.param_table, len(network.layers))
        for index, origin in enumerate(self._origin):
            if origin >= 0:
                _copy(old[origin], new[index])
        return network

    def _check(self, layer: int, what: str) -> None:
        if not 0 <= layer < len(self._layers):
            raise ConfError(f"{what}({layer}): there are only layers 0 to {len(self._layers) - 1}")


def _by_layer(table: Mapping[str, Array], count: int) -> list[dict[str, Array]]:
    """Return the parameters of every layer of a stack (``0_W`` ...) by name."""
    result: list[dict[str, Array]] = [{} for _ in range(count)]
    for name, value in table.items():
        index, _, short = name.partition("_")
        result[int(index)][short] = value
    return result


# -- graphs ----------------------------------------------------------------------------------------------------------


class GraphTransferBuilder(Fluent):
    """Changes a copy of a graph. Legacy: ``TransferLearning.GraphBuilder``."""

    def __init__(self, network: ComputationGraph) -> None:
        self._network = network
        self._tuning = FineTuneConfiguration()
        resolved = {node.name: node.stage.layer for node in network.nodes if node.stage is not None}
        self._nodes = {
            node.name: msgspec.structs.replace(node, vertex=resolved.get(node.name, node.vertex))
            for node in network.conf.vertices
        }
        self._kept = set(resolved)  # layers that keep their parameters
        self._added: set[str] = set()
        self._outputs = network.conf.network_outputs
        self._frozen: tuple[str, ...] = ()

    def fine_tune_configuration(self, tuning: FineTuneConfiguration) -> Self:
        """Change settings of all layers."""
        self._tuning = tuning
        return self

    def set_feature_extractor(self, *vertices: str) -> Self:
        """Freeze these layers and all that they depend on."""
        for name in vertices:
            self._check(name)
        self._frozen = vertices
        return self

    def n_out_replace(
        self,
        vertex: str,
        n_out: int,
        weight_init: str | None = None,
        next_weight_init: str | None = None,
        *,
        dist: Distribution | None = None,
    ) -> Self:
        """Change a layer's number of units; it and the next layers with parameters get new initial parameters."""
        node = self._check(vertex)
        if not isinstance(node.vertex, FeedForwardLayer):
            raise ConfError(f"n_out_replace({vertex!r}): that is no layer but a {node.vertex.title()}")
        changed = _with_n_out(f"layer {vertex!r}", node.vertex, n_out, weight_init, dist)
        self._nodes[vertex] = msgspec.structs.replace(node, vertex=changed)
        self._kept.discard(vertex)
        reached, ahead = {vertex}, [vertex]
        while ahead:
            below = ahead.pop()
            for name, above in self._nodes.items():
                if below not in above.inputs or name in reached:
                    continue
                reached.add(name)
                layer = above.vertex
                if isinstance(layer, FeedForwardLayer):
                    opened = _reopened(layer, next_weight_init)
                    self._nodes[name] = msgspec.structs.replace(above, vertex=opened, pre_processor=None)
                    self._kept.discard(name)
                if not isinstance(layer, FeedForwardLayer) or _follows(layer):
                    ahead.append(name)
        if reached == {vertex}:
            _check_next(f"layer {vertex!r}", next_weight_init)
        return self

    def remove_vertex_keep_connections(self, vertex: str) -> Self:
        """Remove a vertex; another one of the same name must take its place."""
        self._check(vertex)
        del self._nodes[vertex]
        self._kept.discard(vertex)
        return self

    def remove_vertex_and_connections(self, vertex: str) -> Self:
        """Remove a vertex, also from the inputs of other vertices and from the outputs."""
        self.remove_vertex_keep_connections(vertex)
        for name, node in self._nodes.items():
            left = tuple(source for source in node.inputs if source != vertex)
            self._nodes[name] = msgspec.structs.replace(node, inputs=left)
        self._outputs = tuple(name for name in self._outputs if name != vertex)
        return self

    def add_layer(self, name: str, layer: Layer, *inputs: str, pre_processor: InputPreProcessor | None = None) -> Self:
        """Add a new layer."""
        self._nodes[name] = GraphNode(name=name, inputs=inputs, vertex=layer, pre_processor=pre_processor)
        self._kept.discard(name)
        self._added.add(name)
        return self

    def add_vertex(self, name: str, vertex: Vertex, *inputs: str) -> Self:
        """Add a new vertex."""
        self._nodes[name] = GraphNode(name=name, inputs=inputs, vertex=vertex)
        return self

    def set_outputs(self, *names: str) -> Self:
        """Set the outputs."""
        self._outputs = names
        return self

    def build(self) -> ComputationGraph:
        """Return the new network; raises like ``ComputationGraphConfiguration``."""
        conf = self._network.conf
        types = conf.input_types or self._network.input_types
        frozen = self._below(self._frozen)
        nodes = []
        for name, node in self._nodes.items():
            layer: Any = node.vertex
            if isinstance(layer, FeedForwardLayer):
                layer = layer if name in self._added else self._tuning.applied_to_layer(layer)
                layer = FrozenLayer(layer) if name in frozen else layer
            nodes.append(msgspec.structs.replace(node, vertex=layer))
        network = ComputationGraph(
            conf.replace(
                vertices=tuple(nodes),
                network_outputs=tuple(self._outputs),
                input_types=types,
                conf=self._tuning.applied_to(conf.conf),
            ),
            kernels=self._network.kernels,
        )
        old, new = (_by_vertex(graph) for graph in (self._network, network))
        for name in self._kept:
            _copy(old[name], new[name])
        return network

    def _below(self, names: Sequence[str]) -> set[str]:
        """Return these vertices and all that they depend on."""
        found: set[str] = set()
        ahead = list(names)
        while ahead:
            name = ahead.pop()
            if name in self._nodes and name not in found:
                found.add(name)
                ahead += self._nodes[name].inputs
        return found

    def _check(self, name: str) -> GraphNode:
        if name not in self._nodes:
            raise ConfError(f"there is no vertex {name!r}{nearest(name, list(self._nodes))}")
        return self._nodes[name]


def _by_vertex(graph: ComputationGraph) -> dict[str, dict[str, Array]]:
    """Return the parameters of every layer of a graph by vertex and name."""
    names = [node.name for node in graph.nodes if node.stage is not None]
    views = iter(graph.param_table.items())
    result: dict[str, dict[str, Array]] = {}
    for name, layer in zip(names, graph.layers, strict=True):
        result[name] = {short: next(views)[1] for short, _ in layer.param_shapes()}
    return result
