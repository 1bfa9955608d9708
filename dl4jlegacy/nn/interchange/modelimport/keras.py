"""``KerasModelImport``: networks of Keras, with their weights, from ``.h5`` and ``.keras`` files.

Legacy: ``org.deeplearning4j.nn.modelimport.keras.KerasModelImport``. Weights and predictions are Keras's; arrays have
this package's shapes, images ``(examples, channels, height, width)``, sequences ``(examples, values, time steps)``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError, ModelError, ShapeError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn import preprocessors as pre
from dl4jlegacy.nn.conf.graph_stages import GraphNode
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration, MultiLayerConfiguration, NeuralNetConfiguration
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import AnyInputType, InputType, InputTypeFeedForward, InputTypeRecurrent
from dl4jlegacy.nn.interchange.modelimport.keras_file import KerasFile, opened
from dl4jlegacy.nn.interchange.modelimport.keras_layers import Flow, Made, Source, layer_of, merge_of
from dl4jlegacy.nn.interchange.modelimport.keras_training import output_layer, updater_of
from dl4jlegacy.nn.layers.elementwise import ActivationLayer
from dl4jlegacy.nn.layers.feedforward import FeedForwardLayer
from dl4jlegacy.nn.layers.layer import DenseLayer
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.vertices import shape

__all__ = ["KerasModelImport"]


class KerasModelImport:
    """DL4J's names for the import of Keras models."""

    @staticmethod
    def import_keras_model_and_weights(
        path: str | os.PathLike[str], *, kernels: Kernels | None = None
    ) -> MultiLayerNetwork | ComputationGraph:
        """Return the network in a file of Keras 2 or 3, ``.h5`` or ``.keras``.

        A chain of layers becomes a ``MultiLayerNetwork``. A network with several inputs or outputs, merged layers, or
        flattened sequences becomes a ``ComputationGraph``.

        Args:
            path: the file.
            kernels: the network's kernels, which decide its device.

        Raises:
            ModelError: the file cannot be read, the library h5py is missing, or a layer, a field or a weight is not
                supported; the message names it.
        """
        with opened(path) as file:
            try:
                return _network(file, kernels)
            except (ShapeError, ConfError) as exc:
                raise ModelError(f"its layers do not fit together here: {exc}") from exc

    @staticmethod
    def import_keras_sequential_model_and_weights(
        path: str | os.PathLike[str], *, kernels: Kernels | None = None
    ) -> MultiLayerNetwork:
        """Return the chain of layers in a Keras file; arguments and errors as above."""
        network = KerasModelImport.import_keras_model_and_weights(path, kernels=kernels)
        if not isinstance(network, MultiLayerNetwork):
            raise ModelError(
                f"file of Keras {path} is no plain chain of layers here; take import_keras_model_and_weights, which "
                "returns it as a ComputationGraph"
            )
        return network


@dataclass
class _Part:
    """A layer, vertex or preprocessor, its inputs, and the weights of a layer."""

    name: str
    inputs: tuple[str, ...]
    what: Any
    weights: Mapping[str, Array]


@dataclass
class _Plan:
    """The parts made from the layers of a file, in order."""

    inputs: dict[str, AnyInputType] = field(default_factory=dict)
    parts: list[_Part] = field(default_factory=list)
    flows: dict[str, Flow] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def enter(self, name: str, kind: AnyInputType) -> None:
        """Add a network input."""
        self.inputs[name] = kind
        self.flows[name] = Flow(name, kind, getattr(kind, "timesteps", 0))

    def sequences(self, flow: Flow) -> Flow:
        """Return a flow whose rows for time steps are sequences again, so that they can be merged with others."""
        if not (isinstance(flow.kind, InputTypeFeedForward) and flow.kind.sequences):
            return flow
        name = f"{flow.name}_sequences"
        if name not in self.flows:
            to_sequences = pre.FeedForwardToRnnPreProcessor()
            self.parts.append(_Part(name, (flow.name,), to_sequences, {}))
            self.flows[name] = replace(flow, name=name, kind=to_sequences.output_type(flow.kind))
        return self.flows[name]

    def add(self, source: Source, given: Sequence[Flow], made: Made) -> None:
        """Add the parts made from a Keras layer."""
        flow = given[0]
        sources = tuple(each.name for each in given)
        for index, what in enumerate(made.parts):
            is_last = index == len(made.parts) - 1
            name = source.name if is_last else f"{source.name}_{index}"
            weights = made.weights[index] if index < len(made.weights) else {}
            if weights and source.get("trainable", True) is False:
                what = msgspec.structs.replace(what, frozen=True)
            self.parts.append(_Part(name, sources, what, weights))
            kinds = [each.kind for each in given] if index == 0 else [flow.kind]
            kind = _type_behind(what, kinds, flow.steps)
            flow = Flow(name, kind, getattr(kind, "timesteps", 0) or flow.steps)
            sources = (name,)
        self.flows[source.name] = replace(flow, order=made.order)


