"""An exporter without its library says how to install it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dl4jlegacy.errors import ConfError
from dl4jlegacy.observing.opentelemetry import OpenTelemetryObserver
from dl4jlegacy.observing.prometheus import PrometheusObserver
from dl4jlegacy.observing.tensorboard import TensorBoardObserver


@pytest.mark.parametrize(
    ("library", "make", "words"),
    [
        ("opentelemetry", OpenTelemetryObserver, "opentelemetry-sdk and its exporter.*'./install otel'"),
        ("prometheus_client", lambda: PrometheusObserver(0), "prometheus-client.*'./install metrics'"),
        ("tensorboardX", lambda: TensorBoardObserver(Path()), "tensorboardX.*'./install tensorboard'"),
    ],
)
def test_without_its_library_an_exporter_says_how_to_get_it(
    library: str, make: Callable[[], object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith(library):
            raise ImportError(name)
        return usual(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfError, match=words):
        make()
