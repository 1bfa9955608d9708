"""A network's first pretrain layers as one generative model of the input: encode up, decode down, and sample.

Hinton, Salakhutdinov 2006, "Reducing the dimensionality of data with neural networks" (reconstruction through a stack);
Hinton, Osindero, Teh 2006, "A fast learning algorithm for deep belief nets", section 6 (samples: a Gibbs chain in the
top RBM, then one pass down).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dl4jlegacy.arrays.backend import Array, as_contiguous, asarray, to_host
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, NotFiniteError, ShapeError
from dl4jlegacy.kernels import draws
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.feedforward import Params
from dl4jlegacy.nn.layers.layer import PretrainLayer
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.network.flat_network import row_slices
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.networks import Network
from dl4jlegacy.nn.optimization.step import Step, Workspace

__all__ = ["GIBBS_STEPS", "check_gives_back", "pretrain_stack", "rebuilds_input", "reconstruct_input", "sample_input"]

GIBBS_STEPS = 1000
"""Default number of Gibbs steps of a chain."""


def rebuilds_input(network: Network) -> bool:
    """Return whether a network of either kind was trained by backpropagation to output its own input."""
    last = network.layers[-1]
    return bool(network.conf.backprop and network.n_out == network.n_in and last.activation != "softmax")


def pretrain_stack(network: Network) -> tuple[PretrainLayer, ...]:
    """Return the consecutive pretrain layers at a network's beginning; () if there are none."""
    found: list[PretrainLayer] = []
    for stage in network.stages if isinstance(network, MultiLayerNetwork) else ():
        if not isinstance(stage.layer, PretrainLayer) or stage.pre_processor is not None:
            break
        found.append(stage.layer)
    return tuple(found)


def check_gives_back(network: Network) -> None:
    """Raise ``ConfError`` unless ``reconstruct_input`` supports the network."""
    if not rebuilds_input(network):
        _checked(network, None)


def reconstruct_input(network: Network, x: Array, *, layer: int | None = None) -> Array:
    """Return a network's reconstruction of its input, ``(examples, n_in)``, on the host.

    Args:
        network: a ``MultiLayerNetwork``, or a ``ComputationGraph`` that was trained to reconstruct its input.
        x: the network's input, ``(examples, n_in)``, or images.
        layer: the topmost layer of the pass up. The pass down goes from there through the conditional means of each
            lower layer. None: the outputs if the network was trained to reconstruct, else the last pretrain layer.

    Raises:
        ConfError: the network supports neither, or has no such layer.
        ShapeError: ``x`` does not fit the network.
        NotFiniteError: a value is NaN or infinite; names its row.
    """
    if layer is None and rebuilds_input(network):
        return np.asarray(to_host(network.output(x))).reshape(len(x), -1)
    stack = _checked(network, layer)
    top = len(stack) if layer is None else layer + 1
    flat = np.ascontiguousarray(to_host(x)).reshape(len(x), -1)
    if flat.shape[1] != network.n_in:
        raise ShapeError(f"x has shape {x.shape}; {stack[0].title()} wants (examples, {network.n_in})")
    step = Step(network.kernels, Workspace(), Stream(0), False)
    parts: list[Array] = []
    for rows in row_slices(len(flat)):
        y = as_contiguous(flat[rows], network.kernels.xp, network.params.dtype)
        with np.errstate(all="ignore"):  # _finite reports what a warning would, with the row
            for index in range(top):
                y = stack[index].forward(_params(network, index), y, step.at(index))[0]
            parts.append(_down(stack, network, y, top, step))
    return _finite(np.concatenate(parts), "reconstruction")


def sample_input(
    network: Network, count: int, stream: Stream, *, layer: int | None = None, gibbs_steps: int = GIBBS_STEPS
) -> Array:
    """Return samples of the input from a network's pretrain stack, ``(count, n_in)``, on the host.

    The top layer decides the method: latent values of a variational autoencoder are drawn from N(0, 1), the visible
    units of an RBM by a Gibbs chain. Lower layers then decode through means.

    Args:
        network: a ``MultiLayerNetwork`` that begins with pretrain layers.
        count: the number of samples.
        stream: the random numbers.
        layer: the top layer; None: the last one of the pretrain stack.
        gibbs_steps: steps of each chain, for an RBM.

    Raises:
        ConfError: the top layer cannot be sampled, or a number is below 1.
        NotFiniteError: a value is NaN or infinite; names its row.
    """
    for name, value in (("count", count), ("gibbs_steps", gibbs_steps)):
        if value < 1:
            raise ConfError(f"{name}={value}; at least 1 is needed")
    stack = _checked(network, layer)
    top = len(stack) - 1 if layer is None else layer
    found, step = stack[top], Step(network.kernels, Workspace(), stream, False)
    if isinstance(found, AutoEncoder):
        raise ConfError(
            f"layer {top} ({found.title()}) has no distribution to draw from; samples come from RBMs and variational "
            "autoencoders, and an autoencoder gives back what it is shown (dl4j reconstruct)"
        )
    with np.errstate(all="ignore"):
        if isinstance(found, RBM):
            below = found.sample(_params(network, top), count, gibbs_steps, step.at(top))
            return _finite(_down(stack, network, below, top, step), "sample")
        drawn = draws.normal(stream.at(purpose="latent").generator(), (count, found.n_out))
        latent = asarray(drawn.astype(network.params.dtype), like=network.params)
        return _finite(_down(stack, network, latent, top + 1, step), "sample")


def _down(stack: Sequence[PretrainLayer], network: Network, y: Array, top: int, step: Step) -> Array:
    """Return the mean input of the network, copied to the host, given the input ``y`` of layer ``top``."""
    for index in reversed(range(top)):
        y = stack[index].decode(_params(network, index), y, step.at(index))
    return np.array(to_host(y))


def _finite(rows: Array, what: str) -> Array:
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise NotFiniteError(f"the {what} of row {bad[0]} (the first is 0) is NaN or infinite; are the data scaled?")
    return rows


def _params(network: Network, index: int) -> Params:
    prefix, table = f"{index}_", network.param_table
    return {name.removeprefix(prefix): view for name, view in table.items() if name.startswith(prefix)}


def _checked(network: Network, layer: int | None) -> tuple[PretrainLayer, ...]:
    """Return the pretrain stack; raises ``ConfError`` if there is none, or ``layer`` is not in it."""
    stack = pretrain_stack(network)
    if not stack:
        titles = ", ".join(each.title() for each in network.layers)
        raise ConfError(
            f"a network of {titles} does not begin with layers that rebuild their input (RBM, AutoEncoder, "
            "VariationalAutoencoder)"
        )
    if layer is not None and not 0 <= layer < len(stack):
        raise ConfError(f"layer {layer} is not among the layers 0 to {len(stack) - 1} that rebuild their input")
    return stack