def _type_behind(what: Any, given: Sequence[AnyInputType], steps: int) -> AnyInputType:
    """Return the output type of a part; sequences given as rows, without their length, have ``steps`` time steps."""
    if isinstance(what, FeedForwardLayer):
        _, enters = pre.resolve_preprocessor(None, given[0], what.consumes)
        if isinstance(enters, InputTypeRecurrent) and not enters.timesteps:
            enters = msgspec.structs.replace(enters, timesteps=steps)
        return what.with_input(enters).output_type(enters)
    if isinstance(what, pre.PreProcessor):
        return what.output_type(given[0])
    found: AnyInputType = what.output_type(list(given))
    return found


# -- reading the description -----------------------------------------------------------------------------------------


def _network(file: KerasFile, kernels: Kernels | None) -> MultiLayerNetwork | ComputationGraph:
    kind = file.config.get("class_name")
    if kind not in ("Sequential", "Functional", "Model"):
        raise ModelError(f"its model is of class {kind!r}; Sequential and Functional models are read")
    plan = _sequential(file) if kind == "Sequential" else _functional(file)
    for name in plan.outputs:
        if plan.flows[name].order is not None:
            raise ModelError(f"output {name!r} is a flattened image, whose values have another order here")
    _end(plan, file.training)
    conf = NeuralNetConfiguration(updater=updater_of(file.training))
    chain = _chain(plan)
    network: MultiLayerNetwork | ComputationGraph
    if chain is not None:
        layers, processors = chain
        [kind_of_input] = plan.inputs.values()
        whole = MultiLayerConfiguration(
            conf=conf, layers=layers, input_type=kind_of_input, input_pre_processors=processors
        )
        network = MultiLayerNetwork(whole, kernels=kernels)
    else:
        network = ComputationGraph(_graph(plan, conf), kernels=kernels)
    _fill(network, plan)
    return network


def _source(file: KerasFile, described: Any, name: str, *, first: bool) -> Source:
    config = described.get("config", {})
    found = Source(str(described.get("class_name")), name, config, file.version, first)
    found.arrays = file.weights(str(config.get("name", name)), found.kind)
    return found


def _sequential(file: KerasFile) -> _Plan:
    told = file.config["config"]
    layers = told if isinstance(told, list) else told["layers"]
    plan, last = _Plan(), ""
    first = _data_format(layers)
    embeds = [each.get("class_name") == "Embedding" for each in layers if each.get("class_name") != "InputLayer"]
    for number, described in enumerate(layers):
        config = described.get("config", {})
        name = str(config.get("name", f"layer_{number}"))
        is_input = described.get("class_name") == "InputLayer"
        if not plan.inputs:
            given = config.get("batch_shape", config.get("batch_input_shape"))
            kind = _input_type(given, name, takes_indices=embeds[:1] == [True], first=first)
            last = name if is_input else f"{name}_input"
            plan.enter(last, kind)
        if not is_input:
            source = _source(file, described, name, first=first)
            plan.add(source, [plan.flows[last]], layer_of(source, plan.flows[last]))
            last = name
    if not plan.parts:
        raise ModelError("it has no layers")
    plan.outputs = [plan.flows[last].name]
    return plan


def _functional(file: KerasFile) -> _Plan:
    told = file.config["config"]
    layers = {str(each.get("name", each["config"]["name"])): each for each in told["layers"]}
    reads = {name: _inbound(name, each) for name, each in layers.items()}
    embedded = {
        below for name, each in layers.items() if each.get("class_name") == "Embedding" for below in reads[name]
    }
    plan, first = _Plan(), _data_format(layers.values())
    for name in _histories(told["input_layers"]):
        config = layers[name]["config"]
        shape_of = config.get("batch_shape", config.get("batch_input_shape"))
        kind = _input_type(shape_of, name, takes_indices=name in embedded, first=first)
        plan.enter(name, kind)
    waiting = {name: each for name, each in layers.items() if name not in plan.inputs}
    while waiting:
        ready = next((n for n in waiting if reads[n] and all(below in plan.flows for below in reads[n])), None)
        if ready is None:
            raise ModelError(f"layers {sorted(waiting)[:4]} read nothing that comes from an input")
        described = waiting.pop(ready)
        source, given = _source(file, described, ready, first=first), [plan.flows[below] for below in reads[ready]]
        if len(given) > 1:
            given = [plan.sequences(flow) for flow in given]
        made = merge_of(source, given) if len(given) > 1 else layer_of(source, given[0])
        plan.add(source, given, made)
    plan.outputs = [plan.flows[name].name for name in _histories(told["output_layers"])]
    return plan


def _inbound(name: str, described: Any) -> tuple[str, ...]:
    """Return the names of a layer's input layers, in either of Keras's notations."""
    nodes = described.get("inbound_nodes", [])
    if len(nodes) > 1:
        raise ModelError(f"layer {name!r} is used in {len(nodes)} places; a layer that is shared is not here")
    return tuple(_histories(nodes[0])) if nodes else ()


