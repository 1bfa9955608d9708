"""What a network's parameters are like, and what changed in them from one model to the next.

Legacy: DL4J's ``StatsListener`` and ``BaseStatsListener``: mean magnitudes, their ratio, and histograms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dl4jlegacy.arrays.backend import Array
from dl4jlegacy.nn.conf.network import ComputationGraphConfiguration
from dl4jlegacy.nn.networks import NetworkConfiguration
from dl4jlegacy.nn.parameters import ParamLayout, ParamSpan

__all__ = ["MOST_VALUES", "NamedSpan", "Statistics", "named_spans", "statistics_of"]

MOST_VALUES = 100_000
"""Of more values than that every k-th is in a histogram."""


@dataclass(frozen=True, slots=True)
class NamedSpan:
    """A parameter of a network: ``layer`` is its layer's number, or the name of its vertex."""

    layer: str
    span: ParamSpan

    @property
    def name(self) -> str:
        """DL4J's name of it: ``0_W``, ``out_b``."""
        return f"{self.layer}_{self.span.name}"


@dataclass(frozen=True, slots=True)
class Statistics:
    """What some values are like.

    Attributes:
        mean_magnitude: the mean of their absolute values.
        sample: those that are in the histogram, float64.
        counts: how many of the sample are in each bar of the histogram.
        edges: where these begin, and where the last one ends: from the least to the largest of the sample.
    """

    mean_magnitude: float
    sample: Array
    counts: tuple[int, ...]
    edges: tuple[float, ...]


def named_spans(conf: NetworkConfiguration) -> list[NamedSpan]:
    """Return the parameters of a network, in their order in the flat vector; raises like ``conf.resolved``."""
    layers = conf.resolved()
    names = [str(number) for number in range(len(layers))]
    if isinstance(conf, ComputationGraphConfiguration):
        names = [node.name for node in conf.nodes() if node.stage is not None]
    return [NamedSpan(names[span.layer], span) for span in ParamLayout.of(layers).spans]


def statistics_of(values: Array, bars: int) -> Statistics | None:
    """Return what values, ``(count,)``, are like; None if there are none, or if one is NaN or infinite."""
    if not values.size or not np.isfinite(values).all():
        return None
    sample = values[:: -(-len(values) // MOST_VALUES)].astype(np.float64)
    counts, edges = np.histogram(sample, bars)
    return Statistics(float(np.abs(values).mean()), sample, tuple(counts.tolist()), tuple(edges.tolist()))
