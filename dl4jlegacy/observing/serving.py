"""Metrics of served models for Prometheus, in a registry of their own.

``SERVING_METRICS`` lists them; a test compares it with the table in ``docs/prometheus.md`` and with what is served.
Labels are the names of models, which are fixed when the server begins, and a few fixed words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from dl4jlegacy.observing.prometheus import Metric, Values, families

__all__ = ["SERVING_METRICS", "ModelFigures", "ServingMetrics"]

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Bounds of the histograms."""

SERVING_METRICS = (
    Metric("dl4j_serve_requests_total", "counter", "requests for predictions that were answered", "model,status"),
    Metric("dl4j_serve_request_seconds", "histogram", "seconds from a request's headers to its answer", "model"),
    Metric("dl4j_serve_batch_rows", "histogram", "rows that were computed together", "model"),
    Metric("dl4j_serve_batch_requests_total", "counter", "requests in these batches", "model"),
    Metric("dl4j_serve_compute_seconds", "histogram", "seconds that the network took for a batch", "model"),
    Metric("dl4j_serve_pending_requests", "gauge", "requests that have come and are not answered", "model"),
    Metric("dl4j_serve_queued_requests", "gauge", "those of them that wait for a worker", "model"),
    Metric("dl4j_serve_model_version", "gauge", "the version that is served; 1 is that of the start", "model"),
    Metric("dl4j_serve_reloads_total", "counter", "new versions: done, or failed", "model,outcome"),
)
"""All metrics but those of ``prometheus_client`` about the process: ``process_resident_memory_bytes`` ..."""
_BY_NAME = {metric.name: metric for metric in SERVING_METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """The present metric values of a model.

    Attributes:
        name: of the model.
        version: of the served model.
        pending: requests without an answer so far.
        waiting: the pending requests that wait for a worker.
        reloads: number of reloads that were ``done``, and that ``failed``.
    """

    name: str
    version: int
    pending: int
    waiting: int
    reloads: Mapping[str, int]


class ServingMetrics:
    """Metrics of served models. Thread-safe.

    Args:
        library: ``prometheus_client``.
        models: names of the models.
        figures: returns the present values of all models; called for each request.
    """

    def __init__(self, library: Any, models: Sequence[str], figures: Callable[[], Iterable[ModelFigures]]) -> None:
        self._library, self._figures = library, figures
        self._registry = library.CollectorRegistry()
        library.ProcessCollector(registry=self._registry)
        self._requests = self._made("dl4j_serve_requests_total", library.Counter)
        requests = self._made("dl4j_serve_batch_requests_total", library.Counter)
        seconds = self._made("dl4j_serve_request_seconds", library.Histogram, buckets=_SECONDS)
        rows = self._made("dl4j_serve_batch_rows", library.Histogram, buckets=_ROWS)
        compute = self._made("dl4j_serve_compute_seconds", library.Histogram, buckets=_SECONDS)
        self._seconds = {name: seconds.labels(name) for name in models}
        self._batches = {name: [each.labels(name) for each in (requests, rows, compute)] for name in models}
        self._answered: dict[tuple[str, int], Any] = {}
        self._registry.register(self)

    @classmethod
    def if_installed(cls, models: Sequence[str], figures: Callable[[], Iterable[ModelFigures]]) -> Self | None:
        """Return metrics of models; None without ``prometheus_client``."""
        try:
            import prometheus_client
            import prometheus_client.core
        except ImportError:
            return None
        return cls(prometheus_client, models, figures)

    def _made(self, name: str, kind: Any, **options: Any) -> Any:
        metric = _BY_NAME[name]
        return kind(name, metric.text, metric.label.split(","), registry=self._registry, **options)

    def answered(self, model: str, status: int, seconds: float) -> None:
        """Count an answered request of a model."""
        counter = self._answered.get((model, status))
        if counter is None:
            counter = self._answered[model, status] = self._requests.labels(model, str(status))
        counter.inc()
        self._seconds[model].observe(seconds)

    def of_batches(self, model: str) -> Callable[[int, int, float], None]:
        """Return a function to call after each forward pass of a model, with (requests, rows, seconds)."""
        requests, rows, compute = self._batches[model]

        def computed(joined: int, count: int, seconds: float) -> None:
            requests.inc(joined)
            rows.observe(count)
            compute.observe(seconds)

        return computed

    def text(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' text format, and its content type."""
        return self._library.generate_latest(self._registry), self._library.CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Any]:
        """Return nothing: the metrics are known when they are read."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Yield the metrics that are not counted here; called by the registry."""
        found = list(self._figures())
        values: Values = {
            "dl4j_serve_pending_requests": {(each.name,): each.pending for each in found},
            "dl4j_serve_queued_requests": {(each.name,): each.waiting for each in found},
            "dl4j_serve_model_version": {(each.name,): each.version for each in found},
            "dl4j_serve_reloads_total": {
                (each.name, outcome): count for each in found for outcome, count in each.reloads.items()
            },
        }
        yield from families(self._library, SERVING_METRICS, values)
