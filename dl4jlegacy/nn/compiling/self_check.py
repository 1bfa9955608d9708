"""What training makes of a network's first parameters here: the bits in which machines of one run must agree.

One pass over made-up examples uses all kernels that the network trains with, in milliseconds, and whatever any of them
computes in another way shows in the parameters.
"""

from __future__ import annotations

import hashlib
import logging

import numpy as np

from dl4jlegacy.arrays.backend import Array, to_host
from dl4jlegacy.datasets import DataSet, MultiDataSet
from dl4jlegacy.errors import Dl4jError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.graph.computation_graph import ComputationGraph
from dl4jlegacy.nn.input_type import AnyInputType
from dl4jlegacy.nn.layers.output import BaseOutputLayer
from dl4jlegacy.nn.networks import Network, NetworkConfiguration, build_network

__all__ = ["training_digest"]

logger = logging.getLogger(__name__)

_EXAMPLES, _STEPS = 5, 4
_MOST_PARAMETERS = 20_000_000
"""A larger network is not checked, since that would take seconds, and its memory twice."""


def training_digest(conf: NetworkConfiguration, kernels: Kernels) -> str:
    """Return the beginning of the SHA-256 of a network's parameters and updater state after one batch of training.

    Where made-up examples do not fit the network, or it is very large, the same word on every machine.

    Args:
        conf: resolved.
        kernels: those that a worker trains with, for arrays in the host's memory.
    """
    network = build_network(conf, kernels)
    if network.num_params > _MOST_PARAMETERS:
        return "not checked"
    try:
        network.init()
        _train(network)
    except (Dl4jError, ValueError) as exc:
        logger.debug("made-up examples do not fit this network: %s", exc)
        return f"not checked ({type(exc).__name__})"
    digest = hashlib.sha256()
    for array in (network.params, network.updater_state):
        digest.update(to_host(array).tobytes())
    return digest.hexdigest()[:16]


def _train(network: Network) -> None:
    if isinstance(network, ComputationGraph):
        inputs = [_features(kind, number) for number, kind in enumerate(network.input_types)]
        nodes = {node.name: node.vertex for node in network.conf.vertices}
        last = [nodes[name] for name in network.conf.network_outputs]
        network.fit(MultiDataSet(inputs, [_labels(*each) for each in zip(network.outputs(*inputs), last, strict=True)]))
        return
    features, layer = _features(network.stages[0].input_type, 0), network.layers[-1]
    batch = DataSet(features, _labels(network.output(features), layer))
    network.pretrain(batch)
    if isinstance(layer, BaseOutputLayer):
        network.finetune(batch)


def _features(kind: AnyInputType, number: int) -> Array:
    """Return examples for an input: zeros and ones, which may be numbers of classes, too."""
    shape = tuple(size or _STEPS for size in kind.shape)
    return (_mixed((_EXAMPLES, *shape), number) >> np.uint64(40) & np.uint64(1)).astype(np.float32)


def _labels(output: Array, layer: object) -> Array:
    """Return labels for an output: class 0, or numbers between 0 and 1 that are 1 together, over the classes."""
    if isinstance(layer, BaseOutputLayer) and layer.takes_indices():
        return np.zeros_like(output[:, :1])
    some = (_mixed(output.shape, 0) >> np.uint64(40)).astype(np.float32) + np.float32(1)
    labels: Array = some / some.sum(axis=1, keepdims=True)
    return labels


def _mixed(shape: tuple[int, ...], number: int) -> Array:
    """Return integers that look like random ones, the same everywhere."""
    count = int(np.prod(shape))
    numbers = np.arange(1 + number * count, 1 + (number + 1) * count, dtype=np.uint64)
    return (numbers * np.uint64(0x9E3779B97F4A7C15)).reshape(shape)