def _histories(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "keras_history" in node:
            yield str(node["keras_history"][0])
        elif node.get("class_name") == "__keras_tensor__":
            yield str(node["config"]["keras_history"][0])
        else:
            yield from _histories(node.get("args", []))
    elif isinstance(node, list) and len(node) >= 3 and isinstance(node[0], str):
        yield node[0]
    elif isinstance(node, list):
        for each in node:
            yield from _histories(each)


def _data_format(layers: Any) -> bool:
    """Return whether a model's layers take images with channels first."""
    return any(each.get("config", {}).get("data_format") == "channels_first" for each in layers)


def _input_type(given: Any, name: str, *, takes_indices: bool, first: bool) -> AnyInputType:
    if not isinstance(given, list) or len(given) < 2:
        raise ModelError(
            f"layer {name!r} does not say the shape of its input (batch_shape); build the model, save it again"
        )
    sizes = given[1:]
    if takes_indices:
        return InputType.recurrent(1, int(sizes[0] or 0)) if len(sizes) == 1 else _refuse_input(name, given)
    if len(sizes) == 1 and sizes[0]:
        return InputType.feed_forward(int(sizes[0]))
    if len(sizes) == 2 and sizes[1]:
        return InputType.recurrent(int(sizes[1]), int(sizes[0] or 0))
    if len(sizes) == 3 and all(sizes):
        channels, height, width = sizes if first else (sizes[2], *sizes[:2])
        return InputType.convolutional(int(height), int(width), int(channels))
    return _refuse_input(name, given)


def _refuse_input(name: str, given: Any) -> AnyInputType:
    raise ModelError(
        f"input {name!r} has shape {given}; vectors, sequences and images are read, and all sizes but the number of "
        "examples and of time steps must be known"
    )


# -- putting the network together ------------------------------------------------------------------------------------


def _end(plan: _Plan, training: Mapping[str, Any]) -> None:
    """Turn the dense layers at the ends into output layers, with the loss that the model was compiled with."""
    for number, name in enumerate(plan.outputs):
        place = next(i for i, part in enumerate(plan.parts) if part.name == name)
        place = _folded(plan, place)
        part = plan.parts[place]
        if isinstance(part.what, DenseLayer):
            is_sequence = getattr(plan.flows[name].kind, "sequences", False)
            part.what = output_layer(part.what, training, name, number, is_sequence=is_sequence)
        else:
            plan.outputs[number] = plan.sequences(plan.flows[name]).name


def _folded(plan: _Plan, place: int) -> int:
    """Merge the activation at ``place`` into the dense layer before it if possible; return the resulting place."""
    part, below = plan.parts[place], plan.parts[place - 1] if place else None
    if below is None or not isinstance(part.what, ActivationLayer) or not isinstance(below.what, DenseLayer):
        return place
    if part.inputs != (below.name,) or below.what.activation != "identity":
        return place
    if sum(reader.inputs.count(below.name) for reader in plan.parts) > 1:
        return place
    whole = msgspec.structs.replace(below.what, activation=part.what.activation)
    plan.parts[place - 1 : place + 1] = [_Part(part.name, below.inputs, whole, below.weights)]
    return place - 1


def _chain(plan: _Plan) -> tuple[tuple[Any, ...], dict[int, Any]] | None:
    """Return the layers and their preprocessors if the parts are a single chain of these; else None."""
    if len(plan.inputs) != 1 or len(plan.outputs) != 1:
        return None
    [last] = plan.inputs
    layers: list[Any] = []
    processors: dict[int, Any] = {}
    for part in plan.parts:
        if part.inputs != (last,):
            return None
        if isinstance(part.what, pre.PreProcessor) and len(layers) not in processors:
            processors[len(layers)] = part.what
        elif isinstance(part.what, FeedForwardLayer):
            layers.append(part.what)
        else:
            return None
        last = part.name
    is_whole = bool(layers) and last == plan.outputs[0] and len(layers) not in processors
    return (tuple(layers), processors) if is_whole else None


def _graph(plan: _Plan, conf: NeuralNetConfiguration) -> ComputationGraphConfiguration:
    nodes = []
    for part in plan.parts:
        is_processor = isinstance(part.what, pre.PreProcessor)
        what = shape.PreprocessorVertex(pre_processor=part.what) if is_processor else part.what
        nodes.append(GraphNode(name=part.name, inputs=part.inputs, vertex=what))
    return ComputationGraphConfiguration(
        network_inputs=tuple(plan.inputs),
        network_outputs=tuple(plan.outputs),
        vertices=tuple(nodes),
        conf=conf,
        input_types=tuple(plan.inputs.values()),
    )


def _fill(network: MultiLayerNetwork | ComputationGraph, plan: _Plan) -> None:
    """Copy the weights into the network."""
    flat = np.zeros(network.params.shape, np.float64)
    views = network.layout.views(flat)
    by_name = {layer.name: views[index] for index, layer in enumerate(network.layers)}
    for part in plan.parts:
        for name, array in part.weights.items():
            by_name[part.what.name][name][...] = array
    network.set_params(flat.astype(network.params.dtype))
