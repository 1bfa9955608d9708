"""Configurations of networks as frozen values, and their builders (see ``conf.builder``).

``MultiLayerConfiguration`` is a stack of layers, ``ComputationGraphConfiguration`` a graph. ``NeuralNetConfiguration``
applies to all layers; a layer's own field takes precedence. ``resolved()`` fills in open fields of layers and checks
that the sizes fit. All of them have canonical JSON and YAML forms. Field names and defaults are DL4J's in Python case
(``org.deeplearning4j.nn.conf``); the updater has the learning rate, as in 1.0.0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, Self

import msgspec

from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.nn.arguments import resolve_name
from dl4jlegacy.nn.conf.builder import GraphVertices, LayerList, NetworkSettings, inheriting, kinds
from dl4jlegacy.nn.conf.graph_order import topological_order
from dl4jlegacy.nn.conf.graph_stages import GraphNode, Node, nodes, vertex_title
from dl4jlegacy.nn.conf.stages import Stage, infer_input_type, stages
from dl4jlegacy.nn.conf.text import ConfText
from dl4jlegacy.nn.input_type import AnyInputType, InputTypeFeedForward
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.optimization.functions import ACTIVATIONS
from dl4jlegacy.nn.optimization.gradient_normalization import GRADIENT_NORMALIZATIONS
from dl4jlegacy.nn.optimization.updaters import Sgd, Updater, resolve_updater
from dl4jlegacy.nn.optimization.weights import WEIGHT_INITS, Distribution
from dl4jlegacy.nn.preprocessors import InputPreProcessor

__all__ = [
    "ComputationGraphConfiguration",
    "GraphBuilder",
    "ListBuilder",
    "MultiLayerConfiguration",
    "NeuralNetConfiguration",
    "NeuralNetConfigurationBuilder",
    "check_fields",
]

_TABLES: dict[str, dict[str, Any]] = {
    "activation": ACTIVATIONS,
    "weight_init": WEIGHT_INITS,
    "gradient_normalization": GRADIENT_NORMALIZATIONS,
}
_DTYPES = ("float32", "float64")
_BACKPROP_TYPES = ("standard", "truncated_bptt")


def check_fields(title: str, conf: NeuralNetConfiguration | Layer) -> None:
    """Check the fields that networks and layers share; None (inherit) is valid."""
    for field, table in _TABLES.items():
        name = getattr(conf, field)
        if name is not None and name not in table:
            raise ConfError(f"{title}: unknown {field} {name!r}{nearest(name, tuple(table))}")
    for field in ("l1", "l2", "l1_bias", "l2_bias"):
        _check_range(title, field, getattr(conf, field), 0, math.inf)
    _check_range(title, "drop_out", conf.drop_out, 0, 1)
    _check_range(title, "bias_init", conf.bias_init, -math.inf, math.inf)
    threshold = conf.gradient_normalization_threshold
    _check_range(title, "gradient_normalization_threshold", threshold, 0, math.inf)
    if threshold == 0:
        raise ConfError(f"{title}: gradient_normalization_threshold is 0; it must be positive")


def _check_range(title: str, field: str, value: float | None, low: float, high: float) -> None:
    if value is None or (low <= value <= high and math.isfinite(value)):
        return
    bounds = f"from {low:g} to {high:g}" if math.isfinite(high) else f"from {low:g} up" if math.isfinite(low) else ""
    raise ConfError(f"{title}: {field} is {value}; it must be a finite number {bounds}".rstrip())


class NeuralNetConfiguration(ConfText):
    """Settings of the whole network, and defaults for the open fields of its layers.

    Attributes:
        seed: of weights, drop-out, sampling; a signed 64-bit number.
        activation, weight_init, dist, bias_init: names of ``ACTIVATIONS`` and ``WEIGHT_INITS``; ``dist`` is the
            distribution for the weight init "distribution".
        updater: with its learning rate and schedule.
        l1, l2: penalties on weights, ``l1 |w| + l2 / 2 w^2`` in the score; ``l1_bias``, ``l2_bias`` those on biases.
        drop_out: probability that an input of a layer is *retained* in training; 0 switches drop-out off.
        gradient_normalization, gradient_normalization_threshold: see ``GRADIENT_NORMALIZATIONS``.
        mini_batch: divide the gradient by the number of examples.
        minimize: minimize the score; maximize it if False.
        dtype: "float32", or "float64" for gradient checks.
    """

    seed: int = 123
    activation: str = "sigmoid"
    weight_init: str = "xavier"
    dist: Distribution | None = None
    bias_init: float = 0.0
    updater: Updater = Sgd(learning_rate=0.1)
    l1: float = 0.0
    l2: float = 0.0
    l1_bias: float = 0.0
    l2_bias: float = 0.0
    drop_out: float = 0.0
    gradient_normalization: str = "none"
    gradient_normalization_threshold: float = 1.0
    mini_batch: bool = True
    minimize: bool = True
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise ConfError(f"NeuralNetConfiguration.seed is {self.seed}; it must fit into 64 bits, signed")
        for field, known in (*_TABLES.items(), ("dtype", _DTYPES)):
            resolve_name(self, "NeuralNetConfiguration", field, known)
        resolve_updater(self, "NeuralNetConfiguration")
        check_fields("NeuralNetConfiguration", self)

    @staticmethod
    def builder() -> NeuralNetConfigurationBuilder:
        """Return DL4J's fluent builder: ``builder().seed(7).updater("adam").list().layer(...).build()``."""
        return NeuralNetConfigurationBuilder()


