"""Statistics of a network's parameters, and of their changes from one model to the next.

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
"""Most values in a histogram; of more values, every k-th is used."""


@dataclass(frozen=True, slots=True)
class NamedSpan:
    """A parameter of a network: ``layer`` is the layer's number, or the name of its vertex."""

    layer: str
    span: ParamSpan

    @property
    def name(self) -> str:
        """DL4J's name of the parameter: ``0_W``, ``out_b``."""
        return f"{self.layer}_{self.span.name}"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of some values.

    Attributes:
        mean_magnitude: the mean of their absolute values.
        sample: the values in the histogram, float64.
        counts: the number of sample values in each bar of the histogram.
        edges: the bars' edges, from the smallest to the largest value of the sample.
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
    """Return the statistics of values, ``(count,)``; None if there are none, or if one is NaN or infinite."""
    if not values.size or not np.isfinite(values).all():
        return None
    sample = values[:: -(-len(values) // MOST_VALUES)].astype(np.float64)
    counts, edges = np.histogram(sample, bars)
    return Statistics(float(np.abs(values).mean()), sample, tuple(counts.tolist()), tuple(edges.tolist()))
