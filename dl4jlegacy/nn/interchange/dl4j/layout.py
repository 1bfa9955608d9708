"""Conversion of parameters and updater state between the layout of a model file and our layout.

Five things differ, for each layer. In 1.0.0 a layer may have no bias; batch normalization stores the logarithm of the
standard deviation (``useLogStd``); one-dimensional convolution stores weights as (kernel, in, out) instead of
(out, in, kernel). In 0.9.1 frozen layers have updater state, and the running variance includes ``eps``. In all other
cases both vectors are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.kernels.elementary import exp
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration
from dl4jlegacy.nn.interchange.dl4j.names import number, tagged
from dl4jlegacy.nn.layers.convolution import Convolution1DLayer
from dl4jlegacy.nn.layers.layer import Layer
from dl4jlegacy.nn.layers.normalization import BatchNormalization
from dl4jlegacy.nn.multilayer_updater import MultiLayerUpdater, UpdaterBlock
from dl4jlegacy.nn.parameters import ParamLayout, ParamSpan

__all__ = [
    "LayerLayout",
    "count",
    "layouts_of",
    "params_from_ours",
    "params_to_ours",
    "state_count",
    "state_from_ours",
    "state_to_ours",
    "written_layouts",
]

Tree = dict[str, Any]
_Blocks = Iterable[tuple[UpdaterBlock, list[ParamSpan]]]


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """The layout of one layer's parameters in a file."""

    has_bias: bool = True
    is_log_std: bool = False
    is_kernel_first: bool = False
    has_frozen_state: bool = False
    eps_in_var: float = 0.0

    def has(self, span: ParamSpan) -> bool:
        """Return whether the file has this parameter."""
        return span.name != "b" or self.has_bias


def layouts_of(tree: Tree, conf: Any) -> tuple[LayerLayout, ...]:
    """Return the layouts of all layers in a ``configuration.json``, in the order of their parameters.

    Args:
        tree: the parsed file, already validated.
        conf: the configuration read from it.
    """
    if isinstance(conf, ComputationGraphConfiguration):
        names = [node.name for node in conf.nodes() if node.stage is not None]
        found = [tagged(tree["vertices"][name], name)[1]["layerConf"] for name in names]
    else:
        found = tree["confs"]
    return tuple(_layout(each["layer"]) for each in found)


def written_layouts(layers: Sequence[Layer], version: str | None) -> tuple[LayerLayout, ...]:
    """Return the layouts of these layers in a file of ``version``; None: our layout."""
    if version is None:
        return (LayerLayout(),) * len(layers)
    if version == "0.9.1":
        return tuple(
            LayerLayout(
                has_frozen_state=layer.frozen,
                eps_in_var=layer.eps if isinstance(layer, BatchNormalization) else 0.0,
            )
            for layer in layers
        )
    return tuple(LayerLayout(is_kernel_first=isinstance(layer, Convolution1DLayer)) for layer in layers)


def _layout(node: Any) -> LayerLayout:
    name, body = tagged(node, "layer")
    has_frozen_state = name == "FrozenLayer" and "@class" not in body
    if name == "FrozenLayer":
        name, body = tagged(body["layer"], "layer")
    is_old_normalization = name == "batchNormalization" and "@class" not in body
    return LayerLayout(
        eps_in_var=number(body, "eps", 1e-5, "layer") if is_old_normalization else 0.0,
        has_bias=body.get("hasBias") is not False,
        is_log_std=body.get("useLogStd") is True,
        is_kernel_first=name == "Convolution1DLayer" and "@class" in body,
        has_frozen_state=has_frozen_state,
    )


def count(layout: ParamLayout, found: Sequence[LayerLayout]) -> int:
    """Return the length of the parameter vector in the file."""
    return sum(span.stop - span.start for span in layout.spans if found[span.layer].has(span))


def params_to_ours(vector: Array, layout: ParamLayout, found: Sequence[LayerLayout]) -> Array:
    """Return the file's parameters in our layout; a missing bias is zero."""
    ours = np.zeros(layout.size, vector.dtype)
    at = 0
    for span in layout.spans:
        here = found[span.layer]
        if here.has(span):
            size = span.stop - span.start
            ours[span.start : span.stop] = _value_to_ours(vector[at : at + size], span, here)
            at += size
    return ours


def params_from_ours(vector: Array, layout: ParamLayout, found: Sequence[LayerLayout]) -> Array:
    """Return our parameters in the layout of a file that has all of them."""
    pieces = (_value_from_ours(vector[s.start : s.stop], s, found[s.layer]) for s in layout.spans)
    return np.concatenate([vector[:0], *pieces])