def _check_truncation(conf: MultiLayerConfiguration | ComputationGraphConfiguration) -> None:
    """Resolve the name of ``backprop_type``, and check the lengths of truncated backpropagation."""
    title = type(conf).__name__
    resolve_name(conf, title, "backprop_type", _BACKPROP_TYPES)
    for field in ("tbptt_fwd_length", "tbptt_back_length"):
        if getattr(conf, field) < 1:
            raise ConfError(f"{title}.{field} is {getattr(conf, field)}; it must be at least 1")


class MultiLayerConfiguration(ConfText):
    """A stack of layers: ``conf`` applies to all, ``layers`` go from input to output.

    ``pretrain``: ``fit`` first trains each pretrainable layer by itself; ``backprop``: ``fit`` then trains all of them.
    The constructor raises for configurations that can never work; sizes that are still open (0) may be filled in by
    ``with_sizes``.

    ``input_type`` describes the data, from which sizes and preprocessors are inferred; without it the first layer needs
    ``n_in``. ``input_pre_processors`` maps a layer's index to the preprocessor before it, where it cannot be inferred.
    With "truncated_bptt" each update uses ``tbptt_fwd_length`` time steps of a sequence.
    """

    positional = ("layers", "conf")

    layers: tuple[Layer, ...]
    conf: NeuralNetConfiguration = NeuralNetConfiguration()
    pretrain: bool = False
    backprop: bool = True
    input_type: AnyInputType | None = None
    input_pre_processors: dict[int, InputPreProcessor] = msgspec.field(default_factory=dict)
    backprop_type: Literal["standard", "truncated_bptt"] = "standard"
    tbptt_fwd_length: int = 20
    tbptt_back_length: int = 20

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfError("MultiLayerConfiguration.layers is empty; a network needs at least one layer")
        for index, layer in enumerate(self.layers):
            check_fields(self._title(index), layer)
            for field, size in (("n_in", layer.n_in), ("n_out", layer.n_out)):
                if size < 0:
                    raise ShapeError(f"{self._title(index)}: {field} is {size}; it must be positive")
            if isinstance(layer, BaseOutputLayer) and index < len(self.layers) - 1:
                raise ConfError(f"{self._title(index)} is followed by {self._title(index + 1)}; it must be the last")
        for index in self.input_pre_processors:
            if not 0 <= index < len(self.layers):
                raise ConfError(f"input_pre_processors[{index}]: there are only layers 0 to {len(self.layers) - 1}")
        _check_truncation(self)
        for index, (below, above) in enumerate(pairwise(self.layers)):
            plain = below.consumes == above.consumes == ("feed_forward",)
            if plain and below.n_out and above.n_in and below.n_out != above.n_in:
                raise ShapeError(
                    f"{self._title(index)} has n_out={below.n_out} but {self._title(index + 1)} has "
                    f"n_in={above.n_in}; they must be equal (leave n_in out to infer it)"
                )

    @staticmethod
    def builder() -> NeuralNetConfigurationBuilder:
        """Return the builder of ``NeuralNetConfiguration``; its ``list()`` returns the builder of this class."""
        return NeuralNetConfiguration.builder()

    def with_sizes(self, n_in: int, n_out: int) -> Self:
        """Return a copy for data with ``n_in`` features and ``n_out`` labels, with open sizes filled in.

        Raises:
            ShapeError: the configuration has other sizes; the message names both.
        """
        changed = list(self.layers)
        ends = [(len(changed) - 1, "n_out", changed[-1].outputs_of(n_out), "label columns")]
        if changed[-1].n_out and not self.backprop:
            ends = []  # a network that only pretrains uses no labels
        known = self.input_type or infer_input_type(changed[0], self.input_pre_processors.get(0))
        if known is None and changed[0].consumes[0] == "feed_forward":
            changed[0] = msgspec.structs.replace(changed[0], n_in=n_in)
        elif (
            known == InputTypeFeedForward(size=changed[0].n_in or 1)
            and self.input_type is None
            and not self.input_pre_processors
        ):
            ends.insert(0, (0, "n_in", n_in, "feature columns"))
        elif known is not None and not known.fits_columns(n_in):
            raise ShapeError(f"the input type is {known} but the data has {n_in} feature columns; set the right one")
        for index, field, size, what in ends:
            present = getattr(changed[index], field)
            if present not in (0, size):
                raise ShapeError(
                    f"{self._title(index)} has {field}={present} but the data has {size} {what}; "
                    f"set {field}={size} or leave it out"
                )
            changed[index] = msgspec.structs.replace(changed[index], **{field: size})
        return self.replace(layers=tuple(changed))

    def stages(self) -> tuple[Stage, ...]:
        """Return the layers with everything filled in, each with the preprocessor before it and its input type.

        Raises:
            ShapeError: a size is open or does not fit the input.
            ConfError: weight init "distribution" without a distribution.
        """
        return stages(self.layers, self.conf, self.input_type, self.input_pre_processors)

    def resolved(self) -> tuple[Layer, ...]:
        """Return the layers with inherited fields and sizes filled in; raises like ``stages``."""
        return tuple(stage.layer for stage in self.stages())

    def validate(self) -> None:
        """Raise ``ConfError`` (``ShapeError`` for sizes) unless a network can be built and ``fit`` from this."""
        for index, layer in enumerate(self.layers):
            if self.backprop_type == "truncated_bptt" and layer.needs_whole:
                raise ConfError(
                    f"{self._title(index)} looks at a sequence from both ends, so backprop_type='truncated_bptt' "
                    "cannot be used with it; choose 'standard'"
                )
        self.stages()
        if self.backprop and not isinstance(self.layers[-1], BaseOutputLayer):
            raise ConfError(
                f"{self._title(len(self.layers) - 1)} is the last layer, but backprop needs an OutputLayer there: "
                "add one, or set backprop=False to pretrain only"
            )

    def _title(self, index: int) -> str:
        return f"layer {index} ({self.layers[index].title()})"


