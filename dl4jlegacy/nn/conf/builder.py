"""The methods of DL4J's fluent builders, in snake_case, that set something; ``conf.network`` adds those that build.

    NeuralNetConfiguration.builder().seed(7).learning_rate(0.1).updater("adagrad").l2(1e-4)
        .list().layer(0, RBM(n_in=784, n_out=500)).layer(1, OutputLayer(n_out=10)).pretrain(True).build()

and in the style of 2014, with all sizes in one place:

    NeuralNetConfiguration.builder().n_in(784).n_out(10).list(4).hidden_layer_sizes(500, 250, 100)
        .override(3, classifier_override).build()

The order of calls does not matter; ``build`` checks everything, and raises an error for a setting that applies to no
layer. This module knows no configuration: a configuration offers its builder, so both are in ``conf.network``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from dl4jlegacy.errors import ConfError, ShapeError, nearest
from dl4jlegacy.nn.conf.graph_stages import GraphNode
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.optimization.schedules import Schedule
from dl4jlegacy.nn.optimization.updaters import UPDATERS, Nesterovs, Sgd, Updater, check_idle, create_updater
from dl4jlegacy.nn.optimization.weights import Distribution
from dl4jlegacy.nn.preprocessors import InputPreProcessor
from dl4jlegacy.nn.vertices.combine import MergeVertex
from dl4jlegacy.nn.vertices.shape import Vertex

__all__ = [
    "Fluent",
    "GraphVertices",
    "LayerList",
    "NetworkSettings",
    "Truncating",
    "classifier_override",
    "inheriting",
    "kinds",
]

Override = Callable[[Layer], Layer]
Base = TypeVar("Base", bound="NetworkSettings")


class _UnknownMethodError(ConfError, AttributeError):
    """An ``AttributeError``, for ``hasattr``, that the command line reports as a configuration error."""


class Fluent:
    """A builder whose error for an unknown method names the nearest method."""

    if not TYPE_CHECKING:  # type checkers see only the methods that exist

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [method for method in dir(type(self)) if not method.startswith("_")]
            raise _UnknownMethodError(f"{type(self).__name__} has no method {name!r}{nearest(name, known)}")


class Truncating:
    """Settings of truncated backpropagation through time, shared by the builders of networks."""

    _fields: dict[str, Any]

    def backprop_type(self, name: str) -> Self:
        """Set ``"standard"`` or ``"truncated_bptt"``."""
        self._fields["backprop_type"] = name
        return self

    def t_bptt_forward_length(self, steps: int) -> Self:
        """Set the time steps of a segment of truncated BPTT."""
        self._fields["tbptt_fwd_length"] = steps
        return self

    def t_bptt_backward_length(self, steps: int) -> Self:
        """Set the time steps that truncated BPTT looks back."""
        self._fields["tbptt_back_length"] = steps
        return self

    def _check_truncation(self, backprop_type: str) -> None:
        """Raise ``ConfError`` if lengths of truncated BPTT are given to a network that does not truncate."""
        lengths = [name for name in ("tbptt_fwd_length", "tbptt_back_length") if name in self._fields]
        if lengths and backprop_type != "truncated_bptt":
            said = ", ".join(f"{name} {self._fields[name]}" for name in lengths)
            raise ConfError(
                f"{said} reaches nothing, as backprop_type is {backprop_type!r}: call "
                '.backprop_type("truncated_bptt"), or leave it out'
            )


class NetworkSettings(Fluent):
    """Settings of a network and its layers: all that ``NeuralNetConfigurationBuilder`` has before it builds."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._updater: str | Updater | None = None
        self._updater_fields: dict[str, Any] = {}
        self._layer: Layer | None = None
        self._layer_fields: dict[str, Any] = {}
        self._sizes = (0, 0)
        self._is_regularized = True

    # -- fields of NeuralNetConfiguration ------------------------------------------------------------------------------
    def seed(self, seed: int) -> Self:
        """Seed of weights, drop-out and sampling."""
        return self._set(seed=seed)

    def activation(self, name: str) -> Self:
        """Activation of layers without their own."""
        return self._set(activation=name)

    def activation_function(self, name: str) -> Self:
        """The name of ``activation`` in 2014."""
        return self.activation(name)

    def weight_init(self, name: str) -> Self:
        """Weight initialisation, e.g. "xavier"."""
        return self._set(weight_init=name)

    def dist(self, distribution: Distribution) -> Self:
        """Distribution for ``weight_init("distribution")``; also sets that unless another weight init is named."""
        self._fields.setdefault("weight_init", "distribution")
        return self._set(dist=distribution)

    def bias_init(self, value: float) -> Self:
        """Initial value of the biases."""
        return self._set(bias_init=float(value))

    def l1(self, value: float) -> Self:
        """L1 penalty on weights."""
        return self._set(l1=float(value))

    def l2(self, value: float) -> Self:
        """L2 penalty on weights."""
        return self._set(l2=float(value))

    def l1_bias(self, value: float) -> Self:
        """L1 penalty on biases."""
        return self._set(l1_bias=float(value))

    def l2_bias(self, value: float) -> Self:
        """L2 penalty on biases."""
        return self._set(l2_bias=float(value))

    def regularization(self, is_used: bool) -> Self:
        """``False`` switches L1 and L2 off. Legacy: 0.9.1 ignored them without ``regularization(true)``."""
        self._is_regularized = is_used
        return self

    def drop_out(self, retain: float) -> Self:
        """Probability that an input is retained; 0 is off."""
        return self._set(drop_out=float(retain))

    def gradient_normalization(self, name: str) -> Self:
        """How gradients are normalized, e.g. "clip_l2_per_layer"."""
        return self._set(gradient_normalization=name)

    def gradient_normalization_threshold(self, threshold: float) -> Self:
        """Threshold of the clipping normalizations."""
        return self._set(gradient_normalization_threshold=float(threshold))

    def constrain_gradient_to_unit_norm(self, is_constrained: bool) -> Self:
        """The name of ``gradient_normalization("renormalize_l2_per_layer")`` in 2014."""
        return self.gradient_normalization("renormalize_l2_per_layer" if is_constrained else "none")

    def mini_batch(self, is_mini_batch: bool) -> Self:
        """Whether gradients are divided by the number of examples."""
        return self._set(mini_batch=is_mini_batch)

    def minimize(self, is_minimized: bool = True) -> Self:
        """Whether training minimizes the score."""
        return self._set(minimize=is_minimized)

    def dtype(self, name: str) -> Self:
        """``"float32"`` or ``"float64"``."""
        return self._set(dtype=name)

    def optimization_algo(self, name: str) -> Self:
        """Accept only "stochastic_gradient_descent"; the line searches of 2014 are not supported."""
        if name.lower() != "stochastic_gradient_descent":
            raise ConfError(f"optimization_algo {name!r} does not exist here; use 'stochastic_gradient_descent'")
        return self

    def iterations(self, count: int) -> Self:
        """Accept only 1: as in 1.0.0, a batch is used once each time that it is read."""
        if count != 1:
            raise ConfError(f"iterations({count}): a batch gives one step; train for more epochs instead")
        return self

    # -- the updater ---------------------------------------------------------------------------------------------------
    def updater(self, updater: str | Updater) -> Self:
        """Set the updater: a name of ``UPDATERS``, or an updater."""
        self._updater = updater
        return self

    def learning_rate(self, value: float) -> Self:
        """Base learning rate of the chosen updater."""
        return self._set_updater(learning_rate=float(value))

    def schedule(self, schedule: Schedule) -> Self:
        """Schedule of the learning rate over iterations."""
        return self._set_updater(schedule=schedule)

    def momentum(self, value: float) -> Self:
        """Momentum; selects Nesterovs unless an updater is named."""
        return self._set_updater(momentum=float(value))

    def momentum_after(self, values: Mapping[int, float]) -> Self:
        """Momentum from certain iterations on."""
        return self._set_updater(momentum_after=dict(values))

    def use_ada_grad(self, is_used: bool) -> Self:
        """The way to choose AdaGrad (or plain SGD) in 2014."""
        return self.updater("adagrad" if is_used else "sgd")

    def rho(self, value: float) -> Self:
        """Decay rate of AdaDelta."""
        return self._set_updater(rho=float(value))

    def rms_decay(self, value: float) -> Self:
        """Decay rate of RmsProp."""
        return self._set_updater(decay=float(value))

    def epsilon(self, value: float) -> Self:
        """Constant that keeps the adaptive updaters from dividing by zero."""
        return self._set_updater(epsilon=float(value))

    def adam_mean_decay(self, value: float) -> Self:
        """``beta1`` of Adam and its relatives."""
        return self._set_updater(beta1=float(value))

    def adam_var_decay(self, value: float) -> Self:
        """``beta2`` of Adam and its relatives."""
        return self._set_updater(beta2=float(value))

    # -- 2014: sizes, layer kinds and their settings, before list(n), list() or graph_builder() ------------------------
    def layer(self, layer: Layer) -> Self:
        """Template for the hidden layers of ``list(n)``; default an RBM with ``pretrain``, else dense."""
        self._layer = layer
        return self

    def n_in(self, size: int) -> Self:
        """Number of features of an example."""
        self._sizes = (size, self._sizes[1])
        return self

    def n_out(self, size: int) -> Self:
        """Number of outputs of the network."""
        self._sizes = (self._sizes[0], size)
        return self

    def k(self, steps: int) -> Self:
        """Steps of contrastive divergence, for RBM layers with the default ``k``."""
        return self._set_layer(k=steps)

    def visible_unit(self, unit: str) -> Self:
        """Kind of visible units, for RBM layers with the default ``visible_unit``."""
        return self._set_layer(visible_unit=unit)

    def hidden_unit(self, unit: str) -> Self:
        """Kind of hidden units, for RBM layers with the default ``hidden_unit``."""
        return self._set_layer(hidden_unit=unit)

    def corruption_level(self, level: float) -> Self:
        """Share of inputs set to 0, for autoencoder layers with the default ``corruption_level``."""
        return self._set_layer(corruption_level=float(level))

    def sparsity(self, value: float) -> Self:
        """Sparsity, for pretrained layers with the default ``sparsity``."""
        return self._set_layer(sparsity=float(value))

    def _of_layers(self) -> tuple[str, ...]:
        """Return the layer settings that were made, by the names of the methods."""
        said = {"n_in": self._sizes[0], "n_out": self._sizes[1], "layer": self._layer, **self._layer_fields}
        return tuple(f"{name}({value!r})" for name, value in said.items() if value or name in self._layer_fields)

    def _set(self, **fields: Any) -> Self:
        self._fields |= fields
        return self

    def _set_updater(self, **fields: Any) -> Self:
        self._updater_fields |= fields
        return self

    def _set_layer(self, **fields: Any) -> Self:
        self._layer_fields |= fields
        return self

    def _build_updater(self) -> Updater:
        fields = dict(self._updater_fields)
        chosen = self._updater
        if chosen is None:
            chosen = Nesterovs() if {"momentum", "momentum_after"} & set(fields) else Sgd(learning_rate=0.1)
        updater = create_updater(chosen) if isinstance(chosen, str) else chosen
        for field in fields:
            if field not in updater.__struct_fields__:
                having = [name for name, kind in UPDATERS.items() if field in kind.__struct_fields__]
                raise ConfError(f"updater {type(updater).__name__} has no {field}; those that have: {having}")
        updater = msgspec.structs.replace(updater, **fields)
        check_idle(updater)
        return updater


