"""InputRows: the weights of a network's first layer, by input, in the parameters and the updater state.

A batch of sparse features uses only the rows of ``W`` for its columns. Training therefore runs on a *narrow* network
with as many inputs as the batch has columns: it gets these rows, and all parameters behind ``W``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.errors import ConfError
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.layers.layer import DenseLayer, Layer
from dl4jlegacy.nn.layers.output import OutputLayer
from dl4jlegacy.nn.multilayer_updater import MultiLayerUpdater
from dl4jlegacy.nn.optimization.updaters import AdaGrad, NoOp, Sgd
from dl4jlegacy.nn.parameters import ParamLayout

__all__ = ["InputRows", "Part", "check_sparse_input", "narrow_conf", "put_rows", "take_rows"]

_EXACT = (Sgd, AdaGrad, NoOp)
"""Updaters that leave a weight and its state unchanged where the gradient is 0."""
_WIDTH = 512
"""The inputs of a narrow network are a multiple of this, so that batches of similar size share a network."""


def check_sparse_input(layers: Sequence[Layer]) -> None:
    """Raise ``ConfError`` if the first of these resolved layers cannot take sparse features."""
    first = layers[0]
    what = f"sparse features enter layer 0 ({first.title()})"
    if not isinstance(first, DenseLayer | OutputLayer):
        raise ConfError(f"{what}, and only a dense layer or an output layer takes them; put one there")
    if not isinstance(first.updater or Sgd(), _EXACT):
        raise ConfError(
            f"{what}, whose updater {type(first.updater).__name__} changes weights that a batch does not touch; give "
            "the network, or this layer, Sgd or AdaGrad"
        )
    if first.l1 or first.l2:
        raise ConfError(f"{what}, whose l1 or l2 shrinks all of its weights with each batch; leave them out there")


class Part(NamedTuple):
    """A part of parameters or state: ``W (n_in, n_out)`` of the first layer, or None, and the elements after it."""

    W: Array | None
    rest: Array


class InputRows(msgspec.Struct, frozen=True):
    """The places of the first layer's weights in the vectors.

    Attributes:
        n_in, n_out: of the first layer.
        length: the number of parameters that share its updater, from the first on.
        vectors: the number of state vectors of this updater for them, each of this length.
    """

    n_in: int
    n_out: int
    length: int
    vectors: int

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> InputRows:
        """Return the places for a network with these resolved layers."""
        layout = ParamLayout.of(layers)
        block = MultiLayerUpdater(layers, layout).blocks[0]
        n_in, n_out = layout.spans[0].shape
        return cls(n_in, n_out, block.stop, block.rows)

    def with_inputs(self, n_in: int) -> InputRows:
        """Return the places for the same network with ``n_in`` inputs."""
        return InputRows(n_in, self.n_out, self.length + (n_in - self.n_in) * self.n_out, self.vectors)

    def fits(self, params: int, state: int) -> bool:
        """Return whether ``params`` and ``state`` have the lengths of such a network."""
        return (
            min(self.n_in, self.n_out, self.length, self.vectors + 1) > 0
            and self.n_in * self.n_out <= self.length <= params
            and self.vectors * self.length <= state
        )

    def parts(self, params: Array, state: Array) -> list[Part]:
        """Return all parts of both vectors, as views."""
        size, end = self.n_in * self.n_out, self.vectors * self.length
        vectors = [params, *(state[row * self.length : (row + 1) * self.length] for row in range(self.vectors))]
        parts = [Part(vector[:size].reshape(self.n_out, self.n_in).T, vector[size:]) for vector in vectors]
        return [*parts, Part(None, state[end:])]


def narrow_conf(conf: MultiLayerConfiguration, columns: int) -> MultiLayerConfiguration:
    """Return the configuration of the narrow network for ``columns`` columns; it may have more inputs than that."""
    width = -(-max(columns, 1) // _WIDTH) * _WIDTH
    first = msgspec.structs.replace(conf.layers[0], n_in=width)
    return msgspec.structs.replace(conf, layers=(first, *conf.layers[1:]), input_type=None)


def take_rows(whole: Sequence[Part], columns: npt.NDArray[Any], narrow: Sequence[Part]) -> None:
    """Copy these rows, and everything behind the rows, into the narrow network; weights of unused inputs are 0."""
    for ours, theirs in zip(whole, narrow, strict=True):
        theirs.rest[...] = ours.rest
        if ours.W is not None and theirs.W is not None:
            theirs.W[: len(columns)] = ours.W[columns]
            theirs.W[len(columns) :] = 0


def put_rows(whole: Sequence[Part], columns: npt.NDArray[Any], narrow: Sequence[Part]) -> None:
    """Write the parts that ``take_rows`` copied back into the whole network."""
    for ours, theirs in zip(whole, narrow, strict=True):
        ours.rest[...] = theirs.rest
        if ours.W is not None and theirs.W is not None:
            ours.W[columns] = theirs.W[: len(columns)]
