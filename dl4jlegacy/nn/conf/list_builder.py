"""ListBuilder: the second half of the fluent builder, where the layers are (see ``builder``)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import msgspec

from dl4jlegacy.errors import ConfError, nearest
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.preprocessors.shape import InputPreProcessor

if TYPE_CHECKING:
    from dl4jlegacy.nn.conf.builder import NeuralNetConfigurationBuilder
    from dl4jlegacy.nn.conf.network import MultiLayerConfiguration

__all__ = ["Fluent", "ListBuilder", "classifier_override"]

Override = Callable[[Layer], Layer]


class _UnknownMethodError(ConfError, AttributeError):
    """So that ``hasattr`` works and the command line still reports a configuration error."""


class Fluent:
    """A builder that names the nearest method when it has none of that name."""

    if not TYPE_CHECKING:  # for the type checker there are only the methods that exist

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [method for method in dir(type(self)) if not method.startswith("_")]
            raise _UnknownMethodError(f"{type(self).__name__} has no method {name!r}{nearest(name, known)}")


class ListBuilder(Fluent):
    """Legacy: ``NeuralNetConfiguration.ListBuilder`` and 2014's ``MultiLayerConfiguration.Builder``."""

    def __init__(self, base: NeuralNetConfigurationBuilder, layers: tuple[Layer | int, ...]) -> None:
        self._base = base
        self._count = layers[0] if len(layers) == 1 and isinstance(layers[0], int) else 0
        given = () if self._count else layers
        self._layers = {index: layer for index, layer in enumerate(given) if not isinstance(layer, int)}
        if len(self._layers) != len(given):
            raise ConfError("list() takes layers, or one positive number of layers")
        self._hidden: tuple[int, ...] = ()
        self._overrides: list[tuple[int, Override]] = []
        self._fields: dict[str, Any] = {}

    def layer(self, index: int, layer: Layer) -> Self:
        """Put ``layer`` at ``index``, counted from 0 at the input."""
        self._layers[index] = layer
        return self

    def pretrain(self, is_pretrained: bool) -> Self:
        """Whether ``fit`` pretrains the layers that can be."""
        self._fields["pretrain"] = is_pretrained
        return self

    def backprop(self, is_backprop: bool) -> Self:
        """Whether ``fit`` trains all layers together."""
        self._fields["backprop"] = is_backprop
        return self

    def set_input_type(self, input_type: AnyInputType) -> Self:
        """Say what the data is: sizes and preprocessors follow. Legacy: also ``ConvolutionLayerSetup``."""
        self._fields["input_type"] = input_type
        return self

    def input_pre_processor(self, index: int, pre_processor: InputPreProcessor) -> Self:
        """Put ``pre_processor`` before layer ``index``."""
        self._fields["input_pre_processors"] = {**self._fields.get("input_pre_processors", {}), index: pre_processor}
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

    def hidden_layer_sizes(self, *sizes: int) -> Self:
        """2014: units of the hidden layers, from the input up; an output layer follows them."""
        self._hidden = sizes
        return self

    def override(self, index: int, fn: Override) -> Self:
        """Replace layer ``index`` by ``fn(layer)`` before building, e.g. by ``classifier_override``."""
        self._overrides.append((index, fn))
        return self

    def build(self) -> MultiLayerConfiguration:
        """Return the configuration.

        Raises:
            ConfError: a layer is missing, or as ``MultiLayerConfiguration``.
        """
        layers = self._sized() if self._hidden or self._count else self._indexed()
        for index, fn in self._overrides:
            if not 0 <= index < len(layers):
                raise ConfError(f"override({index}): there are only layers 0 to {len(layers) - 1}")
            layers[index] = fn(layers[index])
        conf = self._base.build()
        return self._base._list_class(conf=conf, layers=tuple(layers), **self._fields)

    def _indexed(self) -> list[Layer]:
        missing = [index for index in range(max(self._layers, default=-1) + 1) if index not in self._layers]
        if missing or min(self._layers, default=0) < 0:
            raise ConfError(f"list(): layers {sorted(self._layers)} are given; {missing or 'negative ones'} cannot be")
        layers = [self._layers[index] for index in sorted(self._layers)]
        n_in, n_out = self._base._sizes
        if layers and n_in and not layers[0].n_in:
            layers[0] = msgspec.structs.replace(layers[0], n_in=n_in)
        if layers and n_out and not layers[-1].n_out:
            layers[-1] = msgspec.structs.replace(layers[-1], n_out=n_out)
        return layers

    def _sized(self) -> list[Layer]:
        """Return 2014's stack: hidden layers of the given sizes, then an output layer; explicit layers win."""
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
        return layers

    def _hidden_layer(self, n_in: int, n_out: int) -> Layer:
        default: Layer = RBM() if self._fields.get("pretrain") else DenseLayer()
        layer = self._base._layer or default
        fields = {k: v for k, v in self._base._layer_fields.items() if k in layer.__struct_fields__}
        return msgspec.structs.replace(layer, n_in=n_in, n_out=n_out, **fields)


def classifier_override(layer: Layer) -> Layer:
    """Return an output layer of the same size: softmax, cross-entropy, zero weights.

    Legacy: ``org.deeplearning4j.nn.conf.override.ClassifierOverride``.
    """
    return OutputLayer(
        name=layer.name, n_in=layer.n_in, n_out=layer.n_out, activation="softmax", loss="mcxent", weight_init="zero"
    )