class LayerList(Truncating, Fluent, Generic[Base]):
    """The layers of a stack: all that ``ListBuilder`` has before it builds; ``Base`` is the builder before it."""

    def __init__(self, base: Base, layers: tuple[Layer | Sequence[Layer] | int, ...]) -> None:
        self._base = base
        if len(layers) == 1 and isinstance(layers[0], Sequence):
            layers = tuple(layers[0])
        self._count = layers[0] if len(layers) == 1 and isinstance(layers[0], int) else 0
        given = () if self._count else layers
        self._layers = {index: layer for index, layer in enumerate(given) if isinstance(layer, FeedForwardLayer)}
        if len(self._layers) != len(given):
            raise ConfError("list() takes layers, or one positive number of layers")
        self._hidden: tuple[int, ...] = ()
        self._overrides: list[tuple[int, Override]] = []
        self._fields: dict[str, Any] = {}

    def layer(self, index: int | Layer, layer: Layer | None = None) -> Self:
        """Put ``layer`` at ``index`` (from 0, at the input); without an index it is appended.

        Raises:
            ConfError: the index or the layer is invalid or missing.
        """
        place, given = (index, layer) if layer is not None else (max(self._layers, default=-1) + 1, index)
        if not isinstance(place, int) or isinstance(given, int) or not isinstance(given, FeedForwardLayer):
            raise ConfError(f"layer({index!r}, {layer!r}): give an index and a layer, such as DenseLayer(n_out=10)")
        self._layers[place] = given
        return self

    def pretrain(self, is_pretrained: bool) -> Self:
        """Whether ``fit`` pretrains the layers that support it."""
        self._fields["pretrain"] = is_pretrained
        return self

    def backprop(self, is_backprop: bool) -> Self:
        """Whether ``fit`` trains all layers together."""
        self._fields["backprop"] = is_backprop
        return self

    def set_input_type(self, input_type: AnyInputType) -> Self:
        """Set the type of the data: sizes and preprocessors are inferred. Legacy: also ``ConvolutionLayerSetup``."""
        self._fields["input_type"] = input_type
        return self

    def input_pre_processor(self, index: int, pre_processor: InputPreProcessor) -> Self:
        """Put ``pre_processor`` before layer ``index``."""
        self._fields["input_pre_processors"] = {**self._fields.get("input_pre_processors", {}), index: pre_processor}
        return self

    def hidden_layer_sizes(self, *sizes: int) -> Self:
        """Units of the hidden layers, from the input up, as in 2014; an output layer follows them."""
        self._hidden = sizes
        return self

    def override(self, index: int, fn: Override) -> Self:
        """Replace layer ``index`` by ``fn(layer)`` before building, e.g. by ``classifier_override``."""
        self._overrides.append((index, fn))
        return self

    def _indexed(self) -> list[Layer]:
        missing = [index for index in range(max(self._layers, default=-1) + 1) if index not in self._layers]
        if missing or min(self._layers, default=0) < 0:
            raise ConfError(f"list(): layers {sorted(self._layers)} are given; {missing or 'negative ones'} cannot be")
        if self._base._layer is not None:
            raise ConfError(
                f"layer({self._base._layer}) before list(): hidden layers of list(n) are made like it, and here all "
                f"layers are given; leave it out, or call layer after list()"
            )
        return self._with_ends([self._layers[index] for index in sorted(self._layers)])

    def _with_ends(self, layers: list[Layer]) -> list[Layer]:
        """Return the layers with the builder's ``n_in`` and ``n_out`` set; raises ``ShapeError`` on a conflict."""
        for place, field, size in ((0, "n_in", self._base._sizes[0]), (-1, "n_out", self._base._sizes[1])):
            if not size or not layers:
                continue
            own = getattr(layers[place], field)
            if own not in (0, size):
                raise ShapeError(
                    f"{field}({size}), and the {'last' if place else 'first'} layer, {layers[place].title()}, has "
                    f"{field}={own}; leave one of them out"
                )
            layers[place] = msgspec.structs.replace(layers[place], **{field: size})
        return layers

    def _sized(self) -> list[Layer]:
        """Return the stack of 2014: hidden layers of the given sizes, then an output layer; given layers win."""
        n_in, n_out = self._base._sizes
        sizes = (n_in, *self._hidden, n_out)
        if self._count and self._count != len(sizes) - 1:
            raise ConfError(
                f"list({self._count}) with hidden_layer_sizes{self._hidden}: "
                f"{len(self._hidden)} hidden layers and the output layer make {len(sizes) - 1}"
            )
        layers = [self._hidden_layer(below, above) for below, above in pairwise(sizes[:-1])]
        layers.append(OutputLayer(n_in=sizes[-2], n_out=n_out, activation="softmax", loss="mcxent"))
        for index, layer in self._layers.items():
            if not 0 <= index < len(layers):
                raise ConfError(f"layer({index}, ...): there are only layers 0 to {len(layers) - 1}")
            own = {"n_in": layer.n_in or layers[index].n_in, "n_out": layer.n_out or layers[index].n_out}
            layers[index] = msgspec.structs.replace(layer, **own)
        return self._with_ends(layers)

    def _hidden_layer(self, n_in: int, n_out: int) -> Layer:
        default: Layer = RBM() if self._fields.get("pretrain") else DenseLayer()
        return msgspec.structs.replace(self._base._layer or default, n_in=n_in, n_out=n_out)


