"""Restricted Boltzmann machine: a pretrain layer trained by contrastive divergence."""

from __future__ import annotations

from dl4jlegacy.nn.feedforward import FeedForwardLayer

__all__ = ["RBM"]


class RBM(FeedForwardLayer, frozen=True, kw_only=True, tag="rbm"):
    """Restricted Boltzmann machine (Hinton 2002); units: binary, gaussian, rectified, softmax."""

    visible_unit: str = "binary"
    hidden_unit: str = "binary"
    k: int = 1
    sparsity: float = 0.0
    loss: str = "reconstruction_crossentropy"
    visible_bias_init: float = 0.0
