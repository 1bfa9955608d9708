"""What every feed-forward layer has in common: the fields that may be inherited from the network's configuration.

A layer is a frozen struct that is both configuration and behaviour. A field that is ``None`` (a size that is 0) is
filled by ``MultiLayerConfiguration.resolved()``; only resolved layers compute.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["FeedForwardLayer"]


class FeedForwardLayer(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True
):
    """Fields shared by all layers; ``None`` (0 for a size) means: inherit, or infer from the neighbouring layer.

    Legacy: ``org.deeplearning4j.nn.conf.layers.FeedForwardLayer``.
    """

    name: str | None = None
    n_in: int = 0
    n_out: int = 0
    activation: str | None = None
    weight_init: str | None = None
    dist: Any = None
    bias_init: float | None = None
    updater: Any = None
    l1: float | None = None
    l2: float | None = None
    l1_bias: float | None = None
    l2_bias: float | None = None
    drop_out: float | None = None
    gradient_normalization: str | None = None
    gradient_normalization_threshold: float | None = None
