"""DBN and StackedDenoisingAutoEncoder: the legacy names for a network that is pretrained layer by layer.

Legacy: ``org.deeplearning4j.models.classifiers.dbn.DBN`` and ``...classifiers.sae.StackedDenoisingAutoEncoder``.
"""

from __future__ import annotations

from typing import ClassVar

from dl4jlegacy.errors import ConfError
from dl4jlegacy.kernels.protocol import Kernels
from dl4jlegacy.nn.conf.network import MultiLayerConfiguration
from dl4jlegacy.nn.layers.autoencoder import AutoEncoder
from dl4jlegacy.nn.layers.rbm import RBM
from dl4jlegacy.nn.network.multilayer import MultiLayerNetwork

__all__ = ["DBN", "StackedDenoisingAutoEncoder"]


class DBN(MultiLayerNetwork):
    """Deep belief network: a stack of RBMs under an output layer (Hinton, Osindero, Teh 2006).

    ``fit`` pretrains every RBM, then fine-tunes the whole network, whatever the configuration says.
    """

    pretrains_and_finetunes: ClassVar[bool] = True

    def __init__(self, conf: MultiLayerConfiguration, *, kernels: Kernels | None = None, init: bool = True) -> None:
        super().__init__(conf, kernels=kernels, init=init)
        _demand(self, RBM)


class StackedDenoisingAutoEncoder(MultiLayerNetwork):
    """A stack of denoising autoencoders under an output layer (Vincent et al. 2010).

    ``fit`` pretrains every autoencoder, then fine-tunes the whole network, whatever the configuration says.
    """

    pretrains_and_finetunes: ClassVar[bool] = True

    def __init__(self, conf: MultiLayerConfiguration, *, kernels: Kernels | None = None, init: bool = True) -> None:
        super().__init__(conf, kernels=kernels, init=init)
        _demand(self, AutoEncoder)


def _demand(network: MultiLayerNetwork, kind: type[RBM] | type[AutoEncoder]) -> None:
    if not any(isinstance(layer, kind) for layer in network.layers):
        titles = ", ".join(layer.title() for layer in network.layers)
        raise ConfError(
            f"a {type(network).__name__} needs at least one {kind.__name__} layer; the configuration has: {titles}"
        )
