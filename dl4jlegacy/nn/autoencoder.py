"""Denoising autoencoder with tied weights: a pretrain layer trained by backpropagation."""

from __future__ import annotations

from dl4jlegacy.nn.feedforward import FeedForwardLayer

__all__ = ["AutoEncoder"]


class AutoEncoder(FeedForwardLayer, frozen=True, kw_only=True, tag="autoencoder"):
    """Denoising autoencoder (Vincent et al. 2008) with tied weights."""

    corruption_level: float = 0.3
    sparsity: float = 0.0
    loss: str = "reconstruction_crossentropy"
    visible_bias_init: float = 0.0
