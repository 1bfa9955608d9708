"""GraphBuilder: DL4J's fluent way to write a ``ComputationGraphConfiguration``, in snake_case.

::

    conf = (NeuralNetConfiguration.builder().updater("adam").graph_builder()
        .add_inputs("words", "image")
        .add_layer("a", DenseLayer(n_in=300, n_out=50), "words")
        .add_layer("b", DenseLayer(n_in=784, n_out=50), "image")
        .add_layer("out", OutputLayer(n_out=10), "a", "b")      # several inputs: merged by "out-merge"
        .set_outputs("out").build())

Legacy: ``org.deeplearning4j.nn.conf.ComputationGraphConfiguration.GraphBuilder``.
"""

from __future__ import annotations

from typing import Any, Self

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.nn.conf.graph import ComputationGraphConfiguration
from dl4jlegacy.nn.conf.graph_stages import GraphNode
from dl4jlegacy.nn.conf.list_builder import Fluent
from dl4jlegacy.nn.conf.network import NeuralNetConfiguration
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.preprocessors.shape import InputPreProcessor
from dl4jlegacy.nn.vertices.combine import MergeVertex
from dl4jlegacy.nn.vertices.shape import Vertex

__all__ = ["GraphBuilder"]


class GraphBuilder(Fluent):
    """Collects inputs, layers, vertices and outputs; ``build`` checks them all."""

    def __init__(self, conf: NeuralNetConfiguration | None = None) -> None:
        self._conf = conf or NeuralNetConfiguration()
        self._inputs: list[str] = []
        self._outputs: tuple[str, ...] = ()
        self._nodes: list[GraphNode] = []
        self._fields: dict[str, Any] = {}

    def add_inputs(self, *names: str) -> Self:
        """Name the network's inputs, in the order of the features."""
        self._inputs += names
        return self

    def set_input_types(self, *types: AnyInputType) -> Self:
        """Say what every network input holds: sizes and preprocessors follow."""
        self._fields["input_types"] = types
        return self

    def add_layer(self, name: str, layer: Layer, *inputs: str, pre_processor: InputPreProcessor | None = None) -> Self:
        """Add a layer; several inputs are merged by a vertex ``<name>-merge``."""
        sources = inputs
        if len(inputs) > 1:
            sources = (f"{name}-merge",)
        self._nodes.append(GraphNode(name=name, inputs=sources, vertex=layer, pre_processor=pre_processor))
        if len(inputs) > 1:
            self.add_vertex(sources[0], MergeVertex(), *inputs)
        return self

    def add_vertex(self, name: str, vertex: Layer | Vertex, *inputs: str) -> Self:
        """Add a vertex without parameters (or a layer)."""
        if isinstance(vertex, FeedForwardLayer):
            return self.add_layer(name, vertex, *inputs)
        self._nodes.append(GraphNode(name=name, inputs=inputs, vertex=vertex))
        return self

    def remove_vertex(self, name: str) -> Self:
        """Take a vertex out again."""
        kept = [node for node in self._nodes if node.name != name]
        if len(kept) == len(self._nodes):
            raise ConfError(f"there is no vertex {name!r} to remove{nearest(name, [n.name for n in self._nodes])}")
        self._nodes = kept
        return self

    def set_outputs(self, *names: str) -> Self:
        """Name the network's outputs, in the order of the labels."""
        self._outputs = names
        return self

    def backprop_type(self, name: str) -> Self:
        """``"standard"`` or ``"truncated_bptt"``."""
        self._fields["backprop_type"] = name.lower()
        return self

    def t_bptt_forward_length(self, steps: int) -> Self:
        """Time steps that truncated BPTT learns at a time."""
        self._fields["tbptt_fwd_length"] = steps
        return self

    def t_bptt_backward_length(self, steps: int) -> Self:
        """Time steps that truncated BPTT looks back."""
        self._fields["tbptt_back_length"] = steps
        return self

    def build(self) -> ComputationGraphConfiguration:
        """Return the configuration; raises like ``ComputationGraphConfiguration``."""
        return ComputationGraphConfiguration(
            conf=self._conf,
            network_inputs=tuple(self._inputs),
            network_outputs=self._outputs,
            vertices=tuple(self._nodes),
            **self._fields,
        )