class ComputationGraphConfiguration(ConfText):
    """A graph of layers and vertices between ``network_inputs`` and ``network_outputs``.

    ``input_types`` are the types of the network inputs, in their order; if empty, they are inferred from the ``n_in``
    of the layers that read the inputs. ``conf`` applies to all layers. The constructor raises for configurations that
    can never work.

    ``GraphBuilder`` is DL4J's way to write it. The vertices are a list, not a map: their order breaks ties in the
    topological order, and so decides the place of parameters in the flat vector.
    Legacy: ``org.deeplearning4j.nn.conf.ComputationGraphConfiguration``.
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
        _check_truncation(self)
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
                    title = vertex_title(node.name, node.vertex)
                    raise ConfError(f"vertex {title} has unknown input {source!r}{nearest(source, names)}")

    def _check_ends(self) -> None:
        """Raise ``ConfError`` if a node is unused, or if something follows an output layer."""
        read = {source for node in self.vertices for source in (*node.inputs, _referenced_input(node))}
        by_name = {node.name: node for node in self.vertices}
        for name in (*self.network_inputs, *by_name):
            if name not in read and name not in self.network_outputs:
                what = vertex_title(name, by_name[name].vertex if name in by_name else None)
                raise ConfError(f"{what} leads nowhere: nothing reads it, and it is no network output; remove it")
        for node in self.vertices:
            for source in node.inputs:
                below = by_name.get(source)
                if below is not None and isinstance(below.vertex, BaseOutputLayer):
                    raise ConfError(
                        f"output layer {vertex_title(source, below.vertex)} is followed by "
                        f"{vertex_title(node.name, node.vertex)}; it must be the end"
                    )

    def order(self) -> tuple[str, ...]:
        """Return network inputs and vertices in topological order; raises ``ConfError`` for a cycle."""
        return topological_order(self.network_inputs, {node.name: node.inputs for node in self.vertices})

    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes in order, with sizes, types and preprocessors filled in.

        Raises:
            ShapeError: a size is open or does not fit the node before; both are named.
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
                    f"{vertex_title(node.name, node.vertex)} looks at a sequence from both ends, so "
                    "backprop_type='truncated_bptt' cannot be used with it; choose 'standard'"
                )
            if node.name in self.network_outputs and not isinstance(node.vertex, BaseOutputLayer):
                title = vertex_title(node.name, node.vertex)
                raise ConfError(f"network output {title} has no loss; training needs an OutputLayer there")

    @property
    def pretrain(self) -> bool:
        """False: graphs do not pretrain."""
        return False

    @property
    def backprop(self) -> bool:
        """True: graphs train by backpropagation."""
        return True

    def with_sizes(self, n_in: int, n_out: int) -> ComputationGraphConfiguration:
        """Return a copy for data with ``n_in`` features and ``n_out`` labels, for graphs with one input and one output.

        Raises:
            ShapeError: the configuration has other sizes; the message names both.
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
            n_out = layer.outputs_of(n_out)
            if layer.n_out not in (0, n_out):
                raise ShapeError(
                    f"{vertex_title(node.name, layer)} has n_out={layer.n_out} but the data has {n_out} label columns; "
                    f"set n_out={n_out} or leave it out"
                )
            fields["n_out"] = n_out
        return msgspec.structs.replace(node, vertex=msgspec.structs.replace(layer, **fields))