class GraphVertices(Truncating, Fluent):
    """The vertices of a graph: all that ``GraphBuilder`` has before it builds."""

    def __init__(self) -> None:
        self._inputs: list[str] = []
        self._outputs: tuple[str, ...] = ()
        self._nodes: list[GraphNode] = []
        self._fields: dict[str, Any] = {}

    def add_inputs(self, *names: str) -> Self:
        """Name the network's inputs, in the order of the features."""
        self._inputs += names
        return self

    def set_input_types(self, *types: AnyInputType) -> Self:
        """Set the type of every network input: sizes and preprocessors are inferred."""
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
        """Remove a vertex."""
        kept = [node for node in self._nodes if node.name != name]
        if len(kept) == len(self._nodes):
            raise ConfError(f"there is no vertex {name!r} to remove{nearest(name, [n.name for n in self._nodes])}")
        self._nodes = kept
        return self

    def set_outputs(self, *names: str) -> Self:
        """Name the network's outputs, in the order of the labels."""
        self._outputs = names
        return self


def kinds(layers: Sequence[Layer]) -> str:
    """Return the names of the layers' classes, each once, for messages."""
    return ", ".join(dict.fromkeys(type(layer).__name__ for layer in layers))


def inheriting(layer: Layer, fields: Mapping[str, Any]) -> Layer:
    """Return a layer with those of ``fields`` set that it has and leaves at their defaults."""
    known = {field.name: field.default for field in msgspec.structs.fields(layer)}
    open_ = {name: value for name, value in fields.items() if name in known and getattr(layer, name) == known[name]}
    return msgspec.structs.replace(layer, **open_)


def classifier_override(layer: Layer) -> Layer:
    """Return an output layer of the same size: softmax, cross-entropy, zero weights.

    Legacy: ``org.deeplearning4j.nn.conf.override.ClassifierOverride``.
    """
    return OutputLayer(
        name=layer.name, n_in=layer.n_in, n_out=layer.n_out, activation="softmax", loss="mcxent", weight_init="zero"
    )
