"""The service: its models, its access rules and its limits."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dl4jlegacy.observing.serving import ModelFigures, ServingMetrics
from dl4jlegacy.serving.answers import Limits, RefusedError, accepted
from dl4jlegacy.serving.models import ServedModel

__all__ = ["ENDING", "Service"]

_OPEN = ("/health", "/ready")  # without a token: liveness probes have none
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
ENDING = "the server ends; ask another one, or later"


@dataclass(slots=True)
class Service:
    """The served models and the rules for requests.

    Attributes:
        models: by name.
        limits: of requests.
        token: the token that a request must have, ``Authorization: Bearer TOKEN``. None: no token; then only requests
            to a loopback name of this machine are answered, so that no foreign web page can read the answers in a
            browser.
        is_ending: whether the server refuses new requests.
        metrics: the Prometheus metrics; None: the library is not installed.
    """

    models: Mapping[str, ServedModel]
    limits: Limits = field(default_factory=Limits)
    token: str | None = field(default=None, repr=False)
    is_ending: bool = False
    metrics: ServingMetrics | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.metrics = ServingMetrics.if_installed(list(self.models), self._figures)
        if self.metrics is not None:
            for served in self.models.values():
                served.queue.told = self.metrics.of_batches(served.name)

    def _figures(self) -> Iterator[ModelFigures]:
        for served in self.models.values():
            yield ModelFigures(
                name=served.name,
                version=served.current.version,
                pending=served.pending,
                waiting=served.queue.waiting,
                reloads=dict(served.reloads),
            )

    def check(self, path: str, host: str, authorization: str) -> None:
        """Raise ``RefusedError`` unless a request to this path with these headers may be answered."""
        if self.token is None:
            host = host.lower()
            if (host if host.endswith("]") else host.rpartition(":")[0] or host) not in _LOCAL:
                raise RefusedError(403, f"host {host[:100]!r} is no name of this machine's loopback", "DL4J-AUTH")
        elif path not in _OPEN and not hmac.compare_digest(authorization.encode(), f"Bearer {self.token}".encode()):
            raise RefusedError(401, "the token is missing or wrong: send Authorization: Bearer TOKEN", "DL4J-AUTH")
        if self.is_ending and path != "/health":
            raise RefusedError(503, ENDING)

    def model(self, name: str) -> ServedModel:
        """Return the model with a name; raises ``RefusedError`` if there is none."""
        if name not in self.models:
            raise RefusedError(404, f"there is no model {name[:100]!r}; there are {', '.join(sorted(self.models))}")
        return self.models[name]

    def only_model(self) -> ServedModel:
        """Return the only model, for requests without a name; raises ``RefusedError`` if there are several."""
        if len(self.models) > 1:
            names = ", ".join(sorted(self.models))
            raise RefusedError(404, f"there are several models, {names}; ask /v1/models/NAME/predict")
        return next(iter(self.models.values()))

    def metadata(self, served: ServedModel) -> dict[str, Any]:
        """Return the metadata of a model."""
        model = served.current.model
        kind = "values" if model.predicts_numbers else "labels" if model.reading.is_multi_label else "classes"
        found = {"name": served.name, "version": served.current.version, "n_in": model.network.n_in}
        found |= {
            "n_out": model.network.n_out,
            "predicts": kind,
            "label_names": list(model.output_names(model.network.n_in)),
        }
        if model.reading.feature_columns:
            found["columns"] = list(model.reading.feature_columns)
        return {**found, "accepts": list(accepted(model)), "problem": served.problem, "pending": served.pending}
