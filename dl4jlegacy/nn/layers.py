"""The layers of a network, and ``Layer``: the union of all of them, told apart by ``type`` in JSON.

The dense layer is here; every other kind, or family of kinds, has a module of its own.
"""

from __future__ import annotations

from dl4jlegacy.nn.autoencoder import AutoEncoder
from dl4jlegacy.nn.feedforward import FeedForwardLayer
from dl4jlegacy.nn.output import BaseOutputLayer, OutputLayer
from dl4jlegacy.nn.rbm import RBM

__all__ = ["RBM", "AutoEncoder", "BaseOutputLayer", "DenseLayer", "FeedForwardLayer", "Layer", "OutputLayer"]


class DenseLayer(FeedForwardLayer, frozen=True, kw_only=True, tag="dense"):
    """Fully connected layer: ``y = activation(x W + b)``."""


Layer = DenseLayer | OutputLayer | RBM | AutoEncoder
