"""A digest of one training step, whose bits must be equal on all machines of a run.

One pass over synthetic examples uses all kernels of the network's training, in milliseconds; any difference in the
arithmetic of a kernel shows in the parameters.
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
"""Larger networks are not checked: a check would take seconds, and twice the network's memory."""


def training_digest(conf: NetworkConfiguration, kernels: Kernels) -> str:
    """Return the beginning of the SHA-256 of a network's parameters and updater state after one batch of training.

    If synthetic examples do not fit the network, or the network is very large, return the same word on every machine.

    Args:
        conf: resolved.
        kernels: the kernels of a worker's training, for arrays in the host's memory.
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
    """Return examples for an input: zeros and ones, which are also valid class numbers."""
    shape = tuple(size or _STEPS for size in kind.shape)
    return (_mixed((_EXAMPLES, *shape), number) >> np.uint64(40) & np.uint64(1)).astype(np.float32)


def _labels(output: Array, layer: object) -> Array:
    """Return labels for an output: class 0, or numbers between 0 and 1 with sum 1 over the classes."""
    if isinstance(layer, BaseOutputLayer) and layer.takes_indices():
        return np.zeros_like(output[:, :1])
    some = (_mixed(output.shape, 0) >> np.uint64(40)).astype(np.float32) + np.float32(1)
    labels: Array = some / some.sum(axis=1, keepdims=True)
    return labels


def _mixed(shape: tuple[int, ...], number: int) -> Array:
    """Return pseudo-random integers, equal on all machines."""
    count = int(np.prod(shape))
    numbers = np.arange(1 + number * count, 1 + (number + 1) * count, dtype=np.uint64)
    return (numbers * np.uint64(0x9E3779B97F4A7C15)).reshape(shape)
