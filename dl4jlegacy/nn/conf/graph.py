"""``ComputationGraphConfiguration``: layers and vertices with their inputs, as a frozen value.

Legacy: ``org.deeplearning4j.nn.conf.ComputationGraphConfiguration``. The vertices stand in a list, not in a map: their
order decides which of several that could come next does, and with it where parameters lie in the flat vector.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec

from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.nn.conf.graph_order import topological_order
from dl4jlegacy.nn.conf.graph_stages import GraphNode, Node, nodes, titled
from dl4jlegacy.nn.conf.network import ConfText, NeuralNetConfiguration, check_fields
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer

__all__ = ["ComputationGraphConfiguration"]


class ComputationGraphConfiguration(ConfText, frozen=True, kw_only=True):
    """A graph of layers and vertices between ``network_inputs`` and ``network_outputs``.

    ``input_types`` says what every network input holds, in their order; empty: the layers that read them say so with
    their ``n_in``. ``conf`` holds for all layers. Construction refuses what can never work.
    Written with ``NeuralNetConfiguration.builder().graph_builder()``, as DL4J does.
    """

    network_inputs: tuple[str, ...]
    network_outputs: tuple[str, ...]
    vertices: tuple[GraphNode, ...]
    conf: NeuralNetConfiguration = NeuralNetConfiguration()
    input_types: tuple[AnyInputType, ...] = ()
    backprop_type: Literal["standard", "truncated_bptt"] = "standard"
    tbptt_fwd_length: int = 20
    tbptt_back_length: int = 20

    def __post_init__(self) -> None:
        for field in ("network_inputs", "network_outputs", "vertices"):
            if not getattr(self, field):
                raise ConfError(f"ComputationGraphConfiguration.{field} is empty; a graph needs at least one")
        for field in ("tbptt_fwd_length", "tbptt_back_length"):
            if getattr(self, field) < 1:
                raise ConfError(f"ComputationGraphConfiguration.{field} is {getattr(self, field)}; 1 is the least")
        if self.input_types and len(self.input_types) != len(self.network_inputs):
            raise ConfError(
                f"there are {len(self.input_types)} input types for the network inputs {list(self.network_inputs)}; "
                "give one for each"
            )
        self._check_names()
        for node in self.vertices:
            _check_node(node, self.network_inputs)
        self._check_ends()
        self.order()

    def _check_names(self) -> None:
        names = [*self.network_inputs, *(node.name for node in self.vertices)]
        for name, count in Counter(names).items():
            if count > 1:
                raise ConfError(f"{count} vertices or network inputs are called {name!r}; names must differ")
        outputs = Counter(self.network_outputs)
        for name in self.network_outputs:
            if name not in names or name in self.network_inputs:
                raise ConfError(f"network output {name!r} is no vertex{nearest(name, names)}")
            if outputs[name] > 1:
                raise ConfError(f"network output {name!r} is named {outputs[name]} times; once is enough")
        for node in self.vertices:
            for source in node.inputs:
                if source not in names:
                    raise ConfError(
                        f"vertex {titled(node.name, node.vertex)} has unknown input {source!r}{nearest(source, names)}"
                    )

    def _check_ends(self) -> None:
        """Nothing may lead nowhere, and nothing may follow a loss."""
        read = {source for node in self.vertices for source in (*node.inputs, _refers_to(node))}
        by_name = {node.name: node for node in self.vertices}
        for name in (*self.network_inputs, *by_name):
            if name not in read and name not in self.network_outputs:
                what = titled(name, by_name[name].vertex if name in by_name else None)
                raise ConfError(f"{what} leads nowhere: nothing reads it, and it is no network output; remove it")
        for node in self.vertices:
            for source in node.inputs:
                below = by_name.get(source)
                if below is not None and isinstance(below.vertex, BaseOutputLayer):
                    raise ConfError(
                        f"output layer {titled(source, below.vertex)} is followed by "
                        f"{titled(node.name, node.vertex)}; it must be the end"
                    )

    def order(self) -> tuple[str, ...]:
        """Return network inputs and vertices in the order in which they compute; raises ``ConfError`` for a circle."""
        return topological_order(self.network_inputs, {node.name: node.inputs for node in self.vertices})

    def nodes(self) -> tuple[Node, ...]:
        """Return everything in order, with sizes, types and preprocessors filled in.

        Raises:
            ShapeError: a size is open or does not fit what comes before; both are named.
            ConfError: weight init "distribution" without a distribution.
        """
        types = dict(zip(self.network_inputs, self.input_types, strict=False))
        return nodes(self.order(), {node.name: node for node in self.vertices}, types, self.conf)

    def resolved(self) -> tuple[Layer, ...]:
        """Return the layers with everything filled in, in the order of their parameters; raises like ``nodes``."""
        return tuple(node.stage.layer for node in self.nodes() if node.stage is not None)

    def validate(self) -> None:
        """Raise ``ConfError`` (``ShapeError`` for sizes) unless a graph can be built and ``fit`` from this."""
        self.nodes()
        for node in self.vertices:
            if self.backprop_type == "truncated_bptt" and getattr(node.vertex, "needs_whole", False):
                raise ConfError(
                    f"{titled(node.name, node.vertex)} looks at a sequence from both ends, so "
                    "backprop_type='truncated_bptt' cannot be had with it; choose 'standard'"
                )
            if node.name in self.network_outputs and not isinstance(node.vertex, BaseOutputLayer):
                raise ConfError(
                    f"network output {titled(node.name, node.vertex)} has no loss; training needs an OutputLayer there"
                )

    @property
    def pretrain(self) -> bool:
        """Graphs do not pretrain."""
        return False

    @property
    def backprop(self) -> bool:
        """Graphs train by backpropagation."""
        return True

    def with_sizes(self, n_in: int, n_out: int) -> ComputationGraphConfiguration:
        """Return a copy for data with ``n_in`` features and ``n_out`` labels, for graphs with one of each.

        Raises:
            ShapeError: the configuration says otherwise; the message names both sizes.
            ConfError: several inputs or outputs.
        """
        if len(self.network_inputs) != 1 or len(self.network_outputs) != 1:
            raise ConfError(
                f"a data set has one array of features and one of labels, the graph has inputs "
                f"{list(self.network_inputs)} and outputs {list(self.network_outputs)}; train it with MultiDataSets"
            )
        changed = [self._sized(node, n_in, n_out) for node in self.vertices]
        sized = self.replace(vertices=tuple(changed))
        kind = sized.nodes()[0].kind
        if not kind.fits_columns(n_in):
            raise ShapeError(f"network input {self.network_inputs[0]!r} is {kind} but the data has {n_in} features")
        return sized

    def _sized(self, node: GraphNode, n_in: int, n_out: int) -> GraphNode:
        layer: Any = node.vertex
        if not isinstance(layer, FeedForwardLayer):
            return node
        fields: dict[str, int] = {}
        plain = layer.consumes[0] == "feed_forward" and node.pre_processor is None and not self.input_types
        if plain and node.inputs[0] in self.network_inputs and not layer.n_in:
            fields["n_in"] = n_in
        if node.name in self.network_outputs:
            if layer.n_out not in (0, n_out):
                raise ShapeError(
                    f"{titled(node.name, layer)} has n_out={layer.n_out} but the data has {n_out} label columns; "
                    f"set n_out={n_out} or leave it out"
                )
            fields["n_out"] = n_out
        return msgspec.structs.replace(node, vertex=msgspec.structs.replace(layer, **fields))


def _refers_to(node: GraphNode) -> str | None:
    return None if isinstance(node.vertex, FeedForwardLayer) else node.vertex.refers_to()


def _check_node(node: GraphNode, network_inputs: tuple[str, ...]) -> None:
    title, count = titled(node.name, node.vertex), len(node.inputs)
    if isinstance(node.vertex, FeedForwardLayer):
        layer: Any = node.vertex
        check_fields(f"layer {title}", layer)
        for field in ("n_in", "n_out"):
            if getattr(layer, field) < 0:
                raise ShapeError(f"layer {title}: {field} is {getattr(layer, field)}; it must be positive")
        if count != 1:
            raise ConfError(f"layer {title} has {count} inputs {list(node.inputs)}; put a MergeVertex before it")
        return
    if node.pre_processor is not None:
        raise ConfError(f"vertex {title} has a pre_processor; only layers do (use a PreprocessorVertex)")
    least, most = node.vertex.least, node.vertex.most
    if count < least or (most is not None and count > most):
        wanted = f"{least}" if most == least else f"at least {least}" if most is None else f"{least} to {most}"
        raise ConfError(f"vertex {title} has {count} inputs {list(node.inputs)}; it takes {wanted}")
    source = node.vertex.refers_to()
    if source is not None and source not in network_inputs:
        raise ConfError(f"vertex {title} refers to {source!r}, no network input{nearest(source, list(network_inputs))}")
