"""The layers of a network, and ``Layer``: the union of all of them, told apart by ``type`` in JSON."""

from __future__ import annotations

from dl4jlegacy.nn.autoencoder import AutoEncoder
from dl4jlegacy.nn.feedforward import FeedForwardLayer
from dl4jlegacy.nn.rbm import RBM

__all__ = ["RBM", "AutoEncoder", "DenseLayer", "FeedForwardLayer", "Layer", "OutputLayer"]


class DenseLayer(FeedForwardLayer, frozen=True, kw_only=True, tag="dense"):
    """Fully connected layer: ``y = activation(x W + b)``."""


class OutputLayer(FeedForwardLayer, frozen=True, kw_only=True, tag="output"):
    """Dense layer that ends a network and knows the loss."""

    loss: str = "mcxent"


Layer = DenseLayer | OutputLayer | RBM | AutoEncoder