def _referenced_input(node: GraphNode) -> str | None:
    return None if isinstance(node.vertex, FeedForwardLayer) else node.vertex.referenced_input()


def _check_node(node: GraphNode, network_inputs: tuple[str, ...]) -> None:
    title, count = vertex_title(node.name, node.vertex), len(node.inputs)
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
    least, most = node.vertex.min_inputs, node.vertex.max_inputs
    if count < least or (most is not None and count > most):
        wanted = f"{least}" if most == least else f"at least {least}" if most is None else f"{least} to {most}"
        raise ConfError(f"vertex {title} has {count} inputs {list(node.inputs)}; it takes {wanted}")
    source = node.vertex.referenced_input()
    if source is not None and source not in network_inputs:
        raise ConfError(f"vertex {title} refers to {source!r}, no network input{nearest(source, list(network_inputs))}")


class NeuralNetConfigurationBuilder(NetworkSettings):
    """Legacy: ``org.deeplearning4j.nn.conf.NeuralNetConfiguration.Builder``."""

    def build(self) -> NeuralNetConfiguration:
        """Return the configuration of a network whose layers are given elsewhere.

        Raises:
            ConfError: a value out of range, an unknown name, a setting that the updater does not have, or a setting of
                layers, which only ``list`` and ``graph_builder`` accept.
        """
        if of_layers := self._of_layers():
            raise ConfError(
                f"{', '.join(of_layers)}: build() makes no layers that could have that; put .list(n) with "
                ".hidden_layer_sizes(...), or .list() with .layer(...) for each layer, before .build(), or leave it out"
            )
        return self._conf()

    def _conf(self) -> NeuralNetConfiguration:
        fields = dict(self._fields)
        if not self._is_regularized:
            fields |= {"l1": 0.0, "l2": 0.0, "l1_bias": 0.0, "l2_bias": 0.0}
        return NeuralNetConfiguration(**fields, updater=self._build_updater())

    def list(self, *layers: Layer | Sequence[Layer] | int) -> ListBuilder:
        """Return the builder of layers: ``list()``, ``list(layer, layer, ...)``, or ``list(n)`` (2014) for n layers."""
        return ListBuilder(self, layers)

    def graph_builder(self) -> GraphBuilder:
        """Return the builder of a graph of layers and vertices.

        Raises:
            ConfError: as ``build``; or ``n_in``, ``n_out`` or ``layer`` is set, which a graph has for each of its
                layers.
        """
        if of_stacks := [call for call in self._of_layers() if call.partition("(")[0] in ("n_in", "n_out", "layer")]:
            raise ConfError(
                f"{', '.join(of_stacks)} before graph_builder(): a graph has sizes and kinds for each of its layers; "
                "give them in add_layer, or set_input_types"
            )
        return GraphBuilder(self._conf(), self)

    def settled(self, layers: Sequence[Layer]) -> Sequence[Layer]:
        """Return a network's layers with the layer settings of this builder filled in where the layers leave them open.

        Raises:
            ConfError: a setting applies to none of the layers.
        """
        for name, value in self._layer_fields.items():
            if not any(name in layer.__struct_fields__ for layer in layers):
                raise ConfError(f"{name}({value!r}) reaches none of the layers, {kinds(layers)}; leave it out")
        conf = self._conf()
        if self._fields.get("dist") is not None and not any(
            (layer.weight_init or conf.weight_init) == "distribution" for layer in layers if not layer.dist
        ):
            raise ConfError(
                f"dist({conf.dist}) reaches none of the layers, {kinds(layers)}, as weight_init is "
                f"{conf.weight_init!r}; leave one of them out"
            )
        if "gradient_normalization_threshold" in self._fields and not any(
            (layer.gradient_normalization or conf.gradient_normalization).startswith("clip") for layer in layers
        ):
            raise ConfError(
                f"gradient_normalization_threshold({conf.gradient_normalization_threshold}) reaches none of the "
                f"layers, {kinds(layers)}, as gradient_normalization is {conf.gradient_normalization!r}; choose one "
                "that clips, such as 'clip_l2_per_layer', or leave it out"
            )
        return [inheriting(layer, self._layer_fields) for layer in layers]