def state_count(layers: Sequence[Layer], layout: ParamLayout, found: Sequence[LayerLayout]) -> int:
    """Return the length of the updater state in the file."""
    return sum(span.stop - span.start for span, *_ in _rows(_file_blocks(layers, layout, found)))


def state_to_ours(vector: Array, layers: Sequence[Layer], layout: ParamLayout, found: Sequence[LayerLayout]) -> Array:
    """Return the file's updater state in our layout; the state of a missing bias is a new one."""
    blocks = _file_blocks(layers, layout, found), _our_blocks(layers, layout)
    return _moved(vector, *blocks, found, to_ours=True)


def state_from_ours(vector: Array, layers: Sequence[Layer], layout: ParamLayout, found: Sequence[LayerLayout]) -> Array:
    """Return our updater state in the layout of a file that has all of it; frozen layers get a new state."""
    blocks = _our_blocks(layers, layout), _file_blocks(layers, layout, found)
    return _moved(vector, *blocks, found, to_ours=False)


def _moved(vector: Array, source: _Blocks, target: _Blocks, found: Sequence[LayerLayout], *, to_ours: bool) -> Array:
    """Return the updater state of the blocks ``source`` in the layout of the blocks ``target``, new where missing."""
    pieces: dict[tuple[ParamSpan, int], Array] = {}
    at = 0
    for span, row, _ in _rows(source):
        size = span.stop - span.start
        pieces[span, row] = _turned(vector[at : at + size], span, found[span.layer], to_ours=to_ours)
        at += size
    moved = [
        pieces.get((span, row), np.full(span.stop - span.start, begin, vector.dtype))
        for span, row, begin in _rows(target)
    ]
    return np.concatenate([vector[:0], *moved])


def _file_blocks(layers: Sequence[Layer], layout: ParamLayout, found: Sequence[LayerLayout]) -> _Blocks:
    """Yield the file's blocks, each with its parameters."""
    counted = [
        msgspec.structs.replace(layer, frozen=False) if here.has_frozen_state else layer
        for layer, here in zip(layers, found, strict=True)
    ]
    for block in MultiLayerUpdater(counted, layout).blocks:
        # 0.9.1 gives frozen layers a learning rate of 0, so that they are in no common block with others
        for _, spans in itertools.groupby(_spans(block, layout), lambda span: found[span.layer].has_frozen_state):
            yield block, [span for span in spans if found[span.layer].has(span)]


def _our_blocks(layers: Sequence[Layer], layout: ParamLayout) -> _Blocks:
    for block in MultiLayerUpdater(layers, layout).blocks:
        yield block, _spans(block, layout)


def _spans(block: UpdaterBlock, layout: ParamLayout) -> list[ParamSpan]:
    return [span for span in layout.spans if block.start <= span.start < block.stop]


def _rows(blocks: _Blocks) -> Iterator[tuple[ParamSpan, int, float]]:
    """Yield the parameters in the order of their state: each with the number of the state vector (m before v), and the
    initial value of that vector.
    """
    for block, spans in blocks:
        for row in range(block.rows):
            for span in spans:
                yield span, row, block.updater.begins_at


def _value_to_ours(part: Array, span: ParamSpan, here: LayerLayout) -> Array:
    if span.name != "var" or not span.is_state:
        return _turned(part, span, here, to_ours=True)
    if here.is_log_std:
        variance: Array = exp(2 * 2.302585092994046 * part.astype(np.float64)).astype(part.dtype)
        return variance
    return np.maximum(part - part.dtype.type(here.eps_in_var), 0) if here.eps_in_var else part


def _value_from_ours(part: Array, span: ParamSpan, here: LayerLayout) -> Array:
    if span.name == "var" and span.is_state and here.eps_in_var:
        variance: Array = part + part.dtype.type(here.eps_in_var)
        return variance
    return _turned(part, span, here, to_ours=False)


def _turned(part: Array, span: ParamSpan, here: LayerLayout, *, to_ours: bool) -> Array:
    """Return the weights of a one-dimensional convolution in the other side's order; all others unchanged."""
    if not (here.is_kernel_first and span.name == "W"):
        return part
    n_out, n_in, kernel, _ = span.shape
    sizes = (kernel, n_in, n_out) if to_ours else (n_out, n_in, kernel)
    turned: Array = part.reshape(sizes).transpose(2, 1, 0).ravel()
    return turned
