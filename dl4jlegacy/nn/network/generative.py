"""Generation of data with a trained variational autoencoder, and the probability of data under it.

Legacy: ``generateAtMeanGivenZ``, ``generateRandomGivenZ`` and ``reconstructionLogProbability`` of
``org.deeplearning4j.nn.layers.variational.VariationalAutoencoder``.
"""

from __future__ import annotations

from dl4jlegacy.arrays.backend import Array, as_contiguous
from dl4jlegacy.arrays.seeding import Stream
from dl4jlegacy.errors import ConfError, ShapeError
from dl4jlegacy.nn.layers.feedforward import Params
from dl4jlegacy.nn.layers.variational import VariationalAutoencoder
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork
from dl4jlegacy.nn.optimization.step import Step, Workspace

__all__ = ["generate_at_mean_given_z", "generate_random_given_z", "reconstruction_log_probability"]

_NOWHERE = Stream(0)


def generate_at_mean_given_z(network: MultiLayerNetwork, z: Array, *, layer: int = 0) -> Array:
    """Return the means of p(x|z), ``(examples, n_in of the layer)``, for latent values ``z (examples, n_out)``.

    Raises:
        ConfError: the layer is not a variational autoencoder.
        ShapeError: the layer has another number of latent values.
    """
    found, params, step = _parts(network, layer, _NOWHERE)
    return found.generate_at_mean_given_z(params, _latent(found, z, network), step).copy()


def generate_random_given_z(network: MultiLayerNetwork, z: Array, stream: Stream, *, layer: int = 0) -> Array:
    """Return samples of p(x|z), drawn from ``stream``; otherwise as ``generate_at_mean_given_z``."""
    found, params, step = _parts(network, layer, stream)
    return found.generate_random_given_z(params, _latent(found, z, network), step).copy()


def reconstruction_log_probability(
    network: MultiLayerNetwork, x: Array, num_samples: int, stream: Stream, *, layer: int = 0
) -> Array:
    """Return ``log p(x)`` of every example, ``(examples,)``, in nats, estimated from ``num_samples`` latent values.

    ``x`` is the network's input. The estimate is biased low, less so with more samples; low values mark outliers.
    Raises as ``generate_at_mean_given_z``, and ``ConfError`` for less than one sample.
    """
    if num_samples < 1:
        raise ConfError(f"num_samples={num_samples}; at least 1 is needed")
    found, params, step = _parts(network, layer, stream)
    below = network.feed_forward(x)[layer].reshape(len(x), -1)
    return found.reconstruction_log_probability(params, below, step, num_samples).copy()


def _parts(network: MultiLayerNetwork, index: int, stream: Stream) -> tuple[VariationalAutoencoder, Params, Step]:
    layer = network.layers[index] if 0 <= index < len(network.layers) else None
    if not isinstance(layer, VariationalAutoencoder):
        known = [i for i, other in enumerate(network.layers) if isinstance(other, VariationalAutoencoder)]
        raise ConfError(f"layer {index} is no variational autoencoder; those that are: {known}")
    prefix = f"{index}_"
    table = network.param_table
    params = {name.removeprefix(prefix): view for name, view in table.items() if name.startswith(prefix)}
    return layer, params, Step(network.kernels, Workspace(), stream, False).at(index)


def _latent(layer: VariationalAutoencoder, z: Array, network: MultiLayerNetwork) -> Array:
    if z.ndim != 2 or z.shape[1] != layer.n_out:
        raise ShapeError(f"z has shape {z.shape}; {layer.title()} wants (examples, {layer.n_out})")
    return as_contiguous(z, network.kernels.xp, network.params.dtype)