class ListBuilder(LayerList[NeuralNetConfigurationBuilder]):
    """Legacy: ``NeuralNetConfiguration.ListBuilder`` and 2014's ``MultiLayerConfiguration.Builder``."""

    def build(self) -> MultiLayerConfiguration:
        """Return the configuration.

        Raises:
            ConfError: a layer is missing, or as ``MultiLayerConfiguration``.
        """
        layers = list(self._base.settled(self._sized() if self._hidden or self._count else self._indexed()))
        for index, fn in self._overrides:
            if not 0 <= index < len(layers):
                raise ConfError(f"override({index}): there are only layers 0 to {len(layers) - 1}")
            layers[index] = fn(layers[index])
        conf = MultiLayerConfiguration(conf=self._base._conf(), layers=tuple(layers), **self._fields)
        self._check_truncation(conf.backprop_type)
        if conf.pretrain and not any(layer.pretrains for layer in layers):
            raise ConfError(f"pretrain(True): none of the layers, {kinds(layers)}, is pretrained; leave it out")
        return conf


class GraphBuilder(GraphVertices):
    """DL4J's fluent way to write a ``ComputationGraphConfiguration``, in snake_case; ``build`` checks it all.

    ::

        conf = (NeuralNetConfiguration.builder().updater("adam").graph_builder()
            .add_inputs("words", "image")
            .add_layer("a", DenseLayer(n_in=300, n_out=50), "words")
            .add_layer("b", DenseLayer(n_in=784, n_out=50), "image")
            .add_layer("out", OutputLayer(n_out=10), "a", "b")      # several inputs: merged by "out-merge"
            .set_outputs("out").build())

    Legacy: ``org.deeplearning4j.nn.conf.ComputationGraphConfiguration.GraphBuilder``.
    """

    def __init__(
        self, conf: NeuralNetConfiguration | None = None, base: NeuralNetConfigurationBuilder | None = None
    ) -> None:
        super().__init__()
        self._conf, self._base = conf or NeuralNetConfiguration(), base

    def build(self) -> ComputationGraphConfiguration:
        """Return the configuration; raises like ``ComputationGraphConfiguration``."""
        nodes = self._nodes
        if self._base is not None:
            layers = [node.vertex for node in nodes if isinstance(node.vertex, FeedForwardLayer)]
            settled = iter(self._base.settled(layers))
            nodes = [
                msgspec.structs.replace(node, vertex=next(settled))
                if isinstance(node.vertex, FeedForwardLayer)
                else node
                for node in nodes
            ]
        conf = ComputationGraphConfiguration(
            conf=self._conf,
            network_inputs=tuple(self._inputs),
            network_outputs=self._outputs,
            vertices=tuple(nodes),
            **self._fields,
        )
        self._check_truncation(conf.backprop_type)
        return conf
